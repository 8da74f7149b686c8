//! The datagram link: it carries frames of limited length, and injects faults into them.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::time::Duration;

use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame};
use polyverbs_engine::time::Time;
use verbs_api::provider::Mutex;
use verbs_api::{capability::Mtu, ids::LinkAddress};

use crate::sim::chance::Chance;
use crate::sim::fault::{Between, FaultSpec};
use crate::sim::in_flight::InFlight;

/// The longest extra delay of a frame that is to be reordered. Frames that are sent later overtake it meanwhile.
const LONGEST_HOLD: Duration = Duration::from_micros(100);

/// Counts of the faults that a [`DatagramLink`] has injected, apart from delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramCounts {
    /// Frames that were dropped at random.
    pub dropped: u64,
    /// Frames that were delivered twice.
    pub duplicated: u64,
    /// Frames that were held back, so that frames sent later overtook them.
    pub reordered: u64,
    /// Frames in which a bit was flipped.
    pub corrupted: u64,
    /// Frames that were dropped because of a partition between sender and receiver.
    pub partitioned: u64,
    /// Frames that were dropped because they were longer than the link's largest frame. The driver should not have sent
    /// them.
    pub oversized: u64,
}

/// A link that may lose, duplicate, reorder, delay and damage frames; see the [module](self).
///
/// A frame is due when its delay has passed, without a delay at once, and the first call of [`progress`](Link::progress) at
/// that time or later delivers it. Unless they are reordered, the frames of a direction (from one address to another)
/// arrive in the order in which they were sent. Each direction has its own random numbers.
pub struct DatagramLink<H> {
    max_frame: Option<Mtu>,
    state: Mutex<State<H>>,
}

struct State<H> {
    faults: FaultSpec,
    directions: HashMap<(LinkAddress, LinkAddress), Direction>,
    partitioned: HashSet<(LinkAddress, LinkAddress)>,
    in_flight: InFlight<H>,
    first: Option<Time>,
    counts: DatagramCounts,
}

struct Direction {
    chance: Chance,
    /// The time at which the last frame that was not reordered is due.
    last_due: Time,
}

impl<H> DatagramLink<H> {
    /// Creates a link that has carried no frame yet.
    ///
    /// `max_frame` is the largest payload of a frame, without headers; `None` if a message of any length is one frame.
    /// Faults that only streams have are ignored; [`FaultSpec::check`] refuses them.
    pub fn new(max_frame: Option<Mtu>, faults: FaultSpec) -> Self {
        let state = State {
            faults,
            directions: HashMap::new(),
            partitioned: HashSet::new(),
            in_flight: InFlight::new(),
            first: None,
            counts: DatagramCounts::default(),
        };
        Self {
            max_frame,
            state: Mutex::new(state),
        }
    }

    /// Drops every frame from one address to the other from now on, including frames that were sent but not delivered yet.
    pub fn partition(&self, from: LinkAddress, to: LinkAddress) {
        self.state.lock().partitioned.insert((from, to));
    }

    /// Ends a [`partition`](Self::partition) in this direction.
    pub fn heal(&self, from: LinkAddress, to: LinkAddress) {
        self.state.lock().partitioned.remove(&(from, to));
    }

    /// Returns the counts of injected faults so far.
    pub fn counts(&self) -> DatagramCounts {
        self.state.lock().counts
    }
}

impl<H: Clone + Send + Sync + 'static> Link<H> for DatagramLink<H> {
    fn max_frame(&self) -> Option<usize> {
        self.max_frame.map(|mtu| mtu.octets() as usize)
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        let most = self.max_frame();
        if most.is_some_and(|most| frame.payload.len() > most) {
            self.state.lock().counts.oversized += 1;
        } else {
            self.state.lock().send(frame.to_owned(), now);
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        // Frames that are sent during delivery wait for the next call, so that every call ends.
        let most = self.state.lock().in_flight.len();
        let due = iter::from_fn(|| self.state.lock().take_due(now)).take(most);
        due.fold(false, |_, frame| {
            network.deliver(frame.as_frame(), now);
            true
        })
    }

    fn next_due(&self) -> Option<Time> {
        self.state.lock().in_flight.next_due()
    }
}

impl<H: Clone> State<H> {
    fn send(&mut self, mut frame: OwnedFrame<H>, now: Time) {
        if self.is_partitioned(frame.from, frame.to, now) {
            self.counts.partitioned += 1;
            return;
        }
        // Every frame draws all random numbers, so that adding or removing one fault does not change the others.
        let FaultSpec {
            drop,
            duplicate,
            corrupt,
            ..
        } = self.faults;
        let chance = &mut self.direction(frame.from, frame.to).chance;
        let [drop, duplicate, corrupt] =
            [drop, duplicate, corrupt].map(|rate| chance.strikes(rate));
        if drop {
            self.counts.dropped += 1;
            return;
        }
        let copy = duplicate.then(|| frame.clone());
        if corrupt {
            frame.damaged = true;
            chance.flip(&mut frame.payload);
            self.counts.corrupted += 1;
        }
        self.enqueue(frame, now);
        if let Some(copy) = copy {
            self.counts.duplicated += 1;
            self.enqueue(copy, now);
        }
    }

    fn enqueue(&mut self, frame: OwnedFrame<H>, now: Time) {
        let FaultSpec { delay, reorder, .. } = self.faults;
        let direction = self.direction(frame.from, frame.to);
        let due = now
            .after(direction.chance.time(delay))
            .max(direction.last_due);
        let hold = direction
            .chance
            .time(Between::new(Duration::from_nanos(1), LONGEST_HOLD));
        if direction.chance.strikes(reorder) {
            self.counts.reordered += 1;
            self.in_flight.push(due.after(hold), frame);
        } else {
            direction.last_due = due;
            self.in_flight.push(due, frame);
        }
    }

    /// Removes and returns the next frame that is due, and drops those that a partition stops. Returns `None` if no frame
    /// is due.
    fn take_due(&mut self, now: Time) -> Option<OwnedFrame<H>> {
        loop {
            let frame = self.in_flight.take_due(now)?;
            if !self.is_partitioned(frame.from, frame.to, now) {
                return Some(frame);
            }
            self.counts.partitioned += 1;
        }
    }

    fn direction(&mut self, from: LinkAddress, to: LinkAddress) -> &mut Direction {
        let number = self.directions.len();
        self.directions
            .entry((from, to))
            .or_insert_with(|| Direction {
                chance: Chance::new(self.faults.seed, number),
                last_due: Time::default(),
            })
    }

    fn is_partitioned(&mut self, from: LinkAddress, to: LinkAddress, now: Time) -> bool {
        let first = *self.first.get_or_insert(now);
        let is_within = self.faults.partition.is_some_and(|window| {
            (first.after(window.from)..first.after(window.until)).contains(&now)
        });
        is_within || self.partitioned.contains(&(from, to))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sim::fault::Rate;
    use crate::sim::testing::{A, B, C, Echo, Sink, frame, ms, run};

    fn link(faults: &str) -> DatagramLink<u32> {
        DatagramLink::new(None, faults.parse().unwrap())
    }

    /// Sends `count` numbered frames from A to B, one each microsecond, and delivers all of them.
    fn carry(link: &DatagramLink<u32>, count: u32) -> Sink {
        let sink = Sink::default();
        for number in 0..count {
            let now = Time(u64::from(number) * 1000);
            link.send(frame(A, B, number, &[0; 64]), now);
            link.progress(now, &sink);
        }
        run(link, &sink);
        sink
    }

    #[test]
    fn without_faults_frames_arrive_at_once_and_unchanged() {
        let (link, sink) = (link("none"), Sink::default());
        link.send(frame(A, B, 7, b"bytes"), ms(3));
        assert_eq!(link.next_due(), Some(ms(3)));
        assert!(link.progress(ms(3), &sink));
        assert!(!link.progress(ms(3), &sink));
        let arrived = &sink.frames()[0];
        assert_eq!((arrived.from, arrived.to, arrived.header), (A, B, 7));
        assert_eq!(arrived.payload, b"bytes");
        assert!(!arrived.damaged);
        assert_eq!(link.next_due(), None);
    }

    #[test]
    fn nothing_arrives_before_its_delay_has_passed() {
        let (link, sink) = (link("delay=2ms"), Sink::default());
        link.send(frame(A, B, 1, b""), ms(1));
        assert_eq!(link.next_due(), Some(ms(3)));
        assert!(!link.progress(Time(ms(3).0 - 1), &sink));
        assert!(link.progress(ms(3), &sink));
    }

    #[test]
    fn frames_sent_during_delivery_wait_for_the_next_call() {
        let (link, sink) = (&link("none"), &Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        assert!(link.progress(ms(0), &Echo { link, sink }));
        assert_eq!((sink.headers(), link.next_due()), (vec![1], Some(ms(0))));
    }

    #[test]
    fn an_oversized_frame_is_lost_and_counted() {
        let link = DatagramLink::new(Some(Mtu::Mtu256), FaultSpec::default());
        let sink = Sink::default();
        assert_eq!(link.max_frame(), Some(256));
        link.send(frame(A, B, 1, &[0; 256]), ms(0));
        link.send(frame(A, B, 2, &[0; 257]), ms(0));
        run(&link, &sink);
        assert_eq!((sink.headers(), link.counts().oversized), (vec![1], 1));
    }

    #[test]
    fn faults_occur_at_their_rates() {
        let link = link("drop=10%,duplicate=5%,reorder=20%,corrupt=1%,seed=1");
        let arrived = carry(&link, 20_000).frames().len() as u64;
        let counts = link.counts();
        assert!((1_800..2_200).contains(&counts.dropped), "{counts:?}");
        assert!((800..1_000).contains(&counts.duplicated), "{counts:?}");
        assert!((3_500..4_100).contains(&counts.reordered), "{counts:?}");
        assert!((140..220).contains(&counts.corrupted), "{counts:?}");
        assert_eq!(arrived, 20_000 - counts.dropped + counts.duplicated);
    }

    #[test]
    fn a_rate_of_100_percent_applies_to_every_frame() {
        assert!(carry(&link("drop=100%"), 1000).frames().is_empty());
        let twice = (0..1000).flat_map(|number| [number; 2]);
        let arrived = carry(&link("duplicate=100%"), 1000).headers();
        assert!(twice.eq(arrived));
    }

    #[test]
    fn a_reordered_frame_is_overtaken() {
        let arrived = carry(&link("reorder=10%,seed=3"), 1000).headers();
        assert!(arrived.windows(2).filter(|pair| pair[0] > pair[1]).count() > 50);
        let mut sorted = arrived;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }

    #[test]
    fn a_damaged_frame_is_marked_and_has_one_bit_flipped() {
        for frame in carry(&link("corrupt=50%,seed=3"), 1000).frames() {
            let flipped: u32 = frame.payload.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(flipped, u32::from(frame.damaged));
        }
    }

    #[test]
    fn a_damaged_frame_without_payload_is_only_marked() {
        let (link, sink) = (link("corrupt=100%"), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        run(&link, &sink);
        assert!(sink.frames()[0].damaged && sink.frames()[0].payload.is_empty());
    }

    #[test]
    fn a_partition_cuts_one_direction_until_it_is_healed() {
        let (link, sink) = (link("none"), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        link.partition(A, B);
        link.send(frame(A, B, 2, b""), ms(0));
        link.send(frame(B, A, 3, b""), ms(0));
        link.send(frame(A, C, 4, b""), ms(0));
        run(&link, &sink);
        assert_eq!((sink.headers(), link.counts().partitioned), (vec![3, 4], 2));
        link.heal(A, B);
        link.send(frame(A, B, 5, b""), ms(0));
        run(&link, &sink);
        assert_eq!(sink.headers(), [3, 4, 5]);
    }

    #[test]
    fn a_timed_partition_counts_from_the_first_frame() {
        let (link, sink) = (link("partition=10ms..20ms"), Sink::default());
        for (number, at) in [(1, 100), (2, 109), (3, 110), (4, 119), (5, 120)] {
            link.send(frame(A, B, number, b""), ms(at));
            link.progress(ms(at), &sink);
        }
        assert_eq!(sink.headers(), [1, 2, 5]);
    }

    #[test]
    fn directions_have_independent_faults() {
        let [alone, beside] = [false, true].map(|beside| {
            let (link, sink) = (link("drop=30%,seed=5"), Sink::default());
            for number in 0..200 {
                link.send(frame(A, B, number, b""), ms(0));
                if beside {
                    link.send(frame(B, A, 1000, b""), ms(0));
                }
            }
            run(&link, &sink);
            let mut arrived = sink.headers();
            arrived.retain(|number| *number < 1000);
            arrived
        });
        assert_eq!(alone, beside);
    }

    prop_compose! {
        fn any_faults()(rates in [0_u32..30, 0..30, 0..30, 0..30], most in 0_u64..10_000, seed in any::<u64>())
            -> FaultSpec
        {
            let [drop, duplicate, reorder, corrupt] = rates.map(Rate::percent);
            let delay = Between::new(Duration::ZERO, Duration::from_nanos(most));
            FaultSpec { drop, duplicate, reorder, corrupt, delay, seed, ..FaultSpec::default() }
        }
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_faults(faults in any_faults()) {
            let [one, other] = [(); 2].map(|()| {
                let arrived = carry(&DatagramLink::new(None, faults), 200).frames();
                arrived.into_iter().map(|frame| (frame.header, frame.payload, frame.damaged)).collect::<Vec<_>>()
            });
            prop_assert_eq!(one, other);
        }

        #[test]
        fn order_is_kept_unless_frames_are_reordered(faults in any_faults()) {
            let faults = FaultSpec { reorder: Rate::NEVER, ..faults };
            let arrived = carry(&DatagramLink::new(None, faults), 200).headers();
            prop_assert!(arrived.is_sorted(), "{:?}", arrived);
        }

        #[test]
        fn delay_alone_loses_and_duplicates_nothing(faults in any_faults()) {
            let faults = FaultSpec { delay: faults.delay, seed: faults.seed, ..FaultSpec::default() };
            let arrived = carry(&DatagramLink::new(None, faults), 200).headers();
            prop_assert_eq!(arrived, (0..200).collect::<Vec<_>>());
        }
    }
}
