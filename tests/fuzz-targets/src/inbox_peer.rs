//! A process that sends messages that a fuzzer makes up to the other processes at its address.
//!
//! It sends to the inboxes of an honest process, which has leased a range and serves a service ID, and it answers a process
//! that joins. Whatever it sends, the honest processes continue to work: datagrams are forwarded, and a process that joins
//! is let in.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use polyverbs_io::emulated::ROCE_PORT;
use polyverbs_io::{Arrival, GroupOptions, Lease, Mail, Service};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use verbs_api::provider::Mutex;

use crate::intruder::{Hideout, Intruder, JOIN, VERSION, own_address};
use crate::script::Script;

static KEPT: Mutex<Option<Rig>> = Mutex::new(None);

/// Sends the messages of a fuzzer to inboxes, and to a process that joins.
pub fn run(octets: &[u8]) {
    let mut kept = KEPT.lock();
    let mut rig = kept.take().unwrap_or_else(Rig::new);
    let mut script = Script::new(octets);
    if script.octet() & 15 == 15 {
        rig.is_joined(&mut script);
    }
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        rig.step(&mut script);
    }
    rig.intruders.clear();
    rig.serves();
    *kept = Some(rig);
}

struct Rig {
    victim: Lease,
    service: Service,
    neighbour: Lease,
    intruders: Vec<Intruder>,
    /// Descriptors that may come with a message, all of them of the wrong kind.
    wrong: Vec<OwnedFd>,
}

impl Rig {
    fn new() -> Self {
        let [victim, neighbour] =
            [(); 2].map(|()| Lease::join(options(ROCE_PORT)).expect("a range"));
        let unsealed = memfd_create("intruder", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&unsealed, 1 << 30).expect("a sparse file");
        let wrong = vec![
            unsealed,
            eventfd(0, EventfdFlags::CLOEXEC).expect("a counter"),
            duplicate(&victim),
            duplicate(victim.common()),
        ];
        Self {
            service: victim.serve(SERVICE).expect("a free service"),
            victim,
            neighbour,
            intruders: Vec::new(),
            wrong,
        }
    }

    fn range_name(&self) -> String {
        format!(
            "{}/range/{}",
            prefix(ROCE_PORT),
            self.victim.range().index()
        )
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.octet() {
            what @ 0..160 => self.say(what, script),
            160..192 => self.connect(false, script),
            192..208 => self.connect(true, script),
            208..216 => {
                let which = usize::from(script.octet());
                if !self.intruders.is_empty() {
                    self.intruders.swap_remove(which % self.intruders.len());
                }
            }
            216..240 => self.attend_lease(&mut |_| {}),
            _ => self.attend_service(&mut |_| {}),
        }
    }

    fn connect(&mut self, to_service: bool, script: &mut Script<'_>) {
        let name = match to_service {
            true => format!("{}/service/{SERVICE:016x}", prefix(ROCE_PORT)),
            false => self.range_name(),
        };
        let count = 1 + script.octet() / 4;
        for _ in 0..count {
            self.intruders.push(Intruder::to(&name));
        }
    }

    fn say(&mut self, what: u8, script: &mut Script<'_>) {
        if self.intruders.is_empty() {
            self.connect(what & 1 != 0, script);
        }
        let message = message(what, script);
        let which = usize::from(script.octet()) % self.intruders.len();
        let descriptors: Vec<_> = match what & 0xe0 {
            0x80 => self.some_wrong(script).collect(),
            _ => Vec::new(),
        };
        self.intruders[which].say(&message, &descriptors);
    }

    fn some_wrong(&self, script: &mut Script<'_>) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (count, first) = (script.octet() % 70, usize::from(script.octet()));
        let wrong = self.wrong.iter().cycle().skip(first % self.wrong.len());
        wrong.take(count.into()).map(AsFd::as_fd)
    }

    fn attend_lease(&self, take: &mut dyn FnMut(Mail<'_>)) {
        self.victim.attend(take).expect("an inbox");
    }

    fn attend_service(&self, take: &mut dyn FnMut(Mail<'_>)) {
        self.service.attend(take).expect("an inbox");
    }

    // Checks that inboxes are emptied, datagrams are forwarded, and a process that joins gets all sockets.
    fn serves(&self) {
        for inbox in [self.victim.as_fd(), self.service.as_fd()] {
            let looks = (0..ENOUGH).take_while(|_| is_ready(inbox));
            let looks = looks.map(|_| {
                self.attend_lease(&mut |_| {});
                self.attend_service(&mut |_| {});
            });
            assert!(looks.count() < ENOUGH, "an inbox that is never read up");
        }
        let (arrival, mut came) = (arrival(), 0);
        let mut take = |mail: Mail<'_>| {
            assert_eq!(mail, Mail::Datagram(arrival, DATAGRAM));
            came += 1;
        };
        let to = self.victim.range();
        let handed = self.neighbour.hand_to_range(to, &arrival, DATAGRAM);
        handed.expect("a reader of the range");
        self.attend_lease(&mut take);
        let handed = self.neighbour.hand_to_service(SERVICE, &arrival, DATAGRAM);
        handed.expect("a reader of the service");
        self.attend_service(&mut take);
        assert_eq!((came, self.victim.strangers()), (2, 0));
        let passed = Intruder::joins(&self.victim, &self.range_name());
        // The four descriptors are the common socket, both ends of the store of sockets, and the memory.
        assert_eq!(passed.len(), 4);
    }

    // An honest process asks the intruder for the state that the processes at another address share: it gets that from no
    // process, or completely.
    fn is_joined(&self, script: &mut Script<'_>) {
        let port = if script.octet() & 1 == 0 {
            0
        } else {
            ROCE_PORT + 1
        };
        let range = 1 + script.octet() % 63;
        let hideout = Hideout::named(&format!("{}/range/{range}", prefix(port)));
        let answers: Vec<_> = (0..8)
            .map(|_| {
                let what = script.octet();
                let message = match what & 3 {
                    0 => message(what, script),
                    _ => vec![VERSION, DESCRIPTORS_PASSED],
                };
                (message, self.some_wrong(script).collect::<Vec<_>>())
            })
            .collect();
        let is_over = AtomicBool::new(false);
        let joined = thread::scope(|scope| {
            let answering = scope.spawn(|| {
                for (message, descriptors) in answers.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    hideout.answer(message, descriptors);
                }
            });
            let joined = Lease::join(options(port));
            is_over.store(true, Ordering::Relaxed);
            // Otherwise memory of the thread may still exist when the leak checker searches the process.
            answering.join().expect("a thread that ends");
            joined
        });
        if let Ok(lease) = joined {
            assert_ne!(lease.range().index(), usize::from(range));
        }
        drop(hideout);
        Lease::join(options(port)).expect("a range");
    }
}

fn message(what: u8, script: &mut Script<'_>) -> Vec<u8> {
    let length = usize::from(script.octet());
    let octets = script.octets(length).to_vec();
    let long = vec![what; length << (what & 7) << 2];
    match what >> 3 & 7 {
        0 => octets,
        1 => vec![VERSION, JOIN],
        2 => [&[VERSION, what][..], &octets, &long].concat(),
        3 => [&octets[..], &long].concat(),
        // These are parts of names, in the form in which the system has them.
        4 | 5 => {
            let mut names = octets;
            names.resize(2 + 2 * 28, 0);
            [names[2], names[2 + 28]] = [2, 2];
            [names[3], names[3 + 28]] = [0; 2];
            [&[VERSION, HANDED][..], &names, &long].concat()
        }
        _ => [&[VERSION, HANDED][..], &octets].concat(),
    }
}

fn options(port: u16) -> GroupOptions {
    let options = match port {
        0 => GroupOptions::without_sockets(own_address(2)),
        _ => GroupOptions::new(SocketAddr::new(own_address(2), port)),
    };
    let mut options = options;
    options.patience = Duration::from_millis(500);
    options
}

fn prefix(port: u16) -> String {
    match port {
        0 => format!("polyverbs/tcp/{}", own_address(2)),
        _ => format!("polyverbs/udp/{}", SocketAddr::new(own_address(2), port)),
    }
}

fn duplicate(of: &impl AsFd) -> OwnedFd {
    of.as_fd().try_clone_to_owned().expect("a descriptor")
}

fn is_ready(inbox: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&inbox, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("a descriptor") > 0
}

fn arrival() -> Arrival {
    Arrival {
        from: SocketAddr::new(own_address(2), 50_000),
        to: SocketAddr::new(own_address(2), ROCE_PORT),
        traffic_class: 2,
        segment: 0,
    }
}

const SERVICE: u64 = 0x0106_1234;
const DATAGRAM: &[u8] = b"a datagram";
const DESCRIPTORS_PASSED: u8 = 2;
const HANDED: u8 = 3;
const STEPS: usize = 64;
/// More reads than any inbox has messages.
const ENOUGH: usize = 10_000;
