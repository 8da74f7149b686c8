//! The datagram link: frames of bounded length, and whatever may happen to them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame};
use polyverbs_engine::time::Time;
use verbs_api::{capability::Mtu, ids::LinkAddress};

use crate::chance::Chance;
use crate::fault::{Between, Contract, DatagramFaults, FaultSpec, FaultSpecError};

/// What a [`DatagramLink`] is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramOptions {
    /// The largest payload of a frame, headers not counted; `None` where a message of any length is one frame.
    pub max_frame: Option<Mtu>,
    /// How long a frame is under way. Later frames of a direction wait for earlier ones, however long these take.
    pub delay: Between<Duration>,
    /// How much longer a frame that is reordered is under way; later ones overtake it.
    pub hold: Between<Duration>,
    /// What happens to frames.
    pub faults: DatagramFaults,
    /// What chance starts from.
    pub seed: u64,
}

impl Default for DatagramOptions {
    /// No limit, no delay, no faults; a reordered frame is held back for up to 100 µs.
    fn default() -> Self {
        Self {
            max_frame: None,
            delay: Between::default(),
            hold: Between::new(Duration::from_nanos(1), Duration::from_micros(100)),
            faults: DatagramFaults::default(),
            seed: 0,
        }
    }
}

impl TryFrom<&FaultSpec> for DatagramOptions {
    type Error = FaultSpecError;

    /// With these faults, and otherwise as by default.
    fn try_from(spec: &FaultSpec) -> Result<Self, FaultSpecError> {
        spec.check(Contract::Datagram)?;
        Ok(Self {
            faults: spec.datagram,
            delay: spec.delay,
            seed: spec.seed,
            ..Self::default()
        })
    }
}

/// What became of the frames of a [`DatagramLink`]: each is counted once in `sent`, and once more in what was done to
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramCounts {
    /// Frames that devices sent.
    pub sent: u64,
    /// Frames that were delivered, second copies among them.
    pub delivered: u64,
    /// Lost by chance.
    pub dropped: u64,
    /// Second copies.
    pub duplicated: u64,
    /// Held back, so that later ones overtake them.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Lost because their direction was partitioned.
    pub partitioned: u64,
    /// Lost because they were longer than the link's largest frame: a fault of the driver.
    pub oversized: u64,
}

/// A link that may lose, double, reorder, delay and damage frames; see the [module](self).
///
/// A frame waits until [`progress`](Link::progress) is called at the time it is due or later; with no delay that is the
/// time of sending. Without reordering the frames of a direction (from one address to another) arrive in the order in
/// which they were sent. Chance is each direction's own.
pub struct DatagramLink<H> {
    options: DatagramOptions,
    state: Mutex<State<H>>,
}

struct State<H> {
    faults: DatagramFaults,
    directions: HashMap<(LinkAddress, LinkAddress), Direction>,
    partitioned: HashSet<(LinkAddress, LinkAddress)>,
    /// By the time they are due, then in the order of sending.
    queue: BTreeMap<(Time, u64), OwnedFrame<H>>,
    queued: u64,
    first: Option<Time>,
    counts: DatagramCounts,
}

struct Direction {
    chance: Chance,
    /// When the last frame that was not held back is due.
    last_due: Time,
}

impl<H> DatagramLink<H> {
    /// A link that has carried nothing yet.
    pub fn new(options: DatagramOptions) -> Self {
        let state = State {
            faults: options.faults,
            directions: HashMap::new(),
            partitioned: HashSet::new(),
            queue: BTreeMap::new(),
            queued: 0,
            first: None,
            counts: DatagramCounts::default(),
        };
        Self {
            options,
            state: Mutex::new(state),
        }
    }

    /// From now on nothing passes from one address to the other, not even what is under way.
    pub fn partition(&self, from: LinkAddress, to: LinkAddress) {
        self.state().partitioned.insert((from, to));
    }

    /// Undoes [`partition`](Self::partition).
    pub fn heal(&self, from: LinkAddress, to: LinkAddress) {
        self.state().partitioned.remove(&(from, to));
    }

    /// What happens to frames that are sent from now on.
    pub fn set_faults(&self, faults: DatagramFaults) {
        self.state().faults = faults;
    }

    /// What became of the frames so far.
    pub fn counts(&self) -> DatagramCounts {
        self.state().counts
    }

    /// Frames that are under way.
    pub fn in_flight(&self) -> usize {
        self.state().queue.len()
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Clone + Send + Sync + 'static> Link<H> for DatagramLink<H> {
    fn max_frame(&self) -> Option<usize> {
        self.options.max_frame.map(|mtu| mtu.octets() as usize)
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        let oversized = self
            .max_frame()
            .is_some_and(|most| frame.payload.len() > most);
        let frame = frame.to_owned();
        let mut state = self.state();
        state.counts.sent += 1;
        if oversized {
            state.counts.oversized += 1;
        } else {
            state.send(&self.options, frame, now);
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        // No more than is there now: what is sent meanwhile is for the next call, so that each call ends.
        let mut delivered = false;
        for _ in 0..self.in_flight() {
            let Some(next) = self.state().take_due(now) else {
                break;
            };
            if let Some(frame) = next {
                network.deliver(frame.as_frame(), now);
                delivered = true;
            }
        }
        delivered
    }

    fn next_due(&self) -> Option<Time> {
        self.state().queue.first_key_value().map(|((at, _), _)| *at)
    }
}

impl<H: Clone> State<H> {
    fn send(&mut self, options: &DatagramOptions, mut frame: OwnedFrame<H>, now: Time) {
        let faults = self.faults;
        if self.is_partitioned(frame.from, frame.to, now) {
            self.counts.partitioned += 1;
            return;
        }
        // All dice are rolled for each frame, so that one fault more or less changes nothing for the others.
        let chance = &mut self.direction(options.seed, frame.from, frame.to).chance;
        let [drop, duplicate, corrupt] =
            [faults.drop, faults.duplicate, faults.corrupt].map(|rate| chance.strikes(rate));
        if drop {
            self.counts.dropped += 1;
            return;
        }
        let copy = duplicate.then(|| frame.clone());
        if corrupt {
            chance.damage(&mut frame);
            self.counts.corrupted += 1;
        }
        self.enqueue(options, frame, now);
        if let Some(copy) = copy {
            self.counts.duplicated += 1;
            self.enqueue(options, copy, now);
        }
    }

    fn enqueue(&mut self, options: &DatagramOptions, frame: OwnedFrame<H>, now: Time) {
        let rate = self.faults.reorder;
        let direction = self.direction(options.seed, frame.from, frame.to);
        let due = now
            .after(direction.chance.time(options.delay))
            .max(direction.last_due);
        let hold = direction.chance.time(options.hold);
        let held = direction.chance.strikes(rate);
        let at = if held { due.after(hold) } else { due };
        if held {
            self.counts.reordered += 1;
        } else {
            direction.last_due = due;
        }
        self.queued += 1;
        self.queue.insert((at, self.queued), frame);
    }

    /// The next frame, if it is due; `None` within where it was lost.
    fn take_due(&mut self, now: Time) -> Option<Option<OwnedFrame<H>>> {
        let next = self
            .queue
            .first_entry()
            .filter(|next| next.key().0 <= now)?;
        let frame = next.remove();
        if self.is_partitioned(frame.from, frame.to, now) {
            self.counts.partitioned += 1;
            return Some(None);
        }
        self.counts.delivered += 1;
        Some(Some(frame))
    }

    fn direction(&mut self, seed: u64, from: LinkAddress, to: LinkAddress) -> &mut Direction {
        let number = self.directions.len();
        self.directions
            .entry((from, to))
            .or_insert_with(|| Direction {
                chance: Chance::new(seed, number),
                last_due: Time::default(),
            })
    }

    fn is_partitioned(&mut self, from: LinkAddress, to: LinkAddress, now: Time) -> bool {
        let first = *self.first.get_or_insert(now);
        let within = |times: Between<Duration>| {
            (first.after(times.least())..first.after(times.most())).contains(&now)
        };
        self.faults.partition.is_some_and(within) || self.partitioned.contains(&(from, to))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::Rate;
    use crate::testing::{A, B, C, Sink, frame, ms, run};

    fn link(options: DatagramOptions) -> DatagramLink<u32> {
        DatagramLink::new(options)
    }

    fn faulty(faults: DatagramFaults, seed: u64) -> DatagramOptions {
        DatagramOptions {
            faults,
            seed,
            ..DatagramOptions::default()
        }
    }

    /// Sends `count` numbered frames from A to B, one each microsecond, and delivers all.
    fn carry(link: &DatagramLink<u32>, count: u32) -> Vec<OwnedFrame<u32>> {
        let sink = Sink::default();
        for number in 0..count {
            let now = Time(u64::from(number) * 1000);
            link.send(frame(A, B, number, &[0; 64]), now);
            link.progress(now, &sink);
        }
        run(link, &sink);
        assert_eq!(link.in_flight(), 0);
        sink.frames()
    }

    fn numbers(frames: &[OwnedFrame<u32>]) -> Vec<u32> {
        frames.iter().map(|frame| frame.header).collect()
    }

    #[test]
    fn without_faults_everything_arrives_at_once_and_unharmed() {
        let (link, sink) = (link(DatagramOptions::default()), Sink::default());
        link.send(frame(A, B, 7, b"octets"), ms(3));
        assert_eq!(link.next_due(), Some(ms(3)));
        assert!(link.progress(ms(3), &sink));
        assert!(!link.progress(ms(3), &sink));
        let arrived = sink.frames();
        assert_eq!(
            (arrived[0].from, arrived[0].to, arrived[0].header),
            (A, B, 7)
        );
        assert_eq!(arrived[0].payload, b"octets");
        assert!(!arrived[0].damaged);
        assert_eq!(link.next_due(), None);
    }

    #[test]
    fn nothing_arrives_before_its_delay_has_passed() {
        let delay = Between::exactly(Duration::from_millis(2));
        let (link, sink) = (
            link(DatagramOptions {
                delay,
                ..Default::default()
            }),
            Sink::default(),
        );
        link.send(frame(A, B, 1, b""), ms(1));
        assert_eq!(link.next_due(), Some(ms(3)));
        assert!(!link.progress(Time(ms(3).0 - 1), &sink));
        assert!(link.progress(ms(3), &sink));
    }

    #[test]
    fn what_is_sent_during_delivery_is_for_the_next_call() {
        let (link, sink) = (link(DatagramOptions::default()), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        let echo = crate::testing::Echo {
            link: &link,
            sink: &sink,
        };
        assert!(link.progress(ms(0), &echo));
        assert_eq!(sink.frames().len(), 1);
        assert_eq!(link.in_flight(), 1);
    }

    #[test]
    fn an_oversized_frame_is_lost_and_counted() {
        let options = DatagramOptions {
            max_frame: Some(Mtu::Mtu256),
            ..Default::default()
        };
        let (link, sink) = (link(options), Sink::default());
        assert_eq!(link.max_frame(), Some(256));
        link.send(frame(A, B, 1, &[0; 256]), ms(0));
        link.send(frame(A, B, 2, &[0; 257]), ms(0));
        run(&link, &sink);
        assert_eq!(numbers(&sink.frames()), [1]);
        assert_eq!(link.counts().oversized, 1);
    }

    #[test]
    fn rates_are_honoured() {
        let faults = DatagramFaults {
            drop: Rate::percent(10),
            duplicate: Rate::percent(5),
            reorder: Rate::percent(20),
            corrupt: Rate::percent(1),
            partition: None,
        };
        let link = link(faulty(faults, 1));
        let arrived = carry(&link, 20_000);
        let counts = link.counts();
        assert_eq!(counts.sent, 20_000);
        assert!((1_800..2_200).contains(&counts.dropped), "{counts:?}");
        assert!((800..1_000).contains(&counts.duplicated), "{counts:?}");
        assert!((3_500..4_100).contains(&counts.reordered), "{counts:?}");
        assert!((140..220).contains(&counts.corrupted), "{counts:?}");
        assert_eq!(
            arrived.len() as u64,
            counts.sent - counts.dropped + counts.duplicated
        );
        assert_eq!(counts.delivered, arrived.len() as u64);
    }

    #[test]
    fn always_and_never_mean_it() {
        let all = DatagramFaults {
            drop: Rate::ALWAYS,
            ..Default::default()
        };
        assert!(carry(&link(faulty(all, 1)), 1000).is_empty());
        let twice = DatagramFaults {
            duplicate: Rate::ALWAYS,
            ..Default::default()
        };
        let arrived = numbers(&carry(&link(faulty(twice, 1)), 1000));
        assert_eq!(
            arrived,
            (0..1000)
                .flat_map(|number| [number, number])
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_reordered_frame_is_overtaken() {
        let faults = DatagramFaults {
            reorder: Rate::percent(10),
            ..Default::default()
        };
        let arrived = numbers(&carry(&link(faulty(faults, 3)), 1000));
        let mut sorted = arrived.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert!(arrived.windows(2).filter(|pair| pair[0] > pair[1]).count() > 50);
    }

    #[test]
    fn a_damaged_frame_has_one_bit_flipped_and_says_so() {
        let faults = DatagramFaults {
            corrupt: Rate::percent(50),
            ..Default::default()
        };
        for frame in carry(&link(faulty(faults, 3)), 1000) {
            let flipped: u32 = frame.payload.iter().map(|octet| octet.count_ones()).sum();
            assert_eq!(flipped, u32::from(frame.damaged));
        }
    }

    #[test]
    fn a_damaged_frame_without_payload_only_says_so() {
        let faults = DatagramFaults {
            corrupt: Rate::ALWAYS,
            ..Default::default()
        };
        let (link, sink) = (link(faulty(faults, 3)), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        run(&link, &sink);
        assert!(sink.frames()[0].damaged);
        assert!(sink.frames()[0].payload.is_empty());
    }

    #[test]
    fn a_partition_cuts_one_direction_until_it_is_healed() {
        let (link, sink) = (link(DatagramOptions::default()), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        link.partition(A, B);
        link.send(frame(A, B, 2, b""), ms(0));
        link.send(frame(B, A, 3, b""), ms(0));
        link.send(frame(A, C, 4, b""), ms(0));
        run(&link, &sink);
        assert_eq!(numbers(&sink.frames()), [3, 4]);
        assert_eq!(link.counts().partitioned, 2);
        link.heal(A, B);
        link.send(frame(A, B, 5, b""), ms(0));
        run(&link, &sink);
        assert_eq!(numbers(&sink.frames()), [3, 4, 5]);
    }

    #[test]
    fn a_timed_partition_counts_from_the_first_frame() {
        let times = Between::new(Duration::from_millis(10), Duration::from_millis(20));
        let faults = DatagramFaults {
            partition: Some(times),
            ..Default::default()
        };
        let (link, sink) = (link(faulty(faults, 0)), Sink::default());
        for (number, at) in [(1, 100), (2, 109), (3, 110), (4, 119), (5, 120)] {
            link.send(frame(A, B, number, b""), ms(at));
            link.progress(ms(at), &sink);
        }
        assert_eq!(numbers(&sink.frames()), [1, 2, 5]);
    }

    #[test]
    fn faults_can_end() {
        let faults = DatagramFaults {
            drop: Rate::ALWAYS,
            ..Default::default()
        };
        let link = link(faulty(faults, 1));
        assert!(carry(&link, 10).is_empty());
        link.set_faults(DatagramFaults::default());
        assert_eq!(carry(&link, 10).len(), 10);
    }

    #[test]
    fn what_one_direction_sends_changes_nothing_for_another() {
        let faults = DatagramFaults {
            drop: Rate::percent(30),
            ..Default::default()
        };
        let [alone, beside] = [false, true].map(|beside| {
            let (link, sink) = (link(faulty(faults, 5)), Sink::default());
            for number in 0..200 {
                link.send(frame(A, B, number, b""), ms(0));
                if beside {
                    link.send(frame(B, A, 1000, b""), ms(0));
                }
            }
            run(&link, &sink);
            numbers(&sink.frames())
                .into_iter()
                .filter(|number| *number < 1000)
                .collect::<Vec<_>>()
        });
        assert_eq!(alone, beside);
    }

    prop_compose! {
        fn any_faults()(drop in 0_u32..30, duplicate in 0_u32..30, reorder in 0_u32..30, corrupt in 0_u32..30)
            -> DatagramFaults
        {
            DatagramFaults {
                drop: Rate::percent(drop),
                duplicate: Rate::percent(duplicate),
                reorder: Rate::percent(reorder),
                corrupt: Rate::percent(corrupt),
                partition: None,
            }
        }
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_fate(faults in any_faults(), seed in any::<u64>()) {
            let [one, other] = [(); 2].map(|()| {
                let arrived = carry(&link(faulty(faults, seed)), 200);
                arrived.into_iter().map(|frame| (frame.header, frame.payload, frame.damaged)).collect::<Vec<_>>()
            });
            prop_assert_eq!(one, other);
        }

        #[test]
        fn order_is_kept_unless_frames_are_reordered(
            most in 0_u64..10_000, faults in any_faults(), seed in any::<u64>(),
        ) {
            let faults = DatagramFaults { reorder: Rate::NEVER, ..faults };
            let delay = Between::new(Duration::ZERO, Duration::from_nanos(most));
            let arrived = numbers(&carry(&link(DatagramOptions { delay, ..faulty(faults, seed) }), 200));
            prop_assert!(arrived.is_sorted(), "{:?}", arrived);
        }

        #[test]
        fn jitter_alone_loses_and_doubles_nothing(most in 0_u64..10_000, seed in any::<u64>()) {
            let delay = Between::new(Duration::ZERO, Duration::from_nanos(most));
            let arrived = numbers(&carry(&link(DatagramOptions { delay, seed, ..Default::default() }), 200));
            prop_assert_eq!(arrived, (0..200).collect::<Vec<_>>());
        }
    }
}
