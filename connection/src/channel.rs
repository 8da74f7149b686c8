//! Identifiers and event channels like librdmacm's: one queue with the events of many connections.
//!
//! A call on an identifier returns at once, and its outcome is an event of the identifier's channel. Dropping an event
//! acknowledges it. Destroying an identifier, or moving it to another channel, waits until its events are acknowledged.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs_api::{
    Context, Qp, Started, Transport, VerbError,
    provider::{Completer, Outcome},
};

use crate::connector::{Connection, ConnectionOptions, Connector, Incoming, Listener};
use verbs_api::provider::backend::{ConnectError, Refusal};

/// What happened to an identifier.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelEventKind {
    /// A connection request arrived: [`ChannelEvent::take_request`] has the identifier to answer with.
    ConnectRequest {
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The connection is established.
    Established {
        /// The peer's private data on the active side; empty on the passive one.
        private_data: Vec<u8>,
    },
    /// The peer rejected the connection.
    Rejected {
        /// Why, as far as the transport reports it.
        reason: Refusal,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The peer did not answer, or is unreachable.
    Unreachable,
    /// The connection failed for another reason.
    ConnectError(ConnectError),
    /// Either side has ended the connection.
    Disconnected,
    /// TIMEWAIT is over: the communication IDs may be used again. On InfiniBand only.
    TimewaitExit,
    /// The device was removed: the identifier must be destroyed.
    DeviceRemoval,
}

/// Events of identifiers, in the order in which they happen.
///
/// ```
/// use polyverbs::connection::{ConnectionOptions, EventChannel, ChannelEventKind, Identifier};
/// # use polyverbs::connection::Connector;
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// let channel = EventChannel::new();
/// let listener = Identifier::new(&channel, &connector, &device);
/// # let at = listener.listen("192.0.2.1:7471".parse()?, 8)?;
/// # let client = Identifier::new(&channel, &connector, &device);
/// client.connect(&near, at, ConnectionOptions::new());
/// # let (mut ends, mut established) = (Vec::new(), 0);
/// # while established < 2 {
/// let mut event = channel.next().wait()?;
/// match event.kind() {
///     ChannelEventKind::ConnectRequest { .. } => {
///         let asked = event.take_request().ok_or("it was taken")?;
///         asked.accept(&far, ConnectionOptions::new())?;
/// #         ends.push(asked);
///     }
///     ChannelEventKind::Established { .. } => established += 1, // once for each end
///     other => println!("{other:?}"),
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct EventChannel {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
}

type Taker = Completer<ChannelEvent, ConnectError>;
type Delivery = (Taker, ChannelEvent);

#[derive(Default)]
struct Queue {
    events: VecDeque<Queued>,
    takers: VecDeque<Taker>,
}

struct Queued {
    of: Arc<Inner>,
    kind: ChannelEventKind,
    request: Option<Identifier>,
}

/// An event. Dropping it acknowledges it.
pub struct ChannelEvent {
    of: Arc<Inner>,
    kind: ChannelEventKind,
    request: Option<Identifier>,
}

impl EventChannel {
    /// An empty channel.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next event, if one waits.
    pub fn poll(&self) -> Option<ChannelEvent> {
        self.shared.lock().events.pop_front().map(Queued::hand_out)
    }

    /// The next event. If the result is dropped unclaimed the event stays in the queue.
    pub fn next(&self) -> Started<ChannelEvent, ConnectError> {
        let (started, completer) = Started::pending_or(|unclaimed: Result<ChannelEvent, _>| {
            if let Ok(event) = unclaimed {
                let queued = event.back();
                Arc::clone(&queued.of).queue(queued, true);
            }
        });
        let mut queue = self.shared.lock();
        let first = queue.events.pop_front().map(Queued::hand_out);
        if first.is_none() {
            queue.takers.retain(Completer::is_wanted);
            queue.takers.push_back(completer.clone());
        }
        drop(queue);
        if let Some(first) = first {
            completer.complete(Ok(first));
        }
        started
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event. If a taker waits for one it is returned with the event, to be completed with no lock held.
    fn push(&self, queued: Queued, is_first: bool) -> Option<Delivery> {
        let mut queue = self.lock();
        match queue.takers.pop_front() {
            Some(taker) => return Some((taker, queued.hand_out())),
            None if is_first => queue.events.push_front(queued),
            None => queue.events.push_back(queued),
        }
        None
    }

    /// Takes out the events of this identifier.
    fn withdraw(&self, of: &Arc<Inner>) -> Vec<Queued> {
        let mut queue = self.lock();
        let (own, others) = std::mem::take(&mut queue.events)
            .into_iter()
            .partition(|queued: &Queued| Arc::ptr_eq(&queued.of, of));
        queue.events = others;
        own.into()
    }
}

impl Queued {
    // Called with the queue locked: an identifier that is destroyed or moved finds each of its events queued or counted.
    fn hand_out(self) -> ChannelEvent {
        self.of.unacknowledged.fetch_add(1, Ordering::AcqRel);
        ChannelEvent {
            of: self.of,
            kind: self.kind,
            request: self.request,
        }
    }
}

impl ChannelEvent {
    /// What happened.
    pub const fn kind(&self) -> &ChannelEventKind {
        &self.kind
    }

    /// Whether it is an event of this identifier.
    pub fn is_of(&self, identifier: &Identifier) -> bool {
        Arc::ptr_eq(&self.of, &identifier.inner)
    }

    /// The identifier of a connection request, once. If it is not taken the request is refused.
    pub fn take_request(&mut self) -> Option<Identifier> {
        self.request.take()
    }

    fn back(mut self) -> Queued {
        let kind = std::mem::replace(&mut self.kind, ChannelEventKind::Disconnected);
        Queued {
            of: Arc::clone(&self.of),
            kind,
            request: self.request.take(),
        }
    }
}

impl Drop for ChannelEvent {
    fn drop(&mut self) {
        if self.of.unacknowledged.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.of.acknowledged();
        }
    }
}

/// A listener or one side of a connection, with a channel for its events. Dropping it destroys it.
///
/// ```
/// use polyverbs::connection::{Connector, EventChannel, Identifier};
/// # use polyverbs::{Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// let channel = EventChannel::new();
/// let identifier = Identifier::new(&channel, &Connector::of(&device)?, &device);
/// let at = identifier.listen("192.0.2.1:0".parse()?, 8)?;
/// assert_eq!(identifier.address(), Some(at));
/// identifier.destroy().wait()?; // completes when its events have been dropped
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Identifier {
    inner: Arc<Inner>,
}

struct Inner {
    connector: Connector,
    context: Context,
    /// Events handed out and not dropped yet.
    unacknowledged: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    channel: Arc<Shared>,
    role: Role,
    /// The channel that it is moving to, and its events meanwhile.
    moves: Option<(Arc<Shared>, Vec<Queued>)>,
    is_destroyed: bool,
    /// Calls that wait until all events are acknowledged.
    waiters: Vec<Completer<(), ConnectError>>,
    /// Reports the removal of the device until it is completed.
    removal: Option<Outcome<()>>,
}

/// What an identifier is.
enum Role {
    Unused,
    Listener(Arc<Listener>),
    Request(Incoming),
    Connection(Arc<Connection>),
}

impl Identifier {
    /// An unused identifier.
    pub fn new(channel: &EventChannel, connector: &Connector, context: &Context) -> Self {
        Self::of(&channel.shared, connector, context, Role::Unused)
    }

    fn of(channel: &Arc<Shared>, connector: &Connector, context: &Context, role: Role) -> Self {
        let (removed, removal) = context.begin::<()>();
        let inner = Arc::new(Inner {
            connector: connector.clone(),
            context: context.clone(),
            unacknowledged: AtomicUsize::new(0),
            state: Mutex::new(State {
                channel: Arc::clone(channel),
                role,
                moves: None,
                is_destroyed: false,
                waiters: Vec::new(),
                removal: Some(removal),
            }),
        });
        let weak = Arc::downgrade(&inner);
        removed.on_done(move |outcome| {
            if let (Err(VerbError::DeviceRemoved), Some(inner)) = (outcome, weak.upgrade()) {
                inner.post(ChannelEventKind::DeviceRemoval, None);
            }
        });
        Self { inner }
    }

    /// Listens at an address; each request is an event with an identifier of its own. For port 0 one is assigned.
    ///
    /// # Errors
    /// The address is in use; the identifier is in use.
    pub fn listen(&self, at: SocketAddr, backlog: usize) -> Result<SocketAddr, ConnectError> {
        let listener = Arc::new(self.inner.connector.listen(at, backlog)?);
        let at = listener.address();
        self.inner
            .take_role(Role::Listener(Arc::clone(&listener)))?;
        hear(Arc::downgrade(&self.inner), &listener);
        Ok(at)
    }

    /// The address at which it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.inner.lock().role {
            Role::Listener(listener) => Some(listener.address()),
            _ => None,
        }
    }

    /// Requests a connection, and completes it when the peer accepts.
    pub fn connect(&self, qp: &Qp, to: SocketAddr, options: ConnectionOptions) {
        let inner = &self.inner;
        let asked = inner.connector.connect(&inner.context, qp, to, options);
        let weak = Arc::downgrade(inner);
        asked.on_done(move |asked| match asked {
            Ok(accepted) => {
                let private_data = accepted.private_data().to_vec();
                let completed = accepted.complete();
                completed.on_done(move |done| established(&weak, done, private_data));
            }
            Err(error) => established(&weak, Err(error), Vec::new()),
        });
    }

    /// Accepts the connection request of this identifier.
    ///
    /// # Errors
    /// It has none, or has answered it.
    pub fn accept(&self, qp: &Qp, options: ConnectionOptions) -> Result<(), ConnectError> {
        let asked = self.inner.take_request_to_answer()?;
        let weak = Arc::downgrade(&self.inner);
        let then = {
            let weak = Weak::clone(&weak);
            move |done| established(&weak, done, Vec::new())
        };
        if let Err(error) = asked.accept_then(&self.inner.context, qp, options, then) {
            established(&weak, Err(error), Vec::new());
        }
        Ok(())
    }

    /// Refuses the connection request of this identifier.
    ///
    /// # Errors
    /// It has none, or has answered it; too much private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.inner.take_request_to_answer()?.reject(private_data)
    }

    /// Ends the connection, and flushes the queue pair.
    ///
    /// # Errors
    /// It is not connected.
    pub fn disconnect(&self, qp: &Qp) -> Result<(), ConnectError> {
        let connection = match &self.inner.lock().role {
            Role::Connection(connection) => Arc::clone(connection),
            _ => return Err(ConnectError::NotConnected),
        };
        // Its outcome is an event of the connection.
        connection
            .disconnect(&self.inner.context, qp)
            .on_done(|_| {});
        Ok(())
    }

    /// Moves to another channel with the events that wait. Completes when the events handed out are acknowledged.
    pub fn migrate(&self, channel: &EventChannel) -> Started<(), ConnectError> {
        let mut state = self.inner.lock();
        let waiting = state.channel.withdraw(&self.inner);
        let waiting = match state.moves.take() {
            Some((_, mut earlier)) => {
                earlier.extend(waiting);
                earlier
            }
            None => waiting,
        };
        state.moves = Some((Arc::clone(&channel.shared), waiting));
        self.inner.when_acknowledged(state)
    }

    /// Destroys the identifier with its listener, request or connection, and discards the events that wait. Completes when the
    /// events handed out are acknowledged.
    pub fn destroy(self) -> Started<(), ConnectError> {
        self.inner.give_up();
        self.inner.when_acknowledged(self.inner.lock())
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        self.inner.give_up();
    }
}

// The next request, and so on.
fn hear(inner: Weak<Inner>, listener: &Arc<Listener>) {
    let weak = Arc::downgrade(listener);
    listener.next().on_done(move |incoming| {
        let (Ok(incoming), Some(this), Some(listener)) =
            (incoming, inner.upgrade(), weak.upgrade())
        else {
            return;
        };
        let private_data = incoming.private_data().to_vec();
        let channel = Arc::clone(&this.lock().channel);
        let role = Role::Request(incoming);
        let request = Identifier::of(&channel, &this.connector, &this.context, role);
        this.post(
            ChannelEventKind::ConnectRequest { private_data },
            Some(request),
        );
        hear(inner, &listener);
    });
}

fn established(inner: &Weak<Inner>, done: Result<Connection, ConnectError>, private_data: Vec<u8>) {
    let Some(this) = inner.upgrade() else { return };
    let connection = match done {
        Ok(connection) => Arc::new(connection),
        Err(error) => return this.failed(error),
    };
    let (ended, timewait_exit) = (connection.disconnected(), connection.timewait_exit());
    if this.take_role(Role::Connection(connection)).is_err() {
        return;
    }
    this.post(ChannelEventKind::Established { private_data }, None);
    let weak = Weak::clone(inner);
    ended.on_done(move |_| {
        if let Some(this) = weak.upgrade() {
            this.post(ChannelEventKind::Disconnected, None);
        }
    });
    if this.context.attributes().transport == Transport::InfiniBand {
        let weak = Weak::clone(inner);
        timewait_exit.on_done(move |outcome| {
            if let (Ok(()), Some(this)) = (outcome, weak.upgrade()) {
                this.post(ChannelEventKind::TimewaitExit, None);
            }
        });
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_role(&self, role: Role) -> Result<(), ConnectError> {
        let mut state = self.lock();
        if state.is_destroyed || !matches!(state.role, Role::Unused) {
            drop(state);
            drop(role);
            return Err(ConnectError::Connected);
        }
        state.role = role;
        Ok(())
    }

    fn take_request_to_answer(&self) -> Result<Incoming, ConnectError> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.role, Role::Unused) {
            Role::Request(incoming) => Ok(incoming),
            other => {
                state.role = other;
                Err(ConnectError::NotConnected)
            }
        }
    }

    fn failed(self: &Arc<Self>, error: ConnectError) {
        let kind = match error {
            ConnectError::Refused {
                reason,
                private_data,
            } => ChannelEventKind::Rejected {
                reason,
                private_data,
            },
            ConnectError::TimedOut | ConnectError::Unreachable(_) => ChannelEventKind::Unreachable,
            // The removal is an event of its own.
            ConnectError::Verb(VerbError::DeviceRemoved) => return,
            error => ChannelEventKind::ConnectError(error),
        };
        self.post(kind, None);
    }

    fn post(self: &Arc<Self>, kind: ChannelEventKind, request: Option<Identifier>) {
        let queued = Queued {
            of: Arc::clone(self),
            kind,
            request,
        };
        self.queue(queued, false);
    }

    fn queue(&self, queued: Queued, is_first: bool) {
        let mut state = self.lock();
        let State {
            channel,
            moves,
            is_destroyed,
            ..
        } = &mut *state;
        if *is_destroyed {
            // Dropped with no lock held.
            drop(state);
            return drop(queued);
        }
        let delivery = match moves {
            Some((_, waiting)) => {
                let place = if is_first { 0 } else { waiting.len() };
                waiting.insert(place, queued);
                None
            }
            None => channel.push(queued, is_first),
        };
        drop(state);
        if let Some((taker, event)) = delivery {
            taker.complete(Ok(event));
        }
    }

    /// Completes when the program holds no event.
    fn when_acknowledged(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
    ) -> Started<(), ConnectError> {
        let (started, completer) = Started::pending();
        state.waiters.push(completer);
        drop(state);
        self.acknowledged();
        started
    }

    /// If the program holds no event, completes the calls that wait for that.
    fn acknowledged(&self) {
        let mut state = self.lock();
        if self.unacknowledged.load(Ordering::Acquire) > 0 {
            return;
        }
        let waiters = std::mem::take(&mut state.waiters);
        let moves = state.moves.take();
        if let Some((channel, _)) = &moves {
            state.channel = Arc::clone(channel);
        }
        let deliveries: Vec<_> = moves
            .into_iter()
            .flat_map(|(channel, waiting)| {
                let push = move |queued| channel.push(queued, false);
                waiting.into_iter().filter_map(push)
            })
            .collect();
        drop(state);
        for (taker, event) in deliveries {
            taker.complete(Ok(event));
        }
        for waiter in waiters {
            waiter.complete(Ok(()));
        }
    }

    fn give_up(self: &Arc<Self>) {
        let mut state = self.lock();
        state.is_destroyed = true;
        let role = std::mem::replace(&mut state.role, Role::Unused);
        let moves = state.moves.take();
        let removal = state.removal.take();
        let channel = Arc::clone(&state.channel);
        drop(state);
        let waiting = channel.withdraw(self);
        drop((role, moves, waiting));
        if let Some(removal) = removal {
            removal.complete(Ok(()));
        }
    }
}

opaque!(ChannelEvent, EventChannel, Identifier);
