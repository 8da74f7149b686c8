//! A connection manager that receives messages from a hostile peer, which a fuzzer makes up, from any address.
//!
//! The manager listens, and has a connection with an honest peer. The hostile peer sends from its own address, where it receives the
//! answers, and from other addresses, where no host is. The manager does not panic; its connections are bounded, and so are the messages
//! to an address that does not answer; it establishes no connection with such an address; the honest peer's connection stays, and the
//! peer can make another one; and after some time no state of the hostile requests is left.
//!
//! The hostile peer knows the GUID of the honest peer's adapter and the numbers of its queue pairs, but never uses a communication ID
//! that it has not received.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use polyverbs_connection::ib::{
    CmError, CommId, Event, Manager, ManagerOptions, Outgoing, Path, Rejection, Reply, Request,
    Requested, Resolution, State,
};
use polyverbs_engine::time::Time;
use polyverbs_wire::mad::cm::{Message, Req, reason};
use verbs_api::ids::{Gid, LinkAddress, Psn, Qpn};

use crate::script::Script;

/// Runs a manager with the messages of a script.
pub fn run(octets: &[u8]) {
    let mut script = Script::new(octets);
    let mut rig = Rig::new();
    let before = rig.connect();
    while !script.is_over() {
        rig.step(&mut script);
    }
    assert_eq!(rig.states(before), [Some(State::Established); 2]);
    let after = rig.connect();
    rig.pass(LONG);
    for pair in [before, after] {
        assert_eq!(rig.states(pair), [Some(State::Established); 2]);
    }
    assert_eq!(rig.honest.connections(), 2);
    // The completed connections of the hostile peer are connections like others.
    let established = |id: &&u32| rig.victim.state(CommId(**id)) == Some(State::Established);
    let of_hostile = rig.told.iter().filter(established).count();
    assert_eq!(rig.victim.connections(), 2 + of_hostile);
}

struct Rig {
    victim: Manager,
    honest: Manager,
    now: Time,
    /// Requests that the victim's program has not answered.
    asked: VecDeque<(CommId, Requested)>,
    /// The addresses of the peers of the victim's connections.
    peers: BTreeMap<CommId, LinkAddress>,
    /// Communication IDs of the victim that the hostile peer has received.
    told: BTreeSet<u32>,
    /// Messages from and to each address without a host.
    absent: BTreeMap<LinkAddress, (usize, usize)>,
    /// The connection of the last REP to the honest peer.
    replied: Option<CommId>,
    connected: u32,
}

impl Rig {
    fn new() -> Self {
        let manager = |ca_guid, seed| {
            Manager::new(ManagerOptions {
                ca_guid,
                seed,
                max_connections: MOST,
                backlog: MOST / 2,
                ..ManagerOptions::default()
            })
        };
        let mut victim = manager(0xa0, 1);
        victim.listen(SERVICE, u64::MAX).expect("a free service");
        Self {
            victim,
            honest: manager(HONEST_GUID, 2),
            now: Time(0),
            asked: VecDeque::new(),
            peers: BTreeMap::new(),
            told: BTreeSet::new(),
            absent: BTreeMap::new(),
            replied: None,
            connected: 0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.octet() {
            0..48 => self.request(script),
            how @ 48..160 => self.say(how, script),
            how @ 160..220 => self.answer(how),
            how @ 220..228 => self.ask(HOSTILE, how),
            how => self.pass(Duration::from_millis(1 << (how & 15))),
        }
        assert!(self.victim.connections() <= 2 * MOST);
    }

    // Sends a valid request from any address.
    fn request(&mut self, script: &mut Script<'_>) {
        let from = some_address(script);
        let [number, times, retries] = [(); 3].map(|()| script.octet());
        let request = Req {
            local_comm_id: u32::from(number),
            service_id: SERVICE,
            ca_guid: match number >> 4 {
                0..8 => HONEST_GUID,
                other => other.into(),
            },
            qpn: FIRST_QPN + u32::from(number & 7),
            path_mtu: 3,
            local_response_timeout: times & 31,
            remote_response_timeout: times & 31,
            primary_ack_timeout: times & 31,
            max_cm_retries: retries & 15,
            ..Req::default()
        };
        self.deliver(from, &request.into());
    }

    // Sends any message from any address, with communication IDs that the hostile peer has received.
    fn say(&mut self, how: u8, script: &mut Script<'_>) {
        let from = some_address(script);
        let attribute = REQ + u16::from(script.octet() % 11);
        let mut data = [0; 232];
        let said = script.octets(usize::from(how & 31));
        data[..said.len()].copy_from_slice(said);
        if how & 32 != 0 {
            let told = self.told.iter().nth(usize::from(script.octet()));
            data[4..8].copy_from_slice(&told.copied().unwrap_or_default().to_be_bytes());
        }
        if let Some(message) = Message::of(attribute, &data) {
            self.deliver(from, &message);
        }
    }

    fn deliver(&mut self, from: LinkAddress, message: &Message) {
        let data = message.to_data();
        let own = u32::from_be_bytes([data[4], data[5], data[6], data[7]]);
        let is_guessed = match message {
            Message::Req(_) => false,
            _ => self.victim.state(CommId(own)).is_some() && !self.told.contains(&own),
        };
        if is_guessed {
            return;
        }
        if !self.is_known(from) {
            self.absent.entry(from).or_default().0 += 1;
        }
        self.victim.handle_message(self.now, from, 7, message);
        self.settle();
    }

    fn is_known(&self, address: LinkAddress) -> bool {
        [HONEST, HOSTILE].contains(&address)
    }

    // Has the program of the victim answer a request.
    fn answer(&mut self, how: u8) {
        let Some((id, request)) = self.asked.pop_front() else {
            return;
        };
        // The program may connect because of the request.
        if how & 4 != 0 && self.victim.state(id).is_some() {
            self.ask(request.path.address, how);
        }
        // Each call fails if the request has been withdrawn meanwhile.
        let _ = match how & 3 {
            0 => {
                let rejection = Rejection {
                    reason: reason::CONSUMER,
                    info: &[],
                    private_data: b"no",
                };
                self.victim.reject(self.now, id, &rejection)
            }
            1 => self.victim.delay(id, how, b""),
            _ => self.reply(id, &request),
        };
        self.settle();
    }

    fn reply(&mut self, id: CommId, request: &Requested) -> Result<(), CmError> {
        let reply = Reply::new(Qpn::new(id.0 & 0xff_ffff | 2), Psn::new(7), request);
        self.victim.reply(self.now, id, &reply)
    }

    // Has the program of the victim connect to an address.
    fn ask(&mut self, to: LinkAddress, how: u8) {
        let path = Path::new(to, Gid([1; 16]), Gid([3; 16]));
        let request = Request::new(SERVICE, path, Qpn::new(0x300 + u32::from(how)), Psn::new(1));
        if let Ok(id) = self.victim.connect(self.now, &request) {
            self.peers.insert(id, to);
        }
        self.settle();
    }

    /// The honest peer connects, and the program also replies to all requests before it.
    fn connect(&mut self) -> (CommId, CommId) {
        self.connected += 1;
        let path = Path::new(VICTIM, Gid([2; 16]), Gid([1; 16]));
        let qpn = Qpn::new(FIRST_QPN + self.connected);
        let request = Request::new(SERVICE, path, qpn, Psn::new(1));
        let near = self.honest.connect(self.now, &request).expect("room");
        self.settle();
        while let Some((id, request)) = self.asked.pop_front() {
            // The request may have been withdrawn meanwhile.
            let _ = self.reply(id, &request);
        }
        self.settle();
        self.honest.ready(near, b"").expect("a reply");
        self.settle();
        let far = self.replied.take().expect("an established connection");
        (near, far)
    }

    fn states(&self, (near, far): (CommId, CommId)) -> [Option<State>; 2] {
        [self.honest.state(near), self.victim.state(far)]
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        loop {
            let due = [self.victim.next_due(), self.honest.next_due()];
            let due = due.into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= until) else {
                break;
            };
            self.now = self.now.max(due);
            self.victim.handle_timeout(self.now);
            self.honest.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }

    /// Delivers messages between the victim and the honest peer, without delay.
    fn settle(&mut self) {
        loop {
            while let Some(event) = self.victim.poll_event() {
                self.hear(event);
            }
            while self.honest.poll_event().is_some() {}
            let (from, sent) = match (self.victim.poll_message(), self.honest.poll_message()) {
                (Some(sent), _) if sent.to != HONEST => {
                    self.note(&sent);
                    continue;
                }
                (None, None) => return,
                (of_victim, of_honest) => {
                    self.pass_on(VICTIM, of_victim);
                    (HONEST, of_honest)
                }
            };
            self.pass_on(from, sent);
        }
    }

    fn pass_on(&mut self, from: LinkAddress, sent: Option<Outgoing>) {
        let Some(sent) = sent else { return };
        let to = match from {
            VICTIM => &mut self.honest,
            _ => &mut self.victim,
        };
        to.handle_message(self.now, from, sent.transaction_id, &sent.message);
    }

    // Notes a message to the hostile peer, or to an address without a host.
    fn note(&mut self, sent: &Outgoing) {
        if sent.to == HOSTILE {
            let data = sent.message.to_data();
            let own = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
            self.told.insert(own);
            return;
        }
        let (came, went) = self.absent.entry(sent.to).or_default();
        *went += 1;
        assert!(*went <= 3 * *came, "{went} messages for {came}");
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Requested { id, request, .. } => {
                self.peers.insert(id, request.path.address);
                self.asked.push_back((id, *request));
            }
            Event::ResolutionRequested { id, .. } => {
                let answer = Resolution {
                    status: 1,
                    qpn: Qpn::new(0),
                    q_key: 0,
                    private_data: b"",
                };
                // The resolution has just been requested, so the answer cannot come too late.
                let _ = self.victim.resolve_reply(id, &answer);
            }
            Event::Established { id, .. } => {
                let peer = self.peers[&id];
                assert!(
                    self.is_known(peer),
                    "{peer:?} has completed a connection without a reply"
                );
                if peer == HONEST {
                    self.replied = Some(id);
                }
            }
            Event::Replied { id, .. } => {
                // The program completes every connection that it has requested.
                let _ = self.victim.ready(id, b"");
            }
            Event::DisconnectRequested { id, .. } => {
                let _ = self.victim.confirm_disconnect(self.now, id, b"");
            }
            _ => {}
        }
    }
}

fn some_address(script: &mut Script<'_>) -> LinkAddress {
    match script.octet() {
        0..64 => HONEST,
        which @ 64..160 => LinkAddress::InProcess(4 + u64::from(which & 3)),
        _ => HOSTILE,
    }
}

const SERVICE: u64 = 0x0106_1144;
const REQ: u16 = 0x10;
/// The largest number of connections of peers, and of the program.
const MOST: usize = 32;
/// A time that no request survives.
const LONG: Duration = Duration::from_secs(600);

const VICTIM: LinkAddress = LinkAddress::InProcess(1);
const HONEST: LinkAddress = LinkAddress::InProcess(2);
const HOSTILE: LinkAddress = LinkAddress::InProcess(3);
const HONEST_GUID: u64 = 0x1d5a_90c4_77e2_b386;
const FIRST_QPN: u32 = 0x700;
