//! Limits the number of connections that peers request, and decides which connection is given up for a new one.
//!
//! The source address of a request may be forged. So a connection that a peer has requested is *unproven* until a message
//! with the communication ID of this side arrives, which shows that its sender has received a message at this address. Each
//! source address has a quota. If there is no room, the oldest unproven connection is given up; if a source has used up its
//! quota, the oldest of that source. So forged requests in the name of a peer cannot keep that peer out. Connections that
//! the program requests do not count. While all requests from an address are unproven, the program's own requests to that
//! address take their messages from the allowance of these, because a forged request may be the reason why the program sends its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;

use super::connection::{Arrival, Connection};
use super::manager::Manager;
use super::types::{CommId, Event, ListenerId, State};

/// The connections that peers have requested, in the order in which they may be given up for new ones.
#[derive(Debug, Default)]
pub(super) struct Admission {
    arrivals: u64,
    /// The REQs and SIDR_REQs that the program has not answered, by age for each listener.
    unanswered: ByAge<ListenerId>,
    /// Unproven connections and those in TIMEWAIT, by age: this side may give them up to make room for a new request.
    replaceable: ByAge<()>,
    counts: BTreeMap<Share, usize>,
}

/// A set of connections in the order of their age, for each `L` (a listener, or `()` for all listeners), and within
/// each `L` also for each source address.
#[derive(Debug)]
struct ByAge<L> {
    all: BTreeSet<(L, Arrival)>,
    of_source: BTreeSet<(L, LinkAddress, Arrival)>,
}

impl<L> Default for ByAge<L> {
    fn default() -> Self {
        Self {
            all: BTreeSet::new(),
            of_source: BTreeSet::new(),
        }
    }
}

impl<L: Copy + Ord> ByAge<L> {
    fn insert(&mut self, of: L, from: LinkAddress, arrival: Arrival) {
        self.all.insert((of, arrival));
        self.of_source.insert((of, from, arrival));
    }

    /// Removes a connection from the set; returns whether the set contained the connection.
    fn remove(&mut self, of: L, from: LinkAddress, arrival: Arrival) -> bool {
        self.of_source.remove(&(of, from, arrival));
        self.all.remove(&(of, arrival))
    }

    fn oldest(&self, of: L) -> Option<u32> {
        let next = self.all.range((of, FIRST)..=(of, LAST)).next();
        next.map(|(_, (_, id))| *id)
    }

    fn oldest_from(&self, of: L, from: LinkAddress) -> Option<u32> {
        let range = (of, from, FIRST)..=(of, from, LAST);
        let next = self.of_source.range(range).next();
        next.map(|(_, _, (_, id))| *id)
    }
}

const FIRST: Arrival = (0, 0);
const LAST: Arrival = (u64::MAX, u32::MAX);

/// A group of connections whose number [`Admission`] limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    /// All connections that peers have requested.
    All,
    /// The connections that one source address has requested.
    Source(LinkAddress),
    /// The unproven connections that one source address has requested.
    Unproven(LinkAddress),
    /// The requests of the program to an address whose messages are limited.
    Limited(LinkAddress),
    /// The requests to a listener that the program has not answered.
    Listener(ListenerId),
    /// The requests of one source address to a listener that the program has not answered.
    ListenerSource(ListenerId, LinkAddress),
}

impl Admission {
    fn count(&self, share: Share) -> usize {
        self.counts.get(&share).copied().unwrap_or_default()
    }

    fn add(&mut self, share: Share) {
        *self.counts.entry(share).or_default() += 1;
    }

    fn subtract(&mut self, share: Share) {
        if let Some(count) = self.counts.get_mut(&share) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&share);
            }
        }
    }

    /// Returns how many connections exist that peers have requested.
    pub(super) fn len(&self) -> usize {
        self.count(Share::All)
    }
}

impl Manager {
    /// Makes room for a request from the address `from` to a listener, if necessary by giving up an older connection.
    /// Returns `false` if there is no room and no connection may be given up.
    pub(super) fn make_room(&mut self, listener: ListenerId, from: LinkAddress) -> bool {
        let most = self.options.max_connections;
        let backlog = self.listeners.get(&listener);
        let backlog = backlog.map_or(0, |listening| listening.backlog);
        let of_source = self.has_part(Share::ListenerSource(listener, from), backlog);
        let unanswered = &self.admission.unanswered;
        let oldest = match of_source {
            true => unanswered.oldest_from(listener, from),
            false => unanswered.oldest(listener),
        };
        let is_full = of_source || self.admission.count(Share::Listener(listener)) >= backlog;
        if is_full && !self.give_way(oldest) {
            return false;
        }
        let of_source = self.has_part(Share::Source(from), most);
        let replaceable = &self.admission.replaceable;
        let oldest = match of_source {
            true => replaceable.oldest_from((), from),
            false => replaceable.oldest(()),
        };
        let is_full = of_source || self.admission.len() >= most;
        !is_full || self.give_way(oldest)
    }

    /// Whether the connections of a source address, which `share` counts, have used up the address's part of `room`
    /// places.
    fn has_part(&self, share: Share, room: usize) -> bool {
        self.admission.count(share) >= room.div_ceil(SOURCES)
    }

    /// Gives up connection `id` to make room for another one; returns `false` if `id` is `None`. The peer gets no
    /// message: if the peer exists, it repeats its request.
    fn give_way(&mut self, id: Option<u32>) -> bool {
        let Some(id) = id else { return false };
        let state = self.state(CommId(id));
        self.forget(id);
        let id = CommId(id);
        self.tell(match state {
            Some(State::TimeWait) => Event::TimewaitExit { id },
            Some(State::RepSent) => Event::ReplyTimedOut { id },
            _ => Event::Withdrawn { id },
        });
        true
    }

    /// Counts a connection that a peer has requested, and limits the messages to the peer's address until the address
    /// is proven.
    pub(super) fn admit(&mut self, listener: ListenerId, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let from = connection.path.address;
        let admission = &mut self.admission;
        admission.arrivals += 1;
        let arrival = (admission.arrivals, id);
        connection.arrival = Some(arrival);
        connection.allowance = Some(ALLOWANCE);
        admission.replaceable.insert((), from, arrival);
        admission.unanswered.insert(listener, from, arrival);
        admission.add(Share::All);
        admission.add(Share::Source(from));
        admission.add(Share::Unproven(from));
        admission.add(Share::Listener(listener));
        admission.add(Share::ListenerSource(listener, from));
    }

    /// Removes the request with this communication ID from the unanswered ones, because the program has answered the
    /// request or its connection has ended.
    pub(super) fn close(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let from = connection.path.address;
        if let (Some(listener), Some(arrival)) = (connection.listener, connection.arrival)
            && self.admission.unanswered.remove(listener, from, arrival)
        {
            self.admission.subtract(Share::Listener(listener));
            self.admission
                .subtract(Share::ListenerSource(listener, from));
        }
    }

    /// Removes a request of the program that no longer exists from the counts.
    pub(super) fn release_own(&mut self, address: LinkAddress, is_proven: bool) {
        if !is_proven {
            self.admission.subtract(Share::Limited(address));
        }
    }

    /// Removes a connection of a peer that no longer exists from the counts.
    pub(super) fn release(&mut self, arrival: Arrival, from: LinkAddress, is_proven: bool) {
        self.admission.replaceable.remove((), from, arrival);
        self.admission.subtract(Share::All);
        self.admission.subtract(Share::Source(from));
        if !is_proven {
            self.admission.subtract(Share::Unproven(from));
        }
    }

    /// Limits the messages of a request of the program if all requests from its peer's address are unproven: it has no
    /// allowance of its own. An address that has requested a connection and completed it is proven, whatever else is
    /// requested in its name, and so is this port's own address, in whose name no other host can send.
    pub(super) fn limit(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let path = &connection.path;
        let (address, is_own) = (path.address, path.local_gid == path.remote_gid);
        let unproven = self.admission.count(Share::Unproven(address));
        if !is_own && unproven > 0 && unproven == self.admission.count(Share::Source(address)) {
            connection.allowance = Some(0);
            self.admission.add(Share::Limited(address));
        }
    }

    /// Takes one message from the allowance of a connection; returns `false` if none is left. A request of the program takes
    /// it from an unproven request of the same address, which keeps one until its own answer was sent.
    pub(super) fn take_allowance(&mut self, id: u32) -> bool {
        let Some(connection) = self.connections.get(&id) else {
            return false;
        };
        let address = connection.path.address;
        let has_more = |of: &Connection| {
            let kept = u32::from(of.state.is_unanswered());
            of.arrival.is_some() && of.allowance > Some(kept)
        };
        let lender = match connection.allowance {
            None => return true,
            Some(0) if connection.arrival.is_none() => {
                let there = self.by_address.range((address, 0)..=(address, u32::MAX));
                let mut there = there.map(|&(_, id)| id);
                there.find(|id| self.connections.get(id).is_some_and(has_more))
            }
            Some(left) => (left > 0).then_some(id),
        };
        let lender = lender.and_then(|lender| self.connections.get_mut(&lender));
        lender.is_some_and(|lender| {
            lender.allowance = lender.allowance.map(|allowance| allowance - 1);
            true
        })
    }

    /// Ends the limit on the program's requests to an address where a host has answered, and sends these requests again: the
    /// allowance may have been too small for them.
    fn lift_limits(&mut self, address: LinkAddress) {
        if self.admission.count(Share::Limited(address)) == 0 {
            return;
        }
        let there = self.by_address.range((address, 0)..=(address, u32::MAX));
        let rest = self.options.patience.saturating_sub(UNPROVEN);
        for id in there.map(|&(_, id)| id).collect::<Vec<_>>() {
            let connection = self.connections.get_mut(&id);
            let limited = connection.filter(|of| of.arrival.is_none() && of.allowance.is_some());
            if let Some(connection) = limited {
                connection.allowance = None;
                connection.patient_until = connection.patient_until.after(rest);
                connection.keeps_retries = true;
                self.admission.subtract(Share::Limited(address));
                self.wake(id, Time::default());
            }
        }
    }

    /// Marks the address of a connection's peer as proven, that is, not forged: messages to the peer are no longer
    /// limited.
    pub(super) fn prove(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (from, is_over) = (connection.path.address, connection.state == State::TimeWait);
        if connection.allowance.take().is_none() {
            return;
        }
        // A proven peer may answer as late as the general limit allows.
        let rest = self.options.patience.saturating_sub(UNPROVEN);
        connection.patient_until = connection.patient_until.after(rest);
        match connection.arrival {
            Some(arrival) => {
                self.admission.subtract(Share::Unproven(from));
                if !is_over {
                    self.admission.replaceable.remove((), from, arrival);
                }
            }
            None => self.admission.subtract(Share::Limited(from)),
        }
        self.lift_limits(from);
    }

    /// Lets a connection that has ended and only reserves its communication ID be given up for new ones.
    pub(super) fn make_replaceable(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if let Some(arrival) = connection.arrival {
            let from = connection.path.address;
            self.admission.replaceable.insert((), from, arrival);
        }
    }
}

/// How long this side waits for an answer from an unproven address, whatever timeout the peer asks for.
pub(super) const UNPROVEN: Duration = Duration::from_secs(10);
/// How many messages this side may send to an unproven address for each message that came from there (RFC 9000 section
/// 8.1). All messages have the same length.
pub(super) const ALLOWANCE: u32 = 3;
/// The divisor for the places of one source address: with 2, the requests of one address may take half of all places.
const SOURCES: usize = 2;
