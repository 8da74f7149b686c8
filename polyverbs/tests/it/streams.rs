//! The completions of each queue pair as a stream of its own, when many share a receive queue and a completion queue.

use polyverbs::completion::QpCompletions;
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, Context, Cq, ErrorKind, Features, Pd, Qp, QpOptions, Requirements, Srq,
    SrqOptions, VerbError, connect_pair, wr,
};
use smol::future::{poll_once, zip};

const DEVICES: [&str; 2] = ["ib0", "iw0"];
const CLIENTS: usize = 3;
const RECEIVES: u32 = 8;

/// A server with a queue pair for each client, which take their receives from one queue, and the clients.
struct Rig {
    _context: Context,
    _pd: Pd,
    arrivals: Cq,
    srq: Srq,
    servers: Vec<Qp>,
    clients: Vec<Qp>,
}

fn rig(device: &str) -> Rig {
    let device = emulated::device(device, &EmulatedOptions::default()).unwrap();
    let needed = Requirements::new().needs(Features::SRQ);
    let context = device.open(&needed).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = || context.create_cq(64).wait().unwrap();
    let (arrivals, sent) = (cq(), cq());
    let srq = pd.create_srq(SrqOptions::new(RECEIVES)).wait().unwrap();
    let pool = pd.register_buffers(RECEIVES, 64).wait().unwrap();
    while let Some(buffer) = pool.take() {
        srq.post_receive(buffer).unwrap();
    }
    let make = |options| pd.create_qp(options).wait().unwrap();
    let ends = (0..CLIENTS).map(|_| {
        let server = make(QpOptions::rc(&arrivals).srq(&srq));
        let client = make(QpOptions::rc(&sent));
        connect_pair(&client, &server, Access::empty())
            .wait()
            .unwrap();
        (server, client)
    });
    let (servers, clients) = ends.unzip();
    Rig {
        _context: context,
        _pd: pd,
        arrivals,
        srq,
        servers,
        clients,
    }
}

impl Rig {
    fn streams(&self) -> Vec<QpCompletions> {
        let streams = self.servers.iter().map(Qp::completions);
        streams.collect::<Result<_, _>>().unwrap()
    }

    async fn send(&self, client: usize, message: &[u8]) {
        let request = wr::Send::new(message);
        self.clients[client].submit(request).await.unwrap();
    }

    fn polled(&self) -> Vec<Vec<u8>> {
        let mut slots: [Completion; 16] = Default::default();
        let polled = self.arrivals.poll(&mut slots).unwrap();
        polled.iter().map(|done| done.buffer().to_vec()).collect()
    }
}

async fn next(stream: &mut QpCompletions) -> Vec<u8> {
    let done = stream.next().await.unwrap().success().unwrap();
    done.buffer().to_vec()
}

#[test]
fn each_queue_pair_of_a_shared_receive_queue_has_a_stream() {
    for device in DEVICES {
        let rig = rig(device);
        let mut streams = rig.streams();
        smol::block_on(async {
            for message in [b"a", b"b"] {
                // The clients send in another order than that in which the streams are read.
                for client in (0..CLIENTS - 1).rev() {
                    rig.send(client, &[message[0], client as u8]).await;
                }
            }
            for (client, stream) in (0..).zip(&mut streams[..CLIENTS - 1]) {
                assert_eq!(next(stream).await, [b'a', client]);
                assert_eq!(next(stream).await, [b'b', client]);
            }
            for stream in &mut streams {
                assert!(poll_once(stream.next()).await.is_none());
            }
        });
        assert!(rig.polled().is_empty());
        let taken = 2 * (CLIENTS as u32 - 1);
        assert_eq!(rig.srq.query().unwrap().posted, Some(RECEIVES - taken));
    }
}

#[test]
fn a_task_that_awaits_its_stream_is_woken() {
    for device in DEVICES {
        let rig = rig(device);
        let mut streams = rig.streams();
        let (message, ()) = smol::block_on(zip(next(&mut streams[1]), rig.send(1, b"wake up")));
        assert_eq!(message, b"wake up");
    }
}

#[test]
fn a_dropped_stream_leaves_its_completions_to_polls() {
    for device in DEVICES {
        let rig = rig(device);
        let mut stream = rig.servers[0].completions().unwrap();
        smol::block_on(async {
            for message in [b"first", b"later"] {
                rig.send(0, message).await;
            }
            rig.send(1, b"other").await;
            assert_eq!(next(&mut stream).await, b"first");
        });
        assert_eq!(rig.polled(), [b"other"]);
        drop(stream);
        assert_eq!(rig.polled(), [b"later"]);
        smol::block_on(rig.send(0, b"after"));
        assert_eq!(rig.polled(), [b"after"]);
    }
}

#[test]
fn a_stream_ends_with_the_reset_of_its_queue_pair() {
    let rig = rig("ib0");
    let mut streams = rig.streams();
    smol::block_on(async {
        rig.send(0, b"before").await;
        let reset = QpAttributes::new().qp_state(QpState::Reset);
        let (ended, ()) = zip(streams[1].next(), async {
            rig.servers[1].modify(reset).await.unwrap();
        })
        .await;
        assert_eq!(ended.unwrap_err(), VerbError::Canceled);
        assert_eq!(next(&mut streams[0]).await, b"before");
    });
}

#[test]
fn a_queue_pair_has_one_stream_at_a_time() {
    let rig = rig("ib0");
    let server = &rig.servers[0];
    let stream = server.completions().unwrap();
    let refused = server.completions().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("drop that one first"));
    drop(stream);
    drop(server.completions().unwrap());
}
