//! A file of the kernel that is readable and writable whenever an RDS socket is, so that the program can use its descriptor
//! with `poll`, `select` and `epoll`.
//!
//! The program's descriptor is one end of a pair of Unix sockets. The pair holds one byte for it to read while there is
//! something to receive. While the RDS socket has no room to send, its send buffer, which is as small as possible, is
//! filled.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use polyverbs::emulated::Unshared;
use polyverbs::provider::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

/// The readiness that the kernel's `poll` reports for the program's descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The two ends of the pair of Unix sockets.
pub(crate) struct Ends {
    /// A duplicate of the program's end, which stays open if the program closes its descriptor.
    theirs: Unshared,
    ours: Unshared,
}

pub(crate) struct Mirror {
    /// Upgraded only while the lock of `shown` is held, so that the file is closed together with the RDS socket.
    ends: Weak<Ends>,
    shown: Mutex<Level>,
    /// Whether the readiness of the RDS socket may have changed since the file was last updated.
    is_stale: AtomicBool,
}

impl Ends {
    /// Creates the pair. Also returns the descriptor for the program.
    ///
    /// # Errors
    /// The process cannot open further files.
    pub(crate) fn new(nonblocking: bool, close_on_exec: bool) -> Result<(Self, OwnedFd), Errno> {
        let made = Unshared::several(|| {
            // The program's end gets the lowest free number, as from any call that opens a file.
            let (program, ours) = socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            let theirs = fcntl_dupfd_cloexec(&program, 0)?;
            Ok((program, vec![theirs, ours]))
        });
        let (program, own) =
            made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let [theirs, ours] = own.try_into().map_err(|_| Errno::NOMEM)?;
        sockopt::set_socket_send_buffer_size(&program, 0)?;
        if nonblocking {
            fcntl_setfl(&program, fcntl_getfl(&program)? | OFlags::NONBLOCK)?;
        }
        if !close_on_exec {
            fcntl_setfd(&program, FdFlags::empty())?;
        }
        Ok((Self { theirs, ours }, program))
    }

    /// Waits until the file is readable by peeking at it, as a reading call of the kernel does, so that signals and
    /// `SO_RCVTIMEO` end the wait.
    ///
    /// # Errors
    /// `AGAIN` after the timeout, `INTR` after a signal.
    pub(crate) fn wait_readable(&self) -> Result<(), Errno> {
        recv(&self.theirs, &mut [MaybeUninit::uninit()], RecvFlags::PEEK).map(drop)
    }

    /// Waits until the file is writable by sending a byte, as a writing call of the kernel does, so that signals and
    /// `SO_SNDTIMEO` end the wait.
    ///
    /// # Errors
    /// `AGAIN` after the timeout, `INTR` after a signal.
    pub(crate) fn wait_writable(&self) -> Result<(), Errno> {
        send(&self.theirs, &[0], SendFlags::NOSIGNAL).map(drop)
    }

    /// Whether the program has made its descriptor nonblocking.
    pub(crate) fn is_nonblocking(&self) -> bool {
        fcntl_getfl(&self.theirs).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    fn put_byte(&self) -> bool {
        send(&self.ours, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }

    fn take_byte(&self) -> bool {
        take(&self.theirs, 1) > 0
    }

    // Fills the send buffer of the program's end, so that it is not writable.
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

    /// Updates the file to the present readiness of the RDS socket, which `now` returns.
    pub(crate) fn show(&self, now: impl Fn() -> Level) {
        self.settle(self.lock(), now);
    }

    /// Updates the file after a change of the RDS socket, without waiting for the lock: if another thread holds it, that
    /// thread updates the file again. A caller of this function may hold the lock itself.
    pub(crate) fn show_change(&self, now: impl Fn() -> Level) {
        self.is_stale.store(true, Ordering::SeqCst);
        if let Some(shown) = self.try_lock() {
            self.settle(shown, now);
        }
    }

    /// Makes the file unreadable after a call that found nothing to receive, then updates it to the present readiness, so
    /// that edge-triggered waiters notice each later change.
    pub(crate) fn show_after_empty(&self, now: impl Fn() -> Level) {
        let mut shown = self.lock();
        self.set_readable(&mut shown, false);
        self.settle(shown, now);
    }

    /// Makes the file unwritable after a call that found no room to send, then updates it to the present readiness.
    pub(crate) fn show_after_full(&self, now: impl Fn() -> Level) {
        let mut shown = self.lock();
        self.set_writable(&mut shown, false);
        self.settle(shown, now);
    }

    /// Runs `work` while no thread can update the file.
    pub(crate) fn quietly(&self, work: impl FnOnce()) {
        let _shown = self.lock();
        work();
    }

    /// Makes the file unwritable until it is next updated.
    pub(crate) fn show_full(&self) {
        self.set_writable(&mut self.lock(), false);
    }

    /// Removes the bytes that waiting send calls have written to the file, unless it is filled to be unwritable.
    pub(crate) fn take_waited(&self) {
        if let (true, Some(ends)) = (self.lock().writable, self.ends.upgrade()) {
            ends.take_sent();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.shown.lock()
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Level>> {
        self.shown.try_lock()
    }

    // Updates the file to the readiness that `now` returns. Reading the readiness may itself cause a change, so this
    // repeats until there is none.
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

    // If the system call fails, the next update tries it again.
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
