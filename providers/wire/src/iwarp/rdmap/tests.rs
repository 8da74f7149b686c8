use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::iwarp::terminate::{self, Terminate, TerminateCode, TerminatedRequest};
use crate::iwarp::{Tagged, Untagged};

fn known() -> impl Iterator<Item = (Opcode, &'static Facts)> {
    (0..16).filter_map(|code| Some((Opcode(code), Opcode(code).facts()?)))
}

fn untagged(opcode: Opcode, qn: u32) -> SegmentHeader {
    SegmentHeader::Untagged(Untagged::new(opcode, qn, 1, 0, true))
}

fn tagged(opcode: Opcode) -> SegmentHeader {
    SegmentHeader::Tagged(Tagged::new(opcode, 0x1a05, 0x1000, true))
}

fn segment(header: &SegmentHeader, content: &[u8]) -> Vec<u8> {
    message(header, &Body::Data, content)
}

fn message(header: &SegmentHeader, body: &Body, payload: &[u8]) -> Vec<u8> {
    let headers_len = header.encoded_len() + body.encoded_len();
    let mut out = vec![0xa5; headers_len + payload.len()];
    let put = |out: &mut [u8]| Some(body.put(header.put(out)?)?.len());
    assert_eq!(put(&mut out), Some(payload.len()));
    assert!(put(&mut out[..headers_len - 1]).is_none());
    out[headers_len..].copy_from_slice(payload);
    out
}

// The content that each opcode prescribes, filled with zeros.
fn content(opcode: Opcode) -> &'static [u8] {
    const ZEROS: [u8; 52] = [0; 52];
    &ZEROS[..match opcode.0 {
        0x1 => 28,
        0x7 => 4,
        0x8 | 0x9 | 0xf => 8,
        0xb => 12,
        0x0..=0x6 => 5,
        _ => 52,
    }]
}

#[test]
fn headers_have_the_bytes_of_the_standard() {
    let write = hex!("c140 00001a05 0000000000001000");
    assert_eq!(segment(&tagged(Opcode::WRITE), b""), write);
    let send = SegmentHeader::Untagged(
        Untagged::new(Opcode::send(true, true), queue::SEND, 7, 0x100, false).invalidating(0x1f02),
    );
    assert_eq!(
        segment(&send, b""),
        hex!("0146 00001f02 00000000 00000007 00000100")
    );
    let octets = hex!("4143 00000000 00000000 00000001 00000000" "6869");
    let Segment {
        header,
        body,
        payload,
        ..
    } = decode(&octets).unwrap();
    assert_eq!(header, untagged(Opcode::send(false, false), queue::SEND));
    assert_eq!((body, payload), (Body::Data, &b"hi"[..]));
}

#[test]
fn requests_have_the_bytes_of_the_standard() {
    let read = ReadRequest {
        sink_stag: 1,
        sink_to: 2,
        length: 3,
        source_stag: 4,
        source_to: 5,
    };
    let octets = hex!(
        "4141 00000000 00000001 00000001 00000000"
        "00000001 0000000000000002 00000003 00000004 0000000000000005"
    );
    let header = untagged(Opcode::READ_REQUEST, queue::REQUEST);
    same_both_ways(&header, Body::ReadRequest(read), &octets);

    let atomic = AtomicRequest {
        operation: atomic::COMPARE_SWAP,
        request_id: 1,
        stag: 2,
        to: 3,
        add_or_swap: 4,
        add_or_swap_mask: 5,
        compare: 6,
        compare_mask: 7,
        ..AtomicRequest::default()
    };
    let octets = hex!(
        "414a 00000000 00000001 00000001 00000000"
        "00000002 00000001 00000002 0000000000000003"
        "0000000000000004 0000000000000005 0000000000000006 0000000000000007"
    );
    let header = untagged(Opcode::ATOMIC_REQUEST, queue::REQUEST);
    same_both_ways(&header, Body::AtomicRequest(atomic), &octets);

    let response = AtomicResponse {
        request_id: 1,
        original: 2,
    };
    let octets = hex!(
        "414b 00000000 00000003 00000001 00000000" "00000001 0000000000000002"
    );
    let header = untagged(Opcode::ATOMIC_RESPONSE, queue::ATOMIC_RESPONSE);
    same_both_ways(&header, Body::AtomicResponse(response), &octets);
}

fn same_both_ways(header: &SegmentHeader, body: Body, octets: &[u8]) {
    assert_eq!(message(header, &body, b""), octets);
    assert_eq!(decode(octets).unwrap().body, body);
}

#[test]
fn an_extension_header_names_its_extension() {
    let extension = ExtensionHeader {
        extension: 0x1234_5678,
        operation: 3,
        ..ExtensionHeader::default()
    };
    let header = untagged(Opcode::EXTENSION, queue::REQUEST);
    let octets = message(&header, &Body::Extension(extension), b"more");
    let decoded = decode(&octets).unwrap();
    assert_eq!(decoded.body, Body::Extension(extension));
    assert_eq!(decoded.payload, b"more");
    assert_eq!(decode(&octets[..25]), Err(Reject::Length));
}

// covers 9.49
#[test]
fn each_layer_refuses_other_versions_of_itself() {
    let with = |header: SegmentHeader, octet: usize, bits: u8| {
        let mut octets = segment(&header, content(header.opcode()));
        octets[octet] ^= bits;
        let code = decode(&octets).unwrap_err().code();
        (code.layer, code.etype, code.code)
    };
    let (write, send) = (
        tagged(Opcode::WRITE),
        untagged(Opcode::send(false, false), 0),
    );
    assert_eq!(with(write, 0, 0x03), (1, 1, 0x04));
    assert_eq!(with(send, 0, 0x03), (1, 2, 0x06));
    assert_eq!(with(write, 1, 0xc0), (0, 2, 0x05));
    assert_eq!(with(send, 1, 0x40), (0, 2, 0x05));
}

// covers 9.50
#[test]
fn an_opcode_on_the_wrong_queue_is_refused() {
    for code in 0..16 {
        let opcode = Opcode(code);
        let facts = opcode.facts();
        let content = content(opcode);
        let fits = |queue: Option<u32>| match (facts, queue) {
            (None, _) => false,
            (Some(facts), None) => facts.queues.is_empty(),
            (Some(facts), Some(queue)) => facts.queues.contains(&queue),
        };
        for queue in [None, Some(0), Some(1), Some(2), Some(3)] {
            let header = queue.map_or(tagged(opcode), |queue| untagged(opcode, queue));
            let octets = segment(&header, content);
            match decode(&octets) {
                Ok(segment) => assert!(fits(queue) && segment.header == header),
                Err(reject) => {
                    assert!(!fits(queue), "{opcode:?} on {queue:?}");
                    assert_eq!(reject.code(), TerminateCode::new(0, 2, 0x06));
                }
            }
        }
        let octets = segment(&untagged(opcode, 4), content);
        assert_eq!(
            decode(&octets).unwrap_err().code(),
            TerminateCode::new(1, 2, 0x01)
        );
    }
    assert_eq!(known().count(), 13);
}

// covers 9.53
#[test]
fn lengths_that_the_opcode_does_not_prescribe_are_refused() {
    for (opcode, facts) in known() {
        let Some(&qn) = facts.queues.first() else {
            continue;
        };
        let header = untagged(opcode, qn);
        let right = content(opcode).len();
        for length in 0..=60 {
            let octets = segment(&header, &[0; 60][..length]);
            let fits = match opcode.0 {
                0x0 | 0x2..=0x6 => true,
                0x7 | 0xf => length >= right,
                _ => length == right,
            };
            match decode(&octets) {
                Ok(_) => assert!(fits, "{opcode} of {length}"),
                Err(reject) => {
                    assert!(!fits && reject == Reject::Length, "{opcode} of {length}");
                    assert_eq!(reject.code(), TerminateCode::new(0, 2, 0x07));
                }
            }
        }
    }
    let immediate = segment(&untagged(Opcode::immediate(true), 0), b"8 octets");
    assert!(decode_front(&immediate[..20], 6).is_ok());
    let decoded = decode(&immediate).unwrap();
    assert_eq!(decoded.body, Body::Immediate);
    assert_eq!(decoded.payload, b"8 octets");
}

#[test]
fn a_segment_that_ends_within_its_header_is_refused() {
    for header in [
        tagged(Opcode::WRITE),
        untagged(Opcode::send(false, false), 0),
    ] {
        let octets = segment(&header, b"");
        for length in 0..octets.len() {
            assert_eq!(decode(&octets[..length]), Err(Reject::Short));
        }
        assert!(decode(&octets).is_ok());
    }
}

#[test]
fn the_table_has_what_each_opcode_does() {
    let facts = |opcode: Opcode| opcode.facts().unwrap();
    for solicited in [false, true] {
        for invalidates in [false, true] {
            let send = facts(Opcode::send(solicited, invalidates));
            assert_eq!((send.solicits, send.invalidates), (solicited, invalidates));
        }
        let immediate = facts(Opcode::immediate(solicited));
        assert_eq!(immediate.solicits, solicited);
    }
}

fn terminate(octets: &[u8]) -> Terminate {
    let segment = decode(octets).unwrap();
    assert_eq!(segment.body, Body::Terminate);
    terminate::decode(segment.payload).unwrap().0
}

fn octets_of(said: &Terminate) -> Vec<u8> {
    let header = untagged(Opcode::TERMINATE, queue::TERMINATE);
    let payload = said.encode(&mut [0; terminate::MAX_LEN]).to_vec();
    message(&header, &Body::Terminate, &payload)
}

// The example in RFC 5040 section 4.8.
#[test]
fn a_terminate_without_a_segment_has_no_headers() {
    let said = Terminate::new(TerminateCode::new(0, 0, 0));
    let octets = hex!("4147 00000000 00000002 00000001 00000000" "00000000");
    assert_eq!(octets_of(&said), octets);
    assert_eq!(terminate(&octets), said);
}

#[test]
fn a_terminate_carries_the_headers_of_its_segment() {
    let about = tagged(Opcode::WRITE);
    let said = Terminate::new(TerminateCode::new(1, 1, 0)).about(64, about, None);
    let octets = hex!(
        "4147 00000000 00000002 00000001 00000000"
        "1100c000" "0040" "c140 00001a05 0000000000001000"
    );
    assert_eq!(octets_of(&said), octets);
    assert_eq!(terminate(&octets), said);
    assert_eq!(terminate(&octets).code().name(), Some("DDP: invalid STag"));

    let request = ReadRequest {
        length: 9,
        ..ReadRequest::default()
    };
    let about = untagged(Opcode::READ_REQUEST, queue::REQUEST);
    let said = Terminate::new(TerminateCode::new(0, 1, 0)).about(
        46,
        about,
        Some(TerminatedRequest::Read(request)),
    );
    let octets = octets_of(&said);
    assert_eq!(octets[18..24], hex!("0100e000002e"));
    assert_eq!(octets.len(), 18 + 4 + 2 + 18 + 28);
    assert_eq!(terminate(&octets), said);

    let about = untagged(Opcode::ATOMIC_REQUEST, queue::REQUEST);
    let request = Some(TerminatedRequest::Atomic(AtomicRequest::default()));
    let said = Terminate::new(TerminateCode::new(0, 1, 0)).about(70, about, request);
    let octets = octets_of(&said);
    assert_eq!(octets.len(), Untagged::LEN + terminate::MAX_LEN);
    assert_eq!(terminate(&octets), said);
}

#[test]
fn a_truncated_terminate_still_has_its_code() {
    let octets = hex!("4147 00000000 00000002 00000001 00000000" "2002e000" "00");
    let said = terminate(&octets);
    assert_eq!(said.code(), TerminateCode::new(2, 0, 2));
    assert_eq!((said.segment_len, said.ddp), (None, None));
    let (_, rest) = terminate::decode(&octets[18..]).unwrap();
    assert_eq!(rest, [0]);
}

proptest! {
    #[test]
    fn any_input_decodes_or_is_refused(octets in proptest::collection::vec(any::<u8>(), 0..120)) {
        prop_assert!(same(&octets));
    }

    #[test]
    fn segments_of_known_opcodes_encode_to_the_same_bytes(
        code in 0..16_u8,
        qn in 0..4_u32,
        flags in any::<u8>(),
        octets in proptest::collection::vec(any::<u8>(), 70..120),
    ) {
        let mut octets = octets;
        octets[0] = flags & 0xfc | DDP_VERSION;
        octets[1] = RDMAP_VERSION << 6 | octets[1] & 0x30 | code;
        octets[6..10].copy_from_slice(&qn.to_be_bytes());
        let exact = content(Opcode(code)).len();
        let header = if flags & 0x80 == 0 { 18 } else { 14 };
        prop_assert!(same(&octets));
        octets.truncate(header + exact);
        prop_assert!(same(&octets));
    }
}

// Whether the input is refused, or decodes to a segment that encodes to the same bytes.
fn same(octets: &[u8]) -> bool {
    let Ok(segment) = decode(octets) else {
        return true;
    };
    let out = message(&segment.header, &segment.body, segment.payload);
    let again = match terminate::decode(segment.payload) {
        Some((said, rest)) if segment.body == Body::Terminate => {
            [said.encode(&mut [0; terminate::MAX_LEN]), rest].concat()
        }
        _ => segment.payload.to_vec(),
    };
    (&out[..], &again[..]) == (octets, segment.payload)
}
