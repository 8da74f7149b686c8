//! The behaviour of a device that is the same for every transport: FEATURES group 6.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::{cases, steered_cases};
use conformance::{ANY_DEVICE, Evidence, Flavour, Outcome, Pair, Rig, Side, needs};
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::{
    Access, Completion, ErrorKind, Features, PathOptions, QpOptions, RKey, RemoteAddress,
    Transport, VerbError, WcStatus,
    capability::{BaselineGaps, Mtu, PortState},
    completion::{Notify, WcOpcode},
    event::EventType,
    ids::{Gid, LinkAddress},
    wr::{self, ReceiveRequest, UdDestination, WorkRequest},
};

use crate::support::{QKEY, datagrams, poll};

cases! {
    a_queue_pair_connected_to_itself_works: ANY_DEVICE;
    a_peer_on_the_same_device_is_like_any_other: ANY_DEVICE;
    without_a_peer_a_reliable_sender_gives_up: ANY_DEVICE;
    without_a_peer_an_unreliable_sender_notices_nothing:
        ANY_DEVICE.without(BaselineGaps::NO_UC);
    the_mtu_is_the_lesser_of_path_and_port: ANY_DEVICE;
    groups_have_limits_and_are_freed_by_the_last: needs(Features::MULTICAST);
    an_address_is_checked: ANY_DEVICE.without(BaselineGaps::NO_UD);
    a_datagram_is_answered_by_its_completion: ANY_DEVICE.without(BaselineGaps::NO_UD);
    arming_within_the_handler_loses_nothing: ANY_DEVICE;
    a_query_returns_the_values_in_force: ANY_DEVICE;
}

steered_cases! {
    a_port_that_goes_down_fails_nothing_by_itself: ANY_DEVICE;
    a_queue_drains_while_what_has_begun_is_not_over: ANY_DEVICE;
    a_late_peer_without_receives_is_retried_after_its_delay: ANY_DEVICE;
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

// covers 6.18
fn a_queue_pair_connected_to_itself_works(rig: &Rig) -> Outcome {
    let side = rig.near.side(QpType::Rc)?;
    let itself = side.endpoint().expect("an endpoint");
    let connected = rig.outcome(side.connect(&itself, conformance::open().timeout(8)))?;
    let desk = rig.near.region(4096, OPEN)?;
    side.receive(&desk, 512, 64)?;
    desk.put(0, b"to myself")?;
    let send = side.post_one(wr::Send::new(desk.sge(0, 9)?).signaled(1));
    if rig.attributes().transport == Transport::Iwarp && (connected.is_err() || send.is_err()) {
        // A stream has two ends: a connection to itself is refused, and nothing hangs.
        return Ok(());
    }
    connected.expect("a connection");
    let write = wr::Write::new(desk.sge(0, 9)?, desk.remote(1024)).signaled(2);
    side.post_one(write).expect("posted");
    let read = wr::Read::new(desk.sge(2048, 9)?, desk.remote(1024)).signaled(3);
    side.post_one(read).expect("posted");
    rig.run_for(Duration::from_secs(2));
    let done = poll(&side.cq);
    if rig.attributes().transport == Transport::InfiniBand {
        assert_eq!(done.len(), 4);
        assert!(done.iter().all(|done| done.status.is_success()));
        for place in [512, 1024, 2048] {
            assert_eq!(desk.bytes(place, 9)?, b"to myself");
        }
    }
    rig.finish_destroy(side.qp.destroy())
}

// Connects two queue pairs of one device, or of two devices.
fn pair_of(rig: &Rig, same: bool) -> Result<Pair, Evidence> {
    let far = match same {
        true => rig.near.side(QpType::Rc)?,
        false => rig.far.side(QpType::Rc)?,
    };
    rig.connected(rig.near.side(QpType::Rc)?, far)
}

type Ended = Vec<(u64, WcStatus, WcOpcode, u32)>;

// Runs a seeded list of valid and invalid operations until the connection fails.
fn outcome_of(rig: &Rig, same: bool, seed: u64) -> Result<[Ended; 2], Evidence> {
    let pair = pair_of(rig, same)?;
    let end = if same { &rig.near } else { &rig.far };
    let rights = OPEN | Access::REMOTE_ATOMIC;
    let desk = end.region(1 << 16, rights)?;
    let poor = end.region(4096, Access::empty())?;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    for at in 0..20 {
        let length = [8, 64, 3000][below(3) as usize];
        let private = end.context.features().contains(Features::SRQ) && below(40) == 0;
        let target = if private { &poor } else { &desk };
        let sge = target.sge(if private { 0 } else { at as usize * 3000 }, length)?;
        let receive = ReceiveRequest::new(1000 + at, sge);
        pair.far.post_receive(receive).expect("posted");
    }
    let imm = !rig.has_gap(BaselineGaps::NO_WRITE_WITH_IMMEDIATE);
    let atomics = !rig.has_gap(BaselineGaps::NO_ATOMICS);
    for wr_id in 0..24 {
        let length = [0, 1, 8, 64, 2500][below(5) as usize];
        let data = rig.scratch.sge(0, length)?;
        let remote = match below(30) {
            0 => RemoteAddress::new(desk.mr.iova(), RKey::new(0xfff_ff00)),
            1 => desk.remote((1 << 16) - 4),
            2 => poor.remote(0),
            _ => desk.remote(below(1 << 12) * 8),
        };
        let request: WorkRequest<'_> = match below(6) {
            0 => wr::Send::new(data).signaled(wr_id).into(),
            1 if imm => wr::WriteWithImmediate::new(data, remote, *b"imm.")
                .signaled(wr_id)
                .into(),
            2 => wr::Read::new(rig.scratch.sge(0x8000, length)?, remote)
                .signaled(wr_id)
                .into(),
            3 if atomics => wr::FetchAdd::new(rig.scratch.sge(0x8000, 8)?, remote, 1)
                .signaled(wr_id)
                .into(),
            4 if below(12) == 0 && end.context.features().contains(Features::BMME) => {
                wr::SendWithInvalidate::new(data, RKey::new(0xfff_ff00))
                    .signaled(wr_id)
                    .into()
            }
            _ => wr::Write::new(data, remote).signaled(wr_id).into(),
        };
        pair.near.post_one(request).expect("posted");
        if rig.is_framed() {
            rig.settle();
        }
    }
    rig.run_for(Duration::from_secs(60));
    Ok([&pair.near, &pair.far].map(|side| {
        let done = poll(&side.cq);
        let told = done.iter().map(|done| {
            // A failed completion reports only its identity and status.
            match done.status.is_success() {
                true => (done.wr_id, done.status, done.opcode, done.byte_len),
                false => (done.wr_id, done.status, WcOpcode::default(), 0),
            }
        });
        told.collect()
    }))
}

// covers 6.18
fn a_peer_on_the_same_device_is_like_any_other(rig: &Rig) -> Outcome {
    if rig.is_in_real_time() && !rig.acknowledges() {
        // In real time it depends on the timing how much a sender has sent before the peer ends the stream.
        return Ok(());
    }
    // In real time each seed takes seconds.
    let seeds = if rig.is_in_real_time() { 2 } else { 60 };
    for seed in 1..=seeds {
        let near = outcome_of(rig, true, seed)?;
        let far = outcome_of(rig, false, seed)?;
        assert_eq!(near, far, "seed {seed}");
    }
    Ok(())
}

// covers 6.18
#[test]
fn whole_messages_end_as_segmented_ones_do() -> Outcome {
    for (whole, framed) in [
        (Flavour::Ib, Flavour::IbFramed),
        (Flavour::Iwarp, Flavour::IwarpFramed),
    ] {
        let (whole, framed) = (Rig::new(whole), Rig::new(framed));
        for seed in 1..=60 {
            let short = outcome_of(&whole, false, seed)?;
            let long = outcome_of(&framed, false, seed)?;
            assert_eq!(short, long, "seed {seed}");
        }
    }
    Ok(())
}

// covers 6.18 6.20
fn without_a_peer_a_reliable_sender_gives_up(rig: &Rig) -> Outcome {
    let options = PathOptions::new().timeout(8).retry_cnt(2);
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let pair = rig.connected_with(near, far, options)?;
    rig.finish(
        pair.far
            .modify(QpAttributes::new().qp_state(QpState::Reset)),
    )?;
    let write = wr::Write::new(rig.scratch.sge(0, 8)?, RemoteAddress::default()).signaled(1);
    pair.near.post_one(write).expect("posted");
    rig.run_for(Duration::from_secs(60));
    let done = poll(&pair.near.cq);
    assert_eq!((done.len(), done[0].wr_id), (1, 1));
    let expected: &[_] = match rig.attributes().transport {
        Transport::InfiniBand => &[WcStatus::RetryExcErr],
        // The stream ended, and with it the requests that had not been sent. A write that was sent is done.
        Transport::Iwarp if rig.is_in_real_time() => &[WcStatus::Success, WcStatus::WrFlushErr],
        Transport::Iwarp if rig.is_framed() => &[WcStatus::Success],
        Transport::Iwarp => &[WcStatus::WrFlushErr],
    };
    assert!(expected.contains(&done[0].status), "{:?}", done[0].status);
    assert_eq!(pair.near.state()?, QpState::Err);
    Ok(())
}

// covers 6.18
fn without_a_peer_an_unreliable_sender_notices_nothing(rig: &Rig) -> Outcome {
    let pair = rig.uc()?;
    let number = pair.far.qp.qp_num();
    rig.finish_destroy(pair.far.qp.destroy())?;
    let write = wr::Write::new(rig.scratch.sge(0, 8)?, RemoteAddress::default()).signaled(1);
    rig.succeeds(&pair.near, write)?;
    assert_eq!(pair.near.state()?, QpState::Rts, "{number} is gone");
    Ok(())
}

// covers 6.20
fn a_port_that_goes_down_fails_nothing_by_itself(rig: &Rig) -> Outcome {
    let options = conformance::open().timeout(12).retry_cnt(7);
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let pair = rig.connected_with(near, far, options)?;
    let desk = rig.far.region(64, OPEN)?;
    rig.near.steer().set_port_state(PortState::Down);
    assert_eq!(rig.near.events(), [EventType::PortErr]);
    let port = rig.near.context.query_port(1).expect("a port");
    assert_eq!(port.state, PortState::Down);
    let data = rig.scratch.sge(0, 8)?;
    let write = |wr_id| wr::Write::new(data, desk.remote(0)).signaled(wr_id);
    pair.near.post_one(write(1)).expect("posted");
    rig.run_for(Duration::from_millis(2));
    assert_eq!(
        (pair.near.state()?, pair.far.state()?),
        (QpState::Rts, QpState::Rts)
    );
    assert!(poll(&pair.near.cq).is_empty());
    rig.near.steer().set_port_state(PortState::Active);
    assert_eq!(rig.near.events(), [EventType::PortActive]);
    let done = rig.take(&pair.near.cq, 1)?;
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::Success));
    if rig.attributes().transport == Transport::InfiniBand {
        // The request times out by itself.
        rig.near.steer().set_port_state(PortState::Down);
        pair.near.post_one(write(2)).expect("posted");
        rig.run_for(Duration::from_secs(10));
        let done = poll(&pair.near.cq);
        assert_eq!((done.len(), done[0].status), (1, WcStatus::RetryExcErr));
    }
    Ok(())
}

// covers 6.22
fn the_mtu_is_the_lesser_of_path_and_port(rig: &Rig) -> Outcome {
    let port = rig.near.context.query_port(1).expect("a port");
    assert!(port.active_mtu <= port.max_mtu);
    for code in 1..=5 {
        let mtu = Mtu::from_code(code).expect("a code of the table");
        assert_eq!(mtu.octets(), 128 << code);
        let options = conformance::open().path_mtu(mtu);
        let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
        let pair = rig.connected_with(near, far, options)?;
        let found = pair.near.query().expect("a queue pair").attributes.path_mtu;
        assert_eq!(found, Some(mtu.min(port.active_mtu)));
        let desk = rig.far.region(8192, OPEN)?;
        rig.scratch.fill(code)?;
        let write = wr::Write::new(rig.scratch.sge(0, 5000)?, desk.remote(0)).signaled(1);
        rig.succeeds(&pair.near, write)?;
        rig.settle();
        assert_eq!(desk.bytes(0, 5000)?, rig.scratch.bytes(0, 5000)?);
    }
    assert_eq!((Mtu::from_code(0), Mtu::from_code(6)), (None, None));
    Ok(())
}

// covers 6.23
fn groups_have_limits_and_are_freed_by_the_last(rig: &Rig) -> Outcome {
    let limits = rig.near.context.limits();
    // The groups of an IPv4 network have IPv4 multicast addresses.
    let group = |number: u32| {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[12]) = (0xff, 0x0e, 0xef);
        (gid[10], gid[11]) = (0xff, 0xff);
        gid[13..].copy_from_slice(&number.to_be_bytes()[1..]);
        Gid(gid)
    };
    let side = rig.near.side(QpType::Ud)?;
    let other = rig.near.side(QpType::Ud)?;
    // Over sockets each group takes a socket, and a process may not open as many as the device has groups. Other devices have
    // so many groups that joining all takes minutes.
    let all = !rig.is_on_sockets() && limits.max_mcast_grp <= 1 << 12;
    let many = if all { limits.max_mcast_grp } else { 30 };
    for number in 0..many {
        rig.finish(side.attach_multicast(group(number)))?;
    }
    let more = group(many);
    if all {
        let refused = rig.outcome(side.attach_multicast(more))?.expect_err("full");
        assert_eq!(refused.kind(), ErrorKind::Resources);
        assert!(refused.to_string().contains("max_mcast_grp"), "{refused}");
    }
    // Joining an existing group takes no place, and a group that its last member has left frees its place.
    rig.finish(other.attach_multicast(group(0)))?;
    rig.finish(side.detach_multicast(group(0)))?;
    if all {
        assert!(rig.outcome(side.attach_multicast(more))?.is_err());
    }
    rig.finish(other.detach_multicast(group(0)))?;
    rig.finish(side.attach_multicast(more))?;
    for number in 1..=many {
        rig.finish(side.detach_multicast(group(number)))?;
    }
    let cq = rig.near.cq(4)?;
    let small = || QpOptions::ud(&cq).max_send_wr(1).max_recv_wr(1);
    let members: Vec<_> = (0..limits.max_mcast_qp_attach)
        .map(|_| rig.near.pd.create_qp(small()).wait().expect("a queue pair"))
        .collect();
    for member in &members {
        rig.finish(member.attach_multicast(group(7)))?;
    }
    let refused = rig.outcome(side.attach_multicast(group(7)))?;
    assert_eq!(
        refused.map_err(|error| error.kind()),
        Err(ErrorKind::Resources)
    );
    for member in members {
        rig.finish(member.detach_multicast(group(7)))?;
    }
    rig.finish(side.attach_multicast(group(7)))?;
    rig.finish(side.detach_multicast(group(7)))?;
    let refused = rig.outcome(side.attach_multicast(Gid([1; 16])))?;
    assert_eq!(
        refused.map_err(|error| error.kind()),
        Err(ErrorKind::InvalidArgument)
    );
    Ok(())
}

// covers 6.24
fn an_address_is_checked(rig: &Rig) -> Outcome {
    let port = rig.near.context.query_port(1).expect("a port");
    let good = AddressVector::new(port.address, port.gids[0].gid, 1);
    let wrong = [
        (
            "port_num",
            AddressVector {
                port_num: 0,
                ..good
            },
        ),
        (
            "port_num",
            AddressVector {
                port_num: 2,
                ..good
            },
        ),
        ("sl, static_rate", AddressVector { sl: 16, ..good }),
        (
            "sl, static_rate",
            AddressVector {
                static_rate: 32,
                ..good
            },
        ),
        (
            "sgid_index",
            AddressVector {
                sgid_index: port.gids.len() as u8,
                ..good
            },
        ),
        (
            "flow_label",
            AddressVector {
                flow_label: 1 << 20,
                ..good
            },
        ),
        (
            "ah_attr.address",
            AddressVector {
                address: LinkAddress::Lid(3),
                ..good
            },
        ),
    ];
    for (name, path) in wrong {
        match rig.outcome(rig.near.pd.create_ah(path))? {
            Err(VerbError::InvalidArgument { argument, .. }) => assert_eq!(argument, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let path = AddressVector {
        flow_label: 0xf_ffff,
        sl: 15,
        static_rate: 31,
        ..good
    };
    let made = rig.finish(rig.near.pd.create_ah(path))?;
    // Every path has a GRH, so the address of a group has one as well.
    assert_eq!(made.query().expect("an address"), path);
    rig.finish_destroy(made.destroy())
}

// covers 6.24
fn a_datagram_is_answered_by_its_completion(rig: &Rig) -> Outcome {
    let (pair, to) = datagrams(rig)?;
    let desk = rig.far.region(64, Access::LOCAL_WRITE)?;
    let home = rig.near.region(64, Access::LOCAL_WRITE)?;
    pair.far.receive(&desk, 0, 64)?;
    pair.near.receive(&home, 0, 64)?;
    pair.near
        .post_one(wr::Send::new(b"ask").to(&to))
        .expect("posted");
    let asked = rig.take(&pair.far.cq, 1)?.remove(0);
    let grh: [u8; 40] = desk.bytes(0, 40)?.try_into().expect("a routing header");
    let ah = rig.finish(rig.far.pd.create_ah_from(&asked, &grh, 1))?;
    let back = UdDestination {
        ah,
        remote_qpn: asked.src_qp,
        remote_qkey: QKEY,
    };
    pair.far
        .post_one(wr::Send::new(b"answer").to(&back))
        .expect("posted");
    let answered = rig.take(&pair.near.cq, 1)?.remove(0);
    assert_eq!(answered.src_qp, pair.far.qp_num());
    assert_eq!(home.bytes(40, 6)?, b"answer");
    let local = Completion::default();
    let refused = rig.outcome(rig.far.pd.create_ah_from(&local, &grh, 1))?;
    assert_eq!(
        refused.map_err(|error| error.kind()).err(),
        Some(ErrorKind::InvalidArgument)
    );
    Ok(())
}

// covers 6.25
fn arming_within_the_handler_loses_nothing(rig: &Rig) -> Outcome {
    // Over a link no request completes before time passes, so only as many are posted as there are slots.
    let each: u32 = if rig.is_framed() { 60 } else { 5000 };
    let pair = rig.rc()?;
    let desk = rig.far.region(64, OPEN)?;
    let (posted, seen) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&seen);
    pair.near.cq.on_completion(move |cq| {
        loop {
            let done = poll(cq);
            count.fetch_add(done.len() as u32, Ordering::SeqCst);
            if done.is_empty() && !cq.arm(Notify::Next).expect("a queue that lives") {
                return;
            }
        }
    });
    pair.near.cq.arm(Notify::Next).expect("a queue that lives");
    let data = rig.scratch.sge(0, 8)?;
    // The requests of one thread complete while the other thread runs the handler.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..each {
                    let open = |seen| posted.load(Ordering::SeqCst).saturating_sub(seen);
                    while open(seen.load(Ordering::SeqCst)) > 256 {
                        thread::yield_now();
                    }
                    posted.fetch_add(1, Ordering::SeqCst);
                    let write = wr::Write::new(data, desk.remote(0)).signaled(1);
                    pair.near.post_one(write).expect("posted");
                }
            });
        }
    });
    rig.until("the last completion", || {
        seen.load(Ordering::SeqCst) >= 2 * each
    })?;
    rig.settle();
    assert_eq!(seen.load(Ordering::SeqCst), 2 * each);
    Ok(())
}

// covers 6.28
fn a_query_returns_the_values_in_force(rig: &Rig) -> Outcome {
    let side: Side = rig.near.side_with(&rig.near.pd, |cq| {
        QpOptions::rc(cq)
            .max_send_wr(5)
            .max_recv_wr(6)
            .max_inline_data(48)
    })?;
    let fresh = side.query().expect("a queue pair");
    assert_eq!(
        (fresh.state, fresh.attributes.qp_access_flags),
        (QpState::Reset, None)
    );
    assert_eq!(fresh.cap, side.cap());
    // A queue pair that was created with this much inline data reports it, and accepts it.
    assert!(fresh.cap.max_inline_data >= 48 && fresh.cap.max_send_wr >= 5);
    let options = PathOptions::new()
        .access(Access::REMOTE_READ)
        .timeout(9)
        .retry_cnt(3)
        .rnr_retry(2)
        .min_rnr_timer(4)
        .max_rd_atomic(5)
        .max_dest_rd_atomic(6);
    let pair = rig.connected_with(side, rig.far.side(QpType::Rc)?, options)?;
    let status = pair.near.query().expect("a queue pair");
    let set = status.attributes;
    assert_eq!(
        (status.state, set.qp_state),
        (QpState::Rts, Some(QpState::Rts))
    );
    assert_eq!(set.qp_access_flags, Some(Access::REMOTE_READ));
    assert_eq!(set.dest_qp_num, Some(pair.far.qp_num()));
    let numbers = [
        set.timeout,
        set.retry_cnt,
        set.rnr_retry,
        set.min_rnr_timer,
        set.max_rd_atomic,
        set.max_dest_rd_atomic,
    ];
    assert_eq!(numbers, [9, 3, 2, 4, 5, 6].map(Some));
    assert!(!status.sq_draining);
    let inline = [7; 48];
    let desk = rig.far.region(64, OPEN)?;
    pair.far.receive(&desk, 0, 64)?;
    rig.succeeds(&pair.near, wr::Send::new(&inline[..]).signaled(1))?;
    assert_eq!(set.cur_qp_state, None);
    Ok(())
}

// The queue drains until its requests are done, or until it fails.
// covers 6.28
fn a_queue_drains_while_what_has_begun_is_not_over(rig: &Rig) -> Outcome {
    if rig.attributes().transport != Transport::InfiniBand {
        return Ok(());
    }
    let pair = rig.connected_with(
        rig.near.side(QpType::Rc)?,
        rig.far.side(QpType::Rc)?,
        PathOptions::new()
            .access(Access::REMOTE_READ)
            .timeout(if rig.is_in_real_time() { 14 } else { 9 })
            .retry_cnt(3),
    )?;
    let desk = rig.far.region(64, Access::REMOTE_READ)?;
    let is_draining = || pair.near.query().expect("a queue pair").sq_draining;
    for is_there in [true, false] {
        rig.near.steer().set_port_state(PortState::Down);
        let read = wr::Read::new(rig.scratch.sge(0, 8)?, desk.remote(0)).signaled(1);
        pair.near.post_one(read).expect("posted");
        rig.finish(pair.near.modify(QpAttributes::new().qp_state(QpState::Sqd)))?;
        assert!(is_draining());
        if is_there {
            rig.near.steer().set_port_state(PortState::Active);
        }
        rig.until("the end of draining", || !is_draining())?;
        let done = poll(&pair.near.cq);
        assert_eq!((done.len(), done[0].status.is_success()), (1, is_there));
        if is_there {
            rig.finish(pair.near.modify(QpAttributes::new().qp_state(QpState::Rts)))?;
        }
    }
    Ok(())
}

// A request waits for its peer as long as the acknowledge timeout says, and then for a receive as long as the peer says.
// covers 3.51 3.62
fn a_late_peer_without_receives_is_retried_after_its_delay(rig: &Rig) -> Outcome {
    if rig.attributes().transport != Transport::InfiniBand || rig.is_in_real_time() {
        return Ok(());
    }
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let (at_near, at_far) = (near.endpoint()?, far.endpoint()?);
    // The timeout is 67 ms, and the delay 655 ms.
    let options = PathOptions::new().timeout(14).rnr_retry(1).min_rnr_timer(0);
    rig.finish(near.connect(&at_far, options))?;
    near.post_one(wr::Send::new(rig.scratch.sge(0, 8)?).signaled(1))?;
    rig.finish(far.connect(&at_near, options))?;
    rig.run_for(Duration::from_millis(600));
    let counted = rig.near.counters_of(&near);
    assert!(counted.is_none_or(|counted| counted.rnr_naks == 1));
    let desk = rig.far.region(64, OPEN)?;
    far.receive(&desk, 0, 64)?;
    let done = rig.take(&near.cq, 1)?;
    assert_eq!(done[0].status, WcStatus::Success);
    Ok(())
}
