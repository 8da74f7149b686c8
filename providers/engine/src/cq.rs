//! Completion queues.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};

use verbs_api::memory::Loan;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{CompletionSink, CqInit, CqOps, EventSink, Reply};
use verbs_api::{
    Completion, VerbError, WcStatus,
    completion::{Notify, WcFlags, WcOpcode},
    event::{EventSubject, EventType},
    ids::Qpn,
};

use crate::commands::{Commands, out_of_range};
use crate::completion_ring::{Armed, CompletionRing, Entry, Producer, ResizeError};
use crate::effects::{Effects, QpActions};
use crate::loans;
use crate::lock::LockGuard;
use crate::network::Polled;
use crate::quota::Place;
use crate::rules::{self, Rule};
use crate::sync::Mutex;

/// The most times that one poll of an empty completion queue polls the network.
const LOOKS: usize = 4;

/// The values of one completion, before it is added to a completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// The `wr_id` of the request or receive.
    pub wr_id: u64,
    /// The status with which the request or receive ended.
    pub status: WcStatus,
    /// The operation that completed.
    pub opcode: WcOpcode,
    /// Flags that say whether `imm` holds immediate data or a key, and whether a routing header precedes the message.
    pub flags: WcFlags,
    /// The number of bytes that were received, or that a read or an atomic returned.
    pub byte_len: u32,
    /// The number of the queue pair to which the request or receive was posted.
    pub qpn: u32,
    /// Immediate data, or the R_Key that the peer has invalidated, in network byte order.
    pub imm: [u8; 4],
    /// For a failed request, the operating system's error number for the cause, or 0 if there is none.
    pub vendor_err: u32,
    /// The buffers that the program lent with the request and that the completion returns to it.
    pub loan: Loan,
    /// The number of the sender's queue pair, for a datagram or a message of XRC; `None` for others.
    pub src_qp: Option<u32>,
    /// Whether the completion wakes a thread that armed the queue for solicited completions only. A completion with an
    /// error always does.
    pub solicited: bool,
}

impl Done {
    fn entry(&self) -> Entry {
        let solicited = self.solicited || !self.status.is_success();
        let last = match self.status.is_success() {
            true => u32::from_be_bytes(self.imm),
            false => self.vendor_err,
        };
        Entry {
            words: [
                self.wr_id,
                u64::from(self.byte_len) | u64::from(last) << 32,
                u64::from(self.qpn & 0xff_ffff)
                    | u64::from(self.opcode.code()) << 24
                    | u64::from(self.loan.to_bits()) << 32,
            ],
            tail: self.status as u32
                | u32::from(self.flags.bits()) << 8
                | if solicited { Entry::SOLICITED } else { 0 },
        }
    }

    #[inline]
    fn read(entry: &Entry, ext: Option<u64>, into: &mut Completion) {
        let [wr_id, length_last, qp_loan] = entry.words;
        into.wr_id = wr_id;
        into.status = WcStatus::from_code(entry.tail as u8);
        into.opcode = WcOpcode::from_code((qp_loan >> 24) as u8);
        into.wc_flags = WcFlags::from_bits_retain((entry.tail >> 8) as u8);
        into.byte_len = length_last as u32;
        let last = (length_last >> 32) as u32;
        let (imm, vendor_err) = match into.status.is_success() {
            true => (last, 0),
            false => (0, last),
        };
        into.imm_data = imm.to_be_bytes();
        into.vendor_err = vendor_err;
        into.qp_num = Qpn::new(qp_loan as u32);
        into.src_qp = Qpn::new(ext.unwrap_or(0) as u32);
        (into.slid, into.sl, into.dlid_path_bits, into.pkey_index) = (0, 0, 0, 0);
        loans::hand_back(into, Loan::from_bits((qp_loan >> 32) as u32));
    }
}

/// The completion of a success that has no values besides `wr_id` and a number of bytes: one word, so that it is passed in
/// a register.
#[derive(Clone, Copy, Debug)]
pub struct Plain(u64);

impl Plain {
    /// Describes the completion of an operation on the queue pair `qpn`. `solicited` says whether it wakes a thread that
    /// armed the queue for solicited completions only.
    #[inline]
    pub fn new(qpn: u32, opcode: WcOpcode, solicited: bool) -> Self {
        let tail = if solicited { Entry::SOLICITED } else { 0 };
        Self(u64::from(qpn) | u64::from(opcode.code()) << 24 | u64::from(tail) << 32)
    }
}

/// A completion queue.
pub struct Cq {
    me: Weak<Self>,
    ring: CompletionRing,
    failed: AtomicBool,
    // Whether a thread waits, or is about to wait, until this queue notifies it.
    awaited: AtomicBool,
    id: ObjectId,
    sink: Arc<dyn CompletionSink>,
    events: Arc<dyn EventSink>,
    commands: Arc<Commands>,
    // The device, if threads that find the queue empty must poll the network for frames.
    device: Option<Arc<dyn Polled>>,
    users: Mutex<Vec<Weak<dyn QpActions>>>,
    _place: Place,
}

impl Cq {
    pub(crate) fn new(
        init: CqInit,
        events: Arc<dyn EventSink>,
        commands: Arc<Commands>,
        device: Option<Arc<dyn Polled>>,
        place: Place,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            ring: CompletionRing::new(init.cqe),
            failed: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            id: init.id,
            sink: init.sink,
            events,
            commands,
            device,
            users: Mutex::default(),
            _place: place,
        })
    }

    #[inline]
    fn take(&self, completions: &mut [Completion]) -> usize {
        let max = completions.len();
        let mut slots = completions.iter_mut();
        let mut store = |entry: Entry, ext| {
            if let Some(slot) = slots.next() {
                Done::read(&entry, ext, slot);
            }
        };
        self.ring.poll(&mut store, max)
    }

    pub(crate) fn attach(&self, qp: Weak<dyn QpActions>) {
        let mut users = self.users.lock();
        if users.len() == users.capacity() {
            users.retain(|user| user.strong_count() > 0);
        }
        users.push(qp);
    }

    /// Returns how many completions the program has ever polled.
    pub(crate) fn polled(&self) -> u64 {
        self.ring.polled()
    }

    /// Adds a completion, and returns its position: how many were added before. If the queue is full, the completion is lost,
    /// and the queue and its queue pairs fail.
    #[inline]
    pub fn push(self: &Arc<Self>, done: &Done, effects: &mut Effects) -> u64 {
        let ext = done.src_qp.map(u64::from);
        let (at, is_added) = self.add(done.entry(), ext, effects);
        if !is_added {
            loans::release(done.loan);
        }
        at
    }

    /// Adds the completion of a success: `wr_id` and a number of bytes besides `what`. Returns its position; a full queue
    /// fails, as in [`push`](Self::push).
    #[inline]
    pub fn push_plain(
        self: &Arc<Self>,
        wr_id: u64,
        what: Plain,
        byte_len: u32,
        effects: &mut Effects,
    ) -> u64 {
        let words = [wr_id, u64::from(byte_len), u64::from(what.0 as u32)];
        let tail = (what.0 >> 32) as u32;
        self.add(Entry { words, tail }, None, effects).0
    }

    // Returns the position of the entry, and whether the queue has room for it.
    #[inline]
    fn add(self: &Arc<Self>, entry: Entry, ext: Option<u64>, effects: &mut Effects) -> (u64, bool) {
        let mut producer = self.ring.producer();
        let at = producer.pushed();
        let pushed = self.ring.push(&mut producer, entry, ext);
        match pushed {
            Ok(false) => {}
            Ok(true) => {
                drop(producer);
                effects.wake(self);
            }
            Err(_) => self.refuse(producer, effects),
        }
        (at, pushed.is_ok())
    }

    // Fails the queue with the first completion that is lost. From then on the queue takes no completion, even if it has
    // room.
    #[cold]
    fn refuse(self: &Arc<Self>, mut producer: LockGuard<'_, Producer>, effects: &mut Effects) {
        producer.close();
        drop(producer);
        if !self.failed.swap(true, Ordering::SeqCst) {
            let cq = Arc::clone(self);
            effects.later(move |effects| cq.fail(effects));
        }
    }

    /// Returns whether the queue has overrun.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    pub(crate) fn notify(&self) {
        self.awaited.store(false, Ordering::Relaxed);
        self.sink.notify();
    }

    /// Fails the queue, which has overrun: the queue and its queue pairs are unusable afterwards, and events report that
    /// (IBTA 10.2.8.1, error class G).
    pub(crate) fn fail(&self, effects: &mut Effects) {
        let subject = EventSubject::Object(self.id);
        effects.event(&self.events, EventType::CqErr, subject);
        // A queue pair that comes up meanwhile either sees the failure or is in the list: `Qp::apply` has the matching
        // fence.
        fence(Ordering::SeqCst);
        let users = std::mem::take(&mut *self.users.lock());
        for qp in users.iter().filter_map(Weak::upgrade) {
            qp.fatal(effects);
        }
        self.sink.notify();
    }

    /// Removes the completions that the program will not poll, and releases the lent buffers that they hold.
    fn drain(&self) {
        let mut left = Vec::new();
        let mut keep = |entry: Entry, _| left.push(Loan::from_bits((entry.words[2] >> 32) as u32));
        self.ring.poll(&mut keep, usize::MAX);
        // No lock is held here, because the last buffer of an abandoned pool releases the pool's region.
        left.into_iter().for_each(loans::release);
    }
}

impl CqOps for Cq {
    fn cqe(&self) -> u32 {
        self.ring.capacity()
    }

    #[inline]
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let mut polled = self.take(completions);
        if let (0, Some(device)) = (polled, &self.device) {
            for _ in 0..LOOKS {
                let found = device.poll();
                polled = self.take(completions);
                if polled > 0 || !found {
                    break;
                }
            }
            // A thread that has armed the queue polls a last time before it sleeps.
            if self.awaited.load(Ordering::Relaxed) {
                device.hand_back();
            }
        }
        if polled == 0 && self.failed.load(Ordering::Relaxed) {
            return Err(VerbError::CqOverrun);
        }
        Ok(polled)
    }

    fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        let armed = self.ring.arm(match notify {
            Notify::Next => Armed::Next,
            Notify::Solicited => Armed::Solicited,
        });
        if let Some(device) = &self.device {
            self.awaited.store(true, Ordering::Relaxed);
            device.hand_back();
        }
        Ok(armed)
    }

    fn resize(&self, cqe: u32, reply: Reply<u32>) {
        let Some(cq) = self.me.upgrade() else { return };
        self.commands.run(reply, move || {
            if cq.has_failed() {
                return Err(VerbError::CqOverrun);
            }
            let resized = match cq.ring.resize(cqe.max(1)) {
                Err(ResizeError::Pending(_)) if rules::is_broken(Rule::ResizeFits) => Ok(cqe),
                resized => resized.map(|()| cqe.max(1)),
            };
            resized.map_err(|error| match error {
                ResizeError::Pending(pending) => out_of_range("cqe", cqe, pending, u64::MAX),
                ResizeError::Memory => VerbError::Resources("memory"),
            })
        });
    }

    fn destroy(&self, reply: Reply<()>) {
        self.drain();
        self.commands.run_last(reply, |reply| reply.send(Ok(())));
    }
}
