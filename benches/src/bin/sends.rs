//! Posts a receive and a signaled send of 64 octets, polls both completions, and prints the nanoseconds that one such turn
//! takes: what `benches/c-layer/sends.c` does through the C library. Usage: `sends TURNS SAMPLES`.

use std::process::ExitCode;

use polyverbs::{Completion, ConnectOptions, Memory, QpOptions, ReceiveRequest, Send, WcStatus};
use polyverbs_benches::Outcome;
use polyverbs_benches::rig::{DEFAULT_DEVICE, LOCAL, Rig};
use polyverbs_benches::sample::nanoseconds;

const OCTETS: u32 = 64;
const DEPTH: u32 = 16;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse());
    let mut number = |otherwise| numbers.next().unwrap_or(Ok(otherwise));
    match (number(100_000), number(1)) {
        (Ok(turns), Ok(samples)) => match measure(turns, samples) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("sends: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: sends TURNS SAMPLES");
            ExitCode::from(2)
        }
    }
}

fn measure(turns: u64, samples: u64) -> Outcome<()> {
    let rig = Rig::new(DEFAULT_DEVICE)?;
    let cq = rig.context.create_cq(64).wait()?;
    let memory = Memory::zeroed(8192).ok_or("out of memory")?;
    let mr = rig.pd.register(&memory, LOCAL).wait()?;
    let options = || QpOptions::rc(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH);
    let (near, far) = (
        rig.pd.create_qp(options()).wait()?,
        rig.pd.create_qp(options()).wait()?,
    );
    near.connect(&far.endpoint()?, ConnectOptions::new())
        .wait()?;
    far.connect(&near.endpoint()?, ConnectOptions::new())
        .wait()?;
    for _ in 0..samples {
        let took = nanoseconds(turns, || {
            let posted = far.post_receive(ReceiveRequest::new(1, mr.sge(4096, OCTETS).unwrap()));
            posted.unwrap();
            let posted = near.post_one(Send::new(mr.sge(0, OCTETS).unwrap()).signaled(0));
            posted.unwrap();
            let mut polled = 0;
            while polled < 2 {
                let mut done: [Completion; 2] = Default::default();
                for completion in cq.poll(&mut done).unwrap() {
                    assert_eq!(completion.status, WcStatus::Success);
                    polled += 1;
                }
            }
        });
        println!("{took:.1}");
    }
    Ok(())
}
