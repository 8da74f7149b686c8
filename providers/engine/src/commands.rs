//! The command interface of an emulated device: control verbs take as long as the device is told to take.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use verbs_api::provider::Reply;
use verbs_api::{ArgumentReason, VerbError};

use crate::network::Progress;
use crate::sync::Mutex;
use crate::timers::Timers;

type Command = Box<dyn FnOnce(Result<(), VerbError>) + Send>;

/// Control verbs that have been started and not answered yet.
pub struct Commands {
    me: Weak<Self>,
    network: Arc<dyn Progress>,
    timers: Arc<Timers>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    latency: Duration,
    commands: BTreeMap<u64, Command>,
    next: u64,
    removed: bool,
}

impl Commands {
    pub(crate) fn new(
        network: Arc<dyn Progress>,
        timers: Arc<Timers>,
        latency: Duration,
    ) -> Arc<Self> {
        let pending = Pending {
            latency,
            ..Pending::default()
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            network,
            timers,
            pending: Mutex::new(pending),
        })
    }

    /// How long each command takes from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.pending.lock().latency = latency;
    }

    /// Whether the device was removed.
    pub fn is_removed(&self) -> bool {
        self.pending.lock().removed
    }

    /// Carries a command out after the device's latency and answers it; at once where there is none.
    ///
    /// The caller is never blocked. After removal the answer is that the device was removed.
    pub fn run<T: Send + 'static>(
        &self,
        reply: Reply<T>,
        work: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
    ) {
        self.submit(move |alive| reply.send(alive.and_then(|()| work())));
    }

    /// Carries out a verb that gives an object back, and that answers by itself: after the device's latency, or when
    /// the device is removed, for what the object holds must not stay behind.
    pub fn run_last<T: Send + 'static>(
        &self,
        reply: Reply<T>,
        work: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        self.submit(move |_| work(reply));
    }

    // Who asks for one neither polls nor posts, and would keep back what leaves with either: acknowledges of what he
    // was told. The peer may have to do something by the time that he has what he asks for.
    fn submit(&self, command: impl FnOnce(Result<(), VerbError>) + Send + 'static) {
        self.network.flush();
        let mut pending = self.pending.lock();
        if pending.removed {
            drop(pending);
            return command(Err(VerbError::DeviceRemoved));
        }
        let latency = pending.latency;
        if latency.is_zero() {
            drop(pending);
            return command(Ok(()));
        }
        pending.next += 1;
        let number = pending.next;
        pending.commands.insert(number, Box::new(command));
        drop(pending);
        let at = self.timers.now().after(latency);
        let me = self.me.clone();
        let job = move |_| {
            let take = |me: Arc<Self>| me.pending.lock().commands.remove(&number);
            if let Some(command) = me.upgrade().and_then(take) {
                command(Ok(()));
            }
        };
        self.timers.add(at, Box::new(job));
    }

    /// Answers everything that is outstanding, and everything to come, with the news that the device was removed.
    pub(crate) fn remove(&self) {
        let mut pending = self.pending.lock();
        pending.removed = true;
        let commands = std::mem::take(&mut pending.commands);
        drop(pending);
        for command in commands.into_values() {
            command(Err(VerbError::DeviceRemoved));
        }
    }
}

/// The answer to a number that is too small or too large.
pub(crate) fn out_of_range(
    argument: &'static str,
    given: impl Into<u64>,
    least: impl Into<u64>,
    most: impl Into<u64>,
) -> VerbError {
    let reason = ArgumentReason::OutOfRange {
        given: given.into(),
        least: least.into(),
        most: most.into(),
    };
    VerbError::argument(argument, reason)
}
