//! The agents of a form that has them: they answer management datagrams, and have the state of the link.

use std::collections::VecDeque;
use std::sync::Arc;

use polyverbs_engine::management::{Arrival, Handled, MAD_LEN, ManagementAgents, PortChange};
use polyverbs_engine::time::Time;
use verbs_api::VerbError;
use verbs_api::capability::{PhysState, PortAttributes, PortState};
use verbs_api::event::EventType;
use verbs_api::objects::management::{AgentEvent, MadAddress, MadPatience};
use verbs_api::provider::{AgentOps, AgentSink, Mutex};

use crate::Hooks;

/// The place of the method in a datagram, and the bit that marks an answer.
const METHOD: usize = 3;
const RESPONSE: u8 = 0x80;

/// A request with this method brings the link into the state whose code follows the header.
pub const SET_LINK: u8 = 0x02;
/// The place of that code.
pub const LINK_STATE: usize = 24;

/// Answers each request, and obeys those that name a state of the link.
pub struct Agents {
    hooks: Arc<Hooks>,
    state: Mutex<State>,
}

struct State {
    link: PhysState,
    changes: VecDeque<PortChange>,
}

impl Agents {
    /// Makes agents whose link is up.
    pub fn new(hooks: Arc<Hooks>) -> Self {
        Self {
            hooks,
            state: Mutex::new(State {
                link: PhysState::LinkUp,
                changes: VecDeque::new(),
            }),
        }
    }

    /// Brings the link into this state.
    pub fn set_link(&self, link: PhysState) {
        let state = &mut *self.state.lock();
        if std::mem::replace(&mut state.link, link) != link {
            let event = match link {
                PhysState::LinkUp => EventType::PortActive,
                _ => EventType::PortErr,
            };
            state.changes.push_back(PortChange::Event(event));
        }
    }
}

/// An agent of a program, whose datagrams come back to it at once: the transport has one port.
pub struct ProgramAgent {
    sink: Arc<dyn AgentSink>,
}

impl ProgramAgent {
    /// Makes an agent that reports to this sink.
    pub fn new(sink: Arc<dyn AgentSink>) -> Self {
        Self { sink }
    }
}

impl AgentOps for ProgramAgent {
    fn send(
        &self,
        mad: &[u8; MAD_LEN],
        to: &MadAddress,
        _: Option<MadPatience>,
    ) -> Result<u64, VerbError> {
        let event = AgentEvent::Received {
            mad: *mad,
            from: *to,
        };
        self.sink.event(event);
        Ok(0)
    }

    fn cancel(&self, _: u8, _: u64) -> bool {
        false
    }
}

impl ManagementAgents for Agents {
    fn handle_mad(&self, mad: &mut [u8; MAD_LEN], _: &Arrival, _: Time) -> Handled {
        self.hooks.note("handle_mad");
        let method = mad[METHOD];
        if method & RESPONSE != 0 {
            return Handled::Consumed;
        }
        if let (SET_LINK, Some(link)) = (method, PhysState::from_code(mad[LINK_STATE])) {
            let change = PortChange::Link(link);
            self.state.lock().changes.push_back(change);
        }
        mad[METHOD] |= RESPONSE;
        Handled::Answered
    }

    fn poll_change(&self) -> Option<PortChange> {
        self.state.lock().changes.pop_front()
    }

    fn describe(&self, port: &mut PortAttributes) {
        port.phys_state = self.state.lock().link;
        port.state = match port.phys_state {
            PhysState::LinkUp => PortState::Active,
            _ => PortState::Down,
        };
    }
}
