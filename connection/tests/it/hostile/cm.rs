//! The connection manager of a device, and management datagrams from anywhere.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::qp::{Half, QpType};
use polyverbs::{
    QpEndpoint,
    capability::Mtu,
    ids::{LinkAddress, Psn, Qpn},
};
use polyverbs_connection::{ConnectError, Connector, PortSpace, ib};
use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::mad;
use polyverbs_wire::mad::cm::{
    Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, decode, header_of, reason,
};
use polyverbs_wire::mad::rdma_cm::{RdmaCm, port_space, service_id};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use verbs_api::ids::Gid;
use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{
    Answer, AnswerSink, Backend, CmEvent, ListenSink, Offer, Question, Refusal, Sink, Token,
};
use verbs_api::provider::carrier::{ManagementPort, ManagementSink};

use crate::rig::open;

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PORT: u16 = 4420;
const GUID: u64 = 0xfeed;
/// The largest number of requests that wait at one listener.
const BACKLOG: usize = 1024;
/// The longest time for which the manager waits for a peer.
const PATIENCE: Duration = Duration::from_secs(125);
/// The longest time for which it waits for a peer that has not proven its address.
const UNPROVEN: Duration = Duration::from_secs(10);

/// Queue pair 1 without a device: it records the datagrams that the manager sends.
#[derive(Default)]
struct Bare {
    now: Mutex<Duration>,
    sink: OnceLock<Arc<dyn ManagementSink>>,
    sent: Mutex<Vec<(IpAddr, Message)>>,
}

impl ManagementPort for Bare {
    fn address(&self) -> IpAddr {
        OWN
    }

    fn communication_ids(&self) -> (u32, u32) {
        (0, 32)
    }

    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink> {
        Arc::clone(self.sink.get_or_init(make))
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) {
        let mad = mad::decode(datagram).expect("a sent datagram is well formed");
        let message = decode(&mad).expect("a sent datagram is a message");
        self.sent.lock().push((to, message));
    }

    fn serve(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn withdraw(&self, _: u64) {}

    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn wake_at(&self, _: Duration) {}
}

fn peer(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// A connection manager, and the port by which the attackers reach it.
struct Lab {
    port: Arc<Bare>,
    agent: Arc<ib::Agent>,
}

impl Lab {
    fn new() -> Self {
        let port = Arc::new(Bare::default());
        let attached = Arc::clone(&port) as Arc<dyn ManagementPort>;
        let agent = ib::Agent::of(&attached, PortSpace::Ip).unwrap();
        Self { port, agent }
    }

    /// Delivers a message whose private data and GID, if it is a REQ, name the address that it comes from.
    fn hear(&self, from: IpAddr, message: impl Into<Message>) {
        let mut message = message.into();
        if let Message::Req(req) = &mut message {
            req.primary_local_gid = Octets(Gid::from(from).0);
            req.private_data = Octets::padded(&named(from)).unwrap();
        }
        self.hear_as_it_is(from, message);
    }

    fn hear_as_it_is(&self, from: IpAddr, message: impl Into<Message>) {
        let message = message.into();
        let datagram = mad::encode(&header_of(&message, 7), &message.to_data());
        self.port.sink.get().unwrap().datagram(from, &datagram);
    }

    fn sent(&self) -> Vec<(IpAddr, Message)> {
        std::mem::take(&mut *self.port.sent.lock())
    }

    fn pass(&self, time: Duration) {
        *self.port.now.lock() += time;
        self.port.sink.get().unwrap().due();
    }

    /// A connector, of a device that the manager does not need.
    fn connector(&self) -> Connector {
        let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
        Connector::new(&open(&device), Arc::clone(&self.agent) as Arc<dyn Backend>)
    }

    fn listen(&self) -> Arc<Heard> {
        let heard = Arc::new(Heard::default());
        let sink = Arc::clone(&heard) as Arc<dyn ListenSink<Offer>>;
        let at = SocketAddr::new(OWN, PORT);
        self.agent.listen(at, BACKLOG / 4, sink).unwrap();
        heard
    }

    /// Lets more time pass than any message is repeated for; returns the messages that were sent until then.
    fn sent_in_the_end(&self) -> Vec<(IpAddr, Message)> {
        let mut sent = self.sent();
        for _ in 0..10 * PATIENCE.as_secs() {
            self.pass(Duration::from_millis(100));
            sent.extend(self.sent());
        }
        sent
    }

    fn connect(&self, to: IpAddr) -> (Arc<Recorder>, u32) {
        let recorder = Arc::new(Recorder::default());
        let sink = Arc::clone(&recorder) as Arc<dyn Sink>;
        self.agent
            .connect(SocketAddr::new(to, PORT), offer(), sink)
            .unwrap();
        let [(_, Message::Req(req))] = self.sent()[..] else {
            panic!("no request left");
        };
        (recorder, req.local_comm_id)
    }

    /// Establishes a connection that the peer requested; returns the manager's communication ID.
    fn connected(&self, heard: &Heard, from: IpAddr, number: u32) -> (Arc<Recorder>, u32) {
        self.hear(from, req(number));
        let token = heard.asked.lock().pop().unwrap();
        let recorder = accept(self, token);
        let own = token.0 as u32;
        self.hear(
            from,
            Rtu {
                local_comm_id: number,
                remote_comm_id: own,
                ..Rtu::default()
            },
        );
        assert_eq!(recorder.events(), [CmEvent::Completed]);
        self.sent();
        (recorder, own)
    }
}

#[derive(Default)]
struct Heard {
    asked: Mutex<Vec<Token>>,
    withdrawn: Mutex<usize>,
}

impl<T> ListenSink<T> for Heard {
    fn asked(&self, token: Token, _: T) {
        self.asked.lock().push(token);
    }

    fn withdrawn(&self, _: Token) {
        *self.withdrawn.lock() += 1;
    }
}

#[derive(Default)]
struct Recorder(Mutex<Vec<CmEvent>>);

impl Recorder {
    fn events(&self) -> Vec<CmEvent> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[derive(Default)]
struct Answers(Mutex<Vec<Result<Answer, ConnectError>>>);

impl AnswerSink for Answers {
    fn answered(&self, answer: Result<Answer, ConnectError>) {
        self.0.lock().push(answer);
    }
}

impl Sink for Recorder {
    fn event(&self, event: CmEvent) {
        self.0.lock().push(event);
    }
}

fn offer() -> Offer {
    Offer {
        from: None,
        endpoint: QpEndpoint {
            qp_num: Qpn::new(0x77),
            sq_psn: Psn::new(1),
            address: LinkAddress::Ip(OWN),
            gid: OWN.into(),
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

/// The header that the RDMA connection manager puts before the private data.
fn named(source: IpAddr) -> Vec<u8> {
    let header = RdmaCm::new(source, 9, OWN).unwrap();
    header.to_view().0.to_vec()
}

fn req(number: u32) -> Req {
    let service = service_id(port_space::TCP, PORT);
    Req {
        local_comm_id: number,
        service_id: service,
        ca_guid: GUID,
        qpn: number & 0xff_ffff,
        path_mtu: Mtu::Mtu1024 as u8,
        local_response_timeout: 31,
        remote_response_timeout: 31,
        max_cm_retries: 15,
        primary_ack_timeout: 31,
        ..Req::default()
    }
}

fn rej(own: u32, remote: u32, reason: u16) -> Rej {
    Rej {
        local_comm_id: remote,
        remote_comm_id: own,
        reason,
        ..Rej::default()
    }
}

fn withdrawal(number: u32) -> Rej {
    Rej {
        local_comm_id: number,
        reason: reason::TIMEOUT,
        info_length: 8,
        info: Octets::padded(&GUID.to_be_bytes()).unwrap(),
        ..Rej::default()
    }
}

/// A listener that has another thread reject each request, and waits for that thread.
struct Refuses {
    lab: Weak<Lab>,
    sent: Mutex<Vec<(IpAddr, Message)>>,
}

impl ListenSink<Offer> for Refuses {
    fn asked(&self, token: Token, _: Offer) {
        let lab = self.lab.upgrade().unwrap();
        let refused = move || {
            lab.agent.reject(token, Refusal::Program, b"no".to_vec());
            lab.sent()
        };
        *self.sent.lock() = std::thread::spawn(refused).join().unwrap();
    }

    fn withdrawn(&self, _: Token) {}
}

// The process may end as soon as the call has returned, so the message must have been sent by then.
#[test]
fn a_call_returns_after_its_message_was_sent() {
    let lab = Arc::new(Lab::new());
    let refuses = Arc::new(Refuses {
        lab: Arc::downgrade(&lab),
        sent: Mutex::default(),
    });
    let sink = Arc::clone(&refuses) as Arc<dyn ListenSink<Offer>>;
    let at = SocketAddr::new(OWN, PORT);
    lab.agent.listen(at, 1, sink).unwrap();
    lab.hear(peer(2), req(7));
    let sent = refuses.sent.lock();
    let [(to, Message::Rej(rej))] = sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!((to, rej.remote_comm_id), (peer(2), 7));
    assert!(rej.private_data.0.starts_with(b"no"));
}

// covers 7.04 7.47
#[test]
fn a_flood_of_unanswered_requests_is_bounded() {
    let lab = Lab::new();
    let heard = lab.listen();
    for number in 1..=10_000 {
        lab.hear(peer((number % 200) as u8 + 2), req(number));
    }
    // The oldest requests have made room, and the manager has refused none.
    assert_eq!(heard.asked.lock().len(), 10_000);
    assert_eq!(*heard.withdrawn.lock(), 10_000 - BACKLOG);
    assert_eq!(lab.sent(), []);
    lab.connected(&heard, peer(250), 77_777);
    // Requests that their peers do not repeat are withdrawn.
    lab.pass(PATIENCE);
    assert_eq!(*heard.withdrawn.lock(), 10_000);
}

/// A listener whose first call takes so long that many other requests arrive meanwhile.
struct Busy {
    lab: Weak<Lab>,
    heard: Heard,
}

impl ListenSink<Offer> for Busy {
    fn asked(&self, token: Token, offer: Offer) {
        self.heard.asked(token, offer);
        if self.heard.asked.lock().len() == 1 {
            let lab = self.lab.upgrade().unwrap();
            for number in 1..=10_000 {
                lab.hear(peer((number % 200) as u8 + 2), req(number));
            }
        }
    }

    fn withdrawn(&self, token: Token) {
        ListenSink::<Offer>::withdrawn(&self.heard, token);
    }
}

// covers 7.47
#[test]
fn a_busy_program_hears_only_of_requests_that_still_wait() {
    let lab = Arc::new(Lab::new());
    let busy = Arc::new(Busy {
        lab: Arc::downgrade(&lab),
        heard: Heard::default(),
    });
    let sink = Arc::clone(&busy) as Arc<dyn ListenSink<Offer>>;
    let at = SocketAddr::new(OWN, PORT);
    lab.agent.listen(at, BACKLOG / 4, sink).unwrap();
    lab.hear(peer(2), req(0));
    // Apart from the first request, which the program had heard of, none was reported and withdrawn.
    assert_eq!(busy.heard.asked.lock().len(), 1 + BACKLOG);
    assert_eq!(*busy.heard.withdrawn.lock(), 1);
}

// covers 7.47
#[test]
fn one_source_has_half_of_a_backlog_at_most() {
    let lab = Lab::new();
    let heard = lab.listen();
    // Some of them are from the source, and others may be forged in its name.
    (1..=5000).for_each(|number| lab.hear(peer(2), req(number)));
    assert_eq!(heard.asked.lock().len(), 5000);
    assert_eq!(*heard.withdrawn.lock(), 5000 - BACKLOG / 2);
    assert_eq!(lab.sent(), []);
    // Both another source and this one can still connect.
    for (source, number) in [(3, 1), (2, 5001)] {
        lab.connected(&heard, peer(source), number);
    }
    assert_eq!(*heard.withdrawn.lock(), 5001 - BACKLOG / 2);
}

// covers 7.84
#[test]
fn a_backlog_has_the_room_that_was_asked_for() {
    const ROOM: u32 = 3000;
    let lab = Lab::new();
    let connector = lab.connector();
    let at = SocketAddr::new(OWN, PORT);
    let listener = connector.listen(at, ROOM as usize).unwrap();
    // All requests come from one source.
    (1..=ROOM).for_each(|number| lab.hear(peer(2), req(number)));
    assert_eq!(lab.sent(), []);
    lab.hear(peer(3), req(ROOM + 1));
    let [(_, Message::Rej(rej))] = lab.sent()[..] else {
        panic!("one refusal");
    };
    assert_eq!(rej.reason, reason::NO_RESOURCES);
    let incoming: Vec<_> = (0..ROOM).map(|_| listener.next().wait().unwrap()).collect();
    assert_eq!(incoming.len(), ROOM as usize);
}

/// A request whose timeouts ask the manager to repeat its answers at once, again and again.
fn impatient(number: u32) -> Req {
    Req {
        local_response_timeout: 0,
        primary_ack_timeout: 0,
        ..req(number)
    }
}

// covers 7.13 7.47
#[test]
fn an_unproven_address_gets_at_most_3_answers_per_message() {
    for (repeated, is_accepted) in [(0, true), (0, false), (1, true), (1, false), (9, true)] {
        let lab = Lab::new();
        let heard = lab.listen();
        let (mut came, mut sent) = (0, 0);
        for _ in 0..=repeated {
            lab.hear(peer(2), impatient(5));
            came += 1;
            sent += lab.sent().len();
            assert!(sent <= 3 * came, "{sent} for {came}");
        }
        let recorder = Arc::new(Recorder::default());
        let token = heard.asked.lock().pop().unwrap();
        if is_accepted {
            let sink = Arc::clone(&recorder) as Arc<dyn Sink>;
            lab.agent.accept(token, offer(), sink).unwrap();
        }
        (0..1000).for_each(|_| lab.pass(Duration::from_millis(10)));
        lab.pass(PATIENCE);
        sent += lab.sent().len();
        assert!(sent <= 3 * came, "{sent} for {came}");
        assert_eq!(*heard.withdrawn.lock(), usize::from(!is_accepted));
        let ended = if is_accepted {
            &[CmEvent::TimedOut][..]
        } else {
            &[]
        };
        assert_eq!(recorder.events(), ended);
    }
}

// covers 7.13 7.47
#[test]
fn a_proven_peer_gets_at_most_7_repeats_100_ms_apart() {
    let lab = Lab::new();
    let heard = lab.listen();
    lab.hear(peer(2), impatient(5));
    let token = heard.asked.lock().pop().unwrap();
    let recorder = accept(&lab, token);
    let proof = Mra {
        local_comm_id: 5,
        remote_comm_id: token.0 as u32,
        message: 1,
        ..Mra::default()
    };
    lab.hear(peer(2), proof);
    assert_eq!(lab.sent().len(), 1);
    let (mut pause, mut repeats) = (0, 0);
    while recorder.0.lock().is_empty() {
        lab.pass(Duration::from_millis(1));
        pause += 1;
        let is_rep = |(_, message): &(IpAddr, Message)| matches!(message, Message::Rep(_));
        if lab.sent().iter().any(is_rep) {
            assert!(pause >= 100, "{pause} ms");
            (pause, repeats) = (0, repeats + 1);
        }
    }
    assert_eq!(repeats, 7);
}

// covers 7.10 7.52
#[test]
fn a_request_that_names_another_address_is_refused() {
    let named = |source: IpAddr, gid: IpAddr| Req {
        primary_local_gid: Octets(Gid::from(gid).0),
        private_data: Octets::padded(&named(source)).unwrap(),
        ..req(5)
    };
    let lab = Lab::new();
    let heard = lab.listen();
    for forged in [
        named(peer(3), peer(2)),
        named(peer(2), peer(3)),
        named(peer(3), peer(3)),
        named(OWN, OWN),
    ] {
        lab.hear_as_it_is(peer(2), forged);
        let [(to, Message::Rej(rej))] = lab.sent()[..] else {
            panic!("it is refused");
        };
        assert_eq!((to, rej.reason), (peer(2), reason::UNSUPPORTED));
    }
    assert!(heard.asked.lock().is_empty());
    lab.hear_as_it_is(peer(2), named(peer(2), peer(2)));
    assert_eq!(heard.asked.lock().len(), 1);
}

// covers 7.13 7.47
#[test]
fn a_req_to_an_unproven_address_is_sent_twice_at_most() {
    let lab = Lab::new();
    let _heard = lab.listen();
    lab.hear(peer(2), req(5));
    let (recorder, _) = lab.connect(peer(2));
    let mut sent = 1;
    while recorder.0.lock().is_empty() {
        lab.pass(Duration::from_millis(100));
        sent += lab.sent().len();
    }
    // The third message is kept for an answer to the request.
    assert_eq!(sent, 2);
    assert_eq!(recorder.events(), [CmEvent::TimedOut]);
}

// covers 7.13 7.47
#[test]
fn all_requests_to_an_unproven_address_send_3_messages() {
    let lab = Lab::new();
    let heard = lab.listen();
    lab.hear(peer(2), req(5));
    let to = SocketAddr::new(peer(2), PORT);
    for _ in 0..10 {
        let recorder = Arc::new(Recorder::default());
        lab.agent.connect(to, offer(), recorder).unwrap();
        let answers = Arc::new(Answers::default());
        lab.agent.resolve(to, Vec::new(), answers).unwrap();
    }
    accept(&lab, heard.asked.lock().pop().unwrap());
    assert_eq!(lab.sent_in_the_end().len(), 3);
}

// covers 7.13 7.47
#[test]
fn requests_beyond_the_allowance_are_sent_after_an_answer() {
    let lab = Lab::new();
    let _heard = lab.listen();
    lab.hear(peer(2), req(5));
    let to = SocketAddr::new(peer(2), PORT);
    for _ in 0..10 {
        let recorder = Arc::new(Recorder::default());
        lab.agent.connect(to, offer(), recorder).unwrap();
    }
    let sent = lab.sent();
    let [(_, Message::Req(first)), _] = sent[..] else {
        panic!("{sent:?}");
    };
    lab.hear(
        peer(2),
        Rep {
            local_comm_id: 9,
            remote_comm_id: first.local_comm_id,
            qpn: 0x99,
            ca_guid: GUID,
            ..Rep::default()
        },
    );
    lab.pass(Duration::ZERO);
    let sent = sent.into_iter().chain(lab.sent());
    let named = sent.filter_map(|(_, message)| match message {
        Message::Req(req) => Some(req.local_comm_id),
        _ => None,
    });
    assert_eq!(named.collect::<BTreeSet<_>>().len(), 10);
}

// covers 7.13 7.47
#[test]
fn an_accepted_request_leaves_a_message_for_one_of_the_program() {
    let lab = Lab::new();
    let heard = lab.listen();
    let request = Req {
        local_response_timeout: 18,
        primary_ack_timeout: 14,
        ..req(5)
    };
    lab.hear(peer(2), request);
    accept(&lab, heard.asked.lock().pop().unwrap());
    let mut sent = lab.sent();
    for _ in 0..90 {
        lab.pass(Duration::from_millis(100));
        sent.extend(lab.sent());
    }
    let sent = sent.into_iter().map(|(_, message)| message);
    let sent: Vec<_> = sent.collect();
    assert!(
        matches!(sent[..], [Message::Rep(_), Message::Rep(_)]),
        "{sent:?}"
    );
    lab.connect(peer(2));
}

// covers 7.13 7.47
#[test]
fn an_address_with_a_connection_is_sent_all_requests() {
    let lab = Lab::new();
    let heard = lab.listen();
    lab.connected(&heard, peer(2), 5);
    lab.hear(peer(2), req(6));
    accept(&lab, heard.asked.lock().pop().unwrap());
    lab.sent();
    for _ in 0..10 {
        lab.connect(peer(2));
    }
}

// covers 7.13 7.47
#[test]
fn the_own_address_is_sent_all_requests() {
    let lab = Lab::new();
    let heard = lab.listen();
    lab.hear(OWN, req(5));
    accept(&lab, heard.asked.lock().pop().unwrap());
    lab.sent();
    for _ in 0..10 {
        lab.connect(OWN);
    }
}

/// Accepts a request.
fn accept(lab: &Lab, token: Token) -> Arc<Recorder> {
    let recorder = Arc::new(Recorder::default());
    let sink = Arc::clone(&recorder) as Arc<dyn Sink>;
    lab.agent.accept(token, offer(), sink).unwrap();
    recorder
}

// covers 7.47
#[test]
fn a_flood_of_accepted_requests_leaves_room_for_others() {
    let lab = Lab::new();
    let heard = lab.listen();
    for number in 1..=70_000 {
        lab.hear(peer((number % 200) as u8 + 2), req(number));
        let token = heard.asked.lock().pop().expect("it is let in");
        accept(&lab, token);
        lab.port.sent.lock().clear();
    }
    lab.connected(&heard, peer(250), 77_777);
    lab.connect(peer(251));
}

// covers 7.47
#[test]
fn a_client_connects_within_1_s_among_2000_forgeries_a_second() {
    let lab = Lab::new();
    let heard = lab.listen();
    let (mut number, mut established) = (0, None);
    for millisecond in 0..20_000 {
        for _ in 0..2 {
            number += 1;
            let from = IpAddr::from((0x0b00_0000_u32 + number * 7919).to_be_bytes());
            lab.hear(from, req(number));
        }
        if millisecond == 19_000 {
            lab.hear(peer(2), req(5));
        }
        for token in std::mem::take(&mut *heard.asked.lock()) {
            // Every third request stays unanswered, and the program is not notified of it again.
            if token.0 % 3 != 0 || millisecond >= 19_000 {
                let recorder = accept(&lab, token);
                let reps = lab.sent().into_iter();
                let is_own = |(to, message): &(IpAddr, Message)| {
                    *to == peer(2) && matches!(message, Message::Rep(_))
                };
                if reps.filter(is_own).count() > 0 {
                    let rtu = Rtu {
                        local_comm_id: 5,
                        remote_comm_id: token.0 as u32,
                        ..Rtu::default()
                    };
                    lab.hear(peer(2), rtu);
                    established = Some(recorder);
                }
            }
        }
        lab.pass(Duration::from_millis(1));
    }
    let events = established.expect("it is let in").events();
    assert_eq!(events, [CmEvent::Completed]);
}

// covers 7.10 7.47
#[test]
fn a_request_whose_peer_gave_up_is_withdrawn() {
    let lab = Lab::new();
    let connector = lab.connector();
    let listener = connector.listen(SocketAddr::new(OWN, PORT), 0).unwrap();
    for number in 1..=5000 {
        lab.hear(peer(2), req(number));
        lab.hear(peer(2), withdrawal(number));
    }
    let next = listener.next();
    assert!(!next.is_done());
    lab.hear(peer(3), req(1));
    next.wait().unwrap();
}

// covers 7.11 7.14
#[test]
fn rejected_requests_do_not_fill_the_manager() {
    let lab = Lab::new();
    let heard = lab.listen();
    for number in 1..=70_000 {
        lab.hear(peer(2), req(number));
        let token = heard.asked.lock().pop();
        if let Some(Token(own)) = token {
            lab.hear(peer(2), rej(own as u32, number, reason::STALE_CONNECTION));
        }
        lab.port.sent.lock().clear();
        if number % 1000 == 0 {
            lab.pass(Duration::from_millis(2));
        }
    }
    lab.hear(peer(3), req(1));
    assert_eq!(heard.asked.lock().len(), 1);
}

// covers 7.18
#[test]
fn sidr_requests_to_a_connection_listener_are_refused() {
    let lab = Lab::new();
    let heard = lab.listen();
    for number in 1..=5000 {
        let service = service_id(port_space::TCP, PORT);
        lab.hear(
            peer(2),
            SidrReq {
                request_id: number,
                service_id: service,
                private_data: Octets::padded(&named(peer(2))).unwrap(),
                ..SidrReq::default()
            },
        );
        let [(_, Message::SidrRep(answer))] = lab.sent()[..] else {
            panic!("a question without an answer");
        };
        assert_eq!((answer.request_id, answer.status), (number, 1));
    }
    lab.hear(peer(3), req(1));
    assert_eq!(heard.asked.lock().len(), 1);
}

// covers 7.18 7.52
#[test]
fn a_sidr_request_that_names_another_address_is_refused() {
    let lab = Lab::new();
    let heard = Arc::new(Heard::default());
    let sink = Arc::clone(&heard) as Arc<dyn ListenSink<Question>>;
    let at = SocketAddr::new(OWN, PORT);
    lab.agent.listen_datagrams(at, 1, sink).unwrap();
    let question = |request_id, source| SidrReq {
        request_id,
        service_id: service_id(port_space::UDP, PORT),
        private_data: Octets::padded(&named(source)).unwrap(),
        ..SidrReq::default()
    };
    for (request_id, forged) in [(1, peer(3)), (2, OWN)] {
        lab.hear(peer(2), question(request_id, forged));
        let [(to, Message::SidrRep(answer))] = lab.sent()[..] else {
            panic!("a question without an answer");
        };
        assert_eq!(
            (to, answer.request_id, answer.status),
            (peer(2), request_id, 1)
        );
    }
    assert!(heard.asked.lock().is_empty());
    lab.hear(peer(2), question(3, peer(2)));
    assert_eq!(heard.asked.lock().len(), 1);
}

// covers 7.18
#[test]
fn each_status_of_a_sidr_reply_says_why_there_is_no_queue_pair() {
    let lab = Lab::new();
    let reasons = [
        (1, Refusal::NoListener),
        (2, Refusal::Program),
        (3, Refusal::BacklogFull),
        (4, Refusal::Manager(reason::PORT_AND_CM_REDIRECT)),
        (5, Refusal::Manager(reason::INVALID_CLASS_VERSION)),
    ];
    for (status, reason) in reasons {
        let answers = Arc::new(Answers::default());
        let sink = Arc::clone(&answers) as Arc<dyn AnswerSink>;
        let to = SocketAddr::new(peer(2), PORT);
        lab.agent.resolve(to, Vec::new(), sink).unwrap();
        let [(_, Message::SidrReq(asked))] = lab.sent()[..] else {
            panic!("no question left");
        };
        let reply = SidrRep {
            request_id: asked.request_id,
            service_id: asked.service_id,
            status,
            private_data: Octets::padded(b"why").unwrap(),
            ..SidrRep::default()
        };
        // By now a program would listen: a peer without a listener is not asked again.
        lab.pass(Duration::from_millis(50));
        lab.hear(peer(2), reply);
        let found = answers.0.lock().pop();
        let Some(Err(ConnectError::Refused {
            reason: found,
            private_data,
        })) = found
        else {
            panic!("status {status}: {found:?}");
        };
        assert_eq!(found, reason, "status {status}");
        assert!(private_data.starts_with(b"why"));
    }
}

// covers 7.05
#[test]
fn only_a_completed_connection_ends_another_of_its_queue_pair() {
    let lab = Lab::new();
    let heard = lab.listen();
    let (recorder, _) = lab.connected(&heard, peer(2), 0x11);
    // The forged requests name the same adapter and queue pair, or the same communication ID, but come from another address.
    let forged = Req {
        qpn: 0x11,
        ..req(0x99)
    };
    lab.hear(peer(3), forged);
    lab.hear(peer(3), req(0x11));
    // This one names the address of the peer, which may be forged too until the peer completes the connection.
    lab.hear(peer(2), forged);
    let token = heard.asked.lock().pop().unwrap();
    accept(&lab, token);
    let is_dreq = |(_, message): &(IpAddr, Message)| matches!(message, Message::Dreq(_));
    assert!(!lab.sent().iter().any(is_dreq));
    assert!(recorder.events().is_empty());
    let completes = Rtu {
        local_comm_id: 0x99,
        remote_comm_id: token.0 as u32,
        ..Rtu::default()
    };
    lab.hear(peer(2), completes);
    let [(to, Message::Dreq(_))] = lab.sent()[..] else {
        panic!("the old connection is not ended");
    };
    assert_eq!(to, peer(2));
}

// covers 7.12
#[test]
fn repeated_mras_extend_the_timeout_only_up_to_a_limit() {
    let lab = Lab::new();
    let (recorder, own) = lab.connect(peer(2));
    let mra = Mra {
        local_comm_id: 5,
        remote_comm_id: own,
        service_timeout: 31,
        ..Mra::default()
    };
    let mut waited = Duration::ZERO;
    while recorder.0.lock().is_empty() {
        lab.hear(peer(2), mra);
        lab.pass(Duration::from_secs(1));
        waited += Duration::from_secs(1);
        assert!(waited < PATIENCE, "it waits still");
    }
    assert_eq!(recorder.events(), [CmEvent::TimedOut]);
}

// covers 7.13
#[test]
fn timeouts_that_a_peer_encodes_are_capped() {
    let lab = Lab::new();
    let heard = lab.listen();
    lab.hear(peer(2), req(5));
    let token = heard.asked.lock().pop().unwrap();
    let recorder = accept(&lab, token);
    lab.pass(UNPROVEN - Duration::from_nanos(1));
    assert_eq!(recorder.events(), []);
    lab.pass(Duration::from_nanos(1));
    assert_eq!(recorder.events(), [CmEvent::TimedOut]);
}

// covers 7.08 7.10
#[test]
fn messages_of_strangers_or_out_of_order_change_nothing() {
    let lab = Lab::new();
    let heard = lab.listen();
    let (established, own) = lab.connected(&heard, peer(2), 0x11);
    let (asking, asked) = lab.connect(peer(4));
    for (from, remote) in [(peer(3), 0x11), (peer(2), 0x12)] {
        lab.hear(from, rej(own, remote, reason::CONSUMER));
        lab.hear(
            from,
            Dreq {
                local_comm_id: remote,
                remote_comm_id: own,
                remote_qpn: 0x77,
                ..Dreq::default()
            },
        );
        lab.hear(
            from,
            Rtu {
                local_comm_id: remote,
                remote_comm_id: own,
                ..Rtu::default()
            },
        );
    }
    // The DREQ names the wrong queue pair.
    lab.hear(
        peer(2),
        Dreq {
            local_comm_id: 0x11,
            remote_comm_id: own,
            remote_qpn: 0x78,
            ..Dreq::default()
        },
    );
    let rep = Rep {
        local_comm_id: 9,
        remote_comm_id: asked,
        qpn: 0x99,
        ca_guid: GUID,
        ..Rep::default()
    };
    lab.hear(peer(3), rep);
    lab.hear(peer(3), rej(asked, 9, reason::CONSUMER));
    lab.hear(
        peer(4),
        Rtu {
            local_comm_id: 9,
            remote_comm_id: asked,
            ..Rtu::default()
        },
    );
    lab.hear(
        peer(4),
        Dreq {
            local_comm_id: 9,
            remote_comm_id: asked,
            remote_qpn: 0x77,
            ..Dreq::default()
        },
    );
    assert!(established.events().is_empty() && asking.events().is_empty());
    // A reply from the address to which the request was sent is accepted.
    lab.hear(peer(4), rep);
    assert!(matches!(asking.events()[..], [CmEvent::Accepted(_)]));
    // A rejection of an established connection ends it, and the manager reports that.
    lab.hear(peer(2), rej(own, 0x11, reason::CONSUMER));
    assert!(matches!(established.events()[..], [CmEvent::Rejected(..)]));
}

#[test]
fn arbitrary_bytes_leave_a_manager_that_works() {
    let lab = Lab::new();
    let heard = lab.listen();
    let (_, own) = lab.connected(&heard, peer(2), 0x11);
    let mut random = SmallRng::seed_from_u64(11);
    for _ in 0..20_000 {
        let mut datagram: [u8; 256] = std::array::from_fn(|_| random.random());
        datagram[..4].copy_from_slice(&[1, 7, 2, 3]);
        datagram[16..18].copy_from_slice(&random.random_range(0x10_u16..0x1c).to_be_bytes());
        if random.random() {
            datagram[24..28].copy_from_slice(&0x11_u32.to_be_bytes());
            datagram[28..32].copy_from_slice(&own.to_be_bytes());
        }
        let from = peer(random.random_range(2..5));
        lab.port.sink.get().unwrap().datagram(from, &datagram);
        lab.port.sent.lock().clear();
    }
    lab.pass(PATIENCE);
    lab.pass(PATIENCE);
    heard.asked.lock().clear();
    lab.hear(peer(200), req(1));
    assert_eq!(heard.asked.lock().len(), 1);
}

// concerns 7.62
#[test]
fn a_manager_whose_device_has_gone_says_so() {
    let lab = Lab::new();
    let Lab { port, agent } = lab;
    drop(port);
    let recorder = Arc::new(Recorder::default());
    let asked = agent.connect(SocketAddr::new(peer(2), PORT), offer(), recorder);
    assert!(matches!(asked, Err(ConnectError::Verb(_))));
}
