//! A connection manager that receives messages from a hostile peer, which a fuzzer makes up, from any address.
//!
//! The program of the victim listens, connects to any address, and has a connection with an honest peer. The hostile peer sends from its
//! own address, where it receives the answers, and from other addresses, where no host is; its requests may claim another address than
//! the one that they come from. The manager does not panic; its connections are bounded, and so are the calls and messages that one
//! datagram causes, of which none waits; the messages to an address that does not answer are bounded too; the program hears of no
//! request that claims another address than its source, and such a request leaves no state; no connection with an address that does not
//! answer is established, and none twice; the honest peer's connection stays, and the peer can make another one; and after some time no
//! state of the hostile requests is left.
//!
//! The hostile peer knows the GUID of the honest peer's adapter and the numbers of its queue pairs, but never uses a communication ID
//! that it has not received.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use polyverbs_connection::ib::{
    Agent, CommId, Manager, ManagerOptions, Path, Request, State, private,
};
use polyverbs_connection::{PortSpace, Refusal};
use polyverbs_engine::time::Time;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad;
use polyverbs_wire::mad::cm::{self, Message, Req, SidrReq, header_of};
use polyverbs_wire::mad::rdma_cm::{port_space, service_id};
use verbs_api::capability::Mtu;
use verbs_api::ids::{Gid, LinkAddress, Psn, Qpn};
use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{
    Backend as _, CmEvent, ListenSink, Offer, Question, Sink, Token,
};
use verbs_api::provider::carrier::{ManagementPort, ManagementSink};
use verbs_api::qp::{Half, QpEndpoint, QpType};

use crate::script::Script;

/// Runs a manager with the messages of a script.
pub fn run(octets: &[u8]) {
    let mut script = Script::new(octets);
    let mut rig = Rig::new();
    let before = rig.connect();
    while !script.is_over() {
        rig.step(&mut script);
    }
    rig.check_established(before);
    let after = rig.connect();
    rig.pass(LONG);
    for pair in [before, after] {
        rig.check_established(pair);
    }
    assert_eq!(rig.honest.connections(), 2);
    // The completed connections of the hostile peer are connections like others.
    let established = rig.ends.values().filter(|end| end.is_established);
    assert_eq!(rig.victim.connections(), established.count());
}

struct Rig {
    port: Arc<Port>,
    victim: Arc<Agent>,
    program: Arc<Heard>,
    honest: Manager,
    /// The connections of the victim's program, by the numbers of their sinks.
    ends: BTreeMap<usize, End>,
    sinks: usize,
    /// Communication IDs of the victim, and those of them that the hostile peer has received.
    used: BTreeSet<u32>,
    told: BTreeSet<u32>,
    /// The addresses without a host.
    absent: BTreeMap<IpAddr, Absent>,
    /// The last established connection with the honest peer.
    replied: Option<usize>,
    connected: u32,
}

/// A connection of the victim's program.
struct End {
    token: Token,
    peer: IpAddr,
    is_established: bool,
}

/// Counts for an address without a host.
#[derive(Default)]
struct Absent {
    /// Messages that seem to come from there.
    came: usize,
    /// Connections that the program requests without having been asked from there.
    asked: usize,
    /// Messages of the victim to the address.
    sent: usize,
}

impl Rig {
    fn new() -> Self {
        let options = |ca_guid, seed| ManagerOptions {
            ca_guid,
            seed,
            max_connections: MOST,
            ..ManagerOptions::default()
        };
        let port = Arc::new(Port::default());
        let attached = Arc::clone(&port) as Arc<dyn ManagementPort>;
        let victim = Agent::with_options(&attached, PortSpace::Ip, &options(0xa0, 1));
        let victim = victim.expect("a connection manager");
        let program = Arc::new(Heard::default());
        let at = SocketAddr::new(VICTIM, PORT);
        let listened = victim.listen(at, BACKLOG, Arc::clone(&program) as _);
        listened.expect("a free service");
        let listened = victim.listen_datagrams(at, BACKLOG, Arc::clone(&program) as _);
        listened.expect("a free service");
        Self {
            port,
            victim,
            program,
            honest: Manager::new(options(HONEST_GUID, 2)),
            ends: BTreeMap::new(),
            sinks: 0,
            used: BTreeSet::new(),
            told: BTreeSet::new(),
            absent: BTreeMap::new(),
            replied: None,
            connected: 0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.octet() {
            0..40 => self.request(script),
            40..48 => self.question(script),
            how @ 48..160 => self.say(how, script),
            how @ 160..220 => self.answer(how),
            how @ 220..228 => {
                let to = some_address(script);
                self.absent.entry(to).or_default().asked += 1;
                self.ask(to, how);
            }
            how => self.pass(Duration::from_millis(1 << (how & 15))),
        }
        assert!(self.victim.connections() <= 2 * MOST);
    }

    // Sends a request from any address, which may claim others.
    fn request(&mut self, script: &mut Script<'_>) {
        let from = some_address(script);
        let [number, times, retries] = [(); 3].map(|()| script.octet());
        let [source, gid] = [(); 2].map(|()| some_claim(from, script));
        let request = Req {
            local_comm_id: u32::from(number),
            service_id: service_id(port_space::TCP, PORT),
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
            primary_local_gid: Octets(Gid::from(gid).0),
            private_data: Octets::padded(&named(source)).expect("room"),
            ..Req::default()
        };
        let claims_another = [source, gid] != [from; 2];
        self.deliver(from, &request.into(), claims_another);
    }

    // Asks for a datagram service from any address, and may claim another.
    fn question(&mut self, script: &mut Script<'_>) {
        let from = some_address(script);
        let source = some_claim(from, script);
        let question = SidrReq {
            request_id: script.octet().into(),
            service_id: service_id(port_space::UDP, PORT),
            private_data: Octets::padded(&named(source)).expect("room"),
            ..SidrReq::default()
        };
        self.deliver(from, &question.into(), source != from);
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
            // It is too short to claim an address in its private data.
            self.deliver(from, &message, true);
        }
    }

    fn deliver(&mut self, from: IpAddr, message: &Message, claims_another: bool) {
        let data = message.to_data();
        let own = u32::from_be_bytes([data[4], data[5], data[6], data[7]]);
        let is_guessed = match message {
            Message::Req(_) | Message::SidrReq(_) => false,
            _ => {
                let is_used = self.used.contains(&own) || self.program.has_request(own);
                is_used && !self.told.contains(&own)
            }
        };
        if is_guessed {
            return;
        }
        self.absent.entry(from).or_default().came += 1;
        let connections = self.victim.connections();
        self.arrive(from, 7, message, claims_another);
        assert!(!claims_another || self.victim.connections() <= connections);
        self.settle();
    }

    fn arrive(&self, from: IpAddr, transaction_id: u64, message: &Message, claims_another: bool) {
        self.program.0.lock().arriving = Some(Arriving {
            from,
            claims_another,
            calls: 0,
        });
        let datagram = mad::encode(&header_of(message, transaction_id), &message.to_data());
        self.port.sink().datagram(from, &datagram);
        let arriving = self.program.0.lock().arriving.take();
        let calls = arriving.expect("the datagram that has arrived").calls;
        let sent = self.port.state.lock().sent.len();
        assert!(calls <= AT_ONCE, "{calls} calls for {message:?}");
        assert!(sent <= AT_ONCE, "{sent} messages for {message:?}");
    }

    // Has the program of the victim answer a request.
    fn answer(&mut self, how: u8) {
        let Some((token, offer)) = self.program.next_request() else {
            return;
        };
        // The program may connect because of the request.
        if how & 4 != 0
            && let Some(from) = offer.from
        {
            self.ask(from.ip(), how);
        }
        match how & 3 {
            0 => self.victim.reject(token, Refusal::Program, b"no".to_vec()),
            1 => self.victim.forget(token),
            _ => self.reply(token, &offer),
        }
        self.settle();
    }

    fn reply(&mut self, token: Token, offer: &Offer) {
        let peer = offer.from.expect("the address of the peer").ip();
        let sink = self.sink();
        let reply = offer_of(Qpn::new(token.0 as u32 & 0xff_ffff | 2));
        // It fails if the request has been withdrawn meanwhile.
        if self.victim.accept(token, reply, sink.clone()).is_ok() {
            self.add(sink.number, token, peer);
        }
    }

    // Has the program of the victim connect to an address.
    fn ask(&mut self, to: IpAddr, how: u8) {
        let sink = self.sink();
        let offer = offer_of(Qpn::new(0x300 + u32::from(how)));
        let asked = self
            .victim
            .connect(SocketAddr::new(to, PORT), offer, sink.clone());
        if let Ok(token) = asked {
            self.add(sink.number, token, to);
        }
        self.settle();
    }

    fn add(&mut self, number: usize, token: Token, peer: IpAddr) {
        let end = End {
            token,
            peer,
            is_established: false,
        };
        self.ends.insert(number, end);
    }

    fn sink(&mut self) -> Arc<Events> {
        self.sinks += 1;
        Arc::new(Events {
            number: self.sinks,
            program: Arc::clone(&self.program),
        })
    }

    /// The honest peer connects, and the program also replies to all requests before it.
    fn connect(&mut self) -> (CommId, usize) {
        self.connected += 1;
        let data = named(HONEST);
        let path = Path::new(LinkAddress::Ip(VICTIM), HONEST.into(), VICTIM.into());
        let qpn = Qpn::new(FIRST_QPN + self.connected);
        let service = service_id(port_space::TCP, PORT);
        let request = Request {
            private_data: &data,
            ..Request::new(service, path, qpn, Psn::new(1))
        };
        let near = self.honest.connect(self.now(), &request).expect("room");
        self.settle();
        while let Some((token, offer)) = self.program.next_request() {
            self.reply(token, &offer);
        }
        self.settle();
        self.honest.ready(near, b"").expect("a reply");
        self.settle();
        let far = self.replied.take().expect("an established connection");
        (near, far)
    }

    fn check_established(&self, (near, far): (CommId, usize)) {
        assert_eq!(self.honest.state(near), Some(State::Established));
        assert!(self.ends[&far].is_established);
    }

    fn now(&self) -> Time {
        Time::default().after(self.port.now())
    }

    fn pass(&mut self, time: Duration) {
        let until = self.port.now() + time;
        loop {
            let of_honest = self.honest.next_due();
            let of_honest = of_honest.map(|due| Duration::from_nanos(due.0));
            let of_victim = self.port.state.lock().wakes_at;
            let due = [of_honest, of_victim].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= until) else {
                break;
            };
            self.port.set(due);
            self.honest.handle_timeout(self.now());
            self.settle();
        }
        self.port.set(until);
    }

    /// Delivers messages between the victim and the honest peer without delay, and has the victim's program handle its events.
    fn settle(&mut self) {
        loop {
            while self.honest.poll_event().is_some() {}
            if let Some((number, event)) = self.program.next_event() {
                self.hear(number, &event);
            } else if let Some((to, message, transaction_id)) = self.port.next_sent() {
                self.pass_on(to, message, transaction_id);
            } else if let Some(sent) = self.honest.poll_message() {
                self.arrive(HONEST, sent.transaction_id, &sent.message, false);
            } else if let Some(token) = self.program.next_question() {
                self.victim.refuse(token, Refusal::NoListener, Vec::new());
            } else {
                return;
            }
        }
    }

    fn pass_on(&mut self, to: IpAddr, message: Message, transaction_id: u64) {
        let data = message.to_data();
        // The ID in the answer to a question is the peer's own.
        if !matches!(message, Message::SidrRep(_)) {
            let own = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
            self.used.insert(own);
            if to == HOSTILE {
                self.told.insert(own);
            }
        }
        if to == HONEST {
            let (now, from) = (self.now(), LinkAddress::Ip(VICTIM));
            self.honest
                .handle_message(now, from, transaction_id, &message);
        } else if to != HOSTILE {
            let absent = self.absent.entry(to).or_default();
            absent.sent += 1;
            let most = 3 * absent.came + TRIES * absent.asked;
            assert!(absent.sent <= most, "{} messages to {to}", absent.sent);
        }
    }

    fn hear(&mut self, number: usize, event: &CmEvent) {
        let Some(end) = self.ends.get_mut(&number) else {
            return;
        };
        let is_established = matches!(event, CmEvent::Completed | CmEvent::Accepted(_));
        if is_established {
            assert!(!end.is_established, "it is established twice");
            assert!(is_known(end.peer), "{} has received no ID", end.peer);
        }
        match event {
            CmEvent::Completed if end.peer == HONEST => self.replied = Some(number),
            // The program completes every connection that it has requested.
            CmEvent::Accepted(_) => self.victim.complete(end.token),
            _ => {}
        }
        end.is_established = is_established;
    }
}

/// The requests and events that the program of the victim receives.
#[derive(Default)]
struct Heard(Mutex<Told>);

#[derive(Default)]
struct Told {
    arriving: Option<Arriving>,
    /// Requests that the program has not answered.
    requests: VecDeque<(Token, Offer)>,
    questions: VecDeque<Token>,
    /// Events of connections, by the numbers of their sinks.
    events: VecDeque<(usize, CmEvent)>,
}

/// The datagram that the victim is handling.
struct Arriving {
    from: IpAddr,
    claims_another: bool,
    /// How often the program has been called because of it.
    calls: usize,
}

impl Heard {
    fn next_request(&self) -> Option<(Token, Offer)> {
        self.0.lock().requests.pop_front()
    }

    fn next_question(&self) -> Option<Token> {
        self.0.lock().questions.pop_front()
    }

    fn next_event(&self) -> Option<(usize, CmEvent)> {
        self.0.lock().events.pop_front()
    }

    fn has_request(&self, own: u32) -> bool {
        let told = self.0.lock();
        let mut tokens = told.requests.iter().map(|(token, _)| *token);
        tokens.any(|token| token == Token(own.into()))
    }
}

impl Told {
    fn count(&mut self) {
        if let Some(arriving) = &mut self.arriving {
            arriving.calls += 1;
        }
    }

    // Checks that a request has come from the addresses that the program receives with it.
    fn check(&self, source: Option<SocketAddr>, device: Option<LinkAddress>) {
        let arriving = self.arriving.as_ref().expect("a datagram");
        assert!(
            !arriving.claims_another,
            "the request claims another address"
        );
        assert_eq!(source.map(|source| source.ip()), Some(arriving.from));
        assert_eq!(device, Some(LinkAddress::Ip(arriving.from)));
    }
}

impl ListenSink<Offer> for Heard {
    fn asked(&self, token: Token, offer: Offer) {
        let mut told = self.0.lock();
        told.count();
        told.check(offer.from, Some(offer.endpoint.address));
        let from = offer.from.map(|from| Gid::from(from.ip()));
        assert_eq!(from, Some(offer.endpoint.gid));
        told.requests.push_back((token, offer));
    }

    fn withdrawn(&self, token: Token) {
        let mut told = self.0.lock();
        told.count();
        told.requests.retain(|(of, _)| *of != token);
    }
}

impl ListenSink<Question> for Heard {
    fn asked(&self, token: Token, question: Question) {
        let mut told = self.0.lock();
        told.count();
        told.check(question.source, question.from);
        told.questions.push_back(token);
    }

    fn withdrawn(&self, token: Token) {
        let mut told = self.0.lock();
        told.count();
        told.questions.retain(|of| *of != token);
    }
}

/// The sink of a connection of the victim's program.
struct Events {
    number: usize,
    program: Arc<Heard>,
}

impl Sink for Events {
    fn event(&self, event: CmEvent) {
        let mut told = self.program.0.lock();
        told.count();
        told.events.push_back((self.number, event));
    }
}

/// Queue pair 1 of the victim, without a device.
#[derive(Default)]
struct Port {
    sink: OnceLock<Arc<dyn ManagementSink>>,
    state: Mutex<PortState>,
}

#[derive(Default)]
struct PortState {
    now: Duration,
    wakes_at: Option<Duration>,
    sent: VecDeque<(IpAddr, Vec<u8>)>,
}

impl Port {
    fn sink(&self) -> &Arc<dyn ManagementSink> {
        self.sink.get().expect("a connection manager")
    }

    fn next_sent(&self) -> Option<(IpAddr, Message, u64)> {
        let (to, datagram) = self.state.lock().sent.pop_front()?;
        let datagram = mad::decode(&datagram).expect("a management datagram");
        let message = cm::decode(&datagram).expect("a message");
        Some((to, message, datagram.header.transaction_id()))
    }

    // Sets the time, and wakes the manager if it has asked for that.
    fn set(&self, now: Duration) {
        let mut state = self.state.lock();
        state.now = now;
        let is_due = state.wakes_at.take_if(|at| *at <= now).is_some();
        drop(state);
        if is_due {
            self.sink().due();
        }
    }
}

impl ManagementPort for Port {
    fn address(&self) -> IpAddr {
        VICTIM
    }

    fn communication_ids(&self) -> (u32, u32) {
        (0, 32)
    }

    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink> {
        Arc::clone(self.sink.get_or_init(make))
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) {
        let mut state = self.state.lock();
        state.sent.push_back((to, datagram.to_vec()));
    }

    fn serve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn withdraw(&self, _: u64) {}

    fn now(&self) -> Duration {
        self.state.lock().now
    }

    fn wake_at(&self, at: Duration) {
        let mut state = self.state.lock();
        state.wakes_at = Some(state.wakes_at.map_or(at, |earlier| earlier.min(at)));
    }
}

fn is_known(address: IpAddr) -> bool {
    [HONEST, HOSTILE].contains(&address)
}

fn some_address(script: &mut Script<'_>) -> IpAddr {
    match script.octet() {
        0..64 => HONEST,
        which @ 64..160 => host(4 + (which & 3)),
        _ => HOSTILE,
    }
}

// The address that a request from `from` claims to come from: mostly the true one.
fn some_claim(from: IpAddr, script: &mut Script<'_>) -> IpAddr {
    match script.octet() {
        0..192 => from,
        192..200 => VICTIM,
        _ => some_address(script),
    }
}

// The private data of a request that claims to come from an address.
fn named(source: IpAddr) -> Vec<u8> {
    let [source, to] = [(source, SOURCE_PORT), (VICTIM, PORT)].map(SocketAddr::from);
    private::with_addresses(private::REQ, source, to, b"").expect("room")
}

// The offer of a queue pair of the victim.
fn offer_of(qp_num: Qpn) -> Offer {
    Offer {
        from: None,
        endpoint: QpEndpoint {
            qp_num,
            sq_psn: Psn::new(1),
            address: LinkAddress::Ip(VICTIM),
            gid: VICTIM.into(),
        },
        qp_type: QpType::Rc,
        half: Half::Both,
        takes_psn: None,
        inbound_reads: 1,
        outbound_reads: 1,
        path_mtu: Some(Mtu::Mtu1024),
        traffic_class: None,
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        flow_control: false,
        srq: false,
        private_data: Vec::new(),
    }
}

const fn host(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

const PORT: u16 = 4420;
const SOURCE_PORT: u16 = 9;
const REQ: u16 = 0x10;
/// The largest number of connections of peers, and of the program.
const MOST: usize = 32;
/// The program's backlog: the manager keeps four requests for each place.
const BACKLOG: usize = MOST / 8;
/// The most calls of the program, and the most messages, that a datagram causes at once.
const AT_ONCE: usize = 3;
/// The most messages of one request of the program to an address that does not answer: eight REQs, and the end.
const TRIES: usize = 9;
/// A time that no request survives.
const LONG: Duration = Duration::from_secs(600);

const VICTIM: IpAddr = host(1);
const HONEST: IpAddr = host(2);
const HOSTILE: IpAddr = host(3);
const HONEST_GUID: u64 = 0x1d5a_90c4_77e2_b386;
const FIRST_QPN: u32 = 0x700;
