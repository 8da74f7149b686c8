//! The process that serves requests: it makes the requested calls of the provider contract on its device.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{
    CompletionSink, ContextOps, CqInit, CqOps, DeviceOps, EventSink, MrInit, MrOps, PdOps, QpInit,
    QpOps, Reply,
};
use verbs_api::{
    Access, Completion, PageList, Requirements, VerbError,
    event::{EventSubject, EventType},
    extension::QpVariant,
};

use crate::memory::{Change, Mirror};
use crate::protocol::{Answer, Ask, Line, QpMade, Receive, Request, Say, ip_of, zeroed};

/// Serves requests until the other process closes the stream.
pub(crate) fn serve(
    stream: UnixStream,
    device: &Arc<dyn DeviceOps>,
    variants: &'static [&'static QpVariant],
) {
    let speaker = Speaker(Arc::new(Mutex::new(
        stream.try_clone().expect("a descriptor"),
    )));
    let attributes = device.attributes();
    let wanted = Requirements::everything_of(&attributes);
    let grant = wanted
        .check(&attributes)
        .expect("features that the device claims");
    let opened = device.open(&grant, Arc::new(speaker.clone()));
    let peer = Peer {
        context: opened.expect("a device that can be opened"),
        speaker,
        state: Arc::default(),
        variants,
    };
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        peer.handle(serde_json::from_str(&line).expect("a line of this program"));
    }
}

#[derive(Clone)]
struct Speaker(Arc<Mutex<UnixStream>>);

impl Speaker {
    fn say(&self, what: &Say) {
        let mut line = serde_json::to_vec(what).expect("plain data");
        line.push(b'\n');
        // The other process closes the stream as soon as it needs no further answer, so an error is no fault.
        let _ = lock(&self.0).write_all(&line);
    }
}

impl EventSink for Speaker {
    fn event(&self, event: EventType, subject: EventSubject) {
        let object = match subject {
            EventSubject::Object(id) => Some((id.index, id.generation)),
            EventSubject::Port(_) | EventSubject::Device => None,
        };
        let event = format!("{event:?}");
        self.say(&Say::Event { event, object });
    }
}

/// Queues are polled, and never armed.
struct Unarmed;

impl CompletionSink for Unarmed {
    fn notify(&self) {}
}

struct Peer {
    context: Arc<dyn ContextOps>,
    speaker: Speaker,
    state: Arc<Mutex<State>>,
    variants: &'static [&'static QpVariant],
}

#[derive(Default)]
struct State {
    objects: BTreeMap<u32, Object>,
    last: u32,
    mirrors: BTreeMap<u32, Mirror>,
    // The memory that requests have registered, kept until the end.
    pages: Vec<PageList>,
}

#[derive(Clone)]
enum Object {
    Pd(Arc<dyn PdOps>),
    Cq(Arc<dyn CqOps>),
    Mr(Arc<dyn MrOps>),
    Qp(Arc<dyn QpOps>),
}

impl State {
    fn add(&mut self, object: Object) -> u32 {
        self.last += 1;
        self.objects.insert(self.last, object);
        self.last
    }

    fn take(&mut self, changed: &[Change]) {
        for change in changed {
            if let Some(mirror) = self.mirrors.get_mut(&change.region) {
                mirror.take(change);
            }
        }
    }
}

impl Peer {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn reply<T>(
        &self,
        number: u64,
        answer: impl FnOnce(&mut State, T) -> Answer + Send + 'static,
    ) -> Reply<T> {
        let (state, speaker) = (Arc::clone(&self.state), self.speaker.clone());
        Reply::new(move |result: Result<T, VerbError>| {
            let answer = result.map(|made| answer(&mut lock(&state), made));
            let answer = answer.map_err(Into::into);
            speaker.say(&Say::Answer { to: number, answer });
        })
    }

    fn handle(&self, line: Line) {
        let Line { number, id, ask } = line;
        let (index, generation) = id.unwrap_or_default();
        let id = ObjectId::new(index, generation);
        if let Err(error) = self.begin(number, id, ask) {
            let answer = Err(error.into());
            self.speaker.say(&Say::Answer { to: number, answer });
        }
    }

    fn begin(&self, number: u64, id: ObjectId, ask: Ask) -> Result<(), VerbError> {
        match ask {
            Ask::AllocPd => self.context.alloc_pd(self.reply(number, |state, pd| {
                let object = state.add(Object::Pd(pd));
                Answer::Made { object }
            })),
            Ask::CreateCq { cqe } => {
                let sink = Arc::new(Unarmed);
                let made = self.reply(number, |state, cq: Arc<dyn CqOps>| Answer::Cq {
                    cqe: cq.cqe(),
                    object: state.add(Object::Cq(cq)),
                });
                self.context.create_cq(
                    CqInit {
                        id,
                        cqe,
                        comp_vector: 0,
                        sink,
                    },
                    made,
                );
            }
            Ask::RegisterMr {
                pd,
                iova,
                access,
                octets,
            } => {
                let memory = zeroed(octets)?;
                let init = MrInit {
                    id,
                    memory: memory.clone(),
                    iova,
                    access: Access::from_bits_retain(access),
                    private: false,
                };
                let made = self.reply(number, |state, mr| {
                    let answer = made_mr(state, mr);
                    if let Answer::Mr { object, .. } = answer {
                        state.mirrors.insert(object, Mirror::new(object, memory));
                    }
                    answer
                });
                self.pd(pd)?.reg_mr(init, made);
            }
            Ask::AllocMr { pd, entries } => {
                let made = self.reply(number, made_mr);
                self.pd(pd)?.alloc_mr(id, entries, made);
            }
            Ask::CreateQp { pd, qp } => {
                let made = self.reply(number, |state, qp: Arc<dyn QpOps>| Answer::Qp {
                    number: qp.qp_num().value(),
                    cap: qp.cap().into(),
                    object: state.add(Object::Qp(qp)),
                });
                self.pd(pd)?.create_qp(self.init(id, &qp)?, made);
            }
            Ask::Modify { qp, attributes } => {
                let done = self.reply(number, |_, ()| Answer::Done);
                self.qp(qp)?.modify((&*attributes).into(), done);
            }
            Ask::Destroy { object } => self.destroy(number, object)?,
            at_once => {
                let to = number;
                let answer = self.answer(at_once).map_err(Into::into);
                self.speaker.say(&Say::Answer { to, answer });
            }
        }
        Ok(())
    }

    fn answer(&self, ask: Ask) -> Result<Answer, VerbError> {
        match ask {
            Ask::QueryPort { port } => {
                let port = self.context.query_port(port)?;
                let gid = port.gid(port.default_gid_index());
                Ok(Answer::Port {
                    address: ip_of(port.address).to_string(),
                    gid: gid
                        .ok_or(VerbError::Internal("a port without identifier"))?
                        .0,
                })
            }
            Ask::Query { qp } => Ok(self.qp(qp)?.query()?.into()),
            Ask::Poll { cq, most } => self.poll(cq, most),
            Ask::Post {
                qp,
                changed,
                requests,
            } => {
                self.state().take(&changed);
                self.post(qp, &requests)
            }
            Ask::PostReceives { qp, requests } => self.post_receives(qp, &requests),
            other => unreachable!("{other:?} is begun"),
        }
    }

    fn poll(&self, cq: u32, most: usize) -> Result<Answer, VerbError> {
        let mut slots: Vec<_> = (0..most).map(|_| Completion::default()).collect();
        let found = self.cq(cq)?.poll(&mut slots)?;
        let mut state = self.state();
        let changed = match found {
            0 => Vec::new(),
            _ => { state.mirrors.values_mut() }
                .flat_map(Mirror::changes)
                .collect(),
        };
        let done = slots[..found].iter().map(Into::into).collect();
        Ok(Answer::Completions { done, changed })
    }

    fn post(&self, qp: u32, requests: &[Request]) -> Result<Answer, VerbError> {
        let qp = self.qp(qp)?;
        for (posted, request) in requests.iter().enumerate() {
            let (outcome, pages) =
                request.with(self.variants, |request| qp.poster().post_send(&[request]));
            self.state().pages.extend(pages);
            if let Err((_, reason)) = outcome {
                let reason = reason.into();
                return Ok(Answer::Refused { posted, reason });
            }
        }
        Ok(Answer::Done)
    }

    fn post_receives(&self, qp: u32, requests: &[Receive]) -> Result<Answer, VerbError> {
        let qp = self.qp(qp)?;
        for (posted, request) in requests.iter().enumerate() {
            let outcome = request.with(|request| qp.poster().post_recv(&[request]));
            if let Err((_, reason)) = outcome {
                let reason = reason.into();
                return Ok(Answer::Refused { posted, reason });
            }
        }
        Ok(Answer::Done)
    }

    fn init(&self, id: ObjectId, made: &QpMade) -> Result<QpInit, VerbError> {
        Ok(QpInit {
            id,
            qp_type: made.qp_type(),
            send_cq: self.cq(made.send_cq)?,
            recv_cq: self.cq(made.recv_cq)?,
            srq: None,
            cap: made.cap.into(),
            reserved_wr: made.reserved_wr,
            sq_sig_all: made.sq_sig_all,
            operations: made.operations.operations(),
            extensions: made.extensions(self.variants),
        })
    }

    fn destroy(&self, number: u64, object: u32) -> Result<(), VerbError> {
        let found = self.state().objects.get(&object).cloned();
        let done = self.reply(number, move |state, ()| {
            state.objects.remove(&object);
            state.mirrors.remove(&object);
            Answer::Done
        });
        match found.ok_or(VerbError::InvalidHandle(ObjectKind::Context))? {
            Object::Pd(pd) => pd.dealloc(done),
            Object::Cq(cq) => cq.destroy(done),
            Object::Mr(mr) => mr.dereg(done),
            Object::Qp(qp) => qp.destroy(done),
        }
        Ok(())
    }

    fn pd(&self, object: u32) -> Result<Arc<dyn PdOps>, VerbError> {
        match self.state().objects.get(&object) {
            Some(Object::Pd(pd)) => Ok(Arc::clone(pd)),
            _ => Err(VerbError::InvalidHandle(ObjectKind::Pd)),
        }
    }

    fn cq(&self, object: u32) -> Result<Arc<dyn CqOps>, VerbError> {
        match self.state().objects.get(&object) {
            Some(Object::Cq(cq)) => Ok(Arc::clone(cq)),
            _ => Err(VerbError::InvalidHandle(ObjectKind::Cq)),
        }
    }

    fn qp(&self, object: u32) -> Result<Arc<dyn QpOps>, VerbError> {
        match self.state().objects.get(&object) {
            Some(Object::Qp(qp)) => Ok(Arc::clone(qp)),
            _ => Err(VerbError::InvalidHandle(ObjectKind::Qp)),
        }
    }
}

fn made_mr(state: &mut State, mr: Arc<dyn MrOps>) -> Answer {
    Answer::Mr {
        lkey: mr.lkey().value(),
        rkey: mr.rkey().value(),
        object: state.add(Object::Mr(mr)),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
