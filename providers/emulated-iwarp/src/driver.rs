//! The driver: the part of this transport in the engine's contract.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use polyverbs_engine::claims::check_reach;
use polyverbs_engine::device::Device;
use polyverbs_engine::driver::{Change, Driver, Executed};
use polyverbs_engine::effects::Effects;
use polyverbs_engine::express;
use polyverbs_engine::link::Frame;
use polyverbs_engine::request::{Op, Request, SendExtra, Source};
use polyverbs_engine::time::Time;
use verbs_api::provider::carrier::{Carrier, StreamPort};
use verbs_api::qp::AddressVector;
use verbs_api::{
    Features, Operations, VerbError, WcStatus,
    capability::{BaselineGaps, DeviceAttributes},
    ids::LinkAddress,
    wr::{PostReason, WorkRequest},
};

use crate::connection::Ends;
use crate::header::{End, Header, Message};
use crate::peer::Peer;
use crate::terminate::{Breach, Terminate, TerminateCode};
use crate::{Cx, Qp, QpRef, Receiving, Sending, caps, connection, direct, requester, responder};

/// The iWARP driver of a device.
#[derive(Debug)]
pub struct Iwarp {
    name: String,
    address: LinkAddress,
    pub(crate) service: ServiceDelay,
    pub(crate) ends: Ends,
    /// The TCP streams of a device on an IP network; `None` on a network within the process.
    pub(crate) streams: Option<Arc<dyn QpStreams>>,
}

/// The TCP streams of a device on an IP network, as the driver calls them.
pub(crate) trait QpStreams: Debug + Send + Sync {
    /// Gets a stream for a queue pair that is ready to receive: the stream whose number it names, or one to the peer that
    /// it names.
    fn claim(&self, qp: &QpRef, named: &Peer, cx: &mut Cx<'_>);

    /// Ends the waiting of a queue pair that leaves its connection, and closes the stream that it has begun.
    fn disclaim(&self, qpn: u32, peer: &Peer, effects: &mut Effects);

    /// Notifies the sink of the stream with this number, which a queue pair uses, that the first frame has arrived.
    fn begun(&self, number: u32, effects: &mut Effects);

    /// Notifies the sink of the stream with this number that its queue pair has left it.
    fn ended(&self, number: u32, effects: &mut Effects);

    /// Returns the port by which a connection manager makes and accepts streams.
    fn port(&self) -> Arc<dyn StreamPort>;
}

/// How long a responder delays each read or atomic over a link: a random time up to `max`, drawn from `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ServiceDelay {
    /// The longest delay of a request.
    pub max: Duration,
    /// The seed from which the delays are drawn.
    pub seed: u64,
}

impl ServiceDelay {
    // Returns the delay of the request with this message number: the same number always draws the same delay.
    pub(crate) fn draw(self, qpn: u32, msn: u32) -> Duration {
        let max = u64::try_from(self.max.as_nanos()).unwrap_or(u64::MAX);
        if max == 0 {
            return Duration::ZERO;
        }
        let mut drawn = DefaultHasher::new();
        (self.seed, qpn, msn).hash(&mut drawn);
        Duration::from_nanos(drawn.finish() % max.saturating_add(1))
    }
}

impl Iwarp {
    /// Creates the driver of a device with this name and address. It serves reads as soon as the segments that arrived with
    /// them have been placed.
    pub fn new(name: impl Into<String>, address: LinkAddress) -> Self {
        Self {
            name: name.into(),
            address,
            service: ServiceDelay::default(),
            ends: Ends::default(),
            streams: None,
        }
    }

    /// Notes that a queue pair has left its stream to `peer`, so that the link's events no longer reach it.
    pub(crate) fn leave(&self, peer: &Peer, cx: &mut Cx<'_>) {
        self.ends.remove(peer.mine);
        if let Some(streams) = &self.streams {
            streams.ended(peer.end.qpn, &mut cx.effects);
        }
    }

    /// Makes the device delay reads and atomics that come over a link before it serves them.
    #[must_use]
    pub fn service_delay(mut self, service: ServiceDelay) -> Self {
        self.service = service;
        self
    }

    /// Returns the Terminate by which the peer ended the present or last connection of a queue pair; `None` if it has sent
    /// none.
    pub fn terminated(qp: &Qp) -> Option<Terminate> {
        qp.requester().driver.terminated.as_deref().copied()
    }
}

impl Driver for Iwarp {
    type Header = Header;
    type Requester = requester::Requester;
    type Responder = responder::Responder;

    fn attributes(&self) -> DeviceAttributes {
        caps::attributes(&self.name, self.address)
    }

    fn link_address(&self) -> LinkAddress {
        self.address
    }

    #[inline]
    fn execute(qp: &Qp, half: &mut Sending, request: &Request<'_>, cx: &mut Cx<'_>) -> Executed {
        if request.op.is_local() {
            return Executed::Done(qp.local_operation(half, request, cx), 0);
        }
        if cx.device.network().link().is_some() {
            return requester::send_at_once(qp, half, request, cx);
        }
        direct::execute(qp, half, request, cx)
    }

    #[inline]
    fn express(
        qp: &Qp,
        half: &mut Sending,
        requests: &[WorkRequest<'_>],
        cx: &mut Cx<'_>,
    ) -> usize {
        express::run(qp, half, requests, cx)
    }

    fn pump(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
        if !requester::may_go_on(qp, half, cx) {
            return;
        }
        if cx.device.network().link().is_some() {
            requester::pump(qp, half, cx);
        } else {
            direct::pump(qp, half, cx);
        }
    }

    // TCP has its own timers, so a queue pair needs none for retransmission. This one checks whether the port is active
    // again.
    fn handle_timeout(qp: &Qp, half: &mut Sending, _: Time, cx: &mut Cx<'_>) {
        Self::pump(qp, half, cx);
    }

    fn handle_frame(device: &Device<Self>, frame: Frame<'_, Header>, cx: &mut Cx<'_>) {
        let stream = frame.header.stream;
        let End { qpn, epoch } = stream.destination;
        if qpn == 0 {
            return connection::handle_stream_event(device, stream, &frame.header.message, cx);
        }
        let Some(qp) = device.pinned_qp(qpn, cx.pin) else {
            return;
        };
        match &frame.header.message {
            message @ (Message::Close | Message::Reset) => {
                connection::handle_end(qp, epoch, message, cx);
            }
            Message::Broken(code) => {
                responder::handle_broken(qp, epoch, Breach::Protocol(*code), cx);
            }
            // The checksum is wrong: the receiver must not use any part of the segment (RFC 5044 section 8).
            _ if frame.damaged => {
                responder::handle_broken(qp, epoch, Breach::Protocol(TerminateCode::MPA_CRC), cx)
            }
            message if message.is_answer() => {
                requester::handle_answer(qp, epoch, message, &frame.payload, cx);
            }
            message => responder::handle(qp, epoch, message, &frame.payload, cx),
        }
    }

    fn modify(
        qp: &Qp,
        sending: &mut Sending,
        receiving: &mut Receiving,
        change: &Change<'_>,
        cx: &mut Cx<'_>,
    ) {
        connection::modify(qp, sending, receiving, change, cx);
    }

    #[inline]
    fn check_post(&self, _: &Qp, request: &Request<'_>) -> Result<(), PostReason> {
        let unsupported = |missing| Err(PostReason::Unsupported { missing });
        match (request.op, request.source) {
            // The request has room for one sink: its STag, its offset, a length (RFC 5040 section 4.4).
            (Op::Read(..), Source::Sges(list)) if list.len() > 1 => Err(PostReason::TooManySges {
                max: 1,
                given: list.len(),
            }),
            (Op::Send(SendExtra::Immediate(_)), _) => Err(PostReason::BaselineGap {
                operation: Operations::SEND_WITH_IMM,
                gaps: BaselineGaps::NO_SEND_WITH_IMMEDIATE,
            }),
            (Op::AtomicWrite(_), _) => unsupported(Features::ATOMIC_WRITE),
            (Op::Flush { .. }, _) => unsupported(Features::FLUSH),
            _ => Ok(()),
        }
    }

    fn check_path(&self, path: &AddressVector) -> Result<(), VerbError> {
        check_reach(self.address, path)
    }

    fn before_flush(_: &Qp, half: &mut Sending, status: WcStatus, _: &mut Cx<'_>) {
        requester::note_failure(half, status);
    }

    fn disconnect(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
        connection::disconnect(qp, half, cx);
    }

    fn keep_receives(qp: &Qp) {
        qp.requester().driver.is_managed = true;
    }

    fn carrier(device: &Device<Self>) -> Option<Carrier> {
        Some(match &device.driver().streams {
            Some(streams) => Carrier::Streams(streams.port()),
            None => Carrier::InProcess,
        })
    }

    fn peer_ready(qp: &QpRef, cx: &mut Cx<'_>) {
        connection::meet(qp, cx);
    }
}
