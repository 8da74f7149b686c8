//! Names that only one process of an address can have. They decide which process has a port, and show that the leader is alive.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use polyverbs::emulated::{Name, Presence, Witness};

/// A port of an address, exclusive among all processes of this machine. It becomes free when this is dropped or the process ends.
pub(crate) struct PortLock {
    _named: Name,
}

impl PortLock {
    /// Takes a port, if no process has it. Waits for up to `patience`, because a child of a fork may still hold the name of a
    /// port that its parent has given up.
    pub(crate) fn take(at: SocketAddr, patience: Duration) -> io::Result<Self> {
        Ok(Self {
            _named: Name::take(&of_port(at), patience)?,
        })
    }

    /// Whether another process of this user, or of root, has the port.
    pub(crate) fn is_taken(at: SocketAddr) -> bool {
        Name::is_taken(&of_port(at))
    }
}

fn of_port(at: SocketAddr) -> String {
    format!("polyverbs-rds/{}/{}", at.ip(), at.port())
}

/// The name of a leader. It contains the leader's random number, which only its members learn, so that another user cannot take the
/// name first.
fn of_leader(at: IpAddr, incarnation: u32) -> String {
    format!("polyverbs-rds/{at}/leader/{incarnation:08x}")
}

/// Takes the name of the leader, so that members notice at once when the leader ends. Without the name they notice by liveness
/// probes, within seconds.
pub(crate) fn present(at: IpAddr, incarnation: u32) -> Option<Presence> {
    Presence::named(&of_leader(at, incarnation)).ok()
}

/// The connection to the leader. Dropping it ends the wait for the leader's end.
pub(crate) struct Followed(Arc<Witness>);

impl Followed {
    /// Connects to the leader. The second value is for the thread that waits for its end.
    pub(crate) fn leader(at: IpAddr, incarnation: u32) -> io::Result<(Self, Arc<Witness>)> {
        let witness = Arc::new(Witness::of(&of_leader(at, incarnation))?);
        Ok((Self(Arc::clone(&witness)), witness))
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.0.release();
    }
}
