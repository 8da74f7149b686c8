//! The stream between two queue pairs: how it begins and how it ends.
//!
//! In process there is no set-up handshake. A queue pair that becomes ready to receive draws a number, its *epoch*. When
//! both ends are ready and name each other, each learns the other's epoch ([`meet`]); a frame or call with another epoch
//! does not belong to the stream. INIT, RTR and RTS are states of verbs that iWARP does not have: data may flow as soon as
//! both ends are ready to receive, and requests that are posted earlier wait.
//!
//! # The end
//! * *Graceful*: RTS to SQD, with an idle send queue. The peer gets a Close after all data and answers with its own, and
//!   both queue pairs go to the error state, where the rest of their queues is flushed. siw and iw_cm do the same with a
//!   stream that was closed: only the flushed completions report the end. Where a connection manager made the connection,
//!   it reports the end to the program, and a peer whose send queue is idle keeps its posted receives until the program
//!   disconnects, flushes, or posts a request that can no longer be sent.
//! * *Abrupt*: every other way to leave the connection: SQD with work outstanding, RESET, ERR, destruction, removal of the
//!   device. The peer gets a Reset and goes to the error state.
//! * *With a Terminate* ([`crate::terminate`]), which is the last message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_engine::driver::Change;
use verbs_api::provider::Mutex;
use verbs_api::qp::QpState;

use crate::header::{End, Message, Stream};
use crate::peer::{Peer, begin_close, is_ready, send_message, send_terminate};
use crate::{Cx, Device, Qp, QpRef, QpWeak, Receiving, Sending};
use crate::{requester, responder};

/// The first number of a TCP stream. Queue pairs have lower numbers.
pub(crate) const FIRST_STREAM: u32 = 0x80_0000;

/// Returns the epoch of a new connection, which is unique in the process and never 0.
fn next_epoch() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    loop {
        let epoch = NEXT.fetch_add(1, Ordering::Relaxed);
        if epoch != 0 {
            return epoch;
        }
    }
}

/// Does the driver's part of a modify of a queue pair: stores read limits, rights and the named peer, and begins to close
/// the connection when the queue pair goes from RTS to SQD.
pub(crate) fn modify(
    qp: &Qp,
    sending: &mut Sending,
    receiving: &mut Receiving,
    change: &Change<'_>,
    cx: &mut Cx<'_>,
) {
    let (tx, rx) = (&mut sending.driver, &mut receiving.driver);
    tx.ord = change.all.max_rd_atomic.unwrap_or_default();
    rx.ird = change.all.max_dest_rd_atomic.unwrap_or_default();
    rx.access = change.all.qp_access_flags.unwrap_or_default();
    match (change.from, change.to) {
        (QpState::Init, QpState::Rtr) => {
            let named = change.all.ah_attr.zip(change.all.dest_qp_num);
            let epoch = next_epoch();
            let peer = named.map(|(path, qpn)| {
                let end = End {
                    qpn: qpn.value(),
                    epoch: 0,
                };
                Peer {
                    address: path.address,
                    end,
                    mine: epoch,
                }
            });
            (tx.peer, tx.epoch, rx.peer, rx.epoch) = (peer, epoch, peer, epoch);
        }
        (QpState::Rts, QpState::Sqd) => begin_close(qp, sending, cx),
        _ => {}
    }
}

/// Connects a queue pair that has become ready to receive to the peer that it names, if that one is ready too and names it.
/// On an IP network the queue pair claims the TCP stream to its peer instead.
///
/// This locks one end at a time. An end that leaves in the meantime cannot notify the other, so this is checked afterwards.
pub(crate) fn meet(qp: &QpRef, cx: &mut Cx<'_>) {
    let named = qp.requester().driver.peer;
    let is_waiting = |peer: &Peer| !peer.is_connected() && is_ready(qp.state());
    let Some(named) = named.filter(is_waiting) else {
        return;
    };
    if let Some(streams) = &qp.device.driver().streams {
        let mut half = qp.requester();
        let has_claimed = std::mem::replace(&mut half.driver.has_claimed, true);
        half.driver.is_managed = named.end.qpn >= FIRST_STREAM;
        drop(half);
        // A queue pair claims its stream once for each connection.
        if !has_claimed {
            streams.claim(qp, &named, cx);
        }
        return;
    }
    let network = qp.device.network();
    let Some(peer) = network
        .device(named.address)
        .and_then(|device| device.qp(named.end.qpn))
    else {
        // The peer was destroyed or never existed: the connection counts as refused.
        return requester::fail_later(qp, cx);
    };
    // The peer is not ready or names another queue pair: it calls `meet` when it becomes ready.
    let Some(theirs) = accept(&peer, qp, named.mine) else {
        return;
    };
    let mut met = named;
    met.end.epoch = theirs.mine;
    if accept(qp, &peer, theirs.mine) != Some(met) {
        return send_message(qp, &met, Message::Reset, cx);
    }
    let is_present = peer.requester().driver.epoch == theirs.mine && is_ready(peer.state());
    if !is_present {
        return send_message(&peer, &theirs, Message::Reset, cx);
    }
    cx.effects.resume(qp.owner().clone());
    cx.effects.resume(peer.into_owner());
}

// Connects `at` to the peer `from` with this epoch, if `at` names it. Returns the peer as `at` knows it then.
fn accept(at: &QpRef, from: &QpRef, epoch: u32) -> Option<Peer> {
    let mut sending = at.requester();
    let mut receiving = at.responder();
    let mut peer = sending.driver.peer?;
    let named = peer.end.qpn == from.qpn && peer.address == from.device.address();
    let free = !peer.is_connected() || peer.end.epoch == epoch;
    if !named || !free || !is_ready(at.state()) {
        return None;
    }
    peer.end.epoch = epoch;
    (sending.driver.peer, receiving.driver.peer) = (Some(peer), Some(peer));
    if at.device.network().link().is_none() {
        sending.direct = Some(from.clone());
    } else {
        at.device.driver().ends.insert(peer.mine, at);
    }
    Some(peer)
}

/// Takes the queue pair out of its connection, and notifies the peer of that, once.
pub(crate) fn disconnect(qp: &Qp, sending: &mut Sending, cx: &mut Cx<'_>) {
    let Some(peer) = sending.driver.peer.take() else {
        return;
    };
    let driver = qp.device.driver();
    if !peer.is_connected() {
        if let Some(streams) = &driver.streams {
            streams.disclaim(qp.qpn, &peer, &mut cx.effects);
        }
        return;
    }
    driver.leave(&peer, cx);
    match sending.driver.pending_terminate.take() {
        Some(terminate) => send_terminate(qp, &peer, &terminate, cx),
        // The peer has sent its Terminate and waits for the end of the stream.
        None if sending.driver.terminated.is_some() => send_message(qp, &peer, Message::Close, cx),
        None => send_message(qp, &peer, Message::Reset, cx),
    }
}

/// Handles the end of a queue pair's stream: `message` says whether the peer has closed it or it was reset.
pub(crate) fn handle_end(qp: &Qp, epoch: u32, message: &Message, cx: &mut Cx<'_>) {
    let mut half = qp.requester();
    if half.driver.epoch != epoch || !is_ready(qp.state()) {
        return;
    }
    let is_asked = *message == Message::Close && qp.state() != QpState::Sqd;
    if let Some(peer) = half.driver.peer.take().filter(Peer::is_connected) {
        qp.device.driver().leave(&peer, cx);
        if is_asked {
            send_message(qp, &peer, Message::Close, cx);
        }
    }
    if is_asked && half.driver.is_managed && half.queue.is_empty() {
        half.driver.peer_closed = true;
        half.direct = None;
        return;
    }
    requester::fail_later(qp, cx);
}

/// The local ends of connections over a link, by epoch, because a link identifies a reset connection only by its epochs.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<HashMap<u32, QpWeak>>);

impl Ends {
    pub(crate) fn insert(&self, epoch: u32, qp: &QpRef) {
        self.0.lock().insert(epoch, qp.downgrade());
    }

    pub(crate) fn remove(&self, epoch: u32) {
        self.0.lock().remove(&epoch);
    }

    fn get(&self, epoch: u32) -> Option<QpRef> {
        self.0.lock().get(&epoch)?.upgrade()
    }
}

/// Handles an event that the link reports for a connection, at those of its ends that belong to this device: room in the
/// send buffer, the first frame, or the end.
pub(crate) fn handle_stream_event(
    device: &Device,
    stream: Stream,
    message: &Message,
    cx: &mut Cx<'_>,
) {
    let driver = device.driver();
    for epoch in [stream.source.epoch, stream.destination.epoch] {
        let Some(qp) = driver.ends.get(epoch) else {
            continue;
        };
        match message {
            Message::Room => {
                cx.effects.resume(qp.owner().clone());
                let serve = move |now| responder::serve(&qp, now);
                cx.device.network().serve_later(Box::new(serve));
            }
            Message::First => {
                let peer = qp.requester().driver.peer;
                if let Some((streams, peer)) = driver.streams.as_ref().zip(peer) {
                    streams.begun(peer.end.qpn, &mut cx.effects);
                }
            }
            end => handle_end(&qp, epoch, end, cx),
        }
    }
}
