//! The QP of a stream connection with its memory: carries out both directions of [`flow`](super::flow) by verbs.

use std::io::{IoSlice, IoSliceMut};
use std::ptr;
use std::time::Instant;

use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::kept::Kept;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, Completion, Cq, Memory, Mr, Pd, Qp, QpOptions, RKey, RemoteAddress, Sge, Transport,
    VerbError, WcStatus,
    completion::Notify,
    memory::OutOfRange,
    wr::{self, Data, ReceiveRequest, WorkRequest},
};

use super::device::Opened;
use super::flow::{CONTROLS, Receiver, Reserved, RingRange, Sender, TARGETS};
use super::options::{FEWEST, Sizes};
use super::protocol::{ByteOrder, ConnData, Map, Message, Target, maps_told};

/// Memory that this library has allocated and registered.
struct Registered {
    memory: Memory,
    mr: Mr,
}

impl Registered {
    fn new(pd: &Pd, length: usize, access: Access) -> Result<Self, Errno> {
        let memory = Memory::zeroed(length)?;
        let mr = pd.register(&memory, access).wait()?;
        Ok(Self { memory, mr })
    }

    fn target(&self, length: u32) -> Target {
        Target {
            addr: self.memory.address(),
            key: self.mr.rkey().value(),
            length,
        }
    }

    fn end(self) {
        let _ = self.mr.deregister().wait();
    }
}

// Takes the result of an access to a ring or list. The access cannot be out of range, because the offset is computed for
// its size.
fn inside<T: Default>(done: Result<T, OutOfRange>) -> T {
    debug_assert!(done.is_ok());
    done.unwrap_or_default()
}

/// Memory that the program has mapped for the peer (`riomap`).
struct Mapped {
    address: usize,
    map: Map,
    // The index of the map in the peer's list; `None` if the peer is not informed of it.
    index: Option<u32>,
    told: bool,
    mr: Mr,
    kept: Kept,
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer has announced the end by a message.
    Closed,
    /// The connection broke, or this side ended it, with this error.
    Failed(Errno),
}

/// One side of an established connection, or of one that is being established.
pub(crate) struct StreamQp {
    // Each connection has its own PD, so that the keys that a peer knows do not open memory of other connections.
    pd: Pd,
    qp: Qp,
    cq: Cq,
    send: Registered,
    ring: Registered,
    list: Registered,
    // Receive buffers for messages that are sends, on iWARP; `None` if messages are immediate data.
    notices: Option<Registered>,
    out: Sender,
    incoming: Receiver,
    peer: Option<ConnData>,
    maps: u32,
    inline: u32,
    mapped: Vec<Mapped>,
    slots: Vec<Completion>,
    scratch: Vec<u8>,
    // Whether the list of targets may have an entry that was not read yet.
    is_list_written: bool,
    peer_sends: bool,
    end: Option<End>,
    last_traffic: Instant,
}

/// The bit of a `wr_id` that marks a receive; the other bits are the index of the receive's buffer.
const RECEIVE: u64 = 1 << 62;
/// The number of receives that are posted, in addition to the credits, for messages of the peer that use no credits.
const SPARE_RECEIVES: u32 = 64;
const NOTICE: u32 = 4;
const SLOTS: usize = 32;

fn remote(target: Target) -> RemoteAddress {
    RemoteAddress::new(target.addr, RKey::new(target.key))
}

impl StreamQp {
    /// Creates a QP in the state INIT, with its memory and posted receives.
    ///
    /// # Errors
    /// The device has no room for the QP, its CQ or its memory.
    pub(crate) fn new(device: &Opened, sizes: &Sizes) -> Result<Self, Errno> {
        let limits = device.context.limits();
        let most = limits.max_qp_wr.min(limits.max_cqe / 2);
        if most < FEWEST {
            return Err(Errno::NOMEM);
        }
        let requests = u32::from(sizes.sends).min(most);
        let spare = SPARE_RECEIVES.min(most / 2);
        let credits = u32::from(sizes.receives).min(most - spare);
        let receives = credits + spare;
        let inline = sizes.inline.min(limits.max_inline_data);
        let separate = device.transport == Transport::Iwarp;
        let maps = maps_told(sizes.maps);
        let list = TARGETS * Target::LEN + maps as usize * Map::LEN;
        let exposed = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let pd = device.context.alloc_pd().wait()?;
        let notices = separate.then(|| {
            let length = (receives * NOTICE) as usize;
            Registered::new(&pd, length, Access::LOCAL_WRITE)
        });
        let cq = device.context.create_cq(requests + receives).wait()?;
        let qp = pd
            .create_qp(
                QpOptions::rc(&cq)
                    .max_send_wr(requests)
                    .max_recv_wr(receives)
                    .max_send_sge(2)
                    .max_inline_data(inline.max(Map::LEN as u32)),
            )
            .wait()?;
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .port_num(1)
            .pkey_index(0)
            .qp_access_flags(Access::REMOTE_WRITE);
        qp.modify(init).wait()?;
        let qp = Self {
            qp,
            cq,
            send: Registered::new(&pd, sizes.send_ring as usize, Access::empty())?,
            ring: Registered::new(&pd, sizes.ring as usize, exposed)?,
            list: Registered::new(&pd, list, exposed)?,
            notices: notices.transpose()?,
            out: Sender::new(requests, sizes.send_ring, separate),
            incoming: Receiver::new(sizes.ring, credits as u16),
            peer: None,
            maps,
            inline,
            mapped: Vec::new(),
            slots: std::iter::repeat_with(Completion::default)
                .take(SLOTS)
                .collect(),
            scratch: Vec::new(),
            is_list_written: false,
            peer_sends: true,
            end: None,
            last_traffic: Instant::now(),
            pd,
        };
        for place in 0..receives {
            qp.post_receive(place)?;
        }
        Ok(qp)
    }

    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The connection data that this side sends to the peer.
    pub(crate) fn conn_data(&self, sizes: &Sizes) -> ConnData {
        ConnData {
            order: ByteOrder::HERE,
            credits: self.incoming.credits(),
            maps: Some(self.maps),
            list: self.list.target(TARGETS as u32),
            ring: self.ring.target(sizes.ring / 2),
        }
    }

    /// Stores the peer's connection data: the connection is established from now on.
    pub(crate) fn open(&mut self, peer: ConnData) {
        self.out.open(peer.credits, peer.ring);
        self.incoming.open(peer.list.length);
        self.peer = Some(peer);
        self.last_traffic = Instant::now();
        self.grant();
    }

    fn post_receive(&self, place: u32) -> Result<(), VerbError> {
        let data = match &self.notices {
            Some(notices) => Data::Sge(inside(notices.mr.sge((place * NOTICE) as usize, NOTICE))),
            None => Data::None,
        };
        let request = ReceiveRequest::new(RECEIVE | u64::from(place), data);
        self.qp
            .post_receive(request)
            .map_err(|_| VerbError::Resources("receives"))
    }

    fn fail(&mut self, error: Errno) {
        self.end.get_or_insert(End::Failed(error));
    }

    /// Notes that the connection has ended. If the peer has sent no [`Message::Disconnect`] and no earlier error is
    /// noted, the connection counts as broken, with the error ECONNRESET.
    pub(crate) fn hang_up(&mut self) {
        self.progress();
        self.fail(Errno(libc::ECONNRESET));
    }

    /// How the connection has ended; `None` while it exists.
    pub(crate) fn end(&self) -> Option<End> {
        self.end
    }

    /// Arms the CQ. Returns true if there are completions already, so that they have to be polled.
    pub(crate) fn arm(&self) -> bool {
        self.cq.arm(Notify::Next).unwrap_or(true)
    }

    /// Polls the CQ, handles messages of the peer, and grants the peer the room that has become free in the receive
    /// ring.
    pub(crate) fn progress(&mut self) {
        let mut slots = std::mem::take(&mut self.slots);
        loop {
            let filled = match self.cq.poll(&mut slots) {
                Ok(filled) => filled,
                Err(_) => {
                    self.fail(Errno(libc::ENETDOWN));
                    break;
                }
            };
            for done in filled.iter() {
                self.done(done);
            }
            if filled.len() < SLOTS {
                break;
            }
        }
        self.slots = slots;
        self.grant();
    }

    fn done(&mut self, done: &Completion) {
        let is_receive = done.wr_id & RECEIVE != 0;
        if !is_receive {
            self.out.completed(Reserved::of_id(done.wr_id));
        }
        match done.status {
            WcStatus::Success if is_receive => self.received(done),
            WcStatus::Success => {}
            WcStatus::RetryExcErr => self.fail(Errno(libc::ETIMEDOUT)),
            _ => self.fail(Errno(libc::ECONNRESET)),
        }
    }

    fn received(&mut self, done: &Completion) {
        self.last_traffic = Instant::now();
        let place = (done.wr_id & !RECEIVE) as u32;
        let bits = match &self.notices {
            Some(_) if done.byte_len != NOTICE => return self.fail(Errno(libc::EPROTO)),
            Some(notices) => {
                let mut bytes = [0; 4];
                inside(notices.memory.read((place * NOTICE) as usize, &mut bytes));
                u32::from_ne_bytes(bytes)
            }
            None => match done.immediate() {
                Some(bytes) => u32::from_be_bytes(bytes),
                None => return self.fail(Errno(libc::EPROTO)),
            },
        };
        // Posting fails on a QP in the ERR state, whose completions report the error.
        let _ = self.post_receive(place);
        match Message::of_bits(bits) {
            Message::Data(bytes) => {
                if self.incoming.arrived(bytes).is_err() {
                    self.fail(Errno(libc::EPROTO));
                }
            }
            Message::Credits(limit) => {
                self.out.granted(limit);
                self.is_list_written = true;
            }
            Message::Mapped(_) => self.incoming.noticed(),
            Message::Disconnect => {
                self.end.get_or_insert(End::Closed);
            }
            Message::Shutdown => self.peer_sends = false,
            Message::KeepAlive | Message::Unknown(_) => {}
        }
    }

    // Sends the grant that is due, if a send queue entry is free for it.
    fn grant(&mut self) {
        let Some(peer) = self.peer else { return };
        while self.end.is_none()
            && let Some(grant) = self.incoming.due()
        {
            let separate = self.notices.is_some();
            let requests = if grant.half.is_some() && separate {
                2
            } else {
                1
            };
            let Some(taken) = self.out.take_control(requests) else {
                return;
            };
            let message = Message::Credits(grant.limit);
            match grant.half {
                None => self.post_message(message, taken),
                Some((offset, entry)) => {
                    let ring = self.ring.target(self.ring.memory.len() as u32 / 2);
                    let half = Target {
                        addr: ring.addr + u64::from(offset),
                        ..ring
                    };
                    let place = Target {
                        addr: peer
                            .list
                            .addr
                            .wrapping_add(u64::from(entry) * Target::LEN as u64),
                        ..peer.list
                    };
                    let bytes = half.emit(peer.order);
                    self.post_write(Data::Inline(&bytes), place, message, taken);
                }
            }
            self.incoming.granted(grant);
        }
    }

    fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<(), Errno> {
        // If the peer has caused the failure, a completion reports it.
        self.qp
            .post_one(request)
            .map_err(|_| Errno(libc::ECONNRESET))
    }

    // Sends a message without data.
    fn post_message(&mut self, message: Message, taken: Reserved) {
        let bits = message.bits();
        let id = taken.to_id();
        let posted = match self.notices {
            Some(_) => self.post(wr::Send::new(Data::Inline(&bits.to_ne_bytes())).signaled(id)),
            None => {
                let nowhere = RemoteAddress::default();
                let imm = bits.to_be_bytes();
                self.post(wr::WriteWithImmediate::new(Data::None, nowhere, imm).signaled(id))
            }
        };
        self.posted(posted, taken);
    }

    // Writes bytes to the peer's memory and sends a message after them.
    fn post_write(&mut self, data: Data<'_>, to: Target, message: Message, taken: Reserved) {
        let bits = message.bits();
        let id = taken.to_id();
        let posted = match self.notices {
            Some(_) => self.post(wr::Write::new(data, remote(to))).and_then(|()| {
                self.post(wr::Send::new(Data::Inline(&bits.to_ne_bytes())).signaled(id))
            }),
            None => {
                let imm = bits.to_be_bytes();
                self.post(wr::WriteWithImmediate::new(data, remote(to), imm).signaled(id))
            }
        };
        self.posted(posted, taken);
    }

    fn posted(&mut self, posted: Result<(), Errno>, taken: Reserved) {
        if let Err(error) = posted {
            self.out.completed(taken);
            self.fail(error);
        }
    }

    fn look_for_target(&mut self) {
        let Some(entry) = self.out.wanted_target() else {
            return;
        };
        if !self.is_list_written {
            return;
        }
        let at = entry * Target::LEN;
        // The peer writes the length last, together with the key. Once it is visible, the address is too.
        let tail = inside(self.list.memory.load_u64(at + 8)).to_ne_bytes();
        let mut target = Target {
            addr: 0,
            key: u32::from_ne_bytes([tail[0], tail[1], tail[2], tail[3]]),
            length: u32::from_ne_bytes([tail[4], tail[5], tail[6], tail[7]]),
        };
        if target.length == 0 {
            self.is_list_written = false;
            return;
        }
        target.addr = inside(self.list.memory.load_u64(at));
        // The peer writes the entry again only after this side has used the whole target.
        inside(self.list.memory.store_u64(at + 8, 0));
        self.out.found_target(target);
    }

    /// Whether at least one byte can be sent now.
    pub(crate) fn can_send(&mut self) -> bool {
        self.look_for_target();
        self.out.room(false) > 0
    }

    // The first `bytes` bytes of the source as one piece of inline data.
    fn inline<'a>(scratch: &'a mut Vec<u8>, source: &'a [IoSlice<'_>], bytes: usize) -> Data<'a> {
        if let Some(whole) = source.first().and_then(|first| first.get(..bytes)) {
            return Data::Inline(whole);
        }
        scratch.clear();
        for part in source {
            let left = bytes - scratch.len();
            scratch.extend_from_slice(&part[..left.min(part.len())]);
        }
        Data::Inline(scratch)
    }

    fn fill(&self, source: &[IoSlice<'_>], stretch: RingRange) -> [Sge; 2] {
        let mut at = stretch.offset as usize;
        let mut left = (stretch.length + stretch.wrapped) as usize;
        let size = self.send.memory.len();
        for part in source {
            let mut part = &part[..left.min(part.len())];
            left -= part.len();
            while !part.is_empty() {
                let (now, rest) = part.split_at(part.len().min(size - at));
                inside(self.send.memory.write(at, now));
                at = (at + now.len()) % size;
                part = rest;
            }
        }
        [
            inside(self.send.mr.sge(stretch.offset as usize, stretch.length)),
            inside(self.send.mr.sge(0, stretch.wrapped)),
        ]
    }

    /// Sends the first bytes of `source`, as many as there is room for. Returns their number; 0 if there is no room.
    pub(crate) fn send(&mut self, source: &[IoSlice<'_>]) -> u32 {
        self.tell_maps();
        self.look_for_target();
        let length = total(source);
        let inline = length <= self.inline as usize;
        let bytes = self.out.room(inline).min(PIECE);
        let bytes = bytes.min(u32::try_from(length).unwrap_or(u32::MAX));
        if bytes == 0 {
            return 0;
        }
        let (stretch, target, taken) = self.out.take(bytes, inline);
        let message = Message::Data(bytes);
        if inline {
            let mut scratch = std::mem::take(&mut self.scratch);
            let data = Self::inline(&mut scratch, source, bytes as usize);
            self.post_write(data, target, message, taken);
            self.scratch = scratch;
        } else {
            let sges = self.fill(source, stretch);
            self.post_write(Data::Sges(used(&sges)), target, message, taken);
        }
        bytes
    }

    /// Writes the first bytes of `source` to the memory that the peer has mapped at `offset`, as many as there is room for.
    /// Returns their number.
    ///
    /// # Errors
    /// The peer has mapped no memory at this offset.
    pub(crate) fn write(&mut self, source: &[IoSlice<'_>], offset: u64) -> Result<u32, Errno> {
        let target = self.find_map(offset).ok_or(Errno::INVAL)?;
        let length = total(source);
        let inline = length <= self.inline as usize;
        let room = self.out.room_unannounced(inline).min(target.length);
        let bytes = room
            .min(PIECE)
            .min(u32::try_from(length).unwrap_or(u32::MAX));
        if bytes == 0 {
            return Ok(0);
        }
        let (stretch, taken) = self.out.take_unannounced(bytes, inline);
        let id = taken.to_id();
        let posted = if inline {
            let mut scratch = std::mem::take(&mut self.scratch);
            let data = Self::inline(&mut scratch, source, bytes as usize);
            let posted = self.post(wr::Write::new(data, remote(target)).signaled(id));
            self.scratch = scratch;
            posted
        } else {
            let sges = self.fill(source, stretch);
            self.post(wr::Write::new(Data::Sges(used(&sges)), remote(target)).signaled(id))
        };
        self.posted(posted, taken);
        Ok(bytes)
    }

    fn find_map(&self, offset: u64) -> Option<Target> {
        (0..self.maps as usize).find_map(|index| {
            let mut bytes = [0; Map::LEN];
            let at = TARGETS * Target::LEN + index * Map::LEN;
            inside(self.list.memory.read(at, &mut bytes));
            Map::read(&bytes).find(offset)
        })
    }

    /// Copies received bytes to `sinks` and returns their number. With `peek` the bytes stay in the receive ring.
    pub(crate) fn receive(&mut self, sinks: &mut [IoSliceMut<'_>], peek: bool) -> usize {
        let mut copied = 0;
        for sink in sinks {
            let behind = if peek { copied } else { 0 };
            let most = u32::try_from(sink.len()).unwrap_or(u32::MAX);
            let found = self.incoming.peek(behind, most);
            let (first, rest) = sink.split_at_mut(found.length as usize);
            inside(self.ring.memory.read(found.offset as usize, first));
            inside(
                self.ring
                    .memory
                    .read(0, &mut rest[..found.wrapped as usize]),
            );
            let bytes = found.length + found.wrapped;
            copied += bytes;
            if !peek {
                self.incoming.read(bytes);
            }
        }
        self.grant();
        copied as usize
    }

    /// The number of received bytes that can be read.
    pub(crate) fn unread(&self) -> u32 {
        self.incoming.unread()
    }

    /// Whether the peer may still send data.
    pub(crate) fn peer_sends(&self) -> bool {
        self.peer_sends && self.end.is_none()
    }

    /// Whether all work requests of this side have completed, so that sent bytes have arrived as far as the transport
    /// reports that.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_idle()
    }

    /// Sends a control message. Returns false if no send queue entry is free for it.
    pub(crate) fn control(&mut self, message: Message) -> bool {
        let taken = self.out.take_control(1);
        if let Some(taken) = taken {
            self.post_message(message, taken);
        }
        taken.is_some()
    }

    /// When the last message of the peer arrived, or the last keep-alive was sent.
    pub(crate) fn last_traffic(&self) -> Instant {
        self.last_traffic
    }

    /// Sends a keep-alive, an empty RDMA write that the peer's program does not notice, unless a work request is
    /// outstanding anyway. If the peer has vanished, the write is not acknowledged, and the connection fails.
    pub(crate) fn probe(&mut self) {
        if self.end.is_some() || self.peer.is_none() || !self.out.is_idle() {
            return;
        }
        if let Some(taken) = self.out.take_control(1) {
            self.last_traffic = Instant::now();
            let nothing = wr::Write::new(Data::None, RemoteAddress::default());
            let posted = self.post(nothing.signaled(taken.to_id()));
            self.posted(posted, taken);
        }
    }

    /// Maps memory of the program, which `mr` has registered, at `offset`. If `is_told`, announces the map to the peer,
    /// which can then write the memory.
    ///
    /// # Errors
    /// The peer has no room for another map.
    pub(crate) fn map(
        &mut self,
        mr: Mr,
        address: usize,
        length: u32,
        offset: u64,
        is_told: bool,
    ) -> Result<(), Errno> {
        let index = match is_told {
            false => None,
            true => {
                let room = self.peer.and_then(|peer| peer.maps).unwrap_or(0);
                let is_free = |index: &u32| {
                    let mut used = self.mapped.iter().filter_map(|mapped| mapped.index);
                    used.all(|used| used != *index)
                };
                Some((0..room).find(is_free).ok_or(Errno::NOMEM)?)
            }
        };
        self.mapped.push(Mapped {
            address,
            map: Map {
                offset,
                target: Target {
                    addr: address as u64,
                    key: mr.rkey().value(),
                    length,
                },
            },
            index,
            told: !is_told,
            kept: Kept::new(ptr::without_provenance(address), length as usize, &mr),
            mr,
        });
        self.tell_maps();
        Ok(())
    }

    /// Removes the map (`riomap`) of this memory; returns `None` if the memory is not mapped. The caller has to
    /// deregister the MR before it drops the second value, which keeps the memory mapped.
    pub(crate) fn unmap(&mut self, address: usize, length: usize) -> Option<(Mr, Kept)> {
        let place = self.mapped.iter().position(|mapped| {
            mapped.address == address && mapped.map.target.length as usize == length
        })?;
        let Mapped { mr, kept, .. } = self.mapped.swap_remove(place);
        Some((mr, kept))
    }

    // Announces new maps to the peer, before further bytes are sent.
    fn tell_maps(&mut self) {
        let Some(peer) = self.peer else { return };
        for place in 0..self.mapped.len() {
            let Mapped {
                map,
                index: Some(index),
                told: false,
                ..
            } = self.mapped[place]
            else {
                continue;
            };
            let Some(taken) = self.out.take_mapped() else {
                return;
            };
            let to = Target {
                addr: peer.map_address(index),
                ..peer.list
            };
            let bytes = map.emit(peer.order);
            self.post_write(Data::Inline(&bytes), to, Message::Mapped(index), taken);
            self.mapped[place].told = true;
        }
    }

    /// Destroys the QP, its CQ and its memory.
    pub(crate) fn destroy(self) {
        let _ = self.qp.destroy().wait();
        let _ = self.cq.destroy().wait();
        let regions = [
            Some(self.send),
            Some(self.ring),
            Some(self.list),
            self.notices,
        ];
        regions.into_iter().flatten().for_each(Registered::end);
        for mapped in self.mapped {
            let _ = mapped.mr.deregister().wait();
        }
        let _ = self.pd.destroy().wait();
    }
}

/// The most bytes of one data message. Long data are sent in several, so that the peer can read the first while the next
/// are copied.
const PIECE: u32 = 1 << 16;

const _: () = assert!(CONTROLS >= 2);

fn total(source: &[IoSlice<'_>]) -> usize {
    source.iter().map(|part| part.len()).sum()
}

fn used(sges: &[Sge; 2]) -> &[Sge] {
    match sges[1].length() {
        0 => &sges[..1],
        _ => sges,
    }
}
