//! Connected queue pairs, and attempts on the memory at the other end.

use std::ops::Deref;

use verbs_api::provider::carrier::Carrier;
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Context, Cq, Operations, PathOptions, Pd, PostError, Qp, QpOptions, RemoteAddress,
    WcStatus,
    event::EventType,
    provider::Operation,
    wr::{self, ReceiveRequest, WorkRequest},
};

use crate::rig::poll_all;
use crate::{End, Region, Rig};

/// The identity of requests that helpers post.
const ATTEMPT: u64 = 0xa77e_3b70;

/// Options of a queue pair whose peer may write, read and operate atomically, and no other right that a program has to request.
pub fn open() -> PathOptions {
    PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
}

/// A queue pair, and a completion queue of its own.
pub struct Side {
    /// The queue pair.
    pub qp: Qp,
    /// The completion queue of both its work queues.
    pub cq: Cq,
}

/// Two queue pairs, connected with each other.
pub struct Pair {
    /// The queue pair of the near device.
    pub near: Side,
    /// The queue pair of the far device.
    pub far: Side,
}

impl Deref for Side {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl Side {
    /// The current state of the queue pair.
    ///
    /// # Panics
    /// The queue pair was destroyed.
    pub fn state(&self) -> QpState {
        self.qp.query().expect("a queue pair that lives").state
    }

    /// Posts a receive into a range of `region`, with its offset as identity.
    pub fn receive(&self, region: &Region, offset: usize, length: u32) {
        let request = ReceiveRequest::new(offset as u64, region.sge(offset, length));
        self.qp.post_receive(request).expect("a receive");
    }
}

/// Every operation that queue pairs of this type can be created for.
pub(crate) fn operations_of(context: &Context, qp_type: QpType) -> Operations {
    let features = context.features();
    let extras = qp_type.operations() - Operations::BASELINE;
    let granted =
        (extras.iter()).filter(|operation| operation.missing_features(features).is_empty());
    granted.fold(Operations::empty(), |all, one| all | one)
}

impl End {
    /// The options of a queue pair that does every operation: four scatter/gather entries, and room for 128 requests.
    pub fn options(&self, qp_type: QpType, cq: &Cq) -> QpOptions {
        let options = match qp_type {
            QpType::Uc => QpOptions::uc(cq),
            QpType::Ud => QpOptions::ud(cq),
            _ => QpOptions::rc(cq),
        };
        let limits = self.context.limits();
        options
            .operations(operations_of(&self.context, qp_type))
            .max_send_wr(128)
            .max_recv_wr(128)
            .max_send_sge(limits.max_send_sge.min(4))
            .max_recv_sge(limits.max_recv_sge.min(4))
    }

    /// A queue pair in RESET that does every operation.
    pub fn side(&self, qp_type: QpType) -> Side {
        self.side_with(&self.pd, |cq| self.in_its_mode(self.options(qp_type, cq)))
    }

    // Applied to the options of a queue pair that has no shared receive queue.
    fn in_its_mode(&self, options: QpOptions) -> QpOptions {
        match &self.progress {
            Some(progress) => options.with(progress),
            None => options,
        }
    }

    /// A queue pair in RESET, in the caller's domain and with the caller's options.
    pub fn side_with(&self, pd: &Pd, options: impl FnOnce(&Cq) -> QpOptions) -> Side {
        let cq = self.cq(512);
        let qp = pd.create_qp(options(&cq)).wait().expect("a queue pair");
        Side { qp, cq }
    }
}

impl Rig {
    /// Connected RC queue pairs that do every operation.
    pub fn rc(&self) -> Pair {
        self.connected(self.near.side(QpType::Rc), self.far.side(QpType::Rc))
    }

    /// Connected RC queue pairs that do every operation, the far one in the given domain.
    pub fn rc_in(&self, far: &Pd) -> Pair {
        let far = self.far.side_with(far, |cq| {
            self.far.in_its_mode(self.far.options(QpType::Rc, cq))
        });
        self.connected(self.near.side(QpType::Rc), far)
    }

    /// Connected UC queue pairs that do every operation.
    pub fn uc(&self) -> Pair {
        self.connected(self.near.side(QpType::Uc), self.far.side(QpType::Uc))
    }

    /// Connects both queue pairs with [`open`].
    pub fn connected(&self, near: Side, far: Side) -> Pair {
        self.connected_with(near, far, open())
    }

    /// Connects both queue pairs, with the same options on both sides.
    ///
    /// # Panics
    /// The connection is refused.
    pub fn connected_with(&self, near: Side, far: Side, options: PathOptions) -> Pair {
        let at_near = near.endpoint().expect("an endpoint");
        let at_far = far.endpoint().expect("an endpoint");
        // Both are started before the test waits for either: a stream needs both ends.
        let first = near.connect(&at_far, options);
        let second = far.connect(&at_near, options);
        self.finish(first);
        self.finish(second);
        self.wait_for_stream(&self.near, &near);
        self.wait_for_stream(&self.far, &far);
        Pair { near, far }
    }

    // Over a network a stream takes time to connect; the tests are about the connected stream.
    fn wait_for_stream(&self, end: &End, side: &Side) {
        if let Some(Carrier::Streams(port)) = end.context.carrier() {
            let is_up = || port.carries(side.qp_num()) || side.state() == QpState::Err;
            self.wait_until(is_up);
        }
    }

    /// Posts a request and returns the status with which it completed. The request must be signaled, and its completion the
    /// only one.
    ///
    /// # Panics
    /// The request is refused, or another request completes.
    pub fn run<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>) -> WcStatus {
        let ended = self.run_if_taken(side, request);
        ended.expect("a request that is taken")
    }

    /// Posts a request as [`Rig::run`] does, but returns the refusal if it is refused while posting.
    fn run_if_taken<'a>(
        &self,
        side: &Side,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<WcStatus, PostError> {
        let request = request.into();
        let (wr_id, opcode) = (request.common().wr_id, request.wc_opcode());
        side.post_one(request)?;
        let done = self.take(&side.cq, 1).remove(0);
        assert_eq!((done.wr_id, done.qp_num), (wr_id, side.qp_num()));
        if done.status.is_success() {
            assert_eq!(done.opcode, opcode);
        }
        Ok(done.status)
    }

    /// Posts a request that succeeds.
    ///
    /// # Panics
    /// The request does not succeed.
    pub fn succeeds<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>) {
        assert_eq!(self.run(side, request), WcStatus::Success);
    }

    /// Posts a request that fails on its own side with `status`, after which the queue pair cannot send.
    ///
    /// # Panics
    /// The request does not fail in this way.
    pub fn fails<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>, status: WcStatus) {
        assert_eq!(self.run(side, request), status);
        let stopped = if side.qp_type() == QpType::Rc {
            QpState::Err
        } else {
            QpState::Sqe
        };
        assert_eq!(side.state(), stopped);
    }

    /// Posts a bind that fails, or that is refused while posting: a device that cannot encode the faulty request may refuse it
    /// then.
    ///
    /// # Panics
    /// The bind succeeds.
    pub fn does_not_bind(&self, side: &Side, bind: wr::BindWindow<'_>) {
        match self.run_if_taken(side, bind) {
            Ok(status) => {
                assert_eq!(status, WcStatus::MwBindErr);
                assert_eq!(side.state(), QpState::Err);
            }
            Err(refused) => self.may_refuse(side, &refused),
        }
    }

    /// Checks that a request that was refused while posting had no other effect. Only a C library may refuse it: such a
    /// library checks the request itself, or has no encoding for it.
    fn may_refuse(&self, side: &Side, refused: &PostError) {
        assert!(self.is_given(), "{refused}");
        self.settle();
        assert_eq!(side.state(), QpState::Rts);
    }

    /// Whether the far device lets this pair write eight bytes there. If the device refuses, all consequences of the refusal
    /// have been checked.
    pub fn can_write(&self, pair: &Pair, remote: RemoteAddress) -> bool {
        self.can_write_octets(pair, remote, 8)
    }

    /// Whether the far device lets this pair write `length` bytes there.
    pub fn can_write_octets(&self, pair: &Pair, remote: RemoteAddress, length: u32) -> bool {
        let data = self.scratch.sge(0, length);
        self.is_granted(pair, wr::Write::new(data, remote).signaled(ATTEMPT))
    }

    /// Whether the far device lets this pair read eight bytes there.
    pub fn can_read(&self, pair: &Pair, remote: RemoteAddress) -> bool {
        self.can_read_octets(pair, remote, 8)
    }

    /// Whether the far device lets this pair read `length` bytes there.
    pub fn can_read_octets(&self, pair: &Pair, remote: RemoteAddress, length: u32) -> bool {
        let sink = self.scratch.sge(0x8000, length);
        self.is_granted(pair, wr::Read::new(sink, remote).signaled(ATTEMPT))
    }

    /// Whether the far device lets this pair operate atomically there.
    pub fn can_add(&self, pair: &Pair, remote: RemoteAddress) -> bool {
        let result = self.scratch.sge(0x8000, 8);
        self.is_granted(pair, wr::FetchAdd::new(result, remote, 1).signaled(ATTEMPT))
    }

    /// Posts a signaled request and returns whether the far device let it access its memory.
    ///
    /// # Panics
    /// The request was refused for another reason, or the consequences of a refusal are absent.
    pub fn is_granted<'a>(&self, pair: &Pair, request: impl Into<WorkRequest<'a>>) -> bool {
        match self.verdict(pair, request) {
            WcStatus::Success => true,
            WcStatus::RemAccessErr => false,
            other => panic!("neither granted nor refused: {other:?}"),
        }
    }

    /// Posts a signaled request that no device may execute: the far device refuses it, or a C library foresees the refusal.
    ///
    /// # Panics
    /// The request is executed, or refused for another reason.
    pub fn is_invalid<'a>(&self, pair: &Pair, request: impl Into<WorkRequest<'a>>) {
        match self.verdict_if_taken(pair, request) {
            Ok(status) => assert_eq!(status, WcStatus::RemInvReqErr),
            Err(refused) => self.may_refuse(&pair.near, &refused),
        }
    }

    /// Posts a signaled request and returns the verdict of the far device as an InfiniBand status. If the device refused the
    /// request, both queue pairs are in ERR and the far program has received an event.
    ///
    /// # Panics
    /// The queue pairs are in another state, or the event is missing.
    pub fn verdict<'a>(&self, pair: &Pair, request: impl Into<WorkRequest<'a>>) -> WcStatus {
        let verdict = self.verdict_if_taken(pair, request);
        verdict.expect("a request that is taken")
    }

    fn verdict_if_taken<'a>(
        &self,
        pair: &Pair,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<WcStatus, PostError> {
        let request = request.into();
        let reads = request.is_read_or_atomic();
        self.far.events();
        let status = self.run_if_taken(&pair.near, request)?;
        self.settle();
        if status.is_success() && pair.far.state() == QpState::Rts {
            assert_eq!(pair.near.state(), QpState::Rts);
            return Ok(status);
        }
        // Only an answer reports a refusal to the requester; without an answer a write completes before it is refused.
        let told = self.acknowledges() || reads;
        assert_eq!(told, !status.is_success(), "{status:?}");
        assert_eq!(
            (pair.near.state(), pair.far.state()),
            (QpState::Err, QpState::Err)
        );
        let events = self.far.events();
        poll_all(&pair.near.cq);
        if !told {
            return Ok(match events[..] {
                [EventType::QpAccessErr] => WcStatus::RemAccessErr,
                _ => WcStatus::RemInvReqErr,
            });
        }
        let expected = match status {
            WcStatus::RemAccessErr => EventType::QpAccessErr,
            _ => EventType::QpReqErr,
        };
        if events != [expected] {
            self.complain(format!("{status:?} raised {events:?}, not {expected:?}"));
        }
        Ok(status)
    }
}
