//! The peers that a listening program serves.
//!
//! Each peer has a thread, and their number is limited. While no place is free, an idle peer gives way to the next one; otherwise
//! it is dropped after a longer time. No address has more than half of the places, so that none can occupy them all.
//!
//! The source address of a request can be forged. So a request takes a queue pair and no place, and ends no other peer; its
//! peer gets a place when it completes the connection, which proves its address.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::Started;
use polyverbs::connection::{ConnectError, Connection, Incoming, Listener, Withdrawal};
use polyverbs::provider::Mutex;

use super::{INTERRUPTED, PAUSE, Result};
use crate::output::{complain, count};

/// The reason with which a peer is refused while no place is free; it may try again.
pub(crate) const BUSY: &str = "it serves as many as it may at one time";
/// A peer gives way to another one if it is idle for this long; [`GIVES_WAY_AT_FIRST`] is the limit for a peer that has
/// moved no data yet.
const GIVES_WAY: Duration = Duration::from_secs(1);
const GIVES_WAY_AT_FIRST: Duration = Duration::from_millis(300);
/// Only after it has moved this many bytes, a peer counts as active again: fewer do not end its idle time.
pub(crate) const LEAST: u64 = 64 << 10;

/// The largest number of accepted requests whose peers have not completed the connection, and of peers that wait for a
/// place. One more replaces the oldest. One address has at most half of them: if it has that many, one more replaces its
/// oldest.
const MOST_WAITING: usize = 64;

/// The most requests that wait for the serving loop. Most may be forged, and each takes more than a kilobyte; with two
/// thousand a second, the loop may be without a processor for two seconds.
pub(crate) const BACKLOG: usize = 4096;

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
    _answer: Answer,
    side: S,
}

/// The answer to a request that was accepted. Dropping it withdraws it, unless the peer has completed the connection: then
/// nothing is kept for a peer that may not exist.
struct Answer(Withdrawal);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

/// A request that a program has begun to accept: this side of the connection, the future of the connection, and what withdraws
/// the answer.
pub(crate) type Accepting<S> = (S, Started<Connection, ConnectError>, Withdrawal);

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

    /// Serves `most` peers, or until the program is interrupted. `accept` begins to accept a request, or has refused it for a
    /// reason, which is printed; its second argument gives up the oldest request whose peer has not completed the connection,
    /// and returns whether there was one. A peer that completes the connection gets a place as soon as one is free, and `work`
    /// serves it in a thread of its own.
    pub(crate) fn serve<S: Send>(
        &self,
        listener: &Listener,
        most: u64,
        accept: impl Fn(Incoming, &mut dyn FnMut() -> bool) -> std::result::Result<Accepting<S>, String>,
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
        let mut refusals = Refusals::default();
        let result = thread::scope(|scope| {
            while served < most && !INTERRUPTED.load(Ordering::Relaxed) {
                match told.recv_timeout(PAUSE) {
                    Ok(RequestEvent::Asked(incoming)) => {
                        await_next();
                        let incoming = incoming?;
                        let from = incoming.from().map(|from| from.ip());
                        let mut give_up = || unproven.pop_front().is_some();
                        if let Room::None = self.room_for(from) {
                            refuse(incoming, BUSY);
                        } else {
                            match accept(incoming, &mut give_up) {
                                Ok((side, completed, answer)) => {
                                    numbered += 1;
                                    let (number, tell) = (numbered, tell.clone());
                                    let one = Accepted {
                                        number,
                                        from,
                                        _answer: Answer(answer),
                                        side,
                                    };
                                    queue(&mut unproven, one, |one| one.from);
                                    completed.on_done(move |done| {
                                        _ = tell.send(RequestEvent::Completed(number, done));
                                    });
                                }
                                Err(reason) => print_all(refusals.add(reason)),
                            }
                        }
                    }
                    Ok(RequestEvent::Completed(number, done)) => {
                        let place = unproven.iter().position(|one| one.number == number);
                        let accepted = place.and_then(|place| unproven.remove(place));
                        if let Some(one) = accepted.zip(done.ok()) {
                            queue(&mut waiting, one, |(one, _)| one.from);
                        }
                    }
                    Err(_) => {}
                }
                let next = |(one, _): &(Accepted<S>, _)| Some((self.admit(one.from)?, one.number));
                while served < most
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
                    print_all(refusals.end());
                    let index = waiting.iter().position(|(one, _)| one.number == number);
                    // The thread exists and waits for the connection.
                    let _ = index
                        .and_then(|index| waiting.remove(index))
                        .map(|one| hand.send(one));
                }
            }
            Ok(())
        });
        print_all(refusals.end());
        result
    }

    fn room_for(&self, from: Option<IpAddr>) -> Room {
        let served = self.served.lock();
        let of_address = served.iter().filter(|peer| peer.from == from).count();
        let is_much = of_address >= self.most.div_ceil(2);
        if !is_much && served.len() < self.most {
            return Room::Free;
        }
        let others = served.iter().filter(|peer| !is_much || peer.from == from);
        let idle = others.max_by_key(|peer| peer.idle());
        match idle.filter(|peer| peer.may_give_way()) {
            Some(idle) => Room::Idle(Arc::clone(idle)),
            None => Room::None,
        }
    }

    /// Gives a place to a peer whose address is proven. If only an idle peer's place could become free, that peer has to
    /// give way.
    fn admit(&self, from: Option<IpAddr>) -> Option<Place<'_>> {
        match self.room_for(from) {
            Room::Free => {}
            Room::Idle(idle) => {
                idle.state.lock().gives_way = true;
                return None;
            }
            Room::None => return None,
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

/// The reasons for which requests were refused since a peer was last served, each with the number of these requests. Requests may
/// be forged, so a reason is printed once, and again with the number when a peer, whose address is proven, is served.
#[derive(Default)]
struct Refusals(BTreeMap<String, u64>);

impl Refusals {
    /// Counts a request; returns the line to print if it is the first one with this reason.
    fn add(&mut self, reason: String) -> Option<String> {
        let count = self.0.entry(reason.clone()).or_default();
        *count += 1;
        (*count == 1).then_some(reason)
    }

    /// Forgets the reasons, because a peer is served or none will be; returns the lines to print.
    fn end(&mut self) -> Vec<String> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.filter(|(_, requests)| *requests > 1)
            .map(|(reason, requests)| format!("{reason} ({})", count(requests, "request")))
            .collect()
    }
}

fn print_all(lines: impl IntoIterator<Item = String>) {
    lines.into_iter().for_each(|line| complain(&line));
}

/// The place that a peer could get.
enum Room {
    /// A place is free.
    Free,
    /// A place would be free if this peer, which has been idle for long enough, gave way.
    Idle(Arc<Peer>),
    None,
}

/// Appends an element. Removes the oldest one if there are [`MOST_WAITING`], or the oldest of the same source if that source
/// has half of them.
fn queue<T>(all: &mut VecDeque<T>, one: T, source: impl Fn(&T) -> Option<IpAddr>) {
    let from = source(&one);
    let is_its = |other: &T| source(other) == from;
    let oldest = match all.iter().filter(|other| is_its(other)).count() {
        count if count >= MOST_WAITING / 2 => all.iter().position(is_its),
        _ => (all.len() >= MOST_WAITING).then_some(0),
    };
    if let Some(oldest) = oldest {
        all.remove(oldest);
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

    /// Whether the peer has been idle for so long that it has to give way to another one.
    fn may_give_way(&self) -> bool {
        let patience = match self.state.lock().has_moved {
            true => GIVES_WAY,
            false => GIVES_WAY_AT_FIRST,
        };
        self.idle() >= patience
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

#[cfg(test)]
mod tests {
    use polyverbs::connection::{ConnectionOptions, Connector};
    use polyverbs::emulated::{self, EmulatedOptions};
    use polyverbs::{QpOptions, Requirements};

    use super::*;

    fn address(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    #[test]
    fn requests_of_one_address_leave_room_for_others() {
        let mut all = VecDeque::new();
        let mut asks = |from, number| queue(&mut all, (address(from), number), |(from, _)| *from);
        asks(1, 0);
        (1..=1000).for_each(|number| asks(2, number));
        asks(1, 1001);
        let numbers = all.iter().map(|(_, number)| *number);
        let half = MOST_WAITING as u32 / 2;
        let expected = [0].into_iter().chain(1001 - half..=1001);
        assert!(numbers.eq(expected), "{all:?}");
    }

    #[test]
    fn requests_of_many_addresses_replace_the_oldest() {
        let mut all = VecDeque::new();
        for number in 0..=255 {
            queue(&mut all, address(number), |from| *from);
        }
        let expected = (256 - MOST_WAITING..256).map(|number| address(number as u8));
        assert!(all.iter().copied().eq(expected), "{all:?}");
    }

    #[test]
    fn a_replaced_request_ends_and_keeps_no_connection() {
        let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(256).wait().unwrap();
        let connector = Connector::of(&context).unwrap();
        let listener = connector.listen(([192, 0, 2, 1], 7471).into(), 0).unwrap();
        let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let accept = |incoming: Incoming, _: &mut dyn FnMut() -> bool| {
            let side = qp();
            let begun = incoming.begin_accept(&side, ConnectionOptions::new());
            let (connection, answer) = begun.map_err(|error| error.to_string())?;
            Ok((side, connection, answer))
        };
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let peers = Peers::new(1, Duration::MAX);
                peers.serve(&listener, 1, accept, |_, _, _| ()).unwrap();
            });
            let ask = |_| {
                let (near, options) = (qp(), ConnectionOptions::new());
                let asked = connector.request(&near, listener.address(), options);
                (near, asked.wait().unwrap())
            };
            // The last request is answered after the one before it has replaced the first.
            let mut all: VecDeque<_> = (0..MOST_WAITING / 2 + 2).map(ask).collect();
            let (_near, first) = all.pop_front().unwrap();
            let ended = first.complete().wait();
            let (_near, last) = all.pop_back().unwrap();
            let _connection = last.complete().wait().unwrap();
            serving.join().unwrap();
            assert_eq!(ended.err(), Some(ConnectError::Aborted));
        });
    }

    #[test]
    fn a_reason_is_printed_once_until_a_peer_is_served() {
        let mut refusals = Refusals::default();
        let mut add = |reason: &str| refusals.add(reason.to_owned());
        assert_eq!(add("no memory"), Some("no memory".to_owned()));
        assert_eq!(add("no queue pair"), Some("no queue pair".to_owned()));
        for _ in 0..1000 {
            assert_eq!(add("no memory"), None);
        }
        assert_eq!(refusals.end(), ["no memory (1001 requests)"]);
        assert!(refusals.end().is_empty());
        let again = "no memory".to_owned();
        assert_eq!(refusals.add(again.clone()), Some(again));
    }

    #[test]
    fn an_idle_peer_gives_way_to_a_proven_peer_only() {
        let peers = Peers::new(1, Duration::MAX);
        let place = peers.admit(address(1)).expect("a free place");
        place.peer.waits();
        assert!(matches!(peers.room_for(address(2)), Room::None));
        place.peer.state.lock().since = Instant::now().checked_sub(GIVES_WAY);
        // A request may be forged, and asks only whether there is room.
        assert!(matches!(peers.room_for(address(2)), Room::Idle(_)));
        assert!(place.peer.check().is_ok());
        assert!(peers.admit(address(2)).is_none());
        assert!(place.peer.check().is_err());
        drop(place);
        assert!(peers.admit(address(2)).is_some());
    }
}
