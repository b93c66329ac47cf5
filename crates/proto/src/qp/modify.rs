//! `modify`: state transitions.

use super::state::{AttrLimits, ModifyError, check, check_current, check_values, relevant};
use super::{FixedWindow, HistoryEvent, Host, Machine, Qp};
use crate::Time;
use crate::cc::CongestionControl;
use crate::verbs::{AttrMask, QpAttr, QpState, Route};

impl Qp {
    /// Changes attributes and state. `route` is the resolved `attr.av` if the mask contains it. A refused call has no
    /// effect.
    pub fn modify<H: Host>(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        route: Option<Route>,
        limits: &AttrLimits,
        now: Time,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let mask = relevant(self.id.transport, mask);
        let from = self.attr.state;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        check_current(attr, mask, from)?;
        check(self.id.transport, from, to, mask)?;
        check_values(attr, mask, limits)?;
        self.take_over(attr, mask);
        if let Some(route) = route {
            self.route = route;
        }
        self.change_state(from, to, mask, now, host);
        Ok(())
    }

    fn take_over(&mut self, new: &QpAttr, mask: AttrMask) {
        macro_rules! take {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$bit) { self.attr.$field = new.$field; })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
            ACCESS_FLAGS => access,
            PKEY_INDEX => pkey_index,
            PORT => port,
            QKEY => qkey,
            AV => av,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            RQ_PSN => rq_psn,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            SQ_PSN => sq_psn,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            PATH_MIG_STATE => path_mig_state,
            DEST_QPN => dest_qpn,
        }
    }

    fn change_state<H: Host>(&mut self, from: QpState, to: QpState, mask: AttrMask, now: Time, host: &mut H) {
        if from != to && (from == QpState::Reset || to != QpState::Err) {
            host.record(HistoryEvent::State(to), 1);
        }
        let takes_jumbo = self.id.may_exchange_jumbo(&self.attr);
        match (from, to) {
            (QpState::Reset, QpState::Err) => self.attr.state = to,
            (_, QpState::Err) => self.enter_error(now, host),
            (_, QpState::Reset) => self.reset(),
            (_, QpState::Rtr) => {
                self.attr.state = to;
                self.has_received = false;
                match &mut self.machine {
                    Machine::Rc(rc) => rc.1.start(&self.attr, takes_jumbo),
                    Machine::Uc(uc) => uc.1.start(&self.attr),
                    Machine::Ud(_) => {}
                }
            }
            (QpState::Rtr, QpState::Rts) => {
                self.attr.state = to;
                match &mut self.machine {
                    Machine::Rc(rc) => rc.0.start(&self.attr, &self.sq, takes_jumbo),
                    Machine::Uc(uc) => uc.0.start(&self.attr),
                    Machine::Ud(ud) => ud.start(&self.attr),
                }
            }
            _ => {
                self.attr.state = to;
                self.reconfigure(mask);
            }
        }
        self.drain_reported = self.attr.state != QpState::Sqd;
        self.report_drained(host);
    }

    fn reconfigure(&mut self, mask: AttrMask) {
        let Machine::Rc(rc) = &mut self.machine else { return };
        if mask.intersects(AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY) {
            rc.0.reconfigure(&self.attr);
        }
        if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            rc.1.reconfigure(&self.attr);
        }
    }

    /// Resets a destroyed queue pair; remaining references see RESET.
    pub fn retire(&mut self) {
        self.reset();
    }

    /// Returns to RESET: outstanding work is discarded without completions (IBA 10.3.1, RESET).
    fn reset(&mut self) {
        self.sq.clear();
        self.rq.clear();
        let mut congestion = FixedWindow { bytes: 0 }.into();
        if let Some(current) = self.machine.congestion() {
            current.restart();
            core::mem::swap(current, &mut congestion);
        }
        self.renew_machine(congestion);
        self.attr = QpAttr { cap: self.attr.cap, path_mtu: self.attr.path_mtu, ..QpAttr::default() };
        self.route = Route::default();
    }
}
