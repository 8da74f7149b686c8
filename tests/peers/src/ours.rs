//! Our side: a device on an IP network, a queue pair and memory.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use polyverbs::connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming, Listener,
};
use polyverbs::emulated::{self, EmulatedOptions, OctetCapture, Tap};
use polyverbs::qp::{AddressVector, PathOptions, QpAttributes, QpState, QpType};
use polyverbs::{
    Access, Completion, Context, Cq, Memory, Mr, Pd, Qp, QpOptions, RKey, RemoteAddress,
    Requirements, Sge, Started, Transport, WcStatus,
    capability::Mtu,
    extensions::bmme::Bmme,
    ids::{Gid, LinkAddress, Psn, Qpn},
    wr::{ReceiveRequest, UdDestination, WorkRequest},
};

use crate::theirs::{Card, pattern};

/// Bytes of memory.
pub(crate) const MEMORY: usize = 4 << 20;
/// The Q_Key of datagrams.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// The first PSN: so close to the end that it wraps soon.
const PSN: u32 = 0xff_fff0;
/// The path MTU of a link that carries 1,500 bytes.
pub(crate) const MTU: Mtu = Mtu::Mtu1024;
/// How long a completion may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Acknowledge timeout of the connections that we request: 4.096 µs × 2^n.
pub(crate) const TIMEOUT: u8 = 18;
const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// A device, and the objects of its context.
pub(crate) struct Host {
    name: String,
    pub(crate) address: IpAddr,
    context: Context,
    capture: Option<Arc<OctetCapture>>,
    pd: Pd,
    bmme: Bmme,
}

/// A queue pair and its memory.
pub(crate) struct Ours {
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
    pub(crate) bmme: Bmme,
    context: Context,
    pub(crate) pd: Pd,
    gid: Gid,
}

impl Host {
    /// The rights of a key that is registered for the peer.
    pub(crate) const KEY_RIGHTS: Access = OPEN;

    /// The device of this name, at this address; its packets are captured in a file.
    pub(crate) fn new(name: &str, address: IpAddr, capture: Option<&Path>) -> anyhow::Result<Self> {
        let capture = match capture {
            Some(path) => Some(Arc::new(OctetCapture::new(File::create(path)?)?)),
            None => None,
        };
        let options = EmulatedOptions {
            tap: capture.clone().map(|tap| Tap(tap)),
            ..EmulatedOptions::default()
        };
        let device = emulated::device_at(name, address, &options)?;
        let context = device.open(&Requirements::everything_of(&device.attributes()))?;
        Ok(Self {
            name: name.to_owned(),
            address,
            capture,
            pd: context.alloc_pd().wait()?,
            bmme: context.extension::<Bmme>()?,
            context,
        })
    }

    /// Writes all captured packets to the file.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        Ok(self.capture.as_ref().map_or(Ok(()), |tap| tap.flush())?)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.context.attributes().transport != Transport::Iwarp
    }

    /// Listens for connections.
    pub(crate) fn listen(&self, port: u16) -> anyhow::Result<Listener> {
        let at = SocketAddr::new(self.address, port);
        Ok(Connector::of(&self.context)?.listen(at, 1)?)
    }

    fn rights(&self) -> Access {
        match self.is_infiniband() {
            true => OPEN | Access::REMOTE_ATOMIC,
            false => OPEN,
        }
    }

    /// Makes a queue pair in INIT.
    pub(crate) fn make(&self, qp_type: QpType) -> anyhow::Result<Ours> {
        let cq = self.context.create_cq(1024).wait()?;
        let options = match qp_type {
            QpType::Ud => QpOptions::ud(&cq),
            _ => QpOptions::rc(&cq).operations(&self.bmme),
        };
        let options = options.max_send_wr(128).max_recv_wr(512);
        let qp = self.pd.create_qp(options).wait()?;
        let memory = Memory::zeroed(MEMORY)?;
        let mr = self.pd.register(&memory, self.rights()).wait()?;
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(0)
            .port_num(1);
        let init = match qp_type {
            QpType::Ud => init.qkey(QKEY),
            _ => init.qp_access_flags(self.rights() - Access::LOCAL_WRITE),
        };
        qp.modify(init).wait()?;
        let port = self.context.query_port(1)?;
        Ok(Ours {
            cq,
            qp,
            memory,
            mr,
            bmme: self.bmme,
            context: self.context.clone(),
            pd: self.pd.clone(),
            gid: port.gid(port.default_gid_index()).unwrap_or_default(),
        })
    }
}

impl Ours {
    /// The description of the queue pair and its memory for the peer.
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

    /// Connects the queue pair with the peer's.
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
            rts = rts
                .timeout(TIMEOUT)
                .retry_cnt(7)
                .rnr_retry(7)
                .max_rd_atomic(16);
        }
        self.qp.modify(rtr).wait()?;
        self.qp.modify(rts).wait()?;
        Ok(())
    }

    /// Requests a connection. The private data begins with the address and key of our memory.
    pub(crate) fn ask(
        &self,
        to: SocketAddr,
        words: &[u8],
    ) -> Result<Started<Accepted, ConnectError>, ConnectError> {
        let connector = Connector::of(&self.context)?;
        Ok(connector.request(&self.qp, to, self.options(words)))
    }

    /// The options with which a connection is requested or accepted.
    fn options(&self, words: &[u8]) -> ConnectionOptions {
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let atomic = match self.context.attributes().transport {
            Transport::Iwarp => Access::empty(),
            _ => Access::REMOTE_ATOMIC,
        };
        let qp = PathOptions::new().timeout(TIMEOUT).access(rights | atomic);
        let told = [&self.card().private(), words].concat();
        ConnectionOptions::new().path(qp).private_data(&told)
    }

    /// Accepts a connection that the peer requests.
    pub(crate) fn accept(
        &self,
        incoming: Incoming,
        words: &[u8],
    ) -> Started<Connection, ConnectError> {
        incoming.accept(&self.qp, self.options(words))
    }

    /// The destination of datagrams to the peer.
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

    /// The next completion, with any status.
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
            // There may be few processors, and the kernel's device needs one as well.
            std::thread::yield_now();
        }
    }

    /// The status of the next completion that does not succeed.
    pub(crate) fn ended(&self) -> anyhow::Result<WcStatus> {
        self.receive(0, 8)?;
        Ok(self.next()?.status)
    }

    /// The next completion, which must succeed.
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

    /// Posts a request, and checks that it succeeds.
    pub(crate) fn succeeds<'a>(
        &self,
        request: impl Into<WorkRequest<'a>>,
    ) -> anyhow::Result<Completion> {
        self.qp.post_one(request)?;
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

/// The remote address of a place in the peer's memory, counted from its beginning.
pub(crate) fn remote(card: &Card, at: usize) -> RemoteAddress {
    RemoteAddress::new(card.address + at as u64, RKey::new(card.rkey))
}
