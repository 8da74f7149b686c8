//! An InfiniBand peer that sends packets that a fuzzer makes up, with correct checksums, to a working queue pair.
//!
//! A device has a queue pair connected to the peer and another one connected to an honest neighbour. Whatever arrives,
//! nothing panics, memory for which the peer has no key stays unchanged, every request completes once, and the neighbour is
//! served.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bmme as _;
use masked_atomics as _;

use emulated_ib::header::Header;
use emulated_ib::{InfiniBand, RoceV2};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame, SharedLink};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use polyverbs_io::sim::Simulation;
use polyverbs_io::{Arrival, DatagramCodec, Envelope, through_datagrams};
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::*;
use verbs_api::{
    capability::Mtu,
    ids::{LinkAddress, Psn, Qpn},
};

use crate::at_work::{self, AtWork, Peer};
use crate::program::{Program, RIGHTS};
use crate::script::Script;

thread_local! {
    /// A device takes longer to make than to disturb, so an unharmed one is used again, in virtual time that continues.
    /// There is one for each queue pair type.
    static KEPT: RefCell<[Option<Rig>; 2]> = const { RefCell::new([None, None]) };
}

/// Runs a peer and the program that it is connected to, both by the script of a fuzzer.
pub fn run(octets: &[u8]) {
    let mut script = Script::new(octets);
    let qp_type = match script.octet() {
        octet if octet & 3 == 3 => QpType::Uc,
        _ => QpType::Rc,
    };
    let which = usize::from(qp_type == QpType::Uc);
    let kept = KEPT.with_borrow_mut(|kept| kept[which].take());
    let mut rig = kept.unwrap_or_else(|| Rig::new(qp_type));
    at_work::run(&mut rig, &mut script);
    KEPT.with_borrow_mut(|kept| kept[which] = Some(rig));
}

struct Rig {
    at_work: AtWork<InfiniBand>,
    codec: RoceV2,
    /// The path to the neighbour.
    path: AddressVector,
}

impl Peer for Rig {
    type Driver = InfiniBand;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn at_work(&mut self) -> &mut AtWork<InfiniBand> {
        &mut self.at_work
    }

    fn say(&mut self, script: &mut Script<'_>) {
        self.packet(script);
    }

    fn own(&self) -> Option<&Qp> {
        None
    }

    fn connect(&mut self) {
        let path = AddressVector {
            address: PEER,
            ..self.path
        };
        connect(&self.at_work.qp, path, Qpn::new(PEER_QPN));
    }
}

impl Rig {
    fn new(qp_type: QpType) -> Self {
        let simulation = Simulation::new();
        let wire = Arc::new(Wire::default()) as SharedLink<Header>;
        let through = through_datagrams(wire, RoceV2::new(), PORT, None);
        let network = simulation.network::<InfiniBand>(Some(through));
        let program = |number| {
            let driver = InfiniBand {
                name: format!("ib{number}"),
                address: LinkAddress::InProcess(number),
                windows_2a: false,
                management: None,
                subnet: None,
            };
            let engine = Engine::new(driver, &network, DeviceOptions::default());
            Program::new(engine.expect("a device") as Arc<dyn DeviceOps>)
        };
        let (victim, honest) = (program(1), program(2));
        let neighbours = [&victim, &honest].map(|program| make_qp(program, QpType::Rc));
        let path = path_to(&honest);
        let [one, other] = &neighbours;
        connect(one, path, other.qp_num());
        connect(other, path_to(&victim), one.qp_num());
        let mut rig = Self {
            at_work: AtWork {
                qp: make_qp(&victim, qp_type),
                simulation,
                network,
                victim,
                honest,
                neighbours,
            },
            codec: RoceV2::new(),
            path,
        };
        rig.connect();
        rig
    }

    // Sends a packet of the peer: its headers come from the script, and are made valid where the script says so.
    fn packet(&mut self, script: &mut Script<'_>) {
        let how = script.octet();
        let opcode = script.octet();
        let psn = FIRST_PSN.wrapping_add(i32::from(script.octet() as i8) as u32) & 0xff_ffff;
        let ack_req = script.octet() & 0x80;
        let mut headers = script.octets(usize::from(how & 31)).to_vec();
        if how & 32 != 0 && headers.len() >= 12 {
            let place = u64::from(script.octet()) << 4;
            let base = self.at_work.victim.mr.remote(0);
            headers[..8].copy_from_slice(&(base.addr + place).to_be_bytes());
            headers[8..12].copy_from_slice(&base.rkey.value().to_be_bytes());
            // The length is so short that the packets can reach its end.
            if let Some(length) = headers.get_mut(12..14) {
                length.fill(0);
            }
        }
        let filled = match (how & 64 != 0, script.octet()) {
            (true, _) => MTU,
            (false, octet) => usize::from(octet),
        };
        let pad = (4 - (headers.len() + filled) % 4) % 4;
        let mut datagram = vec![0; 12];
        datagram[0] = opcode;
        datagram[1] = 0x40 | (pad as u8) << 4 | (ack_req >> 7) << 7;
        datagram[2..4].fill(0xff);
        let qpn = if how & 128 != 0 && script.octet() & 1 != 0 {
            self.at_work.neighbours[0].qp_num()
        } else {
            self.at_work.qp.qp_num()
        };
        datagram[4..8].copy_from_slice(&qpn.value().to_be_bytes());
        datagram[8..12].copy_from_slice(&psn.to_be_bytes());
        datagram[8] = ack_req;
        datagram.extend(headers);
        datagram.resize(datagram.len() + filled, FROM_PEER);
        let end = datagram.len();
        datagram.resize(end + pad + 4, 0);
        self.deliver(end, &mut datagram);
    }

    fn deliver(&self, end: usize, datagram: &mut [u8]) {
        let at = |host| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)), PORT);
        let (from, to) = (at(3), at(1));
        let envelope = Envelope {
            from,
            to,
            identification: 0,
        };
        self.codec.seal(&envelope, end, datagram);
        let arrival = Arrival {
            from,
            to,
            traffic_class: 3,
            segment: 0,
        };
        let Some(opened) = self.codec.open(&arrival, datagram) else {
            return;
        };
        assert!(!opened.damaged);
        let payload = match opened.payload {
            [] => Payload::Empty,
            octets => Payload::Bytes(octets),
        };
        let frame = Frame {
            from: PEER,
            to: VICTIM,
            header: opened.header,
            payload,
            damaged: false,
        };
        self.at_work.deliver(frame);
    }
}

fn path_to(program: &Program) -> AddressVector {
    let port = program.context.query_port(1).expect("port 1");
    AddressVector::new(port.address, port.gids[0].gid, 1)
}

fn make_qp(program: &Program, qp_type: QpType) -> Qp {
    program.qp(match qp_type {
        QpType::Uc => QpOptions::uc(&program.cq),
        _ => QpOptions::rc(&program.cq)
            .operations(Operations::SEND_WITH_INV | Operations::ATOMIC_WRITE | Operations::FLUSH),
    })
}

fn connect(qp: &Qp, path: AddressVector, peer: Qpn) {
    let is_reliable = qp.qp_type() == QpType::Rc;
    let init = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1)
        .qp_access_flags(if is_reliable {
            RIGHTS
        } else {
            Access::REMOTE_WRITE
        });
    let mut rtr = QpAttributes::new()
        .qp_state(QpState::Rtr)
        .ah_attr(path)
        .path_mtu(Mtu::Mtu256)
        .dest_qp_num(peer)
        .rq_psn(Psn::new(FIRST_PSN));
    let mut rts = QpAttributes::new()
        .qp_state(QpState::Rts)
        .sq_psn(Psn::new(FIRST_PSN));
    if is_reliable {
        rtr = rtr.max_dest_rd_atomic(4).min_rnr_timer(1);
        rts = rts.timeout(8).retry_cnt(3).rnr_retry(3).max_rd_atomic(4);
    }
    for step in [init, rtr, rts] {
        qp.modify(step).wait().expect("a legal step");
    }
}

/// A link without delay; frames to the peer are dropped.
#[derive(Default)]
struct Wire {
    under_way: Mutex<VecDeque<OwnedFrame<Header>>>,
}

impl Wire {
    fn next(&self) -> Option<OwnedFrame<Header>> {
        let mut under_way = self.under_way.lock();
        under_way.pop_front()
    }
}

impl Link<Header> for Wire {
    fn max_frame(&self) -> Option<usize> {
        Some(4096)
    }

    fn send(&self, frame: Frame<'_, Header>, _: Time) {
        if frame.to != PEER {
            let mut under_way = self.under_way.lock();
            under_way.push_back(frame.to_owned());
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let mut any = false;
        while let Some(frame) = self.next() {
            network.deliver(frame.as_frame(), now);
            any = true;
        }
        any
    }

    fn next_due(&self) -> Option<Time> {
        let under_way = self.under_way.lock();
        (!under_way.is_empty()).then_some(Time(0))
    }
}

const PORT: u16 = 4791;
const VICTIM: LinkAddress = LinkAddress::InProcess(1);
const PEER: LinkAddress = LinkAddress::InProcess(3);
const PEER_QPN: u32 = 0x77;
const FIRST_PSN: u32 = 0xff_fff0;
const MTU: usize = 256;
const FROM_PEER: u8 = 0xc3;
