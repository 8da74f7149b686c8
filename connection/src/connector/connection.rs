//! Established connections: their ends, and flushing.

use std::sync::Arc;

use verbs_api::provider::backend::ConnectError;
use verbs_api::{Qp, Started};

use super::request::{Request, begin};
use super::side::{Side, watch};
use super::target::Target;

/// One end of an established connection. The program may destroy its queue pair at any time. Dropping this value
/// disconnects, but does not modify the queue pair; [`disconnected`](Self::disconnected) then completes, and
/// [`timewait_exit`](Self::timewait_exit) fails with [`VerbError::Canceled`](verbs_api::VerbError::Canceled).
///
/// ```
/// # use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
/// # let connecting = connector.connect(&near, listener.address(), ConnectionOptions::new());
/// # let accepting = listener.next().wait()?.accept(&far, ConnectionOptions::new());
/// # let (near_end, far_end) = (connecting.wait()?, accepting.wait()?);
/// let ended = near_end.disconnected(); // by either side
/// far_end.disconnect().wait()?;
/// ended.wait()?;
/// near_end.disconnect().wait()?; // disconnected already: flushes the queue pair
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connection {
    side: Arc<Side>,
    target: Target,
    private_data: Arc<[u8]>,
}

impl Connection {
    /// Returns the peer's private data: on the active side that of the peer's reply, on the passive side that of its
    /// request.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Completes when either side has ended the connection. The queue pair is not modified: its requests stay outstanding until
    /// [`disconnect`](Self::disconnect) or [`flush`].
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] if this side has ended the connection, and the peer has not confirmed that in time. The
    /// connection has ended nevertheless.
    pub fn disconnected(&self) -> Started<(), ConnectError> {
        let mut state = self.side.lock();
        let ended = state.ended.clone();
        watch(ended, &mut state.watchers)
    }

    /// Completes when the connection's TIMEWAIT is over: InfiniBand's connection manager may use its communication IDs
    /// again. On other transports it completes when the connection has ended.
    pub fn timewait_exit(&self) -> Started<(), ConnectError> {
        let mut state = self.side.lock();
        let over = state.timewait_is_over.then_some(Ok(()));
        watch(over, &mut state.timewait_watchers)
    }

    /// Ends the connection, and flushes the queue pair when the peer has confirmed the end or has not answered in time.
    ///
    /// # Errors
    /// [`ConnectError::Phase`] if the queue pair no longer exists; the connection has ended nevertheless.
    pub fn disconnect(&self) -> Started<(), ConnectError> {
        let target = self.target.clone();
        let flush = move |request| match target.close() {
            // A failure shows in the flush that follows.
            Some(closed) => closed.on_done(move |_| flush_phase(&target, request)),
            None => flush_phase(&target, request),
        };
        self.side.tell_peer(&self.target.context, flush)
    }

    /// Ends the connection, and completes when the peer has confirmed the end or has not answered in time. The queue pair is not
    /// modified.
    pub fn end(&self) -> Started<(), ConnectError> {
        let context = &self.target.context;
        self.side.tell_peer(context, |request| request.end(Ok(())))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A disconnect under way goes on by itself.
        if self.side.lock().waiter.is_none() {
            self.side.forget();
            self.side.tell_watchers();
        }
    }
}

fn flush_phase(target: &Target, request: Arc<Request<()>>) {
    match target.flush() {
        Ok(flushed) => flushed.on_done(move |flushed| {
            request.end(flushed.map_err(ConnectError::in_queue_pair));
        }),
        Err(error) => request.end(Err(error)),
    }
}

/// Flushes a queue pair by moving it to ERR: all outstanding requests complete, in order. The connection is not ended.
///
/// ```
/// use polyverbs::{WcStatus, connection::flush, wr::ReceiveRequest};
/// # use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
/// # let connecting = connector.connect(&near, listener.address(), ConnectionOptions::new());
/// # let accepting = listener.next().wait()?.accept(&far, ConnectionOptions::new());
/// # let (near_end, far_end) = (connecting.wait()?, accepting.wait()?);
/// near.post_receive(ReceiveRequest::new(7, ()))?;
/// flush(&near).wait()?;
/// assert_eq!(cq.next().wait()?.status, WcStatus::WrFlushErr);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn flush(qp: &Qp) -> Started<(), ConnectError> {
    let target = Target::new(qp);
    let (started, request) = begin(&target.context);
    flush_phase(&target, request);
    started
}

/// Returns the connection if `result` is a success; otherwise gives the connection up at the backend, which notifies the
/// peer.
pub(super) fn settle(
    side: Arc<Side>,
    target: &Target,
    private_data: &Arc<[u8]>,
    outcome: Result<(), ConnectError>,
) -> Result<Connection, ConnectError> {
    match outcome {
        Ok(()) => {
            side.lock().is_established = true;
            Ok(Connection {
                side,
                target: target.clone(),
                private_data: Arc::clone(private_data),
            })
        }
        Err(error) => {
            side.forget();
            Err(error)
        }
    }
}

opaque!(Connection);
