//! The command `sends`: the time of a request of 64 bytes, posted and polled one after another. It is the Rust counterpart
//! of `benches/c-layer/sends.c`, which uses the C library.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Qp, QpOptions, RemoteAddress, Sge, WcStatus, connect_pair,
    wr::{self, ReceiveRequest},
};
use polyverbs_benches::rig::{PEERS, Rig};

use crate::part::Part;
use crate::report::{NS, Row};

const OCTETS: u32 = 64;
const DEPTH: u32 = 64;

/// Requests of 64 bytes, one after another, in the same loops as the C program benches/c-layer/sends.c
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    what: What,
    /// How many turns are timed, rounded down to a multiple of 64
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(DEPTH)..))]
    turns: u32,
    /// The kind of emulated device, or the registered device, that is measured
    #[arg(long, value_name = "NAME", default_value = "ib0")]
    device: String,
}

/// The requests or verbs of which one timed turn consists.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum What {
    /// A receive and a signaled send, posted, and both polled
    Turn,
    /// A signaled send, posted and polled; its receive is posted before and polled after the timed part
    Send,
    /// A signaled write, posted and polled
    Write,
    /// A region registered and deregistered; the time is per verb
    Verb,
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    let arguments = arguments.clone();
    vec![Part::new("sends", move || measure(&arguments))]
}

fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let (name, measure): (_, fn(&Pair, u32) -> Duration) = match arguments.what {
        What::Turn => ("a send of 64 B and its receive", Pair::turns),
        What::Send => ("a send of 64 B, posted and polled", Pair::sends),
        What::Write => ("a write of 64 B, posted and polled", Pair::writes),
        What::Verb => ("a control verb", Pair::verbs),
    };
    // `Pair::turns` polls the completions of the send and of the receive from one completion queue.
    let pair = Pair::new(&arguments.device, arguments.what == What::Turn)?;
    measure(&pair, DEPTH); // Rings are made when they are first used.
    let turns = arguments.turns / DEPTH * DEPTH;
    let took = measure(&pair, turns).as_nanos() as f64;
    Ok(vec![Row::new(name, took / f64::from(turns), NS)])
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
    // The memory region to which the scatter/gather entries `data` and `room` belong.
    _mr: Mr,
}

impl Pair {
    fn new(device: &str, has_one_cq: bool) -> Result<Self> {
        let rig = Rig::new(device)?;
        let sent = rig.context.create_cq(2 * DEPTH).wait()?;
        let received = if has_one_cq {
            sent.clone()
        } else {
            rig.context.create_cq(2 * DEPTH).wait()?
        };
        let memory = Memory::zeroed(8192)?;
        let mr = rig.pd.register(&memory, rig.remote()).wait()?;
        let options = || {
            let options = QpOptions::rc(&sent).recv_cq(&received);
            options.max_send_wr(DEPTH).max_recv_wr(DEPTH)
        };
        let near = rig.pd.create_qp(options()).wait()?;
        let far = rig.pd.create_qp(options()).wait()?;
        connect_pair(&near, &far, PEERS).wait()?;
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
