//! tshark reads captures of our devices: it finds no malformed packet, and the captures have every opcode that it knows.
//!
//! Wireshark 4.0 knows the opcodes of [`KNOWN`] and [`KNOWN_RDMAP`], and checks the CRC32C of MPA. It reads the ICRC
//! without checking it, and does not know XRC, FLUSH, ATOMIC WRITE, manufacturers' opcodes, and the immediate data of
//! RDMAP: `polyverbs-dissect` checks these, and every ICRC.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polyverbs::connection::{ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, OctetCapture, Tap, device_at};
use polyverbs::qp::{AddressVector, QpType};
use polyverbs::*;
use polyverbs::{
    capability::Mtu,
    wr::{self, ReceiveRequest, UdDestination},
};
use polyverbs_dissect::Capture;
use tempfile::NamedTempFile;

/// Opcodes that Wireshark 4.0 names, as the first byte of BTH has them: those of RC without FLUSH and ATOMIC WRITE, of UC
/// and of UD.
const KNOWN: &[u8] = &[
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f,
    0x10, 0x11, 0x12, 0x13, 0x14, 0x16, 0x17, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
    0x29, 0x2a, 0x2b, 0x64, 0x65,
];
/// Opcodes of RDMAP that Wireshark 4.0 names: those of RFC 5040, and the atomics of RFC 7306.
const KNOWN_RDMAP: &[u8] = &[0x0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0xa, 0xb];
/// Protocols that Wireshark may guess from payloads.
const GUESSES: &[&str] = &[
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband.eoib",
    "infiniband_sdp",
    "fcoib",
];
const SIZE: usize = 1 << 16;
const HALF: usize = SIZE / 2;
/// Lengths of messages of one, two and three packets.
const LENGTHS: [usize; 3] = [100, 300, 700];
const MTU: Mtu = Mtu::Mtu256;
const RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);
const Q_KEY: u32 = 0x1234;

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    _memory: Memory,
    mr: Mr,
}

impl End {
    fn new(address: &str, capture: &Arc<OctetCapture>) -> Self {
        Self::of("ib0", address, Some(capture))
    }

    fn of(name: &str, address: &str, capture: Option<&Arc<OctetCapture>>) -> Self {
        let options = EmulatedOptions {
            tap: capture.map(|capture| Tap(Arc::clone(capture) as _)),
            ..EmulatedOptions::default()
        };
        let device = device_at(name, address.parse().unwrap(), &options).unwrap();
        let everything = Requirements::everything_of(&device.attributes());
        let context = device.open(&everything).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(256).wait().unwrap();
        let memory = Memory::zeroed(SIZE).unwrap();
        let rights = match device.attributes().transport {
            Transport::Iwarp => RIGHTS & !Access::FLUSH_GLOBAL,
            _ => RIGHTS,
        };
        let mr = pd.register(&memory, rights | Access::LOCAL_WRITE);
        let mr = mr.wait().unwrap();
        Self {
            context,
            pd,
            cq,
            _memory: memory,
            mr,
        }
    }

    fn qp(&self, options: QpOptions) -> Qp {
        self.pd.create_qp(options).wait().unwrap()
    }

    fn rc(&self) -> Qp {
        let operations = Operations::SEND_WITH_INV
            | Operations::FAST_REGISTER
            | Operations::ATOMIC_WRITE
            | Operations::FLUSH;
        self.qp(QpOptions::rc(&self.cq).operations(operations))
    }

    fn sge(&self, length: usize) -> Sge {
        self.mr.sge(0, length as u32).unwrap()
    }

    fn receive(&self, qp: &Qp) {
        let room = self.mr.sge(HALF, HALF as u32).unwrap();
        qp.post_receive(ReceiveRequest::new(9, room)).unwrap();
    }

    fn take(&self) -> Completion {
        let mut slot = [Completion::default()];
        test_kit::waiting::until(|| !self.cq.poll(&mut slot).unwrap().is_empty());
        let [done] = slot;
        done
    }

    #[track_caller]
    fn done(&self) {
        assert_eq!(self.take().status, WcStatus::Success);
    }

    fn path(&self) -> AddressVector {
        let port = self.context.query_port(1).unwrap();
        AddressVector::new(port.address, port.gids[0].gid, 1)
    }
}

fn connect(near: &Qp, far: &Qp) {
    let rights = match near.qp_type() {
        QpType::Rc => RIGHTS,
        _ => Access::REMOTE_WRITE,
    };
    let options = || PathOptions::new().path_mtu(MTU).access(rights);
    let (a, b) = (near.endpoint().unwrap(), far.endpoint().unwrap());
    near.connect(&b, options()).wait().unwrap();
    far.connect(&a, options()).wait().unwrap();
}

fn reliable(near: &End, far: &End) {
    let (qp, there) = (near.rc(), far.rc());
    connect(&qp, &there);
    for length in LENGTHS {
        let (local, remote) = (near.sge(length), far.mr.remote(HALF as u64));
        far.receive(&there);
        qp.post_one(wr::Send::new(local).signaled(1)).unwrap();
        far.receive(&there);
        qp.post_one(wr::SendWithImmediate::new(local, *b"imm!").signaled(2))
            .unwrap();
        far.receive(&there);
        qp.post_one(wr::WriteWithImmediate::new(local, remote, *b"imm!").signaled(3))
            .unwrap();
        qp.post_one(wr::Write::new(local, remote).signaled(4))
            .unwrap();
        qp.post_one(wr::Read::new(local, remote).signaled(5))
            .unwrap();
        (0..5).for_each(|_| near.done());
        (0..3).for_each(|_| far.done());
    }
    let (word, remote) = (near.sge(8), far.mr.remote(0));
    qp.post_one(wr::FetchAdd::new(word, remote, 5).signaled(1))
        .unwrap();
    qp.post_one(wr::CompareSwap::new(word, remote, 5, 6).signaled(2))
        .unwrap();
    qp.post_one(wr::AtomicWrite::new(word, remote).signaled(3))
        .unwrap();
    qp.post_one(wr::Flush::new(remote, 8, Access::FLUSH_GLOBAL).signaled(4))
        .unwrap();
    (0..4).for_each(|_| near.done());
    // The NAKs of a receive that is posted late, and of a key that does not exist.
    qp.post_one(wr::Send::new(word).signaled(5)).unwrap();
    test_kit::waiting::until(|| qp.counters().rnr_naks > 0);
    far.receive(&there);
    near.done();
    far.done();
    let nowhere = RemoteAddress::new(0, RKey::new(0x1234_5678));
    qp.post_one(wr::Write::new(word, nowhere).signaled(6))
        .unwrap();
    assert_eq!(near.take().status, WcStatus::RemAccessErr);
}

fn invalidating(near: &End, far: &End) {
    let (qp, there) = (near.rc(), far.rc());
    connect(&qp, &there);
    let memory = Memory::zeroed(4096).unwrap();
    let range = memory.range(0, 4096).unwrap();
    let pages = PageList::map(&[range], 4096, 1).unwrap().list;
    for length in [100, 300] {
        let key = far.pd.alloc_key(1).wait().unwrap();
        let rkey = key.advance();
        let register = wr::FastRegister::new(rkey, &pages).access(Access::REMOTE_READ);
        there.post_one(register.signaled(1)).unwrap();
        far.done();
        far.receive(&there);
        let send = wr::SendWithInvalidate::new(near.sge(length), rkey);
        qp.post_one(send.signaled(2)).unwrap();
        near.done();
        far.done();
    }
}

fn unreliable(near: &End, far: &End) {
    let make = |end: &End| end.qp(QpOptions::uc(&end.cq));
    let (qp, there) = (make(near), make(far));
    connect(&qp, &there);
    for length in LENGTHS {
        let (local, remote) = (near.sge(length), far.mr.remote(HALF as u64));
        (0..3).for_each(|_| far.receive(&there));
        qp.post_one(wr::Send::new(local).signaled(1)).unwrap();
        qp.post_one(wr::SendWithImmediate::new(local, *b"imm!").signaled(2))
            .unwrap();
        qp.post_one(wr::Write::new(local, remote).signaled(3))
            .unwrap();
        qp.post_one(wr::WriteWithImmediate::new(local, remote, *b"imm!").signaled(4))
            .unwrap();
        (0..4).for_each(|_| near.done());
        (0..3).for_each(|_| far.done());
    }
}

fn datagrams(near: &End, far: &End) {
    let make = |end: &End| {
        let qp = end.qp(QpOptions::ud(&end.cq));
        let options = PathOptions::new().qkey(Q_KEY);
        qp.activate(options).wait().unwrap();
        qp
    };
    let (qp, there) = (make(near), make(far));
    let ah = near.pd.create_ah(far.path()).wait().unwrap();
    let to = UdDestination {
        ah,
        remote_qpn: there.qp_num(),
        remote_qkey: Q_KEY,
    };
    (0..2).for_each(|_| far.receive(&there));
    qp.post_one(wr::Send::new(near.sge(100)).to(&to).signaled(1))
        .unwrap();
    let send = wr::SendWithImmediate::new(near.sge(101), *b"imm!").to(&to);
    qp.post_one(send.signaled(2)).unwrap();
    (0..2).for_each(|_| near.done());
    (0..2).for_each(|_| far.done());
}

// Connects by the connection manager, so that its messages are in the capture too.
fn managed(near: &End, far: &End) {
    let (qp, there) = (near.rc(), far.rc());
    let far_connector = Connector::of(&far.context).unwrap();
    let listener = far_connector
        .listen("127.0.41.2:0".parse().unwrap(), 1)
        .unwrap();
    let options = || ConnectionOptions::new().private_data(b"hello");
    let connector = Connector::of(&near.context).unwrap();
    let asked = connector.connect(&qp, listener.address(), options());
    let incoming = listener.next().wait().unwrap();
    let accepted = incoming.accept(&there, options());
    let connection = asked.wait().unwrap();
    let _theirs = accepted.wait().unwrap();
    connection.disconnect().wait().unwrap();
}

// Posts requests over a stream, at the initiator. The last one fails and ends the connection.
fn streamed(near: &End, far: &End, at: &str) {
    let make = |end: &End| {
        let operations =
            Operations::SEND_WITH_INV | Operations::READ_WITH_INV | Operations::FAST_REGISTER;
        end.qp(QpOptions::rc(&end.cq).operations(operations))
    };
    let (qp, there) = (make(near), make(far));
    let far_connector = Connector::of(&far.context).unwrap();
    let listener = far_connector.listen(at.parse().unwrap(), 1).unwrap();
    let connector = Connector::of(&near.context).unwrap();
    let options = || {
        let options = PathOptions::new().access(RIGHTS & !Access::FLUSH_GLOBAL);
        ConnectionOptions::new()
            .path(options)
            .private_data(b"hello")
    };
    let asked = connector.connect(&qp, listener.address(), options());
    let incoming = listener.next().wait().unwrap();
    let accepted = incoming.accept(&there, options());
    let _near = asked.wait().unwrap();
    let _far = accepted.wait().unwrap();
    for length in [100, 5000] {
        let (local, remote) = (near.sge(length), far.mr.remote(HALF as u64));
        (0..2).for_each(|_| far.receive(&there));
        qp.post_one(wr::Send::new(local).signaled(1)).unwrap();
        qp.post_one(wr::Send::new(local).solicited().signaled(2))
            .unwrap();
        qp.post_one(wr::Write::new(local, remote).signaled(3))
            .unwrap();
        qp.post_one(wr::Read::new(local, remote).signaled(4))
            .unwrap();
        (0..4).for_each(|_| near.done());
        (0..2).for_each(|_| far.done());
    }
    let (word, remote) = (near.sge(8), far.mr.remote(0));
    qp.post_one(wr::FetchAdd::new(word, remote, 5).signaled(1))
        .unwrap();
    qp.post_one(wr::CompareSwap::new(word, remote, 5, 6).signaled(2))
        .unwrap();
    (0..2).for_each(|_| near.done());
    let memory = Memory::zeroed(4096).unwrap();
    let range = memory.range(0, 4096).unwrap();
    let pages = PageList::map(&[range], 4096, 1).unwrap().list;
    for is_solicited in [false, true] {
        let key = far.pd.alloc_key(1).wait().unwrap();
        let rkey = key.advance();
        let register = wr::FastRegister::new(rkey, &pages).access(Access::REMOTE_READ);
        there.post_one(register.signaled(1)).unwrap();
        far.done();
        far.receive(&there);
        let send = wr::SendWithInvalidate::new(near.sge(100), rkey).signaled(2);
        let send = if is_solicited { send.solicited() } else { send };
        qp.post_one(send).unwrap();
        near.done();
        far.done();
    }
    let nowhere = RemoteAddress::new(0, RKey::new(0x1234_5678));
    qp.post_one(wr::Read::new(word, nowhere).signaled(6))
        .unwrap();
    assert_ne!(near.take().status, WcStatus::Success);
}

/// The output of tshark with these options.
fn said(file: &Path, options: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(options);
    // Payloads are arbitrary, so that a guess of their protocol would be wrong.
    GUESSES.iter().for_each(|guess| {
        command.args(["--disable-protocol", guess]);
    });
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("tshark is needed: {error}"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// These fields of each packet as tshark prints them; values of a field that occurs several times are separated by commas.
fn tshark<const FIELDS: usize>(file: &Path, fields: [&str; FIELDS]) -> Vec<[String; FIELDS]> {
    let mut options = vec!["-T", "fields"];
    options.extend(fields.iter().flat_map(|field| ["-e", field]));
    let text = said(file, &options);
    let line = |line: &str| {
        let values: Vec<_> = line.split('\t').map(str::to_owned).collect();
        values.try_into().expect("as many fields as were asked for")
    };
    text.lines().map(line).collect()
}

/// A capture without complaints of `polyverbs-dissect`, and the fields that tshark prints of the same packets.
struct Judged<const FIELDS: usize> {
    file: NamedTempFile,
    own: Capture,
    theirs: Vec<[String; FIELDS]>,
}

impl<const FIELDS: usize> Judged<FIELDS> {
    /// Captures the packets that devices send in `work`.
    fn new(fields: [&str; FIELDS], work: impl FnOnce(&Arc<OctetCapture>)) -> Self {
        let file = NamedTempFile::new().unwrap();
        let capture = Arc::new(OctetCapture::new(file.reopen().unwrap()).unwrap());
        work(&capture);
        capture.flush().unwrap();
        drop(capture);
        let own = polyverbs_dissect::dissect(File::open(file.path()).unwrap()).unwrap();
        assert!(own.summary.is_clean(), "{:#?}", own.summary);
        let theirs = tshark(file.path(), fields);
        assert_eq!(theirs.len(), own.packets.len());
        Self { file, own, theirs }
    }
}

#[test]
#[ignore = "needs tshark: tests/foreign runs it"]
fn tshark_reads_captures_of_rocev2_as_we_do() {
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.invariant.crc",
        "_ws.malformed",
        "_ws.expert.message",
    ];
    let Judged { own, theirs, .. } = Judged::new(fields, |capture| {
        let near = End::new("127.0.41.1", capture);
        let far = End::new("127.0.41.2", capture);
        reliable(&near, &far);
        invalidating(&near, &far);
        unreliable(&near, &far);
        datagrams(&near, &far);
        managed(&near, &far);
    });
    let mut seen = BTreeSet::new();
    for (number, [opcode, icrc, malformed, expert]) in theirs.iter().enumerate() {
        let opcode: u8 = opcode.parse().expect("an opcode");
        if KNOWN.contains(&opcode) {
            let complaints = [malformed.as_str(), expert.as_str()];
            assert_eq!(complaints, ["", ""], "packet {}", number + 1);
            let roce = own.packets[number].roce().expect("a packet of RoCEv2");
            let read = u32::from_str_radix(icrc.trim_start_matches("0x"), 16).unwrap();
            assert_eq!(read.to_be_bytes(), roce.icrc.unwrap().value.0);
            seen.insert(opcode);
        }
    }
    let missing: Vec<_> = KNOWN.iter().filter(|known| !seen.contains(known)).collect();
    assert!(missing.is_empty(), "not captured: {missing:x?}");
}

#[test]
#[ignore = "needs tshark: tests/foreign runs it"]
fn tshark_reads_captures_of_iwarp_as_we_do() {
    let fields = [
        "iwarp_rdma.opcode",
        "iwarp_mpa.fpdu",
        "iwarp_mpa.bad_length",
        "_ws.malformed",
    ];
    let Judged { file, theirs, .. } = Judged::new(fields, |capture| {
        // Only one end captures, so that each segment is captured once.
        let near = End::of("iw0", "127.0.41.3", Some(capture));
        let far = End::of("iw0", "127.0.41.4", None);
        streamed(&near, &far, "127.0.41.4:0");
    });
    let values = |list: &str| -> Vec<String> {
        let values = list.split(',').filter(|value| !value.is_empty());
        values.map(str::to_owned).collect()
    };
    let (mut seen, mut frames) = (BTreeSet::new(), 0);
    for (number, [opcodes, fpdus, lengths, malformed]) in theirs.iter().enumerate() {
        let complaints = [lengths.as_str(), malformed.as_str()];
        assert_eq!(complaints, ["", ""], "packet {}", number + 1);
        frames += values(fpdus).len();
        seen.extend(values(opcodes).iter().map(|value| {
            let digits = value.trim_start_matches("0x");
            u8::from_str_radix(digits, 16).expect("an opcode")
        }));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), KNOWN_RDMAP);
    let checks = said(file.path(), &["-O", "iwarp_mpa"]);
    let judged = |verdict: &str| checks.matches(verdict).count();
    assert_eq!(
        (judged("Good CRC32"), judged("Bad CRC32")),
        (frames, 0),
        "{checks}"
    );
}
