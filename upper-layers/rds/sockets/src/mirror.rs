//! A file that is readable and writable for the kernel when a socket is.
//!
//! It is one end of a pair of Unix sockets. A byte lies in it while there is something to receive; what it has sent fills its send
//! buffer, which is as small as there is, while there is no room to send.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

/// What `poll` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The pair of sockets.
pub(crate) struct Ends {
    /// Another descriptor of the program's file.
    theirs: OwnedFd,
    ours: OwnedFd,
}

pub(crate) struct Mirror {
    /// Kept only while the lock is held, so that the file is closed when the socket is.
    ends: Weak<Ends>,
    shown: Mutex<Level>,
    /// What is shown may not be so any more.
    is_stale: AtomicBool,
}

impl Ends {
    /// With the program's descriptor.
    ///
    /// # Errors
    /// The system has no more files.
    pub(crate) fn new(nonblocking: bool, close_on_exec: bool) -> Result<(Self, OwnedFd), Errno> {
        // The lowest number is the program's.
        let (program, ours) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_send_buffer_size(&program, 0)?;
        if nonblocking {
            fcntl_setfl(&program, fcntl_getfl(&program)? | OFlags::NONBLOCK)?;
        }
        if !close_on_exec {
            fcntl_setfd(&program, FdFlags::empty())?;
        }
        let theirs = fcntl_dupfd_cloexec(&program, 0)?;
        Ok((Self { theirs, ours }, program))
    }

    /// Waits until it is readable, as a call of the kernel does that reads: signals and `SO_RCVTIMEO` end it.
    ///
    /// # Errors
    /// `AGAIN` after that time, `INTR` by a signal.
    pub(crate) fn wait_readable(&self) -> Result<(), Errno> {
        recv(&self.theirs, &mut [MaybeUninit::uninit()], RecvFlags::PEEK).map(drop)
    }

    /// Waits until it is writable, by sending a byte: as a call of the kernel does that writes: signals and `SO_SNDTIMEO` end it.
    ///
    /// # Errors
    /// `AGAIN` after that time, `INTR` by a signal.
    pub(crate) fn wait_writable(&self) -> Result<(), Errno> {
        send(&self.theirs, &[0], SendFlags::NOSIGNAL).map(drop)
    }

    /// Whether the program has made its descriptor non-blocking.
    pub(crate) fn is_nonblocking(&self) -> bool {
        fcntl_getfl(&self.theirs).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    fn put_byte(&self) -> bool {
        send(&self.ours, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }

    fn take_byte(&self) -> bool {
        take(&self.theirs, 1) > 0
    }

    // As much as there is room for.
    fn fill(&self) {
        let _ = send(
            &self.theirs,
            &FILLING,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        );
    }

    fn take_sent(&self) {
        while take(&self.ours, FILLING.len()) > 0 {}
    }
}

impl Mirror {
    pub(crate) fn of(ends: &Arc<Ends>) -> Self {
        Self {
            ends: Arc::downgrade(ends),
            shown: Mutex::new(Level {
                readable: false,
                writable: true,
            }),
            is_stale: AtomicBool::new(false),
        }
    }

    /// Shows what is so now.
    pub(crate) fn show(&self, now: impl Fn() -> Level) {
        self.settle(self.lock(), now);
    }

    /// The same where something may have changed, and the caller cannot wait: whoever is showing something shows this too.
    /// That may be the calling thread, further up.
    pub(crate) fn show_change(&self, now: impl Fn() -> Level) {
        self.is_stale.store(true, Ordering::SeqCst);
        if let Some(shown) = self.try_lock() {
            self.settle(shown, now);
        }
    }

    /// The same after a call that has found nothing to receive: whoever waits for a change is told of what has come since.
    pub(crate) fn show_after_empty(&self, now: impl Fn() -> Level) {
        let mut shown = self.lock();
        self.set_readable(&mut shown, false);
        self.settle(shown, now);
    }

    /// The same after a call that has found no room to send.
    pub(crate) fn show_after_full(&self, now: impl Fn() -> Level) {
        let mut shown = self.lock();
        self.set_writable(&mut shown, false);
        self.settle(shown, now);
    }

    /// Does something while nothing changes.
    pub(crate) fn quietly(&self, work: impl FnOnce()) {
        let _shown = self.lock();
        work();
    }

    /// Shows that there is no room to send, until something else is shown.
    pub(crate) fn show_full(&self) {
        self.set_writable(&mut self.lock(), false);
    }

    /// Takes what calls have sent that waited: of each a byte.
    pub(crate) fn take_waited(&self) {
        if let (true, Some(ends)) = (self.lock().writable, self.ends.upgrade()) {
            ends.take_sent();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Level>> {
        match self.shown.try_lock() {
            Ok(shown) => Some(shown),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    // Asking what is so now may itself bring a change.
    fn settle(&self, shown: MutexGuard<'_, Level>, now: impl Fn() -> Level) {
        let mut shown = Some(shown);
        while let Some(mut level) = shown {
            self.is_stale.store(false, Ordering::SeqCst);
            let now = now();
            self.set_readable(&mut level, now.readable);
            self.set_writable(&mut level, now.writable);
            drop(level);
            shown = match self.is_stale.load(Ordering::SeqCst) {
                true => self.try_lock(),
                false => None,
            };
        }
    }

    // What the system refuses is tried again with the next change.
    fn set_readable(&self, shown: &mut Level, readable: bool) {
        if shown.readable != readable
            && let Some(ends) = self.ends.upgrade()
        {
            let is_done = match readable {
                true => ends.put_byte(),
                false => ends.take_byte(),
            };
            if is_done {
                shown.readable = readable;
            }
        }
    }

    fn set_writable(&self, shown: &mut Level, writable: bool) {
        if shown.writable != writable
            && let Some(ends) = self.ends.upgrade()
        {
            match writable {
                true => ends.take_sent(),
                false => ends.fill(),
            }
            shown.writable = writable;
        }
    }
}

const FILLING: [u8; 16384] = [0; 16384];

fn take(from: impl AsFd, most: usize) -> usize {
    let mut bytes = [MaybeUninit::uninit(); FILLING.len()];
    recv(from, &mut bytes[..most], RecvFlags::DONTWAIT).map_or(0, |(_, taken)| taken)
}
