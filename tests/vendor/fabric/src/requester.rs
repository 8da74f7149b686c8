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
    peer: Option<(LinkAddress, u32)>,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
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
    pub(crate) fn set(&mut self, given: &QpAttributes, all: &QpAttributes) {
        let set = |to: &mut u8, from: Option<u8>| *to = from.unwrap_or(*to);
        set(&mut self.timeout, given.timeout);
        set(&mut self.retry_cnt, given.retry_cnt);
        set(&mut self.rnr_retry, given.rnr_retry);
        if let (Some(path), Some(number)) = (all.ah_attr, all.dest_qp_num) {
            self.peer = Some((path.address, number.value()));
        }
    }

    pub(crate) const fn peer(&self) -> Option<(LinkAddress, u32)> {
        self.peer
    }

    pub(crate) const fn number_frame(&mut self) -> u32 {
        self.last_frame += 1;
        self.last_frame
    }

    pub(crate) fn begin(&mut self) {
        (self.retries_left, self.rnr_left) = (self.retry_cnt, self.rnr_retry);
        self.stop_waiting();
    }

    pub(crate) fn stop_waiting(&mut self) {
        (self.rnr_until, self.ack_until) = (None, None);
    }

    fn take_rnr_retry(&mut self) -> bool {
        if self.rnr_retry == FOREVER {
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
        Attempt::Done(octets) => {
            half.driver.begin();
            Executed::Done(WcStatus::Success, octets)
        }
        Attempt::Failed(status) => Executed::Done(status, 0),
        Attempt::NoReceive(code) => {
            half.rare().counters.rnr_naks += 1;
            if !half.driver.take_rnr_retry() {
                return Executed::Done(WcStatus::RnrRetryExcErr, 0);
            }
            let until = cx.now().after(rnr_delay(code));
            (half.driver.rnr_until, half.driver.ack_until) = (Some(until), None);
            qp.wake_at(half, until);
            Executed::Keep
        }
        Attempt::Lost => {
            wait_for_peer(qp, half, cx);
            Executed::Keep
        }
    }
}

/// The outcome of trying a request.
enum Attempt {
    Done(u32),
    Failed(WcStatus),
    NoReceive(u8),
    Lost,
}

fn wait_for_peer<D: Form>(qp: &Qp<D>, half: &mut Requester<D>, cx: &mut Cx<'_, D>) {
    if half.driver.ack_until.is_some() {
        return;
    }
    if let Some(timeout) = ack_timeout(half.driver.timeout) {
        let until = cx.now().after(timeout);
        half.driver.ack_until = Some(until);
        qp.wake_at(half, until);
    }
}

fn find_peer<D: Form>(qp: &Qp<D>, half: &Requester<D>) -> Option<QpRef<D>> {
    let (address, number) = half.driver.peer?;
    let peer = qp.device.network().device(address)?.qp(number)?;
    Some(peer)
}

fn attempt<D: Form>(
    qp: &Qp<D>,
    half: &mut Requester<D>,
    request: &Request<'_>,
    cx: &mut Cx<'_, D>,
) -> Attempt {
    let Some(peer) = half.direct.take().or_else(|| find_peer(qp, half)) else {
        return Attempt::Lost;
    };
    let attempt = match request.op {
        Op::Extension(operation) => ask(qp, request, operation, &peer, cx),
        _ => exchange(qp, request, &peer, cx),
    };
    if !matches!(attempt, Attempt::Lost) {
        half.direct = Some(peer);
    }
    attempt
}

fn exchange<D: Form>(
    qp: &Qp<D>,
    request: &Request<'_>,
    peer: &Qp<D>,
    cx: &mut Cx<'_, D>,
) -> Attempt {
    let mut spans = Spans::new();
    let prepared = if request.op.is_read_or_atomic() {
        let sink = qp.gather_sink(request, cx, &mut spans);
        sink.map(|()| Payload::Empty)
    } else {
        qp.gather_request(request, cx, &mut spans)
    };
    let payload = match prepared {
        Ok(payload) => payload,
        Err(fault) => return Attempt::Failed(fault.local_status()),
    };
    let asked = Asked {
        op: request.op,
        flags: request.flags,
        length: request.length,
        payload,
    };
    match respond(&Asker::on(qp), peer, &asked, cx) {
        Ok(Answer::Taken) => Attempt::Done(0),
        Ok(Answer::Octets(found)) => {
            let found = Payload::of_spans(&found);
            scatter_at(&spans, 0, &found);
            Attempt::Done(found.len() as u32)
        }
        Ok(Answer::Original(original)) => {
            match spans.first().and_then(|span| span.store_u64(original)) {
                Some(()) => {}
                None => scatter_at(&spans, 0, &Payload::Bytes(&original.to_ne_bytes())),
            }
            Attempt::Done(8)
        }
        Err(refusal) => refused(refusal),
    }
}

fn refused(refusal: Refusal) -> Attempt {
    match refusal {
        Refusal::Absent => Attempt::Lost,
        Refusal::NoReceive(code) => Attempt::NoReceive(code),
        Refusal::With { sender, .. } => Attempt::Failed(sender),
    }
}

// Executes an operation of an extension: passes its message to the peer and places the answer.
fn ask<D: Form>(
    qp: &Qp<D>,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    peer: &Qp<D>,
    cx: &mut Cx<'_, D>,
) -> Attempt {
    let message = qp.gather_message(request, operation, cx);
    let sink = qp.gather_answer(request, operation, cx);
    let (message, sink) = match (message, sink) {
        (Ok(message), Ok(sink)) => (message, sink),
        (Err(fault), _) | (_, Err(fault)) => return Attempt::Failed(fault.local_status()),
    };
    let numbers = (operation.extension_id(), operation.number());
    match extension(&Asker::on(qp), peer, numbers, &message, cx) {
        Ok(answer) => match qp.device.operation(operation) {
            Some(emulation) => Attempt::Done(operation::place(emulation, answer, &sink)),
            None => Attempt::Failed(WcStatus::LocQpOpErr),
        },
        Err(refusal) => refused(refusal),
    }
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
    let named = qp.responder().driver.peer();
    let peer = named.and_then(|(address, number)| {
        let device = qp.device.network().device(address)?;
        device.qp(number)
    });
    if let Some(peer) = peer {
        cx.effects.resume(peer.into_owner());
    }
}
