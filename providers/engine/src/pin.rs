//! Thread pins: while a thread holds one, the memory that it is copying is not freed.
//!
//! A thread pins itself once for each call that posts or delivers. A thread that retires an object first makes it
//! unreachable (clears its key), then passes the rest to [`after_grace`]. There is no count per region, on which two
//! threads would contend.
//!
//! # How it works
//! Every thread has a slot on cache lines of its own, with a counter of its entries and exits: odd while it is inside. A
//! retiring thread notes which slots are odd (the *snapshot*) and acts once each of them has *changed*: it need not be
//! even, so a busy reader starves no other thread. A callback that must wait is stored; the thread whose exit makes it
//! ready runs it. No thread blocks.
//!
//! # Why it is correct
//! *A reader that the snapshot misses cannot reach the object.* The reader stores the odd number,
//! fences, then reads the key; the retiring thread clears the key, fences, then reads the slot.
//! One of the fences is first: either the reader sees the cleared key or the snapshot sees the
//! odd number.
//!
//! *The accesses of a reader have ended when the callback runs.* Both stores to a slot are releases and the retiring side
//! reads with acquire, so whichever later number it sees, all accesses before that exit happened before the callback.
//!
//! *No callback is forgotten.* The retiring thread sets `waiting`, fences, then reads the slots again; the reader stores
//! the even number, fences, then reads `waiting`. Either the reader sees the flag or the retiring thread's second reading
//! sees the exit. Reading the slots and clearing the flag are done under one mutex.
//!
//! # The fence of the reader
//! It is the whole cost of a pin. An operating system that can execute a fence on all threads of the process at once
//! replaces it: [`use_process_fence`]. The reader then orders its accesses for the compiler only, and the retiring thread,
//! which is rare, pays.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32 as OwnU32, AtomicUsize as OwnUsize, compiler_fence};

use crate::lock::assert_unlocked;
use crate::sync::{AtomicBool, AtomicU64, ForkLock, Ordering, full_fence, prefetch};

/// Proof that this thread is pinned: nothing that it can reach now is freed before this drops.
///
/// Drop it after all locks: its end may run callbacks.
pub struct Pin {
    slot: &'static Slot,
    not_send: PhantomData<*mut ()>,
}

/// Pins this thread until the result is dropped. A pin inside another one costs nothing, and the outermost one counts.
#[inline]
#[must_use]
pub fn pin() -> Pin {
    let slot = own_slot().unwrap_or_else(register);
    if slot.descend() {
        slot.step();
    }
    Pin {
        slot,
        not_send: PhantomData,
    }
}

impl Pin {
    /// Prefetches memory for a later access. This thread is about to access memory at `at`; if it continues in steps of
    /// this length, as a program does that serves its queue pairs in turn, the fetched memory is that of the access after
    /// the next. Processors do not predict accesses through a pointer and a lock.
    #[inline]
    pub fn look_ahead<T>(&self, at: &T) {
        let at = std::ptr::from_ref(at) as usize;
        let step = at.wrapping_sub(self.slot.reached.load(Ordering::Relaxed));
        self.slot.reached.store(at, Ordering::Relaxed);
        prefetch(at.wrapping_add(step.wrapping_mul(2)) as *const u8);
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        if self.slot.last() {
            self.slot.step();
        }
        if self.slot.ascend() && DOMAIN.waiting.load(Ordering::Relaxed) {
            run_ready();
        }
    }
}

/// Returns whether this thread is pinned.
fn is_pinned() -> bool {
    own_slot().is_some_and(Slot::is_held)
}

/// Runs `f` when every pin that any thread holds now has ended: at once if there is none.
///
/// `f` runs on this thread or on the one whose pin ends last, unpinned and with no lock held. Call this with no lock held,
/// after the object that `f` frees has been made unreachable.
pub fn after_grace(f: impl FnOnce() + Send + 'static) {
    let mut registry = DOMAIN.registry.lock();
    let held = registry.snapshot();
    if held.is_empty() {
        drop(registry);
        assert_unlocked();
        return f();
    }
    let deferred = Deferred::new();
    registry.waiting.push(Waiting {
        held,
        run: Box::new(move || {
            f();
            drop(deferred);
        }),
    });
    DOMAIN.waiting.store(true, Ordering::Relaxed);
    registry.fence();
    drop(registry);
    run_ready();
}

/// Returns whether a callback of [`after_grace`] waits for the pin of a thread, or is being run. Virtual time ends when no
/// job is due, and such a callback is due when another thread of the process has ended its pin.
pub fn is_any_deferred() -> bool {
    DEFERRED.load(Ordering::SeqCst) != 0
}

/// The number of callbacks of the process that wait or are being run. The model checker does not observe it.
static DEFERRED: OwnUsize = OwnUsize::new(0);

/// Counts a callback until it has been run.
struct Deferred;

impl Deferred {
    fn new() -> Self {
        DEFERRED.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        DEFERRED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs the waiting callbacks whose pins have ended, unless this thread is pinned.
#[cold]
fn run_ready() {
    if is_pinned() {
        return;
    }
    let ready = DOMAIN.take_ready();
    if !ready.is_empty() && !std::thread::panicking() {
        assert_unlocked();
    }
    ready.into_iter().for_each(|waiting| (waiting.run)());
}

/// Makes pins cheaper: a thread that pins itself executes no fence any longer; a thread that retires an object calls
/// `fence` instead.
///
/// On Linux that is `membarrier` with `MEMBARRIER_CMD_PRIVATE_EXPEDITED`, after registration. The first call applies.
///
/// # Safety
/// Every later call of `fence` must execute a fence on all running threads of the process before it returns. Otherwise pins
/// of other threads are overlooked, and the memory that they use is freed.
#[allow(unsafe_code)]
pub unsafe fn use_process_fence(fence: fn()) {
    let mut registry = DOMAIN.registry.lock();
    if registry.process_fence.is_none() {
        registry.process_fence = Some(fence);
        // This store is a release, and readers load it with acquire: a reader that sees it comes after every retiring
        // thread that held the mutex earlier, and so sees the keys that it cleared and the flag that it set.
        DOMAIN.light.store(true, Ordering::Release);
    }
}

/// The state of one thread's pins, on two cache lines of its own.
#[repr(align(128))]
struct Slot {
    /// How often the thread has pinned and unpinned itself: odd while it is pinned.
    visits: AtomicU64,
    /// The number of nested pins. Only the owner uses it, so the model checker need not observe it.
    depth: OwnU32,
    /// The address that the owner accessed last. Only the owner uses it.
    reached: OwnUsize,
}

impl Slot {
    /// Counts one more nested pin. Returns whether it is the first.
    #[inline]
    fn descend(&self) -> bool {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        depth == 0
    }

    /// Counts one nested pin less. Returns whether it was the last.
    #[inline]
    fn ascend(&self) -> bool {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth - 1, Ordering::Relaxed);
        depth == 1
    }

    #[inline]
    fn last(&self) -> bool {
        self.depth.load(Ordering::Relaxed) == 1
    }

    fn is_held(&self) -> bool {
        self.depth.load(Ordering::Relaxed) != 0
    }

    /// Counts that the thread pins or unpins itself, and executes a fence.
    #[inline]
    fn step(&self) {
        let visits = self.visits.load(Ordering::Relaxed);
        self.visits.store(visits + 1, Ordering::Release);
        if DOMAIN.light.load(Ordering::Acquire) {
            compiler_fence(Ordering::SeqCst);
        } else {
            full_fence();
        }
    }
}

/// A slot that was odd in a snapshot, and the number that it had.
struct Held {
    slot: &'static Slot,
    visits: u64,
}

impl Held {
    fn is_held(&self) -> bool {
        self.slot.visits.load(Ordering::Acquire) == self.visits
    }
}

struct Waiting {
    held: Vec<Held>,
    run: Box<dyn FnOnce() + Send>,
}

/// All slots and callbacks of the process. The flags are written so rarely that every processor has them in its cache.
#[repr(align(128))]
struct Domain {
    waiting: AtomicBool,
    light: AtomicBool,
    registry: ForkLock<Registry>,
}

impl Domain {
    fn take_ready(&'static self) -> Vec<Waiting> {
        let mut registry = self.registry.lock();
        let is_ready = |waiting: &mut Waiting| {
            waiting.held.retain(Held::is_held);
            waiting.held.is_empty()
        };
        let ready = registry.waiting.extract_if(.., is_ready).collect();
        self.waiting
            .store(!registry.waiting.is_empty(), Ordering::Relaxed);
        ready
    }
}

struct Registry {
    /// The slots of all threads; the list only grows.
    slots: Vec<&'static Slot>,
    /// Slots of threads that have ended, which new threads use again.
    idle: Vec<&'static Slot>,
    waiting: Vec<Waiting>,
    process_fence: Option<fn()>,
}

impl Registry {
    const fn new() -> Self {
        Self {
            slots: Vec::new(),
            idle: Vec::new(),
            waiting: Vec::new(),
            process_fence: None,
        }
    }

    /// Executes the fence of the thread that retires an object.
    fn fence(&self) {
        match self.process_fence {
            Some(fence) => fence(),
            None => full_fence(),
        }
    }

    /// Executes a fence, then returns the slots of the threads that are pinned.
    fn snapshot(&self) -> Vec<Held> {
        self.fence();
        let look = |&slot: &&'static Slot| {
            let visits = slot.visits.load(Ordering::Acquire);
            (visits % 2 == 1).then_some(Held { slot, visits })
        };
        self.slots.iter().filter_map(look).collect()
    }

    fn claim(&mut self) -> &'static Slot {
        self.idle.pop().unwrap_or_else(|| {
            let slot = Slot {
                visits: AtomicU64::new(0),
                depth: OwnU32::new(0),
                reached: OwnUsize::new(0),
            };
            let slot = &*Box::leak(Box::new(slot));
            self.slots.push(slot);
            slot
        })
    }
}

#[inline]
fn own_slot() -> Option<&'static Slot> {
    OWN.with(Cell::get)
}

#[cold]
fn register() -> &'static Slot {
    let slot = DOMAIN.registry.lock().claim();
    OWN.with(|own| own.set(Some(slot)));
    #[cfg(not(loom))]
    // This fails while the thread ends. The slot is then lost to other threads, which is harmless.
    let _ = EXIT.try_with(|_| ());
    slot
}

#[cfg(not(loom))]
static DOMAIN: Domain = Domain {
    waiting: AtomicBool::new(false),
    light: AtomicBool::new(false),
    registry: ForkLock::with_change(Registry::new(), begin_child),
};

/// Resets the registry in a child of a fork: the threads of the other slots do not exist there, so their pins would never
/// end. Callbacks that wait for pins belong to the parent, which runs them.
#[cfg(not(loom))]
fn begin_child(registry: &mut Registry) {
    let own = own_slot();
    registry
        .slots
        .retain(|slot| own.is_some_and(|own| std::ptr::eq(own, *slot)));
    registry.idle.clear();
    std::mem::forget(std::mem::take(&mut registry.waiting));
    DOMAIN.waiting.store(false, Ordering::Relaxed);
    DEFERRED.store(0, Ordering::SeqCst);
}

#[cfg(not(loom))]
thread_local! {
    /// The slot of this thread. The variable has no destructor, so that reading it takes one load.
    static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static EXIT: Exit = const { Exit };
}

/// Returns the slot to the registry when its thread ends, for the next thread.
#[cfg(not(loom))]
struct Exit;

#[cfg(not(loom))]
impl Drop for Exit {
    fn drop(&mut self) {
        // A slot whose pin another thread-local still holds is not reused.
        if let Some(slot) = OWN.take().filter(|slot| !slot.is_held()) {
            DOMAIN.registry.lock().idle.push(slot);
        }
    }
}

#[cfg(loom)]
loom::lazy_static! {
    static ref DOMAIN: Domain = Domain {
        waiting: AtomicBool::new(false),
        light: AtomicBool::new(false),
        registry: ForkLock::new(Registry::new()),
    };
}

#[cfg(loom)]
loom::thread_local! {
    static OWN: Cell<Option<&'static Slot>> = Cell::new(None);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use test_kit::waiting::until;

    use super::*;
    use crate::sync::Mutex;

    /// Pins are process-wide, so tests that must not meet other tests' pins take turns.
    static TURN: Mutex<()> = Mutex::new(());

    fn flag() -> (Arc<AtomicBool>, impl FnOnce() + Send + 'static) {
        let flag = Arc::new(AtomicBool::new(false));
        let set = flag.clone();
        (flag, move || set.store(true, Ordering::Release))
    }

    #[test]
    fn the_own_pin_defers_until_it_ends() {
        let _turn = TURN.lock();
        let (done, set) = flag();
        let outer = pin();
        let inner = pin();
        after_grace(move || {
            assert!(!is_pinned());
            set();
        });
        drop(inner);
        run_ready();
        assert!(!done.load(Ordering::Acquire));
        drop(outer);
        until(|| done.load(Ordering::Acquire));
    }

    #[test]
    fn only_the_current_pin_of_another_thread_defers() {
        let _turn = TURN.lock();
        let (done, set) = flag();
        let (tell, told) = mpsc::sync_channel(0);
        let handle = thread::spawn(move || {
            for _ in 0..2 {
                let _pin = pin();
                told.recv().unwrap();
                told.recv().unwrap();
            }
        });
        tell.send(()).unwrap();
        after_grace(set);
        assert!(!done.load(Ordering::Acquire) && is_any_deferred());
        tell.send(()).unwrap();
        tell.send(()).unwrap();
        until(|| done.load(Ordering::Acquire));
        // Callbacks that other tests have deferred meanwhile wait for the later pin.
        tell.send(()).unwrap();
        handle.join().unwrap();
        until(|| !is_any_deferred());
    }

    #[test]
    fn slots_of_ended_threads_are_used_again() {
        let _turn = TURN.lock();
        thread::spawn(|| drop(pin())).join().unwrap();
        let before = DOMAIN.registry.lock().slots.len();
        for _ in 0..20 {
            thread::spawn(|| drop(pin())).join().unwrap();
        }
        // Threads of tests that ended meanwhile can only have added to the idle slots.
        assert!(DOMAIN.registry.lock().slots.len() <= before + 2);
    }

    #[test]
    fn readers_never_see_freed_objects() {
        let _turn = TURN.lock();
        let current = Arc::new(AtomicU64::new(0));
        let freed: Arc<Vec<AtomicBool>> = Arc::new((0..3_000).map(|_| false.into()).collect());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let _pin = pin();
                        let at = current.load(Ordering::Acquire) as usize;
                        let Some(object) = freed.get(at) else { break };
                        assert!((0..20).all(|_| !object.load(Ordering::Relaxed)));
                    }
                });
            }
            for old in 0..3_000 {
                current.store(old + 1, Ordering::Release);
                let freed = freed.clone();
                after_grace(move || freed[old as usize].store(true, Ordering::Relaxed));
            }
        });
        until(|| freed.iter().all(|object| object.load(Ordering::Relaxed)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::{model, thread};

    /// A reader that reaches the object finds it alive, and the callback runs exactly once, even if no thread pins again.
    #[test]
    fn frees_after_readers_and_forgets_nothing() {
        model(|| {
            let reachable = Arc::new(AtomicBool::new(true));
            let freed = Arc::new(AtomicU64::new(0));
            let reader = {
                let (reachable, freed) = (reachable.clone(), freed.clone());
                thread::spawn(move || {
                    let _pin = pin();
                    if reachable.load(Ordering::Relaxed) {
                        assert_eq!(freed.load(Ordering::Relaxed), 0);
                    }
                })
            };
            reachable.store(false, Ordering::Relaxed);
            let count = freed.clone();
            after_grace(move || assert_eq!(count.fetch_add(1, Ordering::Relaxed), 0));
            reader.join().unwrap();
            assert_eq!(freed.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_pinned_retirer_defers_to_its_own_end() {
        model(|| {
            let freed = Arc::new(AtomicU64::new(0));
            let reader = thread::spawn(|| drop(pin()));
            let own = pin();
            let count = freed.clone();
            after_grace(move || assert_eq!(count.fetch_add(1, Ordering::Relaxed), 0));
            assert_eq!(freed.load(Ordering::Relaxed), 0);
            drop(own);
            reader.join().unwrap();
            assert_eq!(freed.load(Ordering::Relaxed), 1);
        });
    }
}
