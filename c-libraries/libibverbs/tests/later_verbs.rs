//! The verbs that rdma-core 45 to 65 added: registration by one structure, dmabufs, buffers, DMA handles, the speed of a port, and
//! completion counters.
#![allow(unsafe_code)]

mod c;

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::{io, mem, ptr};

use polyverbs::Memory;
use polyverbs_libibverbs::abi::{
    IbvAllocDmAttr, IbvCompCntrCaps, IbvCompCntrInitAttr, IbvContext, IbvDmahInitAttr, IbvMr,
    IbvMrInitAttr, IbvPd, IbvQpAttachCompCntrAttr, IbvQpAttr, IbvQpInitAttr, IbvRecvWr, IbvSge,
    access, mr_init_attr, qp_type,
};
use polyverbs_libibverbs::{buf, counter, cq, device, dm, dmah, mr, open, pd, post, qp, query};

use c::{call, last, zeroed};

const DEVICES: &str = "[[device]]\nname = \"ib0\"\nwire = false\n\
    [[device]]\nname = \"ib1\"\nwire = false\naddress = \"127.0.0.2\"\n\
    [[device]]\nname = \"iw0\"\nwire = false\ntransport = \"iwarp\"\n";
const LOCAL_WRITE: c_int = 1;
const REMOTE_WRITE: c_int = 1 << 1;
const REMOTE_READ: c_int = 1 << 2;
const MW_BIND: c_int = 1 << 4;
const PAGE: usize = 4096;

/// An open device with a protection domain.
struct Opened {
    context: *mut IbvContext,
    pd: *mut IbvPd,
}

impl Opened {
    fn at(index: usize) -> Self {
        test_kit::configure(DEVICES);
        let context = open::open_device(device::devices()[index].as_public());
        assert!(!context.is_null(), "{:?}", last());
        let pd = call!(pd::alloc(context));
        Self { context, pd }
    }

    fn dmabuf(
        &self,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> Result<*mut IbvMr, Option<c_int>> {
        found(call!(mr::reg_dmabuf(
            self.pd, offset, length, iova, fd, access
        )))
    }

    fn register(&self, attr: &IbvMrInitAttr) -> Result<*mut IbvMr, Option<c_int>> {
        found(call!(mr::reg_ex(self.pd, attr)))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(call!(pd::dealloc(self.pd)), 0, "something was left");
            assert_eq!(call!(open::close_device(self.context)), 0);
        }
    }
}

// What a verb has made, or its error number.
fn found<T>(made: *mut T) -> Result<*mut T, Option<c_int>> {
    match made.is_null() {
        true => Err(last()),
        false => Ok(made),
    }
}

fn dereg(made: *mut IbvMr) {
    assert_eq!(call!(mr::dereg(made)), 0);
}

#[test]
fn a_dmabuf_is_registered_where_it_can_be_mapped() {
    let device = Opened::at(0);
    let (_memory, file) = Memory::shared(3 * PAGE).unwrap();
    let fd = file.as_raw_fd();
    let rights = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE;
    let made = device.dmabuf(PAGE as u64, 2 * PAGE, 0x7000, fd, rights);
    let made = made.unwrap();
    let public = call!(&*made);
    assert_eq!((public.addr.addr(), public.length), (PAGE, 2 * PAGE));
    dereg(made);

    let refused = |offset, length, iova, fd, access| {
        let made = device.dmabuf(offset, length, iova, fd, access);
        made.unwrap_err().unwrap()
    };
    assert_eq!(refused(0, 3 * PAGE + 1, 0, fd, LOCAL_WRITE), libc::EINVAL);
    assert_eq!(refused(u64::MAX, 1, PAGE as u64 - 1, fd, 0), libc::EINVAL);
    assert_eq!(refused(0, 0, 0, fd, LOCAL_WRITE), libc::EINVAL);
    assert_eq!(refused(0, PAGE, 1, fd, LOCAL_WRITE), libc::EINVAL);
    assert_eq!(refused(0, PAGE, 0, fd, MW_BIND), libc::EINVAL);
    let (pipe, _writer) = io::pipe().unwrap();
    assert_eq!(refused(0, PAGE, 0, pipe.as_raw_fd(), 0), libc::EINVAL);
    assert_eq!(refused(0, PAGE, 0, -1, 0), libc::EBADF);
    // A number so large that no other test opens it.
    let closed = call!(libc::fcntl(fd, libc::F_DUPFD, 900));
    call!(libc::close(closed));
    assert_eq!(refused(0, PAGE, 0, closed, 0), libc::EBADF);
}

#[test]
fn a_region_by_structure_names_its_memory_once() {
    let device = Opened::at(0);
    let mut memory = [0_u8; 64];
    let (_shared, file) = Memory::shared(PAGE).unwrap();
    let mut attr = |mask| {
        let mut attr: IbvMrInitAttr = zeroed();
        attr.comp_mask = mask;
        (attr.length, attr.access) = (64, LOCAL_WRITE);
        (attr.addr, attr.fd) = (memory.as_mut_ptr().cast(), file.as_raw_fd());
        // Its offset in its page is that of the address, or of the file.
        attr.iova = match mask & mr_init_attr::FD {
            0 => 0x1000 | (memory.as_ptr().addr() as u64 & 0xfff),
            _ => 0x1000,
        };
        attr
    };
    use mr_init_attr::{ADDR, BUF, DMAH, FD, FD_OFFSET, IOVA};
    for mask in [ADDR, ADDR | IOVA, FD | FD_OFFSET | IOVA] {
        dereg(device.register(&attr(mask)).unwrap());
    }
    for mask in [
        0,
        IOVA,
        ADDR | FD,
        ADDR | FD_OFFSET,
        FD | IOVA,
        FD | FD_OFFSET,
        ADDR | DMAH,
        ADDR | BUF,
        BUF,
    ] {
        let refused = device.register(&attr(mask)).unwrap_err();
        assert_eq!(refused, Some(libc::EINVAL), "{mask:#x}");
    }
    let unknown = device.register(&attr(ADDR | 1 << 6)).unwrap_err();
    assert_eq!(unknown, Some(libc::EOPNOTSUPP));
    let none = call!(mr::reg_ex(device.pd, ptr::null()));
    assert_eq!((none, last()), (ptr::null_mut(), Some(libc::EINVAL)));
}

#[test]
fn a_dma_handle_stays_while_a_region_uses_it() {
    let device = Opened::at(0);
    let mut given: IbvDmahInitAttr = zeroed();
    given.comp_mask = 7;
    (given.ph, given.tph_mem_type) = (2, 1);
    let alloc = |given: &IbvDmahInitAttr| found(call!(dmah::alloc(device.context, given)));
    let handle = alloc(&given).unwrap();
    let mut memory = [0_u8; 64];
    let mut attr: IbvMrInitAttr = zeroed();
    attr.comp_mask = mr_init_attr::ADDR | mr_init_attr::DMAH;
    (attr.addr, attr.length) = (memory.as_mut_ptr().cast(), 64);
    attr.dmah = handle;
    let region = device.register(&attr).unwrap();
    assert_eq!(call!(dmah::dealloc(handle)), libc::EBUSY);
    dereg(region);
    let other = Opened::at(1);
    assert_eq!(other.register(&attr), Err(Some(libc::EINVAL)));
    assert_eq!(call!(dmah::dealloc(handle)), 0);
    assert_eq!(call!(dmah::dealloc(handle)), libc::EINVAL);
    assert_eq!(device.register(&attr), Err(Some(libc::EINVAL)));

    let unknown = IbvDmahInitAttr {
        comp_mask: 8,
        ..given
    };
    assert_eq!(alloc(&unknown), Err(Some(libc::EOPNOTSUPP)));
    let no_type = IbvDmahInitAttr {
        tph_mem_type: 2,
        ..given
    };
    assert_eq!(alloc(&no_type), Err(Some(libc::EINVAL)));
    let no_processor = IbvDmahInitAttr {
        cpu_id: u32::MAX,
        ..given
    };
    assert_eq!(alloc(&no_processor), Err(Some(libc::EINVAL)));
}

#[test]
fn a_buffer_is_registered_in_its_domain_and_exported() {
    // On iWARP, a sink of reads has a second key.
    for index in [0, 2] {
        let device = Opened::at(index);
        let mut handle = ptr::null_mut();
        let at = call!(buf::alloc(device.pd, 2 * PAGE, &raw mut handle)).cast::<u8>();
        assert!(!at.is_null() && at.addr() % PAGE == 0);
        let register = |at: *mut u8, length| {
            let at = at.cast::<c_void>();
            found(call!(mr::reg_buf(
                device.pd,
                handle,
                at,
                length,
                LOCAL_WRITE
            )))
        };
        let region = register(at.wrapping_add(PAGE), PAGE).unwrap();
        assert_eq!(call!((*region).addr), at.wrapping_add(PAGE).cast());
        for (at, length) in [
            (at, 2 * PAGE + 1),
            (at.wrapping_sub(1), 1),
            (at.wrapping_add(2 * PAGE + 1), 0),
        ] {
            assert_eq!(register(at, length), Err(Some(libc::EINVAL)));
        }
        let other = call!(pd::alloc(device.context));
        let made = call!(mr::reg_buf(other, handle, at.cast(), PAGE, LOCAL_WRITE));
        assert_eq!(found(made), Err(Some(libc::EINVAL)));
        assert_eq!(call!(pd::dealloc(other)), 0);

        let fd = call!(buf::export_fd(handle));
        assert!(fd >= 0, "{:?}", last());
        // SAFETY: the program owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        call!(at.write_volatile(9));
        let again = device.dmabuf(0, 2 * PAGE, 0, file.as_raw_fd(), LOCAL_WRITE);
        dereg(again.unwrap());
        call!(buf::free(handle));
        // The region keeps the memory.
        call!(at.wrapping_add(PAGE).write_volatile(1));
        dereg(region);
        assert_eq!(
            (call!(buf::export_fd(handle)), last()),
            (-1, Some(libc::EINVAL))
        );
    }
}

#[test]
fn device_memory_is_a_file_that_another_process_maps() {
    let device = Opened::at(0);
    let mut attr: IbvAllocDmAttr = zeroed();
    attr.length = 2 * PAGE;
    let made = call!(dm::alloc(device.context, &raw const attr));
    let fd = call!(dm::export_fd(made));
    assert!(fd >= 0, "{:?}", last());
    // SAFETY: the program owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let mapped = Memory::map_file(std::os::fd::AsFd::as_fd(&file), 0, 2 * PAGE).unwrap();
    let copy: unsafe extern "C" fn(*mut c_void, u64, *const c_void, usize) -> c_int =
        call!(mem::transmute::<*const c_void, _>((*made).memcpy_to_dm));
    assert_eq!(call!(copy(made.cast(), 4, c"seen".as_ptr().cast(), 4)), 0);
    assert_eq!(mapped.to_vec(4, 4).unwrap(), b"seen");
    assert_eq!(call!(dm::free(made)), 0);
    assert_eq!(
        (call!(dm::export_fd(made)), last()),
        (-1, Some(libc::EINVAL))
    );
}

#[test]
fn the_speed_of_a_port_is_in_units_of_100_mbps() {
    let device = Opened::at(0);
    let mut speed = 0;
    assert_eq!(
        call!(query::query_port_speed(device.context, 1, &raw mut speed)),
        0
    );
    assert_eq!(speed, 25);
    for port in [0, 2, 257] {
        let asked = call!(query::query_port_speed(
            device.context,
            port,
            &raw mut speed
        ));
        assert_eq!(asked, libc::EINVAL);
    }
    let asked = call!(query::query_port_speed(device.context, 1, ptr::null_mut()));
    assert_eq!(asked, libc::EINVAL);
}

#[test]
fn a_counter_counts_the_receives_of_its_queue_pair() {
    const RECV: u32 = 1 << 1;
    let device = Opened::at(0);
    let mut attr: IbvCompCntrInitAttr = zeroed();
    let made = found(call!(counter::create(device.context, &raw const attr))).unwrap();
    let queue = call!(cq::create(
        device.context,
        4,
        ptr::null_mut(),
        ptr::null_mut(),
        0
    ));
    let mut init: IbvQpInitAttr = zeroed();
    (init.send_cq, init.recv_cq, init.qp_type) = (queue, queue, qp_type::RC);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 2);
    let pair = call!(qp::create(device.pd, &raw mut init));
    let attach = |pair, op_mask, comp_mask| {
        let attr = IbvQpAttachCompCntrAttr { comp_mask, op_mask };
        call!(counter::attach(pair, made, &raw const attr))
    };
    assert_eq!(attach(pair, RECV, 1), libc::EOPNOTSUPP);
    assert_eq!(attach(pair, 1 << 3, 0), libc::EOPNOTSUPP, "remote reads");
    assert_eq!(attach(pair, 0, 0), libc::EINVAL);
    assert_eq!(attach(pair, RECV, 0), 0);
    assert_eq!(attach(pair, RECV | 1, 0), libc::EBUSY);
    assert_eq!(call!(counter::destroy(made)), libc::EBUSY);
    let other = Opened::at(1);
    let foreign = call!(counter::create(other.context, &raw const attr));
    let own = IbvQpAttachCompCntrAttr {
        comp_mask: 0,
        op_mask: 1,
    };
    assert_eq!(
        call!(counter::attach(pair, foreign, &raw const own)),
        libc::EINVAL
    );
    assert_eq!(call!(counter::destroy(foreign)), 0);

    // To INIT, where a receive may be posted, and to ERR, which flushes it.
    let mut state: IbvQpAttr = zeroed();
    (state.qp_state, state.port_num) = (1, 1);
    assert_eq!(
        call!(qp::modify(
            pair,
            &raw mut state,
            1 | 1 << 3 | 1 << 4 | 1 << 5
        )),
        0
    );
    let (mut receive, mut bad): (IbvRecvWr, _) = (zeroed(), ptr::null_mut());
    assert_eq!(call!(post::recv(pair, &raw mut receive, &raw mut bad)), 0);
    state.qp_state = 6;
    assert_eq!(call!(qp::modify(pair, &raw mut state, 1)), 0);
    assert_eq!(attach(pair, 1, 0), libc::EINVAL, "in ERR");
    let read = |read: unsafe extern "C-unwind" fn(_, *mut u64) -> c_int| {
        let mut value = 77;
        assert_eq!(call!(read(made, &raw mut value)), 0);
        value
    };
    test_kit::waiting::until(|| read(counter::read_errors) == 1);
    assert_eq!(read(counter::read_successes), 0);
    assert_eq!(call!(counter::set(made, 5)), 0);
    assert_eq!(call!(counter::add(made, u64::MAX)), 0);
    assert_eq!(call!(counter::add_errors(made, 2)), 0);
    assert_eq!(
        (read(counter::read_successes), read(counter::read_errors)),
        (4, 3)
    );
    assert_eq!(call!(counter::set_errors(made, 0)), 0);
    assert_eq!(read(counter::read_errors), 0);
    assert_eq!(
        call!(counter::read_errors(made, ptr::null_mut())),
        libc::EINVAL
    );

    assert_eq!(call!(qp::destroy(pair)), 0);
    assert_eq!(call!(counter::destroy(made)), 0);
    assert_eq!(call!(counter::destroy(made)), libc::EINVAL);
    assert_eq!(call!(counter::add(made, 1)), libc::EINVAL);
    assert_eq!(call!(cq::destroy(queue)), 0);
    attr.cntr_type = 2;
    let refused = found(call!(counter::create(device.context, &raw const attr)));
    assert_eq!(refused, Err(Some(libc::EINVAL)));
    (attr.cntr_type, attr.comp_mask) = (0, 1);
    let refused = found(call!(counter::create(device.context, &raw const attr)));
    assert_eq!(refused, Err(Some(libc::EOPNOTSUPP)));
}

#[test]
fn capabilities_of_counters_fill_what_the_program_has_room_for() {
    let device = Opened::at(0);
    let mut room: [IbvCompCntrCaps; 2] = zeroed();
    room[1].max_counters = 7;
    let mut ask = |size| call!(counter::query_caps(device.context, room.as_mut_ptr(), size));
    let whole = size_of::<IbvCompCntrCaps>();
    assert_eq!(ask(whole - 1), libc::EINVAL);
    assert_eq!(ask(2 * whole), 0);
    assert_eq!(
        (room[0].max_value, room[0].max_counters),
        (u64::MAX, 1 << 16)
    );
    assert_eq!(room[0].supported_qp_attach_ops, 0b1_0111);
    assert_eq!(room[1].max_counters, 0, "fields of a newer program are 0");
}

#[test]
fn pages_are_prefetched_in_regions_on_demand_only() {
    const FLUSH: u32 = 1;
    const CHANGE_ACCESS: c_int = 1 << 2;
    let on_demand = access::ON_DEMAND as c_int;
    let device = Opened::at(0);
    let (memory, file) = Memory::shared(4 * PAGE).unwrap();
    let (start, iova) = (memory.address(), 0x10_0000);
    let register = |length, flags| {
        let at = ptr::with_exposed_provenance_mut(start as usize);
        found(call!(mr::reg_iova(device.pd, at, length, iova, flags))).unwrap()
    };
    let region = register(4 * PAGE, LOCAL_WRITE | on_demand);
    let read_only = register(4 * PAGE, REMOTE_READ | on_demand);
    let pinned = register(4 * PAGE, LOCAL_WRITE);
    let advise_in = |pd, advice, flags, region: *mut IbvMr, addr, length| {
        let lkey = call!((*region).lkey);
        let sge = IbvSge { addr, length, lkey };
        call!(mr::advise(pd, advice, flags, &raw const sge, 1))
    };
    let advise = |advice, flags, region, addr, length| {
        advise_in(device.pd, advice, flags, region, addr, length)
    };
    let whole = 4 * PAGE as u32;
    for advice in 0..3 {
        assert_eq!(advise(advice, FLUSH, region, iova, whole), 0);
        assert_eq!(advise(advice, 0, region, iova + 5, 7), 0);
    }
    assert_eq!(advise(0, FLUSH, read_only, iova, whole), 0);
    assert_eq!(advise(1, FLUSH, read_only, iova, whole), libc::EPERM);
    assert_eq!(advise(0, FLUSH, pinned, iova, whole), libc::EFAULT);
    for (addr, length) in [(iova - 1, 2), (iova + 1, whole), (u64::MAX, 2)] {
        assert_eq!(advise(0, FLUSH, region, addr, length), libc::EFAULT);
    }
    assert_eq!(advise(3, FLUSH, region, iova, 1), libc::EOPNOTSUPP);
    assert_eq!(advise(0, 2, region, iova, 1), libc::EINVAL);
    assert_eq!(
        call!(mr::advise(device.pd, 0, FLUSH, ptr::null(), 1)),
        libc::EINVAL
    );
    let other = call!(pd::alloc(device.context));
    assert_eq!(advise_in(other, 0, FLUSH, region, iova, 1), libc::EPERM);
    assert_eq!(call!(pd::dealloc(other)), 0);
    // Pages beyond the end of a file that became shorter are reported if the program waits for them.
    std::fs::File::from(file).set_len(PAGE as u64).unwrap();
    assert_eq!(advise(0, FLUSH, region, iova, PAGE as u32), 0);
    assert_eq!(advise(0, FLUSH, region, iova, whole), libc::EFAULT);
    assert_eq!(advise(0, 0, region, iova, whole), 0);
    // A change of the rights counts.
    let flags = REMOTE_READ | on_demand;
    let pd = ptr::null_mut();
    let changed = call!(mr::rereg(
        region,
        CHANGE_ACCESS,
        pd,
        ptr::null_mut(),
        0,
        flags
    ));
    assert_eq!(changed, 0);
    assert_eq!(advise(0, FLUSH, region, iova, 1), 0);
    assert_eq!(advise(1, FLUSH, region, iova, 1), libc::EPERM);
    let key = call!((*region).lkey);
    [region, read_only, pinned].into_iter().for_each(dereg);
    let sge = IbvSge {
        addr: iova,
        length: 1,
        lkey: key,
    };
    let gone = call!(mr::advise(device.pd, 0, FLUSH, &raw const sge, 1));
    assert_eq!(gone, libc::EFAULT);

    // All of the address space, most of which is not mapped.
    let everything = call!(mr::reg(
        device.pd,
        ptr::null_mut(),
        usize::MAX,
        LOCAL_WRITE | on_demand
    ));
    let everything = found(everything).unwrap();
    assert_eq!(advise(1, FLUSH, everything, start, PAGE as u32), 0);
    assert_eq!(advise(1, FLUSH, everything, PAGE as u64, 1), libc::EFAULT);
    dereg(everything);
}
