//! Creation options of queue pairs, and their checks.

use crate::capability::{Baseline, BaselineGaps, DeviceAttributes, Grant, Limit, Limits};
use crate::contract::{QpExtension, QpShape};
use crate::cq::Cq;
use crate::error::{ArgumentReason, VerbError};
use crate::lifecycle::ContextCore;
use crate::object_id::ObjectId;
use crate::post::{PostReason, QpRules};
use crate::qp_attributes::{QpCap, QpVariant};
use crate::service::{Operations, QpType};
use crate::srq::Srq;

/// The options with which a queue pair is created.
///
/// By default the queue pair supports every operation of its service that needs no feature.
///
/// ```
/// # fn example(cq: &verbs_api::Cq) {
/// use verbs_api::{Operations, QpOptions};
/// let options = QpOptions::rc(cq).max_send_wr(128).operations(Operations::LOCAL_INV);
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
#[must_use]
pub struct QpOptions {
    pub(super) qp_type: QpType,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) srq: Option<Srq>,
    cap: QpCap,
    max_inline_data: Option<u32>,
    pub(super) reserved: u32,
    pub(super) sq_sig_all: bool,
    wanted: Operations,
    only: bool,
    pub(super) extensions: Vec<QpExtension>,
}

impl QpOptions {
    fn new(qp_type: QpType, cq: &Cq) -> Self {
        Self {
            qp_type,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap::default(),
            max_inline_data: None,
            reserved: 0,
            sq_sig_all: false,
            wanted: Operations::empty(),
            only: false,
            extensions: Vec::new(),
        }
    }

    /// Options of a reliable connected (RC) queue pair, whose sends and receives complete on `cq`.
    pub fn rc(cq: &Cq) -> Self {
        Self::new(QpType::Rc, cq)
    }

    /// Options of an unreliable connected (UC) queue pair, whose sends and receives complete on `cq`.
    pub fn uc(cq: &Cq) -> Self {
        Self::new(QpType::Uc, cq)
    }

    /// Options of an unreliable datagram (UD) queue pair, whose sends and receives complete on `cq`.
    pub fn ud(cq: &Cq) -> Self {
        Self::new(QpType::Ud, cq)
    }

    /// Lets receives complete on another completion queue than sends.
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Lets the queue pair take its receives from a shared receive queue.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sets the least number of requests that can be outstanding on the send queue. 64 by default.
    pub fn max_send_wr(mut self, max_send_wr: u32) -> Self {
        self.cap.max_send_wr = max_send_wr;
        self
    }

    /// Sets the least number of receives that can be outstanding. 64 by default; ignored if a shared receive queue is used.
    pub fn max_recv_wr(mut self, max_recv_wr: u32) -> Self {
        self.cap.max_recv_wr = max_recv_wr;
        self
    }

    /// Sets the least number of scatter/gather entries that a send-queue request can have. 1 by default.
    pub fn max_send_sge(mut self, max_send_sge: u32) -> Self {
        self.cap.max_send_sge = max_send_sge;
        self
    }

    /// Sets the least number of scatter/gather entries that a receive can have. 1 by default; ignored if a shared receive
    /// queue is used.
    pub fn max_recv_sge(mut self, max_recv_sge: u32) -> Self {
        self.cap.max_recv_sge = max_recv_sge;
        self
    }

    /// Sets the least number of bytes of inline data that a request can have. 64 by default, or the device's limit if that
    /// is less.
    pub fn max_inline_data(mut self, max_inline_data: u32) -> Self {
        self.max_inline_data = Some(max_inline_data);
        self
    }

    /// Sets all five sizes of the queues.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.max_inline_data = Some(cap.max_inline_data);
        self.cap = cap;
        self
    }

    /// Makes every request signaled, even without the flag.
    pub fn sq_sig_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// Reserves entries of the send queue for `outstanding` portable operations, in addition to `max_send_wr`. Other
    /// requests cannot take them. An operation takes two entries on a device that has no single request for it.
    pub fn reserve_portable(mut self, outstanding: u32) -> Self {
        self.reserved = outstanding.saturating_mul(crate::portable::MAX_SLOTS);
        self
    }

    /// Adds operations that the queue pair must support: bits, or those of an extension's handle. If one of them is not
    /// available, creation fails.
    pub fn operations(mut self, operations: impl Into<Operations>) -> Self {
        self.wanted |= operations.into();
        self
    }

    /// Adds a flag or a mode of an extension. Creation honours it or fails.
    pub fn with(mut self, extension: impl Into<QpExtension>) -> Self {
        self.extensions.push(extension.into());
        self
    }

    /// Lets the queue pair support exactly these operations and no others.
    pub fn only(mut self, operations: impl Into<Operations>) -> Self {
        self.wanted = operations.into();
        self.only = true;
        self
    }

    pub(super) fn granted_operations(
        &self,
        context: &ContextCore,
    ) -> Result<Operations, VerbError> {
        let grant = &context.grant;
        let features = grant.features();
        if self.variant().is_some_and(|variant| !variant.has_sends()) {
            return Ok(Operations::empty());
        }
        // A program that was granted a gap all the same is refused by the device, not here.
        let device_gaps = context.gaps();
        let service = Baseline::taken_by(self.qp_type, Operations::empty()).gaps() & device_gaps;
        if !service.is_empty() {
            return Err(VerbError::BaselineGap(service));
        }
        let mut wanted = self.wanted;
        if self.reserved > 0 {
            wanted |= crate::portable::operations(features) & self.qp_type.operations();
        }
        let mut foreign = wanted - self.qp_type.operations();
        if self.qp_type == QpType::Rc {
            for operation in wanted.of_extensions() {
                grant.require(operation.extension(), operation.feature())?;
                foreign -= operation.bit();
            }
        }
        if !foreign.is_empty() {
            let reason = match foreign.names().is_empty() {
                true => ArgumentReason::UnknownBits(foreign.bits()),
                false => ArgumentReason::NotOfService {
                    qp_type: self.qp_type,
                    operations: foreign,
                },
            };
            return Err(VerbError::argument("operations", reason));
        }
        let missing = wanted.missing_features(features);
        if !missing.is_empty() {
            return Err(VerbError::Unsupported { missing });
        }
        let (closed, gaps) = gaps_of(wanted, device_gaps);
        if !closed.is_empty() {
            return Err(VerbError::BaselineGap(gaps));
        }
        if self.only {
            return Ok(wanted);
        }
        let baseline = Operations::BASELINE & self.qp_type.operations();
        Ok(wanted | (baseline - gaps_of(baseline, device_gaps).0))
    }

    pub(super) fn variant(&self) -> Option<&'static QpVariant> {
        self.extensions.iter().find_map(QpExtension::qp_variant)
    }

    fn check_variant(&self) -> Result<(), VerbError> {
        let mut variants = self.extensions.iter().filter_map(QpExtension::qp_variant);
        let Some(variant) = variants.next() else {
            return Ok(());
        };
        let reason = if variants.next().is_some() {
            "a queue pair is one variant only"
        } else if variant.base() != self.qp_type {
            "it is a variant of another service"
        } else if self.srq.is_some() {
            "it takes no receives from a shared queue of its own"
        } else {
            return Ok(());
        };
        let name = variant.name();
        let reason = ArgumentReason::Variant { name, reason };
        Err(VerbError::argument("qp_type", reason))
    }

    pub(super) fn check_extensions(&self, grant: &Grant, cap: QpCap) -> Result<(), VerbError> {
        let shape = QpShape {
            qp_type: self.qp_type,
            has_srq: self.srq.is_some(),
            cap,
        };
        for extension in &self.extensions {
            grant.require(extension.extension(), extension.feature())?;
            extension.checked(&shape)?;
        }
        self.check_variant()
    }

    pub(super) fn checked_cap(&self, limits: &Limits) -> Result<QpCap, VerbError> {
        let mut cap = self.cap;
        cap.max_send_wr = cap.max_send_wr.saturating_add(self.reserved);
        cap.max_inline_data = self
            .max_inline_data
            .unwrap_or(cap.max_inline_data.min(limits.max_inline_data));
        if self.srq.is_some() || self.variant().is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if self.variant().is_some_and(|variant| !variant.has_sends()) {
            (cap.max_send_wr, cap.max_inline_data) = (0, 0);
        }
        for (limit, wanted) in [
            (Limit::MaxQpWr, cap.max_send_wr),
            (Limit::MaxQpWr, cap.max_recv_wr),
            (Limit::MaxSendSge, cap.max_send_sge),
            (Limit::MaxRecvSge, cap.max_recv_sge),
            (Limit::MaxInlineData, cap.max_inline_data),
        ] {
            limits
                .check(limit, u64::from(wanted))
                .map_err(VerbError::Limit)?;
        }
        Ok(cap)
    }
}

/// Returns the reason why a queue pair with these rules refuses `operation`.
pub(super) fn why_closed(rules: &QpRules, operation: Operations) -> PostReason {
    let of_service = operation & rules.qp_type.operations();
    let (_, gaps) = gaps_of(of_service, rules.gaps);
    let missing = of_service.missing_features(rules.features);
    if !gaps.is_empty() {
        PostReason::BaselineGap { operation, gaps }
    } else if !missing.is_empty() {
        PostReason::OperationNeeds { operation, missing }
    } else {
        PostReason::OperationNotEnabled { missing: operation }
    }
}

// The operations that gaps close, and those gaps.
fn gaps_of(operations: Operations, gaps: BaselineGaps) -> (Operations, BaselineGaps) {
    let atomics = Operations::ATOMIC_CMP_AND_SWP.union(Operations::ATOMIC_FETCH_AND_ADD);
    let table = [
        (
            BaselineGaps::NO_SEND_WITH_IMMEDIATE,
            Operations::SEND_WITH_IMM,
        ),
        (
            BaselineGaps::NO_WRITE_WITH_IMMEDIATE,
            Operations::WRITE_WITH_IMM,
        ),
        (BaselineGaps::NO_ATOMICS, atomics),
    ];
    let mut closed = (Operations::empty(), BaselineGaps::empty());
    for (gap, operation) in table {
        if gaps.contains(gap) && operations.intersects(operation) {
            closed = (closed.0 | (operations & operation), closed.1 | gap);
        }
    }
    closed
}

/// Returns the rules that posting to a queue pair checks, which are fixed when it is created.
pub(super) fn rules(
    qp_type: QpType,
    pd: ObjectId,
    operations: Operations,
    context: &ContextCore,
    cap: &QpCap,
    has_srq: bool,
) -> QpRules {
    let DeviceAttributes { limits, gaps, .. } = context.attributes();
    QpRules {
        qp_type,
        variant: None,
        special_operations: Operations::empty(),
        pd,
        operations,
        features: context.features(),
        gaps: context.gaps(),
        max_send_sge: cap.max_send_sge,
        max_sge_rd: limits.max_sge_rd,
        max_recv_sge: cap.max_recv_sge,
        has_srq,
        reads_into_buffers: !gaps.contains(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE),
        max_inline_data: cap.max_inline_data,
        max_msg_sz: limits.max_msg_sz,
        max_fast_reg_page_list_len: limits.max_fast_reg_page_list_len,
        page_size_cap: limits.page_size_cap,
    }
}
