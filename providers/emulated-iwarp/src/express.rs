//! The short way for what nearly every request is: directly connected, nothing waiting, one flat stretch of memory on
//! either side, and nothing wrong.
//!
//! Each step looks before it touches anything; where something is out of the ordinary it leaves the request to
//! [`direct`](crate::direct) and [`responder`](crate::responder), which say what. So this decides nothing that they do
//! not decide the same way. Requests of one doorbell share one look at the peer and one turn of its lock.

use polyverbs_engine::key_table::FlatUse;
use polyverbs_engine::qp::{Rare, SendCounters};
use verbs_api::memory::Span;
use verbs_api::{Access, Data, Operation, RemoteAddress, Send, SendFlags, Sge, WorkRequest};

use crate::requester::Requester;
use crate::{Cx, Qp, Receiving, Sending};

/// Carries out as many of `requests` as go the short way; answers how many, from the front.
#[inline]
pub(crate) fn run(
    qp: &Qp,
    half: &mut Sending,
    requests: &[WorkRequest<'_>],
    cx: &mut Cx<'_>,
) -> usize {
    let Some(epoch) = half.driver.peer.as_ref().map(|peer| peer.end.epoch) else {
        return 0;
    };
    if !half.is_plain() {
        return 0;
    }
    // Taken apart, so that the route stays where it is: no count is touched, and nothing is copied.
    let Sending {
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
    if !is_ready(qp, peer, &responder, epoch) {
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

#[inline]
fn is_ready(qp: &Qp, peer: &Qp, responder: &Receiving, epoch: u32) -> bool {
    peer.is_rts_for_peer()
        && responder.driver.epoch == epoch
        && responder.is_established()
        && responder.current.is_none()
        && qp.device.is_port_active()
}

struct Lane<'l, 'p> {
    qp: &'l Qp,
    driver: &'l mut Requester,
    counters: &'l mut SendCounters,
    rare: &'l mut Rare,
    peer: &'l Qp,
    responder: &'l mut Receiving,
    cx: &'l mut Cx<'p>,
}

impl<'p> Lane<'_, 'p> {
    #[inline]
    fn carry(&mut self, request: &WorkRequest<'_>) -> bool {
        let carried = match request {
            WorkRequest::Write(write) => self
                .write(write.data(), &write.remote)
                .map(|octets| self.finish(write, octets)),
            WorkRequest::Send(send) => self.send(send).map(|octets| self.finish(send, octets)),
            WorkRequest::Read(read) => self
                .read(read.data(), &read.remote)
                .map(|octets| self.finish(read, octets)),
            WorkRequest::CompareSwap(swap) => {
                let change = |now| (now == swap.compare).then_some(swap.swap);
                self.atomic(swap.data(), &swap.remote, change)
                    .map(|octets| self.finish(swap, octets))
            }
            WorkRequest::FetchAdd(add) => {
                let change = |now: u64| Some(now.wrapping_add(add.add));
                self.atomic(add.data(), &add.remote, change)
                    .map(|octets| self.finish(add, octets))
            }
            _ => None,
        };
        carried.is_some()
    }

    #[inline]
    fn write(&mut self, data: &Data<'_>, remote: &RemoteAddress) -> Option<u32> {
        match data {
            Data::Sge(sge) => {
                let source = self.local(sge, Access::empty())?;
                self.remote(remote, sge.length, Access::REMOTE_WRITE)?
                    .copy_from(source);
            }
            Data::Inline(octets) => {
                self.remote(remote, octets.len() as u32, Access::REMOTE_WRITE)?
                    .write(octets);
            }
            _ => return None,
        }
        self.counters.writes += 1;
        Some(0)
    }

    // The sink is what a peer may write: see `requester::sink_spans`.
    #[inline]
    fn read(&mut self, data: &Data<'_>, remote: &RemoteAddress) -> Option<u32> {
        let Data::Sge(sge) = data else { return None };
        let sink = self
            .local(sge, Access::REMOTE_WRITE)
            .filter(|_| self.is_within_budgets())?;
        sink.copy_from(self.remote(remote, sge.length, Access::REMOTE_READ)?);
        self.rare.reads += 1;
        Some(sge.length)
    }

    #[inline]
    fn atomic(
        &mut self,
        data: &Data<'_>,
        remote: &RemoteAddress,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Option<u32> {
        let Data::Sge(sge) = data else { return None };
        let sink = self
            .local(sge, Access::LOCAL_WRITE)
            .filter(|_| self.is_within_budgets())?;
        if sge.length != 8 || !sink.address().is_multiple_of(8) {
            return None;
        }
        let original = self
            .remote(remote, 8, Access::REMOTE_ATOMIC)?
            .update_u64(change)?;
        sink.store_u64(original);
        self.rare.atomics += 1;
        Some(8)
    }

    #[inline]
    fn send(&mut self, request: &Send<'_>) -> Option<u32> {
        let length = match request.data() {
            Data::Sge(sge) => sge.length,
            Data::Inline(octets) => octets.len() as u32,
            _ => return None,
        };
        let room = self.peer.express_receive(self.responder, length, self.cx)?;
        match request.data() {
            Data::Sge(sge) => room.copy_from(self.local(sge, Access::empty())?),
            Data::Inline(octets) => room.write(octets),
            _ => return None,
        }
        self.counters.sends += 1;
        self.responder.counters.receives += 1;
        let solicited = request.common().flags.contains(SendFlags::SOLICITED);
        self.peer
            .take_express_receive(self.responder, length, solicited, self.cx);
        Some(0)
    }

    #[inline]
    fn local(&self, sge: &Sge, access: Access) -> Option<Span<'p>> {
        let user = FlatUse {
            pd: self.qp.pd,
            access,
        };
        self.qp
            .device
            .keys()
            .flat(self.cx.pin, sge.lkey.value(), sge.addr, sge.length, user)
    }

    // What the queue pair permits, then what the key opens.
    #[inline]
    fn remote(&self, remote: &RemoteAddress, length: u32, access: Access) -> Option<Span<'p>> {
        if !self.responder.driver.access.contains(access) {
            return None;
        }
        let user = FlatUse {
            pd: self.responder.pd,
            access,
        };
        self.responder.device.keys().flat(
            self.cx.pin,
            remote.rkey.value(),
            remote.addr,
            length,
            user,
        )
    }

    #[inline]
    fn is_within_budgets(&self) -> bool {
        self.driver.ord != 0 && self.responder.driver.ird != 0
    }

    #[inline]
    fn finish(&mut self, request: &impl Operation, byte_len: u32) {
        let common = request.common();
        if self.qp.is_signaled(common.flags) {
            self.qp
                .push_plain(common.wr_id, request.wc_opcode(), byte_len, self.cx);
        }
    }
}
