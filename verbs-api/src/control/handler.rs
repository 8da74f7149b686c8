//! Running handlers, without nesting them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::{ManuallyDrop, take};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

type Queued = Box<dyn FnOnce()>;

thread_local! {
    // Neither has a destructor: a verb that is started while the thread or the process ends still finds them.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    static QUEUED: RefCell<ManuallyDrop<VecDeque<Queued>>> =
        const { RefCell::new(ManuallyDrop::new(VecDeque::new())) };
}

/// Whether this thread is running a handler, in which it must not wait: what it waits for may need this thread.
pub fn in_handler() -> bool {
    IN_HANDLER.get()
}

/// Runs `f` as if it were a handler: [`Started::wait`](super::Started::wait) inside it fails with `WouldDeadlock`.
///
/// For providers and extensions that call into a program on their own. Handlers that become due
/// inside run after `f`, one after the other, before this returns.
pub fn handler_scope<R>(f: impl FnOnce() -> R) -> R {
    if in_handler() {
        return f();
    }
    IN_HANDLER.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    let panic = drain();
    IN_HANDLER.set(false);
    match (result, panic) {
        (Err(payload), _) | (_, Some(payload)) => resume_unwind(payload),
        (Ok(value), None) => value,
    }
}

/// Runs a handler now or, if this thread is running one already, after that one: the stack does not grow however many
/// further handlers one handler causes. Call it with no lock held.
pub fn run_handler(f: impl FnOnce() + 'static) {
    if in_handler() {
        QUEUED.with_borrow_mut(|queue| queue.push_back(Box::new(f)));
    } else {
        handler_scope(f);
    }
}

// Every queued handler runs, also after one that panicked; the first panic goes on afterwards. The memory of the queue is freed
// here, because no destructor of the thread frees it.
fn drain() -> Option<Box<dyn Any + Send>> {
    let mut first = None;
    while let Some(f) = QUEUED.with_borrow_mut(|queue| queue.pop_front()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
            first.get_or_insert(payload);
        }
    }
    drop(QUEUED.with_borrow_mut(|queue| take(&mut **queue)));
    first
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn nest(depth: Rc<Cell<u32>>) {
        if depth.get() < 100_000 {
            depth.set(depth.get() + 1);
            run_handler(move || nest(depth));
        }
    }

    // covers 5.02
    #[test]
    fn handlers_that_cause_handlers_do_not_grow_the_stack() {
        let depth = Rc::new(Cell::new(0));
        let inner = Rc::clone(&depth);
        run_handler(move || nest(inner));
        assert_eq!(depth.get(), 100_000);
        assert!(!in_handler());
    }

    #[test]
    fn a_panic_loses_no_other_handler() {
        let ran = Rc::new(Cell::new(false));
        let inner = Rc::clone(&ran);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            handler_scope(|| {
                run_handler(|| panic!("first"));
                run_handler(move || inner.set(true));
            });
        }));
        assert!(outcome.is_err() && ran.get() && !in_handler());
    }

    struct RunsHandlers(mpsc::Sender<u32>);

    impl Drop for RunsHandlers {
        fn drop(&mut self) {
            let of_nested = self.0.clone();
            handler_scope(|| {
                run_handler(move || of_nested.send(2).unwrap());
                self.0.send(1).unwrap();
            });
        }
    }

    #[test]
    fn a_thread_that_is_ending_runs_handlers() {
        thread_local! {
            static LATE: RefCell<Option<RunsHandlers>> = const { RefCell::new(None) };
        }
        let (ran, order) = mpsc::channel();
        let ending = thread::spawn(move || {
            // The value that a thread has first is the last that it drops.
            LATE.set(Some(RunsHandlers(ran)));
            run_handler(|| run_handler(|| ()));
        });
        ending.join().unwrap();
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
