//! The offer that one side sends to the other, and the parameters that both agree on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use verbs_api::provider::backend::{CmEvent, ConnectError, Offer};
use verbs_api::qp::{Half, QpState, QpType};
use verbs_api::{
    ArgumentReason, Context, PathOptions, Qp, QpEndpoint, Transport, VerbError, capability::Mtu,
    ids::Psn,
};

use super::options::{ConnectionOptions, ReadLimits};

pub(super) fn offer(
    own: &Context,
    qp: &Qp,
    options: &ConnectionOptions,
    max: usize,
) -> Result<Offer, ConnectError> {
    fits(&options.private_data, max)?;
    // A connector uses the network of its own device.
    let context = &qp.open_device();
    if context.device_id() != own.device_id() {
        return Err(VerbError::argument("qp", ArgumentReason::AnotherDevice).into());
    }
    let mut endpoint = qp.endpoint()?;
    match options.takes_psn {
        Some(_) if context.attributes().transport == Transport::Iwarp => {
            let what = "a queue pair that the program brings up, over a stream";
            return Err(VerbError::UnsupportedHere(what.to_owned()).into());
        }
        Some(psn) => endpoint.sq_psn = psn,
        // INIT is allowed: receives may have been posted there.
        None if !matches!(qp.query()?.state, QpState::Reset | QpState::Init) => {
            return Err(ConnectError::Connected);
        }
        None => {}
    }
    let half = qp.half();
    let qp_type = qp.qp_type();
    let reads = clamped(options.reads, context, qp_type, half);
    let is_reliable = qp_type == QpType::Rc;
    Ok(Offer {
        from: (options.source_port != 0)
            .then(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.source_port)),
        endpoint,
        qp_type,
        half,
        takes_psn: None,
        inbound_reads: reads.inbound,
        outbound_reads: reads.outbound,
        path_mtu: path_mtu(context, &options.path)?,
        traffic_class: Some(options.path.chosen_traffic_class()),
        retry_cnt: is_reliable.then(|| options.path.chosen_retry_cnt()),
        rnr_retry: is_reliable.then(|| options.path.chosen_rnr_retry()),
        flow_control: options.flow_control,
        srq: qp.has_srq(),
        private_data: options.private_data.clone(),
    })
}

pub(super) fn clamped(
    reads: ReadLimits,
    context: &Context,
    qp_type: QpType,
    half: Half,
) -> ReadLimits {
    let limits = context.limits();
    // Unreliable connections have no reads.
    let is_reliable = qp_type == QpType::Rc;
    let clamp = |wanted: u8, limit: u32, other: Half| match is_reliable && half != other {
        true => u32::from(wanted).min(limit) as u8,
        false => 0,
    };
    ReadLimits {
        inbound: clamp(reads.inbound, limits.max_qp_rd_atom, Half::Requester),
        outbound: clamp(reads.outbound, limits.max_qp_init_rd_atom, Half::Responder),
    }
}

// A queue pair that is only a responder (an XRC target) cannot be the active side.
pub(super) fn asking(offer: Offer) -> Result<Offer, ConnectError> {
    match offer.half {
        Half::Responder => {
            Err(VerbError::argument("qp", "a responder only, which cannot connect").into())
        }
        Half::Both | Half::Requester => Ok(offer),
    }
}

// A requester connects to a responder (XRC), and each service to its own.
pub(super) fn meets(own: &Offer, peer: &Offer) -> Result<(), ConnectError> {
    if own.qp_type != peer.qp_type {
        let why = ArgumentReason::PeerService(peer.qp_type);
        return Err(VerbError::argument("qp", why).into());
    }
    let why = match (peer.half, own.half) {
        (Half::Requester, Half::Responder) | (Half::Both, Half::Both) => return Ok(()),
        (Half::Requester, _) => "the peer wants a queue pair that is only a responder",
        _ => "the peer wants a queue pair that sends as well",
    };
    Err(VerbError::argument("qp", why).into())
}

// iWARP has no path MTU.
pub(super) fn path_mtu(
    context: &Context,
    options: &PathOptions,
) -> Result<Option<Mtu>, ConnectError> {
    if context.attributes().transport == Transport::Iwarp {
        return Ok(None);
    }
    let active = context.query_port(options.chosen_port())?.active_mtu;
    let chosen = options.chosen_path_mtu();
    Ok(Some(chosen.map_or(active, |mtu| mtu.min(active))))
}

pub(super) fn with_path_mtu(options: PathOptions, offer: &Offer) -> PathOptions {
    offer.path_mtu.map_or(options, |mtu| options.path_mtu(mtu))
}

/// Returns the PSNs for the attributes of the queue pair. On some backends the messages of each side contain the PSN that
/// it expects, on others the one that it sends.
pub(super) fn numbered(
    options: PathOptions,
    own_psn: Psn,
    peer: &Offer,
) -> (QpEndpoint, PathOptions) {
    let Some(psn) = peer.takes_psn else {
        return (peer.endpoint, options.sq_psn(own_psn));
    };
    let endpoint = QpEndpoint {
        sq_psn: own_psn,
        ..peer.endpoint
    };
    (endpoint, options.sq_psn(psn))
}

pub(crate) fn fits(private_data: &[u8], max: usize) -> Result<(), ConnectError> {
    let len = private_data.len();
    if len > max {
        return Err(ConnectError::PrivateData { len, max });
    }
    Ok(())
}

pub(super) fn copied(private_data: &[u8], into: &mut [u8]) -> Result<usize, ConnectError> {
    let len = private_data.len().min(into.len());
    into[..len].copy_from_slice(&private_data[..len]);
    fits(private_data, into.len())?;
    Ok(len)
}

pub(super) fn limits_of(offer: &Offer) -> ReadLimits {
    ReadLimits {
        inbound: offer.inbound_reads,
        outbound: offer.outbound_reads,
    }
}

/// Returns the read limits that both sides agree on: neither has more reads outstanding than the other executes at one
/// time.
pub(super) fn agreed(own: ReadLimits, peer: &Offer) -> ReadLimits {
    ReadLimits {
        inbound: own.inbound.min(peer.outbound_reads),
        outbound: own.outbound.min(peer.inbound_reads),
    }
}

pub(super) fn refusal(event: CmEvent) -> ConnectError {
    match event {
        CmEvent::Rejected(reason, private_data) => ConnectError::Refused {
            reason,
            private_data,
        },
        CmEvent::TimedOut => ConnectError::TimedOut,
        CmEvent::Failed(error) => error,
        _ => ConnectError::Aborted,
    }
}

/// Returns the options with the traffic class and the retry counts that the peer's offer asks for: those that its message has.
pub(super) fn as_asked(options: PathOptions, peer: &Offer) -> PathOptions {
    let class = peer.traffic_class;
    let options = class.map_or(options, |class| options.traffic_class(class));
    let options = peer
        .retry_cnt
        .map_or(options, |count| options.retry_cnt(count));
    peer.rnr_retry
        .map_or(options, |count| options.rnr_retry(count))
}

pub(super) fn with_reads(options: PathOptions, reads: ReadLimits) -> PathOptions {
    options
        .max_rd_atomic(reads.outbound)
        .max_dest_rd_atomic(reads.inbound)
}
