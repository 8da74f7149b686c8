//! Programs that watch their own memory for the writes of the peer. They do not poll while they watch, and the writes
//! are placed all the same, whether the program has polled before or never polls.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread;

use polyverbs::connection::{ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Completion, Context, Cq, Memory, Mr, PathOptions, Qp, QpOptions, RemoteAddress,
    Requirements, wr,
};
use test_kit::waiting::until;

/// Turns of a game; `POLYVERBS_RUNS` times as many where it is set.
fn turns() -> u64 {
    let runs = std::env::var("POLYVERBS_RUNS");
    100 * runs.map_or(1, |runs| runs.parse::<u64>().unwrap())
}

/// Differs from the port of RoCEv2, which a kernel driver may hold.
const PORT: u16 = 14797;
/// Environment variable of the other process: the game, and the address of the first program.
const OTHER: &str = "POLYVERBS_WATCHING_PROCESS";

/// A game in which two programs write to one another in turn.
#[derive(Clone, Copy)]
struct Game {
    device: &'static str,
    /// The addresses of the program that listens, and of the one that connects.
    addresses: [Ipv4Addr; 2],
    /// A program polls for the completion of its write before it watches, as those of perftest do; otherwise it never polls.
    polls: bool,
}

struct Program {
    polls: bool,
    context: Context,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    mr: Mr,
}

impl Program {
    fn new(game: &Game, side: usize) -> Self {
        let options = EmulatedOptions {
            at: Some(SocketAddr::new(game.addresses[side].into(), PORT)),
            without_shared_memory: game.addresses[0] != game.addresses[1],
            ..EmulatedOptions::default()
        };
        let device = device(game.device, &options).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let memory = Memory::zeroed(8).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(&memory, access).wait().unwrap();
        Self {
            polls: game.polls,
            context,
            cq,
            qp,
            memory,
            mr,
        }
    }

    /// The options with which the peer may write to this program.
    fn options(&self) -> ConnectionOptions {
        ConnectionOptions::new()
            .path(PathOptions::new().access(Access::REMOTE_WRITE))
            .private_data(&self.mr.remote(0).to_bytes())
    }

    fn write(&self, turn: u64, to: RemoteAddress) {
        let turn_bytes = turn.to_ne_bytes();
        let write = wr::Write::new(&turn_bytes, to);
        if !self.polls {
            return self.qp.post_one(write).unwrap();
        }
        self.qp.post_one(write.signaled(turn)).unwrap();
        let mut slots = [Completion::default()];
        until(|| self.cq.poll(&mut slots).unwrap().len() == 1);
        assert!(slots[0].status.is_success(), "turn {turn}: {:?}", slots[0]);
    }

    fn watch(&self, turn: u64) {
        until(|| self.memory.load_u64(0).unwrap() == turn);
    }

    /// Checks that the connection outlived the game.
    fn check(&self) {
        assert_eq!(self.qp.query().unwrap().state, QpState::Rts);
    }
}

impl Game {
    /// Starts the peer by `ask`, which gets the address of this program, accepts its connection, and answers each turn.
    fn be_asked(&self, ask: impl FnOnce(SocketAddr)) {
        let program = Program::new(self, 0);
        let connector = Connector::of(&program.context).unwrap();
        let at = SocketAddr::new(self.addresses[0].into(), 0);
        let listener = connector.listen(at, 1).unwrap();
        ask(listener.address());
        let incoming = listener.next().wait().unwrap();
        let peer = remote(incoming.private_data());
        let accepted = incoming.accept(&program.qp, program.options());
        let connection = accepted.wait().unwrap();
        for turn in 1..=turns() {
            program.watch(turn);
            program.write(turn, peer);
        }
        program.check();
        // The write of the last turn may still be in transit.
        connection.disconnected().wait().unwrap();
    }

    fn ask(&self, server: SocketAddr) {
        let program = Program::new(self, 1);
        let connector = Connector::of(&program.context).unwrap();
        let connecting = connector.connect(&program.qp, server, program.options());
        let connection = connecting.wait().unwrap();
        let peer = remote(connection.private_data());
        for turn in 1..=turns() {
            program.write(turn, peer);
            program.watch(turn);
        }
        program.check();
        connection.disconnect().wait().unwrap();
    }

    fn in_two_processes(&self) {
        let mut process = None;
        self.be_asked(|server| {
            let Self {
                device,
                addresses: [one, other],
                polls,
            } = self;
            let test = std::env::current_exe().expect("the test that runs");
            let asks = Command::new(test)
                .args(["--exact", "as_the_other_process", "--nocapture"])
                .env(OTHER, format!("{device} {one} {other} {polls} {server}"))
                .stdout(Stdio::null())
                .spawn();
            process = Some(asks.expect("a second process of the test"));
        });
        let ended = process.expect("it has asked").wait().expect("its end");
        assert!(ended.success(), "{ended}");
    }

    fn in_one_process(&self) {
        thread::scope(|scope| self.be_asked(|server| drop(scope.spawn(move || self.ask(server)))));
    }
}

/// Serves as the other process if the environment variable says so; in any other process it does nothing.
#[test]
fn as_the_other_process() {
    let Ok(asked) = std::env::var(OTHER) else {
        return;
    };
    let asked: Vec<_> = asked.split(' ').collect();
    let [name, one, other, polls, server] = asked[..] else {
        panic!("{asked:?}");
    };
    let game = Game {
        device: if name == "iw0" { "iw0" } else { "ib0" },
        addresses: [one, other].map(|address| address.parse().unwrap()),
        polls: polls.parse().unwrap(),
    };
    game.ask(server.parse().unwrap());
}

fn remote(private_data: &[u8]) -> RemoteAddress {
    let bytes = private_data.first_chunk().expect("an address and a key");
    RemoteAddress::from_bytes(*bytes)
}

/// Plays a game in which the programs never poll, and one in which they poll for the completion of each write.
fn play(device: &'static str, addresses: [[u8; 4]; 2], run: impl Fn(&Game)) {
    for polls in [false, true] {
        run(&Game {
            device,
            addresses: addresses.map(Ipv4Addr::from),
            polls,
        });
    }
}

#[test]
fn a_watching_program_sees_writes_over_udp() {
    let addresses = [[127, 0, 24, 101], [127, 0, 24, 102]];
    play("ib0", addresses, Game::in_two_processes);
}

#[test]
fn a_watching_program_sees_writes_over_tcp() {
    let addresses = [[127, 0, 24, 103], [127, 0, 24, 104]];
    play("iw0", addresses, Game::in_two_processes);
}

#[test]
fn a_watching_program_sees_roce_writes_in_shared_memory() {
    play("ib0", [[127, 0, 24, 105]; 2], Game::in_two_processes);
}

#[test]
fn a_watching_program_sees_iwarp_writes_in_shared_memory() {
    play("iw0", [[127, 0, 24, 106]; 2], Game::in_two_processes);
}

#[test]
fn a_watching_program_sees_writes_within_one_process() {
    play("ib0", [[127, 0, 24, 107]; 2], Game::in_one_process);
    play("iw0", [[127, 0, 24, 108]; 2], Game::in_one_process);
}
