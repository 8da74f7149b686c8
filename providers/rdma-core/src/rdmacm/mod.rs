//! Connections by librdmacm, which is loaded for the first connection.
//!
//! | module | holds |
//! | --- | --- |
//! | `library` | its functions, loaded |
//! | `calls` | those functions on live identifiers, and events: the only code with raw pointers to them |
//! | `backend` | the backend that connects the queue pairs of a device |
//! | `states` | the states of queue pairs that connections bring up and down |
//! | `pair` | queue pairs of iWARP that name each other by number |

mod backend;
mod calls;
mod library;
mod pair;
mod refusal;
mod states;

use std::sync::{Arc, OnceLock};

use polyverbs_abi::IbvContext;
use verbs_api::VerbError;
use verbs_api::capability::Transport;
use verbs_api::provider::Mutex;
use verbs_api::provider::carrier::Carrier;

use crate::verbs::Live;
use backend::Manager;
use library::Cm;
pub(crate) use pair::Names;
use pair::Pairs;
use refusal::Refusal;
pub(crate) use states::Connected;
use states::States;

/// The connections of a device's queue pairs, and the backend that makes them.
pub(crate) struct Connections {
    library: &'static crate::library::Library,
    /// Name of the device in the library.
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

    /// Whether connections move queue pairs to RTS and ERR, so that verbs cannot modify them, as on iWARP.
    pub(crate) fn are_brought_up_here(&self) -> bool {
        self.transport == Transport::Iwarp
    }

    /// Returns the states of the device's queue pairs in this process.
    pub(crate) fn states(&self) -> &States {
        &self.states
    }

    /// Returns the backend that makes connections, or one that refuses all and says why.
    pub(crate) fn carrier(&self) -> Carrier {
        Carrier::Backend(match self.manager() {
            Ok(manager) => Arc::clone(manager) as _,
            Err(why) => Arc::new(Refusal(why)),
        })
    }
}
