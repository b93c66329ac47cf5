//! The progress contexts of a NIC, and which queue pair belongs to which.
//!
//! Threads that poll different completion queues should not contend for a lock, a socket or a ring. So each completion queue gets a context, as far
//! as there are processors, and a queue pair belongs to the context of its completion queues: a poll drives the contexts of its queue only. Queues of
//! connections and of datagrams are counted apart: libraries such as UCX make both for each of their threads, one thread after the other, so the
//! two of one thread get the same context. The first context is there from the start and publishes the NIC's regions; the others are opened as they
//! are needed.

use crate::config::{Config, Wire};
use crate::engine::{Background, Engine};
use crate::error::Error;
use crate::poller_activity::MAX_CONTEXTS;
use crate::queues::CqCore;
use ferroce_os::lock::Mutex;
use ferroce_os::log;
use ferroce_proto::verbs::Transport;
use std::sync::{Arc, OnceLock};

/// A context beyond the first.
pub(crate) struct Context {
    // Dropped first: it drives the engine.
    pub(crate) background: Background,
    pub(crate) engine: Arc<Engine>,
}

/// The contexts beyond the first, and the completion queues of each context.
pub(crate) struct MoreContexts {
    opened: [OnceLock<Context>; MAX_CONTEXTS - 1],
    state: Mutex<State>,
}

struct State {
    /// Each open context, the first one first.
    contexts: Vec<Queues>,
    /// Largest number of contexts.
    most: usize,
}

/// The numbers of the completion queues of a context whose queue pairs are connected, and of those that serve datagrams.
#[derive(Default)]
struct Queues {
    connected: Vec<u32>,
    datagrams: Vec<u32>,
}

impl Queues {
    fn of(&mut self, transport: Transport) -> &mut Vec<u32> {
        if transport == Transport::Ud { &mut self.datagrams } else { &mut self.connected }
    }
}

impl Default for MoreContexts {
    fn default() -> Self {
        let state = State { contexts: vec![Queues::default()], most: 1 };
        MoreContexts { opened: [const { OnceLock::new() }; MAX_CONTEXTS - 1], state: Mutex::new(state) }
    }
}

impl MoreContexts {
    pub(crate) fn new(config: &Config) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // Faults come by seed, and packets are captured in their order: both need one stream of packets. iWARP has one set of sockets.
        let is_one = config.faults.is_some() || config.capture.is_some() || config.wire == Wire::Iwarp;
        let most = if is_one { 1 } else { config.progress_contexts.map_or(processors, usize::from) };
        let more = MoreContexts::default();
        more.state.lock().most = most.clamp(1, MAX_CONTEXTS);
        more
    }

    /// A context beyond the first.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Context> {
        self.opened.get((index as usize).wrapping_sub(1))?.get()
    }

    /// All of them, to be closed.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Context> {
        self.opened.into_iter().filter_map(OnceLock::into_inner)
    }

    /// The number of the context for a queue pair with these completion queues. If every context has some of its kind and there may be more, opens
    /// another with `open`, which gets its number.
    pub(crate) fn assign(
        &self,
        transport: Transport,
        cqs: [&CqCore; 2],
        open: impl FnOnce(usize) -> Result<Context, Error>,
    ) -> u32 {
        let mut state = self.state.lock();
        let known = cqs.iter().map(|cq| cq.contexts()).find(|contexts| *contexts != 0);
        let index = known.map_or_else(|| self.choose(&mut state, transport, open), u32::trailing_zeros);
        cqs.iter().for_each(|cq| state.enter(index, transport, cq));
        index
    }

    fn choose(
        &self,
        state: &mut State,
        transport: Transport,
        open: impl FnOnce(usize) -> Result<Context, Error>,
    ) -> u32 {
        let opened = state.contexts.len();
        let is_busy = state.contexts.iter_mut().all(|queues| !queues.of(transport).is_empty());
        if is_busy && opened < state.most {
            match open(opened) {
                Ok(context) => {
                    let _ = self.opened[opened - 1].set(context);
                    state.contexts.push(Queues::default());
                }
                Err(why) => {
                    log::choice(format_args!("{opened} progress contexts and no more: {why}"));
                    state.most = opened;
                }
            }
        }
        let loads = state.contexts.iter_mut().map(|queues| queues.of(transport).len());
        loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(index, _)| index as u32)
    }

    /// The first context makes completions for this queue too: it belongs to XRC.
    pub(crate) fn enter_first(&self, cq: &CqCore) {
        self.state.lock().enter(0, Transport::XrcTgt, cq);
    }

    /// A completion queue is gone.
    pub(crate) fn release(&self, cq: &CqCore) {
        for Queues { connected, datagrams } in &mut self.state.lock().contexts {
            [connected, datagrams].into_iter().for_each(|ids| ids.retain(|id| *id != cq.id));
        }
    }
}

impl State {
    fn enter(&mut self, index: u32, transport: Transport, cq: &CqCore) {
        if cq.enter_context(index) {
            self.contexts[index as usize].of(transport).push(cq.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::EventHub;

    #[test]
    fn a_context_that_cannot_be_opened_is_done_without() {
        let more = MoreContexts::default();
        more.state.lock().most = 4;
        let events = EventHub::default().subscribe().unwrap();
        let cqs = [0, 1, 2].map(|id| CqCore::new(id, 0, 1, None, Arc::default(), events.clone(), None));
        let mut attempts = 0;
        for cq in &cqs {
            let open = |_| {
                attempts += 1;
                Err(Error::Exhausted { what: "slots", limit: 254 })
            };
            assert_eq!(more.assign(Transport::Rc, [cq, cq], open), 0);
        }
        assert_eq!(attempts, 1, "it is not tried again");
        assert_eq!(more.state.lock().contexts[0].connected, [0, 1, 2]);
        cqs.iter().for_each(|cq| more.release(cq));
        assert!(more.state.lock().contexts[0].connected.is_empty());
    }
}
