//! Initiators and targets: variants of the reliable connection.

use verbs_api::extension::QpVariant;
use verbs_api::qp::{QpAttrMask, QpState, QpType, Transition};

use crate::REMOTE_SRQN;

/// An XRC initiator: the sending end, with a protection domain, a send queue and no receives. Each request has the
/// attribute [`REMOTE_SRQN`].
pub static INITIATOR: QpVariant = QpVariant::new("XRC_INI", QpType::Rc)
    .sends(&REMOTE_SRQN)
    .transition(of_initiator);

/// An XRC target: the receiving end, which belongs to an XRC domain and has no queues.
pub static TARGET: QpVariant = QpVariant::new("XRC_TGT", QpType::Rc).transition(of_target);

// An initiator has no responder attributes.
fn of_initiator(_: QpState, _: QpState, of_service: Transition) -> Transition {
    without(
        of_service,
        QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
    )
}

// A target has no requester attributes.
fn of_target(_: QpState, _: QpState, of_service: Transition) -> Transition {
    without(
        of_service,
        QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC,
    )
}

fn without(of_service: Transition, attributes: QpAttrMask) -> Transition {
    Transition {
        required: of_service.required - attributes,
        optional: of_service.optional - attributes,
    }
}

/// The XRC role of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Role {
    Initiator = 1,
    Target = 2,
}
