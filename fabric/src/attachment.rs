//! A verbs device's end of a connection to the process that holds a fabric, which sends it a notice of each change of its port. The device attaches
//! again when the process has gone and another one has come.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs_io::fork::Unshared;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use verbs_api::provider::{RwLock, start_thread};

use crate::FabricName;
use crate::client::{self, Carrier, Connection};
use crate::protocol::{NodeReport, Request, Route};

pub use crate::protocol::Notice;

/// What a device learns about its port.
#[derive(Debug)]
pub enum News {
    /// The port has changed.
    Changed(Notice),
    /// The process that holds the fabric has gone.
    Lost,
    /// The device is attached to a process again, which has counters of its own.
    Attached(Carrier),
}

/// The connection of a device.
#[derive(Debug)]
pub struct Attachment {
    name: FabricName,
    node: NodeReport,
    port: u8,
    at: Ipv4Addr,
    /// `None` while there is no process.
    connection: RwLock<Option<Arc<Unshared>>>,
    stop: Arc<Unshared>,
}

impl Attachment {
    /// Attaches a verbs device to a port of an adapter. An empty name is that of the first adapter.
    ///
    /// # Errors
    /// There is no such fabric or port.
    pub fn new(name: FabricName, node: &str, port: u8) -> io::Result<(Arc<Self>, Carrier)> {
        let (connection, carrier) = connect(&name, node, port)?;
        let node = client::describe(connection.as_fd(), node)?;
        let stop = Unshared::made(|| Ok(eventfd(0, EventfdFlags::CLOEXEC)?))?;
        let attachment = Self {
            name,
            node,
            port,
            at: carrier.at,
            connection: RwLock::new(Some(Arc::new(connection))),
            stop: Arc::new(stop),
        };
        Ok((Arc::new(attachment), carrier))
    }

    /// Returns the node as it was when the device attached.
    pub fn node(&self) -> &NodeReport {
        &self.node
    }

    /// Starts a thread that calls `hear` for all news, until that returns `false` or the attachment is dropped.
    ///
    /// # Errors
    /// There is no such thread.
    pub fn watch(
        self: &Arc<Self>,
        mut hear: impl FnMut(News) -> bool + Send + 'static,
    ) -> io::Result<()> {
        let (attachment, stop) = (Arc::downgrade(self), Arc::clone(&self.stop));
        start_thread("polyverbs-fabric", move || {
            while let Some(news) = next(&attachment, &stop) {
                if !hear(news) {
                    return;
                }
            }
        })?;
        Ok(())
    }

    /// Asks the process where the LIDs of other devices lead now.
    ///
    /// # Errors
    /// There is no process.
    pub fn routes(&self) -> io::Result<Vec<Route>> {
        client::routes(self.connection()?.as_fd())
    }

    /// Cuts or joins the link of the port.
    ///
    /// # Errors
    /// There is no process.
    pub fn set_link(&self, is_up: bool) -> io::Result<()> {
        let request = Request::SetLink {
            node: self.node.name.clone(),
            port: self.port,
            is_up,
        };
        client::ask(self.connection()?.as_fd(), &request).map(drop)
    }

    fn connection(&self) -> io::Result<Arc<Unshared>> {
        let connection = self.connection.read().clone();
        connection.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Attaches again. Another fabric of the same name may have other addresses, at which the device is not.
    fn attach_again(&self) -> io::Result<Carrier> {
        let (connection, carrier) = connect(&self.name, &self.node.name, self.port)?;
        if carrier.at != self.at {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        *self.connection.write() = Some(Arc::new(connection));
        Ok(carrier)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // The thread ends.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

fn connect(name: &FabricName, node: &str, port: u8) -> io::Result<(Unshared, Carrier)> {
    let connection = Connection::open(name)?;
    client::attach(connection.as_fd(), node, port)?;
    let carrier = client::carry(connection.as_fd())?;
    let connection = Unshared::made(|| Ok(connection.into_fd()))?;
    Ok((connection, carrier))
}

/// Waits for the next news. `None` if the attachment is dropped.
fn next(attachment: &Weak<Attachment>, stop: &Unshared) -> Option<News> {
    loop {
        // The thread keeps the attachment only while it does not wait.
        let connection = attachment.upgrade()?.connection();
        let Ok(connection) = connection else {
            if is_readable(&[stop.as_fd()], Some(AGAIN)) {
                return None;
            }
            match attachment.upgrade()?.attach_again() {
                Ok(carrier) => return Some(News::Attached(carrier)),
                Err(_) => continue,
            }
        };
        let both = [stop.as_fd(), connection.as_fd()];
        if is_readable(&both, None) {
            return None;
        }
        match client::receive_notice(connection.as_fd()) {
            Ok(notice) => return Some(News::Changed(notice)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                *attachment.upgrade()?.connection.write() = None;
                return Some(News::Lost);
            }
        }
    }
}

/// Waits until one of the descriptors is readable, or the time is over. Returns whether the first one is.
fn is_readable(all: &[BorrowedFd<'_>], time: Option<Duration>) -> bool {
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    let mut waiting: Vec<_> = all
        .iter()
        .map(|one| PollFd::from_borrowed_fd(*one, PollFlags::IN))
        .collect();
    loop {
        match poll(&mut waiting, time.as_ref()) {
            Err(Errno::INTR) => {}
            // Without memory to wait there is nothing to wait for.
            Err(_) => return true,
            Ok(_) => return !waiting[0].revents().is_empty(),
        }
    }
}

/// How long a device waits before it looks for a process again.
const AGAIN: Duration = Duration::from_millis(200);
