//! A device with a shared receive queue, and a process that sends it requests for a target. The process is a lease of the test,
//! so the test decides which requests it repeats, and when the process ends.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use polyverbs_engine::device::DeviceOptions;
use polyverbs_io::{GroupOptions, Lease, Mail, QpnRange};
use test_kit::waiting::{until, until_some};
use verbs_api::ids::Psn;
use verbs_api::provider::DeviceOps;
use verbs_api::qp::QpType;
use verbs_api::wr::ReceiveRequest;
use verbs_api::{Access, Completion, Cq, Memory, Mr, Requirements, SrqOptions, WcStatus};
use xrc::{OpenXrcd, Xrc, XrcSrq, Xrcd};

use super::message::{self, Code, Fails, Message, Outcome, Request};
use crate::header::{Body, Header, Nak, Position, SendExtra};
use crate::{InfiniBand, OnWire, WireOptions};

struct Lab {
    lease: Lease,
    _wire: OnWire,
    _domain: Xrcd,
    srq: XrcSrq,
    cq: Cq,
    _memory: Memory,
    mr: Mr,
    /// The identity of the domain's file.
    id: [u8; 16],
}

impl Lab {
    /// A queue whose receives have room for this number of bytes.
    fn new(port: u16, room: usize) -> Self {
        let address = SocketAddr::from(([127, 0, 7, 3], port));
        let lease = Lease::join(GroupOptions::new(address)).unwrap();
        let driver = |at| InfiniBand {
            name: "ib0".to_owned(),
            address: at,
            windows_2a: false,
            management: None,
            subnet: None,
        };
        let options = WireOptions::new(address);
        let wire = OnWire::new(driver, options, DeviceOptions::default()).unwrap();
        let device = wire.device.clone() as Arc<dyn DeviceOps>;
        let device = verbs_api::Device::of(device);
        let context = device
            .open(&Requirements::everything_of(&device.attributes()))
            .unwrap();
        let xrc: Xrc = context.extension().unwrap();
        let file = tempfile::tempfile().unwrap();
        let how = OpenXrcd::of(file.as_fd()).create();
        let domain = xrc.open(how).wait().unwrap();
        let (pd, cq) = (
            context.alloc_pd().wait().unwrap(),
            context.create_cq(16).wait().unwrap(),
        );
        let srq = domain.create_srq(&pd, SrqOptions::new(8), &cq);
        let memory = Memory::zeroed(room).unwrap();
        let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
        let metadata = file.metadata().unwrap();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&metadata.dev().to_be_bytes());
        id[8..].copy_from_slice(&metadata.ino().to_be_bytes());
        Self {
            lease,
            _wire: wire,
            _domain: domain,
            srq: srq.wait().unwrap(),
            cq,
            _memory: memory,
            mr,
            id,
        }
    }

    fn post(&self) {
        let receive = ReceiveRequest::new(1, self.mr.sge_all());
        self.srq.post_receive(receive).unwrap();
    }

    fn target(&self) -> u32 {
        self.lease.range().first() + 5
    }

    // Sends a part of a message as request `number`, in a message with the number `step`.
    fn send(&self, number: u64, step: u32, position: Position) {
        let request = Request {
            qpn: self.target(),
            peer_qpn: 9,
            srqn: self.srq.number(),
            generation: 1,
            number,
            step,
            access: 0,
            left: 0,
            domain: self.id,
            mtu_shift: 8,
        };
        let body = Body::Send(position, SendExtra::Nothing);
        let psn = Psn::new(number as u32);
        let header = Header {
            joined: true,
            mtu_shift: 8,
            ..Header::new(QpType::Rc, 9, self.target(), psn, body)
        };
        let payload = match position {
            Position::First => vec![0; 256],
            _ => vec![0; 8],
        };
        let message = request.encode(&header, &payload).unwrap();
        self.say(&message);
    }

    fn say(&self, message: &[u8]) {
        let to = QpnRange::of_qpn(self.srq.number());
        self.lease.send_message(to, message).unwrap();
    }

    fn outcome(&self, step: u32) -> (Code, Fails) {
        let outcome = until_some(|| {
            let mut outcome = None;
            let mut take = |mail: Mail<'_>| {
                if let Mail::Message(bytes) = mail
                    && let Some(Message::Outcome(one, _)) = message::read(bytes)
                {
                    outcome = Some(one);
                }
            };
            self.lease.attend(&mut take).unwrap();
            outcome
        });
        let Outcome {
            qpn,
            generation,
            step: found,
            code,
            fails,
        } = outcome;
        assert_eq!((qpn, generation, found), (self.target(), 1, step));
        (code, fails)
    }

    fn completions(&self) -> Vec<WcStatus> {
        let mut slots: [Completion; 8] = std::array::from_fn(|_| Completion::default());
        let found = self.cq.poll(&mut slots).unwrap();
        found.iter().map(|done| done.status).collect()
    }
}

const DONE: (Code, Fails) = (Code::Done, Fails::No);

#[test]
fn a_request_that_is_sent_twice_is_executed_once() {
    let lab = Lab::new(47_901, 64);
    lab.post();
    lab.post();
    for step in [1, 2] {
        lab.send(1, step, Position::Only);
        assert_eq!(lab.outcome(step), DONE);
    }
    assert_eq!(lab.completions(), [WcStatus::Success]);
    lab.send(2, 3, Position::Only);
    assert_eq!(lab.outcome(3), DONE);
    assert_eq!(lab.completions(), [WcStatus::Success]);
    // A request that found no receive is executed when it is sent again.
    lab.send(3, 4, Position::Only);
    assert_eq!(lab.outcome(4), (Code::Rnr, Fails::No));
    lab.post();
    lab.send(3, 5, Position::Only);
    assert_eq!(lab.outcome(5), DONE);
    assert_eq!(lab.completions(), [WcStatus::Success]);
}

#[test]
fn a_refused_request_that_is_sent_twice_takes_one_receive() {
    let lab = Lab::new(47_902, 64);
    lab.post();
    lab.post();
    // The message is longer than the receive.
    let refused = (Code::Nak(Nak::INVALID_REQUEST), Fails::Silently);
    for step in [1, 2] {
        lab.send(1, step, Position::First);
        assert_eq!(lab.outcome(step), refused);
    }
    assert_eq!(lab.completions(), [WcStatus::LocLenErr]);
    assert_eq!(lab.srq.query().unwrap().posted, Some(1));
}

#[test]
fn a_half_filled_receive_is_flushed_when_the_target_ends() {
    for is_killed in [false, true] {
        let mut lab = Lab::new(47_903, 1024);
        lab.post();
        lab.send(1, 1, Position::First);
        assert_eq!(lab.outcome(1), DONE);
        assert_eq!(lab.completions(), []);
        if is_killed {
            let other = Lease::join(GroupOptions::new(lab.lease.address())).unwrap();
            lab.lease = other;
        } else {
            lab.say(&message::end(lab.target(), 1));
        }
        let mut found = Vec::new();
        until(|| {
            found.extend(lab.completions());
            !found.is_empty()
        });
        assert_eq!(found, [WcStatus::WrFlushErr]);
    }
}
