//! Identities of objects, and the holders that keep them in use.

pub use crate::ah::Ah;
pub use crate::context::DeviceId;
pub use crate::lifecycle::DestroyError;
pub use crate::object_id::{Holder, ObjectId, ObjectKind};

pub mod management {
    //! Agents of programs: they receive and answer the management datagrams (MADs) of a port's queue pairs 0 and 1.
    //!
    //! The device owns both queue pairs and answers for itself. A program [registers](crate::Context::register_agent) an agent for what the
    //! device does not answer: for requests of a class, a version and some methods, of which each has one owner at a port, and for
    //! the answers to its own requests.
    //!
    //! ```no_run
    //! # fn example(device: &verbs_api::Context) -> Result<(), verbs_api::VerbError> {
    //! use verbs_api::objects::management::{AgentEvent, AgentRegistration, RESPONSE};
    //! const PING: u8 = 0x32;
    //! const GET: u8 = 1;
    //! let registration = AgentRegistration::new(PING, 1).oui([0x00, 0x14, 0x05]).methods([GET]);
    //! let agent = device.register_agent(1, registration)?;
    //! agent.on_event(|agent, event| {
    //!     if let AgentEvent::Received { mut mad, from } = event {
    //!         mad[3] |= RESPONSE;
    //!         let _ = agent.send(&mad, &from, None);
    //!     }
    //! });
    //! # Ok(())
    //! # }
    //! ```

    pub use crate::agent::ManagementAgent;
    pub use crate::mad::{
        AgentEvent, AgentRegistration, MAD_LEN, MadAddress, MadPatience, RESPONSE,
    };
}
