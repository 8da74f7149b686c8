//! The rig of the suite: that of the probes, and what only a test can do.

use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use polyverbs_engine::trace::Trace;
use verbs_api::probe::{self, Outcome, Pair, Side, ensure_eq};
use verbs_api::provider::DeviceOps;
use verbs_api::qp::{QpCounters, QpState};
use verbs_api::wr::{BindWindow, WorkRequest};
use verbs_api::{PostError, Qp, WcStatus};

use crate::flavour::DeviceUnderTest;
use crate::probing::rig_of;
use crate::time::Time;
use crate::{Flavour, Steer};

/// The rig of the probes on two devices of one flavour: requests go from the near one to the far one. A test can let time pass,
/// and steer the devices.
pub struct Rig {
    rig: probe::Rig,
    flavour: Flavour,
    time: Arc<Time>,
    /// The end that posts requests.
    pub near: End,
    /// The end that serves them.
    pub far: End,
}

/// An end of the rig of the probes, and its device.
pub struct End {
    end: probe::End,
    /// The device.
    pub device: Arc<dyn DeviceOps>,
    steer: Option<Arc<dyn Steer>>,
}

impl Deref for Rig {
    type Target = probe::Rig;

    fn deref(&self) -> &probe::Rig {
        &self.rig
    }
}

impl Deref for End {
    type Target = probe::End;

    fn deref(&self) -> &probe::End {
        &self.end
    }
}

/// A test fails at its end if the rig has complaints about its devices.
impl Drop for Rig {
    fn drop(&mut self) {
        let found = self.rig.complaints();
        assert!(found.is_empty() || thread::panicking(), "{found:#?}");
    }
}

impl Rig {
    /// Makes two devices of this flavour.
    ///
    /// # Panics
    /// The devices cannot be opened, or refuse what every device has.
    pub fn new(flavour: Flavour) -> Self {
        Self::of(flavour, None)
    }

    /// Makes two other devices of this flavour, whose queue pair numbers are in `first..end`.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn with_qp_numbers(&self, first: u32, end: u32) -> Self {
        Self::of(self.flavour, Some((first, end)))
    }

    fn of(flavour: Flavour, qp_numbers: Option<(u32, u32)>) -> Self {
        let fabric = flavour.build(qp_numbers);
        let rig = rig_of(&fabric, flavour, &[]).unwrap_or_else(|evidence| panic!("{evidence}"));
        Self {
            flavour,
            near: End::new(&rig.near, fabric.near),
            far: End::new(&rig.far, fabric.far),
            time: fabric.time,
            rig,
        }
    }

    /// Whether messages are segmented into frames that take time.
    pub fn is_framed(&self) -> bool {
        matches!(
            self.flavour,
            Flavour::IbFramed
                | Flavour::IbWire
                | Flavour::IbUdp
                | Flavour::IbMemory
                | Flavour::IwarpFramed
                | Flavour::IwWire
                | Flavour::IwTcp
                | Flavour::Given(_)
        )
    }

    /// Whether frames are delivered in real time, by other threads than that of the test.
    pub fn is_in_real_time(&self) -> bool {
        matches!(*self.time, Time::Real { .. })
    }

    /// Whether frames go over sockets of the test's own process.
    pub fn is_on_sockets(&self) -> bool {
        matches!(
            self.flavour,
            Flavour::IbUdp | Flavour::IbMemory | Flavour::IwTcp
        )
    }

    /// Whether the devices existed before: the suite did not build them.
    pub fn is_given(&self) -> bool {
        matches!(self.flavour, Flavour::Given(_))
    }

    /// Advances time to the next event that is due; returns `false` if none is due.
    pub fn step(&self) -> bool {
        self.time.step()
    }

    /// Lets time pass.
    pub fn run_for(&self, duration: Duration) {
        self.time.run_for(duration);
    }

    /// Posts a bind that fails, or that is refused while posting: a device that cannot encode the faulty request may refuse it
    /// then.
    ///
    /// # Errors
    /// The bind succeeds.
    #[track_caller]
    pub fn does_not_bind(&self, side: &Side, bind: BindWindow<'_>) -> Outcome {
        match self.run_if_taken(side, bind)? {
            Ok(status) => {
                ensure_eq!(
                    (status, side.state()?),
                    (WcStatus::MwBindErr, QpState::Err),
                    "the bind, and the state after it"
                );
                Ok(())
            }
            Err(refused) => self.may_refuse(side, refused),
        }
    }

    /// Posts a signaled request that no device may execute: the far device refuses it, or a C library foresees the refusal.
    ///
    /// # Errors
    /// The request is executed, or refused for another reason.
    #[track_caller]
    pub fn is_invalid<'a>(&self, pair: &Pair, request: impl Into<WorkRequest<'a>>) -> Outcome {
        match self.verdict_if_taken(pair, request)? {
            Ok(status) => {
                ensure_eq!(status, WcStatus::RemInvReqErr, "an invalid request");
                Ok(())
            }
            Err(refused) => self.may_refuse(&pair.near, refused),
        }
    }

    /// Checks that a request that was refused while posting had no other effect. Only a C library may refuse it: such a
    /// library checks the request itself, or has no encoding for it.
    #[track_caller]
    fn may_refuse(&self, side: &Side, refused: PostError) -> Outcome {
        if !self.is_given() {
            return Err(refused.into());
        }
        self.settle();
        ensure_eq!(side.state()?, QpState::Rts, "the state after a refusal");
        Ok(())
    }
}

impl End {
    fn new(end: &probe::End, device: DeviceUnderTest) -> Self {
        Self {
            end: end.clone(),
            device: device.ops,
            steer: device.steer,
        }
    }

    /// Steers the device without the program's knowledge, in cases of [`steered_cases!`](crate::steered_cases).
    ///
    /// # Panics
    /// The device is real.
    pub fn steer(&self) -> &dyn Steer {
        let steer = self.steer.as_deref();
        steer.expect("only an emulated device is steered: the case belongs in `steered_cases!`")
    }

    /// How many memory keys are in use; `None` where the device does not report it.
    pub fn keys_in_use(&self) -> Option<usize> {
        self.steer.as_ref().map(|steer| steer.keys_in_use())
    }

    /// The counters of a queue pair; `None` where the device does not count.
    pub fn counters_of(&self, qp: &Qp) -> Option<QpCounters> {
        self.steer.as_ref().map(|_| qp.counters())
    }

    /// Makes control verbs take this long from now on; on a real device this has no effect.
    pub fn set_latency(&self, latency: Duration) {
        if let Some(steer) = &self.steer {
            steer.set_latency(latency);
        }
    }

    /// Reports to `trace` every operation that is executed by a queue pair made after this call. Returns whether
    /// the device can do so.
    pub fn trace(&self, trace: Trace) -> bool {
        let traces = self.steer.as_ref().map(|steer| steer.trace(trace));
        traces.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use test_kit::waiting::{WatchedThread, until};
    use verbs_api::probe::ensure_eq;
    use verbs_api::{RKey, RemoteAddress, Started};

    use crate::{ANY_DEVICE, Flavour, run};

    #[test]
    fn a_verb_that_another_thread_ends_is_waited_for() {
        run(Flavour::Ib, ANY_DEVICE, |rig| {
            let (started, completer) = Started::<u32>::pending();
            let waiter = WatchedThread::current();
            thread::spawn(move || {
                // Virtual time has nothing left to do, so the rig waits for the verb itself.
                until(|| waiter.is_blocked());
                completer.complete(Ok(7))
            });
            ensure_eq!(rig.finish(started)?, 7, "the value of the verb");
            Ok(())
        });
    }

    #[test]
    #[should_panic(expected = "0 completions, expected 1")]
    fn an_error_of_the_rig_fails_the_body() {
        run(Flavour::Ib, ANY_DEVICE, |rig| {
            rig.take(&rig.rc()?.near.cq, 1)?;
            Ok(())
        });
    }

    #[test]
    #[should_panic(expected = "RemAccessErr raised [], not QpAccessErr")]
    fn a_body_fails_at_its_end_for_an_event_that_is_missing() {
        run(Flavour::Ib, ANY_DEVICE, |rig| {
            // The handler takes the event before the rig can poll it.
            rig.far.context.on_event(|_| ());
            let nowhere = RemoteAddress::new(0, RKey::new(0xfff_ff00));
            assert!(!rig.can_write(&rig.rc()?, nowhere)?);
            Ok(())
        });
    }
}
