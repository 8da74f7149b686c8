//! Programs at the ports of a fabric of two nodes, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use polyverbs_fabric::members::{
    Delivery, Fabric, MemberId, Outgoing, Refusal, Registration, TIMED_OUT,
};
use polyverbs_fabric::protocol::{Notice, PortEvent, Route};
use polyverbs_fabric::subnet::Traffic;
use polyverbs_fabric::topology::End;
use polyverbs_management::{Address, Carried};
use polyverbs_wire::mad::perf::PERF_CLASS as PERF;
use polyverbs_wire::mad::sa::SA_CLASS;
use polyverbs_wire::mad::smp::{Hops, PERMISSIVE_LID, PortInfo, PortState};
use polyverbs_wire::mad::{Attribute as _, GSI_Q_KEY, MAD_LEN, method, status};
use verbs_api::provider::Mutex;

use crate::rig::BACK_TO_BACK;

const MILLISECOND: Duration = Duration::from_millis(1);
const NO_TIME: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
const DIRECTED: u8 = 0x81;

/// Members at A and B, whose ports are active with LIDs 1 and 2.
struct Rig {
    fabric: Fabric,
    a: MemberId,
    b: MemberId,
    /// The time of the last notices.
    now: Duration,
}

impl Rig {
    fn new() -> Self {
        let mut fabric = Fabric::new(&BACK_TO_BACK.parse().unwrap(), 0);
        let a = fabric.attach("A", 1).unwrap();
        let b = fabric.attach("B", 1).unwrap();
        let now = NO_TIME;
        let mut rig = Self { fabric, a, b, now };
        let agent = rig.register(a, DIRECTED, &[]);
        for (route, lid) in [(&[][..], 1), (&[1], 2)] {
            for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
                rig.configure(agent, route, lid, state);
            }
        }
        rig.fabric.unregister(a, agent).unwrap();
        rig
    }

    fn configure(&mut self, agent: u32, route: &[u8], lid: u16, state: PortState) {
        let node = self.fabric.subnet().named(["A", "B"][route.len()]).unwrap();
        let mut info = *node.1.port(1).unwrap().info();
        (info.lid, info.sm_lid, info.port_state) = (lid, 1, state);
        info.physical_state = Default::default();
        let mut data = directed(route, method::SET, PortInfo::ID);
        data[64..128].copy_from_slice(&info_bytes(&info));
        let answer = self.request(self.a, agent, PERMISSIVE_LID, data);
        assert_eq!(answer.data[4..6], [0x80, 0]);
    }

    fn register(&mut self, member: MemberId, class: u8, methods: &[u8]) -> u32 {
        let registration = Registration {
            class,
            class_version: if class == SA_CLASS { 2 } else { 1 },
            methods: methods.iter().map(|it| 1 << it).sum(),
            is_segmented_here: class == SA_CLASS,
            ..Registration::default()
        };
        self.fabric.register(member, &registration).unwrap()
    }

    fn send(&mut self, member: MemberId, agent: u32, lid: u16, data: Vec<u8>) {
        let sent = outgoing(agent, lid, data);
        self.fabric.send(member, &sent, NO_TIME).unwrap();
    }

    fn request(&mut self, member: MemberId, agent: u32, lid: u16, data: Vec<u8>) -> Delivery {
        self.send(member, agent, lid, data);
        self.delivered(member)
    }

    #[track_caller]
    fn delivered(&mut self, member: MemberId) -> Delivery {
        let (to, delivery) = self.fabric.poll_delivery().expect("a MAD");
        assert_eq!(to, member);
        delivery
    }
}

fn info_bytes(info: &PortInfo) -> Vec<u8> {
    use polyverbs_wire::layout::Header as _;
    info.to_view().0.to_vec()
}

/// A request that waits for a millisecond and is repeated once; a response does not wait.
fn outgoing(agent: u32, lid: u16, data: Vec<u8>) -> Outgoing {
    let is_smp = data[1] == DIRECTED;
    Outgoing {
        agent,
        timeout_ms: u32::from(data[3] & method::RESPONSE == 0),
        retries: 1,
        to: Address {
            qpn: u32::from(!is_smp),
            q_key: if is_smp { 0 } else { GSI_Q_KEY },
            lid,
            ..Address::default()
        },
        data,
    }
}

fn request(class: u8, version: u8, method: u8, attribute: u16) -> Vec<u8> {
    let mut data = vec![0; MAD_LEN];
    data[..4].copy_from_slice(&[1, class, version, method]);
    data[15] = 9;
    data[16..18].copy_from_slice(&attribute.to_be_bytes());
    data
}

fn directed(route: &[u8], method: u8, attribute: u16) -> Vec<u8> {
    let mut data = request(DIRECTED, 1, method, attribute);
    data[7] = route.len() as u8;
    data[32..36].fill(0xff);
    data[129..129 + route.len()].copy_from_slice(route);
    data
}

// covers 6.14, 8.69
#[test]
fn a_request_reaches_the_one_agent_of_its_class_and_method() {
    let mut rig = Rig::new();
    let server = rig.register(rig.b, SA_CLASS, &[method::GET]);
    let client = rig.register(rig.a, SA_CLASS, &[]);
    rig.send(rig.a, client, 2, request(SA_CLASS, 2, method::GET, 0x35));
    let asked = rig.delivered(rig.b);
    assert_eq!((asked.agent, asked.from.lid), (server, 1));

    let mut answer = asked.data.clone();
    answer[3] = method::GET | method::RESPONSE;
    rig.send(rig.b, server, asked.from.lid, answer.clone());
    let answered = rig.delivered(rig.a);
    assert_eq!((answered.agent, answered.from.lid), (client, 2));
    assert_eq!(answered.data, answer);
    rig.send(rig.b, server, asked.from.lid, answer);
    assert_eq!(
        rig.fabric.poll_delivery(),
        None,
        "nothing waits for another"
    );
}

#[test]
fn a_request_that_no_agent_takes_is_refused_by_the_port() {
    let mut rig = Rig::new();
    let client = rig.register(rig.a, SA_CLASS, &[]);
    let asked = request(SA_CLASS, 2, method::GET, 0x35);
    let refused = rig.request(rig.a, client, 2, asked);
    let code = status::METHOD_AND_ATTRIBUTE.to_be_bytes();
    assert_eq!(refused.data[4..6], code);
}

// covers 8.71
#[test]
fn a_request_is_repeated_and_then_comes_back() {
    let mut rig = Rig::new();
    let server = rig.register(rig.b, SA_CLASS, &[method::GET]);
    let client = rig.register(rig.a, SA_CLASS, &[]);
    rig.send(rig.a, client, 2, request(SA_CLASS, 2, method::GET, 0x35));
    assert_eq!(rig.delivered(rig.b).agent, server);
    assert_eq!(rig.fabric.next_deadline(), Some(MILLISECOND));
    rig.fabric.expire(MILLISECOND);
    assert_eq!(rig.delivered(rig.b).agent, server);
    rig.fabric.expire(2 * MILLISECOND);
    let back = rig.delivered(rig.a);
    assert_eq!((back.agent, back.status), (client, TIMED_OUT));
    assert_eq!((back.data.len(), back.data[15]), (24, 9));
    assert_eq!(rig.fabric.next_deadline(), None);
}

#[test]
fn a_long_answer_arrives_whole() {
    let mut rig = Rig::new();
    let server = rig.register(rig.b, SA_CLASS, &[method::GET_TABLE]);
    let client = rig.register(rig.a, SA_CLASS, &[]);
    let asked = request(SA_CLASS, 2, method::GET_TABLE, 0x11);
    rig.send(rig.a, client, 2, asked);
    let asked = rig.delivered(rig.b);
    let mut answer = asked.data[..56].to_vec();
    answer[3] |= method::RESPONSE;
    // RMPP is in use. Its version is not set, as opensm does it.
    answer[26] = 1;
    answer.extend((0..100_000_u32).map(|at| at as u8));
    rig.send(rig.b, server, 1, answer.clone());
    let answered = rig.delivered(rig.a);
    assert_eq!(answered.agent, client);
    assert!(answered.data[36..] == answer[36..], "the data is another");
    assert_eq!(rig.fabric.poll_delivery(), None);
    // Both ends have forgotten the message when no late segment can come.
    let later = rig.fabric.next_deadline().unwrap();
    rig.fabric.expire(later);
    assert_eq!(rig.fabric.next_deadline(), None);
}

#[test]
fn a_port_sends_long_messages_to_itself_and_answers_them() {
    let mut rig = Rig::new();
    let server = rig.register(rig.a, SA_CLASS, &[method::GET_TABLE]);
    let client = rig.register(rig.a, SA_CLASS, &[]);
    let mut asked = request(SA_CLASS, 2, method::GET_TABLE, 0x11);
    asked[26] = 1;
    asked.resize(1000, 7);
    let mut got = rig.request(rig.a, client, 1, asked);
    assert_eq!((got.agent, got.data.len()), (server, 1000));
    got.data[3] |= method::RESPONSE;
    let answered = rig.request(rig.a, server, 1, got.data.clone());
    assert_eq!((answered.agent, answered.data.len()), (client, 1000));
}

#[test]
fn a_long_answer_to_a_port_that_is_gone_comes_back() {
    let mut rig = Rig::new();
    let server = rig.register(rig.b, SA_CLASS, &[method::GET_TABLE]);
    let client = rig.register(rig.a, SA_CLASS, &[]);
    let asked = request(SA_CLASS, 2, method::GET_TABLE, 0x11);
    rig.send(rig.a, client, 2, asked);
    let mut answer = rig.delivered(rig.b).data;
    answer[3] |= method::RESPONSE;
    answer[26] = 1;
    rig.fabric.detach(rig.a);
    rig.fabric.set_link(End { node: 0, port: 1 }, false);
    rig.send(rig.b, server, 1, answer);
    while let Some(later) = rig.fabric.next_deadline() {
        rig.fabric.expire(later);
    }
    assert_eq!(rig.delivered(rig.b).status, TIMED_OUT);
}

#[test]
fn the_agents_of_a_program_end_with_it() {
    let mut rig = Rig::new();
    rig.register(rig.b, SA_CLASS, &[method::GET]);
    let other = rig.fabric.attach("B", 1).unwrap();
    let wanted = Registration {
        class: SA_CLASS,
        class_version: 2,
        methods: 1 << method::GET,
        ..Registration::default()
    };
    let refused = rig.fabric.register(other, &wanted);
    assert!(matches!(refused, Err(Refusal::Registration(_))));
    rig.fabric.detach(rig.b);
    assert_eq!(rig.fabric.register(other, &wanted), Ok(0));
}

// covers 6.14
#[test]
fn one_program_of_a_port_is_its_subnet_manager() {
    let mut rig = Rig::new();
    let is_sm = |rig: &Rig| {
        let (_, node) = rig.fabric.subnet().named("A").unwrap();
        node.port(1).unwrap().info().capability_mask & 2 != 0
    };
    rig.fabric.become_sm(rig.a).unwrap();
    assert!(is_sm(&rig));
    let other = rig.fabric.attach("A", 1).unwrap();
    assert_eq!(rig.fabric.become_sm(other), Err(Refusal::HasSm));
    rig.fabric.detach(rig.a);
    assert!(!is_sm(&rig));
    rig.fabric.become_sm(other).unwrap();
}

#[test]
fn a_member_has_at_most_32_agents() {
    let mut rig = Rig::new();
    for agent in 0..32 {
        assert_eq!(rig.register(rig.a, SA_CLASS, &[]), agent);
    }
    let one_more = rig.fabric.register(rig.a, &Registration::default());
    assert_eq!(one_more, Err(Refusal::TooManyAgents));
    rig.fabric.unregister(rig.a, 7).unwrap();
    assert_eq!(rig.register(rig.a, SA_CLASS, &[]), 7);
    assert_eq!(rig.fabric.attach("A", 2), Err(Refusal::NoPort));
    assert_eq!(rig.fabric.attach("C", 1), Err(Refusal::NoPort));
}

#[test]
fn data_that_is_no_mad_is_refused() {
    let mut rig = Rig::new();
    let agent = rig.register(rig.a, DIRECTED, &[]);
    for length in [0, 23, 257] {
        let mut data = directed(&[], method::GET, 0x11);
        data.resize(length, 0);
        let sent = Outgoing {
            data,
            ..outgoing(agent, PERMISSIVE_LID, directed(&[], method::GET, 0x11))
        };
        let refused = rig.fabric.send(rig.a, &sent, NO_TIME);
        assert_eq!(refused, Err(Refusal::NoMad), "{length}");
    }
    let mut short = directed(&[], method::GET, 0x11);
    short.truncate(255);
    let answer = rig.request(rig.a, agent, PERMISSIVE_LID, short);
    assert_eq!(answer.data.len(), MAD_LEN);
    assert_ne!(answer.data[4] & (Hops::RETURNING >> 8) as u8, 0);
}

impl Rig {
    /// Has devices at both ports, and takes their notices until none is left.
    fn with_devices() -> Self {
        let mut rig = Self::new();
        for member in [rig.a, rig.b] {
            rig.fabric.carry(member).unwrap();
        }
        rig.notices();
        rig
    }

    /// The notices that are due a second later.
    fn notices(&mut self) -> Vec<(MemberId, Notice)> {
        self.now += SECOND;
        std::iter::from_fn(|| self.fabric.poll_notice(self.now)).collect()
    }
}

fn lids(notice: &Notice) -> Vec<(u16, bool)> {
    let routes = notice.routes.iter();
    routes
        .map(|Route(lid, _, is_reached)| (*lid, *is_reached))
        .collect()
}

#[test]
fn a_device_learns_its_port_and_the_ways_to_others() {
    let mut rig = Rig::new();
    let (at_a, notice) = rig.fabric.carry(rig.a).unwrap();
    assert_eq!(
        (notice.port.info().lid, lids(&notice)),
        (1, vec![(1, true)])
    );
    let (at_b, notice) = rig.fabric.carry(rig.b).unwrap();
    assert_eq!(lids(&notice), [(1, true), (2, true)]);
    assert!(at_a.is_loopback() && at_b.is_loopback() && at_a != at_b);
    // The first device gets a notice of the second one.
    let told = rig.notices();
    let [(to, notice)] = &*told else {
        panic!("{told:?}");
    };
    assert_eq!((*to, lids(notice)), (rig.a, vec![(1, true), (2, true)]));
    assert!(rig.notices().is_empty());
    assert_eq!(lids_of(&rig.fabric.routes(rig.a).unwrap()), [1, 2]);
}

fn lids_of(routes: &[Route]) -> Vec<u16> {
    routes.iter().map(|Route(lid, ..)| *lid).collect()
}

// covers 5.23, 6.20
#[test]
fn a_link_that_goes_down_ends_the_ways_and_is_an_event() {
    let mut rig = Rig::with_devices();
    let (node, _) = rig.fabric.subnet().named("A").unwrap();
    rig.fabric.set_link(End { node, port: 1 }, false);
    let told = rig.notices();
    for (_, notice) in &told {
        assert_eq!(notice.events, [PortEvent::PortErr]);
        assert_eq!(notice.port.info().port_state, PortState::DOWN);
        assert!(lids(notice).iter().all(|(_, is_reached)| !is_reached));
    }
    assert_eq!(told.len(), 2);
}

#[test]
fn changes_by_a_subnet_manager_are_events_of_that_port() {
    let mut rig = Rig::with_devices();
    let agent = rig.register(rig.a, DIRECTED, &[]);
    rig.configure(agent, &[1], 7, PortState::NO_CHANGE);
    let told = rig.notices();
    let events: Vec<_> = told
        .iter()
        .map(|(to, it)| (*to, it.events.clone()))
        .collect();
    assert_eq!(
        events,
        [(rig.a, vec![]), (rig.b, vec![PortEvent::LidChange])]
    );
    assert_eq!(lids(&told[0].1), [(1, true), (7, true)]);
}

#[test]
fn a_notice_without_room_comes_with_the_next_one() {
    let mut rig = Rig::with_devices();
    let (node, _) = rig.fabric.subnet().named("A").unwrap();
    let at = End { node, port: 1 };
    rig.fabric.set_link(at, false);
    for (to, notice) in rig.notices() {
        rig.fabric.keep_notice(to, notice);
    }
    assert!(rig.fabric.next_deadline().is_some());
    rig.fabric.set_link(at, true);
    for (_, notice) in rig.notices() {
        assert_eq!(notice.events, [PortEvent::PortErr]);
        assert_eq!(notice.port.info().port_state, PortState::INIT);
    }
    assert_eq!(rig.fabric.next_deadline(), None);
}

// A sweep changes a port several times, and a device reads no faster for it.
#[test]
fn changes_that_follow_at_once_are_told_together() {
    let mut rig = Rig::with_devices();
    let (node, _) = rig.fabric.subnet().named("A").unwrap();
    let at = End { node, port: 1 };
    let soon = rig.now + MILLISECOND;
    rig.fabric.set_link(at, false);
    assert!(rig.fabric.poll_notice(soon).is_none());
    let due = rig.fabric.next_deadline().unwrap();
    assert!(due > soon);
    rig.fabric.set_link(at, true);
    let (_, notice) = rig.fabric.poll_notice(due).unwrap();
    assert_eq!(notice.port.info().port_state, PortState::INIT);
}

#[test]
fn a_device_that_is_gone_has_no_ways() {
    let mut rig = Rig::with_devices();
    rig.fabric.detach(rig.b);
    let told = rig.notices();
    assert_eq!(told.len(), 1);
    assert_eq!(lids(&told[0].1), [(1, true)]);
}

/// Counts as the devices of a port do.
#[derive(Clone, Debug, Default)]
struct Counting(Arc<Mutex<[u64; Carried::COUNT]>>);

impl Traffic for Counting {
    fn read(&self) -> [u64; Carried::COUNT] {
        *self.0.lock()
    }
}

// covers 8.73
#[test]
fn counters_show_what_devices_have_counted() {
    let mut rig = Rig::with_devices();
    let traffic = Counting::default();
    let at = rig.fabric.port_of(rig.a).unwrap();
    rig.fabric.count_traffic(at, Box::new(traffic.clone()));
    let agent = rig.register(rig.a, PERF, &[]);
    let counted = |rig: &mut Rig| {
        let mut data = request(PERF, 1, method::GET, 0x12);
        data[64 + 1] = 1;
        let shown = rig.request(rig.a, agent, 1, data).data;
        u32::from_be_bytes(shown[64 + 24..64 + 28].try_into().unwrap())
    };
    let before = counted(&mut rig);
    traffic.0.lock()[Carried::XmitWords as usize] += 1000;
    assert_eq!(counted(&mut rig), before + 1000);
    assert_eq!(counted(&mut rig), before + 1000);
}
