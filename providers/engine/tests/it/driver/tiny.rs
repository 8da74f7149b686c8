//! A transport with two operations, in three forms: with none, some and all of the contract's defaults overridden.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use polyverbs_engine::cq::Done;
use polyverbs_engine::device::{Cx, Device};
use polyverbs_engine::driver::{Change, Driver, Executed};
use polyverbs_engine::key_table::RemoteUse;
use polyverbs_engine::link::Frame;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::qp::{Phase, Qp, QpRef, Requester, Responder};
use polyverbs_engine::qpn::QpnPool;
use polyverbs_engine::request::{Op, Request};
use polyverbs_engine::time::Time;
use verbs_api::qp::{AddressVector, QpState};
use verbs_api::*;
use verbs_api::{
    capability::{
        AtomicScope, BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, Mtu,
        PortAttributes, PortCaps,
    },
    completion::WcOpcode,
    event::EventType,
    ids::{Gid, Guid, LinkAddress},
    wr::{PostReason, WorkRequest},
};

/// An answer that has not left: its sender, its destination and its header.
type Waiting = (u32, LinkAddress, Header);

/// The calls of a driver's own methods.
#[derive(Default)]
pub struct Notes {
    calls: Mutex<BTreeMap<&'static str, u32>>,
    order: Mutex<Vec<&'static str>>,
    /// The driver refuses requests at post from now on.
    pub veto: AtomicBool,
    /// The answers that [`Settling`] has not sent yet.
    waiting: Mutex<Vec<Waiting>>,
    /// The next number of a driver that allocates its queue pair numbers itself.
    pub next_qpn: AtomicU32,
}

impl Notes {
    pub fn note(&self, call: &'static str) {
        *self.calls.lock().unwrap().entry(call).or_default() += 1;
        self.order.lock().unwrap().push(call);
    }

    pub fn count(&self, call: &str) -> u32 {
        self.calls.lock().unwrap().get(call).copied().unwrap_or(0)
    }

    pub fn order(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.order.lock().unwrap())
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub to: u32,
    pub from: u32,
    pub number: u32,
    pub body: Body,
}

#[derive(Clone, Copy, Debug)]
pub enum Body {
    Send,
    Write(RemoteAddress),
    Answer(WcStatus),
}

/// The sending half.
#[derive(Default)]
pub struct Tx {
    peer: Option<(LinkAddress, u32)>,
    next: u32,
}

/// The part in which the drivers differ.
pub trait Tiny: Driver<Header = Header, Requester = Tx, Responder = ()> {
    const NAME: &'static str;
    fn make(address: LinkAddress, notes: &Arc<Notes>) -> Self;
    fn notes(&self) -> &Notes;
    /// The answers that wait until nothing more arrives.
    fn waits(&self) -> Option<&Mutex<Vec<Waiting>>> {
        (Self::NAME == "Settling").then_some(&self.notes().waiting)
    }
}

pub fn attributes(name: &str, address: LinkAddress) -> DeviceAttributes {
    let limits = Limits {
        max_qp: 64,
        max_qp_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_sge_rd: 2,
        max_inline_data: 64,
        max_msg_sz: 1 << 20,
        max_cq: 64,
        max_cqe: 1 << 12,
        max_mr: 64,
        max_mr_size: 1 << 20,
        max_pd: 8,
        max_ah: 4,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        phys_port_cnt: 1,
        page_size_cap: 4096,
        ..Limits::default()
    };
    DeviceAttributes {
        name: name.to_owned(),
        provider: "tiny",
        transport: Transport::InfiniBand,
        node_guid: Guid::default(),
        sys_image_guid: Guid::default(),
        features: Features::empty(),
        extensions: Vec::new(),
        gaps: BaselineGaps::empty(),
        limits,
        atomic_cap: AtomicScope::None,
        masked_atomic_cap: AtomicScope::None,
        ports: vec![PortAttributes {
            max_mtu: Mtu::Mtu2048,
            active_mtu: Mtu::Mtu2048,
            gids: vec![GidEntry::new(Gid([1; 16]), GidType::RoceV2)],
            ..PortAttributes::new(1, PortCaps::ROCE_V2, address)
        }],
    }
}

fn execute<D: Tiny>(
    qp: &Qp<D>,
    half: &mut Requester<D>,
    request: &Request<'_>,
    cx: &mut Cx<'_, D>,
) -> Executed {
    qp.device.driver().notes().note("execute");
    if request.op.is_local() {
        return Executed::Done(qp.local_operation(half, request, cx), 0);
    }
    if qp.device.network().link().is_some() {
        return Executed::Keep;
    }
    let Some(body) = body_of(request) else {
        return Executed::Done(WcStatus::LocQpOpErr, 0);
    };
    let mut spans = Spans::new();
    let payload = match qp.gather_request(request, cx, &mut spans) {
        Ok(payload) => payload,
        Err(fault) => return Executed::Done(fault.local_status(), 0),
    };
    let Some(peer) = find::<D>(qp, half) else {
        return Executed::Keep;
    };
    let status = respond(&peer, body, &payload, Some(qp), cx);
    status.map_or(Executed::Keep, |status| Executed::Done(status, 0))
}

fn body_of(request: &Request<'_>) -> Option<Body> {
    match request.op {
        Op::Send(_) => Some(Body::Send),
        Op::Write(remote, None) => Some(Body::Write(remote)),
        _ => None,
    }
}

fn find<D: Tiny>(qp: &Qp<D>, half: &Requester<D>) -> Option<QpRef<D>> {
    let (address, number) = half.driver.peer?;
    qp.device.network().device(address)?.qp(number)
}

// Returns `None` if the message cannot be handled now.
fn respond<D: Tiny>(
    qp: &Qp<D>,
    body: Body,
    payload: &Payload<'_>,
    waiting: Option<&Qp<D>>,
    cx: &mut Cx<'_, D>,
) -> Option<WcStatus> {
    let mut half = qp.responder();
    if !matches!(qp.state(), QpState::Rtr | QpState::Rts) {
        return None;
    }
    qp.note_arrival(&mut half, cx);
    let refused = |half: &mut Responder<D>, status, event, cx: &mut Cx<'_, D>| {
        qp.fail_responder(half, status, event, cx);
        Some(WcStatus::RemAccessErr)
    };
    if let Body::Write(remote) = body {
        let user = RemoteUse {
            pd: qp.pd,
            qpn: qp.qpn,
            access: Access::REMOTE_WRITE,
        };
        let length = payload.len() as u64;
        let keys = qp.device.keys();
        let checked = keys.check_remote(cx.pin, remote.rkey.value(), remote.addr, length, user);
        let Ok(region) = checked else {
            return refused(
                &mut half,
                WcStatus::RemAccessErr,
                EventType::QpAccessErr,
                cx,
            );
        };
        payload.copy_to(region.first(payload.len()));
        return Some(WcStatus::Success);
    }
    let receive = half
        .current
        .take()
        .or_else(|| qp.take_receive(&mut half, waiting, &mut cx.effects))?;
    let mut spans = Spans::new();
    let gathered = qp.gather_receive(&receive, payload.len() as u64, cx, &mut spans);
    let room: usize = spans.iter().map(|span| span.len()).sum();
    if gathered.is_err() || room < payload.len() {
        half.current = Some(receive);
        return refused(&mut half, WcStatus::LocLenErr, EventType::QpReqErr, cx);
    }
    scatter_at(&spans, 0, payload);
    half.counters.receives += 1;
    let done = Done {
        opcode: WcOpcode::Recv,
        byte_len: payload.len() as u32,
        ..Done::default()
    };
    qp.complete_receive(&receive, done, cx);
    Some(WcStatus::Success)
}

fn pump<D: Tiny>(qp: &Qp<D>, half: &mut Requester<D>, cx: &mut Cx<'_, D>) {
    qp.device.driver().notes().note("pump");
    if qp.device.network().link().is_some() {
        return transmit(qp, half, cx);
    }
    while let Some(wqe) = half.queue.pop_front() {
        let request = wqe.kept.request();
        match execute(qp, half, &request, cx) {
            Executed::Done(status, octets) => qp.complete(half, &request, status, octets, cx),
            Executed::Keep | Executed::Sent { .. } => return half.queue.push_front(wqe),
        }
    }
}

fn transmit<D: Tiny>(qp: &Qp<D>, half: &mut Requester<D>, cx: &mut Cx<'_, D>) {
    let (Some(link), Some((to, number))) = (qp.device.network().link(), half.driver.peer) else {
        return;
    };
    let now = cx.now();
    for wqe in half.queue.iter_mut() {
        if wqe.phase != Phase::Waiting {
            continue;
        }
        let request = wqe.kept.request();
        let mut spans = Spans::new();
        let payload = qp.gather_request(&request, cx, &mut spans);
        let (Some(body), Ok(payload)) = (body_of(&request), payload) else {
            wqe.phase = Phase::Done(WcStatus::LocProtErr);
            break;
        };
        half.driver.next += 1;
        (wqe.phase, wqe.first) = (Phase::Sent, half.driver.next);
        let header = Header {
            to: number,
            from: qp.qpn,
            number: half.driver.next,
            body,
        };
        link.send(
            Frame {
                from: qp.device.address(),
                to,
                header,
                payload,
                damaged: false,
            },
            now,
        );
    }
    qp.complete_done(half, cx);
}

fn handle_frame<D: Tiny>(device: &Device<D>, frame: Frame<'_, Header>, cx: &mut Cx<'_, D>) {
    let Some(qp) = device.qp(frame.header.to) else {
        return;
    };
    if let Body::Answer(status) = frame.header.body {
        let mut half = qp.requester();
        if let Some(wqe) = half
            .queue
            .iter_mut()
            .find(|wqe| wqe.first == frame.header.number)
        {
            wqe.phase = Phase::Done(status);
        }
        return qp.complete_done(&mut half, cx);
    }
    let status = respond(&qp, frame.header.body, &frame.payload, None, cx);
    let body = Body::Answer(status.unwrap_or(WcStatus::RnrRetryExcErr));
    let header = Header {
        to: frame.header.from,
        from: qp.qpn,
        number: frame.header.number,
        body,
    };
    match device.driver().waits() {
        Some(waiting) => {
            waiting.lock().unwrap().push((qp.qpn, frame.from, header));
            device.network().settle_later(qp.downgrade());
        }
        None => answer(device, frame.from, header, cx),
    }
}

fn answer<D: Tiny>(device: &Device<D>, to: LinkAddress, header: Header, cx: &mut Cx<'_, D>) {
    let frame = Frame {
        from: device.address(),
        to,
        header,
        payload: Payload::Empty,
        damaged: false,
    };
    if let Some(link) = device.network().link() {
        link.send(frame, cx.now());
    }
}

macro_rules! tiny {
    ($name:ident: $($overrides:item)*) => {
        pub struct $name {
            pub attributes: DeviceAttributes,
            pub address: LinkAddress,
            pub notes: Arc<Notes>,
        }

        impl Tiny for $name {
            const NAME: &'static str = stringify!($name);

            fn make(address: LinkAddress, notes: &Arc<Notes>) -> Self {
                Self { attributes: attributes(Self::NAME, address), address, notes: Arc::clone(notes) }
            }

            fn notes(&self) -> &Notes {
                &self.notes
            }
        }

        impl Driver for $name {
            type Header = Header;
            type Requester = Tx;
            type Responder = ();

            fn attributes(&self) -> DeviceAttributes {
                self.attributes.clone()
            }

            fn link_address(&self) -> LinkAddress {
                self.address
            }

            fn execute(
                qp: &Qp<Self>,
                half: &mut Requester<Self>,
                request: &Request<'_>,
                cx: &mut Cx<'_, Self>,
            ) -> Executed {
                execute(qp, half, request, cx)
            }

            fn pump(qp: &Qp<Self>, half: &mut Requester<Self>, cx: &mut Cx<'_, Self>) {
                pump(qp, half, cx);
            }

            fn handle_timeout(qp: &Qp<Self>, _: &mut Requester<Self>, _: Time, _: &mut Cx<'_, Self>) {
                qp.device.driver().notes.note("handle_timeout");
            }

            fn handle_frame(device: &Device<Self>, frame: Frame<'_, Header>, cx: &mut Cx<'_, Self>) {
                handle_frame(device, frame, cx);
            }

            fn modify(
                qp: &Qp<Self>,
                sending: &mut Requester<Self>,
                _: &mut Responder<Self>,
                change: &Change<'_>,
                cx: &mut Cx<'_, Self>,
            ) {
                let all = change.all;
                if let (Some(path), Some(number)) = (all.ah_attr, all.dest_qp_num) {
                    sending.driver.peer = Some((path.address, number.value()));
                }
                if change.to == QpState::Rts {
                    // A job that would be due after the queue pair has failed.
                    let at = cx.now().after(std::time::Duration::from_secs(1));
                    qp.wake_at(sending, at);
                }
            }

            $($overrides)*
        }
    };
}

tiny! { Plain: }

tiny! { Settling:
    fn settle(qp: &Qp<Self>, cx: &mut Cx<'_, Self>) {
        let mut waiting = qp.device.driver().notes.waiting.lock().unwrap();
        for (_, to, header) in waiting.extract_if(.., |(qpn, ..)| *qpn == qp.qpn) {
            answer(&qp.device, to, header, cx);
        }
    }
}

tiny! { Some_:
    fn alloc_qpn(&self, _: &QpnPool) -> Option<u32> {
        self.notes.note("alloc_qpn");
        Some(0x5000 + self.notes.next_qpn.fetch_add(1, Ordering::SeqCst))
    }

    fn check_post(&self, _: &Qp<Self>, _: &Request<'_>) -> Result<(), PostReason> {
        match self.notes.veto.load(Ordering::SeqCst) {
            true => Err(PostReason::InlineNotAllowed),
            false => Ok(()),
        }
    }

    fn disconnect(qp: &Qp<Self>, _: &mut Requester<Self>, _: &mut Cx<'_, Self>) {
        qp.device.driver().notes.note("disconnect");
    }
}

tiny! { All:
    fn express(
        qp: &Qp<Self>,
        half: &mut Requester<Self>,
        requests: &[WorkRequest<'_>],
        cx: &mut Cx<'_, Self>,
    ) -> usize {
        // Carries out writes only, each as the ordinary path does.
        let mut done = 0;
        for posted in requests {
            let request = Request::of(posted);
            if !matches!(posted, WorkRequest::Write(_)) {
                break;
            }
            let Executed::Done(status, octets) = execute(qp, half, &request, cx) else { break };
            qp.device.driver().notes.note("express");
            qp.complete(half, &request, status, octets, cx);
            done += 1;
            if !status.is_success() {
                break;
            }
        }
        done
    }

    fn alloc_qpn(&self, _: &QpnPool) -> Option<u32> {
        self.notes.note("alloc_qpn");
        Some(0x9000 + self.notes.next_qpn.fetch_add(1, Ordering::SeqCst))
    }

    fn free_qpn(&self, _: &QpnPool, _: u32) {
        self.notes.note("free_qpn");
    }

    fn path_mtu(&self, _: Mtu, _: Mtu) -> Mtu {
        self.notes.note("path_mtu");
        Mtu::Mtu512
    }

    fn check_post(&self, _: &Qp<Self>, _: &Request<'_>) -> Result<(), PostReason> {
        self.notes.note("check_post");
        Ok(())
    }

    fn check_path(&self, path: &AddressVector) -> Result<(), VerbError> {
        self.notes.note("check_path");
        match path.traffic_class {
            0 => Ok(()),
            _ => Err(VerbError::argument("traffic_class", "the transport has none")),
        }
    }

    fn before_flush(qp: &Qp<Self>, _: &mut Requester<Self>, _: WcStatus, _: &mut Cx<'_, Self>) {
        qp.device.driver().notes.note("before_flush");
    }

    fn disconnect(qp: &Qp<Self>, _: &mut Requester<Self>, _: &mut Cx<'_, Self>) {
        qp.device.driver().notes.note("disconnect");
    }

    fn peer_ready(qp: &QpRef<Self>, cx: &mut Cx<'_, Self>) {
        qp.device.driver().notes.note("peer_ready");
        let _ = cx;
    }
}
