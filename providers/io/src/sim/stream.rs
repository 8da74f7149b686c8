//! The stream link: it carries frames on connections that keep order, and injects faults into them.

use std::collections::HashMap;
use std::iter;
use std::num::NonZeroUsize;
use std::time::Duration;

use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame};
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;
use verbs_api::provider::Mutex;

use crate::sim::chance::Chance;
use crate::sim::fault::{Between, FaultSpec};
use crate::sim::in_flight::InFlight;

/// Returns the key of the connection to which a frame belongs, from the frame's header. Both directions of a connection
/// have one key, and no two connections between the same addresses ever have the same. After a reset, the link drops all
/// further frames with the key.
pub type StreamKey<H> = fn(&H) -> u64;

/// Returns the header of the frame that reports to the address `to` that its connection with `from` was reset.
pub type ResetHeader<H> = fn(from: LinkAddress, to: LinkAddress, key: u64) -> H;

/// The longest random time between two pieces of a frame, if frames arrive in pieces.
const LONGEST_GAP: Duration = Duration::from_micros(20);

/// The most pieces into which a frame is cut. For each piece the link draws one random number while it is locked.
const MAX_CHUNKS: u64 = 1024;

/// Counts of the faults that a [`StreamLink`] has injected, apart from delay and chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamCounts {
    /// Frames in which a bit was flipped.
    pub flipped: u64,
    /// Frames before which the link stalled a stream.
    pub stalled: u64,
    /// Connections that the link has reset.
    pub resets: u64,
    /// Frames that were dropped because their connection was reset.
    pub discarded: u64,
}

/// A link that keeps order and loses nothing until a connection is reset; see the [module](self).
///
/// A *stream* is one direction of a connection: the frames from one address to another with one key. Each stream has its
/// own faults and random numbers. A frame is delivered as a whole, when its last piece has arrived.
pub struct StreamLink<H> {
    max_frame: Option<NonZeroUsize>,
    key: StreamKey<H>,
    reset_header: Option<ResetHeader<H>>,
    state: Mutex<State<H>>,
}

struct State<H> {
    faults: FaultSpec,
    streams: HashMap<Id, Stream>,
    in_flight: InFlight<H>,
    counts: StreamCounts,
}

/// The identity of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    from: LinkAddress,
    to: LinkAddress,
    key: u64,
}

struct Stream {
    chance: Chance,
    /// The time at which the last frame that was sent is due.
    last_due: Time,
    sent: u64,
    is_reset: bool,
}

impl<H: Clone> StreamLink<H> {
    /// Creates a link that has carried nothing yet.
    ///
    /// `max_frame` is the largest payload of a frame that drivers may send; `None` if a message of any length is one frame.
    /// Faults that only datagrams have are ignored; [`FaultSpec::check`] refuses them.
    ///
    /// With `reset_header`, the link delivers to each end of a connection that was reset a frame without payload, which
    /// reports that. With `None`, the ends only notice that no frame arrives.
    pub fn new(
        max_frame: Option<NonZeroUsize>,
        faults: FaultSpec,
        key: StreamKey<H>,
        reset_header: Option<ResetHeader<H>>,
    ) -> Self {
        let state = State {
            faults,
            streams: HashMap::new(),
            in_flight: InFlight::new(),
            counts: StreamCounts::default(),
        };
        Self {
            max_frame,
            key,
            reset_header,
            state: Mutex::new(state),
        }
    }

    /// Returns the counts of injected faults so far.
    pub fn counts(&self) -> StreamCounts {
        self.state.lock().counts
    }

    fn id(&self, frame: &OwnedFrame<H>) -> Id {
        Id {
            from: frame.from,
            to: frame.to,
            key: (self.key)(&frame.header),
        }
    }

    /// Resets a connection: drops its frames that have not been delivered, and reports the reset to both ends.
    fn reset(&self, state: &mut State<H>, connection: Id) {
        state.counts.resets += 1;
        for id in connection.both() {
            let lost = state.in_flight.lose(|frame| self.id(frame) == id);
            state.counts.discarded += lost;
            state.stream(id).is_reset = true;
            if let Some(header) = self.reset_header {
                let Id { from, to, key } = id;
                let news = OwnedFrame {
                    from,
                    to,
                    header: header(from, to, key),
                    payload: Vec::new(),
                    damaged: false,
                };
                state.in_flight.push(Time::default(), news);
            }
        }
    }
}

impl<H: Clone + Send + Sync + 'static> Link<H> for StreamLink<H> {
    fn max_frame(&self) -> Option<usize> {
        self.max_frame.map(NonZeroUsize::get)
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        let frame = frame.to_owned();
        let id = self.id(&frame);
        let mut state = self.state.lock();
        if state.is_spent(id) {
            self.reset(&mut state, id);
        }
        state.send(id, frame, now);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        // Frames that are sent during delivery wait for the next call, so that every call ends.
        let most = self.state.lock().in_flight.len();
        let due = iter::from_fn(|| self.state.lock().in_flight.take_due(now)).take(most);
        due.fold(false, |_, frame| {
            network.deliver(frame.as_frame(), now);
            true
        })
    }

    fn next_due(&self) -> Option<Time> {
        self.state.lock().in_flight.next_due()
    }
}

impl<H> State<H> {
    fn send(&mut self, id: Id, mut frame: OwnedFrame<H>, now: Time) {
        let faults = self.faults;
        let stream = self.stream(id);
        if stream.is_reset {
            self.counts.discarded += 1;
            return;
        }
        stream.sent += 1;
        let chance = &mut stream.chance;
        let mut at = now.after(chance.time(faults.delay));
        let is_flipped = chance.strikes(faults.flip);
        if is_flipped {
            frame.damaged = true;
            chance.flip(&mut frame.payload);
        }
        let stall = faults.stall.filter(|stall| chance.strikes(stall.rate));
        if let Some(stall) = stall {
            at = at.max(stream.last_due).after(stall.time);
        }
        if let Some(bytes) = faults.chunk {
            let gaps = Between::new(Duration::ZERO, LONGEST_GAP);
            let chunks = chunks(frame.payload.len(), chance.number(bytes));
            at = (1..chunks).fold(at, |at, _| at.after(chance.time(gaps)));
        }
        stream.last_due = stream.last_due.max(at);
        let due = stream.last_due;
        self.counts.flipped += u64::from(is_flipped);
        self.counts.stalled += u64::from(stall.is_some());
        self.in_flight.push(due, frame);
    }

    /// Returns whether the connection has carried all the frames that `reset_after` allows, and has not been reset yet.
    fn is_spent(&self, id: Id) -> bool {
        let streams = || id.both().filter_map(|id| self.streams.get(&id));
        let carried: u64 = streams().map(|stream| stream.sent).sum();
        let is_over = self.faults.reset_after.is_some_and(|most| carried >= most);
        is_over && !streams().any(|stream| stream.is_reset)
    }

    fn stream(&mut self, id: Id) -> &mut Stream {
        let number = self.streams.len();
        self.streams.entry(id).or_insert_with(|| Stream {
            chance: Chance::new(self.faults.seed, number),
            last_due: Time::default(),
            sent: 0,
            is_reset: false,
        })
    }
}

impl Id {
    /// Returns the ids of both directions of the connection, or one id if both addresses are the same.
    fn both(self) -> impl Iterator<Item = Self> {
        let Self { from, to, key } = self;
        let back = (from != to).then_some(Self {
            from: to,
            to: from,
            key,
        });
        [Some(self), back].into_iter().flatten()
    }
}

/// Returns the number of pieces of a frame with `payload` bytes of payload, if each has `bytes` bytes. The first piece also
/// holds the header. The pieces of a very long frame are longer, so that there are at most [`MAX_CHUNKS`].
fn chunks(payload: usize, bytes: u32) -> u64 {
    (payload as u64)
        .div_ceil(u64::from(bytes.max(1)))
        .clamp(1, MAX_CHUNKS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sim::fault::{Rate, Stall};
    use crate::sim::testing::{A, B, C, Echo, Sink, frame, ms, run};

    const RESET: u32 = 0xdead_0000;

    /// Returns the key of the connection to which a frame belongs: the upper half of its header.
    fn key(header: &u32) -> u64 {
        u64::from(header >> 16)
    }

    fn with(faults: FaultSpec) -> StreamLink<u32> {
        StreamLink::new(None, faults, key, Some(|_, _, key| RESET | key as u32))
    }

    fn link(faults: &str) -> StreamLink<u32> {
        with(faults.parse().unwrap())
    }

    #[test]
    fn without_faults_frames_arrive_at_once_and_unchanged() {
        let (link, sink) = (link("none"), Sink::default());
        for number in 0..100 {
            link.send(frame(A, B, number, b"bytes"), ms(3));
        }
        assert_eq!(link.next_due(), Some(ms(3)));
        assert!(link.progress(ms(3), &sink));
        assert!(!link.progress(ms(3), &sink));
        assert!(sink.headers().into_iter().eq(0..100));
        let unharmed = |frame: &OwnedFrame<u32>| frame.payload == b"bytes" && !frame.damaged;
        assert!(sink.frames().iter().all(unharmed));
        assert_eq!(link.next_due(), None);
    }

    #[test]
    fn frames_sent_during_delivery_wait_for_the_next_call() {
        let (link, sink) = (&link("none"), &Sink::default());
        link.send(frame(A, B, 1, b""), ms(0));
        assert!(link.progress(ms(0), &Echo { link, sink }));
        assert_eq!((sink.headers(), link.next_due()), (vec![1], Some(ms(0))));
    }

    #[test]
    fn max_frame_returns_the_configured_length() {
        for most in [None, NonZeroUsize::new(1460)] {
            let link = StreamLink::new(most, FaultSpec::default(), key, None);
            assert_eq!(link.max_frame(), most.map(NonZeroUsize::get));
        }
    }

    #[test]
    fn a_frame_in_pieces_arrives_with_its_last_piece() {
        let (link, sink) = (link("chunk=10"), Sink::default());
        link.send(frame(A, B, 1, &[7; 25]), ms(0));
        link.send(frame(A, B, 2, b""), ms(0));
        let due = link.next_due().unwrap();
        assert!((Time(1)..=Time::default().after(2 * LONGEST_GAP)).contains(&due));
        link.progress(due, &sink);
        assert_eq!(sink.headers(), [1, 2]);
        assert_eq!(sink.frames()[0].payload, [7; 25]);
    }

    #[test]
    fn a_stall_holds_its_stream_and_no_other() {
        let (link, sink) = (link("stall=50%:1ms"), Sink::default());
        for connection in 0..100 {
            link.send(frame(A, B, connection << 16, b""), ms(0));
            link.send(frame(A, B, connection << 16 | 1, b""), ms(0));
        }
        link.progress(ms(0), &sink);
        let first = sink.headers().into_iter().filter(|header| header & 1 == 0);
        assert!((30..70).contains(&first.count()));
        run(&link, &sink);
        assert_eq!(sink.headers().len(), 200);
    }

    #[test]
    fn stalls_keep_order() {
        let (link, sink) = (link("stall=20%:1ms,seed=4"), Sink::default());
        for number in 0..1000 {
            link.send(frame(A, B, number, b""), ms(0));
        }
        let stalled = link.counts().stalled;
        assert!((150..250).contains(&stalled), "{stalled}");
        link.progress(Time(ms(stalled).0 - 1), &sink);
        assert!(sink.headers().len() < 1000);
        link.progress(ms(stalled), &sink);
        assert!(sink.headers().into_iter().eq(0..1000));
    }

    #[test]
    fn a_reset_loses_frames_under_way_and_informs_both_ends() {
        let (link, sink) = (link("reset-after=2,delay=1ms"), Sink::default());
        for (from, to, header) in [
            (A, B, 0x1_0001),
            (B, A, 0x1_0002),
            (A, B, 0x2_0003),
            (A, C, 0x1_0004),
            (A, B, 0x1_0005),
            (B, A, 0x1_0006),
        ] {
            link.send(frame(from, to, header, b""), ms(0));
        }
        run(&link, &sink);
        let frames = sink.frames();
        let told: Vec<_> = frames.iter().map(|it| (it.to, it.header)).collect();
        let resets = [(B, RESET | 1), (A, RESET | 1)];
        assert_eq!(told, [resets, [(B, 0x2_0003), (C, 0x1_0004)]].concat());
        let counts = link.counts();
        assert_eq!((counts.resets, counts.discarded), (1, 4));
    }

    #[test]
    fn a_reset_without_a_header_sends_nothing() {
        let link = StreamLink::new(None, "reset-after=0".parse().unwrap(), key, None);
        link.send(frame(A, B, 1, b""), ms(0));
        assert_eq!((link.next_due(), link.counts().discarded), (None, 1));
    }

    #[test]
    fn an_address_may_be_connected_with_itself() {
        let (link, sink) = (link("reset-after=2"), Sink::default());
        for number in 0..4 {
            link.send(frame(A, A, number, b""), ms(0));
            run(&link, &sink);
        }
        assert_eq!(sink.headers(), [0, 1, RESET]);
    }

    #[test]
    fn a_damaged_frame_is_marked_and_has_one_bit_flipped() {
        let (link, sink) = (link("flip=10%,seed=2"), Sink::default());
        for number in 0..1000 {
            link.send(frame(A, B, number, &[0; 64]), ms(0));
        }
        run(&link, &sink);
        for frame in sink.frames() {
            let flipped: u32 = frame.payload.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(flipped, u32::from(frame.damaged));
        }
        let flipped = link.counts().flipped;
        assert!((70..130).contains(&flipped), "{flipped}");
    }

    prop_compose! {
        fn any_faults()(
            delay in 0_u64..100_000, chunk in prop::option::of(1_u32..100), stall in prop::option::of(0_u32..50),
            flip in 0_u32..50, seed in any::<u64>(),
        ) -> FaultSpec {
            FaultSpec {
                delay: Between::new(Duration::ZERO, Duration::from_nanos(delay)),
                chunk: chunk.map(|most| Between::new(1, most)),
                stall: stall.map(|percent| Stall { rate: Rate::percent(percent), time: Duration::from_micros(10) }),
                flip: Rate::percent(flip),
                seed,
                ..FaultSpec::default()
            }
        }
    }

    /// Sends frames on three connections in both directions. Returns the delivered frames and when each was delivered.
    fn carry(faults: FaultSpec, count: u32) -> Vec<(Time, OwnedFrame<u32>)> {
        let link = with(faults);
        let mut arrived = Vec::new();
        for number in 0..count {
            let (from, to) = if number % 2 == 0 { (A, B) } else { (B, A) };
            let frame = frame(from, to, (number % 3) << 16 | number, &[0; 90]);
            link.send(frame, Time(u64::from(number) * 1000));
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
        fn each_stream_keeps_its_order_and_loses_nothing(faults in any_faults()) {
            let arrived = carry(faults, 120);
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
        fn the_same_seed_gives_the_same_faults(faults in any_faults()) {
            let [one, other] = [(); 2].map(|()| {
                let arrived = carry(faults, 60).into_iter();
                arrived.map(|(at, frame)| (at, frame.header, frame.payload, frame.damaged)).collect::<Vec<_>>()
            });
            prop_assert_eq!(one, other);
        }

        #[test]
        fn the_frames_before_a_reset_are_a_prefix(faults in any_faults(), after in 0_u64..120) {
            let link = with(FaultSpec { reset_after: Some(after), ..faults });
            let sink = Sink::default();
            for number in 0..120 {
                let now = Time(u64::from(number) * 10_000);
                link.progress(now, &sink);
                link.send(frame(A, B, number, &[0; 90]), now);
            }
            run(&link, &sink);
            let mut arrived = sink.headers();
            prop_assert_eq!(arrived.split_off(arrived.len() - 2), [RESET; 2]);
            prop_assert!(arrived.len() as u64 <= after);
            prop_assert_eq!(120, arrived.len() as u64 + link.counts().discarded);
            prop_assert!(arrived.into_iter().enumerate().all(|(at, header)| at as u32 == header));
        }
    }
}
