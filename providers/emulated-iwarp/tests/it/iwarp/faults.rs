//! One device whose queue pairs reach each other over a stream with random faults.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use emulated_iwarp::header::{Header, reset_header, stream_key};
use emulated_iwarp::{Iwarp, ServiceDelay};
use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_io::emulated::{EmulatedKind, EmulatedOptions};
use polyverbs_io::sim::{FaultSpec, Simulation, StreamLink};
use verbs_api::provider::DeviceOps;
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Cq, Memory, Qp, QpOptions, Requirements, Transport, WcStatus, connect_pair,
    ids::LinkAddress,
    wr::{self, ReceiveRequest},
};

use crate::iwarp::lab::poll;

const MESSAGES: u64 = 30;
const LENGTH: u32 = 100;

struct Run {
    sent: Vec<(u64, WcStatus)>,
    received: Vec<(u64, WcStatus)>,
    inbox: Vec<u8>,
    terminates: Vec<(u8, u8, u8)>,
    states: (QpState, QpState),
}

fn pair(context: &verbs_api::Context) -> ([Qp; 2], [Cq; 2], Memory, verbs_api::Mr) {
    let pd = context.alloc_pd().wait().unwrap();
    let cqs = [(); 2].map(|()| context.create_cq(256).wait().unwrap());
    let qps = [0, 1].map(|side| pd.create_qp(QpOptions::rc(&cqs[side])).wait().unwrap());
    connect_pair(
        &qps[0],
        &qps[1],
        Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    )
    .wait()
    .unwrap();
    let memory = Memory::zeroed(65536).unwrap();
    let access =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mr = pd.register(&memory, access).wait().unwrap();
    (qps, cqs, memory, mr)
}

// Sends numbered messages with reads and atomics between them over a stream with these faults.
fn run(spec: &str, seed: u64) -> Run {
    let spec: FaultSpec = spec.parse().unwrap();
    let faults = FaultSpec { seed, ..spec };
    let link: SharedLink<Header> = Arc::new(StreamLink::new(
        NonZeroUsize::new(64),
        faults,
        stream_key,
        Some(reset_header),
    ));
    let simulation = Simulation::new();
    let network = simulation.network::<Iwarp>(Some(link));
    let service = ServiceDelay {
        max: Duration::from_micros(30),
        seed,
    };
    let driver = Iwarp::new("iw0", LinkAddress::InProcess(1)).service_delay(service);
    let device = Device::new(driver, &network, DeviceOptions::default()).unwrap();
    let context = verbs_api::Device::of(Arc::clone(&device) as Arc<dyn DeviceOps>)
        .open(&Requirements::new())
        .unwrap();
    let ([a, b], [at_a, at_b], memory, mr) = pair(&context);
    let size = LENGTH as usize;
    for number in 0..MESSAGES {
        let sge = mr.sge(16384 + number as usize * size, LENGTH).unwrap();
        b.post_receive(ReceiveRequest::new(number, sge)).unwrap();
    }
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for number in 0..MESSAGES {
        memory
            .write(number as usize * size, &[number as u8 + 1; LENGTH as usize])
            .unwrap();
        let outbox = mr.sge(number as usize * size, LENGTH).unwrap();
        let _ = match number % 3 {
            0 => a.post_one(wr::Send::new(outbox).signaled(number)),
            1 => a.post_one(
                wr::Read::new(mr.sge(32768, 200).unwrap(), mr.remote(40000)).signaled(number),
            ),
            _ => a.post_one(
                wr::FetchAdd::new(mr.sge(33000, 8).unwrap(), mr.remote(49152), 1).signaled(number),
            ),
        };
        simulation.run_for(Duration::from_micros(20)).unwrap();
        sent.extend(poll(&at_a).iter().map(|seen| (seen.wr_id, seen.status)));
    }
    simulation.run_until_idle().unwrap();
    sent.extend(poll(&at_a).iter().map(|seen| (seen.wr_id, seen.status)));
    received.extend(poll(&at_b).iter().map(|seen| (seen.wr_id, seen.status)));
    let said = |qp: &Qp| Iwarp::terminated(&device.qp(qp.qp_num().value()).unwrap());
    let terminates = [said(&a), said(&b)].into_iter().flatten();
    Run {
        sent,
        received,
        inbox: memory.to_vec(16384, MESSAGES as usize * size).unwrap(),
        terminates: terminates
            .map(|it| (it.control.layer, it.control.etype, it.control.code))
            .collect(),
        states: (a.query().unwrap().state, b.query().unwrap().state),
    }
}

impl Run {
    // Checks that each request and each receive completed once and in order, and that the messages that arrived are a prefix of
    // those that were sent, unchanged.
    fn check(&self, what: &str) -> usize {
        let numbers =
            |done: &[(u64, WcStatus)]| done.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>();
        assert_eq!(
            numbers(&self.sent),
            (0..MESSAGES).collect::<Vec<_>>(),
            "{what}"
        );
        let arrived = self
            .received
            .iter()
            .take_while(|(_, status)| status.is_success())
            .count();
        assert!(
            self.received[arrived..]
                .iter()
                .all(|(_, status)| *status == WcStatus::WrFlushErr),
            "{what}"
        );
        for number in 0..arrived {
            let message = &self.inbox[number * LENGTH as usize..][..LENGTH as usize];
            assert!(
                message.iter().all(|octet| *octet == number as u8 * 3 + 1),
                "{what}: message {number}"
            );
        }
        let failed = self
            .sent
            .iter()
            .position(|(_, status)| !status.is_success());
        let flushed = &self.sent[failed.unwrap_or(self.sent.len())..];
        let alive = |status: &WcStatus| status.is_success();
        // Sends that were complete before the end keep their status.
        assert!(
            flushed
                .iter()
                .all(|(wr_id, status)| !alive(status) || wr_id % 3 == 0),
            "{what}: {:?}",
            self.sent
        );
        arrived
    }
}

#[test]
fn delays_chunking_and_stalls_do_not_change_the_outcome() {
    for seed in 0..20 {
        let run = run("delay=1us..90us,chunk=1..40,stall=5%:200us", seed);
        assert_eq!(run.check(&format!("seed {seed}")), MESSAGES as usize / 3);
        assert!(
            run.sent.iter().all(|(_, status)| status.is_success()),
            "seed {seed}"
        );
        assert_eq!(
            (run.states, run.terminates),
            ((QpState::Rts, QpState::Rts), vec![])
        );
    }
}

#[test]
fn after_a_reset_a_prefix_arrived_and_all_completed_once() {
    for after in 1..60 {
        let what = format!("reset after {after} frames");
        let run = run(&format!("delay=1us..30us,reset-after={after}"), after);
        run.check(&what);
        assert_eq!(
            (run.states, run.terminates),
            ((QpState::Err, QpState::Err), vec![]),
            "{what}"
        );
    }
}

#[test]
fn a_flipped_bit_ends_the_stream_with_a_terminate() {
    let mut ended = 0;
    for seed in 0..40 {
        let run = run("delay=1us..30us,flip=2%", seed);
        run.check(&format!("seed {seed}"));
        if run.states != (QpState::Rts, QpState::Rts) {
            ended += 1;
            assert_eq!(run.states, (QpState::Err, QpState::Err), "seed {seed}");
            assert!(
                run.terminates.iter().all(|code| *code == (2, 0, 2)),
                "seed {seed}: {:?}",
                run.terminates
            );
        } else {
            assert_eq!(run.terminates, []);
        }
    }
    assert!(ended > 10);
}

#[test]
fn the_registered_device_reaches_itself_with_and_without_link() {
    let kind = &emulated_iwarp::PROVIDER.0;
    for (framed, faults) in [
        (false, ""),
        (true, ""),
        (true, "delay=10us..50us,chunk=100"),
    ] {
        let options = EmulatedOptions {
            framed,
            faults: faults.parse().unwrap(),
            ..EmulatedOptions::default()
        };
        let device = verbs_api::Device::of(kind.make(&options).unwrap());
        assert_eq!(
            (device.name(), device.attributes().transport),
            ("iw0", Transport::Iwarp)
        );
        let context = device.open(&Requirements::new()).unwrap();
        let ([a, b], [at_a, at_b], memory, mr) = pair(&context);
        memory.write(0, b"to myself").unwrap();
        b.post_receive(ReceiveRequest::new(1, mr.sge(100, 9).unwrap()))
            .unwrap();
        a.post_one(wr::Send::new(mr.sge(0, 9).unwrap()).signaled(2))
            .unwrap();
        a.post_one(wr::Read::new(mr.sge(200, 9).unwrap(), mr.remote(0)).signaled(3))
            .unwrap();
        let done = [&at_b, &at_a, &at_a].map(|cq| cq.next().wait().unwrap().status);
        assert_eq!(done, [WcStatus::Success; 3]);
        assert_eq!(
            (memory.to_vec(100, 9), memory.to_vec(200, 9)),
            (Ok(b"to myself".to_vec()), Ok(b"to myself".to_vec()))
        );
    }
    let foreign = EmulatedOptions {
        faults: "drop=1%".parse().unwrap(),
        ..EmulatedOptions::default()
    };
    assert!(
        kind.make(&foreign).is_err(),
        "a stream cannot have the fault of loss"
    );
}
