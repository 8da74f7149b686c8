//! Prints the nanoseconds of a turn of 64 bytes: the Rust counterpart of `benches/c-layer/sends.c`, which uses the C library.
//!
//! - `turn`: a receive and a signaled send, posted, and both polled
//! - `send`: a signaled send, posted and polled; its receive is posted before and polled after the timed part
//! - `write`: a signaled write, posted and polled
//! - `verb`: a region registered and deregistered; the time is per verb
//!
//! Usage: `sends turn|send|write|verb TURNS`. `POLYVERBS_BENCH_DEVICE` names the device.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use polyverbs::{
    Access, Completion, Cq, Memory, Mr, PathOptions, Qp, QpOptions, RemoteAddress, Sge, WcStatus,
    wr::{self, ReceiveRequest},
};
use polyverbs_benches::Outcome;
use polyverbs_benches::rig::{PEERS, REMOTE, Rig};

const OCTETS: u32 = 64;
const DEPTH: u32 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, turns] = &arguments[..] else {
        return usage();
    };
    let measure: fn(&Pair, u32) -> Duration = match what.as_str() {
        "turn" => Pair::turns,
        "send" => Pair::sends,
        "write" => Pair::writes,
        "verb" => Pair::verbs,
        _ => return usage(),
    };
    let turns = turns.parse().unwrap_or(0) / DEPTH * DEPTH;
    if turns == 0 {
        return usage();
    }
    // A turn polls the send and the receive from one queue.
    match Pair::new(what == "turn") {
        Ok(pair) => {
            measure(&pair, DEPTH); // Rings are made when they are first used.
            let took = measure(&pair, turns).as_nanos() as f64;
            println!("{:.1}", took / f64::from(turns));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sends: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: sends turn|send|write|verb TURNS (at least {DEPTH})");
    ExitCode::from(2)
}

struct Pair {
    near: Qp,
    far: Qp,
    sent: Cq,
    received: Cq,
    data: Sge,
    room: Sge,
    target: RemoteAddress,
    rig: Rig,
    memory: Memory,
    // The region of the scatter/gather entries.
    _mr: Mr,
}

impl Pair {
    fn new(has_one_cq: bool) -> Outcome<Self> {
        let rig = Rig::of_environment()?;
        let sent = rig.context.create_cq(2 * DEPTH).wait()?;
        let received = if has_one_cq {
            sent.clone()
        } else {
            rig.context.create_cq(2 * DEPTH).wait()?
        };
        let memory = Memory::zeroed(8192)?;
        let mr = rig.pd.register(&memory, REMOTE).wait()?;
        let options = || {
            let options = QpOptions::rc(&sent).recv_cq(&received);
            options.max_send_wr(DEPTH).max_recv_wr(DEPTH)
        };
        let near = rig.pd.create_qp(options()).wait()?;
        let far = rig.pd.create_qp(options()).wait()?;
        let options = PathOptions::new().access(PEERS);
        near.connect(&far.endpoint()?, options).wait()?;
        far.connect(&near.endpoint()?, options).wait()?;
        Ok(Self {
            data: mr.sge(0, OCTETS)?,
            room: mr.sge(4096, OCTETS)?,
            target: mr.remote(4096),
            near,
            far,
            sent,
            received,
            rig,
            memory,
            _mr: mr,
        })
    }

    fn post_receive(&self) {
        let posted = self.far.post_receive(ReceiveRequest::new(1, self.room));
        posted.expect("there is room");
    }

    fn post_send(&self) {
        let posted = self.near.post_one(wr::Send::new(self.data).signaled(0));
        posted.expect("there is room");
    }

    fn turns(&self, turns: u32) -> Duration {
        let mut slots = Default::default();
        let began = Instant::now();
        for _ in 0..turns {
            self.post_receive();
            self.post_send();
            poll(&self.sent, 2, &mut slots);
        }
        began.elapsed()
    }

    fn sends(&self, turns: u32) -> Duration {
        let mut slots = Default::default();
        let mut took = Duration::ZERO;
        for _ in 0..turns / DEPTH {
            (0..DEPTH).for_each(|_| self.post_receive());
            let began = Instant::now();
            for _ in 0..DEPTH {
                self.post_send();
                poll(&self.sent, 1, &mut slots);
            }
            took += began.elapsed();
            poll(&self.received, DEPTH as usize, &mut slots);
        }
        took
    }

    fn writes(&self, turns: u32) -> Duration {
        let mut slots = Default::default();
        let began = Instant::now();
        for _ in 0..turns {
            let write = wr::Write::new(self.data, self.target).signaled(0);
            self.near.post_one(write).expect("there is room");
            poll(&self.sent, 1, &mut slots);
        }
        began.elapsed()
    }
}

impl Pair {
    fn verbs(&self, turns: u32) -> Duration {
        let began = Instant::now();
        for _ in 0..turns {
            let register = self.rig.pd.register(&self.memory, Access::LOCAL_WRITE);
            let region = register.wait().expect("there is memory");
            region
                .deregister()
                .wait()
                .expect("no request uses the region");
        }
        began.elapsed() / 2
    }
}

fn poll(cq: &Cq, wanted: usize, slots: &mut [Completion; 2]) {
    let mut polled = 0;
    while polled < wanted {
        let done = cq.poll(slots).expect("the queue is live");
        for completion in done.iter() {
            assert_eq!(completion.status, WcStatus::Success);
        }
        polled += done.len();
    }
}
