//! Our side: a device on an IP network, a queue pair and memory.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
// Linked: what devices have with base memory management.
use bmme as _;
use emulated_ib::{InfiniBand, OnWire, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_links::wire::{OctetCapture, OctetTap};
use verbs_api::provider::DeviceOps;
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::{
    Access, Completion, Context, Cq, Device, Gid, LinkAddress, Memory, Mr, Mtu, Pd, Psn, Qp,
    QpOptions, Qpn, ReceiveRequest, RemoteAddress, Requirements, Sge, UdDestination, WcStatus,
    WorkRequest,
};

use crate::theirs::{Card, pattern};

/// Octets of memory.
pub(crate) const MEMORY: usize = 4 << 20;
/// The key of datagrams.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// First sequence number: the end of the numbers is near.
const PSN: u32 = 0xff_fff0;
/// What a link of 1,500 octets carries.
pub(crate) const MTU: Mtu = Mtu::Mtu1024;
/// How long a completion may take.
const PATIENCE: Duration = Duration::from_secs(20);

const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A device, and what its context gave.
pub(crate) struct Host {
    context: Context,
    capture: Option<Arc<OctetCapture>>,
    pd: Pd,
    _wire: OnWire,
}

/// A queue pair and its memory.
pub(crate) struct Ours {
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
    pd: Pd,
    gid: Gid,
}

impl Host {
    /// At this address; what it sends and receives is captured in a file.
    pub(crate) fn new(address: IpAddr, capture: Option<&Path>) -> anyhow::Result<Self> {
        let at = SocketAddr::new(address, polyverbs_links::wire::GroupOptions::PORT);
        let driver = |link: LinkAddress| InfiniBand {
            name: format!("ib at {address}"),
            address: link,
            windows_2a: false,
            management: None,
        };
        let mut options = WireOptions::new(at);
        let capture = match capture {
            Some(path) => Some(Arc::new(OctetCapture::new(File::create(path)?)?)),
            None => None,
        };
        options.link.tap = capture.clone().map(|tap| tap as Arc<dyn OctetTap>);
        let wire = OnWire::new(driver, options, DeviceOptions::default())?;
        let device = Device::of(Arc::clone(&wire.device) as Arc<dyn DeviceOps>);
        let context = device.open(&Requirements::everything_of(&device.attributes()))?;
        let pd = context.alloc_pd().wait()?;
        Ok(Self {
            context,
            capture,
            pd,
            _wire: wire,
        })
    }

    /// Has everything written that was captured.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        Ok(self.capture.as_ref().map_or(Ok(()), |tap| tap.flush())?)
    }

    /// A queue pair in INIT.
    pub(crate) fn make(&self, qp_type: QpType) -> anyhow::Result<Ours> {
        let cq = self.context.create_cq(1024).wait()?;
        let options = match qp_type {
            QpType::Ud => QpOptions::ud(&cq),
            _ => QpOptions::rc(&cq),
        };
        let options = options.max_send_wr(128).max_recv_wr(512);
        let qp = self.pd.create_qp(options).wait()?;
        let memory = Memory::zeroed(MEMORY).context("memory")?;
        let mr = self.pd.register(&memory, RIGHTS).wait()?;
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(0)
            .port_num(1);
        let init = match qp_type {
            QpType::Ud => init.qkey(QKEY),
            _ => init.qp_access_flags(RIGHTS - Access::LOCAL_WRITE),
        };
        qp.modify(init).wait()?;
        let port = self.context.query_port(1)?;
        Ok(Ours {
            cq,
            qp,
            memory,
            mr,
            pd: self.pd.clone(),
            gid: port.gids[0],
        })
    }
}

impl Ours {
    /// What the peer is told of it.
    pub(crate) fn card(&self) -> Card {
        let remote = self.mr.remote(0);
        Card {
            qpn: self.qp.qp_num().value(),
            psn: PSN,
            gid: self.gid,
            address: remote.addr,
            rkey: remote.rkey.value(),
        }
    }

    /// Connects with that one.
    pub(crate) fn connect(&self, peer: &Card) -> anyhow::Result<()> {
        let path = path_to(peer.gid)?;
        let reliable = self.qp.qp_type() == QpType::Rc;
        let mut rtr = QpAttributes::new().qp_state(QpState::Rtr);
        let mut rts = QpAttributes::new()
            .qp_state(QpState::Rts)
            .sq_psn(Psn::new(PSN));
        if reliable {
            rtr = rtr
                .ah_attr(path)
                .path_mtu(MTU)
                .dest_qp_num(Qpn::new(peer.qpn))
                .rq_psn(Psn::new(peer.psn))
                .max_dest_rd_atomic(16)
                .min_rnr_timer(12);
            rts = rts.timeout(16).retry_cnt(7).rnr_retry(7).max_rd_atomic(16);
        }
        self.qp.modify(rtr).wait()?;
        self.qp.modify(rts).wait()?;
        Ok(())
    }

    /// The way of datagrams to that one.
    pub(crate) fn way_to(&self, peer: &Card) -> anyhow::Result<UdDestination> {
        Ok(UdDestination {
            ah: self.pd.create_ah(path_to(peer.gid)?).wait()?,
            remote_qpn: Qpn::new(peer.qpn),
            remote_qkey: QKEY,
        })
    }

    pub(crate) fn sge(&self, at: usize, length: usize) -> anyhow::Result<Sge> {
        self.mr.sge(at, length as u32).context("outside the memory")
    }

    pub(crate) fn fill(&self, at: usize, length: usize, seed: u8) -> anyhow::Result<()> {
        Ok(self.memory.write(at, &pattern(length, seed))?)
    }

    pub(crate) fn check(&self, at: usize, length: usize, seed: u8) -> anyhow::Result<()> {
        let found = self.memory.to_vec(at, length)?;
        let differs = found
            .iter()
            .zip(pattern(length, seed))
            .position(|(found, expected)| *found != expected);
        match differs {
            None => Ok(()),
            Some(at) => bail!("ours differs at {at}"),
        }
    }

    pub(crate) fn receive(&self, at: usize, length: usize) -> anyhow::Result<()> {
        let request = ReceiveRequest::new(at as u64, self.sge(at, length)?);
        Ok(self.qp.post_receive(request)?)
    }

    /// The next completion, whatever it says.
    pub(crate) fn next(&self) -> anyhow::Result<Completion> {
        let began = Instant::now();
        loop {
            let mut slot = [Completion::default()];
            if !self.cq.poll(&mut slot)?.is_empty() {
                let [done] = slot;
                return Ok(done);
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "no completion within {PATIENCE:?}; {:?}",
                self.qp.counters()
            );
            // Few processors, and the kernel's device needs one as well.
            std::thread::yield_now();
        }
    }

    /// The next completion, that succeeds.
    pub(crate) fn completes(&self) -> anyhow::Result<Completion> {
        let done = self.next()?;
        ensure!(
            done.status == WcStatus::Success,
            "{:?}; {:?}",
            done.status,
            self.qp.counters()
        );
        Ok(done)
    }

    /// Posts a request, and sees it succeed.
    pub(crate) fn succeeds<'a>(
        &self,
        request: impl Into<WorkRequest<'a>>,
    ) -> anyhow::Result<Completion> {
        let posted = self.qp.post_one(request.into());
        posted.map_err(|error| anyhow::anyhow!("{:?}", error.reason))?;
        self.completes()
    }
}

fn path_to(gid: Gid) -> anyhow::Result<AddressVector> {
    let [.., a, b, c, d] = gid.0;
    ensure!(
        gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
        "{gid} is none of IPv4"
    );
    let address = IpAddr::from([a, b, c, d]);
    Ok(AddressVector::new(LinkAddress::Ip(address), gid, 1))
}

/// Memory of the peer, from its beginning on.
pub(crate) fn remote(card: &Card, at: usize) -> RemoteAddress {
    RemoteAddress::new(card.address + at as u64, verbs_api::RKey::new(card.rkey))
}
