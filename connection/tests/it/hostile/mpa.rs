//! MPA over TCP, and hostile streams.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use emulated_iwarp::WireOptions;
use polyverbs::qp::QpState;
use polyverbs_connection::{ConnectError, ConnectionOptions, Listener};
use polyverbs_wire::iwarp::start::{Enhanced, Kind, Start};
use polyverbs_wire::iwarp::{Direction, Opcode, Tagged};
use polyverbs_wire::layout::Header as _;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, setrlimit};
use test_kit::process::ChildProcess;

use crate::hostile::segments::FRAMING;
use crate::managed::{Clock, Managed};
use crate::rig::{End, error, open, state, tcp_device};

/// How long a stream may be without a complete request.
const REQUESTED_BY: Duration = Duration::from_secs(10);

pub(crate) struct Target {
    pub(crate) end: End,
    clock: Arc<Clock>,
    manager: Managed,
    pub(crate) listener: Listener,
}

impl Target {
    pub(crate) fn new(address: &str) -> Self {
        Self::with(address, |_| {})
    }

    pub(crate) fn with(address: &str, change: impl FnOnce(&mut WireOptions)) -> Self {
        let context = open(&tcp_device(address, change));
        let clock = Arc::new(Clock::default());
        let manager = Managed::new(&context, &clock);
        let end = End::new(&context, manager.connector.clone());
        let listener = end.listen();
        Self {
            end,
            clock,
            manager,
            listener,
        }
    }

    pub(crate) fn stream(&self) -> TcpStream {
        stream_to(self.listener.address())
    }

    /// Waits until the manager has accepted this many streams, and has received this many bytes and
    /// ends of streams.
    fn wait_until_heard(&self, streams: usize, bytes: usize, ends: usize) {
        let gate = &self.manager.gate;
        let heard = || (gate.accepted(), gate.heard(), gate.ends_heard());
        test_kit::waiting::until(|| heard() == (streams, bytes, ends));
    }

    /// Checks that an honest peer is served before any time passes.
    pub(crate) fn serves(&self) {
        let (near, far) = (self.end.new_qp(), self.end.new_qp());
        let options = ConnectionOptions::new().private_data(b"in good faith");
        let to = self.listener.address();
        let connecting = self.end.connector.connect(&near, to, options);
        let incoming = self.listener.next().wait().unwrap();
        assert!(incoming.private_data().starts_with(b"in good faith\0"));
        let accepting = incoming.accept(&far, ConnectionOptions::new());
        let _both = (connecting.wait().unwrap(), accepting.wait().unwrap());
    }
}

fn stream_to(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(test_kit::waiting::PATIENCE))
        .unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A request of revision 1, which negotiates nothing.
fn request() -> Vec<u8> {
    encoded(&Start::new(Kind::Request, None, b"bad").unwrap())
}

fn encoded(start: &Start<'_>) -> Vec<u8> {
    let mut bytes = [0; 64];
    let len = start.encode(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Whether the stream has delivered nothing, neither bytes nor its end.
pub(crate) fn is_quiet(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let received = stream.read(&mut [0; 64]);
    stream.set_nonblocking(false).unwrap();
    matches!(received, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn is_cut_off(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 64];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

// covers 7.41
#[test]
fn a_stream_without_a_complete_request_is_closed() {
    let target = Target::new("127.0.6.1");
    let mut silent: Vec<_> = (0..200).map(|_| target.stream()).collect();
    for stream in silent.iter_mut().skip(100) {
        stream.write_all(&request()[..19]).unwrap();
    }
    // The silent streams came before this one, and have been accepted when it is served.
    target.serves();
    let moment = Duration::from_millis(1);
    target.clock.pass(REQUESTED_BY - moment);
    target.serves();
    assert!(silent.iter_mut().all(is_quiet));
    target.clock.pass(moment);
    assert!(silent.iter_mut().all(is_cut_off));
    target.serves();
}

// covers 7.41
#[test]
fn silent_connections_do_not_keep_others_out() {
    let target = Target::with("127.0.6.11", |options| options.max_early = 64);
    // This stream has sent its request and waits for the program: it must not be closed to make room
    // for the silent ones.
    let mut asking = target.stream();
    asking.write_all(&request()).unwrap();
    let incoming = target.listener.next().wait().unwrap();
    let mut silent: Vec<_> = (0..300).map(|_| target.stream()).collect();
    for _ in 0..5 {
        target.serves();
    }
    // The oldest silent stream was closed, although no time has passed.
    assert!(is_cut_off(&mut silent[0]));
    incoming.reject(b"seen").unwrap();
    let mut bytes = [0; 16];
    asking.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, Kind::Reply.key());
}

const ADDRESS: &str = "POLYVERBS_TEST_ADDRESS";

// A server that may have more streams than descriptors. Its clock stands still, so that no silent stream is closed for its age.
#[test]
#[ignore = "a process of the other tests"]
fn few_descriptors() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let few = Rlimit {
        current: Some(128),
        maximum: Some(128),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let target = Target::with(&address, |options| {
        assert_eq!(options.max_early, 64, "half of the descriptors");
        options.max_early = usize::MAX;
    });
    println!("\n> {}", target.listener.address());
    let incoming = target.listener.next().wait().unwrap();
    let qp = target.end.new_qp();
    let accepting = incoming.accept(&qp, ConnectionOptions::new());
    let _connection = accepting.wait().unwrap();
    // This returns when the other test is over.
    let _ = std::io::stdin().read(&mut [0]);
}

// covers 7.41
#[test]
fn without_descriptors_the_oldest_silent_stream_is_closed() {
    let mut server = ChildProcess::start("hostile::mpa::few_descriptors", ADDRESS, "127.0.6.12");
    let to = server.answer().parse().unwrap();
    let mut silent: Vec<_> = (0..300).map(|_| stream_to(to)).collect();
    let honest = End::tcp("127.0.6.13");
    let connecting = (honest.connector).connect(&honest.qp, to, ConnectionOptions::new());
    let _connection = connecting.wait().unwrap();
    assert!(is_cut_off(&mut silent[0]));
    assert!(is_quiet(&mut silent[299]));
}

// covers 7.41
#[test]
fn single_bytes_now_and_then_extend_no_timeout() {
    let target = Target::new("127.0.6.2");
    let mut stream = target.stream();
    for (number, byte) in (1..=10).zip(request()) {
        assert!(is_quiet(&mut stream));
        stream.write_all(&[byte]).unwrap();
        target.wait_until_heard(1, number, 0);
        target.clock.pass(REQUESTED_BY / 10);
    }
    assert!(is_cut_off(&mut stream));
    target.serves();
}

/// A request that announces a write of nothing, as its ready-to-receive indication.
fn request_with_a_sign() -> Vec<u8> {
    let wishes = Enhanced {
        peer_to_peer: true,
        rtr_write: true,
        ..Enhanced::default()
    };
    let mut start = Start::new(Kind::Request, Some(wishes), b"").unwrap();
    start.header.crc = true;
    encoded(&start)
}

fn sign() -> Vec<u8> {
    let header = Tagged::new(Opcode::WRITE, 0, 0, true);
    let mut frame = [0; 64];
    let mut sender = Direction::new(FRAMING);
    let len = sender.frame(&[&header.to_view().0], &mut frame).unwrap();
    frame[..len].to_vec()
}

// concerns 7.35
#[test]
fn a_peer_that_leaves_during_the_accept_was_connected() {
    let target = Target::new("127.0.6.7");
    let (request, sign) = (request_with_a_sign(), sign());
    for _ in 0..500 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = target.stream();
                stream.write_all(&request).unwrap();
                let mut reply = [0; 24];
                stream.read_exact(&mut reply).unwrap();
                stream.write_all(&sign).unwrap();
            });
            let incoming = target.listener.next().wait().unwrap();
            let qp = target.end.new_qp();
            let accepted = incoming.accept(&qp, ConnectionOptions::new());
            accepted.wait().unwrap().disconnected().wait().unwrap();
        });
    }
}

// covers 7.34
#[test]
fn endless_bytes_are_not_read_for_ever() {
    let target = Target::new("127.0.6.3");
    // The endless bytes follow an unanswered request, or pretend to be the private data of a request.
    let mut endless = request();
    endless[18..20].copy_from_slice(&u16::MAX.to_be_bytes());
    for start in [request(), endless] {
        let mut stream = target.stream();
        stream.write_all(&start).unwrap();
        let chunk = [0x5a; 4096];
        let mut sent = 0;
        while sent < 64 << 20 && stream.write_all(&chunk).is_ok() {
            sent += chunk.len();
        }
        assert!(sent < 64 << 20, "all of it was taken");
    }
    // The request of the first stream has arrived, and is withdrawn.
    target.serves();
}

// covers 7.44 7.47
#[test]
fn tcp_resets_at_each_step_disturb_no_other_connection() {
    let target = Target::new("127.0.6.4");
    // The reset comes before the request, in the middle of it, or after it.
    let lengths = [0, 9, request().len()].repeat(20);
    let mut bytes = 0;
    for (number, length) in lengths.into_iter().enumerate() {
        let mut stream = target.stream();
        stream.write_all(&request()[..length]).unwrap();
        bytes += length;
        target.wait_until_heard(number + 1, bytes, number);
        reset(stream);
        target.wait_until_heard(number + 1, bytes, number + 1);
    }
    // The requests were withdrawn.
    target.serves();

    // The reset comes while the program holds the request.
    let mut stream = target.stream();
    stream.write_all(&request()).unwrap();
    let incoming = target.listener.next().wait().unwrap();
    let ends = target.manager.gate.ends_heard();
    reset(stream);
    test_kit::waiting::until(|| target.manager.gate.ends_heard() > ends);
    let qp = target.end.new_qp();
    let accepted = incoming.accept(&qp, ConnectionOptions::new());
    assert!(accepted.wait().is_err());

    // The reset comes when the stream is connected.
    let mut stream = target.stream();
    stream.write_all(&request()).unwrap();
    let incoming = target.listener.next().wait().unwrap();
    let qp = target.end.new_qp();
    let accepted = incoming.accept(&qp, ConnectionOptions::new());
    let connection = accepted.wait().unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    reset(stream);
    connection.disconnected().wait().unwrap();
    test_kit::waiting::until(|| state(&qp) == QpState::Err);
    target.serves();
}

// covers 7.34
#[test]
fn malformed_replies_fail_a_connect() {
    let target = Target::new("127.0.6.5");
    let listener = std::net::TcpListener::bind("127.0.6.6:0").unwrap();
    let to = listener.local_addr().unwrap();
    let mut too_long = request();
    too_long[..16].copy_from_slice(b"MPA ID Rep Frame");
    too_long[18..20].copy_from_slice(&513_u16.to_be_bytes());
    let mut of_a_later_revision = too_long.clone();
    of_a_later_revision[17] = 9;
    of_a_later_revision[18..20].copy_from_slice(&3_u16.to_be_bytes());
    for lie in [too_long, request(), of_a_later_revision] {
        let qp = target.end.new_qp();
        let options = ConnectionOptions::new();
        let asked = target.end.connector.request(&qp, to, options);
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&lie).unwrap();
        assert_eq!(error(asked), ConnectError::Aborted);
        assert_eq!(state(&qp), QpState::Reset);
    }
    target.serves();
}

// covers 7.52
#[test]
fn a_request_is_admitted_if_the_device_admits_its_user() {
    let target = Target::new("127.0.6.40");
    for is_admitted in [true, false] {
        let admits_nobody = &target.manager.gate.admits_nobody;
        admits_nobody.store(!is_admitted, Ordering::Relaxed);
        let near = target.end.new_qp();
        let to = target.listener.address();
        let connecting = target
            .end
            .connector
            .connect(&near, to, ConnectionOptions::new());
        let incoming = target.listener.next().wait().unwrap();
        assert_eq!(incoming.from().map(|from| from.ip()), Some(to.ip()));
        assert_eq!(incoming.is_admitted(), is_admitted);
        incoming.reject(b"").unwrap();
        connecting.wait().unwrap_err();
    }
}
