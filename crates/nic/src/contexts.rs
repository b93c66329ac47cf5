//! The progress contexts of a NIC, and which queue pair belongs to which.
//!
//! Threads that poll different completion queues should not contend for a lock, a socket or a ring. So each completion queue gets a context, up
//! to two per processor: UCX has queues for connections and for datagrams in each of its threads. A queue pair belongs to the context of its
//! completion queues, and a poll drives only the contexts of its queue. The first context exists from the start and publishes the NIC's regions.
//! The others are opened when they are needed.

use crate::config::{Config, Wire};
use crate::engine::{Background, Engine};
use crate::error::Error;
use crate::poller_activity::MAX_CONTEXTS;
use crate::queues::CqCore;
use ferroce_os::lock::Mutex;
use ferroce_os::log;
use std::sync::{Arc, OnceLock};

const CONTEXTS_PER_PROCESSOR: usize = 2;

/// A context beyond the first.
pub(crate) struct Context {
    // Dropped first: it drives the engine.
    pub(crate) background: Background,
    pub(crate) engine: Arc<Engine>,
}

/// The contexts beyond the first, and how many completion queues each context has.
pub(crate) struct MoreContexts {
    opened: [OnceLock<Context>; MAX_CONTEXTS - 1],
    state: Mutex<State>,
}

struct State {
    /// Completion queues of each open context, the first one first.
    loads: Vec<u32>,
    /// Largest number of contexts.
    most: usize,
}

impl Default for MoreContexts {
    fn default() -> Self {
        let state = State { loads: vec![0], most: 1 };
        MoreContexts { opened: [const { OnceLock::new() }; MAX_CONTEXTS - 1], state: Mutex::new(state) }
    }
}

impl MoreContexts {
    pub(crate) fn new(config: &Config) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let by_default = CONTEXTS_PER_PROCESSOR * processors;
        // Faults depend on a seed, and a capture records packets in order: both need one stream of packets. iWARP has one set of sockets.
        let is_one = config.faults.is_some() || config.capture.is_some() || config.wire == Wire::Iwarp;
        let most = if is_one { 1 } else { config.progress_contexts.map_or(by_default, usize::from) };
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

    /// The number of the context for a queue pair with these completion queues. If every context has completion queues and there may be more, opens
    /// another with `open`, which gets its number.
    pub(crate) fn assign(
        &self,
        [recv_cq, send_cq]: [&CqCore; 2],
        open: impl FnOnce(usize) -> Result<Context, Error>,
    ) -> u32 {
        let mut state = self.state.lock();
        let known = if recv_cq.contexts() != 0 { recv_cq.contexts() } else { send_cq.contexts() };
        let index = if known != 0 { known.trailing_zeros() } else { self.choose(&mut state, open) };
        for cq in [recv_cq, send_cq] {
            state.loads[index as usize] += u32::from(cq.enter_context(index));
        }
        index
    }

    fn choose(&self, state: &mut State, open: impl FnOnce(usize) -> Result<Context, Error>) -> u32 {
        let is_busy = state.loads.iter().all(|&load| load > 0);
        if is_busy && state.loads.len() < state.most {
            match open(state.loads.len()) {
                Ok(context) => {
                    let _ = self.opened[state.loads.len() - 1].set(context);
                    state.loads.push(0);
                }
                Err(why) => {
                    log::choice(format_args!("{} progress contexts and no more: {why}", state.loads.len()));
                    state.most = state.loads.len();
                }
            }
        }
        let least = state.loads.iter().enumerate().min_by_key(|(_, load)| **load);
        least.map_or(0, |(index, _)| index as u32)
    }

    /// Counts a completion queue for which the first context, too, makes completions.
    pub(crate) fn enter_first(&self, cq: &CqCore) {
        self.state.lock().loads[0] += u32::from(cq.enter_context(0));
    }

    /// Removes a destroyed completion queue from the counts.
    pub(crate) fn release(&self, cq: &CqCore) {
        let mut state = self.state.lock();
        for (index, load) in state.loads.iter_mut().enumerate() {
            *load -= cq.contexts() >> index & 1;
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
        let cqs = [(); 3].map(|()| CqCore::new(1, 0, 1, None, Arc::default(), events.clone(), None));
        let mut attempts = 0;
        for cq in &cqs {
            let open = |_| {
                attempts += 1;
                Err(Error::Exhausted { what: "slots", limit: 254 })
            };
            assert_eq!(more.assign([cq, cq], open), 0);
        }
        assert_eq!(attempts, 1, "it is not tried again");
        assert_eq!(more.state.lock().loads, [3]);
        cqs.iter().for_each(|cq| more.release(cq));
        assert_eq!(more.state.lock().loads, [0]);
    }
}
