//! The states of queue pairs that connections, not verbs, move to RTS and ERR, as on iWARP: some drivers do not report
//! them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use verbs_api::provider::Mutex;
use verbs_api::qp::QpState;

/// A queue pair that the beginning and the end of its connection are reported to.
pub(crate) trait Connected: Send + Sync {
    /// The connection is established: the queue pair is in RTS.
    fn begun(&self);

    /// The connection has ended. The queue pair must be moved to ERR, because no driver flushes outstanding requests
    /// before.
    fn ended(self: Arc<Self>);
}

/// The states of queue pairs, by their numbers.
#[derive(Default)]
pub(crate) struct States(Mutex<HashMap<u32, Known>>);

/// The state of a queue pair, as far as this process knows it.
pub(crate) struct Known {
    state: QpState,
    of: Weak<dyn Connected>,
}

impl States {
    /// Adds a queue pair in RESET with this number.
    pub(crate) fn insert(&self, qp_num: u32, of: Weak<dyn Connected>) {
        let state = QpState::Reset;
        self.0.lock().insert(qp_num, Known { state, of });
    }

    /// Removes a queue pair that is being destroyed, and returns its state.
    pub(super) fn remove(&self, qp_num: u32) -> Option<Known> {
        self.0.lock().remove(&qp_num)
    }

    /// Adds a queue pair again whose destruction failed; it has no connection any longer.
    pub(crate) fn put_back(&self, qp_num: u32, known: Option<Known>) {
        self.0.lock().extend(known.map(|known| (qp_num, known)));
    }

    pub(crate) fn get(&self, qp_num: u32) -> Option<QpState> {
        self.0.lock().get(&qp_num).map(|known| known.state)
    }

    /// Sets the state of a queue pair.
    pub(crate) fn set(&self, qp_num: u32, state: QpState) {
        if let Some(known) = self.0.lock().get_mut(&qp_num) {
            known.state = state;
        }
    }

    /// Notes that the connection of a queue pair is established: if its state is INIT, it becomes RTS, and the queue pair
    /// is notified.
    pub(super) fn begin(&self, qp_num: u32) {
        let mut states = self.0.lock();
        let Some(known) = states.get_mut(&qp_num) else {
            return;
        };
        if known.state != QpState::Init {
            return;
        }
        known.state = QpState::Rts;
        let of = known.of.upgrade();
        drop(states);
        if let Some(of) = of {
            of.begun();
        }
    }

    /// Notes that the connection of a queue pair has ended: if its state is RTS or SQD, it becomes ERR, and the queue pair
    /// is notified.
    pub(super) fn end(&self, qp_num: u32) {
        let mut states = self.0.lock();
        let Some(known) = states.get_mut(&qp_num) else {
            return;
        };
        if !matches!(known.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        known.state = QpState::Err;
        let of = known.of.upgrade();
        drop(states);
        if let Some(of) = of {
            of.ended();
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<&'static str>>);

    impl Recorder {
        fn push(&self, what: &'static str) {
            let mut told = self.0.lock();
            told.push(what);
        }
    }

    impl Connected for Recorder {
        fn begun(&self) {
            self.push("begun");
        }

        fn ended(self: Arc<Self>) {
            self.push("ended");
        }
    }

    #[test]
    fn a_connection_begins_in_init_and_ends_in_err() {
        for last in [QpState::Rts, QpState::Sqd] {
            let (states, pair) = (States::default(), Arc::new(Recorder::default()));
            let weak = Arc::downgrade(&pair) as Weak<dyn Connected>;
            states.insert(1, weak);
            states.begin(1);
            assert_eq!(states.get(1), Some(QpState::Reset));
            states.set(1, QpState::Init);
            states.begin(1);
            assert_eq!(states.get(1), Some(QpState::Rts));
            states.set(1, last);
            states.end(1);
            states.end(1);
            assert_eq!(states.get(1), Some(QpState::Err));
            let told = pair.0.lock();
            assert_eq!(*told, ["begun", "ended"]);
        }
    }
}
