//! The send window: how many packets may be unacknowledged. It grows while acknowledges come and shrinks at a loss.
//!
//! A receiving socket drops what its buffer has no room for, and the sender does not know its size. So the window begins
//! small, doubles with each round until something is lost, and from then on grows by a little each round and is halved
//! at each loss (RFC 5681 does the same for TCP). A receiver that meets congestion marks and says so with a notification
//! (IBTA annex A17.9.3), which counts as a loss.

use std::time::Duration;

use verbs_api::ids::Psn;

/// Frames of a read's answer that are asked for together at most: larger reads are asked for piece by piece.
const PIECE: u32 = 32;

/// Frames of `1 << mtu_shift` bytes of a read's answer that are asked for together: they come at once, and whoever asks
/// has room for so many bytes. A quarter of that is the kernel's own.
pub(crate) fn piece(room: Option<usize>, mtu_shift: u8) -> u32 {
    let fits = room.map_or(usize::MAX, |room| (room / 4 * 3) >> mtu_shift);
    let fits = u32::try_from(fits).unwrap_or(u32::MAX).clamp(1, PIECE);
    1 << fits.ilog2()
}

/// Frames of the answer to a read that leave at once, and after how long the next ones do: a queue pair of this crate asks
/// for less at one time, others for as much as they like.
pub(crate) const READ_AT_ONCE: u32 = 64;
pub(crate) const READ_EVERY: Duration = Duration::from_micros(50);

/// The window never becomes smaller.
const LEAST: u32 = 2;
/// Bytes and frames that the window begins with.
const FIRST: (u32, u32) = (64 << 10, 16);
/// Bytes and frames that it never exceeds: what a receive buffer of ordinary size may hold, and a processor's cache.
const MOST: (u32, u32) = (512 << 10, 1024);
/// The same between queue pairs at one address, where nothing is lost and one look takes all that is there.
const MOST_AT_HOME: (u32, u32) = (1 << 20, 1024);
/// A path counts as lossless after so many answered frames.
const SOUND: u32 = 1024;
/// An acknowledge is asked for at least this often.
const ACK_EVERY: u32 = 32;
/// Least time between two congestion notifications.
pub(crate) const NOTIFY_EVERY: Duration = Duration::from_micros(50);

/// The window of a requester, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWindow {
    window: u32,
    /// Up to here it doubles with each round.
    threshold: u32,
    most: u32,
    /// Frames answered since it last grew by a step.
    answered: u32,
    /// Until this number has been answered, what is lost is one loss.
    recovers_at: Option<Psn>,
    /// Frames that are to be answered until the path counts as lossless.
    sound_after: u32,
    /// Window and threshold before the timeouts since the last answer.
    before_timeout: Option<(u32, u32)>,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self::new(10, false)
    }
}

impl SendWindow {
    /// Of a path with frames of `1 << mtu_shift` bytes, to another address or to the own one.
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

    /// Whether the peer reported a loss lately.
    pub(crate) const fn loses(&self) -> bool {
        self.sound_after > 0
    }

    /// Frames that may be under way.
    pub(crate) const fn size(&self) -> u32 {
        self.window
    }

    /// Whether a frame of so many packets, the first with this number and `under_way` before it, asks for an acknowledge.
    pub(crate) fn wants_ack(&self, psn: Psn, packets: u32, under_way: u32) -> bool {
        let every = (self.window / 4).clamp(1, ACK_EVERY).next_power_of_two();
        psn.plus(packets - 1).value() % every < packets || under_way + packets >= self.window
    }

    /// So many frames were answered out of so many under way; everything before `psn` has been.
    pub(crate) fn answered(&mut self, frames: u32, under_way: u32, psn: Psn) {
        self.sound_after = self.sound_after.saturating_sub(frames);
        self.before_timeout = None;
        if self
            .recovers_at
            .is_some_and(|at| psn.distance_from(at) >= 0)
        {
            self.recovers_at = None;
        }
        // A window that is not used says nothing about what the path carries.
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

    /// The peer reports a loss; everything before `sent` has been sent.
    pub(crate) fn lost(&mut self, sent: Psn) {
        self.sound_after = SOUND;
        self.congested(sent);
    }

    /// A frame met congestion, or its answer is late.
    pub(crate) fn congested(&mut self, sent: Psn) {
        if self.recovers_at.is_none() {
            self.threshold = (self.window / 2).max(LEAST);
            self.window = self.threshold;
            self.answered = 0;
            self.recovers_at = Some(sent);
        }
    }

    /// A timeout: all outstanding frames count as lost. From the first acknowledge on the window doubles again. A timeout does not show
    /// that the path is lossy: the peer may have had no processor.
    pub(crate) fn timed_out(&mut self) {
        self.before_timeout
            .get_or_insert((self.window, self.threshold));
        self.threshold = (self.window / 2).max(LEAST);
        self.window = LEAST;
        self.answered = 0;
        self.recovers_at = None;
    }

    /// The answer that now comes is for more than was retransmitted: it was late, and the timeout before it means nothing (RFC 5682 does the
    /// same for TCP). Returns whether there was one.
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
    fn it_doubles_until_a_loss_and_grows_slowly_after_it() {
        assert_eq!(SendWindow::new(12, true).most, 256);
        let mut window = SendWindow::new(12, false);
        assert_eq!((window.size(), window.most), (16, 128));
        window.answered(16, 16, Psn::new(16));
        assert_eq!(window.size(), 32);
        window.answered(32, 32, Psn::new(48));
        assert_eq!(window.size(), 64);
        window.lost(Psn::new(112));
        assert_eq!(window.size(), 32);
        // What belongs to the same loss.
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
    fn a_piece_fits_where_it_arrives() {
        assert_eq!(piece(None, 12), 32);
        assert_eq!(piece(Some(208 << 10), 12), 32);
        let little = |shift| piece(Some(16 << 10), shift);
        assert_eq!([8, 10, 12].map(little), [32, 8, 2]);
        assert_eq!(piece(Some(0), 12), 1);
    }

    #[test]
    fn without_any_answer_it_begins_anew() {
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
    fn a_late_answer_restores_it_after_any_number_of_timeouts() {
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
    fn it_does_not_grow_where_it_is_not_used() {
        let mut window = SendWindow::new(12, false);
        (0..100).for_each(|psn| window.answered(1, 1, Psn::new(psn)));
        assert_eq!(window, SendWindow::new(12, false));
    }

    #[test]
    fn the_frame_that_fills_it_asks_for_an_answer() {
        let mut window = SendWindow::new(10, false);
        assert!(window.wants_ack(Psn::new(63), 1, 63) && !window.wants_ack(Psn::new(63), 1, 3));
        (0..30).for_each(|_| window.timed_out());
        assert!((1..9).all(|psn| window.wants_ack(Psn::new(psn), 1, 0)));
    }
}
