//! The table of transitions between queue pair states, and the reasons why a modify is refused.

use std::fmt;

use thiserror::Error;

use super::{QpAttrMask, QpAttributes, QpState, QpVariant};
use crate::access::Access;
use crate::service::QpType;

/// The attributes that a transition between states requires and permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Attributes that must be set.
    pub required: QpAttrMask,
    /// Attributes that may be set in addition.
    pub optional: QpAttrMask,
}

/// Why a modify was refused. The queue pair is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadModify {
    /// The queue pair is not in the state that the caller expected.
    #[error("the queue pair is in {actual}, not in {claimed}")]
    CurrentState {
        /// The state that the caller expected.
        claimed: QpState,
        /// The actual state.
        actual: QpState,
    },
    /// There is no transition from the one state to the other.
    #[error("there is no transition from {from} to {to} for {qp_type:?}")]
    NoTransition {
        /// The service type of the queue pair.
        qp_type: QpType,
        /// The state that the queue pair is in.
        from: QpState,
        /// The state that it was to move to.
        to: QpState,
    },
    /// The attributes that are set are not those that the transition requires and permits.
    #[error("{from} to {to}: missing {}, forbidden {}", Names(*missing), Names(*forbidden))]
    Attributes {
        /// The state that the queue pair is in.
        from: QpState,
        /// The state that it was to move to.
        to: QpState,
        /// Attributes that must be set, but are not.
        missing: QpAttrMask,
        /// Attributes that are set, but must not be.
        forbidden: QpAttrMask,
    },
    /// The value of an attribute is out of range.
    #[error("{attribute}: {value} is beyond {max}")]
    Value {
        /// Name of the attribute that is out of range.
        attribute: &'static str,
        /// The value that the caller set.
        value: u64,
        /// The largest value that the attribute may have.
        max: u64,
    },
}

struct Names(QpAttrMask);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str("none")
        } else {
            bitflags::parser::to_writer(&self.0, f)
        }
    }
}

/// Returns what a transition from one state to another requires; `None` if there is no such transition.
///
/// The table is the one that verbs implementations share (IBTA 10.3.1 and 11.2.4.2).
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpAttrMask as M;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let connected = !matches!(qp_type, QpType::Ud);
    let rc = matches!(qp_type, QpType::Rc);
    let none = M::empty();
    let identity = if connected {
        M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS
    } else {
        M::PKEY_INDEX | M::PORT | M::QKEY
    };
    let rights = if connected { M::ACCESS_FLAGS } else { M::QKEY };
    let rnr = if rc { M::MIN_RNR_TIMER } else { none };
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, none),
        (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (none, none),
        (Reset, Init) => (identity, none),
        (Init, Init) => (none, identity),
        (Init, Rtr) => {
            let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
            let required = match qp_type {
                QpType::Ud => none,
                QpType::Uc => path,
                _ => path | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            };
            (required, M::PKEY_INDEX | rights)
        }
        (Rtr, Rts) => {
            let reliable = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
            (
                if rc { M::SQ_PSN | reliable } else { M::SQ_PSN },
                M::CUR_STATE | rights | rnr,
            )
        }
        (Rts, Rts) | (Sqd, Rts) => (none, M::CUR_STATE | rights | rnr),
        (Sqe, Rts) if !rc => (none, M::CUR_STATE | rights),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let path = if connected { M::AV } else { none };
            let reliable = M::PORT
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::MAX_QP_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER;
            (
                none,
                M::PKEY_INDEX | rights | path | if rc { reliable } else { none },
            )
        }
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// Checks a modify against the transition table and the ranges of values. Returns the state that the queue pair moves to.
///
/// If `attributes.qp_state` is not set, the state does not change. A provider calls this under its own lock, with the
/// actual state.
///
/// # Errors
/// The attributes that are missing, forbidden or out of range; the queue pair is unchanged.
pub fn check_modify(
    qp_type: QpType,
    current: QpState,
    attributes: &QpAttributes,
    max_rd_atomic: u64,
    max_dest_rd_atomic: u64,
    ports: u64,
) -> Result<QpState, BadModify> {
    let limits = (max_rd_atomic, max_dest_rd_atomic, ports);
    check_modify_of(qp_type, None, current, attributes, limits)
}

/// Checks a modify as [`check_modify`] does, for a queue pair that may be a variant made by an extension. The limits are
/// those of `max_rd_atomic` and `max_dest_rd_atomic`, and the number of ports.
///
/// # Errors
/// The attributes that are missing, forbidden or out of range; the queue pair is unchanged.
pub fn check_modify_of(
    qp_type: QpType,
    variant: Option<&QpVariant>,
    current: QpState,
    attributes: &QpAttributes,
    (max_rd_atomic, max_dest_rd_atomic, ports): (u64, u64, u64),
) -> Result<QpState, BadModify> {
    if let Some(claimed) = attributes
        .cur_qp_state
        .filter(|&claimed| claimed != current)
    {
        return Err(BadModify::CurrentState {
            claimed,
            actual: current,
        });
    }
    let to = attributes.qp_state.unwrap_or(current);
    let allowed = transition(qp_type, current, to).ok_or(BadModify::NoTransition {
        qp_type,
        from: current,
        to,
    })?;
    let allowed = variant.map_or(allowed, |variant| {
        variant.transition_of(current, to, allowed)
    });
    let given = attributes.mask() - QpAttrMask::STATE;
    let missing = allowed.required - given;
    let forbidden = given - allowed.required - allowed.optional;
    if !missing.is_empty() || !forbidden.is_empty() {
        return Err(BadModify::Attributes {
            from: current,
            to,
            missing,
            forbidden,
        });
    }
    let access = attributes.qp_access_flags.unwrap_or_default();
    if !Access::all().contains(access) {
        return Err(BadModify::Value {
            attribute: "qp_access_flags",
            value: u64::from(access.bits()),
            max: u64::from(Access::all().bits()),
        });
    }
    let limits: [(&'static str, Option<u64>, u64); 8] = [
        ("timeout", attributes.timeout.map(u64::from), 31),
        ("retry_cnt", attributes.retry_cnt.map(u64::from), 7),
        ("rnr_retry", attributes.rnr_retry.map(u64::from), 7),
        ("min_rnr_timer", attributes.min_rnr_timer.map(u64::from), 31),
        (
            "max_rd_atomic",
            attributes.max_rd_atomic.map(u64::from),
            max_rd_atomic,
        ),
        (
            "max_dest_rd_atomic",
            attributes.max_dest_rd_atomic.map(u64::from),
            max_dest_rd_atomic,
        ),
        ("port_num", attributes.port_num.map(u64::from), ports),
        (
            "ah_attr.port_num",
            attributes.ah_attr.map(|path| u64::from(path.port_num)),
            ports,
        ),
    ];
    for (attribute, value, max) in limits {
        if let Some(value) =
            value.filter(|&value| value > max || (value == 0 && attribute.ends_with("port_num")))
        {
            return Err(BadModify::Value {
                attribute,
                value,
                max,
            });
        }
    }
    Ok(to)
}
