//! An RDS socket of a C program: the calls that may block, and the readiness that the kernel reports for the program's
//! descriptor.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use polyverbs::provider::Mutex;
use polyverbs_rds::{Outgoing, RdmaStatus, RdsError, RdsSocket, Received, Sleeping, Wait};
use rustix::io::Errno;

use crate::mirror::{Ends, Level, Mirror};
use crate::signals::asleep;

/// The number of calls such as `poll` and `select` that this process has begun.
static POLLS: AtomicU64 = AtomicU64::new(0);

/// Counts a call such as `poll` or `select` that begins. It reports the readiness that the descriptor has at this moment.
pub(crate) fn poll_begins() {
    POLLS.fetch_add(1, Ordering::SeqCst);
}

pub(crate) struct Socket {
    pub(crate) rds: RdsSocket,
    ends: Arc<Ends>,
    mirror: Arc<Mirror>,
    /// The number of threads that poll for messages in a receive call. Meanwhile the descriptor need not become readable
    /// for messages.
    receivers: AtomicUsize,
    /// The number, as in `POLLS`, of the first call that reports a changed congestion map; 0 if there is no change to
    /// report.
    congestion_changed: AtomicU64,
    /// Whether a send was refused because its destination was congested.
    is_refused: AtomicBool,
    /// Statuses of operations that were received and did not fit into the program's control buffer.
    statuses: Mutex<VecDeque<RdmaStatus>>,
}

impl Socket {
    /// Creates a socket without an address. Also returns the descriptor for the program.
    ///
    /// # Errors
    /// The process cannot open further files.
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
            congestion_changed: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            statuses: Mutex::default(),
        });
        let (weak, mirror) = (Arc::downgrade(&socket), Arc::clone(&socket.mirror));
        // The callback may drop the last reference to the socket, which must happen while the mirror is locked.
        socket.rds.on_change(Some(Arc::new(move || {
            mirror.show_change(|| {
                weak.upgrade()
                    .map_or(Level::default(), |socket| socket.level())
            });
        })));
        socket.show();
        Ok((socket, descriptor))
    }

    /// Ends the use of the socket by one descriptor. If it was the last one and no call is in progress, the socket's
    /// address is free when this returns.
    pub(crate) fn close(self: Arc<Self>) {
        // Once this has the mirror's lock, no callback that updates the mirror holds a reference to the socket.
        Arc::clone(&self.mirror).quietly(|| drop(self));
    }

    /// Receives one message, or notifications: at least one of those and at most `most`.
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
        self.note_congestion();
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
        if !self.statuses.lock().is_empty() {
            return Ok(Received::default());
        }
        let mut receive = |wait| match self.rds.recv_msg(room, wait, peek) {
            // A socket that is not bound receives nothing yet, but another thread may bind it during the wait.
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
        let mut changed = 0;
        while outcome.as_ref().is_err_and(|error| *error == Errno::AGAIN) {
            // A changed congestion map makes the descriptor readable, but there is nothing to receive.
            changed = self
                .congestion_changed
                .swap(0, Ordering::SeqCst)
                .max(changed);
            self.mirror.show_after_empty(|| self.level());
            outcome = match asleep(|| self.ends.wait_readable()) {
                Ok(()) => receive(Wait::No),
                Err(error) => Err(timed_out(error)),
            };
        }
        if changed != 0 {
            self.congestion_changed.fetch_max(changed, Ordering::SeqCst);
        }
        outcome
    }

    fn keep_rest(&self, mut received: Received, most: usize) -> Received {
        let mut kept = self.statuses.lock();
        kept.extend(received.statuses.drain(..));
        let count = kept.len().min(most.max(1));
        received.statuses.extend(kept.drain(..count));
        received
    }

    /// Sends a message. Blocks while there is no room or the destination is congested, unless `dont_wait` is set or the
    /// descriptor is nonblocking.
    ///
    /// # Errors
    /// Those of `sendmsg`.
    pub(crate) fn send(&self, message: Outgoing<'_>, dont_wait: bool) -> Result<usize, Errno> {
        let sent = self.send_any(message, dont_wait);
        if let Err(Errno::NOBUFS) = sent {
            self.is_refused.store(true, Ordering::SeqCst);
        }
        self.note_congestion();
        match sent {
            Err(Errno::AGAIN) => self.mirror.show_after_full(|| self.level()),
            _ => self.show(),
        }
        sent
    }

    fn send_any(&self, message: Outgoing<'_>, dont_wait: bool) -> Result<usize, Errno> {
        let send = |wait| self.rds.send_msg(message.clone(), wait).map_err(errno);
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
            // The descriptor becomes writable at each change from here on, which ends the wait below, so that no change is
            // missed.
            self.mirror.show_full();
            match send(Wait::No) {
                Err(error) if has_no_room(&error) => {}
                outcome => return outcome,
            }
            asleep(|| self.ends.wait_writable()).map_err(timed_out)?;
            self.mirror.take_waited();
        }
    }

    /// Ends the report of a changed congestion map after a call on the socket. If a send was refused because of congestion,
    /// the program may wait for the change, so the report stays until a `poll` has begun after the change.
    fn note_congestion(&self) {
        let changed = self.congestion_changed.load(Ordering::SeqCst);
        if changed == 0 {
            return;
        }
        let is_seen = POLLS.load(Ordering::SeqCst) >= changed;
        if is_seen || !self.is_refused.load(Ordering::SeqCst) {
            // If the map has changed again in the meantime, that change is still reported.
            let _ = self.congestion_changed.compare_exchange(
                changed,
                0,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// Updates the program's descriptor to the present readiness of the socket.
    pub(crate) fn show(&self) {
        self.mirror.show(|| self.level());
    }

    fn level(&self) -> Level {
        let now = self.rds.readiness();
        if now.congestion_changed {
            let next = POLLS.load(Ordering::SeqCst) + 1;
            self.congestion_changed.store(next, Ordering::SeqCst);
        }
        let is_taken = self.receivers.load(Ordering::SeqCst) > 0;
        Level {
            readable: now.readable && !is_taken
                || self.congestion_changed.load(Ordering::SeqCst) != 0
                || !self.statuses.lock().is_empty(),
            writable: now.writable,
        }
    }
}

/// The error number that Linux returns for this error.
pub(crate) fn errno(error: RdsError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

// RDS sockets report an expired timeout as `ETIMEDOUT`, where the Unix socket of the mirror reports `EAGAIN`.
fn timed_out(error: Errno) -> Errno {
    match error {
        Errno::AGAIN => Errno::TIMEDOUT,
        error => error,
    }
}
