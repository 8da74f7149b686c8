//! The UDP link: frames as datagrams on a port that several processes share.
//!
//! When the driver sends a frame, the link encodes it: its headers, a copy of its payload and its checksum go to the queue
//! of its flow. A flush sends all queued datagrams; one system call carries several consecutive datagrams of equal length.
//! A received datagram is parsed in the buffer into which the kernel wrote it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::sockets::{
    FlowSockets, ReceiveBatch, UdpOptions, UdpSocket, Way, in_family_of, interface_mtu, join_group,
};
use crate::{
    HandError, IoHandler, Lease, Mail, Put, QpnRange, Reactor, Readers, Record, RecordMeta,
    Service, ShmPort, Source,
};
use polyverbs_engine::link::{Deliver, Exchange, Frame, Input, Link, Note};
use polyverbs_engine::log_event;
use polyverbs_engine::network::Progress;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::provider::Mutex;
use verbs_api::{
    VerbError,
    capability::Mtu,
    ids::{Gid, LinkAddress, Qpn},
    memory::Span,
    provider::errno_of,
};

use crate::batch::{Datagram, Refused, Route, SendOutcome, TxBatch};
use crate::capture::DatagramTap;
use crate::codec::{Arrival, Common, DatagramCodec, Envelope};
use crate::counters::{count, count_alone};
use crate::shm::{LONGEST_HEAD, LONGEST_PAYLOAD};
use crate::through::datagram;

/// Options with which a [`UdpLink`] is created.
#[derive(Clone)]
#[non_exhaustive]
pub struct UdpLinkOptions {
    /// The path MTU that limits the payload of a frame; `None` for the largest that the interface carries without
    /// fragmentation.
    pub max_frame: Option<Mtu>,
    /// The number of UDP source ports over which flows are spread, at most 64.
    pub flows: usize,
    /// Options of the sockets that only send, one for each source port.
    pub udp: UdpOptions,
    /// Whether frames for other processes at the same address go through shared memory, without the kernel and without a
    /// checksum. Both processes must enable this. A link with a tap uses sockets only, because a tap shows the traffic on a
    /// wire.
    pub memory: bool,
    /// The tap that observes every datagram.
    pub tap: Option<Arc<dyn DatagramTap>>,
}

impl Default for UdpLinkOptions {
    /// The largest frame that the interface carries, four source ports, every offload, shared memory, no tap.
    fn default() -> Self {
        Self {
            max_frame: None,
            flows: 4,
            udp: UdpOptions::default(),
            memory: true,
            tap: None,
        }
    }
}

counts! {
    /// Counts of frames and datagrams of a [`UdpLink`].
    UdpCounts,
    /// Datagrams that a socket has sent.
    sent,
    /// Frames that were sent as records in shared memory.
    by_memory,
    /// Frames that the link dropped because the wire format cannot represent them, or because their destination is not an
    /// IP address of the link's family.
    formless,
    /// Frames that the link dropped because the socket, or the ring in shared memory, stayed full.
    overrun,
    /// Datagrams that the system refused, for instance because there is no route or a firewall forbids them.
    refused,
    /// Datagrams that were not sent because they are longer than the path carries.
    too_long,
    /// Undamaged datagrams, and records, that the link received and delivered to the driver.
    delivered,
    /// Received datagrams with a wrong checksum. The link delivers them marked as damaged, and drivers drop them.
    damaged,
    /// Received datagrams that the link dropped because they do not have this wire format, or are longer than its longest
    /// datagram.
    malformed,
    /// Datagrams that this process forwarded to another process of the port group.
    handed,
    /// Datagrams that were not forwarded because the process for which they are meant has gone, or does not read its inbox
    /// fast enough.
    lost,
    /// CM messages that the link dropped because they arrived at the port with this device's own address as source.
    forged,
    /// Connections of other processes that were closed because their user is not admitted.
    strangers,
}

/// A link that carries frames as UDP datagrams; see the [module](self).
pub struct UdpLink<C: DatagramCodec> {
    codec: C,
    lease: Lease,
    flows: FlowSockets,
    /// The queues of datagrams to send, one for each source port.
    queues: Box<[TxQueue]>,
    max_frame: Mtu,
    room: usize,
    tap: Option<Arc<dyn DatagramTap>>,
    inbound: Mutex<Inbound>,
    /// Received datagrams for QPs of this process that arrived at another socket than its own. `has_aside` says whether
    /// there are any.
    aside: Mutex<Aside>,
    has_aside: AtomicBool,
    /// Refusals by the system of which the sending QP has not been notified: the error number by QP number and destination.
    refusals: Mutex<BTreeMap<(u32, IpAddr), i32>>,
    /// Whether there are refusals. Threads read this before they take the lock of `refusals`.
    has_refusals: AtomicBool,
    services: Mutex<BTreeMap<u64, Service>>,
    /// The sockets of joined multicast groups. A reader uses a copy of the map that it makes when its turn begins, because
    /// a delivery may cause a thread to join or leave a group.
    groups: Mutex<Arc<BTreeMap<IpAddr, Arc<UdpSocket>>>>,
    has_groups: AtomicBool,
    reactor: Arc<Reactor>,
    messages: Messages,
    counters: Counters,
}

/// Messages to and from other processes of the port group.
#[derive(Default)]
struct Messages {
    /// Messages that [`Link::flush`] sends. The lock is held while they are sent, so that they keep their order.
    leaving: Mutex<VecDeque<(QpnRange, Vec<u8>)>>,
    /// Whether there are such messages. Threads read this before they take the lock.
    has_leaving: AtomicBool,
    arrived: Mutex<VecDeque<Letter>>,
    /// Whether there are messages that have arrived.
    has_arrived: AtomicBool,
}

/// A message of another process of the port group, or the end of that process.
enum Letter {
    Message(Vec<u8>),
    Gone(QpnRange),
}

/// Datagrams of the flows of one source port that have not left yet.
struct TxQueue {
    /// Whether a datagram may be in one of the two batches. A poster sets this after it has added a datagram, and the
    /// sender clears it before it takes the batch, so the sender either takes a datagram that is added meanwhile or leaves
    /// the flag set.
    is_waiting: AtomicBool,
    filling: Mutex<TxBatch>,
    /// Locked before `filling`: the holder of this lock swaps the two batches and transmits, which keeps the order within a
    /// flow.
    leaving: Mutex<TxBatch>,
    /// Whether the socket was full, so that the reactor watches it until it has room.
    is_blocked: AtomicBool,
    /// Counts of datagrams that this queue has sent. They change only under the lock of `leaving`.
    counters: Counters,
}

/// The state of the thread that reads the sockets and shared memory; only one thread at a time does.
struct Inbound {
    batch: ReceiveBatch,
    readers: Readers,
    /// The number of polls since the socket was last read. A poll that found a record counts as [`FOUND`].
    looks: u32,
    /// The number of polls since one last found a record in shared memory.
    idle: u32,
}

struct Aside {
    queue: VecDeque<(Arrival, Vec<u8>)>,
    batch: ReceiveBatch,
}

impl<C: DatagramCodec> UdpLink<C> {
    /// Creates a link for the process that holds this lease. It delivers nothing before [`start`](Self::start).
    ///
    /// # Errors
    /// The system refuses a call, or the interface carries not even frames of the smallest path MTU.
    pub fn new(lease: Lease, codec: C, options: UdpLinkOptions) -> io::Result<Arc<Self>> {
        let local = lease.address();
        let carried = largest_frame(interface_mtu(local)?, local.ip(), C::OVERHEAD);
        let max_frame = match (carried, options.max_frame) {
            (None, _) => return Err(io::Error::other("the interface carries no frame at all")),
            (Some(carried), wanted) => wanted.unwrap_or(carried).min(carried),
        };
        let segments = options.udp.offload.segmentation;
        let flows = options.flows.clamp(1, MOST_FLOWS);
        let queues = (0..flows).map(|_| TxQueue::new(segments));
        let reactor = Arc::new(Reactor::new()?);
        reactor.add(lease.socket(), DATA, Source::Data)?;
        reactor.add(lease.common(), COMMON, Source::Shared)?;
        reactor.add(&lease, INBOX, Source::Rare)?;
        if options.memory && options.tap.is_none() {
            lease.open_memory();
        }
        let inbound = Inbound {
            readers: Readers::default(),
            batch: receive_batch(lease.socket(), max_frame.octets() as usize + C::OVERHEAD)?,
            looks: 0,
            idle: IDLE,
        };
        Ok(Arc::new(Self {
            flows: FlowSockets::new(local, flows, options.udp),
            queues: queues.collect::<io::Result<_>>()?,
            max_frame,
            room: lease.socket().receive_buffer()?,
            tap: options.tap,
            inbound: Mutex::new(inbound),
            aside: Mutex::new(Aside {
                queue: VecDeque::new(),
                batch: ReceiveBatch::new(4, 65_535)?,
            }),
            has_aside: AtomicBool::new(false),
            refusals: Mutex::default(),
            has_refusals: AtomicBool::new(false),
            services: Mutex::default(),
            groups: Mutex::default(),
            has_groups: AtomicBool::new(false),
            reactor,
            messages: Messages::default(),
            counters: Counters::default(),
            codec,
            lease,
        }))
    }

    /// Starts the reactor's thread, which delivers frames to `network` while no thread of the program polls. The thread
    /// ends with the network.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(self: &Arc<Self>, network: Weak<dyn Progress>) -> io::Result<()> {
        let handler = Arc::downgrade(self);
        self.reactor.start(handler, network)
    }

    /// The reactor that watches the sockets of this link.
    pub fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    /// The lease of this process: its range of QP numbers, and the sockets of the port.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the counts of frames and datagrams so far.
    pub fn counts(&self) -> UdpCounts {
        let mut counts = UdpCounts::default();
        let queues = self.queues.iter().map(|queue| &queue.counters);
        for counters in queues.chain([&self.counters]) {
            counters.add_to(&mut counts);
        }
        counts.by_memory = self.lease.memory().map_or(0, ShmPort::sent);
        counts.strangers = self.lease.strangers();
        counts
    }

    /// Makes this process answer connection requests for a service ID: datagrams for it are delivered to this link's
    /// network, whichever process of the port reads them.
    ///
    /// # Errors
    /// Another process answers requests for this service ID.
    pub fn serve(&self, service: u64) -> io::Result<()> {
        let mut services = self.services.lock();
        let inbox = self.lease.serve(service)?;
        self.reactor.add(&inbox, SERVICES, Source::Rare)?;
        services.insert(service, inbox);
        Ok(())
    }

    /// Ends the effect of [`serve`](Self::serve) for a service ID.
    pub fn withdraw(&self, service: u64) {
        self.services.lock().remove(&service);
    }

    // ---- out

    fn socket_address(&self, to: LinkAddress) -> Option<SocketAddr> {
        let local = self.lease.address();
        match to {
            LinkAddress::Ip(ip) if ip.is_ipv4() == local.is_ipv4() => {
                Some(SocketAddr::new(ip, local.port()))
            }
            _ => None,
        }
    }

    // Appends a frame to a batch as a datagram. Returns whether the batch had room.
    fn append(
        &self,
        queue: &TxQueue,
        (route, sender): (Route, u32),
        from: SocketAddr,
        frame: &Frame<'_, C::Header>,
    ) -> bool {
        let length = frame.payload.len();
        let write = |room: &mut [u8]| {
            let Some(headers) = self.codec.encode_header(&frame.header, length, room) else {
                count(&self.counters.formless);
                return None;
            };
            let end = headers + length;
            frame.payload.read(room.get_mut(headers..end)?);
            Some((end, end + self.codec.trailer(length)))
        };
        let seal = |mut datagram: Datagram<'_>| {
            self.seal(from, &mut datagram);
            let envelope = envelope(from, datagram.to, datagram.segment);
            if let Some(tap) = &self.tap {
                let class = route.traffic_class;
                tap.datagram(Way::Out, &envelope, class, datagram.bytes);
            }
            if let (true, Some(last)) = (frame.damaged, datagram.bytes.last_mut()) {
                // Its payload has been changed already: this makes the checksum wrong.
                *last ^= 1;
            }
        };
        let most = length + C::OVERHEAD;
        let taken = queue
            .filling
            .lock()
            .append((route, sender), most, write, seal);
        queue.is_waiting.store(true, Ordering::Release);
        taken
    }

    fn seal(&self, from: SocketAddr, datagram: &mut Datagram<'_>) {
        let envelope = envelope(from, datagram.to, datagram.segment);
        self.codec
            .seal(&envelope, datagram.payload_end, datagram.bytes);
    }

    // Writes a frame for another process at this address to shared memory. Returns `false` if that process does not read
    // its records there.
    #[inline]
    fn put(&self, frame: &Frame<'_, C::Header>, traffic_class: u8) -> bool {
        let Some(memory) = self.lease.memory() else {
            return false;
        };
        let mut room = [0; LONGEST_HEAD];
        let length = frame.payload.len();
        let Some(headers) = self.codec.encode_record(&frame.header, length, &mut room) else {
            return false;
        };
        let head = &room[..headers];
        let range = QpnRange::of_datagram(head);
        if range == QpnRange::COMMON || !memory.reaches(range) {
            return false;
        }
        let meta = RecordMeta {
            kind: if frame.damaged { DAMAGED } else { FRAME },
            class: traffic_class,
            ..RecordMeta::default()
        };
        let write = |span: Span<'_>| frame.payload.copy_to(span);
        match memory.put(range, meta, head, length, write) {
            Put::Taken => true,
            Put::Full => {
                let (records, bytes) = memory.waiting(range);
                match records < MOST_WAITING && bytes < BATCH {
                    true => memory.put_later(range, meta, head, frame.payload.to_vec()),
                    false => count(&self.counters.overrun),
                }
                true
            }
            Put::Nobody => false,
        }
    }

    // Sends a CM message between processes of this address through a local socket, because the kernel then vouches for the
    // sender's user. Returns `false` if the frame is no such message. A message from this address that arrives over the
    // network is forged.
    #[cold]
    fn hand_over(&self, frame: &Frame<'_, C::Header>, traffic_class: u8, from: SocketAddr) -> bool {
        let (mut room, length) = ([0; LONGEST_HEAD], frame.payload.len());
        let head = self.codec.encode_record(&frame.header, length, &mut room);
        let head = head.map(|headers| &room[..headers]);
        if head.is_none_or(|head| QpnRange::of_datagram(head) != QpnRange::COMMON) {
            return false;
        }
        let to = self.lease.address();
        let Some(datagram) = datagram(&self.codec, frame, &envelope(from, to, 0)) else {
            return false;
        };
        let arrival = Arrival {
            from,
            to,
            traffic_class,
            segment: 0,
        };
        let own = self.lease.range();
        let handed = match self.codec.common(&datagram) {
            Common::Anybody => return false,
            Common::Range(range) => self.lease.hand_to_range(range, &arrival, &datagram),
            Common::Service(service) => {
                match self.lease.hand_to_service(service, &arrival, &datagram) {
                    // No process serves it: the own connection manager refuses the request.
                    Err(HandError::Nobody) => self.lease.hand_to_range(own, &arrival, &datagram),
                    handed => handed,
                }
            }
        };
        if let Some(tap) = &self.tap {
            tap.datagram(Way::Out, &envelope(from, to, 0), traffic_class, &datagram);
        }
        self.note_handed(&handed);
        true
    }

    fn transmit(&self, flow: usize) {
        let queue = &self.queues[flow];
        let Ok(socket) = self.flows.of(flow as u32) else {
            return;
        };
        let from = socket.local();
        let mut leaving = queue.leaving.lock();
        queue.is_waiting.store(false, Ordering::Release);
        loop {
            // Datagrams that a full socket has left over go first.
            let is_last = leaving.is_empty();
            if is_last {
                std::mem::swap(&mut *leaving, &mut *queue.filling.lock());
            }
            let outcome = leaving.send(socket, |mut datagram| self.seal(from, &mut datagram));
            note(&queue.counters, &outcome);
            for refused in &outcome.refused {
                self.note_refusal(refused.sender, refused.to.ip(), refused.errno);
            }
            self.watch_room(queue, socket, outcome.full);
            if outcome.full {
                queue.is_waiting.store(true, Ordering::Release);
            }
            if outcome.full || is_last {
                return;
            }
        }
    }

    // The sender is notified when the network polls, because it may hold locks of queue pairs now.
    #[cold]
    fn note_refusal(&self, sender: u32, to: IpAddr, errno: i32) {
        log_event!(
            DEBUG,
            "the system refuses to send",
            qp = Qpn::new(sender),
            to = to,
            error = io::Error::from_raw_os_error(errno),
        );
        self.refusals.lock().insert((sender, to), errno);
        self.has_refusals.store(true, Ordering::Release);
    }

    // Notifies senders of refusals. Returns whether there were any.
    fn deliver_refusals(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        if !self.has_refusals.load(Ordering::Acquire) {
            return false;
        }
        self.has_refusals.store(false, Ordering::SeqCst);
        let refusals = std::mem::take(&mut *self.refusals.lock());
        for ((sender, to), errno) in refusals {
            let frame = Frame {
                from: LinkAddress::Ip(to),
                to: LinkAddress::Ip(self.lease.address().ip()),
                header: self.codec.refusal(sender, errno),
                payload: Payload::Empty,
                damaged: false,
            };
            network.deliver(frame, now);
        }
        true
    }

    /// Waits until another thread that is transmitting has finished. [`flush`](Link::flush) leaves datagrams to such a
    /// thread; when this returns, every datagram that was sent before has left, unless a socket is full.
    pub fn wait_for_departure(&self) {
        for queue in &self.queues {
            drop(queue.leaving.lock());
        }
    }

    // The reactor watches a socket for room only while it is full: otherwise epoll would report room after every datagram.
    fn watch_room(&self, queue: &TxQueue, socket: &UdpSocket, is_full: bool) {
        if queue.is_blocked.load(Ordering::Relaxed) != is_full
            && queue.is_blocked.swap(is_full, Ordering::Relaxed) != is_full
        {
            // If the socket cannot be watched, the waiting datagrams leave with the next ones.
            let _ = match is_full {
                true => self.reactor.add(socket, ROOM, Source::Full),
                false => self.reactor.remove(socket, Source::Full),
            };
        }
    }

    // ---- in

    fn read(
        &self,
        socket: &UdpSocket,
        batch: &mut ReceiveBatch,
        take: &mut dyn FnMut(Arrival, &[u8]),
    ) {
        let to = SocketAddr::new(socket.local().ip(), socket.local().port());
        for _ in 0..ROUNDS {
            // A socket that fails yields no datagrams; a later send reports the error.
            if socket.receive(batch).unwrap_or(0) == 0 {
                return;
            }
            (0..batch.truncated()).for_each(|_| count(&self.counters.malformed));
            for message in batch.messages() {
                for (segment, datagram) in message.datagrams().enumerate() {
                    let arrival = Arrival {
                        from: message.from,
                        to,
                        traffic_class: message.traffic_class,
                        segment: segment as u16,
                    };
                    take(arrival, datagram);
                }
            }
            // Returns without another system call, so that a poller that waits for one message gets it at once.
            if !batch.is_full() {
                return;
            }
        }
    }

    // Reads the sockets of joined multicast groups. Returns whether a datagram arrived.
    #[inline(never)]
    fn read_groups(
        &self,
        batch: &mut ReceiveBatch,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> bool {
        let mut delivered = false;
        let groups = Arc::clone(&self.groups.lock());
        for member in groups.values() {
            let mut take = |arrival: Arrival, datagram: &[u8]| {
                self.deliver(&arrival, datagram, now, network);
                delivered = true;
            };
            self.read(member, batch, &mut take);
        }
        delivered
    }

    fn deliver(
        &self,
        arrival: &Arrival,
        datagram: &[u8],
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) {
        if let Some(tap) = &self.tap {
            let envelope = envelope(arrival.from, arrival.to, arrival.segment);
            tap.datagram(Way::In, &envelope, arrival.traffic_class, datagram);
        }
        let Some(opened) = self.codec.open(arrival, datagram) else {
            return count(&self.counters.malformed);
        };
        let frame = Frame {
            from: LinkAddress::Ip(arrival.from.ip()),
            // This holds for a datagram to a group, too: the header says which device has joined the group.
            to: LinkAddress::Ip(self.lease.address().ip()),
            header: opened.header,
            payload: Payload::Bytes(opened.payload),
            damaged: opened.damaged,
        };
        let counter = match frame.damaged {
            true => &self.counters.damaged,
            false => &self.counters.delivered,
        };
        // Only one thread at a time delivers: the one that drives the network.
        count_alone(counter, 1);
        network.deliver(frame, now);
    }

    fn deliver_record(&self, record: &Record<'_>, now: Time, network: &dyn Deliver<C::Header>) {
        let local = self.lease.address();
        if record.meta.kind == MESSAGE {
            let message = Payload::Span(record.payload).to_vec();
            let at = LinkAddress::Ip(local.ip());
            return network.deliver_note(at, Note::Message(&message), now);
        }
        let arrival = Arrival {
            from: local,
            to: local,
            traffic_class: record.meta.class,
            segment: 0,
        };
        let Some(header) = self.codec.open_record(&arrival, record.head) else {
            return count(&self.counters.malformed);
        };
        let address = LinkAddress::Ip(local.ip());
        let frame = Frame {
            from: address,
            to: address,
            header,
            payload: Payload::Span(record.payload),
            damaged: record.meta.kind != FRAME,
        };
        // Only one thread at a time delivers: the one that drives the network.
        count_alone(&self.counters.delivered, 1);
        network.deliver(frame, now);
    }

    // Delivers the datagrams that were set aside. Returns whether there were any.
    fn deliver_aside(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        if !self.has_aside.load(Ordering::Acquire) {
            return false;
        }
        self.has_aside.store(false, Ordering::SeqCst);
        let aside = std::mem::take(&mut self.aside.lock().queue);
        for (arrival, datagram) in &aside {
            self.deliver(arrival, datagram, now, network);
        }
        !aside.is_empty()
    }

    // Forwards a datagram that this process received to the process for which it is meant.
    #[cold]
    fn hand_on(&self, range: QpnRange, arrival: &Arrival, datagram: &[u8]) {
        self.note_handed(&self.lease.hand_to_range(range, arrival, datagram));
    }

    fn note_handed(&self, handed: &Result<(), HandError>) {
        count(match handed {
            Ok(()) => &self.counters.handed,
            Err(_) => &self.counters.lost,
        });
    }

    // Takes a datagram that arrived at the common socket: keeps it, or forwards it to the process for which it is meant.
    #[cold]
    fn sort(&self, arrival: Arrival, datagram: &[u8], queue: &mut VecDeque<(Arrival, Vec<u8>)>) {
        let range = QpnRange::of_datagram(datagram);
        if range != QpnRange::COMMON {
            // The kernel has joined this datagram to one for the common queue pair.
            return match range == self.lease.range() {
                true => self.keep(arrival, datagram, queue),
                false => self.hand_on(range, &arrival, datagram),
            };
        }
        match self.codec.common(datagram) {
            Common::Range(_) | Common::Service(_)
                if arrival.from.ip() == self.lease.address().ip() =>
            {
                // Processes of this address send such messages through local sockets.
                return count(&self.counters.forged);
            }
            Common::Range(range) if range != self.lease.range() => {
                return self.hand_on(range, &arrival, datagram);
            }
            Common::Service(service) if !self.services.lock().contains_key(&service) => {
                let handed = self.lease.hand_to_service(service, &arrival, datagram);
                if !matches!(handed, Err(HandError::Nobody)) {
                    return self.note_handed(&handed);
                }
                // No process serves this service: this process refuses the request.
            }
            _ => {}
        }
        self.keep(arrival, datagram, queue);
    }

    // Writes a message for another process to shared memory. Returns `false` if it has to go to the inbox of that process: as
    // the first one, so that the kernel reports when the process has gone, or because it is too long or has no room.
    fn put_message(&self, range: QpnRange, message: &[u8]) -> bool {
        let Some(memory) = self.lease.memory() else {
            return false;
        };
        if !memory.reaches(range) || !self.lease.is_connected(range) {
            return false;
        }
        let meta = RecordMeta {
            kind: MESSAGE,
            ..RecordMeta::default()
        };
        let write = |span: Span<'_>| span.write(message);
        matches!(
            memory.put(range, meta, &[], message.len(), write),
            Put::Taken
        )
    }

    // Sends the messages for other processes.
    #[cold]
    fn send_messages(&self) {
        let mut leaving = self.messages.leaving.lock();
        self.messages.has_leaving.store(false, Ordering::SeqCst);
        while let Some((range, message)) = leaving.pop_front() {
            match self.lease.send_message(range, &message) {
                Ok(()) => {}
                Err(HandError::Nobody) => self.keep_letter(Letter::Gone(range)),
                Err(_) => count(&self.counters.lost),
            }
        }
    }

    fn keep_letter(&self, letter: Letter) {
        let mut arrived = self.messages.arrived.lock();
        if arrived.len() >= LETTERS && matches!(letter, Letter::Message(_)) {
            return count(&self.counters.lost);
        }
        arrived.push_back(letter);
        self.messages.has_arrived.store(true, Ordering::Release);
    }

    // Delivers the messages of other processes. Returns whether there was anything.
    fn deliver_messages(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        if !self.messages.has_arrived.load(Ordering::Acquire) {
            return false;
        }
        self.messages.has_arrived.store(false, Ordering::SeqCst);
        let arrived = std::mem::take(&mut *self.messages.arrived.lock());
        let at = LinkAddress::Ip(self.lease.address().ip());
        for letter in &arrived {
            let note = match letter {
                Letter::Message(message) => Note::Message(message),
                Letter::Gone(range) => Note::Gone {
                    first: range.first(),
                    end: range.end(),
                },
            };
            network.deliver_note(at, note, now);
        }
        !arrived.is_empty()
    }

    fn keep(&self, arrival: Arrival, datagram: &[u8], queue: &mut VecDeque<(Arrival, Vec<u8>)>) {
        if queue.len() >= ASIDE {
            return count(&self.counters.lost);
        }
        queue.push_back((arrival, datagram.to_vec()));
        self.has_aside.store(true, Ordering::Release);
    }
}

impl TxQueue {
    fn new(segments: bool) -> io::Result<Self> {
        let batch = || TxBatch::new(BATCH, segments).map(Mutex::new);
        Ok(Self {
            is_waiting: AtomicBool::new(false),
            filling: batch()?,
            leaving: batch()?,
            is_blocked: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }
}

impl<C: DatagramCodec> Link<C::Header> for UdpLink<C> {
    fn max_frame(&self) -> Option<usize> {
        Some(self.max_frame.octets() as usize)
    }

    fn max_joined(&self, to: LinkAddress, qpn: u32) -> Option<usize> {
        let memory = self.lease.memory()?;
        let is_here = self.socket_address(to) == Some(self.lease.address());
        (is_here && memory.reaches(QpnRange::of_qpn(qpn))).then_some(LONGEST_PAYLOAD)
    }

    fn exchange(&self, to: LinkAddress, qpn: u32) -> Option<Exchange> {
        let is_here = self.socket_address(to) == Some(self.lease.address());
        is_here.then(|| self.lease.exchange(QpnRange::of_qpn(qpn)))?
    }

    fn is_crowded(&self, to: LinkAddress, qpn: u32) -> bool {
        let memory = self.lease.memory().filter(|memory| memory.waits());
        memory.is_some_and(|memory| {
            let is_here = self.socket_address(to) == Some(self.lease.address());
            is_here && memory.waiting(QpnRange::of_qpn(qpn)).0 > 0
        })
    }

    fn all_answered(&self) {
        if let Some(memory) = self.lease.memory() {
            memory.note_answers(&mut self.inbound.lock().readers);
        }
    }

    fn room(&self) -> Option<usize> {
        Some(self.room)
    }

    fn send(&self, frame: Frame<'_, C::Header>, _now: Time) {
        let meta = self.codec.tx_meta(&frame.header);
        let flow = meta.flow as usize % self.queues.len();
        let group = self.codec.group(&frame.header).map(LinkAddress::Ip);
        let Some(to) = self.socket_address(group.unwrap_or(frame.to)) else {
            return count(&self.counters.formless);
        };
        let from = match self.flows.of(flow as u32) {
            Ok(socket) => socket.local(),
            Err(error) => {
                count(&self.counters.refused);
                return self.note_refusal(meta.sender, to.ip(), errno_of(&error));
            }
        };
        if group.is_none()
            && to == self.lease.address()
            && (self.put(&frame, meta.traffic_class)
                || self.hand_over(&frame, meta.traffic_class, from))
        {
            return;
        }
        if frame.payload.len() > self.max_frame.octets() as usize {
            // The process that would have read this frame from shared memory has gone.
            return count(&self.counters.too_long);
        }
        let queue = &self.queues[flow];
        let route = Route {
            to,
            traffic_class: meta.traffic_class,
            hop_limit: meta.hop_limit,
        };
        let route = (route, meta.sender);
        if !self.append(queue, route, from, &frame) {
            self.transmit(flow);
            if !self.append(queue, route, from, &frame) {
                count(&self.counters.overrun);
            }
        }
    }

    fn flush(&self) -> bool {
        for (flow, queue) in self.queues.iter().enumerate() {
            if queue.is_waiting.load(Ordering::Acquire) {
                self.transmit(flow);
            }
        }
        if self.messages.has_leaving.load(Ordering::Acquire) {
            self.send_messages();
        }
        self.lease.ring_bells();
        self.has_refusals.load(Ordering::Acquire)
            || self.messages.has_arrived.load(Ordering::Acquire)
    }

    fn progress(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        let mut delivered = self.deliver_aside(now, network);
        delivered |= self.deliver_refusals(now, network);
        delivered |= self.deliver_messages(now, network);
        let mut inbound = self.inbound.lock();
        let Inbound {
            batch,
            readers,
            looks,
            idle,
        } = &mut *inbound;
        let own = self.lease.range();
        if let Some(memory) = self.lease.memory() {
            // Records that are written now must be flushed, like answers to received frames.
            delivered |= memory.waits() && memory.put_waiting(|_| {});
            let mut take = |record: &Record<'_>| self.deliver_record(record, now, network);
            let found = memory.receive(readers, &mut take);
            *idle = if found { 0 } else { idle.saturating_add(1) };
            delivered |= found;
        }
        let mut take = |arrival: Arrival, datagram: &[u8]| {
            let range = QpnRange::of_datagram(datagram);
            if range == own {
                self.deliver(&arrival, datagram, now, network);
                delivered = true;
            } else if range == QpnRange::COMMON {
                // The kernel has joined this datagram to one for this process, as it has those that are forwarded below.
                self.sort(arrival, datagram, &mut self.aside.lock().queue);
            } else {
                self.hand_on(range, &arrival, datagram);
            }
        };
        *looks += if *idle == 0 { FOUND } else { 1 };
        if *idle >= IDLE || *looks >= EVERY || !self.reactor.is_polled() {
            *looks = 0;
            self.read(self.lease.socket(), batch, &mut take);
        }
        if self.has_groups.load(Ordering::Acquire) {
            delivered |= self.read_groups(batch, now, network);
        }
        // The receiver of the datagrams that are delivered below may poll this link again.
        drop(inbound);
        delivered | self.deliver_aside(now, network)
    }

    fn next_due(&self) -> Option<Time> {
        None
    }

    fn needs_precise_clock(&self) -> bool {
        false
    }

    fn input(&self) -> Option<&dyn Input> {
        Some(&*self.reactor)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn send_message(&self, number: u32, message: Vec<u8>) {
        if self.put_message(QpnRange::of_qpn(number), &message) {
            return;
        }
        let mut leaving = self.messages.leaving.lock();
        leaving.push_back((QpnRange::of_qpn(number), message));
        self.messages.has_leaving.store(true, Ordering::Release);
    }

    fn group_address(&self, group: IpAddr) -> IpAddr {
        in_family_of(group, self.lease.address())
    }

    fn join(&self, group: Gid) -> Result<(), VerbError> {
        let local = self.lease.address();
        let is_here = |ip: &IpAddr| ip.is_ipv4() == local.is_ipv4();
        let ip = self.codec.address_of_group(group).filter(is_here);
        let ip = ip.ok_or_else(|| VerbError::argument("gid", "the group has no address here"))?;
        let failed = |error| VerbError::os("join of a multicast group", error);
        let mut groups = self.groups.lock();
        if !groups.contains_key(&ip) {
            let address = SocketAddr::new(ip, local.port());
            let member = join_group(address, local, &UdpOptions::default()).map_err(failed)?;
            let watched = self.reactor.add(&member, DATA, Source::Data);
            watched.map_err(failed)?;
            Arc::make_mut(&mut groups).insert(ip, Arc::new(member));
            self.has_groups.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn leave(&self, group: Gid) {
        if let Some(ip) = self.codec.address_of_group(group) {
            Arc::make_mut(&mut self.groups.lock()).remove(&ip);
        }
    }
}

impl<C: DatagramCodec> IoHandler for UdpLink<C> {
    // Takes datagrams from the rare sources. They are delivered with those that arrive at the process's own socket.
    fn attend(&self, token: u64) {
        let aside = &mut *self.aside.lock();
        let (queue, batch) = (&mut aside.queue, &mut aside.batch);
        let mut take = |mail: Mail<'_>| match mail {
            Mail::Datagram(arrival, datagram) => self.keep(arrival, datagram, queue),
            Mail::Message(message) => self.keep_letter(Letter::Message(message.to_vec())),
            Mail::Gone(range) => self.keep_letter(Letter::Gone(range)),
        };
        // The reactor reports again what cannot be read now.
        match token {
            INBOX => drop(self.lease.attend(&mut take)),
            SERVICES => self
                .services
                .lock()
                .values()
                .for_each(|service| drop(service.attend(&mut take))),
            _ => {
                let mut sort = |arrival, datagram: &[u8]| self.sort(arrival, datagram, queue);
                self.read(self.lease.common(), batch, &mut sort);
            }
        }
    }

    fn set_polled(&self, is_polled: bool) {
        let socket = self.lease.socket();
        // If the socket cannot be watched again, it is read only while a thread polls.
        let _ = match is_polled {
            true => self.reactor.remove(socket, Source::Data),
            false => self.reactor.add(socket, DATA, Source::Data),
        };
    }

    fn arm_bell(&self) -> bool {
        let arm = |memory: &ShmPort| memory.arm_bell(&mut self.inbound.lock().readers);
        self.lease.memory().is_some_and(arm)
    }

    // The peer then gets the acknowledges of the frames that this process has received, though the program ends at once.
    fn flush_on_exit(&self) {
        if let Some(network) = self.reactor.network() {
            network.flush();
        }
    }
}

impl<C: DatagramCodec> Drop for UdpLink<C> {
    fn drop(&mut self) {
        self.flush();
        self.reactor.stop();
    }
}

// The caller holds the lock of `leaving`.
fn note(counters: &Counters, outcome: &SendOutcome) {
    count_alone(&counters.sent, outcome.sent as u64);
    for &Refused {
        errno, datagrams, ..
    } in &outcome.refused
    {
        let counter = match errno {
            libc::EMSGSIZE => &counters.too_long,
            _ => &counters.refused,
        };
        count_alone(counter, datagrams as u64);
    }
}

/// Returns the largest path MTU that a link can use if IP packets have at most `ip_mtu` bytes and the codec's headers and
/// trailer take `overhead` bytes; `None` if even the smallest does not fit.
pub fn largest_frame(ip_mtu: u32, ip: IpAddr, overhead: usize) -> Option<Mtu> {
    let headers = if ip.is_ipv4() { 20 + 8 } else { 40 + 8 };
    let most = (ip_mtu as usize).checked_sub(headers + overhead)?;
    (1..=5)
        .rev()
        .filter_map(Mtu::from_code)
        .find(|mtu| mtu.octets() as usize <= most)
}

// A socket that joins datagrams needs large buffers, one that does not needs many.
fn receive_batch(socket: &UdpSocket, datagram: usize) -> io::Result<ReceiveBatch> {
    if socket.joins() {
        // Only few, because memory that stays in the processor's cache is read fastest.
        ReceiveBatch::new(4, 65_535)
    } else {
        ReceiveBatch::new(32, datagram)
    }
}

fn envelope(from: SocketAddr, to: SocketAddr, identification: u16) -> Envelope {
    Envelope {
        from,
        to,
        identification,
    }
}

const MOST_FLOWS: usize = 64;

const DATA: u64 = 1;
const COMMON: u64 = 2;
const INBOX: u64 = 3;
const SERVICES: u64 = 4;
const ROOM: u64 = 5;

/// The kinds of records: a frame, a frame of which a bit was changed, and a message from process to process.
const FRAME: u8 = 0;
const DAMAGED: u8 = 1;
const MESSAGE: u8 = 2;

/// The most records that are queued for lack of room in shared memory, for each reader: many have no payload.
const MOST_WAITING: usize = 4096;
/// Bytes of a batch. Each queue has two batches, one filling and one leaving, so that up to a megabyte can be queued.
const BATCH: usize = 512 << 10;
/// The number of consecutive polls without a record in shared memory after which every poll reads the socket. Until then
/// only one poll in [`EVERY`] does, where a poll that finds a record counts as [`FOUND`] polls: polling shared memory costs
/// almost nothing compared with a system call.
const IDLE: u32 = 1024;
const EVERY: u32 = 1024;
const FOUND: u32 = 4;
/// The most system calls with which one poll reads a socket, so that answers leave in between.
const ROUNDS: usize = 8;
/// The most received datagrams that wait in `aside` until the link delivers them; further ones are dropped.
const ASIDE: usize = 1024;
/// The most messages of other processes that wait until the link delivers them; further ones are dropped.
const LETTERS: usize = 4096;

#[cfg(test)]
mod tests;
