//! The memory that requests, receives and peers of a queue pair name, checked for its intended use.

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

/// Why a message does not fit its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveFault {
    /// An entry of the receive was refused.
    Entry(Fault),
    /// The message is longer than the receive.
    TooLong,
}

impl<D: Driver> Qp<D> {
    /// Returns the payload of a request: the memory of its entries, checked for reading, or its inline bytes.
    ///
    /// # Errors
    /// The fault of the first entry that is refused.
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

    /// Gathers the memory for the answer to a request: the memory of its entries, checked for local writing.
    ///
    /// # Errors
    /// The fault of the first entry that is refused.
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

    /// Returns the message of an extension's request: its body, and the bytes of its entries if the operation sends them.
    ///
    /// # Errors
    /// The fault of the first entry that is refused.
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

    /// Returns the memory for the answer to an extension's request.
    ///
    /// # Errors
    /// The fault of the first entry that is refused.
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

    /// Gathers the memory of a receive, checked for writing, as far as a message of `length` bytes reaches. An empty
    /// message accesses no memory, and so needs no valid entry.
    ///
    /// # Errors
    /// The fault of the first entry that is refused.
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

    /// Copies a part of a message into its receive, beginning at byte `offset` of the receive.
    ///
    /// # Errors
    /// Nothing is copied if the part does not fit.
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

    /// Returns the memory that a key opens to this queue pair's peer.
    ///
    /// # Errors
    /// The first reason to refuse the access.
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
