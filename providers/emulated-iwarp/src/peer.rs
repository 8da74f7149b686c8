//! The peer of a queue pair's stream: sending to it, and closing the stream.

use std::sync::Arc;

use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::{Frame, OwnedFrame, TrySend};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::pin::pin;
use polyverbs_wire::iwarp::terminate::MAX_LEN;
use verbs_api::ids::LinkAddress;
use verbs_api::qp::QpState;

use crate::header::{Body, End, Header, Message, Opcode, Stream};
use crate::terminate::Terminate;
use crate::{Cx, Qp, Sending};

/// The peer that the program has named in the attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The link address of the peer's port.
    pub(crate) address: LinkAddress,
    /// The number of the peer's queue pair, and the epoch that identifies its connection; the epoch is 0 until the two are
    /// connected.
    pub(crate) end: End,
    /// The epoch of this queue pair: a number, unique in the process and never sent, that identifies its present connection.
    pub(crate) mine: u32,
}

impl Peer {
    /// Returns whether the two queue pairs are connected.
    #[inline]
    pub(crate) const fn is_connected(&self) -> bool {
        self.end.epoch != 0
    }
}

/// Returns whether a queue pair in this state accepts arriving messages.
pub(crate) const fn is_ready(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd)
}

/// Sends a segment with its payload over the link, if there is one.
pub(crate) fn emit(qp: &Qp, to: &Peer, message: Message, payload: Payload<'_>, cx: &mut Cx<'_>) {
    if let Some(link) = qp.device.network().link() {
        link.send(frame(qp, to, message, payload), cx.moment());
    }
}

#[inline]
fn header(qp: &Qp, to: &Peer, message: Message) -> Header {
    let source = End {
        qpn: qp.qpn,
        epoch: to.mine,
    };
    let stream = Stream {
        source,
        destination: to.end,
    };
    Header { stream, message }
}

/// Sends a message without payload to the peer: over the link at once, or on a direct network as soon as no lock is held.
pub(crate) fn send_message(qp: &Qp, to: &Peer, message: Message, cx: &mut Cx<'_>) {
    send_control(qp, to, message, &[], cx);
}

/// Sends a Terminate to the peer. It is the only message of its queue.
pub(crate) fn send_terminate(qp: &Qp, to: &Peer, terminate: &Terminate, cx: &mut Cx<'_>) {
    let message = Message::untagged(1, Opcode::TERMINATE, Body::Terminate);
    let mut room = [0; MAX_LEN];
    send_control(qp, to, message, terminate.encode(&mut room), cx);
}

fn send_control(qp: &Qp, to: &Peer, message: Message, payload: &[u8], cx: &mut Cx<'_>) {
    let network = qp.device.network();
    if network.link().is_some() {
        return emit(qp, to, message, Payload::Bytes(payload), cx);
    }
    let frame = OwnedFrame {
        from: qp.device.address(),
        to: to.address,
        header: header(qp, to, message),
        payload: payload.to_vec(),
        damaged: false,
    };
    let network = Arc::clone(network);
    cx.effects.later(move |effects| {
        let Some(device) = network.device(frame.to) else {
            return;
        };
        let pin = pin();
        let mut cx = Cx::new(&device, &pin);
        std::mem::swap(&mut cx.effects, effects);
        // Delivers the frame as a link would.
        Driver::handle_frame(&*device, frame.as_frame(), &mut cx);
        std::mem::swap(&mut cx.effects, effects);
    });
}

/// Sends further segments of a message, beginning at byte `sent` of its payload, as many as the stream has room for.
/// Returns whether the last one was sent. `segment` makes a header from the offset of a segment and whether that is the
/// last one. A message without payload has one segment.
pub(crate) fn offer_segments(
    qp: &Qp,
    to: &Peer,
    payload: &Payload<'_>,
    sent: &mut usize,
    segment: impl Fn(usize, bool) -> Message,
    cx: &mut Cx<'_>,
) -> bool {
    let mut most = usize::MAX;
    loop {
        let length = (payload.len() - *sent).min(most);
        let last = *sent + length == payload.len();
        let part = payload.part(*sent, length);
        match offer_rest(qp, to, segment(*sent, last), part, cx) {
            TrySend::Sent if last => return true,
            TrySend::Sent => *sent += length,
            TrySend::NoRoom => return false,
            TrySend::TooLong(less) => most = less,
        }
    }
}

/// Sends `payload` as one segment, unless it is too long for one or the stream has no room; the result says which.
#[inline]
pub(crate) fn offer_rest(
    qp: &Qp,
    to: &Peer,
    message: Message,
    payload: Payload<'_>,
    cx: &mut Cx<'_>,
) -> TrySend {
    let link = qp.device.network().link();
    link.map_or(TrySend::Sent, |link| {
        link.try_send(frame(qp, to, message, payload), cx.moment())
    })
}

/// Sends a message that is never divided. Returns `false` if the stream has no room for it.
pub(crate) fn offer(
    qp: &Qp,
    to: &Peer,
    message: Message,
    payload: Payload<'_>,
    cx: &mut Cx<'_>,
) -> bool {
    let offered = offer_rest(qp, to, message, payload.clone(), cx);
    if let TrySend::TooLong(_) = offered {
        // The limit applies only to messages that can be divided.
        emit(qp, to, message, payload, cx);
    }
    offered != TrySend::NoRoom
}

#[inline]
fn frame<'p>(qp: &Qp, to: &Peer, message: Message, payload: Payload<'p>) -> Frame<'p, Header> {
    Frame {
        from: qp.device.address(),
        to: to.address,
        header: header(qp, to, message),
        payload,
        damaged: false,
    }
}

/// Begins a graceful close of the stream, which needs an idle send queue. Otherwise the queue pair fails and the stream is
/// reset (RDMA verbs, states of a queue pair).
pub(crate) fn begin_close(qp: &Qp, sending: &mut Sending, cx: &mut Cx<'_>) {
    let met = sending.driver.peer.filter(Peer::is_connected);
    match met {
        Some(peer) if sending.queue.is_empty() => send_message(qp, &peer, Message::Close, cx),
        _ => {
            let Some(me) = qp.shared() else { return };
            cx.effects.later(move |effects| {
                me.enter_error(false);
                effects.flush(me.into_owner());
            });
        }
    }
}
