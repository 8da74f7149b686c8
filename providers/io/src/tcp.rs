//! The TCP link: frames on streams, one TCP connection for each pair of QPs.
//!
//! The owner of the link attaches a connection after it has been made and its ends have agreed on their parameters. When
//! the driver sends a frame, the link encodes it at the end of its stream's queue. Received bytes are parsed in a buffer
//! that all streams share; a stream keeps only the bytes of an incomplete frame, so that an idle one has no buffer at all.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLockReadGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::sockets::{Received, StreamError, TcpSocket};
use crate::{IoHandler, Lease, QpnRange, Reactor, Readers, Ready, ShmPort, Source};
use polyverbs_engine::link::{Deliver, Frame, Input, Link, TrySend};
use polyverbs_engine::lock::{Lock, LockClass};
use polyverbs_engine::network::Progress;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use rustc_hash::FxHashMap;
use verbs_api::ids::LinkAddress;
use verbs_api::provider::{Mutex, RwLock, random};

use crate::codec::{Found, Leaving, StreamCodec, StreamEvent};
use crate::counters::{count, count_alone};
use crate::queue::ByteQueue;
use crate::shm::LONGEST_PAYLOAD;
use crate::sim::fault::FaultSpec;
use crate::tampering::Tampering;
use crate::zeroed;

mod shared;

use shared::Channel;

pub use shared::Announcement;

/// Options with which a [`TcpLink`] is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpLinkOptions {
    /// The largest payload in bytes of a frame that drivers should send.
    pub max_frame: usize,
    /// The number of queued bytes from which on a stream refuses frames. The driver is notified when half of them have
    /// left.
    pub backlog: usize,
    /// How long a connection stays after this end has ended its direction, while the peer has not ended its own.
    pub linger: Duration,
    /// Whether the frames of a connection with a process at the same address go through shared memory. Both processes must
    /// enable this, and no fault may be injected.
    pub memory: bool,
    /// The faults that the link injects into the bytes that leave; `chunk` also applies to bytes that arrive. Frames that
    /// are sent during a `delay` leave with the delayed one. `reset_after` counts the frames that this end sends.
    pub faults: FaultSpec,
}

impl Default for TcpLinkOptions {
    /// Frames that fit into a TCP segment on Ethernet, a backlog of 256 KiB, ten seconds of linger, shared memory, no
    /// faults.
    fn default() -> Self {
        Self {
            max_frame: 1408,
            backlog: 256 << 10,
            linger: Duration::from_secs(10),
            memory: true,
            faults: FaultSpec::default(),
        }
    }
}

/// A TCP connection that a link is to carry frames on, and the codec's state for it.
pub struct Attachment<C: StreamCodec, S = TcpSocket> {
    /// The key by which frames name the connection ([`StreamCodec::key`]).
    pub key: u64,
    /// The connected socket.
    pub socket: Arc<S>,
    /// This end's address in the frames that the link delivers.
    pub local: LinkAddress,
    /// The peer's address in the frames that the link delivers.
    pub peer: LinkAddress,
    /// The codec's state of the sending half.
    pub sender: C::Sender,
    /// The codec's state of the receiving half.
    pub receiver: C::Receiver,
    /// Bytes of frames that were already received from the socket.
    pub received: Vec<u8>,
    /// Bytes that the link sends before any frame, for instance the last message of the connection's setup. It sends them
    /// once it can deliver the peer's answer.
    pub last: Vec<u8>,
    /// Whether the link refuses the driver's frames until the peer has sent one.
    pub is_held: bool,
    /// The result of [`TcpLink::announce`]; with `None`, all frames go through TCP.
    pub announcement: Option<Announcement>,
}

counts! {
    /// Counts of frames and connections of a [`TcpLink`].
    TcpCounts,
    /// Frames that the driver sent and the link accepted.
    sent,
    /// Frames that the link delivered to the driver.
    delivered,
    /// Streams that the codec could not parse further.
    broken,
    /// Connections that were lost: by an error, a reset, or a peer that did not end its direction in time.
    lost,
    /// Frames that the driver sent, or records that arrived, for a connection that does not exist.
    homeless,
    /// Frames that were sent with a bit flipped by an injected fault.
    flipped,
    /// Connections that were attached with their frames in shared memory.
    by_memory,
}

/// A link that carries frames on TCP connections; see the [module](self).
pub struct TcpLink<C: StreamCodec> {
    codec: C,
    options: TcpLinkOptions,
    // Each frame's stream is found here by its key. This end chooses the keys, so the hash need not resist attacks.
    streams: RwLock<FxHashMap<u64, Arc<Stream<C>>>>,
    /// Streams that the next flush writes. The second part holds spare queues.
    dirty: Chore<Arc<Stream<C>>, Vec<ByteQueue>>,
    /// Streams that an injected fault holds back.
    held: Chore<Arc<Stream<C>>>,
    /// Streams whose sending direction this end has ended, and the time at which each is given up if the peer has not ended
    /// the other direction.
    ending: Chore<(Time, Weak<Stream<C>>)>,
    /// How long the next destruction of QPs may wait until pending bytes are written.
    patience: Mutex<Duration>,
    /// Streams that were attached with received bytes, and streams in shared memory that were attached or detached. The
    /// thread that reads handles them.
    changed: Chore<Arc<Stream<C>>>,
    news: Chore<(Arc<Stream<C>>, StreamEvent)>,
    inbound: Mutex<Inbound<C>>,
    /// Spare buffers for the bytes of incomplete frames.
    spare: Mutex<Vec<Vec<u8>>>,
    reactor: Arc<Reactor>,
    attend: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
    /// The lease by which this process uses the shared memory of its address; `None` if it does not.
    lease: Option<Arc<Lease>>,
    /// The number of the next stream that is announced in shared memory.
    announced: AtomicU32,
    made: AtomicUsize,
    counters: Counters,
}

/// The range of the process that writes the records of a stream, and the stream number that the records carry.
type ChannelKey = (QpnRange, u32);

struct Stream<C: StreamCodec> {
    key: u64,
    local: LinkAddress,
    peer: LinkAddress,
    socket: Arc<TcpSocket>,
    /// Whether the link has removed the stream.
    is_gone: AtomicBool,
    /// Whether frames that arrive are dropped.
    is_deaf: AtomicBool,
    /// Whether the peer's direction has ended or cannot be read. Threads that do not hold the lock of `incoming` read this.
    has_ended: AtomicBool,
    /// Whether the destruction of a QP has already waited for the pending bytes of this stream, which this end has ended.
    is_drained: AtomicBool,
    channel: Option<Channel>,
    outgoing: Mutex<Outgoing<C>>,
    /// The receiving half. A thread that takes the locks of both halves takes this one first.
    incoming: Mutex<Incoming<C>>,
}

struct Outgoing<C: StreamCodec> {
    sender: C::Sender,
    queue: ByteQueue,
    /// The most bytes, without framing, of a frame that fits into a TCP segment of this path.
    unit: usize,
    ends: bool,
    is_over: bool,
    is_dirty: bool,
    /// Whether the link has refused a frame for lack of room, so that it must notify the driver when there is room.
    wants_room: bool,
    /// Whether the link has refused a frame that would have interrupted another message, so that it must notify the driver
    /// when that message is complete.
    wants_turn: bool,
    /// Whether the link refuses frames until the peer's first frame has arrived.
    is_held: bool,
    /// Whether the send buffer of the socket was full; the reactor reports when it has room.
    is_full: bool,
    /// Whether the reactor watches the socket for being writable.
    wants_word: bool,
    /// Bytes that were sent since the segment size was last read.
    since: usize,
    held_until: Time,
    tampering: Tampering,
}

struct Incoming<C: StreamCodec> {
    receiver: C::Receiver,
    /// The received bytes of an incomplete frame.
    begun: Vec<u8>,
    has_begun: bool,
    is_over: bool,
    tampering: Tampering,
}

/// The state of the thread that reads; only one thread at a time does.
struct Inbound<C: StreamCodec> {
    buffer: Box<[u8]>,
    /// The stream whose incomplete frame is still in the buffer, and the position of that frame. The next read of this
    /// stream appends to it.
    resident: Option<(Arc<Stream<C>>, Range<usize>)>,
    /// Recently active streams, which each poll reads without asking epoll, in the order of their turns. With each stream
    /// is the number of consecutive reads that found no bytes.
    hot: VecDeque<(Arc<Stream<C>>, u32)>,
    /// Streams whose frames arrive through shared memory, by the sender's range and the stream number of their records.
    by_memory: FxHashMap<ChannelKey, Arc<Stream<C>>>,
    readers: Readers,
    /// Streams that had more bytes than one turn reads. Epoll does not report them again, so the next poll reads them.
    unfinished: Vec<Arc<Stream<C>>>,
    looks: u32,
}

impl<C: StreamCodec> TcpLink<C> {
    /// Creates a link of the device at `address`, without connections. It delivers nothing before [`start`](Self::start).
    ///
    /// # Errors
    /// The process has too many open descriptors.
    pub fn new(codec: C, address: IpAddr, options: TcpLinkOptions) -> io::Result<Arc<Self>> {
        let lease = Self::lease(address, &options);
        let reactor = Reactor::new()?;
        if let Some(lease) = &lease {
            reactor.add(&**lease, INBOX, Source::Rare)?;
        }
        Ok(Arc::new(Self {
            codec,
            options,
            streams: RwLock::default(),
            dirty: Chore::default(),
            held: Chore::default(),
            ending: Chore::default(),
            patience: Mutex::new(DRAIN),
            changed: Chore::default(),
            news: Chore::default(),
            inbound: Mutex::new(Inbound {
                buffer: zeroed(C::LONGEST + READ)?,
                resident: None,
                hot: VecDeque::with_capacity(HOT),
                by_memory: FxHashMap::default(),
                readers: Readers::default(),
                unfinished: Vec::new(),
                looks: 0,
            }),
            spare: Mutex::default(),
            reactor: Arc::new(reactor),
            attend: OnceLock::new(),
            lease,
            announced: AtomicU32::new(random() as u32),
            made: AtomicUsize::new(0),
            counters: Counters::default(),
        }))
    }

    /// Starts the reactor's thread, which delivers frames to `network` while no thread of the program polls. The thread
    /// ends with the network. It calls `attend` with the token of each [`Source::Rare`] that the caller has added to the
    /// reactor, when that source has input.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(
        self: &Arc<Self>,
        network: Weak<dyn Progress>,
        attend: impl Fn(u64) + Send + Sync + 'static,
    ) -> io::Result<()> {
        let _ = self.attend.set(Box::new(attend));
        let handler = Arc::downgrade(self);
        self.reactor.start(handler, network)
    }

    /// The reactor that watches the sockets of this link.
    pub fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    /// Returns the counts of frames and connections so far.
    pub fn counts(&self) -> TcpCounts {
        let mut counts = TcpCounts::default();
        self.counters.add_to(&mut counts);
        counts
    }

    /// Returns how many connections are attached.
    pub fn connections(&self) -> usize {
        self.streams().len()
    }

    /// Attaches a connection: the link carries frames over it from now on.
    ///
    /// # Errors
    /// The key is in use, `received` has more bytes than the link's buffer, or the system refuses to watch the socket.
    pub fn attach(&self, attachment: Attachment<C>) -> io::Result<()> {
        let Attachment {
            key,
            socket,
            local,
            peer,
            sender,
            receiver,
            received,
            last,
            is_held,
            announcement,
        } = attachment;
        if received.len() > C::LONGEST + READ {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let segment = socket.segment_size()?;
        let number = self.made.fetch_add(2, Ordering::Relaxed);
        let tampering = |direction| Tampering::new(self.options.faults, direction);
        let outgoing = Outgoing {
            unit: self.codec.max_unit(&sender, segment),
            sender,
            queue: ByteQueue::default(),
            ends: false,
            is_over: false,
            is_dirty: false,
            wants_room: false,
            wants_turn: false,
            is_held,
            is_full: false,
            wants_word: false,
            since: 0,
            held_until: Time::default(),
            tampering: tampering(number),
        };
        let incoming = Incoming {
            receiver,
            begun: received,
            has_begun: false,
            is_over: false,
            tampering: tampering(number + 1),
        };
        let channel = announcement.and_then(Channel::of);
        let stream = Arc::new(Stream {
            key,
            local,
            peer,
            socket,
            is_gone: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
            channel,
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(incoming),
        });
        let mut streams = self.streams.write();
        if streams.contains_key(&key) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let has_more = !stream.incoming.lock().begun.is_empty();
        // Epoll reports bytes that have arrived already, too.
        self.reactor.add(&*stream.socket, key, Source::Stream)?;
        streams.insert(key, Arc::clone(&stream));
        drop(streams);
        self.mark(&stream, &mut stream.outgoing.lock());
        if stream.channel.is_some() {
            count(&self.counters.by_memory);
        }
        if has_more || stream.channel.is_some() {
            // The stream is read later, because the thread that delivers frames may have called this.
            self.changed.push(Arc::clone(&stream));
        }
        if !last.is_empty() {
            stream.socket.send_first(&last);
        }
        Ok(())
    }

    /// Removes a connection and resets it, unless both directions have ended already. The link delivers nothing for it
    /// afterwards. It is no error if no connection has this key.
    pub fn detach(&self, key: u64) {
        if let Some(stream) = self.take(key) {
            stream.outgoing.lock().is_over = true;
            stream.socket.abort();
        }
    }

    fn streams(&self) -> RwLockReadGuard<'_, FxHashMap<u64, Arc<Stream<C>>>> {
        self.streams.read()
    }

    fn stream(&self, key: u64) -> Option<Arc<Stream<C>>> {
        self.with_stream(key, Arc::clone)
    }

    // Holds the lock of the streams, so `work` must not remove one.
    #[inline]
    fn with_stream<R>(&self, key: u64, work: impl FnOnce(&Arc<Stream<C>>) -> R) -> Option<R> {
        self.streams().get(&key).map(work)
    }

    fn take(&self, key: u64) -> Option<Arc<Stream<C>>> {
        let mut streams = self.streams.write();
        let stream = streams.remove(&key)?;
        stream.is_gone.store(true, Ordering::Relaxed);
        drop(streams);
        if stream.channel.is_some() {
            self.changed.push(Arc::clone(&stream));
        }
        Some(stream)
    }

    fn buffer(&self) -> Vec<u8> {
        self.spare.lock().pop().unwrap_or_default()
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.lock();
        if buffer.capacity() > 0 && spare.len() < SPARE {
            buffer.clear();
            spare.push(buffer);
        }
    }

    fn give_back_queue(&self, queue: ByteQueue) {
        if queue.has_memory() {
            self.dirty.with(|_, spare| {
                if spare.len() < SPARE {
                    spare.push(queue.emptied());
                }
            });
        }
    }

    // ---- out

    // Makes the next flush write the stream, and gives it memory for that. The caller holds the lock of the outgoing half.
    fn mark(&self, stream: &Arc<Stream<C>>, outgoing: &mut Outgoing<C>) {
        let has_memory = outgoing.queue.has_memory();
        if !outgoing.is_dirty || !has_memory {
            self.dirty.with(|streams, spare| {
                if !std::mem::replace(&mut outgoing.is_dirty, true) {
                    streams.push_back(Arc::clone(stream));
                }
                if !has_memory {
                    outgoing.queue = spare.pop().unwrap_or_default();
                }
            });
        }
    }

    // The caller holds the lock of the streams, so this removes none.
    fn append(
        &self,
        stream: &Arc<Stream<C>>,
        frame: &Frame<'_, C::Header>,
        now: Time,
        admit: Admit,
    ) -> TrySend {
        let outgoing = &mut *stream.outgoing.lock();
        if outgoing.is_over || outgoing.ends {
            return TrySend::Sent;
        }
        if admit == Admit::IfRoom {
            let most = match stream.channel {
                Some(_) => Some(LONGEST_PAYLOAD),
                None => self.codec.max_payload(&frame.header, outgoing.unit),
            };
            if let Some(most) = most.filter(|most| frame.payload.len() > *most) {
                return TrySend::TooLong(most);
            }
            if outgoing.is_held || outgoing.queue.len() >= self.options.backlog {
                outgoing.wants_room = true;
                return TrySend::NoRoom;
            }
            if !self.codec.may_follow(&outgoing.sender, &frame.header) {
                outgoing.wants_turn = true;
                return TrySend::NoRoom;
            }
        }
        match &stream.channel {
            None => self.encode(stream, outgoing, frame, now),
            Some(channel) if !self.put(channel, outgoing, frame, admit) => {
                outgoing.wants_room = true;
                return TrySend::NoRoom;
            }
            Some(_) => {}
        }
        if admit == Admit::Last {
            self.end(stream, outgoing, now);
        }
        if outgoing.wants_turn && self.codec.is_between(&outgoing.sender) {
            outgoing.wants_turn = false;
            self.tell(stream, StreamEvent::Room);
        }
        TrySend::Sent
    }

    fn encode(
        &self,
        stream: &Arc<Stream<C>>,
        outgoing: &mut Outgoing<C>,
        frame: &Frame<'_, C::Header>,
        now: Time,
    ) {
        outgoing.tampering.count();
        self.mark(stream, outgoing);
        if outgoing.tampering.is_spent() {
            return;
        }
        let is_first = outgoing.queue.is_empty();
        if let Some(until) = outgoing.tampering.hold(now, is_first) {
            outgoing.held_until = outgoing.held_until.max(until);
        }
        let (sender, queue) = (&mut outgoing.sender, &mut outgoing.queue);
        let before = queue.len();
        self.codec
            .encode(sender, &frame.header, &frame.payload, queue);
        let length = queue.len() - before;
        if outgoing.tampering.flip(queue.last(length)) {
            count(&self.counters.flipped);
        }
        count(&self.counters.sent);
    }

    // Refuses further frames, and gives the peer some time to end its direction. The caller holds the lock of the outgoing
    // half.
    fn end(&self, stream: &Arc<Stream<C>>, outgoing: &mut Outgoing<C>, now: Time) {
        if !std::mem::replace(&mut outgoing.ends, true) {
            let until = now.after(self.options.linger);
            self.ending.push((until, Arc::downgrade(stream)));
            if let Some(channel) = &stream.channel {
                self.put_end(channel);
            }
        }
        self.mark(stream, outgoing);
    }

    // Drops connections whose peers took too long to end their direction.
    fn expire(&self, now: Time) {
        let is_due =
            |(until, stream): &(Time, Weak<Stream<C>>)| *until <= now || stream.strong_count() == 0;
        while let Some((_, stream)) = self.ending.pop_if(is_due) {
            let stream = stream.upgrade();
            if let Some(stream) = stream.filter(|stream| !stream.is_gone()) {
                self.lose(&stream, StreamError::TimedOut);
            }
        }
    }

    // Writes all dirty streams. Without `now`, a stream that a fault holds back is left alone.
    fn write_dirty(&self, now: Option<Time>) {
        while let Some(stream) = self.dirty.pop() {
            let mut outgoing = stream.outgoing.lock();
            outgoing.is_dirty = false;
            let held = outgoing.held_until != Time::default()
                && now.is_none_or(|now| now < outgoing.held_until);
            if held {
                self.held.push(Arc::clone(&stream));
                continue;
            }
            outgoing.held_until = Time::default();
            let written = self.write(&stream, &mut outgoing);
            let is_over = outgoing.is_over;
            drop(outgoing);
            match written {
                Err(error) => self.lose(&stream, error),
                Ok(()) if is_over => self.forget_if_over(&stream),
                Ok(()) => {}
            }
        }
    }

    // Writes the bytes and records that these streams took, until the caller has `waited` for its patience. Returns whether
    // nothing is left. It tries every stream, also after one whose peer reads nothing. It flushes by itself and waits for
    // no other thread that reads, because the caller may be that thread.
    fn write_all(
        &self,
        streams: &[Arc<Stream<C>>],
        patience: Duration,
        waited: &dyn Fn() -> Duration,
    ) -> bool {
        let mut all = true;
        for stream in streams {
            while self.tries_again(stream) {
                self.put_waiting();
                self.flush();
                if !self.has_unwritten(stream, &stream.outgoing.lock()) {
                    break;
                }
                if waited() >= patience {
                    all = false;
                    break;
                }
                thread::sleep(DRAIN_STEP);
            }
        }
        all
    }

    // Makes the next flush try a stream that was full. Returns whether anything waits on it.
    fn tries_again(&self, stream: &Arc<Stream<C>>) -> bool {
        let mut outgoing = stream.outgoing.lock();
        let has_some = self.has_unwritten(stream, &outgoing);
        // A stream that a fault holds back is tried when its time has come.
        if has_some && outgoing.held_until == Time::default() {
            outgoing.is_full = false;
            self.mark(stream, &mut outgoing);
        }
        has_some
    }

    // Returns whether the stream has bytes for its socket, or frames that wait for room in shared memory.
    fn has_unwritten(&self, stream: &Stream<C>, outgoing: &Outgoing<C>) -> bool {
        !outgoing.is_over && (!outgoing.queue.is_empty() || self.waits_for_room(stream))
    }

    // Watches the socket for room, from the time it is full until all has left, because it may be full many times until
    // then.
    fn watch_room(&self, stream: &Stream<C>, outgoing: &mut Outgoing<C>, wanted: bool) {
        if std::mem::replace(&mut outgoing.wants_word, wanted) != wanted {
            let kind = if wanted { Source::Full } else { Source::Stream };
            // A socket that was closed meanwhile is not watched.
            let _ = self.reactor.change(&*stream.socket, stream.key, kind);
        }
    }

    // Writes as much as shared memory or the socket takes.
    fn write(
        &self,
        stream: &Arc<Stream<C>>,
        outgoing: &mut Outgoing<C>,
    ) -> Result<(), StreamError> {
        if outgoing.is_over {
            return Ok(());
        }
        if outgoing.tampering.is_spent() {
            return Err(StreamError::Reset);
        }
        if self.waits_for_room(stream) {
            return Ok(());
        }
        while !outgoing.queue.is_empty() && !outgoing.is_full {
            let piece = outgoing.tampering.piece(outgoing.queue.len());
            match stream.socket.send(&outgoing.queue.waiting()[..piece])? {
                // The reactor reports when there is room.
                0 => {
                    outgoing.is_full = true;
                    self.watch_room(stream, outgoing, true);
                }
                sent => {
                    outgoing.queue.left(sent);
                    outgoing.since += sent;
                }
            }
        }
        if outgoing.queue.is_empty() {
            self.give_back_queue(std::mem::take(&mut outgoing.queue));
            if outgoing.ends {
                outgoing.is_over = true;
                stream.socket.finish()?;
            }
        } else {
            outgoing.queue.tidy(self.options.backlog);
        }
        if outgoing.since >= ASK_AGAIN {
            outgoing.since = 0;
            if let Ok(segment) = stream.socket.segment_size() {
                outgoing.unit = self.codec.max_unit(&outgoing.sender, segment);
            }
        }
        // Room in shared memory is reported by the thread that writes the waiting records there.
        let has_room = stream.channel.is_none()
            && !outgoing.is_held
            && outgoing.queue.len() < self.options.backlog / 2;
        if has_room && std::mem::take(&mut outgoing.wants_room) {
            self.tell(stream, StreamEvent::Room);
        }
        Ok(())
    }

    // Returns whether events or changed streams wait to be delivered.
    fn has_to_tell(&self) -> bool {
        self.news.is_any() || self.changed.is_any()
    }

    fn tell(&self, stream: &Arc<Stream<C>>, news: StreamEvent) {
        self.news.push((Arc::clone(stream), news));
    }

    // Drops a connection that is lost, or that a fault resets. The caller holds the lock of neither half.
    fn lose(&self, stream: &Arc<Stream<C>>, error: StreamError) {
        let mut outgoing = stream.outgoing.lock();
        outgoing.is_over = true;
        self.give_back_queue(std::mem::take(&mut outgoing.queue));
        drop(outgoing);
        stream.socket.abort();
        // The thread that removes the stream reports this, so it is reported once.
        if self.take(stream.key).is_some() {
            count(&self.counters.lost);
            self.tell(stream, StreamEvent::Lost(error));
        }
    }

    // ---- in

    // Reads a stream. Returns whether this delivered frames or an event.
    fn read(
        &self,
        stream: &Arc<Stream<C>>,
        inbound: &mut Inbound<C>,
        ended: bool,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> bool {
        let incoming = &mut *stream.incoming.lock();
        if incoming.is_over || stream.is_gone() {
            return false;
        }
        let Range { mut start, mut end } = inbound.unfold(stream, incoming, self);
        let buffer = &mut inbound.buffer;
        let mut any = false;
        let mut step = Step::More;
        for round in 0..=ROUNDS {
            let taken = if stream.is_deaf.load(Ordering::Relaxed) {
                end - start
            } else {
                self.take_apart(stream, incoming, &mut buffer[start..end], now, network)
            };
            start += taken;
            any |= taken > 0;
            if step != Step::More || incoming.is_over || round == ROUNDS {
                break;
            }
            // The rest is shorter than a frame: moved to the front, it leaves room for a full read after it.
            if start == end || buffer.len() - end < READ / 2 {
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            }
            let most = incoming.tampering.piece((buffer.len() - end).min(READ));
            let room = &mut buffer[end..end + most];
            step = match stream.socket.receive(room) {
                Ok(Received::Bytes(bytes)) => {
                    end += bytes;
                    // A read that does not fill its room has emptied the socket.
                    if bytes < most && !ended {
                        Step::Empty
                    } else {
                        Step::More
                    }
                }
                Ok(Received::Nothing) => Step::Empty,
                Ok(Received::End) => Step::End,
                Err(error) => {
                    self.lose(stream, error);
                    Step::Lost
                }
            };
        }
        incoming.is_over |= matches!(step, Step::End | Step::Lost);
        if incoming.is_over {
            stream.has_ended.store(true, Ordering::Release);
        }
        if !incoming.is_over && start < end {
            inbound.resident = Some((Arc::clone(stream), start..end));
        }
        match step {
            Step::End => self.tell(stream, StreamEvent::End),
            Step::More if !incoming.is_over => inbound.unfinished.push(Arc::clone(stream)),
            _ => {}
        }
        any || matches!(step, Step::End | Step::Lost | Step::More)
    }

    // Delivers the frames at the beginning of `bytes`, and returns how many bytes they take.
    fn take_apart(
        &self,
        stream: &Arc<Stream<C>>,
        incoming: &mut Incoming<C>,
        bytes: &mut [u8],
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &mut bytes[at..];
            let length = rest.len();
            match self.codec.open(&mut incoming.receiver, stream.key, rest) {
                Found::Partial if length < C::LONGEST => break,
                Found::Frame {
                    header,
                    payload,
                    taken,
                } if taken > 0 => {
                    // Only the thread that reads counts this.
                    count_alone(&self.counters.delivered, 1);
                    network.deliver(stream.frame(header, Payload::Bytes(payload), false), now);
                    at += taken.min(length);
                    if !std::mem::replace(&mut incoming.has_begun, true) {
                        self.let_go(stream);
                    }
                }
                Found::Broken(header) => {
                    // The remaining bytes are read and dropped: a socket that is closed with unread bytes resets its
                    // connection, and the peer would lose the last frames that this end sent.
                    stream.is_deaf.store(true, Ordering::Relaxed);
                    count(&self.counters.broken);
                    network.deliver(stream.frame(header, Payload::Empty, true), now);
                    return bytes.len();
                }
                // This is longer than any frame, and the codec did not report that.
                Found::Partial | Found::Frame { .. } => {
                    incoming.is_over = true;
                    count(&self.counters.broken);
                    self.lose(stream, StreamError::Reset);
                    return bytes.len();
                }
            }
        }
        at
    }

    // Lets the driver send, because the peer's first frame has arrived.
    fn let_go(&self, stream: &Arc<Stream<C>>) {
        let mut outgoing = stream.outgoing.lock();
        outgoing.is_held = false;
        self.tell(stream, StreamEvent::First);
        if std::mem::take(&mut outgoing.wants_room) {
            self.tell(stream, StreamEvent::Room);
        }
    }

    fn deliver_news(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        let mut delivered = false;
        while let Some((stream, news)) = self.news.pop() {
            if let Some(header) = self.codec.event(stream.key, &news) {
                network.deliver(stream.frame(header, Payload::Empty, false), now);
                delivered = true;
            }
            if let StreamEvent::End = news {
                self.forget_if_over(&stream);
            }
        }
        delivered
    }

    // Removes a stream whose two directions have ended. The caller holds the lock of neither half.
    fn forget_if_over(&self, stream: &Arc<Stream<C>>) {
        // This does not lock the receiving half: the thread that holds it may be delivering the frame that led to this
        // call.
        let receives = !stream.has_ended.load(Ordering::Acquire);
        let sends = !stream.outgoing.lock().is_over;
        if !receives && !sends {
            // The last owner of the socket closes it.
            self.take(stream.key);
        }
    }

    // Reads the streams that epoll reports.
    fn look(&self, inbound: &mut Inbound<C>, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        let mut delivered = false;
        // A reactor that fails reports nothing; a later send on a connection reports the error.
        let ready = self.reactor.ready().unwrap_or_default();
        for Ready {
            token,
            readable,
            writable,
            ended,
        } in ready
        {
            let Some(stream) = self.stream(token) else {
                continue;
            };
            if writable {
                let mut outgoing = stream.outgoing.lock();
                outgoing.is_full = false;
                if !outgoing.queue.is_empty() || outgoing.wants_room {
                    self.mark(&stream, &mut outgoing);
                } else {
                    self.watch_room(&stream, &mut outgoing, false);
                }
            }
            if readable {
                let any = match stream.channel {
                    Some(_) => self.read_end(&stream, inbound, now, network),
                    None => self.read(&stream, inbound, ended, now, network),
                };
                if any {
                    inbound.remember(&stream);
                }
                delivered |= any;
            }
            delivered |= writable;
        }
        delivered
    }
}

/// The result of reading a stream's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The socket may have more bytes.
    More,
    /// The socket has no further bytes for now.
    Empty,
    /// The peer has ended its direction.
    End,
    /// The connection is lost, and the stream was removed.
    Lost,
}

impl<C: StreamCodec> Stream<C> {
    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    // Returns whether frames may arrive by the socket.
    fn is_asked(&self) -> bool {
        self.channel.is_none() && !self.is_gone()
    }

    fn frame<'p>(
        &self,
        header: C::Header,
        payload: Payload<'p>,
        damaged: bool,
    ) -> Frame<'p, C::Header> {
        Frame {
            from: self.peer,
            to: self.local,
            header,
            payload,
            damaged,
        }
    }
}

/// The condition under which a stream accepts a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admit {
    /// The stream accepts the frame in any case.
    Always,
    /// The stream accepts the frame if it has room and the frame interrupts no message.
    IfRoom,
    /// The stream accepts the frame in any case, and no frame after it.
    Last,
}

impl<C: StreamCodec> Link<C::Header> for TcpLink<C> {
    fn max_frame(&self) -> Option<usize> {
        Some(self.options.max_frame)
    }

    fn try_send(&self, frame: Frame<'_, C::Header>, now: Time) -> TrySend {
        let offered = self.with_stream(self.codec.key(&frame.header), |stream| {
            self.append(stream, &frame, now, Admit::IfRoom)
        });
        offered.unwrap_or_else(|| {
            count(&self.counters.homeless);
            TrySend::Sent
        })
    }

    fn send(&self, frame: Frame<'_, C::Header>, now: Time) {
        let Some(stream) = self.stream(self.codec.key(&frame.header)) else {
            return count(&self.counters.homeless);
        };
        match self.codec.leaving(&frame.header) {
            Leaving::Frame => _ = self.append(&stream, &frame, now, Admit::Always),
            Leaving::Last => {
                stream.is_deaf.store(true, Ordering::Relaxed);
                self.append(&stream, &frame, now, Admit::Last);
            }
            Leaving::End => self.end(&stream, &mut stream.outgoing.lock(), now),
            Leaving::Reset => {
                // Frames that were sent before an end still leave.
                let ends = stream.outgoing.lock().ends;
                match ends {
                    true => stream.is_deaf.store(true, Ordering::Relaxed),
                    false => self.detach(stream.key),
                }
            }
        }
    }

    fn flush(&self) -> bool {
        self.write_dirty(None);
        if let Some(lease) = &self.lease {
            lease.ring_bells();
        }
        self.has_to_tell()
    }

    fn progress(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        while let Some(stream) = self.held.pop() {
            let mut outgoing = stream.outgoing.lock();
            self.mark(&stream, &mut outgoing);
        }
        self.write_dirty(Some(now));
        self.expire(now);
        let mut delivered = self.deliver_news(now, network);
        let inbound = &mut *self.inbound.lock();
        delivered |= self.look_at_memory(inbound, now, network);
        let gone = inbound.resident.take_if(|(stream, _)| stream.is_gone());
        drop(gone);
        for stream in std::mem::take(&mut inbound.unfinished) {
            delivered |= self.read(&stream, inbound, false, now, network);
        }
        for _ in 0..inbound.hot.len() {
            let Some((stream, nothings)) = inbound.hot.pop_front() else {
                break;
            };
            let any = stream.is_asked() && self.read(&stream, inbound, false, now, network);
            delivered |= any;
            let nothings = if any { 0 } else { nothings + 1 };
            if nothings < FORGOTTEN && stream.is_asked() {
                inbound.hot.push_back((stream, nothings));
            }
        }
        inbound.looks += 1;
        let has_known = !inbound.hot.is_empty() || !inbound.by_memory.is_empty();
        // Returns without asking epoll if a frame has arrived, so that its receiver continues at once, unless the other
        // streams have waited for long.
        let waits = delivered || inbound.hot.is_empty();
        let is_due = inbound.looks >= if waits { LATEST } else { LOOKS };
        if !has_known || is_due {
            inbound.looks = 0;
            delivered |= self.look(inbound, now, network);
        }
        delivered |= self.deliver_news(now, network);
        self.write_dirty(Some(now));
        let has_more = !inbound.unfinished.is_empty() || self.has_to_tell();
        // Epoll does not report a stream again that was not read completely.
        if has_more && !self.reactor.is_polled() {
            self.reactor.ring();
        }
        delivered || has_more
    }

    fn next_due(&self) -> Option<Time> {
        if !self.held.is_any() && !self.ending.is_any() {
            return None;
        }
        let held = self.held.with(|held, _| held.clone());
        let until = |stream: &Arc<Stream<C>>| stream.outgoing.lock().held_until;
        let ending = self
            .ending
            .with(|ending, _| ending.front().map(|(until, _)| *until));
        held.iter().map(until).chain(ending).min()
    }

    // An end of the peer may be processed some milliseconds late.
    fn needs_precise_clock(&self) -> bool {
        Tampering::holds(&self.options.faults)
    }

    fn input(&self) -> Option<&dyn Input> {
        Some(&*self.reactor)
    }

    fn drain(&self) {
        if self.ending.is_any() {
            let began = Instant::now();
            self.drain_while(&|| began.elapsed());
        }
    }
}

impl<C: StreamCodec> TcpLink<C> {
    // Waits until the pending bytes of ended streams are written, or until `waited` reports that the caller has waited for
    // too long.
    fn drain_while(&self, waited: &dyn Fn() -> Duration) {
        let ending = self.ending.with(|ending, _| ending.clone());
        let is_new = |stream: &Arc<Stream<C>>| !stream.is_drained.swap(true, Ordering::Relaxed);
        let ending = ending.iter().filter_map(|(_, stream)| stream.upgrade());
        let ending = ending.filter(is_new).collect::<Vec<_>>();
        if ending.is_empty() {
            return;
        }
        // All peers that read nothing are waited for one second altogether, however many queue pairs they had.
        let mut patience = self.patience.lock();
        *patience = match self.write_all(&ending, *patience, waited) {
            true => DRAIN,
            false => patience.saturating_sub(waited()),
        };
    }

    // Writes the bytes of all streams before the process ends, because the program has got completions of these sends.
    fn write_everything(&self, waited: &dyn Fn() -> Duration) {
        // The lock is released first, because a stream that fails is removed.
        let streams: Vec<_> = self.streams().values().map(Arc::clone).collect();
        self.write_all(&streams, DRAIN, waited);
    }
}

impl<C: StreamCodec> IoHandler for TcpLink<C> {
    fn attend(&self, token: u64) {
        match (token, &self.lease, self.attend.get()) {
            // Messages to this inbox ask for admission, or ring a bell.
            (INBOX, Some(lease), _) => _ = lease.attend(&mut |_| {}),
            (_, _, Some(attend)) => attend(token),
            _ => {}
        }
    }

    fn arm_bell(&self) -> bool {
        let arm = |memory: &ShmPort| memory.arm_bell(&mut self.inbound.lock().readers);
        self.memory().is_some_and(arm)
    }

    fn flush_on_exit(&self) {
        let began = Instant::now();
        self.write_everything(&|| began.elapsed());
    }
}

impl<C: StreamCodec> Drop for TcpLink<C> {
    fn drop(&mut self) {
        self.reactor.stop();
    }
}

impl<C: StreamCodec> Inbound<C> {
    // Makes each poll read a stream that epoll has reported, without asking epoll again.
    fn remember(&mut self, stream: &Arc<Stream<C>>) {
        let is_known = self.hot.iter().any(|(known, _)| Arc::ptr_eq(known, stream));
        if !is_known && stream.is_asked() {
            self.hot.truncate(HOT - 1);
            self.hot.push_front((Arc::clone(stream), 0));
        }
    }

    // Puts the bytes of an incomplete frame into the buffer, unless they are still there, and returns their position. Bytes
    // of another stream are moved out of the buffer.
    fn unfold(
        &mut self,
        stream: &Arc<Stream<C>>,
        incoming: &mut Incoming<C>,
        link: &TcpLink<C>,
    ) -> Range<usize> {
        match self.resident.take() {
            Some((resident, range)) if Arc::ptr_eq(&resident, stream) => return range,
            Some((resident, range)) if !resident.is_gone() => {
                // Only the thread that reads locks two receiving halves, so this cannot deadlock.
                let mut other = resident.incoming.lock();
                other.begun = link.buffer();
                other.begun.extend_from_slice(&self.buffer[range]);
            }
            _ => {}
        }
        if incoming.begun.capacity() == 0 {
            return 0..0;
        }
        let begun = std::mem::take(&mut incoming.begun);
        let length = begun.len();
        self.buffer[..length].copy_from_slice(&begun);
        link.give_back(begun);
        0..length
    }
}

/// A list of pending work. A poller sees without a lock whether it is empty. The lock also guards spare objects of type
/// `S`.
struct Chore<T, S = ()> {
    any: AtomicBool,
    list: Lock<(VecDeque<T>, S)>,
}

impl<T, S> Chore<T, S> {
    /// Returns whether the list has an entry. The calling thread may miss an entry that another thread is adding at this
    /// moment; that thread then handles it.
    #[inline]
    fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn with<R>(&self, work: impl FnOnce(&mut VecDeque<T>, &mut S) -> R) -> R {
        let (list, spare) = &mut *self.list.lock();
        let result = work(list, spare);
        self.any.store(!list.is_empty(), Ordering::Release);
        result
    }

    fn push(&self, item: T) {
        self.with(|list, _| list.push_back(item));
    }

    #[inline]
    fn pop(&self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// Removes and returns the first entry, if `is_due` accepts it; `None` otherwise.
    #[inline]
    fn pop_if(&self, is_due: impl FnOnce(&T) -> bool) -> Option<T> {
        let pop = |list: &mut VecDeque<T>, _: &mut S| match list.front().is_some_and(is_due) {
            true => list.pop_front(),
            false => None,
        };
        self.is_any().then(|| self.with(pop)).flatten()
    }
}

impl<T, S: Default> Default for Chore<T, S> {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            list: Lock::new(LockClass::Link, Default::default()),
        }
    }
}

/// The reactor's token for the inbox over which other processes at this address send messages.
const INBOX: u64 = 1 << 62;

/// Bytes that one read asks for. The buffer has room for them after the longest incomplete frame, and fits into a
/// processor's cache.
const READ: usize = 128 << 10;
/// The most reads of one stream in its turn, so that other streams get theirs.
const ROUNDS: usize = 4;
/// The most streams that each poll reads without asking epoll. A stream leaves them after `FORGOTTEN` consecutive reads
/// without bytes.
const HOT: usize = 4;
const FORGOTTEN: u32 = 256;
/// The number of polls of recently active streams after which one poll asks epoll for others. It is `LATEST` instead while
/// the active streams keep delivering frames.
const LOOKS: u32 = 16;
const LATEST: u32 = 128;
/// Bytes that a stream sends until its segment size is read again.
const ASK_AGAIN: usize = 1 << 20;
/// How long destroying QPs, or the end of the process, waits until pending bytes are written. `DRAIN_STEP` is the time
/// between two attempts.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_STEP: Duration = Duration::from_micros(200);
/// The most spare buffers, and the most spare queues, that a link keeps.
const SPARE: usize = 64;

#[cfg(test)]
mod tests;
