//! Connections between processes at one address, whose octets go through memory.
//!
//! The link that accepted a connection has a [`Port`] where the one that connected asks for memory. Both have it from
//! then on ([`Near`]); each goes over to it by itself, at an octet of TCP's stream that it puts down there. What comes by
//! TCP behind that is a bell, and says that the connection has ended.
//!
//! # Who wakes whom
//!
//! Each side has a word in the memory that says whether its watch thread sleeps. A writer that finds the reader asleep sends
//! a bell over TCP, which the thread's epoll sees; a writer that finds it awake sends nothing, and relies on the reader to
//! look. No record is forgotten as long as these hold:
//!
//! 1. *Publish, fence, read the word; write the word, fence, look.* The writer publishes before it reads the word
//!    ([`StreamMemory::asleep`]), the thread writes the word before it looks ([`TcpLink::sleep`]): one of them sees the other.
//! 2. *A word that may be "awake" is of a stream that the thread looks at.* A word begins as "asleep". It becomes "awake" by
//!    [`TcpLink::wake`], only for streams in `Inbound::near`, or because the peer has sent a bell: whoever reads that puts the
//!    stream there, and rings for the thread where it may sleep. Streams leave `near` only when they are gone.
//! 3. *That look sees whatever the writer may have published without a bell*: octets of a ring that this side has not begun
//!    to read as well ([`Stream::has_some`]), and room in a full ring ([`Stream::has_room`]). Each direction goes over by
//!    itself, so that a stream may be in `near` for the sake of what it sends.

use std::sync::OnceLock;

use polyverbs_sockets::{Asker, Ends, Mail, Post, StreamMemory};

use super::*;

/// Who may have memory, and who asks for it.
pub(super) struct Meetings<C: StreamCodec> {
    /// There is a thread that reads letters.
    pub(super) are_read: AtomicBool,
    /// Streams whose two ends are at one address.
    streams: Mutex<FxHashMap<Ends, Weak<Stream<C>>>>,
    ports: Mutex<Vec<(SocketAddr, Weak<Port>)>>,
    asker: OnceLock<Option<Port>>,
    made: AtomicU64,
    /// Streams that have carried enough to ask.
    asking: Chore<Vec<Arc<Stream<C>>>>,
    /// Streams that have begun to use memory.
    pub(super) nearing: Chore<Vec<Arc<Stream<C>>>>,
    /// One more for each memory.
    memories: Arc<()>,
}

impl<C: StreamCodec> Default for Meetings<C> {
    fn default() -> Self {
        Self {
            are_read: AtomicBool::new(false),
            streams: Mutex::default(),
            ports: Mutex::default(),
            asker: OnceLock::new(),
            made: AtomicU64::new(0),
            asking: Chore::default(),
            nearing: Chore::default(),
            memories: Arc::default(),
        }
    }
}

/// Where letters come in, as long as it is there.
struct Port {
    post: Post,
    token: u64,
    reactor: Arc<Reactor>,
}

impl Drop for Port {
    fn drop(&mut self) {
        // A child that has not replaced itself has it too.
        let _ = self.reactor.remove(&self.post, Source::Rare);
    }
}

/// What a stream may have memory by.
pub(super) struct Meeting {
    ends: Ends,
    /// Of one that was accepted: where the other side asks.
    port: Option<Arc<Port>>,
    /// Carried so far, in both directions.
    frames: AtomicU32,
    /// When so many have been, memory is asked for.
    asks_at: AtomicU32,
}

impl Meeting {
    // Counts a frame; whether it is time to ask.
    fn is_time(&self) -> bool {
        if self.port.is_some() {
            return false;
        }
        let frames = self.frames.load(Ordering::Relaxed).saturating_add(1);
        self.frames.store(frames, Ordering::Relaxed);
        let is_time = frames == self.asks_at.load(Ordering::Relaxed);
        if is_time {
            let next = match frames {
                ..LAST_ASKED => frames * 4,
                LAST_ASKED.. => 0,
            };
            self.asks_at.store(next, Ordering::Relaxed);
        }
        is_time
    }

    fn ask_soon(&self) {
        let soon = self
            .frames
            .load(Ordering::Relaxed)
            .saturating_add(FIRST_ASKED);
        self.asks_at.store(soon, Ordering::Relaxed);
    }
}

/// The memory of a stream.
pub(super) struct Near {
    pub(super) memory: StreamMemory,
    _counted: Arc<()>,
}

/// What epoll has said of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Nothing.
    None,
    /// Something came.
    Some,
    /// Behind what came there is an end.
    End,
}

impl<C: StreamCodec> TcpLink<C> {
    // What a connection may have memory by; `None` where it is not to have any.
    pub(super) fn meeting(&self, socket: &TcpSocket) -> Option<Meeting> {
        let is_plain = self.options.faults == StreamFaults::default() && !socket.is_tapped();
        if !self.options.memory || !is_plain || !self.meetings.are_read.load(Ordering::Acquire) {
            return None;
        }
        // Scopes are left out: letters have none.
        let plain = |end: SocketAddr| SocketAddr::new(end.ip(), end.port());
        let ends = Ends {
            local: plain(socket.local().ok()?),
            peer: plain(socket.peer().ok()?),
        };
        if ends.local.ip() != ends.peer.ip() || ends.local == ends.peer {
            return None;
        }
        let port = match socket.is_accepted() {
            true => Some(self.port(ends.local)?),
            false => None,
        };
        Some(Meeting {
            ends,
            port,
            frames: AtomicU32::new(0),
            asks_at: AtomicU32::new(FIRST_ASKED),
        })
    }

    fn port(&self, address: SocketAddr) -> Option<Arc<Port>> {
        let mut ports = lock(&self.meetings.ports);
        ports.retain(|(_, port)| port.strong_count() > 0);
        let known = ports.iter().find(|(known, _)| *known == address);
        if let Some(port) = known.and_then(|(_, port)| port.upgrade()) {
            return Some(port);
        }
        // Another process has the name where it had the listener before.
        let post = Post::at(address, Admission::default()).ok()?;
        let port = Arc::new(self.watched(post)?);
        ports.push((address, Arc::downgrade(&port)));
        Some(port)
    }

    fn watched(&self, post: Post) -> Option<Port> {
        let token = POSTS + self.meetings.made.fetch_add(1, Ordering::Relaxed);
        self.reactor.add(&post, token, Source::Rare).ok()?;
        Some(Port {
            post,
            token,
            reactor: Arc::clone(&self.reactor),
        })
    }

    // The stream is one of the link's from now on.
    pub(super) fn expect(&self, stream: &Arc<Stream<C>>) {
        if let Some(meeting) = &stream.meeting {
            let mut streams = lock(&self.meetings.streams);
            streams.insert(meeting.ends, Arc::downgrade(stream));
            drop(streams);
            if stream.is_gone() {
                self.forget(stream);
            }
        }
    }

    // It is none any more.
    pub(super) fn forget(&self, stream: &Stream<C>) {
        if let Some(meeting) = &stream.meeting {
            let mut streams = lock(&self.meetings.streams);
            let is_own = |known: &Weak<Stream<C>>| std::ptr::eq(known.as_ptr(), stream);
            if streams.get(&meeting.ends).is_some_and(is_own) {
                streams.remove(&meeting.ends);
            }
        }
    }

    // A frame has been sent or has come.
    #[inline]
    pub(super) fn note(&self, stream: &Arc<Stream<C>>) {
        if stream.meeting.as_ref().is_some_and(Meeting::is_time) {
            self.meetings
                .asking
                .with(|asking| asking.push(Arc::clone(stream)));
        }
    }

    // Asks for those whose time it is. Nobody waits for what comes of it.
    pub(super) fn ask(&self) {
        while let Some(stream) = self.meetings.asking.take(Vec::pop) {
            let Some(meeting) = &stream.meeting else {
                continue;
            };
            if stream.near.get().is_some() || self.has_many() {
                continue;
            }
            let asker = self.meetings.asker.get_or_init(|| {
                let post = Post::to_ask(Admission::default()).ok()?;
                self.watched(post)
            });
            // Nobody there, or nobody who knows: another time, or never.
            let asked = asker.as_ref().map(|asker| asker.post.ask(meeting.ends));
            if let Some(Err(error)) = asked
                && error.kind() == io::ErrorKind::WouldBlock
            {
                meeting.ask_soon();
            }
        }
    }

    fn has_many(&self) -> bool {
        Arc::strong_count(&self.meetings.memories) > MOST
    }

    // Letters have come in.
    pub(super) fn attend(&self, token: u64) {
        let has_asked = self.meetings.asker.get().and_then(Option::as_ref);
        if let Some(asker) = has_asked.filter(|asker| asker.token == token) {
            return self.read_mail(asker);
        }
        let ports = lock(&self.meetings.ports);
        let mut ports = ports.iter().filter_map(|(_, port)| port.upgrade());
        let found = ports.find(|port| port.token == token);
        drop(ports);
        if let Some(port) = found {
            self.read_mail(&port);
        }
    }

    fn read_mail(&self, port: &Port) {
        // What is of no use any more has nothing to give.
        let _ = port.post.attend(&mut |mail| match mail {
            Mail::Asked(ends, asker) => self.give(port, ends, &asker),
            Mail::Given(ends, memory) => self.take_memory(ends, memory),
        });
    }

    fn meets(&self, ends: Ends) -> Option<Arc<Stream<C>>> {
        let stream = lock(&self.meetings.streams).get(&ends)?.upgrade()?;
        let is_free = stream.near.get().is_none() && !stream.is_gone() && !self.has_many();
        is_free.then_some(stream)
    }

    fn give(&self, port: &Port, ends: Ends, asker: &Asker) {
        let Some(stream) = self.meets(ends) else {
            return;
        };
        let Ok((memory, passed)) = StreamMemory::make() else {
            return;
        };
        // Who is gone does not need it, and who has too much to read asks again.
        self.bring_near(&stream, memory, || {
            port.post.give(asker, ends, &passed).is_ok()
        });
    }

    fn take_memory(&self, ends: Ends, memory: StreamMemory) {
        let Some(stream) = self.meets(ends) else {
            return;
        };
        if let Some(near) = self.bring_near(&stream, memory, || true) {
            near.memory.accept();
            self.mark(&stream, &mut lock(&stream.outgoing));
        }
    }

    // Nobody reads the socket meanwhile: whoever does next looks where TCP's octets end.
    fn bring_near<'s>(
        &self,
        stream: &'s Stream<C>,
        memory: StreamMemory,
        tell: impl FnOnce() -> bool,
    ) -> Option<&'s Near> {
        let incoming = lock(&stream.incoming);
        if incoming.is_over || stream.near.get().is_some() || !tell() {
            return None;
        }
        Some(stream.near.get_or_init(|| Near {
            memory,
            _counted: Arc::clone(&self.meetings.memories),
        }))
    }

    fn draw_near(&self, stream: &Arc<Stream<C>>) {
        if !stream.is_near.swap(true, Ordering::Relaxed) {
            self.count(|counters| &counters.by_memory);
            self.meetings
                .nearing
                .with(|nearing| nearing.push(Arc::clone(stream)));
        }
    }

    // ---- out

    // Goes over to memory, where the other side knows it: whether everything leaves that way.
    fn go_over(&self, stream: &Arc<Stream<C>>, outgoing: &mut Outgoing<C>) -> bool {
        if !outgoing.by_memory
            && let Some(near) = stream.near.get()
            && near.memory.is_accepted()
        {
            // What waits here leaves by memory as well.
            near.memory.start(stream.socket.sent());
            outgoing.by_memory = true;
            outgoing.is_full = false;
            self.watch_room(stream, outgoing, false);
            self.draw_near(stream);
        }
        outgoing.by_memory
    }

    // Writes to memory as much as there is room for; `false` where all goes by TCP.
    pub(super) fn put(
        &self,
        stream: &Arc<Stream<C>>,
        outgoing: &mut Outgoing<C>,
    ) -> Result<bool, StreamError> {
        if !self.go_over(stream, outgoing) {
            return Ok(false);
        }
        let Some(Near { memory, .. }) = stream.near.get() else {
            return Ok(false);
        };
        if outgoing.is_full && memory.has_room() {
            outgoing.is_full = false;
            memory.waits_no_more();
        }
        while outgoing.waiting() > 0 && !outgoing.is_full {
            match memory.put(outgoing.octets.waiting()) {
                0 if memory.wait_for_room() => memory.waits_no_more(),
                0 => outgoing.is_full = true,
                put => {
                    outgoing.octets.left(put);
                    outgoing.since += put;
                }
            }
        }
        let has_ended = stream.has_ended.load(Ordering::Acquire);
        let sleep = memory.asleep();
        // Once the peer has ended TCP knows whether there is anybody still. Before that whoever reads is told, behind
        // what is in memory.
        if sleep.is_some() || has_ended {
            match (ring(&stream.socket), sleep) {
                (Ok(true), Some(sleep)) => memory.woken(sleep),
                (Err(error), _) if has_ended => return Err(error),
                _ => {}
            }
        }
        if stream.waits_unheard() && !self.reactor.is_polled() {
            self.reactor.ring();
        }
        Ok(true)
    }

    // ---- in

    // As of the socket, whatever way it comes.
    pub(super) fn receive(
        &self,
        stream: &Arc<Stream<C>>,
        incoming: &mut Incoming<C>,
        into: &mut [u8],
        sign: Sign,
    ) -> Result<Received, StreamError> {
        let Some(Near { memory, .. }) = stream.near.get() else {
            return stream.socket.receive(into);
        };
        let mut is_told = sign != Sign::None;
        if !incoming.by_memory {
            let before = stream.socket.received();
            let received = stream.socket.receive(into);
            let start = memory.started();
            let Some(start) = start.filter(|start| *start <= stream.socket.received()) else {
                return received;
            };
            let octets = start.checked_sub(before).ok_or(StreamError::Reset)?;
            incoming.by_memory = true;
            stream.reads_memory.store(true, Ordering::Relaxed);
            self.draw_near(stream);
            // This side goes over too.
            self.mark(stream, &mut lock(&stream.outgoing));
            is_told = true;
            if let Ok(Received::End) | Err(_) = received {
                incoming.end = Some(received);
            }
            if octets > 0 {
                incoming.is_told = true;
                return Ok(Received::Octets(octets as usize));
            }
        }
        if is_told | std::mem::take(&mut incoming.is_told) {
            heed(&stream.socket, sign, incoming);
        }
        match memory.take(into) {
            Ok(0) => incoming.end.take().unwrap_or(Ok(Received::Nothing)),
            Ok(octets) => {
                if let Some(sleep) = memory.waits_asleep() {
                    self.say_room(stream, sleep);
                }
                Ok(Received::Octets(octets))
            }
            Err(_) => Err(StreamError::Reset),
        }
    }

    fn say_room(&self, stream: &Arc<Stream<C>>, sleep: u32) {
        let mut outgoing = lock(&stream.outgoing);
        // Whether the connection is gone is asked of what is received.
        if !outgoing.is_over
            && self.go_over(stream, &mut outgoing)
            && ring(&stream.socket).unwrap_or_default()
            && let Some(near) = stream.near.get()
        {
            near.memory.woken(sleep);
        }
    }

    fn gather(&self, inbound: &mut Inbound<C>) {
        while let Some(stream) = self.meetings.nearing.take(Vec::pop) {
            inbound.near.push(stream);
        }
    }

    // Reads the rings that are in use; whether anything came of it.
    pub(super) fn look_near(
        &self,
        inbound: &mut Inbound<C>,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> bool {
        self.gather(inbound);
        if inbound.near.is_empty() {
            return false;
        }
        let mut near = std::mem::take(&mut inbound.near);
        let mut any = false;
        near.retain(|stream| {
            if stream.has_room() {
                self.mark(stream, &mut lock(&stream.outgoing));
            }
            if stream.has_some() {
                any |= self.read(stream, inbound, Sign::None, now, network);
            }
            !stream.is_gone()
        });
        inbound.near = near;
        any
    }

    // Whoever puts something into a ring rings from now on. Whether something is there, or has to be looked for.
    pub(super) fn sleep(&self) -> bool {
        let inbound = &mut *lock(&self.inbound);
        self.gather(inbound);
        let near = inbound.near.iter().filter_map(|stream| stream.near.get());
        near.for_each(|near| near.memory.sleep());
        inbound
            .near
            .iter()
            .any(|stream| stream.has_some() || stream.has_room() || stream.waits_unheard())
    }
}

impl<C: StreamCodec> Stream<C> {
    // Whether memory has octets that can be taken now: octets that TCP carries before them announce themselves.
    fn has_some(&self) -> bool {
        if self.has_ended.load(Ordering::Relaxed) || self.is_gone() {
            return false;
        }
        let Some(Near { memory, .. }) = self.near.get() else {
            return false;
        };
        let is_read = self.reads_memory.load(Ordering::Relaxed);
        let may_be_read = || {
            let start = memory.started();
            start.is_some_and(|start| start <= self.socket.received())
        };
        memory.has_some() && (is_read || may_be_read())
    }

    fn has_room(&self) -> bool {
        !self.is_gone() && self.near.get().is_some_and(|near| near.memory.has_room())
    }

    // The peer has ended its direction, in which it would say that there is room.
    fn waits_unheard(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
            && !self.is_gone()
            && self.near.get().is_some_and(|near| near.memory.waits())
    }
}

// Whether the bell was rung. One that has been rung often enough and was not heard need not be.
fn ring(socket: &TcpSocket) -> Result<bool, StreamError> {
    Ok(socket.send(&[BELL[..].into()])? > 0)
}

// Takes what has been rung, and how it ended.
fn heed<C: StreamCodec>(socket: &TcpSocket, sign: Sign, incoming: &mut Incoming<C>) {
    let mut bells = [0; 4096];
    for _ in 0..BELLS {
        if incoming.end.is_some() {
            return;
        }
        match socket.receive(&mut bells) {
            Ok(Received::Octets(octets)) => {
                // All of them: what comes later is told anew.
                if octets < bells.len() && sign != Sign::End {
                    return;
                }
            }
            Ok(Received::Nothing) => return,
            over => incoming.end = Some(over),
        }
    }
    // Others have their turn.
    incoming.is_told = true;
}

/// Tokens of ports: above all others but the watch's own.
pub(super) const POSTS: u64 = 1 << 62;
/// Frames that a connection has carried when memory is asked for, and when for the last time.
const FIRST_ASKED: u32 = 16;
const LAST_ASKED: u32 = 4096;
/// Connections of a link that have memory at most.
const MOST: usize = 128;
const BELL: [u8; 1] = [0];
/// Reads of bells at once.
const BELLS: usize = 16;
