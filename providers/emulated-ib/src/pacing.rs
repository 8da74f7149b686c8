//! The send window: how many packets may be unacknowledged. It grows while acknowledges arrive and shrinks with each loss.
//!
//! A receiving socket drops datagrams for which its buffer has no room, and the sender does not know its size. So the
//! window begins small, doubles with each round until a packet is lost, and from then on grows by a little each round and
//! is halved with each loss (RFC 5681 does the same for TCP). A receiver whose packets meet congestion marks reports that
//! with a notification (IBTA annex A17.9.3), which counts as a loss.

use std::time::Duration;

use verbs_api::ids::Psn;

/// The most packets of a read's answer that one read request asks for: a larger read is requested piece by piece.
const PIECE: u32 = 32;

/// Returns how many packets of `1 << mtu_shift` bytes one read request asks for. They arrive at once, and the requester's
/// socket has room for `room` bytes, a quarter of which is the kernel's own; `None` is no limit.
pub(crate) fn piece(room: Option<usize>, mtu_shift: u8) -> u32 {
    let fits = room.map_or(usize::MAX, |room| (room / 4 * 3) >> mtu_shift);
    let fits = u32::try_from(fits).unwrap_or(u32::MAX).clamp(1, PIECE);
    1 << fits.ilog2()
}

/// The most packets of a read's answer that a responder sends at once, and the time until it sends the next ones. A queue
/// pair of this crate requests fewer at a time, other peers as many as they like.
pub(crate) const READ_AT_ONCE: u32 = 64;
pub(crate) const READ_EVERY: Duration = Duration::from_micros(50);

/// How often a queue pair checks whether the frames of others that wait for room in shared memory have left.
pub(crate) const CROWDED_FOR: Duration = Duration::from_millis(1);

/// The smallest window, in packets.
const LEAST: u32 = 2;
/// Bytes and packets of the first window; the larger of the two applies.
const FIRST: (u32, u32) = (64 << 10, 16);
/// Bytes and packets of the largest window; the smaller of the two applies. A receive buffer of ordinary size, and a
/// processor's cache, hold them.
const MOST: (u32, u32) = (512 << 10, 1024);
/// Bytes and packets of the largest window between queue pairs at one address, where nothing is lost and one poll reads
/// everything; the smaller of the two applies.
const MOST_AT_HOME: (u32, u32) = (1 << 20, 1024);
/// The number of answered packets after a loss until the path counts as lossless.
const SOUND: u32 = 1024;
/// A requester asks for an acknowledge at least once in this many packets.
const ACK_EVERY: u32 = 32;
/// The least time between two congestion notifications to one peer.
pub(crate) const NOTIFY_EVERY: Duration = Duration::from_micros(50);

/// The send window of a requester, in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWindow {
    window: u32,
    /// The window doubles with each round until it has this size; from then on it grows slowly.
    threshold: u32,
    most: u32,
    /// The packets that were answered since the window last grew by a step.
    answered: u32,
    /// Losses count as one until everything before this PSN was answered; `None` if no loss is recent.
    recovers_at: Option<Psn>,
    /// How many more packets must be answered until the path counts as lossless; 0 if it does.
    sound_after: u32,
    /// The window and the threshold before the timeouts since the last answer; `None` if there was no timeout.
    before_timeout: Option<(u32, u32)>,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self::new(10, false)
    }
}

impl SendWindow {
    /// Creates the window of a path with packets of `1 << mtu_shift` bytes. `at_home` says whether the peer has the
    /// device's own address, where nothing is lost.
    pub(crate) fn new(mtu_shift: u8, at_home: bool) -> Self {
        let frames = |(bytes, frames): (u32, u32), least: bool| {
            let carried = bytes >> mtu_shift;
            if least {
                carried.max(frames)
            } else {
                carried.min(frames)
            }
        };
        let most = if at_home { MOST_AT_HOME } else { MOST };
        let most = frames(most, false).max(PIECE);
        Self {
            window: frames(FIRST, true).min(most),
            threshold: most,
            most,
            answered: 0,
            recovers_at: None,
            sound_after: 0,
            before_timeout: None,
        }
    }

    /// Returns whether the peer has recently reported a loss, so that the path counts as lossy.
    pub(crate) const fn loses(&self) -> bool {
        self.sound_after > 0
    }

    /// Returns how many packets may be sent without an answer.
    pub(crate) const fn size(&self) -> u32 {
        self.window
    }

    /// Returns whether a frame of `packets` packets requests an acknowledge. Its first packet has the number `psn`, and
    /// `under_way` packets before it have no answer yet.
    pub(crate) fn wants_ack(&self, psn: Psn, packets: u32, under_way: u32) -> bool {
        let every = (self.window / 4).clamp(1, ACK_EVERY).next_power_of_two();
        psn.plus(packets - 1).value() % every < packets || under_way + packets >= self.window
    }

    /// Notes that `frames` of `under_way` packets without an answer were answered, and so everything before `psn`. The
    /// window may grow.
    pub(crate) fn answered(&mut self, frames: u32, under_way: u32, psn: Psn) {
        self.sound_after = self.sound_after.saturating_sub(frames);
        self.before_timeout = None;
        if self
            .recovers_at
            .is_some_and(|at| psn.distance_from(at) >= 0)
        {
            self.recovers_at = None;
        }
        // An unused window says nothing about the capacity of the path.
        if under_way < self.window / 2 || self.recovers_at.is_some() {
            return;
        }
        if self.window < self.threshold {
            self.window += frames;
        } else {
            self.answered += frames;
            if self.answered >= self.window {
                self.answered = 0;
                self.window += (self.most / 64).max(1);
            }
        }
        self.window = self.window.min(self.most);
    }

    /// Notes that the peer has reported a loss, and halves the window. Everything before `sent` has been sent.
    pub(crate) fn lost(&mut self, sent: Psn) {
        self.sound_after = SOUND;
        self.congested(sent);
    }

    /// Halves the window, because a packet met congestion or its answer is late. Until everything before `sent` was
    /// answered, this happens once.
    pub(crate) fn congested(&mut self, sent: Psn) {
        if self.recovers_at.is_none() {
            self.threshold = (self.window / 2).max(LEAST);
            self.window = self.threshold;
            self.answered = 0;
            self.recovers_at = Some(sent);
        }
    }

    /// Notes a timeout: all packets without an answer count as lost, and the window becomes the smallest. It doubles again
    /// from the first acknowledge on. A timeout does not make the path count as lossy: the peer may have had no processor.
    pub(crate) fn timed_out(&mut self) {
        self.before_timeout
            .get_or_insert((self.window, self.threshold));
        self.threshold = (self.window / 2).max(LEAST);
        self.window = LEAST;
        self.answered = 0;
        self.recovers_at = None;
    }

    /// Notes an answer for more packets than were retransmitted: the answer was late, so this undoes the change of the
    /// window by the timeout before (RFC 5682 does the same for TCP). Returns whether there was a timeout.
    pub(crate) fn was_late(&mut self) -> bool {
        let before = self.before_timeout.take();
        if let Some((window, threshold)) = before {
            (self.window, self.threshold) = (window, threshold);
        }
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_doubles_until_a_loss_and_grows_slowly_after_it() {
        assert_eq!(SendWindow::new(12, true).most, 256);
        let mut window = SendWindow::new(12, false);
        assert_eq!((window.size(), window.most), (16, 128));
        window.answered(16, 16, Psn::new(16));
        assert_eq!(window.size(), 32);
        window.answered(32, 32, Psn::new(48));
        assert_eq!(window.size(), 64);
        window.lost(Psn::new(112));
        assert_eq!(window.size(), 32);
        // Another report of the same loss must not shrink the window again.
        window.lost(Psn::new(112));
        window.answered(16, 32, Psn::new(64));
        assert_eq!(window.size(), 32);
        window.answered(48, 32, Psn::new(112));
        let slowly = window.size();
        assert!((32..40).contains(&slowly));
        window.lost(Psn::new(150));
        assert!(window.size() < slowly);
    }

    #[test]
    fn a_piece_of_a_read_fits_into_the_requesters_buffer() {
        assert_eq!(piece(None, 12), 32);
        assert_eq!(piece(Some(208 << 10), 12), 32);
        let little = |shift| piece(Some(16 << 10), shift);
        assert_eq!([8, 10, 12].map(little), [32, 8, 2]);
        assert_eq!(piece(Some(0), 12), 1);
    }

    #[test]
    fn a_window_without_answers_starts_again_at_the_minimum() {
        let mut window = SendWindow::new(8, false);
        for round in 1..20 {
            window.answered(window.size(), window.size(), Psn::new(round * 2000));
        }
        assert_eq!(window.size(), 1024);
        window.timed_out();
        assert_eq!(window.size(), LEAST);
        window.answered(2, 2, Psn::new(4));
        assert_eq!(window.size(), 4);
        (0..30).for_each(|_| window.timed_out());
        assert_eq!(window.size(), LEAST);
    }

    #[test]
    fn a_late_answer_restores_a_window_after_timeouts() {
        let mut window = SendWindow::new(12, false);
        window.answered(16, 16, Psn::new(16));
        let before = window;
        (0..3).for_each(|_| window.timed_out());
        assert!(window.was_late() && !window.was_late());
        assert_eq!(window, before);
        window.timed_out();
        window.answered(1, 2, Psn::new(17));
        assert!(!window.was_late());
    }

    #[test]
    fn enough_answered_frames_end_a_lossy_phase() {
        let mut window = SendWindow::new(12, false);
        window.timed_out();
        window.congested(Psn::new(1));
        assert!(!window.loses());
        window.lost(Psn::new(1));
        window.answered(SOUND - 1, 1, Psn::new(SOUND));
        assert!(window.loses());
        window.answered(1, 1, Psn::new(SOUND + 1));
        assert!(!window.loses());
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut window = SendWindow::new(12, false);
        (0..100).for_each(|psn| window.answered(1, 1, Psn::new(psn)));
        assert_eq!(window, SendWindow::new(12, false));
    }

    #[test]
    fn the_frame_that_fills_a_window_asks_for_an_answer() {
        let mut window = SendWindow::new(10, false);
        assert!(window.wants_ack(Psn::new(63), 1, 63) && !window.wants_ack(Psn::new(63), 1, 3));
        (0..30).for_each(|_| window.timed_out());
        assert!((1..9).all(|psn| window.wants_ack(Psn::new(psn), 1, 0)));
    }
}
