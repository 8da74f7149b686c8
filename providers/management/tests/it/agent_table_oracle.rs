//! The table of agents does what a list of requests does that is searched from front to back.

use std::time::Duration;

use polyverbs_management::agent_table::{Limits, Patience, Timeout};
use polyverbs_management::{Address, AgentId, AgentTable, Recipient, Registration};
use polyverbs_wire::layout::Header as _;
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::{self, DATA_LEN, MAD_LEN, MadHeader, method};
use proptest::prelude::*;

const AGENTS: usize = 3;
const OUTSTANDING: usize = 4;

/// A step; `u8` numbers choose an agent, a transaction ID or a source among few.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u8, u8, u8, u32),
    Answer(u8, u8, u8),
    Cancel(u8, u8),
    Replace(u8),
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (agent, id, lid) = (0..AGENTS as u8, 0..6u8, 1..3u8);
    prop_oneof![
        4 => (agent.clone(), id.clone(), lid.clone(), 0..3u32)
            .prop_map(|(agent, id, lid, retries)| Step::Send(agent, id, lid, retries)),
        2 => (agent.clone(), id.clone(), lid).prop_map(|(agent, id, lid)| Step::Answer(agent, id, lid)),
        1 => (agent.clone(), id).prop_map(|(agent, id)| Step::Cancel(agent, id)),
        1 => agent.prop_map(Step::Replace),
        3 => (0..5u8).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    agent: AgentId,
    id: u8,
    lid: u16,
    timeout: Duration,
    retries: u32,
    deadline: Duration,
}

struct Pair {
    table: AgentTable<()>,
    list: Vec<Waiting>,
    agents: Vec<AgentId>,
    now: Duration,
}

fn request(transaction_id: u64) -> [u8; MAD_LEN] {
    let header = MadHeader {
        base_version: 1,
        management_class: PERF_CLASS,
        class_version: 1,
        method: method::GET,
        transaction_id,
        ..MadHeader::default()
    };
    mad::encode(&header, &[0; DATA_LEN])
}

fn id_of(mad: &[u8; MAD_LEN]) -> u8 {
    MadHeader::of(mad::decode(mad).unwrap().header).transaction_id as u8
}

fn at(lid: u8) -> Address {
    Address {
        lid: lid.into(),
        ..Address::default()
    }
}

impl Pair {
    fn new() -> Self {
        let mut table = AgentTable::new(Limits {
            agents: AGENTS,
            outstanding: OUTSTANDING,
        });
        let mut register = |_| table.register((), client()).unwrap();
        let agents = (0..AGENTS).map(&mut register).collect();
        Self {
            table,
            list: Vec::new(),
            agents,
            now: Duration::from_secs(1),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Send(agent, id, lid, retries) => self.send(usize::from(agent), id, lid, retries),
            Step::Answer(agent, id, lid) => self.answer(usize::from(agent), id, lid),
            Step::Cancel(agent, id) => self.cancel(usize::from(agent), id),
            Step::Replace(agent) => self.replace(usize::from(agent)),
            Step::Wait(seconds) => self.wait(Duration::from_secs(seconds.into())),
        }
        let next = self.list.iter().map(|it| it.deadline).min();
        assert_eq!(self.table.next_deadline(), next);
    }

    fn find(&self, agent: AgentId, id: u8) -> Option<usize> {
        let is_it = |it: &Waiting| (it.agent, it.id) == (agent, id);
        self.list.iter().position(is_it)
    }

    fn send(&mut self, agent: usize, id: u8, lid: u8, retries: u32) {
        let agent = self.agents[agent];
        let timeout = Duration::from_secs(1 + u64::from(id % 3));
        let patience = Some(Patience { timeout, retries });
        let mut mad = request(id.into());
        let sent = self
            .table
            .send(agent, &mut mad, &at(lid), patience, self.now);
        let of_agent = self.list.iter().filter(|it| it.agent == agent).count();
        let is_refused = self.find(agent, id).is_some() || of_agent == OUTSTANDING;
        assert_eq!(sent.is_err(), is_refused);
        if !is_refused {
            self.list.push(Waiting {
                agent,
                id,
                lid: lid.into(),
                timeout,
                retries,
                deadline: self.now + timeout,
            });
        }
    }

    fn answer(&mut self, agent: usize, id: u8, lid: u8) {
        let agent = self.agents[agent];
        let mut answer = request(u64::from(agent.0) << 32 | u64::from(id));
        answer[3] |= method::RESPONSE;
        let found = self.find(agent, id);
        let found = found.filter(|it| self.list[*it].lid == u16::from(lid));
        let expected = match found {
            Some(_) => Recipient::Requester(agent),
            None => Recipient::Unmatched,
        };
        assert_eq!(self.table.receive(&answer, &at(lid)), expected);
        found.map(|it| self.list.remove(it));
    }

    fn cancel(&mut self, agent: usize, id: u8) {
        let agent = self.agents[agent];
        let cancelled = self.table.cancel(agent, PERF_CLASS, id.into());
        let found = self.find(agent, id).map(|it| self.list.remove(it));
        assert_eq!(cancelled.is_some(), found.is_some());
    }

    fn replace(&mut self, agent: usize) {
        let old = self.agents[agent];
        self.table.unregister(old).unwrap();
        self.list.retain(|it| it.agent != old);
        let new = self.table.register((), client());
        self.agents[agent] = new.unwrap();
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        while let Some(timeout) = self.table.poll_timeout(self.now) {
            let (Timeout::Retry(request) | Timeout::Expired(request)) = timeout;
            let at = self.find(request.agent, id_of(&request.mad)).unwrap();
            let earliest = self.list.iter().map(|it| it.deadline).min();
            assert_eq!(Some(self.list[at].deadline), earliest);
            assert_eq!(request.to.lid, self.list[at].lid);
            let is_retry = self.list[at].retries > 0;
            assert_eq!(matches!(timeout, Timeout::Retry(_)), is_retry);
            if is_retry {
                let waiting = &mut self.list[at];
                waiting.retries -= 1;
                waiting.deadline = self.now + waiting.timeout;
            } else {
                self.list.remove(at);
            }
        }
        assert!(self.list.iter().all(|it| it.deadline > self.now));
    }
}

/// An agent that sends requests and takes none.
fn client() -> Registration {
    Registration {
        class: PERF_CLASS,
        class_version: 1,
        ..Registration::default()
    }
}

proptest! {
    // covers 8.70 8.71
    #[test]
    fn the_table_does_what_a_list_does(steps in proptest::collection::vec(step(), 1..200)) {
        let mut pair = Pair::new();
        steps.into_iter().for_each(|step| pair.run(step));
        let left = pair.list.len();
        prop_assert_eq!(pair.table.flush().len(), left);
    }
}
