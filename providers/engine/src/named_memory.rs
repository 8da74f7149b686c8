//! Access checks of the memory that a queue pair's requests, posted receives and peers name by key. Each returns the
//! memory, or the fault that refuses the access.

use verbs_api::Access;
use verbs_api::extension::{ExtensionOperation, OperationData};
use verbs_api::ids::Qpn;

use crate::device::Cx;
use crate::device::driver::Driver;
use crate::fault::Fault;
use crate::key_table::{LocalUse, Region, RemoteUse};
use crate::log_event;
use crate::operation::Octets;
use crate::payload::{Payload, Spans, gather, scatter_at};
use crate::pin::Pin;
use crate::qp::Qp;
use crate::receive_ring::{RawSge, Receive};
use crate::request::{Request, Source};
use crate::rules::{self, Rule};

/// Why a part of a message cannot be placed in the receive that was taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveFault {
    /// A scatter entry of the receive fails its access check with this fault.
    Entry(Fault),
    /// The message is longer than all scatter entries of the receive together.
    TooLong,
}

impl<D: Driver> Qp<D> {
    /// Returns the bytes that a send-queue request sends: the memory of its scatter/gather entries, checked for local
    /// reading, or its inline bytes. `spans` stores the list of stretches.
    ///
    /// # Errors
    /// The fault of the first entry that fails the check.
    #[inline]
    pub fn gather_request<'s, 'p: 's>(
        &self,
        request: &Request<'s>,
        cx: &Cx<'p, D>,
        spans: &'s mut Spans<'p>,
    ) -> Result<Payload<'s>, Fault> {
        let list = match request.source {
            Source::Inline(bytes) => return Ok(Payload::Bytes(bytes)),
            Source::Sges(list) => list.iter().map(RawSge::from),
        };
        let user = LocalUse {
            pd: self.pd,
            private: request.private,
            write: false,
        };
        gather(cx.keys(), cx.pin, list, user, spans)?;
        Ok(Payload::of_spans(spans))
    }

    /// Adds the memory of the request's scatter/gather entries to `into`, checked for local writing: the peer's answer to a
    /// read or an atomic is placed there.
    ///
    /// # Errors
    /// The fault of the first entry that fails the check.
    #[inline]
    pub fn gather_sink<'p>(
        &self,
        request: &Request<'_>,
        cx: &Cx<'p, D>,
        into: &mut Spans<'p>,
    ) -> Result<(), Fault> {
        let Source::Sges(list) = request.source else {
            return Ok(());
        };
        let user = LocalUse {
            pd: self.pd,
            private: request.private,
            write: true,
        };
        let list = list.iter().map(RawSge::from);
        gather(cx.keys(), cx.pin, list, user, into)
    }

    /// Returns the message that an extension's request sends: its body, and after it the bytes of its scatter/gather
    /// entries if the operation sends them.
    ///
    /// # Errors
    /// The fault of the first entry that fails the check.
    pub fn gather_message(
        &self,
        request: &Request<'_>,
        operation: &ExtensionOperation,
        cx: &Cx<'_, D>,
    ) -> Result<Octets, Fault> {
        let mut message = Octets::from_slice(request.body);
        if matches!(operation.data_use(), OperationData::Source { .. }) {
            let mut spans = Spans::new();
            let data = self.gather_request(request, cx, &mut spans)?;
            message.extend_from_slice(&data.to_vec());
        }
        Ok(message)
    }

    /// Returns the memory in which the answer to an extension's request is placed, checked for local writing; it is empty
    /// if the operation places no answer in the scatter/gather list.
    ///
    /// # Errors
    /// The fault of the first entry that fails the check.
    pub fn gather_answer<'p>(
        &self,
        request: &Request<'_>,
        operation: &ExtensionOperation,
        cx: &Cx<'p, D>,
    ) -> Result<Spans<'p>, Fault> {
        let mut spans = Spans::new();
        if matches!(operation.data_use(), OperationData::Sink { .. }) {
            self.gather_sink(request, cx, &mut spans)?;
        }
        Ok(spans)
    }

    /// Adds the memory of a posted receive to `into`, checked for local writing, as far as a message of `length` bytes
    /// reaches. Entries beyond that are not checked, so an empty message needs no valid entry.
    ///
    /// # Errors
    /// The fault of the first entry that fails the check.
    #[inline]
    pub fn gather_receive<'p>(
        &self,
        receive: &Receive,
        length: u64,
        cx: &Cx<'p, D>,
        into: &mut Spans<'p>,
    ) -> Result<(), Fault> {
        let user = LocalUse {
            pd: self.receive_pd(),
            private: receive.private,
            write: true,
        };
        let mut rest = length;
        let reached = receive.sges.iter().map(|sge| {
            let length = rest.min(sge.length.into()) as u32;
            rest -= u64::from(length);
            RawSge { length, ..*sge }
        });
        // The keys of `cx` may be those of another device, if a peer is reached directly.
        gather(self.device.keys(), cx.pin, reached, user, into)
    }

    /// Copies `payload`, a part of a message, into the memory of the receive, beginning at byte `offset` of that memory.
    ///
    /// # Errors
    /// An entry fails its access check, or the part ends beyond the receive's memory. Nothing is copied then.
    #[inline]
    pub fn fill_receive(
        &self,
        receive: &Receive,
        offset: u64,
        payload: &Payload<'_>,
        cx: &Cx<'_, D>,
    ) -> Result<(), ReceiveFault> {
        let end = offset + payload.len() as u64;
        let mut spans = Spans::new();
        self.gather_receive(receive, end, cx, &mut spans)
            .map_err(ReceiveFault::Entry)?;
        let room: u64 = spans.iter().map(|span| span.len() as u64).sum();
        if rules::is_broken(Rule::ReceiveLength) {
            let fitting = payload.part(0, room.saturating_sub(offset) as usize);
            scatter_at(&spans, offset, &fitting);
            return Ok(());
        }
        if end > room {
            return Err(ReceiveFault::TooLong);
        }
        scatter_at(&spans, offset, payload);
        Ok(())
    }

    /// Returns the `length` bytes at `addr` that a peer's request names by `key`, if the key grants the rights in `access`
    /// to peers of this queue pair.
    ///
    /// # Errors
    /// The first fault that the check finds.
    #[inline]
    pub fn peer_region<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Region<'p>, Fault> {
        let user = RemoteUse {
            pd: self.remote_pd(),
            qpn: self.qpn,
            access,
        };
        let keys = self.device.keys();
        let region = keys.check_remote(pin, key, addr, length, user);
        region.inspect_err(|fault| {
            log_event!(
                WARN,
                "a peer is refused access to memory",
                qp = Qpn::new(self.qpn),
                rkey = format_args!("{key:#x}"),
                addr = format_args!("{addr:#x}"),
                length = length,
                access = format_args!("{access:?}"),
                reason = format_args!("{fault:?}"),
            );
        })
    }
}
