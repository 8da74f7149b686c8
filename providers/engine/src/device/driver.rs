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
use std::sync::Arc;

use verbs_api::objects::management::AgentRegistration;
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{AgentOps, AgentSink};
use verbs_api::qp::{AddressVector, QpAttributes, QpState};
use verbs_api::{
    VerbError, WcStatus,
    capability::{DeviceAttributes, Mtu, PhysState},
    ids::LinkAddress,
    wr::{PostReason, WorkRequest},
};

use crate::device::{Cx, Device};
use crate::link::{Frame, Note};
use crate::management::ManagementAgents;
use crate::qp::{Qp, QpRef, Requester, Responder};
use crate::qpn::QpnPool;
use crate::request::Request;
use crate::time::Time;

/// How far a driver has carried out a request that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The request has completed with this status. The number is how many bytes a read, an atomic or an extension's
    /// operation has returned.
    Done(WcStatus, u32),
    /// The request has to wait, or is under way without an answer: the engine keeps it in the send queue.
    Keep,
    /// All frames of the request have been sent, with these packet sequence numbers: the engine keeps it in the send queue
    /// until the peer has answered.
    Sent {
        /// The first packet sequence number.
        first: u32,
        /// How many packet sequence numbers the request takes.
        count: u32,
    },
}

/// The driver of one transport. See the [module](self).
///
/// Methods without a default are required, and the compiler names those that are missing.
pub trait Driver: Sized + Send + Sync + 'static {
    /// The decoded header of one of the transport's frames.
    type Header: Clone + Debug + Send + Sync + 'static;
    /// The transport's own state of a queue pair's sending half, the requester.
    type Requester: Default + Send + 'static;
    /// The transport's own state of a queue pair's receiving half, the responder.
    type Responder: Default + Send + 'static;

    /// Returns the attributes of the device. The emulations of extensions add their features later.
    fn attributes(&self) -> DeviceAttributes;

    /// Returns the address of the device on its network, of the kind that the transport's link uses.
    fn link_address(&self) -> LinkAddress;

    /// Tries to carry out a request at once. The engine calls this when the queue pair is in RTS and no earlier request
    /// [waits](Self::waits) to leave; if the request needs [no frame](crate::request::Op::is_local), the send queue is
    /// empty.
    fn execute(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        request: &Request<'_>,
        cx: &mut Cx<'_, Self>,
    ) -> Executed;

    /// Returns whether the send queue has a request that was not sent completely. Then the engine queues later requests
    /// after it and calls [`pump`](Self::pump). By default every queued request counts.
    fn waits(requester: &Requester<Self>) -> bool {
        !requester.queue.is_empty()
    }

    /// Carries out requests from the front of `requests`, as many as need no further checks, and returns how many. The
    /// engine calls this when the send queue is empty, the network has no link and the queue pair is in RTS; it passes the
    /// other requests to [`execute`](Self::execute). By default none is carried out.
    fn express(
        _qp: &Qp<Self>,
        _requester: &mut Requester<Self>,
        _requests: &[WorkRequest<'_>],
        _cx: &mut Cx<'_, Self>,
    ) -> usize {
        0
    }

    /// Continues with the send queue: sends as many of its requests as the link and the peer allow.
    fn pump(qp: &Qp<Self>, requester: &mut Requester<Self>, cx: &mut Cx<'_, Self>);

    /// Handles a timer of the queue pair: a time for which it has called [`Qp::wake_at`] has come.
    fn handle_timeout(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        now: Time,
        cx: &mut Cx<'_, Self>,
    );

    /// Handles a frame that the link has delivered to this device.
    fn handle_frame(device: &Device<Self>, frame: Frame<'_, Self::Header>, cx: &mut Cx<'_, Self>);

    /// Handles a note of another process at the device's address: a message that a driver has sent, whose first byte is not 0,
    /// or the end of a process. By default it is ignored, because no message was sent.
    fn handle_note(_device: &Device<Self>, _note: Note<'_>, _cx: &mut Cx<'_, Self>) {}

    /// Sends the acknowledges that the queue pair kept back while frames were arriving; by default there are none. The
    /// network calls this for the queue pairs of [`Network::settle_later`](crate::network::Network::settle_later), with no
    /// lock held.
    fn settle(_qp: &Qp<Self>, _cx: &mut Cx<'_, Self>) {}

    /// Does the transport's part of a modify. The engine has checked the attributes, and sets the new state after this
    /// call.
    fn modify(
        qp: &Qp<Self>,
        requester: &mut Requester<Self>,
        responder: &mut Responder<Self>,
        change: &Change<'_>,
        cx: &mut Cx<'_, Self>,
    );

    /// Allocates the number of a new queue pair, by default from the engine's pool; `None` if no number is left.
    fn alloc_qpn(&self, engine: &QpnPool) -> Option<u32> {
        engine.allocate()
    }

    /// Frees the number of a destroyed queue pair. By default the engine's pool takes it, and ignores a number that it did
    /// not allocate.
    fn free_qpn(&self, engine: &QpnPool, qpn: u32) {
        engine.free(qpn);
    }

    /// Returns the path MTU of a queue pair whose program requests `wanted` on a port with the active MTU `active`: by
    /// default the smaller of the two. `sl` is the service level of the path, for a driver whose virtual lanes have MTUs of
    /// their own.
    fn path_mtu(&self, wanted: Mtu, active: Mtu, _sl: u8) -> Mtu {
        wanted.min(active)
    }

    /// Returns whether requests of this transport can name the shared receive queue of the peer for which they are meant,
    /// as [`Addressing`](crate::emulation::Addressing) describes. If not, the device gains no feature that needs this.
    fn addresses_receives(&self) -> bool {
        false
    }

    /// Returns the agents that answer the management datagrams which arrive for queue pairs 0 and 1 of the device, whose port
    /// is then theirs to describe. By default there are none, as on Ethernet: the port is active, and no subnet manager
    /// configures it.
    fn management(&self) -> Option<&dyn ManagementAgents> {
        None
    }

    /// Registers an agent of a program, for management datagrams that the device's own [agents](Self::management) do not
    /// answer. By default this is unsupported.
    ///
    /// # Errors
    /// The device has no agents, another agent has one of the methods, or the class does not exist.
    fn register_agent(
        _device: &Arc<Device<Self>>,
        _registration: AgentRegistration,
        _sink: Arc<dyn AgentSink>,
    ) -> Result<Box<dyn AgentOps>, VerbError> {
        Err(VerbError::UnsupportedVerb("register_agent"))
    }

    /// Returns names and values of the driver's own counters, which programs see next to those of the engine. By default there
    /// are none.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Brings the link of the port into this state, because a subnet manager or the owner of the device wants it. By default the
    /// link obeys at once: the port is down while the link is disabled, and active otherwise.
    ///
    /// A driver with [agents](Self::management) changes their state of the link, which the port then follows.
    fn set_link_state(device: &Device<Self>, state: PhysState) {
        device.follow_link(state);
    }

    /// Returns how connection managers on this device reach their peers: by default only within this process. `None` means
    /// that they cannot make connections.
    fn carrier(_device: &Device<Self>) -> Option<Carrier> {
        Some(Carrier::InProcess)
    }

    /// Checks a posted request before the send queue takes it; a refused request takes no slot. The engine does not call
    /// this for requests that [`express`](Self::express) carries out.
    ///
    /// # Errors
    /// The reason why the request is refused.
    fn check_post(&self, _qp: &Qp<Self>, _request: &Request<'_>) -> Result<(), PostReason> {
        Ok(())
    }

    /// Checks a path before an address handle or a connection uses it.
    ///
    /// # Errors
    /// The field of the path that is wrong.
    fn check_path(&self, _path: &AddressVector) -> Result<(), VerbError> {
        Ok(())
    }

    /// Called when a request has failed with `status`, before the engine flushes the queue pair: the driver may prepare a
    /// message to the peer about the failure, such as iWARP's Terminate. By default nothing happens.
    fn before_flush(
        _qp: &Qp<Self>,
        _requester: &mut Requester<Self>,
        _status: WcStatus,
        _cx: &mut Cx<'_, Self>,
    ) {
    }

    /// Called when the first valid packet since the queue pair entered RTR has arrived. The caller holds the responder's
    /// lock. By default nothing happens.
    fn first_arrival(_qp: &Qp<Self>, _cx: &mut Cx<'_, Self>) {}

    /// Ends the transport's connection of a queue pair that is in the error state, or is being reset or destroyed. The
    /// engine calls this before it drops `requester.direct`, perhaps with the responder locked, perhaps several times. By
    /// default nothing happens.
    fn disconnect(_qp: &Qp<Self>, _requester: &mut Requester<Self>, _cx: &mut Cx<'_, Self>) {}

    /// Notes that a connection manager makes the queue pair's connection, so that posted receives are kept when the peer
    /// closes it: see [`verbs_api::Qp::keep_receives`]. By default nothing happens.
    fn keep_receives(_qp: &Qp<Self>) {}

    /// Called after a modify to RTR or RTS: the driver may connect the queue pair to its peer, or resume a peer that waits
    /// for it. By default nothing happens. In any case the engine resumes the queue pair's own requester afterwards.
    fn peer_ready(_qp: &QpRef<Self>, _cx: &mut Cx<'_, Self>) {}
}

/// A modify of a queue pair whose attributes the engine has checked.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The queue pair's state before the modify.
    pub from: QpState,
    /// The queue pair's state after the modify.
    pub to: QpState,
    /// The attributes that this modify sets.
    pub given: &'a QpAttributes,
    /// The attributes that this modify or an earlier one has set.
    pub all: &'a QpAttributes,
}
