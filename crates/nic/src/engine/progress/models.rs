//! Loom models: requests carry delayed acknowledgements while a poller decides whether it must send them itself. An acknowledgement that the
//! poller takes for carried must have been sent; otherwise the peer would wait for it until its timer expires.

use super::UnsentAck;
use ferroce_os::sync::Mutex;
use ferroce_os::sync::loom::model::Builder;
use ferroce_os::sync::loom::thread;
use ferroce_proto::Qpn;
use std::sync::Arc;

/// A queue pair: whether an acknowledgement waits in it.
struct Model {
    qpn: Qpn,
    waits: Mutex<bool>,
}

impl Model {
    fn new(number: u32) -> Model {
        Model { qpn: Qpn::new(number), waits: Mutex::new(false) }
    }

    /// Posts a request, which carries the acknowledgement if one waits.
    fn post(&self, unsent_ack: &UnsentAck) {
        let mut waits = self.waits.lock();
        *waits = false;
        unsent_ack.clear_if(self.qpn);
    }
}

/// The holder of the progress lock.
struct Poller {
    waiting: Vec<Arc<Model>>,
    unsent_ack: Arc<UnsentAck>,
}

impl Poller {
    /// A message arrives, and its acknowledgement is delayed.
    fn receive(&mut self, qp: &Arc<Model>) {
        let mut waits = qp.waits.lock();
        *waits = true;
        if self.waiting.is_empty() {
            self.unsent_ack.set(qp.qpn);
        }
        self.waiting.push(qp.clone());
    }

    /// The next poll: the acknowledgements are overdue.
    fn send_overdue(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        if self.unsent_ack.all_piggybacked(self.waiting.len()) {
            assert!(!*self.waiting[0].waits.lock(), "it still waits");
        } else {
            for qp in &self.waiting {
                let mut waits = qp.waits.lock();
                *waits = false;
                self.unsent_ack.clear_if(qp.qpn);
            }
        }
        self.waiting.clear();
    }
}

/// Two queue pairs whose programs post requests, while the poller executes `polls` with both.
fn check(posts: [usize; 2], polls: impl Fn(&mut Poller, &[Arc<Model>; 2]) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let unsent_ack = Arc::new(UnsentAck::none());
        let qps = [5, 6].map(|number| Arc::new(Model::new(number)));
        let posting = [0, 1].map(|index| {
            let (qp, unsent_ack) = (qps[index].clone(), unsent_ack.clone());
            thread::spawn(move || (0..posts[index]).for_each(|_| qp.post(&unsent_ack)))
        });
        let mut poller = Poller { waiting: Vec::new(), unsent_ack };
        polls(&mut poller, &qps);
        posting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn an_answer_of_one_queue_pair_does_not_hide_the_wait_of_another() {
    check([1, 1], |poller, [first, second]| {
        for qp in [first, second] {
            poller.receive(qp);
            poller.send_overdue();
        }
    });
}

#[test]
fn the_wait_for_a_second_message_is_not_taken_for_carried() {
    check([2, 0], |poller, [first, _]| {
        poller.receive(first);
        poller.send_overdue();
        poller.receive(first);
        poller.receive(first);
        poller.send_overdue();
    });
}

#[test]
fn one_answer_does_not_hide_the_wait_of_two() {
    check([1, 1], |poller, [first, second]| {
        poller.receive(first);
        poller.receive(second);
        poller.send_overdue();
        poller.receive(second);
        poller.send_overdue();
    });
}
