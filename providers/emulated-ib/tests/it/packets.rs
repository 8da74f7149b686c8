//! How messages become packets: their numbers, their payloads, and which of them ask for an acknowledge.

use crate::support::*;
use emulated_ib::header::{Body, Position};
use verbs_api::{WcStatus, capability::Mtu, ids::Psn, wr};

use Position::{First, Last, Middle, Only};

const MTU: usize = 256;

fn rig() -> Rig {
    Rig::new(Setup {
        mtu: Some(Mtu::Mtu256),
        ..Setup::default()
    })
}

/// Returns the packets of A's requests: number, position in the message, bytes, whether an acknowledge is requested.
fn packets(rig: &Rig) -> Vec<(i32, Position, usize, bool)> {
    let log = rig.wire.log();
    let requests = log.iter().filter(|frame| frame.header.body.is_request());
    let packet = |frame: &OwnFrame| {
        let position = match frame.header.body {
            Body::Send(position, _) | Body::Write(position, ..) => position,
            _ => Only,
        };
        let number = frame.header.psn.distance_from(Psn::new(rig.setup.a_psn));
        (number, position, frame.payload.len(), frame.header.ack_req)
    };
    requests.map(packet).collect()
}

// covers 9.05
#[test]
fn the_path_mtu_counts_payload_only() {
    let cases: [(usize, &[(Position, usize)]); 5] = [
        (MTU - 1, &[(Only, MTU - 1)]),
        (MTU, &[(Only, MTU)]),
        (MTU + 1, &[(First, MTU), (Last, 1)]),
        (2 * MTU, &[(First, MTU), (Last, MTU)]),
        (2 * MTU + 1, &[(First, MTU), (Middle, MTU), (Last, 1)]),
    ];
    for (length, expected) in cases {
        let rig = rig();
        rig.b.receive(1, 0, 1024);
        rig.a.post(wr::Send::new(rig.a.sge(0, length)).signaled(1));
        rig.run();
        let seen: Vec<_> = packets(&rig)
            .into_iter()
            .map(|(_, position, octets, _)| (position, octets))
            .collect();
        assert_eq!(seen, expected, "{length}");
    }
}

// covers 9.06
#[test]
fn an_empty_message_is_one_empty_packet() {
    let rig = rig();
    rig.b.receive(1, 0, 8);
    rig.a.post(wr::Send::new(()).signaled(1));
    rig.a.post(wr::Write::new((), rig.b.remote(0)).signaled(2));
    rig.a.post(wr::Read::new((), rig.b.remote(0)).signaled(3));
    rig.run();
    let sent: Vec<_> = packets(&rig)
        .iter()
        .map(|packet| (packet.0, packet.1, packet.2))
        .collect();
    assert_eq!(sent, [(0, Only, 0), (1, Only, 0), (2, Only, 0)]);
    assert_eq!(rig.a.done(), ok([1, 2, 3]));
}

// covers 9.02
#[test]
fn a_packet_takes_one_number_and_a_read_one_per_response() {
    let rig = rig();
    rig.b.receive(1, 0, 1024);
    let (a, b) = (&rig.a, &rig.b);
    a.post(wr::Send::new(a.sge(0, 2 * MTU)).signaled(1));
    a.post(wr::Read::new(a.sge(0, 3 * MTU + 1), b.remote(0)).signaled(2));
    a.post(wr::Read::new((), b.remote(0)).signaled(3));
    a.post(wr::FetchAdd::new(a.sge(0, 8), b.remote(0), 1).signaled(4));
    rig.run();
    let numbers: Vec<_> = packets(&rig).iter().map(|packet| packet.0).collect();
    assert_eq!(numbers, [0, 1, 2, 6, 7]);
    let responses: Vec<_> = rig
        .answers()
        .into_iter()
        .filter(|(_, body)| matches!(body.body, Body::ReadResponse(_)))
        .collect();
    let expected = [(2, First), (3, Middle), (4, Middle), (5, Last), (6, Only)];
    assert_eq!(
        responses,
        expected.map(|(number, position)| (number, Body::ReadResponse(position).into()))
    );
}

// covers 9.04
#[test]
fn the_last_packet_of_a_message_asks_for_an_acknowledge() {
    let rig = rig();
    rig.b.receive(1, 0, 4096);
    let length = 9 * MTU;
    rig.a.post(wr::Send::new(rig.a.sge(0, length)).signaled(1));
    rig.a
        .post(wr::Write::new(rig.a.sge(0, 8), rig.b.remote(0)).signaled(2));
    rig.run();
    let packets = packets(&rig);
    assert_eq!(packets.len(), 10);
    for (number, position, _, asks) in &packets {
        assert!(*asks || !position.ends(), "packet {number}");
    }

    // Some packets within a long message ask, too, so that its sender learns of the progress.
    let rig = self::rig();
    rig.a
        .post(wr::Write::new(rig.a.sge(0, 200 * MTU), rig.b.remote(65_536)).signaled(1));
    rig.run();
    let within = self::packets(&rig);
    let within = within.iter().filter(|packet| !packet.1.ends() && packet.3);
    assert!(within.count() > 0);
}

// covers 9.03
#[test]
fn an_acknowledge_has_the_number_of_its_packet() {
    let rig = rig();
    rig.b.receive(1, 0, 1024);
    rig.a.post(wr::Send::new(rig.a.sge(0, 3 * MTU)).signaled(1));
    rig.run();
    assert_eq!(rig.answers().last(), Some(&(2, ACK)));
}

/// What became of a request of so many bytes where A has the first path MTU and B the second.
fn between(
    mtus: [Mtu; 2],
    link: Setup,
    length: usize,
    make: fn(&Rig, usize) -> wr::WorkRequest<'static>,
) -> WcStatus {
    let rig = Rig::unconnected(link);
    let with = |mtu| Setup {
        mtu: Some(mtu),
        ..rig.setup
    };
    let (a, b) = (&rig.a, &rig.b);
    a.connect(b, &with(mtus[0]), 1000, 2000);
    b.connect(a, &with(mtus[1]), 2000, 1000);
    b.receive(1, 0, 1 << 15);
    a.post(make(&rig, length));
    rig.run();
    let done = a.completions();
    assert_eq!(done.len(), 1);
    done[0].status
}

#[test]
fn path_mtus_that_differ_give_the_same_error_over_every_link() {
    let packets = Setup {
        mtu: Some(Mtu::Mtu4096),
        ..Setup::default()
    };
    let links = [
        packets,
        Setup {
            joined: Some(1 << 16),
            ..packets
        },
        Setup {
            mtu: None,
            ..packets
        },
        Setup {
            direct: true,
            ..packets
        },
    ];
    let (small, large) = (Mtu::Mtu1024, Mtu::Mtu4096);
    let send: fn(&Rig, usize) -> _ =
        |rig, length| wr::Send::new(rig.a.sge(0, length)).signaled(1).into();
    let write: fn(&Rig, usize) -> _ = |rig, length| {
        wr::Write::new(rig.a.sge(0, length), rig.b.remote(0))
            .signaled(1)
            .into()
    };
    let read: fn(&Rig, usize) -> _ = |rig, length| {
        wr::Read::new(rig.a.sge(0, length), rig.b.remote(0))
            .signaled(1)
            .into()
    };
    let refused = WcStatus::RemInvReqErr;
    for (make, error) in [
        (send, refused),
        (write, refused),
        (read, WcStatus::BadRespErr),
    ] {
        for mtus in [[small, large], [large, small]] {
            for link in links {
                let status = |length| between(mtus, link, length, make);
                let found = [1024, 1025, 4096, 20_000].map(status);
                assert_eq!(found, [WcStatus::Success, error, error, error]);
            }
        }
    }
}
