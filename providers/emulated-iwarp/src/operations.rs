//! What the peer's messages do to memory and receives of this side.
//!
//! The same whether the peer runs them on its own thread or a link brings its segments: rights of keys, bounds and room are
//! checked here, order and budget are not.

use polyverbs_engine::cq::Done;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::named_memory::ReceiveFault;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::pin::Pin;
use polyverbs_engine::receive_ring::Receive;
use polyverbs_engine::request::{Beside, Op, Request};
use polyverbs_engine::rules::{self, Rule};
use verbs_api::{
    Access, RemoteAddress, WcStatus,
    completion::{WcFlags, WcOpcode},
    wr::SendFlags,
};

use crate::header::AtomicOp;
use crate::terminate::Breach;
use crate::{Cx, Qp, Receiving};

/// What a send brings besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendExtra {
    pub(crate) solicited: bool,
    pub(crate) invalidate: Option<u32>,
}

impl SendExtra {
    /// Of a request.
    pub(crate) const fn of(request: &Request<'_>, beside: Beside) -> Self {
        Self {
            solicited: request.flags.contains(SendFlags::SOLICITED),
            invalidate: match beside {
                Beside::Invalidate(key) => Some(key),
                _ => None,
            },
        }
    }
}

/// A part of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u32,
    pub(crate) last: bool,
}

impl Part {
    /// A message in one piece.
    pub(crate) const WHOLE: Self = Self {
        offset: 0,
        last: true,
    };
}

/// Places bytes of a write (RFC 5041 section 5.1): every segment is checked for itself.
#[inline]
pub(crate) fn place_write(
    qp: &Qp,
    half: &Receiving,
    stag: u32,
    to: u64,
    payload: &Payload<'_>,
    pin: &Pin,
) -> Result<(), Breach> {
    if !half.driver.access.contains(Access::REMOTE_WRITE) && !rules::is_broken(Rule::QueuePairWrite)
    {
        return Err(Breach::Opcode);
    }
    place_tagged(qp, stag, to, payload, pin)
}

/// Places bytes where the peer says, with all checks of a tagged buffer. No bytes name no buffer (RFC 5041 section 5.1).
#[inline]
pub(crate) fn place_tagged(
    qp: &Qp,
    stag: u32,
    to: u64,
    payload: &Payload<'_>,
    pin: &Pin,
) -> Result<(), Breach> {
    let length = payload.len() as u64;
    if length == 0 {
        return Ok(());
    }
    let region = qp.peer_region(pin, stag, to, length, Access::REMOTE_WRITE);
    let region = region.map_err(Breach::Tagged)?;
    let mut spans = Spans::new();
    region.for_each(|span| spans.push(span));
    scatter_at(&spans, 0, payload);
    Ok(())
}

/// Takes bytes of a send into the next receive, which completes with the last of them.
///
/// A receive is secured before anything else is done; one that is wanting ends the connection: there is nobody who would
/// try again (RFC 5041 section 7.2, error 1/2/02).
#[inline]
pub(crate) fn take_send(
    qp: &Qp,
    half: &mut Receiving,
    part: Part,
    extra: SendExtra,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), Breach> {
    let receive = match half.current.take() {
        Some(receive) => receive,
        None => qp
            .take_receive(half, None, &mut cx.effects)
            .ok_or(Breach::NoReceive)?,
    };
    let taken = fill(qp, &receive, part.offset, payload, cx);
    // The key dies before the receive completes, and after the bytes have been placed (RFC 5040 section 5.3).
    let taken = taken.and_then(|()| match extra.invalidate {
        Some(key) if part.last => invalidate(qp, key),
        _ => Ok(()),
    });
    if taken.is_err() || !part.last {
        half.current = Some(receive);
        return taken;
    }
    let (flags, imm) = match extra.invalidate {
        Some(key) => (WcFlags::WITH_INV, key.to_be_bytes()),
        None => (WcFlags::empty(), [0; 4]),
    };
    let done = Done {
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        flags,
        imm,
        byte_len: part.offset + payload.len() as u32,
        solicited: extra.solicited,
        ..Done::default()
    };
    half.counters.receives += 1;
    qp.complete_receive(&receive, done, cx);
    Ok(())
}

#[inline]
fn fill(
    qp: &Qp,
    receive: &Receive,
    offset: u32,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), Breach> {
    // Offsets have 32 bits, whatever room there is.
    if u64::from(offset) + payload.len() as u64 > u64::from(u32::MAX) {
        return Err(Breach::TooLong);
    }
    qp.fill_receive(receive, offset.into(), payload, cx)
        .map_err(|fault| match fault {
            ReceiveFault::Entry(fault) => Breach::Receive(fault),
            ReceiveFault::TooLong => Breach::TooLong,
        })
}

fn invalidate(qp: &Qp, key: u32) -> Result<(), Breach> {
    let management = qp
        .device
        .memory_management()
        .ok_or(Breach::Invalidate(Fault::Operation))?;
    management
        .invalidate_remote(qp.device.keys(), key, qp.pd, qp.qpn)
        .map_err(Breach::Invalidate)
}

/// Takes immediate data, which completes a receive of its own; `written` bytes were written before it.
///
/// The value is the first four bytes of the eight that the message has (RFC 7306 section 6).
pub(crate) fn take_immediate(
    qp: &Qp,
    half: &mut Receiving,
    imm: [u8; 4],
    written: u64,
    solicited: bool,
    cx: &mut Cx<'_>,
) -> Result<(), Breach> {
    let receive = qp
        .take_receive(half, None, &mut cx.effects)
        .ok_or(Breach::NoReceive)?;
    let is_lost = rules::is_broken(Rule::WriteImmediate);
    let imm = if is_lost { [0; 4] } else { imm };
    let done = Done {
        status: WcStatus::Success,
        opcode: WcOpcode::RecvRdmaWithImm,
        flags: WcFlags::WITH_IMM,
        imm,
        byte_len: written as u32,
        solicited,
        ..Done::default()
    };
    half.counters.receives += 1;
    qp.complete_receive(&receive, done, cx);
    Ok(())
}

/// The bytes that a read asks for.
#[inline]
pub(crate) fn read_source<'p>(
    qp: &Qp,
    half: &Receiving,
    stag: u32,
    to: u64,
    length: u64,
    pin: &'p Pin,
) -> Result<Spans<'p>, Breach> {
    if !half.driver.access.contains(Access::REMOTE_READ) && !rules::is_broken(Rule::QueuePairRead) {
        return Err(Breach::Opcode);
    }
    let mut spans = Spans::new();
    if length != 0 {
        let region = qp.peer_region(pin, stag, to, length, Access::REMOTE_READ);
        let region = region.map_err(Breach::Read)?;
        region.for_each(|span| spans.push(span));
    }
    Ok(spans)
}

/// Operates atomically on eight bytes: what they were before.
///
/// It is the address of the bytes that must be a multiple of eight, whatever the tagged offset (RFC 7306 section 5).
#[inline]
pub(crate) fn operate(
    qp: &Qp,
    half: &Receiving,
    op: AtomicOp,
    stag: u32,
    to: u64,
    pin: &Pin,
) -> Result<u64, Breach> {
    if !half.driver.access.contains(Access::REMOTE_ATOMIC) {
        return Err(Breach::Opcode);
    }
    let region = qp.peer_region(pin, stag, to, 8, Access::REMOTE_ATOMIC);
    let region = region.map_err(Breach::Atomic)?;
    let masked = match is_masked(op) {
        true => Some(qp.device.masked_atomics().ok_or(Breach::Opcode)?),
        false => None,
    };
    region
        .first(8)
        .update_u64(|current| match masked {
            None => match op {
                AtomicOp::CompareSwap { swap, .. }
                    if rules::is_broken(Rule::CompareSwapCompares) =>
                {
                    Some(swap)
                }
                _ => op.ordinary(current).flatten(),
            },
            Some(masked) => masked.apply(op, current),
        })
        .ok_or(Breach::Atomic(Fault::Misaligned))
}

// Whether masks say more than those of an ordinary operation.
const fn is_masked(op: AtomicOp) -> bool {
    op.ordinary(0).is_none()
}

/// The atomic of RFC 7306 that a request is, if it is one.
pub(crate) const fn atomic_of(op: &Op) -> Option<(RemoteAddress, AtomicOp)> {
    match *op {
        Op::CompareSwap(remote, compare, swap) => {
            Some((remote, AtomicOp::compare_swap(compare, swap)))
        }
        Op::FetchAdd(remote, add) => Some((remote, AtomicOp::fetch_add(add))),
        _ => None,
    }
}
