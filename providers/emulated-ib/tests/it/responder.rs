//! How a responder handles request frames: the check, the reaction, and which side gets which status.

use crate::support::*;
use emulated_ib::header::{Body, Nak, Position, SendExtra};
use polyverbs_engine::time::Time;
use verbs_api::qp::{QpState, QpType};
use verbs_api::*;
use verbs_api::{
    event::EventType,
    ids::Qpn,
    memory::MwType,
    wr::{self, ReceiveRequest, UdDestination},
};

use Position::{First, Last, Middle, Only};

const MTU: usize = 1024;

fn response(position: Position) -> Answer {
    Body::ReadResponse(position).into()
}

fn original(value: u64) -> Answer {
    Body::AtomicAcknowledge(value).into()
}

fn send(position: Position) -> Body {
    Body::Send(position, SendExtra::Nothing)
}

fn write(rig: &Rig, position: Position, offset: usize, total: usize) -> Body {
    Body::Write(position, rig.b.remote(offset), total as u32, None)
}

/// Checks that the responder refused and is in error, and that nothing was delivered.
#[track_caller]
fn refused(rig: &Rig, offset: i32, with: Nak) {
    assert_eq!(rig.naks(), [(offset, with)]);
    assert_eq!(rig.b.state(), QpState::Err);
}

// covers 3.40 9.03
#[test]
fn a_gap_draws_one_nak_with_the_expected_number() {
    let rig = Rig::rc();
    (0..4).for_each(|id| rig.b.receive(id, 0, 64));
    rig.inject([1, 2, 3].map(|offset| rig.request(offset, send(Only), b"early")));
    assert_eq!(rig.answers(), [(0, nak(Nak::SEQUENCE_ERROR))]);
    assert!(rig.b.done().is_empty());
    rig.inject([rig.request(0, send(Only), b"first")]);
    assert_eq!(rig.answers()[1..], [(0, ACK)]);
    rig.inject([2, 3].map(|offset| rig.request(offset, send(Only), b"early")));
    assert_eq!(rig.answers()[2..], [(1, nak(Nak::SEQUENCE_ERROR))]);
    assert_eq!(rig.b.done(), ok([0]));
    assert_eq!(rig.b.state(), QpState::Rts);
}

// covers 3.41
#[test]
fn a_duplicate_send_or_write_is_acknowledged_not_repeated() {
    let rig = Rig::rc();
    rig.b.receive(1, 0, 64);
    rig.b.receive(2, 64, 64);
    let first = rig.request(0, send(Only), b"message");
    let second = rig.request(1, write(&rig, Only, 4096, 3), b"new");
    rig.inject([first.clone(), second.clone()]);
    rig.b.write(4096, b"own");
    rig.inject([first, second]);
    assert_eq!(rig.answers(), [(1, ACK), (1, ACK)]);
    assert_eq!(rig.b.done(), ok([1]));
    assert_eq!(rig.b.read(4096, 3), b"own");
    assert_eq!(rig.b.counters().duplicates, 2);
}

// covers 3.42
#[test]
fn a_duplicate_read_is_served_within_its_original_range() {
    let rig = Rig::rc();
    let read = |rig: &Rig, offset: u32, at: usize, length: usize| {
        rig.request(
            offset,
            Body::ReadRequest(rig.b.remote(at), length as u32),
            b"",
        )
    };
    rig.inject([read(&rig, 0, 0, 3 * MTU)]);
    let whole = [
        (0, response(First)),
        (1, response(Middle)),
        (2, response(Last)),
    ];
    assert_eq!(rig.answers(), whole);
    // The read is repeated, completely and from the second frame on: the memory is read again.
    rig.b.write(MTU, b"changed");
    rig.wire.forget();
    rig.inject([read(&rig, 0, 0, 3 * MTU), read(&rig, 1, MTU, 2 * MTU)]);
    assert_eq!(rig.answers()[..3], whole);
    assert_eq!(
        rig.answers()[3..],
        [(1, response(First)), (2, response(Last))]
    );
    assert_eq!(rig.wire.log()[3].payload[..7], *b"changed");
    // A read outside of that range, or with another key, is dropped and does no harm.
    rig.wire.forget();
    let mut other_key = read(&rig, 0, 0, MTU);
    other_key.header.body = Body::ReadRequest(
        RemoteAddress::new(rig.b.remote(0).addr, RKey::new(0x1234)),
        64,
    );
    rig.inject([
        read(&rig, 1, MTU, 3 * MTU),
        read(&rig, 0, 8 * MTU, 8),
        other_key,
    ]);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.b.state(), QpState::Rts);
}

// covers 3.42
#[test]
fn a_long_read_is_answered_in_bursts_without_blocking_others() {
    let rig = Rig::rc();
    let frames = 150;
    let octets = pattern(frames * MTU, 9);
    rig.b.write(0, &octets);
    let read = Body::ReadRequest(rig.b.remote(0), octets.len() as u32);
    rig.inject([rig.request(0, read, b"")]);
    // The frames that leave at once are limited; the others leave later.
    assert_eq!(rig.answers().len(), 64);
    rig.run();
    let mut bursts: Vec<(Time, usize)> = Vec::new();
    for (at, _) in rig.wire.times() {
        match bursts.last_mut() {
            Some((last, count)) if *last == at => *count += 1,
            _ => bursts.push((at, 1)),
        }
    }
    let sizes: Vec<_> = bursts.iter().map(|(_, count)| *count).collect();
    assert_eq!(sizes, [64, 64, 22]);
    let answers = rig.answers();
    assert_eq!(answers[0], (0, response(First)));
    assert_eq!(answers[64], (64, response(Middle)));
    assert_eq!(answers[149], (149, response(Last)));
    let said: Vec<u8> = rig
        .wire
        .log()
        .into_iter()
        .flat_map(|frame| frame.payload)
        .collect();
    assert!(said == octets);

    // A later request is carried out later: the whole answer has left by then.
    rig.wire.forget();
    let behind = frames as u32;
    rig.inject([
        rig.request(behind, read, b""),
        rig.request(2 * behind, write(&rig, Only, 0, 3), b"new"),
    ]);
    let answers = rig.answers();
    assert_eq!(answers.len(), frames + 1);
    assert_eq!(answers[frames], (2 * behind as i32, ACK));
    assert_eq!(rig.wire.log()[0].payload[..3], octets[..3]);
    assert_eq!(rig.b.read(0, 3), b"new");
    rig.run();
    assert_eq!(rig.answers().len(), frames + 1);
}

// covers 3.43
#[test]
fn a_duplicate_atomic_gets_the_stored_answer() {
    let rig = Rig::new(Setup {
        max_dest_rd_atomic: 2,
        ..Setup::default()
    });
    rig.b.memory.store_u64(0, 40).unwrap();
    let add = |offset: u32| rig.request(offset, Body::FetchAdd(rig.b.remote(0), 1), b"");
    let swap = rig.request(1, Body::CompareSwap(rig.b.remote(0), 41, 90), b"");
    rig.inject([add(0), swap.clone()]);
    rig.inject([add(0), swap]);
    let answers = [(0, original(40)), (1, original(41))];
    assert_eq!(rig.answers()[..2], answers);
    assert_eq!(rig.answers()[2..], answers);
    assert_eq!(rig.b.memory.load_u64(0).unwrap(), 90);
    // As many answers are stored as may be outstanding; a request for an older one is dropped.
    rig.inject([add(2)]);
    rig.wire.forget();
    rig.inject([add(0)]);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.b.memory.load_u64(0).unwrap(), 91);
}

// covers 3.44
#[test]
fn opcodes_out_of_sequence_are_an_invalid_request() {
    type Case = fn(&Rig) -> Vec<Body>;
    let without_receive: [Case; 4] = [
        |_| vec![send(Middle)],
        |_| vec![send(Last)],
        |rig| vec![write(rig, Middle, 0, 4096)],
        |rig| vec![write(rig, First, 0, 4096), write(rig, Only, 0, 1024)],
    ];
    for (number, case) in without_receive.into_iter().enumerate() {
        let rig = Rig::rc();
        rig.b.receive(7, 0, 8192);
        let bodies = case(&rig);
        let last = bodies.len() as i32 - 1;
        rig.inject(
            bodies
                .into_iter()
                .enumerate()
                .map(|(i, body)| rig.request(i as u32, body, &[1; MTU])),
        );
        refused(&rig, last, Nak::INVALID_REQUEST);
        assert_eq!(rig.b.done(), [(7, WcStatus::WrFlushErr)], "case {number}");
        assert_eq!(rig.b.events(), [EventType::QpReqErr]);
    }
    let within_a_send: [Case; 5] = [
        |_| vec![send(First)],
        |_| vec![send(Only)],
        |rig| vec![write(rig, First, 0, 4096)],
        |rig| vec![write(rig, Middle, 0, 4096)],
        |rig| vec![Body::ReadRequest(rig.b.remote(0), 8)],
    ];
    for (number, case) in within_a_send.into_iter().enumerate() {
        let rig = Rig::rc();
        rig.b.receive(7, 0, 8192);
        rig.b.receive(8, 0, 8192);
        rig.inject([rig.request(0, send(First), &[1; MTU])]);
        let second = case(&rig)[0];
        let payload: &[u8] = if matches!(second, Body::ReadRequest(..)) {
            &[]
        } else {
            &[1; MTU]
        };
        rig.inject([rig.request(1, second, payload)]);
        refused(&rig, 1, Nak::INVALID_REQUEST);
        let expected = [(7, WcStatus::RemInvReqErr), (8, WcStatus::WrFlushErr)];
        assert_eq!(rig.b.done(), expected, "case {number}");
    }
}

// covers 3.45
#[test]
fn queue_pair_and_region_refuse_access_with_different_naks() {
    let requests = |region: RemoteAddress| {
        [
            (Body::Write(Only, region, 8, None), Access::REMOTE_WRITE, 8),
            (Body::AtomicWrite(region), Access::REMOTE_WRITE, 8),
            (Body::ReadRequest(region, 8), Access::REMOTE_READ, 0),
            (Body::CompareSwap(region, 0, 1), Access::REMOTE_ATOMIC, 0),
            (Body::FetchAdd(region, 1), Access::REMOTE_ATOMIC, 0),
            (
                Body::Flush(region, 8, Access::FLUSH_GLOBAL, false),
                Access::FLUSH_GLOBAL,
                0,
            ),
            (
                Body::Flush(region, 8, Access::FLUSH_PERSISTENT, false),
                Access::FLUSH_PERSISTENT,
                0,
            ),
        ]
    };
    for case in 0..7 {
        let right = requests(RemoteAddress::default())[case].1;
        let rig = Rig::new(Setup {
            access: ALL_REMOTE - right,
            ..Setup::default()
        });
        let (body, _, length) = requests(rig.b.remote(0))[case];
        rig.inject([rig.request(0, body, &vec![1; length])]);
        refused(&rig, 0, Nak::INVALID_REQUEST);
        assert_eq!(rig.b.events(), [EventType::QpReqErr], "{right:?}");
        assert_eq!(rig.b.read(0, 8), [0; 8]);

        let rig = Rig::rc();
        let access = (Access::LOCAL_WRITE | ALL_REMOTE) - right;
        let region = rig.b.pd.register(&rig.b.memory, access).wait().unwrap();
        let (body, _, length) = requests(region.remote(0))[case];
        rig.inject([rig.request(0, body, &vec![1; length])]);
        refused(&rig, 0, Nak::REMOTE_ACCESS);
        assert_eq!(rig.b.events(), [EventType::QpAccessErr], "{right:?}");
        assert_eq!(rig.b.read(0, 8), [0; 8]);
    }
}

// covers 3.46
#[test]
fn lengths_that_do_not_add_up_are_an_invalid_request() {
    let rig = Rig::rc();
    let cases: Vec<Vec<(Body, usize)>> = vec![
        vec![(send(First), MTU - 1)],
        vec![(send(First), MTU + 1)],
        vec![(send(First), 0)],
        vec![(send(First), MTU), (send(Middle), MTU - 1)],
        vec![(send(First), MTU), (send(Last), 0)],
        vec![(send(First), MTU), (send(Last), MTU + 1)],
        vec![(send(Only), MTU + 1)],
        vec![(write(&rig, Only, 0, 7), 8)],
        vec![(write(&rig, Only, 0, 9), 8)],
        vec![(write(&rig, First, 0, MTU - 1), MTU)],
        vec![
            (write(&rig, First, 0, 2 * MTU), MTU),
            (write(&rig, Last, 0, 0), MTU - 1),
        ],
        vec![
            (write(&rig, First, 0, 2 * MTU - 1), MTU),
            (write(&rig, Last, 0, 0), MTU),
        ],
        vec![
            (write(&rig, First, 0, 2 * MTU), MTU),
            (write(&rig, Middle, 0, 0), MTU),
            (write(&rig, Middle, 0, 0), MTU),
        ],
        vec![(Body::ReadRequest(rig.b.remote(0), 8), 1)],
        vec![(Body::FetchAdd(rig.b.remote(0), 8), 8)],
        vec![(Body::AtomicWrite(rig.b.remote(0)), 7)],
    ];
    for (number, case) in cases.iter().enumerate() {
        let rig = Rig::rc();
        rig.b.receive(1, 0, 8 * MTU);
        let frames = case.iter().enumerate().map(|(offset, (body, length))| {
            // The keys of one rig equal those of the other, because both are created in the same way.
            rig.request(offset as u32, at_home(&rig, *body), &vec![1; *length])
        });
        let frames: Vec<_> = frames.collect();
        rig.inject(frames);
        assert_eq!(
            rig.naks(),
            [(case.len() as i32 - 1, Nak::INVALID_REQUEST)],
            "case {number}"
        );
        assert_eq!(rig.b.state(), QpState::Err);
    }
}

// Returns the same request for `rig`'s own memory.
fn at_home(rig: &Rig, body: Body) -> Body {
    let remote = rig.b.remote(0);
    match body {
        Body::Write(position, _, total, imm) => Body::Write(position, remote, total, imm),
        Body::ReadRequest(_, length) => Body::ReadRequest(remote, length),
        Body::FetchAdd(_, add) => Body::FetchAdd(remote, add),
        Body::AtomicWrite(_) => Body::AtomicWrite(remote),
        other => other,
    }
}

// covers 3.47
#[test]
fn one_read_more_than_granted_is_an_invalid_request() {
    let rig = Rig::new(Setup {
        max_dest_rd_atomic: 2,
        ..Setup::default()
    });
    let read = |offset: u32| rig.request(offset, Body::ReadRequest(rig.b.remote(0), 8), b"");
    let atomic = rig.request(1, Body::FetchAdd(rig.b.remote(0), 1), b"");
    rig.inject([read(0), atomic, read(2)]);
    refused(&rig, 2, Nak::INVALID_REQUEST);
    // Earlier requests are answered before this one is refused.
    let answers = [
        (0, response(Only)),
        (1, original(0)),
        (2, nak(Nak::INVALID_REQUEST)),
    ];
    assert_eq!(rig.answers(), answers);

    let rig = Rig::new(Setup {
        max_dest_rd_atomic: 2,
        ..Setup::default()
    });
    let read = |offset: u32| rig.request(offset, Body::ReadRequest(rig.b.remote(0), 8), b"");
    rig.inject([read(0), read(1)]);
    rig.inject([read(2), read(3)]);
    assert_eq!(rig.naks(), []);
}

// covers 3.48
#[test]
fn forbidden_access_ends_the_connection_with_an_event() {
    type Case = fn(&Rig) -> RemoteAddress;
    let end =
        |rig: &Rig| RemoteAddress::new(rig.b.remote(0).addr + MEMORY as u64 - 4, rig.b.mr.rkey());
    let cases: [Case; 6] = [
        |_| RemoteAddress::new(0, RKey::new(0xdead_beef)),
        |rig| RemoteAddress::new(rig.b.remote(0).addr, RKey::new(rig.b.mr.rkey().value() ^ 1)),
        |rig| RemoteAddress::new(rig.b.remote(0).addr - 1, rig.b.mr.rkey()),
        |rig| RemoteAddress::new(u64::MAX - 3, rig.b.mr.rkey()),
        |rig| {
            let pd = rig.b.context.alloc_pd().wait().unwrap();
            let mr = pd
                .register(&rig.b.memory, Access::LOCAL_WRITE | ALL_REMOTE)
                .wait()
                .unwrap();
            let remote = mr.remote(0);
            std::mem::forget((pd, mr));
            remote
        },
        |rig| {
            let mw = rig.b.pd.alloc_mw(MwType::Type1).wait().unwrap();
            let bind = wr::BindWindow::new(&mw, &rig.b.mr, rig.b.memory.address(), 4)
                .access(ALL_REMOTE - Access::FLUSH_GLOBAL - Access::FLUSH_PERSISTENT);
            let rkey = rig.b.qp.bind_mw(bind).unwrap();
            std::mem::forget(mw);
            RemoteAddress::new(rig.b.memory.address(), rkey)
        },
    ];
    for (number, case) in cases.into_iter().chain([end as Case]).enumerate() {
        for kind in 0..3 {
            let rig = Rig::rc();
            let remote = case(&rig);
            let (body, length) = match kind {
                0 => (Body::Write(Only, remote, 8, None), 8),
                1 => (Body::ReadRequest(remote, 8), 0),
                _ => (Body::Write(Only, remote, 8, Some(*b"imm.")), 8),
            };
            rig.b.completions();
            rig.b.receive(5, 0, 64);
            rig.inject([rig.request(0, body, &vec![1; length])]);
            refused(&rig, 0, Nak::REMOTE_ACCESS);
            assert_eq!(
                rig.b.events(),
                [EventType::QpAccessErr],
                "case {number} kind {kind}"
            );
            assert_eq!(rig.b.done(), [(5, WcStatus::WrFlushErr)]);
            assert_eq!(rig.b.read(0, 64), [0; 64]);
        }
    }
}

// covers 3.48
#[test]
fn the_whole_range_is_checked_with_the_first_frame() {
    let rig = Rig::rc();
    let total = 2 * MTU;
    rig.inject([rig.request(0, write(&rig, First, MEMORY - total + 1, total), &[1; MTU])]);
    refused(&rig, 0, Nak::REMOTE_ACCESS);
    assert_eq!(rig.b.read(MEMORY - total, total), vec![0; total]);
}

// covers 3.48 3.65
#[test]
fn a_forbidden_access_fails_at_its_requester() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    let nowhere = RemoteAddress::new(1, RKey::new(0x7777_7777));
    a.post(wr::Write::new(a.sge(0, 3000), b.remote(0)).signaled(1));
    a.post(wr::Write::new(a.sge(0, 3000), nowhere));
    a.post(wr::Send::new(a.sge(0, 8)));
    rig.run();
    let expected = [
        (1, WcStatus::Success),
        (0, WcStatus::RemAccessErr),
        (0, WcStatus::WrFlushErr),
    ];
    assert_eq!(a.done(), expected);
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
    assert_eq!(
        (a.events(), b.events()),
        (vec![], vec![EventType::QpAccessErr])
    );
}

// covers 3.49 3.65
#[test]
fn a_bad_receive_is_a_remote_operation_error_for_the_sender() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    let sge = with_lkey(b.sge(0, 64), 0x4242);
    b.qp.post_receive(ReceiveRequest::new(3, sge)).unwrap();
    b.receive(4, 0, 64);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(1));
    rig.run();
    assert_eq!(rig.naks(), [(0, Nak::REMOTE_OPERATION)]);
    assert_eq!(a.done(), [(1, WcStatus::RemOpErr)]);
    assert_eq!(
        b.done(),
        [(3, WcStatus::LocProtErr), (4, WcStatus::WrFlushErr)]
    );
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
}

// covers 3.50
#[test]
fn a_send_longer_than_its_receive_is_a_length_error() {
    for length in [65, 5000] {
        let rig = Rig::rc();
        let (a, b) = (&rig.a, &rig.b);
        b.receive(3, 0, 64);
        b.receive(4, 0, 64);
        a.post(wr::Send::new(a.sge(0, length)).signaled(1));
        rig.run();
        assert_eq!(a.done(), [(1, WcStatus::RemInvReqErr)]);
        assert_eq!(
            b.done(),
            [(3, WcStatus::LocLenErr), (4, WcStatus::WrFlushErr)]
        );
        assert_eq!(b.state(), QpState::Err);
    }
}

// covers 3.51
#[test]
fn a_send_without_receive_is_retried_without_other_effects() {
    let rig = Rig::new(Setup {
        rnr_retry: 2,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(1));
    rig.run();
    let rnr = (0, rnr(1));
    assert_eq!(rig.answers(), [rnr; 3]);
    assert_eq!(a.done(), [(1, WcStatus::RnrRetryExcErr)]);
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Rts));
    assert_eq!(b.events(), []);
    // The number of the send is still the expected one.
    b.receive(2, 0, 64);
    rig.inject([rig.request(0, send(Only), b"late")]);
    assert_eq!(b.done(), ok([2]));
}

// covers 3.51
#[test]
fn a_receive_posted_in_time_takes_the_waiting_message() {
    let rig = Rig::new(Setup {
        rnr_retry: 7,
        retry_cnt: 0,
        min_rnr_timer: 14,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    a.write(0, &pattern(6000, 3));
    (0..3).for_each(|id| a.post(wr::Send::new(a.sge(0, 6000)).signaled(id)));
    // There are far more attempts than seven: seven means infinite. The later frames cost no retry either.
    rig.run_for(std::time::Duration::from_millis(20));
    assert_eq!((a.done(), b.done()), (vec![], vec![]));
    assert!(a.counters().rnr_naks > 15, "{}", a.counters().rnr_naks);
    (0..3).for_each(|id| b.receive(id, id as usize * 8192, 8192));
    rig.run();
    assert_eq!((a.done(), b.done()), (ok(0..3), ok(0..3)));
    (0..3).for_each(|id| assert_eq!(b.read(id * 8192, 6000), pattern(6000, 3)));
}

// covers 3.52
#[test]
fn write_with_immediate_waits_with_its_last_frame_only() {
    let rig = Rig::new(Setup {
        min_rnr_timer: 14,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    let data = pattern(2 * MTU + 100, 9);
    a.write(0, &data);
    a.post(wr::WriteWithImmediate::new(a.sge(0, data.len()), b.remote(0), *b"imm!").signaled(1));
    assert_eq!(rig.answers().last(), Some(&(2, rnr(14))));
    assert_eq!(b.read(0, data.len() - 100), data[..2 * MTU]);
    rig.wire.forget();
    b.receive(5, 0, 0);
    rig.run();
    let numbers: Vec<_> = rig.requests().iter().map(|(offset, _)| *offset).collect();
    assert_eq!(numbers, [2]);
    assert_eq!((a.done(), b.done()), (ok([1]), ok([5])));
    assert_eq!(b.read(0, data.len()), data);
}

// covers 3.53
#[test]
fn a_failed_remote_invalidation_fails_the_receive_without_nak() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    b.receive(3, 0, 64);
    b.receive(4, 0, 64);
    // An ordinary region cannot be invalidated.
    a.post(wr::SendWithInvalidate::new(a.sge(0, 8), b.mr.rkey()).signaled(1));
    rig.run();
    assert_eq!(rig.naks(), []);
    assert_eq!(a.done(), ok([1]));
    assert_eq!(
        b.done(),
        [(3, WcStatus::RemInvReqErr), (4, WcStatus::WrFlushErr)]
    );
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Err));
}

// covers 3.54
#[test]
fn the_receive_of_a_broken_uc_message_serves_the_next() {
    let full = [1; MTU];
    for case in 0..5 {
        let rig = Rig::uc();
        rig.b.receive(1, 0, 2 * MTU);
        rig.b.receive(2, 8192, 2 * MTU);
        rig.inject([rig.request(0, send(First), &full)]);
        match case {
            // There is a gap, in the middle or at the beginning.
            0 => rig.inject([rig.request(2, send(Last), &full)]),
            // A middle frame is too short.
            1 => rig.inject([
                rig.request(1, send(Middle), b"short"),
                rig.request(2, send(Last), &full),
            ]),
            // The message is longer than the receive.
            2 => rig.inject([1, 2].map(|offset| rig.request(offset, send(Middle), &full))),
            // A write has no valid key.
            3 => rig.inject([rig.request(
                2,
                Body::Write(Only, RemoteAddress::default(), 4, None),
                b"data",
            )]),
            // UC has no reads.
            _ => rig.inject([rig.request(1, Body::ReadRequest(rig.b.remote(0), 8), b"")]),
        }
        assert!(rig.b.done().is_empty(), "case {case}");
        rig.inject([
            rig.request(5, send(Only), b"whole"),
            rig.request(6, send(Only), b"and more"),
        ]);
        assert_eq!(rig.b.done(), ok([1, 2]), "case {case}");
        assert_eq!(rig.b.read(0, 5), b"whole");
        assert_eq!(rig.b.read(8192, 8), b"and more");
        assert_eq!(
            (rig.answers(), rig.b.events(), rig.b.state()),
            (vec![], vec![], QpState::Rts)
        );
        assert!(rig.b.counters().dropped > 0);
    }
}

// covers 3.54
#[test]
fn a_kept_uc_receive_serves_a_later_write_with_immediate() {
    let rig = Rig::uc();
    rig.b.receive(1, 0, 2 * MTU);
    rig.inject([rig.request(0, send(First), &[1; MTU])]);
    rig.inject([rig.request(5, write(&rig, Only, 8192, 4), b"data")]);
    let immediate = Body::Write(Only, rig.b.remote(8192), 4, Some(*b"imm!"));
    rig.inject([rig.request(6, immediate, b"more")]);
    assert_eq!(rig.b.done(), ok([1]));
    // A duplicate and a late frame have no effect.
    rig.b.receive(2, 0, 64);
    rig.inject([
        rig.request(6, immediate, b"more"),
        rig.request(4, send(Only), b"late"),
    ]);
    assert_eq!(rig.b.done(), []);
    assert_eq!(rig.b.counters().duplicates, 2);
}

// covers 3.54
#[test]
fn a_receive_of_a_shared_queue_ends_with_the_broken_uc_message() {
    let rig = Rig::new(Setup {
        qp_type: QpType::Uc,
        srq: Some(8),
        ..Setup::default()
    });
    rig.b.receive(1, 0, 4096);
    rig.b.receive(2, 4096, 4096);
    rig.inject([
        rig.request(0, send(First), &[1; MTU]),
        rig.request(2, send(Last), &[1; MTU]),
    ]);
    rig.inject([rig.request(3, send(Only), b"whole")]);
    assert_eq!(
        rig.b.done(),
        [(1, WcStatus::LocLenErr), (2, WcStatus::Success)]
    );
    assert_eq!(rig.b.state(), QpState::Rts);
}

// covers 3.54
#[test]
fn a_uc_sender_does_not_notice_losses() {
    let rig = Rig::uc();
    let (a, b) = (&rig.a, &rig.b);
    (1..=2).for_each(|id| b.receive(id, 8192 * id as usize, 8192));
    let mut count = 0;
    rig.wire.rule(move |_| {
        count += 1;
        if count == 2 { Fate::Drop } else { Fate::Pass }
    });
    a.write(0, &pattern(3000, 1));
    (1..=3).for_each(|id| a.post(wr::Send::new(a.sge(0, 3000)).signaled(id)));
    rig.run();
    assert_eq!((a.done(), b.done()), (ok(1..=3), ok(1..=2)));
    assert_eq!(b.read(8192, 3000), pattern(3000, 1));
    // There is no receive: the message is dropped, and the next one that finds a receive arrives.
    a.post(wr::Send::new(a.sge(0, 8)).signaled(4));
    b.receive(3, 0, 64);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(5));
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([4, 5]), ok([3])));
}

// covers 3.55
#[test]
fn a_datagram_that_cannot_be_taken_is_dropped() {
    let rig = Rig::ud();
    let (a, b) = (&rig.a, &rig.b);
    let ah = a.pd.create_ah(b.path()).wait().unwrap();
    let to = |remote_qkey| UdDestination {
        ah: ah.clone(),
        remote_qpn: b.qp.qp_num(),
        remote_qkey,
    };
    let (right, wrong, nobody) = (
        to(0x1111),
        to(0x2222),
        UdDestination {
            remote_qpn: Qpn::new(0xabcd),
            ..to(0x1111)
        },
    );
    let send = |id, length, to| a.post(wr::Send::new(a.sge(0, length)).to(to).signaled(id));
    send(1, 8, &right);
    b.receive(1, 0, 40 + 64);
    send(2, 8, &wrong);
    send(3, 65, &right);
    send(4, 8, &nobody);
    rig.run();
    assert_eq!((a.done(), b.done()), (ok(1..=4), vec![]));
    assert_eq!(b.counters().dropped, 3);
    assert_eq!(b.context.query_port(1).unwrap().qkey_viol_cntr, 1);
    // The receive is still there for the next datagram.
    send(5, 64, &right);
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([5]), ok([1])));
    assert_eq!((b.events(), b.state()), (vec![], QpState::Rts));
}

// covers 3.90
#[test]
fn an_empty_shared_queue_makes_rc_wait_and_others_drop() {
    let srq = Some(8);
    let rig = Rig::new(Setup {
        srq,
        min_rnr_timer: 14,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(1));
    assert_eq!(rig.answers(), [(0, rnr(14))]);
    b.receive(1, 0, 64);
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([1]), ok([1])));

    let rig = Rig::new(Setup {
        srq,
        qp_type: QpType::Uc,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(1));
    b.receive(1, 0, 64);
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([1]), vec![]));

    let rig = Rig::new(Setup {
        srq,
        qp_type: QpType::Ud,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    let ah = a.pd.create_ah(b.path()).wait().unwrap();
    let to = UdDestination {
        ah,
        remote_qpn: b.qp.qp_num(),
        remote_qkey: 0x1111,
    };
    a.post(wr::Send::new(a.sge(0, 8)).to(&to).signaled(1));
    b.receive(1, 0, 64);
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([1]), vec![]));
}

#[test]
fn an_overlong_message_is_refused_before_its_memory_is_checked() {
    let rig = Rig::rc();
    let longest = 1 << 31;
    rig.inject([rig.request(0, Body::ReadRequest(rig.b.remote(0), longest + 1), b"")]);
    refused(&rig, 0, Nak::INVALID_REQUEST);
    let rig = Rig::rc();
    let write = write(&rig, First, 0, longest as usize + 1);
    rig.inject([rig.request(0, write, &pattern(MTU, 1))]);
    refused(&rig, 0, Nak::INVALID_REQUEST);
    let rig = Rig::rc();
    rig.inject([rig.request(0, Body::ReadRequest(rig.b.remote(0), longest), b"")]);
    refused(&rig, 0, Nak::REMOTE_ACCESS);
}

/// Returns the answers to a send whose first frame has `length` bytes and whose last, with the number `next`, has 2,500.
fn joined(is_joined: bool, length: usize, next: u32) -> (Rig, Vec<(i32, Answer)>) {
    let rig = Rig::rc();
    rig.b.receive(1, 0, 8192);
    for (offset, position, length) in [(0, First, length), (next, Last, 2500)] {
        let mut frame = rig.request(offset, send(position), &vec![7; length]);
        frame.header.joined = is_joined;
        rig.inject([frame]);
    }
    let answers = rig.answers();
    (rig, answers)
}

#[test]
fn several_packets_in_one_frame_have_a_number_each() {
    let (rig, answers) = joined(true, 3 * MTU, 3);
    assert_eq!(answers, [(2, ACK), (5, ACK)]);
    assert_eq!(rig.b.done(), ok([1]));
}

#[test]
fn only_a_link_joins_packets_and_all_but_the_last_are_full() {
    for (is_joined, length) in [(true, 0), (true, 1500), (false, 3 * MTU)] {
        let (_, answers) = joined(is_joined, length, 3);
        assert_eq!(answers[0], (0, nak(Nak::INVALID_REQUEST)));
    }
}
