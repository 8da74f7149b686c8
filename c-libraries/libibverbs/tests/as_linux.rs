//! Behaviour of a kernel's devices that programs rely on, where the manual pages say nothing or otherwise.
#![allow(unsafe_code)]

mod c;

use std::ffi::{c_int, c_uint, c_void};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::{mem, ptr};

use polyverbs::{Access, MrOptions};
use polyverbs_libibverbs::abi::{
    self, IbvContext, IbvCq, IbvMr, IbvParentDomainInitAttr, IbvPd, IbvQp, IbvQpAttr, IbvQpEx,
    IbvQpInitAttr, IbvQpInitAttrEx, IbvRecvWr, IbvSendWr, IbvSge, IbvTd, IbvWc, access, qp_type,
};
use polyverbs_libibverbs::{cq, device, mr, mw, open, pd, post, qp, qp_ex, query};

use c::{call, last, zeroed};

const DEVICES: &str = "[[device]]\nname = \"ib0\"\nwire = false\n";
const PAGE: usize = 4096;
const LOCAL_WRITE: c_int = 1;
const REMOTE_WRITE: c_int = 1 << 1;
const REMOTE_READ: c_int = 1 << 2;
const CHANGE_TRANSLATION: c_int = 1;
const MIN_RNR_TIMER: c_int = 1 << 15;
const WRONG_ARGUMENT: c_int = -1;

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
    test_kit::configure(DEVICES);
    open::open_device(device::devices()[0].as_public())
}

fn register(pd: *mut IbvPd, addr: *mut u8, length: usize, flags: c_int) -> *mut IbvMr {
    call!(mr::reg(pd, addr.cast::<c_void>(), length, flags))
}

#[test]
fn unmapped_memory_is_refused_as_by_a_kernel() {
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
    // Memory on demand may be mapped later.
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
    assert_eq!(call!(open::close_device(context)), 0);
}

#[test]
fn an_iova_has_the_offset_in_its_page_that_the_address_has() {
    let context = open();
    let pd = call!(pd::alloc(context));
    let mut memory = [0_u8; 64];
    let at: *mut c_void = memory.as_mut_ptr().cast();
    let offset = at.addr() as u64 % PAGE as u64;
    for (iova, fits) in [
        (offset, true),
        (0x7000_0000_0000 + offset, true),
        (offset ^ 1, false),
        (0x7000_0000_0000 + (offset ^ 64), false),
    ] {
        let plain = call!(mr::reg_iova(pd, at, 64, iova, LOCAL_WRITE));
        assert_eq!(plain.is_null(), !fits, "{iova:#x}");
        let second = call!(mr::reg_iova2(pd, at, 64, iova, LOCAL_WRITE as c_uint));
        assert_eq!(second.is_null(), !fits, "{iova:#x}");
        if fits {
            assert_eq!(call!((mr::dereg(plain), mr::dereg(second))), (0, 0));
        } else {
            assert_eq!(last(), Some(libc::EINVAL), "{iova:#x}");
        }
    }
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(open::close_device(context)), 0);
}

// covers 5.21
#[test]
fn an_address_is_checked_if_a_c_program_names_it() {
    let context = open();
    let pd = call!(pd::alloc(context));
    let hole = pages_with_a_hole().wrapping_add(PAGE);
    assert!(register(pd, hole, PAGE, LOCAL_WRITE).is_null());
    assert_eq!(last(), Some(libc::EFAULT));
    // A Rust caller has promised that the memory is there. No request names the region, so that nothing accesses it.
    let options = MrOptions::new(Access::LOCAL_WRITE);
    let region = call!(pd::own(pd).unwrap().register_borrowed(hole, PAGE, options));
    region.wait().unwrap().deregister().wait().unwrap();
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(open::close_device(context)), 0);
}

#[test]
fn memory_that_cannot_be_pinned_for_the_rights_is_refused() {
    const CHANGE_ACCESS: c_int = 1 << 2;
    let context = open();
    let pd = call!(pd::alloc(context));
    let is_refused = |addr: *mut u8, length, flags| {
        let region = register(pd, addr, length, flags);
        if region.is_null() {
            assert_eq!(last(), Some(libc::EFAULT));
            return true;
        }
        assert_eq!(call!(mr::dereg(region)), 0);
        false
    };
    let (mut file, path) = {
        let name = format!("polyverbs-pinned-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        (std::fs::File::create(&path).unwrap(), path)
    };
    file.write_all(&[1; PAGE]).unwrap();
    let opened_for_reading = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let map = |rights, flags, file: c_int| {
        let pages = call!(libc::mmap(
            ptr::null_mut(),
            2 * PAGE,
            rights,
            flags,
            file,
            0
        ));
        assert_ne!(pages, libc::MAP_FAILED);
        pages.cast::<u8>()
    };
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    let inaccessible = map(libc::PROT_NONE, anonymous, -1);
    assert!(is_refused(inaccessible, PAGE, 0));
    let read_only = map(libc::PROT_READ, anonymous, -1);
    assert!(is_refused(read_only, PAGE, LOCAL_WRITE) && !is_refused(read_only, PAGE, REMOTE_READ));
    let of_file = map(
        libc::PROT_READ,
        libc::MAP_SHARED,
        opened_for_reading.as_raw_fd(),
    );
    assert!(is_refused(of_file, PAGE, LOCAL_WRITE) && !is_refused(of_file, PAGE, REMOTE_READ));
    assert!(is_refused(of_file, 2 * PAGE, REMOTE_READ));

    let region = register(pd, read_only, PAGE, 0);
    let none = ptr::null_mut();
    let changed = call!(mr::rereg(
        region,
        CHANGE_ACCESS,
        none,
        ptr::null_mut(),
        0,
        LOCAL_WRITE
    ));
    assert_eq!((changed, last()), (WRONG_ARGUMENT, Some(libc::EFAULT)));
    assert_eq!(call!(mr::dereg(region)), 0);
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(open::close_device(context)), 0);
}

#[test]
fn a_handle_of_another_kind_is_refused() {
    let context = open();
    let pd = call!(pd::alloc(context));
    let queue = call!(cq::create(context, 1, ptr::null_mut(), ptr::null_mut(), 0));
    assert_eq!(call!(pd::dealloc(queue.cast())), libc::EINVAL);
    assert_eq!(call!(cq::destroy(pd.cast())), libc::EINVAL);
    assert_eq!(call!(mr::dereg(pd.cast())), libc::EINVAL);
    assert_eq!(call!(qp::destroy(queue.cast())), libc::EINVAL);
    assert!(call!(pd::alloc(pd.cast())).is_null());
    assert_eq!(call!(cq::destroy(queue)), 0);
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(open::close_device(context)), 0);
}

/// A connection of a queue pair with itself.
struct Loop {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    queue: *mut IbvCq,
    qp: *mut IbvQp,
    /// A thread domain, and the parent domain of it and of the protection domain, to which the queue pair belongs.
    thread: Option<(*mut IbvTd, *mut IbvPd)>,
}

impl Loop {
    fn new(min_rnr_timer: u8) -> Self {
        Self::made_by(min_rnr_timer, |_, pd, init| call!(qp::create(pd, init)))
    }

    /// A connection that the program promises to use from one thread at a time.
    fn of_one_thread() -> Self {
        let mut thread = None;
        let mut connection = Self::made_by(0, |context, pd, init| {
            let td = call!(pd::alloc_td(context, ptr::null()));
            let mut attr: IbvParentDomainInitAttr = zeroed();
            (attr.pd, attr.td) = (pd, td);
            let parent = call!(pd::alloc_parent(context, &raw const attr));
            assert!(!td.is_null() && !parent.is_null(), "{:?}", last());
            thread = Some((td, parent));
            call!(qp::create(parent, init))
        });
        connection.thread = thread;
        connection
    }

    /// A connection whose queue pair has the extended interface.
    fn extended() -> Self {
        const PD: u32 = 1;
        const SEND_OPS_FLAGS: u32 = 1 << 6;
        const WRITE: u64 = 1;
        Self::made_by(0, |context, pd, init| {
            let mut extended: IbvQpInitAttrEx = zeroed();
            (extended.send_cq, extended.recv_cq) = (init.send_cq, init.recv_cq);
            (extended.qp_type, extended.cap, extended.pd) = (init.qp_type, init.cap, pd);
            extended.comp_mask = PD | SEND_OPS_FLAGS;
            extended.send_ops_flags = WRITE;
            call!(qp_ex::create(context, &raw mut extended))
        })
    }

    fn made_by(
        min_rnr_timer: u8,
        create: impl FnOnce(*mut IbvContext, *mut IbvPd, &mut IbvQpInitAttr) -> *mut IbvQp,
    ) -> Self {
        let context = open();
        let pd = call!(pd::alloc(context));
        let queue = call!(cq::create(context, 4, ptr::null_mut(), ptr::null_mut(), 0));
        let mut init: IbvQpInitAttr = zeroed();
        (init.send_cq, init.recv_cq) = (queue, queue);
        init.qp_type = qp_type::RC;
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 1);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (2, 2);
        let qp = create(context, pd, &mut init);
        assert!(!qp.is_null(), "{:?}", last());
        let mut attr: IbvQpAttr = zeroed();
        attr.port_num = 1;
        attr.qp_access_flags = REMOTE_WRITE as c_uint;
        attr.path_mtu = 3;
        attr.dest_qp_num = call!((*qp).qp_num);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.hop_limit = 1;
        attr.ah_attr.port_num = 1;
        attr.min_rnr_timer = min_rnr_timer;
        let gid = &raw mut attr.ah_attr.grh.dgid;
        assert_eq!(call!(query::query_gid(context, 1, 0, gid)), 0);
        // The attributes after the state: rights, P_Key index, port; path, MTU, RQ PSN, RNR timer, depth, the peer's
        // number; timeout, retries, depth, SQ PSN.
        let to_init = 1 << 3 | 1 << 4 | 1 << 5;
        let to_rtr = 1 << 7 | 1 << 8 | 1 << 12 | MIN_RNR_TIMER | 1 << 17 | 1 << 20;
        let to_rts = 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
        for (state, rest) in [(1, to_init), (2, to_rtr), (3, to_rts)] {
            attr.qp_state = state;
            assert_eq!(call!(qp::modify(qp, &raw mut attr, 1 | rest)), 0);
        }
        Self {
            context,
            pd,
            queue,
            qp,
            thread: None,
        }
    }
}

impl Loop {
    /// Sends an immediate to the queue pair itself. Returns the completions of the send and of the receive.
    fn exchange(&self) -> [IbvWc; 2] {
        const SEND_WITH_IMM: c_int = 3;
        const SIGNALED: u32 = 2;
        let mut receive: IbvRecvWr = zeroed();
        let mut send: IbvSendWr = zeroed();
        (send.opcode, send.send_flags) = (SEND_WITH_IMM, SIGNALED);
        let (mut no_receive, mut no_send) = (ptr::null_mut(), ptr::null_mut());
        let posted = call!(post::recv(self.qp, &raw mut receive, &raw mut no_receive));
        assert_eq!(posted, 0);
        let posted = call!(post::send(self.qp, &raw mut send, &raw mut no_send));
        assert_eq!(posted, 0);
        let mut both = [self.done(), self.done()];
        both.sort_by_key(|done| done.opcode);
        both
    }

    fn done(&self) -> IbvWc {
        test_kit::waiting::until_some(|| {
            let mut done: IbvWc = zeroed();
            (call!(cq::poll(self.queue, 1, &raw mut done)) == 1).then_some(done)
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        assert_eq!(call!(qp::destroy(self.qp)), 0);
        assert_eq!(call!(cq::destroy(self.queue)), 0);
        if let Some((td, parent)) = self.thread {
            assert_eq!(call!(pd::dealloc(self.pd)), libc::EBUSY);
            assert_eq!(call!(pd::dealloc(parent)), 0);
            assert_eq!(call!(pd::dealloc_td(td)), 0);
        }
        assert_eq!(call!(pd::dealloc(self.pd)), 0);
        assert_eq!(call!(open::close_device(self.context)), 0);
    }
}

// Calls a function in a slot of an extended queue pair.
macro_rules! slot {
    ($qp:expr, $slot:ident: fn($($argument:expr => $kind:ty),*) $(-> $result:ty)?) => {{
        let slots = call!((*$qp).slots);
        type Slot = unsafe extern "C" fn(*mut IbvQpEx $(, $kind)*) $(-> $result)?;
        let slot = call!(mem::transmute::<*const c_void, Slot>(slots[abi::qp_ex::$slot]));
        call!(slot($qp $(, $argument)*))
    }};
}

/// The last 16 bytes of memory after which nothing is mapped.
fn end_of_memory() -> *mut u8 {
    pages_with_a_hole().wrapping_add(PAGE - size_of::<IbvSge>())
}

#[test]
fn a_batch_that_cannot_be_completed_carries_out_nothing() {
    const SIGNALED: c_uint = 2;
    let connection = Loop::extended();
    let qp = connection.qp.cast::<IbvQpEx>();
    let mut memory = [0_u8; 128];
    memory[0] = 7;
    let rights = LOCAL_WRITE | REMOTE_WRITE;
    let region = register(connection.pd, memory.as_mut_ptr(), memory.len(), rights);
    let key = call!((*region).rkey);
    let target = memory.as_ptr() as u64 + 64;
    let begin = || {
        call!((*qp).wr_flags = SIGNALED);
        slot!(qp, START: fn());
    };
    let write = || {
        slot!(qp, RDMA_WRITE: fn(key => u32, target => u64));
        slot!(qp, SET_SGE: fn(key => u32, target - 64 => u64, 1 => u32));
    };
    let end = || slot!(qp, COMPLETE: fn() -> c_int);
    let end_of_memory = end_of_memory();
    let spoilers: [(&dyn Fn(), c_int); 4] = [
        (
            &|| slot!(qp, SET_INLINE_DATA: fn(end_of_memory => *const u8, 1 << 20 => usize)),
            libc::EINVAL,
        ),
        (
            &|| slot!(qp, SET_SGE_LIST: fn(usize::MAX => usize, end_of_memory => *const u8)),
            libc::EINVAL,
        ),
        (
            &|| slot!(qp, SET_INLINE_DATA_LIST: fn(9 => usize, ptr::null() => *const u8)),
            libc::EFAULT,
        ),
        (&|| (0..100).for_each(|_| write()), libc::ENOMEM),
    ];
    for (number, (spoil, errno)) in spoilers.into_iter().enumerate() {
        begin();
        write();
        write();
        spoil();
        assert_eq!(end(), errno, "spoiler {number}");
        let mut done: IbvWc = zeroed();
        assert_eq!(call!(cq::poll(connection.queue, 1, &raw mut done)), 0);
        assert_eq!(call!(ptr::read_volatile(&raw const memory[64])), 0);
    }
    begin();
    write();
    assert_eq!((end(), connection.done().status), (0, 0));
    assert_eq!(call!(ptr::read_volatile(&raw const memory[64])), 7);
    assert_eq!(call!(mr::dereg(region)), 0);
}

#[test]
fn counts_and_lengths_are_compared_before_memory_is_read() {
    const SEND: c_int = 2;
    const INLINE: u32 = 8;
    let connection = Loop::new(0);
    let end = end_of_memory();
    let mut send: IbvSendWr = zeroed();
    let mut post = |list: &[IbvSge], count: c_int, flags| {
        (send.opcode, send.send_flags) = (SEND, flags);
        (send.sg_list, send.num_sge) = (list.as_ptr(), count);
        let mut bad = ptr::null_mut();
        let posted = call!(post::send(connection.qp, &raw mut send, &raw mut bad));
        (posted, bad == &raw mut send)
    };
    let long = IbvSge {
        addr: end as u64,
        length: 1 << 20,
        lkey: 0,
    };
    // SAFETY: there is memory for exactly this entry.
    let last = unsafe { &mut *end.cast::<[IbvSge; 1]>() };
    for flags in [0, INLINE] {
        for count in [3, c_int::MAX, -1, c_int::MIN] {
            assert_eq!(post(last, count, flags), (libc::EINVAL, true), "{count}");
        }
    }
    assert_eq!(post(&[long], 1, INLINE), (libc::EINVAL, true));
    assert_eq!(post(&[long, long], 2, INLINE), (libc::EINVAL, true));

    let mut receive: IbvRecvWr = zeroed();
    let mut bad = ptr::null_mut();
    for count in [3, c_int::MAX, -1] {
        (receive.sg_list, receive.num_sge) = (last.as_ptr(), count);
        let posted = call!(post::recv(connection.qp, &raw mut receive, &raw mut bad));
        assert_eq!((posted, bad), (libc::EINVAL, &raw mut receive));
    }
}

/// DLSlime asks for 32, where five bits go into the packet.
#[test]
fn a_min_rnr_timer_is_truncated_to_five_bits() {
    let connection = Loop::new(32 + 5);
    let mut init: IbvQpInitAttr = zeroed();
    let mut known: IbvQpAttr = zeroed();
    let (known_at, init_at) = (&raw mut known, &raw mut init);
    let asked = call!(qp::query(connection.qp, known_at, MIN_RNR_TIMER, init_at));
    assert_eq!((asked, known.min_rnr_timer), (0, 5));
}

/// perftest sets the attributes of both sides for an initiator of XRC, and Linux's core drops those of the target.
#[test]
fn attributes_of_the_other_half_of_xrc_are_ignored() {
    let connection = Loop::made_by(0, |_, pd, init| {
        init.qp_type = qp_type::XRC_SEND;
        call!(qp::create(pd, init))
    });
    assert_eq!(call!((*connection.qp).state), 3);
}

/// `ibv_rc_pingpong` asks for 1, with which nothing passes a router.
#[test]
fn the_hop_limit_of_a_path_to_one_host_is_the_routes() {
    const AV: c_int = 1 << 7;
    let connection = Loop::new(0);
    let (mut known, mut init): (IbvQpAttr, IbvQpInitAttr) = (zeroed(), zeroed());
    let (known_at, init_at) = (&raw mut known, &raw mut init);
    let asked = call!(qp::query(connection.qp, known_at, AV, init_at));
    assert_eq!((asked, known.ah_attr.grh.hop_limit), (0, 64));
}

/// async-rdma takes a completion for one with immediate data if these are its flags, and no others.
#[test]
fn receives_of_connections_have_the_grh_flag_as_with_rxe() {
    const GRH: u32 = 1;
    const WITH_IMM: u32 = 2;
    let done = Loop::new(0).exchange();
    assert_eq!(done.each_ref().map(|done| done.status), [0, 0]);
    assert_eq!(done.map(|done| done.wc_flags), [0, GRH | WITH_IMM]);
}

// covers 3.36
#[test]
fn objects_of_a_thread_domain_behave_like_others() {
    let [plain, single] = [Loop::new(0), Loop::of_one_thread()].map(|connection| {
        let domain = connection
            .thread
            .map_or(connection.pd, |(_, parent)| parent);
        let mut memory = [0_u8; 64];
        let region = register(domain, memory.as_mut_ptr(), memory.len(), LOCAL_WRITE);
        assert!(!region.is_null(), "{:?}", last());
        let done = connection.exchange();
        assert_eq!(call!(mr::dereg(region)), 0);
        done.map(|done| (done.status, done.opcode, done.wc_flags, done.byte_len))
    });
    assert_eq!(plain, single);
}

// covers 2.44 2.47
#[test]
fn a_posted_bind_needs_a_window_and_a_key_of_that_window() {
    const BIND_MW: c_int = 8;
    const SIGNALED: u32 = 2;
    const MW_BIND: c_int = 1 << 4;
    let connection = Loop::new(0);
    let mut memory = [0; 64];
    let region = register(connection.pd, memory.as_mut_ptr(), 64, MW_BIND);
    let window = call!(mw::alloc(connection.pd, 2));
    let key = call!((*window).rkey);
    let mut bind: IbvSendWr = zeroed();
    (bind.opcode, bind.send_flags) = (BIND_MW, SIGNALED);
    bind.bind_mw.bind_info.mr = region;
    (bind.bind_mw.bind_info.addr, bind.bind_mw.bind_info.length) = (memory.as_ptr() as u64, 64);
    let mut post = |mw, rkey| {
        (bind.bind_mw.mw, bind.bind_mw.rkey) = (mw, rkey);
        let mut bad = ptr::null_mut();
        call!(post::send(connection.qp, &raw mut bind, &raw mut bad))
    };
    assert_eq!(post(ptr::null_mut(), key), libc::EINVAL);
    assert_eq!(post(window, key ^ 0x100), libc::EINVAL);
    assert_eq!(post(window, key ^ 0xff), 0);
    assert_eq!(connection.done().status, 0);
    assert_eq!(call!(mw::dealloc(window)), 0);
    assert_eq!(call!(mr::dereg(region)), 0);
}
