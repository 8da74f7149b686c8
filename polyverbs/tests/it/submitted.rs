//! Requests whose completions several threads of one program await, and the examples with async runtimes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::portable::{self, ReadAndInvalidate, ReadSink, RemoteAccess};
use polyverbs::{
    Access, BufferPool, Completion, Context, Cq, Features, Memory, PathOptions, Qp, QpOptions,
    Requirements, SrqOptions, WcStatus,
    completion::{SubmitError, WcOpcode},
    connect_pair,
    qp::{QpAttributes, QpState, connect_pair_with},
    wr,
};

// Each example has a `main` of its own.
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
/// Four buffers for each round, because a slow poller returns none.
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
        // All buffers are back in the pool, also those of requests whose futures were dropped.
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
            assert_eq!(error.opcode, WcOpcode::Recv);
        }
        assert_eq!(ends.pool.available(), BUFFERS as usize);
    }
}

#[test]
fn a_portable_operation_answers_one_future() {
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for device in DEVICES {
        let device = emulated::device(device, &EmulatedOptions::default()).unwrap();
        let context = device
            .open(&Requirements::new().prefers(portable::FEATURES))
            .unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let qp = || {
            let options = QpOptions::rc(&cq).reserve_portable(1);
            pd.create_qp(options).wait().unwrap()
        };
        let (near, far) = (qp(), qp());
        connect_pair(&near, &far, rights).wait().unwrap();
        let (source, memory) = (Memory::zeroed(64).unwrap(), Memory::zeroed(64).unwrap());
        source.write(0, b"read once").unwrap();
        let rights = Access::LOCAL_WRITE | rights;
        let opened = RemoteAccess::prepare(&pd, &source, rights, false)
            .wait()
            .unwrap();
        let register = far.submit_portable(opened.register().wr_id(7));
        assert_eq!(register.wait().unwrap().wr_id, 7);
        let sink = ReadSink::prepare(&pd, &memory, false).wait().unwrap();
        if let Some(request) = sink.register(64) {
            near.submit(request).wait().unwrap();
        }
        // On InfiniBand these are two requests.
        let read = ReadAndInvalidate::new(opened.remote(), &sink.sink(64)).wr_id(8);
        assert_eq!(near.submit_portable(read).wait().unwrap().wr_id, 8);
        assert_eq!(memory.to_vec(0, 9).unwrap(), b"read once");
        // The key of the sink is invalidated now: the next read fails, and completes its future all the same.
        let again = ReadAndInvalidate::new(opened.remote(), &sink.sink(64)).wr_id(9);
        let Err(SubmitError::Failed(error)) = near.submit_portable(again).wait() else {
            panic!("a dead key was used");
        };
        assert_eq!(error.wr_id, 9);
        assert!(
            cq.poll(&mut [Completion::default()]).unwrap().is_empty(),
            "one completion each"
        );
    }
}

#[test]
fn a_shared_queue_says_how_many_receives_are_posted() {
    let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
    let context = device
        .open(&Requirements::new().needs(Features::SRQ))
        .unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    for posted in 0..3 {
        assert_eq!(srq.query().unwrap().posted, Some(posted));
        srq.post_receive(wr::ReceiveRequest::new(1, ())).unwrap();
    }
}

#[test]
fn a_pair_gets_the_options_that_were_chosen() {
    let ends = ends("ib0");
    let reset = QpAttributes::new().qp_state(QpState::Reset);
    for qp in [&ends.near, &ends.far] {
        qp.modify(reset).wait().unwrap();
    }
    let options = PathOptions::new().timeout(3).retry_cnt(2);
    connect_pair_with(&ends.near, &ends.far, options)
        .wait()
        .unwrap();
    for qp in [&ends.near, &ends.far] {
        let attributes = qp.query().unwrap().attributes;
        assert_eq!(
            (attributes.timeout, attributes.retry_cnt),
            (Some(3), Some(2))
        );
    }
}
