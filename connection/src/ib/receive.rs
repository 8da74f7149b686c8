//! Received messages (IBTA 12.9.7, 12.9.8).

use polyverbs_engine::time::Time;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::{
    Apr, Drep, Dreq, Lap, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, reason,
};
use verbs_api::{
    capability::Mtu,
    ids::{Gid, LinkAddress, Psn, Qpn},
};

use super::admission::ALLOWANCE;
use super::connection::Connection;
use super::manager::{Listening, Manager, remove_own};
use super::time;
use super::types::{CommId, Event, ListenerId, Path, Replied, Requested, State, Transport};

/// The status of an APR where alternate paths are not supported (IBTA 12.8.2).
const ALTERNATE_PATHS_UNSUPPORTED: u8 = 2;
/// The status of a SIDR_REP where no program listens (IBTA 12.11.2).
const SERVICE_UNSUPPORTED: u8 = 1;
/// The time, as a code, that an MRA asks the peer to wait when the program has not answered a repeated REQ: 4.3 s.
const SERVICE_TIMEOUT: u8 = 20;
/// The largest number of times that a REP is repeated, whatever the peer asks for.
const MOST_RETRIES: u8 = 7;

/// The sender of a message, and the transaction that the message belongs to.
#[derive(Clone, Copy)]
struct Sender {
    address: LinkAddress,
    transaction_id: u64,
}

impl Manager {
    /// Handles a message of the connection manager that was received from the address `from`.
    pub fn handle_message(
        &mut self,
        now: Time,
        from: LinkAddress,
        transaction_id: u64,
        message: &Message,
    ) {
        let from = Sender {
            address: from,
            transaction_id,
        };
        match message {
            Message::Req(req) => self.on_req(now, from, req),
            Message::Mra(mra) => self.on_mra(now, from, mra),
            Message::Rej(rej) => self.on_rej(now, from, rej),
            Message::Rep(rep) => self.on_rep(now, from, rep),
            Message::Rtu(rtu) => self.on_rtu(now, from, rtu),
            Message::Dreq(dreq) => self.on_dreq(from, dreq),
            Message::Drep(drep) => self.on_drep(now, from, drep),
            Message::SidrReq(question) => self.on_sidr_req(now, from, question),
            Message::SidrRep(answer) => self.on_sidr_rep(now, from, answer),
            Message::Lap(lap) => self.on_lap(from, lap),
            Message::Apr(_) => self.counts.stray += 1,
        }
    }

    fn on_req(&mut self, now: Time, from: Sender, req: &Req) {
        let key = |number| (from.address, req.ca_guid, number);
        if let Some(&id) = self.by_request.get(&key(req.local_comm_id)) {
            return self.on_duplicate_req(now, from, id, req);
        }
        // The sender may have restarted and use the queue pair number again, or it may be forged. So an established connection
        // stays until the new one is established too, which proves the sender's address.
        let holder = self.by_qpn.get(&key(req.qpn));
        if holder.is_some_and(|&old| self.state(CommId(old)) != Some(State::Established)) {
            return self.refuse(from, req, reason::STALE_CONNECTION);
        }
        match self.examine(from, req) {
            Ok((listener, connection)) => self.accept_req(now, listener, connection, req),
            Err(reason) => self.refuse(from, req, reason),
        }
    }

    fn on_duplicate_req(&mut self, now: Time, from: Sender, id: u32, req: &Req) {
        self.counts.duplicates += 1;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(allowance) = &mut connection.allowance {
            *allowance += ALLOWANCE;
        }
        match connection.state {
            State::ReqRcvd => {
                self.wait_for_answer(now, id);
                // It cannot fail: the state allows it, and there is no private data.
                let _ = self.delay(CommId(id), SERVICE_TIMEOUT, &[]);
            }
            State::MraReqSent => {
                self.wait_for_answer(now, id);
                self.answer_again(id);
            }
            State::TimeWait => self.refuse(from, req, reason::STALE_CONNECTION),
            _ => {}
        }
    }

    /// Marks a connection as established whose peer has answered the REP, and ends an older connection of the peer's queue
    /// pair.
    pub(super) fn establish(&mut self, now: Time, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.state = State::Established;
        connection.repeated = None;
        let qpn = connection.local_qpn.value();
        let (address, guid) = (connection.path.address, connection.remote_guid);
        let peer = connection.peer_key(connection.remote_qpn.value());
        remove_own(&mut self.unready, qpn, id);
        self.cancel(id);
        self.watch_adapter(now, address, guid);
        if let Some(old) = self.by_qpn.insert(peer, id) {
            self.end_stale(now, old);
        }
    }

    /// Ends an established connection whose peer uses its queue pair for another one.
    fn end_stale(&mut self, now: Time, old: u32) {
        if self.state(CommId(old)) == Some(State::Established) {
            // It cannot fail: the state allows it, and there is no private data.
            let _ = self.disconnect(now, CommId(old), &[]);
        }
    }

    fn examine(&mut self, from: Sender, req: &Req) -> Result<(ListenerId, Connection), u16> {
        let transport = match (req.transport_type, req.extended_transport_type) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (3, 1) => Transport::Xrc,
            _ => return Err(reason::INVALID_TRANSPORT_TYPE),
        };
        let mtu = Mtu::from_code(req.path_mtu).ok_or(reason::INVALID_MTU)?;
        let listener = self
            .listener_of(req.service_id)
            .ok_or(reason::INVALID_SERVICE_ID)?;
        if !self.make_room(listener, from.address) {
            self.counts.refused += 1;
            return Err(reason::NO_RESOURCES);
        }
        let path = self.path_back(from.address, mtu, req);
        let response = self.response_time(req.local_response_timeout, path.packet_life_time);
        let connection = Connection {
            transport,
            transaction_id: from.transaction_id,
            remote_comm_id: req.local_comm_id,
            remote_guid: req.ca_guid,
            listener: Some(listener),
            remote_qpn: Qpn::new(req.qpn),
            // Each side chooses the PSN at which the other begins (IBTA 12.7.31).
            sq_psn: Psn::new(req.starting_psn),
            // The peer's initiator depth is this side's responder resources, and vice versa (IBTA 12.7.29).
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout: req.primary_ack_timeout,
            response,
            max_cm_retries: req.max_cm_retries.min(MOST_RETRIES),
            ..Connection::new(State::ReqRcvd, path, req.service_id)
        };
        Ok((listener, connection))
    }

    fn listener_of(&self, service_id: u64) -> Option<ListenerId> {
        let takes = |listening: &Listening| service_id & listening.mask == listening.service_id;
        let found = self
            .listeners
            .iter()
            .find(|(_, listening)| takes(listening));
        found.map(|(id, _)| *id)
    }

    fn path_back(&self, address: LinkAddress, mtu: Mtu, req: &Req) -> Path {
        Path {
            port_num: self.options.port_num,
            pkey_index: self.options.pkey_index,
            p_key: req.p_key,
            sgid_index: self.options.sgid_index,
            mtu,
            flow_label: req.primary_flow_label,
            traffic_class: req.primary_traffic_class,
            hop_limit: req.primary_hop_limit.max(1),
            sl: req.primary_service_level,
            static_rate: req.primary_packet_rate.min(31),
            packet_life_time: req.primary_ack_timeout.saturating_sub(1),
            ..Path::new(
                address,
                Gid(req.primary_remote_gid.0),
                Gid(req.primary_local_gid.0),
            )
        }
    }

    fn accept_req(&mut self, now: Time, listener: ListenerId, connection: Connection, req: &Req) {
        let request = Box::new(Requested {
            service_id: req.service_id,
            transport: connection.transport,
            path: connection.path,
            remote_qpn: connection.remote_qpn,
            starting_psn: connection.sq_psn,
            remote_guid: req.ca_guid,
            responder_resources: connection.responder_resources,
            initiator_depth: connection.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            flow_control: req.flow_control,
            srq: req.srq,
            private_data: req.private_data.0.to_vec(),
        });
        let from = Sender {
            address: connection.path.address,
            transaction_id: connection.transaction_id,
        };
        let named = connection.peer_key(req.local_comm_id);
        match self.add(connection) {
            Ok(id) => {
                self.by_request.insert(named, id);
                self.admit(listener, id);
                self.wait_for_answer(now, id);
                let id = CommId(id);
                self.tell(Event::Requested {
                    listener,
                    id,
                    request,
                });
            }
            Err(_) => {
                self.counts.refused += 1;
                self.refuse(from, req, reason::NO_RESOURCES);
            }
        }
    }

    /// Sends a REJ for a REQ that has no connection.
    fn refuse(&mut self, from: Sender, req: &Req, reason: u16) {
        let rej = Rej {
            remote_comm_id: req.local_comm_id,
            reason,
            ..Rej::default()
        };
        self.send_to(from.address, from.transaction_id, rej.into());
    }

    /// Returns the connection of a message if both communication IDs and the source address match, which proves the
    /// address.
    fn find(&mut self, from: Sender, own: u32, remote: u32) -> Option<&mut Connection> {
        if !self.is_of(from, own, remote) {
            return None;
        }
        self.prove(own);
        self.connections.get_mut(&own)
    }

    fn is_of(&mut self, from: Sender, own: u32, remote: u32) -> bool {
        match self.connections.get(&own) {
            Some(of) if of.remote_comm_id == remote && of.path.address == from.address => true,
            Some(of) if of.remote_comm_id == remote => {
                self.counts.misdirected += 1;
                false
            }
            _ => {
                self.counts.stray += 1;
                false
            }
        }
    }

    /// Returns the connection of a message as [`find`](Self::find) does, but accepts any communication ID of the peer while
    /// the REQ is unanswered and that ID not known.
    fn find_asking(&mut self, from: Sender, own: u32, remote: u32) -> Option<&mut Connection> {
        let is_asking = |connection: &Connection| {
            matches!(connection.state, State::ReqSent | State::MraReqRcvd)
        };
        let known = match self.connections.get(&own) {
            Some(connection) if is_asking(connection) => connection.remote_comm_id,
            _ => remote,
        };
        self.find(from, own, known)
    }

    fn answer_again(&mut self, id: u32) {
        let answer = self.connections.get(&id).and_then(|of| of.answer.clone());
        if let Some(answer) = answer {
            self.send(id, *answer);
        }
    }

    fn on_rep(&mut self, now: Time, from: Sender, rep: &Rep) {
        let id = rep.remote_comm_id;
        let Some(connection) = self.find_asking(from, id, rep.local_comm_id) else {
            return;
        };
        match connection.state {
            State::ReqSent | State::MraReqRcvd => {}
            State::Established | State::MraRepSent => {
                self.counts.duplicates += 1;
                return self.answer_again(id);
            }
            _ => {
                self.counts.stray += 1;
                return;
            }
        }
        let is_xrc = connection.transport == Transport::Xrc;
        let qpn = if is_xrc { rep.ee_context } else { rep.qpn };
        let key = (from.address, rep.ca_guid, qpn);
        if let Some(&old) = self.by_qpn.get(&key)
            && !is_xrc
        {
            return self.refuse_stale_rep(now, id, rep, old);
        }
        self.watch_adapter(now, from.address, rep.ca_guid);
        self.accept_rep(id, qpn, from, rep);
    }

    fn refuse_stale_rep(&mut self, now: Time, id: u32, rep: &Rep, old: u32) {
        let rej = Rej {
            local_comm_id: id,
            remote_comm_id: rep.local_comm_id,
            message: 1,
            reason: reason::STALE_CONNECTION,
            ..Rej::default()
        };
        self.send(id, rej.into());
        self.end_stale(now, old);
    }

    fn accept_rep(&mut self, id: u32, qpn: u32, from: Sender, rep: &Rep) {
        self.cancel(id);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.state = State::RepRcvd;
        connection.repeated = None;
        connection.transaction_id = from.transaction_id;
        connection.remote_comm_id = rep.local_comm_id;
        connection.remote_guid = rep.ca_guid;
        connection.remote_qpn = Qpn::new(qpn);
        connection.sq_psn = Psn::new(rep.starting_psn);
        connection.responder_resources = rep.initiator_depth;
        connection.initiator_depth = rep.responder_resources;
        connection.rnr_retry_count = rep.rnr_retry_count;
        connection.ack_timeout =
            time::ack_timeout(rep.target_ack_delay, connection.path.packet_life_time);
        let reply = Box::new(Replied {
            path: connection.path,
            remote_qpn: connection.remote_qpn,
            starting_psn: connection.sq_psn,
            responder_resources: connection.responder_resources,
            initiator_depth: connection.initiator_depth,
            rnr_retry_count: rep.rnr_retry_count,
            flow_control: rep.flow_control,
            srq: rep.srq,
            private_data: rep.private_data.0.to_vec(),
        });
        let request = connection.peer_key(rep.local_comm_id);
        let peer = connection.peer_key(qpn);
        self.by_request.insert(request, id);
        self.by_qpn.insert(peer, id);
        let id = CommId(id);
        self.tell(Event::Replied { id, reply });
    }

    fn on_rtu(&mut self, now: Time, from: Sender, rtu: &Rtu) {
        let id = rtu.remote_comm_id;
        let Some(connection) = self.find(from, id, rtu.local_comm_id) else {
            return;
        };
        if !matches!(connection.state, State::RepSent | State::MraRepRcvd) {
            self.counts.duplicates += 1;
            return;
        }
        self.establish(now, id);
        self.tell(Event::Established {
            id: CommId(id),
            private_data: rtu.private_data.0.to_vec(),
        });
    }

    fn on_mra(&mut self, now: Time, from: Sender, mra: &Mra) {
        let id = mra.remote_comm_id;
        let Some(connection) = self.find_asking(from, id, mra.local_comm_id) else {
            return;
        };
        let next = match (connection.state, mra.message) {
            (State::ReqSent | State::MraReqRcvd, 0) => State::MraReqRcvd,
            (State::RepSent | State::MraRepRcvd, 1) => State::MraRepRcvd,
            _ => {
                self.counts.stray += 1;
                return;
            }
        };
        connection.state = next;
        let packet_life_time = connection.path.packet_life_time;
        // The timer is extended and no retry is used up (IBTA 12.9.8.5), up to a limit however often the peer asks.
        let wait = self.response_time(mra.service_timeout, packet_life_time);
        self.wake(id, now.after(wait));
        self.tell(Event::Delayed {
            id: CommId(id),
            service_timeout: mra.service_timeout,
            private_data: mra.private_data.0.to_vec(),
        });
    }

    fn on_rej(&mut self, now: Time, from: Sender, rej: &Rej) {
        let Some(id) = self.rejected(from, rej) else {
            return;
        };
        let state = self.connections.get(&id).map(|connection| connection.state);
        match state {
            Some(State::ReqSent)
                if rej.reason == reason::INVALID_SERVICE_ID && self.ask_again(now, id) =>
            {
                return;
            }
            Some(State::ReqSent | State::MraReqRcvd | State::ReqRcvd | State::MraReqSent)
                if rej.reason != reason::STALE_CONNECTION =>
            {
                self.forget(id);
            }
            Some(State::ReqRcvd | State::MraReqSent) => {
                // No local queue pair was connected: TIMEWAIT may be short.
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.ack_timeout = 0;
                }
                self.enter_timewait(now, id);
            }
            None | Some(State::TimeWait | State::SidrReqSent | State::SidrReqRcvd) => {
                self.counts.stray += 1;
                return;
            }
            Some(_) => self.enter_timewait(now, id),
        }
        let info_len = usize::from(rej.info_length).min(rej.info.0.len());
        self.tell(Event::Rejected {
            id: CommId(id),
            reason: rej.reason,
            info: rej.info.0[..info_len].to_vec(),
            private_data: rej.private_data.0.to_vec(),
        });
    }

    /// Returns the connection of a REJ. A peer that timed out before it knew this side's communication ID names this
    /// adapter's GUID instead.
    fn rejected(&mut self, from: Sender, rej: &Rej) -> Option<u32> {
        if rej.reason == reason::TIMEOUT && rej.remote_comm_id == 0 {
            let [a, b, c, d, e, f, g, h, ..] = rej.info.0;
            let guid = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
            let key = (from.address, guid, rej.local_comm_id);
            let found = self.by_request.get(&key).copied();
            let Some(id) = found else {
                self.counts.stray += 1;
                return None;
            };
            // No proof: the sender need not have received anything.
            return self.is_of(from, id, rej.local_comm_id).then_some(id);
        }
        let id = rej.remote_comm_id;
        self.find_asking(from, id, rej.local_comm_id).map(|_| id)
    }

    fn on_dreq(&mut self, from: Sender, dreq: &Dreq) {
        let id = dreq.remote_comm_id;
        let is_known = self
            .connections
            .get(&id)
            .is_some_and(|connection| connection.remote_comm_id == dreq.local_comm_id);
        if !is_known {
            self.counts.stray += 1;
            if self.is_probe_for_another(dreq) {
                return;
            }
            // So that the peer stops repeating its DREQ.
            let drep = Drep {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                private_data: Octets::default(),
            };
            return self.send_to(from.address, from.transaction_id, drep.into());
        }
        let Some(connection) = self.find(from, id, dreq.local_comm_id) else {
            return;
        };
        if dreq.remote_qpn != connection.local_qpn.value() {
            self.counts.stray += 1;
            return;
        }
        self.on_own_dreq(from, id, dreq);
    }

    fn on_own_dreq(&mut self, from: Sender, id: u32, dreq: &Dreq) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.state {
            State::Established | State::RepSent | State::MraRepRcvd | State::DreqSent => {
                connection.state = State::DreqRcvd;
                connection.transaction_id = from.transaction_id;
                connection.repeated = None;
                self.cancel(id);
                self.tell(Event::DisconnectRequested {
                    id: CommId(id),
                    private_data: dreq.private_data.0.to_vec(),
                });
            }
            State::TimeWait => {
                self.counts.duplicates += 1;
                self.confirm_again(from, id);
            }
            _ => self.counts.duplicates += 1,
        }
    }

    /// Sends the DREP again, because it was lost or both sides have sent a DREQ.
    fn confirm_again(&mut self, from: Sender, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let said = match connection.answer.as_deref() {
            Some(Message::Drep(drep)) => drep.private_data,
            _ => Octets::default(),
        };
        let drep = Drep {
            local_comm_id: id,
            remote_comm_id: connection.remote_comm_id,
            private_data: said,
        };
        self.send_to(from.address, from.transaction_id, drep.into());
    }

    fn on_drep(&mut self, now: Time, from: Sender, drep: &Drep) {
        if self.answers_probe(now, from.address, from.transaction_id, drep) {
            return;
        }
        let id = drep.remote_comm_id;
        let Some(connection) = self.find(from, id, drep.local_comm_id) else {
            return;
        };
        if connection.state != State::DreqSent {
            self.counts.stray += 1;
            return;
        }
        self.enter_timewait(now, id);
        self.tell(Event::Disconnected {
            id: CommId(id),
            private_data: drep.private_data.0.to_vec(),
        });
    }

    fn on_lap(&mut self, from: Sender, lap: &Lap) {
        let id = lap.remote_comm_id;
        let Some(connection) = self.find(from, id, lap.local_comm_id) else {
            return;
        };
        if connection.state != State::Established {
            self.counts.stray += 1;
            return;
        }
        let apr = Apr {
            local_comm_id: id,
            remote_comm_id: lap.local_comm_id,
            status: ALTERNATE_PATHS_UNSUPPORTED,
            ..Apr::default()
        };
        self.send_to(from.address, from.transaction_id, apr.into());
    }

    fn on_sidr_req(&mut self, now: Time, from: Sender, question: &SidrReq) {
        let asker = (from.address, question.request_id);
        if let Some(&id) = self.questions.get(&asker) {
            self.counts.duplicates += 1;
            return self.wait_for_answer(now, id);
        }
        let refuse = |status| SidrRep {
            request_id: question.request_id,
            service_id: question.service_id,
            status,
            ..SidrRep::default()
        };
        let Some(listener) = self.listener_of(question.service_id) else {
            return self.send_to(from.address, from.transaction_id, refuse(1).into());
        };
        let path = Path::new(from.address, Gid::default(), Gid::default());
        let connection = Connection {
            transaction_id: from.transaction_id,
            remote_comm_id: question.request_id,
            listener: Some(listener),
            ..Connection::new(State::SidrReqRcvd, path, question.service_id)
        };
        let has_room = self.make_room(listener, from.address);
        let added = has_room.then(|| self.add(connection).ok());
        let Some(id) = added.flatten() else {
            self.counts.refused += 1;
            return self.send_to(from.address, from.transaction_id, refuse(3).into());
        };
        self.questions.insert(asker, id);
        self.admit(listener, id);
        self.wait_for_answer(now, id);
        self.tell(Event::ResolutionRequested {
            listener,
            id: CommId(id),
            from: from.address,
            service_id: question.service_id,
            private_data: question.private_data.0.to_vec(),
        });
    }

    fn on_sidr_rep(&mut self, now: Time, from: Sender, answer: &SidrRep) {
        let id = answer.request_id;
        let Some(connection) = self.find(from, id, 0) else {
            return;
        };
        if connection.state != State::SidrReqSent || connection.service_id != answer.service_id {
            self.counts.stray += 1;
            return;
        }
        if answer.status == SERVICE_UNSUPPORTED && self.ask_again(now, id) {
            return;
        }
        self.forget(id);
        self.tell(Event::Resolved {
            id: CommId(id),
            status: answer.status,
            qpn: Qpn::new(answer.qpn),
            q_key: answer.q_key,
            private_data: answer.private_data.0.to_vec(),
        });
    }
}
