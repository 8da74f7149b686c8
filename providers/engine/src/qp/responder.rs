//! The receiving half of a queue pair: the state under its lock, its receives, and arriving messages.

use std::sync::{Arc, Weak};

use verbs_api::completion::CountedOperations;
use verbs_api::completion::WcOpcode;
use verbs_api::event::EventType;
use verbs_api::ids::Qpn;
use verbs_api::memory::{Loan, Span};
use verbs_api::qp::QpState;
use verbs_api::wr::{PostReason, ReceiveRequest};
use verbs_api::{Access, WcStatus};

use super::Qp;
use crate::cq::{Done, Plain};
use crate::device::driver::Driver;
use crate::device::{Cx, Device};
use crate::effects::{Effects, QpActions};
use crate::emulation::{QpExtensions, Target};
use crate::loans;
use crate::log_event;
use crate::receive_ring::{Receive, ReceiveConsumer, Refused};
use crate::srq::{Srq, SrqFailed};

/// The receiving half, under its lock, in the order of use. A peer that writes uses nothing else of the queue pair, so this
/// also has copies of the fields that the peer needs.
#[repr(C)]
pub struct Responder<D: Driver> {
    /// Its device.
    pub device: Arc<Device<D>>,
    /// Its protection domain.
    pub pd: u32,
    pub(super) established: bool,
    // The half is established, and no observer sees the receives of the queue pair.
    pub(super) takes_express: bool,
    pub(super) last_wqe_told: bool,
    /// The transport's own state.
    pub driver: D::Responder,
    consumer: ReceiveConsumer,
    /// Counters of the receiving half.
    pub counters: ReceiveCounters,
    /// The receive that is being filled.
    pub current: Option<Receive>,
    pub(super) waiting: Option<Weak<dyn QpActions>>,
}

impl<D: Driver> Responder<D> {
    pub(super) fn new(device: &Arc<Device<D>>, pd: u32) -> Self {
        Self {
            device: Arc::clone(device),
            pd,
            driver: D::Responder::default(),
            current: None,
            counters: ReceiveCounters::default(),
            consumer: ReceiveConsumer::default(),
            waiting: None,
            established: false,
            takes_express: false,
            last_wqe_told: false,
        }
    }

    /// Returns whether a valid packet has arrived since the queue pair became ready to receive, so that the peer may use
    /// the [express path](Driver::express).
    #[inline]
    pub fn takes_express(&self) -> bool {
        self.takes_express
    }
}

/// Counters of a responder.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct ReceiveCounters {
    pub receives: u64,
    pub duplicates: u64,
    pub dropped: u64,
}

impl<D: Driver> Qp<D> {
    pub(super) fn post_receives(
        &self,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), (usize, PostReason)> {
        if self.is_closed() {
            return Err((0, PostReason::InvalidHandle));
        }
        if self.srq.is_some() {
            return Err((0, PostReason::HasSrq));
        }
        if self.state() == QpState::Reset {
            return Err((0, PostReason::InvalidState(QpState::Reset)));
        }
        let mut producer = self.producer.0.lock();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            let (taken, receive) = (&self.responder.0.taken, Receive::of(request));
            if let Err(refused) = self.receives.post(&mut producer, taken, receive) {
                let max = self.cold.cap.max_recv_wr;
                let reason = match refused {
                    Refused::Full => PostReason::QueueFull { max },
                    Refused::Memory => PostReason::NO_MEMORY,
                };
                result = Err((index, reason));
                break;
            }
        }
        drop(producer);
        let starved = self.receives.take_starved();
        if starved || matches!(self.state(), QpState::Err | QpState::Reset) {
            self.after_receives();
        }
        result
    }

    #[cold]
    fn after_receives(&self) {
        let mut effects = Effects::default();
        let waiting = self.responder().waiting.take();
        if let Some(peer) = waiting.and_then(|peer| peer.upgrade()) {
            effects.resume(peer);
        }
        match self.state() {
            QpState::Err => self.flush_later(&mut effects),
            QpState::Reset => self.drop_receives(&mut self.responder()),
            _ => {}
        }
        effects.run();
        self.device.network().progress();
    }

    /// Returns the protection domain of the entries of receives: that of the shared queue, if there is one.
    pub fn receive_pd(&self) -> u32 {
        if self.carries_srqn {
            return self.target_pd();
        }
        self.srq.as_ref().map_or(self.pd, |srq| srq.pd)
    }

    // Returns the protection domain of the shared receive queue that the current request names.
    #[cold]
    fn target_pd(&self) -> u32 {
        let named = self.named_target();
        named.map_or(self.pd, |target| target.srq.pd)
    }

    /// Returns the protection domain in which a peer's requests are carried out.
    #[inline]
    pub fn remote_pd(&self) -> u32 {
        if self.carries_srqn {
            return self.target_pd();
        }
        self.pd
    }

    fn named_target(&self) -> Option<Arc<Target>> {
        self.extensions()?.named()
    }

    /// Returns whether the queue pair receives requests that name a shared receive queue.
    pub fn is_target(&self) -> bool {
        self.extensions().is_some_and(QpExtensions::is_target)
    }

    #[cold]
    fn take_named_receive(&self, waiting: Option<&Self>, effects: &mut Effects) -> Option<Receive> {
        let target = self.named_target()?;
        self.take_shared(&target.srq, waiting, effects)
    }

    fn take_shared(
        &self,
        srq: &Srq,
        waiting: Option<&Self>,
        effects: &mut Effects,
    ) -> Option<Receive> {
        let taken = srq.take(waiting.map(Self::actions), effects);
        taken.unwrap_or_else(|SrqFailed| {
            self.shared()?.into_owner().fatal(effects);
            None
        })
    }

    /// The shared queue from which receives are taken.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// Returns whether receives are taken from a shared queue, or from several.
    pub fn has_srq(&self) -> bool {
        self.srq.is_some() || self.carries_srqn
    }

    /// Returns how many receives are posted on the queue pair's own queue.
    pub fn receives_waiting(&self, responder: &Responder<D>) -> usize {
        let producer = self.producer.0.lock();
        producer.ahead_of(&responder.consumer) as usize
    }

    /// Returns whether a receive is posted.
    pub fn has_receive(&self) -> bool {
        if self.carries_srqn {
            let named = self.named_target();
            return named.is_some_and(|target| !target.srq.is_empty());
        }
        match &self.srq {
            Some(srq) => !srq.is_empty(),
            None => self.receives.has_one(&self.responder().consumer),
        }
    }

    /// Takes the next receive. If there is none, `waiting` is resumed when one has been posted.
    #[inline]
    pub fn take_receive(
        &self,
        responder: &mut Responder<D>,
        waiting: Option<&Self>,
        effects: &mut Effects,
    ) -> Option<Receive> {
        if let Some(srq) = &self.srq {
            return self.take_shared(srq, waiting, effects);
        }
        if self.carries_srqn {
            return self.take_named_receive(waiting, effects);
        }
        if let Some(receive) = self.take_own(responder) {
            return Some(receive);
        }
        let waiting = waiting?;
        responder.waiting = Some(waiting.actions());
        if self.receives.set_starved_and_recheck(&responder.consumer) {
            return self.take_own(responder);
        }
        None
    }

    #[inline]
    fn take_own(&self, responder: &mut Responder<D>) -> Option<Receive> {
        let taken = &self.responder.0.taken;
        self.receives.take(&mut responder.consumer, taken)
    }

    /// Returns the memory of the next receive of this queue pair's own queue, if it is one flat stretch with room for
    /// `length` bytes. The receive stays queued until it is [taken](Self::take_express_receive).
    #[inline]
    pub fn express_receive<'p>(
        &self,
        responder: &mut Responder<D>,
        length: u32,
        cx: &Cx<'p, D>,
    ) -> Option<Span<'p>> {
        if self.srq.is_some() || responder.current.is_some() {
            return None;
        }
        let sge = self.receives.peek_one(&responder.consumer)?;
        let (keys, access) = (self.device.keys(), Access::LOCAL_WRITE);
        let room = keys.flat(cx.pin, sge.lkey, sge.addr, sge.length, self.pd, access)?;
        (room.len() >= length as usize).then_some(room)
    }

    /// Takes and completes the receive that [`express_receive`](Self::express_receive) found.
    #[inline]
    pub fn take_express_receive(
        &self,
        responder: &mut Responder<D>,
        byte_len: u32,
        solicited: bool,
        cx: &mut Cx<'_, D>,
    ) {
        let wr_id = (self.receives).pop_one(&mut responder.consumer, &self.responder.0.taken);
        let plain = Plain::new(self.qpn, WcOpcode::Recv, solicited);
        self.recv_cq
            .push_plain(wr_id, plain, byte_len, &mut cx.effects);
    }

    /// Completes a receive.
    #[inline]
    pub fn complete_receive(&self, receive: &Receive, done: Done, cx: &mut Cx<'_, D>) {
        let loan = Loan::from_bits(receive.loan);
        let done = Done {
            wr_id: receive.wr_id,
            qpn: self.qpn,
            loan,
            ..done
        };
        if self.is_watched() {
            return self.complete_watched(&done, cx);
        }
        self.recv_cq.push(&done, &mut cx.effects);
    }

    #[cold]
    fn complete_watched(&self, done: &Done, cx: &mut Cx<'_, D>) {
        if let Some(extensions) = &self.extensions {
            extensions.received(done.status);
        }
        self.add_to_counters(CountedOperations::RECV, done.status, done.byte_len.into());
        let named = self.named_target();
        let cq = named.as_ref().map_or(&self.recv_cq, |target| &target.cq);
        cq.push(done, &mut cx.effects);
        // The completion queue does not know its targets, so a target checks for a failure when it needs the queue, and
        // fails like the queue's own queue pairs.
        if named.is_some() && cq.has_failed() {
            let me = self.actions();
            cx.effects.later(move |effects| {
                if let Some(me) = me.upgrade() {
                    me.fatal(effects);
                }
            });
        }
    }

    /// A valid packet has arrived: the first one in RTR is reported.
    #[inline]
    pub fn note_arrival(&self, responder: &mut Responder<D>, cx: &mut Cx<'_, D>) {
        if !responder.established {
            self.note_first_arrival(responder, cx);
        }
    }

    #[cold]
    fn note_first_arrival(&self, responder: &mut Responder<D>, cx: &mut Cx<'_, D>) {
        responder.established = true;
        responder.takes_express = !self.is_watched();
        if self.state() == QpState::Rtr {
            self.event(EventType::CommEst, &mut cx.effects);
        }
        D::first_arrival(self, cx);
    }

    /// The peer broke a rule: puts the queue pair into the error state. `status` goes to the receive that is being filled;
    /// if there is none, `event` is reported. An effect flushes the remaining requests.
    pub fn fail_responder(
        &self,
        responder: &mut Responder<D>,
        status: WcStatus,
        event: EventType,
        cx: &mut Cx<'_, D>,
    ) {
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return;
        }
        log_event!(
            WARN,
            "a request of the peer fails",
            qp = Qpn::new(self.qpn),
            status = status
        );
        self.enter_error(false);
        match responder.current.take() {
            Some(receive) => {
                let done = Done {
                    status,
                    opcode: WcOpcode::Recv,
                    ..Done::default()
                };
                self.complete_receive(&receive, done, cx);
            }
            None => self.event(event, &mut cx.effects),
        }
        self.flush_later(&mut cx.effects);
    }

    /// A request of the peer has failed in another process, which executed it for this queue pair and has completed its
    /// receive, if it had one: puts the queue pair into the error state and reports `event`, if there is one. An effect
    /// flushes the remaining requests.
    pub fn fail_elsewhere(&self, event: Option<EventType>, cx: &mut Cx<'_, D>) {
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return;
        }
        log_event!(
            WARN,
            "a request of the peer fails in another process",
            qp = Qpn::new(self.qpn)
        );
        self.enter_error(false);
        if let Some(event) = event {
            self.event(event, &mut cx.effects);
        }
        self.flush_later(&mut cx.effects);
    }

    /// Flushes the receive queue, beginning with the receive that is being filled. Receives of a shared queue stay there,
    /// and the event reports that the queue pair holds none of them any longer.
    pub(super) fn flush_responder(&self, responder: &mut Responder<D>, cx: &mut Cx<'_, D>) {
        let flushed = Done {
            status: WcStatus::WrFlushErr,
            opcode: WcOpcode::Recv,
            ..Done::default()
        };
        if let Some(receive) = responder.current.take() {
            self.complete_receive(&receive, flushed, cx);
        }
        while let Some(receive) = self.take_own(responder) {
            self.complete_receive(&receive, flushed, cx);
        }
        let shares = self.srq.is_some() || self.is_target();
        if shares && !std::mem::replace(&mut responder.last_wqe_told, true) {
            self.event(EventType::QpLastWqeReached, &mut cx.effects);
        }
    }

    pub(super) fn drop_receives(&self, responder: &mut Responder<D>) {
        let current = responder.current.take();
        let rest = std::iter::from_fn(|| self.take_own(responder));
        for receive in current.into_iter().chain(rest) {
            loans::release(Loan::from_bits(receive.loan));
        }
    }
}
