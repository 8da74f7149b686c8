//! The signals of accesses that fault, shared with the program.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{sigaction, siginfo_t, sigset_t};

use super::faults;

/// The signals of faulting accesses: to memory that is protected or not mapped, or beyond the end of a mapped file.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The type of the C library's `sigaction`.
type SetAction = unsafe extern "C" fn(c_int, *const sigaction, *mut sigaction) -> c_int;

static SET: OnceLock<SetAction> = OnceLock::new();

/// The action that the program has set for one of the signals: the fields of a `sigaction`.
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: [AtomicU64; WORDS],
}

const WORDS: usize = size_of::<sigset_t>() / 8;

impl Wanted {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    fn of(signal: c_int) -> Option<&'static Self> {
        static ALL: [Wanted; 2] = [const { Wanted::new() }; 2];
        let place = SIGNALS.iter().position(|one| *one == signal)?;
        Some(&ALL[place])
    }

    fn action(&self) -> sigaction {
        let mask = std::array::from_fn(|place| self.mask[place].load(Ordering::Relaxed));
        sigaction {
            sa_sigaction: self.handler.load(Ordering::Relaxed),
            // SAFETY: a set of signals is made of these words.
            sa_mask: unsafe { std::mem::transmute::<[u64; WORDS], sigset_t>(mask) },
            sa_flags: self.flags.load(Ordering::Relaxed),
            sa_restorer: None,
        }
    }

    fn set(&self, action: &sigaction) {
        // SAFETY: as in `action`.
        let mask = unsafe { std::mem::transmute::<sigset_t, [u64; WORDS]>(action.sa_mask) };
        for (kept, word) in self.mask.iter().zip(mask) {
            kept.store(word, Ordering::Relaxed);
        }
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Relaxed);
    }

    /// Installs this library's handler for the signal, with the flags and mask that the program has set for its own.
    fn install(&self, signal: c_int, set: SetAction) -> c_int {
        let mut action = self.action();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
        action.sa_flags &= !libc::SA_RESETHAND;
        // SAFETY: the handler only does what a handler may.
        unsafe { set(signal, &raw const action, ptr::null_mut()) }
    }
}

/// Makes accesses to exposed memory by [`copy`](super::copy) survive faults from now on. `set` is the C library's
/// `sigaction`. A library that interposes `sigaction` calls [`program_action`] in its place.
///
/// # Errors
/// The handlers of the signals cannot be set.
pub fn outlive_faults(set: SetAction) -> io::Result<()> {
    if SET.set(set).is_err() {
        return Ok(());
    }
    for signal in SIGNALS {
        let Some(wanted) = Wanted::of(signal) else {
            continue;
        };
        // SAFETY: there is room for the action, of which all zeros is one.
        unsafe {
            let mut before: sigaction = std::mem::zeroed();
            if set(signal, ptr::null(), &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            wanted.set(&before);
        }
        if wanted.install(signal, set) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Does what `sigaction` does for a signal of faults after [`outlive_faults`]: the program's action then applies only to
/// faults outside this library's copies. Returns `None` if the caller has to call `sigaction` itself.
///
/// # Safety
/// `new` is null or readable, `old` null or writable.
pub unsafe fn program_action(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> Option<c_int> {
    let (set, wanted) = (SET.get()?, Wanted::of(signal)?);
    let before = wanted.action();
    // SAFETY: as the caller promises.
    unsafe {
        let installed = match new.as_ref() {
            Some(new) => {
                wanted.set(new);
                wanted.install(signal, *set)
            }
            None => 0,
        };
        if !old.is_null() {
            old.write(before);
        }
        Some(installed)
    }
}

/// The signal handler: skips the block of [`copy`](super::copy) that faulted, or takes the program's own action.
unsafe extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel has stored the thread's registers there, and loads them afterwards.
    let instruction = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]
    };
    if let Some(end) = faults::way_out(*instruction as usize) {
        faults::note();
        *instruction = end as i64;
        return;
    }
    let (Some(set), Some(wanted)) = (SET.get(), Wanted::of(signal)) else {
        return;
    };
    let mut action = wanted.action();
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        wanted.handler.store(libc::SIG_DFL, Ordering::Relaxed);
    }
    let handler = std::mem::replace(&mut action.sa_sigaction, libc::SIG_DFL);
    // SAFETY: a handler of the program is called as the kernel would, with more arguments where it takes fewer. Without one the
    // signal comes again, by the same access or from here, and ends the process.
    unsafe {
        if handler > libc::SIG_IGN {
            type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            let handler = std::mem::transmute::<usize, Handler>(handler);
            return handler(signal, info, context);
        }
        let is_sent = (*info).si_code <= 0;
        if is_sent && handler == libc::SIG_IGN {
            return;
        }
        set(signal, &raw const action, ptr::null_mut());
        if is_sent {
            libc::raise(signal);
        }
    }
}
