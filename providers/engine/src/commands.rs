//! The command interface of an emulated device: control verbs take as long as the device's options say.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use verbs_api::provider::Reply;
use verbs_api::{ArgumentReason, VerbError};

use crate::network::Progress;
use crate::sync::Mutex;
use crate::timers::Timers;

type Command = Box<dyn FnOnce(Result<(), VerbError>) + Send>;

/// Control verbs that were started and not answered yet.
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

    /// Sets how long each command takes from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.pending.lock().latency = latency;
    }

    /// Returns whether the device was removed.
    pub fn is_removed(&self) -> bool {
        self.pending.lock().removed
    }

    /// Runs a command after the device's latency and answers it; at once if there is no latency.
    ///
    /// The caller never blocks. After a removal the answer is that the device was removed.
    pub fn run<T: Send + 'static>(
        &self,
        reply: Reply<T>,
        work: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
    ) {
        self.submit(move |alive| reply.send(alive.and_then(|()| work())));
    }

    /// Runs a verb that returns an object and that answers by itself: after the device's latency, or when the device is
    /// removed, because the object must be released in any case.
    pub fn run_last<T: Send + 'static>(
        &self,
        reply: Reply<T>,
        work: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        self.submit(move |_| work(reply));
    }

    // A thread that starts a verb neither polls nor posts, so this flushes frames that would leave with either:
    // acknowledges of the completions that the program has polled. The peer may have to act by the time that the verb is
    // answered.
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

    /// Answers all outstanding and all later commands with the error that the device was removed.
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

/// The error for a number that is too small or too large.
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
