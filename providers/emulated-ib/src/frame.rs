//! Frames of a queue pair: their capacity, and how they are sent.

use polyverbs_engine::link::Frame;
use polyverbs_engine::payload::Payload;
use verbs_api::ids::LinkAddress;

use crate::header::Header;
use crate::{Cx, Qp};

/// Returns whether the network carries a message of any length as one frame, without cutting it into packets.
#[inline]
pub(crate) fn is_uncut(qp: &Qp) -> bool {
    let link = qp.device.network().link();
    link.and_then(|link| link.max_frame()).is_none()
}

/// Returns the payload bytes of a full frame to the queue pair `qpn` at `to`: one packet, or several if the link joins
/// them. `None` if a message of any length is one frame.
#[inline]
pub(crate) fn full_frame(
    qp: &Qp,
    mtu_shift: u8,
    to: Option<LinkAddress>,
    qpn: u32,
) -> Option<usize> {
    if is_uncut(qp) {
        return None;
    }
    Some(max_joined(qp, to, qpn).unwrap_or(1 << mtu_shift))
}

/// Returns the most payload bytes of a frame that joins several packets to the queue pair `qpn` at `to`; `None` if the link
/// does not join packets to it.
#[inline]
pub(crate) fn max_joined(qp: &Qp, to: Option<LinkAddress>, qpn: u32) -> Option<usize> {
    qp.device.network().link()?.max_joined(to?, qpn)
}

/// Returns whether frames to the queue pair `qpn` at `to` wait in this process for room in shared memory.
#[inline]
pub(crate) fn is_crowded(qp: &Qp, to: Option<LinkAddress>, qpn: u32) -> bool {
    let link = qp.device.network().link().zip(to);
    link.is_some_and(|(link, to)| link.is_crowded(to, qpn))
}

/// Sends a frame over the link to the port `to`. Without a link or while the port is down, the frame is dropped.
#[inline]
pub(crate) fn send(
    qp: &Qp,
    to: Option<LinkAddress>,
    header: Header,
    payload: Payload<'_>,
    cx: &mut Cx<'_>,
) {
    let now = cx.moment();
    if let (Some(link), Some(to), true) =
        (qp.device.network().link(), to, qp.device.is_port_active())
    {
        link.send(
            Frame {
                from: qp.device.address(),
                to,
                header,
                payload,
                damaged: false,
            },
            now,
        );
    }
}
