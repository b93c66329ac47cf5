//! Programs that use the connection manager: ferroce's librdmacm.so.1 on the host, the kernel's rdma_cm in the guest.
//!
//! The two ends exchange RoCE packets only, except that perftest first exchanges its parameters over TCP.

use super::matrix::{Direction, Ip};
use super::namespace::{GUEST_V4, GUEST_V6, HOST_V4, HOST_V6};

/// The fixed port of some programs.
const FIXED_PORT: u16 = 7174;

/// The command lines of both ends. `{server}` is the server's address, `{client}` the client's, `{port}` the port.
pub(crate) struct Lines {
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    /// Text that the client prints on success, because some programs always exit with status 0.
    pub(crate) says: &'static str,
    /// Whether the server waits for further clients and must be stopped.
    pub(crate) stays: bool,
}

impl Lines {
    /// The command line of the server or of the client.
    pub(crate) fn words(&self, serves: bool, direction: Direction, ip: Ip, port: u16) -> Vec<String> {
        let (host, guest) = match ip {
            Ip::V4 => (HOST_V4, GUEST_V4),
            Ip::V6 => (HOST_V6, GUEST_V6),
        };
        let (server, client) = match direction {
            Direction::ToKernel => (guest, host),
            Direction::FromKernel => (host, guest),
        };
        let line = if serves { self.server } else { self.client };
        let line = line.replace("{server}", server).replace("{client}", client);
        line.replace("{port}", &port.to_string()).split_whitespace().map(str::to_owned).collect()
    }

    /// The port of the server.
    pub(crate) fn port(&self, port: u16) -> u16 {
        if self.server.contains("{port}") { port } else { FIXED_PORT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_addresses_of_their_direction() {
        let lines = Lines {
            server: "x -s {server} -p {port}",
            client: "x {server} {client}",
            says: "",
            stays: false,
        };
        let words = |serves, direction| lines.words(serves, direction, Ip::V6, 7).join(" ");
        assert_eq!(words(true, Direction::ToKernel), format!("x -s {GUEST_V6} -p 7"));
        assert_eq!(words(false, Direction::FromKernel), format!("x {HOST_V6} {GUEST_V6}"));
        assert_eq!(lines.port(9), 9);
        assert_eq!(Lines { server: "udaddy", ..lines }.port(9), FIXED_PORT);
    }
}
