//! What a program's log says of its devices and connections: events of `tracing`, in builds with the feature of this name.
//!
//! No request that succeeds at once is logged. Each kind of event is logged in one place: states of queue pairs where they
//! change, refused accesses where they are refused, asynchronous events where they are reported, retransmissions in the
//! transport, connections in the connector.

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;

/// Logs an event: its level, a message, and named fields, whose values are displayed.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! log_event {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::log::tracing::event!(
            target: "polyverbs",
            $crate::log::tracing::Level::$level,
            $($name = $crate::log::tracing::field::display(&$value),)*
            $message
        )
    };
}

/// Logs nothing: this build is without the feature `tracing`. The values are not computed.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! log_event {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)* $(,)?) => {
        if false {
            $(let _ = &$value;)*
        }
    };
}
