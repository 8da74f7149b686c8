//! The program's calls: connect, reply, reject, disconnect and so on (IBTA 12.9).

use polyverbs_engine::time::Time;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::{Drep, Dreq, Message, Mra, Rep, Req, Rtu, SidrRep, SidrReq, reason};
use verbs_api::ids::Qpn;

use super::connection::Connection;
use super::limits::fits;
use super::manager::Manager;
use super::private;
use super::time;
use super::types::{
    CmError, CommId, Event, Inquiry, Rejection, Reply, Request, Resolution, State, Transport,
};

impl Manager {
    /// Requests a connection: sends a REQ.
    ///
    /// # Errors
    /// The private data is too long, or there is no room for another connection.
    pub fn connect(&mut self, now: Time, request: &Request<'_>) -> Result<CommId, CmError> {
        fits(request.private_data, private::REQ)?;
        let response = self.response_time(
            request.remote_response_timeout,
            request.path.packet_life_time,
        );
        let connection = Connection {
            transport: request.transport,
            local_qpn: request.qpn,
            rq_psn: request.starting_psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            retry_count: request.retry_count.min(7),
            rnr_retry_count: request.rnr_retry_count.min(7),
            response,
            max_cm_retries: request.max_cm_retries.min(15),
            ..Connection::new(State::ReqSent, request.path, request.service_id)
        };
        let id = self.add_own(connection)?;
        let transaction_id = self.transaction(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.transaction_id = transaction_id;
        }
        let message = self.req(id, request);
        self.send_until_answered(now, id, message);
        Ok(CommId(id))
    }

    fn req(&self, id: u32, request: &Request<'_>) -> Message {
        let path = &request.path;
        let (transport_type, extended_transport_type) = match request.transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        };
        let delay = self.options.target_ack_delay;
        let mut message = Req {
            local_comm_id: id,
            service_id: request.service_id,
            ca_guid: self.options.ca_guid,
            qpn: request.qpn.value(),
            remote_response_timeout: request.remote_response_timeout,
            transport_type,
            extended_transport_type,
            starting_psn: request.starting_psn.value(),
            local_response_timeout: request.local_response_timeout,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            p_key: path.p_key,
            path_mtu: path.mtu as u8,
            max_cm_retries: request.max_cm_retries.min(15),
            primary_local_lid: 0xffff,
            primary_remote_lid: 0xffff,
            primary_local_gid: Octets(path.local_gid.0),
            primary_remote_gid: Octets(path.remote_gid.0),
            primary_flow_label: path.flow_label,
            primary_packet_rate: path.static_rate,
            primary_traffic_class: path.traffic_class,
            primary_hop_limit: path.hop_limit,
            primary_service_level: path.sl,
            primary_ack_timeout: time::ack_timeout(delay, path.packet_life_time),
            private_data: Octets::padded(request.private_data).unwrap_or_default(),
            ..Req::default()
        };
        // An XRC initiator has no receive queue, and so none of these (IBTA annex A14).
        if request.transport != Transport::Xrc {
            message.responder_resources = request.responder_resources;
            message.retry_count = request.retry_count.min(7);
            message.rnr_retry_count = request.rnr_retry_count.min(7);
            message.srq = request.srq;
        }
        message.into()
    }

    /// Accepts a peer's connection request: sends a REP.
    ///
    /// # Errors
    /// The connection has no REQ to answer, or the private data is too long.
    pub fn reply(&mut self, now: Time, id: CommId, reply: &Reply<'_>) -> Result<(), CmError> {
        let guid = self.options.ca_guid;
        let target_ack_delay = self.options.target_ack_delay.min(31);
        let connection = self.in_state(id, &[State::ReqRcvd, State::MraReqSent])?;
        fits(reply.private_data, private::REP)?;
        connection.state = State::RepSent;
        connection.local_qpn = reply.qpn;
        connection.rq_psn = reply.starting_psn;
        connection.responder_resources = reply.responder_resources;
        connection.initiator_depth = reply.initiator_depth;
        connection.answer = None;
        self.unready.insert(reply.qpn.value(), id.0);
        let Some(connection) = self.connections.get(&id.0) else {
            return Err(CmError::Unknown);
        };
        let is_xrc = connection.transport == Transport::Xrc;
        let qpn = reply.qpn.value();
        let message = Rep {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            qpn: if is_xrc { 0 } else { qpn },
            ee_context: if is_xrc { qpn } else { 0 },
            starting_psn: reply.starting_psn.value(),
            responder_resources: reply.responder_resources,
            initiator_depth: if is_xrc { 0 } else { reply.initiator_depth },
            target_ack_delay,
            flow_control: !is_xrc && reply.flow_control,
            rnr_retry_count: reply.rnr_retry_count.min(7),
            srq: is_xrc || reply.srq,
            ca_guid: guid,
            private_data: Octets::padded(reply.private_data).unwrap_or_default(),
            ..Rep::default()
        };
        self.close(id.0);
        self.send_until_answered(now, id.0, message.into());
        Ok(())
    }

    /// Completes a connection whose queue pair has been brought up: sends an RTU.
    ///
    /// # Errors
    /// The connection has no REP to answer, or the private data is too long.
    pub fn ready(&mut self, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::RepRcvd, State::MraRepSent])?;
        fits(private_data, private::RTU)?;
        let message = Message::from(Rtu {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            private_data: Octets::padded(private_data).unwrap_or_default(),
        });
        connection.state = State::Established;
        connection.answer = Some(Box::new(message));
        self.send(id.0, message);
        Ok(())
    }

    /// Marks a connection as established whose queue pair has received traffic before the RTU.
    ///
    /// # Errors
    /// [`CmError::Connected`] if it is established already; [`CmError::State`] if no REP has been sent.
    pub fn established(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        if self.state(id) == Some(State::Established) {
            return Err(CmError::Connected);
        }
        self.in_state(id, &[State::RepSent, State::MraRepRcvd])?;
        self.prove(id.0);
        self.establish(now, id.0);
        self.tell(Event::EstablishedByTraffic { id });
        Ok(())
    }

    /// Marks the connection of a queue pair as established if it still waits for the RTU, because the queue pair has
    /// received traffic.
    pub fn handle_traffic(&mut self, now: Time, qp: Qpn) {
        if let Some(&id) = self.unready.get(&qp.value()) {
            // In any other state there is nothing to do.
            let _ = self.established(now, CommId(id));
        }
    }

    /// Refuses a REQ or a REP, or withdraws this side's own REQ or REP: sends a REJ.
    ///
    /// # Errors
    /// There is nothing to refuse, or the private data is too long.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        rejection: &Rejection<'_>,
    ) -> Result<(), CmError> {
        let connection = self.in_state(id, REJECTABLE)?;
        let (state, is_proven) = (connection.state, connection.allowance.is_none());
        fits(rejection.private_data, private::REJ)?;
        if rejection.info.len() > 72 {
            return Err(CmError::Argument(
                "more than 72 bytes of reject information",
            ));
        }
        self.send_rejection(
            id.0,
            rejection.reason,
            rejection.info,
            rejection.private_data,
        );
        // A peer that has proven nothing has no packets in the network, and chooses by its REQ how long TIMEWAIT takes.
        if is_proven && matches!(state, State::RepSent | State::MraRepRcvd) {
            self.enter_timewait(now, id.0);
        } else {
            self.forget(id.0);
        }
        Ok(())
    }

    /// Asks the peer to wait longer for the program's answer: sends an MRA. The time is 4.096 µs x 2^`service_timeout`.
    ///
    /// # Errors
    /// The peer waits for no answer, or the private data is too long.
    pub fn delay(
        &mut self,
        id: CommId,
        service_timeout: u8,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::ReqRcvd, State::RepRcvd])?;
        fits(private_data, private::MRA)?;
        let is_request = connection.state == State::ReqRcvd;
        connection.state = if is_request {
            State::MraReqSent
        } else {
            State::MraRepSent
        };
        let message = Message::from(Mra {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            message: u8::from(!is_request),
            service_timeout: service_timeout.min(31),
            private_data: Octets::padded(private_data).unwrap_or_default(),
            ..Mra::default()
        });
        connection.answer = Some(Box::new(message));
        self.send(id.0, message);
        Ok(())
    }

    /// Ends a connection: sends a DREQ.
    ///
    /// # Errors
    /// The connection is not established, or the private data is too long.
    pub fn disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let transaction_id = self.transaction(id.0);
        let connection = self.in_state(id, &[State::Established])?;
        fits(private_data, private::DREQ)?;
        connection.state = State::DreqSent;
        connection.transaction_id = transaction_id;
        connection.answer = None;
        let message = Dreq {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            remote_qpn: connection.remote_qpn.value(),
            private_data: Octets::padded(private_data).unwrap_or_default(),
            ..Dreq::default()
        };
        self.send_until_answered(now, id.0, message.into());
        Ok(())
    }

    /// Confirms the end of a connection: sends a DREP.
    ///
    /// # Errors
    /// The connection has no DREQ to answer, or the private data is too long.
    pub fn confirm_disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::DreqRcvd])?;
        fits(private_data, private::DREP)?;
        let message = Message::from(Drep {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            private_data: Octets::padded(private_data).unwrap_or_default(),
        });
        connection.answer = Some(Box::new(message));
        self.send(id.0, message);
        self.enter_timewait(now, id.0);
        Ok(())
    }

    /// Ends a connection with the message that its state requires (IBTA 12.9.6).
    ///
    /// [`Event::TimewaitExit`] reports when its communication ID may be used again.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn destroy(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        let connection = self.connections.get(&id.0).ok_or(CmError::Unknown)?;
        let consumer = Rejection {
            reason: reason::CONSUMER,
            info: &[],
            private_data: &[],
        };
        match connection.state {
            State::ReqSent | State::MraReqRcvd => {
                self.send_timeout(id.0);
                self.forget(id.0);
                Ok(())
            }
            State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent
            | State::RepSent
            | State::MraRepRcvd => self.reject(now, id, &consumer),
            State::Established if connection.is_xrc_target() => {
                self.forget(id.0);
                Ok(())
            }
            State::Established => self.disconnect(now, id, &[]),
            State::DreqRcvd => self.confirm_disconnect(now, id, &[]),
            State::DreqSent | State::TimeWait => Ok(()),
            State::SidrReqSent => {
                self.forget(id.0);
                Ok(())
            }
            State::SidrReqRcvd => self.resolve_reply(
                id,
                &Resolution {
                    status: 2,
                    qpn: verbs_api::ids::Qpn::default(),
                    q_key: 0,
                    private_data: &[],
                },
            ),
        }
    }

    /// Asks a peer for the datagram queue pair of a service: sends a SIDR_REQ.
    ///
    /// # Errors
    /// The private data is too long, or there is no room for another resolution.
    pub fn resolve(&mut self, now: Time, inquiry: &Inquiry<'_>) -> Result<CommId, CmError> {
        fits(inquiry.private_data, private::SIDR_REQ)?;
        let Inquiry {
            service_id, path, ..
        } = *inquiry;
        let connection = Connection {
            response: self.response_time(inquiry.response_timeout, path.packet_life_time),
            max_cm_retries: inquiry.max_cm_retries.min(15),
            awaits_listener: inquiry.awaits_listener,
            ..Connection::new(State::SidrReqSent, path, service_id)
        };
        let id = self.add_own(connection)?;
        let transaction_id = self.transaction(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.transaction_id = transaction_id;
        }
        let message = SidrReq {
            request_id: id,
            p_key: path.p_key,
            service_id,
            private_data: Octets::padded(inquiry.private_data).unwrap_or_default(),
            ..SidrReq::default()
        };
        self.send_until_answered(now, id, message.into());
        Ok(CommId(id))
    }

    /// Answers a peer with the datagram queue pair of a service: sends a SIDR_REP.
    ///
    /// # Errors
    /// There is no SIDR_REQ to answer, or the private data is too long.
    pub fn resolve_reply(&mut self, id: CommId, answer: &Resolution<'_>) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::SidrReqRcvd])?;
        fits(answer.private_data, private::SIDR_REP)?;
        let message = SidrRep {
            request_id: connection.remote_comm_id,
            status: answer.status,
            qpn: answer.qpn.value(),
            service_id: connection.service_id,
            q_key: answer.q_key,
            private_data: Octets::padded(answer.private_data).unwrap_or_default(),
            ..SidrRep::default()
        };
        self.send(id.0, message.into());
        self.forget(id.0);
        Ok(())
    }

    fn in_state(&mut self, id: CommId, allowed: &[State]) -> Result<&mut Connection, CmError> {
        let connection = self.connections.get_mut(&id.0).ok_or(CmError::Unknown)?;
        if !allowed.contains(&connection.state) {
            return Err(CmError::State(connection.state));
        }
        Ok(connection)
    }
}

const REJECTABLE: &[State] = &[
    State::ReqSent,
    State::MraReqRcvd,
    State::ReqRcvd,
    State::MraReqSent,
    State::RepRcvd,
    State::MraRepSent,
    State::RepSent,
    State::MraRepRcvd,
];
