//! What continues or ends the requests of the queue later: timers, and effects that run with no lock held.

use std::sync::Arc;

use verbs_api::event::EventType;
use verbs_api::qp::QpState;

use super::{Phase, Qp, Requester};
use crate::device::Cx;
use crate::device::driver::Driver;
use crate::effects::{Effects, QpActions};
use crate::pin::pin;
use crate::pool::Pooled;
use crate::time::Time;

impl<D: Driver> Qp<D> {
    /// Lets the transport continue with the queue, and checks whether the queue has drained.
    pub fn advance(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        if matches!(self.state(), QpState::Rts | QpState::Sqd) {
            D::pump(self, requester, cx);
        }
        self.check_drained(requester, cx);
    }

    pub(super) fn check_drained(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        let idle = requester
            .queue
            .front()
            .is_none_or(|wqe| wqe.phase == Phase::Waiting);
        if requester.draining && idle && self.state() == QpState::Sqd {
            requester.draining = false;
            if std::mem::take(&mut requester.notify_drained) {
                self.event(EventType::SqDrained, &mut cx.effects);
            }
        }
    }

    /// Requests a [`Driver::handle_timeout`] at `at`, unless an earlier one is pending. An earlier one replaces later ones, so
    /// `handle_timeout` requests the times again that are still to come.
    pub fn wake_at(&self, requester: &mut Requester<D>, at: Time) {
        let timer = &mut requester.rare().timer;
        if timer.is_some_and(|timer| timer <= at) {
            return;
        }
        *timer = Some(at);
        let me = self.cold.me.clone();
        let job = Box::new(move |now| {
            if let Some(qp) = me.upgrade() {
                qp.timeout(at, now);
            }
        });
        self.device.network().timers().add(at, job);
    }

    fn timeout(&self, at: Time, now: Time) {
        Cx::run(&self.device, Some(now), |cx| {
            let mut requester = self.requester();
            // The job of a time that an earlier one has replaced does nothing. If it called the driver, the driver would request
            // its next time for each of these jobs, and their number would grow without end.
            let timer = requester.rare().timer.take_if(|timer| *timer == at);
            if timer.is_some() && matches!(self.state(), QpState::Rts | QpState::Sqd) {
                D::handle_timeout(self, &mut requester, now, cx);
                self.check_drained(&mut requester, cx);
            }
        });
    }
}

impl<D: Driver> QpActions for Pooled<Qp<D>> {
    fn flush(self: Arc<Self>, effects: &mut Effects) {
        let pin = pin();
        let mut cx = Cx::new(&self.device, &pin);
        std::mem::swap(&mut cx.effects, effects);
        let state = self.state();
        if matches!(state, QpState::Err | QpState::Sqe) {
            let mut requester = self.requester();
            if state == QpState::Err {
                D::disconnect(&self, &mut requester, &mut cx);
                requester.direct = None;
            }
            self.flush_requester(&mut requester, &mut cx);
        }
        if state == QpState::Err {
            self.flush_responder(&mut self.responder(), &mut cx);
        }
        std::mem::swap(&mut cx.effects, effects);
    }

    fn resume(self: Arc<Self>, effects: &mut Effects) {
        let pin = pin();
        let mut cx = Cx::new(&self.device, &pin);
        std::mem::swap(&mut cx.effects, effects);
        self.advance(&mut self.requester(), &mut cx);
        std::mem::swap(&mut cx.effects, effects);
    }

    fn fatal(self: Arc<Self>, effects: &mut Effects) {
        if !matches!(self.state(), QpState::Reset | QpState::Err) {
            self.enter_error(false);
            self.event(EventType::QpFatal, effects);
            effects.flush(self);
        }
    }
}
