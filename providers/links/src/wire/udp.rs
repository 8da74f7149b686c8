//! The UDP link: frames as datagrams on a port that several processes share.
//!
//! A frame is encoded where it is sent: its headers, a copy of its payload and its checksum go to the *lane* of its flow,
//! and leave together with what else waits there, one call of the kernel for neighbours of one length. What arrives is
//! taken apart in the buffer that it was received in.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use polyverbs_engine::link::{Deliver, Frame, Link};
use polyverbs_engine::network::Progress;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use polyverbs_sockets::{
    Duty, FlowSockets, HandError, Handed, LastWords, Lease, Mailbox, Membership, Message, QpnRange,
    ReceiveBatch, Service, Source, UdpOptions, UdpSocket, Watch, at_exit, interface_mtu,
};
use verbs_api::{
    VerbError,
    capability::Mtu,
    ids::{Gid, LinkAddress},
};

use super::behind::{Behind, Kept};
use super::codec::{Arrival, Common, DatagramCodec, Envelope};
use super::octets::OctetTap;
use super::train::{Car, Departed, Route, Train};
use super::{count_alone, lock};
use crate::capture::Stage;

/// What a [`UdpLink`] is made with.
#[derive(Clone)]
#[non_exhaustive]
pub struct UdpLinkOptions {
    /// The largest payload of a frame; `None` for the largest that the interface carries whole.
    pub max_frame: Option<Mtu>,
    /// Flows are spread over so many source ports, 64 at most.
    pub flows: usize,
    /// Of the sockets that send.
    pub udp: UdpOptions,
    /// What this process and others at the same address send to one another goes through memory that they share, where
    /// both want that: no kernel, no checksum. Not with a tap, which shows what is on a wire.
    pub memory: bool,
    /// Is told of every datagram.
    pub tap: Option<Arc<dyn OctetTap>>,
}

impl Default for UdpLinkOptions {
    /// What the interface carries, four source ports, every offload, memory, no tap.
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

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What became of the datagrams of a [`UdpLink`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct UdpCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn add_to(&self, counts: &mut UdpCounts) {
                $(counts.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

counts! {
    /// Sent by sockets.
    sent,
    /// Sent by memory.
    by_memory,
    /// Of frames without a form on this wire, or for an address that is none of an IP network of this family.
    formless,
    /// Lost because the socket was full for long, or because who reads from memory did not keep up.
    overrun,
    /// Refused by the system, for want of a way to the destination.
    unreachable,
    /// Refused because the path does not carry their length.
    too_long,
    /// Received and delivered.
    delivered,
    /// Received and delivered with a wrong checksum: drivers drop them.
    damaged,
    /// Received, and none of this format, or longer than a datagram of it can be.
    malformed,
    /// Handed to the process that they were meant for.
    handed,
    /// Meant for a process that is not there or does not keep up.
    lost,
}

/// A link over UDP; see the [module](self).
pub struct UdpLink<C: DatagramCodec> {
    codec: C,
    lease: Lease,
    flows: FlowSockets,
    lanes: Box<[Lane<C::Header>]>,
    /// Of each lane, side by side: all are looked at for each datagram.
    notes: Box<[Notes]>,
    max_frame: Mtu,
    room: usize,
    tap: Option<Arc<dyn OctetTap>>,
    inbound: Mutex<Inbound>,
    /// Something that has come waits for the next look.
    leaves_some: AtomicBool,
    by_memory: bool,
    /// What came in by another way than the own socket, and whether anything did.
    aside: Mutex<Aside>,
    has_aside: AtomicBool,
    services: Mutex<BTreeMap<u64, Service>>,
    /// Read without the lock, as it was when the reading began: what is delivered may be why somebody joins or leaves.
    groups: Mutex<Arc<BTreeMap<IpAddr, Arc<Membership>>>>,
    has_groups: AtomicBool,
    /// Until then nobody is waited for.
    impatient: Mutex<Option<Instant>>,
    watch: Arc<Watch>,
    counters: Counters,
}

/// Frames of some flows on their way out.
#[derive(Debug)]
struct Lane<H> {
    filling: Mutex<Train>,
    behind: Behind<H>,
    /// Taken before the others: who swaps the two trains sends, and nobody overtakes him.
    leaving: Mutex<Train>,
    /// What was sent last leaves by memory.
    ends_by_memory: AtomicBool,
    /// Something was sent since the last frame that stands for others.
    has_spoken: AtomicBool,
    /// The socket was full, and is watched until it is not.
    is_blocked: AtomicBool,
    /// Of what has left, by who has `leaving`.
    counters: Counters,
}

/// What is known of a lane without its locks.
///
/// It is noted after something was put there under the lock, and taken back before that lock is taken to look. So plain
/// stores will do: whoever put something there before is seen in that look, and whoever does after it notes it again.
#[derive(Debug, Default)]
struct Notes {
    /// Something is being filled or has not left.
    waiting: Note,
    /// Something leaves behind what comes next.
    behind: Note,
}

#[derive(Debug, Default)]
struct Note(AtomicBool);

impl Note {
    fn set(&self) {
        if !self.is_set() {
            self.0.store(true, Ordering::Release);
        }
    }

    fn take_back(&self) {
        self.0.store(false, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What the own range gets.
struct Inbound {
    batch: ReceiveBatch,
    mailbox: Option<Mailbox>,
    looks: u32,
    /// Looks since something was in memory.
    idle: u32,
    /// Acknowledges that came behind a frame: they are delivered at the next look, for the program may wait for the frame.
    later: Later,
}

type Later = ArrayVec<(Arrival, ArrayVec<u8, SHORT>), LATER>;

struct Aside {
    queue: VecDeque<(Arrival, Vec<u8>)>,
    batch: ReceiveBatch,
}

impl std::fmt::Debug for Train {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Train").finish_non_exhaustive()
    }
}

impl<C: DatagramCodec> UdpLink<C> {
    /// A link of the process that has this lease. It carries nothing by itself: [`start`](Self::start) it.
    ///
    /// # Errors
    /// The system refuses, or the interface does not even carry the smallest path MTU.
    pub fn new(lease: Lease, codec: C, options: UdpLinkOptions) -> io::Result<Arc<Self>> {
        let local = lease.address();
        let carried = largest_frame(interface_mtu(local)?, local.ip(), C::OVERHEAD);
        let max_frame = match (carried, options.max_frame) {
            (None, _) => return Err(io::Error::other("the interface carries no frame at all")),
            (Some(carried), wanted) => wanted.unwrap_or(carried).min(carried),
        };
        let segments = options.udp.offload.segmentation;
        let flows = options.flows.clamp(1, MOST_FLOWS);
        let lanes = (0..flows).map(|_| Lane::new(segments));
        let watch = Arc::new(Watch::new()?);
        watch.add(lease.socket(), DATA, Source::Data)?;
        watch.add(lease.common(), COMMON, Source::Shared)?;
        watch.add(&lease, INBOX, Source::Rare)?;
        let by_memory = options.memory && options.tap.is_none();
        lease.socket().tell_classes(options.tap.is_some());
        let inbound = Inbound {
            batch: receive_batch(lease.socket(), max_frame.octets() as usize + C::OVERHEAD),
            mailbox: by_memory.then(|| lease.mailbox()).flatten(),
            looks: 0,
            idle: IDLE,
            later: ArrayVec::new(),
        };
        Ok(Arc::new(Self {
            flows: FlowSockets::new(local, flows, options.udp),
            lanes: lanes.collect(),
            notes: (0..flows).map(|_| Notes::default()).collect(),
            max_frame,
            room: lease.socket().receive_buffer()?,
            tap: options.tap,
            inbound: Mutex::new(inbound),
            leaves_some: AtomicBool::new(false),
            by_memory,
            aside: Mutex::new(Aside {
                queue: VecDeque::new(),
                batch: ReceiveBatch::new(4, 65_535),
            }),
            has_aside: AtomicBool::new(false),
            services: Mutex::default(),
            groups: Mutex::default(),
            has_groups: AtomicBool::new(false),
            impatient: Mutex::default(),
            watch,
            counters: Counters::default(),
            codec,
            lease,
        }))
    }

    /// Starts the thread that delivers to `network` what arrives while nobody polls. It ends with the network.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(self: &Arc<Self>, network: Weak<dyn Progress>) -> io::Result<Arc<dyn Duty>> {
        let duty: Arc<dyn Duty> = Arc::new(Watched {
            link: Arc::clone(self),
            network,
            is_left: Mutex::new(false),
        });
        self.watch.start(Arc::downgrade(&duty))?;
        // What has arrived is acknowledged, though the program ends when it has seen it.
        let words: Arc<dyn LastWords> = Arc::clone(self) as _;
        at_exit(Arc::downgrade(&words));
        Ok(duty)
    }

    /// Who reads the sockets.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// The range of queue pair numbers of this process, and the sockets of the port.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What became of the datagrams so far.
    pub fn counts(&self) -> UdpCounts {
        let mut counts = UdpCounts::default();
        let lanes = self.lanes.iter().map(|lane| &lane.counters);
        for counters in lanes.chain([&self.counters]) {
            counters.add_to(&mut counts);
        }
        counts
    }

    /// Answers for a service from now on: what comes for it, to whichever process, is delivered here.
    ///
    /// # Errors
    /// Another process does.
    pub fn serve(&self, service: u64) -> io::Result<()> {
        let mut services = lock(&self.services);
        let inbox = self.lease.serve(service)?;
        self.watch.add(&inbox, SERVICES, Source::Rare)?;
        services.insert(service, inbox);
        Ok(())
    }

    /// Answers for a service no more.
    pub fn withdraw(&self, service: u64) {
        lock(&self.services).remove(&service);
    }

    /// Joins a multicast group on the interface of the link's address.
    ///
    /// # Errors
    /// See [`Membership::join`].
    pub fn join(&self, group: IpAddr) -> io::Result<()> {
        let mut groups = lock(&self.groups);
        if groups.contains_key(&group) {
            return Ok(());
        }
        let local = self.lease.address();
        let address = SocketAddr::new(group, local.port());
        let member = Membership::join(address, local, &UdpOptions::default())?;
        self.watch.add(&member, DATA, Source::Data)?;
        Arc::make_mut(&mut groups).insert(group, Arc::new(member));
        self.has_groups.store(true, Ordering::Release);
        Ok(())
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr) {
        Arc::make_mut(&mut lock(&self.groups)).remove(&group);
    }

    // What is sent, and what is delivered here, is counted elsewhere.
    #[inline]
    fn count(&self, counter: impl Fn(&Counters) -> &AtomicU64, by: usize) {
        #[cold]
        fn add(counter: &AtomicU64, by: usize) {
            counter.fetch_add(by as u64, Ordering::Relaxed);
        }
        if by > 0 {
            add(counter(&self.counters), by);
        }
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

    // Whether there was room, or a run that it could be `coupled` to.
    fn append(
        &self,
        flow: usize,
        route: Route,
        from: SocketAddr,
        frame: &Frame<'_, C::Header>,
        coupled: bool,
    ) -> bool {
        let length = frame.payload.len();
        let write = |room: &mut [u8]| {
            let laid = self.codec.encode(&frame.header, length, room)?;
            let payload = room.get_mut(laid.payload..laid.payload + length)?;
            frame.payload.read(payload);
            (laid.length <= room.len()).then_some((laid.payload + length, laid.length))
        };
        // What is damaged is so by its checksum.
        let local = self.by_memory && !frame.damaged && route.to == self.lease.address();
        let by_memory = |range| local && range != QpnRange::COMMON && self.lease.is_read(range);
        let seal = |mut car: Car<'_>| {
            self.seal(from, &mut car);
            let envelope = envelope(from, car.to, car.segment);
            if let Some(tap) = &self.tap {
                let class = route.traffic_class;
                tap.datagram(Stage::Sent, &envelope, class, car.octets);
            }
            if let (true, Some(last)) = (frame.damaged, car.octets.last_mut()) {
                // Its payload has been changed already: this makes the checksum wrong.
                *last ^= 1;
            }
        };
        let mut formless = false;
        let lane = &self.lanes[flow];
        let mut filling = lock(&lane.filling);
        let taken = filling.append(
            route,
            length + C::OVERHEAD,
            coupled,
            by_memory,
            |room| {
                let written = write(room);
                formless = written.is_none();
                written
            },
            seal,
        );
        let ends_by_memory = filling.ends_by_memory();
        lane.ends_by_memory.store(ends_by_memory, Ordering::Relaxed);
        drop(filling);
        self.notes[flow].waiting.set();
        self.count(|counters| &counters.formless, usize::from(formless));
        taken
    }

    fn seal(&self, from: SocketAddr, car: &mut Car<'_>) {
        if car.by_memory {
            return car.octets[car.payload_end..].fill(0);
        }
        let envelope = envelope(from, car.to, car.segment);
        self.codec.seal(&envelope, car.payload_end, car.octets);
    }

    // Keeps a frame that may leave behind what comes next; `false` where there is no room.
    fn put_behind(&self, flow: usize, to: SocketAddr, stands_for: u64, header: &C::Header) -> bool {
        let lane = &self.lanes[flow];
        let has_spoken = lane.has_spoken.load(Ordering::Relaxed);
        lane.has_spoken.store(false, Ordering::Relaxed);
        let dialogue = has_spoken && self.lets_go_first(lane);
        let header = header.clone();
        (lane.behind).keep(to, stands_for, header, dialogue, || {
            self.notes[flow].behind.set()
        })
    }

    // Whether what is kept behind a message waits for the next look of a poller, to whom a call more costs little. Otherwise
    // it goes along, as it does where there is no call.
    fn lets_go_first(&self, lane: &Lane<C::Header>) -> bool {
        let is_polled = self.watch.has_quick_calls() && self.watch.stood_back();
        is_polled && !lane.ends_by_memory.load(Ordering::Relaxed)
    }

    // With `all`, whatever waits; otherwise what costs no call of its own, because the kernel cuts it off from what
    // leaves anyway.
    #[inline(never)]
    fn append_behind(&self, flow: usize, from: SocketAddr, all: bool) {
        let stays = |kept: &Kept<C::Header>| {
            let (manner, local) = (self.codec.manner(&kept.header), self.lease.address().ip());
            let frame = Frame {
                from: LinkAddress::Ip(local),
                to: LinkAddress::Ip(kept.to.ip()),
                header: kept.header.clone(),
                payload: Payload::Empty,
                damaged: false,
            };
            let taken = self.append(flow, Route::new(kept.to, manner), from, &frame, !all);
            if all && !taken {
                self.count(|counters| &counters.overrun, 1);
            }
            !all && !taken
        };
        let emptied = || self.notes[flow].behind.take_back();
        self.lanes[flow].behind.retain(stays, emptied);
    }

    // With what `behind` says of a lane that keeps something.
    fn flush_lanes(&self, behind: impl Fn(&Lane<C::Header>) -> bool) {
        for (flow, notes) in self.notes.iter().enumerate() {
            let behind = notes.behind.is_set() && behind(&self.lanes[flow]);
            if behind || notes.waiting.is_set() {
                self.flush_lane(flow, behind);
            }
        }
    }

    fn flush_lane(&self, flow: usize, behind: bool) {
        let lane = &self.lanes[flow];
        let Ok(socket) = self.flows.of(flow as u32) else {
            return;
        };
        self.watch.stay();
        let from = socket.local();
        let mut leaving = lock(&lane.leaving);
        // What they go with waits until they have been laid down behind it.
        if self.notes[flow].behind.is_set() && (behind || !self.lets_go_first(lane)) {
            self.append_behind(flow, from, behind);
        }
        // Before looking: what comes meanwhile is seen here or says so again.
        self.notes[flow].waiting.take_back();
        loop {
            // What a full socket has left goes first.
            let is_last = leaving.is_empty();
            if is_last {
                std::mem::swap(&mut *leaving, &mut *lock(&lane.filling));
            }
            let departed = leaving.depart(
                socket,
                |range, transmit| self.lease.put(socket, range, transmit),
                |mut car| self.seal(from, &mut car),
            );
            note(&lane.counters, departed);
            self.watch_room(lane, socket, departed.full);
            if departed.full {
                self.notes[flow].waiting.set();
            }
            if departed.full || is_last {
                return;
            }
        }
    }

    /// Waits until what another thread has begun to send has left. After [`flush`](Link::flush), which leaves that to it,
    /// nothing of what was sent before is left, unless the socket is full.
    pub fn wait_for_departure(&self) {
        for lane in &self.lanes {
            drop(lock(&lane.leaving));
        }
    }

    // Of a socket that is not full nobody wants to know when it has room: that is after every datagram.
    fn watch_room(&self, lane: &Lane<C::Header>, socket: &UdpSocket, is_full: bool) {
        if lane.is_blocked.load(Ordering::Relaxed) != is_full {
            self.change_watching(lane, socket, is_full);
        }
    }

    #[cold]
    fn change_watching(&self, lane: &Lane<C::Header>, socket: &UdpSocket, is_full: bool) {
        if lane.is_blocked.swap(is_full, Ordering::Relaxed) != is_full {
            // Where it cannot be watched, what waits leaves with what comes next.
            let _ = if is_full {
                self.watch.add(socket, ROOM, Source::Full)
            } else {
                self.watch.remove(socket, Source::Full)
            };
        }
    }

    // ---- in

    fn read(
        &self,
        receive: impl Fn(&mut ReceiveBatch) -> io::Result<usize>,
        batch: &mut ReceiveBatch,
        take: &mut dyn FnMut(Arrival, &[u8]),
    ) {
        for _ in 0..ROUNDS {
            // A socket that fails gives nothing; what is wrong with it will be told when something is sent.
            if receive(batch).unwrap_or(0) == 0 {
                return;
            }
            self.count(|counters| &counters.malformed, batch.truncated());
            for message in batch.messages() {
                self.take_apart(&message, true, take);
            }
            // Whoever waits for one message is not kept waiting for a look at an empty socket.
            if !batch.is_full() {
                return;
            }
        }
    }

    // Whether something came to one.
    #[inline(never)]
    fn read_groups(
        &self,
        batch: &mut ReceiveBatch,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> bool {
        let mut delivered = false;
        let groups = Arc::clone(&lock(&self.groups));
        for member in groups.values() {
            let mut take = |arrival: Arrival, datagram: &[u8]| {
                self.deliver(&arrival, datagram, now, network);
                delivered = true;
            };
            self.read(|batch| member.receive(batch), batch, &mut take);
        }
        delivered
    }

    fn take_apart(
        &self,
        message: &Message<'_>,
        is_sealed: bool,
        take: &mut dyn FnMut(Arrival, &[u8]),
    ) {
        let local = self.lease.address();
        let to = SocketAddr::new(message.to.unwrap_or(local.ip()), local.port());
        for (segment, datagram) in message.datagrams().enumerate() {
            let arrival = Arrival {
                from: message.from,
                to,
                traffic_class: message.traffic_class,
                segment: segment as u16,
                is_sealed,
            };
            take(arrival, datagram);
        }
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
            tap.datagram(Stage::Arrived, &envelope, arrival.traffic_class, datagram);
        }
        let Some(opened) = self.codec.open(arrival, datagram) else {
            return self.count(|counters| &counters.malformed, 1);
        };
        let payload = if opened.payload.is_empty() {
            Payload::Empty
        } else {
            Payload::Octets(opened.payload)
        };
        let frame = Frame {
            from: LinkAddress::Ip(arrival.from.ip()),
            // Of a datagram to a group too: which device has joined it the header says.
            to: LinkAddress::Ip(self.lease.address().ip()),
            header: opened.header,
            payload,
            damaged: opened.damaged,
        };
        let counter = match frame.damaged {
            true => &self.counters.damaged,
            false => &self.counters.delivered,
        };
        // By whoever has the turn.
        count_alone(counter, 1);
        network.deliver(frame, now);
    }

    // Whether it is an acknowledge that waits for the next look. One for a program that sleeps does not: what it is woken for
    // first may be told from the order.
    fn put_off(&self, arrival: &Arrival, datagram: &[u8], later: &mut Later) -> bool {
        let is_acknowledge = self.codec.is_acknowledge(datagram) && self.watch.is_polled_only();
        let octets = ArrayVec::try_from(datagram).ok().filter(|_| is_acknowledge);
        let put = octets.is_some_and(|octets| later.try_push((*arrival, octets)).is_ok());
        if put {
            self.leaves_some.store(true, Ordering::Relaxed);
        }
        put
    }

    // Whether there was something.
    #[inline]
    fn deliver_aside(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        self.has_aside.load(Ordering::Acquire) && self.deliver_queue(now, network)
    }

    #[cold]
    fn deliver_queue(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        self.has_aside.store(false, Ordering::SeqCst);
        let aside = std::mem::take(&mut lock(&self.aside).queue);
        for (arrival, datagram) in &aside {
            self.deliver(arrival, datagram, now, network);
        }
        !aside.is_empty()
    }

    // What a process gets that is meant for another.
    #[cold]
    fn hand_on(&self, range: QpnRange, arrival: &Arrival, datagram: &[u8]) {
        let handed = self.lease.hand_to_range(range, &handed(arrival, datagram));
        self.note_handed(&handed);
    }

    // The same where it is rare and matters: who does not keep up for a moment is waited for. An inbox has room for no
    // more than ten datagrams where nobody has raised that. Who does not read at all is not waited for again and again.
    fn hand_patiently(&self, hand: impl Fn() -> Result<(), HandError>) -> Result<(), HandError> {
        let mut handed = hand();
        let began = Instant::now();
        while matches!(handed, Err(HandError::Full)) {
            let mut impatient = lock(&self.impatient);
            if impatient.is_some_and(|until| began < until) {
                return handed;
            }
            if began.elapsed() > PATIENCE {
                *impatient = Some(Instant::now() + IMPATIENCE);
                return handed;
            }
            drop(impatient);
            thread::sleep(PAUSE);
            handed = hand();
        }
        handed
    }

    fn note_handed(&self, handed: &Result<(), HandError>) {
        match handed {
            Ok(()) => self.count(|counters| &counters.handed, 1),
            Err(_) => self.count(|counters| &counters.lost, 1),
        }
    }

    // A datagram to the common queue pair, found by this process: keeps it, or hands it to whom it is for.
    #[cold]
    fn sort(&self, arrival: Arrival, datagram: &[u8], queue: &mut VecDeque<(Arrival, Vec<u8>)>) {
        let range = QpnRange::of_datagram(datagram);
        if range != QpnRange::COMMON {
            // The kernel has joined it to one that was.
            return match range == self.lease.range() {
                true => self.keep(arrival, datagram, queue),
                false => self.hand_on(range, &arrival, datagram),
            };
        }
        match self.codec.common(datagram) {
            Common::Range(range) if range != self.lease.range() => {
                let datagram = handed(&arrival, datagram);
                let handed = self.hand_patiently(|| self.lease.hand_to_range(range, &datagram));
                return self.note_handed(&handed);
            }
            Common::Service(service) if !lock(&self.services).contains_key(&service) => {
                let meant = handed(&arrival, datagram);
                let handed = self.hand_patiently(|| self.lease.hand_to_service(service, &meant));
                if !matches!(handed, Err(HandError::Nobody)) {
                    return self.note_handed(&handed);
                }
                // Nobody answers for it: then this process says so.
            }
            _ => {}
        }
        self.keep(arrival, datagram, queue);
    }

    fn keep(&self, arrival: Arrival, datagram: &[u8], queue: &mut VecDeque<(Arrival, Vec<u8>)>) {
        if queue.len() >= ASIDE {
            return self.count(|counters| &counters.lost, 1);
        }
        queue.push_back((arrival, datagram.to_vec()));
        self.has_aside.store(true, Ordering::Release);
    }

    // Takes what came in by other ways, to be delivered with what arrives at the own socket.
    fn attend(&self, token: u64) {
        let aside = &mut *lock(&self.aside);
        let (queue, batch) = (&mut aside.queue, &mut aside.batch);
        let port = self.lease.address().port();
        let mut take = |handed: Handed<'_>| {
            let arrival = Arrival {
                from: handed.from,
                to: SocketAddr::new(handed.to, port),
                traffic_class: handed.traffic_class,
                segment: handed.segment.into(),
                is_sealed: true,
            };
            self.keep(arrival, handed.octets, queue);
        };
        // What cannot be read now will be told again.
        match token {
            INBOX => drop(self.lease.attend(&mut take)),
            SERVICES => lock(&self.services)
                .values()
                .for_each(|service| drop(service.attend(&mut take))),
            _ => {
                let common = self.lease.common();
                let mut sort = |arrival, datagram: &[u8]| self.sort(arrival, datagram, queue);
                self.read(|batch| common.receive(batch), batch, &mut sort);
            }
        }
    }
}

impl<H> Lane<H> {
    fn new(segments: bool) -> Self {
        let train = || Mutex::new(Train::new(TRAIN, segments));
        Self {
            filling: train(),
            behind: Behind::default(),
            leaving: train(),
            ends_by_memory: AtomicBool::new(false),
            has_spoken: AtomicBool::new(false),
            counters: Counters::default(),
            is_blocked: AtomicBool::new(false),
        }
    }
}

impl<C: DatagramCodec> Link<C::Header> for UdpLink<C> {
    fn max_frame(&self) -> Option<usize> {
        Some(self.max_frame.octets() as usize)
    }

    fn room(&self) -> Option<usize> {
        Some(self.room)
    }

    fn send(&self, frame: Frame<'_, C::Header>, _now: Time) {
        let manner = self.codec.manner(&frame.header);
        let flow = manner.flow as usize % self.lanes.len();
        let group = self.codec.group(&frame.header).map(LinkAddress::Ip);
        let to = self.socket_address(group.unwrap_or(frame.to));
        let from = self.flows.of(flow as u32).map(UdpSocket::local);
        let (Some(to), Ok(from)) = (to, from) else {
            return self.count(|counters| &counters.formless, 1);
        };
        let may_wait = frame.payload.is_empty() && !frame.damaged;
        match manner.stands_for.filter(|_| may_wait) {
            Some(stands_for) if self.put_behind(flow, to, stands_for, &frame.header) => return,
            Some(_) => {}
            None => {
                self.lanes[flow].has_spoken.store(true, Ordering::Relaxed);
                // A program that sleeps for completions may count on the order that hardware has: the acknowledge of a
                // message arrives before the answer to it.
                if self.notes[flow].behind.is_set() && !self.watch.is_polled_only() {
                    self.append_behind(flow, from, true);
                }
            }
        }
        let route = Route::new(to, manner);
        if !self.append(flow, route, from, &frame, false) {
            self.flush_lane(flow, false);
            if !self.append(flow, route, from, &frame, false) {
                self.count(|counters| &counters.overrun, 1);
            }
        }
    }

    fn flush(&self) {
        self.flush_lanes(|_| true);
    }

    fn flush_idle(&self) {
        self.flush_lanes(|lane| lane.behind.is_due());
    }

    fn flush_ahead(&self) {
        self.flush_lanes(|_| false);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        let mut delivered = self.deliver_aside(now, network);
        let mut inbound = lock(&self.inbound);
        let Inbound {
            batch,
            mailbox,
            looks,
            idle,
            later,
        } = &mut *inbound;
        let own = self.lease.range();
        let mut is_called = false;
        if !later.is_empty() {
            for (arrival, datagram) in &*later {
                self.deliver(arrival, datagram, now, network);
            }
            later.clear();
            self.leaves_some.store(false, Ordering::Relaxed);
            return true;
        }
        let mut take = |arrival: Arrival, datagram: &[u8]| {
            let range = QpnRange::of_datagram(datagram);
            if range == own {
                if self.lease.is_call(datagram) {
                    is_called = true;
                } else if !(delivered && self.put_off(&arrival, datagram, later)) {
                    self.deliver(&arrival, datagram, now, network);
                    delivered = true;
                }
            } else if range == QpnRange::COMMON {
                // The kernel has joined it to one that was for this process, as the two below.
                self.sort(arrival, datagram, &mut lock(&self.aside).queue);
            } else {
                self.hand_on(range, &arrival, datagram);
            }
        };
        let put = mailbox.as_mut().map_or(0, |mailbox| {
            mailbox.receive(&mut |message| self.take_apart(message, false, &mut take))
        });
        *looks = looks.wrapping_add(1);
        *idle = if put > 0 { 0 } else { idle.saturating_add(1) };
        if *idle >= IDLE || looks.is_multiple_of(EVERY) {
            self.read(|batch| self.lease.socket().receive(batch), batch, &mut take);
        }
        if self.has_groups.load(Ordering::Acquire) {
            delivered |= self.read_groups(batch, now, network);
        }
        // Whoever hears of these may look for more.
        drop(inbound);
        if is_called {
            // It was meant for the thread, which may not see it any more.
            self.watch.leave();
        }
        delivered | self.deliver_aside(now, network)
    }

    fn next_due(&self) -> Option<Time> {
        None
    }

    fn heeds_time(&self) -> bool {
        false
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn tells_again(&self) -> bool {
        true
    }

    fn poll(&self, work: &mut dyn FnMut()) {
        self.watch.poll(work);
        if self.leaves_some.load(Ordering::Relaxed) {
            self.watch.leave();
        }
        // Otherwise the thread sends what a poller that is gone has left.
        let mut notes = self.notes.iter();
        let is_left = notes.any(|notes| notes.waiting.is_set() || notes.behind.is_set());
        if is_left && !self.watch.stands_back() {
            self.flush();
        }
    }

    fn hand_back(&self) {
        // Not left to the thread, which may not get a processor before the peer has run out of room for requests.
        if self.notes.iter().any(|notes| notes.behind.is_set()) {
            self.flush();
        }
        self.watch.hand_back();
    }

    fn tell_classes(&self) {
        self.lease.socket().tell_classes(true);
    }

    fn join(&self, group: Gid) -> Result<(), VerbError> {
        let no_address = || VerbError::argument("gid", "the group has no address here");
        let ip = self.codec.address_of_group(group).ok_or_else(no_address)?;
        if ip.is_ipv4() != self.lease.address().is_ipv4() {
            return Err(no_address());
        }
        Self::join(self, ip).map_err(|error| VerbError::os("join of a multicast group", error))
    }

    fn leave(&self, group: Gid) {
        if let Some(ip) = self.codec.address_of_group(group) {
            Self::leave(self, ip);
        }
    }
}

impl<C: DatagramCodec> LastWords for UdpLink<C> {
    fn say(&self) {
        self.flush();
    }
}

impl<C: DatagramCodec> Drop for UdpLink<C> {
    fn drop(&mut self) {
        self.flush();
        self.watch.stop();
    }
}

// By who has the lock of what is leaving.
fn note(counters: &Counters, departed: Departed) {
    let refused = match departed.too_long {
        true => &counters.too_long,
        false => &counters.unreachable,
    };
    let counted = [
        (&counters.sent, departed.sent),
        (&counters.by_memory, departed.by_memory),
        (&counters.overrun, departed.overrun),
        (refused, departed.refused),
    ];
    for (counter, by) in counted {
        count_alone(counter, by as u64);
    }
}

/// What the watch calls.
struct Watched<C: DatagramCodec> {
    link: Arc<UdpLink<C>>,
    network: Weak<dyn Progress>,
    /// The own socket is left to pollers: it is not watched until the thread is to sleep, which it does when they are gone.
    /// Otherwise the kernel would tell epoll of each datagram, at its sender's cost.
    is_left: Mutex<bool>,
}

impl<C: DatagramCodec> Watched<C> {
    fn leave(&self) {
        let (link, mut is_left) = (&self.link, lock(&self.is_left));
        if !*is_left {
            let left = link.watch.remove(link.lease.socket(), Source::Data);
            *is_left = left.is_ok();
        }
    }

    // Whether the own socket is watched from now on.
    fn watch(&self) -> bool {
        let (link, mut is_left) = (&self.link, lock(&self.is_left));
        if *is_left {
            let watched = link.watch.add(link.lease.socket(), DATA, Source::Data);
            *is_left = watched.is_err();
        }
        !*is_left
    }
}

impl<C: DatagramCodec> Duty for Watched<C> {
    fn progress(&self) {
        if let Some(network) = self.network.upgrade() {
            network.progress();
        }
    }

    fn attend(&self, token: u64) {
        self.link.attend(token);
        self.progress();
    }

    fn sleep(&self) -> bool {
        let is_watched = self.watch();
        let mailbox = &mut lock(&self.link.inbound).mailbox;
        // A socket that cannot be watched is looked at again and again.
        mailbox.as_mut().is_some_and(Mailbox::sleep) || !is_watched
    }

    fn tidy(&self) {
        self.leave();
        if self.link.notes.iter().any(|notes| notes.behind.is_set()) {
            self.link.flush();
        }
    }

    fn peek(&self) -> Option<bool> {
        let Inbound { mailbox, idle, .. } = &mut *lock(&self.link.inbound);
        let mailbox = mailbox.as_mut().filter(|_| *idle < IDLE)?;
        Some(mailbox.has_some())
    }

    fn wake(&self) {
        if let Some(mailbox) = &lock(&self.link.inbound).mailbox {
            mailbox.wake();
        }
    }
}

impl<C: DatagramCodec> Drop for Watched<C> {
    fn drop(&mut self) {
        self.link.watch.stop();
    }
}

/// The largest path MTU that fits IP packets of so many octets, with headers and trailers of a codec.
pub fn largest_frame(ip_mtu: u32, ip: IpAddr, overhead: usize) -> Option<Mtu> {
    let headers = if ip.is_ipv4() { 20 + 8 } else { 40 + 8 };
    let most = (ip_mtu as usize).checked_sub(headers + overhead)?;
    (1..=5)
        .rev()
        .filter_map(Mtu::from_code)
        .find(|mtu| mtu.octets() as usize <= most)
}

// A socket that joins needs large rooms, one that does not needs many.
fn receive_batch(socket: &UdpSocket, datagram: usize) -> ReceiveBatch {
    if socket.joins() {
        // Few: what lies in the processor's cache is read fastest.
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

fn handed<'d>(arrival: &Arrival, datagram: &'d [u8]) -> Handed<'d> {
    Handed {
        from: arrival.from,
        to: arrival.to.ip(),
        traffic_class: arrival.traffic_class,
        // The kernel joins no more than it cuts.
        segment: arrival.segment as u8,
        octets: datagram,
    }
}

const MOST_FLOWS: usize = 64;

const DATA: u64 = 1;
const COMMON: u64 = 2;
const INBOX: u64 = 3;
const SERVICES: u64 = 4;
const ROOM: u64 = 5;

/// Octets of a train: a megabyte may wait for each lane, once filling and once leaving.
const TRAIN: usize = 512 << 10;
/// After so many looks that found nothing in memory each reads the socket again, and until then every so many: a look at
/// memory is next to nothing beside one at the socket.
const IDLE: u32 = 1024;
const EVERY: u32 = 16;
/// Octets of the longest acknowledge, and how many wait for the next look.
const SHORT: usize = 32;
const LATER: usize = 32;
/// Calls that one turn of reading makes at most, so that answers leave in between.
const ROUNDS: usize = 8;
/// How long a process that does not keep up is waited for, with pauses between.
const PATIENCE: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_micros(50);
/// How long nobody is waited for after that.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// Datagrams that wait aside at most.
const ASIDE: usize = 1024;

#[cfg(test)]
mod tests;
