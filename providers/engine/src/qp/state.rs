//! The states of a queue pair, and what changes with them.

use std::sync::atomic::{Ordering, fence};

use verbs_api::VerbError;
use verbs_api::ids::Qpn;
use verbs_api::objects::ObjectKind;
use verbs_api::qp::{QpAttributes, QpState, check_modify_of};

use super::{Qp, Requester, Responder};
use crate::commands::out_of_range;
use crate::device::Cx;
use crate::device::driver::{Change, Driver};
use crate::effects::{Effects, QpActions};
use crate::loans;
use crate::log_event;
use crate::slots::Slots;

/// A bit next to the state of a queue pair that takes no requests, because its handle is being destroyed or its device is
/// gone. The state itself stays, for requests of the peer.
pub(super) const CLOSED: u8 = 0x80;

impl<D: Driver> Qp<D> {
    /// Returns the current state. While the caller holds a lock of the queue pair, the state can change only to an error.
    #[inline]
    pub fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire) & !CLOSED).unwrap_or(QpState::Err)
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns whether the state is RTS, for a peer that is about to lock the receiving half. This reads the copy next to
    /// that lock.
    #[inline]
    pub fn is_rts_for_peer(&self) -> bool {
        self.responder.0.state.load(Ordering::Acquire) == QpState::Rts as u8
    }

    fn set_state(&self, state: QpState) {
        let keep = |now: u8| Some(now & CLOSED | state as u8);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.state.fetch_update(set, fetch, keep);
        self.responder.0.state.store(state as u8, Ordering::Release);
    }

    /// Puts the queue pair into the error state, or only the send queue of an unreliable one. An effect flushes the
    /// remaining requests.
    pub fn enter_error(&self, send_queue_only: bool) {
        let to = match send_queue_only {
            true => QpState::Sqe,
            false => QpState::Err,
        };
        let change = |state: u8| {
            let from = QpState::from_code(state & !CLOSED)?;
            let may = match to {
                QpState::Sqe => matches!(from, QpState::Rts | QpState::Sqd),
                _ => !matches!(from, QpState::Reset | QpState::Err),
            };
            may.then_some(state & CLOSED | to as u8)
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        if let Ok(from) = self.state.fetch_update(set, fetch, change) {
            self.responder.0.state.store(to as u8, Ordering::Release);
            let from = QpState::from_code(from & !CLOSED).unwrap_or(QpState::Err);
            self.log_state(from, to);
        }
    }

    // Lets a new queue pair receive requests without its attributes.
    pub(crate) fn be_ready(&self) {
        self.set_state(QpState::Rtr);
    }

    pub(crate) fn remove(&self, effects: &mut Effects) {
        self.enter_error(false);
        self.flush_later(effects);
    }

    #[cold]
    fn log_state(&self, from: QpState, to: QpState) {
        log_event!(
            DEBUG,
            "a queue pair changes its state",
            qp = Qpn::new(self.qpn),
            from = from,
            to = to
        );
    }

    pub(super) fn apply(&self, given: &QpAttributes) -> Result<(), VerbError> {
        let driver = self.device.driver();
        if let Some(path) = &given.ah_attr {
            // The driver may ask another process, so no lock is held.
            driver.check_path(path)?;
        }
        let mut changing = self.cold.changing.lock();
        if changing.destroyed {
            return Err(VerbError::InvalidHandle(ObjectKind::Qp));
        }
        let port = self.device.port_attributes();
        let last = port.pkeys.len() as u64 - 1;
        if let Some(index) = given.pkey_index.filter(|&index| u64::from(index) > last) {
            return Err(out_of_range("pkey_index", index, 0u8, last));
        }
        let path = given.ah_attr.or(changing.attributes.ah_attr);
        let sl = path.map_or(0, |path| path.sl);
        let path_mtu = given
            .path_mtu
            .map(|mtu| driver.path_mtu(mtu, port.active_mtu, sl));
        let given = QpAttributes { path_mtu, ..*given };
        let all = changing.attributes.merged(&given);
        Cx::run(&self.device, None, |cx| {
            let to = self.change(&given, &all, cx)?;
            changing.attributes = match to {
                QpState::Reset => QpAttributes::new(),
                _ => all,
            };
            changing.attributes.qp_state = Some(to);
            changing.attributes.cur_qp_state = None;
            drop(changing);
            fence(Ordering::SeqCst);
            if let (QpState::Init, true, Some(me)) = (to, self.has_failed_queue(), self.shared()) {
                me.into_owner().fatal(&mut cx.effects);
            }
            if let (QpState::Rtr | QpState::Rts, Some(me)) = (to, self.shared()) {
                D::peer_ready(&me, cx);
                cx.effects.resume(me.into_owner());
            }
            Ok::<_, VerbError>(())
        })?;
        self.device.network().progress();
        Ok(())
    }

    // Checks a modify and carries it out, with both halves locked.
    fn change(
        &self,
        given: &QpAttributes,
        all: &QpAttributes,
        cx: &mut Cx<'_, D>,
    ) -> Result<QpState, VerbError> {
        let limits = self.device.limits();
        let initiator = u64::from(limits.max_qp_init_rd_atom);
        let target = u64::from(limits.max_qp_rd_atom);
        let variant = self.extensions().and_then(|all| all.variant);
        let (requester, responder) = (&mut *self.requester(), &mut *self.responder());
        let from = self.state();
        let limits = (initiator, target, 1);
        let to = check_modify_of(self.qp_type, variant, from, given, limits)?;
        if to == QpState::Init && self.has_failed_queue() {
            return Err(VerbError::CqOverrun);
        }
        self.enter(
            requester,
            responder,
            &Change {
                from,
                to,
                given,
                all,
            },
            cx,
        );
        Ok(to)
    }

    fn has_failed_queue(&self) -> bool {
        self.send_cq.has_failed() || self.recv_cq.has_failed()
    }

    // Changes the state, beginning with the transport's part. The caller holds both halves' locks.
    pub(super) fn enter(
        &self,
        requester: &mut Requester<D>,
        responder: &mut Responder<D>,
        change: &Change<'_>,
        cx: &mut Cx<'_, D>,
    ) {
        D::modify(self, requester, responder, change, cx);
        self.set_state(change.to);
        self.log_state(change.from, change.to);
        match change.to {
            QpState::Reset => {
                D::disconnect(self, requester, cx);
                self.reset(requester, responder);
            }
            QpState::Err => {
                D::disconnect(self, requester, cx);
                requester.direct = None;
                self.flush_requester(requester, cx);
                self.flush_responder(responder, cx);
            }
            QpState::Sqd => {
                if change.from == QpState::Rts {
                    requester.draining = true;
                    requester.notify_drained = change.given.en_sqd_async_notify == Some(true);
                }
                self.check_drained(requester, cx);
            }
            QpState::Rtr => {
                responder.established = false;
                responder.takes_express = false;
            }
            QpState::Rts => requester.draining = false,
            _ => {}
        }
    }

    fn reset(&self, requester: &mut Requester<D>, responder: &mut Responder<D>) {
        while let Some(wqe) = requester.queue.pop_front() {
            loans::release(wqe.kept.loan);
        }
        loans::release(std::mem::take(&mut requester.loans));
        let windows = requester.rare.as_mut().map(|rare| &mut rare.windows);
        let windows = windows.map(std::mem::take).unwrap_or_default();
        self.device.keys().unbind_all_of(&windows, self.qpn);
        requester.direct = None;
        requester.first_half_failed = false;
        requester.draining = false;
        if let Some(slots) = requester.slots() {
            *slots = Slots::default();
        }
        requester.driver = D::Requester::default();
        self.drop_receives(responder);
        responder.driver = D::Responder::default();
        responder.established = false;
        responder.takes_express = false;
        responder.last_wqe_told = false;
        responder.waiting = None;
        if let Some(extensions) = &self.extensions {
            extensions.take_receives_from(None);
        }
    }
}
