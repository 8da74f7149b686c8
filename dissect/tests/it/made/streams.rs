use polyverbs_dissect::Capture;
use polyverbs_dissect::file::Captured;
use polyverbs_dissect::form::{Content, Pdu, SegmentBody, TcpPayload, Unit, Verdict};
use polyverbs_wire::iwarp::start::{Kind, Start};
use polyverbs_wire::iwarp::terminate::MAX_LEN;
use polyverbs_wire::iwarp::{
    Direction, Framing, Opcode, SegmentHeader, Tagged, Terminate, TerminateCode, Untagged,
};
use polyverbs_wire::layout::Header as _;

use crate::made::maker::{End, complaints, dissected};

/// A connection: its initiator, its framing, and the packets of both ends.
struct Made {
    initiator: End,
    sender: Direction,
    packets: Vec<Captured>,
}

fn start(kind: Kind, markers: bool, crc: bool) -> Vec<u8> {
    let mut start = Start::new(kind, None, b"hello").unwrap();
    start.header.markers = markers;
    start.header.crc = crc;
    let mut octets = [0; 100];
    let len = start.encode(&mut octets).unwrap();
    octets[..len].to_vec()
}

fn write(payload: &[u8]) -> Vec<u8> {
    let header = Tagged::new(Opcode::WRITE, 0x1a05, 0x1000, true);
    [&header.to_view().0[..], payload].concat()
}

impl Made {
    fn new(markers: bool, crc: bool) -> Self {
        let (mut initiator, mut responder) = End::pair(7174);
        let packets = vec![
            initiator.syn(false),
            responder.syn(true),
            initiator.ack(),
            initiator.send(&start(Kind::Request, false, crc)),
            responder.send(&start(Kind::Reply, markers, false)),
        ];
        Self {
            initiator,
            sender: Direction::new(Framing { markers, crc }),
            packets,
        }
    }

    fn frame(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut out = vec![0; ulpdu.len() + 100];
        let len = self.sender.frame(&[ulpdu], &mut out).unwrap();
        out.truncate(len);
        out
    }

    fn send(&mut self, octets: &[u8]) {
        let captured = self.initiator.send(octets);
        self.packets.push(captured);
    }
}

fn pdus(capture: &Capture) -> Vec<&Pdu> {
    capture
        .packets
        .iter()
        .flat_map(|packet| packet.completes())
        .collect()
}

// The payload of every RDMA Write, in the order of the stream.
fn written(capture: &Capture) -> Vec<u8> {
    let mut pdus = pdus(capture);
    pdus.sort_by_key(|pdu| pdu.offset);
    let data = pdus.into_iter().filter_map(|pdu| match &pdu.unit {
        Unit::Fpdu(fpdu) => match &fpdu.body {
            SegmentBody::Data(data) => Some(data.0.clone()),
            other => panic!("{other:?}"),
        },
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7) as u8).collect()
}

#[test]
fn frames_are_found_however_the_stream_is_cut() {
    for (markers, crc) in [(false, false), (false, true), (true, false), (true, true)] {
        for cut in [1, 3, 100, 512, 1400, 9000] {
            let mut made = Made::new(markers, crc);
            let data = pattern(3000);
            let mut stream = Vec::new();
            for chunk in data.chunks(777) {
                stream.extend(made.frame(&write(chunk)));
            }
            stream.chunks(cut).for_each(|piece| made.send(piece));
            let fin = made.initiator.fin();
            made.packets.push(fin);
            let capture = dissected(&made.packets);
            assert_eq!(complaints(&capture), [""; 0]);
            assert_eq!(written(&capture), data, "markers {markers}, cut {cut}");
            assert!(capture.unfinished.is_empty() && capture.summary.is_clean());
            let tally = capture.summary.crc32c;
            assert_eq!(
                (tally.right, tally.unused),
                if crc { (4, 0) } else { (0, 4) }
            );
        }
    }
}

#[test]
fn segments_may_come_in_any_order_and_twice() {
    let mut made = Made::new(true, true);
    let data = pattern(5000);
    let mut stream = Vec::new();
    for chunk in data.chunks(1200) {
        stream.extend(made.frame(&write(chunk)));
    }
    stream.chunks(333).for_each(|piece| made.send(piece));
    // After the handshake, the segments arrive in reverse order.
    made.packets[5..].reverse();
    let again = made.packets[6..9].to_vec();
    made.packets.extend(again);
    let capture = dissected(&made.packets);
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(written(&capture), data);
    assert!(capture.summary.is_clean());
}

#[test]
fn segments_before_the_request_wait_for_it() {
    let mut made = Made::new(false, true);
    let frame = made.frame(&write(b"early"));
    made.send(&frame);
    // The order is: frame, reply, request.
    made.packets[3..].reverse();
    let capture = dissected(&made.packets);
    assert_eq!(written(&capture), b"early");
    assert!(capture.summary.is_clean());
}

#[test]
fn retransmissions_with_other_bytes_are_complaints() {
    let mut made = Made::new(false, true);
    let frame = made.frame(&write(b"hello"));
    let at = made.initiator.next;
    made.send(&frame);
    made.initiator.next = at;
    let mut other = frame.clone();
    other[20] ^= 1;
    made.send(&other);
    let capture = dissected(&made.packets);
    assert_eq!(complaints(&capture), ["octets sent again are not the same"]);
    assert_eq!(written(&capture), b"hello");
}

#[test]
fn a_keep_alive_of_one_byte_is_no_part_of_the_stream() {
    let mut made = Made::new(false, true);
    let frame = made.frame(&write(b"hello"));
    made.send(&frame);
    made.initiator.next = made.initiator.next.wrapping_sub(1);
    made.send(&[0xee]);
    let capture = dissected(&made.packets);
    assert!(capture.summary.is_clean());
    let last = capture.packets.last().unwrap();
    let reason = "TCP that differs from the MPA stream";
    assert_eq!(last.passed_over.as_deref(), Some(reason));
}

#[test]
fn a_wrong_crc_is_a_complaint_and_the_next_frame_is_found() {
    let mut made = Made::new(true, true);
    let mut frame = made.frame(&write(b"hello"));
    frame[20] ^= 1;
    made.send(&frame);
    let frame = made.frame(&write(b"world"));
    made.send(&frame);
    let capture = dissected(&made.packets);
    assert_eq!(complaints(&capture).len(), 1);
    assert!(complaints(&capture)[0].starts_with("CRC "));
    let tally = capture.summary.crc32c;
    assert_eq!((tally.right, tally.wrong), (1, 1));
    let verdicts = pdus(&capture)
        .into_iter()
        .filter_map(|pdu| match &pdu.unit {
            Unit::Fpdu(fpdu) => Some(fpdu.crc.verdict),
            _ => None,
        });
    assert_eq!(
        verdicts.collect::<Vec<_>>(),
        [Verdict::Wrong, Verdict::Right]
    );
}

#[test]
fn frames_after_a_wrong_marker_are_not_parsed() {
    let mut made = Made::new(true, false);
    let mut frame = made.frame(&write(b"hello"));
    frame[3] = 4;
    made.send(&frame);
    let frame = made.frame(&write(b"world"));
    made.send(&frame);
    let capture = dissected(&made.packets);
    assert!(complaints(&capture)[0].starts_with("no frame of MPA: a marker"));
    let last = capture.packets.last().unwrap();
    let Content::Tcp(segment) = &last.content else {
        panic!("{last:?}")
    };
    assert!(matches!(segment.payload, TcpPayload::Octets(_)));
    let reason = "TCP after a rejected or damaged MPA stream";
    assert_eq!(last.passed_over.as_deref(), Some(reason));
}

#[test]
fn markers_that_count_from_the_end_of_the_first_are_wrong() {
    let mut made = Made::new(true, false);
    let mut frame = made.frame(&write(&pattern(1000)));
    // The marker at 512 moves by its own length, and has the position of the frame in the other byte order.
    frame[512..520].rotate_left(4);
    frame[516..520].copy_from_slice(&[0, 0, 4, 2]);
    made.send(&frame);
    let capture = dissected(&made.packets);
    let said = "no frame of MPA: a marker that does not fit the frame";
    assert_eq!(complaints(&capture), [said]);
}

#[test]
fn an_invalid_segment_is_a_complaint() {
    let mut made = Made::new(false, true);
    for ulpdu in [
        &b""[..],
        b"\xc1",
        b"\x41\x4f then what",
        &[0xc1, 0x4c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let frame = made.frame(ulpdu);
        made.send(&frame);
    }
    let capture = dissected(&made.packets);
    assert_eq!(capture.summary.complaints, 4);
    assert!(
        complaints(&capture)
            .iter()
            .all(|said| said.starts_with("no segment of DDP"))
    );
}

#[test]
fn a_frame_cut_by_the_capture_is_no_fault_of_its_sender() {
    for ends in [false, true] {
        let mut made = Made::new(false, true);
        let frame = made.frame(&write(b"hello"));
        made.send(&frame[..10]);
        if ends {
            let fin = made.initiator.fin();
            made.packets.push(fin);
        }
        let capture = dissected(&made.packets);
        assert_eq!(capture.unfinished.len(), 1);
        assert_eq!(capture.summary.is_clean(), !ends);
        assert_eq!(capture.summary.unfinished, u64::from(!ends));
    }
}

#[test]
fn a_segment_missing_from_the_capture_is_a_complaint() {
    let mut made = Made::new(false, true);
    for _ in 0..3 {
        let frame = made.frame(&write(b"hello"));
        made.send(&frame);
    }
    made.packets.remove(6);
    let capture = dissected(&made.packets);
    assert_eq!(written(&capture), b"hello");
    assert!(!capture.summary.is_clean());
    let Unit::Octets { complaint, .. } = &capture.unfinished[0].unit else {
        panic!("{capture:?}")
    };
    assert_eq!(
        complaint.as_deref(),
        Some("a segment before was not captured")
    );
}

#[test]
fn segments_after_a_missing_one_are_one_complaint() {
    let mut made = Made::new(false, true);
    for _ in 0..5 {
        let frame = made.frame(&write(b"hello"));
        made.send(&frame);
    }
    made.packets.remove(6);
    let capture = dissected(&made.packets);
    assert_eq!(capture.unfinished.len(), 1);
    assert_eq!(capture.summary.complaints, 1);
}

#[test]
fn a_connection_other_than_mpa_is_skipped() {
    let (mut initiator, mut responder) = End::pair(7174);
    let packets = [
        initiator.syn(false),
        responder.syn(true),
        initiator.send(b"MPA"),
        initiator.send(b" is what I am not"),
        initiator.send(b"more of it"),
        responder.send(b"HTTP/1.1 200 OK"),
        responder.send(b"and so on"),
    ];
    let capture = dissected(&packets);
    assert!(capture.summary.is_clean());
    assert_eq!(capture.summary.crc32c, Default::default());
}

#[test]
fn segments_of_other_protocols_may_be_repeated_with_more_bytes() {
    let (mut initiator, mut responder) = End::pair(7174);
    let mut packets = vec![initiator.syn(false), responder.syn(true)];
    let begin = initiator.next;
    packets.push(initiator.send(b"MPA"));
    initiator.next = begin;
    packets.push(initiator.send(b"MPA is what I am not"));
    packets.push(initiator.send(b"more of it"));
    assert!(dissected(&packets).summary.is_clean());
}

#[test]
fn a_connection_without_its_beginning_is_skipped() {
    let mut made = Made::new(false, true);
    let frame = made.frame(&write(b"hello"));
    made.send(&frame);
    made.packets.drain(..5);
    let capture = dissected(&made.packets);
    assert!(capture.summary.is_clean());
}

#[test]
fn frames_before_the_reply_are_not_parsed() {
    let mut made = Made::new(false, true);
    let frame = made.frame(&write(b"hello"));
    made.send(&frame);
    made.packets.remove(4);
    let capture = dissected(&made.packets);
    assert_eq!(capture.summary.complaints, 1);
}

#[test]
fn bytes_after_a_rejected_request_are_not_parsed() {
    let (mut initiator, mut responder) = End::pair(7174);
    let mut refusal = start(Kind::Reply, false, false);
    refusal[16] |= 0x20;
    let packets = [
        initiator.syn(false),
        responder.syn(true),
        initiator.send(&start(Kind::Request, false, true)),
        responder.send(&refusal),
        responder.send(b"sorry"),
        initiator.send(b"bye"),
    ];
    let capture = dissected(&packets);
    assert!(capture.summary.is_clean(), "{:?}", complaints(&capture));
    let passed_over = &capture.summary.passed_over;
    let reasons: Vec<_> = passed_over
        .iter()
        .map(|passed| &passed.reason[..])
        .collect();
    assert_eq!(reasons, ["TCP after a rejected or damaged MPA stream"]);
}

#[test]
fn an_invalid_request_is_a_complaint() {
    let (mut initiator, mut responder) = End::pair(7174);
    let mut request = start(Kind::Request, false, true);
    request[18] = 0xff;
    let packets = [
        initiator.syn(false),
        responder.syn(true),
        initiator.send(&request),
    ];
    let capture = dissected(&packets);
    assert_eq!(
        complaints(&capture),
        ["no request or reply of MPA: too much private data"]
    );
}

#[test]
fn the_same_ports_may_serve_another_connection() {
    let mut made = Made::new(false, true);
    let frame = made.frame(&write(b"one"));
    made.send(&frame);
    let mut other = Made::new(true, true);
    let frame = other.frame(&write(b"two"));
    other.send(&frame);
    // The new connection has other sequence numbers.
    other.packets.clear();
    let (mut initiator, mut responder) = End::pair(7174);
    (initiator.next, responder.next) = (77, 99);
    other.packets = vec![
        initiator.syn(false),
        responder.syn(true),
        initiator.send(&start(Kind::Request, false, true)),
        responder.send(&start(Kind::Reply, true, false)),
        initiator.send(&frame),
    ];
    made.packets.extend(other.packets);
    let capture = dissected(&made.packets);
    assert!(capture.summary.is_clean(), "{:?}", complaints(&capture));
    let connections: Vec<_> = pdus(&capture).iter().map(|pdu| pdu.connection).collect();
    assert_eq!(connections, [0, 0, 0, 1, 1, 1]);
}

#[test]
fn a_terminate_is_shown_with_the_name_of_its_code() {
    let mut made = Made::new(false, true);
    let header = Untagged::new(Opcode::TERMINATE, 2, 1, 0, true);
    let about = SegmentHeader::Tagged(Tagged::new(Opcode::WRITE, 1, 2, true));
    let said = Terminate::new(TerminateCode::new(1, 1, 1)).about(30, about, None);
    let mut room = [0; MAX_LEN];
    let frame = made.frame(&[&header.to_view().0, said.encode(&mut room)].concat());
    made.send(&frame);
    let capture = dissected(&made.packets);
    let last = capture.packets.last().unwrap();
    let text = polyverbs_dissect::line(last, last.time);
    assert!(text.contains("Terminate"), "{text}");
    assert!(
        text.contains("1/1/01 DDP: base or bounds violation"),
        "{text}"
    );
}
