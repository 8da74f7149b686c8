//! Asynchronous events, and the notifications of completion queues.

pub use crate::channel::{CompletionChannel, CqEvent, NextCqEvent};
pub use crate::context::{Events, NextEvent};
pub use crate::event_type::{EventSubject, EventType};
pub use crate::lifecycle::AsyncEvent;
