//! The entry points by which the engine drives a queue pair.

use super::flush::io;
use super::io::Fatal;
use super::{Host, Machine, Qp};
use crate::Time;
use crate::verbs::{EventKind, QpState};

impl Qp {
    /// Whether a reply to the peer is queued.
    pub fn has_replies(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => rc.1.has_replies(),
            Machine::Uc(uc) => uc.1.has_replies(),
            Machine::Ud(_) => false,
        }
    }

    /// Whether only positive ACKs are queued. These may be delayed briefly.
    #[inline]
    pub fn only_acks_wait(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => rc.1.only_acks_wait(),
            _ => true,
        }
    }

    /// Sends ACKs and READ responses. Also runs in ERR, to send the last NAK.
    pub fn poll_replies<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state == QpState::Reset {
            return;
        }
        let mut io = io!(self, now, host);
        let outcome = match &mut self.machine {
            Machine::Rc(rc) => rc.1.poll_transmit(&mut io),
            Machine::Uc(uc) => {
                uc.1.poll_transmit(&mut io);
                Ok(())
            }
            Machine::Ud(_) => Ok(()),
        };
        self.settle(outcome, now, host);
    }

    /// Sends requests as far as the window, the ordering rules and the host allow.
    pub fn poll_requests<H: Host>(&mut self, now: Time, host: &mut H) {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) || self.sq.is_empty() {
            return;
        }
        let mut io = io!(self, now, host);
        let outcome = match &mut self.machine {
            Machine::Rc(rc) => {
                let (requester, responder) = &mut **rc;
                let piggybacked_ack =
                    if requester.peer_extends() { responder.piggybacked_ack() } else { None };
                io.piggybacked_ack = piggybacked_ack;
                let outcome = requester.poll_transmit(&mut self.sq, &mut io);
                if io.piggybacked_ack != piggybacked_ack {
                    responder.on_piggybacked(&mut io);
                }
                outcome
            }
            Machine::Uc(uc) => uc.0.poll_transmit(&mut self.sq, &mut io),
            Machine::Ud(ud) => ud.poll_transmit(&mut self.sq, &mut io),
        };
        self.settle(outcome, now, host);
        self.report_drained(host);
    }

    /// Time at which [`Qp::handle_timeout`] is due.
    #[inline] // every packet may change it
    pub fn deadline(&self) -> Option<Time> {
        match (&self.machine, self.attr.state) {
            (Machine::Rc(rc), QpState::Rts | QpState::Sqd) => {
                let requester = rc.0.deadline();
                // The responder rarely has a deadline: only while out-of-order packets are kept.
                rc.1.deadline().map_or(requester, |at| Some(requester.map_or(at, |other| at.min(other))))
            }
            (Machine::Rc(rc), QpState::Rtr) => rc.1.deadline(),
            (Machine::Uc(uc), QpState::Rts | QpState::Sqd) => uc.0.deadline(),
            _ => None,
        }
    }

    /// Handles the deadline. Call [`Qp::poll_requests`] afterwards.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.deadline().is_none_or(|at| now < at) {
            return;
        }
        let outcome = match &mut self.machine {
            Machine::Rc(rc) => {
                rc.1.handle_timeout(now);
                rc.0.handle_timeout(&mut self.sq, &mut io!(self, now, host))
            }
            Machine::Uc(uc) => {
                uc.0.handle_timeout();
                Ok(())
            }
            Machine::Ud(_) => Ok(()),
        };
        self.settle(outcome, now, host);
    }

    /// Handles a fatal outcome: RC enters ERR, UC and UD enter SQE (IBA 10.3.1).
    #[inline(always)] // nearly every outcome is `Ok`
    pub(super) fn settle<H: Host>(&mut self, outcome: Result<(), Fatal>, now: Time, host: &mut H) {
        if outcome.is_err() {
            self.stop(now, host);
        }
    }

    #[cold]
    fn stop<H: Host>(&mut self, now: Time, host: &mut H) {
        match self.machine {
            Machine::Rc(_) => self.enter_error(now, host),
            Machine::Uc(_) | Machine::Ud(_) => self.enter_send_error(now, host),
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => rc.0.is_drained(),
            Machine::Uc(uc) => uc.0.is_drained(),
            Machine::Ud(_) => true,
        }
    }

    pub(super) fn report_drained<H: Host>(&mut self, host: &mut H) {
        if !self.drain_reported && self.attr.state == QpState::Sqd && self.is_drained() {
            self.drain_reported = true;
            if self.attr.en_sqd_async_notify {
                host.event(EventKind::SqDrained);
            }
        }
    }
}
