//! The connection manager of one address: its connections, and the communication IDs, listeners, timers and queues that
//! they share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::{Message, Rej, reason};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use verbs_api::ids::LinkAddress;
use verbs_api::qp::{QpAttributes, QpState};

use super::admission::{Admission, UNPROVEN};
use super::connection::{Connection, PeerKey};
use super::limits::{Counts, ManagerOptions};
use super::probed::Probed;
use super::time;
use super::types::{CmError, CommId, Event, ListenerId, Outgoing, State, Transport};
use crate::long_queue::release;

/// The lowest service ID that is assigned to a listener without one of its own (IBTA annex A3).
const LOCAL_SERVICES: u64 = 0x0200_0000_0000_0000;

/// InfiniBand's connection manager for one address, as a state machine.
///
/// *In*: [`handle_message`](Self::handle_message), [`handle_timeout`](Self::handle_timeout), and the program's calls.
/// *Out*: [`poll_message`](Self::poll_message), [`poll_event`](Self::poll_event) and [`next_due`](Self::next_due): call
/// them in this order after each input. A call that is not allowed in the connection's state changes nothing and sends no
/// message.
///
/// After [`Event::Rejected`], a timeout or [`Event::TimewaitExit`] a communication ID may be used for another connection.
#[derive(Debug)]
pub struct Manager {
    pub(super) options: ManagerOptions,
    pub(super) listeners: BTreeMap<ListenerId, Listening>,
    pub(super) connections: BTreeMap<u32, Connection>,
    /// The connections by the peer's address.
    pub(super) by_address: BTreeSet<(LinkAddress, u32)>,
    /// The connections by their peer and its communication ID.
    pub(super) by_request: BTreeMap<PeerKey, u32>,
    /// The connections that are established or in TIMEWAIT, by their peer and its queue pair.
    pub(super) by_qpn: BTreeMap<PeerKey, u32>,
    /// The connections that wait for the RTU, by their local queue pair.
    pub(super) unready: BTreeMap<u32, u32>,
    pub(super) questions: BTreeMap<(LinkAddress, u32), u32>,
    pub(super) admission: Admission,
    pub(super) counts: Counts,
    pub(super) liveness: Probed,
    timers: BTreeSet<(Time, u32)>,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    random: StdRng,
    next_listener: u32,
    next_service: u64,
    next_transaction: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Listening {
    pub(super) service_id: u64,
    pub(super) mask: u64,
    pub(super) backlog: usize,
}

impl Manager {
    /// Creates a manager without connections.
    pub fn new(options: ManagerOptions) -> Self {
        Self {
            random: StdRng::seed_from_u64(options.seed),
            options,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            by_address: BTreeSet::new(),
            by_request: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            unready: BTreeMap::new(),
            questions: BTreeMap::new(),
            admission: Admission::default(),
            counts: Counts::default(),
            liveness: Probed::default(),
            timers: BTreeSet::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            next_listener: 0,
            next_service: LOCAL_SERVICES,
            next_transaction: 0,
        }
    }

    /// Listens for the services whose ID equals `service_id` in the bits of `mask`. For service 0 an ID is assigned.
    /// Returns the listener and its service ID.
    ///
    /// # Errors
    /// Another listener has one of these services.
    pub fn listen(&mut self, service_id: u64, mask: u64) -> Result<(ListenerId, u64), CmError> {
        let (service_id, mask) = match service_id {
            0 => {
                self.next_service += 1;
                (self.next_service - 1, u64::MAX)
            }
            named => (named & mask, mask),
        };
        let overlaps = |other: &Listening| (other.service_id ^ service_id) & other.mask & mask == 0;
        if self.listeners.values().any(overlaps) {
            return Err(CmError::InUse);
        }
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        let listening = Listening {
            service_id,
            mask,
            backlog: self.options.backlog,
        };
        self.listeners.insert(id, listening);
        Ok((id, service_id))
    }

    /// Sets how many requests of a listener the program may leave unanswered, in place of [`ManagerOptions::backlog`].
    pub fn set_backlog(&mut self, listener: ListenerId, backlog: usize) {
        if let Some(listening) = self.listeners.get_mut(&listener) {
            listening.backlog = backlog;
        }
    }

    /// Stops listening. The program still has to answer requests that were reported before.
    ///
    /// # Errors
    /// There is no such listener.
    pub fn unlisten(&mut self, listener: ListenerId) -> Result<(), CmError> {
        let removed = self.listeners.remove(&listener);
        removed.map(drop).ok_or(CmError::Unknown)
    }

    /// Returns the state of a connection; `None` if it does not exist.
    pub fn state(&self, id: CommId) -> Option<State> {
        self.connections
            .get(&id.0)
            .map(|connection| connection.state)
    }

    /// Returns the service type of a connection's queue pairs; `None` if the connection does not exist.
    pub fn transport(&self, id: CommId) -> Option<Transport> {
        let connection = self.connections.get(&id.0)?;
        Some(connection.transport)
    }

    /// Returns the number of connections in any state.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the counters of the manager.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the attributes that move the queue pair of a connection to the state `to`.
    ///
    /// # Errors
    /// The handshake has not come that far, or the connection has ended.
    pub fn qp_attributes(&self, id: CommId, to: QpState) -> Result<QpAttributes, CmError> {
        let connection = self.connections.get(&id.0).ok_or(CmError::Unknown)?;
        let attributes = connection.qp_attributes(to);
        attributes.ok_or(CmError::State(connection.state))
    }

    /// Returns the next message to send; `None` if there is none.
    pub fn poll_message(&mut self) -> Option<Outgoing> {
        let next = self.outgoing.pop_front();
        release(&mut self.outgoing);
        next
    }

    /// Returns the next event for the program; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        let next = self.events.pop_front();
        release(&mut self.events);
        next
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout); `None` if no timer runs.
    pub fn next_due(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(due, _)| *due);
        timer.into_iter().chain(self.liveness.next_due()).min()
    }

    /// Handles the timers that have expired at the time `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.probe_adapters(now);
        while let Some(&(due, id)) = self.timers.first() {
            if due > now {
                return;
            }
            self.timers.remove(&(due, id));
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.due = None;
                self.on_due(now, id, None);
            }
        }
    }

    /// Handles that the system refuses to send to an address, with this error number. A message that was sent there and is
    /// not answered is sent again at once, because a firewall may refuse one message and not the next; its connection fails
    /// when no retry is left.
    pub fn handle_refusal(&mut self, now: Time, to: LinkAddress, errno: i32) {
        let there = self.by_address.range((to, 0)..=(to, u32::MAX));
        let there: Vec<u32> = there.map(|&(_, id)| id).collect();
        for id in there {
            let connection = self.connections.get_mut(&id);
            let Some(connection) = connection.filter(|of| of.state.awaits_answer()) else {
                continue;
            };
            // The message has not left.
            connection.allowance = connection.allowance.map(|allowance| allowance + 1);
            self.on_due(now, id, Some(errno));
        }
    }

    // The timer of a connection has expired, or the system has refused its message with an error number.
    fn on_due(&mut self, now: Time, id: u32, refused: Option<i32>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.state == State::TimeWait {
            self.forget(id);
            return self.tell(Event::TimewaitExit { id: CommId(id) });
        }
        if !std::mem::take(&mut connection.keeps_retries) {
            if connection.retries_left == 0 || connection.patient_until <= now {
                return self.give_up(now, id, refused);
            }
            connection.retries_left -= 1;
        }
        let (message, response) = (connection.repeated.clone(), connection.response);
        // An unproven address is not sent its last message for a repetition: that one says that the connection is given up,
        // or is lent to a request of the program.
        let may_repeat = connection.arrival.is_none() || connection.allowance != Some(1);
        if let Some(message) = message.filter(|_| may_repeat) {
            self.counts.retries += 1;
            self.send(id, *message);
        }
        self.wake(id, now.after(response));
    }

    fn give_up(&mut self, now: Time, id: u32, refused: Option<i32>) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let comm_id = CommId(id);
        let event = match connection.state {
            State::ReqSent | State::MraReqRcvd => Event::RequestTimedOut { id: comm_id },
            State::RepSent | State::MraRepRcvd => Event::ReplyTimedOut { id: comm_id },
            state if state.is_unanswered() => {
                self.forget(id);
                return self.tell(Event::Withdrawn { id: comm_id });
            }
            State::DreqSent => {
                self.enter_timewait(now, id);
                return self.tell(Event::DisconnectTimedOut { id: comm_id });
            }
            _ => Event::ResolutionTimedOut { id: comm_id },
        };
        if connection.state != State::SidrReqSent {
            self.send_timeout(id);
        }
        self.forget(id);
        self.tell(match refused {
            Some(errno) => Event::Unsent { id: comm_id, errno },
            None => event,
        });
    }

    /// Sends a REJ with the reason timeout and the adapter's GUID, because the peer's answer may still be on its way.
    pub(super) fn send_timeout(&mut self, id: u32) {
        let guid = self.options.ca_guid.to_be_bytes();
        self.send_rejection(id, reason::TIMEOUT, &guid, &[]);
    }

    pub(super) fn send_rejection(&mut self, id: u32, reason: u16, info: &[u8], private: &[u8]) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (local, message) = match connection.state {
            State::ReqRcvd => (0, 0),
            State::MraReqSent => (id, 0),
            State::RepRcvd | State::MraRepSent => (id, 1),
            _ => (id, 2),
        };
        let rejection = Rej {
            local_comm_id: local,
            remote_comm_id: connection.remote_comm_id,
            message,
            info_length: info.len() as u8,
            reason,
            info: Octets::padded(info).unwrap_or_default(),
            private_data: Octets::padded(private).unwrap_or_default(),
            ..Rej::default()
        };
        self.send(id, rejection.into());
    }

    pub(super) fn send(&mut self, id: u32, message: Message) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (to, transaction_id) = (connection.path.address, connection.transaction_id);
        if !self.take_allowance(id) {
            self.counts.unsent += 1;
            return;
        }
        self.send_to(to, transaction_id, message);
    }

    pub(super) fn send_to(&mut self, to: LinkAddress, transaction_id: u64, message: Message) {
        if self.outgoing.len() >= self.options.max_outgoing {
            self.counts.unsent += 1;
            return;
        }
        self.outgoing.push_back(Outgoing {
            to,
            transaction_id,
            message,
        });
    }

    /// Sends a message and repeats it until the peer answers.
    pub(super) fn send_until_answered(&mut self, now: Time, id: u32, message: Message) {
        let patience = self.options.patience;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let until = now.after(match connection.allowance {
            Some(_) => patience.min(UNPROVEN),
            None => patience,
        });
        connection.retries_left = connection.max_cm_retries;
        connection.repeated = Some(Box::new(message));
        connection.patient_until = until;
        connection.listens_by = now.after(LISTENS_BY);
        connection.keeps_retries = false;
        let due = now.after(connection.response);
        self.send(id, message);
        self.wake(id, due);
    }

    /// Schedules another repetition of a REQ or SIDR_REQ that the peer refused because no program listens; returns `false` if
    /// that is not wanted, or has been tried for long enough.
    pub(super) fn ask_again(&mut self, now: Time, id: u32) -> bool {
        let at = now.after(AGAIN);
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        if !connection.awaits_listener || at > connection.listens_by {
            return false;
        }
        connection.keeps_retries = true;
        self.wake(id, at);
        true
    }

    /// Sets the timer that limits how long the program may take to answer a request.
    pub(super) fn wait_for_answer(&mut self, now: Time, id: u32) {
        let until = now.after(self.options.patience);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.patient_until = until;
            self.wake(id, until);
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn wake(&mut self, id: u32, due: Time) {
        self.cancel(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            let due = match connection.state {
                State::TimeWait => due,
                _ => due.min(connection.patient_until),
            };
            connection.due = Some(due);
            self.timers.insert((due, id));
        }
    }

    /// Stops the timer of a connection, because its repeated message has been answered.
    pub(super) fn cancel(&mut self, id: u32) {
        if let Some(connection) = self.connections.get_mut(&id)
            && let Some(due) = connection.due.take()
        {
            self.timers.remove(&(due, id));
        }
    }

    /// Returns the time after which an unanswered message is repeated: 4.096 µs x 2^code plus twice the packet lifetime, at
    /// least [`REPEAT`] and at most [`ManagerOptions::patience`].
    pub(super) fn response_time(&self, code: u8, packet_life_time: u8) -> Duration {
        let time = time::decoded(code) + time::decoded(packet_life_time) * 2;
        time.max(REPEAT).min(self.options.patience)
    }

    /// Moves a connection that has ended to TIMEWAIT: its communication ID stays reserved until all of its packets have
    /// left the network.
    pub(super) fn enter_timewait(&mut self, now: Time, id: u32) {
        self.cancel(id);
        self.close(id);
        let patience = self.options.patience;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.state = State::TimeWait;
        connection.repeated = None;
        let time = time::timewait(connection.ack_timeout).min(patience);
        let qpn = connection.local_qpn.value();
        remove_own(&mut self.unready, qpn, id);
        self.make_replaceable(id);
        self.wake(id, now.after(time));
    }

    pub(super) fn forget(&mut self, id: u32) {
        self.cancel(id);
        self.close(id);
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        self.by_address.remove(&(connection.path.address, id));
        let is_proven = connection.allowance.is_none();
        match connection.arrival {
            Some(arrival) => self.release(arrival, connection.path.address, is_proven),
            None => self.release_own(connection.path.address, is_proven),
        }
        let request = connection.peer_key(connection.remote_comm_id);
        remove_own(&mut self.by_request, request, id);
        let peer = connection.peer_key(connection.remote_qpn.value());
        remove_own(&mut self.by_qpn, peer, id);
        remove_own(&mut self.unready, connection.local_qpn.value(), id);
        let asker = (connection.path.address, connection.remote_comm_id);
        remove_own(&mut self.questions, asker, id);
    }

    /// Adds a connection that the program requests, and returns its communication ID.
    pub(super) fn add_own(&mut self, connection: Connection) -> Result<u32, CmError> {
        let own = self.connections.len() - self.admission.len();
        if own >= self.options.max_connections {
            return Err(CmError::TooMany);
        }
        let id = self.add(connection)?;
        self.limit(id);
        Ok(id)
    }

    pub(super) fn add(&mut self, connection: Connection) -> Result<u32, CmError> {
        let id = self.free_id().ok_or(CmError::TooMany)?;
        self.by_address.insert((connection.path.address, id));
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// Returns an unused communication ID that others cannot guess, so that a message with it proves that its sender has
    /// received one.
    pub(super) fn free_id(&mut self) -> Option<u32> {
        let bits = self.options.comm_id_bits.clamp(1, 32);
        let mask = u32::MAX >> (32 - bits);
        let first = self.random.next_u32();
        // Tries all numbers once; 0 is invalid.
        for step in 0..=self.connections.len() as u32 + 2 {
            let id = self.options.comm_id_base & !mask | first.wrapping_add(step) & mask;
            if id != 0 && id != self.liveness.unused_id && !self.connections.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Returns a new transaction ID for an exchange of the connection `id`.
    pub(super) fn transaction(&mut self, id: u32) -> u64 {
        self.next_transaction = self.next_transaction.wrapping_add(1);
        u64::from(id) << 32 | u64::from(self.next_transaction)
    }
}

pub(super) fn remove_own<K: Ord>(map: &mut BTreeMap<K, u32>, key: K, id: u32) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}

/// How long a REQ or SIDR_REQ is repeated to a peer on which no program listens: a server may report to its client that it is ready,
/// lose the processor, and listen only then.
const LISTENS_BY: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_millis(5);
/// The least time after which an unanswered message is repeated, whatever the peer asks for.
const REPEAT: Duration = Duration::from_millis(100);
