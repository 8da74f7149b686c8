//! The peers that a listening program serves.
//!
//! Each peer has a thread, and their number is limited. While no place is free, an idle peer gives way to the next one; otherwise
//! it is dropped after a longer time. No address has more than half of the places, so that none can occupy them all.
//!
//! The source address of a request can be forged. So a request takes a queue pair and no place; its peer gets a place when it
//! completes the connection, which proves its address.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::Started;
use polyverbs::connection::{ConnectError, Connection, Incoming, Listener};
use polyverbs::provider::Mutex;

use super::{INTERRUPTED, PAUSE, Result};

/// The reason with which a peer is refused while no place is free; it may try again.
pub(crate) const BUSY: &str = "it serves as many as it may at one time";
/// A peer gives way to another one if it is idle for this long; [`GIVES_WAY_AT_FIRST`] is the limit for a peer that has
/// moved no data yet.
const GIVES_WAY: Duration = Duration::from_secs(1);
const GIVES_WAY_AT_FIRST: Duration = Duration::from_millis(300);
/// Only after it has moved this many bytes, a peer counts as active again: fewer do not end its idle time.
pub(crate) const LEAST: u64 = 64 << 10;

/// The largest number of accepted requests whose peers have not completed the connection, and of peers that wait for a
/// place. One more replaces the oldest.
const MOST_WAITING: usize = 64;

/// The events that the serving loop waits for.
enum RequestEvent {
    Asked(std::result::Result<Incoming, ConnectError>),
    /// The connection of the request with this number was completed by its peer, or has failed.
    Completed(u64, std::result::Result<Connection, ConnectError>),
}

/// A connection request that has been accepted, with this side of the connection.
struct Accepted<S> {
    number: u64,
    from: Option<IpAddr>,
    side: S,
}

/// The peers that a listening command serves, and the limit of their number.
pub(crate) struct Peers {
    pub(crate) most: usize,
    /// How long a peer may be idle before it is dropped.
    pub(crate) timeout: Duration,
    pub(crate) served: Mutex<Vec<Arc<Peer>>>,
}

impl Peers {
    pub(crate) fn new(most: usize, timeout: Duration) -> Self {
        Self {
            most,
            timeout,
            served: Mutex::default(),
        }
    }

    /// Serves `count` peers, or until the program is interrupted. `accept` begins to accept a request, or has refused it; its
    /// second argument gives up the oldest request whose peer has not completed the connection, and returns whether there was
    /// one. A peer that completes the connection gets a place as soon as one is free, and `work` serves it in a thread of its
    /// own.
    pub(crate) fn serve<S: Send>(
        &self,
        listener: &Listener,
        count: u64,
        accept: impl Fn(
            Incoming,
            &mut dyn FnMut() -> bool,
        ) -> Option<(S, Started<Connection, ConnectError>)>,
        work: impl Fn(S, Connection, &Arc<Peer>) + Sync,
    ) -> Result<()> {
        let (tell, told) = mpsc::channel();
        let await_next = || {
            let tell = tell.clone();
            listener
                .next()
                .on_done(move |next| _ = tell.send(RequestEvent::Asked(next)));
        };
        await_next();
        let (mut unproven, mut waiting) = (VecDeque::<Accepted<S>>::new(), VecDeque::new());
        let (mut numbered, mut served) = (0, 0);
        thread::scope(|scope| {
            while served < count && !INTERRUPTED.load(Ordering::Relaxed) {
                match told.recv_timeout(PAUSE) {
                    Ok(RequestEvent::Asked(incoming)) => {
                        await_next();
                        let incoming = incoming?;
                        let from = incoming.from().map(|from| from.ip());
                        let mut give_up = || unproven.pop_front().is_some();
                        if self.is_full(from) {
                            refuse(incoming, BUSY);
                        } else if let Some((side, completed)) = accept(incoming, &mut give_up) {
                            numbered += 1;
                            let (number, tell) = (numbered, tell.clone());
                            queue(&mut unproven, Accepted { number, from, side });
                            completed.on_done(move |done| {
                                _ = tell.send(RequestEvent::Completed(number, done));
                            });
                        }
                    }
                    Ok(RequestEvent::Completed(number, done)) => {
                        let place = unproven.iter().position(|one| one.number == number);
                        let accepted = place.and_then(|place| unproven.remove(place));
                        if let Some(one) = accepted.zip(done.ok()) {
                            queue(&mut waiting, one);
                        }
                    }
                    Err(_) => {}
                }
                let next = |(one, _): &(Accepted<S>, _)| Some((self.admit(one.from)?, one.number));
                while served < count
                    && let Some((place, number)) = waiting.iter().find_map(next)
                {
                    // The connection moves to the thread only once the thread runs; if no thread can be had, the next turn tries again.
                    let (hand, taken) = mpsc::channel::<(Accepted<S>, Connection)>();
                    let work = &work;
                    let thread = thread::Builder::new().spawn_scoped(scope, move || {
                        if let Ok((accepted, connection)) = taken.recv() {
                            work(accepted.side, connection, &place.peer);
                        }
                    });
                    if thread.is_err() {
                        break;
                    }
                    served += 1;
                    let index = waiting.iter().position(|(one, _)| one.number == number);
                    // The thread exists and waits for the connection.
                    let _ = index
                        .and_then(|index| waiting.remove(index))
                        .map(|one| hand.send(one));
                }
            }
            Ok(())
        })
    }

    /// Whether a peer at this address can get no place. If so, the peer that is idle for longest has to give way, if it has
    /// been idle for long enough.
    fn is_full(&self, from: Option<IpAddr>) -> bool {
        let served = self.served.lock();
        let of_address = served.iter().filter(|peer| peer.from == from).count();
        let is_much = of_address >= self.most.div_ceil(2);
        let is_full = is_much || served.len() >= self.most;
        let others = served.iter().filter(|peer| !is_much || peer.from == from);
        if is_full && let Some(idle) = others.max_by_key(|peer| peer.idle()) {
            idle.give_way();
        }
        is_full
    }

    fn admit(&self, from: Option<IpAddr>) -> Option<Place<'_>> {
        if self.is_full(from) {
            return None;
        }
        let peer = Arc::new(Peer {
            from,
            timeout: self.timeout,
            state: Mutex::new(State {
                since: Some(Instant::now()),
                moved: 0,
                has_moved: false,
                gives_way: false,
            }),
        });
        self.served.lock().push(Arc::clone(&peer));
        Some(Place { peers: self, peer })
    }
}

/// Appends an element, and removes the oldest one if there are [`MOST_WAITING`].
fn queue<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() >= MOST_WAITING {
        all.pop_front();
    }
    all.push_back(one);
}

/// Refuses a request with a reason.
pub(crate) fn refuse(incoming: Incoming, reason: &str) {
    // A reason that is too long is left out, and the request refused all the same.
    let _ = incoming.reject(reason.as_bytes());
}

/// A place that a served peer takes; dropping it frees the place.
struct Place<'p> {
    peers: &'p Peers,
    peer: Arc<Peer>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.peers
            .served
            .lock()
            .retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

/// A served peer, and since when it has been idle.
pub(crate) struct Peer {
    from: Option<IpAddr>,
    timeout: Duration,
    state: Mutex<State>,
}

struct State {
    // The peer has been idle since this time; `None` while it waits for this side.
    since: Option<Instant>,
    moved: u64,
    has_moved: bool,
    gives_way: bool,
}

impl Peer {
    /// Notes that the peer has made progress, which ends its idle time.
    pub(crate) fn steps(&self) {
        self.state.lock().since = Some(Instant::now());
    }

    /// Notes that the peer has moved `bytes`. Its idle time ends when it has moved [`LEAST`] since it last ended.
    pub(crate) fn moves(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.moved += bytes;
        if state.moved >= LEAST {
            state.since = Some(Instant::now());
            state.moved = 0;
            state.has_moved = true;
        }
    }

    /// Notes that the peer waits for this side, which is not idle time.
    pub(crate) fn waits(&self) {
        self.state.lock().since = None;
    }

    /// Returns how long the peer has been idle.
    pub(crate) fn idle(&self) -> Duration {
        let since = self.state.lock().since;
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn give_way(&self) {
        let idle = self.idle();
        let mut state = self.state.lock();
        let patience = match state.has_moved {
            true => GIVES_WAY,
            false => GIVES_WAY_AT_FIRST,
        };
        state.gives_way |= idle >= patience;
    }

    /// Fails if the peer has been idle for too long, or has to give way to another one.
    pub(crate) fn check(&self) -> Result<()> {
        let gives_way = self.state.lock().gives_way;
        if gives_way || self.idle() >= self.timeout {
            return Err("nothing came from the other side for too long".into());
        }
        Ok(())
    }
}
