//! The memory that requests, receives and peers of a queue pair name, checked for what is done with it.

use verbs_api::Access;
use verbs_api::extension::{ExtensionOperation, OperationData};

use crate::device::Cx;
use crate::driver::Driver;
use crate::fault::Fault;
use crate::key_table::{LocalUse, Region, RemoteUse};
use crate::operation::Octets;
use crate::payload::{Payload, Spans, gather, scatter_at};
use crate::pin::Pin;
use crate::qp::Qp;
use crate::receive_ring::{RawSge, Receive};
use crate::request::{Request, Source};
use crate::rules::{self, Rule};

/// Why a message does not go into its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveFault {
    /// An entry of the receive was refused.
    Entry(Fault),
    /// The message is longer than the receive.
    TooLong,
}

impl<D: Driver> Qp<D> {
    /// The payload of a request: what its entries name, checked for reading, or its inline bytes.
    ///
    /// # Errors
    /// The first entry that is refused.
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

    /// What the answer to a request is written to: its entries, checked for local writing.
    ///
    /// # Errors
    /// The first entry that is refused.
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

    /// What travels of a request of an extension: its body, and the bytes that its entries name where they go along.
    ///
    /// # Errors
    /// The first entry that is refused.
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

    /// Where the answer to a request of an extension goes.
    ///
    /// # Errors
    /// The first entry that is refused.
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

    /// Gathers what a receive names, checked for writing, as far as a message of `length` bytes reaches. A message of no
    /// bytes touches no memory, and so needs no valid entry.
    ///
    /// # Errors
    /// The first entry that is refused.
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
        // Not those of the call: it may be the device of a peer that is reached directly.
        gather(self.device.keys(), cx.pin, reached, user, into)
    }

    /// Copies a piece of a message into its receive, from byte `offset` of that on.
    ///
    /// # Errors
    /// Nothing is copied where the piece does not fit.
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

    /// The memory that a key opens to this queue pair's peer.
    ///
    /// # Errors
    /// The first reason to refuse.
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
        keys.check_remote(pin, key, addr, length, user)
    }
}
