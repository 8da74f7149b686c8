//! The operations of a peer's messages on this device's memory and receives.
//!
//! They are the same on a direct network, where the peer's thread calls them, and for segments that a link delivers. They
//! check the rights and bounds of keys and the room in receives, but not the order of messages or the limit of reads and
//! atomics.

use polyverbs_engine::cq::Done;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::named_memory::ReceiveFault;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::pin::Pin;
use polyverbs_engine::request::Op;
use polyverbs_engine::rules::{self, Rule};
use verbs_api::{
    Access, RemoteAddress, WcStatus,
    completion::{WcFlags, WcOpcode},
};

use crate::header::{AtomicOp, Untagged};
use crate::terminate::{Breach, TerminateCode};
use crate::{Cx, Qp, Receiving};

/// A queue pair that executes a message of its peer, with its responder state locked.
pub(crate) struct Target<'a, 'p> {
    pub(crate) qp: &'a Qp,
    pub(crate) half: &'a mut Receiving,
    pub(crate) cx: &'a mut Cx<'p>,
}

impl<'p> Target<'_, 'p> {
    /// Places the payload of a write's segment at the tagged offset `to` of the buffer `stag`. Each segment is checked by
    /// itself (RFC 5041 section 5.1).
    #[inline]
    pub(crate) fn write(&self, stag: u32, to: u64, payload: &Payload<'_>) -> Result<(), Breach> {
        self.permit(Access::REMOTE_WRITE, Rule::QueuePairWrite)?;
        place_tagged(self.qp, stag, to, payload, self.cx.pin)
    }

    /// Places the payload of a send's segment in the next receive, which completes with the last segment.
    ///
    /// The receive is taken before anything else is done. If there is none, the connection ends, because iWARP does not
    /// retry (RFC 5041 section 7.2, error 1/2/02).
    #[inline]
    pub(crate) fn send(&mut self, segment: &Untagged, payload: &Payload<'_>) -> Result<(), Breach> {
        let (qp, half) = (self.qp, &mut *self.half);
        let receive = half
            .current
            .take()
            .or_else(|| qp.take_receive(half, None, &mut self.cx.effects))
            .ok_or(Breach::Protocol(TerminateCode::DDP_NO_BUFFER))?;
        let key = segment.invalidates();
        // Offsets have 32 bits, even if the receive is longer.
        let length = u64::from(segment.mo) + payload.len() as u64;
        let taken = match length > u64::from(u32::MAX) {
            true => Err(ReceiveFault::TooLong),
            false => qp.fill_receive(&receive, segment.mo.into(), payload, self.cx),
        };
        let taken = taken.map_err(|fault| match fault {
            ReceiveFault::Entry(fault) => Breach::Receive(fault),
            ReceiveFault::TooLong => Breach::Protocol(TerminateCode::DDP_TOO_LONG),
        });
        // The key is invalidated after the bytes were placed and before the receive completes (RFC 5040 section 5.3).
        let taken = taken.and_then(|()| match key {
            Some(key) if segment.last => invalidate(qp, key),
            _ => Ok(()),
        });
        if taken.is_err() || !segment.last {
            half.current = Some(receive);
            return taken;
        }
        let (flags, imm) = match key {
            Some(key) => (WcFlags::WITH_INV, key.to_be_bytes()),
            None => (WcFlags::empty(), [0; 4]),
        };
        let done = Done {
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            flags,
            imm,
            byte_len: length as u32,
            solicited: segment.solicits(),
            ..Done::default()
        };
        half.counters.receives += 1;
        qp.complete_receive(&receive, done, self.cx);
        Ok(())
    }

    /// Completes the next receive with the immediate data of the peer's message. `written` is the number of bytes that
    /// the RDMA write before that message has written.
    ///
    /// The immediate data of the completion are the first four of the eight bytes in the message (RFC 7306 section 6).
    pub(crate) fn immediate(
        &mut self,
        imm: [u8; 4],
        written: u64,
        solicited: bool,
    ) -> Result<(), Breach> {
        let receive = self
            .qp
            .take_receive(self.half, None, &mut self.cx.effects)
            .ok_or(Breach::Protocol(TerminateCode::DDP_NO_BUFFER))?;
        let is_lost = rules::is_broken(Rule::WriteImmediate);
        let done = Done {
            status: WcStatus::Success,
            opcode: WcOpcode::RecvRdmaWithImm,
            flags: WcFlags::WITH_IMM,
            imm: if is_lost { [0; 4] } else { imm },
            byte_len: written as u32,
            solicited,
            ..Done::default()
        };
        self.half.counters.receives += 1;
        self.qp.complete_receive(&receive, done, self.cx);
        Ok(())
    }

    /// Checks that the peer may read the memory which its RDMA Read Request names, and returns that memory.
    #[inline]
    pub(crate) fn read(&self, stag: u32, to: u64, length: u64) -> Result<Spans<'p>, Breach> {
        self.permit(Access::REMOTE_READ, Rule::QueuePairRead)?;
        tagged_spans(
            self.qp,
            (stag, to),
            length,
            Access::REMOTE_READ,
            self.cx.pin,
        )
        .map_err(Breach::Read)
    }

    /// Carries out an atomic on eight bytes of this device's memory. Returns their previous value.
    ///
    /// The address of the bytes in memory must be a multiple of eight, not the tagged offset (RFC 7306 section 5).
    #[inline]
    pub(crate) fn atomic(&self, op: AtomicOp, stag: u32, to: u64) -> Result<u64, Breach> {
        let qp = self.qp;
        if !self.half.driver.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Breach::OPCODE);
        }
        let region = qp.peer_region(self.cx.pin, stag, to, 8, Access::REMOTE_ATOMIC);
        let region = region.map_err(Breach::Atomic)?;
        // Present if the operation has masks, so that it is not an ordinary one.
        let masked = match op.ordinary(0) {
            None => Some(qp.device.masked_atomics().ok_or(Breach::OPCODE)?),
            Some(_) => None,
        };
        region
            .first(8)
            .update_u64(|current| match (masked, op) {
                (Some(masked), _) => masked.apply(op, current),
                (None, AtomicOp::CompareSwap { swap, .. })
                    if rules::is_broken(Rule::CompareSwapCompares) =>
                {
                    Some(swap)
                }
                _ => op.ordinary(current).flatten(),
            })
            .ok_or(Breach::Atomic(Fault::Misaligned))
    }

    #[inline]
    fn permit(&self, needed: Access, rule: Rule) -> Result<(), Breach> {
        let is_permitted = self.half.driver.access.contains(needed) || rules::is_broken(rule);
        is_permitted.then_some(()).ok_or(Breach::OPCODE)
    }
}

/// Checks that the peer may write `payload` to the tagged buffer that its message names by `stag` and tagged offset
/// `to`, then copies `payload` there. If a check fails, nothing is written.
#[inline]
pub(crate) fn place_tagged(
    qp: &Qp,
    stag: u32,
    to: u64,
    payload: &Payload<'_>,
    pin: &Pin,
) -> Result<(), Breach> {
    let length = payload.len() as u64;
    let spans = tagged_spans(qp, (stag, to), length, Access::REMOTE_WRITE, pin);
    scatter_at(&spans.map_err(Breach::Tagged)?, 0, payload);
    Ok(())
}

/// Checks that the peer has the rights `access` to a tagged buffer, and returns the memory of that buffer. A length of
/// zero names no buffer (RFC 5040 section 5.2.1, RFC 5041 section 5.1).
#[inline]
pub(crate) fn tagged_spans<'p>(
    qp: &Qp,
    (stag, to): (u32, u64),
    length: u64,
    access: Access,
    pin: &'p Pin,
) -> Result<Spans<'p>, Fault> {
    let mut spans = Spans::new();
    if length != 0 {
        let region = qp.peer_region(pin, stag, to, length, access)?;
        region.for_each(|span| spans.push(span));
    }
    Ok(spans)
}

fn invalidate(qp: &Qp, key: u32) -> Result<(), Breach> {
    let management = qp.device.memory_management();
    let management = management.ok_or(Breach::Invalidate(Fault::Operation))?;
    management
        .invalidate_remote(key, qp.pd, qp.qpn)
        .map_err(Breach::Invalidate)
}

/// Returns the remote address of an atomic request and its operation as RFC 7306 encodes it; `None` for other requests.
pub(crate) const fn atomic_of(op: &Op) -> Option<(RemoteAddress, AtomicOp)> {
    match *op {
        Op::CompareSwap(remote, compare, swap) => {
            Some((remote, AtomicOp::compare_swap(compare, swap)))
        }
        Op::FetchAdd(remote, add) => Some((remote, AtomicOp::fetch_add(add))),
        _ => None,
    }
}
