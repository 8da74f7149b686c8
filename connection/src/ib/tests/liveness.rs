use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::{Rej, Req};

use super::*;
use crate::ib::liveness;

const EVERY: Duration = Duration::from_secs(4);

fn pair() -> Pair {
    let mut pair = Pair::new();
    for end in &mut pair.ends {
        end.options.liveness_interval = Some(EVERY);
    }
    pair
}

impl Pair {
    /// Lets time pass, and handles each timeout that becomes due.
    fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        while let Some(due) = self.ends.iter().filter_map(Manager::next_due).min()
            && due <= until
        {
            self.now = self.now.max(due);
            for end in [NEAR, FAR] {
                self.ends[end].handle_timeout(self.now);
            }
            self.settle();
        }
        self.now = until;
    }

    fn lost(&self, end: usize) -> Vec<CommId> {
        let lost = self.events[end].iter().filter_map(|event| match event {
            Event::PeerLost { id } => Some(*id),
            _ => None,
        });
        lost.collect()
    }
}

// A killed process neither sends nor receives messages.
#[test]
fn a_killed_peer_of_an_idle_connection_is_detected() {
    for gone in [NEAR, FAR] {
        let waits = 1 - gone;
        let mut pair = pair();
        let connected: Vec<_> = [0x11, 0x12].map(|qpn| pair.connected(qpn)).into();
        pair.pass(Duration::from_secs(60));
        assert_eq!((pair.lost(NEAR), pair.lost(FAR)), (vec![], vec![]));
        pair.loses = Box::new(move |from, _| from == gone);
        pair.pass(Duration::from_secs(15));
        let own = |(near, far): &(CommId, CommId)| [*near, *far][waits];
        let mut expected: Vec<_> = connected.iter().map(own).collect();
        let mut lost = pair.lost(waits);
        expected.sort();
        lost.sort();
        assert_eq!(lost, expected);
        // The connections are gone, and no probe is due.
        pair.pass(Duration::from_secs(60));
        assert_eq!(pair.ends[waits].connections(), 0);
        assert_eq!(pair.ends[waits].next_due(), None);
    }
}

#[test]
fn a_stopped_peer_that_resumes_gets_a_dreq() {
    let mut pair = pair();
    // A stopped process does not send probes either.
    pair.ends[FAR].options.liveness_interval = None;
    let (near, far) = pair.connected(0x11);
    pair.pass(Duration::from_secs(10));
    pair.loses = Box::new(move |from, _| from == FAR);
    pair.pass(Duration::from_secs(15));
    assert_eq!(pair.lost(NEAR), [near]);
    assert_eq!(pair.state(FAR, far), Some(State::DreqRcvd));
    assert_eq!(pair.lost(FAR), []);
}

// There is one probe and one answer in each direction, however many connections there are.
#[test]
fn idle_connections_cost_no_more_than_one_does() {
    let mut pair = pair();
    for qpn in 0..50 {
        pair.connected(0x100 + qpn);
    }
    pair.pass(Duration::from_secs(1));
    pair.sent.clear();
    pair.pass(EVERY * 10);
    let count = |what| pair.sent.iter().filter(|(_, name)| *name == what).count();
    assert!((18..=22).contains(&count("DREQ")), "{:?}", pair.sent);
    assert_eq!(count("DREP"), count("DREQ"));
    assert_eq!(pair.sent.len(), 2 * count("DREQ"));
}

#[test]
fn lost_liveness_probes_end_no_connection() {
    let mut random = SmallRng::seed_from_u64(3);
    let mut pair = pair();
    let (near, far) = pair.connected(0x11);
    pair.pass(Duration::from_secs(1));
    pair.loses = Box::new(move |_, _| random.random_bool(0.1));
    pair.pass(Duration::from_secs(600));
    assert_eq!(pair.state(NEAR, near), Some(State::Established));
    assert_eq!(pair.state(FAR, far), Some(State::Established));
}

#[test]
fn a_peer_killed_right_after_connecting_is_detected() {
    for gone in [NEAR, FAR] {
        let mut pair = pair();
        for (number, end) in pair.ends.iter_mut().enumerate() {
            end.options.ca_guid = liveness::guid(number as u32);
        }
        let (near, far) = pair.connected(0x11);
        pair.loses = Box::new(move |from, _| from == gone);
        pair.pass(Duration::from_secs(15));
        assert_eq!(pair.lost(1 - gone), [[far, near][gone]]);
    }
}

// Another implementation may not answer a DREQ for an unused communication ID, although it is alive.
#[test]
fn an_adapter_that_never_answered_probes_is_not_taken_for_dead() {
    let mut pair = pair();
    let (near, far) = pair.connected(0x11);
    pair.loses = Box::new(|_, message| matches!(message, Message::Drep(_)));
    pair.pass(Duration::from_secs(600));
    assert_eq!(pair.state(NEAR, near), Some(State::Established));
    assert_eq!(pair.state(FAR, far), Some(State::Established));
}

// The new process may get the queue pair numbers and communication IDs of the killed one.
#[test]
fn a_new_process_answers_no_probes_for_the_old_one() {
    let mut pair = pair();
    let (near, _) = pair.connected(0x11);
    pair.pass(Duration::from_secs(10));
    let other = ManagerOptions {
        ca_guid: 0xdead,
        ..pair.ends[FAR].options.clone()
    };
    pair.ends[FAR] = Manager::new(other);
    pair.pass(Duration::from_secs(15));
    assert_eq!(pair.lost(NEAR), [near]);
}

// covers 7.08
#[test]
fn liveness_probes_do_not_disturb_a_disconnect() {
    let mut pair = pair();
    let (near, far) = pair.connected(0x11);
    pair.pass(Duration::from_secs(10));
    pair.ends[NEAR].disconnect(pair.now, near, b"").unwrap();
    pair.settle();
    assert_eq!(pair.state(FAR, far), Some(State::DreqRcvd));
    let now = pair.now;
    pair.ends[FAR].confirm_disconnect(now, far, b"").unwrap();
    pair.settle();
    pair.pass(Duration::from_secs(30));
    assert_eq!((pair.lost(NEAR), pair.lost(FAR)), (vec![], vec![]));
    let left = [NEAR, FAR].map(|end| (pair.ends[end].connections(), pair.ends[end].next_due()));
    assert_eq!(left, [(0, None), (0, None)]);
}

// A peer that invents adapters causes no lasting state.
#[test]
fn adapters_without_connections_are_not_probed() {
    let mut pair = pair();
    let (near, _, _) = pair.asked(0x11);
    let request = pair.ends[NEAR].connections[&near.0].repeated.clone();
    let Some(Message::Req(req)) = request.as_deref().copied() else {
        panic!("no request");
    };
    pair.ends[FAR].options.max_connections = 100;
    for guid in 0..1000 {
        let asks = Req {
            ca_guid: guid,
            local_comm_id: 1,
            ..req
        };
        let gives_up = Rej {
            local_comm_id: 1,
            reason: reason::TIMEOUT,
            info_length: 8,
            info: Octets::padded(&guid.to_be_bytes()).unwrap(),
            ..Rej::default()
        };
        for message in [Message::from(asks), gives_up.into()] {
            pair.ends[FAR].handle_message(pair.now, address(NEAR), guid, &message);
        }
    }
    assert_eq!(pair.ends[FAR].liveness.len(), 0);
    pair.collect();
    pair.wire.clear();
    pair.loses = Box::new(|_, _| true);
    pair.pass(Duration::from_secs(200));
    assert_eq!(pair.ends[FAR].liveness.len(), 0);
}
