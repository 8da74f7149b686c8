//! A program's end of a connection to the process that holds a fabric.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polyverbs_io::SharedCounters;
use polyverbs_management::Address;
use polyverbs_management::address::{SMI_QP, is_subnet_management};
use polyverbs_wire::mad::smp::{CLASS_VERSION, DIRECTED_CLASS, LID_CLASS};
use polyverbs_wire::mad::{GSI_Q_KEY, GSI_QP, MAD_LEN};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::members::{Delivery, Outgoing, Registration};
use crate::protocol::{Front, LONGEST_REQUEST, NodeReport, Notice, Reply, Request, Route};
use crate::query::{Exchange, QueryError};
use crate::sockets::{self, FabricName, LONGEST_MESSAGE};

/// A connection to the process that holds a fabric. Once it is attached to a port, it is readable when a MAD has arrived.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the process that holds this name.
    ///
    /// # Errors
    /// There is no such process, or it is another user's.
    pub fn open(name: &FabricName) -> io::Result<Self> {
        Ok(Self(name.connect()?))
    }

    /// Returns the descriptor of the connection, which the caller then owns.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Connection {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// Asks the process at the other end of a connection, and waits for its reply.
///
/// # Errors
/// The process has gone, or refuses the request with an error number of the system.
pub fn ask(connection: BorrowedFd<'_>, request: &Request) -> io::Result<Reply> {
    match sockets::ask(connection, request)? {
        Reply::Refused(errno) => Err(io::Error::from_raw_os_error(errno)),
        reply => Ok(reply),
    }
}

/// Attaches the program to a port of an adapter. An empty name is that of the first adapter.
///
/// # Errors
/// There is no such port, or the process has gone.
pub fn attach(connection: BorrowedFd<'_>, node: &str, port: u8) -> io::Result<()> {
    let node = node.to_owned();
    ask(connection, &Request::Attach { node, port }).map(drop)
}

/// Describes an adapter and its ports. An empty name is that of the first adapter.
///
/// # Errors
/// There is no such node, or the process has gone.
pub fn describe(connection: BorrowedFd<'_>, node: &str) -> io::Result<NodeReport> {
    let node = node.to_owned();
    match ask(connection, &Request::Describe { node })? {
        Reply::Node(node) => Ok(*node),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Where the frames of verbs devices at a port are carried, and what they count.
#[derive(Debug)]
pub struct Carrier {
    /// The address of the frames.
    pub at: Ipv4Addr,
    /// The counters to which the devices add, in the order of [`Carried`](polyverbs_management::Carried).
    pub counters: SharedCounters,
    /// The port as it is.
    pub notice: Notice,
}

/// Says that the program has a verbs device at the port to which the connection is attached. The connection then carries
/// [notices](receive_notice), and no MADs.
///
/// # Errors
/// The connection is not attached, or the process has gone.
pub fn carry(connection: BorrowedFd<'_>) -> io::Result<Carrier> {
    let (reply, attached) = sockets::ask_for_descriptor(connection, &Request::Carry)?;
    match (reply, attached.and_then(SharedCounters::of)) {
        (Reply::Carrier { at, notice }, Some(counters)) => Ok(Carrier {
            at,
            counters,
            notice: *notice,
        }),
        (Reply::Refused(errno), _) => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns where the LIDs of ports with verbs devices lead from the port to which the connection is attached.
///
/// # Errors
/// The connection is not attached, or the process has gone.
pub fn routes(connection: BorrowedFd<'_>) -> io::Result<Vec<Route>> {
    match ask(connection, &Request::Routes)? {
        Reply::Routes(routes) => Ok(routes),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Receives the next notice without waiting.
///
/// # Errors
/// There is none yet ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the process has gone.
pub fn receive_notice(connection: BorrowedFd<'_>) -> io::Result<Notice> {
    let message = sockets::receive(connection, LONGEST_REQUEST)?;
    let message = message.ok_or(Errno::NODEV)?;
    Ok(serde_json::from_slice(&message.bytes)?)
}

/// Registers an agent, and returns its number.
///
/// # Errors
/// Another agent of the port has registered for one of the methods, or the process has gone.
pub fn register(connection: BorrowedFd<'_>, registration: Registration) -> io::Result<u32> {
    match ask(connection, &Request::Register(registration))? {
        Reply::Agent(agent) => Ok(agent),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends a MAD. Waits while the process has more messages of this program than it can take.
///
/// # Errors
/// The process has gone.
pub fn send(connection: BorrowedFd<'_>, sent: &Outgoing) -> io::Result<()> {
    loop {
        let flags = SendFlags::empty();
        match sockets::send_mad(connection, &sent.front(), &sent.data, flags) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => return sent,
        }
    }
}

/// Returns the front of the next MAD and its beginning. The MAD stays to be received.
///
/// # Errors
/// There is none yet ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the process has gone.
pub fn peek(connection: BorrowedFd<'_>) -> io::Result<(Front, Vec<u8>)> {
    sockets::peek(connection)
}

/// Receives the next MAD without waiting.
///
/// # Errors
/// There is none yet ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the process has gone.
pub fn receive(connection: BorrowedFd<'_>) -> io::Result<Delivery> {
    let message = sockets::receive(connection, LONGEST_MESSAGE)?;
    let message = message.ok_or(Errno::NODEV)?;
    let (front, data) = sockets::mad_of(message).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Delivery {
        agent: front.agent,
        status: front.status,
        from: front.peer,
        data,
    })
}

/// A program at a port, which queries the fabric.
#[derive(Debug)]
pub struct Querier {
    connection: Connection,
    /// For directed requests, and for others.
    agents: [u32; 2],
    last_transaction: u32,
}

impl Querier {
    /// Attaches to a port of an adapter. An empty name is that of the first adapter.
    ///
    /// # Errors
    /// There is no such fabric or port.
    pub fn attach(name: &FabricName, node: &str, port: u8) -> io::Result<Self> {
        let connection = Connection::open(name)?;
        attach(connection.as_fd(), node, port)?;
        let agent = |class| {
            let registration = Registration {
                class,
                class_version: CLASS_VERSION,
                ..Registration::default()
            };
            register(connection.as_fd(), registration)
        };
        let agents = [agent(DIRECTED_CLASS)?, agent(LID_CLASS)?];
        Ok(Self {
            connection,
            agents,
            last_transaction: 0,
        })
    }
}

impl Exchange for Querier {
    fn exchange(&mut self, mad: &[u8; MAD_LEN], lid: u16) -> Result<[u8; MAD_LEN], QueryError> {
        let lost = |error: io::Error| QueryError::Lost(error.to_string());
        self.last_transaction = self.last_transaction.wrapping_add(1);
        let mut data = mad.to_vec();
        data[12..16].copy_from_slice(&self.last_transaction.to_be_bytes());
        let is_smp = is_subnet_management(mad[1]);
        let [directed, routed] = self.agents;
        let sent = Outgoing {
            agent: if mad[1] == DIRECTED_CLASS {
                directed
            } else {
                routed
            },
            timeout_ms: TIMEOUT.as_millis() as u32,
            retries: RETRIES,
            to: Address {
                qpn: if is_smp { SMI_QP } else { GSI_QP },
                q_key: if is_smp { 0 } else { GSI_Q_KEY },
                lid,
                ..Address::default()
            },
            data,
        };
        let connection = self.connection.as_fd();
        send(connection, &sent).map_err(lost)?;
        // The process gives the request back in any case: this ends the wait for a process that hangs.
        sockets::wait(connection, 2 * TIMEOUT * (RETRIES + 1)).map_err(lost)?;
        let got = receive(connection).map_err(lost)?;
        match got.status {
            0 => got.data.try_into().map_err(|_| QueryError::Malformed),
            _ => Err(QueryError::TimedOut),
        }
    }
}

const TIMEOUT: Duration = Duration::from_millis(500);
const RETRIES: u32 = 2;
