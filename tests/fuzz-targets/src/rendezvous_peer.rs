//! Hostile TCP connections to the port by which iWARP's queue pairs find each other; a fuzzer makes up their bytes.
//!
//! A device has a queue pair that waits for the queue pair of an honest device. Whatever arrives on the hostile connections, the device does
//! not panic, and the two queue pairs find each other.

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use emulated_iwarp::{Iwarp, OnWire, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_wire::iwarp::start::{Enhanced, Kind, MAX_START_LEN, Start};
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::qp::connect_pair;
use verbs_api::{Completion, QpOptions, WcStatus, wr};

use crate::intruder::own_address;
use crate::program::{Program, RIGHTS};
use crate::script::Script;

static KEPT: Mutex<Option<Rig>> = Mutex::new(None);

/// Sends the bytes of a fuzzer to a device whose queue pairs are found by their numbers.
pub fn run(octets: &[u8]) {
    let mut kept = KEPT.lock();
    let rig = kept.take().unwrap_or_else(Rig::new);
    rig.run(&mut Script::new(octets));
    *kept = Some(rig);
}

struct Side {
    // Keeps the device of the program alive.
    _wire: OnWire,
    program: Program,
}

struct Rig {
    victim: Side,
    honest: Side,
}

impl Rig {
    fn new() -> Self {
        let side = |number| {
            let address = address(number);
            let mut options = WireOptions::new(address);
            options.max_early = 8;
            let driver = |at| Iwarp::new(format!("iw at {address}"), at);
            let wire = OnWire::new(driver, options, DeviceOptions::default()).expect("a device");
            let device = Arc::clone(&wire.device) as Arc<dyn DeviceOps>;
            Side {
                _wire: wire,
                program: Program::new(device),
            }
        };
        Self {
            victim: side(VICTIM),
            honest: side(HONEST),
        }
    }

    fn run(&self, script: &mut Script<'_>) {
        let [victim, honest] = [&self.victim, &self.honest].map(|side| {
            let options = QpOptions::rc(&side.program.cq);
            side.program.qp(options)
        });
        let numbers = [victim.qp_num().value(), honest.qp_num().value()];
        let mut streams = Vec::new();
        let connected = match script.octet() & 1 {
            0 => Some(connect_pair(&victim, &honest, RIGHTS)),
            _ => None,
        };
        for _ in 0..STEPS {
            if script.is_over() {
                break;
            }
            step(&mut streams, numbers, script);
        }
        let connected = connected.unwrap_or_else(|| connect_pair(&victim, &honest, RIGHTS));
        connected.wait().expect("a connection");
        let remote = self.victim.program.mr.remote(0);
        let nothing = wr::Write::new((), remote).signaled(7);
        honest.post_one(nothing).expect("it is ready");
        let mut slot = [Completion::default()];
        while self
            .honest
            .program
            .cq
            .poll(&mut slot)
            .expect("a queue")
            .is_empty()
        {
            thread::yield_now();
        }
        assert_eq!((slot[0].wr_id, slot[0].status), (7, WcStatus::Success));
        drop(streams);
        for qp in [victim, honest] {
            qp.destroy().wait().expect("nothing needs it");
        }
    }
}

fn step(streams: &mut Vec<TcpStream>, numbers: [u32; 2], script: &mut Script<'_>) {
    let how = script.octet();
    let which = usize::from(script.octet());
    let has_any = !streams.is_empty();
    match how {
        0..64 => {
            let stream = TcpStream::connect(address(VICTIM)).expect("a listener");
            stream.set_nonblocking(true).expect("a socket");
            streams.push(stream);
        }
        64..96 if has_any => drop(streams.swap_remove(which % streams.len())),
        96..160 if has_any => {
            let at = which % streams.len();
            say(&mut streams[at], &request(numbers, script));
        }
        _ if has_any => {
            let at = which % streams.len();
            say(&mut streams[at], script.octets(usize::from(how & 31)));
        }
        _ => {}
    }
}

// The device may have closed the stream, or its receive buffer may be full.
fn say(stream: &mut TcpStream, bytes: &[u8]) {
    if let Err(error) = stream.write(bytes) {
        let kinds = [
            ErrorKind::WouldBlock,
            ErrorKind::BrokenPipe,
            ErrorKind::ConnectionReset,
        ];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

// A request that names queue pairs: that of the device, or another.
fn request([own, theirs]: [u32; 2], script: &mut Script<'_>) -> Vec<u8> {
    let how = script.octet();
    let number = |named: u32, bit: u8, script: &mut Script<'_>| match how & bit {
        0 => named,
        _ => named.wrapping_add(u32::from(script.octet())),
    };
    let names = [number(own, 1, script), number(theirs, 2, script)];
    let names = [
        &b"polyqpqp"[..],
        &names[0].to_be_bytes(),
        &names[1].to_be_bytes(),
    ]
    .concat();
    let enhanced = Enhanced {
        peer_to_peer: how & 4 == 0,
        rtr_write: how & 8 == 0,
        ..Enhanced::default()
    };
    let private_data = &names[..names.len() - usize::from(how >> 6)];
    let start = Start::new(Kind::Request, Some(enhanced), private_data);
    let mut bytes = [0; MAX_START_LEN];
    let length = start.and_then(|start| start.encode(&mut bytes));
    bytes[..length.expect("a short request")].to_vec()
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::new(own_address(number), PORT)
}

const VICTIM: u8 = 6;
const HONEST: u8 = 7;
const PORT: u16 = 24_791;
const STEPS: usize = 64;
