//! Frames of a queue pair: how much one carries, and how it leaves.

use polyverbs_engine::link::Frame;
use polyverbs_engine::payload::Payload;
use verbs_api::ids::LinkAddress;

use crate::header::Header;
use crate::{Cx, Qp};

/// Bytes of payload that a full frame has; `None` where the network does not cut messages.
#[inline]
pub(crate) fn full_frame(qp: &Qp, mtu_shift: u8) -> Option<usize> {
    let max = qp.device.network().link().and_then(|link| link.max_frame());
    max.map(|max| max.min(1 << mtu_shift))
}

/// Sends a frame over the link, where there is one and the port is up.
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
