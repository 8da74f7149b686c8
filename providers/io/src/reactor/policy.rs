//! When pollers claim the input of a device, and when the reactor's thread takes it back. This file only decides, at the time
//! that its caller passes; [`Reactor`](super::Reactor) reads the clock, calls the kernel and wakes threads.

use std::time::Duration;

use polyverbs_engine::time::Time;

/// When pollers may claim the input.
#[derive(Debug)]
pub(super) struct Claims {
    /// When a poller last looked at the clock.
    looked: Time,
    /// How many looks at the clock in a row came soon after one another.
    soon: u32,
    /// How many such looks make a claim.
    needed: u32,
    /// Until then nothing is claimed.
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

    /// A poller looks at the clock, as one of [`POLLS`] does: whether it claims the input.
    pub(super) fn claims(&mut self, now: Time) -> bool {
        let last = std::mem::replace(&mut self.looked, now);
        if now > last.after(SOON) || now < self.not_before {
            self.soon = 0;
            return false;
        }
        self.soon += 1;
        self.soon >= self.needed
    }

    /// A poller that was about to sleep handed the input back.
    pub(super) fn handed_back(&mut self) {
        self.soon = 0;
        self.needed = (self.needed / 2).max(1);
    }

    /// The thread took the input back because no poller had come for long: whether the claim was right although it ended so,
    /// and whether it left something unread.
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
        // A program that does not poll while it waits for its peer does so for long as soon as that one is slow: so many polls
        // alone would say nothing.
        self.needed = (self.needed * 4).min(MOST_NEEDED);
        self.not_before = now.after(patience * self.needed);
    }
}

/// Pollers that own the input, as the thread sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pollers {
    /// The number of their claim.
    claim: u32,
    claimed: Time,
    polls: u32,
    /// When the thread last saw that a poll had come.
    since: Time,
    /// They still came a while after they had claimed the input.
    are_worth_it: bool,
}

impl Pollers {
    /// Those of this claim, which have polled so often in all; `known` are those that the thread saw last.
    pub(super) fn of(known: Option<Self>, claim: u32, polls: u32, now: Time) -> Self {
        // They may have gone and come again since.
        let known = known.filter(|pollers| pollers.claim == claim);
        known.unwrap_or(Self {
            claim,
            claimed: now,
            polls,
            since: now,
            are_worth_it: false,
        })
    }

    /// Whether they have stayed away for too long: the thread looks again after [`time_left`](Self::time_left).
    pub(super) fn are_gone(&mut self, polls: u32, now: Time, patience: Duration) -> bool {
        if std::mem::replace(&mut self.polls, polls) != polls {
            self.since = now;
            self.are_worth_it |= now >= self.claimed.after(patience / FIRST);
        }
        self.time_left(now, patience).is_zero()
    }

    /// How long they may still stay away.
    pub(super) fn time_left(&self, now: Time, patience: Duration) -> Duration {
        let patience = match self.are_worth_it {
            true => patience,
            false => patience / FIRST,
        };
        let until = self.since.after(patience);
        Duration::from_nanos(until.0.saturating_sub(now.0))
    }

    /// A claim of such pollers was right, whatever they left unread.
    pub(super) fn are_worth_it(&self) -> bool {
        self.are_worth_it
    }
}

/// How long the thread pauses after a turn: where it was refused, because another thread reads, that one may need this processor.
pub(super) fn pause(was_refused: bool) -> Option<Duration> {
    was_refused.then_some(WAY)
}

/// How long a poller pauses that was refused so often before, because another thread reads; `None`: it only yields. Otherwise one
/// that spins would keep the reader from its end. Yielding is not enough where the scheduler prefers the thread that yields:
/// until the next tick, milliseconds, that thread comes back.
pub(super) fn pause_of_poller(refusals: u32) -> Option<Duration> {
    (refusals % YIELDS == YIELDS - 1).then_some(WAY)
}

/// How long pollers may stay away, on a machine where a system call that does next to nothing takes so long: a poll that brings
/// something takes many calls, and under emulation a call takes a hundred times what it does on an ordinary machine.
pub(super) fn patience(call: Duration) -> Duration {
    (call * CALLS).clamp(SHORTEST, LONGEST)
}

const CALLS: u32 = 10_000;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(8);

/// So many polls within so short a time count as coming again and again.
pub(super) const POLLS: u32 = 4;
const SOON: Duration = Duration::from_micros(100);
/// A claim takes so many times as many at most.
const MOST_NEEDED: u32 = 256;
/// After so small a part of the patience the thread first looks whether pollers still come. A claim that lasts for longer was
/// right, whatever is unread at its end.
const FIRST: u32 = 8;

/// How often a poller yields to the thread that reads before it sleeps, and how long it then sleeps, as the reactor's does.
const YIELDS: u32 = 100;
pub(super) const WAY: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests;
