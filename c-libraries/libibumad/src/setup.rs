//! The fabric to which this process belongs.

use std::io;
use std::os::fd::AsFd as _;

use polyverbs_configuration::Attachment;
use polyverbs_fabric::FabricName;
use polyverbs_fabric::client::{self, Connection};
use polyverbs_fabric::protocol::NodeReport;
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::setup::configuration;

/// The name of the adapter.
pub(crate) fn adapter() -> &'static str {
    configuration().adapter()
}

fn attachment() -> &'static Attachment {
    static STANDARD: Attachment = Attachment {
        socket: None,
        node: String::new(),
    };
    configuration().fabric.as_ref().unwrap_or(&STANDARD)
}

/// The name of the adapter's node in the topology; empty for the first one.
pub(crate) fn node() -> &'static str {
    &attachment().node
}

pub(crate) fn connect() -> io::Result<Connection> {
    let name = match &attachment().socket {
        Some(name) => name.parse().map_err(io::Error::other)?,
        None => FabricName::standard(),
    };
    Connection::open(&name)
}

/// Describes the adapter as it is now.
pub(crate) fn report() -> Result<NodeReport, Errno> {
    let described = connect().and_then(|it| client::describe(it.as_fd(), node()));
    described.map_err(|_| Errno(libc::ENODEV))
}

/// The error number of a failed exchange with the process that holds the fabric.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::WouldBlock => Errno(libc::EAGAIN),
        io::ErrorKind::TimedOut => Errno(libc::ETIMEDOUT),
        _ => Errno(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}
