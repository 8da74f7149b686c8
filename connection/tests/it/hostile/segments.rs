//! Frames of a peer that is no device: invalid ones, and the order of the first frames.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use polyverbs::{Qp, wr};
use polyverbs_connection::{Connection, ConnectionOptions};
use polyverbs_wire::iwarp::start::{self, Kind, Start};
use polyverbs_wire::iwarp::{
    Body, Direction, Framing, Opcode, SegmentHeader, Tagged, Untagged, ddp, rdmap, terminate,
};
use polyverbs_wire::layout::Header as _;

use crate::hostile::mpa::{Target, is_quiet};

pub(crate) const FRAMING: Framing = Framing {
    markers: false,
    crc: true,
};

/// A connection to a device whose peer is a bare socket.
struct Bare<'t> {
    target: &'t Target,
    stream: TcpStream,
    sender: Direction,
    receiver: Direction,
    qp: Qp,
    _connection: Connection,
}

impl<'t> Bare<'t> {
    /// Connects with revision 1: only checksums are negotiated, and the peer has not sent a frame yet.
    fn new(target: &'t Target) -> Self {
        Self::with_markers(target, false)
    }

    /// A peer that asks for markers in the frames that it receives, if `asks`. It sends markers if the device asks.
    fn with_markers(target: &'t Target, asks: bool) -> Self {
        let mut bytes = [0; 64];
        let mut start = Start::new(Kind::Request, None, b"").unwrap();
        start.header.crc = true;
        start.header.markers = asks;
        let len = start.encode(&mut bytes).unwrap();
        let mut stream = target.stream();
        stream.write_all(&bytes[..len]).unwrap();
        let incoming = target.listener.next().wait().unwrap();
        let qp = target.end.new_qp();
        let accepted = incoming.accept(&qp, ConnectionOptions::new());
        let connection = accepted.wait().unwrap();
        stream.read_exact(&mut bytes[..20]).unwrap();
        let (reply, _) = start::decode(&bytes[..20]).unwrap().expect("a reply");
        let framing = |markers| Framing { markers, ..FRAMING };
        target.end.post_receive(&qp, 1);
        Self {
            target,
            stream,
            sender: Direction::new(framing(reply.header.markers)),
            receiver: Direction::new(framing(asks)),
            qp,
            _connection: connection,
        }
    }

    fn send(&mut self, segment: &[u8]) {
        let mut frame = [0; 256];
        let len = self.sender.frame(&[segment], &mut frame).unwrap();
        self.stream.write_all(&frame[..len]).unwrap();
    }

    /// Sends a message of two bytes.
    fn say_hello(&mut self) {
        let header = Untagged::new(Opcode::send(false, false), ddp::queue::SEND, 1, 0, true);
        self.send(&[&header.to_view().0[..], b"hi"].concat());
        let done = self.target.end.completion();
        assert_eq!((done.wr_id, done.status.is_success()), (1, true));
    }

    /// Returns the next frame of the device, and its payload.
    fn hear(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut frame = Vec::new();
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            frame.extend(byte);
            if let Some(fpdu) = self.receiver.next(&mut frame.clone()).unwrap() {
                let payload = rdmap::decode(fpdu.ulpdu).unwrap().payload.to_vec();
                return (frame, payload);
            }
        }
    }

    /// Layer, type and code of the Terminate that precedes the end of the stream.
    fn terminate(mut self) -> (u8, u8, u8) {
        let mut bytes = Vec::new();
        // After the Terminate the stream is closed or reset.
        let _ = self.stream.read_to_end(&mut bytes);
        let fpdu = self.receiver.next(&mut bytes).unwrap().expect("a frame");
        let segment = rdmap::decode(fpdu.ulpdu).unwrap();
        assert_eq!(segment.body, Body::Terminate);
        let control = terminate::decode(segment.payload).unwrap().0.control;
        (control.layer, control.etype, control.code)
    }
}

fn header(opcode: Opcode, queue: Option<u32>) -> SegmentHeader {
    match queue {
        Some(queue) => SegmentHeader::Untagged(Untagged::new(opcode, queue, 2, 0, true)),
        None => SegmentHeader::Tagged(Tagged::new(opcode, 0x77, 0, true)),
    }
}

fn answer_to(
    target: &Target,
    header: &SegmentHeader,
    change: impl FnOnce(&mut [u8]),
) -> (u8, u8, u8) {
    let mut bare = Bare::new(target);
    bare.say_hello();
    let mut segment = vec![0; header.encoded_len()];
    header.put(&mut segment).unwrap();
    change(&mut segment);
    bare.send(&segment);
    bare.terminate()
}

// covers 9.49
#[test]
fn an_unknown_version_draws_the_terminate_of_its_layer() {
    let target = Target::new("127.0.7.1");
    let (tagged, untagged) = (
        header(Opcode::WRITE, None),
        header(Opcode::send(false, false), Some(ddp::queue::SEND)),
    );
    let with = |header: &SegmentHeader, byte: usize, bits: u8| {
        answer_to(&target, header, |segment| segment[byte] ^= bits)
    };
    // Version 1 of DDP is the lower two bits of the first byte, of RDMAP the upper two of the second.
    assert_eq!(with(&tagged, 0, 0x03), (1, 1, 0x04));
    assert_eq!(with(&untagged, 0, 0x03), (1, 2, 0x06));
    assert_eq!(with(&tagged, 1, 0xc0), (0, 2, 0x05));
    assert_eq!(with(&untagged, 1, 0xc0), (0, 2, 0x05));
    target.serves();
}

// covers 9.50
#[test]
fn an_opcode_on_the_wrong_queue_draws_a_terminate() {
    let target = Target::new("127.0.7.2");
    for code in 0..16 {
        let opcode = Opcode(code);
        for queue in [None, Some(0), Some(1), Some(2), Some(3)] {
            let fits = opcode.facts().is_some_and(|facts| match queue {
                None => facts.queues.is_empty(),
                Some(queue) => facts.queues.contains(&queue),
            });
            if !fits {
                let found = answer_to(&target, &header(opcode, queue), |_| {});
                assert_eq!(found, (0, 2, 0x06), "{opcode:?} on {queue:?}");
            }
        }
    }
    target.serves();
}

// covers 7.35 7.59 7.85
#[test]
fn the_passive_side_sends_nothing_before_the_active_one() {
    let target = Target::new("127.0.7.3");
    let mut bare = Bare::new(&target);
    // Posted with the accept; both must wait for the first frame of the active side.
    for text in [&b"early"[..], b"after it"] {
        bare.qp.post_one(wr::Send::new(text)).unwrap();
    }
    // The device sends on another stream while they wait.
    target.serves();
    assert!(is_quiet(&mut bare.stream));
    let header = Untagged::new(Opcode::send(false, false), ddp::queue::SEND, 1, 0, true);
    bare.send(&[&header.to_view().0[..], b"hi"].concat());
    assert_eq!(bare.hear().1, b"early");
    assert_eq!(bare.hear().1, b"after it");
}

// covers 7.31
#[test]
fn each_direction_has_markers_if_its_receiver_asks_for_them() {
    for device_asks in [false, true] {
        let target = Target::with("127.0.7.4", |wire| wire.markers = device_asks);
        for peer_asks in [false, true] {
            let mut bare = Bare::with_markers(&target, peer_asks);
            assert_eq!(bare.sender.framing.markers, device_asks);
            // The device takes the frame, and its markers if it has asked for them.
            bare.say_hello();
            bare.qp.post_one(wr::Send::new(&b"answer"[..])).unwrap();
            let (frame, payload) = bare.hear();
            assert_eq!(payload, b"answer");
            // A marker stands before the first frame of a stream; without one, the frame begins with its length.
            assert_eq!(frame.starts_with(&[0; 4]), peer_asks);
        }
    }
}
