//! A peer that accepts a connection and never posts a receive.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use polyverbs::connection::{Connection, ConnectionOptions, Connector, Listener};
use polyverbs::emulated::{EmulatedOptions, device_at};
use polyverbs::{Memory, PathOptions, Qp, QpOptions, Requirements};
use polyverbs_rds::{Control, Cookie, Outgoing, RdmaFlags, RdmaRequest, RdsTransport, Wait};
use polyverbs_wire::rds::{ConnectData, PORT};

use crate::sockets::{address, socket_at};

struct Stalled {
    _connection: Connection,
    _listener: Listener,
    _qp: Qp,
}

/// Accepts one connection and never posts a receive: each message gets an RNR NAK and is retransmitted forever.
fn stalls(at: IpAddr) -> JoinHandle<Stalled> {
    let device = device_at("ib0", at, &EmulatedOptions::default()).unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(16).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    qp.init(PathOptions::new()).wait().unwrap();
    let connector = Connector::of(&context).unwrap();
    let listener = connector.listen(SocketAddr::new(at, PORT), 1).unwrap();
    thread::spawn(move || {
        let incoming = listener.next().wait().unwrap();
        let asked = ConnectData::parse(incoming.private_data(), false).unwrap();
        let told = ConnectData {
            source: asked.destination,
            destination: asked.source,
            credit: 0,
            ..asked
        };
        let options = ConnectionOptions::new().private_data(&told.to_bytes());
        Stalled {
            _connection: incoming.accept(&qp, options).wait().unwrap(),
            _listener: listener,
            _qp: qp,
        }
    })
}

// covers 8.36
#[test]
fn a_stalled_peer_blocks_neither_cancel_nor_close_forever() {
    for is_canceled in [true, false] {
        let far = SocketAddr::new(address(), 4000);
        let peer = stalls(far.ip());
        let near = socket_at(SocketAddr::new(address(), 0), RdsTransport::InfiniBand);
        near.set_options(|options| options.patience = Duration::from_millis(1));
        near.send_to(b"taken by nobody", far).unwrap();
        let memory = Memory::zeroed(8).unwrap();
        // The operation follows the message, so it is never carried out, and its memory need not exist.
        let asked = RdmaRequest {
            cookie: Cookie(1),
            remote_offset: 0,
            remote_length: 8,
            local: vec![memory.range(0, 8).unwrap().into()],
            flags: RdmaFlags::READWRITE,
            user_token: 1,
        };
        let message = Outgoing {
            data: &[IoSlice::new(b"nor this")],
            to: Some(far),
            control: Control::Rdma(asked),
        };
        near.send_msg(message, Wait::Forever).unwrap();
        let _stalled = peer.join().unwrap();
        test_kit::waiting::until(|| near.paths().unwrap().iter().any(|path| path.queued == 0));
        if is_canceled {
            near.cancel_sent_to(Some(far)).unwrap();
        }
        drop(near);
    }
}
