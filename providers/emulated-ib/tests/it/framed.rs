//! Messages in frames: every operation with every MTU, and no byte is lost.

use crate::support::*;
use verbs_api::*;
use verbs_api::{capability::Mtu, completion::WcOpcode, wr};

const MTUS: [Option<Mtu>; 6] = [
    Some(Mtu::Mtu256),
    Some(Mtu::Mtu512),
    Some(Mtu::Mtu1024),
    Some(Mtu::Mtu2048),
    Some(Mtu::Mtu4096),
    None,
];
const LENGTHS: [usize; 12] = [0, 1, 7, 8, 255, 256, 257, 1024, 4095, 4096, 4097, 20_000];

// covers 3.34 3.35
#[test]
fn every_operation_of_any_length_arrives_over_every_mtu() {
    for mtu in MTUS {
        for length in LENGTHS {
            let rig = Rig::new(Setup {
                mtu,
                ..Setup::default()
            });
            let (a, b) = (&rig.a, &rig.b);
            let data = pattern(length, 0);
            a.write(0, &data);
            b.receive(11, 0, 32_768);
            b.receive(12, 32_768, 32_768);
            b.receive(13, 0, 0);
            a.post(wr::Send::new(a.sge(0, length)).signaled(1));
            a.post(wr::SendWithImmediate::new(a.sge(0, length), *b"imm1").signaled(2));
            a.post(wr::Write::new(a.sge(0, length), b.remote(65_536)).signaled(3));
            a.post(
                wr::WriteWithImmediate::new(a.sge(0, length), b.remote(98_304), *b"imm2")
                    .signaled(4),
            );
            a.post(wr::Read::new(a.sge(131_072, length), b.remote(65_536)).signaled(5));
            rig.run();
            let sent: Vec<_> = a.completions();
            let sent: Vec<_> = sent
                .iter()
                .map(|done| (done.wr_id, done.status, done.opcode))
                .collect();
            let success = WcStatus::Success;
            let expected = [
                (1, success, WcOpcode::Send),
                (2, success, WcOpcode::Send),
                (3, success, WcOpcode::RdmaWrite),
                (4, success, WcOpcode::RdmaWrite),
                (5, success, WcOpcode::RdmaRead),
            ];
            assert_eq!(sent, expected, "{mtu:?} {length}");
            let received = b.completions();
            let received: Vec<_> = received
                .iter()
                .map(|done| (done.wr_id, done.opcode, done.byte_len, done.immediate()))
                .collect();
            let octets = length as u32;
            let expected = [
                (11, WcOpcode::Recv, octets, None),
                (12, WcOpcode::Recv, octets, Some(*b"imm1")),
                (13, WcOpcode::RecvRdmaWithImm, octets, Some(*b"imm2")),
            ];
            assert_eq!(received, expected, "{mtu:?} {length}");
            for place in [0, 32_768, 65_536, 98_304] {
                assert_eq!(b.read(place, length), data, "{mtu:?} {length} at {place}");
            }
            assert_eq!(a.read(131_072, length), data);
            assert_eq!(a.counters().retransmissions, 0);
            assert_eq!(b.counters().duplicates + b.counters().dropped, 0);
        }
    }
}
