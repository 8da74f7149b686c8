//! Queue pair 1: management datagrams of a device on an IP network (IBTA 13.5.1).
//!
//! Management datagrams are UD SENDs like any others, to and from a queue pair that no program owns. A connection manager
//! [attaches](ManagementPort::attach) to handle them. Without one, this module refuses REQ and SIDR_REQ: if several
//! programs share an address, these requests may arrive at a program that uses no connection manager.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use polyverbs_engine::link::Frame;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use polyverbs_io::UdpLink;
use polyverbs_wire::mad::cm::{self, Message, Rej, SidrRep};
use polyverbs_wire::mad::{self, GSI_Q_KEY, GSI_QP, MAD_LEN};
use verbs_api::ids::{LinkAddress, Psn, Qpn};
use verbs_api::provider::carrier::{ManagementPort, ManagementSink};
use verbs_api::provider::{Mutex, random};
use verbs_api::qp::QpType;

use crate::Device;
use crate::codec::RoceV2;
use crate::driver::ManagementQp;
use crate::header::{Body, Header, IpFields, SendExtra};

/// Queue pair 1 of a device, which sends and receives management datagrams.
pub struct Management {
    link: Arc<UdpLink<RoceV2>>,
    device: OnceLock<Weak<Device>>,
    sink: OnceLock<Arc<dyn ManagementSink>>,
    arrived: Mutex<VecDeque<(IpAddr, [u8; MAD_LEN])>>,
    next_psn: AtomicU32,
}

impl Management {
    /// Creates queue pair 1 on this link. [`bind`](Self::bind) sets its device later.
    pub fn new(link: Arc<UdpLink<RoceV2>>) -> Arc<Self> {
        Arc::new(Self {
            link,
            device: OnceLock::new(),
            sink: OnceLock::new(),
            arrived: Mutex::default(),
            next_psn: AtomicU32::new(random() as u32),
        })
    }

    /// Sets the device to which queue pair 1 belongs. Only the first call has an effect.
    pub fn bind(&self, device: &Arc<Device>) {
        let _ = self.device.set(Arc::downgrade(device));
    }

    fn device(&self) -> Option<Arc<Device>> {
        let device = self.device.get()?.upgrade()?;
        (!device.is_removed()).then_some(device)
    }

    fn deliver(&self) {
        loop {
            let next = self.arrived.lock().pop_front();
            let Some((from, datagram)) = next else { return };
            if let Some(sink) = self.sink.get() {
                sink.datagram(from, &datagram);
            } else if let Some(answer) = refused(&datagram) {
                self.send(from, &answer);
            }
        }
    }
}

impl ManagementQp for Management {
    /// A frame with a wrong Q_Key is counted and dropped; one with another length than a management datagram is dropped.
    #[cold]
    fn handle(self: Arc<Self>, device: &Device, frame: &Frame<'_, Header>) {
        let Body::Datagram(q_key, ..) = frame.header.body else {
            return;
        };
        if q_key != GSI_Q_KEY {
            return device.note_qkey_violation();
        }
        let mut datagram = [0; MAD_LEN];
        let (LinkAddress::Ip(from), MAD_LEN) = (frame.from, frame.payload.len()) else {
            return;
        };
        frame.payload.read(&mut datagram);
        let mut waiting = self.arrived.lock();
        if waiting.len() >= WAITING {
            return;
        }
        waiting.push_back((from, datagram));
        drop(waiting);
        // The sink may call any verb, so no pin and no lock is held.
        let deliver = move |_| self.deliver();
        device.network().serve_later(Box::new(deliver));
    }

    fn note_traffic(self: Arc<Self>, device: &Device, qp: Qpn) {
        if self.sink.get().is_none() {
            return;
        }
        // The sink may call any verb, so no pin and no lock is held.
        let tell = move |_| {
            if let Some(sink) = self.sink.get() {
                sink.traffic(qp);
            }
        };
        device.network().serve_later(Box::new(tell));
    }

    fn note_refusal(self: Arc<Self>, device: &Device, to: LinkAddress, errno: i32) {
        let LinkAddress::Ip(to) = to else { return };
        // The sink may call any verb, so no pin and no lock is held.
        let tell = move |_| {
            if let Some(sink) = self.sink.get() {
                sink.refused(to, errno);
            }
        };
        device.network().serve_later(Box::new(tell));
    }
}

// Returns the refusal of a connection request, because no connection manager listens (IBTA 12.6.7.2, 12.11.1.2); `None` for
// any other datagram.
fn refused(datagram: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    const NOT_SUPPORTED: u8 = 1;
    let asked = mad::decode(datagram).ok()?;
    let answer: Message = match cm::decode(&asked).ok()? {
        Message::Req(req) => Rej {
            remote_comm_id: req.local_comm_id,
            reason: cm::reason::INVALID_SERVICE_ID,
            ..Rej::default()
        }
        .into(),
        Message::SidrReq(question) => SidrRep {
            request_id: question.request_id,
            service_id: question.service_id,
            status: NOT_SUPPORTED,
            ..SidrRep::default()
        }
        .into(),
        _ => return None,
    };
    let header = cm::header_of(&answer, asked.header.transaction_id());
    Some(mad::encode(&header, &answer.to_data()))
}

impl ManagementPort for Management {
    fn address(&self) -> IpAddr {
        self.link.lease().address().ip()
    }

    fn communication_ids(&self) -> (u32, u32) {
        (self.link.lease().range().communication(0), 26)
    }

    fn group(&self) -> Option<String> {
        Some(self.link.lease().group_name())
    }

    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink> {
        Arc::clone(self.sink.get_or_init(make))
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) {
        let Some(device) = self.device() else { return };
        let psn = Psn::new(self.next_psn.fetch_add(1, Ordering::Relaxed));
        let body = Body::Datagram(GSI_Q_KEY, SendExtra::Nothing, None);
        let header = Header {
            ip: IpFields {
                traffic_class: 0,
                hop_limit: 64,
            },
            ..Header::new(QpType::Ud, GSI_QP, GSI_QP, psn, body)
        };
        let frame = Frame {
            from: device.address(),
            to: LinkAddress::Ip(to),
            header,
            payload: Payload::Bytes(datagram),
            damaged: false,
        };
        let network = device.network();
        if let (Some(link), true) = (network.link(), device.is_port_active()) {
            link.send(frame, network.timers().now());
            link.flush();
            self.link.wait_for_departure();
        }
    }

    fn progress(&self) {
        if let Some(device) = self.device() {
            device.network().progress();
        }
    }

    fn serve(&self, service: u64) -> io::Result<()> {
        self.link.serve(service)
    }

    fn withdraw(&self, service: u64) {
        self.link.withdraw(service);
    }

    fn now(&self) -> Duration {
        let now = self.device().map(|device| device.network().timers().now());
        Duration::from_nanos(now.unwrap_or_default().0)
    }

    fn wake_at(&self, at: Duration) {
        let (Some(device), Some(sink)) = (self.device(), self.sink.get()) else {
            return;
        };
        let sink = Arc::downgrade(sink);
        let job = move |_| {
            if let Some(sink) = sink.upgrade() {
                sink.due();
            }
        };
        let at = Time::default().after(at);
        device.network().timers().add(at, Box::new(job));
    }
}

impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management").finish_non_exhaustive()
    }
}

/// The most datagrams that wait for delivery to the connection manager; further ones are dropped.
const WAITING: usize = 1024;
