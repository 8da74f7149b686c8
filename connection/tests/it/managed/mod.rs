//! Connection managers of devices on sockets, in the clock of a test: messages arrive by themselves, timeouts only when the
//! test lets time pass. A gate holds, counts or drops the messages that one manager sends.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs::Context;
use polyverbs_connection::{Connector, PortSpace, ib, mpa};
use verbs_api::ids::Qpn;
use verbs_api::provider::Mutex;
use verbs_api::provider::backend::Backend;
use verbs_api::provider::carrier::{
    Carrier, ManagementPort, ManagementSink, StreamAgreed, StreamClose, StreamEnd, StreamListener,
    StreamPort, StreamSink, StreamWishes,
};

/// Attribute ID of a REJ.
const REJ: u16 = 0x12;

type Job = Box<dyn FnOnce() + Send>;

/// The clock of connection managers. It stands still until a test lets it pass.
#[derive(Default)]
pub(crate) struct Clock(Mutex<Schedule>);

#[derive(Default)]
struct Schedule {
    now: Duration,
    jobs: Vec<(Duration, Job)>,
}

impl Clock {
    fn now(&self) -> Duration {
        self.0.lock().now
    }

    fn add(&self, at: Duration, job: impl FnOnce() + Send + 'static) {
        self.0.lock().jobs.push((at, Box::new(job)));
    }

    /// Lets time pass, and runs the jobs that become due, in order, on this thread.
    pub(crate) fn pass(&self, time: Duration) {
        let end = self.now() + time;
        while let Some(job) = self.next(end) {
            job();
        }
    }

    // The next job that is due by `end`, with the clock set to its time. If none is due, the clock is set to `end`.
    fn next(&self, end: Duration) -> Option<Job> {
        let mut schedule = self.0.lock();
        let jobs = schedule.jobs.iter().enumerate();
        let due = jobs.filter(|(_, (at, _))| *at <= end);
        let earliest = due.min_by_key(|(_, (at, _))| *at);
        let Some((number, &(at, _))) = earliest else {
            schedule.now = end;
            return None;
        };
        schedule.now = schedule.now.max(at);
        Some(schedule.jobs.remove(number).1)
    }
}

/// The gate that messages pass between one connection manager and its device.
pub(crate) struct Gate {
    clock: Arc<Clock>,
    held: Mutex<Held>,
    /// Attribute IDs of management datagrams that are dropped, by bit.
    loses: Mutex<u64>,
    sent: [AtomicUsize; 32],
    /// Streams of peers that the manager has accepted.
    accepted: AtomicUsize,
    /// Bytes that the manager has received on streams.
    heard: AtomicUsize,
    /// Rejections and ends of streams that the manager has handled.
    ends_heard: AtomicUsize,
    /// Whether the device admits no user, not even the own one.
    pub(crate) admits_nobody: AtomicBool,
}

/// Messages that are held until the gate is opened.
#[derive(Default)]
struct Held {
    is_closed: bool,
    messages: Vec<Job>,
}

impl Gate {
    fn send(&self, message: impl FnOnce() + Send + 'static) {
        let mut held = self.held.lock();
        if held.is_closed {
            held.messages.push(Box::new(message));
        } else {
            drop(held);
            message();
        }
    }

    /// Holds the messages that the manager sends from now on.
    pub(crate) fn close(&self) {
        self.held.lock().is_closed = true;
    }

    /// Sends the messages that were held.
    pub(crate) fn open(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        held.messages.into_iter().for_each(|message| message());
    }

    /// Drops management datagrams with this attribute ID from now on.
    pub(crate) fn lose(&self, attribute: u16) {
        *self.loses.lock() |= 1 << (attribute & 31);
    }

    /// How many management datagrams with this attribute ID the manager has sent.
    pub(crate) fn sent(&self, attribute: u16) -> usize {
        self.sent[usize::from(attribute & 31)].load(Ordering::SeqCst)
    }

    /// How many streams of peers the manager has accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes the manager has received on streams.
    pub(crate) fn heard(&self) -> usize {
        self.heard.load(Ordering::SeqCst)
    }

    /// How many rejections and ends of streams the manager has handled.
    pub(crate) fn ends_heard(&self) -> usize {
        self.ends_heard.load(Ordering::SeqCst)
    }
}

/// A connection manager of a device, with its gate.
pub(crate) struct Managed {
    pub(crate) connector: Connector,
    pub(crate) gate: Arc<Gate>,
    // Agents do not own their port.
    _port: Box<dyn Send + Sync>,
}

impl Managed {
    /// Makes a manager whose timeouts follow this clock. The device must not have a manager yet.
    pub(crate) fn new(context: &Context, clock: &Arc<Clock>) -> Self {
        let gate = Arc::new(Gate {
            clock: Arc::clone(clock),
            held: Mutex::default(),
            loses: Mutex::default(),
            sent: Default::default(),
            accepted: AtomicUsize::new(0),
            heard: AtomicUsize::new(0),
            ends_heard: AtomicUsize::new(0),
            admits_nobody: AtomicBool::new(false),
        });
        let (backend, port): (Arc<dyn Backend>, Box<dyn Send + Sync>) = match context.carrier() {
            Some(Carrier::Datagrams(inner)) => {
                let gate = Arc::clone(&gate);
                let port: Arc<dyn ManagementPort> = Arc::new(Datagrams {
                    inner,
                    gate,
                    agent: Mutex::default(),
                });
                let agent = ib::Agent::of(&port, PortSpace::Ip).unwrap();
                (agent, Box::new(port))
            }
            Some(Carrier::Streams(inner)) => {
                let gate = Arc::clone(&gate);
                let port: Arc<dyn StreamPort> = Arc::new(Streams { inner, gate });
                (mpa::Agent::new(&port), Box::new(port))
            }
            other => panic!("no sockets: {other:?}"),
        };
        Self {
            connector: Connector::new(context, backend),
            gate,
            _port: port,
        }
    }
}

struct Datagrams {
    inner: Arc<dyn ManagementPort>,
    gate: Arc<Gate>,
    agent: Mutex<Option<Weak<dyn ManagementSink>>>,
}

impl ManagementPort for Datagrams {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn communication_ids(&self) -> (u32, u32) {
        self.inner.communication_ids()
    }

    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink> {
        let mut made = None;
        self.inner.attach(&mut || {
            let agent = make();
            *self.agent.lock() = Some(Arc::downgrade(&agent));
            made = Some(Arc::clone(&agent));
            let gate = Arc::clone(&self.gate);
            Arc::new(Datagram { agent, gate })
        });
        made.expect("the device has a manager already")
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) {
        let attribute = datagram[17] & 31;
        self.gate.sent[usize::from(attribute)].fetch_add(1, Ordering::SeqCst);
        if *self.gate.loses.lock() >> attribute & 1 == 1 {
            return;
        }
        let (port, datagram) = (Arc::clone(&self.inner), datagram.to_vec());
        self.gate.send(move || port.send(to, &datagram));
    }

    fn progress(&self) {
        self.inner.progress();
    }

    fn serve(&self, service: u64) -> std::io::Result<()> {
        self.inner.serve(service)
    }

    fn withdraw(&self, service: u64) {
        self.inner.withdraw(service);
    }

    fn now(&self) -> Duration {
        self.gate.clock.now()
    }

    fn wake_at(&self, at: Duration) {
        let agent = self.agent.lock().clone();
        self.gate.clock.add(at, move || {
            if let Some(agent) = agent.and_then(|agent| agent.upgrade()) {
                agent.due();
            }
        });
    }
}

/// Counts the datagrams that its agent has handled.
struct Datagram {
    agent: Arc<dyn ManagementSink>,
    gate: Arc<Gate>,
}

impl ManagementSink for Datagram {
    fn datagram(&self, from: IpAddr, datagram: &[u8]) {
        self.agent.datagram(from, datagram);
        if u16::from(datagram[17]) == REJ {
            self.gate.ends_heard.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn refused(&self, to: IpAddr, errno: i32) {
        self.agent.refused(to, errno);
    }

    fn traffic(&self, qp: Qpn) {
        self.agent.traffic(qp);
    }

    fn due(&self) {
        self.agent.due();
    }
}

struct Streams {
    inner: Arc<dyn StreamPort>,
    gate: Arc<Gate>,
}

impl StreamPort for Streams {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn wishes(&self) -> StreamWishes {
        self.inner.wishes()
    }

    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> std::io::Result<SocketAddr> {
        let gate = Arc::clone(&self.gate);
        self.inner.listen(at, Arc::new(Accepting { sink, gate }))
    }

    fn unlisten(&self, at: SocketAddr) {
        self.inner.unlisten(at);
    }

    fn connect(
        &self,
        from: u16,
        to: SocketAddr,
        sink: Arc<dyn StreamSink>,
    ) -> std::io::Result<Qpn> {
        let gate = Arc::clone(&self.gate);
        self.inner
            .connect(from, to, Arc::new(Stream { sink, gate }))
    }

    fn admits(&self, stream: Qpn) -> bool {
        !self.gate.admits_nobody.load(Ordering::Relaxed) && self.inner.admits(stream)
    }

    fn send(&self, stream: Qpn, bytes: &[u8]) {
        let (port, bytes) = (Arc::clone(&self.inner), bytes.to_vec());
        self.gate.send(move || port.send(stream, &bytes));
    }

    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]) {
        self.inner.agree(stream, agreed, last, rest);
    }

    fn carries(&self, qp: Qpn) -> bool {
        self.inner.carries(qp)
    }

    fn close(&self, stream: Qpn, how: StreamClose) {
        let port = Arc::clone(&self.inner);
        self.gate.send(move || port.close(stream, how));
    }

    fn now(&self) -> Duration {
        self.gate.clock.now()
    }

    // The device knows whether the stream has ended, and wakes its sink at once if it has not.
    fn wake_at(&self, stream: Qpn, at: Duration) {
        let port = Arc::clone(&self.inner);
        let clock = &self.gate.clock;
        clock.add(at, move || port.wake_at(stream, Duration::ZERO));
    }
}

struct Accepting {
    sink: Arc<dyn StreamListener>,
    gate: Arc<Gate>,
}

impl StreamListener for Accepting {
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>> {
        let sink = self.sink.accepted(stream, from)?;
        self.gate.accepted.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&self.gate);
        Some(Arc::new(Stream { sink, gate }))
    }
}

/// Counts the bytes and ends that its sink has handled.
struct Stream {
    sink: Arc<dyn StreamSink>,
    gate: Arc<Gate>,
}

impl StreamSink for Stream {
    fn connected(&self) {
        self.sink.connected();
    }

    fn octets(&self, bytes: &[u8]) {
        self.sink.octets(bytes);
        self.gate.heard.fetch_add(bytes.len(), Ordering::SeqCst);
    }

    fn has_asked(&self) -> bool {
        self.sink.has_asked()
    }

    fn begun(&self) {
        self.sink.begun();
    }

    fn ended(&self, end: StreamEnd) {
        self.sink.ended(end);
        self.gate.ends_heard.fetch_add(1, Ordering::SeqCst);
    }

    fn due(&self) {
        self.sink.due();
    }
}
