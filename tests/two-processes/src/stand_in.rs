//! The stand-in for the device of the other process: a provider that forwards every call.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use verbs_api::objects::ObjectId;
use verbs_api::provider::{
    ContextOps, CqInit, CqOps, DeviceOps, EventSink, MrInit, MrOps, PdOps, PostOps, QpInit, QpOps,
    Reply, own,
};
use verbs_api::qp::{QpAttributes, QpCap, QpStatus};
use verbs_api::{
    Completion, RKey, VerbError,
    capability::{DeviceAttributes, GidEntry, Grant, PortAttributes},
    completion::Notify,
    ids::{Gid, LKey, LinkAddress, Port, Qpn},
    wr::{PostReason, ReceiveRequest, WorkRequest},
};

use crate::memory::{Change, Mirror};
use crate::peer::lock;
use crate::protocol::{
    Answer, Ask, Line, QpMade, Receive, Request, Say, event_of, state_of, subject_of,
};

type Answered = Result<Answer, VerbError>;
type Job = Box<dyn FnOnce() + Send>;

/// The recipient of an answer.
enum Waiting {
    /// A thread waits for the answer.
    Now(mpsc::Sender<Answered>),
    /// A callback receives the answer.
    Later(Box<dyn FnOnce(Answered) + Send>),
}

/// The connection to the other process. Dropping it ends that process.
struct Remote {
    process: Mutex<Child>,
    stream: Mutex<UnixStream>,
    heard: Arc<Heard>,
    last: AtomicU64,
    mirrors: Mutex<BTreeMap<u32, Mirror>>,
}

/// The state that the listening thread shares with the threads that send requests.
#[derive(Default)]
struct Heard {
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    events: Mutex<Option<Arc<dyn EventSink>>>,
}

impl Remote {
    fn new(process: Child, stream: UnixStream) -> Arc<Self> {
        let heard = Arc::new(Heard::default());
        let (jobs, to_do) = mpsc::channel::<Job>();
        // A callback may send a request and wait for its answer, so callbacks run on a thread other
        // than the listening one.
        thread::spawn(move || to_do.into_iter().for_each(|job| job()));
        let (ear, listening) = (stream.try_clone(), Arc::clone(&heard));
        thread::spawn(move || listening.listen(ear.expect("a descriptor"), &jobs));
        Arc::new(Self {
            process: Mutex::new(process),
            stream: Mutex::new(stream),
            heard,
            last: AtomicU64::new(0),
            mirrors: Mutex::default(),
        })
    }

    fn say(&self, id: Option<ObjectId>, ask: Ask, waiting: Waiting) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.heard.waiting).insert(number, waiting);
        let id = id.map(|id| (id.index, id.generation));
        let mut line = serde_json::to_vec(&Line { number, id, ask }).expect("plain data");
        line.push(b'\n');
        let sent = lock(&self.stream).write_all(&line);
        sent.expect("another process that listens");
    }

    /// Sends a request, and waits for the answer.
    fn ask(&self, ask: Ask) -> Answered {
        let (sender, answer) = mpsc::channel();
        self.say(None, ask, Waiting::Now(sender));
        answer.recv().expect("another process that answers")
    }

    /// Starts a verb; `answer` makes the result of the verb from the answer.
    fn begin<T: 'static>(
        &self,
        id: Option<ObjectId>,
        ask: Ask,
        reply: Reply<T>,
        answer: impl FnOnce(Answer) -> Option<T> + Send + 'static,
    ) {
        let told = move |answered: Answered| {
            let made = answered.and_then(|said| answer(said).ok_or_else(unexpected));
            reply.send(made);
        };
        self.say(id, ask, Waiting::Later(Box::new(told)));
    }

    fn changes(&self) -> Vec<Change> {
        let mut mirrors = lock(&self.mirrors);
        let changes = mirrors.values_mut().flat_map(Mirror::changes);
        changes.collect()
    }

    fn take(&self, changed: &[Change]) {
        let mut mirrors = lock(&self.mirrors);
        for change in changed {
            if let Some(mirror) = mirrors.get_mut(&change.region) {
                mirror.take(change);
            }
        }
    }
}

fn unexpected() -> VerbError {
    VerbError::Internal("another answer than was asked for")
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = lock(&self.stream).shutdown(Shutdown::Both);
        let _ = lock(&self.process).wait();
    }
}

impl Heard {
    fn listen(&self, stream: UnixStream, jobs: &mpsc::Sender<Job>) {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { break };
            let job = self.hear(serde_json::from_str(&line).expect("a line of this program"));
            // The thread that runs the jobs ends with this one.
            job.into_iter().for_each(|job| drop(jobs.send(job)));
        }
        // The other process will send no further answer.
        lock(&self.waiting).clear();
    }

    fn hear(&self, said: Say) -> Option<Job> {
        match said {
            Say::Answer { to, answer } => {
                let answer = answer.map_err(Into::into);
                match lock(&self.waiting).remove(&to)? {
                    Waiting::Now(sender) => {
                        // The receiver exists, because the requesting thread waits.
                        let _ = sender.send(answer);
                        None
                    }
                    Waiting::Later(told) => Some(Box::new(move || told(answer))),
                }
            }
            Say::Event { event, object } => {
                let sink = lock(&self.events).clone()?;
                let told = move || sink.event(event_of(&event), subject_of(object));
                Some(Box::new(told))
            }
        }
    }
}

/// The device of the other process.
pub(crate) struct StandIn {
    remote: Arc<Remote>,
    attributes: DeviceAttributes,
    port: PortAttributes,
}

impl StandIn {
    /// `attributes` and `port` are those of a device of the same kind.
    pub(crate) fn new(
        process: Child,
        stream: UnixStream,
        attributes: DeviceAttributes,
        port: PortAttributes,
    ) -> Self {
        let remote = Remote::new(process, stream);
        Self {
            remote,
            attributes: DeviceAttributes {
                name: format!("{} of another process", attributes.name),
                ..attributes
            },
            port,
        }
    }
}

impl DeviceOps for StandIn {
    fn attributes(&self) -> DeviceAttributes {
        self.attributes.clone()
    }

    // The other process has opened the device for every feature that it claims.
    fn open(
        &self,
        _: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        *lock(&self.remote.heard.events) = Some(events);
        Ok(Arc::new(Context {
            remote: Arc::clone(&self.remote),
            port: self.port.clone(),
        }))
    }
}

struct Context {
    remote: Arc<Remote>,
    port: PortAttributes,
}

impl ContextOps for Context {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        let Answer::Port { address, gid } = self.remote.ask(Ask::QueryPort { port })? else {
            return Err(unexpected());
        };
        let ip: IpAddr = address.parse().map_err(|_| unexpected())?;
        Ok(PortAttributes {
            address: LinkAddress::Ip(ip),
            gids: vec![GidEntry::new(Gid(gid), self.port.gids[0].gid_type)],
            ..self.port.clone()
        })
    }

    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        let remote = Arc::clone(&self.remote);
        self.remote.begin(None, Ask::AllocPd, reply, |answer| {
            let Answer::Made { object } = answer else {
                return None;
            };
            Some(Arc::new(Pd(Object { remote, object })) as _)
        });
    }

    fn create_cq(&self, init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        let (remote, cqe) = (Arc::clone(&self.remote), init.cqe);
        let ask = Ask::CreateCq { cqe };
        self.remote.begin(Some(init.id), ask, reply, |answer| {
            let Answer::Cq { object, cqe } = answer else {
                return None;
            };
            let object = Object { remote, object };
            Some(Arc::new(Cq { object, cqe }) as _)
        });
    }
}

/// An object of the other process.
struct Object {
    remote: Arc<Remote>,
    object: u32,
}

impl Object {
    fn destroy(&self, reply: Reply<()>) {
        let Self { remote, object } = self;
        let ask = Ask::Destroy { object: *object };
        remote.begin(None, ask, reply, done);
    }
}

fn done(answer: Answer) -> Option<()> {
    matches!(answer, Answer::Done).then_some(())
}

struct Cq {
    object: Object,
    cqe: u32,
}

impl CqOps for Cq {
    fn cqe(&self) -> u32 {
        self.cqe
    }

    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let Object { remote, object } = &self.object;
        let most = completions.len();
        let Answer::Completions { done, changed } = remote.ask(Ask::Poll { cq: *object, most })?
        else {
            return Err(unexpected());
        };
        remote.take(&changed);
        let found = done.len();
        for (slot, done) in completions.iter_mut().zip(done) {
            *slot = done.into();
        }
        Ok(found)
    }

    // Probes poll, so no notification is needed.
    fn arm(&self, _: Notify) -> Result<bool, VerbError> {
        Ok(false)
    }

    fn destroy(&self, reply: Reply<()>) {
        self.object.destroy(reply);
    }
}

struct Pd(Object);

impl PdOps for Pd {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        if init.private {
            return reply.unsupported("reg_mr of private memory");
        }
        let remote = Arc::clone(&self.0.remote);
        let ask = Ask::RegisterMr {
            pd: self.0.object,
            iova: init.iova,
            access: init.access.bits(),
            octets: init.memory.len(),
        };
        self.0
            .remote
            .begin(Some(init.id), ask, reply, move |answer| {
                let mr = Mr::of(Arc::clone(&remote), &answer)?;
                let object = mr.object.object;
                let mirror = Mirror::new(object, init.memory);
                lock(&remote.mirrors).insert(object, mirror);
                Some(Arc::new(mr) as _)
            });
    }

    fn alloc_mr(&self, id: ObjectId, entries: u32, reply: Reply<Arc<dyn MrOps>>) {
        let remote = Arc::clone(&self.0.remote);
        let pd = self.0.object;
        let ask = Ask::AllocMr { pd, entries };
        self.0.remote.begin(Some(id), ask, reply, |answer| {
            Some(Arc::new(Mr::of(remote, &answer)?) as _)
        });
    }

    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        let remote = Arc::clone(&self.0.remote);
        let number = |cq: &Arc<dyn CqOps>| Ok(own::<Cq, _>(cq, "cq")?.object.object);
        let cqs = number(&init.send_cq).and_then(|send| Ok((send, number(&init.recv_cq)?)));
        let ask = match cqs.and_then(|cqs| QpMade::of(&init, cqs)) {
            Ok(_) if init.srq.is_some() => return reply.unsupported("create_qp with an SRQ"),
            Ok(made) => Ask::CreateQp {
                pd: self.0.object,
                qp: Box::new(made),
            },
            Err(error) => return reply.send(Err(error)),
        };
        self.0.remote.begin(Some(init.id), ask, reply, |answer| {
            let Answer::Qp {
                object,
                number,
                cap,
            } = answer
            else {
                return None;
            };
            Some(Arc::new(Qp {
                object: Object { remote, object },
                number: Qpn::new(number),
                cap: cap.into(),
            }) as _)
        });
    }

    fn dealloc(&self, reply: Reply<()>) {
        self.0.destroy(reply);
    }
}

struct Mr {
    object: Object,
    lkey: LKey,
    rkey: RKey,
}

impl Mr {
    fn of(remote: Arc<Remote>, answer: &Answer) -> Option<Self> {
        let &Answer::Mr { object, lkey, rkey } = answer else {
            return None;
        };
        Some(Self {
            object: Object { remote, object },
            lkey: LKey::new(lkey),
            rkey: RKey::new(rkey),
        })
    }
}

impl MrOps for Mr {
    fn lkey(&self) -> LKey {
        self.lkey
    }

    fn rkey(&self) -> RKey {
        self.rkey
    }

    fn dereg(&self, reply: Reply<()>) {
        let Object { remote, object } = &self.object;
        lock(&remote.mirrors).remove(object);
        self.object.destroy(reply);
    }
}

struct Qp {
    object: Object,
    number: Qpn,
    cap: QpCap,
}

impl Qp {
    fn posted(answered: Answered) -> Result<(), (usize, PostReason)> {
        match answered {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Refused { posted, reason }) => Err((posted, reason.into())),
            _ => Err((0, PostReason::InvalidHandle)),
        }
    }
}

impl PostOps for Qp {
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let Object { remote, object } = &self.object;
        let mut said = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            said.push(Request::of(request).map_err(|reason| (at, reason))?);
        }
        Self::posted(remote.ask(Ask::Post {
            qp: *object,
            changed: remote.changes(),
            requests: said,
        }))
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let Object { remote, object } = &self.object;
        let requests = requests.iter().map(Receive::of).collect();
        let qp = *object;
        Self::posted(remote.ask(Ask::PostReceives { qp, requests }))
    }
}

impl QpOps for Qp {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    // Posting and destroying need no lock: the thread of the probe does both.
    fn admit(&self, _: bool) {}

    fn qp_num(&self) -> Qpn {
        self.number
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        let Object { remote, object } = &self.object;
        let attributes = Box::new((&attributes).into());
        let qp = *object;
        remote.begin(None, Ask::Modify { qp, attributes }, reply, done);
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let Object { remote, object } = &self.object;
        match remote.ask(Ask::Query { qp: *object }) {
            Ok(Answer::Status {
                state,
                draining,
                attributes,
                cap,
            }) => Ok(QpStatus {
                state: state_of(state),
                sq_draining: draining,
                attributes: (&*attributes).into(),
                cap: cap.into(),
            }),
            Ok(_) => Err(unexpected()),
            Err(error) => Err(error),
        }
    }

    fn destroy(&self, reply: Reply<()>) {
        self.object.destroy(reply);
    }
}
