//! A layer in front of any device of the provider contract: emulated or real, in this process or on a network.
//!
//! [`Hooks`] are asked before and after each verb, for each work request that is posted, for each completion that is polled and
//! for each asynchronous event. A device without hooks has no layer: it costs nothing. Layers can be put in front of one
//! another.
//!
//! `docs/faults.md` is the guide.
#![forbid(unsafe_code)]
// A method with a default would be lost if it were not forwarded.
#![warn(clippy::missing_trait_methods)]

mod clock;
mod completion_queue;
mod device;
mod domain;
mod faults;
mod hooks;
mod object;
mod open_layer;
mod queue_pair;
mod receive_queue;
mod verb;

use std::sync::Arc;

pub use clock::{Clock, Job, RealClock};
pub use faults::{
    CM_EVENTS, CmFate, Faults, Fired, Injector, LIBRARY_CALLS, LibraryFate, Rule, ScriptError,
};
pub use hooks::{
    Answer, Arguments, Before, Call, CompletionFate, Ended, Event, EventFate, Hooks, Polled, Post,
    PostFate, Request,
};
pub use object::{Object, QpFacts};
pub use open_layer::OpenLayer;
pub use verb::Verb;

use device::LayeredDevice;
use open_layer::Layer;
use verbs_api::Device;
use verbs_api::provider::DeviceOps;

/// Returns this device with a layer in front of it, which asks `hooks`.
pub fn layered(device: &Device, hooks: Arc<dyn Hooks>) -> Device {
    let inner = Arc::clone(device.ops());
    Device::of(layered_ops(inner, hooks, Arc::new(RealClock::default())))
}

/// As [`layered`], for providers: and the delays are those of this clock.
pub fn layered_ops(
    inner: Arc<dyn DeviceOps>,
    hooks: Arc<dyn Hooks>,
    clock: Arc<dyn Clock>,
) -> Arc<dyn DeviceOps> {
    let name = inner.attributes().name;
    let layer = Arc::new(Layer::new(name, hooks, clock));
    Arc::new(LayeredDevice { inner, layer })
}
