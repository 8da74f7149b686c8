//! The backlog of a listener: requests that the program has not taken yet.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};

use verbs_api::provider::Mutex;
use verbs_api::{
    Context, Started, VerbError,
    provider::{Completer, Outcome},
};

use verbs_api::provider::backend::{ConnectError, Refusal, Token};

use crate::long_queue::release;

/// A connection request, or a request to resolve a datagram service, in a listener's backlog.
pub(crate) trait QueuedRequest: Send + 'static {
    /// Returns the backend's token of the request.
    fn token(&self) -> Option<Token>;

    /// Refuses the request, for this reason.
    fn refuse(self, why: Refusal);
}

/// The requests of one listener in the order of their arrival, and the futures that wait for one.
pub(crate) struct Backlog<T> {
    most: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: VecDeque<T>,
    takers: VecDeque<Completer<T, ConnectError>>,
    /// How many [`Hold`]s exist; while there are any, no request is given to the program.
    holds: usize,
    /// Why no further request will arrive; `None` while some may.
    over: Option<VerbError>,
}

/// Keeps the requests of a backlog from the program until it is dropped.
pub(crate) struct Hold<T: QueuedRequest>(Arc<Backlog<T>>);

impl<T: QueuedRequest> Drop for Hold<T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl<T: QueuedRequest> Backlog<T> {
    /// Creates a backlog of at most `most` requests; 0 for no limit.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let state = State {
            waiting: VecDeque::new(),
            takers: VecDeque::new(),
            holds: 0,
            over: None,
        };
        Arc::new(Self {
            most: if most == 0 { usize::MAX } else { most },
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Adds a request, or refuses it if the backlog is full.
    pub(crate) fn push(&self, one: T) {
        self.put(one, false);
    }

    /// Removes the request with this token, because its peer has given up.
    pub(crate) fn withdraw(&self, token: Token) {
        let mut state = self.lock();
        let is_it = |one: &T| one.token() == Some(token);
        let place = state.waiting.iter().position(is_it);
        let one = place.and_then(|place| state.waiting.remove(place));
        release(&mut state.waiting);
        drop(state);
        drop(one);
    }

    /// Returns a future of the next request. If it is dropped without being polled to its end, the request returns to the
    /// front.
    pub(crate) fn next(self: &Arc<Self>) -> Started<T, ConnectError> {
        let queue = Arc::downgrade(self);
        let (started, completer) = Started::pending_or(move |unclaimed| {
            if let (Ok(one), Some(queue)) = (unclaimed, queue.upgrade()) {
                queue.put(one, true);
            }
        });
        let mut state = self.lock();
        let first = match state.holds {
            0 => state.waiting.pop_front(),
            _ => None,
        };
        release(&mut state.waiting);
        let first = match (first, &state.over) {
            (Some(first), _) => Some(Ok(first)),
            (None, Some(over)) => Some(Err(over.clone().into())),
            (None, None) => None,
        };
        if first.is_none() {
            state.takers.retain(Completer::is_wanted);
            state.takers.push_back(completer.clone());
        }
        drop(state);
        if let Some(first) = first {
            completer.complete(first);
        }
        started
    }

    /// Gives no request to the program until the returned value is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold<T> {
        self.lock().holds += 1;
        Hold(Arc::clone(self))
    }

    // The last hold hands out the requests that arrived meanwhile, in order.
    fn release(&self) {
        loop {
            let mut state = self.lock();
            let is_last = state.holds == 1;
            if !is_last || state.waiting.is_empty() || state.takers.is_empty() {
                state.holds -= 1;
                return;
            }
            let next = (state.takers.pop_front(), state.waiting.pop_front());
            drop(state);
            if let (Some(taker), Some(one)) = next {
                taker.complete(Ok(one));
            }
        }
    }

    /// Refuses all pending requests, and those that arrive later.
    pub(crate) fn close(&self) {
        self.end(VerbError::Canceled);
    }

    fn end(&self, over: VerbError) {
        let mut state = self.lock();
        state.over.get_or_insert_with(|| over.clone());
        let waiting = std::mem::take(&mut state.waiting);
        let takers = std::mem::take(&mut state.takers);
        drop(state);
        for one in waiting {
            one.refuse(Refusal::NoListener);
        }
        for taker in takers {
            taker.complete(Err(over.clone().into()));
        }
    }

    fn put(&self, one: T, is_first: bool) {
        let mut state = self.lock();
        let taker = match state.holds {
            0 => state.takers.pop_front(),
            _ => None,
        };
        if let Some(taker) = taker {
            drop(state);
            // A taker that was dropped meanwhile puts it back.
            taker.complete(Ok(one));
        } else if state.over.is_some() {
            drop(state);
            one.refuse(Refusal::NoListener);
        } else if is_first {
            state.waiting.push_front(one);
        } else if state.waiting.len() < self.most.saturating_add(state.takers.len()) {
            // There are takers here only while requests are held back.
            state.waiting.push_back(one);
        } else {
            drop(state);
            one.refuse(Refusal::BacklogFull);
        }
    }
}

/// Ends a backlog with the error of the removal when its device is removed.
pub(crate) struct RemovalWatch(Option<Outcome<()>>);

impl RemovalWatch {
    pub(crate) fn new<T: QueuedRequest>(context: &Context, waiting: &Arc<Backlog<T>>) -> Self {
        let (removed, guard) = context.begin::<()>();
        let waiting = Arc::downgrade(waiting);
        removed.on_done(move |outcome| {
            if let (Err(error), Some(waiting)) = (outcome, waiting.upgrade()) {
                waiting.end(error);
            }
        });
        Self(Some(guard))
    }
}

impl Drop for RemovalWatch {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.complete(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::long_queue::KEPT;

    impl QueuedRequest for u64 {
        fn token(&self) -> Option<Token> {
            Some(Token(*self))
        }

        fn refuse(self, _: Refusal) {}
    }

    fn taken(started: Started<u64, ConnectError>) -> u64 {
        started.wait().unwrap()
    }

    // covers 5.22
    #[test]
    fn a_dropped_future_leaves_its_request_at_the_front() {
        let queue = Backlog::<u64>::new(0);
        // Futures are dropped while no request is queued, while one is queued, and when they are done.
        drop(queue.next());
        queue.push(1);
        queue.push(2);
        drop(queue.next());
        let early = queue.next();
        let late = queue.next();
        assert!(early.is_done() && late.is_done());
        drop(early);
        assert_eq!((taken(late), taken(queue.next())), (2, 1));
        let abandoned: Vec<_> = (0..1000).map(|_| queue.next()).collect();
        drop(abandoned);
        let waits = queue.next();
        assert_eq!(queue.lock().takers.len(), 1);
        queue.push(3);
        assert_eq!(taken(waits), 3);
    }

    #[test]
    fn a_flood_of_requests_leaves_no_memory() {
        let queue = Backlog::<u64>::new(0);
        for withdraws in [false, true] {
            (0..10_000).for_each(|number| queue.push(number));
            for number in 0..10_000 {
                match withdraws {
                    true => queue.withdraw(Token(number)),
                    false => assert_eq!(taken(queue.next()), number),
                }
            }
            assert!(queue.lock().waiting.capacity() <= KEPT);
        }
    }

    #[test]
    fn a_withdrawn_request_is_not_handed_out_and_makes_room() {
        let queue = Backlog::<u64>::new(1);
        queue.push(1);
        queue.push(2);
        queue.withdraw(Token(1));
        queue.push(3);
        assert_eq!(taken(queue.next()), 3);
        let waits = queue.next();
        queue.close();
        assert_eq!(waits.wait(), Err(VerbError::Canceled.into()));
    }
}
