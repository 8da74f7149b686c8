//! A TCP connection in a capture, and the MPA streams of its two directions.

use polyverbs_wire::iwarp::fpdu::{self, Layout};
use polyverbs_wire::iwarp::rdmap::{self, Body, Segment};
use polyverbs_wire::iwarp::start::{self, Kind};
use polyverbs_wire::iwarp::{self, Framing, SegmentHeader, Settings, StartHeader, terminate};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::net::Tcp;

use crate::assembly::{Assembly, Inserted};
use crate::form::{
    Checksum, Fpdu, Markers, Pdu, SegmentBody, Side, Start, TcpPayload, Terminate, Unit, Verdict,
};
use crate::rds::{self, Messages, Piece};

/// A TCP connection in a capture.
#[derive(Debug)]
pub(crate) struct Connection {
    number: u32,
    /// Whether the hosts have IPv6 addresses, if this is an RDS connection; `None` for any other connection.
    rds: Option<bool>,
    initiator: Direction,
    responder: Direction,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    /// The sequence number of the stream's first byte; `None` before the first segment.
    base: Option<u32>,
    /// The sequence number of the SYN, once seen. `end` is the offset of the FIN.
    syn: Option<u32>,
    end: Option<u64>,
    assembly: Assembly,
    /// The number of segments that had bytes of this stream.
    segments: usize,
    /// The offset up to which the stream is parsed.
    taken: u64,
    phase: Phase,
    start: Option<(Kind, StartHeader)>,
    /// Puts the Sends together to RDS messages, if this is an RDS connection.
    messages: Messages,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// An MPA request or reply is expected.
    #[default]
    Start,
    /// The MPA request or reply of this direction was parsed, that of the other direction was not.
    Waiting,
    /// FPDUs are expected. The second value is the offset at which full operation began.
    Frames(Framing, u64),
    /// The bytes are not MPA, or could not be parsed.
    Opaque,
}

impl Connection {
    pub(crate) fn new(number: u32, rds: Option<bool>) -> Self {
        Self {
            number,
            rds,
            initiator: Direction::default(),
            responder: Direction::default(),
        }
    }

    /// Returns whether this segment opens another connection between the same ports.
    pub(crate) fn is_reopened_by(&self, tcp: &Tcp) -> bool {
        tcp.syn && !tcp.ack && self.initiator.syn != Some(tcp.sequence)
    }

    /// Inserts the bytes of a segment. Returns their position in the stream, and the units (MPA start frames, FPDUs) that
    /// are complete now.
    pub(crate) fn segment(
        &mut self,
        side: Side,
        tcp: &Tcp,
        octets: &[u8],
        complaints: &mut Vec<String>,
    ) -> (TcpPayload, Vec<Pdu>) {
        let direction = match side {
            Side::Initiator => &mut self.initiator,
            Side::Responder => &mut self.responder,
        };
        let Some(offset) = direction.take(tcp, octets, complaints) else {
            let payload = match octets {
                [] => TcpPayload::None,
                octets => TcpPayload::Octets(octets.into()),
            };
            return (payload, Vec::new());
        };
        let completed = self.advance(complaints);
        let direction = self.direction(side);
        if direction.phase == Phase::Opaque && direction.start.is_none() && completed.is_empty() {
            // The first bytes are not MPA's: they stay with their segment.
            return (TcpPayload::Octets(octets.into()), completed);
        }
        let payload = TcpPayload::Stream {
            connection: self.number,
            side,
            offset,
            len: octets.len() as u32,
        };
        (payload, completed)
    }

    /// Returns why bytes of a segment from this side are in no MPA stream.
    pub(crate) fn why_passed_over(&self, side: Side) -> &'static str {
        let direction = self.direction(side);
        match (&direction.start, direction.phase) {
            (None, _) => "TCP without a beginning of MPA",
            (Some(_), Phase::Opaque) => "TCP after a rejected or damaged MPA stream",
            (Some(_), _) => "TCP that differs from the MPA stream",
        }
    }

    /// Returns the bytes of both directions that are not parsed when the capture ends. If the capture has cut packets
    /// (`has_cut`), incomplete streams are no fault.
    pub(crate) fn finish(&self, has_cut: bool) -> Vec<Pdu> {
        let left = |side| {
            let units = self.direction(side).left(has_cut).into_iter();
            units.map(move |(offset, unit)| Pdu {
                connection: self.number,
                side,
                offset,
                unit,
            })
        };
        left(Side::Initiator).chain(left(Side::Responder)).collect()
    }

    fn direction(&self, side: Side) -> &Direction {
        match side {
            Side::Initiator => &self.initiator,
            Side::Responder => &self.responder,
        }
    }

    // Parses both directions as far as possible. One may have waited for the other.
    fn advance(&mut self, complaints: &mut Vec<String>) -> Vec<Pdu> {
        let mut completed = Vec::new();
        loop {
            self.settle();
            let before = completed.len();
            let number = self.number;
            for (side, direction) in [
                (Side::Initiator, &mut self.initiator),
                (Side::Responder, &mut self.responder),
            ] {
                while let Some((offset, mut unit)) = direction.next() {
                    if let Some(is_v6) = self.rds {
                        direction.read_rds(&mut unit, is_v6, complaints);
                    }
                    completed.push(Pdu {
                        connection: number,
                        side,
                        offset,
                        unit,
                    });
                }
            }
            if completed.len() == before {
                return completed;
            }
        }
    }

    // Begins full operation once both request and reply have been parsed.
    fn settle(&mut self) {
        let waits = |direction: &Direction| direction.phase == Phase::Waiting;
        if !waits(&self.initiator) || !waits(&self.responder) {
            return;
        }
        let (initiator, responder) = match (self.initiator.start, self.responder.start) {
            (Some((Kind::Request, request)), Some((Kind::Reply, reply))) if !reply.reject => {
                framing(&request, &reply)
            }
            (Some((Kind::Reply, reply)), Some((Kind::Request, request))) if !reply.reject => {
                let (initiator, responder) = framing(&request, &reply);
                (responder, initiator)
            }
            // The reply rejects the connection, or both ends have sent the same kind of frame: the following bytes are not
            // MPA.
            _ => {
                self.initiator.phase = Phase::Opaque;
                self.responder.phase = Phase::Opaque;
                return;
            }
        };
        self.initiator.phase = Phase::Frames(initiator, self.initiator.taken);
        self.responder.phase = Phase::Frames(responder, self.responder.taken);
    }
}

fn framing(request: &StartHeader, reply: &StartHeader) -> (Framing, Framing) {
    let settings = Settings::of(request, reply);
    let framing = |markers| Framing {
        markers,
        crc: settings.crc,
    };
    (
        framing(settings.initiator_markers),
        framing(settings.responder_markers),
    )
}

impl Direction {
    // Inserts bytes. Returns their offset, or `None` if they have no place in the stream.
    fn take(&mut self, tcp: &Tcp, octets: &[u8], complaints: &mut Vec<String>) -> Option<u64> {
        let first = tcp.sequence.wrapping_add(u32::from(tcp.syn));
        if tcp.syn {
            self.syn = Some(tcp.sequence);
        }
        if octets.is_empty() && !tcp.syn && !tcp.fin {
            return None;
        }
        let base = *self.base.get_or_insert(first);
        let end = self.assembly.end();
        let ahead = first.wrapping_sub(base.wrapping_add(end as u32)) as i32;
        let offset = end.checked_add_signed(ahead.into())?;
        if tcp.fin {
            self.end = Some(offset + octets.len() as u64);
        }
        if octets.is_empty() || self.phase == Phase::Opaque {
            return None;
        }
        match self.assembly.insert(offset, octets) {
            Inserted::Taken => {
                self.segments += 1;
                Some(offset)
            }
            // A TCP keep-alive.
            Inserted::Differ if octets.len() == 1 && ahead == -1 => None,
            Inserted::Differ => {
                complaints.push("octets sent again are not the same".to_owned());
                None
            }
            Inserted::Beyond => None,
        }
    }

    fn read_rds(&mut self, unit: &mut Unit, is_v6: bool, complaints: &mut Vec<String>) {
        match unit {
            Unit::Start(start) => {
                start.rds = rds::connect(&start.private_data.0, is_v6, complaints)
            }
            Unit::Fpdu(fpdu) => {
                if let (Some(SegmentHeader::Untagged(header)), SegmentBody::Data(data)) =
                    (&fpdu.header, &fpdu.body)
                {
                    let piece = Piece {
                        begins: header.mo == 0,
                        ends: header.last,
                        octets: &data.0,
                    };
                    if let Some(rds) = self.messages.take(&piece, complaints) {
                        fpdu.body = SegmentBody::Rds(Box::new(rds));
                    }
                }
            }
            Unit::Octets { .. } => {}
        }
    }

    // Returns the next complete unit and its offset.
    fn next(&mut self) -> Option<(u64, Unit)> {
        let octets = self.assembly.from(self.taken);
        if octets.is_empty() {
            return None;
        }
        let offset = self.taken;
        let (unit, len) = match self.phase {
            Phase::Start => match start::decode(octets) {
                Ok(None) => return None,
                Ok(Some((start, len))) => {
                    self.start = Some((start.kind, start.header));
                    self.phase = Phase::Waiting;
                    (Unit::Start(fields(&start)), len)
                }
                Err(reject) => return self.give_up(reject),
            },
            Phase::Waiting => return None,
            Phase::Frames(framing, began) => match frame(octets, offset - began, framing)? {
                Ok((fpdu, len)) => (Unit::Fpdu(Box::new(fpdu)), len),
                Err(reject) => {
                    let octets = octets.into();
                    self.phase = Phase::Opaque;
                    self.taken = self.assembly.end();
                    let complaint = Some(format!("no frame of MPA: {reject}"));
                    return Some((offset, Unit::Octets { complaint, octets }));
                }
            },
            Phase::Opaque => {
                let unit = Unit::Octets {
                    complaint: None,
                    octets: octets.into(),
                };
                (unit, octets.len())
            }
        };
        self.taken += len as u64;
        self.assembly.forget(self.taken);
        Some((offset, unit))
    }

    // Stops parsing this direction. Bytes that do not begin with an MPA key are not MPA, which is no complaint; an invalid
    // frame that begins with one is.
    fn give_up(&mut self, reject: start::Reject) -> Option<(u64, Unit)> {
        let offset = self.taken;
        let octets = self.assembly.from(offset);
        let is_key = reject == start::Reject::Key;
        // Bytes that several segments have, partly or again, are in the stream for all of them.
        let stays_with_segment = is_key && self.segments == 1;
        let complaint = (!is_key).then(|| format!("no request or reply of MPA: {reject}"));
        let octets = octets.into();
        self.phase = Phase::Opaque;
        self.taken = self.assembly.end();
        (!stays_with_segment).then_some((offset, Unit::Octets { complaint, octets }))
    }

    // Returns the bytes that are not parsed: those up to the first gap, and each range after a gap.
    fn left(&self, has_cut: bool) -> Vec<(u64, Unit)> {
        let octets = self.assembly.from(self.taken);
        let ends_within = self.end == Some(self.assembly.end());
        let complaint = match self.phase {
            Phase::Waiting => Some("the request or reply of the other side was not captured"),
            Phase::Frames(..) if ends_within => Some("the stream ends within a frame"),
            _ => None,
        };
        let unit = |octets: &[u8], complaint: Option<&str>| Unit::Octets {
            complaint: complaint.filter(|_| !has_cut).map(str::to_owned),
            octets: octets.into(),
        };
        let front = (!octets.is_empty()).then(|| (self.taken, unit(octets, complaint)));
        let behind = self.assembly.ahead().into_iter().map(|(offset, octets)| {
            let lost = matches!(self.phase, Phase::Frames(..));
            (
                offset,
                unit(&octets, lost.then_some("a segment before was not captured")),
            )
        });
        front.into_iter().chain(behind).collect()
    }
}

fn fields(start: &start::Start<'_>) -> Start {
    Start {
        header: start.header,
        enhanced: start.enhanced,
        private_data: start.private_data.into(),
        rds: None,
    }
}

// Parses the FPDU with which these bytes begin. Returns it with its length; `None` while it is incomplete.
fn frame(
    octets: &[u8],
    position: u64,
    framing: Framing,
) -> Option<Result<(Fpdu, usize), iwarp::Reject>> {
    let layout = Layout::of(octets, position, framing.markers)?;
    let len = layout.frame_len();
    let mut frame = octets.get(..len)?.to_vec();
    if !layout.markers_fit(&frame) {
        return Some(Err(iwarp::Reject::Marker));
    }
    let markers = layout.each_marker().filter_map(|(at, _)| {
        let octets = frame.get(at..)?.first_chunk()?;
        Some(Octets(*octets))
    });
    let markers: Vec<_> = markers.collect();
    let crc = *frame.last_chunk()?;
    let right = fpdu::checksum(frame.get(..layout.crc_at())?) == crc;
    let verdict = match (framing.crc, right) {
        (false, _) => Verdict::Unused,
        (true, true) => Verdict::Right,
        (true, false) => Verdict::Wrong,
    };
    let (ulpdu, pad) = layout.strip(&mut frame)?;
    let (opcode, header, body) = segment(ulpdu);
    let fpdu = Fpdu {
        opcode,
        header,
        body,
        markers: (!markers.is_empty()).then_some(Markers { position, markers }),
        pad: pad.iter().any(|octet| *octet != 0).then(|| pad.into()),
        crc: Checksum {
            value: Octets(crc),
            verdict,
        },
    };
    Some(Ok((fpdu, len)))
}

fn segment(ulpdu: &[u8]) -> (String, Option<iwarp::SegmentHeader>, SegmentBody) {
    match rdmap::decode(ulpdu) {
        Ok(segment) => {
            let name = segment.facts.name.to_owned();
            (name, Some(segment.header), owned(&segment))
        }
        Err(reject) => {
            let body = SegmentBody::Undecoded(ulpdu.into());
            (format!("no segment of DDP: {reject}"), None, body)
        }
    }
}

fn owned(segment: &Segment<'_>) -> SegmentBody {
    match segment.body {
        Body::AtomicRequest(request) => SegmentBody::AtomicRequest(request),
        Body::AtomicResponse(response) => SegmentBody::AtomicResponse(response),
        Body::ReadRequest(request) => SegmentBody::ReadRequest(request),
        Body::Terminate => {
            let (terminate, rest) = terminate::decode(segment.payload).unwrap_or_default();
            SegmentBody::Terminate(Terminate {
                control: terminate.control,
                meaning: terminate.code().name().map(str::to_owned),
                segment_len: terminate.segment_len,
                ddp: terminate.ddp,
                rdmap: terminate.rdmap,
                rest: rest.into(),
            })
        }
        Body::Extension(header) => SegmentBody::Extension {
            header,
            data: segment.payload.into(),
        },
        Body::Immediate => {
            SegmentBody::Immediate(Octets::padded(segment.payload).unwrap_or_default())
        }
        Body::Data => SegmentBody::Data(segment.payload.into()),
    }
}

impl Pdu {
    /// Returns the complaint about this unit; `None` if nothing is wrong with it.
    pub(crate) fn complaint(&self) -> Option<String> {
        match &self.unit {
            Unit::Start(_) => None,
            Unit::Octets { complaint, .. } => complaint.clone(),
            Unit::Fpdu(fpdu) if fpdu.header.is_none() => Some(fpdu.opcode.clone()),
            Unit::Fpdu(fpdu) if fpdu.crc.verdict == Verdict::Wrong => {
                Some(format!("CRC {} is wrong", fpdu.crc.value))
            }
            Unit::Fpdu(_) => None,
        }
    }
}
