//! Two programs whose queue pairs are connected: in two processes, or on two threads of one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;

use polyverbs::connection::{Connection, ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::extensions::masked_atomics::MaskedFeatures;
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Context, Cq, Memory, Mr, Operations, PathOptions, Qp, QpOptions, RemoteAddress,
    Requirements,
};
use test_kit::process::ChildProcess;

/// Differs from the port of RoCEv2, which a kernel driver may hold.
const PORT: u16 = 14797;
/// Environment variable of the other process: the pair, the address of the listener, and a word of the test.
const OTHER: &str = "POLYVERBS_OTHER_PROGRAM";

/// The device of two programs, and their addresses.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    device: &'static str,
    /// The addresses of the program that listens, and of the one that connects. Programs at one address share memory.
    addresses: [Ipv4Addr; 2],
}

impl Pair {
    pub(crate) fn new(device: &'static str, addresses: [[u8; 4]; 2]) -> Self {
        Self {
            device,
            addresses: addresses.map(Ipv4Addr::from),
        }
    }

    /// Runs `accept` here, and the ignored test `other` in a process of its own, where [`Asked::by_a_test`] returns this pair and
    /// `more`.
    pub(crate) fn in_two_processes(
        self,
        operations: Operations,
        (other, more): (&str, &str),
        accept: impl FnOnce(&Program),
    ) {
        let mut process = None;
        let program = self.accept(operations, |server| {
            let [one, two] = self.addresses;
            let asked = format!("{} {one} {two} {server} {more}", self.device);
            process = Some(ChildProcess::start(other, OTHER, &asked));
        });
        let mut process = process.expect("the process is started before it connects");
        accept(&program);
        program.is_left_after(|| process.say("disconnect"));
        process.ends_well();
    }

    /// Runs `accept` here, and `connect` on another thread.
    pub(crate) fn in_one_process(
        self,
        operations: Operations,
        connect: impl FnOnce(&Program) + Send,
        accept: impl FnOnce(&Program),
    ) {
        let (leave, may_leave) = mpsc::channel();
        thread::scope(|scope| {
            let program = self.accept(operations, |server| {
                scope.spawn(move || {
                    let wait = || may_leave.recv().unwrap();
                    self.connect(operations, server, connect, wait);
                });
            });
            accept(&program);
            program.is_left_after(|| leave.send(()).unwrap());
        });
    }

    /// Runs `body` in a program that is connected to the listener, and disconnects once `may_leave` returns.
    fn connect(
        self,
        operations: Operations,
        server: SocketAddr,
        body: impl FnOnce(&Program),
        may_leave: impl FnOnce(),
    ) {
        let end = End::new(self, 1, operations);
        let connector = Connector::of(&end.context).unwrap();
        let connecting = connector.connect(&end.qp, server, end.options());
        let connection = connecting.wait().unwrap();
        let program = Program {
            peer: remote(connection.private_data()),
            connection,
            end,
        };
        body(&program);
        program.check();
        may_leave();
        program.connection.disconnect().wait().unwrap();
    }

    /// Makes the program that listens, starts the other one by `ask`, and accepts its connection.
    fn accept(self, operations: Operations, ask: impl FnOnce(SocketAddr)) -> Program {
        let end = End::new(self, 0, operations);
        let connector = Connector::of(&end.context).unwrap();
        let at = SocketAddr::new(self.addresses[0].into(), 0);
        let listener = connector.listen(at, 1).unwrap();
        ask(listener.address());
        let incoming = listener.next().wait().unwrap();
        let accepting = incoming.accept(&end.qp, end.options());
        let connection = accepting.wait().unwrap();
        Program {
            peer: remote(connection.private_data()),
            connection,
            end,
        }
    }
}

/// The arguments that the other process gets from the test that has started it.
pub(crate) struct Asked {
    pair: Pair,
    server: SocketAddr,
    pub(crate) more: String,
}

impl Asked {
    /// Returns `None` in a process that no test has started.
    pub(crate) fn by_a_test() -> Option<Self> {
        let asked = std::env::var(OTHER).ok()?;
        let asked: Vec<_> = asked.split(' ').collect();
        let [device, one, two, server, more] = asked[..] else {
            panic!("{asked:?}");
        };
        let pair = Pair {
            device: if device == "iw0" { "iw0" } else { "ib0" },
            addresses: [one, two].map(|address| address.parse().unwrap()),
        };
        Some(Self {
            pair,
            server: server.parse().unwrap(),
            more: more.to_owned(),
        })
    }

    /// Runs `body` in a program that is connected to the one of the test, and disconnects when the test sends a line.
    pub(crate) fn connect(self, operations: Operations, body: impl FnOnce(&Program)) {
        let may_leave = || {
            std::io::stdin().read_line(&mut String::new()).unwrap();
        };
        self.pair.connect(operations, self.server, body, may_leave);
    }
}

/// A program that is connected to another one.
pub(crate) struct Program {
    pub(crate) end: End,
    /// The beginning of the other program's memory.
    pub(crate) peer: RemoteAddress,
    connection: Connection,
}

impl Program {
    /// Checks that the queue pair is still in RTS.
    fn check(&self) {
        assert_eq!(self.end.qp.query().unwrap().state, QpState::Rts);
    }

    /// Checks the connection, lets the other program end it by `leave`, and waits for the end.
    fn is_left_after(&self, leave: impl FnOnce()) {
        self.check();
        leave();
        self.connection.disconnected().wait().unwrap();
    }
}

/// The objects of a program.
pub(crate) struct End {
    context: Context,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
}

impl End {
    fn new(pair: Pair, side: usize, operations: Operations) -> Self {
        let options = EmulatedOptions {
            at: Some(SocketAddr::new(pair.addresses[side].into(), PORT)),
            without_shared_memory: pair.addresses[0] != pair.addresses[1],
            ..EmulatedOptions::default()
        };
        let device = device(pair.device, &options).unwrap();
        let wanted = Requirements::new().needs(MaskedFeatures::MASKED_64);
        let context = device.open(&wanted).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq).operations(operations));
        let memory = Memory::zeroed(16).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mr = pd.register(&memory, access).wait().unwrap();
        Self {
            context,
            cq,
            qp: qp.wait().unwrap(),
            memory,
            mr,
        }
    }

    /// The options with which the peer may use this program's memory.
    fn options(&self) -> ConnectionOptions {
        let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        ConnectionOptions::new()
            .path(PathOptions::new().access(access))
            .private_data(&self.mr.remote(0).to_bytes())
    }
}

fn remote(private_data: &[u8]) -> RemoteAddress {
    let bytes = private_data.first_chunk().expect("an address and a key");
    RemoteAddress::from_bytes(*bytes)
}
