//! Streams between processes at one address: their frames go through shared memory, as encoded headers and payloads.
//!
//! The two processes agree on this while they make the TCP connection. The end that connected *announces* the connection in
//! shared memory before it sends its first byte. The end that accepted finds the announcement before it sends its own first
//! byte, and announces the connection too if it agrees. The end that connected finds that announcement when the connection
//! is [attached](super::TcpLink::attach). From then on all frames of both directions go through the rings of the two
//! processes. The TCP connection stays open and carries nothing: its end shows that the other process has ended.

use std::sync::Arc;

use crate::shm::{Connection, LONGEST_HEAD, LOOKS_FOR_ALL};
use crate::sockets::TcpSocket;
use crate::sockets::owner::owner;
use crate::{Admission, GroupOptions, Lease, Put, QpnRange, Record, RecordMeta, ShmPort};
use verbs_api::memory::Span;

use super::*;

/// An offer to send the frames of a connection through shared memory. The offer is withdrawn when this value is dropped.
pub struct Announcement {
    lease: Arc<Lease>,
    own: Connection,
    /// The range of the process at the other end of the connection, and its announcement; `None` until both are known.
    with: Option<(QpnRange, Connection)>,
}

impl Announcement {
    // Announces a connection on which this end has not sent a byte yet.
    fn of(lease: &Arc<Lease>, socket: &TcpSocket, stream: u32) -> Option<Self> {
        let memory = lease.memory()?;
        let (local, peer) = (socket.local().ok()?, socket.peer().ok()?);
        let is_here = local.ip() == lease.address().ip() && peer.ip() == local.ip();
        let ports = (local.port(), peer.port());
        if !is_here || ports.0 == ports.1 || socket.is_tapped() {
            return None;
        }
        let own = Connection { ports, stream };
        let with = match socket.is_accepted() {
            true => Some(memory.announced(ports)?),
            false => None,
        };
        memory.announce(own).then(|| Self {
            lease: Arc::clone(lease),
            own,
            with,
        })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Some(memory) = self.lease.memory() {
            memory.withdraw(self.lease.range(), self.own);
            // A process that was killed does not withdraw its announcement.
            if let Some((with, other)) = self.with {
                memory.withdraw(with, other);
            }
        }
    }
}

/// The two rings through which the frames of a stream go, one in each direction.
pub(super) struct Channel {
    to: QpnRange,
    /// The stream number that the records for the peer carry.
    sends: u32,
    /// The range of the process that writes the records for this stream, and the stream number that the records carry.
    pub(super) receives: ChannelKey,
    _announcement: Announcement,
}

impl Channel {
    pub(super) fn of(mut announcement: Announcement) -> Option<Self> {
        let lease = &announcement.lease;
        let found = || lease.memory()?.announced(announcement.own.ports);
        let (to, other) = announcement.with.or_else(found)?;
        announcement.with = Some((to, other));
        Some(Self {
            to,
            sends: other.stream,
            receives: (to, announcement.own.stream),
            _announcement: announcement,
        })
    }

    fn meta(&self, kind: u8) -> RecordMeta {
        RecordMeta {
            stream: self.sends,
            kind,
            class: 0,
        }
    }
}

impl<C: StreamCodec> TcpLink<C> {
    /// Leases access to the shared memory of the processes at an address. Returns `None` if the options rule shared memory
    /// out, or if there is none.
    pub(super) fn lease(address: IpAddr, options: &TcpLinkOptions) -> Option<Arc<Lease>> {
        if !options.memory || !options.faults.is_none() {
            return None;
        }
        // If there is no shared memory, or too many processes share it, everything goes through TCP.
        let lease = Lease::join(GroupOptions::without_sockets(address)).ok()?;
        lease.open_memory().then(|| Arc::new(lease))
    }

    pub(super) fn memory(&self) -> Option<&ShmPort> {
        self.lease.as_ref()?.memory()
    }

    /// Returns whether the socket at the other end of a connection is on this machine and belongs to a user who is admitted
    /// at this address.
    pub fn admits(&self, socket: &TcpSocket) -> bool {
        let ends = socket.peer().and_then(|peer| Ok((peer, socket.local()?)));
        let user = ends.and_then(|(peer, own)| owner(peer, own));
        user.is_ok_and(|user| match &self.lease {
            Some(lease) => lease.admits(user),
            None => Admission::default().admits(user),
        })
    }

    /// Announces that the frames of a connection may go through shared memory. The caller does this before it sends the
    /// connection's first byte, and passes the result to [`attach`](Self::attach). Returns `None` if the frames must go
    /// through TCP.
    pub fn announce(&self, socket: &TcpSocket) -> Option<Announcement> {
        let stream = self.announced.fetch_add(1, Ordering::Relaxed);
        Announcement::of(self.lease.as_ref()?, socket, stream)
    }

    // ---- out

    // Writes a frame to shared memory. Returns `false` if there is no room. The caller holds the lock of the outgoing half.
    pub(super) fn put(
        &self,
        channel: &Channel,
        outgoing: &mut Outgoing<C>,
        frame: &Frame<'_, C::Header>,
        admit: Admit,
    ) -> bool {
        let Some(memory) = self.memory() else {
            return true;
        };
        let mut room = [0; LONGEST_HEAD];
        let headers = self
            .codec
            .encode_header(&frame.header, &mut room[..HEADERS]);
        let Some(headers) = headers.map(|headers| headers.len()) else {
            return true;
        };
        // A short payload is parsed together with the header.
        let length = frame.payload.len();
        let with_head = if length <= WITH_HEAD { length } else { 0 };
        let head = &mut room[..headers + with_head];
        frame.payload.part(0, with_head).read(&mut head[headers..]);
        let payload = frame.payload.part(with_head, length);
        let meta = channel.meta(FRAME);
        let write = |span: Span<'_>| payload.copy_to(span);
        match memory.put(channel.to, meta, head, payload.len(), write) {
            Put::Full if admit == Admit::IfRoom => return false,
            Put::Full => memory.put_later(channel.to, meta, head, payload.to_vec()),
            // Frames for a process that is gone are lost with the connection.
            Put::Taken | Put::Nobody => {}
        }
        self.codec.sent(&mut outgoing.sender, &frame.header);
        count(&self.counters.sent);
        true
    }

    // Sends a record that marks the end of this direction, after the last frame.
    pub(super) fn put_end(&self, channel: &Channel) {
        let meta = channel.meta(END);
        if let Some(memory) = self.memory()
            && memory.put(channel.to, meta, &[], 0, |_| {}) == Put::Full
        {
            memory.put_later(channel.to, meta, &[], Vec::new());
        }
    }

    /// Returns whether a record for the peer of this stream is queued because its ring in shared memory has no room.
    pub(super) fn waits_for_room(&self, stream: &Stream<C>) -> bool {
        let both = stream.channel.as_ref().zip(self.memory());
        both.is_some_and(|(channel, memory)| memory.waiting(channel.to).0 > 0)
    }

    // ---- in

    // Registers streams that were attached, and forgets those that are gone.
    fn settle(&self, inbound: &mut Inbound<C>) {
        while let Some(stream) = self.changed.pop() {
            let Some(channel) = &stream.channel else {
                inbound.unfinished.push(stream);
                continue;
            };
            match stream.is_gone() {
                true => inbound.by_memory.remove(&channel.receives),
                false => inbound.by_memory.insert(channel.receives, stream),
            };
        }
    }

    // Writes queued records and reads those that have arrived. Returns whether there was any of either.
    pub(super) fn look_at_memory(
        &self,
        inbound: &mut Inbound<C>,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> bool {
        self.settle(inbound);
        let Some(memory) = self.memory() else {
            return false;
        };
        // Records that are written now must be flushed, like answers to received frames.
        let has_put = self.put_waiting();
        let mut readers = std::mem::take(&mut inbound.readers);
        let mut take = |record: &Record<'_>| self.deliver_record(inbound, record, now, network);
        let has_some = memory.receive(&mut readers, &mut take);
        inbound.readers = readers;
        has_some || has_put
    }

    /// Writes queued records, as far as the rings have room. Returns whether it wrote any.
    pub(super) fn put_waiting(&self) -> bool {
        let put = |to: &ShmPort| to.waits() && to.put_waiting(|range| self.has_room(range));
        self.memory().is_some_and(put)
    }

    // Notifies the streams that send to this range that there is room, also those that `settle` has not registered yet.
    fn has_room(&self, range: QpnRange) {
        let goes_there = |channel: &Channel| channel.to == range;
        let streams = self.streams();
        let streams =
            (streams.values()).filter(|stream| stream.channel.as_ref().is_some_and(goes_there));
        for stream in streams {
            let mut outgoing = stream.outgoing.lock();
            if std::mem::take(&mut outgoing.wants_room) {
                self.tell(stream, StreamEvent::Room);
            }
            if outgoing.ends && !outgoing.is_over {
                self.mark(stream, &mut outgoing);
            }
        }
    }

    #[inline]
    fn deliver_record(
        &self,
        inbound: &mut Inbound<C>,
        record: &Record<'_>,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) {
        let key = (record.from, record.meta.stream);
        if !inbound.by_memory.contains_key(&key) {
            self.settle(inbound);
        }
        // No peer sends before the other end has attached the stream, so other records are for a stream that is gone.
        let Some(stream) = inbound.by_memory.get(&key) else {
            return count(&self.counters.homeless);
        };
        let payload = Payload::Span(record.payload);
        self.take_record(stream, record.meta.kind, record.head, payload, now, network);
    }

    fn take_record(
        &self,
        stream: &Arc<Stream<C>>,
        kind: u8,
        head: &[u8],
        payload: Payload<'_>,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) {
        let incoming = &mut *stream.incoming.lock();
        if incoming.is_over || stream.is_gone() {
            return;
        }
        if kind == END {
            incoming.is_over = true;
            stream.has_ended.store(true, Ordering::Release);
            return self.tell(stream, StreamEvent::End);
        }
        if stream.is_deaf.load(Ordering::Relaxed) {
            return;
        }
        let length = payload.len();
        match self.codec.open_header(&mut incoming.receiver, head, length) {
            Ok((header, rest)) => {
                count_alone(&self.counters.delivered, 1);
                let payload = match rest.is_empty() {
                    true => payload,
                    false => Payload::Bytes(rest),
                };
                network.deliver(stream.frame(header, payload, false), now);
                if !std::mem::replace(&mut incoming.has_begun, true) {
                    self.let_go(stream);
                }
            }
            Err(header) => {
                stream.is_deaf.store(true, Ordering::Relaxed);
                count(&self.counters.broken);
                network.deliver(stream.frame(header, Payload::Empty, true), now);
            }
        }
    }

    // Reads the TCP socket of a stream whose frames go through shared memory. It reports something because the other
    // process has ended or has closed the connection. Returns whether this ended the stream.
    pub(super) fn read_end(
        &self,
        stream: &Arc<Stream<C>>,
        inbound: &mut Inbound<C>,
        now: Time,
        network: &dyn Deliver<C::Header>,
    ) -> bool {
        let error = match stream.socket.receive(&mut [0; 64]) {
            Ok(Received::Nothing) => return false,
            Err(error) => error,
            // No peer sends on this socket.
            Ok(Received::End | Received::Bytes(_)) => StreamError::Reset,
        };
        // Records that the peer wrote before come first, and only those: other peers may go on for ever.
        for _ in 0..=LOOKS_FOR_ALL {
            if !self.look_at_memory(inbound, now, network) {
                break;
            }
        }
        let is_over = std::mem::replace(&mut stream.incoming.lock().is_over, true);
        if !is_over {
            stream.has_ended.store(true, Ordering::Release);
            self.lose(stream, error);
        }
        !is_over
    }
}

/// A payload of at most this many bytes is stored with the header in the record's head, as immediate data is.
const WITH_HEAD: usize = 8;
/// The most bytes that the headers of a frame take in a record's head.
pub(super) const HEADERS: usize = LONGEST_HEAD - WITH_HEAD;
/// The kinds of records: a frame, and the end of a direction.
const FRAME: u8 = 0;
const END: u8 = 1;
