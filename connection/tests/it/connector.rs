//! The connector on emulated devices of both transports, over the in-process backend.

use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, Context, Cq, Memory, Mr, PathOptions, Pd, Qp, QpOptions, RKey,
    RemoteAddress, Requirements, Started, VerbError, WcStatus,
    wr::{self, ReceiveRequest},
};
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, InProcess, Incoming,
    Listener, Phase, ReadLimits, Refusal, flush,
};
use verbs_api::provider::backend::{Backend, PrivateDataLimits};

const KINDS: [&str; 2] = ["ib0", "iw0"];

struct Rig {
    context: Context,
    pd: Pd,
    cq: Cq,
    memory: Memory,
    mr: Mr,
    network: Arc<InProcess>,
    connector: Connector,
    listener: Listener,
    at: SocketAddr,
}

impl Rig {
    fn new(kind: &str) -> Self {
        let context = device(kind, &EmulatedOptions::default())
            .unwrap()
            .open(&Requirements::new())
            .unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(4096).wait().unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
        let network = InProcess::new();
        let connector = Connector::new(Arc::clone(&network) as Arc<dyn Backend>);
        let listener = connector.listen("10.0.0.1:0".parse().unwrap(), 0).unwrap();
        let at = listener.address();
        Self {
            context,
            pd,
            cq,
            memory,
            mr,
            network,
            connector,
            listener,
            at,
        }
    }

    fn qp(&self) -> Qp {
        self.pd.create_qp(QpOptions::rc(&self.cq)).wait().unwrap()
    }

    fn connect(&self, qp: &Qp, options: ConnectionOptions) -> Started<Accepted, ConnectError> {
        self.connector.connect(&self.context, qp, self.at, options)
    }

    fn ask(&self, qp: &Qp) -> (Started<Accepted, ConnectError>, Incoming) {
        let asked = self.connect(qp, ConnectionOptions::new());
        (asked, self.listener.next().wait().unwrap())
    }

    fn accept(&self, incoming: Incoming, qp: &Qp) -> Started<Connection, ConnectError> {
        incoming.accept(&self.context, qp, ConnectionOptions::new())
    }

    /// Both ends of a connection.
    fn connected(&self, near: &Qp, far: &Qp) -> (Connection, Connection) {
        let (asked, incoming) = self.ask(near);
        let accepted = self.accept(incoming, far);
        let at_near = asked.wait().unwrap().complete().wait().unwrap();
        (at_near, accepted.wait().unwrap())
    }

    fn post_receive(&self, qp: &Qp, wr_id: u64) {
        let sge = self.mr.sge(0, 64).unwrap();
        qp.post_receive(ReceiveRequest::new(wr_id, sge)).unwrap();
    }

    fn completions(&self, count: usize) -> Vec<Completion> {
        (0..count).map(|_| self.cq.next().wait().unwrap()).collect()
    }

    fn nothing_completed(&self) -> bool {
        let mut slots = [Completion::default(); 1];
        self.cq.poll(&mut slots).unwrap().is_empty()
    }
}

fn state(qp: &Qp) -> QpState {
    qp.query().unwrap().state
}

fn error<T>(started: Started<T, ConnectError>) -> ConnectError {
    match started.wait() {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error,
    }
}

// The private data of a peer is padded.
fn refused(said: &[u8]) -> ConnectError {
    let mut private_data = said.to_vec();
    private_data.resize(148, 0);
    ConnectError::Refused {
        reason: Refusal::Program,
        private_data,
    }
}

// covers 7.70
#[test]
fn an_accept_completes_when_the_peer_has_completed() {
    for kind in KINDS {
        let rig = Rig::new(kind);
        let (near, far) = (rig.qp(), rig.qp());
        // Receives may be posted before the connection exists.
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(0)
            .port_num(1)
            .qp_access_flags(Access::empty());
        far.modify(init).wait().unwrap();
        rig.post_receive(&far, 7);
        let asked = rig.connect(&near, ConnectionOptions::new().private_data(b"may I"));
        let incoming = rig.listener.next().wait().unwrap();
        assert!(incoming.private_data().starts_with(b"may I\0"));
        assert!(!asked.is_done());
        let options = ConnectionOptions::new().private_data(b"you may");
        let accepted = incoming.accept(&rig.context, &far, options);
        let pending = asked.wait().unwrap();
        assert!(pending.private_data().starts_with(b"you may\0"));
        assert_eq!(state(&near), QpState::Reset);
        assert!(!accepted.is_done(), "{kind}");
        let connection = pending.complete().wait().unwrap();
        let peer = accepted.wait().unwrap();
        assert_eq!((state(&near), state(&far)), (QpState::Rts, QpState::Rts));

        rig.memory.write(100, b"hello").unwrap();
        near.post_one(wr::Send::new(rig.mr.sge(100, 5).unwrap()).signaled(1))
            .unwrap();
        let done = rig.completions(2);
        assert!(done.iter().all(|done| done.status == WcStatus::Success));
        assert_eq!(rig.memory.to_vec(0, 5).unwrap(), b"hello");
        drop((connection, peer));
    }
}

// covers 7.72 7.73
#[test]
fn a_refusal_has_private_data_and_leaves_the_qp_unchanged() {
    for kind in KINDS {
        let rig = Rig::new(kind);
        let (near, far) = (rig.qp(), rig.qp());
        let (asked, incoming) = rig.ask(&near);
        incoming.reject(b"full").unwrap();
        assert_eq!(error(asked), refused(b"full"));
        assert_eq!(state(&near), QpState::Reset);

        // No program listens at this address.
        let elsewhere = "10.0.0.9:1".parse().unwrap();
        let asked = rig
            .connector
            .connect(&rig.context, &near, elsewhere, ConnectionOptions::new());
        assert!(matches!(error(asked), ConnectError::Refused { .. }));

        // The queue pair may connect again, but not while it is connected.
        let _connection = rig.connected(&near, &far);
        let asked = rig.connect(&near, ConnectionOptions::new());
        assert_eq!(error(asked), ConnectError::Connected);
    }
}

// covers 7.71 7.72
#[test]
fn an_accept_fails_if_the_peer_rejects_gives_up_or_times_out() {
    let rig = Rig::new("ib0");
    for case in 0..3 {
        let (near, far) = (rig.qp(), rig.qp());
        let (asked, incoming) = rig.ask(&near);
        let accepted = rig.accept(incoming, &far);
        let pending = asked.wait().unwrap();
        let expected = match case {
            0 => {
                pending.reject(b"no").unwrap();
                refused(b"no")
            }
            1 => {
                drop(pending);
                ConnectError::Aborted
            }
            _ => {
                rig.network.expire();
                ConnectError::TimedOut
            }
        };
        assert_eq!(error(accepted), expected);
        assert_eq!((state(&near), state(&far)), (QpState::Reset, QpState::Err));
    }
    // A peer gives up before the answer.
    let (near, far) = (rig.qp(), rig.qp());
    let (asked, incoming) = rig.ask(&near);
    rig.network.expire();
    assert_eq!(error(asked), ConnectError::TimedOut);
    assert_eq!(error(rig.accept(incoming, &far)), ConnectError::Aborted);
}

// covers 7.75 7.56
#[test]
fn read_limits_are_clamped_to_the_device_and_the_peer() {
    let rig = Rig::new("ib0");
    let (near, far) = (rig.qp(), rig.qp());
    let asked = rig.connect(&near, ConnectionOptions::new().reads(255, 255));
    let incoming = rig.listener.next().wait().unwrap();
    let limits = rig.context.limits();
    let most = |limit: u32| limit.min(255) as u8;
    let offered = incoming.offered_reads();
    assert_eq!(offered.outbound, most(limits.max_qp_rd_atom));
    let accepted = incoming.accept(&rig.context, &far, ConnectionOptions::new().reads(4, 2));
    let pending = asked.wait().unwrap();
    assert_eq!(
        pending.reads(),
        ReadLimits {
            inbound: 2,
            outbound: 4
        }
    );
    let _connection = pending.complete().wait().unwrap();
    accepted.wait().unwrap();
    let depths = |qp: &Qp| {
        let attributes = qp.query().unwrap().attributes;
        (attributes.max_dest_rd_atomic, attributes.max_rd_atomic)
    };
    assert_eq!(depths(&near), (Some(2), Some(4)));
    assert_eq!(depths(&far), (Some(4), Some(2)));
}

// covers 7.52
#[test]
fn more_private_data_than_fits_is_an_error_and_nothing_is_sent() {
    let rig = Rig::new("ib0");
    let PrivateDataLimits {
        connect, reject, ..
    } = rig.network.private_data();
    assert_eq!((connect, reject), (56, 148));
    let near = rig.qp();
    let asked = rig.connect(&near, ConnectionOptions::new().private_data(&[1; 57]));
    assert_eq!(error(asked), ConnectError::PrivateData { len: 57, max: 56 });
    let asked = rig.connect(&near, ConnectionOptions::new().private_data(&[1; 56]));
    let incoming = rig.listener.next().wait().unwrap();
    assert_eq!(incoming.private_data(), [1; 56]);
    let rejected = incoming.reject(&[1; 149]);
    assert_eq!(
        rejected,
        Err(ConnectError::PrivateData { len: 149, max: 148 })
    );
    assert!(matches!(error(asked), ConnectError::Refused { .. }));
}

// covers 7.77 7.78
#[test]
fn only_the_side_that_disconnects_flushes() {
    for kind in KINDS {
        let rig = Rig::new(kind);
        let (near, far) = (rig.qp(), rig.qp());
        let (at_near, at_far) = rig.connected(&near, &far);
        rig.post_receive(&far, 1);
        rig.post_receive(&far, 2);
        let (first, second) = (at_far.disconnected(), at_far.disconnected());
        assert!(!first.is_done());
        rig.network.pause();
        let disconnected = at_near.disconnect(&rig.context, &near);
        rig.network.deliver();
        first.wait().unwrap();
        second.wait().unwrap();
        if kind == "ib0" {
            // On iWARP the end of the stream itself flushes the other end.
            assert!(rig.nothing_completed());
            assert_eq!(state(&far), QpState::Rts);
        }
        disconnected.wait().unwrap();
        assert_eq!(state(&near), QpState::Err);
        at_far.disconnect(&rig.context, &far).wait().unwrap();
        let done = rig.completions(2);
        assert_eq!(
            done.iter().map(|done| done.wr_id).collect::<Vec<_>>(),
            [1, 2]
        );
        assert!(done.iter().all(|done| done.status == WcStatus::WrFlushErr));
        assert!(rig.nothing_completed());
        at_far.disconnected().wait().unwrap();
    }
}

// covers 7.79
#[test]
fn a_flush_completes_only_requests_of_its_queue_pair() {
    let rig = Rig::new("ib0");
    let qps = [rig.qp(), rig.qp(), rig.qp(), rig.qp()];
    let _first = rig.connected(&qps[0], &qps[1]);
    let _second = rig.connected(&qps[2], &qps[3]);
    rig.post_receive(&qps[0], 1);
    rig.post_receive(&qps[0], 2);
    rig.post_receive(&qps[2], 3);
    flush(&rig.context, &qps[1]).wait().unwrap();
    assert!(rig.nothing_completed());
    flush(&rig.context, &qps[0]).wait().unwrap();
    let ids: Vec<_> = rig.completions(2).iter().map(|done| done.wr_id).collect();
    assert_eq!(ids, [1, 2]);
    assert!(rig.nothing_completed());
    assert_eq!(state(&qps[2]), QpState::Rts);
}

// covers 5.13
#[test]
fn a_qp_destroyed_between_phases_fails_the_second_phase() {
    let rig = Rig::new("ib0");
    let (near, far) = (rig.qp(), rig.qp());
    let (at_near, at_far) = rig.connected(&near, &far);
    rig.network.pause();
    let disconnected = at_near.disconnect(&rig.context, &near);
    near.destroy().wait().unwrap();
    rig.network.deliver();
    assert!(matches!(
        error(disconnected),
        ConnectError::Phase {
            phase: Phase::QueuePair,
            error: VerbError::InvalidHandle(_)
        }
    ));
    at_far.disconnected().wait().unwrap();

    // The queue pair is destroyed while an active side has not completed.
    let (near, far) = (rig.qp(), rig.qp());
    let (asked, incoming) = rig.ask(&near);
    let accepted = rig.accept(incoming, &far);
    let pending = asked.wait().unwrap();
    near.destroy().wait().unwrap();
    let failed = error(pending.complete());
    assert!(matches!(
        failed,
        ConnectError::Phase {
            phase: Phase::QueuePair,
            ..
        }
    ));
    assert_eq!(error(accepted), ConnectError::Aborted);
}

// covers 5.16
#[test]
fn a_request_that_failed_stays_failed() {
    let rig = Rig::new("ib0");
    let (near, far) = (rig.qp(), rig.qp());
    let (asked, incoming) = rig.ask(&near);
    let accepted = rig.accept(incoming, &far);
    let pending = asked.wait().unwrap();
    rig.network.expire();
    // The other side completes too late.
    drop(pending.complete());
    assert_eq!(error(accepted), ConnectError::TimedOut);
}

// covers 7.47 7.63 7.84
#[test]
fn a_listener_has_its_address_alone_and_refuses_when_it_goes() {
    let rig = Rig::new("ib0");
    let again = rig.connector.listen(rig.at, 0);
    assert!(matches!(again, Err(ConnectError::AddressInUse { address, .. }) if address == rig.at));
    assert!(rig.at.port() >= 49152);

    let small = rig
        .connector
        .listen("10.0.0.2:5".parse().unwrap(), 1)
        .unwrap();
    let (first, second) = (rig.qp(), rig.qp());
    let at = small.address();
    let ask = |qp| {
        rig.connector
            .connect(&rig.context, qp, at, ConnectionOptions::new())
    };
    let (waits, refused) = (ask(&first), ask(&second));
    let refused_because = |reason| ConnectError::Refused {
        reason,
        private_data: Vec::new(),
    };
    assert_eq!(error(refused), refused_because(Refusal::BacklogFull));
    assert!(!waits.is_done());
    drop(small);
    assert_eq!(error(waits), refused_because(Refusal::NoListener));
    assert_eq!(error(ask(&first)), refused_because(Refusal::NoListener));
}

// concerns 7.78
#[test]
fn a_queue_pair_that_was_reset_may_connect_again() {
    let rig = Rig::new("ib0");
    let (near, far) = (rig.qp(), rig.qp());
    for _ in 0..3 {
        let (at_near, at_far) = rig.connected(&near, &far);
        at_near.disconnect(&rig.context, &near).wait().unwrap();
        at_far.disconnect(&rig.context, &far).wait().unwrap();
        for qp in [&near, &far] {
            qp.modify(QpAttributes::new().qp_state(QpState::Reset))
                .wait()
                .unwrap();
        }
    }
}

// covers 7.43
#[test]
fn a_connection_request_is_reported_and_answered_once() {
    for kind in KINDS {
        let rig = Rig::new(kind);
        let (near, far, other) = (rig.qp(), rig.qp(), rig.qp());
        let (at_near, at_far) = rig.connected(&near, &far);
        // Neither queue pair can serve another connection.
        let asked = rig.connect(&near, ConnectionOptions::new());
        assert_eq!(error(asked), ConnectError::Connected);
        let (asked, incoming) = rig.ask(&other);
        assert_eq!(error(rig.accept(incoming, &far)), ConnectError::Connected);
        assert!(matches!(error(asked), ConnectError::Refused { .. }));
        assert_eq!((state(&near), state(&far)), (QpState::Rts, QpState::Rts));
        // The connection ends once, and a second disconnect has no other effect.
        at_near.disconnect(&rig.context, &near).wait().unwrap();
        at_far.disconnected().wait().unwrap();
        at_near.disconnect(&rig.context, &near).wait().unwrap();
        at_far.disconnect(&rig.context, &far).wait().unwrap();
        let _again = rig.connected(&other, &rig.qp());
    }
}

// covers 7.44
#[test]
fn a_pending_connect_or_accept_blocks_no_other_call() {
    for kind in KINDS {
        let rig = Rig::new(kind);
        // A queue pair is destroyed, and its connect fails: the listener sees no error.
        let near = rig.qp();
        let (asked, incoming) = rig.ask(&near);
        near.destroy().wait().unwrap();
        incoming.reject(b"").unwrap();
        assert!(matches!(error(asked), ConnectError::Refused { .. }));
        // The queue pair of the passive side is destroyed during an accept.
        let (near, far) = (rig.qp(), rig.qp());
        let (asked, incoming) = rig.ask(&near);
        let accepted = rig.accept(incoming, &far);
        far.destroy().wait().unwrap();
        drop(asked.wait().unwrap());
        assert_eq!(error(accepted), ConnectError::Aborted);
        near.destroy().wait().unwrap();
    }
}

// covers 7.46
#[test]
fn a_failed_accept_refuses_the_peer_and_reports_no_event() {
    for kind in KINDS {
        let rig = Rig::new(kind);
        let (near, far) = (rig.qp(), rig.qp());
        let (asked, incoming) = rig.ask(&near);
        let options = ConnectionOptions::new().private_data(&[0; 1000]);
        let failed = error(incoming.accept(&rig.context, &far, options));
        assert!(matches!(
            failed,
            ConnectError::PrivateData { len: 1000, .. }
        ));
        assert!(matches!(error(asked), ConnectError::Refused { .. }));
        assert_eq!(
            (state(&near), state(&far)),
            (QpState::Reset, QpState::Reset)
        );
        let next = rig.listener.next();
        assert!(!next.is_done());
        let asked = rig.connect(&near, ConnectionOptions::new());
        let accepted = rig.accept(next.wait().unwrap(), &far);
        let _near = asked.wait().unwrap().complete().wait().unwrap();
        accepted.wait().unwrap();
    }
}

// covers 7.83
#[test]
fn each_failure_has_its_status() {
    let far_side = |rig: &Rig, request: &dyn Fn(&Qp), receives: bool| {
        let (near, far) = (rig.qp(), rig.qp());
        let qp = PathOptions::new().rnr_retry(0);
        let options = ConnectionOptions::new().path(qp.access(Access::REMOTE_WRITE));
        let asked = rig.connect(&near, options.clone());
        let incoming = rig.listener.next().wait().unwrap();
        let accepted = incoming.accept(&rig.context, &far, options);
        let near_end = asked.wait().unwrap().complete().wait().unwrap();
        let far_end = accepted.wait().unwrap();
        if receives {
            let room = rig.mr.sge(0, 4).unwrap();
            far.post_receive(ReceiveRequest::new(9, room)).unwrap();
        }
        request(&near);
        let mut done = rig.completions(1 + usize::from(receives));
        done.sort_by_key(|done| done.wr_id);
        drop((near_end, far_end));
        done.iter().map(|done| done.status).collect::<Vec<_>>()
    };
    let rig = Rig::new("ib0");
    let data = rig.mr.sge(0, 64).unwrap();
    let send = |qp: &Qp| qp.post_one(wr::Send::new(data).signaled(1)).unwrap();
    let nowhere = RemoteAddress::new(0, RKey::new(0xbad));
    let write = |qp: &Qp| {
        qp.post_one(wr::Write::new(data, nowhere).signaled(1))
            .unwrap()
    };
    let outside = data.at(0, 64);
    let unread = |qp: &Qp| qp.post_one(wr::Send::new(outside).signaled(1)).unwrap();
    assert_eq!(
        far_side(&rig, &send, true),
        [WcStatus::RemInvReqErr, WcStatus::LocLenErr]
    );
    assert_eq!(far_side(&rig, &send, false), [WcStatus::RnrRetryExcErr]);
    assert_eq!(far_side(&rig, &write, false), [WcStatus::RemAccessErr]);
    assert_eq!(far_side(&rig, &unread, false), [WcStatus::LocProtErr]);
}
