//! The operations of a peer's requests on this device's memory. They check rights of keys and bounds, but not order and
//! state.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::key_table::Region;
use polyverbs_engine::payload::{Payload, Spans};
use polyverbs_engine::rules::{self, Rule};
use verbs_api::memory::Span;
use verbs_api::{Access, RemoteAddress};

use crate::answer::{Answer, Refusal};
use crate::header::Body;
use crate::{Cx, Qp};

#[inline]
pub(crate) fn write_region<'p>(
    qp: &Qp,
    remote: RemoteAddress,
    length: u32,
    cx: &Cx<'p>,
) -> Result<Region<'p>, Fault> {
    check(qp, remote, length, Access::REMOTE_WRITE, cx)
}

#[inline]
fn check<'p>(
    qp: &Qp,
    remote: RemoteAddress,
    length: u32,
    access: Access,
    cx: &Cx<'p>,
) -> Result<Region<'p>, Fault> {
    let (key, length) = (remote.rkey.value(), length.into());
    qp.peer_region(cx.pin, key, remote.addr, length, access)
}

#[inline]
pub(crate) fn place(region: Region<'_>, payload: &Payload<'_>) {
    if let Region::Flat(span) = region {
        return payload.copy_to(span);
    }
    let mut done = 0;
    region.for_each(|span| {
        payload.part(done, span.len()).copy_to(span);
        done += span.len();
    });
}

pub(crate) fn read_region<'p>(
    qp: &Qp,
    remote: RemoteAddress,
    length: u32,
    cx: &Cx<'p>,
) -> Result<Spans<'p>, Fault> {
    let mut spans = Spans::new();
    // A read of no bytes names no memory (IBTA 9.7.4.1.5).
    if length > 0 {
        check(qp, remote, length, Access::REMOTE_READ, cx)?.for_each(|span| spans.push(span));
    }
    Ok(spans)
}

// Checks a request that is served later, so that a request that would be refused is refused when it arrives.
pub(crate) fn check_served(qp: &Qp, body: Body, cx: &Cx<'_>) -> Result<(), Refusal> {
    match body {
        Body::ReadRequest(remote, length) => read_region(qp, remote, length, cx).map(drop)?,
        Body::CompareSwap(remote, ..) | Body::FetchAdd(remote, _) => {
            word(qp, remote, Access::REMOTE_ATOMIC, cx).map(drop)?;
        }
        Body::Flush(remote, length, placement, whole) => {
            flush(qp, remote, length, placement, whole, cx)?
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn word<'p>(
    qp: &Qp,
    remote: RemoteAddress,
    access: Access,
    cx: &Cx<'p>,
) -> Result<Span<'p>, Refusal> {
    if !remote.addr.is_multiple_of(8) {
        return Err(Refusal::INVALID);
    }
    Ok(check(qp, remote, 8, access, cx)?.first(8))
}

fn flush(
    qp: &Qp,
    remote: RemoteAddress,
    length: u32,
    placement: Access,
    whole: bool,
    cx: &Cx<'_>,
) -> Result<(), Refusal> {
    let keys = qp.device.keys();
    let (addr, length) = match keys.fields(remote.rkey.value()) {
        Some(fields) if whole => (fields.iova, fields.length.min(u64::from(u32::MAX)) as u32),
        _ => (remote.addr, length),
    };
    let is_lax = rules::is_broken(Rule::FlushRight);
    let placement = if is_lax { Access::empty() } else { placement };
    if length > 0 {
        check(qp, RemoteAddress { addr, ..remote }, length, placement, cx)?;
    }
    // Bytes that were copied before are visible to every thread that sees the completion, because copies end with a
    // release.
    Ok(())
}

// Carries out a read, an atomic or a flush. Returns the answer, and the operand's original value, which is stored for
// duplicates.
pub(crate) fn serve<'p>(qp: &Qp, body: Body, cx: &Cx<'p>) -> Result<(Answer<'p>, u64), Refusal> {
    let original = match body {
        Body::ReadRequest(remote, length) => {
            return Ok((Answer::Read(read_region(qp, remote, length, cx)?), 0));
        }
        Body::CompareSwap(remote, compare, swap) => word(qp, remote, Access::REMOTE_ATOMIC, cx)?
            .update_u64(|now| {
                let swaps = now == compare || rules::is_broken(Rule::CompareSwapCompares);
                swaps.then_some(swap)
            }),
        Body::FetchAdd(remote, add) => word(qp, remote, Access::REMOTE_ATOMIC, cx)?
            .update_u64(|now| Some(now.wrapping_add(add))),
        Body::Flush(remote, length, placement, whole) => {
            flush(qp, remote, length, placement, whole, cx)?;
            return Ok((Answer::Read(Spans::new()), 0));
        }
        _ => return Err(Refusal::INVALID),
    };
    let original = original.ok_or(Refusal::INVALID)?;
    Ok((Answer::Atomic(original), original))
}
