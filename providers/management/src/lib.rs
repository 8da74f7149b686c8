//! The agents that answer management datagrams (MADs) for a node: that of subnet management (SMA) on queue pair 0, and that of
//! performance management (PMA) on queue pair 1.
//!
//! A [`Node`] has the state of an adapter or a switch and its ports. Its caller has the links: it passes in each MAD that has arrived or that a
//! program sends, with the time, and sends the MAD on to the [`NextHop`] that it gets back. After each call it takes the
//! [events](Node::poll_event). There is no socket, clock or thread here, so that a device answers in the context in which a
//! MAD has arrived, and a test decides what time it is. What [`Node`] passes on is for the agents of programs: an [`AgentTable`]
//! knows them and their outstanding requests.
//!
//! | module | holds |
//! | --- | --- |
//! | `agents` | the way of a MAD through a node: its route, and the agent of its class |
//! | `sma`, `pma` | the agents of subnet and performance management, with one function for each attribute |
//! | [`route`] | directed routes |
//! | [`node`] | nodes: their identity and their ports |
//! | [`switch`] | what a switch has besides its ports: its forwarding tables |
//! | [`port`] | ports: the state of their link, their tables, the check of the M_Key |
//! | [`counters`] | the counters of a port, which are computed from its totals |
//! | [`rmpp`] | messages of several segments |
//! | [`agent_table`] | the agents that programs have registered, and their requests that wait for an answer |
//! | [`address`] | the other end of a MAD, and which MADs queue pairs 0 and 1 take |
//!
//! A module depends only on those below it.
#![forbid(unsafe_code)]

pub mod address;
pub mod agent_table;
mod agents;
pub mod counters;
pub mod node;
mod pma;
pub mod port;
pub mod rmpp;
pub mod route;
mod sma;
pub mod switch;

pub use address::{Address, GlobalRoute};
pub use agent_table::{AgentId, AgentTable, Recipient, Registration};
pub use counters::{Carried, Totals};
pub use node::{Node, Processed};
pub use port::{Abilities, Event, Port};
pub use route::NextHop;
pub use switch::SwitchAbilities;
