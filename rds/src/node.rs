//! A node, the driver of one local address in this process: it has the RDMA device, a QP for each path, and a thread that
//! polls the CQ while no thread of the program does.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, pending};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::task::{Context as TaskContext, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use async_executor::{Executor, Task};
use polyverbs::completion::{Notify, WcStatus};
use polyverbs::connection::{Connection, Connector, Listener, devices_at};
use polyverbs::emulated::{EmulatedDeviceError, EmulatedOptions, Presence, device_at};
use polyverbs::ids::Qpn;
use polyverbs::provider::{MadeOnce, Mutex, PerProcess, start_thread};
use polyverbs::wr::{self, ReceiveRequest};
use polyverbs::{
    Batch, Completion, Context, Cq, Device, Pd, Qp, Requirements, Transport, VerbError, registry,
};
use polyverbs_wire::rds::{ConnectData, FRAGMENT, HEADER};
use rustc_hash::FxHashMap;

use crate::connect;
use crate::error::{DeviceError, RdsError};
use crate::pool::{Pool, Slot};
use crate::ports::{self, Followed, PortLock};
use crate::protocol::{
    Action, ArrivalId, Counters, FlowControl, Host, HostLimits, OperationStatus, PathId, Payload,
    Role, SocketId, Transmit,
};
use crate::rdma::Posted;
use crate::shared::Shared;
use crate::spin::SPIN_TIME;
use crate::transport::RdsTransport;

/// The bit of `wr_id` that marks a receive. The `wr_id` of a send has the number that the path gave the request.
const RECEIVE: u64 = 1 << 62;

/// The most completions that one poll of the CQ takes.
const POLLED: usize = 32;

/// A path gets new receives when this many were consumed, or a quarter of the wanted number if that is less.
const REFILLED: usize = 16;

/// The bytes of messages waiting to be received above which arriving messages are copied to shorter slots, to save memory.
const UNREAD: usize = 1 << 20;

/// While threads of the program poll the CQ, the node's thread checks at this interval whether they still do.
const POLL_CHECK: Duration = Duration::from_millis(1);

/// How long a node that closes waits for its peers to confirm the disconnect.
const FAREWELL: Duration = Duration::from_millis(200);

/// The size of the CQ while the node has no paths, in entries.
const FIRST_ENTRIES: u32 = 4096;

pub(crate) type NodeHost = Host<Slot, Posted>;

/// A path and the number of the attempt to connect it.
pub(crate) type Made = (PathId, u32);

/// The connection for which a QP is created.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A connection that this node requests for a path.
    Attempt(Made),
    /// A connection that a peer has requested and the protocol has accepted.
    Arrival(ArrivalId),
}

/// The path or accepted request that a QP belongs to.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Path(PathId),
    Arrival(ArrivalId),
}

/// The driver of one local address: it has the RDMA device, a QP for each path to a peer, and a thread that polls the CQ
/// while no thread of the program does.
pub(crate) struct Node {
    pub(crate) at: IpAddr,
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) connector: Connector,
    pub(crate) pool: Arc<Pool>,
    state: Mutex<State>,
    sockets: Mutex<FxHashMap<SocketId, Arc<Shared>>>,
    pub(crate) listener: Mutex<Option<Listener>>,
    /// `Some` while this process is the leader of the address, which peers connect to; the inner value is `None` if the
    /// leader's name could not be taken.
    presence: Mutex<Option<Option<Presence>>>,
    /// `Some` while another process is the leader of the address, which peers connect to: its number, and the connection by
    /// which a thread notices its end.
    followed: Mutex<Option<(u16, Followed)>>,
    tasks: Arc<Executor<'static>>,
    thread: OnceLock<Thread>,
    /// Counts the polls by threads of the program. `armed_after` is the count when such a thread last armed the CQ.
    polls: AtomicU64,
    armed_after: AtomicU64,
    /// Whether the node's thread leaves the CQ to threads of the program, which poll it.
    is_left_to_polls: AtomicBool,
    /// Whether a polling thread has consumed a completion notification, so that the CQ is no longer armed.
    is_notified: AtomicBool,
    began: Instant,
}

/// The thread that polls the CQ next.
enum Poller {
    /// A thread of the program polls.
    Program,
    /// The node's thread polls, in place of a thread of the program that has polled before and sleeps now.
    ForProgram,
    /// The node's thread polls, because no thread of the program has polled lately.
    Thread,
}

/// The state of a node that its lock protects.
pub(crate) struct State {
    pub(crate) host: NodeHost,
    /// The QP of each path, if it has one, indexed by the number of the path.
    links: Vec<Option<Link>>,
    /// Connections that peers have requested and the protocol has accepted, and that no path has adopted yet.
    arrivals: FxHashMap<ArrivalId, Arrival>,
    owners: FxHashMap<Qpn, Owner>,
    /// Paths that need further receives posted.
    short: Vec<PathId>,
    slots: [Completion; POLLED],
    batch: Batch<'static>,
}

/// A connection that a peer has requested and the protocol has accepted, and that no path has adopted yet. Dropping it
/// stops the task that accepts.
struct Arrival {
    link: Option<Link>,
    _accepting: Task<()>,
}

/// The QP of a path or of an accepted request, with its connection and posted receives.
pub(crate) struct Link {
    pub(crate) qp: Qp,
    connection: Option<Connection>,
    /// The number of receives that the node keeps posted on the QP.
    wanted: usize,
    /// The slots of the posted receives, in the order in which they were posted and will complete.
    receives: VecDeque<Slot>,
    /// Fragments that arrived before this side knew that the connection is established, each with its length.
    early: Vec<(Slot, usize)>,
    /// Slots of headers and congestion maps that are being sent, each with the number of its request, until the request is
    /// complete.
    headers: VecDeque<(u64, Slot)>,
}

thread_local! {
    /// The node whose CQ this thread is polling at the moment; null outside of a poll.
    static POLLED_NODE: Cell<*const Node> = const { Cell::new(ptr::null()) };
}

/// The nodes of this process, each with the number of its sockets.
#[derive(Default)]
struct Nodes {
    all: Vec<(Arc<Node>, usize)>,
}

/// The nodes of this process. A child of a fork begins without any, because the threads and connections of its parent do
/// not exist there.
static NODES: PerProcess<Mutex<Nodes>> = PerProcess::new(Mutex::default);

/// The number of [`Sleeping`] values: threads of the program that sleep or are about to.
static SLEEPING: AtomicUsize = AtomicUsize::new(0);

/// Marks a thread of the program that sleeps, or is about to sleep, in a call of its own such as `poll` until the readiness
/// of a socket changes.
///
/// While threads of the program poll, the nodes' threads leave the CQs to them and only check occasionally whether they
/// still poll. As long as a `Sleeping` exists, the nodes' threads poll instead and report each change at once
/// ([`RdsSocket::on_change`](crate::RdsSocket::on_change)). Creating one takes no lock, so that a signal handler may do it.
#[derive(Debug)]
#[must_use = "changes are reported at once only while it exists"]
pub struct Sleeping(());

impl Sleeping {
    /// Marks the calling thread. It must be created before the thread last checks the socket: then each later change is
    /// reported.
    #[expect(clippy::new_without_default, reason = "creating one has an effect")]
    pub fn new() -> Self {
        SLEEPING.fetch_add(1, Ordering::SeqCst);
        reclaim_polling();
        Self(())
    }

    /// Ends one `Sleeping` that was leaked by [`std::mem::forget`], for callers that cannot store it.
    pub fn forgotten_is_over() {
        drop(Self(()));
    }

    /// Whether any thread of this process is marked as sleeping.
    pub(crate) fn is_any() -> bool {
        SLEEPING.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        SLEEPING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Wakes the threads of those nodes that have left their CQ to threads of the program. A node that is being created or
/// closed at this moment polls soon anyway.
fn reclaim_polling() {
    let Some(nodes) = NODES.made() else {
        return;
    };
    let Some(nodes) = nodes.try_lock() else {
        return;
    };
    for (node, _) in &nodes.all {
        if node.is_left_to_polls.load(Ordering::SeqCst) {
            node.kick();
        }
    }
}

impl Node {
    /// The node of a local address, for one further socket: the one that this process has already, or a new one over this
    /// device.
    pub(crate) fn acquire(
        at: SocketAddr,
        device: impl FnOnce() -> Result<Device, DeviceError>,
    ) -> Result<Arc<Self>, RdsError> {
        let mut nodes = NODES.lock();
        if let Some((node, sockets)) = nodes.all.iter_mut().find(|(node, _)| node.at == at.ip()) {
            *sockets += 1;
            return Ok(Arc::clone(node));
        }
        let device = device().map_err(|error| RdsError::no_device(at, error))?;
        let node = Self::start(at, &device)?;
        nodes.all.push((Arc::clone(&node), 1));
        Ok(node)
    }

    /// Gives up the node for one socket. With its last socket, a node ends its connections and is closed when this returns.
    pub(crate) fn release(self: &Arc<Self>) {
        let mut nodes = NODES.lock();
        let Some(place) = nodes
            .all
            .iter()
            .position(|(node, _)| Arc::ptr_eq(node, self))
        else {
            return;
        };
        let sockets = &mut nodes.all[place].1;
        *sockets -= 1;
        if *sockets == 0 {
            nodes.all.swap_remove(place);
            self.close();
        }
    }

    fn close(self: &Arc<Self>) {
        drop(self.listener.lock().take());
        drop(self.presence.lock().take());
        drop(self.followed.lock().take());
        // Peers keep each message until it is acknowledged, so everything that arrived is acknowledged before the end.
        self.poll_with(|state| state.host.acknowledge_all());
        let links = self.lock().take_links();
        // A peer that does not confirm the disconnect notices the end by itself. Until then, or until it has answered a
        // request, the device would stay open.
        let _ = self.connector.end_all().wait_for(FAREWELL);
        self.connector.abandon_all();
        drop(links);
        self.kick();
    }

    fn start(at: SocketAddr, device: &Device) -> Result<Arc<Self>, RdsError> {
        let context = device.open(&Requirements::everything_of(&device.attributes()));
        let context = context.map_err(|error| RdsError::no_device(at, error))?;
        let flow_control = match context.attributes().transport {
            // On iWARP a message that finds no posted receive ends the connection.
            Transport::Iwarp => FlowControl::Required,
            _ => FlowControl::Accepted,
        };
        let limits = HostLimits {
            flow_control,
            ..HostLimits::default()
        };
        let pd = context.alloc_pd().wait()?;
        let connector = Connector::of(&context).map_err(|error| RdsError::no_device(at, error))?;
        let host = Host::new(at.ip(), limits, polyverbs::provider::random());
        let node = Arc::new(Self {
            at: at.ip(),
            cq: context.create_cq(FIRST_ENTRIES).wait()?,
            pool: Pool::new(&pd),
            state: Mutex::new(State {
                host,
                links: Vec::new(),
                arrivals: FxHashMap::default(),
                owners: FxHashMap::default(),
                short: Vec::new(),
                slots: Default::default(),
                batch: Batch::new(),
            }),
            sockets: Mutex::default(),
            listener: Mutex::new(None),
            presence: Mutex::new(None),
            followed: Mutex::new(None),
            tasks: Arc::new(Executor::new()),
            thread: OnceLock::new(),
            polls: AtomicU64::new(0),
            armed_after: AtomicU64::new(0),
            is_left_to_polls: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
            began: Instant::now(),
            context,
            pd,
            connector,
        });
        // The thread runs before this process can become the leader: a leader without a thread would serve no request.
        let (weak, tasks) = (Arc::downgrade(&node), Arc::clone(&node.tasks));
        let thread = start_thread("rds", move || drive(&weak, &tasks))
            .map_err(|error| RdsError::no_device(at, VerbError::os("thread", error)))?;
        let thread = thread.thread().clone();
        let (weak, waker) = (Arc::downgrade(&node), thread.clone());
        let _ = node.thread.set(thread);
        node.cq
            .on_completion(move |_| match POLLED_NODE.get() == weak.as_ptr() {
                // This thread is inside a poll and holds the lock, so the node's thread, if it woke now, would only wait
                // for it.
                true => {
                    if let Some(node) = weak.upgrade() {
                        node.is_notified.store(true, Ordering::Relaxed);
                    }
                }
                false => waker.unpark(),
            });
        if !node.lead() {
            let listener = connect::listen_as_member(&node.connector, at);
            let listener = listener.map_err(|error| RdsError::no_device(at, error))?;
            let role = Role::Member(listener.address().port());
            node.with(|state| state.host.set_role(role));
            *node.listener.lock() = Some(listener);
            node.spawn(connect::accept_all(Arc::downgrade(&node)));
        }
        Ok(node)
    }

    /// Makes this process the leader of the address, which peers connect to, unless another process is. Returns whether
    /// this process is the leader now.
    pub(crate) fn lead(self: &Arc<Self>) -> bool {
        let mut presence = self.presence.lock();
        if presence.is_some() {
            return true;
        }
        let at = SocketAddr::new(self.at, 0);
        let Ok(listener) = connect::listen(&self.connector, at) else {
            return false;
        };
        let incarnation = self.lock().host.incarnation();
        *presence = Some(ports::present(self.at, incarnation));
        self.lock().host.set_role(Role::Leader);
        *self.listener.lock() = Some(listener);
        drop(presence);
        // Actions of the protocol call callbacks of programs, which may close the node, so they run without the lock of
        // `presence`.
        self.with(|_| ());
        self.spawn(connect::accept_all(Arc::downgrade(self)));
        true
    }

    /// Starts a thread that notices the end of the leader of the address, whose private data is `told`, and reports it to
    /// the protocol. No effect if a thread waits for this leader already.
    pub(crate) fn follow(self: &Arc<Self>, told: &ConnectData) {
        let leader = told.member;
        let mut followed = self.followed.lock();
        if followed.as_ref().is_some_and(|(known, _)| *known == leader) {
            return;
        }
        // Without the thread, liveness probes of the connection find the leader's end later.
        let Ok((ours, waits)) = Followed::leader(self.at, told.incarnation) else {
            return;
        };
        *followed = Some((leader, ours));
        let node = Arc::downgrade(self);
        let _ = start_thread("rds-leader", move || {
            waits.wait();
            if let Some(node) = node.upgrade() {
                node.with(|state| state.host.handle_leader_gone(leader));
            }
        });
    }

    /// Whether this process is the leader of the address, which peers connect to.
    pub(crate) fn is_leader(&self) -> bool {
        self.lock().host.role() == Role::Leader
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task).detach();
        self.kick();
    }

    /// Starts the task that accepts a peer's connection request, unless the protocol no longer wants it.
    pub(crate) fn spawn_accepting(
        &self,
        arrival: ArrivalId,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut state = self.lock();
        if state.host.is_awaited(arrival) {
            // The task needs the lock to find its entry, which is inserted before the lock is released.
            let (link, _accepting) = (None, self.tasks.spawn(task));
            state.arrivals.insert(arrival, Arrival { link, _accepting });
            self.kick();
        }
    }

    fn kick(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Wakes the waiters of this socket from now on whenever the protocol reports a change of it.
    pub(crate) fn attach(&self, socket: SocketId, shared: &Arc<Shared>) {
        self.sockets.lock().insert(socket, Arc::clone(shared));
    }

    pub(crate) fn detach(&self, socket: SocketId) {
        self.sockets.lock().remove(&socket);
    }

    /// Runs `work` under the lock, posts the requests that the protocol wants to send, and runs the actions that it asks
    /// for.
    pub(crate) fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let outcome = work(&mut state);
        state.transmit(self);
        self.finish(state);
        outcome
    }

    /// Polls the CQ, then does the same as [`with`](Self::with).
    pub(crate) fn poll_with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        state.poll(self);
        let outcome = work(&mut state);
        self.finish_poll(state);
        outcome
    }

    /// Does the same as [`poll_with`](Self::poll_with), but polls the CQ after `work`, so that a message is sent before the
    /// poll. If `work` would block and the poll finds completions, `work` runs again.
    pub(crate) fn attempt<R>(
        self: &Arc<Self>,
        mut work: impl FnMut(&mut State) -> Result<R, RdsError>,
    ) -> Result<R, RdsError> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let mut outcome = work(&mut state);
        state.transmit(self);
        let blocks = matches!(outcome, Err(RdsError::WouldBlock | RdsError::Congested));
        if state.poll(self) && blocks {
            outcome = work(&mut state);
        }
        self.finish_poll(state);
        outcome
    }

    fn finish_poll<'s>(self: &'s Arc<Self>, mut state: MutexGuard<'s, State>) {
        state.transmit(self);
        self.finish(state);
        // This thread has consumed the notification, which disarmed the CQ: the node's thread is woken to arm it again.
        if self.is_notified.load(Ordering::Relaxed)
            && self.is_notified.swap(false, Ordering::Relaxed)
            && !self.is_left_to_polls.load(Ordering::SeqCst)
        {
            self.kick();
        }
    }

    /// Carries out the actions of the protocol and releases the lock. Returns whether one of them was to wake a socket's
    /// waiters.
    fn finish<'s>(self: &'s Arc<Self>, mut state: MutexGuard<'s, State>) -> bool {
        let mut has_told = false;
        while let Some(action) = state.host.poll_action() {
            if let Action::Wake(socket) = action {
                has_told = true;
                // If the socket has no waiter, no thread has to be woken and the lock need not be released.
                let sockets = self.sockets.lock();
                let is_watched = sockets
                    .get(&socket)
                    .is_some_and(|shared| shared.watch.is_watched());
                if !is_watched {
                    continue;
                }
            }
            drop(state);
            self.act(action);
            state = self.lock();
        }
        has_told
    }

    /// Arms the CQ, so that the node's thread continues when a completion arrives. A thread of the program calls it before
    /// it stops polling. Returns true if there are completions already, so that it has to poll again.
    pub(crate) fn arm(&self) -> bool {
        self.armed_after
            .store(self.polls.load(Ordering::SeqCst), Ordering::SeqCst);
        // A device that has gone generates no completions to wait for.
        self.cq.arm(Notify::Next).unwrap_or(false)
    }

    fn act(self: &Arc<Self>, action: Action) {
        let this = Arc::downgrade(self);
        match action {
            Action::Wake(socket) => {
                let shared = self.sockets.lock().get(&socket).cloned();
                if let Some(shared) = shared {
                    shared.watch.wake();
                }
            }
            Action::Connect { path, to, data } => {
                let attempt = self.lock().host.attempt(path);
                if let Some(attempt) = attempt {
                    self.spawn(connect::connect(this, (path, attempt), to, data));
                }
            }
            Action::End(path) => self.end(path),
            Action::Withdraw(arrival) => self.withdraw(arrival),
            Action::Adopt {
                path,
                arrival,
                told,
            } => {
                let is_wanted = self.with(|state| {
                    let is_wanted = state.host.attempt(path).is_some();
                    if is_wanted {
                        state.host.handle_connected(path, &told);
                        state.adopt(self, path, arrival);
                    }
                    is_wanted
                });
                if !is_wanted {
                    self.withdraw(arrival);
                }
            }
            Action::FindOwner(port) => {
                if !PortLock::is_taken(SocketAddr::new(self.at, port)) {
                    self.with(|state| state.host.handle_port_free(port));
                }
            }
            Action::Used { socket, rkey } => {
                let shared = self.sockets.lock().get(&socket).cloned();
                if let Some(shared) = shared {
                    shared.keys.used(rkey);
                }
            }
        }
    }

    /// Abandons an accepted connection request and destroys its QP.
    pub(crate) fn withdraw(self: &Arc<Self>, arrival: ArrivalId) {
        let mut state = self.lock();
        state.host.handle_withdrawn(arrival);
        let gone = state.arrivals.remove(&arrival);
        drop(state);
        if let Some(link) = gone.and_then(|gone| gone.link) {
            self.spawn(connect::discard(Arc::downgrade(self), link));
        }
    }

    fn end(self: &Arc<Self>, path: PathId) {
        let mut state = self.lock();
        match state.take_link(path) {
            Some(link) => {
                drop(state);
                self.spawn(connect::end(Arc::downgrade(self), path, link));
            }
            // The path has no QP yet: the task that is creating one will find that the attempt is over and drop it.
            None => {
                let now = self.now();
                state.host.handle_gone(now, path);
                self.finish(state);
            }
        }
    }

    /// Waits until these work requests of paths are complete. The wait ends in any case: if a peer takes longer than the
    /// socket's patience, the protocol ends the connection, which flushes the requests.
    pub(crate) fn wait_completed(self: &Arc<Self>, pending: &[(PathId, u64)]) {
        for &(path, request) in pending {
            let is_completed = |state: &mut State| {
                state.host.handle_timeout(self.now());
                state.host.is_completed(path, request)
            };
            while !self.poll_with(is_completed) {
                thread::yield_now();
            }
        }
    }

    /// One iteration of the node's thread: handles timeouts, polls the CQ and posts requests. Returns how long the thread
    /// may sleep; `None` if it may sleep until it is woken.
    fn turn(self: &Arc<Self>, polls: &mut u64, busy_until: &mut Duration) -> Option<Duration> {
        let mut state = self.lock();
        let now = self.now();
        state.host.handle_timeout(now);
        let has_found = state.poll(self);
        state.transmit(self);
        let due = state.host.next_due();
        let has_told = self.finish(state);
        let due = due.map(|due| due.saturating_sub(now));
        match self.next_poller(polls) {
            Poller::Program => return Some(due.map_or(POLL_CHECK, |due| due.min(POLL_CHECK))),
            // The answer that the program waits for may arrive in less time than it takes to wake this thread.
            Poller::ForProgram => *busy_until = now + *SPIN_TIME,
            Poller::Thread => {}
        }
        // A part of a message has arrived, so more fragments follow. Polling finds them in less time than it takes to wake
        // this thread.
        if has_told {
            *busy_until = now;
        } else if has_found {
            *busy_until = now + *SPIN_TIME;
        }
        if now < *busy_until {
            return Some(Duration::ZERO);
        }
        match self.cq.arm(Notify::Next).unwrap_or(false) {
            false => due,
            true => Some(Duration::ZERO),
        }
    }

    /// Decides which thread polls the CQ next, by whether threads of the program have polled since the last iteration.
    /// `polls` is the count of polls at that time and is updated.
    fn next_poller(&self, polls: &mut u64) -> Poller {
        let found = self.polls.load(Ordering::SeqCst);
        let have_polled = std::mem::replace(polls, found) != found;
        let is_armed = self.armed_after.load(Ordering::SeqCst) == found;
        let is_left = have_polled && !is_armed;
        self.is_left_to_polls.store(is_left, Ordering::SeqCst);
        // A thread of the program that begins to sleep after this store sees that the CQ is left to programs, and wakes the
        // node's thread.
        match is_left {
            true if Sleeping::is_any() => {
                self.is_left_to_polls.store(false, Ordering::SeqCst);
                Poller::ForProgram
            }
            true => Poller::Program,
            false => Poller::Thread,
        }
    }

    /// The transport of the node's device.
    pub(crate) fn transport(&self) -> Transport {
        self.context.attributes().transport
    }

    pub(crate) fn counters(&self) -> Counters {
        self.lock().host.counters()
    }
}

impl Drop for Node {
    /// Wakes the node's thread, which ends because the node is gone.
    fn drop(&mut self) {
        self.kick();
    }
}

/// The main loop of the node's thread: runs tasks, then one `turn` of the node. It returns when the node is
/// gone.
fn drive(node: &Weak<Node>, tasks: &Executor<'static>) {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = TaskContext::from_waker(&waker);
    let mut run = pin!(tasks.run(pending::<()>()));
    let (mut polls, mut busy_until) = (0, Duration::ZERO);
    loop {
        let _ = run.as_mut().poll(&mut cx);
        let Some(node) = node.upgrade() else {
            return;
        };
        let sleep = node.turn(&mut polls, &mut busy_until);
        drop(node);
        match sleep {
            Some(time) if time.is_zero() => thread::yield_now(),
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

/// A function that chooses the RDMA device of a local address. It returns `None` if it has no device for the address, so
/// that the default search follows.
pub type DeviceSource = fn(IpAddr) -> Option<Result<Device, EmulatedDeviceError>>;

static SOURCE: MadeOnce<DeviceSource> = MadeOnce::new();

/// Sets the function that the sockets of this process ask for devices before the default search. Only the first call has an
/// effect.
pub fn look_first_at(source: DeviceSource) {
    SOURCE.get_or_make(|| source);
}

/// Finds the RDMA device at a local address: the one of the [`DeviceSource`], else a registered one, preferably of the
/// wanted transport. If there is none, creates an emulated device there.
pub(crate) fn device_of(at: IpAddr, wanted: Option<RdsTransport>) -> Result<Device, DeviceError> {
    if let Some(found) = SOURCE.made().and_then(|source| source(at)) {
        return Ok(found?);
    }
    let registered = registry().ok();
    let mut found = registered.map_or_else(Vec::new, |registry| devices_at(&registry, at));
    let is_other = |device: &Device| {
        let has = RdsTransport::of(device.attributes().transport);
        wanted.is_some_and(|wanted| wanted != has)
    };
    found.sort_by_key(is_other);
    let kind = match wanted {
        Some(RdsTransport::Iwarp) => "iw0",
        _ => "ib0",
    };
    match found.into_iter().next() {
        Some(device) => Ok(device),
        None => Ok(device_at(kind, at, &EmulatedOptions::default())?),
    }
}

impl State {
    /// Adds the QP of a connection that is being established to its path or accepted request. Returns false if the protocol
    /// no longer wants that connection.
    pub(crate) fn add_link(&mut self, purpose: Purpose, qp: &Qp, receives: VecDeque<Slot>) -> bool {
        let link = Link {
            qp: qp.clone(),
            connection: None,
            wanted: receives.len(),
            receives,
            early: Vec::new(),
            headers: VecDeque::new(),
        };
        let (owner, place) = match purpose {
            Purpose::Attempt(made) if self.is_wanted(made, None) => {
                (Owner::Path(made.0), self.place(made.0))
            }
            Purpose::Attempt(_) => return false,
            Purpose::Arrival(arrival) => match self.arrivals.get_mut(&arrival) {
                Some(of) => (Owner::Arrival(arrival), &mut of.link),
                None => return false,
            },
        };
        if place.is_some() {
            return false;
        }
        *place = Some(link);
        self.owners.insert(qp.qp_num(), owner);
        true
    }

    fn place(&mut self, path: PathId) -> &mut Option<Link> {
        if self.links.len() <= path.index() {
            self.links.resize_with(path.index() + 1, || None);
        }
        &mut self.links[path.index()]
    }

    /// Handles the completion by the peer of a connection that it has requested: gives the connection to the path, unless
    /// the path has to end an older one first.
    pub(crate) fn accepted(
        &mut self,
        node: &Node,
        arrival: ArrivalId,
        connection: Connection,
        told: &ConnectData,
    ) {
        let of = self.arrivals.get_mut(&arrival);
        let Some(link) = of.and_then(|of| of.link.as_mut()) else {
            return;
        };
        link.connection = Some(connection);
        if let Some(path) = self.host.handle_accepted(arrival, told) {
            self.adopt(node, path, arrival);
        }
    }

    /// Gives the QP and connection of an accepted request to a path that has none.
    fn adopt(&mut self, node: &Node, path: PathId, arrival: ArrivalId) {
        let of = self.arrivals.remove(&arrival);
        let Some(link) = of.and_then(|of| of.link) else {
            // The peer has ended the connection in the meantime.
            return self.host.handle_lost(path);
        };
        self.owners.insert(link.qp.qp_num(), Owner::Path(path));
        *self.place(path) = Some(link);
        self.take_early(node, path);
    }

    /// Handles the end of a QP's connection: notifies the protocol if the QP belongs to a path. If it belongs to an
    /// accepted request, returns that request, for the caller to withdraw.
    pub(crate) fn lost(&mut self, qp: &Qp) -> Option<ArrivalId> {
        match self.owners.get(&qp.qp_num()) {
            Some(&Owner::Path(path)) if self.has_link(path, qp) => self.host.handle_lost(path),
            Some(&Owner::Arrival(arrival)) => return Some(arrival),
            _ => {}
        }
        None
    }

    /// Whether the protocol still wants this attempt to connect and, if `qp` is given, the path still has that QP.
    pub(crate) fn is_wanted(&self, (path, attempt): Made, qp: Option<&Qp>) -> bool {
        self.host.attempt(path) == Some(attempt) && qp.is_none_or(|qp| self.has_link(path, qp))
    }

    /// The number of QPs that the node has.
    pub(crate) fn links(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn has_link(&self, path: PathId, qp: &Qp) -> bool {
        let link = self.links.get(path.index());
        link.is_some_and(|link| link.as_ref().is_some_and(|link| link.qp == *qp))
    }

    fn take_links(&mut self) -> Vec<Link> {
        self.owners.clear();
        let arrivals = self.arrivals.drain().filter_map(|(_, of)| of.link);
        self.links.drain(..).flatten().chain(arrivals).collect()
    }

    pub(crate) fn take_link(&mut self, path: PathId) -> Option<Link> {
        self.links.get_mut(path.index())?.take()
    }

    /// Forgets which path or request a QP belongs to; its later completions are ignored.
    pub(crate) fn forget(&mut self, qp: &Qp) {
        self.owners.remove(&qp.qp_num());
    }

    /// Stores the established connection of a path, handles the fragments that arrived before this side knew of it, and
    /// posts new receives for them.
    pub(crate) fn connected(&mut self, node: &Node, path: PathId, connection: Connection) {
        if let Some(Some(link)) = self.links.get_mut(path.index()) {
            link.connection = Some(connection);
            self.take_early(node, path);
        }
    }

    fn take_early(&mut self, node: &Node, path: PathId) {
        let early = self
            .place(path)
            .as_mut()
            .map(|link| std::mem::take(&mut link.early));
        for (slot, length) in early.unwrap_or_default() {
            handle_fragment(&mut self.host, path, slot, length);
        }
        self.short.push(path);
        self.refill(node);
    }

    /// Polls the CQ until it is empty and handles the completions. Returns whether there were any.
    fn poll(&mut self, node: &Node) -> bool {
        let mut found = false;
        loop {
            POLLED_NODE.set(node);
            let done = node.cq.poll(&mut self.slots);
            POLLED_NODE.set(ptr::null());
            let Ok(done) = done else { return found };
            let count = done.len();
            found |= count > 0;
            for number in 0..count {
                let (wr_id, status) = (self.slots[number].wr_id, self.slots[number].status);
                let (qpn, length) = (self.slots[number].qp_num, self.slots[number].byte_len);
                match self.owners.get(&qpn) {
                    Some(&Owner::Path(path)) => {
                        self.completed(path, wr_id, status, length as usize);
                    }
                    Some(&Owner::Arrival(arrival)) => {
                        self.completed_early(arrival, status, length as usize);
                    }
                    None => {}
                }
            }
            self.refill(node);
            if count < POLLED {
                return found;
            }
        }
    }

    /// Keeps a fragment that arrived before the peer's RTU, until a path adopts the connection.
    fn completed_early(&mut self, arrival: ArrivalId, status: WcStatus, length: usize) {
        let of = self.arrivals.get_mut(&arrival);
        let Some(link) = of.and_then(|of| of.link.as_mut()) else {
            return;
        };
        let slot = link.receives.pop_front();
        link.early.extend(
            slot.filter(|_| status.is_success())
                .map(|slot| (slot, length)),
        );
    }

    fn completed(&mut self, path: PathId, wr_id: u64, status: WcStatus, length: usize) {
        // `None` if the connection of the path has ended: then completions only report the outcomes of its requests.
        let link = self.links.get_mut(path.index()).and_then(Option::as_mut);
        if wr_id & RECEIVE != 0 {
            let Some(link) = link else { return };
            let slot = link.receives.pop_front();
            if link.receives.len() + REFILLED.min(link.wanted / 4) <= link.wanted {
                self.short.push(path);
            }
            match slot {
                Some(slot) if status.is_success() && link.connection.is_none() => {
                    link.early.push((slot, length));
                }
                Some(slot) if status.is_success() => {
                    handle_fragment(&mut self.host, path, slot, length);
                }
                _ => self.host.handle_lost(path),
            }
            return;
        }
        match status {
            WcStatus::Success => {
                if let Some(link) = link {
                    while link.headers.front().is_some_and(|(last, _)| *last <= wr_id) {
                        link.headers.pop_front();
                    }
                }
                self.host.handle_completion(path, wr_id);
            }
            WcStatus::WrFlushErr => self.host.handle_lost(path),
            WcStatus::RemAccessErr => {
                self.host
                    .handle_failure(path, wr_id, OperationStatus::RemoteError);
            }
            _ => self
                .host
                .handle_failure(path, wr_id, OperationStatus::OtherError),
        }
    }

    /// Posts new receives on the paths that have consumed theirs.
    fn refill(&mut self, node: &Node) {
        let most = self.host.limits().receives as usize;
        while let Some(path) = self.short.pop() {
            let Some(Some(link)) = self.links.get_mut(path.index()) else {
                continue;
            };
            // Receives that are posted to a QP in the ERR state would complete at once, and a host advertises receives to a
            // peer only while it is connected.
            if link.connection.is_none() || !self.host.is_connected(path) {
                continue;
            }
            // A peer that consumes more than half of the receives between two polls gets twice as many.
            if link.receives.len() < link.wanted / 2 {
                link.wanted = (2 * link.wanted).min(most);
            }
            let missing = link.wanted.saturating_sub(link.receives.len());
            let posted = post_receives(node, &link.qp, &mut link.receives, missing);
            self.host.handle_posted_receives(path, posted);
        }
    }

    /// Posts the work requests that the protocol wants to send, on all paths.
    fn transmit(&mut self, node: &Node) {
        while let Some(path) = self.host.next_ready() {
            if let Some(Some(link)) = self.links.get_mut(path.index())
                && link.connection.is_some()
                && post_all(node, &mut self.host, path, link, &mut self.batch).is_err()
            {
                self.batch.clear();
                self.host.handle_lost(path);
            }
            self.host.settle(path);
        }
    }
}

impl Link {
    pub(crate) fn take_connection(&mut self) -> Option<Connection> {
        self.connection.take()
    }

    /// Destroys the QP and then frees the memory of its posted requests.
    pub(crate) async fn destroy(self) {
        // A QP that is still in use is destroyed by the device later.
        let _ = self.qp.destroy().await;
    }
}

fn handle_fragment(host: &mut NodeHost, path: PathId, slot: Slot, length: usize) {
    let header = slot.header();
    let header = &header[..length.min(HEADER)];
    let length = length.saturating_sub(HEADER);
    let slot = match host.held() > UNREAD {
        true => slot.shortened(length),
        false => slot,
    };
    // A malformed fragment ends the connection. No caller needs the error.
    let _ = host.handle_fragment(path, header, length, slot);
}

/// Posts up to `count` receives. Returns the number that were posted; fewer if there is no memory or the receive queue is
/// full.
pub(crate) fn post_receives(
    node: &Node,
    qp: &Qp,
    receives: &mut VecDeque<Slot>,
    count: usize,
) -> u32 {
    let mut posted = 0;
    for _ in 0..count {
        let Ok(slot) = node.pool.take(FRAGMENT) else {
            break;
        };
        if qp
            .post_receive(ReceiveRequest::new(RECEIVE, slot.room()))
            .is_err()
        {
            break;
        }
        receives.push_back(slot);
        posted += 1;
    }
    posted
}

/// Posts all work requests that a path has at the moment. Consecutive sends are posted together, up to the next RDMA
/// operation.
fn post_all(
    node: &Node,
    host: &mut NodeHost,
    path: PathId,
    link: &mut Link,
    batch: &mut Batch<'static>,
) -> Result<(), ()> {
    while let Some(transmit) = host.poll_transmit(path) {
        match transmit {
            Transmit::Send {
                request,
                header,
                payload,
                fence,
                signaled,
            } => {
                let sge = match payload {
                    Payload::Fragment { fragment, length } => {
                        fragment.write_header(&header.to_bytes());
                        fragment.sge(length)
                    }
                    Payload::None | Payload::Map(_) => {
                        let bytes = match payload {
                            Payload::Map(bytes) => bytes,
                            _ => &[],
                        };
                        let slot = node.pool.take(bytes.len()).map_err(|_| ())?;
                        slot.write_header(&header.to_bytes());
                        slot.write(0, bytes);
                        let sge = slot.sge(bytes.len());
                        link.headers.push_back((request, slot));
                        sge
                    }
                };
                let mut send = wr::Send::new(sge);
                send = match signaled {
                    true => send.signaled(request),
                    false => send.wr_id(request),
                };
                if fence {
                    send = send.fence();
                }
                batch.push(send.solicited());
            }
            Transmit::Operation {
                request, operation, ..
            } => {
                link.qp.post(batch).map_err(|_| batch.clear())?;
                operation.post(&link.qp, request).map_err(|_| ())?;
            }
        }
    }
    match batch.is_empty() {
        true => Ok(()),
        false => link.qp.post(batch).map_err(|_| batch.clear()),
    }
}
