//! A socket: the calls that wait, and what the program's descriptor shows of it.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyverbs_rds::{Outgoing, RdmaStatus, RdsError, RdsSocket, Received, Sleeping, Wait};
use rustix::io::Errno;

use crate::mirror::{Ends, Level, Mirror};

pub(crate) struct Socket {
    pub(crate) rds: RdsSocket,
    ends: Arc<Ends>,
    mirror: Arc<Mirror>,
    /// How many calls look for messages themselves.
    receivers: AtomicUsize,
    /// A congestion map has changed since the last call.
    congestion_changed: AtomicBool,
    /// Those for which the program has had no room.
    statuses: Mutex<VecDeque<RdmaStatus>>,
}

impl Socket {
    /// With the program's descriptor.
    ///
    /// # Errors
    /// The system has no more files.
    pub(crate) fn new(
        nonblocking: bool,
        close_on_exec: bool,
    ) -> Result<(Arc<Self>, OwnedFd), Errno> {
        let (ends, descriptor) = Ends::new(nonblocking, close_on_exec)?;
        let ends = Arc::new(ends);
        let socket = Arc::new(Self {
            rds: RdsSocket::new(),
            mirror: Arc::new(Mirror::of(&ends)),
            ends,
            receivers: AtomicUsize::new(0),
            congestion_changed: AtomicBool::new(false),
            statuses: Mutex::default(),
        });
        let (weak, mirror) = (Arc::downgrade(&socket), Arc::clone(&socket.mirror));
        // It may be closed here only while the mirror is locked.
        socket.rds.on_change(Some(Arc::new(move || {
            mirror.show_change(|| {
                weak.upgrade()
                    .map_or(Level::default(), |socket| socket.level())
            });
        })));
        socket.show();
        Ok((socket, descriptor))
    }

    /// Gives up a descriptor. With the last of them, and no call going on, the address is free when this returns.
    pub(crate) fn close(self: Arc<Self>) {
        // A change that is being shown does not keep the socket.
        Arc::clone(&self.mirror).quietly(|| drop(self));
    }

    /// Receives a message, or else notifications, as many as `most` and one at least.
    ///
    /// # Errors
    /// Those of `recvmsg`.
    pub(crate) fn receive(
        &self,
        room: &mut [IoSliceMut<'_>],
        dont_wait: bool,
        peek: bool,
        most: usize,
    ) -> Result<Received, Errno> {
        let received = self.receive_any(room, dont_wait, peek);
        let received = received.map(|received| self.keep_rest(received, most));
        self.congestion_changed.store(false, Ordering::Relaxed);
        match received {
            Err(Errno::AGAIN) => self.mirror.show_after_empty(|| self.level()),
            _ => self.show(),
        }
        received
    }

    fn receive_any(
        &self,
        room: &mut [IoSliceMut<'_>],
        dont_wait: bool,
        peek: bool,
    ) -> Result<Received, Errno> {
        if !self.statuses().is_empty() {
            return Ok(Received::default());
        }
        let mut receive = |wait| match self.rds.receive_message(room, wait, peek) {
            // Nothing arrives at a socket without an address; it may get one.
            Err(RdsError::NotConnected(_)) => Err(Errno::AGAIN),
            received => received.map_err(errno),
        };
        match receive(Wait::No) {
            Err(Errno::AGAIN) if !dont_wait && !self.ends.is_nonblocking() => {}
            outcome => return outcome,
        }
        self.receivers.fetch_add(1, Ordering::SeqCst);
        let mut outcome = receive(Wait::Briefly);
        self.receivers.fetch_sub(1, Ordering::SeqCst);
        let _sleeping = outcome.is_err().then(Sleeping::new);
        while outcome.as_ref().is_err_and(|error| *error == Errno::AGAIN) {
            // That is nothing to receive.
            self.congestion_changed.store(false, Ordering::Relaxed);
            self.mirror.show_after_empty(|| self.level());
            self.ends.wait_readable().map_err(timed_out)?;
            outcome = receive(Wait::No);
        }
        outcome
    }

    fn keep_rest(&self, mut received: Received, most: usize) -> Received {
        let mut kept = self.statuses();
        kept.extend(received.statuses.drain(..));
        let count = kept.len().min(most.max(1));
        received.statuses.extend(kept.drain(..count));
        received
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Those of `sendmsg`.
    pub(crate) fn send(&self, message: Outgoing<'_>, dont_wait: bool) -> Result<usize, Errno> {
        let sent = self.send_any(message, dont_wait);
        self.congestion_changed.store(false, Ordering::Relaxed);
        match sent {
            Err(Errno::AGAIN) => self.mirror.show_after_full(|| self.level()),
            _ => self.show(),
        }
        sent
    }

    fn send_any(&self, message: Outgoing<'_>, dont_wait: bool) -> Result<usize, Errno> {
        let send = |wait| self.rds.send_message(message.clone(), wait).map_err(errno);
        let has_no_room = |error: &Errno| matches!(*error, Errno::AGAIN | Errno::NOBUFS);
        match send(Wait::No) {
            Err(error) if has_no_room(&error) && !dont_wait && !self.ends.is_nonblocking() => {}
            outcome => return outcome,
        }
        match send(Wait::Briefly) {
            Err(error) if has_no_room(&error) => {}
            outcome => return outcome,
        }
        let _sleeping = Sleeping::new();
        loop {
            // Any change from here on ends the waiting, so that none is missed.
            self.mirror.show_full();
            match send(Wait::No) {
                Err(error) if has_no_room(&error) => {}
                outcome => return outcome,
            }
            self.ends.wait_writable().map_err(timed_out)?;
            self.mirror.take_waited();
        }
    }

    /// Shows what is so now on the program's descriptor.
    pub(crate) fn show(&self) {
        self.mirror.show(|| self.level());
    }

    fn level(&self) -> Level {
        let now = self.rds.readiness();
        if now.congestion_changed {
            self.congestion_changed.store(true, Ordering::Relaxed);
        }
        let is_taken = self.receivers.load(Ordering::SeqCst) > 0;
        Level {
            readable: now.readable && !is_taken
                || self.congestion_changed.load(Ordering::Relaxed)
                || !self.statuses().is_empty(),
            writable: now.writable,
        }
    }

    fn statuses(&self) -> MutexGuard<'_, VecDeque<RdmaStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error number that Linux gives.
pub(crate) fn errno(error: RdsError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

// As sockets of this kind tell of it.
fn timed_out(error: Errno) -> Errno {
    match error {
        Errno::AGAIN => Errno::TIMEDOUT,
        error => error,
    }
}
