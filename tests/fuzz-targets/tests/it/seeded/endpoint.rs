//! Two InfiniBand devices on a faulty link, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use emulated_ib::header::Header;
use emulated_ib::{InfiniBand, RoceV2};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Network;
use polyverbs_io::sim::{Between, DatagramLink, FaultSpec, Rate, Simulation};
use polyverbs_io::through_datagrams;
use rand::Rng;
use rand::rngs::SmallRng;
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::*;
use verbs_api::{
    capability::Mtu,
    ids::{LinkAddress, Psn},
};

/// Bytes of each side's memory.
pub(crate) const MEMORY: usize = 1 << 18;

/// One side of a pair.
pub(crate) struct Endpoint {
    /// Its open device.
    pub(crate) context: Context,
    /// Its domain.
    pub(crate) pd: Pd,
    /// Its queue of completions.
    pub(crate) cq: Cq,
    /// Its queue pair.
    pub(crate) qp: Qp,
    /// Its memory.
    pub(crate) memory: Memory,
    /// Its memory, with every right.
    pub(crate) mr: Mr,
    /// Its address.
    pub(crate) address: LinkAddress,
    // Keeps the device alive as long as the rest.
    _engine: Arc<Engine<InfiniBand>>,
}

/// Both sides and the link between them.
pub(crate) struct Pair {
    /// The simulation that drives both sides.
    pub(crate) simulation: Simulation,
    /// The link that joins both sides.
    pub(crate) link: Arc<DatagramLink<Header>>,
    /// The two sides.
    pub(crate) ends: [Endpoint; 2],
    /// The choices of the seed.
    pub(crate) chosen: Chosen,
}

/// The choices of the seed about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// The queue pair type.
    pub(crate) qp_type: QpType,
    /// The largest frame of the link.
    pub(crate) mtu: Option<Mtu>,
    /// The faults of the link.
    pub(crate) faults: FaultSpec,
    /// The code of the acknowledge timeout.
    pub(crate) timeout: u8,
    /// The most outstanding reads.
    pub(crate) depth: u8,
    /// The first PSNs.
    pub(crate) psns: [u32; 2],
    /// Whether there is no link at all.
    pub(crate) direct: bool,
}

impl Chosen {
    /// Chooses at random.
    pub(crate) fn new(qp_type: QpType, rng: &mut SmallRng) -> Self {
        let mtu = Mtu::from_code(rng.random_range(0..=5));
        let mut rate = |most: u32| {
            let heavy = rng.random_bool(0.5);
            let millionths = if heavy { rng.random_range(0..=most) } else { 0 };
            Rate::of_millionths(millionths)
        };
        // Losses are so rare that eight tries in a row are never lost, on the type that
        // retransmits.
        let (drop, corrupt) = if qp_type == QpType::Rc {
            (10_000, 10_000)
        } else {
            (200_000, 200_000)
        };
        let faults = FaultSpec {
            drop: rate(drop),
            corrupt: rate(corrupt),
            duplicate: rate(200_000),
            reorder: rate(200_000),
            ..FaultSpec::default()
        };
        let near_the_end = rng.random_bool(0.3);
        let mut psn = || {
            if near_the_end {
                0xff_ffff - rng.random_range(0..200)
            } else {
                rng.random_range(0..0x100_0000)
            }
        };
        let psns = [psn(), psn()];
        let (timeout, depth) = (rng.random_range(8..=11), rng.random_range(1..=8));
        Self {
            qp_type,
            mtu,
            faults,
            timeout,
            depth,
            psns,
            direct: false,
        }
    }

    /// The acknowledge timeout.
    pub(crate) fn ack_timeout(&self) -> Duration {
        Duration::from_nanos(4096 << self.timeout)
    }
}

impl Pair {
    /// Makes and connects an idle pair. With every second seed, frames are encoded as bytes on the link if it cuts messages into
    /// packets.
    pub(crate) fn new(chosen: Chosen, seed: u64, rng: &mut SmallRng) -> Self {
        let delay = Duration::from_micros(rng.random_range(0..150));
        let faults = FaultSpec {
            delay: Between::new(delay / 4, delay),
            seed,
            ..chosen.faults
        };
        let link = Arc::new(DatagramLink::new(chosen.mtu, faults));
        let simulation = Simulation::new();
        let mut framed = Arc::clone(&link) as SharedLink<Header>;
        if seed.is_multiple_of(2) && chosen.mtu.is_some() {
            framed = through_datagrams(framed, RoceV2::new(), 4791, None);
        }
        let network = simulation.network::<InfiniBand>((!chosen.direct).then_some(framed));
        let ends = [1, 2].map(|number| Endpoint::new(&network, number, &chosen));
        ends[0].connect(&ends[1], &chosen, 0);
        ends[1].connect(&ends[0], &chosen, 1);
        Self {
            simulation,
            link,
            ends,
            chosen,
        }
    }

    /// Lets some time pass.
    pub(crate) fn run_for(&self, time: Duration) {
        self.simulation
            .run_for(time)
            .expect("a network that is woken");
    }
}

impl Endpoint {
    fn new(network: &Arc<Network<Engine<InfiniBand>>>, number: u64, chosen: &Chosen) -> Self {
        let address = LinkAddress::InProcess(number);
        let driver = InfiniBand {
            name: format!("ib{number}"),
            address,
            windows_2a: false,
            management: None,
            subnet: None,
        };
        let engine = Engine::new(driver, network, DeviceOptions::default()).expect("a device");
        let device = Device::of(Arc::clone(&engine) as Arc<dyn verbs_api::provider::DeviceOps>);
        let context = device
            .open(&Requirements::everything_of(&device.attributes()))
            .expect("all that it has");
        let pd = context.alloc_pd().wait().expect("a domain");
        let cq = context.create_cq(4096).wait().expect("a queue");
        let options = match chosen.qp_type {
            QpType::Uc => QpOptions::uc(&cq),
            QpType::Ud => QpOptions::ud(&cq),
            _ => QpOptions::rc(&cq).operations(
                Operations::SEND_WITH_INV
                    | Operations::FAST_REGISTER
                    | Operations::LOCAL_INV
                    | Operations::ATOMIC_WRITE,
            ),
        };
        let qp = pd
            .create_qp(options.max_send_wr(256).max_recv_wr(256).max_recv_sge(2))
            .wait()
            .expect("a queue pair");
        let memory = Memory::zeroed(MEMORY).expect("memory");
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.register(&memory, rights).wait().expect("a region");
        Self {
            context,
            pd,
            cq,
            qp,
            memory,
            mr,
            address,
            _engine: engine,
        }
    }

    fn connect(&self, peer: &Self, chosen: &Chosen, side: usize) {
        let steps = match chosen.qp_type {
            QpType::Ud => vec![
                QpAttributes::new()
                    .qp_state(QpState::Init)
                    .pkey_index(0)
                    .port_num(1)
                    .qkey(7),
                QpAttributes::new().qp_state(QpState::Rtr),
                QpAttributes::new()
                    .qp_state(QpState::Rts)
                    .sq_psn(Psn::new(chosen.psns[side])),
            ],
            _ => self.connected(peer, chosen, side),
        };
        for step in steps {
            self.qp.modify(step).wait().expect("a legal step");
        }
    }

    fn connected(&self, peer: &Self, chosen: &Chosen, side: usize) -> Vec<QpAttributes> {
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(0)
            .port_num(1)
            .qp_access_flags(rights);
        let mut rtr = QpAttributes::new()
            .qp_state(QpState::Rtr)
            .ah_attr(peer.path())
            .path_mtu(chosen.mtu.unwrap_or_default())
            .dest_qp_num(peer.qp.qp_num())
            .rq_psn(Psn::new(chosen.psns[1 - side]));
        let mut rts = QpAttributes::new()
            .qp_state(QpState::Rts)
            .sq_psn(Psn::new(chosen.psns[side]));
        if chosen.qp_type == QpType::Rc {
            rtr = rtr.max_dest_rd_atomic(chosen.depth).min_rnr_timer(5);
            rts = rts
                .timeout(chosen.timeout)
                .retry_cnt(7)
                .rnr_retry(7)
                .max_rd_atomic(chosen.depth);
        }
        vec![init, rtr, rts]
    }

    /// The path to this side.
    pub(crate) fn path(&self) -> AddressVector {
        let port = self.context.query_port(1).expect("port 1");
        AddressVector::new(port.address, port.gids[0].gid, 1)
    }

    /// The scatter/gather entry of a range of its memory.
    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        self.mr
            .sge(offset, length as u32)
            .expect("within the memory")
    }

    /// The remote address by which a peer accesses its memory at `offset`.
    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        self.mr.remote(offset as u64)
    }

    /// The content of a range of its memory.
    pub(crate) fn octets(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory
            .to_vec(offset, length)
            .expect("within the memory")
    }

    /// Writes bytes into its memory.
    pub(crate) fn put(&self, offset: usize, octets: &[u8]) {
        self.memory
            .write(offset, octets)
            .expect("within the memory");
    }

    /// Every completion that is in the queue.
    pub(crate) fn completions(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let mut slots: [Completion; 16] = Default::default();
            let count = self.cq.poll(&mut slots).expect("no overrun").len();
            all.extend(slots.into_iter().take(count));
            if count == 0 {
                return all;
            }
        }
    }
}
