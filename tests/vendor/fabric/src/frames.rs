//! Frames, on a network that has a link. They carry the requests that need only a status as answer: sends and writes.

use polyverbs_engine::device::{Cx, Device};
use polyverbs_engine::link::{Frame, SharedLink};
use polyverbs_engine::management::{Arrival, Handled, MAD_LEN};
use polyverbs_engine::payload::{Payload, Spans};
use polyverbs_engine::qp::{Phase, Qp, Requester};
use polyverbs_engine::request::Op;
use verbs_api::WcStatus;
use verbs_api::ids::LinkAddress;
use verbs_api::wr::SendFlags;

use crate::Form;
use crate::requester::peer_of;
use crate::responder::{Answer, Asked, Asker, Refusal, respond};

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    to: u32,
    from: u32,
    number: u32,
    /// What the frame is.
    pub body: Body,
}

/// What a frame is.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// A request, whose payload is the frame's.
    Request(Op, SendFlags),
    /// The answer to the request of the same number.
    Answer(WcStatus),
    /// A management datagram for queue pair 0 or 1, with its Q_Key.
    Mad(u32),
}

impl Header {
    /// Makes the header of a management datagram.
    pub fn mad(from: u32, to: u32, q_key: u32) -> Self {
        Self {
            to,
            from,
            number: 0,
            body: Body::Mad(q_key),
        }
    }
}

/// An answer that waits for [`settle`]: the number of its sender, its destination and its header.
pub(crate) type KeptAnswer = (u32, LinkAddress, Header);

/// Sends the requests of the queue that have not left.
pub(crate) fn transmit<D: Form>(
    link: &SharedLink<Header>,
    qp: &Qp<D>,
    half: &mut Requester<D>,
    cx: &mut Cx<'_, D>,
) {
    let Some((to, number)) = peer_of(&half.driver.attributes) else {
        return;
    };
    let now = cx.now();
    for wqe in half.queue.iter_mut() {
        if wqe.phase != Phase::Waiting {
            continue;
        }
        let request = wqe.kept.request();
        let mut spans = Spans::new();
        let payload = match request.op {
            Op::Send(_) | Op::Write(..) => qp
                .gather_request(&request, cx, &mut spans)
                .map_err(|fault| fault.local_status()),
            _ => Err(WcStatus::LocQpOpErr),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(status) => {
                wqe.phase = Phase::Done(status);
                break;
            }
        };
        let header = Header {
            to: number,
            from: qp.qpn,
            number: half.driver.number_frame(),
            body: Body::Request(request.op, request.flags),
        };
        (wqe.phase, wqe.first) = (Phase::Sent, header.number);
        let from = qp.device.address();
        link.send(frame(from, to, header, payload), now);
    }
    qp.complete_done(half, cx);
}

/// Takes a frame that has arrived.
pub fn handle<D: Form>(device: &Device<D>, frame: Frame<'_, Header>, cx: &mut Cx<'_, D>) {
    let Header {
        to, from, number, ..
    } = frame.header;
    if let Body::Mad(q_key) = frame.header.body {
        return answer_mad(device, &frame, q_key, cx);
    }
    let Some(qp) = device.qp(to) else {
        return;
    };
    let (op, flags) = match frame.header.body {
        Body::Request(op, flags) => (op, flags),
        Body::Mad(_) => return,
        Body::Answer(status) => return complete(&qp, number, status, cx),
    };
    let asker = Asker {
        from: (frame.from, from),
        qp: None,
    };
    let asked = Asked {
        op,
        flags,
        length: frame.payload.len() as u64,
        payload: frame.payload,
    };
    let status = match respond(&asker, &qp, &asked, cx) {
        Ok(Answer::Taken) => WcStatus::Success,
        Ok(Answer::Octets(_) | Answer::Original(_)) => WcStatus::RemOpErr,
        Err(Refusal::Absent) => return,
        Err(Refusal::NoReceive(_)) => WcStatus::RnrRetryExcErr,
        Err(Refusal::Failed(status, _)) => status,
    };
    let header = Header {
        to: from,
        from: to,
        number,
        body: Body::Answer(status),
    };
    match device.driver().common().kept_answers() {
        Some(mut kept) => {
            kept.push((to, frame.from, header));
            device.network().settle_later(qp.downgrade());
        }
        None => answer(device, frame.from, header, cx),
    }
}

/// Has the agents answer, and sends the answer before this returns.
fn answer_mad<D: Form>(
    device: &Device<D>,
    frame: &Frame<'_, Header>,
    q_key: u32,
    cx: &mut Cx<'_, D>,
) {
    let Header { to, from, .. } = frame.header;
    let mut mad = [0; MAD_LEN];
    if frame.payload.len() != MAD_LEN {
        return;
    }
    frame.payload.read(&mut mad);
    let arrival = Arrival {
        qpn: to,
        q_key,
        from: frame.from,
        src_qp: from,
    };
    if device.handle_mad(&mut mad, &arrival, cx) == Handled::Answered
        && let Some(link) = device.network().link()
    {
        let header = Header::mad(to, from, q_key);
        let payload = Payload::Bytes(&mad);
        link.send(
            self::frame(device.address(), frame.from, header, payload),
            cx.now(),
        );
    }
}

fn complete<D: Form>(qp: &Qp<D>, number: u32, status: WcStatus, cx: &mut Cx<'_, D>) {
    let mut half = qp.requester();
    if let Some(wqe) = half.queue.iter_mut().find(|wqe| wqe.first == number) {
        wqe.phase = Phase::Done(status);
    }
    qp.complete_done(&mut half, cx);
}

/// Sends the answers that this queue pair has kept.
pub fn settle<D: Form>(qp: &Qp<D>, cx: &mut Cx<'_, D>) {
    if let Some(mut kept) = qp.device.driver().common().kept_answers() {
        for (_, to, header) in kept.extract_if(.., |(qpn, ..)| *qpn == qp.qpn) {
            answer(&qp.device, to, header, cx);
        }
    }
}

fn answer<D: Form>(device: &Device<D>, to: LinkAddress, header: Header, cx: &mut Cx<'_, D>) {
    if let Some(link) = device.network().link() {
        link.send(
            frame(device.address(), to, header, Payload::Empty),
            cx.now(),
        );
    }
}

fn frame(
    from: LinkAddress,
    to: LinkAddress,
    header: Header,
    payload: Payload<'_>,
) -> Frame<'_, Header> {
    Frame {
        from,
        to,
        header,
        payload,
        damaged: false,
    }
}
