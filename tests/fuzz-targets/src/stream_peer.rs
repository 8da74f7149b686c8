//! Streams through shared memory whose peer writes records that a fuzzer makes up.
//!
//! A link has streams with the fuzzer through shared memory, and one with an honest link. Whatever arrives, no frame is
//! delivered for a stream that does not exist, and the stream with the honest link keeps working.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use emulated_iwarp::header::{Body, Header, Message, Opcode, Stream};
use emulated_iwarp::{MpaCodec, codec};
use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use polyverbs_io::shm::{Connection, LONGEST_HEAD, LONGEST_PAYLOAD};
use polyverbs_io::{
    Announcement, Attachment, GroupOptions, Lease, QpnRange, Readers, RecordMeta, ShmPort, TcpLink,
    TcpLinkOptions, TcpListener, TcpSocket,
};
use polyverbs_wire::iwarp::Framing;
use verbs_api::ids::LinkAddress;
use verbs_api::memory::Span;
use verbs_api::provider::Mutex;
use verbs_api::provider::carrier::ReadyForms;

use crate::intruder::{alone, no_datagram, own_address};
use crate::script::Script;

/// Runs the peer of the streams by the script of a fuzzer.
pub fn run(octets: &[u8]) {
    static ADDRESS: Mutex<()> = Mutex::new(());
    let _alone = alone(&ADDRESS);
    let mut script = Script::new(octets);
    let mut rig = Rig::new();
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        rig.step(&mut script);
    }
    rig.serves();
    rig.streams.iter().for_each(|stream| stream.socket.abort());
}

/// A link, and the frames that it has delivered.
struct End {
    link: Arc<TcpLink<MpaCodec>>,
    came: Mutex<Vec<OwnedFrame<Header>>>,
}

impl Deliver<Header> for End {
    fn deliver(&self, frame: Frame<'_, Header>, _: Time) {
        assert!(frame.payload.len() <= LONGEST_PAYLOAD + LONGEST_HEAD);
        let mut came = self.came.lock();
        came.push(frame.to_owned());
    }
}

impl End {
    fn new() -> Self {
        let link = TcpLink::new(MpaCodec, own_address(3), TcpLinkOptions::default());
        Self {
            link: link.expect("a link"),
            came: Mutex::default(),
        }
    }

    /// Polls once; returns the frames that arrived.
    fn look(&self, now: Time) -> Vec<OwnedFrame<Header>> {
        self.link.flush();
        self.link.progress(now, self);
        let mut came = self.came.lock();
        std::mem::take(&mut came)
    }

    fn attach(&self, key: u64, socket: Arc<TcpSocket>, announcement: Option<Announcement>) {
        let attachment = Attachment {
            key,
            socket,
            local: LinkAddress::InProcess(1),
            peer: LinkAddress::InProcess(2),
            sender: codec::Sending::new(FRAMING, usize::MAX),
            receiver: codec::Receiving::new(FRAMING, Stream::of_key(key), ReadyForms::empty()),
            received: Vec::new(),
            last: Vec::new(),
            is_held: false,
            announcement,
        };
        // A stream that the peer has reset already has no segments.
        let _ = self.link.attach(attachment);
    }

    fn send(&self, key: u64, message: Message, payload: &[u8], now: Time) {
        let frame = Frame {
            from: LinkAddress::InProcess(1),
            to: LinkAddress::InProcess(2),
            header: Header {
                stream: Stream::of_key(key),
                message,
            },
            payload: Payload::Bytes(payload),
            damaged: false,
        };
        self.link.send(frame, now);
    }
}

/// The fuzzer's end of a stream of the victim.
struct PeerStream {
    key: u64,
    socket: Arc<TcpSocket>,
    own: Connection,
    /// The number by which the victim names the stream, if it has announced it.
    named: u32,
}

struct Rig {
    victim: End,
    honest: End,
    /// The lease of the fuzzer.
    peer: Lease,
    readers: Readers,
    listener: TcpListener,
    streams: Vec<PeerStream>,
    /// The key of the next stream, and those that the victim has forgotten.
    next: u64,
    detached: Vec<u64>,
    now: Time,
}

impl Rig {
    fn new() -> Self {
        let [victim, honest] = [(); 2].map(|()| End::new());
        let options = GroupOptions::without_sockets(own_address(3));
        let peer = Lease::join(options).expect("a range");
        assert!(peer.open_memory());
        let listener = TcpListener::listen(SocketAddr::new(own_address(3), 0), 8);
        let rig = Self {
            victim,
            honest,
            peer,
            readers: Readers::default(),
            listener: listener.expect("a port"),
            streams: Vec::new(),
            next: HONEST + 1,
            detached: Vec::new(),
            now: Time(0),
        };
        rig.join_honest();
        assert!(
            [VICTIMS, HONESTS]
                .iter()
                .all(|before| rig.memory().reaches(rig.range(*before)))
        );
        rig
    }

    fn memory(&self) -> &ShmPort {
        self.peer.memory().expect("it is open")
    }

    // Connects two sockets: the end that connects, and the one that accepts.
    fn connect(&self) -> [Arc<TcpSocket>; 2] {
        let at = SocketAddr::new(own_address(3), 0);
        let one = TcpSocket::connect(at, self.listener.local()).expect("a port");
        let other = loop {
            if let Some((socket, _)) = self.listener.accept().expect("a listener") {
                break socket;
            }
        };
        while !one.connected().expect("a connection") {}
        [one, other].map(Arc::new)
    }

    fn join_honest(&self) {
        // Another connection may occupy the slot of one end, so this tries repeatedly.
        loop {
            let [one, other] = self.connect();
            let announced = self.honest.link.announce(&one);
            let agreed = self.victim.link.announce(&other);
            if announced.is_some() && agreed.is_some() {
                self.honest.attach(HONEST, one, announced);
                self.victim.attach(HONEST, other, agreed);
                break;
            }
            one.abort();
        }
        assert_eq!(self.victim.link.counts().by_memory, 1);
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.octet() {
            0..96 => self.put(script),
            96..128 => self.look(),
            128..152 if self.streams.len() < MOST => self.begin(script),
            152..176 => self.victim_says(script),
            176..192 => self.peer_ends(script),
            192..208 => {
                let memory = self.peer.memory().expect("it is open");
                memory.receive(&mut self.readers, &mut |_| {});
            }
            208..216 => self.now = self.now.after(Duration::from_millis(script.octet().into())),
            216..232 => self.announce(script),
            232..240 => self.memory_at_work(),
            _ => self.say_honestly(),
        }
    }

    fn look(&mut self) {
        for frame in self.victim.look(self.now) {
            let key = u64::from(frame.header.stream.source.epoch);
            assert!(key < self.next && !self.detached.contains(&key), "{key}");
        }
    }

    fn chosen(&self, script: &mut Script<'_>) -> Option<&PeerStream> {
        let which = usize::from(script.octet());
        self.streams.get(which.checked_rem(self.streams.len())?)
    }

    // Writes a record, mostly for an existing stream.
    fn put(&self, script: &mut Script<'_>) {
        let how = script.octet();
        let stream = match self.chosen(script) {
            Some(stream) if how & 1 == 0 || how & 2 == 0 => stream.named,
            _ => u32::from_ne_bytes(octets(script)),
        };
        let kind = if how & 4 == 0 { 0 } else { script.octet() };
        let mut head = script.octets(usize::from(how >> 3) * 4).to_vec();
        head.truncate(LONGEST_HEAD);
        let length = match script.octet() {
            length @ 0..192 => usize::from(length),
            many => LONGEST_PAYLOAD - usize::from(many - 192),
        };
        if how & 0x18 == 0x18 {
            head = segment(script);
        }
        let class = script.octet();
        let meta = RecordMeta {
            stream,
            kind,
            class,
        };
        let write = |span: Span<'_>| span.write(&vec![how; length]);
        let to = match script.octet() {
            255 => self.range(HONESTS),
            _ => self.range(VICTIMS),
        };
        self.memory().put(to, meta, &head, length, write);
    }

    // Ranges are leased in this order: the victim's, the honest link's, the peer's.
    fn range(&self, before: usize) -> QpnRange {
        let index = 1 + (self.peer.range().index() - 1 + 63 - before) % 63;
        QpnRange::of_qpn((index as u32) << QpnRange::SHIFT)
    }

    // Begins another stream with the victim, which either end may have connected.
    fn begin(&mut self, script: &mut Script<'_>) {
        let how = script.octet();
        let [one, other] = self.connect();
        let connects = how & 1 == 0;
        let (own, victims) = if connects { (one, other) } else { (other, one) };
        let (local, remote) = (own.local(), own.peer());
        let ports = (
            local.expect("a socket").port(),
            remote.expect("a peer").port(),
        );
        let key = self.next;
        self.next += 1;
        let own_end = Connection {
            ports,
            stream: u32::from_ne_bytes(octets(script)),
        };
        let announces = how & 6 != 6;
        if announces && connects {
            self.memory().announce(own_end);
        }
        let announcement = self.victim.link.announce(&victims);
        if announces && !connects {
            self.memory().announce(own_end);
        }
        let named = self.memory().announced(ports);
        let named = named.map_or(0, |(_, connection)| connection.stream);
        if how & 8 != 0 {
            self.memory().withdraw(self.peer.range(), own_end);
        }
        self.victim.attach(key, victims, announcement);
        self.streams.push(PeerStream {
            key,
            socket: own,
            own: own_end,
            named,
        });
    }

    fn victim_says(&mut self, script: &mut Script<'_>) {
        let Some(key) = self.chosen(script).map(|stream| stream.key) else {
            return;
        };
        let what = script.octet();
        let data = Message::untagged(1, Opcode::send(false, false), Body::Data);
        match what {
            0..192 => self
                .victim
                .send(key, data, &vec![what; usize::from(what) << 8], self.now),
            192..224 => self.victim.send(key, Message::Close, &[], self.now),
            224..240 => self.victim.send(key, Message::Reset, &[], self.now),
            _ => {
                self.victim.link.detach(key);
                self.detached.push(key);
            }
        }
    }

    // Has the peer send bytes on its socket, or end it.
    fn peer_ends(&mut self, script: &mut Script<'_>) {
        let Some(stream) = self.chosen(script) else {
            return;
        };
        match script.octet() % 4 {
            0 => {
                let _ = stream.socket.send(script.octets(8));
            }
            1 => {
                let _ = stream.socket.finish();
            }
            2 => stream.socket.abort(),
            _ => {
                let key = stream.key;
                stream.socket.abort();
                self.streams.retain(|stream| stream.key != key);
            }
        }
    }

    fn announce(&self, script: &mut Script<'_>) {
        let Some(stream) = self.chosen(script) else {
            return;
        };
        match script.octet() {
            what @ 0..128 => {
                let other = Connection {
                    stream: what.into(),
                    ..stream.own
                };
                self.memory().withdraw(self.peer.range(), stream.own);
                self.memory().announce(other);
            }
            128..192 => self.memory().withdraw(self.peer.range(), stream.own),
            _ => {
                self.memory().announce(stream.own);
            }
        }
    }

    fn memory_at_work(&self) {
        let memory = self.memory();
        memory.put_waiting(|_| {});
        self.peer.ring_bells();
        let attended = self.peer.attend(&mut no_datagram);
        attended.expect("an inbox");
    }

    fn say_honestly(&self) {
        let data = Message::untagged(1, Opcode::send(false, false), Body::Data);
        self.honest.send(HONEST, data, b"before", self.now);
    }

    // Checks that a message of the honest link arrives.
    fn serves(&mut self) {
        let data = Message::untagged(1, Opcode::send(false, false), Body::Data);
        let said = vec![7; 5000];
        self.honest.send(HONEST, data, &said, self.now);
        let mut came = Vec::new();
        for _ in 0..LOOKS {
            self.honest.look(self.now);
            came.extend(self.victim.look(self.now));
            if came
                .iter()
                .any(|frame| is_honest(frame) && frame.payload == said)
            {
                return;
            }
        }
        panic!("the honest link: {} frames", came.len());
    }
}

fn is_honest(frame: &OwnedFrame<Header>) -> bool {
    u64::from(frame.header.stream.source.epoch) == HONEST
}

// Valid headers of a DDP segment, except where the script changes them.
fn segment(script: &mut Script<'_>) -> Vec<u8> {
    let control: [u8; 2] = octets(script);
    let mut head = vec![control[0] & 0xc0 | 1, control[1] & 0xf | 0x40];
    let length = if head[0] & 0x80 == 0 { 16 } else { 12 };
    head.extend(script.octets(length));
    head.resize(2 + length, 0);
    head
}

fn octets<const COUNT: usize>(script: &mut Script<'_>) -> [u8; COUNT] {
    std::array::from_fn(|_| script.octet())
}

const FRAMING: Framing = Framing {
    markers: false,
    crc: true,
};
/// How many ranges were leased after that of the victim, and after that of the honest link.
const VICTIMS: usize = 2;
const HONESTS: usize = 1;
/// The key of the honest link's stream, at both ends.
const HONEST: u64 = 1;
/// The most streams that the peer has.
const MOST: usize = 6;
const STEPS: usize = 64;
/// More polls than are needed to empty the rings.
const LOOKS: usize = 200;
