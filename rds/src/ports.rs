//! Names that only one process of this machine can hold at a time. They decide which process has an RDS port, and show
//! other processes that the leader of an address is alive.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use polyverbs::emulated::{Name, Presence, Witness};

/// Exclusive ownership of a port of an address, among all processes of this machine. It ends when this is dropped or the
/// process ends.
pub(crate) struct PortLock {
    _named: Name,
}

impl PortLock {
    /// Takes the ownership of a port; fails if another process has it. Waits for up to `patience` for the port to become
    /// free, because a child of a fork may briefly keep a port that its parent has released.
    pub(crate) fn take(at: SocketAddr, patience: Duration) -> io::Result<Self> {
        Ok(Self {
            _named: Name::take(&of_port(at), patience)?,
        })
    }

    /// Whether another process of the same user, or of root, has the port.
    pub(crate) fn is_taken(at: SocketAddr) -> bool {
        Name::is_taken(&of_port(at))
    }
}

fn of_port(at: SocketAddr) -> String {
    format!("polyverbs-rds/{}/{}", at.ip(), at.port())
}

/// The name that a leader holds. It contains the leader's random number, which only its members learn, so that another user
/// cannot take the name first.
fn of_leader(at: IpAddr, incarnation: u32) -> String {
    format!("polyverbs-rds/{at}/leader/{incarnation:08x}")
}

/// Takes the name of this leader, so that its members notice at once when this process ends. `None` if the name cannot be
/// taken: then they notice by liveness probes, within seconds.
pub(crate) fn present(at: IpAddr, incarnation: u32) -> Option<Presence> {
    Presence::named(&of_leader(at, incarnation)).ok()
}

/// A member's connection to its leader, by which it notices the leader's end. Dropping it stops the thread that waits for
/// that end.
pub(crate) struct Followed(Arc<Witness>);

impl Followed {
    /// Connects to the leader with this random number. The second value is for the thread that waits until the leader ends.
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
