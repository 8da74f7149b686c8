//! Connections by librdmacm, which is loaded when they are first asked for.
//!
//! | module | holds |
//! | --- | --- |
//! | `library` | its functions, loaded |
//! | `calls` | those functions on identifiers that live, and events: pointers end here |
//! | `backend` | what connects the queue pairs of a device |
//! | `states` | what has become of the queue pairs that are connected so |
//! | `pair` | queue pairs of iWARP that name each other by number |

mod backend;
mod calls;
mod library;
mod pair;
mod refusal;
mod states;

use std::sync::{Arc, Mutex, OnceLock};

use polyverbs_abi::IbvContext;
use verbs_api::VerbError;
use verbs_api::capability::Transport;
use verbs_api::provider::carrier::Carrier;

use crate::verbs::Live;
use backend::Manager;
use library::Cm;
pub(crate) use pair::Names;
use pair::Pairs;
use refusal::Refusal;
pub(crate) use states::Connected;
use states::States;

/// How the queue pairs of a device come to be connected.
pub(crate) struct Connections {
    library: &'static crate::library::Library,
    /// The device, as the library calls it.
    device: String,
    transport: Transport,
    manager: OnceLock<Result<Arc<Manager>, VerbError>>,
    pairs: Mutex<Pairs>,
    states: Arc<States>,
}

impl Connections {
    pub(crate) fn of(
        listed: &Live<IbvContext>,
        transport: Transport,
    ) -> Result<Arc<Self>, VerbError> {
        Ok(Arc::new(Self {
            library: listed.library,
            device: listed.name()?,
            transport,
            manager: OnceLock::new(),
            pairs: Mutex::default(),
            states: Arc::default(),
        }))
    }

    fn manager(&self) -> Result<&Arc<Manager>, VerbError> {
        let start = || {
            let cm = Cm::beside(&self.library.file)?;
            let states = Arc::clone(&self.states);
            Manager::start(cm, self.device.clone(), self.transport, states)
        };
        let manager = self.manager.get_or_init(start);
        manager.as_ref().map_err(Clone::clone)
    }

    /// Whether queue pairs are brought up and down by what connects them, and not by modifying them.
    pub(crate) fn are_brought_up_here(&self) -> bool {
        self.transport == Transport::Iwarp
    }

    /// The states of the queue pairs of this process.
    pub(crate) fn states(&self) -> &States {
        &self.states
    }

    /// What makes connections, or says of each why it cannot be.
    pub(crate) fn carrier(&self) -> Carrier {
        Carrier::Backend(match self.manager() {
            Ok(manager) => Arc::clone(manager) as _,
            Err(why) => Arc::new(Refusal(why)),
        })
    }
}
