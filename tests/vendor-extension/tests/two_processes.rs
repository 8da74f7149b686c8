//! A checksum of another process's memory, over UDP and over TCP: this test runs itself again as the other process.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use acme_checksum::{Checksum, Checksums};
use polyverbs::emulated::{self, EmulatedOptions};
use verbs_api::{
    Access, ConnectOptions, Context, Cq, Gid, LinkAddress, Memory, Pd, Psn, Qp, QpEndpoint,
    QpOptions, Qpn, RKey, RemoteAddress, Requirements,
};

/// Set for the process that asks: its device, and where that is. Where it is to look is what it reads.
const DEVICE: &str = "ACME_DEVICE";
/// Not that of RoCEv2, which a driver of the kernel may hold.
const PORT: u16 = 14793;
/// What a line of the other process begins with; its test harness says other things.
const MARK: &str = "acme ";

struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

impl Side {
    fn new(device: &str, address: &str) -> Self {
        let options = EmulatedOptions {
            at: Some(SocketAddr::new(address.parse().unwrap(), PORT)),
            ..EmulatedOptions::default()
        };
        let device = emulated::device(device, &options).unwrap();
        let context = device
            .open(&Requirements::new().needs(Checksums::RANGE))
            .unwrap();
        let checksum = context.extension::<Checksum>().unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let qp = pd
            .create_qp(QpOptions::rc(&cq).operations(&checksum))
            .wait()
            .unwrap();
        Self {
            context,
            pd,
            cq,
            qp,
        }
    }

    fn tell(&self) -> String {
        let QpEndpoint {
            qp_num,
            sq_psn,
            address,
            gid,
        } = self.qp.endpoint().unwrap();
        let LinkAddress::Ip(ip) = address else {
            panic!("{address:?} is not on an IP network")
        };
        let gid = u128::from_be_bytes(gid.0);
        format!("{} {} {ip} {gid}", qp_num.value(), sq_psn.value())
    }

    fn connect(&self, told: &[&str]) {
        let [qp_num, sq_psn, ip, gid] = told else {
            panic!("{told:?} is no endpoint")
        };
        let peer = QpEndpoint {
            qp_num: Qpn::new(qp_num.parse().unwrap()),
            sq_psn: Psn::new(sq_psn.parse().unwrap()),
            address: LinkAddress::Ip(ip.parse::<IpAddr>().unwrap()),
            gid: Gid(gid.parse::<u128>().unwrap().to_be_bytes()),
        };
        self.qp
            .connect(&peer, ConnectOptions::new())
            .wait()
            .unwrap();
    }
}

/// Does nothing unless it is the other process.
#[test]
fn as_the_process_that_asks() {
    let Ok(given) = std::env::var(DEVICE) else {
        return;
    };
    let (device, address) = given.split_once(' ').unwrap();
    let side = Side::new(device, address);
    println!("\n{MARK}{}", side.tell());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let told: Vec<_> = line.split_whitespace().collect();
    let (peer, range) = told.split_at(4);
    side.connect(peer);
    let [addr, rkey, length] = range else {
        panic!("{range:?} is no range")
    };
    let remote = RemoteAddress::new(addr.parse().unwrap(), RKey::new(rkey.parse().unwrap()));
    let memory = Memory::zeroed(64).unwrap();
    let region = side
        .pd
        .register(&memory, Access::LOCAL_WRITE)
        .wait()
        .unwrap();
    let checksum = side.context.extension::<Checksum>().unwrap();
    let range = checksum.range(remote, length.parse().unwrap());
    let request = range.request(region.sge(0, 4).unwrap());
    side.qp.post_one(request.signaled(1)).unwrap();
    let done = side.cq.next().wait().unwrap();
    assert!(done.status.is_success(), "{:?}", done.status);
    let octets = memory.to_vec(0, 4).unwrap();
    let found = u32::from_ne_bytes(octets.try_into().unwrap());
    println!("\n{MARK}{found}");
}

#[test]
fn the_memory_of_another_process_is_summed_there_over_udp() {
    sums_of_another_process("ib0", 1);
}

#[test]
fn the_memory_of_another_process_is_summed_there_over_tcp() {
    sums_of_another_process("iw0", 3);
}

fn sums_of_another_process(device: &str, host: u8) {
    const LENGTH: usize = 100_000;
    let side = Side::new(device, &format!("127.0.51.{host}"));
    let octets: Vec<_> = (0..LENGTH).map(|at| ((at * at) >> 3) as u8).collect();
    let memory = Memory::zeroed(LENGTH).unwrap();
    memory.write(0, &octets).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = side.pd.register(&memory, rights).wait().unwrap();
    let remote = region.remote(0);

    let mut asking = Command::new(std::env::current_exe().unwrap());
    asking.args(["--exact", "as_the_process_that_asks", "--nocapture"]);
    asking.env(DEVICE, format!("{device} 127.0.51.{}", host + 1));
    asking.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut asking = asking.spawn().unwrap();
    let output = BufReader::new(asking.stdout.take().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    let mut next = || {
        let mut marked = lines.by_ref().filter_map(|line| {
            let told = line.strip_prefix(MARK)?;
            Some(told.to_owned())
        });
        marked.next().expect("a line of the other process")
    };

    // Both are told before either connects: a stream needs both ends.
    let told = next();
    let (addr, rkey) = (remote.addr, remote.rkey.value());
    let mut input = asking.stdin.take().unwrap();
    writeln!(input, "{} {addr} {rkey} {LENGTH}", side.tell()).unwrap();
    side.connect(&told.split(' ').collect::<Vec<_>>());
    assert_eq!(next().parse(), Ok(crc32c::crc32c(&octets)));
    assert!(asking.wait().unwrap().success());
}
