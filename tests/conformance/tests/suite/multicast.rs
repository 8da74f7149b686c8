//! Multicast groups: FEATURES 4.44 and 4.45.

use std::net::IpAddr;

use crate::cases;
use conformance::{Evidence, Outcome, Region, Rig, Side, needs};
use verbs_api::qp::{AddressVector, QpState, QpType};
use verbs_api::{
    Access, Features, PathOptions, WcStatus,
    capability::BaselineGaps,
    ids::{Gid, Qpn},
    wr::{self, ReceiveRequest, UdDestination},
};

use crate::support::{QKEY, go_to, poll};

cases! {
    each_member_gets_a_copy_of_its_own: needs(Features::MULTICAST).without(BaselineGaps::NO_UD);
    each_member_is_checked_for_itself: needs(Features::MULTICAST).without(BaselineGaps::NO_UD);
    a_group_of_ipv4_has_two_names: needs(Features::MULTICAST).without(BaselineGaps::NO_UD);
}

const ROOM: u32 = 128;

fn group(rig: &Rig, first: u8) -> Gid {
    if rig.is_in_real_time() {
        return group_of_ipv4(first, 7);
    }
    let mut octets = [0; 16];
    (octets[0], octets[1], octets[15]) = (first, 0x0e, 7);
    Gid(octets)
}

/// A group of IPv4, as Linux's connection manager writes one that is no RoCEv2 address.
fn group_of_ipv4(first: u8, last: u8) -> Gid {
    let Gid(mut octets) = IpAddr::from([239, 0, 0, last]).into();
    (octets[0], octets[1]) = (first, 0x0e);
    Gid(octets)
}

/// A datagram queue pair of the far end that is ready, is in the group, and has `receives` posted.
fn member(rig: &Rig, qkey: u32, receives: usize) -> Result<(Side, Region), Evidence> {
    let side = rig.far.side(QpType::Ud)?;
    rig.finish(side.activate(PathOptions::new().qkey(qkey)))?;
    let landing = rig.far.region(4 * ROOM as usize, Access::LOCAL_WRITE)?;
    for slot in 0..receives {
        side.receive(&landing, slot * ROOM as usize, ROOM)?;
    }
    rig.finish(side.attach_multicast(group(rig, 0xff)))?;
    Ok((side, landing))
}

/// A datagram queue pair of the near end that is ready, and the destination of a group that `of_far` has joined.
fn sender(rig: &Rig, of_far: &Side, group: Gid) -> Result<(Side, UdDestination), Evidence> {
    let sender = rig.near.side(QpType::Ud)?;
    rig.finish(sender.activate(PathOptions::new().qkey(QKEY)))?;
    let at = of_far.endpoint().expect("an endpoint");
    let path = AddressVector::new(at.address, group, 1);
    let to = UdDestination {
        ah: rig.finish(rig.near.pd.create_ah(path))?,
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: QKEY,
    };
    Ok((sender, to))
}

// covers 4.45 6.23
fn each_member_gets_a_copy_of_its_own(rig: &Rig) -> Outcome {
    let members: [_; 3] = [
        member(rig, QKEY, 2)?,
        member(rig, QKEY, 2)?,
        member(rig, QKEY, 2)?,
    ];
    let (sender, to) = sender(rig, &members[0].0, group(rig, 0xff))?;
    rig.succeeds(&sender, wr::Send::new(b"for each").to(&to).signaled(1))?;
    rig.settle();
    for (side, landing) in &members {
        let done = poll(&side.cq);
        let found: Vec<_> = done
            .iter()
            .map(|done| (done.status, done.byte_len))
            .collect();
        assert_eq!(found, [(WcStatus::Success, 48)]);
        assert_eq!(landing.bytes(40, 8)?, b"for each");
        // The second receive of each has nothing.
        assert_eq!(landing.bytes(ROOM as usize, 48)?, [0; 48]);
    }
    Ok(())
}

// covers 4.45
fn each_member_is_checked_for_itself(rig: &Rig) -> Outcome {
    let (good, landing) = member(rig, QKEY, 2)?;
    let (stranger, _of_stranger) = member(rig, QKEY + 1, 1)?;
    let (starved, _of_starved) = member(rig, QKEY, 0)?;
    let (stopped, _of_stopped) = member(rig, QKEY, 1)?;
    go_to(rig, &stopped, QpState::Err)?;
    poll(&stopped.cq);
    let (short, small) = (
        rig.far.side(QpType::Ud)?,
        rig.far.region(64, Access::LOCAL_WRITE)?,
    );
    rig.finish(short.activate(PathOptions::new().qkey(QKEY)))?;
    short
        .post_receive(ReceiveRequest::new(5, small.sge(0, 44)?))
        .expect("a receive");
    rig.finish(short.attach_multicast(group(rig, 0xff)))?;
    let (last, _of_last) = member(rig, QKEY, 2)?;

    let (sender, to) = sender(rig, &good, group(rig, 0xff))?;
    rig.succeeds(&sender, wr::Send::new(b"to everybody").to(&to).signaled(1))?;
    rig.settle();
    for side in [&good, &last] {
        let done = poll(&side.cq);
        assert_eq!(done.len(), 1, "one copy");
        assert_eq!((done[0].status, done[0].byte_len), (WcStatus::Success, 52));
    }
    assert_eq!(landing.bytes(40, 12)?, b"to everybody");
    for side in [&stranger, &starved, &stopped, &short] {
        assert!(poll(&side.cq).is_empty());
        let dropped = rig.far.counters_of(side).map(|counted| counted.dropped);
        assert!(dropped.is_none_or(|count| count == 1), "dropped only there");
    }
    // The receive that was too short for the first datagram takes the next one.
    rig.succeeds(&sender, wr::Send::new(b"tiny").to(&to).signaled(2))?;
    rig.settle();
    assert_eq!(poll(&short.cq).len(), 1);
    Ok(())
}

// covers 4.44
fn a_group_of_ipv4_has_two_names(rig: &Rig) -> Outcome {
    // The test has a group of its own, because in real time other tests use the same network.
    let mapped: Gid = IpAddr::from([239, 0, 0, 8]).into();
    let by_prefix = group_of_ipv4(0xff, 8);
    assert!(mapped.is_multicast() && by_prefix.is_multicast());
    for (joined, addressed) in [(mapped, by_prefix), (by_prefix, mapped)] {
        let (side, landing) = (
            rig.far.side(QpType::Ud)?,
            rig.far.region(ROOM as usize, Access::LOCAL_WRITE)?,
        );
        rig.finish(side.activate(PathOptions::new().qkey(QKEY)))?;
        side.receive(&landing, 0, ROOM)?;
        rig.finish(side.attach_multicast(joined))?;
        assert!(
            rig.outcome(side.attach_multicast(addressed))?.is_err(),
            "in it already"
        );
        let (sender, to) = sender(rig, &side, addressed)?;
        rig.succeeds(&sender, wr::Send::new(b"by both").to(&to).signaled(1))?;
        rig.settle();
        assert_eq!(poll(&side.cq).len(), 1);
        assert_eq!(landing.bytes(40, 7)?, b"by both");
        rig.finish(side.detach_multicast(joined))?;
    }
    Ok(())
}
