//! The control verbs of a queue pair.

use std::sync::atomic::Ordering;

use verbs_api::ids::{Gid, Psn, Qpn};
use verbs_api::provider::{AttachedCounts, PostOps, QpOps, Reply};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpState, QpStatus};
use verbs_api::wr::{self, PostReason};
use verbs_api::{Features, RKey, VerbError};

use super::Qp;
use super::state::CLOSED;
use crate::device::Cx;
use crate::device::driver::{Change, Driver};
use crate::pool::Pooled;

impl<D: Driver> QpOps for Pooled<Qp<D>> {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        &**self
    }

    fn admit(&self, open: bool) {
        if open {
            self.state.fetch_and(!CLOSED, Ordering::AcqRel);
        } else {
            self.state.fetch_or(CLOSED, Ordering::AcqRel);
        }
    }

    fn qp_num(&self) -> Qpn {
        Qpn::new(self.qpn)
    }

    fn starting_psn(&self) -> Psn {
        Psn::new(self.device.network().timers().random() as u32)
    }

    fn cap(&self) -> QpCap {
        self.cold.cap
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device
            .commands()
            .run(reply, move || qp.apply(&attributes));
    }

    fn keep_receives(&self) {
        D::keep_receives(self);
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let attributes = self.cold.changing.lock().attributes;
        let draining = self.requester().draining;
        let state = self.state();
        // In any other state nothing drains, because a failure has ended the draining.
        Ok(QpStatus {
            state,
            sq_draining: draining && state == QpState::Sqd,
            attributes,
            cap: self.cold.cap,
        })
    }

    fn counters(&self) -> QpCounters {
        (**self).counters()
    }

    fn attach_counter(&self, counts: AttachedCounts) -> Result<(), VerbError> {
        self.device.check_claimed(Features::COMPLETION_COUNTERS)?;
        // The state does not change meanwhile.
        let changing = self.cold.changing.lock();
        let state = self.state();
        if changing.destroyed || !matches!(state, QpState::Reset | QpState::Init) {
            return Err(VerbError::InvalidState(state));
        }
        let mut attached = self.cold.counts.lock();
        let mut known = attached.iter();
        if known.any(|known| known.operations().intersects(counts.operations())) {
            return Err(VerbError::Busy(Vec::new()));
        }
        attached.push(counts);
        self.is_watched.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn bind_mw(&self, bind: wr::BindWindow<'_>) -> Result<RKey, PostReason> {
        let key = bind.key();
        self.post(&[bind.into()], false)
            .map_err(|(_, reason)| reason)?;
        Ok(key)
    }

    fn attach_multicast(&self, group: Gid, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device.commands().run(reply, move || {
            let result = qp.device.join_group(group, &qp);
            if result.is_ok() {
                qp.cold.changing.lock().groups.push(group);
            }
            result
        });
    }

    fn detach_multicast(&self, group: Gid, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device.commands().run(reply, move || {
            qp.device.leave_group(group, qp.qpn)?;
            qp.cold
                .changing
                .lock()
                .groups
                .retain(|joined| *joined != group);
            Ok(())
        });
    }

    fn destroy(&self, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device.commands().run_last(reply, move |reply| {
            let groups = {
                let mut changing = qp.cold.changing.lock();
                changing.destroyed = true;
                std::mem::take(&mut changing.groups)
            };
            for group in groups {
                let _ = qp.device.leave_group(group, qp.qpn);
            }
            let attributes = QpAttributes::new().qp_state(QpState::Reset);
            Cx::run(&qp.device, None, |cx| {
                let (requester, responder) = (&mut *qp.requester(), &mut *qp.responder());
                let change = Change {
                    from: qp.state(),
                    to: QpState::Reset,
                    given: &attributes,
                    all: &attributes,
                };
                qp.enter(requester, responder, &change, cx);
            });
            qp.cold.counts.lock().clear();
            qp.device.forget_qp(&qp);
            let network = qp.device.network();
            network.progress();
            if let Some(link) = network.link() {
                link.drain();
            }
            reply.send(Ok(()));
        });
    }
}
