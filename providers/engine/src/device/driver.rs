//! The contract between the engine and a driver.
//!
//! A driver implements one transport: it turns requests into frames, and frames into operations on the engine. The engine
//! owns the objects, the keys, the queues, the state table, flushing and events. Every method with a default here is the
//! engine's own; the methods that a driver overrides are visible in its one `impl Driver`.
//!
//! A driver calls the engine back in few cases: a frame arrived
//! ([`Member::handle_frame`](crate::network::Member::handle_frame)), a port changed ([`Device::set_port_state`]), the
//! device failed ([`Device::remove`]).

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

/// The result of trying a request at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The request has completed, with this status and number of bytes read.
    Done(WcStatus, u32),
    /// The request has to wait or is under way: the engine keeps it in the queue.
    Keep,
    /// All of the request has left, with these sequence numbers: the engine keeps it in the queue until it is answered.
    Sent {
        /// The first sequence number.
        first: u32,
        /// The number of sequence numbers.
        count: u32,
    },
}

/// A transport. See the [module](self).
///
/// Methods without a default are required, and the compiler names those that are missing.
pub trait Driver: Sized + Send + Sync + 'static {
    /// A frame's header, as a value.
    type Header: Clone + Debug + Send + Sync + 'static;
    /// The transport's own state of a queue pair's sending half.
    type Requester: Default + Send + 'static;
    /// The transport's own state of a queue pair's receiving half.
    type Responder: Default + Send + 'static;

    /// Returns the attributes of the device, before the linked emulations add their features.
    fn attributes(&self) -> DeviceAttributes;

    /// Returns the address of the device on its link, of the transport's kind.
    fn link_address(&self) -> LinkAddress;

    /// Tries a request at once. No request [waits](Self::waits), and the queue pair is ready to send. If the request needs
    /// [no frame](crate::request::Op::is_local), the queue is empty.
    fn execute(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        request: &Request<'_>,
        cx: &mut Cx<'_, Self>,
    ) -> Executed;

    /// Returns whether a request of the queue has not left. Then the engine calls [`pump`](Self::pump), and later requests
    /// wait after it. By default every request of the queue counts.
    fn waits(requester: &Requester<Self>) -> bool {
        !requester.queue.is_empty()
    }

    /// Carries out as many of `requests` at once as need no further checks: the queue is empty, the network direct and the
    /// queue pair ready to send. Returns how many, from the front; the others go through [`execute`](Self::execute). By
    /// default none.
    fn express(
        _qp: &Qp<Self>,
        _requester: &mut Requester<Self>,
        _requests: &[WorkRequest<'_>],
        _cx: &mut Cx<'_, Self>,
    ) -> usize {
        0
    }

    /// Continues with the queue: starts the requests that link and peer allow.
    fn pump(qp: &Qp<Self>, requester: &mut Requester<Self>, cx: &mut Cx<'_, Self>);

    /// A time that the queue pair requested with [`Qp::wake_at`] has come.
    fn handle_timeout(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        now: Time,
        cx: &mut Cx<'_, Self>,
    );

    /// A frame has arrived from the link.
    fn handle_frame(device: &Device<Self>, frame: Frame<'_, Self::Header>, cx: &mut Cx<'_, Self>);

    /// Sends what the queue pair kept back until nothing more arrives. The network calls this for the queue pairs of
    /// [`Network::settle_later`](crate::network::Network::settle_later), with no lock held.
    fn settle(_qp: &Qp<Self>, _cx: &mut Cx<'_, Self>) {}

    /// Does the transport's part of a modify. The attributes were checked and take effect after this call.
    fn modify(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        responder: &mut Responder<Self>,
        change: &Change<'_>,
        cx: &mut Cx<'_, Self>,
    );

    /// Allocates a queue pair number; by default the engine's next.
    fn alloc_qpn(&self, engine: &QpnPool) -> Option<u32> {
        engine.allocate()
    }

    /// Frees a queue pair number; by default the engine does, which ignores numbers that it did not allocate.
    fn free_qpn(&self, engine: &QpnPool, qpn: u32) {
        engine.free(qpn);
    }

    /// The path MTU of a queue pair: by default the smaller of the requested one and the port's active one.
    fn path_mtu(&self, wanted: Mtu, active: Mtu) -> Mtu {
        wanted.min(active)
    }

    /// Returns whether the transport's requests name the shared receive queue of the peer for which they are meant, as
    /// [`Addressing`](crate::emulation::Addressing) describes. Other devices gain no feature that needs this.
    fn addresses_receives(&self) -> bool {
        false
    }

    /// How connections are made; by default no connection leaves the process.
    fn carrier(_device: &Device<Self>) -> Option<Carrier> {
        Some(Carrier::InProcess)
    }

    /// Checks a request before the queue takes it: a refused request consumes no slot. The engine does not call this for
    /// requests that [`express`](Self::express) carries out.
    ///
    /// # Errors
    /// The reason why the request is refused.
    fn check_post(&self, _qp: &Qp<Self>, _request: &Request<'_>) -> Result<(), PostReason> {
        Ok(())
    }

    /// Checks a path before an address handle or a connection uses it.
    ///
    /// # Errors
    /// The field that is wrong.
    fn check_path(&self, _path: &AddressVector) -> Result<(), VerbError> {
        Ok(())
    }

    /// Sends what the wire must carry before a queue pair in error is flushed; by default nothing.
    fn before_flush(
        _qp: &Qp<Self>,
        _requester: &mut Requester<Self>,
        _status: WcStatus,
        _cx: &mut Cx<'_, Self>,
    ) {
    }

    /// The first valid packet has arrived since the queue pair became ready to receive. The caller holds the responder's
    /// lock. By default nothing happens.
    fn first_arrival(_qp: &Qp<Self>, _cx: &mut Cx<'_, Self>) {}

    /// The queue pair leaves its connection: it is in the error state, or is being reset or destroyed. The engine calls
    /// this before it drops `requester.direct`, perhaps with the responder locked, perhaps several times. By default
    /// nothing happens.
    fn disconnect(_qp: &Qp<Self>, _requester: &mut Requester<Self>, _cx: &mut Cx<'_, Self>) {}

    /// A connection manager makes the connection: see [`verbs_api::Qp::keep_receives`]. By default nothing happens.
    fn keep_receives(_qp: &Qp<Self>) {}

    /// Connects the queue pair to a peer that it reaches directly, now that it has become ready. By default the engine only
    /// makes the requester continue.
    fn peer_ready(_qp: &QpRef<Self>, _cx: &mut Cx<'_, Self>) {}
}

/// A modify whose attributes were checked.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The state before.
    pub from: QpState,
    /// The state after.
    pub to: QpState,
    /// The attributes that are set now.
    pub given: &'a QpAttributes,
    /// The attributes that are set now or were set before.
    pub all: &'a QpAttributes,
}
