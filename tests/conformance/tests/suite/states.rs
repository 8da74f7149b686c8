//! What a queue pair accepts and does in each state: the table of FEATURES 3.1.

use crate::cases;
use conformance::{ANY_DEVICE, Evidence, Outcome, Pair, Region, Rig};
use verbs_api::qp::{QpAttributes, QpEndpoint, QpState, QpType};
use verbs_api::{
    Access, PathOptions, Transport, WcStatus,
    capability::BaselineGaps,
    event::EventType,
    ids::Psn,
    wr::{self, PostReason, ReceiveRequest, UdDestination},
};

use crate::support::{QKEY, datagrams_to, done, flushed, go_to, ok, poll, statuses, unusable};

cases! {
    a_reliable_connection_works_by_its_state: ANY_DEVICE.without(BaselineGaps::NO_MODIFY_TO_RTR);
    an_unreliable_connection_works_by_its_state: ANY_DEVICE.without(BaselineGaps::NO_UC);
    datagrams_work_by_their_state: ANY_DEVICE.without(BaselineGaps::NO_UD);
    a_draining_queue_starts_nothing_new: ANY_DEVICE;
    a_draining_queue_finishes_begun_requests: ANY_DEVICE;
    an_error_on_the_way_up_flushes: ANY_DEVICE.without(BaselineGaps::NO_MODIFY_TO_RTR);
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

/// A far queue pair that the test moves from state to state, and a near one that is ready.
struct Stage<'r> {
    rig: &'r Rig,
    pair: Pair,
    at_near: QpEndpoint,
    desk: Region,
    home: Region,
    // The destinations of the datagrams of the near end and of the far end.
    to_far: Option<UdDestination>,
    to_near: Option<UdDestination>,
}

impl<'r> Stage<'r> {
    fn new(rig: &'r Rig, qp_type: QpType) -> Result<Self, Evidence> {
        let (near, far) = (rig.near.side(qp_type)?, rig.far.side(qp_type)?);
        let at_near = near.endpoint().expect("an endpoint");
        let at_far = far.endpoint().expect("an endpoint");
        let is_ud = qp_type == QpType::Ud;
        if is_ud {
            rig.finish(near.activate(PathOptions::new().qkey(QKEY)))?;
        } else {
            rig.finish(near.connect(&at_far, PathOptions::new()))?;
        }
        let to_near = || -> Result<_, Evidence> {
            let path = rig.far.context.path_to(1, at_near.address, at_near.gid)?;
            Ok(UdDestination {
                ah: rig.finish(rig.far.pd.create_ah(path))?,
                remote_qpn: at_near.qp_num,
                remote_qkey: QKEY,
            })
        };
        Ok(Self {
            rig,
            at_near,
            desk: rig.far.region(1 << 16, OPEN)?,
            home: rig.near.region(4096, OPEN)?,
            to_far: is_ud.then(|| datagrams_to(rig, &far)).transpose()?,
            to_near: is_ud.then(to_near).transpose()?,
            pair: Pair { near, far },
        })
    }

    fn qp_type(&self) -> QpType {
        self.pair.far.qp_type()
    }

    /// Moves the far queue pair to the next state on the way to RTS.
    fn step(&self, to: QpState) -> Outcome {
        let up = QpAttributes::new().qp_state(to);
        let (is_rc, is_ud) = (self.qp_type() == QpType::Rc, self.qp_type() == QpType::Ud);
        let attributes = match to {
            QpState::Init if is_ud => up.pkey_index(0).port_num(1).qkey(QKEY),
            QpState::Init => up
                .pkey_index(0)
                .port_num(1)
                .qp_access_flags(OPEN - Access::LOCAL_WRITE),
            QpState::Rtr if is_ud => up,
            QpState::Rtr => {
                let port = self.rig.far.context.query_port(1).expect("a port");
                let context = &self.rig.far.context;
                let path = context.path_to(1, self.at_near.address, self.at_near.gid)?;
                let connected = up
                    .ah_attr(path)
                    .path_mtu(port.active_mtu)
                    .dest_qp_num(self.at_near.qp_num)
                    .rq_psn(self.at_near.sq_psn);
                if is_rc {
                    connected.max_dest_rd_atomic(1).min_rnr_timer(1)
                } else {
                    connected
                }
            }
            _ => {
                let psn = self.pair.far.endpoint().expect("an endpoint").sq_psn;
                let ready = up.sq_psn(Psn::new(psn.value()));
                if is_rc {
                    ready.timeout(14).retry_cnt(7).rnr_retry(7).max_rd_atomic(1)
                } else {
                    ready
                }
            }
        };
        self.rig.finish(self.pair.far.modify(attributes))?;
        assert_eq!(self.pair.far.state()?, to);
        Ok(())
    }

    fn receive(&self, id: u64) -> Result<Result<(), PostReason>, Evidence> {
        let data = self.desk.sge(64 * id as usize, 64)?;
        let posted = self.pair.far.post_receive(ReceiveRequest::new(id, data));
        Ok(posted.map_err(|refused| refused.reason))
    }

    fn send(&self, id: u64) -> Result<Result<(), PostReason>, Evidence> {
        let send = wr::Send::new(self.desk.sge(0, 8)?).wr_id(id);
        let send = match &self.to_near {
            Some(to) => send.to(to),
            None => send,
        };
        let posted = self.pair.far.post_one(send);
        Ok(posted.map_err(|rejected| rejected.reason))
    }

    /// Makes the near end send a message.
    fn arrive(&self, id: u64) -> Outcome {
        let send = wr::Send::new(self.rig.scratch.sge(0, 8)?).signaled(id);
        let send = match &self.to_far {
            Some(to) => send.to(to),
            None => send,
        };
        self.pair.near.post_one(send).expect("posted");
        Ok(())
    }

    fn far(&self) -> Vec<(u64, WcStatus)> {
        done(self.rig, &self.pair.far.cq)
    }

    fn near(&self) -> Vec<(u64, WcStatus)> {
        done(self.rig, &self.pair.near.cq)
    }
}

// covers 3.S
fn a_reliable_connection_works_by_its_state(rig: &Rig) -> Outcome {
    let stage = up_to_rts(rig, QpType::Rc)?;
    in_err(&stage)
}

// covers 3.S
fn an_unreliable_connection_works_by_its_state(rig: &Rig) -> Outcome {
    let stage = up_to_rts(rig, QpType::Uc)?;
    in_sqd(&stage)?;
    in_sqe(&stage)?;
    in_err(&stage)
}

// covers 3.S
fn datagrams_work_by_their_state(rig: &Rig) -> Outcome {
    let stage = up_to_rts(rig, QpType::Ud)?;
    in_sqd(&stage)?;
    in_sqe(&stage)?;
    in_err(&stage)
}

fn up_to_rts(rig: &Rig, qp_type: QpType) -> Result<Stage<'_>, Evidence> {
    let stage = Stage::new(rig, qp_type)?;
    let refused = |state| Err(PostReason::InvalidState(state));
    // In RESET nothing can be posted.
    assert_eq!(stage.receive(1)?, refused(QpState::Reset));
    assert_eq!(stage.send(1)?, refused(QpState::Reset));
    assert_eq!(stage.far(), []);
    // In INIT receives can be posted; an arriving message is dropped, and a reliable sender retransmits
    // it.
    stage.step(QpState::Init)?;
    assert_eq!((stage.receive(1)?, stage.receive(2)?), (Ok(()), Ok(())));
    assert_eq!(stage.send(1)?, refused(QpState::Init));
    stage.arrive(1)?;
    assert_eq!(stage.far(), []);
    let keeps = qp_type == QpType::Rc;
    // A stream accepts the bytes of its sender before the peer has them.
    if rig.acknowledges() {
        assert_eq!(stage.near(), if keeps { vec![] } else { ok([1]) });
    }
    // In RTR arriving messages are received; nothing can be sent.
    stage.step(QpState::Rtr)?;
    assert_eq!(stage.receive(3)?, Ok(()));
    assert_eq!(stage.send(1)?, refused(QpState::Rtr));
    if !keeps {
        assert_eq!(stage.far(), [], "lost is lost");
        stage.arrive(1)?;
    }
    // A sender waits four timeouts for its peer's first answer.
    rig.run_for(std::time::Duration::from_millis(400));
    assert_eq!(stage.far(), ok([1]));
    // In RTS messages are sent and received.
    stage.step(QpState::Rts)?;
    stage.arrive(2)?;
    assert_eq!(stage.far(), ok([2]));
    assert_eq!(
        statuses(&poll(&stage.pair.near.cq)).last(),
        Some(&(2, WcStatus::Success))
    );
    let home = |at: usize| stage.pair.near.receive(&stage.home, at * 64, 64);
    (0..8).try_for_each(home)?;
    assert_eq!(stage.send(9)?, Ok(()));
    assert_eq!((stage.far(), stage.near()), (vec![], ok([0])));
    // The third receive is still posted.
    Ok(stage)
}

// One receive, of identity 3, is posted at the far end.
fn in_sqd(stage: &Stage<'_>) -> Outcome {
    let Stage { rig, pair, .. } = stage;
    go_to(rig, &pair.far, QpState::Sqd)?;
    assert_eq!((stage.receive(4)?, stage.send(10)?), (Ok(()), Ok(())));
    stage.arrive(3)?;
    assert_eq!(stage.far(), ok([3]), "receiving goes on, sending does not");
    assert_eq!(stage.near(), ok([3]));
    go_to(rig, &pair.far, QpState::Rts)?;
    assert_eq!((stage.far(), stage.near()), (vec![], ok([64])));
    // As at the start, one receive is posted.
    stage.arrive(4)?;
    assert_eq!((stage.far(), stage.near()), (ok([4]), ok([4])));
    assert_eq!(stage.receive(3)?, Ok(()));
    Ok(())
}

fn in_sqe(stage: &Stage<'_>) -> Outcome {
    let Stage { rig, pair, .. } = stage;
    let bad = wr::Send::new(unusable(rig)).wr_id(20);
    let bad = match &stage.to_near {
        Some(to) => bad.to(to),
        None => bad,
    };
    pair.far.post_one(bad).expect("posted");
    assert_eq!(pair.far.state()?, QpState::Sqe);
    assert_eq!(stage.send(21)?, Ok(()));
    assert_eq!(stage.receive(4)?, Ok(()));
    let sent = stage.far();
    assert_eq!(
        sent,
        [(20, WcStatus::LocProtErr), (21, WcStatus::WrFlushErr)]
    );
    stage.arrive(5)?;
    assert_eq!((stage.far(), stage.near()), (ok([3]), ok([5])));
    // Moved from SQE to RTS again, the send queue works.
    go_to(rig, &pair.far, QpState::Rts)?;
    assert_eq!(stage.send(22)?, Ok(()));
    assert_eq!((stage.far(), stage.near()), (vec![], ok([128])));
    // It fails a second time, so that ERR is entered from SQE.
    let bad = wr::Send::new(unusable(rig)).wr_id(23);
    let bad = match &stage.to_near {
        Some(to) => bad.to(to),
        None => bad,
    };
    pair.far.post_one(bad).expect("posted");
    assert_eq!(stage.far(), [(23, WcStatus::LocProtErr)]);
    assert_eq!(pair.far.state()?, QpState::Sqe);
    Ok(())
}

// Any number of receives may be posted at the far end.
fn in_err(stage: &Stage<'_>) -> Outcome {
    let Stage { rig, pair, .. } = stage;
    go_to(rig, &pair.far, QpState::Err)?;
    let waited = stage.far();
    assert!(
        !waited.is_empty()
            && waited
                .iter()
                .all(|(_, status)| *status == WcStatus::WrFlushErr)
    );
    for id in 30..33 {
        assert_eq!(
            (stage.receive(id)?, stage.send(100 + id)?),
            (Ok(()), Ok(()))
        );
    }
    let mut taken = stage.far();
    taken.sort_by_key(|(id, _)| *id);
    assert_eq!(taken, flushed([30, 31, 32, 130, 131, 132]));
    // An arriving message is dropped.
    let places = stage.desk.bytes(0, 1 << 16)?;
    stage.arrive(6)?;
    assert_eq!(stage.far(), []);
    assert_eq!(stage.desk.bytes(0, 1 << 16)?, places);
    let done = stage.near();
    let delivered = match pair.near.qp_type() {
        // The far end does not acknowledge the message.
        QpType::Rc => !done.contains(&(6, WcStatus::Success)),
        _ => done == ok([6]),
    };
    assert!(delivered, "{done:?}");
    Ok(())
}

// covers 3.S
fn a_draining_queue_starts_nothing_new(rig: &Rig) -> Outcome {
    if rig.attributes().transport == Transport::Iwarp {
        // On iWARP SQD cannot be left: it closes the stream, and both ends are flushed.
        let pair = rig.rc()?;
        go_to(rig, &pair.near, QpState::Sqd)?;
        rig.settle();
        assert_eq!(
            (pair.near.state()?, pair.far.state()?),
            (QpState::Err, QpState::Err)
        );
        let send = wr::Send::new(rig.scratch.sge(0, 8)?).wr_id(1);
        pair.near.post_one(send).expect("taken");
        assert_eq!(done(rig, &pair.near.cq), flushed([1]));
        return Ok(());
    }
    let stage = up_to_rts(rig, QpType::Rc)?;
    in_sqd(&stage)?;
    // A full queue stays full in SQD, and ERR flushes the requests that never began.
    let Pair { near, far } = &stage.pair;
    // A device need not free the slots of unsignaled requests before a later request has completed.
    near.receive(&rig.scratch, 0, 64)?;
    rig.succeeds(far, wr::Send::new(stage.desk.sge(0, 8)?).signaled(999))?;
    go_to(rig, far, QpState::Sqd)?;
    let room = u64::from(far.cap().max_send_wr);
    for id in 0..room {
        assert_eq!(stage.send(1000 + id)?, Ok(()));
    }
    let max = room as u32;
    assert_eq!(stage.send(9)?, Err(PostReason::QueueFull { max }));
    assert_eq!(stage.far(), []);
    go_to(rig, far, QpState::Err)?;
    let ended = stage.far();
    let sends: Vec<_> = ended.into_iter().filter(|(id, _)| *id >= 1000).collect();
    assert_eq!(sends, flushed(1000..1000 + room));
    Ok(())
}

// covers 3.S
fn a_draining_queue_finishes_begun_requests(rig: &Rig) -> Outcome {
    if rig.attributes().transport == Transport::Iwarp {
        return Ok(());
    }
    let pair = rig.rc()?;
    let desk = rig.far.region(1 << 16, OPEN)?;
    pair.far.receive(&desk, 0, 1 << 15)?;
    pair.far.receive(&desk, 1 << 15, 1 << 15)?;
    let data = rig.scratch.sge(0, 20_000)?;
    let long = |id| wr::Send::new(data).signaled(id);
    pair.near.post_one(long(1)).expect("posted");
    let drain = QpAttributes::new()
        .qp_state(QpState::Sqd)
        .en_sqd_async_notify(true);
    rig.finish(pair.near.modify(drain))?;
    pair.near.post_one(long(2)).expect("posted");
    assert_eq!(done(rig, &pair.near.cq), ok([1]));
    assert_eq!(rig.near.events(), [EventType::SqDrained]);
    assert_eq!(done(rig, &pair.far.cq), ok([0]));
    let status = pair.near.query().expect("a queue pair that lives");
    assert!(!status.sq_draining);
    go_to(rig, &pair.near, QpState::Rts)?;
    assert_eq!(done(rig, &pair.near.cq), ok([2]));
    assert_eq!(rig.near.events(), [], "reported once");
    Ok(())
}

// covers 3.S
fn an_error_on_the_way_up_flushes(rig: &Rig) -> Outcome {
    let types = [
        (QpType::Rc, BaselineGaps::empty()),
        (QpType::Uc, BaselineGaps::NO_UC),
        (QpType::Ud, BaselineGaps::NO_UD),
    ];
    for (qp_type, gap) in types {
        if rig.attributes().gaps.intersects(gap) {
            continue;
        }
        for last in [QpState::Init, QpState::Rtr] {
            let stage = Stage::new(rig, qp_type)?;
            stage.step(QpState::Init)?;
            if last == QpState::Rtr {
                stage.step(last)?;
            }
            for id in 1..4 {
                assert_eq!(stage.receive(id)?, Ok(()));
            }
            go_to(rig, &stage.pair.far, QpState::Err)?;
            assert_eq!((stage.receive(4)?, stage.send(5)?), (Ok(()), Ok(())));
            assert_eq!(
                stage.far(),
                flushed([1, 2, 3, 4, 5]),
                "{qp_type:?} {last:?}"
            );
            // In RESET again, the queue pair has forgotten its receives.
            go_to(rig, &stage.pair.far, QpState::Reset)?;
            let refused = Err(PostReason::InvalidState(QpState::Reset));
            assert_eq!((stage.receive(6)?, stage.send(6)?), (refused, refused));
        }
    }
    Ok(())
}
