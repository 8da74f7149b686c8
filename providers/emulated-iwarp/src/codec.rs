//! The conversion of decoded headers to bytes and back: DDP segments in MPA's frames.
//!
//! [`Sending`] and [`Receiving`] hold the markers and checksums that both ends agreed on at the start, and the position of
//! each direction. The codec checks of a message only its bytes; the receiving half of the queue pair checks order, offsets
//! and rights.

use polyverbs_engine::payload::Payload;
use polyverbs_io::{ByteQueue, Found, Leaving, StreamCodec, StreamEvent};
use polyverbs_wire::iwarp::fpdu::{Direction, MAX_FRAME_LEN, mulpdu};
use polyverbs_wire::iwarp::{Framing, Opcode, Reject, SegmentHeader, Tagged, Untagged, rdmap};
use polyverbs_wire::layout::Header as _;
use verbs_api::provider::carrier::ReadyForms;

use crate::header::{Body, Header, Message, Ready, Stream, operation};

/// The codec of iWARP's format: MPA, DDP and RDMAP.
#[derive(Clone, Copy, Debug, Default)]
pub struct MpaCodec;

/// The codec's state for the sending direction of a stream.
#[derive(Debug)]
pub struct Sending {
    mpa: Direction,
    /// The opcode of the unfinished tagged message, if there is one: no other tagged message may come between its segments.
    under_way: Option<Opcode>,
    /// The most bytes of a ULPDU.
    most: usize,
}

/// The codec's state for the receiving direction of a stream.
#[derive(Debug)]
pub struct Receiving {
    mpa: Direction,
    /// The stream that arriving frames get in their headers.
    stream: Stream,
    /// The forms of ready-to-receive indication of which the first frame must be one; empty if it may be any message.
    awaits: ReadyForms,
    /// Whether a write has arrived as the indication, which its sender may repeat.
    may_repeat: bool,
}

impl Sending {
    /// Creates the sending state of a new stream. A ULPDU has at most `most` bytes, even if the path carries more.
    pub const fn new(framing: Framing, most: usize) -> Self {
        Self {
            mpa: Direction::new(framing),
            under_way: None,
            most,
        }
    }
}

impl Receiving {
    /// Creates the receiving state of a new stream. Arriving frames get `stream` in their headers.
    pub const fn new(framing: Framing, stream: Stream, awaits: ReadyForms) -> Self {
        Self {
            mpa: Direction::new(framing),
            stream,
            awaits,
            may_repeat: false,
        }
    }

    // Decodes a segment, of whose payload `behind` bytes are stored elsewhere, and recognises an expected ready-to-receive
    // indication. A repeated indication in the form of a write is not a message of the program either, and needs no right
    // to write.
    #[inline]
    fn message<'o>(&mut self, ulpdu: &'o [u8], behind: usize) -> Result<Arrived<'o>, Reject> {
        let (message, payload) = message(ulpdu, behind)?;
        let awaits = std::mem::take(&mut self.awaits);
        if !payload.is_empty() || behind != 0 {
            return Ok((message, payload));
        }
        let is_repeated = self.may_repeat && message == Message::rtr_write();
        let ready = match is_repeated {
            true => Some(Ready::Write),
            false => ready(&message, awaits),
        };
        if ready == Some(Ready::Write) {
            self.may_repeat = !is_repeated;
        }
        Ok((ready.map_or(message, Message::Ready), payload))
    }
}

type Arrived<'o> = (Message, &'o [u8]);

fn message(ulpdu: &[u8], behind: usize) -> Result<Arrived<'_>, Reject> {
    let segment = rdmap::decode_front(ulpdu, behind)?;
    let message = match segment.header {
        SegmentHeader::Tagged(header) => Message::Tagged(header),
        SegmentHeader::Untagged(header) => {
            match segment.body {
                Body::Data => {}
                // These messages have one segment each: a divided one does not have the length that its opcode prescribes.
                _ if !header.last => return Err(Reject::Length),
                Body::AtomicRequest(request) if operation(&request).is_none() => {
                    return Err(Reject::Opcode);
                }
                _ => {}
            }
            Message::Untagged(header, segment.body)
        }
    };
    Ok((message, segment.payload))
}

// Returns which ready-to-receive indication the message is, if its form is one of `awaits`. The indication has no payload,
// and is not a message of the program (RFC 6581 section 9.2).
fn ready(message: &Message, awaits: ReadyForms) -> Option<Ready> {
    let ready = match message {
        Message::Tagged(segment) if segment.opcode == Opcode::WRITE => Ready::Write,
        Message::Untagged(_, body) => match body {
            Body::Data => Ready::Send,
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
            Message::Untagged(_, Body::Terminate) => Leaving::Last,
            Message::Tagged(_) | Message::Untagged(..) => Leaving::Frame,
            _ => Leaving::Reset,
        }
    }

    fn max_unit(&self, sender: &Sending, segment: usize) -> usize {
        mulpdu(segment, sender.mpa.framing.markers).min(sender.most)
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
            Message::Untagged(_, body) => Untagged::LEN + body.encoded_len(),
            _ => return,
        };
        // Drivers divide messages by the limit of `max_payload`, so a ULPDU always fits.
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
        bytes: &'o mut [u8],
    ) -> Found<'o, Header> {
        let stream = receiver.stream;
        let broken = |reject: Reject| {
            let message = Message::Broken(reject.code());
            Found::Broken(Header { stream, message })
        };
        let (ulpdu, taken) = match receiver.mpa.next(bytes) {
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

// Writes the headers of a message to the beginning of `into`. Returns the rest of `into`, for the payload.
#[inline]
fn put<'i>(header: &Header, into: &'i mut [u8]) -> Option<&'i mut [u8]> {
    match &header.message {
        Message::Tagged(segment) => segment.put(into),
        Message::Untagged(segment, body) => body.put(segment.put(into)?),
        _ => None,
    }
}
