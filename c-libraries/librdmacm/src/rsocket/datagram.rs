//! Datagram rsockets: a UDP socket, and a datagram queue pair on each device that is used.
//!
//! Until a sender knows the peer's queue pair it sends over UDP, with a header that names its own queue pair. The peer answers
//! with a header alone; from then on datagrams go between the queue pairs, each with the sender's address in front.
//!
//! ```text
//!  over UDP                  tag(32)  version  op  length  0  queue pair(32)  address of the sender
//!  between queue pairs       version  length  port of the sender(16)  its address
//! ```

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::Mutex;
use verbs_api::qp::AddressVector;
use verbs_api::{
    Access, Ah, Completion, Cq, Memory, Mr, PathOptions, Qp, QpOptions, Transport,
    capability::PortAttributes,
    completion::Notify,
    ids::{LinkAddress, Qpn},
    provider::errno_of,
    wr::{self, Data, ReceiveRequest, UdDestination},
};

use super::device::{self, Opened};
use super::options::Options;
use super::stream::{Family, Mode, Ready, Received};
use super::waiting::{SLICE, Waiters, Waiting, poll};
use crate::device::{source_towards, udp_at};

/// A datagram rsocket.
pub(crate) struct Datagram {
    state: Mutex<State>,
    waiting: Waiting,
}

struct State {
    family: Family,
    options: Options,
    udp: Option<UdpSocket>,
    peer: Option<SocketAddr>,
    ports: Vec<Port>,
    routes: Routes,
    arrived: VecDeque<Arrived>,
    scratch: Vec<u8>,
    waiters: Arc<Waiters>,
    error: Option<Errno>,
    is_closed: bool,
}

// The UD QP of a socket on one device.
struct Port {
    device: Arc<Opened>,
    attributes: PortAttributes,
    qp: Qp,
    cq: Cq,
    most: usize,
    // The buffers of received datagrams and of those being sent, each divided into slots of `slot` bytes.
    slot: usize,
    sink: (Memory, Mr),
    source: (Memory, Mr),
    free: Vec<u32>,
}

// The route to a peer: the index of the QP to send from and, once the peer's QP is known, where to send.
struct Route {
    port: usize,
    to: Option<UdDestination>,
}

// The routes to peers. Each peer that sends a datagram gets one. If there are too many, the oldest is forgotten and found
// again over UDP.
#[derive(Default)]
struct Routes {
    known: HashMap<SocketAddr, Route>,
    by_age: VecDeque<SocketAddr>,
}

impl Routes {
    fn get(&self, to: SocketAddr) -> Option<&Route> {
        self.known.get(&to)
    }

    fn get_mut(&mut self, to: SocketAddr) -> Option<&mut Route> {
        self.known.get_mut(&to)
    }

    // Adds a route to a peer that has none.
    fn insert(&mut self, to: SocketAddr, route: Route) {
        if self.by_age.len() >= MOST_ROUTES
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.by_age.push_back(to);
        self.known.insert(to, route);
    }
}

struct Arrived {
    from: SocketAddr,
    bytes: Octets,
}

enum Octets {
    // A datagram that a QP has received: the index of the QP, the slot, and the offset and length of the data in the
    // buffers.
    Slot {
        port: usize,
        slot: u32,
        at: usize,
        length: usize,
    },
    Own(Vec<u8>),
}

/// The Q_Key of UD QPs in the UDP port space of the connection manager.
const QKEY: u32 = 0x0123_4567;
/// The bit of `wr_id` that marks a receive; the rest of it is the slot.
const RECEIVE: u64 = 1 << 62;
/// The most datagrams received over UDP that wait to be read; further ones are dropped.
const MOST_OVER_UDP: usize = 64;
/// The most peers whose routes are remembered.
const MOST_ROUTES: usize = 1024;
const GRH: usize = 40;
/// The number of slots for received datagrams, and for those being sent, if the device allows as many.
const SLOTS: u32 = 256;
const TAG: u32 = 0x5555_5555;
const LONGEST: usize = 1 << 16;

/// Encoding and parsing of the headers of datagrams.
mod header {
    use super::{IpAddr, SocketAddr, TAG};

    /// The kind of a datagram that is sent over UDP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Kind {
        /// The datagram carries data of the program.
        Data,
        /// The datagram carries no data and only names the sender's QP.
        Control,
    }

    const DATA: u8 = 0;
    const CONTROL: u8 = 7;

    fn put(ip: IpAddr, target: &mut Vec<u8>) {
        match ip {
            IpAddr::V4(ip) => target.extend(ip.octets()),
            IpAddr::V6(ip) => target.extend(ip.octets()),
        }
    }

    const fn version(ip: IpAddr) -> u8 {
        if ip.is_ipv4() { 4 } else { 6 }
    }

    /// Encodes the header of a datagram over UDP, with the number of the sender's QP and its address.
    pub(super) fn put_udp(kind: Kind, qp_num: u32, own: IpAddr, target: &mut Vec<u8>) {
        let length = if own.is_ipv4() { 16 } else { 28 };
        let op = match kind {
            Kind::Data => DATA,
            Kind::Control => CONTROL,
        };
        target.extend(TAG.to_be_bytes());
        target.extend([version(own), op, length, 0]);
        target.extend(qp_num.to_be_bytes());
        put(own, target);
    }

    /// Parses a datagram over UDP: its kind, the number of the sender's QP, and the data. `None` if the header is invalid.
    pub(super) fn take_udp(bytes: &[u8]) -> Option<(Kind, u32, &[u8])> {
        let (tag, rest) = bytes.split_first_chunk()?;
        let (&[version, op, length, _], rest) = rest.split_first_chunk()?;
        let (qp_num, _) = rest.split_first_chunk()?;
        let kind = match op {
            DATA => Kind::Data,
            CONTROL => Kind::Control,
            _ => return None,
        };
        let known = matches!((version, length), (4, 16..) | (6, 28..));
        if u32::from_be_bytes(*tag) != TAG || !known {
            return None;
        }
        let body = bytes.get(usize::from(length)..)?;
        Some((kind, u32::from_be_bytes(*qp_num) & 0xff_ffff, body))
    }

    /// Encodes the header of a datagram between QPs, with the sender's address and port.
    pub(super) fn put_direct(own: SocketAddr, target: &mut Vec<u8>) {
        let length = if own.is_ipv4() { 8 } else { 24 };
        target.extend([version(own.ip()), length]);
        target.extend(own.port().to_be_bytes());
        if let SocketAddr::V6(own) = own {
            target.extend(own.flowinfo().to_be_bytes());
        }
        put(own.ip(), target);
    }

    /// Parses the header of a datagram between QPs: the sender, and the length of the header in bytes. `None` if it is
    /// invalid.
    pub(super) fn take_direct(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
        let (&[version, length, high, low], rest) = bytes.split_first_chunk()?;
        let ip: IpAddr = match version {
            4 => IpAddr::from(*rest.first_chunk::<4>()?),
            6 => IpAddr::from(*rest.get(4..)?.first_chunk::<16>()?),
            _ => return None,
        };
        let length = usize::from(length);
        let least = if ip.is_ipv4() { 8 } else { 24 };
        let port = u16::from_be_bytes([high, low]);
        (length >= least && length <= bytes.len()).then(|| (SocketAddr::new(ip, port), length))
    }

    /// The length of the longest header between QPs, in bytes.
    pub(super) const MOST: usize = 24;
}

use header::Kind;

impl Port {
    fn new(device: &Arc<Opened>, waiters: &Arc<Waiters>) -> Result<Self, Errno> {
        let attributes = device.context.query_port(1)?;
        let mtu = attributes.active_mtu.octets() as usize;
        let slot = GRH + mtu;
        let limits = device.context.limits();
        let slots = SLOTS.min(limits.max_qp_wr).min(limits.max_cqe / 2);
        let area = |access| -> Result<(Memory, Mr), Errno> {
            let memory = Memory::zeroed(slot * slots as usize)?;
            let mr = device.pd.register(&memory, access).wait()?;
            Ok((memory, mr))
        };
        let cq = device.context.create_cq(2 * slots).wait()?;
        let waiters = Arc::downgrade(waiters);
        cq.on_completion(move |_| {
            if let Some(waiters) = waiters.upgrade() {
                waiters.wake();
            }
        });
        let options = QpOptions::ud(&cq)
            .max_send_wr(slots)
            .max_recv_wr(slots)
            .max_inline_data(0);
        let qp = device.pd.create_qp(options).wait()?;
        qp.activate(PathOptions::new().qkey(QKEY)).wait()?;
        let port = Self {
            device: Arc::clone(device),
            attributes,
            qp,
            cq,
            most: mtu,
            slot,
            sink: area(Access::LOCAL_WRITE)?,
            source: area(Access::empty())?,
            free: (0..slots).collect(),
        };
        (0..slots).for_each(|slot| port.post_receive(slot));
        Ok(port)
    }

    fn post_receive(&self, slot: u32) {
        let sge = self.sink.1.sge(slot as usize * self.slot, self.slot as u32);
        if let Ok(sge) = sge {
            let request = ReceiveRequest::new(RECEIVE | u64::from(slot), Data::Sge(sge));
            // Posting a receive fails if the device was removed.
            let _ = self.qp.post_receive(request);
        }
    }

    // The sender of the received datagram at `at`, and the length of the header that names it. The address must be the one
    // that the packet came from.
    fn sender(&self, done: &Completion, at: usize, length: usize) -> Option<(SocketAddr, usize)> {
        let (mut grh, mut front) = ([0; GRH], [0; header::MOST]);
        let front = &mut front[..length.min(header::MOST)];
        self.sink.0.read(at - GRH, &mut grh).ok()?;
        self.sink.0.read(at, front).ok()?;
        let back = AddressVector::answering(&self.attributes, done, &grh).ok()?;
        let said = header::take_direct(front)?;
        (back.address == LinkAddress::Ip(said.0.ip())).then_some(said)
    }

    fn route(&self, ip: IpAddr, qp_num: u32) -> Result<UdDestination, Errno> {
        let path = AddressVector::new(LinkAddress::Ip(ip), ip.into(), 1);
        let ah: Ah = self.device.pd.create_ah(path).wait()?;
        Ok(UdDestination {
            ah,
            remote_qpn: Qpn::new(qp_num),
            remote_qkey: QKEY,
        })
    }

    // Posts a datagram. Returns false if no slot is free.
    fn send(&mut self, bytes: &[u8], to: &UdDestination) -> Result<bool, Errno> {
        let Some(slot) = self.free.pop() else {
            return Ok(false);
        };
        let at = slot as usize * self.slot;
        let outside = |_| Errno::INVAL;
        self.source.0.write(at, bytes).map_err(outside)?;
        let sge = self.source.1.sge(at, bytes.len() as u32);
        let request = wr::Send::new(Data::Sge(sge.map_err(outside)?))
            .to(to)
            .signaled(slot.into());
        self.qp.post_one(request).map_err(|refused| {
            self.free.push(slot);
            Errno::from(refused)
        })?;
        Ok(true)
    }

    fn end(self) {
        let _ = self.qp.destroy().wait();
        let _ = self.cq.destroy().wait();
        for (_, mr) in [self.sink, self.source] {
            let _ = mr.deregister().wait();
        }
    }
}

impl Datagram {
    pub(crate) fn new(family: Family) -> Arc<Self> {
        let waiting = Waiting::default();
        let state = State {
            family,
            options: Options::default(),
            udp: None,
            peer: None,
            ports: Vec::new(),
            routes: Routes::default(),
            arrived: VecDeque::new(),
            scratch: Vec::new(),
            waiters: Arc::clone(&waiting.waiters),
            error: None,
            is_closed: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            waiting,
        })
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The descriptor of the UDP socket, which a waiting thread has to poll too; `None` before the socket is bound.
    pub(crate) fn file(&self) -> Option<i32> {
        self.state.lock().udp.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn until<T>(
        &self,
        no_wait: bool,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let look = |arm: bool| {
            let mut state = self.state.lock();
            loop {
                if state.is_closed {
                    return Some(Err(Errno(libc::EBADF)));
                }
                state.progress();
                if let Some(outcome) = attempt(&mut state) {
                    return Some(outcome);
                }
                if !arm || !state.arm() {
                    return None;
                }
            }
        };
        let no_wait = no_wait || self.waiting.is_nonblocking();
        self.waiting.until(no_wait, look, |waker| {
            let entry = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let mut both = [entry(waker.fd()), entry(self.file().unwrap_or(-1))];
            poll(&mut both, SLICE).map(drop)
        })
    }

    pub(crate) fn bind(&self, at: SocketAddr) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.udp.is_some() {
            return Err(Errno::INVAL);
        }
        state.bind(at)
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if to.is_ipv4() != (state.family == Family::V4) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let source = source_towards(to)?;
        if state.udp.is_none() {
            state.bind(SocketAddr::new(source, 0))?;
        }
        state.route(to)?;
        state.peer = Some(to);
        Ok(())
    }

    /// Sends a datagram to `to`, or to the connected peer.
    pub(crate) fn send(
        &self,
        parts: &[IoSlice<'_>],
        mode: Mode,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        self.until(mode.no_wait, |state| {
            let Some(to) = to.or(state.peer) else {
                return Some(Err(Errno(libc::EDESTADDRREQ)));
            };
            if to.is_ipv4() != (state.family == Family::V4) {
                return Some(Err(Errno(libc::EAFNOSUPPORT)));
            }
            state.send(parts, to).transpose()
        })
    }

    /// Receives a datagram, truncated to the buffer. Waits for one, unless the call or the socket is nonblocking.
    pub(crate) fn receive(
        &self,
        sinks: &mut [IoSliceMut<'_>],
        mode: Mode,
    ) -> Result<Received, Errno> {
        self.until(mode.no_wait, |state| {
            if let Some(error) = state.error.take() {
                return Some(Err(error));
            }
            state.receive(sinks, mode.peek).map(Ok)
        })
    }

    pub(crate) fn ready(&self, arm: bool) -> Ready {
        let mut state = self.state.lock();
        loop {
            state.progress();
            if !(arm && state.arm()) {
                break;
            }
        }
        Ready {
            read: !state.arrived.is_empty(),
            write: state.ports.iter().all(|port| !port.free.is_empty()),
            error: state.error.is_some(),
            hang_up: false,
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        let ports = std::mem::take(&mut state.ports);
        state.routes = Routes::default();
        state.arrived.clear();
        state.udp = None;
        state.is_closed = true;
        drop(state);
        self.waiting.waiters.wake();
        ports.into_iter().for_each(Port::end);
    }

    pub(crate) fn local(&self) -> SocketAddr {
        let state = self.state.lock();
        let bound = state.udp.as_ref().and_then(|udp| udp.local_addr().ok());
        bound.unwrap_or_else(|| state.family.unspecified())
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr, Errno> {
        self.state.lock().peer.ok_or(Errno(libc::ENOTCONN))
    }

    pub(crate) fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    pub(crate) fn with_options<T>(&self, look: impl FnOnce(&mut Options, bool) -> T) -> T {
        let mut state = self.state.lock();
        let is_made = !state.ports.is_empty();
        look(&mut state.options, is_made)
    }
}

impl State {
    fn bind(&mut self, at: SocketAddr) -> Result<(), Errno> {
        if at.is_ipv4() != (self.family == Family::V4) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let reuses = self.options.reuses_address();
        self.udp = Some(udp_at(at, reuses).map_err(|errno| Errno(errno.raw_os_error()))?);
        Ok(())
    }

    // The index of the QP on the device at this address. The QP is created on first use.
    fn port_at(&mut self, address: IpAddr) -> Result<usize, Errno> {
        let known = |port: &Port| port.device.address == address;
        if let Some(place) = self.ports.iter().position(known) {
            return Ok(place);
        }
        let devices = device::at(address)?;
        let takes = |device: &&Arc<Opened>| device.transport == Transport::InfiniBand;
        let found = devices.iter().find(takes).ok_or(Errno::OPNOTSUPP)?;
        self.ports.push(Port::new(found, &self.waiters)?);
        Ok(self.ports.len() - 1)
    }

    // The index of the QP to send to this peer from. Adds a route if there is none.
    fn route(&mut self, to: SocketAddr) -> Result<usize, Errno> {
        if let Some(route) = self.routes.get(to) {
            return Ok(route.port);
        }
        let bound = self.udp.as_ref().and_then(|udp| udp.local_addr().ok());
        let source = match bound.map(|bound| bound.ip()) {
            Some(ip) if !ip.is_unspecified() => ip,
            _ => source_towards(to)?,
        };
        let port = self.port_at(source)?;
        self.routes.insert(to, Route { port, to: None });
        Ok(port)
    }

    fn progress(&mut self) {
        let mut found = false;
        for place in 0..self.ports.len() {
            found |= self.poll_port(place);
        }
        if !found {
            self.take_udp();
        }
    }

    fn arm(&self) -> bool {
        let armed = |port: &Port| port.cq.arm(Notify::Next).unwrap_or(false);
        self.ports.iter().fold(false, |any, port| any | armed(port))
    }

    fn poll_port(&mut self, place: usize) -> bool {
        let mut slots: [Completion; 8] = Default::default();
        let mut found = false;
        loop {
            let port = &mut self.ports[place];
            let Ok(filled) = port.cq.poll(&mut slots) else {
                self.error = Some(Errno(libc::ENETDOWN));
                return found;
            };
            if filled.is_empty() {
                return found;
            }
            found = true;
            for done in filled.iter() {
                let slot = (done.wr_id & !RECEIVE) as u32;
                if done.wr_id & RECEIVE == 0 {
                    port.free.push(slot);
                    continue;
                }
                if !done.status.is_success() {
                    continue;
                }
                let at = slot as usize * port.slot + GRH;
                let length = (done.byte_len as usize).saturating_sub(GRH);
                match port.sender(done, at, length) {
                    Some((from, header)) => self.arrived.push_back(Arrived {
                        from,
                        bytes: Octets::Slot {
                            port: place,
                            slot,
                            at: at + header,
                            length: length - header,
                        },
                    }),
                    None => port.post_receive(slot),
                }
            }
        }
    }

    // Receives datagrams over UDP. Each makes the sender's QP known to this side; data datagrams are answered with a header
    // that names this side's QP.
    fn take_udp(&mut self) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(LONGEST, 0);
        while let Some(udp) = &self.udp {
            let (length, from) = match udp.recv_from(&mut scratch) {
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.error = Some(Errno(errno_of(&error)));
                    break;
                }
            };
            if let Some((kind, qp_num, body)) = header::take_udp(&scratch[..length]) {
                self.came_over_udp(kind, qp_num, from, body);
            }
        }
        self.scratch = scratch;
    }

    fn came_over_udp(&mut self, kind: Kind, qp_num: u32, from: SocketAddr, body: &[u8]) {
        if kind == Kind::Data && self.arrived.len() < MOST_OVER_UDP {
            self.arrived.push_back(Arrived {
                from,
                bytes: Octets::Own(body.to_vec()),
            });
        }
        let Ok(place) = self.route(from) else {
            return;
        };
        let port = &self.ports[place];
        let own = port.device.address;
        let own_number = port.qp.qp_num().value();
        if let Ok(to) = port.route(from.ip(), qp_num)
            && let Some(route) = self.routes.get_mut(from)
        {
            route.to = Some(to);
        }
        if let (Kind::Data, Some(udp)) = (kind, &self.udp) {
            let mut answer = Vec::new();
            header::put_udp(Kind::Control, own_number, own, &mut answer);
            // If the answer is lost, the sender's next datagram causes another one.
            let _ = udp.send_to(&answer, from);
        }
    }

    // Sends a datagram: to the peer's QP if that is known, else over UDP. Returns its length; `None` if there is no room.
    fn send(&mut self, parts: &[IoSlice<'_>], to: SocketAddr) -> Result<Option<usize>, Errno> {
        if self.udp.is_none() {
            self.bind(self.family.unspecified())?;
        }
        let place = self.route(to)?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let port = &mut self.ports[place];
        if total + header::MOST > port.most {
            return Err(Errno(libc::EMSGSIZE));
        }
        let Some(udp) = &self.udp else {
            return Err(Errno(libc::EBADF));
        };
        let own = port.device.address;
        self.scratch.clear();
        let known = self.routes.get(to).and_then(|route| route.to.as_ref());
        match known {
            Some(_) => {
                let number = udp.local_addr().map_or(0, |local| local.port());
                header::put_direct(SocketAddr::new(own, number), &mut self.scratch);
            }
            None => {
                let number = port.qp.qp_num().value();
                header::put_udp(Kind::Data, number, own, &mut self.scratch);
            }
        }
        for part in parts {
            self.scratch.extend_from_slice(part);
        }
        let sent = match known {
            Some(known) => port.send(&self.scratch, known)?,
            None => match udp.send_to(&self.scratch, to) {
                Ok(_) => true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                Err(error) => return Err(Errno(errno_of(&error))),
            },
        };
        Ok(sent.then_some(total))
    }

    fn receive(&mut self, sinks: &mut [IoSliceMut<'_>], peek: bool) -> Option<Received> {
        let arrived = self.arrived.pop_front()?;
        let mut copied = 0;
        for sink in sinks {
            match &arrived.bytes {
                Octets::Slot {
                    port, at, length, ..
                } => {
                    let now = sink.len().min(length - copied);
                    let read = self.ports[*port].sink.0.read(at + copied, &mut sink[..now]);
                    debug_assert!(read.is_ok());
                    copied += now;
                }
                Octets::Own(bytes) => {
                    let now = sink.len().min(bytes.len() - copied);
                    sink[..now].copy_from_slice(&bytes[copied..copied + now]);
                    copied += now;
                }
            }
        }
        let length = match &arrived.bytes {
            Octets::Slot { length, .. } => *length,
            Octets::Own(bytes) => bytes.len(),
        };
        let received = Received {
            bytes: copied,
            is_cut: copied < length,
            from: Some(arrived.from),
        };
        match arrived.bytes {
            _ if peek => self.arrived.push_front(arrived),
            Octets::Slot { port, slot, .. } => self.ports[port].post_receive(slot),
            Octets::Own(_) => {}
        }
        Some(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_peers_the_oldest_is_forgotten() {
        let peer = |number: u32| SocketAddr::new(IpAddr::from(number.to_be_bytes()), 7);
        let mut routes = Routes::default();
        for number in 0..5000 {
            routes.insert(peer(number), Route { port: 0, to: None });
        }
        assert_eq!(routes.known.len(), MOST_ROUTES);
        assert_eq!(routes.by_age.len(), MOST_ROUTES);
        assert!(routes.get(peer(5000 - MOST_ROUTES as u32)).is_some());
        assert!(routes.get(peer(4999 - MOST_ROUTES as u32)).is_none());
    }

    #[test]
    fn a_header_over_udp_names_its_kind() {
        let mut bytes = Vec::new();
        header::put_udp(
            Kind::Data,
            0x12_3456,
            "10.0.0.1".parse().unwrap(),
            &mut bytes,
        );
        assert_eq!(
            bytes,
            [
                0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 0, 0, 1
            ]
        );
        bytes.extend(b"hello");
        let taken = header::take_udp(&bytes);
        assert_eq!(taken, Some((Kind::Data, 0x12_3456, &b"hello"[..])));
        for short in 0..16 {
            assert_eq!(header::take_udp(&bytes[..short]), None);
        }
        bytes[0] = 0;
        assert_eq!(header::take_udp(&bytes), None);
    }

    #[test]
    fn a_header_between_queue_pairs_names_the_sender() {
        for (address, length) in [("10.0.0.1:7174", 8), ("[fe80::1]:7174", 24)] {
            let address: SocketAddr = address.parse().unwrap();
            let mut bytes = Vec::new();
            header::put_direct(address, &mut bytes);
            assert_eq!(bytes.len(), length);
            assert_eq!(header::take_direct(&bytes), Some((address, length)));
            for short in 0..length {
                assert_eq!(header::take_direct(&bytes[..short]), None);
            }
        }
    }
}
