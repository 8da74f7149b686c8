//! Whom a program serves that listens.
//!
//! Each peer has a thread, and their number is limited. While no place is free, a peer that does nothing gives way to the next one;
//! otherwise it is let go after a longer time. No address has more than half of the places, so that none can have them all.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::connection::{ConnectError, Incoming, Listener};

use super::{INTERRUPTED, PAUSE, Result};

/// Why a peer is refused while no place is free: it may ask again.
pub(crate) const BUSY: &str = "it serves as many as it may at one time";
/// A peer that has done nothing for so long gives way to another: one that has moved something, and one that has not yet.
const GIVES_WAY: Duration = Duration::from_secs(1);
const GIVES_WAY_AT_FIRST: Duration = Duration::from_millis(300);
/// What a peer has to move before that counts as something.
pub(crate) const LEAST: u64 = 64 << 10;

/// How many peers are served at one time.
pub(crate) struct Peers {
    pub(crate) most: usize,
    /// A peer that does nothing for so long is let go.
    pub(crate) timeout: Duration,
    pub(crate) served: Mutex<Vec<Arc<Peer>>>,
}

impl Peers {
    pub(crate) fn new(most: usize, timeout: Duration) -> Self {
        Self {
            most,
            timeout,
            served: Mutex::default(),
        }
    }

    /// Serves `count` peers, each by `work` in a thread of its own, or until the program is interrupted.
    pub(crate) fn serve(
        &self,
        listener: &Listener,
        count: u64,
        work: impl Fn(Incoming, &Arc<Peer>) + Sync,
    ) -> Result<()> {
        thread::scope(|scope| {
            let mut served = 0;
            while served < count
                && let Some(incoming) = next(listener)?
            {
                let place = match self.admit(incoming.from().map(|from| from.ip())) {
                    Ok(place) => place,
                    Err(reason) => {
                        refuse(incoming, reason);
                        continue;
                    }
                };
                // Handed over when there is a thread, so that it can be refused if there is none.
                let (hand, taken) = mpsc::channel::<Incoming>();
                let work = &work;
                let thread = thread::Builder::new().spawn_scoped(scope, move || {
                    if let Ok(incoming) = taken.recv() {
                        work(incoming, &place.peer);
                    }
                });
                match thread {
                    Ok(_) => {
                        served += 1;
                        // The thread waits for it.
                        let _ = hand.send(incoming);
                    }
                    Err(_) => refuse(incoming, BUSY),
                }
            }
            Ok(())
        })
    }

    fn admit(&self, from: Option<IpAddr>) -> std::result::Result<Place<'_>, &'static str> {
        let mut served = locked(&self.served);
        let of_address = served.iter().filter(|peer| peer.from == from).count();
        let is_much = of_address >= self.most.div_ceil(2);
        if is_much || served.len() >= self.most {
            let others = served.iter().filter(|peer| !is_much || peer.from == from);
            if let Some(idle) = others.max_by_key(|peer| peer.idle()) {
                idle.give_way();
            }
            return Err(BUSY);
        }
        let peer = Arc::new(Peer {
            from,
            timeout: self.timeout,
            state: Mutex::new(State {
                since: Some(Instant::now()),
                moved: 0,
                has_moved: false,
                gives_way: false,
            }),
        });
        served.push(Arc::clone(&peer));
        Ok(Place { peers: self, peer })
    }
}

// The next request; none where the program is to end.
fn next(listener: &Listener) -> std::result::Result<Option<Incoming>, ConnectError> {
    let mut next = listener.next();
    while !INTERRUPTED.load(Ordering::Relaxed) {
        if let Some(incoming) = next.wait_for(PAUSE)? {
            return Ok(Some(incoming));
        }
    }
    Ok(None)
}

/// Refuses a request, and says why.
pub(crate) fn refuse(incoming: Incoming, reason: &str) {
    // A reason that is too long is left out, and the request refused all the same.
    let _ = incoming.reject(reason.as_bytes());
}

/// Of one that is served; free again when this is dropped.
struct Place<'p> {
    peers: &'p Peers,
    peer: Arc<Peer>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        locked(&self.peers.served).retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

/// A peer that is served, and what it does.
pub(crate) struct Peer {
    from: Option<IpAddr>,
    timeout: Duration,
    state: Mutex<State>,
}

struct State {
    // It has done nothing since; none while it waits for this side.
    since: Option<Instant>,
    moved: u64,
    has_moved: bool,
    gives_way: bool,
}

impl Peer {
    /// It has come a step further.
    pub(crate) fn steps(&self) {
        locked(&self.state).since = Some(Instant::now());
    }

    /// It has moved so many bytes. A few are nothing.
    pub(crate) fn moves(&self, bytes: u64) {
        let mut state = locked(&self.state);
        state.moved += bytes;
        if state.moved >= LEAST {
            state.since = Some(Instant::now());
            state.moved = 0;
            state.has_moved = true;
        }
    }

    /// It waits for this side, which is not its fault.
    pub(crate) fn waits(&self) {
        locked(&self.state).since = None;
    }

    /// For how long it has done nothing.
    pub(crate) fn idle(&self) -> Duration {
        let since = locked(&self.state).since;
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn give_way(&self) {
        let idle = self.idle();
        let mut state = locked(&self.state);
        let patience = match state.has_moved {
            true => GIVES_WAY,
            false => GIVES_WAY_AT_FIRST,
        };
        state.gives_way |= idle >= patience;
    }

    /// Fails where it is not served any longer.
    pub(crate) fn check(&self) -> Result<()> {
        let gives_way = locked(&self.state).gives_way;
        if gives_way || self.idle() >= self.timeout {
            return Err("nothing came from the other side for too long".into());
        }
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
