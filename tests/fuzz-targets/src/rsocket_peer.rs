//! A stream rsocket whose peer is played by a fuzzer.
//!
//! The fuzzer makes up the peer's hello, its writes to the memory of the rsocket, and its messages, while the program keeps
//! using the socket. Whatever arrives, calls end and set errno if they fail, and another peer is served.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;

use libc::{sockaddr, socklen_t};
use polyverbs::connection::{Accepted, Connection, ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device_at};
use polyverbs::wr::{self, ReceiveRequest, WorkRequest};
use polyverbs::{
    Access, Context, Cq, Memory, Mr, PathOptions, Pd, Qp, QpOptions, RKey, RemoteAddress,
    Requirements, WcStatus,
};
use polyverbs_librdmacm::address;
use polyverbs_librdmacm::rsocket::calls;
use verbs_api::provider::Mutex;

use crate::c_library::{self, ROCE, call, configure, errno, unbroken};
use crate::intruder::own_address;
use crate::script::Script;

static KEPT: Mutex<Option<Rig>> = Mutex::new(None);

/// Runs a peer of an rsocket and the program that uses it, both by the script of a fuzzer.
pub fn run(octets: &[u8]) {
    let mut kept = KEPT.lock();
    let rig = kept.take().unwrap_or_else(Rig::new);
    let mut script = Script::new(octets);
    let options = script.octet();
    if let Some(mut attack) = rig.attack(&mut script) {
        for _ in 0..STEPS {
            if script.is_over() {
                break;
            }
            rig.step(&mut attack, &mut script);
        }
        attack.connection = None;
        if options & 1 != 0 {
            let how = c_int::from(options >> 1 & 3);
            succeeds(|| calls::shutdown(attack.fd, how));
        }
        assert_eq!(calls::close(attack.fd), 0);
    }
    rig.serves();
    *kept = Some(rig);
}

struct Rig {
    listener: c_int,
    at: SocketAddr,
    context: Context,
    pd: Pd,
    cq: Cq,
    memory: Memory,
    mr: Mr,
}

/// A connection of the fuzzer with an rsocket.
struct Attack {
    fd: c_int,
    qp: Qp,
    /// The connection, until one of the fuzzer's requests has failed.
    connection: Option<Connection>,
    list: RemoteAddress,
    ring: RemoteAddress,
}

impl Rig {
    fn new() -> Self {
        configure();
        let (listener, at) = listening();
        let options = EmulatedOptions::default();
        let device = device_at("ib0", own_address(6), &options);
        let context = device.expect("a device").open(&Requirements::new());
        let context = context.expect("a device");
        let pd = context.alloc_pd().wait().expect("a domain");
        let cq = context.create_cq(256).wait().expect("a queue");
        let memory = Memory::zeroed(4 * PART).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(&memory, access).wait().expect("a region");
        Self {
            listener,
            at,
            context,
            pd,
            cq,
            memory,
            mr,
        }
    }

    // The hello of an rsocket, with a list of two targets and a ring, except where the script changes it.
    fn hello(&self, script: &mut Script<'_>) -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 100, 0, 0, 0, 0];
        for (at, length) in [(0, 2_u32), (PART as u64, PART as u32)] {
            bytes.extend((self.memory.address() + at).to_be_bytes());
            bytes.extend(self.mr.rkey().value().to_be_bytes());
            bytes.extend(length.to_be_bytes());
        }
        for _ in 0..script.octet() % 8 {
            let at = usize::from(script.octet()) % bytes.len();
            bytes[at] = script.octet();
        }
        bytes.truncate(64 - usize::from(script.octet() & 63));
        bytes
    }

    // Connects to the rsocket; `None` if that refuses.
    fn attack(&self, script: &mut Script<'_>) -> Option<Attack> {
        let options = QpOptions::rc(&self.cq).max_send_wr(64).max_recv_wr(64);
        let qp = self.pd.create_qp(options).wait().expect("a queue pair");
        let granted = PathOptions::new().access(Access::REMOTE_WRITE).rnr_retry(0);
        let options = ConnectionOptions::new()
            .path(granted)
            .private_data(&self.hello(script));
        let connector = Connector::of(&self.context).expect("a connection manager");
        let asked = connector.request(&qp, self.at, options);
        let accepted = asked.wait().ok()?;
        let [list, ring] = [8, 24].map(|at| target(&accepted, at));
        let connection = accepted.complete().wait().ok()?;
        let fd = loop {
            if let Some(fd) = self.accept() {
                break fd;
            }
            await_ready(self.listener, libc::POLLIN, 1);
        };
        let attack = Attack {
            fd,
            qp,
            connection: Some(connection),
            list,
            ring,
        };
        (0..RECEIVES).for_each(|_| self.receive(&attack));
        Some(attack)
    }

    fn accept(&self) -> Option<c_int> {
        // SAFETY: null pointers request no address.
        let accept = || unsafe { calls::accept(self.listener, ptr::null_mut(), ptr::null_mut()) };
        let fd = call(|fd| fd < 0, accept);
        if fd < 0 {
            assert_eq!(errno(), libc::EAGAIN);
        }
        (fd >= 0).then_some(fd)
    }

    fn receive(&self, attack: &Attack) {
        let room = self.mr.sge(3 * PART, 64).expect("within");
        let _ = attack.qp.post_receive(ReceiveRequest::new(RECEIVED, room));
    }

    fn step(&self, attack: &mut Attack, script: &mut Script<'_>) {
        let what = script.octet();
        match what & 15 {
            0..=9 if attack.connection.is_some() => self.say(what, attack, script),
            _ => use_socket(attack.fd, script),
        }
    }

    // Sends a message of the peer, with or without bytes, or a write that no message announces.
    fn say(&self, what: u8, attack: &mut Attack, script: &mut Script<'_>) {
        let length = usize::from(script.octet());
        let bytes = script.octets(length.min(64));
        self.memory.write(2 * PART, bytes).expect("within");
        let length = match what & 64 {
            0 => bytes.len() as u32,
            _ => PART as u32 - u32::from(script.octet()),
        };
        let data = self.mr.sge(2 * PART, length).expect("within");
        let short = self.mr.sge(2 * PART, 4).expect("within");
        let imm = match what & 32 {
            0 => message(script),
            _ => octets(script),
        };
        let offset = match what & 16 {
            0 => u64::from(script.octet()),
            _ => u64::from(u32::from_ne_bytes(octets(script)) & 0x3_ffff),
        };
        let at = |base: RemoteAddress| RemoteAddress::new(base.addr + offset, base.rkey);
        let request: WorkRequest<'_> = match what & 15 {
            0..=3 => wr::WriteWithImmediate::new(data, at(attack.ring), imm)
                .signaled(SAID)
                .into(),
            4 => wr::Write::new(data, at(attack.list)).signaled(SAID).into(),
            5 => wr::Write::new(data, at(attack.ring)).signaled(SAID).into(),
            6 => {
                self.memory.write(2 * PART, &imm).expect("within");
                wr::Send::new(short).signaled(SAID).into()
            }
            7 => wr::Send::new(data).signaled(SAID).into(),
            8 => wr::SendWithImmediate::new(data, imm).signaled(SAID).into(),
            _ => wr::WriteWithImmediate::new((), at(attack.ring), imm)
                .signaled(SAID)
                .into(),
        };
        if attack.qp.post_one(request).is_err() || !self.has_arrived(attack) {
            // Dropping the connection notifies the rsocket, which would otherwise wait for this side.
            attack.connection = None;
        }
    }

    fn has_arrived(&self, attack: &Attack) -> bool {
        loop {
            let done = self.cq.next().wait().expect("no overrun");
            if done.qp_num != attack.qp.qp_num() {
                continue;
            }
            if done.wr_id == SAID {
                return done.status == WcStatus::Success;
            }
            if done.status == WcStatus::Success {
                self.receive(attack);
            }
        }
    }

    // Checks that two rsockets can exchange data.
    fn serves(&self) {
        let client = calls::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        let raw = address::write(self.at);
        let length = size_of::<libc::sockaddr_in>() as socklen_t;
        // SAFETY: the address is as long as `length` says.
        let connected = unsafe { calls::connect(client, (&raw const raw).cast(), length) };
        assert_eq!((connected, errno()), (-1, libc::EINPROGRESS));
        assert!(await_ready(self.listener, libc::POLLIN, -1));
        let server = self.accept().expect("a connection");
        for fd in [client, server] {
            assert_eq!(calls::fcntl(fd, libc::F_SETFL, 0), 0);
        }
        assert!(await_ready(client, libc::POLLOUT, -1));
        for (from, to) in [(client, server), (server, client)] {
            let (said, mut heard) = (*b"an honest peer", [0; 14]);
            // SAFETY: the buffers are as long as the given lengths.
            unsafe {
                let sent = unbroken(|| calls::send(from, said.as_ptr().cast(), 14, 0));
                assert_eq!(sent, 14);
                assert!(await_ready(to, libc::POLLIN, -1));
                let came = unbroken(|| calls::recv(to, heard.as_mut_ptr().cast(), 14, 0));
                assert_eq!((came, heard), (14, said));
            }
        }
        for fd in [client, server] {
            assert_eq!(calls::close(fd), 0);
        }
    }
}

// Waits until a socket is ready, for so many milliseconds at most; returns whether it is.
fn await_ready(fd: c_int, events: i16, milliseconds: c_int) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: there is one entry.
    let count = unbroken(|| unsafe { calls::poll(&raw mut entry, 1, milliseconds) } as isize);
    assert!(count >= 0);
    entry.revents == events
}

/// Has the program use its socket, by non-blocking calls.
fn use_socket(fd: c_int, script: &mut Script<'_>) {
    let (what, length) = (script.octet(), usize::from(script.octet()) << 10);
    let mut bytes = vec![7_u8; 256 << 10];
    let at = bytes.as_mut_ptr().cast();
    let offset = libc::off_t::from(script.octet()) << 3;
    let fails = |answer: isize| answer < 0;
    // SAFETY: the buffers are as long as the given lengths; mapped memory is unmapped before it is freed.
    unsafe {
        match what % 8 {
            0 | 1 => {
                call(fails, || calls::send(fd, at, length, libc::MSG_DONTWAIT));
            }
            2 | 3 => {
                call(fails, || calls::recv(fd, at, length, libc::MSG_DONTWAIT));
            }
            4 => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
                call(fails, || calls::recv(fd, at, length, flags));
            }
            5 => {
                let flags = libc::MSG_DONTWAIT;
                let write = || calls::iowrite(fd, at, length, offset, flags) as isize;
                call(fails, write);
            }
            6 => {
                await_ready(fd, libc::POLLIN | libc::POLLOUT, 0);
            }
            _ => {
                let map = || calls::iomap(fd, at, length, libc::PROT_WRITE, 0, offset);
                if call(|answer| answer < 0, map) >= 0 {
                    succeeds(|| calls::iounmap(fd, at, length));
                }
            }
        }
    }
}

fn succeeds(of: impl FnOnce() -> c_int) {
    c_library::call(|answer| answer < 0, of);
}

fn listening() -> (c_int, SocketAddr) {
    let fd = calls::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
    let mut raw = address::write(SocketAddr::new(own_address(ROCE), 0));
    let mut length = size_of::<libc::sockaddr_in>() as socklen_t;
    let at = (&raw mut raw).cast::<sockaddr>();
    let maps = 4_u32;
    // SAFETY: the address and the number are as long as the given lengths, with room for any address.
    unsafe {
        let (level, name, four) = (0x10000, 3, size_of::<u32>() as socklen_t);
        let set = calls::setsockopt(fd, level, name, (&raw const maps).cast(), four);
        assert_eq!(set, 0);
        assert_eq!(calls::bind(fd, at, length), 0);
        assert_eq!(calls::listen(fd, 16), 0);
        assert_eq!(calls::getsockname(fd, at, &raw mut length), 0);
        (fd, address::read(at).expect("an address"))
    }
}

/// The memory that the rsocket's hello names at this position.
fn target(accepted: &Accepted, at: usize) -> RemoteAddress {
    let bytes = accepted.private_data();
    let addr = bytes[at..].first_chunk().expect("an address");
    let key = bytes[at + 8..].first_chunk().expect("a key");
    let rkey = RKey::new(u32::from_be_bytes(*key));
    RemoteAddress::new(u64::from_be_bytes(*addr), rkey)
}

/// A message whose number is small, or has few bits.
fn message(script: &mut Script<'_>) -> [u8; 4] {
    let (kind, value) = (script.octet(), script.octet());
    (u32::from(kind) << 29 | u32::from(value) << (kind >> 3 & 15)).to_be_bytes()
}

fn octets<const COUNT: usize>(script: &mut Script<'_>) -> [u8; COUNT] {
    std::array::from_fn(|_| script.octet())
}

/// Bytes of each part of the peer's memory: targets, ring, send buffer, receive buffer.
const PART: usize = 4096;
const RECEIVES: usize = 48;
const SAID: u64 = 7;
const RECEIVED: u64 = 8;
const STEPS: usize = 64;
