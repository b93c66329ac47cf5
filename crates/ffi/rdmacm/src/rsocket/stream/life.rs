//! The open directions of a connection, and why it ended.

/// Which half of a connection is shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
    Both,
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Both directions were shut down, or an end disconnected.
    Disconnected,
    /// A request failed, or the peer violated the protocol.
    Failed,
}

/// The state of an established connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life {
    readable: bool,
    writable: bool,
    end: Option<End>,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self { readable: true, writable: true, end: None }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.end.is_none()
    }

    /// Whether the peer may send more.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable && self.is_connected()
    }

    /// Whether we may send more.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable && self.is_connected()
    }

    /// Whether the program has shut down writing.
    pub(crate) fn is_shut_for_writing(&self) -> bool {
        !self.writable
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.end
    }

    /// Ends the connection. The first reason is kept.
    pub(crate) fn on_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Handles the peer's shutdown. If both directions are shut down, the connection ends.
    pub(crate) fn on_peer_shutdown(&mut self) {
        self.readable = false;
        if !self.writable {
            self.on_end(End::Disconnected);
        }
    }

    /// Shuts down one or both directions. Returns the message for the peer, or `None` if the peer needs no message.
    pub(crate) fn shut_down(&mut self, direction: Direction) -> Option<CloseMessage> {
        if !self.is_connected() {
            return None;
        }
        let had = (self.readable, self.writable);
        self.readable &= direction == Direction::Write;
        self.writable &= direction == Direction::Read;
        match (self.readable, self.writable) {
            now if now == had => None,
            (_, true) => None,
            (true, false) => Some(CloseMessage::Shutdown),
            (false, false) => Some(CloseMessage::Disconnect),
        }
    }
}

/// The control message that a shutdown sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseMessage {
    /// We stop sending, but continue to read.
    Shutdown,
    /// Both directions end.
    Disconnect,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_ends_by_itself() {
        let mut life = Life::new();
        assert_eq!(life.shut_down(Direction::Write), Some(CloseMessage::Shutdown));
        assert!(life.is_readable() && !life.is_writable());
        assert_eq!(life.shut_down(Direction::Write), None, "said once");
        assert_eq!(life.shut_down(Direction::Read), Some(CloseMessage::Disconnect));
        assert!(life.is_connected(), "until the message has left");
        assert_eq!(Life::new().shut_down(Direction::Read), None, "the peer need not know");
        assert_eq!(Life::new().shut_down(Direction::Both), Some(CloseMessage::Disconnect));
    }

    #[test]
    fn the_peers_last_word() {
        let mut life = Life::new();
        life.on_peer_shutdown();
        assert!(!life.is_readable() && life.is_writable());
        let mut life = Life::new();
        life.shut_down(Direction::Write);
        life.on_peer_shutdown();
        assert_eq!(life.end(), Some(End::Disconnected));
    }

    #[test]
    fn the_first_reason_stays() {
        let mut life = Life::new();
        life.on_end(End::Failed);
        life.on_end(End::Disconnected);
        assert_eq!(life.end(), Some(End::Failed));
        assert_eq!(life.shut_down(Direction::Both), None);
    }
}
