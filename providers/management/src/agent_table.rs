//! The agents that programs have registered at a port, and their requests that wait for an answer.
//!
//! | what happens | the caller |
//! | --- | --- |
//! | a program sends a MAD | passes it to [`AgentTable::send`], and sends what that has made of it |
//! | a MAD arrives that [`Node::process`](crate::Node::process) has passed on | gives it to the agent that [`AgentTable::receive`] names |
//! | a request gets no answer in time | asks [`AgentTable::poll_timeout`] at the time that [`AgentTable::next_deadline`] names |
//!
//! The upper half of a request's transaction ID is the number of its agent, so that an answer finds its agent by it. The lower half
//! is the program's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyverbs_wire::layout::{Header as _, view};
use polyverbs_wire::mad::rmpp::Rmpp;
use polyverbs_wire::mad::smp::DIRECTED_CLASS;
use polyverbs_wire::mad::{self, DATA_LEN, MAD_LEN, Mad, MadHeader, MadHeaderView, method};

use crate::address::Address;

/// The number of an agent at its port: 24 bits. Numbers are not used again soon, so that a late answer reaches no other agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u32);

/// Which requests of others an agent takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// The management class.
    pub class: u8,
    /// The version of the class.
    pub class_version: u8,
    /// The vendor of the class, if its number is one of [`OUI_CLASSES`]; not used otherwise.
    pub oui: [u8; 3],
    /// The methods, as a set of bits: bit 1 for [`method::GET`]. An agent with none gets the answers to its own requests only.
    pub methods: u128,
    /// Whether the agent handles RMPP itself: the first segment of a longer answer answers its request, and further segments
    /// reach it too.
    pub takes_segments: bool,
}

/// The management classes of vendors whose MADs name the vendor.
pub const OUI_CLASSES: std::ops::RangeInclusive<u8> = 0x30..=0x4f;

/// Whether MADs of a class have the header of RMPP, by which a message can be longer than a MAD (IBTA 13.6.1).
pub const fn has_rmpp(class: u8) -> bool {
    const SUBNET_ADMINISTRATION: u8 = 0x03;
    const DEVICE_MANAGEMENT: u8 = 0x06;
    const DEVICE_ADMINISTRATION: u8 = 0x10;
    const BOOT_INFORMATION: u8 = 0x12;
    matches!(
        class,
        SUBNET_ADMINISTRATION | DEVICE_MANAGEMENT | DEVICE_ADMINISTRATION | BOOT_INFORMATION
    ) || class >= *OUI_CLASSES.start() && class <= *OUI_CLASSES.end()
}

/// How much programs may keep in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of agents.
    pub agents: usize,
    /// The number of requests of one agent that wait for an answer.
    pub outstanding: usize,
}

/// The reason why an agent is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RegisterError {
    /// There are no such class and version, or the class needs a vendor and none is named.
    #[error("no management class for agents: class, version or vendor is out of range")]
    Class,
    /// Another agent of the port has one of the methods.
    #[error("another agent of the port has registered one of the methods of this class")]
    InUse,
    /// The table is full.
    #[error("the port has as many agents as it may have")]
    Full,
}

/// The reason why a MAD is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SendError {
    /// The agent is not registered.
    #[error("no such agent is registered")]
    Agent,
    /// The MAD has another base version than 1.
    #[error("not a MAD of base version 1")]
    Mad,
    /// A request of the agent with the same class and transaction ID waits for an answer.
    #[error("a request with this class and transaction ID waits for an answer")]
    Duplicate,
    /// The agent has as many requests that wait for an answer as it may have.
    #[error("the agent has as many outstanding requests as it may have")]
    Full,
}

/// How long a request waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time that each transmission waits, which is [`LEAST_TIMEOUT`] if this is shorter.
    pub timeout: Duration,
    /// How often the request is sent again.
    pub retries: u32,
}

/// The shortest timeout of a request. With a shorter one, the retries of one program could keep the table busy.
pub const LEAST_TIMEOUT: Duration = Duration::from_millis(1);

/// The recipient of a MAD that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// It answers a request of this agent, which no longer waits.
    Requester(AgentId),
    /// The agent has registered for requests of this kind.
    Agent(AgentId),
    /// No agent takes this request: [`Node::refuse`](crate::Node::refuse) answers it.
    Nobody,
    /// It is an answer for which no agent waits: the caller drops it.
    Unmatched,
}

/// A request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The agent that has sent it.
    pub agent: AgentId,
    /// The request as it was sent, with the agent's number in its transaction ID.
    pub mad: [u8; MAD_LEN],
    /// Where it was sent.
    pub to: Address,
}

/// What a request does when its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// The caller sends it again.
    Retry(Request),
    /// The caller gives it back to its agent as timed out.
    Expired(Request),
}

/// The agents of programs at one port. `O` is what the caller knows an agent's owner by.
#[derive(Clone, Debug)]
pub struct AgentTable<O> {
    limits: Limits,
    last_number: u32,
    agents: BTreeMap<AgentId, Agent<O>>,
    deadlines: BTreeSet<(Duration, AgentId, Transaction)>,
}

#[derive(Clone, Debug)]
struct Agent<O> {
    owner: O,
    registration: Registration,
    outstanding: BTreeMap<Transaction, Outstanding>,
}

/// What an agent's requests differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Transaction {
    /// The lower half of the transaction ID.
    id: u32,
    class: u8,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    request: Request,
    patience: Patience,
    deadline: Duration,
}

impl<O> AgentTable<O> {
    /// Creates a table without agents.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            last_number: 0,
            agents: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Registers an agent.
    ///
    /// # Errors
    /// The class is invalid, another agent has one of its methods, or the table is full.
    pub fn register(
        &mut self,
        owner: O,
        registration: Registration,
    ) -> Result<AgentId, RegisterError> {
        if !registration.is_valid() {
            return Err(RegisterError::Class);
        }
        if self.agents.len() >= self.limits.agents {
            return Err(RegisterError::Full);
        }
        let mut others = self.agents.values();
        if others.any(|it| it.registration.overlaps(&registration)) {
            return Err(RegisterError::InUse);
        }
        let id = self.next_id();
        let agent = Agent {
            owner,
            registration,
            outstanding: BTreeMap::new(),
        };
        self.agents.insert(id, agent);
        Ok(id)
    }

    // The table has fewer agents than there are numbers.
    fn next_id(&mut self) -> AgentId {
        const MAX: u32 = (1 << 24) - 1;
        loop {
            self.last_number = self.last_number % MAX + 1;
            let id = AgentId(self.last_number);
            if !self.agents.contains_key(&id) {
                return id;
            }
        }
    }

    /// Removes an agent and forgets its requests, whose answers are dropped from now on. Returns its owner; `None` if the
    /// agent is not registered.
    pub fn unregister(&mut self, id: AgentId) -> Option<O> {
        let agent = self.agents.remove(&id)?;
        for (transaction, it) in &agent.outstanding {
            self.deadlines.remove(&(it.deadline, id, *transaction));
        }
        Some(agent.owner)
    }

    /// Returns the owner of an agent; `None` if there is no such agent.
    pub fn owner(&self, id: AgentId) -> Option<&O> {
        Some(&self.agents.get(&id)?.owner)
    }

    /// Returns the agents and what they have registered for.
    pub fn agents(&self) -> impl Iterator<Item = (AgentId, &O, &Registration)> {
        let agents = self.agents.iter();
        agents.map(|(id, it)| (*id, &it.owner, &it.registration))
    }

    /// Prepares a MAD that an agent sends: a request gets the agent's number in its transaction ID, and waits for an answer if it
    /// has `patience`. An answer leaves as it is.
    ///
    /// # Errors
    /// There is no such agent, the MAD is not one, or the request cannot wait: there is one with its transaction ID, or too many.
    pub fn send(
        &mut self,
        id: AgentId,
        mad: &mut [u8; MAD_LEN],
        to: &Address,
        patience: Option<Patience>,
        now: Duration,
    ) -> Result<(), SendError> {
        let agent = self.agents.get_mut(&id).ok_or(SendError::Agent)?;
        let decoded = mad::decode(mad).map_err(|_| SendError::Mad)?;
        if is_answer(decoded.header) {
            return Ok(());
        }
        let mut header = MadHeader::of(decoded.header);
        let transaction = Transaction::of(decoded.header);
        if agent.outstanding.contains_key(&transaction) {
            return Err(SendError::Duplicate);
        }
        header.transaction_id = u64::from(id.0) << 32 | u64::from(transaction.id);
        let sent = mad::encode(&header, decoded.data);
        if let Some(patience) = patience {
            if agent.outstanding.len() >= self.limits.outstanding {
                return Err(SendError::Full);
            }
            let waiting = Outstanding {
                request: Request {
                    agent: id,
                    mad: sent,
                    to: *to,
                },
                patience,
                deadline: patience.deadline(now),
            };
            self.deadlines.insert((waiting.deadline, id, transaction));
            agent.outstanding.insert(transaction, waiting);
        }
        *mad = sent;
        Ok(())
    }

    /// Finds the agent for a MAD that has arrived. A request that the MAD answers no longer waits.
    pub fn receive(&mut self, mad: &[u8; MAD_LEN], from: &Address) -> Recipient {
        let Ok(decoded) = mad::decode(mad) else {
            return Recipient::Unmatched;
        };
        if !is_answer(decoded.header) {
            let agent = self.taker(decoded.header, decoded.data);
            return agent.map_or(Recipient::Nobody, Recipient::Agent);
        }
        if let Some((id, transaction)) = self.answered(mad, from) {
            self.finish(id, transaction);
            return Recipient::Requester(id);
        }
        let id = agent_of(decoded.header);
        match self.agents.get(&id) {
            Some(agent) if agent.registration.takes_segments && is_segment(&decoded) => {
                Recipient::Requester(id)
            }
            _ => Recipient::Unmatched,
        }
    }

    /// Returns the agent whose request a MAD answers. The request goes on waiting; `None` if there is none.
    ///
    /// A caller that puts the segments of longer answers together asks this for each of them, and passes the last one to
    /// [`receive`](Self::receive).
    pub fn requester(&self, answer: &[u8; MAD_LEN], from: &Address) -> Option<AgentId> {
        Some(self.answered(answer, from)?.0)
    }

    /// Lets the request that a MAD answers wait until `deadline` and no longer be sent again, because a part of its answer has
    /// arrived.
    pub fn postpone(&mut self, answer: &[u8; MAD_LEN], from: &Address, deadline: Duration) {
        let Some((id, transaction)) = self.answered(answer, from) else {
            return;
        };
        if let Some(mut waiting) = self.finish(id, transaction) {
            waiting.patience.retries = 0;
            self.wait(id, transaction, waiting, deadline);
        }
    }

    /// Ends the wait of an agent's request with this class and this lower half of its transaction ID, and returns the request,
    /// which the caller gives back to the agent as flushed; `None` if none waits.
    pub fn cancel(&mut self, id: AgentId, class: u8, transaction_id: u64) -> Option<Request> {
        let transaction = Transaction {
            id: transaction_id as u32,
            class,
        };
        Some(self.finish(id, transaction)?.request)
    }

    /// Ends the wait of all requests, for instance because the port is gone, and returns them in the order of their deadlines.
    /// The caller gives them back to their agents as flushed.
    pub fn flush(&mut self) -> Vec<Request> {
        let waiting = std::mem::take(&mut self.deadlines);
        let all = waiting.into_iter();
        all.filter_map(|(_, id, transaction)| Some(self.finish(id, transaction)?.request))
            .collect()
    }

    /// Returns the time at which [`poll_timeout`](Self::poll_timeout) is to be asked; `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<Duration> {
        Some(self.deadlines.first()?.0)
    }

    /// Returns the next request whose time is over at `now`; `None` if there is none.
    pub fn poll_timeout(&mut self, now: Duration) -> Option<Timeout> {
        let &(deadline, id, transaction) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        let mut waiting = self.finish(id, transaction)?;
        let request = waiting.request;
        let Some(retries) = waiting.patience.retries.checked_sub(1) else {
            return Some(Timeout::Expired(request));
        };
        waiting.patience.retries = retries;
        let deadline = waiting.patience.deadline(now);
        self.wait(id, transaction, waiting, deadline);
        Some(Timeout::Retry(request))
    }

    fn wait(&mut self, id: AgentId, it: Transaction, waiting: Outstanding, deadline: Duration) {
        if let Some(agent) = self.agents.get_mut(&id) {
            let waiting = Outstanding {
                deadline,
                ..waiting
            };
            agent.outstanding.insert(it, waiting);
            self.deadlines.insert((deadline, id, it));
        }
    }

    fn finish(&mut self, id: AgentId, transaction: Transaction) -> Option<Outstanding> {
        let agent = self.agents.get_mut(&id)?;
        let waiting = agent.outstanding.remove(&transaction)?;
        self.deadlines.remove(&(waiting.deadline, id, transaction));
        Some(waiting)
    }

    /// The request that an answer matches by transaction ID, class and source. A directed answer may come by any LID, because
    /// directed requests have no address.
    fn answered(&self, answer: &[u8; MAD_LEN], from: &Address) -> Option<(AgentId, Transaction)> {
        let header = mad::decode(answer).ok()?.header;
        if !is_answer(header) {
            return None;
        }
        let (id, transaction) = (agent_of(header), Transaction::of(header));
        let waiting = self.agents.get(&id)?.outstanding.get(&transaction)?;
        let is_from_there =
            transaction.class == DIRECTED_CLASS || waiting.request.to.is_answered_from(from);
        is_from_there.then_some((id, transaction))
    }

    fn taker(&self, header: &MadHeaderView, data: &[u8; DATA_LEN]) -> Option<AgentId> {
        let wanted = Registration {
            class: header.management_class(),
            class_version: header.class_version(),
            oui: oui(data),
            methods: 1 << (header.method() & !method::RESPONSE),
            takes_segments: false,
        };
        let mut agents = self.agents.iter();
        let (id, _) = agents.find(|(_, it)| it.registration.overlaps(&wanted))?;
        Some(*id)
    }
}

impl Patience {
    fn deadline(self, now: Duration) -> Duration {
        now.saturating_add(self.timeout.max(LEAST_TIMEOUT))
    }
}

impl Registration {
    /// Whether there is such a class (IBTA 13.4.4): 0 is reserved, and beyond those of vendors there are directed SMPs only.
    fn is_valid(&self) -> bool {
        const VERSIONS: u8 = 0x83;
        let is_class =
            self.class == DIRECTED_CLASS || (1..=*OUI_CLASSES.end()).contains(&self.class);
        is_class && self.class_version < VERSIONS && !(self.needs_oui() && self.oui == [0; 3])
    }

    fn needs_oui(&self) -> bool {
        OUI_CLASSES.contains(&self.class)
    }

    /// Whether there is a request that both take.
    fn overlaps(&self, other: &Self) -> bool {
        (self.class, self.class_version) == (other.class, other.class_version)
            && (!self.needs_oui() || self.oui == other.oui)
            && self.methods & other.methods != 0
    }
}

impl Transaction {
    fn of(header: &MadHeaderView) -> Self {
        Self {
            id: header.transaction_id() as u32,
            class: header.management_class(),
        }
    }
}

fn agent_of(header: &MadHeaderView) -> AgentId {
    AgentId((header.transaction_id() >> 32) as u32)
}

/// Whether a MAD belongs to the transaction that another one has begun. TrapRepress answers a trap.
fn is_answer(header: &MadHeaderView) -> bool {
    header.method() & method::RESPONSE != 0 || header.method() == method::TRAP_REPRESS
}

/// Whether RMPP is in use (IBTA 13.6.2).
fn is_segment(mad: &Mad<'_>) -> bool {
    has_rmpp(mad.header.management_class())
        && view::<Rmpp>(mad.data).is_some_and(|(rmpp, _)| rmpp.is_active())
}

/// The vendor, which follows the RMPP header.
fn oui(data: &[u8; DATA_LEN]) -> [u8; 3] {
    let at = Rmpp::LEN + 1;
    [data[at], data[at + 1], data[at + 2]]
}
