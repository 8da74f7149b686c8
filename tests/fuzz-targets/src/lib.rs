//! The fuzz targets: one function for each, which takes the bytes that a fuzzer makes up.
//!
//! `fuzz/` passes them to libFuzzer; `tests/corpus.rs` replays its corpus, so that a mended fault stays mended. Each
//! function demands more than the absence of panics: decoded input is encoded again and must give the same bytes.

#![deny(unsafe_code)]

mod at_work;
mod c_calls;
mod c_library;
mod cm_peer;
mod fabric;
mod ib_peer;
mod inbox_peer;
mod intruder;
mod iwarp_peer;
mod mad;
mod management;
mod mpa_peer;
mod program;
mod rds;
mod rendezvous_peer;
mod rsocket_peer;
mod script;
mod shm_peer;
mod stream_peer;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use polyverbs_dissect::{Capture, CaptureFile, Dissector, encode, line};
use polyverbs_wire::iwarp::{Direction, Framing, fpdu, rdmap, start, terminate};
use polyverbs_wire::roce::icrc::Recovery;
use polyverbs_wire::roce::{self, Envelope};

pub use c_calls::run as c_calls;
pub use cm_peer::run as cm_peer;
pub use fabric::run as fabric;
pub use ib_peer::run as ib_peer;
pub use inbox_peer::run as inbox_peer;
pub use iwarp_peer::run as iwarp_peer;
pub use mad::run as mad;
pub use management::run as management;
pub use mpa_peer::run as mpa_peer;
pub use rds::run as rds;
pub use rendezvous_peer::run as rendezvous_peer;
pub use rsocket_peer::run as rsocket_peer;
pub use shm_peer::run as shm_peer;
pub use stream_peer::run as stream_peer;

/// The function of a target.
pub type Target = fn(&[u8]);

/// The targets by their names, which are those of their files and of the folders of their corpora.
pub const TARGETS: [(&str, Target); 20] = [
    ("c_calls", c_calls::run),
    ("capture", capture),
    ("cm_peer", cm_peer::run),
    ("fabric", fabric::run),
    ("fpdu", fpdu),
    ("ib_peer", ib_peer::run),
    ("inbox_peer", inbox_peer::run),
    ("iwarp_peer", iwarp_peer::run),
    ("json", json),
    ("mad", mad::run),
    ("management", management::run),
    ("mpa_peer", mpa_peer::run),
    ("mpa_start", mpa_start),
    ("rdmap", rdmap),
    ("rds", rds::run),
    ("rendezvous_peer", rendezvous_peer::run),
    ("roce", roce),
    ("rsocket_peer", rsocket_peer::run),
    ("shm_peer", shm_peer::run),
    ("stream_peer", stream_peer::run),
];

/// Decodes a datagram to the port of RoCEv2.
pub fn roce(octets: &[u8]) {
    const ENVELOPE: Envelope = Envelope {
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 0xc000),
        destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4791),
        identification: 0,
    };
    let Ok(packet) = roce::decode(octets) else {
        return;
    };
    let recovery = Recovery::for_datagrams_of(octets.len());
    let computed = packet.expected_icrc(&ENVELOPE);
    if recovery.identification(packet.icrc, computed) == Some(0) {
        assert!(packet.is_intact(&ENVELOPE));
    }
    let mut room = [0; roce::packet::MAX_HEADER_LEN];
    let headers = packet.headers().encode(&mut room);
    let len = headers.expect("headers of the opcode");
    let again = [&room[..len], packet.payload, packet.pad, &packet.icrc];
    assert_eq!(again.concat(), octets);
}

/// Decodes a request or reply that begins an MPA connection.
pub fn mpa_start(octets: &[u8]) {
    if let Ok(Some((start, len))) = start::decode(octets) {
        let mut out = [0; start::MAX_START_LEN];
        assert_eq!(start.encode(&mut out), Some(len));
        assert_eq!(out[..len], octets[..len]);
    }
}

/// Decodes a stream of frames. The first byte selects markers and checksums, the second the position at which the stream begins.
pub fn fpdu(octets: &[u8]) {
    let [flags, position, stream @ ..] = octets else {
        return;
    };
    let framing = Framing {
        markers: flags & 1 != 0,
        crc: flags & 2 != 0,
    };
    let position = 4 * u64::from(*position);
    let mut stream = stream.to_vec();
    let mut receiver = Direction { framing, position };
    let mut at = 0;
    while let Ok(Some(fpdu)) = receiver.next(&mut stream[at..]) {
        let mut sender = Direction {
            framing,
            position: position + at as u64,
        };
        let mut out = vec![0; fpdu.frame_len];
        assert_eq!(sender.frame(&[fpdu.ulpdu], &mut out), Some(fpdu.frame_len));
        // The sent frame would be received: checksums and markers fit.
        let layout = fpdu::Layout::of(&out, position + at as u64, framing.markers);
        let layout = layout.expect("a whole frame");
        assert!(layout.markers_fit(&out) && (!framing.crc || layout.is_intact(&out)));
        at += fpdu.frame_len;
        assert_eq!(receiver.position, position + at as u64);
    }
}

/// Decodes a DDP segment.
pub fn rdmap(octets: &[u8]) {
    let Ok(segment) = rdmap::decode(octets) else {
        return;
    };
    let mut out = vec![0xa5; octets.len()];
    let room = segment.header.put(&mut out);
    let room = room.and_then(|room| segment.body.put(room)).unwrap();
    room.copy_from_slice(segment.payload);
    assert_eq!(out, octets);
    if segment.body == rdmap::Body::Terminate {
        let (said, rest) = terminate::decode(segment.payload).unwrap();
        let again = [said.encode(&mut [0; terminate::MAX_LEN]), rest].concat();
        assert_eq!(again, segment.payload);
    }
}

/// Reads a pcap or pcapng file.
pub fn capture(octets: &[u8]) {
    let Ok(mut file) = CaptureFile::new(octets) else {
        return;
    };
    let mut dissector = Dissector::new();
    let (mut captured, mut packets) = (Vec::new(), Vec::new());
    while let Ok(Some(packet)) = file.next_packet() {
        packets.push(dissector.packet(&packet));
        captured.push(packet.octets);
    }
    for packet in &packets {
        let _ = line(packet, packets[0].time);
    }
    let (unfinished, summary) = dissector.finish();
    let capture = Capture {
        packets,
        unfinished,
        summary,
        defect: None,
    };
    assert_eq!(encode(&capture), Ok(captured));
}

/// Reads the JSON form of a capture.
pub fn json(octets: &[u8]) {
    if let Ok(capture) = serde_json::from_slice::<Capture>(octets) {
        let _ = encode(&capture);
        for packet in &capture.packets {
            let _ = line(packet, packet.time);
        }
    }
}
