//! Frames that stand for those before them, and let what is sent next go first: acknowledges.
//!
//! In a *dialogue*, where each message is answered before the next one comes, they may wait longer still: until the next
//! message has come, which one frame then acknowledges as well. Whether the peer goes on without the acknowledge cannot be
//! known and is tried: where it does not, the acknowledge leaves after a moment, and those after it wait for fewer messages,
//! or, where that was in vain too, do not wait for many messages to come.

use std::hash::{BuildHasher, BuildHasherDefault};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrayvec::ArrayVec;
use rustc_hash::FxHasher;

use super::lock;

/// What waits on one lane.
#[derive(Debug)]
pub(super) struct Behind<H> {
    state: Mutex<State<H>>,
    /// All of it may wait for more to come.
    waits: AtomicBool,
    /// How often somebody has looked in vain since something was kept.
    looks: AtomicU32,
}

#[derive(Debug)]
struct State<H> {
    kept: ArrayVec<Kept<H>, ROOM>,
    dialogues: [Dialogue; DIALOGUES],
}

#[derive(Debug)]
pub(super) struct Kept<H> {
    pub(super) to: SocketAddr,
    pub(super) header: H,
    stands_for: u64,
    /// How many more it waits for, if any.
    waits_for: Option<NonZeroU32>,
}

/// What is known of the dialogue with a peer.
#[derive(Clone, Copy, Debug)]
struct Dialogue {
    of: u64,
    /// So many messages one frame stands for at most.
    most: u32,
    /// That is more than it was the last time.
    is_tried: bool,
    /// How often in a row waiting was in vain, by frames that stood for as few messages as any do or for more.
    vain: Vain,
    vain_for_more: Vain,
}

/// What follows of waiting in vain: so many times it is not tried again, and the more the oftener that happens in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Vain {
    times: u32,
    rests: u32,
}

impl Vain {
    fn again(&mut self) {
        self.times = (self.times + 1).min(MOST_VAIN);
        self.rests = RESTS.pow(self.times);
    }

    // Whether it may be tried.
    fn is_over(&mut self) -> bool {
        let is_over = self.rests == 0;
        self.rests = self.rests.saturating_sub(1);
        is_over
    }
}

impl Dialogue {
    fn with(of: u64) -> Self {
        Self {
            of,
            most: MESSAGES,
            is_tried: false,
            vain: Vain::default(),
            vain_for_more: Vain::default(),
        }
    }

    // How many more messages the next one may wait for.
    fn may_wait_for(&mut self) -> Option<NonZeroU32> {
        let may = self.vain.is_over();
        NonZeroU32::new(self.most - 1).filter(|_| may)
    }

    fn was_in_vain(&mut self) {
        self.is_tried = false;
        if self.most > MESSAGES {
            self.most /= 2;
            self.vain_for_more.again();
        } else {
            self.vain.again();
        }
    }

    fn was_worth_it(&mut self) {
        self.vain = Vain::default();
        if self.is_tried {
            self.vain_for_more = Vain::default();
        }
        self.is_tried = self.most < MOST_MESSAGES && self.vain_for_more.is_over();
        if self.is_tried {
            self.most *= 2;
        }
    }
}

impl<H> Default for Behind<H> {
    fn default() -> Self {
        let state = State {
            kept: ArrayVec::new(),
            dialogues: [Dialogue::with(0); DIALOGUES],
        };
        Self {
            state: Mutex::new(state),
            waits: AtomicBool::new(false),
            looks: AtomicU32::new(0),
        }
    }
}

impl<H> Behind<H> {
    /// Keeps a frame, in the place of what it stands for; `false` where there is no room. In a `dialogue` it may wait for
    /// more to come. Calls `kept` under the lock.
    pub(super) fn keep(
        &self,
        to: SocketAddr,
        stands_for: u64,
        header: H,
        dialogue: bool,
        kept: impl FnOnce(),
    ) -> bool {
        let mut state = lock(&self.state);
        let taken = state.keep(to, stands_for, header, dialogue);
        let waits = state.kept.iter().all(|kept| kept.waits_for.is_some());
        self.waits.store(waits, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
        kept();
        taken
    }

    /// Whether something has waited long enough for a thread that has looked in vain, and will look again.
    pub(super) fn is_due(&self) -> bool {
        if !self.waits.load(Ordering::Relaxed) {
            return true;
        }
        let looks = self.looks.load(Ordering::Relaxed) + 1;
        self.looks.store(looks, Ordering::Relaxed);
        if looks < LOOKS {
            return false;
        }
        let State { kept, dialogues } = &mut *lock(&self.state);
        for kept in kept {
            if kept.waits_for.take().is_some() {
                of(dialogues, kept.to, kept.stands_for).was_in_vain();
            }
        }
        self.waits.store(false, Ordering::Relaxed);
        true
    }

    /// Takes away what does not stay. Calls `emptied` under the lock where nothing does.
    pub(super) fn retain(&self, mut stays: impl FnMut(&Kept<H>) -> bool, emptied: impl FnOnce()) {
        let kept = &mut lock(&self.state).kept;
        kept.retain(|kept| stays(kept));
        if kept.is_empty() {
            emptied();
        }
    }
}

impl<H> State<H> {
    #[inline(never)]
    fn keep_first(&mut self, to: SocketAddr, stands_for: u64, header: H, dialogue: bool) -> bool {
        let waits_for = match dialogue {
            true => of(&mut self.dialogues, to, stands_for).may_wait_for(),
            false => None,
        };
        let kept = Kept {
            to,
            header,
            stands_for,
            waits_for,
        };
        self.kept.try_push(kept).is_ok()
    }

    fn keep(&mut self, to: SocketAddr, stands_for: u64, header: H, dialogue: bool) -> bool {
        let is_same = |kept: &&mut Kept<H>| kept.to == to && kept.stands_for == stands_for;
        let Some(kept) = self.kept.iter_mut().find(is_same) else {
            return self.keep_first(to, stands_for, header, dialogue);
        };
        kept.header = header;
        if let Some(waits_for) = kept.waits_for {
            kept.waits_for = NonZeroU32::new(waits_for.get() - 1);
            if kept.waits_for.is_none() {
                of(&mut self.dialogues, to, stands_for).was_worth_it();
            }
        }
        true
    }
}

// Of two peers in one place the one that spoke last is known.
#[inline(never)]
fn of(dialogues: &mut [Dialogue], to: SocketAddr, stands_for: u64) -> &mut Dialogue {
    let of = BuildHasherDefault::<FxHasher>::default().hash_one((to, stands_for));
    let place = (of >> 32) as usize % dialogues.len();
    let dialogue = &mut dialogues[place];
    if dialogue.of != of {
        *dialogue = Dialogue::with(of);
    }
    dialogue
}

/// Frames that may wait for what comes next.
const ROOM: usize = 32;
/// Peers of whom something is known.
const DIALOGUES: usize = 32;
/// So many messages one frame stands for at most where it waits for more: at first, and where twice as many have come in
/// time again and again.
const MESSAGES: u32 = 8;
const MOST_MESSAGES: u32 = 32;
/// So often somebody looks in vain until waiting was: some fifteen microseconds, for who does nothing else.
const LOOKS: u32 = 32;
/// So many do not wait after that; where it was in vain again, so many times as many, up to 4,096.
const RESTS: u32 = 4;
const MOST_VAIN: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer of a dialogue.
    const PEER: u64 = 7;

    fn behind() -> Behind<u32> {
        Behind::default()
    }

    fn keep(behind: &Behind<u32>, stands_for: u64, number: u32, dialogue: bool) {
        let to = "127.0.0.1:4791".parse().unwrap();
        assert!(behind.keep(to, stands_for, number, dialogue, || {}));
    }

    fn leave(behind: &Behind<u32>) -> Vec<u32> {
        let mut left = Vec::new();
        let take = |kept: &Kept<u32>| {
            left.push(kept.header);
            false
        };
        behind.retain(take, || {});
        left
    }

    // Looks that are in vain until something leaves.
    fn looks(behind: &Behind<u32>) -> u32 {
        1 + (0..).take_while(|_| !behind.is_due()).count() as u32
    }

    #[test]
    fn outside_a_dialogue_nothing_waits_for_more() {
        let behind = behind();
        keep(&behind, PEER, 1, false);
        keep(&behind, PEER, 2, true);
        assert!(behind.is_due());
        assert_eq!(leave(&behind), [2]);
    }

    // Messages of a peer that goes on without an acknowledge until so many are not acknowledged: how many each stood for.
    fn stood_for(behind: &Behind<u32>, window: u32, times: usize) -> Vec<u32> {
        let one = |_| {
            for number in 1.. {
                keep(behind, PEER, number, true);
                if number == window || behind.is_due() {
                    let waited = number == window && looks(behind) > 1;
                    assert_eq!(leave(behind), [number]);
                    return if waited { number + IN_VAIN } else { number };
                }
            }
            unreachable!()
        };
        (0..times).map(one).collect()
    }

    const IN_VAIN: u32 = 1000;

    #[test]
    fn in_a_dialogue_one_frame_stands_for_eight_messages_and_later_for_more() {
        assert_eq!(stood_for(&behind(), 1000, 6), [8, 16, 32, 32, 32, 32]);
    }

    #[test]
    fn where_a_peer_does_not_go_on_for_that_long_more_is_tried_ever_more_rarely() {
        for (window, most) in [(8, 8), (15, 8), (16, 16), (31, 16)] {
            let behind = behind();
            let all = stood_for(&behind, window, 3 * 4096);
            let vain: Vec<_> = (0..all.len()).filter(|&at| all[at] > IN_VAIN).collect();
            let between: Vec<_> = vain.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
            let rests = [5, 17, 65, 257, 1025, 4097, 4097];
            assert_eq!(between, &rests[..between.len()], "{window}");
            assert!(between.len() >= 5, "{window}");
            let mut others = all.iter().skip(1).filter(|&&number| number < IN_VAIN);
            assert!(others.all(|&number| number == most), "{window}");
        }
    }

    #[test]
    fn one_moment_of_silence_does_not_make_it_fewer_for_long() {
        let behind = behind();
        assert_eq!(stood_for(&behind, 1000, 4), [8, 16, 32, 32]);
        for _ in 0..3 {
            assert_eq!(stood_for(&behind, 3, 1), [3 + IN_VAIN]);
            assert_eq!(
                stood_for(&behind, 1000, 8),
                [16, 16, 16, 16, 16, 32, 32, 32]
            );
        }
    }

    #[test]
    fn a_message_begins_the_wait_anew_and_others_do_not_wait_along() {
        let behind = behind();
        keep(&behind, PEER, 1, true);
        assert!((1..LOOKS).all(|_| !behind.is_due()));
        keep(&behind, PEER, 2, true);
        assert!((1..LOOKS).all(|_| !behind.is_due()));
        keep(&behind, PEER + 1, 3, false);
        assert!(behind.is_due());
        assert_eq!(leave(&behind), [2, 3]);
    }

    #[test]
    fn who_waits_for_the_acknowledge_is_made_to_wait_ever_more_rarely() {
        let behind = behind();
        let mut number = 0;
        let mut at_once = || {
            let mut count = 0;
            loop {
                number += 1;
                keep(&behind, PEER, number, true);
                let looks = looks(&behind);
                assert_eq!(leave(&behind), [number]);
                if looks == LOOKS {
                    return count;
                }
                assert_eq!(looks, 1);
                count += 1;
            }
        };
        let counts: Vec<u32> = (0..8).map(|_| at_once()).collect();
        assert_eq!(counts, [0, 4, 16, 64, 256, 1024, 4096, 4096]);
    }

    #[test]
    fn once_it_was_worth_it_a_single_failure_costs_little() {
        let behind = behind();
        let mut number = 0;
        let mut say = |times: u32| {
            for _ in 0..times {
                number += 1;
                keep(&behind, PEER, number, true);
            }
            let looks = looks(&behind);
            leave(&behind);
            looks
        };
        assert_eq!(say(MESSAGES), 1);
        // It was for one of twice as many messages.
        assert_eq!(say(1), LOOKS);
        for _ in 0..3 {
            assert_eq!(say(1), LOOKS);
            assert!((0..RESTS).all(|_| say(1) == 1));
            assert_eq!(say(MESSAGES), 1);
        }
    }

    #[test]
    fn peers_are_told_apart_and_one_too_many_is_refused() {
        let behind = behind();
        keep(&behind, PEER, 1, true);
        assert_eq!(looks(&behind), LOOKS);
        leave(&behind);
        for (at, waits) in [(PEER, false), (PEER + 1, true)] {
            keep(&behind, at, 2, true);
            assert_eq!(looks(&behind) == LOOKS, waits);
            leave(&behind);
        }
        let to = "127.0.0.1:4791".parse().unwrap();
        let taken = (0..100).filter(|at| behind.keep(to, *at, 0, false, || {}));
        assert_eq!(taken.count(), ROOM);
    }
}
