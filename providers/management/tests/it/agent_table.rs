//! The agents of programs at a port: what they register, which MADs reach them, and how long their requests wait.

use std::time::Duration;

use polyverbs_management::agent_table::{
    Limits, Patience, RegisterError, Request, SendError, Timeout,
};
use polyverbs_management::{Address, AgentId, AgentTable, GlobalRoute, NextHop, Recipient};
use polyverbs_management::{Node, Registration};
use polyverbs_wire::layout::Header as _;
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::rmpp::Rmpp;
use polyverbs_wire::mad::smp::{DIRECTED_CLASS, Hops, LID_CLASS, PERMISSIVE_LID};
use polyverbs_wire::mad::{self, DATA_LEN, MAD_LEN, MadHeader, method, status};

use crate::rig::Rig;

const SUBNET_ADMINISTRATION: u8 = 0x03;
const PING_CLASS: u8 = 0x32;
const OPENIB_OUI: [u8; 3] = [0x00, 0x14, 0x05];

/// The lower half of the transaction ID of each request.
const ID: u32 = 7;

fn of(id: u64, class: u8, method: u8) -> [u8; MAD_LEN] {
    let header = MadHeader {
        base_version: 1,
        management_class: class,
        class_version: 1,
        method,
        transaction_id: id,
        ..MadHeader::default()
    };
    mad::encode(&header, &[0; DATA_LEN])
}

fn header(mad: &[u8; MAD_LEN]) -> MadHeader {
    MadHeader::of(mad::decode(mad).unwrap().header)
}

/// The answer to a request.
fn answer(request: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
    let decoded = mad::decode(request).unwrap();
    let mut header = MadHeader::of(decoded.header);
    header.method = method::GET | method::RESPONSE;
    mad::encode(&header, decoded.data)
}

fn lid(lid: u16) -> Address {
    Address {
        lid,
        ..Address::default()
    }
}

fn gid(last: u8) -> Address {
    let mut gid = [0; 16];
    gid[15] = last;
    Address {
        global: Some(GlobalRoute {
            gid,
            ..GlobalRoute::default()
        }),
        ..lid(5)
    }
}

fn takes(class: u8, methods: &[u8]) -> Registration {
    Registration {
        class,
        class_version: 1,
        methods: methods.iter().fold(0, |all, method| all | 1 << method),
        ..Registration::default()
    }
}

fn of_vendor(oui: [u8; 3]) -> Registration {
    Registration {
        oui,
        ..takes(PING_CLASS, &[method::GET])
    }
}

/// A table, and the time, which is the test's.
struct Port {
    table: AgentTable<&'static str>,
    now: Duration,
}

impl Port {
    fn new() -> Self {
        Self {
            table: AgentTable::new(Limits {
                agents: 4,
                outstanding: 3,
            }),
            now: Duration::from_secs(1000),
        }
    }

    /// A table with an agent that sends requests.
    fn with_client() -> (Self, AgentId) {
        let mut port = Self::new();
        let client = port.register(takes(LID_CLASS, &[]));
        (port, client)
    }

    fn register(&mut self, registration: Registration) -> AgentId {
        self.table.register("an owner", registration).unwrap()
    }

    /// Sends a request that waits for a second and is sent again twice, and returns it as it leaves.
    fn request(&mut self, agent: AgentId, class: u8, id: u32, to: &Address) -> [u8; MAD_LEN] {
        let mut request = of(id.into(), class, method::GET);
        self.send(agent, &mut request, to).unwrap();
        request
    }

    fn send(
        &mut self,
        agent: AgentId,
        mad: &mut [u8; MAD_LEN],
        to: &Address,
    ) -> Result<(), SendError> {
        let patience = Patience {
            timeout: Duration::from_secs(1),
            retries: 2,
        };
        self.table.send(agent, mad, to, Some(patience), self.now)
    }

    /// Goes on to the next deadline.
    fn next_timeout(&mut self) -> Timeout {
        let deadline = self.table.next_deadline().expect("a request waits");
        let just_before = deadline - Duration::from_nanos(1);
        assert_eq!(self.table.poll_timeout(just_before), None);
        self.now = deadline;
        self.table.poll_timeout(self.now).expect("its time is over")
    }
}

// covers 8.69
#[test]
fn no_two_agents_of_a_port_have_a_method_in_common() {
    let mut port = Port::new();
    let both = takes(PERF_CLASS, &[method::GET, method::SET]);
    let first = port.register(both);
    for methods in [&[method::GET][..], &[method::SET, method::SEND]] {
        let result = port.table.register("another", takes(PERF_CLASS, methods));
        assert_eq!(result, Err(RegisterError::InUse), "{methods:?}");
    }
    port.register(takes(PERF_CLASS, &[method::SEND]));
    port.register(takes(LID_CLASS, &[method::GET, method::SET]));
    port.register(Registration {
        class_version: 2,
        ..both
    });
    assert_eq!(port.table.unregister(first), Some("an owner"));
    port.register(both);
}

// covers 8.69
#[test]
fn any_number_of_agents_takes_only_answers() {
    let mut port = Port::new();
    let mut agents: Vec<_> = (0..3)
        .map(|_| port.register(takes(LID_CLASS, &[])))
        .collect();
    agents.dedup();
    assert_eq!(agents.len(), 3);
    let request = of(1, LID_CLASS, method::GET);
    assert_eq!(port.table.receive(&request, &lid(5)), Recipient::Nobody);
}

// covers 8.69
#[test]
fn a_class_that_does_not_exist_is_refused() {
    let mut port = Port::new();
    let valid = of_vendor(OPENIB_OUI);
    let invalid = [
        takes(0, &[method::GET]),
        takes(0x50, &[method::GET]),
        takes(0x80, &[method::GET]),
        takes(0x82, &[method::GET]),
        of_vendor([0; 3]),
        Registration {
            class_version: 0x83,
            ..valid
        },
    ];
    for registration in invalid {
        let result = port.table.register("an owner", registration);
        assert_eq!(result, Err(RegisterError::Class), "{registration:?}");
    }
    port.register(takes(DIRECTED_CLASS, &[method::GET]));
    port.register(valid);
}

// covers 8.69
#[test]
fn a_full_table_refuses_agents_and_keeps_those_it_has() {
    let mut port = Port::new();
    let agents: Vec<_> = (1..=4)
        .map(|class| port.register(takes(class, &[method::GET])))
        .collect();
    let result = port.table.register("one more", takes(9, &[method::GET]));
    assert_eq!(result, Err(RegisterError::Full));
    for (class, agent) in (1..=4).zip(agents) {
        let request = of(1, class, method::GET);
        assert_eq!(
            port.table.receive(&request, &lid(5)),
            Recipient::Agent(agent)
        );
    }
}

// covers 8.69
#[test]
fn a_request_reaches_the_agent_of_its_class_version_and_method() {
    let mut port = Port::new();
    let reader = port.register(takes(PERF_CLASS, &[method::GET]));
    let writer = port.register(takes(PERF_CLASS, &[method::SET]));
    let newer = port.register(Registration {
        class_version: 2,
        ..takes(PERF_CLASS, &[method::GET])
    });
    let mut of_version_2 = of(1, PERF_CLASS, method::GET);
    of_version_2[2] = 2;
    for (mad, expected) in [
        (of(1, PERF_CLASS, method::GET), Recipient::Agent(reader)),
        (of(1, PERF_CLASS, method::SET), Recipient::Agent(writer)),
        (of_version_2, Recipient::Agent(newer)),
        (of(1, PERF_CLASS, method::SEND), Recipient::Nobody),
        (of(1, LID_CLASS, method::GET), Recipient::Nobody),
    ] {
        assert_eq!(port.table.receive(&mad, &lid(5)), expected);
    }
}

// covers 8.69
#[test]
fn agents_of_a_vendors_class_differ_by_vendor() {
    let mut port = Port::new();
    let agents = [1, 2].map(|vendor| (vendor, port.register(of_vendor([0, 0, vendor]))));
    let mut request = of(1, PING_CLASS, method::GET);
    for (vendor, agent) in agents {
        request[37..40].copy_from_slice(&[0, 0, vendor]);
        assert_eq!(
            port.table.receive(&request, &lid(5)),
            Recipient::Agent(agent)
        );
    }
    request[39] = 3;
    assert_eq!(port.table.receive(&request, &lid(5)), Recipient::Nobody);
}

// covers 8.65
#[test]
fn a_get_or_set_that_no_agent_takes_is_answered_with_a_status() {
    let node: Node = Rig::new().node;
    for method in [method::GET, method::SET] {
        let mut mad = of(9, PERF_CLASS, method);
        assert_eq!(node.refuse(1, &mut mad), NextHop::Address);
        let header = header(&mad);
        assert_eq!(header.method, method::GET | method::RESPONSE);
        assert_eq!(header.status, status::METHOD_AND_ATTRIBUTE);
        assert_eq!(header.transaction_id, 9);
    }
    for method in [method::SEND, method::TRAP, method::GET | method::RESPONSE] {
        assert_eq!(
            node.refuse(1, &mut of(9, PERF_CLASS, method)),
            NextHop::Dropped
        );
    }
}

// covers 8.65
#[test]
fn the_refusal_of_a_directed_request_returns_by_its_route() {
    let node = Rig::new().node;
    let mut mad = of(9, DIRECTED_CLASS, method::GET);
    // The request has come by one hop, at whose end it noted port 2.
    mad[6..8].copy_from_slice(&[2, 1]);
    mad[32..36].fill(0xff);
    mad[193] = 2;
    assert_eq!(node.refuse(2, &mut mad), NextHop::Port(2));
    assert_eq!(
        header(&mad).status,
        status::METHOD_AND_ATTRIBUTE | Hops::RETURNING
    );
}

// covers 8.70
#[test]
fn an_answer_reaches_the_agent_whose_request_it_answers() {
    let mut port = Port::new();
    let clients = [(); 2].map(|()| port.register(takes(LID_CLASS, &[])));
    let requests = clients.map(|it| port.request(it, PERF_CLASS, ID, &lid(5)));
    for (client, request) in clients.into_iter().zip(requests).rev() {
        let transaction_id = header(&request).transaction_id;
        assert_eq!(transaction_id as u32, ID, "the lower half is the program's");
        let answer = answer(&request);
        assert_eq!(
            port.table.receive(&answer, &lid(5)),
            Recipient::Requester(client)
        );
        assert_eq!(
            port.table.receive(&answer, &lid(5)),
            Recipient::Unmatched,
            "a second answer"
        );
    }
    assert_eq!(port.table.next_deadline(), None);
}

// covers 8.70
#[test]
fn an_answer_that_does_not_match_a_request_is_dropped() {
    let (mut port, client) = Port::with_client();
    let answer = answer(&port.request(client, PERF_CLASS, ID, &lid(5)));
    let with = |at: usize, value: u8| {
        let mut other = answer;
        other[at] = value;
        other
    };
    for (what, other, from) in [
        ("class", with(1, LID_CLASS), lid(5)),
        ("agent", with(11, 0xee), lid(5)),
        ("transaction", with(15, 0xee), lid(5)),
        ("source", answer, lid(6)),
        ("source by GID", answer, gid(5)),
    ] {
        let recipient = port.table.receive(&other, &from);
        assert_eq!(recipient, Recipient::Unmatched, "another {what}");
    }
    assert_eq!(
        port.table.receive(&answer, &lid(5)),
        Recipient::Requester(client)
    );
}

// covers 8.70
#[test]
fn sources_are_compared_as_far_as_the_request_names_one() {
    for (class, to, from, expected) in [
        (PERF_CLASS, gid(1), gid(1), true),
        (PERF_CLASS, gid(1), gid(2), false),
        (PERF_CLASS, gid(1), lid(5), false),
        (LID_CLASS, lid(PERMISSIVE_LID), lid(6), true),
        (DIRECTED_CLASS, lid(PERMISSIVE_LID), lid(6), true),
        (DIRECTED_CLASS, lid(5), lid(6), true),
    ] {
        let (mut port, client) = Port::with_client();
        let answer = answer(&port.request(client, class, ID, &to));
        let is_answered = port.table.receive(&answer, &from) == Recipient::Requester(client);
        assert_eq!(is_answered, expected, "{class} {to:?} {from:?}");
    }
}

// covers 8.70
#[test]
fn answers_of_agents_leave_as_they_are() {
    let (mut port, client) = Port::with_client();
    for method in [method::GET | method::RESPONSE, method::TRAP_REPRESS] {
        let sent = of(0x1234_5678_9abc_def0, LID_CLASS, method);
        let mut mad = sent;
        port.send(client, &mut mad, &lid(5)).unwrap();
        assert_eq!(mad, sent);
    }
    assert_eq!(port.table.next_deadline(), None);
}

// covers 8.70
#[test]
fn a_transaction_id_is_not_used_twice_at_a_time() {
    let (mut port, client) = Port::with_client();
    let request = port.request(client, PERF_CLASS, ID, &lid(5));
    let mut again = of(
        0xffff_ffff_0000_0000 | u64::from(ID),
        PERF_CLASS,
        method::SET,
    );
    assert_eq!(
        port.send(client, &mut again, &lid(6)),
        Err(SendError::Duplicate)
    );
    port.request(client, LID_CLASS, ID, &lid(5));
    port.table.receive(&answer(&request), &lid(5));
    port.send(client, &mut again, &lid(6)).unwrap();
}

// covers 8.70
#[test]
fn the_answer_to_an_agent_that_is_gone_reaches_no_other() {
    let (mut port, client) = Port::with_client();
    let answer = answer(&port.request(client, PERF_CLASS, ID, &lid(5)));
    port.table.unregister(client).unwrap();
    assert_eq!(port.table.next_deadline(), None);
    let successor = port.register(takes(LID_CLASS, &[]));
    port.request(successor, PERF_CLASS, ID, &lid(5));
    assert_eq!(port.table.receive(&answer, &lid(5)), Recipient::Unmatched);
    assert_eq!(
        port.send(client, &mut of(1, PERF_CLASS, method::GET), &lid(5)),
        Err(SendError::Agent)
    );
}

// covers 8.71
#[test]
fn a_request_is_sent_again_and_then_comes_back_as_timed_out() {
    let (mut port, agent) = Port::with_client();
    let start = port.now;
    let mad = port.request(agent, PERF_CLASS, ID, &lid(5));
    let to = lid(5);
    let request = Request { agent, mad, to };
    assert_eq!(port.next_timeout(), Timeout::Retry(request));
    assert_eq!(port.next_timeout(), Timeout::Retry(request));
    assert_eq!(port.next_timeout(), Timeout::Expired(request));
    assert_eq!(port.now - start, Duration::from_secs(3));
    assert_eq!(port.table.next_deadline(), None);
    assert_eq!(
        port.table.receive(&answer(&mad), &lid(5)),
        Recipient::Unmatched,
        "an answer that is late"
    );
}

// covers 8.71
#[test]
fn a_request_that_was_sent_again_may_still_be_answered() {
    let (mut port, agent) = Port::with_client();
    let mad = port.request(agent, PERF_CLASS, ID, &lid(5));
    port.next_timeout();
    assert_eq!(
        port.table.receive(&answer(&mad), &lid(5)),
        Recipient::Requester(agent)
    );
    assert_eq!(port.table.next_deadline(), None);
}

// covers 8.71
#[test]
fn a_request_without_patience_expects_no_answer() {
    let (mut port, client) = Port::with_client();
    let mut mad = of(1, PERF_CLASS, method::SEND);
    let now = port.now;
    port.table
        .send(client, &mut mad, &lid(5), None, now)
        .unwrap();
    assert_eq!(port.table.next_deadline(), None);
    assert_eq!(
        port.table.receive(&answer(&mad), &lid(5)),
        Recipient::Unmatched
    );
}

// covers 8.71
#[test]
fn a_cancelled_request_comes_back_and_its_answer_is_dropped() {
    let (mut port, agent) = Port::with_client();
    let mad = port.request(agent, PERF_CLASS, ID, &lid(5));
    let to = lid(5);
    let cancelled = port.table.cancel(agent, PERF_CLASS, ID.into());
    assert_eq!(cancelled, Some(Request { agent, mad, to }));
    assert_eq!(port.table.cancel(agent, PERF_CLASS, ID.into()), None);
    assert_eq!(port.table.next_deadline(), None);
    assert_eq!(
        port.table.receive(&answer(&mad), &lid(5)),
        Recipient::Unmatched
    );
}

// covers 8.71
#[test]
fn requests_time_out_in_the_order_of_their_deadlines() {
    let (mut port, client) = Port::with_client();
    for (id, seconds) in [(1, 3), (2, 1), (3, 2)] {
        let patience = Patience {
            timeout: Duration::from_secs(seconds),
            retries: 0,
        };
        let mut mad = of(id, PERF_CLASS, method::GET);
        let now = port.now;
        let result = port
            .table
            .send(client, &mut mad, &lid(5), Some(patience), now);
        result.unwrap();
    }
    let mut one_more = of(4, PERF_CLASS, method::GET);
    assert_eq!(
        port.send(client, &mut one_more, &lid(5)),
        Err(SendError::Full)
    );
    for expected in [2, 3, 1] {
        let Timeout::Expired(request) = port.next_timeout() else {
            panic!("there are no retries");
        };
        assert_eq!(header(&request.mad).transaction_id as u32, expected);
    }
}

fn segment(request: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
    let mut segment = answer(request);
    let rmpp = Rmpp {
        version: 1,
        packet_type: 1,
        is_active: true,
        ..Rmpp::default()
    };
    segment[24..24 + Rmpp::LEN].copy_from_slice(&rmpp.to_view().0);
    segment
}

// covers 8.70
#[test]
fn further_segments_reach_only_agents_that_take_segments() {
    for takes_segments in [false, true] {
        let mut port = Port::new();
        let agent = port.register(Registration {
            takes_segments,
            ..takes(SUBNET_ADMINISTRATION, &[])
        });
        let request = port.request(agent, SUBNET_ADMINISTRATION, ID, &lid(5));
        let recipients = [(); 2].map(|()| port.table.receive(&segment(&request), &lid(5)));
        let further = match takes_segments {
            true => Recipient::Requester(agent),
            false => Recipient::Unmatched,
        };
        assert_eq!(recipients, [Recipient::Requester(agent), further]);
        let counters = segment(&port.request(agent, PERF_CLASS, ID, &lid(5)));
        port.table.receive(&counters, &lid(5));
        assert_eq!(
            port.table.receive(&counters, &lid(5)),
            Recipient::Unmatched,
            "a class without segments"
        );
    }
}

// covers 8.71
#[test]
fn a_request_whose_answer_has_begun_is_not_sent_again() {
    let (mut port, agent) = Port::with_client();
    let mad = port.request(agent, SUBNET_ADMINISTRATION, ID, &lid(5));
    let segment = segment(&mad);
    assert_eq!(port.table.requester(&segment, &lid(6)), None);
    assert_eq!(port.table.requester(&segment, &lid(5)), Some(agent));
    let deadline = port.now + Duration::from_secs(40);
    port.table.postpone(&segment, &lid(5), deadline);
    let to = lid(5);
    let expired = Timeout::Expired(Request { agent, mad, to });
    assert_eq!(port.next_timeout(), expired);
    assert_eq!(port.now, deadline);
}

// covers 8.71
#[test]
fn a_timeout_is_a_millisecond_at_least() {
    let (mut port, agent) = Port::with_client();
    let patience = Patience {
        timeout: Duration::ZERO,
        retries: u32::MAX,
    };
    let mut mad = of(1, PERF_CLASS, method::GET);
    let start = port.now;
    let sent = port
        .table
        .send(agent, &mut mad, &lid(5), Some(patience), start);
    sent.unwrap();
    for retry in 1..=3 {
        assert!(matches!(port.next_timeout(), Timeout::Retry(_)));
        assert_eq!(port.now - start, Duration::from_millis(retry));
        assert_eq!(port.table.poll_timeout(port.now), None);
    }
}

// covers 8.71
#[test]
fn flushed_requests_of_all_agents_come_back() {
    let (mut port, client) = Port::with_client();
    let other = port.register(takes(LID_CLASS, &[]));
    let agents = [client, other, client];
    for (id, agent) in (1..).zip(agents) {
        port.request(agent, PERF_CLASS, id, &lid(5));
        port.now += Duration::from_millis(1);
    }
    let flushed = port.table.flush();
    assert_eq!(
        flushed.iter().map(|it| it.agent).collect::<Vec<_>>(),
        agents
    );
    assert_eq!(port.table.next_deadline(), None);
    assert_eq!(port.table.flush(), []);
    port.request(client, PERF_CLASS, 1, &lid(5));
}
