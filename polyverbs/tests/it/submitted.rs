//! Requests whose completions are awaited, from several threads of one program, and the examples that do so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, BufferPool, Completion, Context, Cq, Qp, QpOptions, Requirements, WcStatus,
    completion::SubmitError,
    connect_pair,
    qp::{QpAttributes, QpState},
    wr,
};

// Each has a `main` of its own.
#[path = "../../../examples/async_smol.rs"]
mod async_smol;
#[path = "../../../examples/async_tokio.rs"]
mod async_tokio;

#[test]
fn the_example_with_tokio_ends() {
    async_tokio::main().unwrap();
}

#[test]
fn the_example_with_smol_ends() {
    async_smol::main().unwrap();
}

const DEVICES: [&str; 2] = ["ib0", "iw0"];
const TASKS: u64 = 4;
const ROUNDS: u64 = 100;
/// Four for each round: a poller that is slow gives none back.
const BUFFERS: u32 = 4 * (TASKS * ROUNDS) as u32;

struct Ends {
    _context: Context,
    cq: Cq,
    near: Qp,
    far: Qp,
    pool: BufferPool,
}

fn ends(device: &str) -> Ends {
    let device = emulated::device(device, &EmulatedOptions::default()).unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(1024).wait().unwrap();
    let options = QpOptions::rc(&cq).max_send_wr(256).max_recv_wr(256);
    let qp = || pd.create_qp(options.clone()).wait().unwrap();
    let (near, far) = (qp(), qp());
    connect_pair(&near, &far, Access::empty()).wait().unwrap();
    let pool = pd.register_buffers(BUFFERS, 64).wait().unwrap();
    Ends {
        _context: context,
        cq,
        near,
        far,
        pool,
    }
}

impl Ends {
    fn message(&self, number: u64) -> wr::Send<'static> {
        let mut buffer = self.pool.take().unwrap();
        buffer[..8].copy_from_slice(&number.to_be_bytes());
        buffer.set_len(8);
        wr::Send::new(buffer).wr_id(number)
    }
}

// covers 5.30 5.31
#[test]
fn threads_await_cancel_and_poll_on_one_queue() {
    for device in DEVICES {
        let ends = ends(device);
        let (polled, heard) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for task in 0..TASKS {
                let (ends, heard) = (&ends, &heard);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let number = task * ROUNDS + round;
                        let received = ends.far.receive(ends.pool.take().unwrap());
                        let sent = ends.near.submit(ends.message(number));
                        let plain = ends.message(number).signaled(number);
                        drop(ends.far.receive(ends.pool.take().unwrap()));
                        ends.near.post_one(plain).unwrap();
                        if round % 3 == 0 {
                            drop(sent);
                        } else {
                            assert_eq!(sent.wait().unwrap().wr_id, number);
                        }
                        let received = received.wait().unwrap();
                        assert_eq!(received.buffer().len(), 8);
                        heard.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            scope.spawn(|| {
                let mut slots: [Completion; 8] = Default::default();
                while polled.load(Ordering::SeqCst) < (TASKS * ROUNDS) as usize {
                    for done in ends.cq.next_batch(&mut slots).wait().unwrap() {
                        assert_eq!(done.status, WcStatus::Success);
                        assert!(done.wr_id < TASKS * ROUNDS);
                        polled.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        });
        assert_eq!(heard.into_inner(), (TASKS * ROUNDS) as usize);
        // All buffers are back: those of requests that nobody awaited too.
        assert_eq!(ends.cq.poll(&mut [Completion::default()]).unwrap().len(), 0);
        assert_eq!(ends.pool.available(), BUFFERS as usize);
    }
}

// covers 5.32
#[test]
fn a_queue_pair_in_error_is_an_error_of_every_future() {
    for device in DEVICES {
        let ends = ends(device);
        let futures: Vec<_> = (0..100)
            .map(|_| ends.near.receive(ends.pool.take().unwrap()))
            .collect();
        let failed = QpAttributes::new().qp_state(QpState::Err);
        ends.near.modify(failed).wait().unwrap();
        for future in futures {
            let Err(SubmitError::Failed(error)) = future.wait() else {
                panic!("{device}: a receive is flushed");
            };
            assert_eq!(error.status, WcStatus::WrFlushErr);
        }
        assert_eq!(ends.pool.available(), BUFFERS as usize);
    }
}
