//! The messages between the two processes, each a line of JSON.
//!
//! Numbers of the registry are valid in one process only: messages name operations, opcodes and attributes of extensions.

use serde::{Deserialize, Serialize};
use verbs_api::objects::ObjectId;
use verbs_api::provider::RegionMemory;
use verbs_api::qp::{AddressVector, QpAttributes, QpCap, QpState, QpStatus, QpType};
use verbs_api::{
    Access, ArgumentReason, Completion, ErrorKind, Memory, Operations, PageList, RKey,
    RemoteAddress, Sge, VerbError, WcStatus,
    capability::{BaselineGaps, Mtu},
    completion::{WcFlags, WcOpcode},
    event::{EventSubject, EventType},
    extension::{ExtensionOperation, Extensions, QpExtension, QpVariant, RequestAttribute},
    ids::{Gid, LKey, LinkAddress, Psn, Qpn},
    provider::Operation,
    wr::{self, Data, PostReason, ReceiveRequest, SendFlags, WorkRequest},
};

use crate::memory::{Change, octets_of};

/// The requests of the process with the probes. Objects are named by numbers of the other process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    AllocPd,
    CreateCq {
        cqe: u32,
    },
    RegisterMr {
        pd: u32,
        iova: u64,
        access: u32,
        octets: usize,
    },
    AllocMr {
        pd: u32,
        entries: u32,
    },
    CreateQp {
        pd: u32,
        qp: Box<QpMade>,
    },
    Modify {
        qp: u32,
        attributes: Box<Attributes>,
    },
    Destroy {
        object: u32,
    },
    // The requests below are answered before the next request is sent.
    QueryPort {
        port: u8,
    },
    Query {
        qp: u32,
    },
    Poll {
        cq: u32,
        most: usize,
    },
    Post {
        qp: u32,
        changed: Vec<Change>,
        requests: Vec<Request>,
    },
    PostReceives {
        qp: u32,
        requests: Vec<Receive>,
    },
}

/// The messages of the other process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Say {
    Answer {
        to: u64,
        answer: Result<Answer, Failure>,
    },
    Event {
        event: String,
        object: Option<(u32, u32)>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Made {
        object: u32,
    },
    Cq {
        object: u32,
        cqe: u32,
    },
    Mr {
        object: u32,
        lkey: u32,
        rkey: u32,
    },
    Qp {
        object: u32,
        number: u32,
        cap: Cap,
    },
    Port {
        address: String,
        gid: [u8; 16],
    },
    Status {
        state: u8,
        draining: bool,
        attributes: Box<Attributes>,
        cap: Cap,
    },
    Completions {
        done: Vec<Done>,
        changed: Vec<Change>,
    },
    Refused {
        posted: usize,
        reason: Refusal,
    },
}

/// A request as a line to the other process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) number: u64,
    /// The identity of the new object, for its events.
    pub(crate) id: Option<(u32, u32)>,
    pub(crate) ask: Ask,
}

/// An error of a verb, as far as probes examine it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    unsupported: bool,
    overrun: bool,
    text: String,
}

impl From<VerbError> for Failure {
    fn from(error: VerbError) -> Self {
        Self {
            unsupported: error.kind() == ErrorKind::Unsupported,
            overrun: error == VerbError::CqOverrun,
            text: error.to_string(),
        }
    }
}

impl From<Failure> for VerbError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure { overrun: true, .. } => Self::CqOverrun,
            Failure {
                unsupported: true,
                text,
                ..
            } => Self::UnsupportedHere(text),
            Failure { text, .. } => {
                Self::argument("the other process", ArgumentReason::Said(text.into()))
            }
        }
    }
}

/// The reason why a request was not posted, as far as probes examine it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Gap(OperationNames, u32),
    NotEnabled(OperationNames),
    QueueFull(u32),
    State(u8),
    NoReceives,
    Other(String),
}

impl From<PostReason> for Refusal {
    fn from(reason: PostReason) -> Self {
        match reason {
            PostReason::BaselineGap { operation, gaps } => Self::Gap(operation.into(), gaps.bits()),
            PostReason::OperationNotEnabled { missing } => Self::NotEnabled(missing.into()),
            PostReason::QueueFull { max } => Self::QueueFull(max),
            PostReason::InvalidState(state) => Self::State(state as u8),
            PostReason::NoReceives => Self::NoReceives,
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<Refusal> for PostReason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Gap(names, gaps) => Self::BaselineGap {
                operation: names.operations(),
                gaps: BaselineGaps::from_bits_retain(gaps),
            },
            Refusal::NotEnabled(names) => Self::OperationNotEnabled {
                missing: names.operations(),
            },
            Refusal::QueueFull(max) => Self::QueueFull { max },
            Refusal::State(state) => Self::InvalidState(state_of(state)),
            Refusal::NoReceives => Self::NoReceives,
            Refusal::Other(text) => Self::Extension {
                extension: "the other process",
                // This leaks once for each unexpected refusal, which makes its test fail.
                reason: text.leak(),
            },
        }
    }
}

pub(crate) fn state_of(code: u8) -> QpState {
    QpState::from_code(code).expect("a state of the other process, which is this program")
}

fn linked() -> Extensions {
    Extensions::linked().expect("extensions that fit together")
}

/// A set of operations: bits of the core, and names of extensions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OperationNames {
    core: u64,
    of_extensions: Vec<(String, String)>,
}

impl From<Operations> for OperationNames {
    fn from(operations: Operations) -> Self {
        let named = |operation: &ExtensionOperation| {
            let (extension, name) = (operation.extension(), operation.name());
            (extension.to_owned(), name.to_owned())
        };
        Self {
            core: (operations & Operations::CORE).bits(),
            of_extensions: operations.of_extensions().map(named).collect(),
        }
    }
}

impl OperationNames {
    pub(crate) fn operations(&self) -> Operations {
        let core = Operations::from_bits_retain(self.core);
        let of_extensions = self.of_extensions.iter();
        let bits = of_extensions.map(|(extension, name)| operation(extension, name).bit());
        bits.fold(core, Operations::union)
    }
}

fn operation(extension: &str, name: &str) -> &'static ExtensionOperation {
    let extensions = linked();
    let found = extensions.find(extension).and_then(|of| {
        let mut operations = of.all_operations().iter();
        operations.find(|operation| operation.name() == name)
    });
    found.expect("an operation that this program has linked, too")
}

/// The options of an extension for a queue pair.
#[derive(Debug, Serialize, Deserialize)]
struct Extended {
    extension: String,
    bits: u64,
    value: u64,
    variant: Option<String>,
}

impl Extended {
    fn of(extension: &QpExtension) -> Result<Self, VerbError> {
        if extension.held().is_some() {
            let what = "objects of this process, for a queue pair of another";
            return Err(VerbError::UnsupportedHere(what.to_owned()));
        }
        let variant = extension.qp_variant();
        Ok(Self {
            extension: extension.extension().to_owned(),
            bits: extension.feature().bits,
            value: extension.value(),
            variant: variant.map(|variant| variant.name().to_owned()),
        })
    }

    fn made(&self, variants: &[&'static QpVariant]) -> QpExtension {
        let extensions = linked();
        let descriptor = extensions.find(&self.extension);
        let descriptor = descriptor.expect("an extension that this program has linked, too");
        let mut features = descriptor.all_features().iter();
        let feature = features.find(|feature| feature.bits == self.bits);
        let feature = feature.expect("a feature of the extension");
        let made = QpExtension::new(descriptor.name(), feature, self.value);
        let Some(name) = &self.variant else {
            return made;
        };
        let variant = variants.iter().find(|variant| variant.name() == name);
        made.variant(variant.expect("a variant that the other process knows"))
    }
}

/// The options of a queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct QpMade {
    service: u8,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) cap: Cap,
    pub(crate) reserved_wr: u32,
    pub(crate) sq_sig_all: bool,
    pub(crate) operations: OperationNames,
    extensions: Vec<Extended>,
}

impl QpMade {
    pub(crate) fn of(
        init: &verbs_api::provider::QpInit,
        (send_cq, recv_cq): (u32, u32),
    ) -> Result<Self, VerbError> {
        let extensions = init.extensions.iter().map(Extended::of);
        Ok(Self {
            service: match init.qp_type {
                QpType::Uc => 1,
                QpType::Ud => 2,
                _ => 0,
            },
            send_cq,
            recv_cq,
            cap: init.cap.into(),
            reserved_wr: init.reserved_wr,
            sq_sig_all: init.sq_sig_all,
            operations: init.operations.into(),
            extensions: extensions.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn qp_type(&self) -> QpType {
        match self.service {
            1 => QpType::Uc,
            2 => QpType::Ud,
            _ => QpType::Rc,
        }
    }

    pub(crate) fn extensions(&self, variants: &[&'static QpVariant]) -> Vec<QpExtension> {
        let extensions = self.extensions.iter();
        extensions.map(|one| one.made(variants)).collect()
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cap([u32; 5]);

impl From<QpCap> for Cap {
    fn from(cap: QpCap) -> Self {
        Self([
            cap.max_send_wr,
            cap.max_recv_wr,
            cap.max_send_sge,
            cap.max_recv_sge,
            cap.max_inline_data,
        ])
    }
}

impl From<Cap> for QpCap {
    fn from(Cap(numbers): Cap) -> Self {
        let [send_wr, recv_wr, send_sge, recv_sge, inline] = numbers;
        Self {
            max_send_wr: send_wr,
            max_recv_wr: recv_wr,
            max_send_sge: send_sge,
            max_recv_sge: recv_sge,
            max_inline_data: inline,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Path {
    ip: std::net::IpAddr,
    dgid: [u8; 16],
    flow_label: u32,
    numbers: [u8; 8],
}

/// Attributes of a queue pair.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Attributes {
    states: [Option<u8>; 2],
    notify: Option<bool>,
    access: Option<u32>,
    pkey_index: Option<u16>,
    port_num: Option<u8>,
    path: Option<Path>,
    path_mtu: Option<u8>,
    /// The Q_Key, the two PSNs, and the QPN of the peer.
    numbers: [Option<u32>; 4],
    /// Timeout, retry count, RNR retry count, depths as initiator and responder, RNR timer.
    codes: [Option<u8>; 6],
}

impl From<&QpAttributes> for Attributes {
    fn from(of: &QpAttributes) -> Self {
        let state = |state: Option<QpState>| state.map(|state| state as u8);
        Self {
            states: [state(of.qp_state), state(of.cur_qp_state)],
            notify: of.en_sqd_async_notify,
            access: of.qp_access_flags.map(|access| access.bits()),
            pkey_index: of.pkey_index,
            port_num: of.port_num,
            path: of.ah_attr.map(|path| Path {
                ip: ip_of(path.address),
                dgid: path.dgid.0,
                flow_label: path.flow_label,
                numbers: [
                    path.is_global.into(),
                    path.src_path_bits,
                    path.sgid_index,
                    path.port_num,
                    path.traffic_class,
                    path.hop_limit,
                    path.sl,
                    path.static_rate,
                ],
            }),
            path_mtu: of.path_mtu.map(|mtu| mtu as u8),
            numbers: [
                of.qkey,
                of.rq_psn.map(Psn::value),
                of.sq_psn.map(Psn::value),
                of.dest_qp_num.map(Qpn::value),
            ],
            codes: [
                of.timeout,
                of.retry_cnt,
                of.rnr_retry,
                of.max_rd_atomic,
                of.max_dest_rd_atomic,
                of.min_rnr_timer,
            ],
        }
    }
}

impl From<&Attributes> for QpAttributes {
    fn from(of: &Attributes) -> Self {
        let [
            timeout,
            retry_cnt,
            rnr_retry,
            initiated,
            served,
            min_rnr_timer,
        ] = of.codes;
        let [qkey, rq_psn, sq_psn, dest_qp_num] = of.numbers;
        let [qp_state, cur_qp_state] = of.states.map(|state| state.map(state_of));
        Self {
            qp_state,
            cur_qp_state,
            en_sqd_async_notify: of.notify,
            qp_access_flags: of.access.map(Access::from_bits_retain),
            pkey_index: of.pkey_index,
            port_num: of.port_num,
            qkey,
            ah_attr: of.path.as_ref().map(|path| {
                let [
                    is_global,
                    src_path_bits,
                    sgid_index,
                    port_num,
                    traffic_class,
                    hop_limit,
                    sl,
                    static_rate,
                ] = path.numbers;
                AddressVector {
                    address: LinkAddress::Ip(path.ip),
                    is_global: is_global != 0,
                    dgid: Gid(path.dgid),
                    flow_label: path.flow_label,
                    sgid_index,
                    port_num,
                    src_path_bits,
                    traffic_class,
                    hop_limit,
                    sl,
                    static_rate,
                }
            }),
            path_mtu: of.path_mtu.and_then(Mtu::from_code),
            timeout,
            retry_cnt,
            rnr_retry,
            rq_psn: rq_psn.map(Psn::new),
            max_rd_atomic: initiated,
            min_rnr_timer,
            sq_psn: sq_psn.map(Psn::new),
            max_dest_rd_atomic: served,
            dest_qp_num: dest_qp_num.map(Qpn::new),
        }
    }
}

/// The address of a device of this crate.
pub(crate) fn ip_of(address: LinkAddress) -> std::net::IpAddr {
    match address {
        LinkAddress::Ip(ip) => ip,
        other => panic!("{other:?} is not on an IP network"),
    }
}

impl From<QpStatus> for Answer {
    fn from(status: QpStatus) -> Self {
        Self::Status {
            state: status.state as u8,
            draining: status.sq_draining,
            attributes: Box::new((&status.attributes).into()),
            cap: status.cap.into(),
        }
    }
}

/// The data of a request: inline, or in memory.
#[derive(Debug, Serialize, Deserialize)]
enum Octets {
    Sges(Vec<(u64, u32, u32)>),
    Inline(Vec<u8>),
}

impl Octets {
    fn of(data: &Data<'_>) -> Self {
        match data {
            Data::Inline(octets) => Self::Inline(octets.to_vec()),
            data => {
                let list = data.sges().list.iter();
                let said = list.map(|sge| (sge.addr(), sge.length(), sge.lkey().value()));
                Self::Sges(said.collect())
            }
        }
    }

    fn sges(&self) -> Vec<Sge> {
        let Self::Sges(list) = self else {
            return Vec::new();
        };
        // SAFETY: the process of the probe sent an entry that it received from here; this process makes no buffer
        // pools.
        #[allow(unsafe_code)]
        let sge = |&(addr, length, lkey): &(u64, u32, u32)| unsafe {
            Sge::from_raw(addr, length, LKey::new(lkey))
        };
        list.iter().map(sge).collect()
    }

    fn data<'a>(&'a self, sges: &'a [Sge]) -> Data<'a> {
        match self {
            Self::Inline(octets) => Data::Inline(octets),
            Self::Sges(_) => Data::Sges(sges),
        }
    }
}

/// A receive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receive {
    wr_id: u64,
    octets: Octets,
}

impl Receive {
    pub(crate) fn of(request: &ReceiveRequest<'_>) -> Self {
        Self {
            wr_id: request.wr_id,
            octets: Octets::of(&request.data),
        }
    }

    /// Passes the receive request to `post`.
    pub(crate) fn with<T>(&self, post: impl FnOnce(ReceiveRequest<'_>) -> T) -> T {
        let sges = self.octets.sges();
        post(ReceiveRequest::new(self.wr_id, self.octets.data(&sges)))
    }
}

/// A request of a send queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    wr_id: u64,
    flags: u8,
    /// The name of the extension, the name of the attribute, and its value.
    attribute: Option<(String, String, u32)>,
    octets: Octets,
    what: What,
}

#[derive(Debug, Serialize, Deserialize)]
enum What {
    Send,
    SendWithImmediate([u8; 4]),
    SendWithInvalidate(u32),
    Write(u64, u32),
    WriteWithImmediate(u64, u32, [u8; 4]),
    Read(u64, u32),
    CompareSwap(u64, u32, u64, u64),
    FetchAdd(u64, u32, u64),
    /// The bytes of the pages are sent along, and changes of them are not sent back.
    FastRegister(Box<Pages>),
    LocalInvalidate(u32),
    Extension(String, String, Vec<u8>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Pages {
    key: u32,
    access: u32,
    iova: u64,
    length: Option<u32>,
    page_size: u64,
    octets: Vec<u8>,
}

fn unsupported(what: &'static str) -> PostReason {
    PostReason::Extension {
        extension: "the other process",
        reason: what,
    }
}

impl Request {
    pub(crate) fn of(request: &WorkRequest<'_>) -> Result<Self, PostReason> {
        let common = request.common();
        let place = |remote: RemoteAddress| (remote.addr, remote.rkey.value());
        let what = match request {
            WorkRequest::Send(send) if send.destination.is_none() => What::Send,
            WorkRequest::SendWithImmediate(send) if send.destination.is_none() => {
                What::SendWithImmediate(send.imm)
            }
            WorkRequest::SendWithInvalidate(send) => What::SendWithInvalidate(send.rkey.value()),
            WorkRequest::Write(write) => {
                let (addr, rkey) = place(write.remote);
                What::Write(addr, rkey)
            }
            WorkRequest::WriteWithImmediate(write) => {
                let (addr, rkey) = place(write.remote);
                What::WriteWithImmediate(addr, rkey, write.imm)
            }
            WorkRequest::Read(read) => {
                let (addr, rkey) = place(read.remote);
                What::Read(addr, rkey)
            }
            WorkRequest::CompareSwap(swap) => {
                let (addr, rkey) = place(swap.remote);
                What::CompareSwap(addr, rkey, swap.compare, swap.swap)
            }
            WorkRequest::FetchAdd(add) => {
                let (addr, rkey) = place(add.remote);
                What::FetchAdd(addr, rkey, add.add)
            }
            WorkRequest::FastRegister(register) => {
                let pages = register.pages.ok_or(PostReason::NoPages)?;
                let page_size = pages.page_size();
                let page_size = page_size.ok_or_else(|| unsupported("lists of gaps"))?;
                What::FastRegister(Box::new(Pages {
                    key: register.key.value(),
                    access: register.access.bits(),
                    iova: register.iova.unwrap_or(pages.address()),
                    length: register.length,
                    page_size,
                    octets: octets_of(pages),
                }))
            }
            WorkRequest::LocalInvalidate(invalidate) => {
                What::LocalInvalidate(invalidate.key.value())
            }
            WorkRequest::Extension(request) if request.held().is_none() => {
                let operation = request.extension_operation();
                let (extension, name) = (operation.extension(), operation.name());
                let body = request.body().to_vec();
                What::Extension(extension.to_owned(), name.to_owned(), body)
            }
            _ => return Err(unsupported("requests of this kind")),
        };
        let attribute = common.attribute().map(|attribute| {
            let kind = attribute.kind();
            let (extension, name) = (kind.extension(), kind.name());
            (extension.to_owned(), name.to_owned(), attribute.value())
        });
        Ok(Self {
            wr_id: common.wr_id,
            flags: common.flags.bits(),
            attribute,
            octets: Octets::of(request.data()),
            what,
        })
    }

    fn attribute(&self, variants: &[&'static QpVariant]) -> Option<RequestAttribute> {
        let (extension, name, value) = self.attribute.as_ref()?;
        let mut kinds = variants.iter().filter_map(|of| of.request_attribute());
        let kind = kinds.find(|kind| kind.extension() == extension && kind.name() == name);
        let kind = kind.expect("an attribute of a variant that the other process knows");
        Some(kind.with(*value))
    }

    /// Passes the request to `post`. Also returns the memory that the request names and that no other object keeps.
    pub(crate) fn with<T>(
        &self,
        variants: &[&'static QpVariant],
        post: impl FnOnce(WorkRequest<'_>) -> T,
    ) -> (T, Option<PageList>) {
        let sges = self.octets.sges();
        let data = self.octets.data(&sges);
        let remote = |addr: &u64, rkey: &u32| RemoteAddress::new(*addr, RKey::new(*rkey));
        let attribute = self.attribute(variants);
        macro_rules! posted {
            ($request:expr) => {{
                let request = $request;
                let request = match attribute {
                    Some(attribute) => request.with(attribute),
                    None => request,
                };
                let mut request = WorkRequest::from(request);
                request.set_common(self.wr_id, SendFlags::from_bits_retain(self.flags));
                (post(request), None)
            }};
        }
        match &self.what {
            What::Send => posted!(wr::Send::new(data)),
            What::SendWithImmediate(imm) => posted!(wr::SendWithImmediate::new(data, *imm)),
            What::SendWithInvalidate(rkey) => {
                posted!(wr::SendWithInvalidate::new(data, RKey::new(*rkey)))
            }
            What::Write(addr, rkey) => posted!(wr::Write::new(data, remote(addr, rkey))),
            What::WriteWithImmediate(addr, rkey, imm) => {
                posted!(wr::WriteWithImmediate::new(data, remote(addr, rkey), *imm))
            }
            What::Read(addr, rkey) => posted!(wr::Read::new(data, remote(addr, rkey))),
            What::CompareSwap(addr, rkey, compare, swap) => {
                posted!(wr::CompareSwap::new(
                    data,
                    remote(addr, rkey),
                    *compare,
                    *swap
                ))
            }
            What::FetchAdd(addr, rkey, add) => {
                posted!(wr::FetchAdd::new(data, remote(addr, rkey), *add))
            }
            What::FastRegister(pages) => {
                let list = pages.list();
                let register = wr::FastRegister::new(RKey::new(pages.key), &list)
                    .access(Access::from_bits_retain(pages.access))
                    .iova(pages.iova);
                let posted: (T, Option<PageList>) = posted!(match pages.length {
                    Some(length) => register.length(length),
                    None => register,
                });
                (posted.0, Some(list))
            }
            What::LocalInvalidate(key) => posted!(wr::LocalInvalidate::new(RKey::new(*key))),
            What::Extension(extension, name, body) => {
                let operation = operation(extension, name);
                posted!(wr::ExtensionRequest::new(operation, &body[..], data))
            }
        }
    }
}

impl Pages {
    fn list(&self) -> PageList {
        let memory = Memory::zeroed(self.octets.len()).expect("memory for a few pages");
        let written = memory.write(0, &self.octets);
        written.expect("as many bytes as the memory has");
        let entries = (self.octets.len() as u64).div_ceil(self.page_size) as u32;
        let mapped = PageList::map(&[(&memory).into()], self.page_size, entries);
        mapped.expect("memory that begins with a page").list
    }
}

/// A completion.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    wr_id: u64,
    status: u8,
    opcode: u8,
    /// The extension and the name of the operation, if it is one of an extension.
    of_extension: Option<(String, String)>,
    flags: u8,
    byte_len: u32,
    qp_num: u32,
    src_qp: u32,
    vendor_err: u32,
    imm_data: [u8; 4],
}

impl From<&Completion> for Done {
    fn from(done: &Completion) -> Self {
        Self {
            wr_id: done.wr_id,
            status: done.status as u8,
            opcode: done.opcode.code(),
            of_extension: done.opcode.extension().map(|operation| {
                let (extension, name) = (operation.extension(), operation.name());
                (extension.to_owned(), name.to_owned())
            }),
            flags: done.wc_flags.bits(),
            byte_len: done.byte_len,
            qp_num: done.qp_num.value(),
            src_qp: done.src_qp.value(),
            vendor_err: done.vendor_err,
            imm_data: done.imm_data,
        }
    }
}

impl From<Done> for Completion {
    fn from(done: Done) -> Self {
        let mut completion = Self::default();
        completion.wr_id = done.wr_id;
        completion.status = WcStatus::from_code(done.status);
        completion.opcode = match &done.of_extension {
            Some((extension, name)) => operation(extension, name).wc_opcode(),
            None => WcOpcode::from_code(done.opcode),
        };
        completion.wc_flags = WcFlags::from_bits_retain(done.flags);
        completion.byte_len = done.byte_len;
        completion.qp_num = Qpn::new(done.qp_num);
        completion.src_qp = Qpn::new(done.src_qp);
        completion.vendor_err = done.vendor_err;
        completion.imm_data = done.imm_data;
        completion
    }
}

/// Every event that a device raises by itself.
const EVENTS: &[EventType] = &[
    EventType::CqErr,
    EventType::QpFatal,
    EventType::QpReqErr,
    EventType::QpAccessErr,
    EventType::CommEst,
    EventType::SqDrained,
    EventType::QpLastWqeReached,
    EventType::SrqErr,
    EventType::SrqLimitReached,
    EventType::PortActive,
    EventType::PortErr,
    EventType::GidChange,
    EventType::LidChange,
    EventType::PkeyChange,
    EventType::SmChange,
    EventType::ClientReregister,
    EventType::DeviceFatal,
    EventType::DeviceRemoved,
];

pub(crate) fn event_of(name: &str) -> EventType {
    let mut events = EVENTS.iter();
    let found = events.find(|event| format!("{event:?}") == name);
    *found.expect("an event that devices have")
}

pub(crate) fn subject_of(object: Option<(u32, u32)>) -> EventSubject {
    match object {
        Some((index, generation)) => EventSubject::Object(ObjectId::new(index, generation)),
        None => EventSubject::Device,
    }
}

/// Allocates memory that mirrors the memory of a region in the other process.
pub(crate) fn zeroed(octets: usize) -> Result<RegionMemory, VerbError> {
    let memory = Memory::zeroed(octets).map_err(|_| VerbError::Resources("memory"))?;
    Ok(RegionMemory::from(&memory.into()))
}
