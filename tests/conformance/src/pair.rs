//! Connected queue pairs, and attempts on the memory at the other end.

use std::ops::Deref;

use verbs_api::provider::carrier::Carrier;
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, ConnectOptions, Context, Cq, Operations, Pd, PostError, Qp, QpOptions, RemoteAddress,
    WcStatus,
    event::EventType,
    provider::Operation,
    wr::{self, ReceiveRequest, WorkRequest},
};

use crate::rig::poll_all;
use crate::{End, Region, Rig};

/// The identity of requests that helpers post.
const ATTEMPT: u64 = 0xa77e_3b70;

/// Options of a queue pair whose peer may write, read and operate atomically, and nothing else that a program has to ask for.
pub fn open() -> ConnectOptions {
    ConnectOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
}

/// A queue pair, and a completion queue that nobody else uses.
pub struct Side {
    /// The queue pair.
    pub qp: Qp,
    /// Where its requests complete.
    pub cq: Cq,
}

/// Two queue pairs, connected with each other.
pub struct Pair {
    /// Of the near device.
    pub near: Side,
    /// Of the far device.
    pub far: Side,
}

impl Deref for Side {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl Side {
    /// Its state now.
    ///
    /// # Panics
    /// It was destroyed.
    pub fn state(&self) -> QpState {
        self.qp.query().expect("a queue pair that lives").state
    }

    /// Posts a receive into a stretch of `region`, with its offset as identity.
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
    /// What a queue pair is created with that does everything: four entries, and room for 128.
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

    /// A queue pair in RESET that does everything.
    pub fn side(&self, qp_type: QpType) -> Side {
        self.side_with(&self.pd, |cq| self.in_its_mode(self.options(qp_type, cq)))
    }

    // What is asked for without a shared receive queue.
    fn in_its_mode(&self, options: QpOptions) -> QpOptions {
        match &self.progress {
            Some(progress) => options.with(progress),
            None => options,
        }
    }

    /// A queue pair in RESET, in some domain and with options of the caller's.
    pub fn side_with(&self, pd: &Pd, options: impl FnOnce(&Cq) -> QpOptions) -> Side {
        let cq = self.cq(512);
        let qp = pd.create_qp(options(&cq)).wait().expect("a queue pair");
        Side { qp, cq }
    }
}

impl Rig {
    /// Connected RC queue pairs that do everything.
    pub fn rc(&self) -> Pair {
        self.connected(self.near.side(QpType::Rc), self.far.side(QpType::Rc))
    }

    /// The same, the far one in some domain.
    pub fn rc_in(&self, far: &Pd) -> Pair {
        let far = self.far.side_with(far, |cq| {
            self.far.in_its_mode(self.far.options(QpType::Rc, cq))
        });
        self.connected(self.near.side(QpType::Rc), far)
    }

    /// Connected UC queue pairs that do everything.
    pub fn uc(&self) -> Pair {
        self.connected(self.near.side(QpType::Uc), self.far.side(QpType::Uc))
    }

    /// Connects these with [`open`].
    pub fn connected(&self, near: Side, far: Side) -> Pair {
        self.connected_with(near, far, open())
    }

    /// Connects these, with the same options on both sides.
    ///
    /// # Panics
    /// They are refused.
    pub fn connected_with(&self, near: Side, far: Side, options: ConnectOptions) -> Pair {
        let at_near = near.endpoint().expect("an endpoint");
        let at_far = far.endpoint().expect("an endpoint");
        // Both are started before either is waited for: a stream needs both ends.
        let first = near.connect(&at_far, options);
        let second = far.connect(&at_near, options);
        self.finish(first);
        self.finish(second);
        self.wait_for_stream(&self.near, &near);
        self.wait_for_stream(&self.far, &far);
        Pair { near, far }
    }

    // Over a network a stream takes its time: what is tested is what comes then.
    fn wait_for_stream(&self, end: &End, side: &Side) {
        if let Some(Carrier::Streams(port)) = end.context.carrier() {
            let is_up = || port.carries(side.qp_num()) || side.state() == QpState::Err;
            self.wait_until(is_up);
        }
    }

    /// Posts a request and answers how it ended. It is signaled, and its completion is the only one.
    ///
    /// # Panics
    /// It is refused, or something else completes.
    pub fn run<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>) -> WcStatus {
        let ended = self.run_if_taken(side, request);
        ended.expect("a request that is taken")
    }

    /// The same of a request that may be refused at once.
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
    /// It does not.
    pub fn succeeds<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>) {
        assert_eq!(self.run(side, request), WcStatus::Success);
    }

    /// Posts a request that fails on its own side: with `status`, and the queue pair cannot send any
    /// more.
    ///
    /// # Panics
    /// It does not.
    pub fn fails<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>, status: WcStatus) {
        assert_eq!(self.run(side, request), status);
        let stopped = if side.qp_type() == QpType::Rc {
            QpState::Err
        } else {
            QpState::Sqe
        };
        assert_eq!(side.state(), stopped);
    }

    /// Posts a bind that is refused at once, as a device may that has no room for what is wrong in a request, or fails.
    ///
    /// # Panics
    /// It binds.
    pub fn does_not_bind(&self, side: &Side, bind: wr::BindWindow<'_>) {
        match self.run_if_taken(side, bind) {
            Ok(status) => {
                assert_eq!(status, WcStatus::MwBindErr);
                assert_eq!(side.state(), QpState::Err);
            }
            Err(refused) => self.may_refuse(side, &refused),
        }
    }

    /// A request is refused at once, and nothing else has happened: only a library of C may see by itself what is wrong in it,
    /// or has no form for it.
    fn may_refuse(&self, side: &Side, refused: &PostError) {
        assert!(self.is_given(), "{refused}");
        self.settle();
        assert_eq!(side.state(), QpState::Rts);
    }

    /// Whether the far device lets this pair write eight octets there. Where it does not, what must
    /// follow has followed.
    pub fn can_write(&self, pair: &Pair, remote: RemoteAddress) -> bool {
        self.can_write_octets(pair, remote, 8)
    }

    /// The same for some number of octets.
    pub fn can_write_octets(&self, pair: &Pair, remote: RemoteAddress, length: u32) -> bool {
        let data = self.scratch.sge(0, length);
        self.is_granted(pair, wr::Write::new(data, remote).signaled(ATTEMPT))
    }

    /// Whether the far device lets this pair read eight octets there.
    pub fn can_read(&self, pair: &Pair, remote: RemoteAddress) -> bool {
        self.can_read_octets(pair, remote, 8)
    }

    /// The same for some number of octets.
    pub fn can_read_octets(&self, pair: &Pair, remote: RemoteAddress, length: u32) -> bool {
        let sink = self.scratch.sge(0x8000, length);
        self.is_granted(pair, wr::Read::new(sink, remote).signaled(ATTEMPT))
    }

    /// Whether the far device lets this pair operate atomically there.
    pub fn can_add(&self, pair: &Pair, remote: RemoteAddress) -> bool {
        let result = self.scratch.sge(0x8000, 8);
        self.is_granted(pair, wr::FetchAdd::new(result, remote, 1).signaled(ATTEMPT))
    }

    /// Posts a signaled request and tells whether the far device let it access its memory.
    ///
    /// # Panics
    /// It ended otherwise: refused for another reason, or not with what follows from a refusal.
    pub fn is_granted<'a>(&self, pair: &Pair, request: impl Into<WorkRequest<'a>>) -> bool {
        match self.verdict(pair, request) {
            WcStatus::Success => true,
            WcStatus::RemAccessErr => false,
            other => panic!("neither granted nor refused: {other:?}"),
        }
    }

    /// Posts a signaled request that asks for what no device may do: the far one refuses it, or a library sees that it would.
    ///
    /// # Panics
    /// It is done, or refused for another reason.
    pub fn is_invalid<'a>(&self, pair: &Pair, request: impl Into<WorkRequest<'a>>) {
        match self.verdict_if_taken(pair, request) {
            Ok(status) => assert_eq!(status, WcStatus::RemInvReqErr),
            Err(refused) => self.may_refuse(&pair.near, &refused),
        }
    }

    /// Posts a signaled request and tells how the far device took it, in InfiniBand's words. Where it
    /// was refused, both queue pairs are in ERR and the far program was told.
    ///
    /// # Panics
    /// They are not.
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
        // Only an answer tells a requester; without one a write has completed before it was refused.
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
