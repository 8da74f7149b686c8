//! The contract between the engine and a driver.
//!
//! A driver knows one transport: it turns requests into frames, and frames into operations on the engine. The engine
//! owns the objects, the keys, the queues, the state table, flushing and events. Everything with a default here is the
//! engine's own; what a driver overrides is visible in its one `impl Driver`.
//!
//! Calls back into the engine are few: a frame arrived ([`Member::handle_frame`](crate::network::Member::handle_frame)),
//! a port changed ([`Device::set_port_state`]), the device failed ([`Device::remove`]).

use std::fmt::Debug;

use verbs_api::provider::carrier::Carrier;
use verbs_api::qp::{AddressVector, QpAttributes, QpState};
use verbs_api::{
    VerbError, WcStatus,
    capability::{DeviceAttributes, Mtu},
    ids::LinkAddress,
    wr::{PostReason, WorkRequest},
};

use crate::device::{Cx, Device};
use crate::link::Frame;
use crate::qp::{Qp, QpRef, Requester, Responder};
use crate::qpn::QpnPool;
use crate::request::Request;
use crate::time::Time;

/// What became of a request that was tried at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It has completed, with this status and number of bytes read.
    Done(WcStatus, u32),
    /// It has to wait or is under way: keep it in the queue.
    Keep,
    /// All of it has left, with these sequence numbers: keep it in the queue until it is answered.
    Sent {
        /// The first one.
        first: u32,
        /// How many.
        count: u32,
    },
}

/// A transport. See the [module](self).
///
/// What has no default must be there, and the compiler names what is missing.
pub trait Driver: Sized + Send + Sync + 'static {
    /// A frame's header, as a value.
    type Header: Clone + Debug + Send + Sync + 'static;
    /// The transport's own state of a queue pair's sending half.
    type Requester: Default + Send + 'static;
    /// The transport's own state of a queue pair's receiving half.
    type Responder: Default + Send + 'static;

    /// What the device is, before the emulations that are linked add their features.
    fn attributes(&self) -> DeviceAttributes;

    /// Where the device is found on its link: of the kind that the transport has.
    fn link_address(&self) -> LinkAddress;

    /// Tries a request at once: nothing [waits](Self::waits), and the queue pair is ready to send. Where it is carried out
    /// [without a frame](crate::request::Op::is_local), the queue is empty.
    fn execute(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        request: &Request<'_>,
        cx: &mut Cx<'_, Self>,
    ) -> Executed;

    /// Whether a request of the queue has not left: then [`pump`](Self::pump) is called, and what is posted waits behind it.
    /// By default every request of the queue.
    fn waits(requester: &Requester<Self>) -> bool {
        !requester.queue.is_empty()
    }

    /// Carries out as many of `requests` at once as need no further look: the queue is empty, the network direct and the
    /// queue pair ready to send. Answers how many, from the front; what is left goes through
    /// [`execute`](Self::execute). By default none.
    fn express(
        _qp: &Qp<Self>,
        _requester: &mut Requester<Self>,
        _requests: &[WorkRequest<'_>],
        _cx: &mut Cx<'_, Self>,
    ) -> usize {
        0
    }

    /// Goes on with the queue: starts what may start, as far as link and peer allow.
    fn pump(qp: &Qp<Self>, requester: &mut Requester<Self>, cx: &mut Cx<'_, Self>);

    /// A moment passed that the queue pair asked for with [`Qp::wake_at`].
    fn handle_timeout(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        now: Time,
        cx: &mut Cx<'_, Self>,
    );

    /// A frame arrived from the link.
    fn handle_frame(device: &Device<Self>, frame: Frame<'_, Self::Header>, cx: &mut Cx<'_, Self>);

    /// Nothing more has arrived for now: what waited for that leaves. Called for those of
    /// [`Network::settle_later`](crate::network::Network::settle_later), with no lock held.
    fn settle(_qp: &Qp<Self>, _cx: &mut Cx<'_, Self>) {}

    /// Attributes were checked and are about to be in force: the transport's part of a modify.
    fn modify(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        responder: &mut Responder<Self>,
        change: &Change<'_>,
        cx: &mut Cx<'_, Self>,
    );

    /// Gives out a queue pair number; by default the engine's next.
    fn alloc_qpn(&self, engine: &QpnPool) -> Option<u32> {
        engine.allocate()
    }

    /// Takes a queue pair number back; by default the engine does, which ignores numbers that it did not give out.
    fn free_qpn(&self, engine: &QpnPool, qpn: u32) {
        engine.free(qpn);
    }

    /// The path MTU of a queue pair: by default the smaller of what was asked for and what the port carries.
    fn path_mtu(&self, wanted: Mtu, active: Mtu) -> Mtu {
        wanted.min(active)
    }

    /// Whether what it sends says of a request which shared receive queue of the peer it is for, as
    /// [`Addressing`](crate::emulation::Addressing) has it. A device that does not gains nothing that takes it.
    fn addresses_receives(&self) -> bool {
        false
    }

    /// How connections are made; by default nothing leaves the process.
    fn carrier(_device: &Device<Self>) -> Option<Carrier> {
        Some(Carrier::InProcess)
    }

    /// A last word before a request is taken: refusing it consumes no slot. Not asked for what
    /// [`express`](Self::express) carries out.
    ///
    /// # Errors
    /// Why it is refused.
    fn check_post(&self, _qp: &Qp<Self>, _request: &Request<'_>) -> Result<(), PostReason> {
        Ok(())
    }

    /// A path before an address handle or a connection is made of it.
    ///
    /// # Errors
    /// Which field is wrong.
    fn check_path(&self, _path: &AddressVector) -> Result<(), VerbError> {
        Ok(())
    }

    /// What must happen on the wire before a queue pair in error is flushed; by default nothing.
    fn before_flush(
        _qp: &Qp<Self>,
        _requester: &mut Requester<Self>,
        _status: WcStatus,
        _cx: &mut Cx<'_, Self>,
    ) {
    }

    /// The first valid packet has come since the queue pair became ready to receive. Told with the responder locked; by
    /// default nothing.
    fn first_arrival(_qp: &Qp<Self>, _cx: &mut Cx<'_, Self>) {}

    /// The queue pair leaves its connection: it is in the error state, or is being reset or destroyed. Told before
    /// `requester.direct` is dropped, perhaps with the responder locked, perhaps more than once; by default nothing.
    fn disconnect(_qp: &Qp<Self>, _requester: &mut Requester<Self>, _cx: &mut Cx<'_, Self>) {}

    /// A connection manager makes the connection: see [`verbs_api::Qp::keep_receives`]; by default nothing.
    fn keep_receives(_qp: &Qp<Self>) {}

    /// Joins the queue pair's own state to a peer that can be reached directly, now that it has become ready; by
    /// default the requester is told to go on.
    fn peer_ready(_qp: &QpRef<Self>, _cx: &mut Cx<'_, Self>) {}
}

/// A checked modify.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// From this state.
    pub from: QpState,
    /// To this one.
    pub to: QpState,
    /// What is set now.
    pub given: &'a QpAttributes,
    /// What is set now and was before.
    pub all: &'a QpAttributes,
}
