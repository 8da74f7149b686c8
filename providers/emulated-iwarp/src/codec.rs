//! Header values as octets: DDP segments in MPA's frames, and back.
//!
//! What a stream has agreed on when it began, markers and checksums, is in [`Sending`] and [`Receiving`]; so is where
//! either half stands. A message that came is checked as far as its octets tell; order, offsets and rights are the
//! receiving half's of the queue pair.

use polyverbs_engine::operation::AtomicOp;
use polyverbs_engine::payload::Payload;
use polyverbs_links::wire::{Found, Leaving, News, OctetQueue, StreamCodec};
use polyverbs_wire::iwarp::fpdu::{self, CRC_LEN, MAX_FRAME_LEN, mulpdu};
use polyverbs_wire::iwarp::rdmap::{self, atomic};
use polyverbs_wire::iwarp::{
    self, ExtensionHeader, Framing, Layout, Opcode, Reject, SegmentBuffer, SegmentHeader,
    TerminateCode as WireCode, ddp,
};
use verbs_api::provider::carrier::ReadyForms;

use crate::header::{
    AtomicRequest, AtomicResponse, Body, ExtensionMessage, Header, Message, ReadRequest, Ready,
    Stream, Tagged, TaggedOpcode, Untagged,
};
use crate::terminate::{Terminate, TerminateCode};

/// The format of iWARP: MPA, DDP and RDMAP.
#[derive(Clone, Copy, Debug, Default)]
pub struct MpaCodec;

/// Where the sending half of a stream stands.
#[derive(Debug)]
pub struct Sending {
    mpa: fpdu::Sender,
    framing: Framing,
    /// The tagged message that is under way: another one must not come between its segments.
    under_way: Option<TaggedOpcode>,
    /// Most octets of ULPDU, where it is less than the path carries.
    most: usize,
}

/// Where the receiving half of a stream stands.
#[derive(Debug)]
pub struct Receiving {
    mpa: fpdu::Receiver,
    /// As frames that arrive have it.
    stream: Stream,
    /// Forms of the ready-to-receive indication, one of which comes first.
    awaits: ReadyForms,
    /// An indication came as a write, and may come once more.
    may_repeat: bool,
}

impl Sending {
    /// Of a stream that begins.
    pub const fn new(framing: Framing) -> Self {
        Self {
            mpa: fpdu::Sender::new(framing),
            framing,
            under_way: None,
            most: u16::MAX as usize,
        }
    }

    /// With frames of at most so many octets of ULPDU, though the path may carry more.
    #[must_use]
    pub const fn at_most(mut self, ulpdu: usize) -> Self {
        if ulpdu < self.most {
            self.most = ulpdu;
        }
        self
    }
}

impl Receiving {
    /// Of a stream that begins. The frames that arrive get this header.
    pub const fn new(framing: Framing, stream: Stream, awaits: ReadyForms) -> Self {
        Self {
            mpa: fpdu::Receiver::new(framing),
            stream,
            awaits,
            may_repeat: false,
        }
    }

    // What a segment is: an indication, if one is awaited and this is it.
    #[inline]
    fn message<'o>(&mut self, ulpdu: &'o [u8]) -> Result<Arrived<'o>, Reject> {
        let arrived = message(&rdmap::decode(ulpdu)?, ulpdu)?;
        if self.awaits.is_empty() {
            return Ok(self.unless_repeated(arrived));
        }
        let awaits = std::mem::take(&mut self.awaits);
        Ok(match ready(&arrived, awaits) {
            Some(ready) => {
                self.may_repeat = matches!(ready, Ready::Write);
                (Message::Ready(ready), &[])
            }
            None => arrived,
        })
    }

    // An indication that comes again is no message of the program's either, and needs no right to write.
    #[inline]
    fn unless_repeated<'o>(&mut self, arrived: Arrived<'o>) -> Arrived<'o> {
        if !self.may_repeat || arrived != (Message::READY_WRITE, &[]) {
            return arrived;
        }
        self.may_repeat = false;
        (Message::Ready(Ready::Write), &[])
    }
}

type Arrived<'o> = (Message, &'o [u8]);

// RFC 6581 section 9.2: the indication has no octets, and is no message of the program's.
fn ready(arrived: &Arrived<'_>, awaits: ReadyForms) -> Option<Ready> {
    let ready = match arrived {
        (Message::Tagged(segment), []) if segment.opcode == TaggedOpcode::Write => Ready::Write,
        (Message::Untagged(segment), []) => match &segment.body {
            Body::Send { .. } => Ready::Send,
            Body::ReadRequest(request) if request.length == 0 => Ready::Read(*request),
            _ => return None,
        },
        _ => return None,
    };
    let form = match ready {
        Ready::Send => ReadyForms::SEND,
        Ready::Write => ReadyForms::WRITE,
        Ready::Read(_) => ReadyForms::READ,
    };
    awaits.contains(form).then_some(ready)
}

impl StreamCodec for MpaCodec {
    type Header = Header;
    type Sender = Sending;
    type Receiver = Receiving;

    const LONGEST: usize = MAX_FRAME_LEN;

    fn key(&self, header: &Header) -> u64 {
        header.stream.source.epoch.into()
    }

    fn leaving(&self, header: &Header) -> Leaving {
        match &header.message {
            Message::Close => Leaving::End,
            Message::Untagged(segment) if matches!(segment.body, Body::Terminate(_)) => {
                Leaving::Last
            }
            Message::Tagged(_) | Message::Untagged(_) => Leaving::Frame,
            _ => Leaving::Reset,
        }
    }

    fn max_unit(&self, sender: &Sending, segment: usize) -> usize {
        mulpdu(segment, sender.framing.markers).min(sender.most)
    }

    fn max_payload(&self, header: &Header, unit: usize) -> Option<usize> {
        let before = match header.message {
            Message::Tagged(_) => iwarp::Tagged::LEN,
            _ => iwarp::Untagged::LEN,
        };
        Some(unit - before)
    }

    fn may_follow(&self, sender: &Sending, header: &Header) -> bool {
        match (&header.message, sender.under_way) {
            (Message::Tagged(segment), Some(opcode)) => segment.opcode == opcode,
            _ => true,
        }
    }

    fn is_between(&self, sender: &Sending) -> bool {
        sender.under_way.is_none()
    }

    fn encode(
        &self,
        sender: &mut Sending,
        header: &Header,
        payload: &Payload<'_>,
        into: &mut OctetQueue,
    ) {
        let (front, behind) = match &header.message {
            Message::Tagged(segment) => {
                sender.under_way = (!segment.last).then_some(segment.opcode);
                (tagged(segment), &[][..])
            }
            Message::Untagged(segment) => untagged(segment),
            _ => return,
        };
        let ulpdu = front.len() + behind.len() + payload.len();
        // Drivers cut messages to what `max_payload` says.
        let Ok(ulpdu_len) = u16::try_from(ulpdu) else {
            return;
        };
        if sender.framing.markers {
            let front = front.as_buffer();
            let headers = &[front.as_octets(), behind];
            return with_markers(&mut sender.mpa, headers, payload, into);
        }
        // One stretch, and the checksum in one go over what stands still.
        let layout = Layout::new(ulpdu_len, sender.mpa.position(), false);
        let frame = into.push(layout.frame_len());
        let (length, rest) = frame.split_at_mut(2);
        length.copy_from_slice(&ulpdu_len.to_be_bytes());
        let (at_front, rest) = rest.split_at_mut(front.len());
        front.put(at_front);
        let (at_behind, rest) = rest.split_at_mut(behind.len());
        at_behind.copy_from_slice(behind);
        payload.read(rest);
        rest[payload.len()..].fill(0);
        if sender.framing.crc {
            let (covered, crc) = frame.split_at_mut(layout.crc_at());
            crc[..CRC_LEN].copy_from_slice(&fpdu::checksum(covered));
        }
        let position = sender.mpa.position() + layout.frame_len() as u64;
        sender.mpa = fpdu::Sender::at(sender.framing, position);
    }

    fn open<'o>(
        &self,
        receiver: &mut Receiving,
        _key: u64,
        octets: &'o mut [u8],
    ) -> Found<'o, Header> {
        let stream = receiver.stream;
        let broken = |reject: Reject| {
            let WireCode { layer, etype, code } = reject.code();
            let message = Message::Broken(TerminateCode::new(layer, etype, code));
            Found::Broken(Header { stream, message })
        };
        let (ulpdu, taken) = match receiver.mpa.next(octets) {
            Ok(Some(frame)) => (frame.ulpdu, frame.frame_len),
            Ok(None) => return Found::Partial,
            Err(reject) => return broken(reject),
        };
        match receiver.message(ulpdu) {
            Ok((message, payload)) => Found::Frame {
                header: Header { stream, message },
                payload,
                taken,
            },
            Err(reject) => broken(reject),
        }
    }

    fn news(&self, key: u64, news: &News) -> Option<Header> {
        let message = match news {
            News::End => Message::Close,
            News::Lost(_) => Message::Reset,
            News::Room => Message::Room,
            News::First => Message::First,
        };
        Some(Header {
            stream: Stream::of_key(key),
            message,
        })
    }
}

// Rare: the payload is copied once more.
fn with_markers(
    mpa: &mut fpdu::Sender,
    headers: &[&[u8]; 2],
    payload: &Payload<'_>,
    into: &mut OctetQueue,
) {
    let payload = payload.to_vec();
    let ulpdu = [headers[0], headers[1], &payload];
    let len: usize = ulpdu.iter().map(|piece| piece.len()).sum();
    let layout = Layout::new(len as u16, mpa.position(), true);
    mpa.frame(&ulpdu, into.push(layout.frame_len()));
}

// ---- out

/// The headers of a segment.
enum Front {
    /// DDP's: of nearly all segments.
    Ddp(SegmentHeader),
    /// With RDMAP's behind it.
    Rdmap(SegmentBuffer),
}

impl Front {
    fn len(&self) -> usize {
        match self {
            Self::Ddp(header) => header.encoded_len(),
            Self::Rdmap(buffer) => buffer.as_octets().len(),
        }
    }

    // Fills `octets`, which are as many.
    #[inline]
    fn put(&self, octets: &mut [u8]) {
        match self {
            Self::Ddp(header) => _ = header.put(octets),
            Self::Rdmap(buffer) => octets.copy_from_slice(buffer.as_octets()),
        }
    }

    fn as_buffer(&self) -> SegmentBuffer {
        match self {
            Self::Ddp(header) => SegmentBuffer::new(header),
            Self::Rdmap(buffer) => *buffer,
        }
    }
}

fn tagged(segment: &Tagged) -> Front {
    Front::Ddp(SegmentHeader::Tagged(wire_tagged(segment)))
}

fn wire_tagged(segment: &Tagged) -> iwarp::Tagged {
    let opcode = match segment.opcode {
        TaggedOpcode::Write => Opcode::WRITE,
        TaggedOpcode::ReadResponse => Opcode::READ_RESPONSE,
    };
    iwarp::Tagged::new(opcode, segment.stag, segment.to, segment.last)
}

fn wire_untagged(segment: &Untagged) -> iwarp::Untagged {
    let opcode = match &segment.body {
        Body::AtomicRequest(_) => Opcode::ATOMIC_REQUEST,
        Body::AtomicResponse(_) => Opcode::ATOMIC_RESPONSE,
        Body::Extension(_) => Opcode::EXTENSION,
        Body::Immediate { solicited } => Opcode::immediate(*solicited),
        Body::ReadRequest(_) => Opcode::READ_REQUEST,
        Body::Send {
            solicited,
            invalidate,
        } => Opcode::send(*solicited, invalidate.is_some()),
        Body::Terminate(_) => Opcode::TERMINATE,
    };
    let header = iwarp::Untagged::new(opcode, segment.qn, segment.msn, segment.mo, segment.last);
    match segment.body {
        Body::Send {
            invalidate: Some(stag),
            ..
        } => header.invalidating(stag),
        _ => header,
    }
}

// The headers, and what an extension has behind them.
#[inline]
fn untagged(segment: &Untagged) -> (Front, &[u8]) {
    let header = SegmentHeader::Untagged(wire_untagged(segment));
    if let Body::Immediate { .. } | Body::Send { .. } = segment.body {
        return (Front::Ddp(header), &[]);
    }
    let (front, behind) = with_rdmap(&header, segment);
    (Front::Rdmap(front), behind)
}

fn with_rdmap<'o>(header: &SegmentHeader, segment: &'o Untagged) -> (SegmentBuffer, &'o [u8]) {
    let front = SegmentBuffer::new(header);
    let front = match &segment.body {
        Body::AtomicRequest(request) => front.with(&wire_atomic(request)),
        Body::AtomicResponse(response) => front.with(&iwarp::AtomicResponse {
            request_id: response.request_id,
            original: response.original,
        }),
        Body::Extension(message) => {
            let header = ExtensionHeader {
                extension: message.extension,
                is_response: message.is_response,
                operation: message.operation,
                ..ExtensionHeader::default()
            };
            return (front.with(&header), &message.octets);
        }
        Body::ReadRequest(request) => front.with(&wire_read(request)),
        Body::Terminate(terminate) => front.with_terminate(&wire_terminate(terminate)),
        Body::Immediate { .. } | Body::Send { .. } => front,
    };
    (front, &[])
}

fn wire_read(request: &ReadRequest) -> iwarp::ReadRequest {
    iwarp::ReadRequest {
        sink_stag: request.sink_stag,
        sink_to: request.sink_to,
        length: request.length,
        source_stag: request.source_stag,
        source_to: request.source_to,
    }
}

fn wire_atomic(request: &AtomicRequest) -> iwarp::AtomicRequest {
    let blank = iwarp::AtomicRequest {
        request_id: request.request_id,
        stag: request.stag,
        to: request.to,
        ..iwarp::AtomicRequest::default()
    };
    match request.op {
        AtomicOp::FetchAdd { add, mask } => iwarp::AtomicRequest {
            operation: atomic::FETCH_ADD,
            add_or_swap: add,
            add_or_swap_mask: mask,
            ..blank
        },
        AtomicOp::CompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => iwarp::AtomicRequest {
            operation: atomic::COMPARE_SWAP,
            add_or_swap: swap,
            add_or_swap_mask: swap_mask,
            compare,
            compare_mask,
            ..blank
        },
    }
}

// RFC 5040 section 4.8: the length of the segment, DDP's header, and RDMAP's where it is a request's.
fn wire_terminate(terminate: &Terminate) -> iwarp::Terminate<'static> {
    let TerminateCode { layer, etype, code } = terminate.error;
    let said = iwarp::Terminate::new(WireCode::new(layer, etype, code));
    let (ddp, request) = match terminate.about.as_deref() {
        Some(Message::Tagged(segment)) => (SegmentHeader::Tagged(wire_tagged(segment)), None),
        Some(Message::Untagged(segment)) => {
            let request = match &segment.body {
                Body::ReadRequest(request) => Some(iwarp::terminate::TerminatedRequest::Read(
                    wire_read(request),
                )),
                Body::AtomicRequest(request) => Some(iwarp::terminate::TerminatedRequest::Atomic(
                    wire_atomic(request),
                )),
                _ => None,
            };
            (SegmentHeader::Untagged(wire_untagged(segment)), request)
        }
        _ => return said,
    };
    let content = match request {
        Some(iwarp::terminate::TerminatedRequest::Read(_)) => READ_REQUEST_LEN,
        Some(iwarp::terminate::TerminatedRequest::Atomic(_)) => ATOMIC_REQUEST_LEN,
        None => terminate.payload,
    };
    said.about((ddp.encoded_len() + content) as u16, ddp, request)
}

const READ_REQUEST_LEN: usize = 28;
const ATOMIC_REQUEST_LEN: usize = 52;

// ---- in

fn message<'o>(segment: &rdmap::Segment<'o>, ulpdu: &'o [u8]) -> Result<Arrived<'o>, Reject> {
    let header = match segment.header {
        SegmentHeader::Tagged(header) => {
            let payload = match segment.body {
                rdmap::Body::Data(payload) => payload,
                _ => return Err(Reject::Opcode),
            };
            return Ok((Message::Tagged(of_tagged(&header)), payload));
        }
        SegmentHeader::Untagged(header) => header,
    };
    let mut payload = &[][..];
    let body = match segment.body {
        rdmap::Body::Data(octets) => {
            payload = octets;
            Body::Send {
                solicited: segment.facts.solicits,
                invalidate: segment.facts.invalidates.then_some(header.invalidate_stag),
            }
        }
        // One segment each: what comes in parts has another length than its opcode prescribes.
        _ if !header.last => return Err(Reject::Length),
        rdmap::Body::AtomicRequest(request) => Body::AtomicRequest(of_atomic(&request)?),
        rdmap::Body::AtomicResponse(response) => Body::AtomicResponse(AtomicResponse {
            request_id: response.request_id,
            original: response.original,
        }),
        rdmap::Body::Immediate(_) => {
            payload = &ulpdu[segment.header.encoded_len()..];
            Body::Immediate {
                solicited: segment.facts.solicits,
            }
        }
        rdmap::Body::ReadRequest(request) => Body::ReadRequest(of_read(&request)),
        rdmap::Body::Terminate(terminate) => Body::Terminate(of_terminate(&terminate)),
        rdmap::Body::Extension(extension, octets) => Body::Extension(Box::new(ExtensionMessage {
            extension: extension.extension,
            operation: extension.operation,
            is_response: extension.is_response,
            octets: octets.into(),
        })),
    };
    Ok((Message::Untagged(of_untagged(&header, body)), payload))
}

fn of_tagged(header: &iwarp::Tagged) -> Tagged {
    let opcode = match header.opcode {
        Opcode::READ_RESPONSE => TaggedOpcode::ReadResponse,
        _ => TaggedOpcode::Write,
    };
    Tagged {
        opcode,
        stag: header.stag,
        to: header.to,
        last: header.last,
    }
}

fn of_untagged(header: &iwarp::Untagged, body: Body) -> Untagged {
    Untagged {
        qn: header.qn,
        msn: header.msn,
        mo: header.mo,
        last: header.last,
        body,
    }
}

fn of_read(request: &iwarp::ReadRequest) -> ReadRequest {
    ReadRequest {
        sink_stag: request.sink_stag,
        sink_to: request.sink_to,
        length: request.length,
        source_stag: request.source_stag,
        source_to: request.source_to,
    }
}

fn of_atomic(request: &iwarp::AtomicRequest) -> Result<AtomicRequest, Reject> {
    let op = match request.operation {
        atomic::FETCH_ADD => AtomicOp::FetchAdd {
            add: request.add_or_swap,
            mask: request.add_or_swap_mask,
        },
        atomic::COMPARE_SWAP => AtomicOp::CompareSwap {
            compare: request.compare,
            compare_mask: request.compare_mask,
            swap: request.add_or_swap,
            swap_mask: request.add_or_swap_mask,
        },
        _ => return Err(Reject::Opcode),
    };
    Ok(AtomicRequest {
        request_id: request.request_id,
        op,
        stag: request.stag,
        to: request.to,
    })
}

// What a peer says about a segment that is none of this device's tells nothing.
fn of_terminate(terminate: &iwarp::Terminate<'_>) -> Terminate {
    let WireCode { layer, etype, code } = terminate.code();
    let about = match (terminate.ddp, terminate.rdmap) {
        (Some(SegmentHeader::Tagged(header)), _) => Some(Message::Tagged(of_tagged(&header))),
        (Some(SegmentHeader::Untagged(header)), request) => {
            let body = match request {
                Some(iwarp::terminate::TerminatedRequest::Read(request)) => {
                    Some(Body::ReadRequest(of_read(&request)))
                }
                Some(iwarp::terminate::TerminatedRequest::Atomic(request)) => {
                    of_atomic(&request).ok().map(Body::AtomicRequest)
                }
                None => header
                    .opcode
                    .facts()
                    .filter(|facts| facts.queues.contains(&ddp::queue::SEND))
                    .map(|facts| Body::Send {
                        solicited: facts.solicits,
                        invalidate: facts.invalidates.then_some(header.invalidate_stag),
                    }),
            };
            body.map(|body| Message::Untagged(of_untagged(&header, body)))
        }
        (None, _) => None,
    };
    let headers = terminate.ddp.map_or(0, |header| header.encoded_len());
    let payload = usize::from(terminate.segment_len.unwrap_or_default()).saturating_sub(headers);
    Terminate {
        error: TerminateCode::new(layer, etype, code),
        about: about.map(Box::new),
        payload: if terminate.rdmap.is_none() {
            payload
        } else {
            0
        },
    }
}
