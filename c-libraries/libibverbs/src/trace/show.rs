//! Formats arguments of verbs for the trace.
//!
//! Structures at a program's pointers are copied by the kernel, which reports an error for memory that does not exist. So
//! an invalid pointer is shown as such and does not end the process.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::ptr;

use polyverbs_layer::CM_EVENTS;

use crate::abi::{
    IbvAhAttr, IbvAsyncEvent, IbvDevice, IbvDmahInitAttr, IbvGid, IbvMr, IbvMrInitAttr,
    IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc, wr_opcode,
};
use crate::names;

// The most entries of a list that are shown.
const MOST: usize = 4;
// The most characters of a string that are shown.
const LONGEST: usize = 64;

/// The type of an argument, as the function that formats it.
#[derive(Clone, Copy)]
pub(super) struct Kind(fn(&mut String, Argument));

/// An argument to format, with those arguments and results that its format depends on.
#[derive(Clone, Copy)]
struct Argument {
    value: u64,
    next: u64,
    result: u64,
    failed: bool,
}

const KINDS: &[(u8, Kind)] = &[
    (b'p', Kind(|out, it| pointer(out, it.value))),
    (
        b'i',
        Kind(|out, it| put(out, format_args!("{}", it.value as u32 as c_int))),
    ),
    (
        b'x',
        Kind(|out, it| put(out, format_args!("{:#x}", it.value as u32))),
    ),
    (
        b'w',
        Kind(|out, it| put(out, format_args!("{:#x}", it.value))),
    ),
    (b'z', Kind(|out, it| put(out, format_args!("{}", it.value)))),
    (b's', Kind(|out, it| text(out, it.value))),
    (
        b'I',
        Kind(|out, it| filled::<c_int>(out, it, |out, value| put(out, format_args!("[{value}]")))),
    ),
    (
        b'L',
        Kind(|out, it| filled::<u64>(out, it, |out, value| put(out, format_args!("[{value}]")))),
    ),
    (
        b'V',
        Kind(|out, it| {
            filled::<u64>(out, it, |out, value| {
                out.push('[');
                pointer(out, *value);
                out.push(']');
            });
        }),
    ),
    (
        b'D',
        Kind(|out, it| {
            given::<IbvDevice>(out, it, |out, device| {
                // The name of something that is no device need not end with zero.
                let name = device.name.map(|byte| byte as u8);
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                put(out, format_args!("{:?}", String::from_utf8_lossy(name)));
            })
        }),
    ),
    (b'P', Kind(|out, it| filled::<IbvPortAttr>(out, it, port))),
    (b'G', Kind(|out, it| filled::<IbvGid>(out, it, gid))),
    (b'g', Kind(|out, it| given::<IbvGid>(out, it, gid))),
    (
        b'E',
        Kind(|out, it| filled::<IbvAsyncEvent>(out, it, event)),
    ),
    (b'C', Kind(completions)),
    (b'Q', Kind(|out, it| given::<IbvQpInitAttr>(out, it, init))),
    (
        b'A',
        Kind(|out, it| {
            given::<IbvQpAttr>(out, it, |out, attr| attributes(out, attr, it.next as u32))
        }),
    ),
    (b'H', Kind(|out, it| given::<IbvAhAttr>(out, it, path))),
    (
        b'h',
        Kind(|out, it| given::<IbvDmahInitAttr>(out, it, hints)),
    ),
    (
        b'X',
        Kind(|out, it| given::<IbvMrInitAttr>(out, it, registration)),
    ),
    (b'S', Kind(sends)),
    (b'R', Kind(receives)),
    (b'N', Kind(|out, it| address(out, it.value))),
    (b'M', Kind(|out, it| filled::<u64>(out, it, cm_event))),
];

impl Kind {
    /// A pointer.
    pub(super) const POINTER: u8 = b'p';

    pub(super) fn of(letter: u8) -> Self {
        let found = KINDS.iter().find(|(known, _)| *known == letter);
        found.unwrap_or(&KINDS[0]).1
    }

    pub(super) const fn is_known(letter: u8) -> bool {
        let mut at = 0;
        while at < KINDS.len() && KINDS[at].0 != letter {
            at += 1;
        }
        at < KINDS.len()
    }

    pub(super) fn show(self, out: &mut String, value: u64, next: u64, result: u64, failed: bool) {
        (self.0)(
            out,
            Argument {
                value,
                next,
                result,
                failed,
            },
        );
    }
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(what);
}

fn pointer(out: &mut String, value: u64) {
    if value == 0 {
        out.push_str("NULL");
    } else {
        put(out, format_args!("{value:#x}"));
    }
}

// SAFETY of the callers: any bytes are a value of the type.
unsafe fn read<T>(at: u64) -> Option<T> {
    if at == 0 {
        return None;
    }
    let mut value = MaybeUninit::<T>::uninit();
    copy(at, value.as_mut_ptr().cast(), size_of::<T>()).then(|| {
        // SAFETY: all of its bytes were copied, and any are a value, as the caller promises.
        unsafe { value.assume_init() }
    })
}

fn copy(at: u64, target: *mut u8, length: usize) -> bool {
    let from = ptr::without_provenance_mut::<c_void>(at as usize);
    let here = libc::iovec {
        iov_base: target.cast(),
        iov_len: length,
    };
    let there = libc::iovec {
        iov_base: from,
        iov_len: length,
    };
    // SAFETY: room for as many bytes; the system looks at the other side.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
    };
    copied == length as isize
}

// Formats a structure that the program has filled.
fn given<T>(out: &mut String, it: Argument, show: impl FnOnce(&mut String, &T)) {
    // SAFETY: structures of C, which any bytes are.
    match unsafe { read::<T>(it.value) } {
        Some(value) => show(out, &value),
        None => pointer(out, it.value),
    }
}

// Formats a structure that the verb has filled, if the verb has succeeded.
fn filled<T>(out: &mut String, it: Argument, show: impl FnOnce(&mut String, &T)) {
    if it.failed {
        pointer(out, it.value);
    } else {
        given(out, it, show);
    }
}

fn text(out: &mut String, at: u64) {
    let mut bytes = Vec::new();
    // Byte by byte: what lies behind the end need not be mapped.
    // SAFETY: any byte is one.
    while let Some(byte) = unsafe { read::<u8>(at + bytes.len() as u64) } {
        if byte == 0 || bytes.len() == LONGEST {
            let more = if byte == 0 { "" } else { "…" };
            return put(
                out,
                format_args!("{:?}{more}", String::from_utf8_lossy(&bytes)),
            );
        }
        bytes.push(byte);
    }
    pointer(out, at);
}

fn hints(out: &mut String, attr: &IbvDmahInitAttr) {
    let (mask, cpu, ph, memory) = (attr.comp_mask, attr.cpu_id, attr.ph, attr.tph_mem_type);
    put(
        out,
        format_args!("{{comp_mask={mask:#x}, cpu_id={cpu}, ph={ph}, tph_mem_type={memory}}}"),
    );
}

fn registration(out: &mut String, attr: &IbvMrInitAttr) {
    put(
        out,
        format_args!(
            "{{comp_mask={:#x}, addr={:#x}, length={}, iova={:#x}, fd={}, fd_offset={:#x}, access={:#x}}}",
            attr.comp_mask,
            attr.addr.addr(),
            attr.length,
            attr.iova,
            attr.fd,
            attr.fd_offset,
            attr.access
        ),
    );
}

fn port(out: &mut String, port: &IbvPortAttr) {
    let IbvPortAttr {
        state,
        active_mtu,
        lid,
        link_layer,
        ..
    } = port;
    put(
        out,
        format_args!(
            "{{state={state}, active_mtu={active_mtu}, lid={lid:#x}, link_layer={link_layer}}}"
        ),
    );
}

fn gid(out: &mut String, gid: &IbvGid) {
    put(out, format_args!("{}", Ipv6Addr::from(gid.raw)));
}

fn event(out: &mut String, event: &IbvAsyncEvent) {
    let name = ptr_text(names::event_type_str(event.event_type));
    put(
        out,
        format_args!("{{{name}, element={:#x}}}", event.element.addr()),
    );
}

fn ptr_text(at: *const std::ffi::c_char) -> String {
    // SAFETY: a text of ours.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

fn service(kind: c_int) -> String {
    match kind {
        2 => "RC".to_owned(),
        3 => "UC".to_owned(),
        4 => "UD".to_owned(),
        8 => "RAW_PACKET".to_owned(),
        9 => "XRC_SEND".to_owned(),
        10 => "XRC_RECV".to_owned(),
        _ => kind.to_string(),
    }
}

fn init(out: &mut String, init: &IbvQpInitAttr) {
    let cap = &init.cap;
    put(
        out,
        format_args!(
            "{{{}, send_cq={:#x}, recv_cq={:#x}, srq={:#x}, cap={{{}, {}, {}, {}, {}}}, sq_sig_all={}}}",
            service(init.qp_type),
            init.send_cq.addr(),
            init.recv_cq.addr(),
            init.srq.addr(),
            cap.max_send_wr,
            cap.max_recv_wr,
            cap.max_send_sge,
            cap.max_recv_sge,
            cap.max_inline_data,
            init.sq_sig_all,
        ),
    );
}

fn path(out: &mut String, attr: &IbvAhAttr) {
    let grh = &attr.grh;
    out.push_str("{dgid=");
    gid(out, &grh.dgid);
    put(
        out,
        format_args!(
            ", sgid_index={}, is_global={}, dlid={:#x}, port_num={}}}",
            grh.sgid_index, attr.is_global, attr.dlid, attr.port_num
        ),
    );
}

const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

fn attributes(out: &mut String, attr: &IbvQpAttr, mask: u32) {
    let state = usize::try_from(attr.qp_state)
        .ok()
        .and_then(|state| STATES.get(state));
    let state = state.map_or_else(|| attr.qp_state.to_string(), |state| (*state).to_owned());
    let mut av = String::new();
    path(&mut av, &attr.ah_attr);
    let fields = [
        (0, "qp_state", format_args!("{state}")),
        (
            3,
            "qp_access_flags",
            format_args!("{:#x}", attr.qp_access_flags),
        ),
        (4, "pkey_index", format_args!("{}", attr.pkey_index)),
        (5, "port_num", format_args!("{}", attr.port_num)),
        (6, "qkey", format_args!("{:#x}", attr.qkey)),
        (7, "ah_attr", format_args!("{av}")),
        (8, "path_mtu", format_args!("{}", attr.path_mtu)),
        (9, "timeout", format_args!("{}", attr.timeout)),
        (10, "retry_cnt", format_args!("{}", attr.retry_cnt)),
        (11, "rnr_retry", format_args!("{}", attr.rnr_retry)),
        (12, "rq_psn", format_args!("{:#x}", attr.rq_psn)),
        (13, "max_rd_atomic", format_args!("{}", attr.max_rd_atomic)),
        (15, "min_rnr_timer", format_args!("{}", attr.min_rnr_timer)),
        (16, "sq_psn", format_args!("{:#x}", attr.sq_psn)),
        (
            17,
            "max_dest_rd_atomic",
            format_args!("{}", attr.max_dest_rd_atomic),
        ),
        (20, "dest_qp_num", format_args!("{:#x}", attr.dest_qp_num)),
    ];
    let mut before = "{";
    for (bit, name, value) in fields {
        if mask & 1 << bit != 0 {
            put(out, format_args!("{before}{name}={value}"));
            before = ", ";
        }
    }
    out.push_str(if before == "{" { "{}" } else { "}" });
}

fn opcode(code: c_int) -> String {
    let name = match code {
        wr_opcode::RDMA_WRITE => "RDMA_WRITE",
        wr_opcode::RDMA_WRITE_WITH_IMM => "RDMA_WRITE_WITH_IMM",
        wr_opcode::SEND => "SEND",
        wr_opcode::SEND_WITH_IMM => "SEND_WITH_IMM",
        wr_opcode::RDMA_READ => "RDMA_READ",
        wr_opcode::ATOMIC_CMP_AND_SWP => "ATOMIC_CMP_AND_SWP",
        wr_opcode::ATOMIC_FETCH_AND_ADD => "ATOMIC_FETCH_AND_ADD",
        wr_opcode::LOCAL_INV => "LOCAL_INV",
        wr_opcode::BIND_MW => "BIND_MW",
        wr_opcode::SEND_WITH_INV => "SEND_WITH_INV",
        wr_opcode::ATOMIC_WRITE => "ATOMIC_WRITE",
        _ => return code.to_string(),
    };
    name.to_owned()
}

const FLAGS: [&str; 4] = ["FENCE", "SIGNALED", "SOLICITED", "INLINE"];

fn flags(bits: u32) -> String {
    let names = FLAGS.iter().enumerate();
    let set: Vec<_> = names
        .filter(|(bit, _)| bits & 1 << bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if set.is_empty() {
        "0".to_owned()
    } else {
        set.join("|")
    }
}

fn entries(out: &mut String, list: *const IbvSge, count: c_int) {
    out.push('[');
    let count = usize::try_from(count).unwrap_or(0);
    for place in 0..count.min(MOST) {
        let at = list.wrapping_add(place).addr() as u64;
        if place > 0 {
            out.push_str(", ");
        }
        // SAFETY: numbers.
        match unsafe { read::<IbvSge>(at) } {
            Some(sge) => put(
                out,
                format_args!("{{{:#x}, {}, {:#x}}}", sge.addr, sge.length, sge.lkey),
            ),
            None => pointer(out, at),
        }
    }
    out.push_str(if count > MOST { ", …]" } else { "]" });
}

// Formats a linked list of structures.
fn list<T>(out: &mut String, first: u64, show: impl Fn(&mut String, &T) -> u64) {
    let mut next = first;
    let mut before = "[";
    for _ in 0..MOST {
        // SAFETY: numbers and pointers, which any bytes are.
        let Some(wr) = (unsafe { read::<T>(next) }) else {
            break;
        };
        out.push_str(before);
        before = ", ";
        next = show(out, &wr);
    }
    match (before, next) {
        ("[", _) => pointer(out, first),
        (_, 0) => out.push(']'),
        _ => out.push_str(", …]"),
    }
}

fn sends(out: &mut String, it: Argument) {
    list::<IbvSendWr>(out, it.value, |out, wr| {
        put(
            out,
            format_args!(
                "{{wr_id={:#x}, {}, {}, sg_list=",
                wr.wr_id,
                opcode(wr.opcode),
                flags(wr.send_flags)
            ),
        );
        entries(out, wr.sg_list, wr.num_sge);
        // SAFETY: numbers, whatever the request is.
        let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
        match wr.opcode {
            wr_opcode::RDMA_WRITE
            | wr_opcode::RDMA_WRITE_WITH_IMM
            | wr_opcode::RDMA_READ
            | wr_opcode::ATOMIC_WRITE => {
                put(
                    out,
                    format_args!(", remote={:#x}, rkey={:#x}", rdma.remote_addr, rdma.rkey),
                );
            }
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                put(
                    out,
                    format_args!(
                        ", remote={:#x}, rkey={:#x}",
                        atomic.remote_addr, atomic.rkey
                    ),
                );
            }
            _ => {}
        }
        out.push('}');
        wr.next.addr() as u64
    });
}

fn receives(out: &mut String, it: Argument) {
    list::<IbvRecvWr>(out, it.value, |out, wr| {
        put(out, format_args!("{{wr_id={:#x}, sg_list=", wr.wr_id));
        entries(out, wr.sg_list, wr.num_sge);
        out.push('}');
        wr.next.addr() as u64
    });
}

// Formats as many completions as the verb has returned.
fn completions(out: &mut String, it: Argument) {
    let count = usize::try_from(it.result as u32 as c_int).unwrap_or(0);
    if count == 0 {
        return pointer(out, it.value);
    }
    out.push('[');
    for place in 0..count.min(MOST) {
        if place > 0 {
            out.push_str(", ");
        }
        let at = it.value + (place * size_of::<IbvWc>()) as u64;
        // SAFETY: numbers.
        let Some(wc) = (unsafe { read::<IbvWc>(at) }) else {
            pointer(out, at);
            continue;
        };
        let status = ptr_text(names::wc_status_str(wc.status));
        put(out, format_args!("{{wr_id={:#x}, {status}", wc.wr_id));
        if wc.status == 0 {
            put(
                out,
                format_args!(", opcode={}, byte_len={}", wc.opcode, wc.byte_len),
            );
        }
        // The system's error number, if the system has refused to send the packet.
        if let 1.. = wc.vendor_err {
            let cause = super::error(wc.vendor_err as c_int);
            put(out, format_args!(", vendor_err={cause}"));
        }
        put(out, format_args!(", qp_num={:#x}}}", wc.qp_num));
    }
    out.push_str(if count > MOST { ", …]" } else { "]" });
}

fn address(out: &mut String, at: u64) {
    // SAFETY: numbers.
    let family = unsafe { read::<libc::sa_family_t>(at) };
    match family.map(c_int::from) {
        Some(libc::AF_INET) => {
            // SAFETY: numbers.
            if let Some(v4) = unsafe { read::<libc::sockaddr_in>(at) } {
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                return put(out, format_args!("{ip}:{}", u16::from_be(v4.sin_port)));
            }
        }
        Some(libc::AF_INET6) => {
            // SAFETY: numbers.
            if let Some(v6) = unsafe { read::<libc::sockaddr_in6>(at) } {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                let address = SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id);
                return put(out, format_args!("{address}"));
            }
        }
        _ => {}
    }
    pointer(out, at);
}

// `rdma_cm_event` begins with the identifier and the listener; then event and status follow.
fn cm_event(out: &mut String, at: &u64) {
    // SAFETY: numbers.
    let Some((id, _, event, status)) =
        (unsafe { read::<CmEvent>(*at) }).map(|it| (it.id, it.listen_id, it.event, it.status))
    else {
        return pointer(out, *at);
    };
    let name = usize::try_from(event)
        .ok()
        .and_then(|event| CM_EVENTS.get(event));
    let name = name.map_or_else(|| event.to_string(), |name| (*name).to_owned());
    put(out, format_args!("{{{name}, id={id:#x}, status={status}}}"));
}

#[repr(C)]
struct CmEvent {
    id: u64,
    listen_id: u64,
    event: c_int,
    status: c_int,
}

/// Formats the number of a QP that was created, at this address.
pub(super) fn qp(at: u64) -> String {
    // SAFETY: numbers and pointers, which any bytes are.
    let qp = unsafe { read::<IbvQp>(at) };
    qp.map_or_else(String::new, |qp| format!("{{qp_num={:#x}}}", qp.qp_num))
}

/// Formats the keys of an MR that was registered, at this address.
pub(super) fn mr(at: u64) -> String {
    // SAFETY: numbers and pointers, which any bytes are.
    let mr = unsafe { read::<IbvMr>(at) };
    mr.map_or_else(String::new, |mr| {
        format!("{{lkey={:#x}, rkey={:#x}}}", mr.lkey, mr.rkey)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: u8, value: u64) -> String {
        let mut out = String::new();
        Kind::of(kind).show(&mut out, value, 0, 1, false);
        out
    }

    // Hides the address from the compiler, because the kernel reads the value there.
    fn at<T>(value: &T) -> u64 {
        (std::hint::black_box(value) as *const T).expose_provenance() as u64
    }

    #[test]
    fn a_name_behind_an_invalid_device_pointer_is_truncated() {
        let bytes = [b'x'; size_of::<IbvDevice>()];
        assert_eq!(shown(b'D', at(&bytes)), format!("\"{}\"", "x".repeat(64)));
    }

    #[test]
    fn structures_are_shown_and_invalid_pointers_do_not_crash() {
        assert_eq!(shown(b's', at(b"a file\0")), "\"a file\"");
        let sge = IbvSge {
            addr: 0x1000,
            length: 64,
            lkey: 7,
        };
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut wr: IbvSendWr = unsafe { std::mem::zeroed() };
        (wr.wr_id, wr.opcode, wr.send_flags) = (5, wr_opcode::SEND, 2);
        (wr.sg_list, wr.num_sge) = (&raw const sge, 1);
        assert_eq!(
            shown(b'S', at(&wr)),
            "[{wr_id=0x5, SEND, SIGNALED, sg_list=[{0x1000, 64, 0x7}]}]"
        );
        wr.sg_list = ptr::without_provenance(8);
        assert_eq!(
            shown(b'S', at(&wr)),
            "[{wr_id=0x5, SEND, SIGNALED, sg_list=[0x8]}]"
        );
        // SAFETY: numbers, for which zero is a value.
        let mut wc: IbvWc = unsafe { std::mem::zeroed() };
        (wc.wr_id, wc.status, wc.vendor_err) = (5, 12, libc::EPERM as u32);
        assert_eq!(
            shown(b'C', at(&wc)),
            "[{wr_id=0x5, transport retry counter exceeded, vendor_err=EPERM (Operation not permitted), qp_num=0x0}]"
        );
        let scoped: std::net::SocketAddr = "[fe80::1%3]:7471".parse().unwrap();
        let scoped = crate::abi::address::write(scoped);
        assert_eq!(shown(b'N', at(&scoped)), "[fe80::1%3]:7471");
        for (kind, _) in KINDS {
            assert!(!shown(*kind, 0).is_empty());
            assert!(!shown(*kind, 16).is_empty());
        }
        assert_eq!(shown(b'A', 16), "0x10");
        assert_eq!(shown(b'i', u64::from(u32::MAX)), "-1");
    }
}
