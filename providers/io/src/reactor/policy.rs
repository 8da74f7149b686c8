//! The rules by which pollers claim the input of a device, and by which the reactor's thread takes it back. This file only
//! decides, for the time that its caller passes; [`Reactor`](super::Reactor) reads the clock, calls the kernel and wakes
//! threads.

use std::time::Duration;

use polyverbs_engine::time::Time;

/// Decides when pollers may claim the input of a device: read its sockets in place of the reactor's thread.
#[derive(Debug)]
pub(super) struct Claims {
    /// The time at which a poller last read the clock.
    looked: Time,
    /// How many consecutive readings of the clock each followed the one before within [`SOON`].
    soon: u32,
    /// How many such readings it takes until pollers take over reading the sockets from the reactor's thread.
    needed: u32,
    /// The time before which pollers may not take over reading the sockets, however often they poll.
    not_before: Time,
}

impl Claims {
    pub(super) fn new(now: Time) -> Self {
        Self {
            looked: now,
            soon: 0,
            needed: 1,
            not_before: now,
        }
    }

    /// Takes the time that a poller has read from the clock, as it does once in [`POLLS`] polls. Returns whether pollers
    /// claim the input now.
    pub(super) fn claims(&mut self, now: Time) -> bool {
        let last = std::mem::replace(&mut self.looked, now);
        if now > last.after(SOON) || now < self.not_before {
            self.soon = 0;
            return false;
        }
        self.soon += 1;
        self.soon >= self.needed
    }

    /// Notes that a poller has returned the input to the reactor's thread because it is about to sleep: fewer polls are
    /// needed for the next claim.
    pub(super) fn handed_back(&mut self) {
        self.soon = 0;
        self.needed = (self.needed / 2).max(1);
    }

    /// Notes that the reactor's thread has taken the input back, because no poller had polled for long. If pollers left
    /// input unread (`left_unread`), more polls are needed for the next claim, unless this one was right all the same
    /// (`was_worth_it`).
    pub(super) fn taken_back(
        &mut self,
        was_worth_it: bool,
        left_unread: bool,
        now: Time,
        patience: Duration,
    ) {
        if was_worth_it || !left_unread {
            return self.handed_back();
        }
        self.soon = 0;
        // A program that does not poll while it waits for its peer waits for long if the peer is slow, so the number of
        // polls alone is no measure: claims are also forbidden for a time.
        self.needed = (self.needed * 4).min(MOST_NEEDED);
        self.not_before = now.after(patience * self.needed);
    }
}

/// The pollers that read the sockets of a device in place of the reactor's thread, as far as that thread knows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pollers {
    /// The number of the claim by which the pollers took over reading the sockets.
    claim: u32,
    claimed: Time,
    polls: u32,
    /// The time at which the thread last saw that the number of polls had grown.
    since: Time,
    /// Whether the pollers still polled a while after their claim, so that it was right.
    are_worth_it: bool,
}

impl Pollers {
    /// Describes the pollers that took over the sockets by the claim with the number `claim`. `polls` is the number of all
    /// polls so far, and `known` the pollers that the reactor's thread saw last.
    pub(super) fn of(known: Option<Self>, claim: u32, polls: u32, now: Time) -> Self {
        // The known pollers may have stopped, and others may have claimed the input since.
        let known = known.filter(|pollers| pollers.claim == claim);
        known.unwrap_or(Self {
            claim,
            claimed: now,
            polls,
            since: now,
            are_worth_it: false,
        })
    }

    /// Returns whether the pollers have not polled for so long that the thread takes the input back. Otherwise the thread
    /// checks again after [`time_left`](Self::time_left).
    pub(super) fn are_gone(&mut self, polls: u32, now: Time, patience: Duration) -> bool {
        if std::mem::replace(&mut self.polls, polls) != polls {
            self.since = now;
            self.are_worth_it |= now >= self.claimed.after(patience / FIRST);
        }
        self.time_left(now, patience).is_zero()
    }

    /// Returns for how long the reactor's thread still leaves the sockets to the pollers if none of them polls.
    pub(super) fn time_left(&self, now: Time, patience: Duration) -> Duration {
        let patience = match self.are_worth_it {
            true => patience,
            false => patience / FIRST,
        };
        let until = self.since.after(patience);
        Duration::from_nanos(until.0.saturating_sub(now.0))
    }

    /// Returns whether it was right that these pollers took over the sockets, even if they have left input unread.
    pub(super) fn are_worth_it(&self) -> bool {
        self.are_worth_it
    }
}

/// Returns how long the thread pauses after it has tried to read; `None` for no pause. It pauses if another thread was
/// reading (`was_refused`), because that thread may need this processor.
pub(super) fn pause(was_refused: bool) -> Option<Duration> {
    was_refused.then_some(WAY)
}

/// Returns how long a poller pauses after it has found another thread reading for the `refusals`-th time; `None` if it only
/// yields. A poller that spins would keep that thread from finishing. Yielding is not enough if the scheduler prefers the
/// thread that yields: it runs that thread again until the next tick, for milliseconds.
pub(super) fn pause_of_poller(refusals: u32) -> Option<Duration> {
    (refusals % YIELDS == YIELDS - 1).then_some(WAY)
}

/// Returns how long pollers may stop polling before the thread takes the input back, on a machine where a trivial system
/// call takes `call`: a poll that finds something takes many calls, and under emulation a call takes a hundred times as
/// long as on an ordinary machine.
pub(super) fn patience(call: Duration) -> Duration {
    (call * CALLS).clamp(SHORTEST, LONGEST)
}

const CALLS: u32 = 10_000;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(8);

/// Pollers that make [`POLLS`] polls within [`SOON`] poll frequently enough to claim the input.
pub(super) const POLLS: u32 = 4;
const SOON: Duration = Duration::from_micros(100);
/// The most readings of the clock that it may take until pollers take over reading the sockets.
const MOST_NEEDED: u32 = 256;
/// The reactor's thread first checks after its patience divided by this number whether the pollers that read the sockets
/// still poll. If they do, their claim was right, even if input is unread at its end.
const FIRST: u32 = 8;

/// How often a poller yields to the thread that reads before it sleeps. `WAY` is how long it then sleeps, as the reactor's
/// thread does.
const YIELDS: u32 = 100;
pub(super) const WAY: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests;
