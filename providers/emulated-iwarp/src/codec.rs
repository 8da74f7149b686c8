//! Header values as bytes: DDP segments in MPA's frames, and back.
//!
//! What a stream has agreed on when it began, markers and checksums, is in [`Sending`] and [`Receiving`]; so is where
//! either half stands. A message that came is checked as far as its bytes tell; order, offsets and rights are the
//! receiving half's of the queue pair.

use polyverbs_engine::payload::Payload;
use polyverbs_io::{ByteQueue, Found, Leaving, StreamCodec, StreamEvent};
use polyverbs_wire::iwarp::fpdu::{self, MAX_FRAME_LEN, mulpdu};
use polyverbs_wire::iwarp::{Framing, Opcode, Reject, SegmentHeader, Tagged, Untagged, rdmap};
use polyverbs_wire::layout::Header as _;
use verbs_api::provider::carrier::ReadyForms;

use crate::header::{
    AtomicRequest, AtomicResponse, Body, ExtensionHeader, ExtensionMessage, Header, Message,
    ReadRequest, Ready, Stream, operation,
};

/// The format of iWARP: MPA, DDP and RDMAP.
#[derive(Clone, Copy, Debug, Default)]
pub struct MpaCodec;

/// Where the sending half of a stream stands.
#[derive(Debug)]
pub struct Sending {
    mpa: fpdu::Sender,
    framing: Framing,
    /// The tagged message that is under way: another one must not come between its segments.
    under_way: Option<Opcode>,
    /// Most bytes of ULPDU, where it is less than the path carries.
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

    /// With frames of at most so many bytes of ULPDU, though the path may carry more.
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

    // What a segment is whose header this is, with so many bytes of payload behind it: an indication, if one is awaited.
    #[inline]
    fn message<'o>(&mut self, ulpdu: &'o [u8], behind: usize) -> Result<Arrived<'o>, Reject> {
        let arrived = message(&rdmap::decode(ulpdu)?, ulpdu)?;
        let is_empty = arrived.1.is_empty() && behind == 0;
        if self.awaits.is_empty() {
            return Ok(self.unless_repeated(arrived, is_empty));
        }
        let awaits = std::mem::take(&mut self.awaits);
        Ok(match ready(&arrived.0, awaits).filter(|_| is_empty) {
            Some(ready) => {
                self.may_repeat = matches!(ready, Ready::Write);
                (Message::Ready(ready), &[])
            }
            None => arrived,
        })
    }

    // An indication that comes again is no message of the program's either, and needs no right to write.
    #[inline]
    fn unless_repeated<'o>(&mut self, arrived: Arrived<'o>, is_empty: bool) -> Arrived<'o> {
        let repeats = |message: &Message| {
            matches!(
                message,
                Message::Tagged(Tagged {
                    opcode: Opcode::WRITE,
                    stag: 0,
                    to: 0,
                    last: true,
                    ..
                })
            )
        };
        if !self.may_repeat || !is_empty || !repeats(&arrived.0) {
            return arrived;
        }
        self.may_repeat = false;
        (Message::Ready(Ready::Write), &[])
    }
}

type Arrived<'o> = (Message, &'o [u8]);

// RFC 6581 section 9.2: the indication has no bytes, and is no message of the program's.
fn ready(message: &Message, awaits: ReadyForms) -> Option<Ready> {
    let ready = match message {
        Message::Tagged(segment) if segment.opcode == Opcode::WRITE => Ready::Write,
        Message::Untagged(_, body) => match body {
            Body::Send => Ready::Send,
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
            Message::Untagged(_, Body::Terminate(_)) => Leaving::Last,
            Message::Tagged(_) | Message::Untagged(..) => Leaving::Frame,
            _ => Leaving::Reset,
        }
    }

    fn max_unit(&self, sender: &Sending, segment: usize) -> usize {
        mulpdu(segment, sender.framing.markers).min(sender.most)
    }

    fn max_payload(&self, header: &Header, unit: usize) -> Option<usize> {
        let before = match header.message {
            Message::Tagged(_) => Tagged::LEN,
            _ => Untagged::LEN,
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
        into: &mut ByteQueue,
    ) {
        let headers = match &header.message {
            Message::Tagged(_) => Tagged::LEN,
            Message::Untagged(_, body) => Untagged::LEN + body_len(body),
            _ => return,
        };
        // Drivers cut messages to what `max_payload` says.
        let Ok(ulpdu_len) = u16::try_from(headers + payload.len()) else {
            return;
        };
        self.sent(sender, header);
        let layout = sender.mpa.layout(ulpdu_len);
        let frame = into.push(layout.frame_len());
        sender.mpa.frame_with(layout, frame, |room| {
            payload.read(put(header, room).unwrap_or_default());
        });
    }

    fn encode_header<'i>(&self, header: &Header, into: &'i mut [u8]) -> Option<&'i [u8]> {
        let left = put(header, into)?.len();
        into.get(..into.len() - left)
    }

    fn sent(&self, sender: &mut Sending, header: &Header) {
        if let Message::Tagged(segment) = &header.message {
            sender.under_way = (!segment.last).then_some(segment.opcode);
        }
    }

    fn open_header<'o>(
        &self,
        receiver: &mut Receiving,
        header: &'o [u8],
        payload: usize,
    ) -> Result<(Header, &'o [u8]), Header> {
        let stream = receiver.stream;
        let opened = receiver.message(header, payload);
        opened.map_or_else(
            |reject| {
                let message = Message::Broken(reject.code());
                Err(Header { stream, message })
            },
            |(message, rest)| Ok((Header { stream, message }, rest)),
        )
    }

    fn open<'o>(
        &self,
        receiver: &mut Receiving,
        _key: u64,
        octets: &'o mut [u8],
    ) -> Found<'o, Header> {
        let stream = receiver.stream;
        let broken = |reject: Reject| {
            let message = Message::Broken(reject.code());
            Found::Broken(Header { stream, message })
        };
        let (ulpdu, taken) = match receiver.mpa.next(octets) {
            Ok(Some(frame)) => (frame.ulpdu, frame.frame_len),
            Ok(None) => return Found::Partial,
            Err(reject) => return broken(reject),
        };
        match receiver.message(ulpdu, 0) {
            Ok((message, payload)) => Found::Frame {
                header: Header { stream, message },
                payload,
                taken,
            },
            Err(reject) => broken(reject),
        }
    }

    fn event(&self, key: u64, event: &StreamEvent) -> Option<Header> {
        let message = match event {
            StreamEvent::End => Message::Close,
            StreamEvent::Lost(_) => Message::Reset,
            StreamEvent::Room => Message::Room,
            StreamEvent::First => Message::First,
        };
        Some(Header {
            stream: Stream::of_key(key),
            message,
        })
    }
}

// ---- out

// Writes what goes before the payload; what is left behind it.
#[inline]
fn put<'i>(header: &Header, into: &'i mut [u8]) -> Option<&'i mut [u8]> {
    match &header.message {
        Message::Tagged(segment) => SegmentHeader::Tagged(*segment).put(into),
        Message::Untagged(segment, body) => {
            put_body(body, SegmentHeader::Untagged(*segment).put(into)?)
        }
        _ => None,
    }
}

// Bytes of what RDMAP has behind DDP's header.
#[inline]
fn body_len(body: &Body) -> usize {
    match body {
        Body::Immediate | Body::Send => 0,
        Body::AtomicRequest(_) => AtomicRequest::LEN,
        Body::AtomicResponse(_) => AtomicResponse::LEN,
        Body::Extension(message) => ExtensionHeader::LEN + message.octets.len(),
        Body::ReadRequest(_) => ReadRequest::LEN,
        Body::Terminate(terminate) => terminate.encoded_len(),
    }
}

// Puts it at the front of `out`, and answers the rest.
#[inline]
fn put_body<'o>(body: &Body, out: &'o mut [u8]) -> Option<&'o mut [u8]> {
    match body {
        Body::Immediate | Body::Send => Some(out),
        Body::AtomicRequest(request) => request.put(out),
        Body::AtomicResponse(response) => response.put(out),
        Body::Extension(message) => {
            let out = message.header.put(out)?;
            let (front, rest) = out.split_at_mut_checked(message.octets.len())?;
            front.copy_from_slice(&message.octets);
            Some(rest)
        }
        Body::ReadRequest(request) => request.put(out),
        Body::Terminate(terminate) => terminate.put(out),
    }
}

// ---- in

fn message<'o>(segment: &rdmap::Segment<'o>, ulpdu: &'o [u8]) -> Result<Arrived<'o>, Reject> {
    let header = match segment.header {
        SegmentHeader::Tagged(header) => match segment.body {
            rdmap::Body::Data(payload) => return Ok((Message::Tagged(header), payload)),
            _ => return Err(Reject::Opcode),
        },
        SegmentHeader::Untagged(header) => header,
    };
    let mut payload = &[][..];
    let body = match segment.body {
        rdmap::Body::Data(octets) => {
            payload = octets;
            Body::Send
        }
        // One segment each: what comes in parts has another length than its opcode prescribes.
        _ if !header.last => return Err(Reject::Length),
        rdmap::Body::AtomicRequest(request) if operation(&request).is_none() => {
            return Err(Reject::Opcode);
        }
        rdmap::Body::AtomicRequest(request) => Body::AtomicRequest(request),
        rdmap::Body::AtomicResponse(response) => Body::AtomicResponse(response),
        rdmap::Body::Immediate(_) => {
            payload = &ulpdu[segment.header.encoded_len()..];
            Body::Immediate
        }
        rdmap::Body::ReadRequest(request) => Body::ReadRequest(request),
        rdmap::Body::Terminate(terminate) => Body::Terminate(Box::new(terminate.headers_only())),
        rdmap::Body::Extension(header, octets) => Body::Extension(Box::new(ExtensionMessage {
            header,
            octets: octets.into(),
        })),
    };
    Ok((Message::Untagged(header, body), payload))
}
