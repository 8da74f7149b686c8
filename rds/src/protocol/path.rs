//! The path to one peer: messages to the peer that it has not acknowledged yet, messages from it, and the state of the
//! connection.

use std::cmp::min;
use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use polyverbs_wire::rds::{
    CongestionMap, Extension, Extensions, FRAGMENT, Flags, Header, MAX_MESSAGE,
};
use rand::Rng;
use thiserror::Error;

use super::credits::Credits;
use super::message::{
    Arrived, Fragment, Fragments, HAS_PORT, Message, NO_PORT, Notify, Operation, OperationStatus,
    Origin, PROBE_PORT, SocketId,
};

/// A message requires an acknowledgement if this many messages, or bytes of payload, were sent since the last one that did.
const UNACKNOWLEDGED_MESSAGES: u32 = 8;
const UNACKNOWLEDGED_BYTES: u32 = 16 << 20;

/// One in this many work requests is signaled. Its completion shows how many entries of the send queue are free.
const UNSIGNALED: u64 = 16;

/// The most answers to pings that the peer has not acknowledged yet; further pings are dropped.
const MOST_PONGS: usize = 256;

/// The window of the reconnect backoff before the second attempt, and the longest window: the first attempt begins at once,
/// others after a random part of the window, which doubles each time.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Length of a congestion map, in bytes.
const MAP: u32 = 8192;

/// The sequence number of the announcement of a port at the beginning of a connection. It is not among the numbers of
/// messages, so it overtakes those that are retransmitted, and is not acknowledged.
const UNNUMBERED: u64 = 0;

/// Why a fragment that the peer sent ends the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// The messages that wait to be received or forwarded take all the memory that the host allows for them.
    #[error("messages that wait to be received or forwarded take all the memory allowed for them")]
    Memory,
    /// The fragment is too short for a header, or the checksum of its header is wrong.
    #[error("a fragment has no valid header")]
    Header,
    /// The length in the header is more than [`MAX_MESSAGE`], or it is that of a congestion map and not 8192 bytes.
    #[error("a header announces a message of {length} bytes, which no message has")]
    Length {
        /// The length in the header, in bytes.
        length: u32,
    },
    /// The fragment belongs to another message than the one of which fragments are still missing.
    #[error("a fragment belongs to another message than the incomplete one before it")]
    Mismatch,
    /// The fragment's length does not follow from the message length in the header and the fragments before it: all but the
    /// last fragment are full.
    #[error("a fragment has {found} bytes instead of {expected}")]
    FragmentLength {
        /// The expected length, in bytes.
        expected: usize,
        /// The actual length, in bytes.
        found: usize,
    },
}

/// An event that a path, the connection to one peer, reports to the RDS host that it belongs to. `F` is a received fragment.
/// The host handles its events when the code around the protocol calls `settle`.
#[derive(Debug)]
pub(crate) enum Event<F> {
    /// A message for a socket has arrived completely.
    Arrived(Arrived<F>),
    /// The process at the other end has a socket at this port.
    HasPort(u16),
    /// The leader, the process that forwards the peer's messages, reports that the peer has restarted and that this is its
    /// new incarnation.
    Generation(u32),
    /// The peer's congestion map has arrived, in two fragments of 4096 bytes.
    Map(Fragments<F>),
    /// A message of this socket to this destination port left the send buffer: it was acknowledged or given up. It had this
    /// many bytes.
    Freed {
        socket: SocketId,
        port: u16,
        bytes: u32,
    },
    /// A forwarded message was acknowledged by the next process, or given up, so that its sender can get an
    /// acknowledgement.
    Settled(Origin),
    /// A message of this socket was given up without an acknowledgement; it may or may not have arrived.
    Undelivered(SocketId),
    /// An operation of this socket has ended, and the program gets its status.
    Ended {
        socket: SocketId,
        user_token: u64,
        status: OperationStatus,
    },
}

/// The work requests that the driver has to post on the path's QP next: one send, or all requests of one operation.
#[derive(Debug)]
pub enum Transmit<'a, F, O> {
    /// A send of one header and its payload.
    Send {
        /// The number of the work request: the path counts them, from 1 and over all connections.
        request: u64,
        /// The RDS header; the driver computes its checksum.
        header: Header,
        /// The payload that follows the header.
        payload: Payload<'a, F>,
        /// The send has the fence flag: it waits for earlier RDMA reads and atomics.
        fence: bool,
        /// The send has to be signaled.
        signaled: bool,
    },
    /// An RDMA operation or atomic on the peer's memory.
    Operation {
        /// The number of the last of the operation's work requests.
        request: u64,
        /// The operation to post.
        operation: &'a mut O,
        /// The last work request has to be signaled.
        signaled: bool,
    },
}

/// The payload of a send.
#[derive(Debug)]
pub enum Payload<'a, F> {
    /// The message has no payload.
    None,
    /// A fragment of the message's payload.
    Fragment {
        /// The fragment.
        fragment: &'a F,
        /// The number of its bytes to send.
        length: usize,
    },
    /// A part of the congestion map, of one fragment's length.
    Map(&'a [u8]),
}

/// The state of a path's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// There is no connection.
    Down {
        /// When the next attempt to connect begins, counted from the start of the host; `None` if none is scheduled.
        due: Option<Duration>,
    },
    /// The connection was requested by this side, or requested by the peer and is being accepted.
    Connecting,
    /// The connection is established and carries messages.
    Up,
    /// The connection has ended or is being ended, and the driver is destroying its QP.
    Ending,
}

#[derive(Debug)]
enum Current {
    /// The last message of `unacknowledged`, of which `sent` fragments were posted.
    Message {
        is_operation_sent: bool,
        sent: usize,
    },
    Map {
        sent: usize,
    },
    Announcement {
        port: u16,
    },
    Introduction {
        sequence: u64,
    },
}

/// Whether the peer has learned the sequence numbers of this path. A peer without an incarnation (Linux) does not notice that
/// this host has started anew, and drops a retransmitted message as a duplicate if the host before has used a higher number. A
/// message that is not marked as retransmitted sets the peer's count, also to a lower number. So the path first sends such a
/// message, the introduction, which is empty and for no socket, and waits for its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Introduction {
    /// The introduction has to be sent before the next message.
    Due,
    /// The introduction was sent on this connection with this sequence number; no acknowledgement has arrived.
    Sent(u64),
    /// The peer has acknowledged the introduction, or has an incarnation and needs none.
    Done,
}

#[derive(Debug)]
struct Reassembly<F> {
    header: Header,
    remaining: usize,
    fragments: Fragments<F>,
}

#[derive(Debug)]
pub(crate) struct Path<F, O> {
    pub(crate) state: PathState,
    pub(crate) events: VecDeque<Event<F>>,
    pub(crate) next_transmit: u64,
    pub(crate) next_receive: u64,
    introduction: Introduction,
    queue: VecDeque<Message<F, O>>,
    /// Messages that were posted at least in part and that the peer has not acknowledged.
    unacknowledged: VecDeque<Message<F, O>>,
    /// Messages that the peer acknowledged before their work requests completed, each with the number of its last request.
    /// The QP may read their memory until then.
    lingering: VecDeque<(u64, Message<F, O>)>,
    current: Option<Current>,
    pub(crate) is_map_due: bool,
    /// Ports of this process that are to be announced on this connection before any message is sent.
    announcements: Vec<u16>,
    messages_until_ack: u32,
    bytes_until_ack: u32,
    pongs: usize,
    credits: Option<Credits>,
    capacity: u64,
    posted: u64,
    completed: u64,
    signaled: u64,
    /// The sequence number of the peer's last message that has arrived completely, which this side acknowledges; 0 if none
    /// has arrived on this connection.
    acknowledges: u64,
    /// The highest sequence number that the peer has acknowledged on this connection.
    acknowledged: u64,
    /// Sequence numbers of the peer's messages that this side has forwarded and the next process has not acknowledged yet.
    /// The peer gets no acknowledgement for them until then.
    held: VecDeque<u64>,
    /// The sequence number of the peer's last message that needs an acknowledgement: because of its flag, or because it is
    /// a ping.
    asked: u64,
    /// The number of the current or next attempt to connect. It continues in a path that takes the place of this one.
    pub(crate) epoch: u32,
    /// The path had an established connection before, which proves that the peer has this address.
    has_been_up: bool,
    /// The random number that the peer chose at its start; 0 if it sends none.
    pub(crate) incarnation: u32,
    /// Counts the restarts of the peer; its sequence numbers begin anew after each. It continues as `epoch` does.
    pub(crate) numbering: u32,
    /// Whether this side answers pings itself. False where it forwards them between the peer and another process of this
    /// address.
    pub(crate) answers_pings: bool,
    /// A fragment was refused and the connection is being ended: further fragments on it are ignored, apart from their
    /// acknowledgements.
    pub(crate) has_refused: bool,
    is_ack_due: bool,
    reassembly: Option<Reassembly<F>>,
    /// How many connections and attempts to connect have ended since a program's message last arrived or was acknowledged. A
    /// peer without memory accepts connections and ends each of them when a message arrives.
    fruitless: u32,
    /// How many connections and attempts to connect have ended since the peer last sent anything.
    unanswered: u32,
}

impl<F: Fragment, O: Operation> Path<F, O> {
    /// A path without a connection. `capacity` is the number of work requests that the send queue holds, and `first` the
    /// sequence number of the first message.
    pub(crate) fn new(capacity: u32, first: u64) -> Self {
        Self {
            state: PathState::Down { due: None },
            events: VecDeque::new(),
            next_transmit: first,
            next_receive: 0,
            introduction: Introduction::Due,
            queue: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            lingering: VecDeque::new(),
            current: None,
            is_map_due: false,
            announcements: Vec::new(),
            messages_until_ack: UNACKNOWLEDGED_MESSAGES,
            bytes_until_ack: UNACKNOWLEDGED_BYTES,
            pongs: 0,
            credits: None,
            capacity: u64::from(capacity),
            posted: 0,
            completed: 0,
            signaled: 0,
            acknowledges: 0,
            acknowledged: 0,
            held: VecDeque::new(),
            asked: 0,
            epoch: 0,
            has_been_up: false,
            incarnation: 0,
            numbering: 0,
            answers_pings: true,
            has_refused: false,
            is_ack_due: false,
            reassembly: None,
            fruitless: 0,
            unanswered: 0,
        }
    }

    /// The messages that were not posted yet, and the messages that were posted and not acknowledged.
    pub(crate) fn messages(&self) -> [&VecDeque<Message<F, O>>; 2] {
        [&self.queue, &self.unacknowledged]
    }

    /// Whether the peer has not acknowledged all messages of this socket.
    pub(crate) fn owes(&self, socket: SocketId) -> bool {
        let mut messages = self.queue.iter().chain(&self.unacknowledged);
        messages.any(|message| message.socket == Some(socket))
    }

    /// Whether there are unacknowledged messages and the last of them does not require an acknowledgement, so that none may
    /// come by itself.
    pub(crate) fn waits_unasked(&self) -> bool {
        let last = self.queue.back().or(self.unacknowledged.back());
        last.is_some_and(|last| !last.is_ack_required)
    }

    /// Acknowledges all messages that have arrived on this connection: with the next message, or by a header without
    /// payload.
    pub(crate) fn acknowledge_now(&mut self) {
        self.is_ack_due |= self.acknowledges > 0;
    }

    /// The number of the last work request that is known to be complete.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Queues a message for the peer and gives it the next sequence number of the path.
    pub(crate) fn enqueue(&mut self, mut message: Message<F, O>) {
        message.sequence = self.next_transmit;
        self.next_transmit += 1;
        self.queue.push_back(message);
    }

    /// Whether the path has no message to send, no forwarded one that is not acknowledged, no connection and no scheduled
    /// attempt to connect.
    pub(crate) fn is_idle(&self) -> bool {
        let is_down = self.state == (PathState::Down { due: None });
        is_down && self.queue.is_empty() && self.held.is_empty()
    }

    /// Whether the peer has restarted: whether `incarnation` differs from the one that it had before.
    pub(crate) fn is_restart(&self, incarnation: u32) -> bool {
        self.incarnation != 0 && self.incarnation != incarnation
    }

    /// Notes the peer's incarnation on a new connection. If the peer has restarted, its sequence numbers begin anew.
    pub(crate) fn meet(&mut self, incarnation: u32) {
        let has_restarted = self.is_restart(incarnation);
        self.incarnation = incarnation;
        if incarnation != 0 {
            self.introduction = Introduction::Done;
        } else if has_restarted {
            self.introduction = Introduction::Due;
        }
        if has_restarted {
            self.next_receive = 0;
            self.asked = 0;
            self.held.clear();
            self.numbering += 1;
        }
    }

    fn pong(&mut self, port: u16) {
        if self.pongs < MOST_PONGS {
            self.pongs += 1;
            self.enqueue(Message::header_only(NO_PORT, port));
        }
    }

    /// The next work request to post; `None` if there is none, or if the send queue has no room or the peer has granted no
    /// credit for it. The caller must post what it gets, or end the connection. `map` is the congestion map to send if one
    /// is due.
    pub(crate) fn poll_transmit<'a>(
        &'a mut self,
        map: &'a CongestionMap,
    ) -> Option<Transmit<'a, F, O>> {
        if self.state != PathState::Up || self.room() == 0 {
            return None;
        }
        if self.current.is_none() {
            self.begin_next();
        }
        match self.current {
            Some(Current::Message {
                is_operation_sent: false,
                ..
            }) => self.transmit_operation(),
            Some(Current::Message { sent, .. }) if self.can_send() => {
                Some(self.transmit_message(sent))
            }
            Some(Current::Map { sent }) if self.can_send() => Some(self.transmit_map(sent, map)),
            Some(Current::Announcement { port }) if self.can_send() => {
                Some(self.transmit_announcement(port))
            }
            Some(Current::Introduction { sequence }) if self.can_send() => {
                Some(self.transmit_introduction(sequence))
            }
            None if self.owes_message() && self.can_send() => Some(self.transmit_ack()),
            _ => None,
        }
    }

    fn room(&self) -> u64 {
        self.capacity - (self.posted - self.completed)
    }

    fn can_send(&self) -> bool {
        self.credits.as_ref().is_none_or(Credits::can_send)
    }

    fn owes_message(&self) -> bool {
        self.is_ack_due || self.credits.as_ref().is_some_and(Credits::is_update_due)
    }

    /// Chooses the congestion map, an announcement, the introduction or the next queued message to send. Drops queued messages whose operation
    /// may have been executed on an earlier connection.
    fn begin_next(&mut self) {
        if mem::take(&mut self.is_map_due) {
            self.current = Some(Current::Map { sent: 0 });
            return;
        }
        if let Some(port) = self.announcements.pop() {
            self.current = Some(Current::Announcement { port });
            return;
        }
        match (self.introduction, self.queue.front()) {
            (Introduction::Due, Some(first)) => {
                let sequence = first.sequence - 1;
                self.current = Some(Current::Introduction { sequence });
                return;
            }
            (Introduction::Due, None) | (Introduction::Sent(_), _) => return,
            (Introduction::Done, _) => {}
        }
        while let Some(mut message) = self.queue.pop_front() {
            let is_operation_due = message.is_operation_due();
            // It is unknown whether the operation was carried out before the connection ended. It is not repeated.
            if message.is_retransmitted && is_operation_due {
                self.finish(message, OperationStatus::Dropped);
                continue;
            }
            self.demand_ack(&mut message);
            self.current = Some(Current::Message {
                is_operation_sent: !is_operation_due,
                sent: 0,
            });
            self.unacknowledged.push_back(message);
            return;
        }
    }

    fn demand_ack(&mut self, message: &mut Message<F, O>) {
        if self.messages_until_ack == 0 || self.bytes_until_ack < message.length {
            message.is_ack_required = true;
            self.messages_until_ack = UNACKNOWLEDGED_MESSAGES;
            self.bytes_until_ack = UNACKNOWLEDGED_BYTES;
        } else {
            self.messages_until_ack -= 1;
            self.bytes_until_ack -= message.length;
        }
    }

    fn transmit_operation(&mut self) -> Option<Transmit<'_, F, O>> {
        let room = self.room();
        let message = self.unacknowledged.back_mut()?;
        let data_requests = message.data_requests();
        let attached = message.attached.as_mut()?;
        let requests = u64::from(attached.operation.requests());
        if requests > room {
            return None;
        }
        self.posted += requests;
        message.operation_request = self.posted;
        message.last_request = self.posted;
        self.current = (data_requests > 0).then_some(Current::Message {
            is_operation_sent: true,
            sent: 0,
        });
        self.signaled = self.posted;
        Some(Transmit::Operation {
            request: self.posted,
            operation: &mut attached.operation,
            signaled: true,
        })
    }

    fn transmit_message(&mut self, sent: usize) -> Transmit<'_, F, O> {
        let (ack, credit) = self.acknowledge();
        let (request, signaled) = self.next_request();
        let message = self
            .unacknowledged
            .back_mut()
            .expect("the current message is the last unacknowledged one");
        message.last_request = request;
        let is_last = sent + 1 == message.data_requests();
        let mut flags = Flags::empty();
        flags.set(Flags::ACK_REQUIRED, message.is_ack_required);
        flags.set(Flags::RETRANSMITTED, message.is_retransmitted);
        let attached = message.attached.as_ref();
        let used = attached.and_then(|attached| attached.rkey);
        let extension = used.map(|rkey| Extension::Rdma { rkey });
        let extension = extension.or(message.extension);
        let header = Header {
            sequence: message.sequence,
            ack,
            length: message.length,
            source_port: message.source_port,
            destination_port: message.destination_port,
            flags,
            credit,
            extensions: extension.into_iter().chain(message.passed).collect(),
        };
        self.current = (!is_last).then_some(Current::Message {
            is_operation_sent: true,
            sent: sent + 1,
        });
        let fence = attached.is_some_and(|attached| attached.fence);
        let length = min(message.length as usize - sent * FRAGMENT, FRAGMENT);
        Transmit::Send {
            request,
            header,
            payload: message
                .fragments
                .get(sent)
                .map_or(Payload::None, |fragment| Payload::Fragment {
                    fragment,
                    length,
                }),
            fence,
            signaled,
        }
    }

    fn transmit_map<'a>(&'a mut self, sent: usize, map: &'a CongestionMap) -> Transmit<'a, F, O> {
        let (ack, credit) = self.acknowledge();
        let (request, signaled) = self.next_request();
        let bytes = map.bytes();
        let end = (sent + 1) * FRAGMENT;
        self.current = (end < bytes.len()).then_some(Current::Map { sent: sent + 1 });
        Transmit::Send {
            request,
            header: Header {
                ack,
                length: MAP,
                flags: Flags::CONG_BITMAP,
                credit,
                ..Header::default()
            },
            payload: Payload::Map(&bytes[sent * FRAGMENT..end]),
            fence: false,
            signaled,
        }
    }

    fn transmit_announcement(&mut self, port: u16) -> Transmit<'_, F, O> {
        self.current = None;
        self.transmit_header(Header {
            sequence: UNNUMBERED,
            source_port: port,
            destination_port: PROBE_PORT,
            extensions: Extensions::of(Extension::Paths(HAS_PORT)),
            ..Header::default()
        })
    }

    fn transmit_introduction(&mut self, sequence: u64) -> Transmit<'_, F, O> {
        self.current = None;
        self.introduction = Introduction::Sent(sequence);
        // Linux takes an empty message between ports 0 for a mere acknowledgement, and logs a warning about one between
        // ports 0 and 1, which it expects over TCP only.
        self.transmit_header(Header {
            sequence,
            source_port: PROBE_PORT,
            destination_port: PROBE_PORT,
            flags: Flags::ACK_REQUIRED,
            ..Header::default()
        })
    }

    fn transmit_ack(&mut self) -> Transmit<'_, F, O> {
        self.transmit_header(Header::default())
    }

    /// Posts a header without payload, with the acknowledgement and the credits that are due.
    fn transmit_header(&mut self, header: Header) -> Transmit<'_, F, O> {
        let (ack, credit) = self.acknowledge();
        let (request, signaled) = self.next_request();
        Transmit::Send {
            request,
            header: Header {
                ack,
                credit,
                ..header
            },
            payload: Payload::None,
            fence: false,
            signaled,
        }
    }

    /// The acknowledgement and the advertised receives for the next header. Spends one credit.
    fn acknowledge(&mut self) -> (u64, u8) {
        self.is_ack_due = false;
        let credit = self.credits.as_mut().and_then(Credits::take);
        let held = self.held.front().map(|first| first.saturating_sub(1));
        let ack = held.unwrap_or(self.acknowledges);
        (ack, credit.unwrap_or_default())
    }

    fn next_request(&mut self) -> (u64, bool) {
        self.posted += 1;
        let is_due = self.posted - self.signaled >= min(UNSIGNALED, self.capacity / 2);
        if is_due {
            self.signaled = self.posted;
        }
        (self.posted, is_due)
    }

    /// Notes that the work requests up to this number are complete: frees the memory of acknowledged messages and reports
    /// the success of operations.
    pub(crate) fn handle_completion(&mut self, request: u64) {
        self.completed = self.completed.max(min(request, self.posted));
        let completed = self.completed;
        while self
            .lingering
            .front()
            .is_some_and(|(last, _)| *last <= completed)
        {
            self.lingering.pop_front();
        }
        let events = &mut self.events;
        self.unacknowledged.retain_mut(|message| {
            let is_complete = (1..=completed).contains(&message.operation_request);
            if is_complete {
                let attached = message.attached.as_ref();
                message.is_operation_done =
                    attached.is_some_and(|attached| attached.operation.is_shown_by_completion());
                ended(events, message, OperationStatus::Success);
            }
            // An operation without a message is over, because the peer has nothing to acknowledge.
            let is_over = is_complete && message.data_requests() == 0;
            if is_over {
                self.fruitless = 0;
                freed(events, message);
            }
            !is_over
        });
        self.handle_ack(self.acknowledged);
    }

    /// Reports `status` for the operation whose work request has failed itself, rather than being flushed because of an
    /// earlier one. The caller then ends the connection.
    pub(crate) fn handle_failure(&mut self, request: u64, status: OperationStatus) {
        let failed = self.unacknowledged.iter_mut().find(|message| {
            let last = message.operation_request;
            let requests = message.attached.as_ref();
            let requests = requests.map_or(0, |one| u64::from(one.operation.requests()));
            last >= request && last < request + requests
        });
        if let Some(message) = failed {
            ended(&mut self.events, message, status);
        }
    }

    /// Handles a fragment that has arrived with this header and `length` bytes of payload: takes its acknowledgement and
    /// credits, and reports the message if this was its last fragment.
    pub(crate) fn handle_fragment(
        &mut self,
        header: &Header,
        length: usize,
        fragment: F,
    ) -> Result<(), ProtocolError> {
        self.unanswered = 0;
        self.handle_ack(header.ack);
        if let Some(credits) = &mut self.credits {
            credits.add(header.credit);
        }
        if header.is_ack_only(length) {
            return Ok(());
        }
        let mut reassembly = match self.reassembly.take() {
            Some(begun) if begun.is_of(header) => begun,
            Some(_) => return Err(ProtocolError::Mismatch),
            None => Reassembly::new(header)?,
        };
        let expected = min(reassembly.remaining, FRAGMENT);
        if length != expected {
            return Err(ProtocolError::FragmentLength {
                expected,
                found: length,
            });
        }
        reassembly.remaining -= length;
        if length > 0 {
            reassembly.fragments.push(fragment);
        }
        match reassembly.remaining {
            0 => self.handle_message(reassembly),
            _ => self.reassembly = Some(reassembly),
        }
        Ok(())
    }

    fn handle_message(&mut self, whole: Reassembly<F>) {
        let header = whole.header;
        self.is_ack_due |= header.flags.contains(Flags::ACK_REQUIRED);
        if header.is_map() {
            self.events.push_back(Event::Map(whole.fragments));
            return;
        }
        if header.sequence == UNNUMBERED && header.destination_port == PROBE_PORT {
            self.events.push_back(Event::HasPort(header.source_port));
            return;
        }
        self.acknowledges = header.sequence;
        if header.sequence < self.next_receive && header.flags.contains(Flags::RETRANSMITTED) {
            return;
        }
        self.next_receive = header.sequence.saturating_add(1);
        self.handle_progress(header.destination_port);
        if header.flags.contains(Flags::ACK_REQUIRED) || header.destination_port == NO_PORT {
            self.asked = header.sequence;
        }
        match (header.source_port, header.destination_port) {
            (NO_PORT, NO_PORT | PROBE_PORT) => {
                for extension in header.extensions.iter() {
                    if let Extension::Generation(generation) = extension {
                        self.events.push_back(Event::Generation(generation));
                    }
                }
            }
            (port, NO_PORT) if self.answers_pings => self.pong(port),
            (source_port, destination_port) => {
                // The destination of a forwarded ping may never answer: earlier messages are acknowledged without it.
                self.is_ack_due |= destination_port == NO_PORT;
                self.events.push_back(Event::Arrived(Arrived {
                    source_port,
                    destination_port,
                    length: header.length,
                    fragments: whole.fragments,
                    extensions: header.extensions,
                    sequence: header.sequence,
                    is_ack_required: header.flags.contains(Flags::ACK_REQUIRED),
                    is_retransmitted: header.flags.contains(Flags::RETRANSMITTED),
                }));
            }
        }
    }

    /// Withholds the acknowledgement of a message that has arrived, and of later ones, until [`settled`](Self::settled) is
    /// called for it.
    pub(crate) fn hold(&mut self, sequence: u64) {
        self.held.push_back(sequence);
    }

    pub(crate) fn settled(&mut self, origin: Origin) {
        if origin.numbering != self.numbering {
            return;
        }
        let place = self.held.iter().position(|held| *held == origin.sequence);
        if let Some(place) = place {
            self.held.remove(place);
            // The peer may have asked for an acknowledge while the message was held.
            self.is_ack_due |= origin.sequence <= self.asked;
        }
    }

    /// Announces these ports on the present connection, before the messages in the queue. The peer may have no memory for
    /// those until it knows the ports.
    pub(crate) fn announce(&mut self, ports: Vec<u16>) {
        self.announcements = ports;
    }

    /// Gives up the queued messages that were already sent over an earlier connection.
    pub(crate) fn forget_sent(&mut self) {
        while self
            .queue
            .front()
            .is_some_and(|first| first.is_retransmitted)
        {
            if let Some(message) = self.queue.pop_front() {
                self.finish(message, OperationStatus::Dropped);
            }
        }
    }

    /// Gives up all messages, because the peer will not connect again.
    pub(crate) fn abandon(&mut self) {
        self.current = None;
        while let Some(message) = self.unacknowledged.pop_front() {
            self.finish(message, OperationStatus::Dropped);
        }
        while let Some(message) = self.queue.pop_front() {
            self.finish(message, OperationStatus::Dropped);
        }
        self.lingering.clear();
    }

    /// Handles an acknowledgement: the peer has all messages up to this sequence number. Finishes those messages whose
    /// operations are complete.
    pub(crate) fn handle_ack(&mut self, ack: u64) {
        if self.introduction == Introduction::Sent(ack) {
            self.introduction = Introduction::Done;
        }
        // A peer may acknowledge a number that an earlier host at this address has sent, and this one has not.
        let sent = self.unacknowledged.back().map_or(0, |last| last.sequence);
        self.acknowledged = self.acknowledged.max(min(ack, sent));
        while let Some(message) = self.unacknowledged.front() {
            let is_current = self.unacknowledged.len() == 1
                && matches!(self.current, Some(Current::Message { .. }));
            // The message may have overtaken a read that was posted before it.
            let is_under_way = message.operation_request > self.completed;
            if message.sequence > self.acknowledged || is_current || is_under_way {
                return;
            }
            if let Some(message) = self.unacknowledged.pop_front() {
                self.handle_progress(message.destination_port);
                self.finish(message, OperationStatus::Success);
            }
        }
    }

    /// Ends the reconnect backoff, because a message to this port has arrived or was acknowledged. Messages to port 1 do not
    /// end it: hosts exchange them on each connection.
    fn handle_progress(&mut self, destination_port: u16) {
        if destination_port != PROBE_PORT {
            self.fruitless = 0;
        }
    }

    fn finish(&mut self, mut message: Message<F, O>, status: OperationStatus) {
        self.pongs -= usize::from(message.is_pong());
        let is_data = message.destination_port != PROBE_PORT && message.attached.is_none();
        if let Some(socket) = message.socket
            && status == OperationStatus::Dropped
            && is_data
        {
            self.events.push_back(Event::Undelivered(socket));
        }
        ended(&mut self.events, &mut message, status);
        freed(&mut self.events, &mut message);
        if message.last_request > self.completed {
            self.lingering.push_back((message.last_request, message));
        }
    }

    /// Gives up the messages of a socket, to one destination port or, if `port` is `None`, to all. Returns the number of
    /// the work request that has to complete before the memory of their operations can be reused; 0 if there is none.
    pub(crate) fn cancel(&mut self, socket: SocketId, port: Option<u16>) -> u64 {
        let is_meant = |message: &Message<F, O>| {
            let is_there = port.is_none_or(|port| message.destination_port == port);
            message.socket == Some(socket) && is_there
        };
        let mut wait_for = 0;
        for message in self.unacknowledged.iter_mut().filter(|one| is_meant(one)) {
            wait_for = wait_for.max(message.operation_request);
            ended(&mut self.events, message, OperationStatus::Canceled);
            freed(&mut self.events, message);
            message.is_canceled = true;
        }
        // No request of the current message was posted, and none will be.
        if let Some(Current::Message {
            is_operation_sent: false,
            ..
        }) = self.current
            && self
                .unacknowledged
                .back()
                .is_some_and(|one| one.is_canceled)
        {
            self.unacknowledged.pop_back();
            self.current = None;
        }
        let events = &mut self.events;
        self.queue.retain_mut(|message| {
            let is_canceled = is_meant(message);
            if is_canceled {
                ended(events, message, OperationStatus::Canceled);
                freed(events, message);
            }
            !is_canceled
        });
        wait_for
    }

    /// Marks the path as connected and handles `ack`, the acknowledgement in the peer's private data, of messages that were
    /// sent over earlier connections. `credits` is `None` if the sides did not agree on flow control.
    pub(crate) fn connected(&mut self, ack: u64, credits: Option<Credits>) {
        self.state = PathState::Up;
        self.has_been_up = true;
        self.credits = credits;
        self.is_map_due = true;
        let has_arrived = |message: &Message<F, O>| {
            message.is_retransmitted && message.sequence <= ack && !message.is_operation_due()
        };
        while self.queue.front().is_some_and(has_arrived) {
            if let Some(message) = self.queue.pop_front() {
                self.handle_progress(message.destination_port);
                self.finish(message, OperationStatus::Success);
            }
        }
    }

    /// The acknowledgement of the messages that have arrived from the process with this incarnation over earlier connections;
    /// 0 if none have, or if the process is another one than before.
    pub(crate) fn acknowledgement(&self, incarnation: u32) -> u64 {
        let next = self.held.front().copied().unwrap_or(self.next_receive);
        match incarnation != 0 && incarnation == self.incarnation {
            true => next.saturating_sub(1),
            false => 0,
        }
    }

    /// Notes that the driver has posted this many further receives, which flow control advertises.
    pub(crate) fn posted_receives(&mut self, receives: u32) {
        if let Some(credits) = &mut self.credits {
            credits.post(receives);
        }
    }

    /// Resets the path after its QP was destroyed: unacknowledged messages go back to the queue and are retransmitted on
    /// the next connection.
    pub(crate) fn reset(&mut self) {
        self.current = None;
        self.announcements.clear();
        if let Introduction::Sent(_) = self.introduction {
            self.introduction = Introduction::Due;
        }
        self.credits = None;
        self.reassembly = None;
        self.is_ack_due = false;
        self.has_refused = false;
        self.acknowledges = 0;
        self.acknowledged = 0;
        self.epoch += 1;
        self.completed = self.posted;
        self.messages_until_ack = UNACKNOWLEDGED_MESSAGES;
        self.bytes_until_ack = UNACKNOWLEDGED_BYTES;
        self.lingering.clear();
        while let Some(mut message) = self.unacknowledged.pop_back() {
            if message.is_canceled {
                continue;
            }
            message.is_ack_required = true;
            // The peer cannot know a message of which nothing was posted.
            message.is_retransmitted |= message.last_request > 0;
            message.last_request = 0;
            self.queue.push_front(message);
        }
    }

    /// Whether so many attempts to connect got no answer that the peer is taken for ended: as many as the backoff needs to
    /// reach its longest window.
    pub(crate) fn has_been_tried_long(&self) -> bool {
        window(self.unanswered) == LONGEST_WAIT
    }

    /// When to connect again: at once the first time, then after a random part of a window that doubles. Returns `None` if
    /// there is no reason to: the queue is empty, no socket waits for the peer's congestion map (`is_asked`), and the path
    /// leads to another process of this address (not `is_to_peer`), or the peer was never connected, or too many attempts got
    /// no answer.
    pub(crate) fn next_attempt(
        &mut self,
        now: Duration,
        random: &mut impl Rng,
        is_asked: bool,
        is_to_peer: bool,
    ) -> Option<Duration> {
        let may_come_again = is_to_peer && self.has_been_up && !self.has_been_tried_long();
        let window = window(self.fruitless);
        self.fruitless = self.fruitless.saturating_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        let is_wanted = !self.queue.is_empty() || is_asked || may_come_again;
        is_wanted.then(|| now + window.mul_f64(random.random()))
    }
}

/// The window of the reconnect backoff after this number of attempts that have ended.
fn window(attempts: u32) -> Duration {
    attempts.checked_sub(1).map_or(Duration::ZERO, |doublings| {
        let doubled = SHORTEST_WAIT.saturating_mul(2_u32.saturating_pow(doublings));
        doubled.min(LONGEST_WAIT)
    })
}

impl<F> Reassembly<F> {
    fn new(header: &Header) -> Result<Self, ProtocolError> {
        let is_map = header.is_map();
        let length = header.length;
        if length as usize > MAX_MESSAGE || (is_map && length != MAP) {
            return Err(ProtocolError::Length { length });
        }
        Ok(Self {
            header: *header,
            remaining: length as usize,
            fragments: Fragments::new(),
        })
    }

    // Acknowledgements, credits and flags may differ from fragment to fragment.
    fn is_of(&self, header: &Header) -> bool {
        let identity = |header: &Header| {
            let ports = (header.source_port, header.destination_port);
            (header.sequence, header.length, ports)
        };
        identity(&self.header) == identity(header)
    }
}

fn freed<F, O>(events: &mut VecDeque<Event<F>>, message: &mut Message<F, O>) {
    if let Some(socket) = message.socket.take() {
        let (port, bytes) = (message.destination_port, message.length);
        events.push_back(Event::Freed {
            socket,
            port,
            bytes,
        });
    }
    if let Some(origin) = message.origin.take() {
        events.push_back(Event::Settled(origin));
    }
}

/// Reports the outcome of a message's operation as an event, at most once and only if the program requested it.
fn ended<F, O>(
    events: &mut VecDeque<Event<F>>,
    message: &mut Message<F, O>,
    status: OperationStatus,
) {
    let (Some(socket), Some(attached)) = (message.socket, &mut message.attached) else {
        return;
    };
    let is_told = match (attached.notify, status) {
        (Notify::Never, _) | (Notify::OnError, OperationStatus::Success) => false,
        (Notify::OnError | Notify::Always, _) => true,
    };
    attached.notify = Notify::Never;
    if is_told {
        events.push_back(Event::Ended {
            socket,
            user_token: attached.user_token,
            status,
        });
    }
}
