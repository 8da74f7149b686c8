//! The process that holds a fabric: one thread, which waits for messages of programs and for the time of outstanding requests.
//!
//! A program that dies is detached by the end of its connection. One that floods the process has its turn like all others:
//! 64 messages, or one with a descriptor, after which the next is served. One that does not read loses what does not fit into its
//! socket.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyverbs_io::SharedCounters;
use polyverbs_management::Carried;
use polyverbs_management::agent_table::RegisterError;
use polyverbs_wire::mad::MadHeader;
use polyverbs_wire::mad::smp::NodeInfo;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with};

use crate::files;
use crate::members::{Delivery, Fabric, MemberId, Outgoing, Refusal};
use crate::protocol::{
    Front, LONGEST_REQUEST, NodeReport, PortReport, Reply, Request, decode_file_request,
};
use crate::sockets::{self, FabricName, Message};
use crate::subnet::Traffic;
use crate::topology::{End, Topology};

/// A connection of a program.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    member: Option<MemberId>,
}

/// A fabric with the socket by which programs reach it.
#[derive(Debug)]
pub struct Process {
    name: FabricName,
    fabric: Fabric,
    began: Instant,
    ready: OwnedFd,
    listener: OwnedFd,
    clients: BTreeMap<u64, Client>,
    by_member: BTreeMap<MemberId, u64>,
    last_token: u64,
    /// What the verbs devices at each port count.
    counters: HashMap<End, Arc<SharedCounters>>,
    /// MADs that did not fit into the socket of a program that does not read.
    lost: u64,
}

impl Process {
    /// Creates a fabric and takes its name.
    ///
    /// # Errors
    /// Another process holds the name, or there are not enough descriptors.
    pub fn new(topology: &Topology, name: FabricName) -> io::Result<Self> {
        let listener = name.listen()?;
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &listener, LISTENER, CONNECTING)?;
        Ok(Self {
            fabric: Fabric::new(topology, seed(&name)),
            name,
            began: Instant::now(),
            ready,
            listener,
            clients: BTreeMap::new(),
            by_member: BTreeMap::new(),
            last_token: STOP.u64(),
            counters: HashMap::new(),
            lost: 0,
        })
    }

    /// Serves programs until a descriptor is readable.
    ///
    /// # Errors
    /// The epoll instance fails.
    pub fn run(mut self, stop: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if let Some(stop) = stop {
            epoll::add(&self.ready, stop, STOP, EventFlags::IN)?;
        }
        while self.turn()? {}
        self.name.remove();
        Ok(())
    }

    /// Waits for messages and handles them. Returns whether to go on.
    fn turn(&mut self) -> io::Result<bool> {
        let mut events = [NO_EVENT; AT_ONCE];
        let wait = self.wait();
        let count = match epoll::wait(&self.ready, &mut events, wait.as_ref()) {
            Err(Errno::INTR) => return Ok(true),
            count => count?,
        };
        for event in &events[..count] {
            match event.data.u64() {
                token if token == STOP.u64() => return Ok(false),
                token if token == LISTENER.u64() => self.accept(),
                token => self.serve(token),
            }
        }
        let now = self.now();
        self.fabric.expire(now);
        self.deliver();
        self.notify(now);
        Ok(true)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time until the next deadline; `None` to wait for messages only.
    fn wait(&self) -> Option<Timespec> {
        let deadline = self.fabric.next_deadline()?;
        Timespec::try_from(deadline.saturating_sub(self.now())).ok()
    }

    fn accept(&mut self) {
        while self.clients.len() < MOST_CLIENTS {
            // Without a free descriptor, the next connection or the end of one makes the process try again.
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else {
                return;
            };
            if !sockets::is_admitted(socket.as_fd()).unwrap_or(false) {
                continue;
            }
            self.last_token += 1;
            let token = self.last_token;
            let data = EventData::new_u64(token);
            // A connection that the system cannot watch ends; the others go on.
            if epoll::add(&self.ready, &socket, data, EventFlags::IN).is_ok() {
                let member = None;
                self.clients.insert(token, Client { socket, member });
            }
        }
    }

    fn close(&mut self, token: u64) {
        let Some(client) = self.clients.remove(&token) else {
            return;
        };
        // A child of the program may have the descriptor still, so the end of it here is not enough.
        let _ = epoll::delete(&self.ready, &client.socket);
        if let Some(member) = client.member {
            self.by_member.remove(&member);
            self.fabric.detach(member);
        }
        // There is room for another connection, so the listener is looked at again.
        let _ = epoll::modify(&self.ready, &self.listener, LISTENER, CONNECTING);
    }

    fn serve(&mut self, token: u64) {
        for _ in 0..AT_ONCE {
            let Some(client) = self.clients.get(&token) else {
                return;
            };
            match sockets::receive(client.socket.as_fd(), LONGEST_REQUEST) {
                Ok(Some(message)) => {
                    // A descriptor may be that of a long message, and one of these is a turn.
                    let ends_turn = message.attached.is_some();
                    self.handle(token, message);
                    if ends_turn {
                        return;
                    }
                }
                Err(error) if is_passing(&error) => return,
                Ok(None) | Err(_) => return self.close(token),
            }
        }
    }

    fn handle(&mut self, token: u64, message: Message) {
        if Front::decode(&message.bytes).is_some() {
            if let Some((front, data)) = sockets::mad_of(message) {
                self.send(token, front, data);
            }
            return;
        }
        // Without a socket for the reply a request is not carried out: one with a socket ends the program's turn.
        let Some(to) = message.attached else { return };
        if let Some((node, path)) = decode_file_request(&message.bytes) {
            let text = self.file(node, path).unwrap_or_default();
            let parts = [IoSlice::new(text.as_bytes())];
            let _ = sockets::send(to.as_fd(), &parts, None, SendFlags::DONTWAIT);
            return;
        }
        // A program that sends something else gets no reply, as the end of its own socket shows.
        let Ok(request) = serde_json::from_slice(&message.bytes) else {
            return;
        };
        let (reply, counters) = match request {
            Request::Carry => self.carry(token),
            request => self.fulfil(token, request).map(|reply| (reply, None)),
        }
        .unwrap_or_else(|refusal| (Reply::Refused(errno(refusal)), None));
        if let Ok(text) = serde_json::to_vec(&reply) {
            let parts = [IoSlice::new(&text)];
            let attached = counters.as_ref().map(|it| it.as_fd());
            let _ = sockets::send(to.as_fd(), &parts, attached, SendFlags::DONTWAIT);
        }
    }

    /// The text of a file of an adapter, by its path below the adapter's folder: `ports/1/state`. `None` if there is no such file
    /// about a port.
    fn file(&mut self, node: &str, path: &str) -> Option<String> {
        let (number, file) = path.strip_prefix("ports/")?.split_once('/')?;
        let port = self.fabric.counted_port(node, number.parse().ok()?)?;
        let (narrow, wide) = port.counters();
        let files = files::of_port(&PortReport::new(port), &narrow, &wide);
        let mut found = files.into_iter().filter(|(name, _)| name == file);
        found.next().map(|(_, text)| text)
    }

    /// Makes a program one with a verbs device, which adds to the counters of its port.
    fn carry(&mut self, token: u64) -> Result<(Reply, Option<Arc<SharedCounters>>), Refusal> {
        let member = self.clients.get(&token).and_then(|it| it.member);
        let member = member.ok_or(Refusal::NotAttached)?;
        let port = self.fabric.port_of(member)?;
        let counters = match self.counters.get(&port) {
            Some(counters) => Arc::clone(counters),
            None => {
                let made = SharedCounters::new().map_err(|_| Refusal::NoMemory)?;
                let made = Arc::new(made);
                self.counters.insert(port, Arc::clone(&made));
                let traffic = Box::new(Counters(Arc::clone(&made)));
                self.fabric.count_traffic(port, traffic);
                made
            }
        };
        let (at, notice) = self.fabric.carry(member)?;
        let notice = Box::new(notice);
        Ok((Reply::Carrier { at, notice }, Some(counters)))
    }

    /// Sends notices of changed ports to the programs that have verbs devices there.
    fn notify(&mut self, now: Duration) {
        let mut kept = Vec::new();
        while let Some((member, notice)) = self.fabric.poll_notice(now) {
            let token = self.by_member.get(&member);
            let client = token.and_then(|token| self.clients.get(token));
            let (Some(client), Ok(text)) = (client, serde_json::to_vec(&notice)) else {
                continue;
            };
            let parts = [IoSlice::new(&text)];
            let to = client.socket.as_fd();
            if sockets::send(to, &parts, None, SendFlags::DONTWAIT).is_err() {
                kept.push((member, notice));
            }
        }
        for (member, notice) in kept {
            self.fabric.keep_notice(member, notice);
        }
    }

    fn fulfil(&mut self, token: u64, request: Request) -> Result<Reply, Refusal> {
        let member = self.clients.get(&token).and_then(|it| it.member);
        let attached = member.ok_or(Refusal::NotAttached);
        match request {
            Request::Attach { node, port } => self.attach(token, &node, port)?,
            Request::BecomeSm => self.fabric.become_sm(attached?)?,
            Request::Describe { node } => {
                return Ok(Reply::Node(Box::new(self.describe(&node)?)));
            }
            Request::Fail { node, port, error } => {
                let at = self.end(&node, port)?;
                self.fabric.fail_link(at, error);
            }
            Request::Register(registration) => {
                let agent = self.fabric.register(attached?, &registration)?;
                return Ok(Reply::Agent(agent));
            }
            Request::Routes => return Ok(Reply::Routes(self.fabric.routes(attached?)?)),
            // It has a descriptor in its reply.
            Request::Carry => return Err(Refusal::NotAttached),
            Request::SetLink { node, port, is_up } => self.set_link(&node, port, is_up)?,
            Request::Unregister { agent } => self.fabric.unregister(attached?, agent)?,
        }
        Ok(Reply::Done)
    }

    fn attach(&mut self, token: u64, node: &str, port: u8) -> Result<(), Refusal> {
        let client = self.clients.get_mut(&token).ok_or(Refusal::NotAttached)?;
        let member = self.fabric.attach(node, port)?;
        if let Some(before) = client.member.replace(member) {
            self.by_member.remove(&before);
            self.fabric.detach(before);
        }
        self.by_member.insert(member, token);
        Ok(())
    }

    fn describe(&self, name: &str) -> Result<NodeReport, Refusal> {
        let subnet = self.fabric.subnet();
        let index = self.fabric.adapter(name).ok_or(Refusal::NoPort)?;
        let (name, _) = subnet.nodes().nth(index).ok_or(Refusal::NoPort)?;
        let node = subnet.node(index).ok_or(Refusal::NoPort)?;
        let info: &NodeInfo = node.identity();
        let ports = (1..=info.num_ports).filter_map(|port| Some(PortReport::new(node.port(port)?)));
        Ok(NodeReport::new(name.to_owned(), info, ports.collect()))
    }

    fn set_link(&mut self, node: &str, port: u8, is_up: bool) -> Result<(), Refusal> {
        let at = self.end(node, port)?;
        self.fabric.set_link(at, is_up);
        Ok(())
    }

    fn end(&self, node: &str, port: u8) -> Result<End, Refusal> {
        let (node, _) = self.fabric.subnet().named(node).ok_or(Refusal::NoPort)?;
        Ok(End { node, port })
    }

    fn send(&mut self, token: u64, front: Front, data: Vec<u8>) {
        let Some(member) = self.clients.get(&token).and_then(|it| it.member) else {
            return;
        };
        let sent = Outgoing {
            agent: front.agent,
            timeout_ms: front.timeout_ms,
            retries: front.retries,
            to: front.peer,
            data,
        };
        let now = self.now();
        if self.fabric.send(member, &sent, now).is_err() && sent.timeout_ms > 0 {
            // The program waits, so it gets its request back.
            let length = sent.data.len().min(MadHeader::LEN);
            let returned = Delivery {
                agent: sent.agent,
                status: Errno::INVAL.raw_os_error() as u32,
                from: sent.to,
                data: sent.data[..length].to_vec(),
            };
            self.give(member, &returned);
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some((member, delivery)) = self.fabric.poll_delivery() {
            self.give(member, &delivery);
        }
    }

    fn give(&mut self, member: MemberId, delivery: &Delivery) {
        let token = self.by_member.get(&member);
        let Some(client) = token.and_then(|token| self.clients.get(token)) else {
            return;
        };
        let (to, front) = (client.socket.as_fd(), delivery.front());
        if sockets::send_mad(to, &front, &delivery.data, SendFlags::DONTWAIT).is_err() {
            self.lost += 1;
        }
    }
}

/// The counters of the verbs devices at a port.
#[derive(Debug)]
struct Counters(Arc<SharedCounters>);

impl Traffic for Counters {
    fn read(&self) -> [u64; Carried::COUNT] {
        std::array::from_fn(|index| self.0.counter(index).load(Ordering::Relaxed))
    }
}

/// A number that differs between the fabrics of a machine, and is the same each time that one is started.
fn seed(name: &FabricName) -> u32 {
    let user = rustix::process::geteuid().as_raw();
    let text = format!("{user} {name}");
    // FNV-1a.
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// The error number with which a request is refused.
fn errno(refusal: Refusal) -> i32 {
    let errno = match refusal {
        Refusal::NoPort => Errno::NODEV,
        Refusal::NotAttached => Errno::NOTCONN,
        Refusal::NoMemory | Refusal::TooManyAgents | Refusal::Registration(RegisterError::Full) => {
            Errno::NOMEM
        }
        Refusal::HasSm => Errno::AGAIN,
        Refusal::NoAgent | Refusal::NoMad | Refusal::Registration(_) | Refusal::Send(_) => {
            Errno::INVAL
        }
    };
    errno.raw_os_error()
}

/// The most messages of one connection that are handled before the next connection has its turn, and the most connections that
/// have a turn before deadlines are looked at.
const AT_ONCE: usize = 64;
const MOST_CLIENTS: usize = 4096;
const LISTENER: EventData = EventData::new_u64(0);
const STOP: EventData = EventData::new_u64(1);
/// Edge-triggered: a process without a free descriptor would get the same connection reported for ever.
const CONNECTING: EventFlags = EventFlags::IN.union(EventFlags::ET);
const NO_EVENT: Event = Event {
    flags: EventFlags::empty(),
    data: LISTENER,
};
