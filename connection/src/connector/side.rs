//! One side of a connection: its events, and the calls and watchers that wait for them.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, Weak};

use polyverbs_engine::log_event;
use verbs_api::provider::backend::{
    Backend, BringUp, CmEvent, ConnectError, PrivateDataLimits, Refusal, Sink, Token,
};
use verbs_api::provider::{Completer, Mutex};
use verbs_api::qp::QpAttributes;
use verbs_api::{Context, Started, VerbError};

use super::Connector;
use super::offer::fits;
use super::request::{Request, begin};

/// The sides of the connections and requests of a connector, its clones and their listeners.
#[derive(Clone, Default)]
pub(super) struct Sides(Arc<Mutex<Vec<Weak<Side>>>>);

impl Sides {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Side>>> {
        self.0.lock()
    }

    fn add(&self, side: &Arc<Side>) {
        let mut sides = self.lock();
        // Those that were dropped make room, each time that the list would grow.
        if sides.len() == sides.capacity() {
            sides.retain(|side| side.strong_count() > 0);
            let room = 2 * sides.len();
            sides.shrink_to(room);
        }
        sides.push(Arc::downgrade(side));
    }

    pub(super) fn all(&self) -> Vec<Arc<Side>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Whether the peer's private data is padded before the program gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Private data is padded with zeros to the length of InfiniBand's messages.
    Padded,
    /// Private data has the length with which the transport delivers it.
    AsSent,
}

impl Padding {
    pub(super) fn pad(self, private_data: &mut Vec<u8>, length: usize) {
        if self == Self::Padded && private_data.len() < length {
            private_data.resize(length, 0);
        }
    }
}

// The event without what it carries.
pub(super) fn summary(event: &CmEvent) -> String {
    match event {
        CmEvent::Accepted(_) => "Accepted".to_owned(),
        CmEvent::Rejected(reason, _) => format!("Rejected({reason:?})"),
        other => format!("{other:?}"),
    }
}

pub(super) type Waiter = Box<dyn FnOnce(Option<CmEvent>) + Send>;

/// One end of a connection: its state, and the calls that wait for its events.
pub(super) struct Side {
    pub(super) backend: Arc<dyn Backend>,
    padding: Padding,
    state: Mutex<SideState>,
}

#[derive(Default)]
pub(super) struct SideState {
    pub(super) token: Option<Token>,
    /// Events that the backend has reported before the token was known; `None` afterwards.
    pub(super) early: Option<VecDeque<CmEvent>>,
    pub(super) waiter: Option<Waiter>,
    pub(super) watchers: Vec<Completer<(), ConnectError>>,
    pub(super) is_established: bool,
    /// How the connection has ended: whether the peer has ended it or has confirmed its end.
    pub(super) ended: Option<Result<(), ConnectError>>,
    /// Whether the program has given up its request.
    is_withdrawn: bool,
    /// The futures that wait for the end of TIMEWAIT.
    pub(super) timewait_watchers: Vec<Completer<(), ConnectError>>,
    pub(super) timewait_is_over: bool,
}

impl Side {
    pub(super) fn new(of: &Connector) -> Arc<Self> {
        let side = Arc::new(Self {
            backend: Arc::clone(&of.backend),
            padding: of.padding,
            state: Mutex::default(),
        });
        of.sides.add(&side);
        side
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SideState> {
        self.state.lock()
    }

    pub(super) fn set_token(&self, token: Token) {
        self.lock().token = Some(token);
    }

    /// Notes the token of the connection that the backend has started, and handles the events that the backend has reported
    /// before.
    pub(super) fn begun(&self, token: Token) {
        self.set_token(token);
        loop {
            let mut state = self.lock();
            if state.is_withdrawn {
                drop(state);
                return self.forget();
            }
            let Some(event) = state.early.as_mut().and_then(VecDeque::pop_front) else {
                state.early = None;
                return;
            };
            drop(state);
            self.handle(event);
        }
    }

    pub(super) fn token(&self) -> Result<Token, ConnectError> {
        self.lock().token.ok_or(ConnectError::NotConnected)
    }

    /// Returns the attributes for the three steps, for a program that modifies its queue pair itself.
    pub(super) fn steps(
        &self,
        planned: [QpAttributes; 3],
    ) -> Result<[QpAttributes; 3], ConnectError> {
        match self.backend.bring_up(self.token()?, planned)? {
            BringUp::Steps(steps) => Ok(*steps),
            BringUp::ByBackend => {
                let what = "a queue pair that the program brings up, where the device does it";
                Err(VerbError::UnsupportedHere(what.to_owned()).into())
            }
        }
    }

    pub(super) fn wait_for(&self, waiter: Waiter) {
        self.lock().waiter = Some(waiter);
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Gives up the connection or request of this side. A call that waits for an answer of the peer ends as canceled.
    pub(super) fn withdraw(&self) {
        let mut state = self.lock();
        state.is_withdrawn = true;
        let waiter = state.waiter.take();
        drop(state);
        if let Some(waiter) = waiter {
            waiter(None);
        }
        self.forget();
    }

    pub(super) fn forget(&self) {
        let token = self.lock().token.take();
        if let Some(token) = token {
            log_event!(DEBUG, "gives a connection up", end = token.0);
            self.backend.forget(token);
        }
    }
}

impl Side {
    /// Completes the futures that wait for the end of a connection which this side has forgotten: no event will come, and a task
    /// that awaited one would keep what it has for ever.
    pub(super) fn tell_watchers(&self) {
        let mut state = self.lock();
        let ended = state.ended.get_or_insert(Ok(())).clone();
        let watchers = std::mem::take(&mut state.watchers);
        let timewait_watchers = std::mem::take(&mut state.timewait_watchers);
        drop(state);
        for watcher in watchers {
            watcher.complete(ended.clone());
        }
        for watcher in timewait_watchers {
            watcher.complete(Err(VerbError::Canceled.into()));
        }
    }
}

impl Sink for Side {
    fn event(&self, event: CmEvent) {
        if let Some(early) = &mut self.lock().early {
            early.push_back(event);
            return;
        }
        self.handle(event);
    }
}

impl Side {
    fn handle(&self, mut event: CmEvent) {
        log_event!(
            DEBUG,
            "a connection has an event",
            end = self.end_number(),
            event = summary(&event),
        );
        let limits = PrivateDataLimits::INFINIBAND;
        match &mut event {
            CmEvent::Accepted(peer) => self.padding.pad(&mut peer.private_data, limits.accept),
            // A refusal for want of a listener has no private data.
            CmEvent::Rejected(_, said) if !said.is_empty() => self.padding.pad(said, limits.reject),
            _ => {}
        }
        let is_last = event == CmEvent::TimewaitExit;
        let is_end = !matches!(event, CmEvent::Accepted(_) | CmEvent::Completed) && !is_last;
        let mut state = self.lock();
        if is_end {
            state.ended.get_or_insert(match event {
                CmEvent::TimedOut => Err(ConnectError::TimedOut),
                _ => Ok(()),
            });
        }
        state.timewait_is_over |= is_last || is_end && !self.backend.has_timewait();
        let mut watchers = Vec::new();
        if let Some(ended) = state.ended.clone() {
            let told = state.watchers.drain(..);
            watchers.extend(told.map(|watcher| (watcher, ended.clone())));
        }
        if state.timewait_is_over {
            let over = state.timewait_watchers.drain(..);
            watchers.extend(over.map(|watcher| (watcher, Ok(()))));
        }
        let waiter = (!is_last).then(|| state.waiter.take()).flatten();
        drop(state);
        for (watcher, outcome) in watchers {
            watcher.complete(outcome);
        }
        if let Some(waiter) = waiter {
            waiter(Some(event));
        }
    }
}

impl Side {
    // What a log names it by: 0 before it has a token.
    fn end_number(&self) -> u64 {
        self.lock().token.map_or(0, |token| token.0)
    }

    // Ends the connection, or waits for the call that does.
    pub(super) fn end(&self, context: &Context) -> Started<(), ConnectError> {
        let mut state = self.lock();
        if state.waiter.is_some() {
            return watch(state.ended.clone(), &mut state.watchers);
        }
        drop(state);
        self.tell_peer(context, |request| request.end(Ok(())))
    }

    pub(super) fn tell_peer(
        &self,
        context: &Context,
        then: impl FnOnce(Arc<Request<()>>) + Send + 'static,
    ) -> Started<(), ConnectError> {
        let (started, request) = begin(context);
        let after: Waiter = Box::new(move |event| {
            if request.or_cancel(event).is_some() {
                then(request);
            }
        });
        let mut state = self.lock();
        let token = state.token;
        if state.ended.is_some() || token.is_none() {
            drop(state);
            after(Some(CmEvent::DisconnectConfirmed));
            return started;
        }
        let replaced = state.waiter.replace(after);
        drop(state);
        if let Some(replaced) = replaced {
            replaced(None);
        }
        if let Some(token) = token {
            log_event!(DEBUG, "disconnects", end = token.0);
            self.backend.disconnect(token);
        }
        started
    }
}

pub(super) fn reject(side: &Side, why: Refusal, private_data: &[u8]) -> Result<(), ConnectError> {
    if let Err(error) = fits(private_data, side.backend.private_data().reject) {
        side.forget();
        return Err(error);
    }
    let token = side.lock().token.take().ok_or(ConnectError::NotConnected)?;
    log_event!(
        DEBUG,
        "refuses a connection",
        end = token.0,
        reason = format_args!("{why:?}"),
    );
    side.backend.reject(token, why, private_data.to_vec());
    Ok(())
}

// Completes with the other `watchers`, or at once if there is an `outcome` already.
pub(super) fn watch(
    outcome: Option<Result<(), ConnectError>>,
    watchers: &mut Vec<Completer<(), ConnectError>>,
) -> Started<(), ConnectError> {
    if let Some(outcome) = outcome {
        return Started::ready(outcome);
    }
    let (started, completer) = Started::pending();
    watchers.push(completer);
    started
}
