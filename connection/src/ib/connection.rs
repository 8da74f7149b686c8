//! One connection: its state, what both sides agreed on, and the message that is repeated until it is answered.

use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::mad::cm::Message;
use verbs_api::qp::{AddressVector, QpAttributes, QpState};
use verbs_api::{
    Access,
    ids::{LinkAddress, Psn, Qpn},
};

use super::types::{ListenerId, Path, State, Transport};

/// Identifies a connection that a peer has requested: its number in the order of arrival, and its communication ID.
pub(super) type Arrival = (u64, u32);

/// Identifies an object of a peer: the peer's address, the GUID of its adapter, and a number that the adapter assigned to
/// the object, for example a queue pair number. Equal GUIDs at different addresses are those of different adapters.
pub(super) type PeerKey = (LinkAddress, u64, u32);

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    pub(super) path: Path,
    pub(super) service_id: u64,
    pub(super) transport: Transport,
    pub(super) transaction_id: u64,
    /// The peer's communication ID; 0 while it is not known.
    pub(super) remote_comm_id: u32,
    pub(super) remote_guid: u64,
    pub(super) listener: Option<ListenerId>,
    /// The place in the order of arrival; `None` if the program itself requested the connection.
    pub(super) arrival: Option<Arrival>,
    /// How many messages may still be sent to an address that is not proven to be the peer's; `None` if it is proven. A
    /// request of the program has 0, and takes messages from the allowances of unproven requests of the address.
    pub(super) allowance: Option<u32>,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) sq_psn: Psn,
    pub(super) rq_psn: Psn,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: u8,
    /// How long the peer may take to answer a message before it is repeated.
    pub(super) response: Duration,
    pub(super) max_cm_retries: u8,
    pub(super) retries_left: u8,
    /// The message that is repeated until the peer answers it.
    pub(super) repeated: Option<Box<Message>>,
    /// The answer that is sent again when the peer repeats its message.
    pub(super) answer: Option<Box<Message>>,
    pub(super) due: Option<Time>,
    /// When this side gives up, whatever timeouts and retries the peer asks for.
    pub(super) patient_until: Time,
    /// Whether a REQ or SIDR_REQ is repeated that the peer refused because no program listens.
    pub(super) awaits_listener: bool,
    /// Until this time it is repeated.
    pub(super) listens_by: Time,
    /// Whether the next repetition uses up no retry, because the peer refused the message or the message was not sent.
    pub(super) keeps_retries: bool,
}

impl Connection {
    pub(super) fn new(state: State, path: Path, service_id: u64) -> Self {
        Self {
            state,
            path,
            service_id,
            transport: Transport::Rc,
            transaction_id: 0,
            remote_comm_id: 0,
            remote_guid: 0,
            listener: None,
            arrival: None,
            allowance: None,
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            sq_psn: Psn::default(),
            rq_psn: Psn::default(),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ack_timeout: super::time::ack_timeout(0, path.packet_life_time),
            response: Duration::ZERO,
            max_cm_retries: 0,
            retries_left: 0,
            repeated: None,
            answer: None,
            due: None,
            patient_until: Time::default(),
            awaits_listener: true,
            listens_by: Time::default(),
            keeps_retries: false,
        }
    }

    /// Returns the key of an object to which the peer's adapter assigned this number.
    pub(super) fn peer_key(&self, number: u32) -> PeerKey {
        (self.path.address, self.remote_guid, number)
    }

    /// Whether the local queue pair is an XRC target, which outlives its connection and which other initiators may use.
    pub(super) fn is_xrc_target(&self) -> bool {
        self.transport == Transport::Xrc && self.listener.is_some()
    }

    fn is_xrc_initiator(&self) -> bool {
        self.transport == Transport::Xrc && self.listener.is_none()
    }

    /// Returns the attributes that move the queue pair to the state `to`; `None` while the handshake has not come that far.
    pub(super) fn qp_attributes(&self, to: QpState) -> Option<QpAttributes> {
        let attributes = QpAttributes::new().qp_state(to);
        match to {
            QpState::Init => Some(
                attributes
                    .pkey_index(self.path.pkey_index)
                    .port_num(self.path.port_num)
                    .qp_access_flags(self.access()),
            ),
            QpState::Rtr if self.state.knows_peer() => Some(self.ready_to_receive(attributes)),
            QpState::Rts if self.state.knows_peer() => Some(self.ready_to_send(attributes)),
            _ => None,
        }
    }

    fn access(&self) -> Access {
        let write = Access::REMOTE_WRITE;
        if self.transport == Transport::Uc {
            write
        } else {
            write | Access::REMOTE_READ | Access::REMOTE_ATOMIC
        }
    }

    fn ready_to_receive(&self, attributes: QpAttributes) -> QpAttributes {
        let path = &self.path;
        let vector = AddressVector {
            sgid_index: path.sgid_index,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl: path.sl,
            static_rate: path.static_rate,
            ..AddressVector::new(path.address, path.remote_gid, path.port_num)
        };
        let attributes = attributes
            .ah_attr(vector)
            .path_mtu(path.mtu)
            .dest_qp_num(self.remote_qpn)
            .rq_psn(self.rq_psn);
        if self.transport == Transport::Uc || self.is_xrc_initiator() {
            return attributes;
        }
        // 0 is the longest delay, 655.36 ms: what the RDMA connection manager sets.
        attributes
            .max_dest_rd_atomic(self.responder_resources)
            .min_rnr_timer(0)
    }

    fn ready_to_send(&self, attributes: QpAttributes) -> QpAttributes {
        let attributes = attributes.sq_psn(self.sq_psn);
        if self.transport == Transport::Uc {
            return attributes;
        }
        let attributes = attributes.timeout(self.ack_timeout);
        if self.is_xrc_target() {
            return attributes;
        }
        attributes
            .retry_cnt(self.retry_count)
            .rnr_retry(self.rnr_retry_count)
            .max_rd_atomic(self.initiator_depth)
    }
}
