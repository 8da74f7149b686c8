//! Connected queue pairs, and attempts to access memory at the other end.

use std::ops::Deref;

use super::rig::poll_all;
use super::{End, Evidence, Outcome, Region, Rig};
use crate::access::Access;
use crate::context::Context;
use crate::contract::carrier::Carrier;
use crate::cq::Cq;
use crate::event_type::EventType;
use crate::ids::RKey;
use crate::pd::Pd;
use crate::post::PostError;
use crate::qp::{PathOptions, Qp, QpOptions};
use crate::qp_attributes::QpState;
use crate::service::{Operations, QpType};
use crate::wc::{Completion, WcStatus};
use crate::wr::requests::Operation;
use crate::wr::{FetchAdd, Read, ReceiveRequest, RemoteAddress, WorkRequest, Write};

/// The `wr_id` of the requests that these helpers post.
const ATTEMPT: u64 = 0xa77e_3b70;

/// Where in the scratch memory these helpers put what they read. What they write comes from its first bytes.
const SINK: usize = 0x8000;

/// Options that permit the peer writes, reads and atomics, but no right that needs a feature.
pub fn open() -> PathOptions {
    PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
}

/// A queue pair, and a completion queue that no other queue pair uses.
pub struct Side {
    /// The queue pair of this side.
    pub qp: Qp,
    /// The completion queue of its sends and receives.
    pub cq: Cq,
}

/// Two queue pairs that are connected with each other.
pub struct Pair {
    /// The queue pair at the near end of the rig, which usually sends requests.
    pub near: Side,
    /// The queue pair at the far end of the rig.
    pub far: Side,
}

impl Deref for Side {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl Side {
    /// Returns the present state of the queue pair.
    ///
    /// # Errors
    /// The queue pair was destroyed.
    #[track_caller]
    pub fn state(&self) -> Result<QpState, Evidence> {
        Ok(self.qp.query()?.state)
    }

    /// Returns all completions that are in the completion queue.
    ///
    /// # Errors
    /// The queue was destroyed, or has overrun.
    #[track_caller]
    pub fn poll(&self) -> Result<Vec<Completion>, Evidence> {
        poll_all(&self.cq)
    }

    /// Posts a receive into a range of `region`; its `wr_id` is the offset.
    ///
    /// # Errors
    /// The receive is refused.
    #[track_caller]
    pub fn receive(&self, region: &Region, offset: usize, length: u32) -> Outcome {
        let request = ReceiveRequest::new(offset as u64, region.sge(offset, length)?);
        Ok(self.qp.post_receive(request)?)
    }
}

/// Returns every operation of the core that the context was granted and that queue pairs of this type can be created for.
fn operations_of(context: &Context, qp_type: QpType) -> Operations {
    let features = context.features();
    let extras = qp_type.operations() - Operations::BASELINE;
    let granted =
        (extras.iter()).filter(|operation| operation.missing_features(features).is_empty());
    granted.fold(Operations::empty(), |all, one| all | one)
}

impl End {
    /// Returns options for a queue pair with all operations that were granted, 4 scatter/gather entries per request, and
    /// 128 outstanding requests.
    pub fn options(&self, qp_type: QpType, cq: &Cq) -> QpOptions {
        let options = match qp_type {
            QpType::Uc => QpOptions::uc(cq),
            QpType::Ud => QpOptions::ud(cq),
            _ => QpOptions::rc(cq),
        };
        let limits = self.context.limits();
        options
            .operations(operations_of(&self.context, qp_type))
            .max_send_wr(limits.max_qp_wr.min(128))
            .max_recv_wr(limits.max_qp_wr.min(128))
            .max_send_sge(limits.max_send_sge.min(4))
            .max_recv_sge(limits.max_recv_sge.min(4))
    }

    /// Makes a queue pair in RESET with all operations that were granted.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn side(&self, qp_type: QpType) -> Result<Side, Evidence> {
        self.side_with(&self.pd, |cq| self.in_its_mode(self.options(qp_type, cq)))
    }

    fn in_its_mode(&self, options: QpOptions) -> QpOptions {
        match &self.mode {
            Some(mode) => mode(options),
            None => options,
        }
    }

    /// Makes a queue pair in RESET in the domain `pd`, with options that the caller may change.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn side_with(
        &self,
        pd: &Pd,
        options: impl FnOnce(&Cq) -> QpOptions,
    ) -> Result<Side, Evidence> {
        let cq = self.cq(512)?;
        let qp = pd.create_qp(options(&cq)).wait()?;
        Ok(Side { qp, cq })
    }
}

impl Rig {
    /// Makes two connected RC queue pairs with all operations that were granted.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn rc(&self) -> Result<Pair, Evidence> {
        self.connected(self.near.side(QpType::Rc)?, self.far.side(QpType::Rc)?)
    }

    /// Makes two connected queue pairs as [`rc`](Self::rc) does, the far one in the domain `far`.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn rc_in(&self, far: &Pd) -> Result<Pair, Evidence> {
        let far = self.far.side_with(far, |cq| {
            self.far.in_its_mode(self.far.options(QpType::Rc, cq))
        })?;
        self.connected(self.near.side(QpType::Rc)?, far)
    }

    /// Makes two connected UC queue pairs with all operations that were granted.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn uc(&self) -> Result<Pair, Evidence> {
        self.connected(self.near.side(QpType::Uc)?, self.far.side(QpType::Uc)?)
    }

    /// Connects these two queue pairs with the options of [`open`].
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn connected(&self, near: Side, far: Side) -> Result<Pair, Evidence> {
        self.connected_with(near, far, open())
    }

    /// Connects these two queue pairs, with the same options for both.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn connected_with(
        &self,
        near: Side,
        far: Side,
        options: PathOptions,
    ) -> Result<Pair, Evidence> {
        let (at_near, at_far) = (near.endpoint()?, far.endpoint()?);
        // Both are started before either is waited for: a stream needs both ends.
        let first = near.connect(&at_far, options);
        let second = far.connect(&at_near, options);
        self.finish(first)?;
        self.finish(second)?;
        self.wait_for_stream(&self.near, &near);
        self.wait_for_stream(&self.far, &far);
        Ok(Pair { near, far })
    }

    // Over a network a stream takes time to connect. If it does not, the next request shows so.
    fn wait_for_stream(&self, end: &End, side: &Side) {
        if let Some(Carrier::Streams(port)) = end.context.carrier() {
            let has_failed = || !matches!(side.state(), Ok(state) if state != QpState::Err);
            self.pace
                .until(&mut || port.carries(side.qp_num()) || has_failed());
        }
    }

    /// Checks that the two ends reach each other, by a write of no bytes, which needs no valid key.
    ///
    /// # Errors
    /// A port is down or no answer arrives, for which the devices are not at fault; otherwise the error of a device.
    #[track_caller]
    pub(super) fn ends_reach_each_other(&self) -> Outcome {
        for end in [&self.near, &self.far] {
            let state = end.context.query_port(1)?.state;
            if !state.is_active() {
                let why = format!("port 1 is {}: it carries no traffic", state.name());
                return Err(Evidence::not_here(why));
            }
        }
        let nothing = Write::new((), RemoteAddress::new(0, RKey::new(0)));
        match self.run(&self.rc()?.near, nothing)? {
            WcStatus::RetryExcErr => Err(Evidence::not_here(
                "a write of no bytes gets no answer: the two ends do not reach each other",
            )),
            _ => Ok(()),
        }
    }

    /// Posts a request, signaled, and returns the status of its completion.
    ///
    /// # Errors
    /// The request is refused, or another request completes.
    #[track_caller]
    pub fn run<'a>(
        &self,
        side: &Side,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<WcStatus, Evidence> {
        Ok(self.run_if_taken(side, request)??)
    }

    /// Posts a request as [`run`](Self::run) does, and returns the error of the post if it is refused.
    ///
    /// # Errors
    /// Another request completes.
    #[track_caller]
    pub fn run_if_taken<'a>(
        &self,
        side: &Side,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<Result<WcStatus, PostError>, Evidence> {
        let mut request = request.into();
        let common = request.common_mut();
        common.flags |= crate::wr::SendFlags::SIGNALED;
        let (wr_id, opcode) = (request.common().wr_id, request.wc_opcode());
        if let Err(refused) = side.post_one(request) {
            return Ok(Err(refused));
        }
        let done = self.take(&side.cq, 1)?.remove(0);
        let is_its = done.wr_id == wr_id && done.qp_num == side.qp_num();
        let says = !done.status.is_success() || done.opcode == opcode;
        if is_its && says {
            Ok(Ok(done.status))
        } else {
            Err(Evidence::wrong(format!(
                "request {wr_id} ({opcode:?}) was posted, and {} ({:?}) of queue pair {} completed",
                done.wr_id, done.opcode, done.qp_num
            )))
        }
    }

    /// Posts a request that must succeed.
    ///
    /// # Errors
    /// The request does not succeed.
    #[track_caller]
    pub fn succeeds<'a>(&self, side: &Side, request: impl Into<WorkRequest<'a>>) -> Outcome {
        match self.run(side, request)? {
            WcStatus::Success => Ok(()),
            status => Err(Evidence::ended(status)),
        }
    }

    /// Posts a request that must fail locally: it completes with one of `statuses`, and the queue pair can send no further
    /// requests.
    ///
    /// # Errors
    /// The request does not fail like this.
    #[track_caller]
    pub fn fails<'a>(
        &self,
        side: &Side,
        request: impl Into<WorkRequest<'a>>,
        statuses: &[WcStatus],
    ) -> Outcome {
        let status = self.run(side, request)?;
        if !statuses.contains(&status) {
            return Err(Evidence::wrong(format!(
                "ended with {status:?}, expected {statuses:?}"
            )));
        }
        self.settle();
        let expected = match side.qp_type() {
            QpType::Uc | QpType::Ud => QpState::Sqe,
            _ => QpState::Err,
        };
        let state = side.state()?;
        if state == expected {
            return Ok(());
        }
        Err(Evidence::wrong(format!(
            "a request failed, and the queue pair is in {state}, not {expected}"
        )))
    }

    /// Whether the far end permits the near one to write eight bytes to `remote`. A refusal ends the connection.
    ///
    /// # Errors
    /// The write neither succeeds nor is refused as an access error.
    #[track_caller]
    pub fn can_write(&self, pair: &Pair, remote: RemoteAddress) -> Result<bool, Evidence> {
        self.can_write_bytes(pair, remote, 8)
    }

    /// Whether the far end permits the near one to write `length` bytes to `remote`. A refusal ends the connection.
    ///
    /// # Errors
    /// The write neither succeeds nor is refused as an access error.
    #[track_caller]
    pub fn can_write_bytes(
        &self,
        pair: &Pair,
        remote: RemoteAddress,
        length: u32,
    ) -> Result<bool, Evidence> {
        let data = self.scratch.sge(0, length)?;
        self.is_granted(pair, Write::new(data, remote).wr_id(ATTEMPT))
    }

    /// Whether the far end permits the near one to read eight bytes from `remote`. A refusal ends the connection.
    ///
    /// # Errors
    /// The read neither succeeds nor is refused as an access error.
    #[track_caller]
    pub fn can_read(&self, pair: &Pair, remote: RemoteAddress) -> Result<bool, Evidence> {
        self.can_read_bytes(pair, remote, 8)
    }

    /// Whether the far end permits the near one to read `length` bytes from `remote`, into the second half of the scratch
    /// memory. A refusal ends the connection.
    ///
    /// # Errors
    /// The read neither succeeds nor is refused as an access error.
    #[track_caller]
    pub fn can_read_bytes(
        &self,
        pair: &Pair,
        remote: RemoteAddress,
        length: u32,
    ) -> Result<bool, Evidence> {
        let sink = self.scratch.sge(SINK, length)?;
        self.is_granted(pair, Read::new(sink, remote).wr_id(ATTEMPT))
    }

    /// Whether the far end permits the near one an atomic add to eight bytes at `remote`. A refusal ends the connection.
    ///
    /// # Errors
    /// The atomic neither succeeds nor is refused as an access error.
    #[track_caller]
    pub fn can_add(&self, pair: &Pair, remote: RemoteAddress) -> Result<bool, Evidence> {
        let sink = self.scratch.sge(SINK, 8)?;
        self.is_granted(pair, FetchAdd::new(sink, remote, 1).wr_id(ATTEMPT))
    }

    /// Whether the far end permits a request. A refusal ends the connection.
    ///
    /// # Errors
    /// The request neither succeeds nor is refused as an access error.
    #[track_caller]
    pub fn is_granted<'a>(
        &self,
        pair: &Pair,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<bool, Evidence> {
        match self.verdict(pair, request)? {
            WcStatus::Success => Ok(true),
            WcStatus::RemAccessErr => Ok(false),
            other => Err(Evidence::wrong(format!(
                "neither granted nor refused: {other:?}"
            ))),
        }
    }

    /// Posts a request and returns how the far end answered it, as a status of InfiniBand. If it refused the request, both
    /// queue pairs are in ERR.
    ///
    /// # Errors
    /// The queue pairs are not in ERR after a refusal, or the request cannot be posted.
    #[track_caller]
    pub fn verdict<'a>(
        &self,
        pair: &Pair,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<WcStatus, Evidence> {
        Ok(self.verdict_if_taken(pair, request)??)
    }

    /// Posts a request as [`verdict`](Self::verdict) does, and returns the error of the post if it is refused.
    ///
    /// # Errors
    /// The queue pairs are not in ERR after the far end has refused the request.
    #[track_caller]
    pub fn verdict_if_taken<'a>(
        &self,
        pair: &Pair,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<Result<WcStatus, PostError>, Evidence> {
        let request = request.into();
        // Only an answer reports a refusal to the requester; without an answer a write completes before it is refused.
        let is_answered = self.acknowledges() || request.is_read_or_atomic();
        self.far.events();
        let status = match self.run_if_taken(&pair.near, request)? {
            Ok(status) => status,
            Err(refused) => return Ok(Err(refused)),
        };
        if !(self.acknowledges() && status.is_success()) {
            self.settle();
        }
        if status.is_success() && pair.far.state()? == QpState::Rts {
            let state = pair.near.state()?;
            if state != QpState::Rts {
                self.complain(format!(
                    "a request was granted, and its queue pair is in {state}"
                ));
            }
            return Ok(Ok(status));
        }
        let states = (pair.near.state()?, pair.far.state()?);
        if states != (QpState::Err, QpState::Err) {
            return Err(Evidence::wrong(format!(
                "a request ended with {status:?}, and the queue pairs are in {} and {}",
                states.0, states.1
            )));
        }
        let events = self.far.events();
        pair.near.poll()?;
        if is_answered == status.is_success() {
            self.complain(format!("a request that was refused ended with {status:?}"));
        }
        if status.is_success() {
            // The peer's event shows the refusal.
            return Ok(Ok(match events[..] {
                [EventType::QpAccessErr] => WcStatus::RemAccessErr,
                _ => WcStatus::RemInvReqErr,
            }));
        }
        let expected = match status {
            WcStatus::RemAccessErr => EventType::QpAccessErr,
            _ => EventType::QpReqErr,
        };
        if events != [expected] {
            self.complain(format!("{status:?} raised {events:?}, not {expected:?}"));
        }
        Ok(Ok(status))
    }
}
