//! States of queue pairs that connections bring up and down, as those of iWARP: some drivers do not report them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use verbs_api::provider::Mutex;
use verbs_api::qp::QpState;

/// A queue pair that is notified of the begin and the end of its connection.
pub(crate) trait Connected: Send + Sync {
    /// The connection has begun.
    fn begun(&self);

    /// The connection has ended. No driver flushes outstanding requests before the queue pair is modified to ERR.
    fn ended(self: Arc<Self>);
}

/// The states by number of the queue pair.
#[derive(Default)]
pub(crate) struct States(Mutex<HashMap<u32, Known>>);

/// The state of a queue pair.
pub(crate) struct Known {
    state: QpState,
    of: Weak<dyn Connected>,
}

impl States {
    /// Adds a queue pair with this number.
    pub(crate) fn insert(&self, qp_num: u32, of: Weak<dyn Connected>) {
        let state = QpState::Reset;
        self.0.lock().insert(qp_num, Known { state, of });
    }

    /// Removes a queue pair that is being destroyed.
    pub(super) fn remove(&self, qp_num: u32) -> Option<Known> {
        self.0.lock().remove(&qp_num)
    }

    /// Adds a queue pair again whose destruction failed; it has no connection.
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

    /// The connection has begun: the queue pair leaves INIT, if it is still in it.
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

    /// The connection of a queue pair has ended.
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
