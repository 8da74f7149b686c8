//! The express path carries out a posted request at once, on the poster's thread. Nearly every request takes it: the
//! network has no link, no request waits, both sides use one flat stretch of memory, and there is no error.
//!
//! Each step checks before it changes anything. A request that fails a check is left to the driver, so this path decides
//! nothing that the driver would decide differently. All requests of one post share one check of the peer and take the
//! peer's lock once.

use verbs_api::memory::Span;
use verbs_api::{
    Access, RemoteAddress, Sge,
    provider::Operation,
    wr::{self, Data, SendFlags, WorkRequest},
};

use crate::device::Cx;
use crate::device::driver::Driver;
use crate::qp::{Qp, Rare, Requester, Responder, SendCounters};

/// The part of a transport's driver that the express path needs.
pub trait Express: Driver {
    /// The access rights that the local buffer of an RDMA read needs, in which the transport places the bytes that were
    /// read.
    const READ_SINK: Access;

    /// Returns whether the peer's responder can execute the next request of `qp` at once, in the thread that posts the
    /// request. Both queue pairs are in RTS, and the caller has locked `responder`, which is the peer's. The result
    /// must be `false` while [`Responder::takes_express`] returns `false`: an implementation checks that method, or a
    /// stricter condition.
    fn is_ready(qp: &Qp<Self>, sending: &Self::Requester, responder: &Responder<Self>) -> bool;

    /// Returns the access rights that the peer's queue pair grants to requests of this queue pair.
    fn permits(receiving: &Self::Responder) -> Access;

    /// Returns whether requester and responder permit one more outstanding read or atomic at this time; by default they
    /// do.
    #[inline]
    fn has_read_budget(_sending: &Self::Requester, _receiving: &Self::Responder) -> bool {
        true
    }

    /// Advances the state of requester and responder, such as sequence numbers, past a request of `length` bytes that
    /// the express path has carried out; by default nothing changes.
    #[inline]
    fn step(_sending: &mut Self::Requester, _receiving: &mut Self::Responder, _length: u32) {}
}

/// Carries out requests from the front of `requests`, until one cannot take the express path. Returns how many were carried
/// out.
#[inline]
pub fn run<D: Express>(
    qp: &Qp<D>,
    half: &mut Requester<D>,
    requests: &[WorkRequest<'_>],
    cx: &mut Cx<'_, D>,
) -> usize {
    if !half.is_plain() {
        return 0;
    }
    // The fields are borrowed separately, so that the reference to the peer stays in its place: no reference count changes,
    // and nothing is copied.
    let Requester {
        direct: Some(peer),
        driver,
        counters,
        rare,
        ..
    } = half
    else {
        return 0;
    };
    let mut responder = peer.responder();
    if !(peer.is_rts_for_peer() && D::is_ready(qp, driver, &responder)) {
        return 0;
    }
    let mut lane = Lane {
        qp,
        driver,
        counters,
        rare,
        peer,
        responder: &mut responder,
        cx,
    };
    requests
        .iter()
        .take_while(|request| lane.carry(request))
        .count()
}

struct Lane<'l, 'p, D: Driver> {
    qp: &'l Qp<D>,
    driver: &'l mut D::Requester,
    counters: &'l mut SendCounters,
    rare: &'l mut Option<Box<Rare>>,
    peer: &'l Qp<D>,
    responder: &'l mut Responder<D>,
    cx: &'l mut Cx<'p, D>,
}

impl<'p, D: Express> Lane<'_, 'p, D> {
    #[inline]
    fn carry(&mut self, request: &WorkRequest<'_>) -> bool {
        if let Some(slots) = Rare::slots(self.rare)
            && self.qp.find_room(slots, request.common().flags).is_err()
        {
            return false;
        }
        let carried = match request {
            WorkRequest::Write(write) => self
                .write(write.data(), &write.remote)
                .map(|bytes| self.finish(write, bytes)),
            WorkRequest::Send(send) => self.send(send).map(|bytes| self.finish(send, bytes)),
            WorkRequest::Read(read) => self
                .read(read.data(), &read.remote)
                .map(|bytes| self.finish(read, bytes)),
            WorkRequest::CompareSwap(swap) => {
                let change = |now| (now == swap.compare).then_some(swap.swap);
                self.atomic(swap.data(), &swap.remote, change)
                    .map(|bytes| self.finish(swap, bytes))
            }
            WorkRequest::FetchAdd(add) => {
                let change = |now: u64| Some(now.wrapping_add(add.add));
                self.atomic(add.data(), &add.remote, change)
                    .map(|bytes| self.finish(add, bytes))
            }
            _ => None,
        };
        carried.is_some()
    }

    #[inline]
    fn write(&mut self, data: &Data<'_>, remote: &RemoteAddress) -> Option<u32> {
        let target = |length| self.remote(remote, length, Access::REMOTE_WRITE);
        let length = match data {
            Data::Sge(sge) | Data::Sges([sge]) => {
                let source = self.local(sge, Access::empty())?;
                target(sge.length())?.copy_from(source);
                sge.length()
            }
            Data::Inline(bytes) => {
                target(bytes.len() as u32)?.write(bytes);
                bytes.len() as u32
            }
            _ => return None,
        };
        self.step(length);
        self.counters.writes += 1;
        Some(0)
    }

    #[inline]
    fn read(&mut self, data: &Data<'_>, remote: &RemoteAddress) -> Option<u32> {
        let (Data::Sge(sge) | Data::Sges([sge])) = data else {
            return None;
        };
        let sink = self.read_sink(sge, D::READ_SINK)?;
        sink.copy_from(self.remote(remote, sge.length(), Access::REMOTE_READ)?);
        self.step(sge.length());
        self.rare.get_or_insert_default().counters.reads += 1;
        Some(sge.length())
    }

    #[inline]
    fn atomic(
        &mut self,
        data: &Data<'_>,
        remote: &RemoteAddress,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Option<u32> {
        let (Data::Sge(sge) | Data::Sges([sge])) = data else {
            return None;
        };
        let sink = self.read_sink(sge, Access::LOCAL_WRITE)?;
        if sge.length() != 8 || !sink.address().is_multiple_of(8) || !remote.addr.is_multiple_of(8)
        {
            return None;
        }
        let original = self
            .remote(remote, 8, Access::REMOTE_ATOMIC)?
            .update_u64(change)?;
        sink.store_u64(original);
        self.step(8);
        self.rare.get_or_insert_default().counters.atomics += 1;
        Some(8)
    }

    #[inline]
    fn send(&mut self, request: &wr::Send<'_>) -> Option<u32> {
        let length = match request.data() {
            Data::Sge(sge) | Data::Sges([sge]) => sge.length(),
            Data::Inline(bytes) => bytes.len() as u32,
            _ => return None,
        };
        let room = self.peer.express_receive(self.responder, length, self.cx)?;
        match request.data() {
            Data::Sge(sge) | Data::Sges([sge]) => {
                room.copy_from(self.local(sge, Access::empty())?);
            }
            Data::Inline(bytes) => room.write(bytes),
            _ => return None,
        }
        self.step(length);
        self.counters.sends += 1;
        self.responder.counters.receives += 1;
        let solicited = request.common().flags.contains(SendFlags::SOLICITED);
        self.peer
            .take_express_receive(self.responder, length, solicited, self.cx);
        Some(0)
    }

    #[inline]
    fn read_sink(&self, sge: &Sge, access: Access) -> Option<Span<'p>> {
        if D::has_read_budget(self.driver, &self.responder.driver) {
            self.local(sge, access)
        } else {
            None
        }
    }

    #[inline]
    fn local(&self, sge: &Sge, access: Access) -> Option<Span<'p>> {
        let (keys, key) = (self.qp.device.keys(), sge.lkey().value());
        let (pin, pd) = (self.cx.pin, self.qp.pd);
        keys.flat(pin, key, sge.addr(), sge.length(), pd, access)
    }

    // Checks the rights that the peer's queue pair grants, then those of the key.
    #[inline]
    fn remote(&self, remote: &RemoteAddress, length: u32, access: Access) -> Option<Span<'p>> {
        if !D::permits(&self.responder.driver).contains(access) {
            return None;
        }
        let (keys, key) = (self.responder.device.keys(), remote.rkey.value());
        let (pin, pd) = (self.cx.pin, self.responder.pd);
        keys.flat(pin, key, remote.addr, length, pd, access)
    }

    #[inline]
    fn step(&mut self, length: u32) {
        D::step(self.driver, &mut self.responder.driver, length);
    }

    #[inline]
    fn finish(&mut self, request: &impl Operation, byte_len: u32) {
        let common = request.common();
        let at = self.qp.is_signaled(common.flags).then(|| {
            let opcode = request.wc_opcode();
            self.qp.push_plain(common.wr_id, opcode, byte_len, self.cx)
        });
        if let Some(slots) = Rare::slots(self.rare) {
            let is_reserved = common.flags.contains(SendFlags::RESERVED);
            slots.take(is_reserved);
            slots.complete(is_reserved, at);
        }
    }
}
