//! Waiting of threads for rsockets. Each waiting thread has an eventfd of its own, so that it can poll other files at the
//! same time and gets no wake-ups of other threads.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polyverbs_libibverbs::cancel::sleep_in;
use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{Mutex, forks};

/// How long a call polls before it puts its thread to sleep.
pub(crate) const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep of a waiting thread, and the time without traffic after which a thread that waits for a connection
/// sends a keep-alive.
pub(crate) const SLICE: Duration = Duration::from_secs(1);
/// The error of a call that would have to wait on a nonblocking socket: `EAGAIN`.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);

/// A new eventfd.
///
/// # Errors
/// The process cannot open further files.
pub(crate) fn event_fd(flags: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::eventfd(0, flags) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Polls descriptors for up to `time`. The program may cancel the thread meanwhile. Returns the number of descriptors that
/// are ready.
///
/// # Errors
/// Those of `poll`, and ECANCELED if the thread was cancelled.
pub(crate) fn poll(fds: &mut [libc::pollfd], time: Duration) -> Result<c_int, Errno> {
    let time = libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let entries = fds.as_mut_ptr().expose_provenance();
    let time = (&raw const time).expose_provenance();
    // SAFETY: as many entries as the call names, and no signal mask.
    unsafe { sleep_in(libc::ppoll as *const c_void, [entries, fds.len(), time, 0]) }
}

/// Wakes one waiting thread, by an eventfd. It exists only during the call that waits, so that the program cannot close the
/// descriptor by mistake between calls.
pub(crate) struct Waker {
    fd: OwnedFd,
}

impl Waker {
    /// A waker for the calling thread.
    ///
    /// # Errors
    /// The process cannot open further files.
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let fd = event_fd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
        Ok(Arc::new(Self { fd }))
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn wake(&self) {
        let one = 1_u64;
        // The function `write` of the C library could cancel the thread, which may be one that polls.
        // SAFETY: eight bytes. Full means awake already.
        unsafe { libc::syscall(libc::SYS_write, self.fd(), &raw const one, size_of::<u64>()) };
    }

    /// Discards earlier wake-ups, so that [`sleep`](Self::sleep) waits for a new one.
    pub(crate) fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: room for eight bytes. Empty is what is wanted.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }

    /// Puts the calling thread to sleep until it is woken or `time` has passed.
    ///
    /// # Errors
    /// A signal arrived, or the thread was cancelled.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Errno> {
        let mut own = [libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        poll(&mut own, time).map(drop)
    }
}

/// The wakers of the threads that wait for one rsocket.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<Vec<Arc<Waker>>>);

impl Waiters {
    /// Wakes all waiting threads.
    pub(crate) fn wake(&self) {
        self.0.lock().iter().for_each(|waker| waker.wake());
    }

    /// Adds a waiting thread, which is woken at each change until it is removed.
    pub(crate) fn add(&self, waker: &Arc<Waker>) {
        self.0.lock().push(Arc::clone(waker));
    }

    pub(crate) fn remove(&self, waker: &Arc<Waker>) {
        let mut all = self.0.lock();
        if let Some(place) = all.iter().position(|known| Arc::ptr_eq(known, waker)) {
            all.swap_remove(place);
        }
    }
}

/// The state that stream and datagram sockets have for waiting threads.
pub(crate) struct Waiting {
    pub(crate) waiters: Arc<Waiters>,
    nonblocking: AtomicBool,
    forks: u64,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            waiters: Arc::default(),
            nonblocking: AtomicBool::default(),
            forks: forks(),
        }
    }
}

impl Waiting {
    /// Whether this process has inherited the socket from its parent by a fork. Such a socket cannot be used, because its
    /// threads do not exist here.
    pub(crate) fn is_parents(&self) -> bool {
        self.forks != forks()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Calls `attempt` until it returns an outcome, first while the thread polls and then after each wake-up from `sleep`.
    /// The argument of `attempt` is true if the thread will sleep if there is no outcome, so that changes have to wake it.
    ///
    /// # Errors
    /// The error of the outcome, [`AGAIN`] if there is none at once and `no_wait` is set, and those of `sleep`.
    pub(crate) fn until<T>(
        &self,
        no_wait: bool,
        mut attempt: impl FnMut(bool) -> Option<Result<T, Errno>>,
        sleep: impl Fn(&Waker) -> Result<(), Errno>,
    ) -> Result<T, Errno> {
        let began = Instant::now();
        loop {
            if let Some(outcome) = attempt(false) {
                return outcome;
            }
            if no_wait {
                return Err(AGAIN);
            }
            if began.elapsed() >= SPIN {
                break;
            }
            std::hint::spin_loop();
        }
        let waker = Waker::new()?;
        self.waiters.add(&waker);
        let outcome = loop {
            waker.clear();
            if let Some(outcome) = attempt(true) {
                break outcome;
            }
            if let Err(errno) = sleep(&waker) {
                break Err(errno);
            }
        };
        self.waiters.remove(&waker);
        outcome
    }
}

/// The time at which a call stops waiting; `None` for never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    pub(crate) fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    /// The time that is left, `most` at most; `None` if the deadline has passed.
    pub(crate) fn left(self, most: Duration) -> Option<Duration> {
        match self.0 {
            None => Some(most),
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                (!left.is_zero()).then(|| left.min(most))
            }
        }
    }
}
