//! The thread of an open device that takes its asynchronous events and the notices of its completion queues.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use verbs_api::VerbError;
use verbs_api::provider::EventSink;

use crate::context::Context;
use crate::verbs::{never_waits, wait_readable};

pub(crate) struct Watch {
    stop: UnixStream,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Tells `events` and the queues of `context` what comes, until it is [stopped](Self::stop).
    ///
    /// # Errors
    /// The process is out of descriptors or threads.
    pub(crate) fn start(
        context: Arc<Context>,
        events: Arc<dyn EventSink>,
    ) -> Result<Self, VerbError> {
        never_waits(context.live.async_fd()?)?;
        never_waits(context.channel.fd()?)?;
        let (stop, stopped) =
            UnixStream::pair().map_err(|error| VerbError::os("socketpair", error))?;
        let watch = move || while let Ok(true) = round(&context, &*events, &stopped) {};
        let thread = thread::Builder::new()
            .name("libibverbs-events".into())
            .spawn(watch);
        let thread = thread.map_err(|error| VerbError::os("thread", error))?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread; nothing is told any more.
    pub(crate) fn stop(mut self) {
        // A thread that has ended already has closed the other end.
        let _ = self.stop.write_all(&[0]);
        let _ = self.thread.join();
    }
}

/// Waits for something and tells it; answers whether to go on.
fn round(
    context: &Context,
    events: &dyn EventSink,
    stopped: &UnixStream,
) -> Result<bool, VerbError> {
    let fds = [
        stopped.as_fd(),
        context.live.async_fd()?,
        context.channel.fd()?,
    ];
    let [is_stopped, has_event, has_notice] = wait_readable(fds);
    if is_stopped {
        return Ok(false);
    }
    if has_event {
        context
            .live
            .take_event(|event, subject| events.event(event, subject))?;
    }
    if has_notice {
        context.channel.take_notice(|queue| context.notify(queue))?;
    }
    Ok(true)
}
