//! Reliable connections: no message is lost, duplicated or reordered, every request completes once, and memory has the
//! content that a model predicts.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use verbs_api::qp::QpType;
use verbs_api::*;
use verbs_api::{
    completion::WcOpcode,
    wr::{self, ReceiveRequest, SendFlags, WorkRequest},
};

use super::endpoint::{Chosen, Endpoint, Pair};

/// Bytes of the longest message.
const LONGEST: usize = 6000;
/// Bytes of a slot, which serves a request as source or sink, or a receive.
const SLOT: usize = 6144;
const SLOTS: usize = 8;
/// The range that the peer writes and never reads.
const WRITTEN: usize = 65_536;
const WRITTEN_LENGTH: usize = 32_768;
/// The range that the peer reads; its writes here are fenced, so that a repeated read finds the same bytes.
const SHARED: usize = WRITTEN + WRITTEN_LENGTH;
const SHARED_LENGTH: usize = 32_768;
/// The range of atomic operations.
const COUNTERS: usize = SHARED + SHARED_LENGTH;
const COUNTERS_LENGTH: usize = 64;
const RECEIVES: usize = COUNTERS + 1024;
const RECEIVE_SLOTS: usize = 16;
const KEYS: usize = 4;

/// One direction: the requests of one side to the other, and their expected results.
struct Direction {
    /// The content of the other side's memory from `WRITTEN` to the end of the counters, when all requests are done.
    model: Vec<u8>,
    outstanding: VecDeque<Posted>,
    free: Vec<usize>,
    messages: VecDeque<Message>,
    receives: VecDeque<(u64, usize)>,
    free_receives: Vec<usize>,
    keys: Vec<(MrKey, KeyState)>,
    next_id: u64,
}

/// A key of the receiving side, which a message may invalidate.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KeyState {
    Free,
    /// The registration of the key, or the message that invalidates it, is in progress.
    Busy,
    Registered(RKey),
}

struct Posted {
    id: u64,
    signaled: bool,
    slot: Option<usize>,
    opcode: WcOpcode,
    /// The content that the slot must have in the end.
    result: Option<Vec<u8>>,
    /// The key of the other direction that the request registers.
    registers: Option<(usize, RKey)>,
}

/// The message that the next receive of the other side must show.
struct Message {
    opcode: WcOpcode,
    /// The bytes in the receive; `None` if they were written elsewhere.
    octets: Option<Vec<u8>>,
    length: usize,
    immediate: Option<[u8; 4]>,
    invalidated: Option<(usize, RKey)>,
}

/// Makes one run: both directions at once, with the requests and faults that the seed chooses.
pub(crate) fn run(seed: u64, rng: &mut SmallRng) {
    let chosen = Chosen::new(QpType::Rc, rng);
    let pair = Pair::new(chosen, seed, rng);
    let mut run = Run {
        directions: [0, 1].map(|side| Direction::new(&pair.ends[1 - side])),
        pair,
    };
    for _ in 0..rng.random_range(20..200) {
        run.step(rng);
    }
    run.finish(rng);
}

struct Run {
    pair: Pair,
    directions: [Direction; 2],
}

impl Run {
    fn step(&mut self, rng: &mut SmallRng) {
        let side = rng.random_range(0..2);
        match rng.random_range(0..20) {
            0..12 => self.post(side, false, rng),
            12..15 => self.receive(side, rng),
            15..18 => {
                self.pair
                    .run_for(Duration::from_nanos(rng.random_range(0..300_000)));
                self.poll();
            }
            18 => self.poll(),
            _ if rng.random_bool(0.3) => self.partition(side, rng),
            _ => {}
        }
    }

    fn partition(&mut self, side: usize, rng: &mut SmallRng) {
        let (from, to) = (
            self.pair.ends[side].address,
            self.pair.ends[1 - side].address,
        );
        self.pair.link.partition(from, to);
        self.pair.run_for(
            self.pair
                .chosen
                .ack_timeout()
                .mul_f64(rng.random_range(0.0..2.0)),
        );
        self.pair.link.heal(from, to);
        // The pause lasts long enough for three retries: with fewer, successive partitions and the losses between them
        // exhaust `retry_cnt`, and the requester rightly gives up.
        self.pair
            .run_for(self.pair.chosen.ack_timeout().mul_f64(3.5));
    }

    /// Posts a request of `side`, if there is room for one.
    fn post(&mut self, side: usize, last: bool, rng: &mut SmallRng) {
        let [from, to] = [&self.pair.ends[side], &self.pair.ends[1 - side]];
        if !last && rng.random_range(0..12) == 0 {
            return self.register(side, rng);
        }
        let (there, here) = pair_of(&mut self.directions, side);
        there.post(from, to, here, last, rng);
    }

    // Registers a key of `side` for the peer to invalidate.
    fn register(&mut self, side: usize, rng: &mut SmallRng) {
        let from = &self.pair.ends[side];
        let (own, peers) = pair_of(&mut self.directions, side);
        let Some(index) = peers
            .keys
            .iter()
            .position(|(_, state)| *state == KeyState::Free)
        else {
            return;
        };
        let (key, state) = &mut peers.keys[index];
        *state = KeyState::Busy;
        let rkey = key.advance();
        let range = from.memory.range(SHARED, 4096).expect("within the memory");
        let pages = PageList::map(&[range], 4096, 4).expect("pages").list;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let signaled = rng.random_bool(0.5);
        let id = own.id();
        let mut request = wr::FastRegister::new(rkey, &pages).access(access).wr_id(id);
        if signaled {
            request = request.signaled(id);
        }
        if rng.random_bool(0.3) {
            request = request.fence();
        }
        from.qp.post_one(request).expect("room");
        let registers = Some((index, rkey));
        let opcode = WcOpcode::FastRegister;
        own.outstanding.push_back(Posted {
            id,
            signaled,
            slot: None,
            opcode,
            result: None,
            registers,
        });
    }

    /// Posts a receive at `side`, if there is room for one.
    fn receive(&mut self, side: usize, rng: &mut SmallRng) {
        let end = &self.pair.ends[side];
        let incoming = &mut self.directions[1 - side];
        let Some(slot) = incoming.free_receives.pop() else {
            return;
        };
        let id = incoming.id();
        let at = RECEIVES + slot * SLOT;
        let split = rng.random_range(0..=LONGEST);
        let sges = [end.sge(at, split), end.sge(at + split, SLOT - split)];
        let request = if rng.random_bool(0.5) {
            ReceiveRequest::new(id, &sges)
        } else {
            ReceiveRequest::new(id, end.sge(at, SLOT))
        };
        end.qp.post_receive(request).expect("room");
        incoming.receives.push_back((id, slot));
    }

    fn poll(&mut self) {
        for side in 0..2 {
            for done in self.pair.ends[side].completions() {
                assert_eq!(
                    done.status,
                    WcStatus::Success,
                    "{done:?} {:?}",
                    self.pair.chosen
                );
                if done.opcode.is_receive() {
                    self.directions[1 - side].received(&self.pair.ends[side], &done);
                } else {
                    let (own, peers) = pair_of(&mut self.directions, side);
                    own.sent(&self.pair.ends[side], &done, peers);
                }
            }
        }
    }

    fn left(&self) -> String {
        let left = self.directions.each_ref().map(|way| {
            let requests: Vec<_> = way
                .outstanding
                .iter()
                .map(|posted| (posted.id, posted.signaled))
                .collect();
            format!(
                "requests {requests:?}, {} messages, {} receives",
                way.messages.len(),
                way.receives.len()
            )
        });
        left.join("; ")
    }

    // Runs until every request has completed, then compares memory.
    fn finish(&mut self, rng: &mut SmallRng) {
        let mut last_posted = [false; 2];
        for round in 0.. {
            assert!(
                round < 20_000,
                "requests never completed: {:?}; {}",
                self.pair.chosen,
                self.left()
            );
            for (side, posted) in last_posted.iter_mut().enumerate() {
                if !*posted && !self.directions[side].free.is_empty() {
                    self.post(side, true, rng);
                    *posted = true;
                }
            }
            (0..2).for_each(|side| self.receive(side, rng));
            self.pair.run_for(Duration::from_micros(500));
            self.poll();
            let idle = self
                .directions
                .iter()
                .all(|way| way.outstanding.is_empty() && way.messages.is_empty());
            if idle && last_posted == [true; 2] {
                break;
            }
        }
        // No completion arrives after the end, whichever frames are still in transit.
        self.pair.run_for(Duration::from_millis(50));
        for (side, way) in self.directions.iter().enumerate() {
            let end = &self.pair.ends[1 - side];
            assert!(end.completions().is_empty(), "a completion too many");
            let found = end.octets(WRITTEN, way.model.len());
            let wrong = found
                .iter()
                .zip(&way.model)
                .position(|(found, model)| found != model);
            assert_eq!(
                wrong, None,
                "memory differs from the model: {:?}",
                self.pair.chosen
            );
        }
        assert_eq!(self.pair.link.counts().oversized, 0);
    }
}

fn pair_of(directions: &mut [Direction; 2], side: usize) -> (&mut Direction, &mut Direction) {
    let [first, second] = directions;
    if side == 0 {
        (first, second)
    } else {
        (second, first)
    }
}

impl Direction {
    fn new(to: &Endpoint) -> Self {
        let key = || (to.pd.alloc_key(16).wait().expect("a key"), KeyState::Free);
        Self {
            model: vec![0; COUNTERS + COUNTERS_LENGTH - WRITTEN],
            outstanding: VecDeque::new(),
            free: (0..SLOTS).collect(),
            messages: VecDeque::new(),
            receives: VecDeque::new(),
            free_receives: (0..RECEIVE_SLOTS).collect(),
            keys: std::iter::repeat_with(key).take(KEYS).collect(),
            next_id: 0,
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    // Whether a read or atomic may be outstanding.
    fn reads(&self) -> bool {
        self.outstanding
            .iter()
            .any(|posted| posted.result.is_some())
    }

    fn post(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        other: &mut Self,
        last: bool,
        rng: &mut SmallRng,
    ) {
        let _ = other;
        let Some(slot) = self.free.pop() else { return };
        let at = slot * SLOT;
        let length = length(rng);
        let octets: Vec<u8> = std::iter::repeat_with(|| rng.random())
            .take(length)
            .collect();
        from.put(at, &octets);
        let id = self.id();
        // A request that takes the last slot is always signaled, so that the slot is freed.
        let signaled = last || self.free.is_empty() || rng.random_bool(0.6);
        let sge = from.sge(at, length);
        let mut flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        flags.set(SendFlags::FENCE, rng.random_bool(0.1));
        flags.set(SendFlags::SOLICITED, rng.random_bool(0.1));
        let mut posted = Posted {
            id,
            signaled,
            slot: Some(slot),
            opcode: WcOpcode::Send,
            result: None,
            registers: None,
        };
        let mut message = None;
        let request: WorkRequest<'_> =
            match rng.random_range(0..9) {
                0 => {
                    message = Some(Message::send(octets));
                    wr::Send::new(sge).wr_id(id).flags(flags).into()
                }
                1 => {
                    let immediate = rng.random();
                    message = Some(Message {
                        immediate: Some(immediate),
                        ..Message::send(octets)
                    });
                    wr::SendWithImmediate::new(sge, immediate)
                        .wr_id(id)
                        .flags(flags)
                        .into()
                }
                2 => {
                    let registered = self.keys.iter_mut().enumerate().find_map(
                        |(index, (_, state))| match *state {
                            KeyState::Registered(rkey) => {
                                *state = KeyState::Busy;
                                Some((index, rkey))
                            }
                            _ => None,
                        },
                    );
                    message = Some(Message {
                        invalidated: registered,
                        ..Message::send(octets)
                    });
                    match registered {
                        Some((_, rkey)) => wr::SendWithInvalidate::new(sge, rkey)
                            .wr_id(id)
                            .flags(flags)
                            .into(),
                        None => wr::Send::new(sge).wr_id(id).flags(flags).into(),
                    }
                }
                3 | 4 => {
                    posted.opcode = WcOpcode::RdmaWrite;
                    let shared = rng.random_bool(0.5);
                    let (zone, size) = if shared {
                        (SHARED, SHARED_LENGTH)
                    } else {
                        (WRITTEN, WRITTEN_LENGTH)
                    };
                    if shared && self.reads() {
                        flags |= SendFlags::FENCE;
                    }
                    let place = zone + rng.random_range(0..=size - length);
                    self.model[place - WRITTEN..][..length].copy_from_slice(&octets);
                    wr::Write::new(sge, to.remote(place))
                        .wr_id(id)
                        .flags(flags)
                        .into()
                }
                5 => {
                    posted.opcode = WcOpcode::RdmaWrite;
                    let place = WRITTEN + rng.random_range(0..=WRITTEN_LENGTH - length);
                    self.model[place - WRITTEN..][..length].copy_from_slice(&octets);
                    let immediate: [u8; 4] = rng.random();
                    message = Some(Message {
                        opcode: WcOpcode::RecvRdmaWithImm,
                        octets: None,
                        length,
                        immediate: Some(immediate),
                        invalidated: None,
                    });
                    wr::WriteWithImmediate::new(sge, to.remote(place), immediate)
                        .wr_id(id)
                        .flags(flags)
                        .into()
                }
                6 => {
                    posted.opcode = WcOpcode::RdmaRead;
                    let place = SHARED + rng.random_range(0..=SHARED_LENGTH - length);
                    posted.result = Some(self.model[place - WRITTEN..][..length].to_vec());
                    wr::Read::new(sge, to.remote(place))
                        .wr_id(id)
                        .flags(flags)
                        .into()
                }
                7 => {
                    posted.opcode = WcOpcode::AtomicWrite;
                    let place = WRITTEN + 8 * rng.random_range(0..WRITTEN_LENGTH / 8);
                    let value: [u8; 8] = rng.random();
                    from.put(at, &value);
                    self.model[place - WRITTEN..][..8].copy_from_slice(&value);
                    wr::AtomicWrite::new(from.sge(at, 8), to.remote(place))
                        .wr_id(id)
                        .flags(flags)
                        .into()
                }
                _ => self.atomic(&mut posted, from.sge(at, 8), to, flags, rng),
            };
        from.qp.post_one(request).expect("room");
        self.outstanding.push_back(posted);
        self.messages.extend(message);
    }

    fn atomic<'r>(
        &mut self,
        posted: &mut Posted,
        sink: Sge,
        to: &Endpoint,
        flags: SendFlags,
        rng: &mut SmallRng,
    ) -> WorkRequest<'r> {
        let place = COUNTERS + 8 * rng.random_range(0..COUNTERS_LENGTH / 8);
        let counter = &mut self.model[place - WRITTEN..][..8];
        let mut before = [0; 8];
        before.copy_from_slice(counter);
        posted.result = Some(before.to_vec());
        let now = u64::from_ne_bytes(before);
        if rng.random_bool(0.5) {
            posted.opcode = WcOpcode::FetchAdd;
            let add = rng.random();
            counter.copy_from_slice(&now.wrapping_add(add).to_ne_bytes());
            return wr::FetchAdd::new(sink, to.remote(place), add)
                .wr_id(posted.id)
                .flags(flags)
                .into();
        }
        posted.opcode = WcOpcode::CompSwap;
        let compare = if rng.random_bool(0.5) {
            now
        } else {
            rng.random()
        };
        let swap: u64 = rng.random();
        if compare == now {
            counter.copy_from_slice(&swap.to_ne_bytes());
        }
        wr::CompareSwap::new(sink, to.remote(place), compare, swap)
            .wr_id(posted.id)
            .flags(flags)
            .into()
    }

    // Handles a send completion of the sending side.
    fn sent(&mut self, from: &Endpoint, done: &Completion, peers: &mut Self) {
        loop {
            let posted = self
                .outstanding
                .pop_front()
                .expect("a completion of nothing");
            if let Some(slot) = posted.slot {
                if let Some(result) = &posted.result {
                    assert_eq!(
                        &from.octets(slot * SLOT, result.len()),
                        result,
                        "the bytes that were read"
                    );
                }
                self.free.push(slot);
            }
            if let Some((index, rkey)) = posted.registers {
                peers.keys[index].1 = KeyState::Registered(rkey);
            }
            if posted.id == done.wr_id {
                assert!(posted.signaled, "{done:?} was not asked for");
                assert_eq!(posted.opcode, done.opcode);
                return;
            }
            assert!(
                !posted.signaled,
                "{} should complete before {done:?}",
                posted.id
            );
        }
    }

    // Handles a receive completion of the receiving side.
    fn received(&mut self, to: &Endpoint, done: &Completion) {
        let (id, slot) = self
            .receives
            .pop_front()
            .expect("a receive that was posted");
        self.free_receives.push(slot);
        let message = self.messages.pop_front().expect("a message that was sent");
        assert_eq!(
            (done.wr_id, done.opcode, done.byte_len as usize),
            (id, message.opcode, message.length)
        );
        assert_eq!(done.immediate(), message.immediate);
        assert_eq!(
            done.invalidated_rkey(),
            message.invalidated.map(|(_, rkey)| rkey)
        );
        if let Some(octets) = message.octets {
            assert_eq!(
                to.octets(RECEIVES + slot * SLOT, octets.len()),
                octets,
                "the bytes that were received"
            );
        }
        if let Some((index, _)) = message.invalidated {
            self.keys[index].1 = KeyState::Free;
        }
    }
}

impl Message {
    fn send(octets: Vec<u8>) -> Self {
        let length = octets.len();
        Self {
            opcode: WcOpcode::Recv,
            octets: Some(octets),
            length,
            immediate: None,
            invalidated: None,
        }
    }
}

/// A length: often one at which the segmentation changes, otherwise any.
pub(crate) fn length(rng: &mut SmallRng) -> usize {
    const EDGES: [usize; 10] = [0, 1, 8, 255, 256, 257, 1024, 2048, 4096, LONGEST];
    if rng.random_bool(0.3) {
        EDGES[rng.random_range(0..EDGES.len())]
    } else {
        rng.random_range(0..=LONGEST)
    }
}
