//! iWARP over a stream: every request completes once, the received messages are an unharmed prefix of the sent ones in
//! order, and a flipped bit ends the connection with a Terminate.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use emulated_iwarp::header::{Header, reset_header, stream_key};
use emulated_iwarp::{Iwarp, MpaCodec, ServiceDelay, codec};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Network;
use polyverbs_io::sim::{Between, FaultSpec, Rate, Simulation, Stall, StreamLink};
use polyverbs_io::through_streams;
use polyverbs_wire::iwarp::Framing;
use rand::Rng;
use rand::rngs::SmallRng;
use verbs_api::provider::carrier::ReadyForms;
use verbs_api::qp::QpState;
use verbs_api::*;
use verbs_api::{
    ids::LinkAddress,
    wr::{self, ReceiveRequest, WorkRequest},
};

/// The rights of each side on the memory of the other.
const PEERS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The most bytes of a request, and the bytes of the place that each has on both sides.
const SLOT: usize = 3072;
const REQUESTS: usize = 48;
/// The range that reads fetch, and the range of atomics, after the slots of the target.
const SHARED: usize = SLOT * REQUESTS;
const COUNTER: usize = SHARED + SLOT;
/// The receives of the target, each with a slot.
const RECEIVES: usize = COUNTER + 1024;
const MEMORY: usize = RECEIVES + SLOT * REQUESTS;

/// How a stream may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The stream does not end: it is only slow.
    Never,
    /// The stream is reset after some frames.
    Reset,
    /// A flipped bit ends the stream, if a bit is flipped.
    Flip,
}

struct Side {
    engine: Arc<Engine<Iwarp>>,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    mr: Mr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteWithImmediate,
    Read,
    FetchAdd,
}

struct Posted {
    kind: Kind,
    octets: Vec<u8>,
}

struct Run {
    simulation: Simulation,
    link: Arc<StreamLink<Header>>,
    sides: [Side; 2],
    posted: Vec<Posted>,
    sent: Vec<(u64, WcStatus)>,
    received: Vec<(u64, WcStatus, u32, Option<[u8; 4]>)>,
    what: String,
}

/// Makes one run.
pub(crate) fn run(end: End, seed: u64, rng: &mut SmallRng) {
    let mut run = Run::new(end, seed, rng);
    let [from, to] = &run.sides;
    let shared: Vec<u8> = (0..SLOT).map(|_| rng.random()).collect();
    to.memory.write(SHARED, &shared).expect("within the memory");
    for slot in 0..REQUESTS {
        let receive = to.sge(RECEIVES + slot * SLOT, SLOT);
        to.qp
            .post_receive(ReceiveRequest::new(slot as u64, receive))
            .expect("room");
    }
    let count = rng.random_range(1..=REQUESTS);
    let mut posted = Vec::new();
    for number in 0..count {
        posted.push(from.post(number, to, rng));
        if rng.random_bool(0.4) {
            let time = Duration::from_nanos(rng.random_range(0..60_000));
            run.simulation
                .run_for(time)
                .expect("a network that is woken");
        }
    }
    run.posted = posted;
    run.simulation.run_until_idle().expect("an end");
    run.poll();
    run.check(end, &shared);
}

fn with_markers(header: &Header) -> (codec::Sending, codec::Receiving) {
    halves(header, true)
}

fn without_markers(header: &Header) -> (codec::Sending, codec::Receiving) {
    halves(header, false)
}

fn halves(header: &Header, markers: bool) -> (codec::Sending, codec::Receiving) {
    let framing = Framing { markers, crc: true };
    let receiving = codec::Receiving::new(framing, header.stream, ReadyForms::empty());
    (codec::Sending::new(framing, usize::MAX), receiving)
}

impl Run {
    fn new(end: End, seed: u64, rng: &mut SmallRng) -> Self {
        let some = |rng: &mut SmallRng| rng.random_bool(0.5);
        let mut faults = FaultSpec {
            chunk: some(rng).then(|| Between::new(1, rng.random_range(1..200))),
            stall: some(rng).then(|| Stall {
                rate: Rate::percent(rng.random_range(1..20)),
                time: Duration::from_micros(rng.random_range(1..500)),
            }),
            reset_after: (end == End::Reset).then(|| rng.random_range(1..200)),
            flip: if end == End::Flip {
                Rate::percent(rng.random_range(1..5))
            } else {
                Rate::NEVER
            },
            seed,
            ..FaultSpec::default()
        };
        let delay = Duration::from_micros(rng.random_range(0..100));
        faults.delay = Between::new(delay / 8, delay);
        let max_frame = if some(rng) {
            None
        } else {
            NonZeroUsize::new(rng.random_range(64..1500))
        };
        let link = Arc::new(StreamLink::new(
            max_frame,
            faults,
            stream_key,
            Some(reset_header),
        ));
        let simulation = Simulation::new();
        let mut framed = Arc::clone(&link) as SharedLink<Header>;
        // With every second seed, frames are encoded as bytes on the link, and with every fourth one there are markers among
        // them.
        if seed.is_multiple_of(2) {
            let begin = if seed.is_multiple_of(4) {
                with_markers
            } else {
                without_markers
            };
            framed = through_streams(framed, MpaCodec, begin);
        }
        let network = simulation.network(Some(framed));
        let most = Duration::from_micros(rng.random_range(0..60));
        let sides =
            [1, 2].map(|number| Side::new(&network, number, ServiceDelay { max: most, seed }));
        let connected = connect_pair(&sides[0].qp, &sides[1].qp, PEERS);
        simulation
            .run_for(Duration::from_millis(1))
            .expect("a network that is woken");
        connected.wait().expect("a connection");
        let what = format!("{faults}, frames of {max_frame:?}");
        Self {
            simulation,
            link,
            sides,
            posted: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            what,
        }
    }

    fn poll(&mut self) {
        let [from, to] = &self.sides;
        self.sent.extend(
            completions(&from.cq)
                .iter()
                .map(|done| (done.wr_id, done.status)),
        );
        let received = completions(&to.cq);
        let told = received
            .iter()
            .map(|done| (done.wr_id, done.status, done.byte_len, done.immediate()));
        self.received.extend(told);
    }

    fn check(&self, end: End, shared: &[u8]) {
        let Self {
            what,
            sides: [from, to],
            ..
        } = self;
        let ids: Vec<_> = self.sent.iter().map(|(id, _)| *id).collect();
        assert_eq!(
            ids,
            (0..self.posted.len() as u64).collect::<Vec<_>>(),
            "each once, in order: {what}"
        );
        let states = self
            .sides
            .each_ref()
            .map(|side| side.qp.query().expect("it lives").state);
        let ended = states == [QpState::Err; 2];
        assert!(ended || states == [QpState::Rts; 2], "{states:?} {what}");
        match end {
            End::Never => assert!(!ended),
            End::Reset => assert_eq!(ended, self.link.counts().resets > 0, "{what}"),
            End::Flip => {
                assert_eq!(ended, self.link.counts().flipped > 0, "{what}");
                let told = |side: &Side| {
                    let qp = side.engine.qp(side.qp.qp_num().value()).expect("it lives");
                    Iwarp::terminated(&qp)
                };
                for terminate in self.sides.iter().filter_map(told) {
                    let name = terminate.code().name();
                    assert_eq!(name, Some("MPA: wrong CRC"), "{what}");
                }
            }
        }
        if !ended {
            assert!(
                self.sent.iter().all(|(_, status)| status.is_success()),
                "{:?} {what}",
                self.sent
            );
        }
        self.check_results(from, shared);
        self.check_arrived(to, ended);
    }

    // Checks the results of all reads and atomics that succeeded.
    fn check_results(&self, from: &Side, shared: &[u8]) {
        let mut adds = 0;
        for (number, posted) in self.posted.iter().enumerate() {
            let found = from
                .memory
                .to_vec(number * SLOT, posted.octets.len())
                .expect("within the memory");
            let success = self.sent[number].1.is_success();
            match posted.kind {
                Kind::Read if success => {
                    assert_eq!(found, shared[..found.len()], "read {number}: {}", self.what)
                }
                Kind::FetchAdd => {
                    assert!(
                        !success || found == u64::to_ne_bytes(adds),
                        "add {number}: {}",
                        self.what
                    );
                    adds += 1;
                }
                _ => {}
            }
        }
    }

    // Checks that the messages and writes that arrived are a prefix of those that were sent.
    fn check_arrived(&self, to: &Side, ended: bool) {
        let what = &self.what;
        let arrived: Vec<_> = self
            .received
            .iter()
            .take_while(|(_, status, ..)| status.is_success())
            .collect();
        let rest = &self.received[arrived.len()..];
        assert!(
            rest.iter().all(|(_, status, ..)| !status.is_success()),
            "{:?} {what}",
            self.received
        );
        assert!(
            self.received
                .iter()
                .enumerate()
                .all(|(at, (id, ..))| *id == at as u64),
            "{what}"
        );
        assert!(
            !ended || self.received.len() == REQUESTS,
            "each receive completes: {what}"
        );
        let (mut messages, mut whole) = (0, true);
        for (number, posted) in self.posted.iter().enumerate() {
            let octets = &posted.octets;
            if matches!(posted.kind, Kind::Write | Kind::WriteWithImmediate) {
                let found = to
                    .memory
                    .to_vec(number * SLOT, SLOT)
                    .expect("within the memory");
                let places = found.iter().enumerate();
                let mut written = 0;
                for (at, octet) in places.filter(|(_, octet)| **octet != 0) {
                    assert_eq!(
                        Some(octet),
                        octets.get(at),
                        "write {number} is false at {at}: {what}"
                    );
                    written += 1;
                }
                assert!(
                    whole || written == 0,
                    "write {number} arrived and one before it did not: {what}"
                );
                whole &= written == octets.len();
            }
            if matches!(posted.kind, Kind::Send | Kind::WriteWithImmediate) {
                let Some((_, _, byte_len, immediate)) = arrived.get(messages) else {
                    whole = false;
                    continue;
                };
                assert!(
                    whole,
                    "message {number} arrived and one before it did not: {what}"
                );
                if posted.kind == Kind::Send {
                    assert_eq!(*byte_len as usize, octets.len());
                    let place = RECEIVES + messages * SLOT;
                    let found = to
                        .memory
                        .to_vec(place, octets.len())
                        .expect("within the memory");
                    assert_eq!(&found, octets, "message {number}: {what}");
                } else {
                    assert_eq!(*immediate, Some((number as u32).to_be_bytes()), "{what}");
                }
                messages += 1;
            }
        }
        assert_eq!(
            messages,
            arrived.len(),
            "a message that was not sent: {what}"
        );
        assert!(ended || whole, "a message never arrived: {what}");
    }
}

impl Side {
    fn new(network: &Arc<Network<Engine<Iwarp>>>, number: u64, service: ServiceDelay) -> Self {
        let driver = Iwarp::new(format!("iw{number}"), LinkAddress::InProcess(number))
            .service_delay(service);
        let engine = Engine::new(driver, network, DeviceOptions::default()).expect("a device");
        let device = Device::of(Arc::clone(&engine) as Arc<dyn verbs_api::provider::DeviceOps>);
        let context = device.open(&Requirements::new()).expect("the baseline");
        let pd = context.alloc_pd().wait().expect("a domain");
        let cq = context.create_cq(256).wait().expect("a queue");
        let qp = pd
            .create_qp(QpOptions::rc(&cq))
            .wait()
            .expect("a queue pair");
        let memory = Memory::zeroed(MEMORY).expect("memory");
        let mr = pd
            .register(&memory, PEERS | Access::LOCAL_WRITE)
            .wait()
            .expect("a region");
        Self {
            engine,
            cq,
            qp,
            memory,
            mr,
        }
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        self.mr
            .sge(offset, length as u32)
            .expect("within the memory")
    }

    fn post(&self, number: usize, to: &Self, rng: &mut SmallRng) -> Posted {
        let kinds = [
            Kind::Send,
            Kind::Write,
            Kind::WriteWithImmediate,
            Kind::Read,
            Kind::FetchAdd,
        ];
        let kind = kinds[rng.random_range(0..kinds.len())];
        let length = if kind == Kind::FetchAdd {
            8
        } else {
            rng.random_range(0..=SLOT)
        };
        let at = number * SLOT;
        // No byte is 0, so that unwritten bytes show.
        let octets: Vec<u8> = (0..length).map(|_| rng.random_range(1..=255)).collect();
        self.memory.write(at, &octets).expect("within the memory");
        let sge = self.sge(at, length);
        let (place, id) = (to.mr.remote(at as u64), number as u64);
        let immediate = (number as u32).to_be_bytes();
        let request: WorkRequest<'_> = match kind {
            Kind::Send => wr::Send::new(sge).signaled(id).into(),
            Kind::Write => wr::Write::new(sge, place).signaled(id).into(),
            Kind::WriteWithImmediate => wr::WriteWithImmediate::new(sge, place, immediate)
                .signaled(id)
                .into(),
            Kind::Read => wr::Read::new(sge, to.mr.remote(SHARED as u64))
                .signaled(id)
                .into(),
            Kind::FetchAdd => wr::FetchAdd::new(sge, to.mr.remote(COUNTER as u64), 1)
                .signaled(id)
                .into(),
        };
        self.qp.post_one(request).expect("room");
        Posted { kind, octets }
    }
}

fn completions(cq: &Cq) -> Vec<Completion> {
    let mut slots: [Completion; 256] = std::array::from_fn(|_| Completion::default());
    let count = cq.poll(&mut slots).expect("no overrun").len();
    slots.into_iter().take(count).collect()
}
