//! Agents of programs, which receive and answer management datagrams.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use crate::context::Context;
use crate::contract::{AgentOps, AgentSink};
use crate::control::run_handler;
use crate::error::VerbError;
use crate::ids::Port;
use crate::lock::Mutex;
use crate::mad::{AgentEvent, AgentRegistration, MAD_LEN, MadAddress, MadPatience};

/// An agent of a program at a port. A clone is another handle of the same agent, which ends with the last of them.
#[derive(Clone)]
#[doc(alias = "umad_register")]
pub struct ManagementAgent(Arc<Inner>);

struct Inner {
    context: Context,
    ops: OnceLock<Box<dyn AgentOps>>,
    inbox: Mutex<Inbox>,
}

type Handler = dyn Fn(&ManagementAgent, AgentEvent) + Send + Sync;

#[derive(Default)]
struct Inbox {
    events: VecDeque<AgentEvent>,
    lost: u64,
    handler: Option<Arc<Handler>>,
}

/// The most events that wait for a program; further ones are lost.
const MOST_WAITING: usize = 1024;

impl Context {
    /// Registers an agent at a port: from now on it receives the requests that its registration names.
    ///
    /// # Errors
    /// The port has no agents, as on Ethernet; another agent has one of the methods; or the class does not exist.
    #[doc(alias = "umad_register2")]
    pub fn register_agent(
        &self,
        port: Port,
        registration: AgentRegistration,
    ) -> Result<ManagementAgent, VerbError> {
        self.query_port(port)?;
        let inner = Arc::new(Inner {
            context: self.clone(),
            ops: OnceLock::new(),
            inbox: Mutex::default(),
        });
        let sink = Arc::new(Sink(Arc::downgrade(&inner)));
        let ops = self.ops().register_agent(port, registration, sink)?;
        inner
            .ops
            .set(ops)
            .map_err(|_| VerbError::Internal("an agent is registered twice"))?;
        Ok(ManagementAgent(inner))
    }
}

impl ManagementAgent {
    /// Sends a MAD, and returns its transaction ID. The upper half of a request's ID is the agent's, and replaces what `mad` has
    /// there; an answer leaves as it is. A request with `patience` is answered, or comes back as timed out; the answer to any
    /// other request is dropped.
    ///
    /// This may be called in every handler, and does not block.
    ///
    /// # Errors
    /// Its base version is not 1, its directed route does not begin at this port, or a request with its class and transaction ID waits for
    /// an answer already.
    #[doc(alias = "umad_send")]
    pub fn send(
        &self,
        mad: &[u8; MAD_LEN],
        to: &MadAddress,
        patience: Option<MadPatience>,
    ) -> Result<u64, VerbError> {
        self.0.context.core.check_open()?;
        self.ops()?.send(mad, to, patience)
    }

    /// Cancels the request with this class and transaction ID, which comes back as [`Flushed`](AgentEvent::Flushed). Returns
    /// whether there was such a request without an answer.
    ///
    /// # Errors
    /// The agent was not registered.
    pub fn cancel(&self, class: u8, transaction_id: u64) -> Result<bool, VerbError> {
        Ok(self.ops()?.cancel(class, transaction_id))
    }

    fn ops(&self) -> Result<&dyn AgentOps, VerbError> {
        let ops = self.0.ops.get();
        ops.map(|ops| &**ops)
            .ok_or(VerbError::Internal("an agent without a device"))
    }

    /// Returns the next event; `None` if none is pending. This may be called in every handler.
    #[doc(alias = "umad_recv")]
    pub fn poll_event(&self) -> Option<AgentEvent> {
        self.0.inbox.lock().events.pop_front()
    }

    /// Returns how many events were lost because earlier ones were not fetched.
    pub fn lost_events(&self) -> u64 {
        self.0.inbox.lock().lost
    }

    /// Calls `handler` with every event from now on, and with those that are pending already. It runs on the thread that has
    /// delivered the MAD, with no lock held, so that an answer leaves before that thread goes on. It may start every verb and
    /// wait for none.
    pub fn on_event(&self, handler: impl Fn(&Self, AgentEvent) + Send + Sync + 'static) {
        let before = self.0.inbox.lock().handler.replace(Arc::new(handler));
        // Dropped with the lock released: the handler may own the last handle of an object.
        drop(before);
        self.deliver();
    }

    fn deliver(&self) {
        loop {
            let mut inbox = self.0.inbox.lock();
            let Some(handler) = inbox.handler.clone() else {
                return;
            };
            let Some(event) = inbox.events.pop_front() else {
                return;
            };
            drop(inbox);
            let agent = self.clone();
            run_handler(move || handler(&agent, event));
        }
    }
}

impl fmt::Debug for ManagementAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementAgent").finish_non_exhaustive()
    }
}

/// Receives the events of an agent as long as the program has it.
struct Sink(Weak<Inner>);

impl AgentSink for Sink {
    fn event(&self, event: AgentEvent) {
        let Some(inner) = self.0.upgrade() else {
            return;
        };
        let mut inbox = inner.inbox.lock();
        if inbox.events.len() >= MOST_WAITING {
            inbox.lost += 1;
            return;
        }
        inbox.events.push_back(event);
        drop(inbox);
        ManagementAgent(inner).deliver();
    }
}
