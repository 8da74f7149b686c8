//! The command interface of an emulated device. It answers each control verb (create, modify, destroy and others) after the
//! command latency that the device's options set.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use verbs_api::provider::Reply;
use verbs_api::{ArgumentReason, VerbError};

use crate::network::Progress;
use crate::sync::Mutex;
use crate::timers::Timers;

type Command = Box<dyn FnOnce(Result<(), VerbError>) + Send>;

/// The control verbs of a device that programs have started and that are not answered yet.
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

    /// Sets the command latency: the time that each control verb takes that is started from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.pending.lock().latency = latency;
    }

    /// Returns whether the device was removed.
    pub fn is_removed(&self) -> bool {
        self.pending.lock().removed
    }

    /// Runs `work`, which carries out a control verb, after the device's command latency, and sends its result as the
    /// reply. Without latency the calling thread runs it at once; otherwise a timer does, and the caller never blocks.
    ///
    /// Once the device was removed, `work` does not run and the reply is [`VerbError::DeviceRemoved`].
    pub fn run<T: Send + 'static>(
        &self,
        reply: Reply<T>,
        work: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
    ) {
        self.submit(move |alive| reply.send(alive.and_then(|()| work())));
    }

    /// Runs `work`, which destroys an object and sends the reply itself, after the device's command latency. If the device
    /// is removed, `work` runs at that moment, because the object must be released in any case.
    pub fn run_last<T: Send + 'static>(
        &self,
        reply: Reply<T>,
        work: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        self.submit(move |_| work(reply));
    }

    // Polls and posts send the acknowledges that are due for completions which the program has polled, but a thread that
    // starts a verb does neither. So this flushes them: the peer may have to act on them before the verb is answered.
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

    /// Marks the device as removed: all pending and later verbs end now, those of [`run`](Self::run) with the error that
    /// the device was removed.
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

/// Returns the error for a verb's argument whose value is less than `least` or greater than `most`.
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
