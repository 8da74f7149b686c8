//! Header values as octets: DDP segments in MPA's frames, and back.
//!
//! What a stream has agreed on when it began, markers and checksums, is in [`Sending`] and [`Receiving`]; so is where
//! either half stands. A message that came is checked as far as its octets tell; order, offsets and rights are the
//! receiving half's of the queue pair.

use polyverbs_engine::payload::Payload;
use polyverbs_links::wire::{Found, Leaving, News, OctetQueue, StreamCodec};
use polyverbs_wire::iwarp::fpdu::{self, CRC_LEN, MAX_FRAME_LEN, mulpdu};
use polyverbs_wire::iwarp::{
    Framing, Layout, Opcode, Reject, SegmentBuffer, SegmentHeader, Tagged, Untagged, rdmap,
};
use verbs_api::provider::carrier::ReadyForms;

use crate::header::{Body, ExtensionMessage, Header, Message, Ready, Stream, operation};

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
        if !self.may_repeat || !arrived.1.is_empty() || !repeats(&arrived.0) {
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
        (Message::Tagged(segment), []) if segment.opcode == Opcode::WRITE => Ready::Write,
        (Message::Untagged(_, body), []) => match body {
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
        into: &mut OctetQueue,
    ) {
        let (front, behind) = match &header.message {
            Message::Tagged(segment) => {
                sender.under_way = (!segment.last).then_some(segment.opcode);
                (Front::Ddp(SegmentHeader::Tagged(*segment)), &[][..])
            }
            Message::Untagged(segment, body) => untagged(segment, body),
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
            let message = Message::Broken(reject.code());
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

// The headers, and what an extension has behind them.
#[inline]
fn untagged<'o>(segment: &Untagged, body: &'o Body) -> (Front, &'o [u8]) {
    let header = SegmentHeader::Untagged(*segment);
    if let Body::Immediate | Body::Send = body {
        return (Front::Ddp(header), &[]);
    }
    let front = SegmentBuffer::new(&header);
    let front = match body {
        Body::AtomicRequest(request) => front.with(request),
        Body::AtomicResponse(response) => front.with(response),
        Body::Extension(message) => {
            return (Front::Rdmap(front.with(&message.header)), &message.octets);
        }
        Body::ReadRequest(request) => front.with(request),
        Body::Terminate(terminate) => front.with_terminate(terminate),
        Body::Immediate | Body::Send => front,
    };
    (Front::Rdmap(front), &[])
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
