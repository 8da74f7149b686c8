//! Rsockets whose peers use the protocol for attacks.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::{ptr, thread};

use libc::{sockaddr, socklen_t};
use polyverbs::connection::{Accepted, ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device_at};
use polyverbs::ids::{LinkAddress, Qpn};
use polyverbs::qp::AddressVector;
use polyverbs::wr::{self, ReceiveRequest, UdDestination};
use polyverbs::{
    Access, Context, Cq, Memory, Mr, PathOptions, Pd, Qp, QpOptions, RKey, RemoteAddress,
    Requirements, WcStatus,
};
use polyverbs_librdmacm::address;
use polyverbs_librdmacm::rsocket::calls;

const OWN: &str = "127.0.24.71";
const DEVICES: &str = r#"
[[device]]
address = "127.0.24.71"
"#;

fn configure() {
    test_kit::configure(DEVICES);
}

/// A bound socket, which listens if it is a stream, and its address.
fn bound(kind: c_int) -> (c_int, SocketAddr) {
    let fd = calls::socket(libc::AF_INET, kind, 0);
    let mut raw = address::write(SocketAddr::new(OWN.parse().unwrap(), 0));
    let mut length = size_of::<libc::sockaddr_in>() as socklen_t;
    let at = (&raw mut raw).cast::<sockaddr>();
    // SAFETY: an address as long as it says, with room for any.
    unsafe {
        assert_eq!(calls::bind(fd, at, length), 0);
        // Listening assigns the port of a stream.
        assert_eq!(calls::listen(fd, 4) == 0, kind == libc::SOCK_STREAM);
        assert_eq!(calls::getsockname(fd, at, &raw mut length), 0);
        (fd, address::read(at).unwrap())
    }
}

fn receive(fd: c_int) -> Vec<u8> {
    let mut room = [0; 100];
    // SAFETY: the pointer and the length are those of a slice.
    let came = unsafe { calls::recv(fd, room.as_mut_ptr().cast(), room.len(), 0) };
    room[..usize::try_from(came).unwrap()].to_vec()
}

/// A device that no rsocket uses.
struct Attacker {
    context: Context,
    pd: Pd,
    cq: Cq,
    memory: Memory,
    mr: Mr,
}

impl Attacker {
    fn at(address: &str) -> Self {
        let device = device_at("ib0", address.parse().unwrap(), &EmulatedOptions::default());
        let context = device.unwrap().open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(64).wait().unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(&memory, access).wait().unwrap();
        Self {
            context,
            pd,
            cq,
            memory,
            mr,
        }
    }

    /// The parameters of an rsocket: a list of two targets, and a ring.
    fn conn_data(&self) -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 100, 0, 0, 0, 0];
        for (at, length) in [(0, 2_u32), (1024, 1024)] {
            bytes.extend((self.memory.address() + at).to_be_bytes());
            bytes.extend(self.mr.rkey().value().to_be_bytes());
            bytes.extend(length.to_be_bytes());
        }
        bytes
    }

    fn connect(&self, to: SocketAddr) -> (Qp, Accepted) {
        let options = QpOptions::rc(&self.cq).max_recv_wr(16);
        let qp = self.pd.create_qp(options).wait().unwrap();
        let granted = PathOptions::new().access(Access::REMOTE_WRITE);
        let options = ConnectionOptions::new()
            .path(granted)
            .private_data(&self.conn_data());
        let connector = Connector::of(&self.context).unwrap();
        let asked = connector.request(&qp, to, options);
        (qp, asked.wait().unwrap())
    }

    fn write(&self, qp: &Qp, to: RemoteAddress) -> WcStatus {
        let data = self.mr.sge(2048, 8).unwrap();
        qp.post_one(wr::Write::new(data, to).signaled(7)).unwrap();
        loop {
            let done = self.cq.next().wait().unwrap();
            if done.wr_id == 7 {
                return done.status;
            }
        }
    }
}

/// The receive ring that an rsocket advertises.
fn ring(accepted: &Accepted) -> RemoteAddress {
    let bytes = accepted.private_data();
    let addr = u64::from_be_bytes(*bytes[24..].first_chunk().unwrap());
    let key = u32::from_be_bytes(*bytes[32..].first_chunk().unwrap());
    RemoteAddress::new(addr, RKey::new(key))
}

#[test]
fn a_client_does_not_reach_the_ring_of_another_one() {
    configure();
    let (listener, at) = bound(libc::SOCK_STREAM);
    let accepts = thread::spawn(move || {
        // SAFETY: null pointers: the peer's address is not wanted.
        let accept = || unsafe { calls::accept(listener, ptr::null_mut(), ptr::null_mut()) };
        [accept(), accept()]
    });
    let attacker = Attacker::at("127.0.24.72");
    let [(qp, accepted), (_other, neighbour)] = [(); 2].map(|()| attacker.connect(at));
    let (own, others) = (ring(&accepted), ring(&neighbour));
    let connection = accepted.complete().wait().unwrap();
    let another = neighbour.complete().wait().unwrap();
    for place in 0..8 {
        let room = attacker.mr.sge(3072, 8).unwrap();
        qp.post_receive(ReceiveRequest::new(place + 100, room))
            .unwrap();
    }
    assert_eq!(attacker.write(&qp, own), WcStatus::Success);
    assert_eq!(attacker.write(&qp, others), WcStatus::RemAccessErr);
    drop((connection, another));
    for fd in accepts.join().unwrap().into_iter().chain([listener]) {
        calls::close(fd);
    }
}

/// The header before the data of a datagram between queue pairs.
fn front(from: IpAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = from else {
        panic!("not IPv4")
    };
    let mut bytes = vec![4, 8, 0x1c, 6];
    bytes.extend(ip.octets());
    bytes
}

#[test]
fn a_datagram_with_a_forged_sender_is_dropped() {
    configure();
    let (fd, at) = bound(libc::SOCK_DGRAM);
    let own: IpAddr = "127.0.24.73".parse().unwrap();
    let attacker = Attacker::at("127.0.24.73");
    let qp = attacker.pd.create_qp(QpOptions::ud(&attacker.cq));
    let qp = qp.wait().unwrap();
    let q_key = 0x0123_4567;
    qp.activate(PathOptions::new().qkey(q_key)).wait().unwrap();
    // The rsocket sends the number of its queue pair over UDP.
    let udp = UdpSocket::bind((own, 0)).unwrap();
    let mut hello = vec![0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0];
    hello.extend(qp.qp_num().value().to_be_bytes());
    hello.extend([127, 0, 24, 73]);
    hello.extend(b"hello");
    udp.send_to(&hello, at).unwrap();
    assert_eq!(receive(fd), b"hello");
    let mut answer = [0; 16];
    udp.recv_from(&mut answer).unwrap();
    let number = u32::from_be_bytes(*answer[8..].first_chunk().unwrap());
    let path = AddressVector::new(LinkAddress::Ip(at.ip()), at.ip().into(), 1);
    let to = UdDestination {
        ah: attacker.pd.create_ah(path).wait().unwrap(),
        remote_qpn: Qpn::new(number),
        remote_qkey: q_key,
    };
    let forged: IpAddr = "127.0.24.99".parse().unwrap();
    for (from, data) in [(forged, b"false"), (own, b"true!")] {
        let bytes = [&front(from)[..], data].concat();
        attacker.memory.write(0, &bytes).unwrap();
        let sge = attacker.mr.sge(0, bytes.len() as u32).unwrap();
        qp.post_one(wr::Send::new(sge).to(&to).signaled(1)).unwrap();
        assert_eq!(attacker.cq.next().wait().unwrap().status, WcStatus::Success);
    }
    assert_eq!(receive(fd), b"true!");
    calls::close(fd);
}
