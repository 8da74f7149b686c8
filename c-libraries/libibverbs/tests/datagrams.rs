//! Datagrams as a C program receives them: the fields of the completion that describe the packet.
#![allow(unsafe_code)]

mod c;

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

use polyverbs_libibverbs::abi::{
    IbvAhAttr, IbvContext, IbvCq, IbvCqEx, IbvCqInitAttrEx, IbvGid, IbvPd, IbvQp, IbvQpAttr,
    IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc, Ud, cq_ex, qp_type,
};
use polyverbs_libibverbs::{ah, cq, device, mr, open, pd, post, qp, query};

use c::{call, last, zeroed};

const DEVICES: &str = r#"
[[device]]
name = "v4"
address = "127.0.43.1"
[[device]]
name = "v6"
address = "::1"
[[device]]
name = "subnet"
address = "127.0.43.2"
link-layer = "infiniband"
"#;

const QKEY: u32 = 0x1111;
const GRH: u32 = 40;
const WITH_GRH: u32 = 1;
const SIGNALED: u32 = 2;
const SEND: c_int = 2;

fn open(name: &str) -> *mut IbvContext {
    test_kit::configure(DEVICES);
    let found = device::devices()
        .iter()
        .find(|listed| listed.name().to_str() == Ok(name));
    let opened = open::open_device(found.unwrap().as_public());
    assert!(!opened.is_null(), "{:?}", last());
    opened
}

/// A queue pair that sends datagrams to itself.
struct Loop {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    qp: *mut IbvQp,
}

impl Loop {
    fn new(context: *mut IbvContext, queue: *mut IbvCq) -> Self {
        let pd = call!(pd::alloc(context));
        let mut init: IbvQpInitAttr = zeroed();
        (init.send_cq, init.recv_cq) = (queue, queue);
        init.qp_type = qp_type::UD;
        init.cap.max_send_wr = 1;
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        let made = call!(qp::create(pd, &raw mut init));
        assert!(!made.is_null());
        // The attributes after the state: P_Key index, port and Q_Key; none; the first PSN.
        for (state, rest) in [(1, 16 | 32 | 64), (2, 0), (3, 65_536)] {
            let mut attr: IbvQpAttr = zeroed();
            attr.qp_state = state;
            attr.port_num = 1;
            attr.qkey = QKEY;
            assert_eq!(call!(qp::modify(made, &raw mut attr, 1 | rest)), 0);
        }
        Self {
            context,
            pd,
            qp: made,
        }
    }

    /// Sends 16 bytes to itself; both requests complete in the queue.
    fn send(&self, memory: &mut [u8; 64]) {
        let mut gid = IbvGid { raw: [0; 16] };
        assert_eq!(call!(query::query_gid(self.context, 1, 0, &raw mut gid)), 0);
        self.send_to(gid, call!((*self.qp).qp_num), memory);
    }

    /// Posts a receive, and sends 16 bytes to a queue pair, or to a multicast group.
    fn send_to(&self, gid: IbvGid, remote_qpn: u32, memory: &mut [u8; 64]) {
        let mut route: IbvAhAttr = zeroed();
        route.grh.dgid = gid;
        route.grh.hop_limit = 64;
        route.is_global = 1;
        route.port_num = 1;
        let to = call!(ah::create(self.pd, &raw const route));
        assert!(!to.is_null());
        let at: *mut c_void = memory.as_mut_ptr().cast();
        let region = call!(mr::reg(self.pd, at, memory.len(), 1));
        assert!(!region.is_null());
        let mut entry = IbvSge {
            addr: at.expose_provenance() as u64,
            length: 64,
            lkey: call!((*region).lkey),
        };
        let mut receive = IbvRecvWr {
            wr_id: 1,
            next: ptr::null_mut(),
            sg_list: &raw mut entry,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        assert_eq!(
            call!(post::recv(self.qp, &raw mut receive, &raw mut bad)),
            0
        );
        let short = IbvSge {
            length: 16,
            ..entry
        };
        let mut send: IbvSendWr = zeroed();
        send.wr_id = 2;
        send.sg_list = &raw const short;
        send.num_sge = 1;
        send.opcode = SEND;
        send.send_flags = SIGNALED;
        send.wr.ud = Ud {
            ah: to,
            remote_qpn,
            remote_qkey: QKEY,
        };
        let mut bad = ptr::null_mut();
        assert_eq!(call!(post::send(self.qp, &raw mut send, &raw mut bad)), 0);
    }
}

/// Polls the completions of a request and its receive, the send's first.
fn both(queue: *mut IbvCq) -> [IbvWc; 2] {
    let mut all: [IbvWc; 2] = zeroed();
    let mut seen = 0;
    test_kit::waiting::until(|| {
        let room = (&raw mut all[seen]).cast();
        seen += call!(cq::poll(queue, 2 - seen as c_int, room)) as usize;
        seen == 2
    });
    all.sort_by_key(|done| u64::MAX - done.wr_id);
    all
}

/// `sl` of the two completions, the send's first.
fn told(name: &str) -> [u8; 2] {
    let context = open(name);
    let queue = call!(cq::create(context, 4, ptr::null_mut(), ptr::null_mut(), 0));
    let mut memory = [0; 64];
    Loop::new(context, queue).send(&mut memory);
    let all = both(queue);
    assert!(all.iter().all(|done| done.status == 0));
    assert_eq!(
        (all[1].wc_flags & WITH_GRH, all[1].byte_len),
        (WITH_GRH, GRH + 16)
    );
    all.map(|done| done.sl)
}

/// `sl` of the two completions of an extended queue, the send's first.
fn read(name: &str) -> [u8; 2] {
    type Poll = unsafe extern "C" fn(*mut IbvCqEx, *const u32) -> c_int;
    type Sl = unsafe extern "C" fn(*mut IbvCqEx) -> u8;
    let context = open(name);
    let mut attr: IbvCqInitAttrEx = zeroed();
    attr.cqe = 4;
    attr.wc_flags = 0x7f;
    let queue = call!(cq::create_ex(context, &raw mut attr));
    assert!(!queue.is_null());
    // SAFETY: the slots of these names have functions of these types.
    let (start, sl) = unsafe {
        let slots = &(*queue).slots;
        (
            mem::transmute::<*const c_void, Poll>(slots[cq_ex::START_POLL].cast()),
            mem::transmute::<*const c_void, Sl>(slots[cq_ex::READ_SL].cast()),
        )
    };
    let mut memory = [0; 64];
    Loop::new(context, queue.cast()).send(&mut memory);
    let mut answers = [u8::MAX; 2];
    for _ in 0..2 {
        test_kit::waiting::until(|| call!(start(queue, ptr::null())) == 0);
        let (request, status) = call!(((*queue).wr_id, (*queue).status));
        assert_eq!(status, 0);
        answers[2 - request as usize] = call!(sl(queue));
    }
    answers
}

// RoCEv2 has no service level. As with drivers of hardware, `sl` is UDP (8) over IPv4 (2) or IPv6 (1), which UCX checks.
#[test]
fn a_completion_of_a_datagram_over_roce_has_its_packet_type() {
    for (name, sl) in [("v4", 0xa), ("v6", 0x9)] {
        assert_eq!(told(name), [0, sl], "{name}");
        assert_eq!(read(name), [0, sl], "{name}, extended");
    }
}

#[test]
fn a_datagram_over_infiniband_completes_with_its_service_level() {
    assert_eq!(told("subnet"), [0, 0]);
    assert_eq!(read("subnet"), [0, 0]);
}

// covers 4.44
#[test]
fn an_ipv6_group_is_joined_and_sent_to_at_an_ipv4_address() {
    const MULTICAST_QPN: u32 = 0xff_ffff;
    let context = open("v4");
    let queue = call!(cq::create(context, 4, ptr::null_mut(), ptr::null_mut(), 0));
    let member = Loop::new(context, queue);
    // The groups of perftest's clients and servers.
    let group: std::net::Ipv6Addr = "ff01:0:2:c985::1".parse().unwrap();
    let group = IbvGid {
        raw: group.octets(),
    };
    // Attaching again changes nothing, as with Linux's core.
    for _ in 0..2 {
        assert_eq!(call!(qp::attach_mcast(member.qp, &raw const group, 0)), 0);
    }
    let mut memory = [0; 64];
    member.send_to(group, MULTICAST_QPN, &mut memory);
    let all = both(queue);
    assert_eq!(
        all.map(|done| (done.status, done.byte_len)),
        [(0, all[0].byte_len), (0, GRH + 16)]
    );
    let detach = || call!(qp::detach_mcast(member.qp, &raw const group, 0));
    assert_eq!(detach(), 0);
    assert_eq!(detach(), libc::EINVAL);
}
