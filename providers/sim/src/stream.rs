//! The stream link: connections that keep order, and whatever may happen to them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame};
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;

use crate::chance::Chance;
use crate::fault::{Between, Contract, FaultSpec, FaultSpecError, StreamFaults};

/// Tells the connection of a frame by its header: the same for both directions, another for each connection that two
/// addresses ever have. After a reset the same key carries nothing more.
pub type StreamKey<H> = fn(&H) -> u64;

/// Makes the header that tells the end at the second address that its connection with the first was reset.
pub type ResetHeader<H> = fn(from: LinkAddress, to: LinkAddress, key: u64) -> H;

/// What a [`StreamLink`] is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The largest payload of a frame that drivers are told to send; `None` where a message of any length is one frame.
    pub max_frame: Option<NonZeroUsize>,
    /// How long a frame is under way. Later frames of a stream wait for earlier ones, however long these take.
    pub delay: Between<Duration>,
    /// How long each piece of a frame comes after the one before, where frames arrive in pieces.
    pub chunk_gap: Between<Duration>,
    /// What happens to frames.
    pub faults: StreamFaults,
    /// What chance starts from.
    pub seed: u64,
}

impl Default for StreamOptions {
    /// No limit, no delay, no faults; pieces come up to 20 µs apart.
    fn default() -> Self {
        Self {
            max_frame: None,
            delay: Between::default(),
            chunk_gap: Between::new(Duration::ZERO, Duration::from_micros(20)),
            faults: StreamFaults::default(),
            seed: 0,
        }
    }
}

impl TryFrom<&FaultSpec> for StreamOptions {
    type Error = FaultSpecError;

    /// With these faults, and otherwise as by default.
    fn try_from(spec: &FaultSpec) -> Result<Self, FaultSpecError> {
        spec.check(Contract::Stream)?;
        Ok(Self {
            faults: spec.stream,
            delay: spec.delay,
            seed: spec.seed,
            ..Self::default()
        })
    }
}

/// What became of the frames of a [`StreamLink`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamCounts {
    /// Frames that devices sent.
    pub sent: u64,
    /// Frames that were delivered, news of resets not counted.
    pub delivered: u64,
    /// Frames of which a bit was flipped.
    pub flipped: u64,
    /// Frames before which a stream stood still by chance.
    pub stalled: u64,
    /// Pieces in which frames arrived, where they do.
    pub chunks: u64,
    /// Connections that were reset.
    pub resets: u64,
    /// Frames that were lost with a connection that was reset.
    pub discarded: u64,
}

/// A link that keeps order and loses nothing, until a connection is reset; see the [module](self).
///
/// A *stream* is one direction of a connection: two addresses and a key. Each has a queue, a fate and a chance of its
/// own. A frame is delivered whole, with its last piece.
///
/// What [`stall`](Self::stall), [`resume`](Self::resume) and [`reset`](Self::reset) make due is delivered at the next
/// [`progress`](Link::progress); the link wakes nobody.
pub struct StreamLink<H> {
    options: StreamOptions,
    key: StreamKey<H>,
    reset_header: Option<ResetHeader<H>>,
    state: Mutex<State<H>>,
}

struct State<H> {
    streams: HashMap<Id, Stream<H>>,
    /// Streams with a frame that will be due, by that time, then in the order of sending.
    schedule: BTreeMap<(Time, u64), Id>,
    queued: u64,
    counts: StreamCounts,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    from: LinkAddress,
    to: LinkAddress,
    key: u64,
}

struct Stream<H> {
    chance: Chance,
    queue: VecDeque<Queued<H>>,
    /// When the last frame of the queue is due.
    last_due: Time,
    /// Nothing is delivered before.
    held_until: Time,
    /// Where the stream stands in the schedule.
    slot: Option<(Time, u64)>,
    sent: u64,
    is_reset: bool,
}

struct Queued<H> {
    at: Time,
    order: u64,
    frame: OwnedFrame<H>,
    is_news: bool,
}

impl<H: Clone> StreamLink<H> {
    /// A link that has carried nothing yet.
    ///
    /// With `reset_header` each end of a connection that was reset gets a frame without payload that says so; without,
    /// nothing arrives any more, and that is all they notice.
    pub fn new(
        options: StreamOptions,
        key: StreamKey<H>,
        reset_header: Option<ResetHeader<H>>,
    ) -> Self {
        let state = State {
            streams: HashMap::new(),
            schedule: BTreeMap::new(),
            queued: 0,
            counts: StreamCounts::default(),
        };
        Self {
            options,
            key,
            reset_header,
            state: Mutex::new(state),
        }
    }

    /// Holds a stream: nothing arrives before `until`, or before [`resume`](Self::resume) where that is
    /// [`Time::NEVER`].
    pub fn stall(&self, from: LinkAddress, to: LinkAddress, key: u64, until: Time) {
        self.state()
            .hold(self.options.seed, Id { from, to, key }, until);
    }

    /// Lets a stream that was stalled go on.
    pub fn resume(&self, from: LinkAddress, to: LinkAddress, key: u64) {
        self.stall(from, to, key, Time::default());
    }

    /// Resets a connection: what is under way and what is sent later is lost, and both ends are told.
    pub fn reset(&self, one: LinkAddress, other: LinkAddress, key: u64) {
        let id = Id {
            from: one,
            to: other,
            key,
        };
        self.state().reset(self.options.seed, id, self.reset_header);
    }

    /// What became of the frames so far.
    pub fn counts(&self) -> StreamCounts {
        self.state().counts
    }

    /// Frames that are under way, those of stalled streams among them.
    pub fn in_flight(&self) -> usize {
        self.state()
            .streams
            .values()
            .map(|stream| stream.queue.len())
            .sum()
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Clone + Send + Sync + 'static> Link<H> for StreamLink<H> {
    fn max_frame(&self) -> Option<usize> {
        self.options.max_frame.map(NonZeroUsize::get)
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        let id = Id {
            from: frame.from,
            to: frame.to,
            key: (self.key)(&frame.header),
        };
        let frame = frame.to_owned();
        let mut state = self.state();
        state.counts.sent += 1;
        if state.is_spent(id, self.options.faults.reset_after) {
            state.reset(self.options.seed, id, self.reset_header);
        }
        state.send(&self.options, id, frame, now);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        // No more than was sent before this call, so that each call ends.
        let last = self.state().queued;
        let mut delivered = false;
        loop {
            let Some(frame) = self.state().take_due(now, last) else {
                return delivered;
            };
            network.deliver(frame.as_frame(), now);
            delivered = true;
        }
    }

    fn next_due(&self) -> Option<Time> {
        self.state()
            .schedule
            .first_key_value()
            .map(|((at, _), _)| *at)
    }
}

impl<H: Clone> State<H> {
    fn send(&mut self, options: &StreamOptions, id: Id, mut frame: OwnedFrame<H>, now: Time) {
        let faults = options.faults;
        let stream = self.streams.get_mut(&id);
        if stream.is_some_and(|stream| stream.is_reset) {
            self.counts.discarded += 1;
            return;
        }
        let stream = stream_of(&mut self.streams, options.seed, id);
        stream.sent += 1;
        let mut at = now.after(stream.chance.time(options.delay));
        if stream.chance.strikes(faults.flip) {
            stream.chance.damage(&mut frame);
            self.counts.flipped += 1;
        }
        if let Some(stall) = faults
            .stall
            .filter(|stall| stream.chance.strikes(stall.rate))
        {
            at = at.max(stream.last_due).after(stall.time);
            self.counts.stalled += 1;
        }
        if let Some(octets) = faults.chunk {
            let chunks = chunks(frame.payload.len(), stream.chance.number(octets));
            at = (1..chunks).fold(at, |at, _| at.after(stream.chance.time(options.chunk_gap)));
            self.counts.chunks += chunks;
        }
        self.push(options.seed, id, frame, at, false);
    }

    fn push(&mut self, seed: u64, id: Id, frame: OwnedFrame<H>, at: Time, is_news: bool) {
        self.queued += 1;
        let stream = stream_of(&mut self.streams, seed, id);
        stream.last_due = stream.last_due.max(at);
        let queued = Queued {
            at: stream.last_due,
            order: self.queued,
            frame,
            is_news,
        };
        stream.queue.push_back(queued);
        if stream.slot.is_none() {
            stream.schedule(id, &mut self.schedule);
        }
    }

    /// The next frame, if it is due and no younger than `last`.
    fn take_due(&mut self, now: Time, last: u64) -> Option<OwnedFrame<H>> {
        let next = self.schedule.first_entry()?;
        let ((at, order), id) = (*next.key(), *next.get());
        if at > now || order > last {
            return None;
        }
        let stream = self.streams.get_mut(&id)?;
        let queued = stream.queue.pop_front()?;
        stream.schedule(id, &mut self.schedule);
        self.counts.delivered += u64::from(!queued.is_news);
        Some(queued.frame)
    }

    fn hold(&mut self, seed: u64, id: Id, until: Time) {
        let stream = stream_of(&mut self.streams, seed, id);
        stream.held_until = until;
        stream.schedule(id, &mut self.schedule);
    }

    /// Whether the connection has carried all the frames that it may.
    fn is_spent(&self, id: Id, reset_after: Option<u64>) -> bool {
        let carried = |id: &Id| self.streams.get(id).map_or(0, |stream| stream.sent);
        let carried: u64 = id.both().iter().flatten().map(carried).sum();
        reset_after.is_some_and(|most| carried >= most)
    }

    fn reset(&mut self, seed: u64, id: Id, header: Option<ResetHeader<H>>) {
        if self.streams.get(&id).is_some_and(|stream| stream.is_reset) {
            return;
        }
        self.counts.resets += 1;
        for id in id.both().into_iter().flatten() {
            let stream = stream_of(&mut self.streams, seed, id);
            stream.is_reset = true;
            stream.held_until = Time::default();
            stream.last_due = Time::default();
            self.counts.discarded += stream.queue.len() as u64;
            stream.queue.clear();
            stream.schedule(id, &mut self.schedule);
            if let Some(header) = header {
                let Id { from, to, key } = id;
                let header = header(from, to, key);
                let news = OwnedFrame {
                    from,
                    to,
                    header,
                    payload: Vec::new(),
                    damaged: false,
                };
                self.push(seed, id, news, Time::default(), true);
            }
        }
    }
}

impl<H> Stream<H> {
    /// Puts the stream where its first frame and what holds it say.
    fn schedule(&mut self, id: Id, schedule: &mut BTreeMap<(Time, u64), Id>) {
        if let Some(slot) = self.slot.take() {
            schedule.remove(&slot);
        }
        let Some(first) = self.queue.front() else {
            return;
        };
        let at = first.at.max(self.held_until);
        if at != Time::NEVER {
            schedule.insert((at, first.order), id);
            self.slot = Some((at, first.order));
        }
    }
}

impl Id {
    /// Both directions of the connection; one where they are the same.
    fn both(self) -> [Option<Self>; 2] {
        let Self { from, to, key } = self;
        [
            Some(self),
            (from != to).then_some(Self {
                from: to,
                to: from,
                key,
            }),
        ]
    }
}

fn stream_of<H>(streams: &mut HashMap<Id, Stream<H>>, seed: u64, id: Id) -> &mut Stream<H> {
    let number = streams.len();
    streams.entry(id).or_insert_with(|| Stream {
        chance: Chance::new(seed, number),
        queue: VecDeque::new(),
        last_due: Time::default(),
        held_until: Time::default(),
        slot: None,
        sent: 0,
        is_reset: false,
    })
}

/// Pieces of a frame with this payload; the header is in the first. Of a very long frame the pieces are longer.
fn chunks(payload: usize, octets: u32) -> u64 {
    (payload as u64)
        .div_ceil(u64::from(octets.max(1)))
        .clamp(1, MAX_CHUNKS)
}

/// Each piece rolls the dice once, with the link locked.
const MAX_CHUNKS: u64 = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::{Rate, Stall};
    use crate::testing::{A, B, C, Echo, Sink, frame, ms, run};

    const RESET: u32 = 0xdead_0000;

    /// The connection is the upper half of the header.
    fn key(header: &u32) -> u64 {
        u64::from(header >> 16)
    }

    fn link(options: StreamOptions) -> StreamLink<u32> {
        StreamLink::new(options, key, Some(|_, _, key| RESET | key as u32))
    }

    fn faulty(faults: StreamFaults, seed: u64) -> StreamOptions {
        StreamOptions {
            faults,
            seed,
            ..StreamOptions::default()
        }
    }

    fn arrived(sink: &Sink) -> Vec<u32> {
        sink.frames().iter().map(|frame| frame.header).collect()
    }

    #[test]
    fn without_faults_everything_arrives_at_once_and_unharmed() {
        let (link, sink) = (link(StreamOptions::default()), Sink::default());
        for number in 0..100 {
            link.send(frame(A, B, number, b"octets"), ms(3));
        }
        assert_eq!(link.next_due(), Some(ms(3)));
        assert!(link.progress(ms(3), &sink));
        assert!(!link.progress(ms(3), &sink));
        assert_eq!(arrived(&sink), (0..100).collect::<Vec<_>>());
        assert!(
            sink.frames()
                .iter()
                .all(|frame| frame.payload == b"octets" && !frame.damaged)
        );
        assert_eq!((link.in_flight(), link.next_due()), (0, None));
    }

    #[test]
    fn what_is_sent_during_delivery_is_for_the_next_call() {
        let (link, sink) = (link(StreamOptions::default()), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        assert!(link.progress(
            ms(0),
            &Echo {
                link: &link,
                sink: &sink
            }
        ));
        assert_eq!((arrived(&sink), link.in_flight()), (vec![1], 1));
    }

    #[test]
    fn the_largest_frame_is_told() {
        let options = StreamOptions {
            max_frame: NonZeroUsize::new(1460),
            ..Default::default()
        };
        assert_eq!(link(options).max_frame(), Some(1460));
        assert_eq!(link(StreamOptions::default()).max_frame(), None);
    }

    #[test]
    fn a_frame_in_pieces_arrives_with_its_last_piece() {
        let faults = StreamFaults {
            chunk: Some(Between::exactly(10)),
            ..Default::default()
        };
        let gap = Between::exactly(Duration::from_millis(1));
        let options = StreamOptions {
            chunk_gap: gap,
            ..faulty(faults, 0)
        };
        let (link, sink) = (link(options), Sink::default());
        link.send(frame(A, B, 1, &[7; 25]), ms(0));
        link.send(frame(A, B, 2, b""), ms(0));
        assert!(!link.progress(Time(ms(2).0 - 1), &sink));
        link.progress(ms(2), &sink);
        assert_eq!(arrived(&sink), [1, 2]);
        assert_eq!(sink.frames()[0].payload, [7; 25]);
        assert_eq!(link.counts().chunks, 4);
    }

    #[test]
    fn a_stall_holds_one_stream_and_no_other() {
        let (link, sink) = (link(StreamOptions::default()), Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        link.stall(A, B, 0, Time::NEVER);
        link.send(frame(A, B, 2, b""), ms(0));
        link.send(frame(B, A, 3, b""), ms(0));
        link.send(frame(A, B, 0x1_0004, b""), ms(0));
        run(&link, &sink);
        assert_eq!(arrived(&sink), [3, 0x1_0004]);
        assert_eq!((link.next_due(), link.in_flight()), (None, 2));
        link.resume(A, B, 0);
        run(&link, &sink);
        assert_eq!(arrived(&sink), [3, 0x1_0004, 1, 2]);
    }

    #[test]
    fn a_stall_for_a_time_ends_by_itself() {
        let (link, sink) = (link(StreamOptions::default()), Sink::default());
        link.stall(A, B, 0, ms(5));
        link.send(frame(A, B, 1, b""), ms(0));
        assert_eq!(link.next_due(), Some(ms(5)));
        assert!(!link.progress(ms(4), &sink));
        assert!(link.progress(ms(5), &sink));
    }

    #[test]
    fn stalls_by_chance_keep_order() {
        let stall = Stall {
            rate: Rate::percent(20),
            time: Duration::from_millis(1),
        };
        let faults = StreamFaults {
            stall: Some(stall),
            ..Default::default()
        };
        let (link, sink) = (link(faulty(faults, 4)), Sink::default());
        for number in 0..1000 {
            link.send(frame(A, B, number, b""), ms(0));
        }
        let stalled = link.counts().stalled;
        assert!((150..250).contains(&stalled), "{stalled}");
        link.progress(Time(ms(stalled).0 - 1), &sink);
        assert!(link.in_flight() > 0);
        link.progress(ms(stalled), &sink);
        assert_eq!(arrived(&sink), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_reset_loses_what_is_under_way_and_tells_both_ends() {
        let delay = Between::exactly(Duration::from_millis(1));
        let (link, sink) = (
            link(StreamOptions {
                delay,
                ..Default::default()
            }),
            Sink::default(),
        );
        link.send(frame(A, B, 0x1_0001, b""), ms(0));
        link.send(frame(B, A, 0x1_0002, b""), ms(0));
        link.send(frame(A, B, 0x2_0003, b""), ms(0));
        link.stall(A, B, 1, Time::NEVER);
        link.reset(B, A, 1);
        link.reset(A, B, 1);
        link.send(frame(A, B, 0x1_0004, b""), ms(0));
        link.send(frame(A, C, 0x1_0005, b""), ms(0));
        run(&link, &sink);
        let told: Vec<_> = sink
            .frames()
            .iter()
            .map(|frame| (frame.to, frame.header))
            .collect();
        assert_eq!(
            told,
            [(A, RESET | 1), (B, RESET | 1), (B, 0x2_0003), (C, 0x1_0005)]
        );
        let counts = link.counts();
        assert_eq!(
            (counts.resets, counts.discarded, counts.delivered),
            (1, 3, 2)
        );
    }

    #[test]
    fn a_reset_without_a_header_is_silence() {
        let link = StreamLink::new(StreamOptions::default(), key, None);
        let sink = Sink::default();
        link.send(frame(A, B, 1, b""), ms(0));
        link.reset(A, B, 0);
        run(&link, &sink);
        assert!(sink.frames().is_empty());
    }

    #[test]
    fn a_connection_is_reset_after_its_frames_in_both_directions() {
        let faults = StreamFaults {
            reset_after: Some(3),
            ..Default::default()
        };
        let (link, sink) = (link(faulty(faults, 0)), Sink::default());
        for (from, to, header) in [
            (A, B, 1),
            (B, A, 2),
            (A, B, 3),
            (A, B, 0x1_0004),
            (A, B, 5),
            (B, A, 6),
        ] {
            link.send(frame(from, to, header, b""), ms(0));
            run(&link, &sink);
        }
        assert_eq!(arrived(&sink), [1, 2, 3, 0x1_0004, RESET, RESET]);
        assert_eq!(link.counts().discarded, 2);
    }

    #[test]
    fn an_address_may_be_connected_with_itself() {
        let faults = StreamFaults {
            reset_after: Some(2),
            ..Default::default()
        };
        let (link, sink) = (link(faulty(faults, 0)), Sink::default());
        for number in 0..4 {
            link.send(frame(A, A, number, b""), ms(0));
            run(&link, &sink);
        }
        assert_eq!(arrived(&sink), [0, 1, RESET]);
    }

    #[test]
    fn a_flipped_bit_is_one_bit_and_is_marked() {
        let faults = StreamFaults {
            flip: Rate::percent(10),
            ..Default::default()
        };
        let (link, sink) = (link(faulty(faults, 2)), Sink::default());
        for number in 0..1000 {
            link.send(frame(A, B, number, &[0; 64]), ms(0));
        }
        run(&link, &sink);
        for frame in sink.frames() {
            let flipped: u32 = frame.payload.iter().map(|octet| octet.count_ones()).sum();
            assert_eq!(flipped, u32::from(frame.damaged));
        }
        assert!(
            (70..130).contains(&link.counts().flipped),
            "{:?}",
            link.counts()
        );
    }

    prop_compose! {
        fn any_options()(
            delay in 0_u64..100_000, chunk in prop::option::of(1_u32..100), stall in prop::option::of(0_u32..50),
            flip in 0_u32..50, seed in any::<u64>(),
        ) -> StreamOptions {
            let stall = stall.map(|percent| {
                Stall { rate: Rate::percent(percent), time: Duration::from_micros(10) }
            });
            let chunk = chunk.map(|most| Between::new(1, most));
            StreamOptions {
                delay: Between::new(Duration::ZERO, Duration::from_nanos(delay)),
                ..faulty(StreamFaults { chunk, stall, reset_after: None, flip: Rate::percent(flip) }, seed)
            }
        }
    }

    /// Sends frames of three connections in both directions, and gives what arrived, when.
    fn carry(options: StreamOptions, count: u32) -> Vec<(Time, OwnedFrame<u32>)> {
        let link = link(options);
        let mut arrived = Vec::new();
        for number in 0..count {
            let (from, to) = if number % 2 == 0 { (A, B) } else { (B, A) };
            link.send(
                frame(from, to, (number % 3) << 16 | number, &[0; 90]),
                Time(u64::from(number) * 1000),
            );
        }
        while let Some(at) = link.next_due() {
            let sink = Sink::default();
            link.progress(at, &sink);
            arrived.extend(sink.frames().into_iter().map(|frame| (at, frame)));
        }
        arrived
    }

    proptest! {
        #[test]
        fn each_stream_keeps_its_order_and_loses_nothing(options in any_options()) {
            let arrived = carry(options, 120);
            prop_assert_eq!(arrived.len(), 120);
            for (connection, from) in [(0, A), (0, B), (1, A), (1, B), (2, A), (2, B)] {
                let headers = arrived.iter().map(|(_, frame)| frame).filter(|frame| frame.from == from);
                let numbers: Vec<_> =
                    headers.map(|frame| frame.header).filter(|header| header >> 16 == connection).collect();
                prop_assert_eq!(numbers.len(), 20);
                prop_assert!(numbers.is_sorted());
            }
        }

        #[test]
        fn the_same_seed_gives_the_same_fate(options in any_options()) {
            let [one, other] = [(); 2].map(|()| {
                let arrived = carry(options, 60).into_iter();
                arrived.map(|(at, frame)| (at, frame.header, frame.payload, frame.damaged)).collect::<Vec<_>>()
            });
            prop_assert_eq!(one, other);
        }

        #[test]
        fn what_arrives_before_a_reset_is_a_prefix(options in any_options(), after in 0_u64..120) {
            let faults = StreamFaults { reset_after: Some(after), ..options.faults };
            let link = link(StreamOptions { faults, ..options });
            let sink = Sink::default();
            for number in 0..120 {
                let now = Time(u64::from(number) * 10_000);
                link.progress(now, &sink);
                link.send(frame(A, B, number, &[0; 90]), now);
            }
            run(&link, &sink);
            let mut arrived = arrived(&sink);
            prop_assert_eq!(arrived.split_off(arrived.len() - 2), [RESET; 2]);
            prop_assert!(arrived.len() as u64 <= after);
            prop_assert_eq!(&arrived, &(0..arrived.len() as u32).collect::<Vec<_>>());
            let counts = link.counts();
            prop_assert_eq!(counts.sent, counts.delivered + counts.discarded);
        }
    }
}
