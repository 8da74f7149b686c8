//! One UDP port of one address for several processes, as RoCEv2 needs it: a *port group*.
//!
//! Up to 64 sockets share the port, one for each range of QP numbers. A socket filter in the kernel chooses the socket of a
//! datagram by the upper six bits of the destination QP number. For QP 1 it uses those of the communication ID that a CM
//! message answers, so that a process that is about to end never holds the answer. Each process leases a range, and reads
//! the socket of that range and the first socket. A store that all processes have open keeps every socket in its place when
//! a process ends, so a process needs no descriptor of the others' sockets. Processes settle everything else by names that
//! only one process at a time can hold:
//!
//! | name, after `polyverbs/udp/ADDRESS:PORT/` | meaning |
//! | --- | --- |
//! | `making` | a process is joining the port, and may add sockets to it |
//! | `range/1` … `range/63` | the lease of this range, and the inbox of its holder |
//! | `service/ID` | connection requests for this service go to this inbox |
//!
//! Frames between these processes go through shared memory if both enable that: [`Lease::memory`]. Devices over TCP need
//! only that memory: for them there are groups without sockets, whose names begin with `polyverbs/tcp/ADDRESS/`.
//!
//! Range 0 belongs to all processes: its socket receives the other datagrams to QP 1. The process that reads one of them
//! forwards it to the process for which it is meant.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use polyverbs_engine::link::Exchange;
use rustix::io::Errno;
use thiserror::Error;
use verbs_api::provider::errno_of;
use verbs_api::provider::{Mutex, PerProcess};

use self::local::{Connection, Inbox};
use self::store::SocketStore;
use crate::Arrival;
use crate::fork::Unshared;
use crate::shm::{Shm, ShmPort};
use crate::sockets::receive::ReceiveBatch;
use crate::sockets::refusal::explained;
use crate::sockets::sys;
use crate::sockets::udp::{UdpOptions, UdpSocket, is_passing};

mod handed;
mod holder;
mod local;
mod store;

pub use handed::HandError;
pub use holder::Holder;
pub use local::{Admission, Name, Presence, Witness};

pub use crate::qpn_range::{QpnRange, RANGES};

/// Options with which a process joins a port group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupOptions {
    /// The address and port that the processes share.
    pub address: SocketAddr,
    /// Options of the sockets, if this process has to create them.
    pub udp: UdpOptions,
    /// The users whose processes may belong to the group, and are trusted.
    pub admission: Admission,
    /// How long joining waits while other processes create the sockets, or are slow to answer.
    pub patience: Duration,
    has_sockets: bool,
}

impl GroupOptions {
    /// Creates the default options for a group on this address and port.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            udp: UdpOptions::default(),
            admission: Admission::default(),
            patience: Duration::from_secs(2),
            has_sockets: true,
        }
    }

    /// Creates the options for a group of processes at an address that share memory, but no UDP port.
    pub fn without_sockets(address: IpAddr) -> Self {
        Self {
            has_sockets: false,
            ..Self::new(SocketAddr::new(address, 0))
        }
    }
}

/// The reason why a process could not join a port group.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The port belongs to something outside the group: another program, a driver of the kernel, or processes that do not
    /// admit this one.
    #[error("{0} is held by {1}")]
    Taken(SocketAddr, Holder),
    /// All 63 ranges of QP numbers are leased.
    #[error("all ranges of queue pair numbers of {0} are leased")]
    Full(SocketAddr),
    /// The system refused a call.
    #[error("{0}: {1}")]
    System(SocketAddr, io::Error),
}

impl JoinError {
    /// Returns the error number of a C call that fails for this reason.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Taken(..) | Self::Full(_) => Errno::ADDRINUSE.raw_os_error(),
            Self::System(_, error) => errno_of(error),
        }
    }
}

/// A port group that this process has joined: its sockets, and the names of the processes that share it.
#[derive(Debug)]
struct PortGroup {
    options: GroupOptions,
    shared: Shared,
    /// The number of connections to inboxes of this process that were closed because their user is not admitted.
    strangers: AtomicU64,
}

/// The sockets and the memory that the processes of a port group share.
#[derive(Debug)]
struct Shared {
    sockets: Option<Sockets>,
    /// The shared memory; `None` if the system refuses to create it.
    shm: Option<Arc<Shm>>,
}

/// The sockets that share a UDP port.
#[derive(Debug)]
struct Sockets {
    /// The socket of range 0, which all processes read.
    common: UdpSocket,
    /// All sockets of the port; `None` if the system refuses the socket filter. Then all processes read the socket of range
    /// 0.
    store: Option<SocketStore>,
}

/// A range of QP numbers of a port group, leased by this process, with the socket at which datagrams to the range arrive.
/// The lease ends when this value is dropped, or with the process.
#[derive(Debug)]
pub struct Lease {
    group: Arc<PortGroup>,
    range: QpnRange,
    socket: Option<UdpSocket>,
    inbox: Inbox,
    /// Connections over which this process sends messages to the processes of other ranges, and to itself. They stay open,
    /// so that waking a process takes one system call.
    connections: Mutex<BTreeMap<QpnRange, Connection>>,
    memory: OnceLock<ShmPort>,
}

/// A message at the inbox of a process, or the end of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mail<'m> {
    /// Another process forwards a datagram.
    Datagram(Arrival, &'m [u8]),
    /// Another process has sent this process a [message](Lease::send_message).
    Message(&'m [u8]),
    /// A process to which this one has sent messages has gone: the one that leased this range.
    Gone(QpnRange),
}

/// A service ID for which this process answers connection requests.
#[derive(Debug)]
pub struct Service {
    id: u64,
    inbox: Inbox,
    group: Arc<PortGroup>,
}

/// The port groups that this process has joined, by address. A child of a fork has joined none, because it has none of its
/// parent's sockets.
static JOINED: PerProcess<Mutex<BTreeMap<SocketAddr, Weak<PortGroup>>>> =
    PerProcess::new(Mutex::default);

impl Lease {
    /// Joins the processes on a port, or becomes the first of them, and leases the lowest free range. If this process has
    /// joined already, the lease is another range of the same group, whose options remain those of the first call.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(options: GroupOptions) -> Result<Self, JoinError> {
        // The lock is held while joining, because the name `making` belongs to one thread at a time.
        let mut joined = JOINED.lock();
        let address = options.address;
        let system = |error| JoinError::System(address, explained(error, address.ip()));
        let deadline = Instant::now() + options.patience;
        loop {
            // A process that adds sockets keeps the name until it has a lease, and thus an inbox that others find.
            if let Some(_making) = held(Inbox::named(&options.making())).map_err(system)? {
                let group = joined.get(&address).and_then(Weak::upgrade);
                if let Some(group) = group {
                    return Self::in_group(group);
                }
                if let Some(shared) = find_or_make(&options).map_err(system)? {
                    let lease = Self::in_group(Arc::new(PortGroup {
                        options,
                        shared,
                        strangers: AtomicU64::new(0),
                    }))?;
                    joined.retain(|_, group| group.strong_count() > 0);
                    joined.insert(address, Arc::downgrade(&lease.group));
                    return Ok(lease);
                }
            }
            if Instant::now() >= deadline {
                return Err(JoinError::Taken(address, Holder::of(&options)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn in_group(group: Arc<PortGroup>) -> Result<Self, JoinError> {
        let address = group.options.address;
        let system = |error| JoinError::System(address, explained(error, address.ip()));
        // This takes the lowest free range, because a port has as many sockets as its highest range needs.
        for range in QpnRange::leased() {
            let name = group.options.range(range);
            if let Some(inbox) = held(Inbox::named(&name)).map_err(system)? {
                if let Some(shm) = &group.shared.shm {
                    shm.leave(range);
                }
                return Ok(Self {
                    socket: group.socket(range).map_err(system)?,
                    group,
                    range,
                    inbox,
                    connections: Mutex::default(),
                    memory: OnceLock::new(),
                });
            }
        }
        let names = QpnRange::leased().map(|range| group.options.range(range));
        Err(
            match names.filter_map(|name| group.stranger(&name)).next() {
                Some(user) => JoinError::Taken(address, Holder::User(user)),
                None => JoinError::Full(address),
            },
        )
    }

    /// The address and port of the group.
    pub fn address(&self) -> SocketAddr {
        self.group.options.address
    }

    /// The leased range of QP numbers.
    pub fn range(&self) -> QpnRange {
        self.range
    }

    /// The socket at which datagrams to the leased range arrive. The kernel may have joined datagrams to other ranges with
    /// them.
    ///
    /// # Panics
    /// The group has no sockets, because it was joined [without](GroupOptions::without_sockets).
    pub fn socket(&self) -> &UdpSocket {
        self.socket.as_ref().expect("a group with sockets")
    }

    /// The socket of range 0, which all processes of the group read. Wait for it with `EPOLLEXCLUSIVE`, so that a datagram
    /// wakes one of them.
    ///
    /// # Panics
    /// The group has no sockets, because it was joined [without](GroupOptions::without_sockets).
    pub fn common(&self) -> &UdpSocket {
        let sockets = self.group.shared.sockets.as_ref();
        &sockets.expect("a group with sockets").common
    }

    /// Lets the other processes of the group write records for this range in shared memory, which this process must read
    /// from now on. Returns `false` if the group has no shared memory.
    pub fn open_memory(&self) -> bool {
        let Some(shm) = &self.group.shared.shm else {
            return false;
        };
        (self.memory).get_or_init(|| ShmPort::new(Arc::clone(shm), self.range));
        true
    }

    /// The access to the group's shared memory; `None` before it is [open](Self::open_memory).
    #[inline]
    pub fn memory(&self) -> Option<&ShmPort> {
        self.memory.get()
    }

    /// Sends a wake-up to the inbox of each process that sleeps although this process has written a record for it, or has
    /// made room that it waits for.
    #[inline]
    pub fn ring_bells(&self) {
        if let Some(memory) = self.memory.get().filter(|memory| memory.may_have_bells()) {
            self.ring(memory);
        }
    }

    fn ring(&self, memory: &ShmPort) {
        for to in memory.take_reminders() {
            // A process that has gone needs no reminder.
            let _ = self.ring_at(to);
        }
        for (to, sleep) in memory.take_bells() {
            // A full inbox wakes its reader, too. A process that was killed must not be woken again and again.
            match self.ring_at(to) {
                Ok(()) | Err(HandError::Full | HandError::Nobody) => memory.rung(to, sleep),
                Err(HandError::System(_)) => {}
            }
        }
    }

    fn ring_at(&self, to: QpnRange) -> Result<(), HandError> {
        self.send(to, &[IoSlice::new(&[VERSION, BELL])])
    }

    /// Returns how many records this process and the process that leases the range `with` have written to one another
    /// through shared memory, and how many of them were answered or read; `None` if no process leases the range. A killed process
    /// leaves no sign in memory, so this sends a message to its inbox.
    pub(crate) fn exchange(&self, with: QpnRange) -> Option<Exchange> {
        let exchange = self.memory.get()?.exchange(with)?;
        let is_held = matches!(self.ring_at(with), Ok(()) | Err(HandError::Full));
        is_held.then_some(exchange)
    }

    /// Reads the inbox: passes the sockets to processes that join, and calls `take` with everything else that arrives. One
    /// call handles a limited number of messages, so the caller repeats it while the inbox is readable.
    ///
    /// # Errors
    /// The epoll instance of the inbox fails.
    pub fn attend(&self, take: &mut dyn FnMut(Mail<'_>)) -> io::Result<()> {
        let let_in = |asker: &_| self.let_in(asker);
        if self.group.read(&self.inbox, take, let_in)? {
            let mut gone = Vec::new();
            self.connections.lock().retain(|range, connection| {
                if !connection.has_gone() {
                    return true;
                }
                // A process with too many connections closes the oldest, and one that is ending closes its name last. The new
                // connection shows which it is.
                let name = self.group.options.range(*range);
                match connection.again(&name, &self.group.options.admission) {
                    Some(new) => {
                        let _ = self.inbox.watch(&new);
                        *connection = new;
                        true
                    }
                    None => {
                        gone.push(*range);
                        false
                    }
                }
            });
            gone.into_iter().for_each(|range| take(Mail::Gone(range)));
        }
        Ok(())
    }

    /// The name of the group, which no other group of this machine has.
    pub fn group_name(&self) -> String {
        self.group.options.prefix()
    }

    /// Returns whether this process has sent messages to the one that leases a range, so that [`Mail::Gone`] reports its end.
    pub fn is_connected(&self, range: QpnRange) -> bool {
        self.connections.lock().contains_key(&range)
    }

    /// Sends a message to the process that leases a range.
    ///
    /// # Errors
    /// No process leases the range, or the one that got the last message has gone, or it does not read its inbox fast enough.
    pub fn send_message(&self, range: QpnRange, message: &[u8]) -> Result<(), HandError> {
        let message = &[&[VERSION, MESSAGE], message].map(IoSlice::new);
        let mut connections = self.connections.lock();
        let Some(connection) = connections.get(&range) else {
            drop(connections);
            return self.send(range, message);
        };
        let sent = connection.send(message, &[]).map_err(HandError::from);
        if !matches!(sent, Err(HandError::Nobody)) {
            return sent;
        }
        let options = &self.group.options;
        let new = connection.again(&options.range(range), &options.admission);
        connections.remove(&range);
        let new = new.ok_or(HandError::Nobody)?;
        new.send(message, &[])?;
        let _ = self.inbox.watch(&new);
        connections.insert(range, new);
        Ok(())
    }

    /// Returns whether processes of a user may belong to the group.
    pub(crate) fn admits(&self, user: u32) -> bool {
        self.group.options.admission.admits(user)
    }

    /// Returns how many connections to inboxes at this address were closed so far because their user is not admitted.
    pub fn strangers(&self) -> u64 {
        self.group.strangers.load(Ordering::Relaxed)
    }

    // Passes the descriptors of the group to a process that asks for them. One that has gone, or has no room for so many,
    // asks another process or asks again.
    fn let_in(&self, asker: &Connection) {
        let Shared { sockets, shm } = &self.group.shared;
        let common = sockets.iter().map(|sockets| sockets.common.as_fd());
        let stores = sockets.iter().filter_map(|sockets| sockets.store.as_ref());
        let passed = common.chain(stores.flat_map(SocketStore::ends));
        let passed: Vec<_> = passed.chain(shm.iter().map(AsFd::as_fd)).collect();
        let _ = asker.send(&[IoSlice::new(&[VERSION, DESCRIPTORS_PASSED])], &passed);
    }

    /// Forwards a datagram to the process that leases a range.
    ///
    /// # Errors
    /// No process leases the range, or it does not read its inbox fast enough. The datagram is lost, as datagrams may be.
    pub fn hand_to_range(
        &self,
        range: QpnRange,
        arrival: &Arrival,
        datagram: &[u8],
    ) -> Result<(), HandError> {
        self.send(range, &message(&handed::head(arrival), datagram))
    }

    // Sends a message to the inbox of a range over the existing connection. If its other end has gone, the range may have a
    // new holder.
    fn send(&self, range: QpnRange, message: &[IoSlice<'_>]) -> Result<(), HandError> {
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(&range) {
            match connection.send(message, &[]).map_err(HandError::from) {
                // It stays until there is a new holder, or until `attend` has reported its end.
                Err(HandError::Nobody) => {}
                sent => return sent,
            }
        }
        let options = &self.group.options;
        let connection = Connection::to(&options.range(range), &options.admission)?;
        connection.send(message, &[])?;
        let _ = self.inbox.watch(&connection);
        connections.insert(range, connection);
        Ok(())
    }

    /// Forwards a datagram to the process that answers connection requests for a service ID.
    ///
    /// # Errors
    /// No process answers for the service ID, or it does not read its inbox fast enough. The datagram is lost.
    pub fn hand_to_service(
        &self,
        service: u64,
        arrival: &Arrival,
        datagram: &[u8],
    ) -> Result<(), HandError> {
        let options = &self.group.options;
        let connection = Connection::to(&options.service(service), &options.admission)?;
        Ok(connection.send(&message(&handed::head(arrival), datagram), &[])?)
    }

    /// Makes this process answer connection requests for a service ID until the result is dropped.
    ///
    /// # Errors
    /// Another process answers requests for this service ID ([`AddrInUse`](io::ErrorKind::AddrInUse)); the error names that
    /// process.
    pub fn serve(&self, service: u64) -> io::Result<Service> {
        let name = self.group.options.service(service);
        let inbox = Inbox::named(&name).map_err(|error| match local::holder(&name) {
            Some(holder) => io::Error::new(error.kind(), process_of(holder)),
            None => error,
        })?;
        Ok(Service {
            id: service,
            inbox,
            group: Arc::clone(&self.group),
        })
    }
}

impl AsFd for Lease {
    /// The epoll instance of the inbox, which is readable while messages wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.as_fd()
    }
}

impl Service {
    /// The service ID.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Calls `take` with each datagram that another process forwarded. Call this when the inbox is readable.
    ///
    /// # Errors
    /// The epoll instance of the inbox fails.
    pub fn attend(&self, take: &mut dyn FnMut(Mail<'_>)) -> io::Result<()> {
        self.group.read(&self.inbox, take, |_| {}).map(drop)
    }
}

impl AsFd for Service {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.as_fd()
    }
}

impl PortGroup {
    // Returns the socket of a range that was just leased, and creates it if the range is the highest so far. The caller
    // holds the name `making`.
    fn socket(&self, range: QpnRange) -> io::Result<Option<UdpSocket>> {
        let Some(Sockets { common, store }) = &self.shared.sockets else {
            return Ok(None);
        };
        let Some(store) = store else {
            return common.duplicate(&self.options.udp).map(Some);
        };
        store.fill(range.index() + 1, common, &self.options)?;
        let socket = store.socket(range.index(), &self.options)?;
        socket.iter().try_for_each(empty)?;
        Ok(socket)
    }

    // Reads some messages of an inbox. Returns whether a process to which this one has a connection has gone.
    fn read(
        &self,
        inbox: &Inbox,
        take: &mut dyn FnMut(Mail<'_>),
        let_in: impl Fn(&Connection),
    ) -> io::Result<bool> {
        let mut take = |from: &Connection, message: &[u8]| match message {
            [VERSION, JOIN] => let_in(from),
            [VERSION, HANDED, rest @ ..] => {
                if let Some((arrival, datagram)) = handed::read(rest) {
                    take(Mail::Datagram(arrival, datagram));
                }
            }
            [VERSION, MESSAGE, message @ ..] => take(Mail::Message(message)),
            _ => {}
        };
        inbox.attend(&self.options.admission, &self.strangers, &mut take)
    }

    // Returns the user of the process that holds a name, if that user is not admitted.
    fn stranger(&self, name: &str) -> Option<u32> {
        let user = local::holder(name)?.uid;
        (!self.options.admission.admits(user)).then_some(user)
    }
}

fn process_of(holder: libc::ucred) -> String {
    match holder.pid {
        pid if pid as u32 == std::process::id() => "this process".to_owned(),
        // The process is in another PID namespace, which this one does not see.
        0 => format!("a process of user {}", holder.uid),
        pid => format!("process {pid} of user {}", holder.uid),
    }
}

fn message<'m>(head: &'m [u8], datagram: &'m [u8]) -> [IoSlice<'m>; 3] {
    [&[VERSION, HANDED], head, datagram].map(IoSlice::new)
}

// Gets the descriptors of the group from a process that has them, or makes them if there is none. Returns `None` while
// another program has the port.
fn find_or_make(options: &GroupOptions) -> io::Result<Option<Shared>> {
    match ask(options)? {
        None => held(make(options)),
        found => Ok(found),
    }
}

// Drops the datagrams that were meant for the previous holder of a range.
fn empty(socket: &UdpSocket) -> io::Result<()> {
    let mut batch = ReceiveBatch::new(1, 1)?;
    for _ in 0..STALE {
        if socket.receive(&mut batch)? == 0 {
            break;
        }
    }
    Ok(())
}

// Asks every process of the group for the sockets. Returns `None` if none of them answers.
fn ask(options: &GroupOptions) -> io::Result<Option<Shared>> {
    let mut asked = Vec::new();
    for range in QpnRange::leased() {
        let Ok(connection) = Connection::to(&options.range(range), &options.admission) else {
            continue;
        };
        if connection
            .send(&[IoSlice::new(&[VERSION, JOIN])], &[])
            .is_ok()
        {
            asked.push(connection);
            // Nearly always the first one answers; the others are asked only if it is slow.
            if let Some(shared) = answer(&mut asked, options, HASTE)? {
                return Ok(Some(shared));
            }
        }
    }
    match asked.is_empty() {
        true => Ok(None),
        false => answer(&mut asked, options, SLOWEST),
    }
}

// Waits for an answer of one of the processes that were asked. Those that have gone are removed from `asked`.
fn answer(
    asked: &mut Vec<Connection>,
    options: &GroupOptions,
    time: Duration,
) -> io::Result<Option<Shared>> {
    Connection::wait(asked, time)?;
    let mut given = None;
    asked.retain(|connection| match connection.receive_descriptors() {
        Ok(([VERSION, DESCRIPTORS_PASSED], descriptors)) => {
            given = given.take().or_else(|| accept(descriptors, options));
            false
        }
        Ok(_) => false,
        Err(error) => is_passing(&error),
    });
    Ok(given)
}

// Takes the descriptors if all are of the expected kind, and none otherwise: the common socket, the two ends of the store
// if the kernel steers, and the memory if there is some.
fn accept(descriptors: Vec<Unshared>, options: &GroupOptions) -> Option<Shared> {
    let mut passed = descriptors.into_iter();
    let sockets = match options.has_sockets {
        true => {
            let common = UdpSocket::passed(passed.next()?, options.address, &options.udp).ok()?;
            let store = match passed.len() {
                0 | 1 => None,
                _ => Some(SocketStore::passed(passed.next()?, passed.next()?)),
            };
            Some(Sockets { common, store })
        }
        false => None,
    };
    let shm = match passed.next() {
        None => None,
        Some(memory) => Some(Arc::new(Shm::of(memory)?)),
    };
    passed.next().is_none().then_some(Shared { sockets, shm })
}

// Makes the sockets and the memory that the processes on a port share.
fn make(options: &GroupOptions) -> io::Result<Shared> {
    let sockets = match options.has_sockets {
        true => Some(make_sockets(options)?),
        false => None,
    };
    Ok(Shared {
        sockets,
        shm: Shm::new().ok().map(Arc::new),
    })
}

// Makes the first sockets, and attaches the steering program to them.
fn make_sockets(options: &GroupOptions) -> io::Result<Sockets> {
    let address = options.address;
    // A sharing socket could join an existing group; one that does not share cannot be bound in that case.
    drop(UdpSocket::bind(address, &options.udp)?);
    let common = UdpSocket::bind_shared(address, &options.udp)?;
    // A sandbox may refuse the program: then the processes share one socket.
    let store = match sys::steer(common.as_fd(), &STEERING) {
        Ok(()) => Some(SocketStore::new()?),
        Err(_) => None,
    };
    if let Some(store) = &store {
        accept_range(&common, 0);
        store.add(&common)?;
        // Users who are named in the admission cannot add sockets.
        if !options.admission.users.is_empty() {
            store.fill(RANGES, &common, options)?;
        }
    }
    Ok(Sockets { common, store })
}

// A name or port that another process holds is no error, but a reason to do something else.
fn held<T>(taken: io::Result<T>) -> io::Result<Option<T>> {
    match taken {
        Ok(taken) => Ok(Some(taken)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

impl GroupOptions {
    fn prefix(&self) -> String {
        match self.has_sockets {
            true => format!("polyverbs/udp/{}", self.address),
            false => format!("polyverbs/tcp/{}", self.address.ip()),
        }
    }

    fn making(&self) -> String {
        format!("{}/making", self.prefix())
    }

    fn range(&self, range: QpnRange) -> String {
        format!("{}/range/{}", self.prefix(), range.index())
    }

    fn service(&self, service: u64) -> String {
        format!("{}/service/{service:016x}", self.prefix())
    }
}

/// The socket filter that chooses the socket of a datagram. It returns the upper six bits of the destination QP number,
/// which is in the second 32-bit word of the BTH; for QP 1, the upper six bits of the communication ID that the message
/// answers. After BTH and DETH (IBTA 9.2, 9.3.1) follows the MAD, with its class in byte 1 and its attribute in bytes 16
/// and 17 (IBTA 13.4.3). After the header of the MAD follows the CM message, which begins with the sender's communication
/// ID and the receiver's (IBTA 12.6). A datagram that is too short for that goes to the first socket.
const STEERING: [libc::sock_filter; 17] = [
    load(libc::BPF_W, 4),
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xff_ffff),
    when(GSI_QP, 2, 0),
    instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, QpnRange::SHIFT),
    instruction(libc::BPF_RET | libc::BPF_A, 0),
    load(libc::BPF_B, MAD + 1),
    when(COMMUNICATION_MANAGEMENT, 0, 9),
    load(libc::BPF_H, MAD + 16),
    when(REQ, 7, 0),
    when(SIDR_REQ, 6, 0),
    when(SIDR_REP, 2, 0),
    load(libc::BPF_W, MAD + MAD_HEADER + 4),
    instruction(libc::BPF_JMP | libc::BPF_JA, 1),
    load(libc::BPF_W, MAD + MAD_HEADER),
    instruction(
        libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K,
        QpnRange::COMMUNICATION_SHIFT,
    ),
    instruction(libc::BPF_RET | libc::BPF_A, 0),
    instruction(libc::BPF_RET | libc::BPF_K, 0),
];

/// Makes a socket accept only datagrams to this range of QP numbers and to QP 1, and those that are too short to have a QP number,
/// which are counted. For a range without a socket the kernel would choose any of the sockets: then random datagrams would take
/// the room and the time of a process to which none of them is sent.
fn accept_range(socket: &UdpSocket, range: u32) {
    let program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0),
        libc::sock_filter {
            jf: 5,
            ..instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, UDP_HEADER + 8)
        },
        load(libc::BPF_W, UDP_HEADER + 4),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xff_ffff),
        when(GSI_QP, 2, 0),
        instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, QpnRange::SHIFT),
        when(range, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0),
    ];
    // A sandbox may refuse the filter: then the process drops these datagrams itself.
    let _ = sys::filter(socket.as_fd(), &program);
}

/// Bytes before the BTH, as a filter of one socket sees a datagram.
const UDP_HEADER: u32 = 8;
/// Bytes before the MAD in a datagram: BTH and DETH.
const MAD: u32 = 12 + 8;
/// Bytes of the MAD header.
const MAD_HEADER: u32 = 24;
/// The number of the GSI queue pair.
const GSI_QP: u32 = 1;
/// The management class of CM messages.
///
/// Below it are the attributes of messages that answer none (REQ, SIDR_REQ) or have only one ID (SIDR_REP).
const COMMUNICATION_MANAGEMENT: u32 = 0x07;
const REQ: u32 = 0x10;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;

const fn load(width: u32, at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | width | libc::BPF_ABS, at)
}

const fn when(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter {
        jt: then,
        jf: otherwise,
        ..instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    }
}

const fn instruction(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// The version of the messages that processes of a group exchange. Messages of another version are ignored.
const VERSION: u8 = 10;
const JOIN: u8 = 1;
const DESCRIPTORS_PASSED: u8 = 2;
const HANDED: u8 = 3;
const BELL: u8 = 4;
const MESSAGE: u8 = 5;

/// The most datagrams that are dropped from a socket because they were meant for the process that leased its range before.
const STALE: usize = 100_000;
/// The time between two attempts to join while another process joins or has the port.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a joining process waits for the answer of one process before it asks the next one, too.
const HASTE: Duration = Duration::from_millis(20);
/// How long a joining process waits for the last answer.
const SLOWEST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
