//! Room for connections: how much of it peers may take, and who makes room for whom.
//!
//! The address of a request may be forged, so a connection that a peer asked for is *unproven* until a message shows that what
//! was sent to its address arrived: one that names the communication ID of this side. Each source has a quota. Where there is
//! no room the oldest unproven connection is given up. Connections that the program asks for do not count. While requests from an
//! address are unproven, a REQ of the program to that address is limited as a REP is, because a forged request may be the reason
//! why the program connects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use verbs_api::ids::LinkAddress;

use super::connection::Arrival;
use super::manager::Manager;
use super::types::{CommId, Event, ListenerId, State};

/// Connections that peers have asked for.
#[derive(Debug, Default)]
pub(super) struct Admission {
    arrivals: u64,
    /// REQs and SIDR_REQs that the program has not answered, by age.
    unanswered: BTreeSet<(ListenerId, Arrival)>,
    /// Unproven connections and those in TIMEWAIT, by age.
    replaceable: BTreeSet<Arrival>,
    counts: BTreeMap<Share, usize>,
}

/// What has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    /// All connections that peers have asked for.
    All,
    /// Those of one source.
    Source(LinkAddress),
    /// Those of one source that are unproven.
    Unproven(LinkAddress),
    /// Unanswered requests of a listener.
    Listener(ListenerId),
    /// Those of one source.
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

    /// Connections that peers have asked for.
    pub(super) fn len(&self) -> usize {
        self.count(Share::All)
    }

    fn oldest_of(&self, listener: ListenerId) -> Option<u32> {
        let all = (listener, (0, 0))..=(listener, (u64::MAX, u32::MAX));
        let first = self.unanswered.range(all).next();
        first.map(|(_, (_, id))| *id)
    }
}

impl Manager {
    /// Makes room for a request of a source to a listener; `false` where the source has its quota or nothing may be given up.
    pub(super) fn make_room(&mut self, listener: ListenerId, from: LinkAddress) -> bool {
        let (backlog, most) = (self.options.backlog, self.options.max_connections);
        let has_quota = |share, room: usize| self.admission.count(share) >= room.div_ceil(SOURCES);
        if has_quota(Share::ListenerSource(listener, from), backlog)
            || has_quota(Share::Source(from), most)
        {
            return false;
        }
        if self.admission.count(Share::Listener(listener)) >= backlog {
            let Some(oldest) = self.admission.oldest_of(listener) else {
                return false;
            };
            self.give_way(oldest);
        }
        if self.admission.len() >= most {
            let Some(&(_, oldest)) = self.admission.replaceable.first() else {
                return false;
            };
            self.give_way(oldest);
        }
        true
    }

    /// Gives up a connection for another one. Nothing is sent: its peer, if there is one, asks again.
    fn give_way(&mut self, id: u32) {
        let state = self.state(CommId(id));
        self.forget(id);
        let id = CommId(id);
        self.tell(match state {
            Some(State::TimeWait) => Event::TimewaitExit { id },
            Some(State::RepSent) => Event::ReplyTimedOut { id },
            _ => Event::Withdrawn { id },
        });
    }

    /// A peer has asked for this connection.
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
        admission.replaceable.insert(arrival);
        admission.unanswered.insert((listener, arrival));
        admission.add(Share::All);
        admission.add(Share::Source(from));
        admission.add(Share::Unproven(from));
        admission.add(Share::Listener(listener));
        admission.add(Share::ListenerSource(listener, from));
    }

    /// The program has answered the request, or it is over.
    pub(super) fn close(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if let (Some(listener), Some(arrival)) = (connection.listener, connection.arrival)
            && self.admission.unanswered.remove(&(listener, arrival))
        {
            let from = connection.path.address;
            self.admission.subtract(Share::Listener(listener));
            self.admission
                .subtract(Share::ListenerSource(listener, from));
        }
    }

    /// The connection does not exist any more.
    pub(super) fn release(&mut self, arrival: Arrival, from: LinkAddress, is_proven: bool) {
        self.admission.replaceable.remove(&arrival);
        self.admission.subtract(Share::All);
        self.admission.subtract(Share::Source(from));
        if !is_proven {
            self.admission.subtract(Share::Unproven(from));
        }
    }

    /// How many messages a request of the program may send to an address before that proves itself; `None` for any number.
    pub(super) fn allowance_to(&self, address: LinkAddress) -> Option<u32> {
        let is_suspect = self.admission.count(Share::Unproven(address)) > 0;
        is_suspect.then_some(ALLOWANCE)
    }

    /// The peer's address is not forged.
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
        if let Some(arrival) = connection.arrival {
            self.admission.subtract(Share::Unproven(from));
            if !is_over {
                self.admission.replaceable.remove(&arrival);
            }
        }
    }

    /// The connection has ended, and only keeps its numbers.
    pub(super) fn make_replaceable(&mut self, id: u32) {
        let arrival = self.connections.get(&id).and_then(|of| of.arrival);
        self.admission.replaceable.extend(arrival);
    }
}

/// How long an answer is waited for from an address that has not proven itself, whatever it asks for.
pub(super) const UNPROVEN: Duration = Duration::from_secs(10);
/// Messages that may be sent to an unproven address for each that came from there (RFC 9000 section 8.1). All are of one length.
pub(super) const ALLOWANCE: u32 = 3;
/// Sources that share all room there is: a source may take no more than this part of it.
const SOURCES: usize = 2;
