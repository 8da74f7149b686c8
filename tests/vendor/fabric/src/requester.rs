//! The sending half: a request is executed at the peer at once, and waits in the queue if the peer cannot take it.

use polyverbs_engine::device::Cx;
use polyverbs_engine::driver::Executed;
use polyverbs_engine::operation;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::qp::{Phase, Qp, QpRef, Requester, Wqe};
use polyverbs_engine::request::{Op, Request};
use polyverbs_engine::time::{Time, ack_timeout, rnr_delay};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{WcStatus, extension::ExtensionOperation, ids::LinkAddress};

use crate::responder::{Answer, Asked, Asker, Refusal, extension, respond};
use crate::{Form, frames};

/// The `rnr_retry` that means to retry for ever.
const FOREVER: u8 = 7;

/// The state of a requester.
#[derive(Debug, Default)]
pub struct Sending {
    // The attributes that modifies have set.
    pub(crate) attributes: QpAttributes,
    retries_left: u8,
    rnr_left: u8,
    // The peer had no receive; the request is tried again at this time.
    rnr_until: Option<Time>,
    // The peer does not exist yet; the request is tried again at this time.
    ack_until: Option<Time>,
    // The number of the last frame.
    last_frame: u32,
}

impl Sending {
    pub(crate) const fn number_frame(&mut self) -> u32 {
        self.last_frame += 1;
        self.last_frame
    }

    pub(crate) fn begin(&mut self) {
        self.retries_left = self.attributes.retry_cnt.unwrap_or_default();
        self.rnr_left = self.attributes.rnr_retry.unwrap_or_default();
        self.stop_waiting();
    }

    pub(crate) fn stop_waiting(&mut self) {
        (self.rnr_until, self.ack_until) = (None, None);
    }

    fn take_rnr_retry(&mut self) -> bool {
        if self.attributes.rnr_retry == Some(FOREVER) {
            return true;
        }
        let left = self.rnr_left.checked_sub(1);
        self.rnr_left = left.unwrap_or(0);
        left.is_some()
    }
}

/// Tries a request at once; where the network has a link it is sent by [`pump`].
pub fn execute<D: Form>(
    qp: &Qp<D>,
    half: &mut Requester<D>,
    request: &Request<'_>,
    cx: &mut Cx<'_, D>,
) -> Executed {
    qp.device.driver().common().hooks.note("execute");
    if request.op.is_local() {
        return Executed::Done(qp.local_operation(half, request, cx), 0);
    }
    if qp.device.network().link().is_some() {
        return Executed::Keep;
    }
    match attempt(qp, half, request, cx) {
        Ok(octets) => {
            half.driver.begin();
            Executed::Done(WcStatus::Success, octets)
        }
        Err(Refusal::Failed(status, _)) => Executed::Done(status, 0),
        Err(Refusal::NoReceive(code)) => {
            half.rare().counters.rnr_naks += 1;
            if !half.driver.take_rnr_retry() {
                return Executed::Done(WcStatus::RnrRetryExcErr, 0);
            }
            let until = cx.now().after(rnr_delay(code));
            (half.driver.rnr_until, half.driver.ack_until) = (Some(until), None);
            qp.wake_at(half, until);
            Executed::Keep
        }
        Err(Refusal::Absent) => {
            wait_for_peer(qp, half, cx);
            Executed::Keep
        }
    }
}

fn wait_for_peer<D: Form>(qp: &Qp<D>, half: &mut Requester<D>, cx: &mut Cx<'_, D>) {
    if half.driver.ack_until.is_some() {
        return;
    }
    let code = half.driver.attributes.timeout.unwrap_or_default();
    if let Some(timeout) = ack_timeout(code) {
        let until = cx.now().after(timeout);
        half.driver.ack_until = Some(until);
        qp.wake_at(half, until);
    }
}

/// The device's address and the number of the peer that these attributes name.
pub(crate) fn peer_of(attributes: &QpAttributes) -> Option<(LinkAddress, u32)> {
    Some((attributes.ah_attr?.address, attributes.dest_qp_num?.value()))
}

fn find_peer<D: Form>(qp: &Qp<D>, attributes: &QpAttributes) -> Option<QpRef<D>> {
    let (address, number) = peer_of(attributes)?;
    qp.device.network().device(address)?.qp(number)
}

// Executes a request at the peer. Returns how many bytes the answer has.
fn attempt<D: Form>(
    qp: &Qp<D>,
    half: &mut Requester<D>,
    request: &Request<'_>,
    cx: &mut Cx<'_, D>,
) -> Result<u32, Refusal> {
    let known = half.direct.take();
    let peer = known.or_else(|| find_peer(qp, &half.driver.attributes));
    let peer = peer.ok_or(Refusal::Absent)?;
    let answered = match request.op {
        Op::Extension(operation) => ask(qp, request, operation, &peer, cx),
        _ => exchange(qp, request, &peer, cx),
    };
    if !matches!(answered, Err(Refusal::Absent)) {
        half.direct = Some(peer);
    }
    answered
}

fn exchange<D: Form>(
    qp: &Qp<D>,
    request: &Request<'_>,
    peer: &Qp<D>,
    cx: &mut Cx<'_, D>,
) -> Result<u32, Refusal> {
    let mut sink = Spans::new();
    let mut source = Spans::new();
    let prepared = if request.op.is_read_or_atomic() {
        let sink = qp.gather_sink(request, cx, &mut sink);
        sink.map(|()| Payload::Empty)
    } else {
        qp.gather_request(request, cx, &mut source)
    };
    let asked = Asked {
        op: request.op,
        flags: request.flags,
        length: request.length,
        payload: prepared.map_err(Refusal::local)?,
    };
    match respond(&Asker::on(qp), peer, &asked, cx)? {
        Answer::Taken => Ok(0),
        Answer::Octets(found) => {
            let found = Payload::of_spans(&found);
            scatter_at(&sink, 0, &found);
            Ok(found.len() as u32)
        }
        Answer::Original(original) => {
            match sink.first().and_then(|span| span.store_u64(original)) {
                Some(()) => {}
                None => scatter_at(&sink, 0, &Payload::Bytes(&original.to_ne_bytes())),
            }
            Ok(8)
        }
    }
}

// Executes an operation of an extension: passes its message to the peer and places the answer.
fn ask<D: Form>(
    qp: &Qp<D>,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    peer: &Qp<D>,
    cx: &mut Cx<'_, D>,
) -> Result<u32, Refusal> {
    let message = qp.gather_message(request, operation, cx);
    let message = message.map_err(Refusal::local)?;
    let sink = qp.gather_answer(request, operation, cx);
    let sink = sink.map_err(Refusal::local)?;
    let emulation = qp.device.operation(operation);
    let emulation = emulation.ok_or(Refusal::Failed(WcStatus::LocQpOpErr, None))?;
    let numbers = (operation.extension_id(), operation.number());
    let answer = extension(&Asker::on(qp), peer, numbers, &message, cx)?;
    Ok(operation::place(emulation, answer, &sink))
}

/// Continues with the queue, unless the first request still waits for a timer or a receive of the peer.
pub fn pump<D: Form>(qp: &Qp<D>, half: &mut Requester<D>, cx: &mut Cx<'_, D>) {
    qp.device.driver().common().hooks.note("pump");
    if let Some(link) = qp.device.network().link() {
        return frames::transmit(link, qp, half, cx);
    }
    let waits = half.driver.rnr_until.is_some() || half.driver.ack_until.is_some();
    let worth_trying = half.direct.as_ref().is_none_or(|peer| peer.has_receive());
    if !waits || worth_trying {
        drain(qp, half, cx);
    }
}

/// A timer has expired.
pub fn handle_timeout<D: Form>(qp: &Qp<D>, half: &mut Requester<D>, now: Time, cx: &mut Cx<'_, D>) {
    qp.device.driver().common().hooks.note("handle_timeout");
    let due = |until: &mut Option<Time>| until.take_if(|until| *until <= now).is_some();
    due(&mut half.driver.rnr_until);
    let waits = half
        .queue
        .front()
        .is_some_and(|wqe| wqe.phase != Phase::Waiting);
    if half.driver.rnr_until.is_none() {
        if due(&mut half.driver.ack_until) && waits {
            let Some(left) = half.driver.retries_left.checked_sub(1) else {
                half.driver.stop_waiting();
                return qp.complete_front(half, WcStatus::RetryExcErr, 0, cx);
            };
            half.driver.retries_left = left;
        }
        drain(qp, half, cx);
    }
    for until in [half.driver.rnr_until, half.driver.ack_until]
        .into_iter()
        .flatten()
    {
        qp.wake_at(half, until);
    }
}

// Executes request after request, until one has to wait.
fn drain<D: Form>(qp: &Qp<D>, half: &mut Requester<D>, cx: &mut Cx<'_, D>) {
    while let Some(front) = half.queue.front_mut() {
        if qp.state() == QpState::Sqd && front.phase == Phase::Waiting {
            return;
        }
        front.phase = Phase::Started;
        let Some(wqe) = half.queue.pop_front() else {
            return;
        };
        let Wqe { kept, .. } = &wqe;
        let request = kept.request();
        match execute(qp, half, &request, cx) {
            Executed::Done(status, octets) => {
                half.driver.stop_waiting();
                qp.complete(half, &request, status, octets, cx);
            }
            Executed::Keep | Executed::Sent { .. } => return half.queue.push_front(wqe),
        }
    }
}

/// Resumes the peer, which may wait for this queue pair, so that it need not wait for its timer.
pub(crate) fn peer_ready<D: Form>(qp: &QpRef<D>, cx: &mut Cx<'_, D>) {
    let attributes = qp.responder().driver.attributes;
    if let Some(peer) = find_peer(qp, &attributes) {
        cx.effects.resume(peer.into_owner());
    }
}
