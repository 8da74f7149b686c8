use hex_literal::hex;
use proptest::prelude::*;

use super::*;

const MARKERS_AND_CRC: Framing = Framing {
    markers: true,
    crc: true,
};
const CRC: Framing = Framing {
    markers: false,
    crc: true,
};

// The first frame of the example in RFC 5044, figure 5, with a marker before it.
const FIRST: [u8; 52] = hex!(
    "00000000"
    "002a4143000000000000000000000001" "00000000"
    "000000000000000000000000000000000000000000000000"
    "52239983"
);
// A later frame, figure 6, with a marker 20 bytes after its beginning.
const LATER: [u8; 52] = hex!(
    "002a4143000000000000000000000002" "00000000"
    "00000014"
    "000000000000000000000000000000000000000000000000"
    "84925898"
);
// The position of the frame of figure 6 in the stream.
const LATER_AT: u64 = 512 - 20;

const fn at(framing: Framing, position: u64) -> Direction {
    Direction { framing, position }
}

fn framed(sender: &mut Direction, ulpdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0xa5; 70_000];
    let (front, back) = ulpdu.split_at(ulpdu.len() / 3);
    let len = sender.frame(&[front, back], &mut out).unwrap();
    out.truncate(len);
    out
}

// covers 9.20
#[test]
fn the_first_frame_of_the_standard_is_reproduced() {
    let ulpdu = &FIRST[6..48];
    assert_eq!(framed(&mut Direction::new(MARKERS_AND_CRC), ulpdu), FIRST);
    let mut octets = FIRST;
    let mut receiver = at(MARKERS_AND_CRC, 0);
    let fpdu = receiver.next(&mut octets).unwrap().unwrap();
    assert_eq!((fpdu.ulpdu, fpdu.frame_len), (ulpdu, 52));
    assert_eq!(receiver.position, 52);
}

// covers 9.21
#[test]
fn a_frame_without_markers_is_the_plain_content() {
    let ulpdu = &FIRST[6..48];
    let frame = framed(&mut Direction::new(CRC), ulpdu);
    assert_eq!(frame.len(), 48);
    assert_eq!(frame[44..], hex!("b7243ec3"));
    let mut octets = frame.clone();
    let fpdu = Direction::new(CRC).next(&mut octets).unwrap().unwrap();
    assert_eq!(fpdu.ulpdu, ulpdu);
}

// covers 9.22
#[test]
fn a_marker_within_a_frame_is_inserted_and_removed() {
    let ulpdu = [&LATER[2..20], &LATER[24..48]].concat();
    assert_eq!(framed(&mut at(MARKERS_AND_CRC, LATER_AT), &ulpdu), LATER);
    let mut octets = LATER;
    let fpdu = at(MARKERS_AND_CRC, LATER_AT).next(&mut octets);
    assert_eq!(fpdu.unwrap().unwrap().ulpdu, ulpdu);
}

// covers 9.23 9.24
#[test]
fn the_checksum_is_crc32c() {
    // In the order of the wire, the least significant byte first.
    assert_eq!(checksum(b"123456789"), hex!("839206e3"));
    assert_eq!(checksum(&[0; 32]), hex!("aa36918a"));
}

// covers 9.25
#[test]
fn frames_of_every_size_may_arrive_byte_by_byte() {
    for markers in [false, true] {
        let framing = Framing { markers, crc: true };
        let (mut sender, mut receiver) = (Direction::new(framing), Direction::new(framing));
        let mut arrived = Vec::new();
        for size in 1..=1500 {
            let ulpdu: Vec<u8> = (0..size).map(|at| (at ^ size) as u8).collect();
            let frame = framed(&mut sender, &ulpdu);
            for (at, octet) in frame.iter().enumerate() {
                arrived.push(*octet);
                let fpdu = receiver.next(&mut arrived).unwrap();
                assert_eq!(
                    fpdu.is_some(),
                    at + 1 == frame.len(),
                    "size {size}, octet {at}"
                );
                if let Some(fpdu) = fpdu {
                    assert_eq!((fpdu.ulpdu, fpdu.frame_len), (&ulpdu[..], frame.len()));
                }
            }
            arrived.clear();
        }
        assert_eq!(sender.position, receiver.position);
    }
}

// covers 9.26
#[test]
fn a_single_flipped_bit_is_detected() {
    for bit in 0..8 * LATER.len() {
        // The frame is followed by as many bytes as a longer frame would take in.
        let mut octets = [&LATER[..], &[0; 70_000]].concat();
        octets[bit / 8] ^= 0x80 >> (bit % 8);
        let reject = at(MARKERS_AND_CRC, LATER_AT).next(&mut octets).unwrap_err();
        let code = reject.code();
        assert_eq!((code.layer, code.etype), (2, 0), "bit {bit}");
        assert!(matches!(code.code, 2 | 3), "bit {bit}");
    }
}

// The frames that arrive before the stream breaks, and the reason for which it breaks, if it does.
fn taken(framing: Framing, octets: &mut [u8]) -> (Vec<Vec<u8>>, Option<Reject>) {
    let (mut receiver, mut at, mut all) = (Direction::new(framing), 0, Vec::new());
    loop {
        match receiver.next(&mut octets[at..]) {
            Ok(Some(fpdu)) => {
                at += fpdu.frame_len;
                all.push(fpdu.ulpdu.to_vec());
            }
            Ok(None) => return (all, None),
            Err(reject) => return (all, Some(reject)),
        }
    }
}

#[test]
fn a_wrong_length_is_detected_by_its_checksum() {
    let frame = framed(&mut Direction::new(CRC), &[0x5a; 1000]);
    for lie in [0, 1, 3, 996, 999, 1001, 1004, 1 << 15, u16::MAX] {
        // The frame is followed by as many other frames as a longer frame would take in.
        let mut octets = [&frame[..], &frame.repeat(80)].concat();
        octets[..2].copy_from_slice(&lie.to_be_bytes());
        assert_eq!(
            taken(CRC, &mut octets),
            (vec![], Some(Reject::Crc)),
            "{lie}"
        );
    }
}

#[test]
fn without_checksums_a_wrong_length_takes_in_more_bytes() {
    let plain = Framing::default();
    let mut octets = framed(&mut Direction::new(plain), &[0x5a; 1000]);
    octets[..2].copy_from_slice(&u16::MAX.to_be_bytes());
    // The receiver waits for the rest of the frame, which is never longer than the longest frame.
    assert_eq!(taken(plain, &mut octets), (vec![], None));
    octets.resize(MAX_FRAME_LEN, 0);
    assert_eq!(taken(plain, &mut octets).0[0].len(), usize::from(u16::MAX));
}

#[test]
fn a_missing_or_an_extra_byte_breaks_the_stream() {
    for framing in [CRC, MARKERS_AND_CRC] {
        let mut sender = Direction::new(framing);
        let frames: Vec<_> = (0..3).map(|at| framed(&mut sender, &[at; 180])).collect();
        let stream = frames.concat();
        for at in (0..stream.len()).step_by(5) {
            let mut begin = 0;
            let whole = frames.iter().take_while(|frame| {
                begin += frame.len();
                begin <= at
            });
            let whole = whole.count();
            let (mut without, mut with) = (stream.clone(), stream.clone());
            let octet = without.remove(at);
            with.insert(at, !octet);
            for octets in [&mut without, &mut with] {
                octets.extend([0; 70_000]);
                let (before, reject) = taken(framing, octets);
                // If two neighbouring bytes are equal, removing either gives the same stream.
                assert!((whole..=whole + 1).contains(&before.len()), "octet {at}");
                let expected = [Some(Reject::Crc), Some(Reject::Marker)];
                assert!(expected.contains(&reject), "octet {at}: {reject:?}");
            }
        }
    }
}

#[test]
fn an_incomplete_frame_is_waited_for() {
    for framing in [CRC, MARKERS_AND_CRC] {
        let frame = framed(&mut Direction::new(framing), &[1; 1200]);
        for length in 0..frame.len() {
            let mut receiver = Direction::new(framing);
            assert_eq!(receiver.next(&mut frame[..length].to_vec()), Ok(None));
            assert_eq!(receiver.position, 0);
        }
    }
}

#[test]
fn reserved_bits_and_unused_checksums_are_ignored() {
    let mut octets = LATER;
    octets[20..24].copy_from_slice(&hex!("dead0017"));
    let framing = Framing {
        markers: true,
        crc: false,
    };
    assert!(at(framing, LATER_AT).next(&mut octets).unwrap().is_some());

    let mut octets = framed(&mut Direction::new(Framing::default()), b"hello");
    assert_eq!(octets[8..], [0; 4]);
    octets[7..].fill(0xff);
    let mut receiver = Direction::new(Framing::default());
    assert_eq!(receiver.next(&mut octets).unwrap().unwrap().ulpdu, b"hello");
}

#[test]
fn a_marker_off_by_one_word_ends_the_stream() {
    let mut octets = LATER;
    octets[23] = 0x18;
    let mut receiver = at(MARKERS_AND_CRC, LATER_AT);
    assert_eq!(receiver.next(&mut octets), Err(Reject::Marker));
}

// Each position of a marker in a frame: before it, within it, before the checksum. After the checksum, the marker belongs to the
// next frame.
#[test]
fn a_marker_between_frames_belongs_to_the_second() {
    let position = |distance: u64| 512 - distance;
    let markers = |distance| {
        let layout = Layout::new(6, position(distance), true);
        assert_eq!(layout.frame_len(), 12 + 4 * layout.markers());
        layout.each_marker().collect::<Vec<_>>()
    };
    assert_eq!(markers(0), [(0, 0)]);
    assert_eq!(markers(4), [(4, 4)]);
    assert_eq!(markers(8), [(8, 8)]);
    assert_eq!(markers(12), []);

    // In a frame that begins with a marker, the second marker counts from the length field.
    let long = Layout::new(1000, 512, true);
    assert_eq!(long.each_marker().collect::<Vec<_>>(), [(0, 0), (512, 508)]);
    assert_eq!(long.crc_at() + CRC_LEN, long.frame_len());
}

#[test]
fn no_frame_is_longer_than_the_longest() {
    let longest = (0..512).map(|at| Layout::new(u16::MAX, at, true).frame_len());
    assert_eq!(longest.max(), Some(MAX_FRAME_LEN));
}

#[test]
fn a_frame_fits_into_a_segment() {
    assert_eq!(mulpdu(1460, false), 1454);
    assert_eq!(mulpdu(1460, true), 1442);
    assert_eq!(mulpdu(1463, false), 1454);
    assert_eq!(mulpdu(60, false), 128);
    assert_eq!(mulpdu(0, true), 128);
    for emss in (200..9000).step_by(7) {
        for markers in [false, true] {
            let ulpdu = mulpdu(emss, markers) as u16;
            let longest = (0..512)
                .step_by(4)
                .map(|at| Layout::new(ulpdu, at, markers).frame_len());
            assert!(longest.max() <= Some(emss));
        }
    }
}

#[test]
fn an_oversized_ulpdu_is_not_framed() {
    let mut sender = Direction::new(CRC);
    assert_eq!(sender.frame(&[b"hello"], &mut [0; 11]), None);
    assert_eq!(
        sender.frame(&[&[0; 40_000], &[0; 40_000]], &mut [0; 90_000]),
        None
    );
    assert_eq!(sender.position, 0);
}

proptest! {
    #[test]
    fn any_input_gives_frames_or_a_reason(
        mut octets in proptest::collection::vec(any::<u8>(), 0..2000),
        words in 0..1000_u64,
        markers: bool,
        crc: bool,
    ) {
        let mut receiver = at(Framing { markers, crc }, 4 * words);
        let mut at = 0;
        while let Ok(Some(fpdu)) = receiver.next(&mut octets[at..]) {
            prop_assert!(fpdu.frame_len >= 8);
            at += fpdu.frame_len;
        }
    }

    #[test]
    fn framed_segments_arrive_unchanged(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..1200), 1..6),
        cut in any::<proptest::sample::Index>(),
        words in 0..1000_u64,
        markers: bool,
        crc: bool,
    ) {
        let framing = Framing { markers, crc };
        let mut sender = at(framing, 4 * words);
        let mut octets = Vec::new();
        for message in &messages {
            let (front, back) = message.split_at(cut.index(message.len() + 1));
            let mut out = [0xa5; 1500];
            let len = sender.frame(&[front, back], &mut out).unwrap();
            octets.extend_from_slice(&out[..len]);
        }
        let mut receiver = at(framing, 4 * words);
        let mut at = 0;
        for message in &messages {
            let fpdu = receiver.next(&mut octets[at..]).unwrap().unwrap();
            prop_assert_eq!(fpdu.ulpdu, &message[..]);
            at += fpdu.frame_len;
        }
        prop_assert_eq!((at, receiver.position), (octets.len(), sender.position));
    }
}
