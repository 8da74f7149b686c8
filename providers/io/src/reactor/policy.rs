//! Decides when pollers claim the input of a device, and when the reactor's thread takes it back. This file only decides,
//! at the time that its caller passes; [`Reactor`](super::Reactor) reads the clock, calls the kernel and wakes threads.

use std::time::Duration;

use polyverbs_engine::time::Time;

/// Decides when pollers may claim the input.
#[derive(Debug)]
pub(super) struct Claims {
    /// When a poller last read the clock.
    looked: Time,
    /// How many readings of the clock in a row followed soon after the one before.
    soon: u32,
    /// How many such readings make a claim.
    needed: u32,
    /// No poller may claim the input before this time.
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

    /// A poller reads the clock, as one of [`POLLS`] does. Returns whether it claims the input.
    pub(super) fn claims(&mut self, now: Time) -> bool {
        let last = std::mem::replace(&mut self.looked, now);
        if now > last.after(SOON) || now < self.not_before {
            self.soon = 0;
            return false;
        }
        self.soon += 1;
        self.soon >= self.needed
    }

    /// A poller that was about to sleep has returned the input.
    pub(super) fn handed_back(&mut self) {
        self.soon = 0;
        self.needed = (self.needed / 2).max(1);
    }

    /// The thread has taken the input back because no poller had polled for long. `was_worth_it` says whether the claim was
    /// right although it ended so, and `left_unread` whether the pollers left input unread.
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

/// Pollers that own the input, as far as the thread knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pollers {
    /// The number of their claim.
    claim: u32,
    claimed: Time,
    polls: u32,
    /// When the thread last saw that a poller had polled.
    since: Time,
    /// They still polled a while after their claim.
    are_worth_it: bool,
}

impl Pollers {
    /// Describes the pollers of a claim, which have polled `polls` times in all; `known` are those that the thread saw
    /// last.
    pub(super) fn of(known: Option<Self>, claim: u32, polls: u32, now: Time) -> Self {
        // Those pollers may have gone, and others may have claimed the input since.
        let known = known.filter(|pollers| pollers.claim == claim);
        known.unwrap_or(Self {
            claim,
            claimed: now,
            polls,
            since: now,
            are_worth_it: false,
        })
    }

    /// Returns whether they have not polled for too long. If not, the thread checks again after
    /// [`time_left`](Self::time_left).
    pub(super) fn are_gone(&mut self, polls: u32, now: Time, patience: Duration) -> bool {
        if std::mem::replace(&mut self.polls, polls) != polls {
            self.since = now;
            self.are_worth_it |= now >= self.claimed.after(patience / FIRST);
        }
        self.time_left(now, patience).is_zero()
    }

    /// Returns how long they may still stay away.
    pub(super) fn time_left(&self, now: Time, patience: Duration) -> Duration {
        let patience = match self.are_worth_it {
            true => patience,
            false => patience / FIRST,
        };
        let until = self.since.after(patience);
        Duration::from_nanos(until.0.saturating_sub(now.0))
    }

    /// Returns whether a claim of such pollers was right, whatever they left unread.
    pub(super) fn are_worth_it(&self) -> bool {
        self.are_worth_it
    }
}

/// How long the thread pauses after a turn. If it was refused because another thread reads, that thread may need this
/// processor.
pub(super) fn pause(was_refused: bool) -> Option<Duration> {
    was_refused.then_some(WAY)
}

/// How long a poller pauses after so many `refusals` because another thread reads; `None` if it only yields. A poller that
/// spins would keep the reader from finishing. Yielding is not enough if the scheduler prefers the thread that yields: it
/// runs that thread again until the next tick, for milliseconds.
pub(super) fn pause_of_poller(refusals: u32) -> Option<Duration> {
    (refusals % YIELDS == YIELDS - 1).then_some(WAY)
}

/// How long pollers may stay away, on a machine where a trivial system call takes `call`: a poll that finds something takes
/// many calls, and under emulation a call takes a hundred times as long as on an ordinary machine.
pub(super) fn patience(call: Duration) -> Duration {
    (call * CALLS).clamp(SHORTEST, LONGEST)
}

const CALLS: u32 = 10_000;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(8);

/// [`POLLS`] polls within [`SOON`] count as frequent polling.
pub(super) const POLLS: u32 = 4;
const SOON: Duration = Duration::from_micros(100);
/// The most readings of the clock that a claim may take.
const MOST_NEEDED: u32 = 256;
/// The thread first checks after this fraction of its patience whether pollers still poll. A claim that lasts longer was
/// right, whatever is unread at its end.
const FIRST: u32 = 8;

/// How often a poller yields to the thread that reads before it sleeps, and how long it then sleeps, as the reactor's
/// thread does.
const YIELDS: u32 = 100;
pub(super) const WAY: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests;
