//! Probes that verify the feature.

use verbs_api::probe::{End, Evidence, Outcome, Probe, Region, Rig, Side};
use verbs_api::qp::QpType;
use verbs_api::{
    Access, ErrorKind, Features, PathOptions, QpOptions,
    capability::BaselineGaps,
    extension::{FeatureInfo, feature},
    ids::{Gid, Qpn},
    probe::{ensure, ensure_eq},
    wr::{self, UdDestination},
};

use crate::{BLOCK_MULTICAST, BlockLoopback};

const MULTICAST: FeatureInfo = feature!(Features::MULTICAST, "datagrams to groups");
const NEEDS: &[FeatureInfo] = &[MULTICAST];

/// The probes of the extension.
pub static PROBES: &[Probe] = &[
    Probe::new(
        &BLOCK_MULTICAST,
        "block-loopback.own-multicast",
        "4.40",
        "a sender with the flag gets what others send, and not what it sends",
        own_multicast,
    )
    .needs(NEEDS)
    .without(BaselineGaps::NO_UD),
    Probe::new(
        &BLOCK_MULTICAST,
        "block-loopback.own-unicast",
        "4.40",
        "what a sender with the flag sends to itself alone arrives",
        own_unicast,
    )
    .needs(NEEDS)
    .without(BaselineGaps::NO_UD),
    Probe::new(
        &BLOCK_MULTICAST,
        "block-loopback.later-group",
        "4.41",
        "the flag holds for groups that are joined, left and joined again",
        later_group,
    )
    .needs(NEEDS)
    .without(BaselineGaps::NO_UD),
    Probe::new(
        &BLOCK_MULTICAST,
        "block-loopback.datagrams-only",
        "4.43",
        "no other queue pair is created with the flag",
        datagrams_only,
    ),
];

const QKEY: u32 = 0x1111;
const ROOM: u32 = 128;

/// A datagram queue pair in RTS that is attached to the probe's multicast group and has receives posted.
struct MulticastEndpoint {
    side: Side,
    landing: Region,
}

impl MulticastEndpoint {
    fn new(rig: &Rig, end: &End, blocks: bool) -> Result<Self, Evidence> {
        let block = end.context.extension::<BlockLoopback>()?;
        let side = end.side_with(&end.pd, |cq| match blocks {
            true => end.options(QpType::Ud, cq).with(&block),
            false => end.options(QpType::Ud, cq),
        })?;
        rig.finish(side.activate(PathOptions::new().qkey(QKEY)))?;
        let landing = end.region(16 * ROOM as usize, Access::LOCAL_WRITE)?;
        for slot in 0..16 {
            side.receive(&landing, slot * ROOM as usize, ROOM)?;
        }
        Ok(Self { side, landing })
    }

    fn join(&self, rig: &Rig, group: Gid) -> Outcome {
        rig.finish(self.side.attach_multicast(group))
    }

    fn send(&self, rig: &Rig, end: &End, dgid: Gid, remote_qpn: Qpn) -> Outcome {
        let at = self.side.endpoint()?;
        let ah = rig.finish(end.pd.create_ah(end.context.path_to(1, at.address, dgid)?))?;
        let to = UdDestination {
            ah,
            remote_qpn,
            remote_qkey: QKEY,
        };
        self.side
            .post_one(wr::Send::new(b"to all").to(&to).signaled(99))?;
        Ok(())
    }

    // How many datagrams have arrived since the last call, without completions of its own sends.
    fn got(&self, rig: &Rig) -> Result<usize, Evidence> {
        rig.settle();
        let mut count = 0;
        loop {
            let mut slot = [verbs_api::Completion::default()];
            if self.side.cq.poll(&mut slot)?.is_empty() {
                return Ok(count);
            }
            let [done] = slot;
            ensure!(
                done.status.is_success(),
                "a completion with {:?}",
                done.status
            );
            if done.opcode.is_receive() {
                count += 1;
                let bytes = self.landing.bytes(done.wr_id as usize + 40, 6)?;
                ensure_eq!(bytes, b"to all".to_vec(), "the datagram");
            }
        }
    }
}

// covers 4.40 4.42
fn own_multicast(rig: &Rig) -> Outcome {
    let end = &rig.near;
    let (a, b, c) = (
        MulticastEndpoint::new(rig, end, true)?,
        MulticastEndpoint::new(rig, end, false)?,
        MulticastEndpoint::new(rig, end, false)?,
    );
    for station in [&a, &b, &c] {
        station.join(rig, rig.group(1))?;
    }
    a.send(rig, end, rig.group(1), Qpn::MULTICAST)?;
    let found = [a.got(rig)?, b.got(rig)?, c.got(rig)?];
    ensure_eq!(
        found,
        [0, 1, 1],
        "what A with the flag, B and C got of A's multicast"
    );
    b.send(rig, end, rig.group(1), Qpn::MULTICAST)?;
    let found = [a.got(rig)?, b.got(rig)?, c.got(rig)?];
    ensure_eq!(
        found,
        [1, 1, 1],
        "what A with the flag, B and C got of B's multicast"
    );
    Ok(())
}

// covers 4.40
fn own_unicast(rig: &Rig) -> Outcome {
    let end = &rig.near;
    let a = MulticastEndpoint::new(rig, end, true)?;
    a.join(rig, rig.group(1))?;
    let at = a.side.endpoint()?;
    a.send(rig, end, at.gid, at.qp_num)?;
    ensure_eq!(
        a.got(rig)?,
        1,
        "what A with the flag got of its own unicast"
    );
    Ok(())
}

// covers 4.41
fn later_group(rig: &Rig) -> Outcome {
    let end = &rig.near;
    let a = MulticastEndpoint::new(rig, end, true)?;
    for number in [1, 2] {
        a.join(rig, rig.group(number))?;
        a.send(rig, end, rig.group(number), Qpn::MULTICAST)?;
        ensure_eq!(
            a.got(rig)?,
            0,
            "what A with the flag got of its multicast to group {number}"
        );
    }
    rig.finish(a.side.detach_multicast(rig.group(1)))?;
    a.join(rig, rig.group(1))?;
    a.send(rig, end, rig.group(1), Qpn::MULTICAST)?;
    ensure_eq!(a.got(rig)?, 0, "what A got after it joined again");
    Ok(())
}

// covers 4.43
fn datagrams_only(rig: &Rig) -> Outcome {
    let block = rig.near.context.extension::<BlockLoopback>()?;
    let cq = rig.near.cq(8)?;
    for options in [QpOptions::rc(&cq), QpOptions::uc(&cq)] {
        match rig.outcome(rig.near.pd.create_qp(options.with(&block)))? {
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
            // A device without datagrams has nothing to create.
            Err(verbs_api::VerbError::BaselineGap(_)) => {}
            other => {
                return Err(Evidence::wrong(format!(
                    "a connected queue pair with the flag: {other:?}"
                )));
            }
        }
    }
    // The device itself applies the flag: it creates a datagram queue pair with it.
    rig.near
        .side_with(&rig.near.pd, |cq| QpOptions::ud(cq).with(&block))?;
    Ok(())
}
