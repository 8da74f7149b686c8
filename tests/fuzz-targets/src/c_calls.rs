//! Calls of the C libraries in any order, with arguments that a fuzzer makes up.
//!
//! Pointers refer to existing objects, or are null where a function accepts that; everything else is arbitrary. Whatever
//! is called, nothing aborts or hangs, a call that fails sets errno, and in the end all objects can be destroyed.
#![allow(unsafe_code)]

/// Calls a C function, or reads a C structure.
macro_rules! c {
    ($call:expr) => {{
        // SAFETY: objects are live, structures are the program's own, and buffers are as long as they say.
        unsafe { $call }
    }};
}

mod cm;

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU64;
use std::{mem, ptr};

use polyverbs_libibverbs::abi::{
    Atomic, BindMw, IbvAh, IbvAhAttr, IbvAllocDmAttr, IbvAsyncEvent, IbvCompChannel, IbvContext,
    IbvCq, IbvDm, IbvGid, IbvMr, IbvMw, IbvMwBind, IbvMwBindInfo, IbvPd, IbvQp, IbvQpAttr,
    IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq, IbvSrqAttr, IbvSrqInitAttr,
    IbvWc, Rdma, SendWr, Ud, qp_type, send_flags,
};
use polyverbs_libibverbs::{ah, context, cq, device, dm, mr, mw, open, pd, post, qp, query, srq};
use verbs_api::provider::Mutex;

use crate::c_library::{call, configure};
use crate::intruder::alone;
use crate::script::Script;

/// Runs a C program whose calls a fuzzer makes up.
pub fn run(octets: &[u8]) {
    static PROGRAM: Mutex<()> = Mutex::new(());
    let _alone = alone(&PROGRAM);
    configure();
    let mut arguments = Arguments(Script::new(octets));
    let mut program = Program::default();
    program.open(&mut arguments);
    for _ in 0..STEPS {
        if arguments.0.is_over() {
            break;
        }
        program.step(&mut arguments);
    }
    program.end();
}

/// The source of the arguments of calls.
struct Arguments<'o>(Script<'o>);

impl Arguments<'_> {
    fn octet(&mut self) -> u8 {
        self.0.octet()
    }

    fn octets<const COUNT: usize>(&mut self) -> [u8; COUNT] {
        std::array::from_fn(|_| self.0.octet())
    }

    /// A number: mostly a small one, otherwise any.
    fn number(&mut self) -> u32 {
        match self.octet() {
            small @ 0..224 => u32::from(small) >> 2,
            224..240 => u32::from(u16::from_ne_bytes(self.octets())),
            _ => u32::from_ne_bytes(self.octets()),
        }
    }

    fn signed(&mut self) -> c_int {
        self.number() as c_int
    }

    /// Flags: mostly the low seven bits, otherwise any.
    fn flags(&mut self) -> u32 {
        match self.octet() {
            some @ 0..240 => u32::from(some & 0x7f),
            _ => u32::from_ne_bytes(self.octets()),
        }
    }

    fn is(&mut self) -> bool {
        self.octet() & 1 != 0
    }

    /// One of several objects, or null if there is none.
    fn one_of<T>(&mut self, several: &[*mut T]) -> *mut T {
        let which = usize::from(self.octet());
        let at = which.checked_rem(several.len());
        at.map_or(ptr::null_mut(), |at| several[at])
    }

    /// One of several objects, or sometimes null.
    fn one_or_null<T>(&mut self, several: &[*mut T]) -> *mut T {
        match self.octet() {
            0..32 => ptr::null_mut(),
            _ => self.one_of(several),
        }
    }

    /// A range of the program's memory: its address and length.
    fn memory(&mut self) -> (*mut c_void, usize) {
        let at = usize::from(u16::from_ne_bytes(self.octets())) % MEMORY;
        let length = match self.octet() {
            short @ 0..192 => usize::from(short) * 4,
            _ => usize::from(u16::from_ne_bytes(self.octets())),
        };
        (memory().wrapping_add(at).cast(), length.min(MEMORY - at))
    }
}

/// The memory of all regions; it is static, because devices may write to it after a run.
fn memory() -> *mut u8 {
    static ROOM: [AtomicU64; MEMORY / 8] = [const { AtomicU64::new(0) }; MEMORY / 8];
    ROOM.as_ptr().cast_mut().cast()
}

/// The objects that a program has made and not destroyed yet.
#[derive(Default)]
struct Program {
    contexts: Vec<*mut IbvContext>,
    pds: Vec<*mut IbvPd>,
    channels: Vec<*mut IbvCompChannel>,
    cqs: Vec<*mut IbvCq>,
    mrs: Vec<*mut IbvMr>,
    mws: Vec<*mut IbvMw>,
    srqs: Vec<*mut IbvSrq>,
    ahs: Vec<*mut IbvAh>,
    dms: Vec<*mut IbvDm>,
    qps: Vec<*mut IbvQp>,
    groups: Vec<(*mut IbvQp, IbvGid)>,
    cm: cm::Program,
}

/// A structure with all numbers zero and all pointers null.
fn zeroed<T>() -> T {
    // SAFETY: all zero bytes are a valid value of the C structures here.
    unsafe { mem::zeroed() }
}

/// Keeps the new object, if the call made one.
fn keep<T>(made: impl FnOnce() -> *mut T, among: &mut Vec<*mut T>) {
    let made = call(|made: *mut T| made.is_null(), made);
    if !made.is_null() {
        among.push(made);
    }
}

/// Makes a call that returns an error number.
fn number(of: impl FnOnce() -> c_int) -> c_int {
    let answer = call(|answer| answer != 0, of);
    assert!(answer >= 0, "{answer} is no error number");
    answer
}

/// Destroys one of several objects, if no other object needs it.
fn destroy<T>(
    one: *mut T,
    among: &mut Vec<*mut T>,
    destroy: unsafe extern "C-unwind" fn(*mut T) -> c_int,
) {
    // SAFETY: the object exists, or the pointer is null; a destroyed object is removed from its list.
    if number(|| unsafe { destroy(one) }) == 0 {
        among.retain(|other| *other != one);
    }
}

fn destroy_all<T>(all: &mut Vec<*mut T>, destroy: unsafe extern "C-unwind" fn(*mut T) -> c_int) {
    for one in mem::take(all) {
        // SAFETY: the object exists.
        assert_eq!(
            number(|| c!(destroy(one))),
            0,
            "{}",
            std::any::type_name::<T>()
        );
    }
}

impl Program {
    fn step(&mut self, arguments: &mut Arguments<'_>) {
        match arguments.octet() {
            0..8 => self.open(arguments),
            8..16 => self.close(arguments),
            16..32 => self.domain(arguments),
            32..56 => self.queue(arguments),
            56..80 => self.region(arguments),
            80..96 => self.window(arguments),
            96..112 => self.shared_queue(arguments),
            112..132 => self.queue_pair(arguments),
            132..152 => self.connect(arguments),
            152..164 => self.modify(arguments),
            164..188 => self.post_send(arguments),
            188..200 => self.post_receive(arguments),
            200..210 => self.poll(arguments),
            210..216 => self.events(arguments),
            216..222 => self.address_handle(arguments),
            222..226 => self.group(arguments),
            226..230 => self.device_memory(arguments),
            230..236 => self.query(arguments),
            _ => self.cm.step(arguments),
        }
    }

    fn open(&mut self, arguments: &mut Arguments<'_>) {
        if self.contexts.len() < 2 {
            let devices = device::devices();
            let device = &devices[usize::from(arguments.octet()) % devices.len()];
            keep(|| open::open_device(device.as_public()), &mut self.contexts);
            let Some(opened) = self.contexts.last() else {
                return;
            };
            unblock(c!((**opened).async_fd));
        }
    }

    // A context is closed only without objects: objects that outlived it would be useless.
    fn close(&mut self, arguments: &mut Arguments<'_>) {
        let has_some = [
            self.pds.len(),
            self.channels.len(),
            self.cqs.len(),
            self.dms.len(),
        ];
        if has_some == [0; 4] {
            let one = arguments.one_of(&self.contexts);
            destroy(one, &mut self.contexts, open::close_device);
        }
    }

    fn domain(&mut self, arguments: &mut Arguments<'_>) {
        if arguments.is() {
            let context = arguments.one_or_null(&self.contexts);
            keep(|| c!(pd::alloc(context)), &mut self.pds);
        } else {
            let one = arguments.one_or_null(&self.pds);
            destroy(one, &mut self.pds, pd::dealloc);
        }
    }

    fn queue(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_or_null(&self.cqs);
        match arguments.octet() % 8 {
            0..=3 => {
                let context = arguments.one_or_null(&self.contexts);
                let channel = arguments.one_or_null(&self.channels);
                let (entries, vector) = (arguments.signed(), arguments.signed() / 32);
                let made = || {
                    c!(cq::create(
                        context,
                        entries,
                        ptr::null_mut(),
                        channel,
                        vector
                    ))
                };
                keep(made, &mut self.cqs);
            }
            4 => destroy(one, &mut self.cqs, cq::destroy),
            5 => {
                let entries = arguments.signed();
                number(|| c!(cq::resize(one, entries)));
            }
            6 => {
                let context = arguments.one_or_null(&self.contexts);
                keep(|| c!(cq::create_channel(context)), &mut self.channels);
                if let Some(channel) = self.channels.last() {
                    unblock(c!((**channel).fd));
                }
            }
            _ => {
                let channel = arguments.one_or_null(&self.channels);
                destroy(channel, &mut self.channels, cq::destroy_channel);
            }
        }
    }

    fn region(&mut self, arguments: &mut Arguments<'_>) {
        let (pd, one) = (
            arguments.one_or_null(&self.pds),
            arguments.one_or_null(&self.mrs),
        );
        let (at, length) = arguments.memory();
        let rights = arguments.flags();
        match arguments.octet() % 8 {
            0..=3 => {
                let made = || c!(mr::reg(pd, at, length, rights as c_int));
                keep(made, &mut self.mrs);
            }
            4 => {
                let number = u64::from_ne_bytes(arguments.octets());
                // Most have the address's offset in its page, without which the call is refused.
                let iova = match number % 8 {
                    0 => number,
                    _ => number & !0xfff | at.addr() as u64 & 0xfff,
                };
                let made = || c!(mr::reg_iova2(pd, at, length, iova, rights));
                keep(made, &mut self.mrs);
            }
            5 | 6 => destroy(one, &mut self.mrs, mr::dereg),
            _ => {
                let flags = arguments.signed();
                let change = || c!(mr::rereg(one, flags, pd, at, length, rights as c_int));
                call(|answer| answer != 0, change);
            }
        }
    }

    fn window(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_or_null(&self.mws);
        match arguments.octet() % 4 {
            0 | 1 => {
                let (pd, kind) = (arguments.one_or_null(&self.pds), arguments.signed() % 4);
                keep(|| c!(mw::alloc(pd, kind)), &mut self.mws);
            }
            2 => destroy(one, &mut self.mws, mw::dealloc),
            _ => {
                let bind = IbvMwBind {
                    wr_id: 3,
                    send_flags: arguments.flags(),
                    bind_info: self.bind_info(arguments),
                };
                let qp = arguments.one_of(&self.all_qps());
                number(|| c!(post::bind_mw(qp, one, &raw const bind)));
            }
        }
    }

    fn bind_info(&self, arguments: &mut Arguments<'_>) -> IbvMwBindInfo {
        let (at, length) = arguments.memory();
        IbvMwBindInfo {
            mr: arguments.one_or_null(&self.mrs),
            addr: at.addr() as u64,
            length: length as u64,
            mw_access_flags: arguments.flags(),
        }
    }

    fn shared_queue(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_or_null(&self.srqs);
        let mut attr = IbvSrqAttr {
            max_wr: arguments.number(),
            max_sge: arguments.number() / 8,
            srq_limit: arguments.number(),
        };
        match arguments.octet() % 4 {
            0 | 1 => {
                let pd = arguments.one_or_null(&self.pds);
                let srq_context = ptr::null_mut();
                let mut init = IbvSrqInitAttr { srq_context, attr };
                keep(|| c!(srq::create(pd, &raw mut init)), &mut self.srqs);
            }
            2 => {
                let mask = arguments.signed() & 7;
                number(|| c!(srq::modify(one, &raw const attr, mask)));
                number(|| c!(srq::query(one, &raw mut attr)));
            }
            _ => destroy(one, &mut self.srqs, srq::destroy),
        }
    }

    fn init_attr(&self, arguments: &mut Arguments<'_>) -> IbvQpInitAttr {
        IbvQpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: arguments.one_or_null(&self.cqs),
            recv_cq: arguments.one_or_null(&self.cqs),
            srq: match arguments.octet() {
                0..64 => arguments.one_of(&self.srqs),
                _ => ptr::null_mut(),
            },
            cap: IbvQpCap {
                max_send_wr: arguments.number(),
                max_recv_wr: arguments.number(),
                max_send_sge: arguments.number() / 8,
                max_recv_sge: arguments.number() / 8,
                max_inline_data: arguments.number(),
            },
            qp_type: match arguments.octet() {
                0..128 => qp_type::RC,
                128..160 => qp_type::UC,
                160..240 => qp_type::UD,
                other => c_int::from(other) - 240,
            },
            sq_sig_all: arguments.signed() & 1,
        }
    }

    fn queue_pair(&mut self, arguments: &mut Arguments<'_>) {
        if arguments.octet() % 4 < 3 {
            let pd = arguments.one_or_null(&self.pds);
            let mut init = self.init_attr(arguments);
            keep(|| c!(qp::create(pd, &raw mut init)), &mut self.qps);
        } else {
            let one = arguments.one_or_null(&self.qps);
            destroy(one, &mut self.qps, qp::destroy);
            self.groups.retain(|(qp, _)| self.qps.contains(qp));
        }
    }

    fn all_qps(&self) -> Vec<*mut IbvQp> {
        let mut all = self.qps.clone();
        all.extend(self.cm.qps());
        all
    }

    // Connects two queue pairs, or one with itself, as far as their types permit it.
    fn connect(&mut self, arguments: &mut Arguments<'_>) {
        let pair = [(); 2].map(|()| arguments.one_of(&self.qps));
        let rights = arguments.flags();
        let steps = arguments.octet();
        for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            if one.is_null() || other.is_null() {
                return;
            }
            let mut attr: IbvQpAttr = zeroed();
            attr.port_num = 1;
            attr.path_mtu = 3;
            attr.qp_access_flags = rights;
            attr.dest_qp_num = c!((*other).qp_num);
            attr.ah_attr.is_global = 1;
            attr.ah_attr.port_num = 1;
            (attr.qkey, attr.timeout, attr.retry_cnt) = (0x1111, 8, 1);
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (1, 1);
            let gid = &raw mut attr.ah_attr.grh.dgid;
            number(|| c!(query::query_gid((*other).context, 1, 0, gid)));
            let masks = match c!((*one).qp_type) {
                qp_type::UD => [1 | 1 << 4 | 1 << 5 | 1 << 6, 1, 1 | 1 << 16],
                qp_type::UC => [TO_INIT, TO_RTR_OF_UC, 1 | 1 << 16],
                _ => [TO_INIT, TO_RTR, TO_RTS],
            };
            let first = if steps & 8 == 0 { 0 } else { 1 };
            for state in first..=c_int::from(steps & 3) {
                attr.qp_state = state;
                let mask = match state {
                    0 => 1,
                    state => masks[state as usize - 1],
                };
                number(|| c!(qp::modify(one, &raw mut attr, mask)));
            }
        }
    }

    fn modify(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_of(&self.all_qps());
        let mut attr: IbvQpAttr = zeroed();
        attr.qp_state = c_int::from(arguments.octet() % 9) - 1;
        attr.cur_qp_state = c_int::from(arguments.octet() % 8);
        attr.path_mtu = arguments.signed() / 8;
        (attr.qkey, attr.rq_psn, attr.sq_psn) =
            (arguments.number(), arguments.number(), arguments.number());
        (attr.dest_qp_num, attr.qp_access_flags) = (arguments.number(), arguments.flags());
        attr.ah_attr = self.path(arguments);
        attr.pkey_index = arguments.number() as u16;
        [
            attr.en_sqd_async_notify,
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.min_rnr_timer,
            attr.port_num,
            attr.timeout,
            attr.retry_cnt,
            attr.rnr_retry,
        ] = arguments.octets();
        let mask = match arguments.octet() {
            state @ 0..128 => [1, TO_INIT, TO_RTR, TO_RTS][usize::from(state) % 4],
            128..192 => 1,
            _ => arguments.signed() & 0x1f_ffff,
        };
        let (mut found, mut init) = (zeroed(), zeroed());
        number(|| c!(qp::modify(one, &raw mut attr, mask)));
        number(|| c!(qp::query(one, &raw mut found, mask, &raw mut init)));
    }

    fn path(&self, arguments: &mut Arguments<'_>) -> IbvAhAttr {
        let mut path: IbvAhAttr = zeroed();
        let [is_global, port_num, index, hops, class] = arguments.octets();
        path.is_global = u8::from(is_global < 240);
        path.port_num = if port_num < 192 { 1 } else { port_num };
        (path.grh.sgid_index, path.grh.hop_limit) = (index / 8, hops);
        path.grh.traffic_class = class;
        match self.contexts.first() {
            Some(context) if index & 1 == 0 => {
                let gid = &raw mut path.grh.dgid;
                number(|| c!(query::query_gid(*context, 1, 0, gid)));
            }
            _ => path.grh.dgid.raw = arguments.octets(),
        }
        path
    }

    // Entries of a list. The library reads inline data in place, so their memory must exist.
    fn entries(&self, arguments: &mut Arguments<'_>, is_inline: bool) -> Vec<IbvSge> {
        let count = arguments.octet() % 5;
        let entry = |_| {
            let (at, length) = arguments.memory();
            let mr = arguments.one_or_null(&self.mrs);
            let mut entry = IbvSge {
                addr: at.addr() as u64,
                length: length as u32,
                lkey: arguments.number(),
            };
            if !mr.is_null() && !is_inline {
                let region = c!(&*mr);
                entry.lkey = region.lkey;
                entry.addr = region.addr.addr() as u64;
                entry.length = entry.length.min(region.length as u32);
            }
            if arguments.octet() == 255 && !is_inline {
                entry.addr = u64::from_ne_bytes(arguments.octets());
                entry.length = arguments.number();
            }
            entry
        };
        (0..count).map(entry).collect()
    }

    fn remote(&self, arguments: &mut Arguments<'_>) -> (u64, u32) {
        let (at, _) = arguments.memory();
        let (mr, mw) = (
            arguments.one_or_null(&self.mrs),
            arguments.one_or_null(&self.mws),
        );
        let offset = u64::from(arguments.octet());
        match (mr.is_null(), mw.is_null()) {
            (false, _) => c!(((*mr).addr.addr() as u64 + offset, (*mr).rkey)),
            (_, false) => c!((at.addr() as u64, (*mw).rkey)),
            _ => (u64::from_ne_bytes(arguments.octets()), arguments.number()),
        }
    }

    fn request(
        &self,
        kind: c_int,
        arguments: &mut Arguments<'_>,
        entries: &mut Vec<IbvSge>,
    ) -> IbvSendWr {
        let mut wr: IbvSendWr = zeroed();
        wr.wr_id = arguments.octet().into();
        wr.opcode = match arguments.octet() {
            known @ 0..240 => c_int::from(known % 10),
            _ => arguments.signed(),
        };
        wr.send_flags = arguments.flags();
        *entries = self.entries(arguments, wr.send_flags & send_flags::INLINE != 0);
        (wr.sg_list, wr.num_sge) = (entries.as_ptr(), entries.len() as c_int);
        if arguments.octet() == 255 {
            wr.num_sge = -1;
        }
        wr.imm_data = arguments.number();
        let (remote_addr, rkey) = self.remote(arguments);
        wr.wr = match kind {
            qp_type::UD => SendWr {
                ud: Ud {
                    ah: arguments.one_or_null(&self.ahs),
                    remote_qpn: match arguments.one_of(&self.qps) {
                        qp if qp.is_null() => arguments.number(),
                        qp => c!((*qp).qp_num),
                    },
                    remote_qkey: 0x1111,
                },
            },
            _ if [5, 6].contains(&wr.opcode) => SendWr {
                atomic: Atomic {
                    remote_addr,
                    compare_add: 1,
                    swap: 2,
                    rkey,
                },
            },
            _ => SendWr {
                rdma: Rdma { remote_addr, rkey },
            },
        };
        if wr.opcode == 8 {
            let mw = arguments.one_or_null(&self.mws);
            wr.bind_mw = BindMw {
                mw,
                rkey: match mw.is_null() {
                    true => arguments.number(),
                    false => c!((*mw).rkey.wrapping_add(1)),
                },
                bind_info: self.bind_info(arguments),
            };
        }
        wr
    }

    fn post_send(&mut self, arguments: &mut Arguments<'_>) {
        let qp = arguments.one_of(&self.all_qps());
        if qp.is_null() {
            return;
        }
        let count = 1 + usize::from(arguments.octet() % 3);
        let mut entries = vec![Vec::new(); count];
        let mut list: Vec<_> = entries
            .iter_mut()
            .map(|entries| self.request(c!((*qp).qp_type), arguments, entries))
            .collect();
        for at in 1..count {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = ptr::null_mut();
        let posted = number(|| c!(post::send(qp, list.as_mut_ptr(), &raw mut bad)));
        let is_named = list.iter().any(|wr| ptr::eq(wr, bad));
        assert_eq!(posted != 0, is_named, "the request that was refused");
    }

    fn post_receive(&mut self, arguments: &mut Arguments<'_>) {
        let entries = self.entries(arguments, false);
        let mut wr = IbvRecvWr {
            wr_id: arguments.octet().into(),
            next: ptr::null_mut(),
            sg_list: entries.as_ptr(),
            num_sge: entries.len() as c_int,
        };
        let (first, mut bad) = (&raw mut wr, ptr::null_mut());
        let (qp, srq) = (
            arguments.one_of(&self.all_qps()),
            arguments.one_of(&self.srqs),
        );
        match arguments.octet() & 1 {
            0 if !qp.is_null() => number(|| c!(post::recv(qp, first, &raw mut bad))),
            1 if !srq.is_null() => number(|| c!(post::srq_recv(srq, first, &raw mut bad))),
            _ => 0,
        };
    }

    fn poll(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_of(&self.cqs);
        if one.is_null() {
            return;
        }
        let mut done: [IbvWc; 16] = zeroed();
        let count = c_int::from(arguments.octet() % 18) - 1;
        let found = call(
            |found| found < 0,
            || c!(cq::poll(one, count.min(16), done.as_mut_ptr())),
        );
        assert!(found <= count.max(0));
        if arguments.is() {
            let solicited = arguments.signed() & 1;
            number(|| c!(cq::req_notify(one, solicited)));
        }
    }

    // The descriptors are non-blocking. Each fetched event is acknowledged at once.
    fn events(&mut self, arguments: &mut Arguments<'_>) {
        let (mut queue, mut queue_context) = (ptr::null_mut(), ptr::null_mut());
        let channel = arguments.one_or_null(&self.channels);
        let fetch = || {
            c!(cq::get_event(
                channel,
                &raw mut queue,
                &raw mut queue_context
            ))
        };
        if call(|answer| answer != 0, fetch) == 0 {
            assert!(self.cqs.contains(&queue));
            c!(cq::ack_events(queue, 1));
        }
        let context = arguments.one_or_null(&self.contexts);
        let mut event: IbvAsyncEvent = zeroed();
        let fetch = || c!(context::get_async_event(context, &raw mut event));
        if call(|answer| answer != 0, fetch) == 0 {
            c!(context::ack_async_event(&raw mut event));
        }
    }

    fn address_handle(&mut self, arguments: &mut Arguments<'_>) {
        if arguments.octet() % 3 < 2 {
            let (pd, path) = (arguments.one_or_null(&self.pds), self.path(arguments));
            keep(|| c!(ah::create(pd, &raw const path)), &mut self.ahs);
        } else {
            let one = arguments.one_or_null(&self.ahs);
            destroy(one, &mut self.ahs, ah::destroy);
        }
    }

    fn group(&mut self, arguments: &mut Arguments<'_>) {
        let (qp, mut gid) = (arguments.one_or_null(&self.qps), IbvGid::default());
        gid.raw[0] = 0xff;
        gid.raw[12..].copy_from_slice(&[239, 1, 2, arguments.octet() % 4]);
        if arguments.octet() == 255 {
            gid.raw = arguments.octets();
        }
        let is_member = |(member, of): &(_, IbvGid)| *member == qp && of.raw == gid.raw;
        if arguments.is() {
            let attached = number(|| c!(qp::attach_mcast(qp, &raw const gid, 0)));
            if attached == 0 && !self.groups.iter().any(is_member) {
                self.groups.push((qp, gid));
            }
        } else if number(|| c!(qp::detach_mcast(qp, &raw const gid, 0))) == 0 {
            self.groups.retain(|member| !is_member(member));
        }
    }

    fn device_memory(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_or_null(&self.dms);
        match arguments.octet() % 4 {
            0 | 1 => {
                let context = arguments.one_or_null(&self.contexts);
                let attr = IbvAllocDmAttr {
                    length: arguments.number() as usize,
                    log_align_req: arguments.number() / 8,
                    comp_mask: u32::from(arguments.octet() == 255),
                };
                keep(|| c!(dm::alloc(context, &raw const attr)), &mut self.dms);
            }
            2 => destroy(one, &mut self.dms, dm::free),
            _ => {
                let pd = arguments.one_or_null(&self.pds);
                let (offset, length) = (arguments.number().into(), arguments.number() as usize);
                let flags = arguments.flags();
                let made = || c!(dm::register(pd, one, offset, length, flags));
                keep(made, &mut self.mrs);
            }
        }
    }

    fn query(&mut self, arguments: &mut Arguments<'_>) {
        let context = arguments.one_or_null(&self.contexts);
        let (port, index) = (arguments.octet() / 64, arguments.signed());
        let (mut device, mut attr, mut gid, mut pkey) = (zeroed(), zeroed(), zeroed(), 0);
        number(|| c!(query::query_device(context, &raw mut device)));
        number(|| c!(query::query_port(context, port, &raw mut attr)));
        let fails = |answer: c_int| answer != 0;
        call(fails, || {
            c!(query::query_gid(context, port, index, &raw mut gid))
        });
        call(fails, || {
            c!(query::query_pkey(context, port, index, &raw mut pkey))
        });
        let found = || c!(query::get_pkey_index(context, port, index as u16));
        call(|answer| answer < 0, found);
    }

    // Checks that all objects can be destroyed.
    fn end(&mut self) {
        self.cm.end();
        for (qp, gid) in mem::take(&mut self.groups) {
            assert_eq!(number(|| c!(qp::detach_mcast(qp, &raw const gid, 0))), 0);
        }
        destroy_all(&mut self.qps, qp::destroy);
        destroy_all(&mut self.mws, mw::dealloc);
        destroy_all(&mut self.mrs, mr::dereg);
        destroy_all(&mut self.srqs, srq::destroy);
        destroy_all(&mut self.ahs, ah::destroy);
        destroy_all(&mut self.dms, dm::free);
        destroy_all(&mut self.cqs, cq::destroy);
        destroy_all(&mut self.channels, cq::destroy_channel);
        destroy_all(&mut self.pds, pd::dealloc);
        destroy_all(&mut self.contexts, open::close_device);
    }
}

/// Makes a descriptor non-blocking.
fn unblock(fd: c_int) {
    // SAFETY: a flag of a descriptor.
    assert_eq!(c!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK)), 0);
}

/// The attribute masks: state, rights, P_Key index, port; path, MTU, PSN, RNR timer, depth, QPN; timeout, retries, depth, PSN.
const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
const TO_RTR_OF_UC: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
const TO_RTR: c_int = TO_RTR_OF_UC | 1 << 15 | 1 << 17;
const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
/// Bytes of the program's memory.
const MEMORY: usize = 64 << 10;
const STEPS: usize = 128;
