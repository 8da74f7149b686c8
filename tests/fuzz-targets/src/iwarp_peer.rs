//! An iWARP peer that sends segments that a fuzzer makes up, in correct frames, to a working queue pair.
//!
//! A device has a connection with the peer and another one with an honest neighbour. Whatever arrives, nothing panics,
//! memory for which the peer has no key stays unchanged, every request completes once, and the neighbour is served.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bmme as _;
use masked_atomics as _;

use emulated_iwarp::header::{Header, Message, Stream};
use emulated_iwarp::{Iwarp, MpaCodec, codec};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame, SharedLink};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use polyverbs_io::sim::Simulation;
use polyverbs_io::{Found, StreamCodec};
use polyverbs_wire::iwarp::{Direction, Framing};
use verbs_api::provider::carrier::ReadyForms;
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::qp::connect_pair;
use verbs_api::{Access, Operations, Qp, QpOptions, ids::LinkAddress, wr};

use crate::at_work::{self, AtWork, Peer};
use crate::program::Program;
use crate::script::Script;

thread_local! {
    /// A device takes longer to make than to disturb, so an unharmed one is used again, in virtual time that continues.
    static KEPT: RefCell<Option<Rig>> = const { RefCell::new(None) };
}

/// Runs a peer and the program that it is connected to, both by the script of a fuzzer.
pub fn run(octets: &[u8]) {
    let mut rig = KEPT.take().unwrap_or_else(Rig::new);
    at_work::run(&mut rig, &mut Script::new(octets));
    KEPT.set(Some(rig));
}

struct Rig {
    at_work: AtWork<Iwarp>,
    wire: Arc<Wire>,
    peer_qp: Qp,
    /// The stream that the frames of the peer name.
    stream: Stream,
    /// Messages that the peer has sent to each queue.
    sent: [u32; 4],
    peer: Program,
}

impl Peer for Rig {
    type Driver = Iwarp;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn at_work(&mut self) -> &mut AtWork<Iwarp> {
        &mut self.at_work
    }

    fn say(&mut self, script: &mut Script<'_>) {
        self.segment(script);
    }

    fn own(&self) -> Option<&Qp> {
        Some(&self.peer_qp)
    }

    // The peer's device connects and sends one message; from then on the fuzzer sends in its place.
    fn connect(&mut self) {
        self.peer.drain();
        self.wire.0.lock().is_open = true;
        let connected = connect_pair(&self.at_work.qp, &self.peer_qp, RIGHTS);
        connected.wait().expect("a connection");
        let nothing = wr::Write::new((), verbs_api::RemoteAddress::default());
        self.peer_qp.post_one(nothing).expect("it is ready");
        self.at_work.network.progress();
        let mut wire = self.wire.0.lock();
        wire.is_open = false;
        self.stream = wire.stream.take().expect("a frame of the peer");
        self.sent = [0; 4];
    }
}

/// The rights of peers: everything that they can request.
const RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

impl Rig {
    fn new() -> Self {
        let simulation = Simulation::new();
        let wire = Arc::new(Wire::default());
        let link = Arc::clone(&wire) as SharedLink<Header>;
        let network = simulation.network::<Iwarp>(Some(link));
        let program = |number| {
            let driver = Iwarp::new(format!("iw{number}"), LinkAddress::InProcess(number));
            let engine = Engine::new(driver, &network, DeviceOptions::default());
            Program::new(engine.expect("a device") as Arc<dyn DeviceOps>)
        };
        let (victim, honest, peer) = (program(1), program(2), program(3));
        let qp = |program: &Program| {
            let operations = Operations::SEND_WITH_INV | Operations::READ_WITH_INV;
            program.qp(QpOptions::rc(&program.cq).operations(operations))
        };
        let neighbours = [qp(&victim), qp(&honest)];
        let (at_victim, at_peer) = (qp(&victim), qp(&peer));
        let [one, other] = &neighbours;
        connect_pair(one, other, RIGHTS)
            .wait()
            .expect("a connection");
        let mut rig = Self {
            at_work: AtWork {
                simulation,
                network,
                qp: at_victim,
                victim,
                honest,
                neighbours,
            },
            wire,
            peer_qp: at_peer,
            stream: Stream::of_key(0),
            sent: [0; 4],
            peer,
        };
        rig.connect();
        rig
    }

    // Sends a segment of the peer: its bytes come from the script, and are made valid where the script says so.
    fn segment(&mut self, script: &mut Script<'_>) {
        let how = script.octet();
        let control = [script.octet(), script.octet()];
        let mut octets = script.octets(usize::from(how & 63)).to_vec();
        octets.resize(octets.len() + usize::from(script.octet()), FROM_PEER);
        let is_tagged = control[0] & 0x80 != 0;
        if how & 64 != 0 {
            self.fit(is_tagged, &mut octets, script);
        }
        if how & 128 != 0 && !is_tagged && octets.len() >= 16 {
            // The header of a read or an atomic follows DDP's header of an untagged message.
            let at = if control[1] & 0xf == READ_REQUEST {
                32
            } else {
                24
            };
            self.name(octets.get_mut(at..at + 12), script);
        }
        let ulpdu = [&control[..], &octets].concat();
        let mut frame = vec![0; ulpdu.len() + 16];
        let mut sender = Direction::new(FRAMING);
        let Some(length) = sender.frame(&[&ulpdu], &mut frame) else {
            return;
        };
        frame.truncate(length);
        self.deliver(&mut frame);
    }

    // Makes the segment name an existing buffer, or the next message of a queue.
    fn fit(&mut self, is_tagged: bool, octets: &mut [u8], script: &mut Script<'_>) {
        if is_tagged {
            return self.name(octets.get_mut(..12), script);
        }
        let queue = script.octet() & 3;
        if let Some(header) = octets.get_mut(4..16) {
            let sent = &mut self.sent[usize::from(queue)];
            *sent += 1;
            header[..4].copy_from_slice(&u32::from(queue).to_be_bytes());
            header[4..8].copy_from_slice(&sent.to_be_bytes());
            header[8..].copy_from_slice(&0_u32.to_be_bytes());
        }
    }

    // Writes a valid STag and tagged offset.
    fn name(&self, octets: Option<&mut [u8]>, script: &mut Script<'_>) {
        if let Some(octets) = octets {
            let open = self.at_work.victim.mr.remote(0);
            let to = open.addr + (u64::from(script.octet()) << 5);
            octets[..4].copy_from_slice(&open.rkey.value().to_be_bytes());
            octets[4..].copy_from_slice(&to.to_be_bytes());
        }
    }

    fn deliver(&self, frame: &mut [u8]) {
        let mut receiving = codec::Receiving::new(FRAMING, self.stream, ReadyForms::empty());
        let (header, payload, damaged) = match MpaCodec.open(&mut receiving, 0, frame) {
            Found::Partial => return,
            Found::Frame {
                header, payload, ..
            } => (header, payload, false),
            Found::Broken(header) => (header, &[][..], true),
        };
        let payload = match payload {
            [] => Payload::Empty,
            octets => Payload::Bytes(octets),
        };
        let frame = Frame {
            from: PEER,
            to: VICTIM,
            header,
            payload,
            damaged,
        };
        self.at_work.deliver(frame);
    }
}

/// A stream link without delay; frames of the peer's device are dropped, except while it connects.
#[derive(Default)]
struct Wire(Mutex<State>);

#[derive(Default)]
struct State {
    under_way: VecDeque<OwnedFrame<Header>>,
    is_open: bool,
    /// The stream of the peer's frames.
    stream: Option<Stream>,
}

impl Wire {}

impl Link<Header> for Wire {
    fn max_frame(&self) -> Option<usize> {
        Some(256)
    }

    fn send(&self, frame: Frame<'_, Header>, _: Time) {
        let mut state = self.0.lock();
        if frame.from == PEER && matches!(frame.header.message, Message::Tagged(_)) {
            state.stream = Some(frame.header.stream);
        }
        if state.is_open || ![frame.from, frame.to].contains(&PEER) {
            state.under_way.push_back(frame.to_owned());
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let mut any = false;
        loop {
            let Some(frame) = self.0.lock().under_way.pop_front() else {
                return any;
            };
            network.deliver(frame.as_frame(), now);
            any = true;
        }
    }

    fn next_due(&self) -> Option<Time> {
        (!self.0.lock().under_way.is_empty()).then_some(Time(0))
    }
}

const VICTIM: LinkAddress = LinkAddress::InProcess(1);
const PEER: LinkAddress = LinkAddress::InProcess(3);
const FROM_PEER: u8 = 0xc3;
const FRAMING: Framing = Framing {
    markers: false,
    crc: true,
};
/// RDMAP's opcode of a read request.
const READ_REQUEST: u8 = 1;
