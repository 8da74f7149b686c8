//! Two managers in virtual time, and a link between them that loses, duplicates and reorders messages.

use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::mad::cm::{Message, reason};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use verbs_api::ids::{Gid, LinkAddress, Psn, Qpn};
use verbs_api::qp::{QpAttrMask, QpState};

use super::*;

mod calls;
mod faults;
mod handshake;
mod liveness;
mod peers;

const SERVICE: u64 = 0x0106_1144;
const NEAR: usize = 0;
const FAR: usize = 1;

/// Decides which messages are lost.
type Loses = Box<dyn FnMut(usize, &Message) -> bool>;

struct Pair {
    ends: [Manager; 2],
    now: Time,
    wire: Vec<(Time, usize, Outgoing)>,
    events: [Vec<Event>; 2],
    sent: Vec<(usize, &'static str)>,
    loses: Loses,
    listener: ListenerId,
}

fn address(end: usize) -> LinkAddress {
    LinkAddress::InProcess(end as u64 + 1)
}

fn path_from(end: usize) -> Path {
    let gid = |end: usize| Gid([end as u8 + 1; 16]);
    Path::new(address(1 - end), gid(end), gid(1 - end))
}

fn inquiry(service_id: u64) -> Inquiry<'static> {
    Inquiry {
        service_id,
        path: path_from(NEAR),
        response_timeout: 20,
        max_cm_retries: 3,
        awaits_listener: true,
        private_data: b"",
    }
}

fn request<'a>(qpn: u32) -> Request<'a> {
    Request {
        responder_resources: 4,
        initiator_depth: 2,
        max_cm_retries: 3,
        ..Request::new(
            SERVICE,
            path_from(NEAR),
            Qpn::new(qpn),
            Psn::new(qpn + 1000),
        )
    }
}

fn rejection<'a>(private_data: &'a [u8]) -> Rejection<'a> {
    Rejection {
        reason: reason::CONSUMER,
        info: &[],
        private_data,
    }
}

impl Pair {
    fn new() -> Self {
        let manager = |end: u64| {
            Manager::new(ManagerOptions {
                ca_guid: 0xa0 + end,
                seed: 100 * (end + 1),
                ..ManagerOptions::default()
            })
        };
        let mut ends = [manager(0), manager(1)];
        let (listener, _) = ends[FAR].listen(SERVICE, u64::MAX).unwrap();
        Self {
            ends,
            now: Time(0),
            wire: Vec::new(),
            events: [Vec::new(), Vec::new()],
            sent: Vec::new(),
            loses: Box::new(|_, _| false),
            listener,
        }
    }

    /// Takes messages and events from the managers, and puts the messages that are not lost on the wire.
    fn collect(&mut self) {
        for end in [NEAR, FAR] {
            while let Some(message) = self.ends[end].poll_message() {
                self.sent.push((end, message.message.name()));
                if !(self.loses)(end, &message.message) {
                    let at = self.now.after(Duration::from_micros(10));
                    self.wire.push((at, 1 - end, message));
                }
            }
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push(event);
            }
        }
    }

    /// Delivers the messages on the wire, and those that answer them. No further time passes.
    fn settle(&mut self) {
        self.collect();
        while !self.wire.is_empty() {
            let (at, to, message) = self.wire.remove(0);
            self.now = self.now.max(at);
            self.deliver(to, &message);
            self.collect();
        }
    }

    fn deliver(&mut self, to: usize, message: &Outgoing) {
        let (from, now) = (address(1 - to), self.now);
        self.ends[to].handle_message(now, from, message.transaction_id, &message.message);
    }

    /// Lets time pass to the next timeout and handles it; returns whether there was one.
    fn step(&mut self) -> bool {
        self.settle();
        let due = self.ends.iter().filter_map(Manager::next_due).min();
        let Some(due) = due else { return false };
        self.now = self.now.max(due);
        let now = self.now;
        self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
        self.settle();
        true
    }

    fn drain(&mut self) {
        for _ in 0..1000 {
            if !self.step() {
                return;
            }
        }
        panic!("the managers do not become idle");
    }

    fn events(&mut self, end: usize) -> Vec<Event> {
        std::mem::take(&mut self.events[end])
    }

    fn sent(&mut self) -> Vec<(usize, &'static str)> {
        std::mem::take(&mut self.sent)
    }

    fn state(&self, end: usize, id: CommId) -> Option<State> {
        self.ends[end].state(id)
    }

    fn ask(&mut self, qpn: u32) -> CommId {
        let id = self.ends[NEAR].connect(self.now, &request(qpn)).unwrap();
        self.settle();
        id
    }

    /// Requests a connection; returns its IDs at both ends, and the request as the far end has received it.
    fn asked(&mut self, qpn: u32) -> (CommId, CommId, Requested) {
        let near = self.ask(qpn);
        let Some(Event::Requested { id, request, .. }) = self.events(FAR).pop() else {
            panic!("no request came");
        };
        (near, id, *request)
    }

    fn reply(&mut self, far: CommId, request: &Requested) {
        let reply = Reply::new(Qpn::new(0x200 + far.0), Psn::new(7), request);
        self.ends[FAR].reply(self.now, far, &reply).unwrap();
        self.settle();
    }

    /// Establishes a connection; returns its IDs at both ends.
    fn connected(&mut self, qpn: u32) -> (CommId, CommId) {
        let (near, far, request) = self.asked(qpn);
        self.reply(far, &request);
        self.ends[NEAR].ready(near, b"").unwrap();
        self.settle();
        self.events = [Vec::new(), Vec::new()];
        (near, far)
    }

    /// Makes a connection in this state; returns the end that has the state, and the IDs there and at the other end.
    fn in_state(&mut self, state: State) -> (usize, CommId, CommId) {
        let qpn = 0x11;
        let (near, far, request) = match state {
            State::ReqSent => {
                self.loses = Box::new(|_, _| true);
                let id = self.ask(qpn);
                self.loses = Box::new(|_, _| false);
                return (NEAR, id, CommId(0));
            }
            State::SidrReqSent | State::SidrReqRcvd => return self.asking(state),
            State::Established | State::DreqSent | State::DreqRcvd | State::TimeWait => {
                let (near, far) = self.connected(qpn);
                return self.ending(state, near, far);
            }
            _ => self.asked(qpn),
        };
        match state {
            State::ReqRcvd => return (FAR, far, near),
            State::MraReqSent | State::MraReqRcvd => {
                self.ends[FAR].delay(far, 20, b"").unwrap();
                self.settle();
                return if state == State::MraReqSent {
                    (FAR, far, near)
                } else {
                    (NEAR, near, far)
                };
            }
            _ => self.reply(far, &request),
        }
        match state {
            State::RepSent => return (FAR, far, near),
            State::RepRcvd => return (NEAR, near, far),
            _ => self.ends[NEAR].delay(near, 20, b"").unwrap(),
        }
        self.settle();
        match state {
            State::MraRepSent => (NEAR, near, far),
            _ => (FAR, far, near),
        }
    }

    fn asking(&mut self, state: State) -> (usize, CommId, CommId) {
        let near = self.ends[NEAR]
            .resolve(self.now, &inquiry(SERVICE))
            .unwrap();
        self.settle();
        let Some(Event::ResolutionRequested { id, .. }) = self.events(FAR).pop() else {
            panic!("no resolution was requested");
        };
        match state {
            State::SidrReqSent => (NEAR, near, id),
            _ => (FAR, id, near),
        }
    }

    fn ending(&mut self, state: State, near: CommId, far: CommId) -> (usize, CommId, CommId) {
        if state == State::Established {
            return (NEAR, near, far);
        }
        self.ends[NEAR].disconnect(self.now, near, b"").unwrap();
        self.settle();
        match state {
            State::DreqSent => return (NEAR, near, far),
            State::DreqRcvd => return (FAR, far, near),
            _ => {}
        }
        self.ends[FAR]
            .confirm_disconnect(self.now, far, b"bye")
            .unwrap();
        self.settle();
        (FAR, far, near)
    }
}
