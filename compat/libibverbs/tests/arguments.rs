//! Arguments that a kernel's device refuses, or takes although they are out of range.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::{io, mem, ptr};

use polyverbs_libibverbs::abi::{
    IbvContext, IbvMr, IbvPd, IbvQpAttr, IbvQpInitAttr, access, qp_type,
};
use polyverbs_libibverbs::{context, cq, device, mr, pd, qp};

const DEVICES: &str = "[[device]]\nname = \"ib0\"\nwire = false\n";
const PAGE: usize = 4096;
const LOCAL_WRITE: c_int = 1;
const CHANGE_TRANSLATION: c_int = 1;
const WRONG_ARGUMENT: c_int = -1;

// A call of a function of C.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: pointers are to what the test has or the library made, or to what it must refuse.
        unsafe { $call }
    }};
}

fn last() -> Option<c_int> {
    io::Error::last_os_error().raw_os_error()
}

/// Three pages, the one in the middle not mapped.
fn pages_with_a_hole() -> *mut u8 {
    let (rights, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let pages = call!(libc::mmap(ptr::null_mut(), 3 * PAGE, rights, flags, -1, 0));
    assert_ne!(pages, libc::MAP_FAILED);
    let pages = pages.cast::<u8>();
    assert_eq!(call!(libc::munmap(pages.add(PAGE).cast(), PAGE)), 0);
    pages
}

fn open() -> *mut IbvContext {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: every test begins with it, before anything looks at the environment.
    ONCE.call_once(|| unsafe { std::env::set_var("POLYVERBS_CONFIG", DEVICES) });
    device::open_device(device::devices()[0].as_public())
}

// A structure of numbers and null pointers.
fn zeroed<T>() -> T {
    // SAFETY: of the structures of C that the tests use zero is a value.
    unsafe { mem::zeroed() }
}

fn register(pd: *mut IbvPd, addr: *mut u8, length: usize, flags: c_int) -> *mut IbvMr {
    call!(mr::reg(pd, addr.cast::<c_void>(), length, flags))
}

#[test]
fn memory_that_is_not_mapped_is_refused_as_by_a_kernel() {
    let context = open();
    let pd = call!(pd::alloc(context));
    let first = pages_with_a_hole();
    let (hole, third) = (first.wrapping_add(PAGE), first.wrapping_add(2 * PAGE));

    for (addr, length) in [
        (hole, PAGE),
        (hole.wrapping_add(1), 1),
        (first, PAGE + 1),
        (first, 3 * PAGE),
        (third.wrapping_sub(1), 2),
    ] {
        assert!(register(pd, addr, length, LOCAL_WRITE).is_null());
        assert_eq!(last(), Some(libc::EFAULT), "{addr:?} {length}");
    }
    // Memory on demand may come later.
    let on_demand = LOCAL_WRITE | access::ON_DEMAND as c_int;
    let later = register(pd, first, 3 * PAGE, on_demand);
    assert!(!later.is_null(), "{:?}", last());
    assert_eq!(call!(mr::dereg(later)), 0);

    let region = register(pd, first.wrapping_add(7), PAGE - 7, LOCAL_WRITE);
    assert!(!region.is_null(), "{:?}", last());
    let flags = CHANGE_TRANSLATION;
    let moved = |addr: *mut u8, length| {
        call!(mr::rereg(
            region,
            flags,
            ptr::null_mut(),
            addr.cast(),
            length,
            0
        ))
    };
    assert_eq!(moved(first, 2 * PAGE), WRONG_ARGUMENT);
    assert_eq!(last(), Some(libc::EFAULT));
    assert_eq!(moved(third, PAGE), 0);

    assert_eq!(call!(mr::dereg(region)), 0);
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(context::close_device(context)), 0);
}

/// DLSlime asks for 32, where five bits go into the packet.
#[test]
fn a_min_rnr_timer_is_cut_to_its_five_bits_as_by_a_kernel() {
    const MIN_RNR_TIMER: c_int = 1 << 15;
    let context = open();
    let pd = call!(pd::alloc(context));
    let queue = call!(cq::create(context, 4, ptr::null_mut(), ptr::null_mut(), 0));
    let mut init: IbvQpInitAttr = zeroed();
    (init.send_cq, init.recv_cq) = (queue, queue);
    init.qp_type = qp_type::RC;
    init.cap.max_send_wr = 1;
    init.cap.max_send_sge = 1;
    let made = call!(qp::create(pd, &raw mut init));
    let mut attr: IbvQpAttr = zeroed();
    attr.port_num = 1;
    attr.path_mtu = 3;
    attr.dest_qp_num = call!((*made).qp_num);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.min_rnr_timer = 32 + 5;
    let gid = &raw mut attr.ah_attr.grh.dgid;
    assert_eq!(call!(context::query_gid(context, 1, 0, gid)), 0);
    // State, then: rights, partition and port; route, MTU, the peer's number and first PSN, depth, and the timer.
    let to_rtr = 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | MIN_RNR_TIMER;
    for (state, rest) in [(1, 8 | 16 | 32), (2, to_rtr)] {
        attr.qp_state = state;
        assert_eq!(call!(qp::modify(made, &raw mut attr, 1 | rest)), 0);
    }
    let mut known: IbvQpAttr = zeroed();
    let asked = call!(qp::query(
        made,
        &raw mut known,
        MIN_RNR_TIMER,
        &raw mut init
    ));
    assert_eq!((asked, known.min_rnr_timer), (0, 5));

    assert_eq!(call!(qp::destroy(made)), 0);
    assert_eq!(call!(cq::destroy(queue)), 0);
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(context::close_device(context)), 0);
}
