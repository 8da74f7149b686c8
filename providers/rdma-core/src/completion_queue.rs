//! Completion queues.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use polyverbs_abi::{IbvCompChannel, IbvCq, IbvWc};
use verbs_api::completion::{Completion, Notify, WcFlags, WcOpcode, WcStatus};
use verbs_api::ids::Qpn;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{CompletionSink, CqInit, CqOps, Mutex, Reply, SpinLock};
use verbs_api::{VerbError, memory::Loan};

use crate::context::{Context, DeviceEvents};
use crate::outstanding::{Receives, Retiring, is_receive, named_queue, set_loan};
use crate::verbs::{Live, Poller, never_waits};
use crate::watch::{Watch, Watched};

/// How many completions one poll of the library takes.
const TAKEN: usize = 16;

pub(crate) struct CompletionQueue {
    me: Weak<Self>,
    pub(crate) cq: Arc<Live<IbvCq>>,
    id: ObjectId,
    poller: Poller,
    polled: SpinLock<Polled>,
    notices: Arc<Notices>,
    watch: Mutex<Option<Watch>>,
    /// Whether the queue has lost completions, which the library reports in a poll or by an event.
    pub(crate) has_overrun: AtomicBool,
    context: Arc<Context>,
}

/// The state of a completion queue that only the thread that polls may access.
struct Polled {
    /// False once the queue was destroyed or its device removed.
    is_open: bool,
    /// The outstanding requests of the queue pairs that complete on this queue, sorted by queue pair number.
    queue_pairs: Vec<Books>,
    /// The index in `queue_pairs` of the last completion's queue pair.
    last: usize,
    /// The receives of XRC shared receive queues that complete on this queue, by the number of the shared receive queue in
    /// this process. Any queue pair may receive their messages.
    named: BTreeMap<u32, Arc<SpinLock<Receives>>>,
    /// Completions that were taken from the library before the program polled, for the next poll.
    kept: VecDeque<Completion>,
    /// Completions that the library has returned before those of earlier requests of the same queue pair, and that are held
    /// back until those have come.
    early: VecDeque<IbvWc>,
    /// The bits of a completion's flags any of which means that a key was invalidated.
    with_inv: u32,
}

/// The outstanding requests of one queue pair that complete on this queue.
#[derive(Default)]
struct Books {
    qp_num: u32,
    sends: Option<Retiring>,
    /// The outstanding receives of the queue pair, or of its shared receive queue.
    receives: Option<Arc<SpinLock<Receives>>>,
}

/// The completion channel of the queue, and the sink to notify.
struct Notices {
    channel: Live<IbvCompChannel>,
    sink: Arc<dyn CompletionSink>,
    /// Whether the channel has a notification that was not drained.
    has_come: AtomicBool,
}

impl Notices {
    /// Reads all notifications from the channel.
    fn drain(&self) {
        self.has_come.store(false, Ordering::Release);
        while let Ok(true) = self.channel.take_notice() {}
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // It fails if the queue was destroyed, because the channel then is destroyed already.
        let _ = self.channel.destroy();
    }
}

impl Watched for Notices {
    fn is_ready(&self) {
        self.has_come.store(true, Ordering::Release);
        self.sink.notify();
    }
}

impl CompletionQueue {
    pub(crate) fn create(context: Arc<Context>, init: CqInit) -> Result<Arc<Self>, VerbError> {
        let CqInit {
            id,
            cqe,
            comp_vector,
            sink,
        } = init;
        let notices = Arc::new(Notices {
            channel: context.live.create_channel()?,
            sink,
            has_come: AtomicBool::new(false),
        });
        let fd = notices.channel.fd()?;
        never_waits(fd)?;
        // The thread reports edges only: a notification stays in the channel until the queue is armed again.
        let watch = Watch::edges(fd, Arc::clone(&notices) as _)?;
        let made = context
            .live
            .create_cq(cqe, id, &notices.channel, comp_vector);
        let cq = match made {
            Ok(cq) => cq,
            Err(error) => {
                watch.stop(fd);
                return Err(error);
            }
        };
        let poller = cq.poller()?;
        let queue = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            poller,
            cq: Arc::new(cq),
            id,
            polled: SpinLock::new(Polled {
                is_open: true,
                queue_pairs: Vec::new(),
                last: 0,
                named: BTreeMap::new(),
                // Arming keeps one completion at most, for which it then allocates nothing.
                kept: VecDeque::with_capacity(1),
                early: VecDeque::new(),
                with_inv: context.properties.with_inv,
            }),
            notices,
            watch: Mutex::new(Some(watch)),
            has_overrun: AtomicBool::new(false),
            context,
        });
        queue.context.add(Arc::downgrade(&queue) as _);
        Ok(queue)
    }

    /// Adds a queue pair whose send requests complete on this queue.
    pub(crate) fn add_sends(&self, qp_num: u32, sends: Retiring) {
        self.polled.lock().books_of(qp_num).sends = Some(sends);
    }

    /// Adds a queue pair whose receives, or those of its shared receive queue, complete on this queue.
    pub(crate) fn add_receives(&self, qp_num: u32, receives: &Arc<SpinLock<Receives>>) {
        self.polled.lock().books_of(qp_num).receives = Some(Arc::clone(receives));
    }

    /// Adds an XRC shared receive queue whose receives complete on this queue. `queue` is its number in this process.
    pub(crate) fn add_named(&self, queue: u32, receives: &Arc<SpinLock<Receives>>) {
        let receives = Arc::clone(receives);
        self.polled.lock().named.insert(queue, receives);
    }

    /// Removes an XRC shared receive queue that was destroyed.
    pub(crate) fn remove_named(&self, queue: u32) {
        let removed = self.polled.lock().named.remove(&queue);
        drop(removed);
    }

    /// Removes a queue pair that was destroyed, and returns the buffers of its outstanding requests to their pools.
    pub(crate) fn remove(&self, qp_num: u32) {
        let mut polled = self.polled.lock();
        polled.early.retain(|entry| entry.qp_num != qp_num);
        if let Ok(place) = polled.place_of(qp_num) {
            let removed = polled.queue_pairs.remove(place);
            drop(polled);
            drop(removed);
        }
    }

    /// Drops the outstanding sends of a queue pair that the device has reset. The caller prevents posts meanwhile.
    pub(crate) fn forget_sends(&self, qp_num: u32) {
        let mut polled = self.polled.lock();
        if let Ok(place) = polled.place_of(qp_num)
            && let Some(sends) = &mut polled.queue_pairs[place].sends
        {
            sends.clear();
        }
    }

    /// Takes all completions from the library and keeps them for the program, because the library drops those of a queue
    /// pair that is destroyed or reset.
    pub(crate) fn keep_all(&self) {
        let mut polled = self.polled.lock();
        let mut slots: [Completion; TAKEN] = Default::default();
        while let Ok(taken @ 1..) = self.take(&mut polled, &mut slots) {
            let taken = slots[..taken].iter_mut().map(std::mem::take);
            polled.kept.extend(taken);
        }
    }

    /// Destroys the queue at the library. If the library refuses, the queue stays in use.
    fn end(&self) -> Result<(), VerbError> {
        let was_open = std::mem::take(&mut self.polled.lock().is_open);
        self.notices.drain();
        if let Err(error) = self.cq.destroy() {
            self.polled.lock().is_open = was_open;
            return Err(error);
        }
        let watch = self.watch.lock().take();
        if let Some(watch) = watch {
            watch.stop(self.notices.channel.fd()?);
        }
        self.notices.channel.destroy()
    }

    /// Completes all outstanding requests of a queue pair as flushed. The caller ensures that no further request is posted
    /// to it. `is_of_own_queue` says whether the queue pair has a receive queue of its own, whose receives are flushed too.
    pub(crate) fn flush(&self, qp_num: u32, is_of_own_queue: bool) {
        let mut polled = self.polled.lock();
        let Ok(place) = polled.place_of(qp_num) else {
            return;
        };
        let Polled {
            queue_pairs, kept, ..
        } = &mut *polled;
        let Books {
            sends, receives, ..
        } = &mut queue_pairs[place];
        while let Some(sent) = sends.as_mut().and_then(Retiring::flush) {
            kept.push_back(flushed(qp_num, sent.wr_id, sent.opcode, sent.loan));
        }
        let own = receives.as_ref().filter(|_| is_of_own_queue);
        while let Some(received) = own.and_then(|receives| receives.lock().flush()) {
            kept.push_back(flushed(
                qp_num,
                received.wr_id,
                WcOpcode::Recv,
                received.loan,
            ));
        }
    }

    /// Fills `slots` with completions until they are full or the library has none.
    #[inline(always)]
    fn take(&self, polled: &mut Polled, slots: &mut [Completion]) -> Result<usize, VerbError> {
        let mut filled = polled.release(slots);
        while filled < slots.len() && polled.is_open {
            let mut entries = [const { MaybeUninit::uninit() }; TAKEN];
            let wanted = TAKEN.min(slots.len() - filled);
            // SAFETY: an open queue is alive: it is closed, under this lock, before it is destroyed.
            let entries = match unsafe { self.poller.poll(&mut entries[..wanted]) } {
                Ok(entries) => entries,
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            };
            for entry in entries {
                filled += usize::from(polled.tell(entry, &mut slots[filled]));
            }
            if entries.len() < wanted {
                break;
            }
        }
        filled += polled.release(&mut slots[filled..]);
        Ok(filled)
    }
}

impl DeviceEvents for CompletionQueue {
    fn cq_overrun(&self, cq: ObjectId) {
        self.has_overrun.fetch_or(cq == self.id, Ordering::Relaxed);
    }

    /// Closes the queue: the library is no longer called.
    fn close(&self) {
        self.keep_all();
        self.polled.lock().is_open = false;
    }
}

fn flushed(qp_num: u32, wr_id: u64, opcode: WcOpcode, loan: Loan) -> Completion {
    let mut completion = Completion::default();
    completion.wr_id = wr_id;
    completion.status = WcStatus::WrFlushErr;
    completion.opcode = opcode;
    completion.qp_num = Qpn::new(qp_num);
    set_loan(&mut completion, loan);
    completion
}

impl Polled {
    /// Moves kept completions into `slots`; returns how many.
    #[inline(always)]
    fn hand_out(&mut self, slots: &mut [Completion]) -> usize {
        let mut handed = 0;
        while let Some(slot) = slots.get_mut(handed)
            && let Some(completion) = self.kept.pop_front()
        {
            *slot = completion;
            handed += 1;
        }
        handed
    }

    /// Moves completions that were held back, and whose earlier requests have completed meanwhile, into `slots`; returns
    /// how many.
    #[inline(always)]
    fn release(&mut self, slots: &mut [Completion]) -> usize {
        match self.early.is_empty() {
            true => 0,
            false => self.release_some(slots),
        }
    }

    #[cold]
    fn release_some(&mut self, slots: &mut [Completion]) -> usize {
        let mut released = 0;
        for _ in 0..self.early.len() {
            // An entry that still has to wait is appended again. The loop has a fixed count, so each entry is checked once.
            let Some(entry) = self.early.pop_front() else {
                break;
            };
            match slots.get_mut(released) {
                Some(slot) => released += usize::from(self.tell(&entry, slot)),
                None => self.early.push_back(entry),
            }
        }
        released
    }

    fn place_of(&self, qp_num: u32) -> Result<usize, usize> {
        self.queue_pairs
            .binary_search_by_key(&qp_num, |books| books.qp_num)
    }

    fn books_of(&mut self, qp_num: u32) -> &mut Books {
        let place = self.place_of(qp_num).unwrap_or_else(|place| {
            let books = Books {
                qp_num,
                ..Books::default()
            };
            self.queue_pairs.insert(place, books);
            place
        });
        &mut self.queue_pairs[place]
    }

    /// Returns the outstanding requests of a queue pair. Those of the last completion are tried first, because most
    /// completions are of the same queue pair as the one before.
    #[inline(always)]
    fn find(&mut self, qp_num: u32) -> Option<&mut Books> {
        let is_same = |books: &Books| books.qp_num == qp_num;
        if !self.queue_pairs.get(self.last).is_some_and(is_same) {
            self.last = self.place_of(qp_num).ok()?;
        }
        self.queue_pairs.get_mut(self.last)
    }

    #[inline(always)]
    fn flags(&self, entry: &IbvWc) -> WcFlags {
        let mut flags = WcFlags::from_bits_truncate(entry.wc_flags as u8);
        flags.set(WcFlags::WITH_INV, entry.wc_flags & self.with_inv != 0);
        flags
    }

    /// Writes a completion of the library to `slot`, and returns whether it is for the program. Completions of unsignaled
    /// requests and of queue pairs that were destroyed are not.
    #[inline(always)]
    fn tell(&mut self, entry: &IbvWc, slot: &mut Completion) -> bool {
        let Some(books) = self.find(entry.qp_num) else {
            return self.tell_of_named(entry, slot);
        };
        let status = status_of(entry);
        let told = if is_receive(entry.wr_id) {
            let receives = books.receives.as_ref();
            receives.and_then(|receives| received(receives, entry))
        } else {
            let Some(sends) = &mut books.sends else {
                return false;
            };
            if sends.overtakes(entry.wr_id) {
                self.early.push_back(*entry);
                return false;
            }
            let sent = sends.retire(entry.wr_id, status.is_success());
            sent.map(|sent| (sent.wr_id, sent.opcode, sent.loan))
        };
        self.write(entry, told, slot)
    }

    /// Writes a completion of an XRC shared receive queue to `slot`, and returns whether it is for the program. Used for
    /// queue pairs that do not complete on this queue, because an XRC target may belong to another process.
    #[cold]
    fn tell_of_named(&mut self, entry: &IbvWc, slot: &mut Completion) -> bool {
        let queue = named_queue(entry.wr_id).and_then(|queue| self.named.get(&queue));
        let told = queue.and_then(|receives| received(receives, entry));
        self.write(entry, told, slot)
    }

    #[inline(always)]
    fn write(
        &self,
        entry: &IbvWc,
        told: Option<(u64, WcOpcode, Loan)>,
        slot: &mut Completion,
    ) -> bool {
        let Some((wr_id, opcode, loan)) = told else {
            return false;
        };
        let status = status_of(entry);
        slot.wr_id = wr_id;
        slot.status = status;
        slot.opcode = opcode;
        // For a failed request the library reports only the request and the status.
        (slot.wc_flags, slot.byte_len) = match status.is_success() {
            true => (self.flags(entry), entry.byte_len),
            false => (WcFlags::empty(), 0),
        };
        slot.qp_num = Qpn::new(entry.qp_num);
        slot.src_qp = Qpn::new(entry.src_qp);
        slot.vendor_err = entry.vendor_err;
        slot.slid = entry.slid;
        slot.sl = entry.sl;
        slot.dlid_path_bits = entry.dlid_path_bits;
        slot.pkey_index = entry.pkey_index;
        // The field has immediate data in network byte order, and an invalidated key as a number in host byte order.
        slot.imm_data = match slot.wc_flags.contains(WcFlags::WITH_INV) {
            true => entry.imm_data.to_be_bytes(),
            false => entry.imm_data.to_ne_bytes(),
        };
        set_loan(slot, loan);
        true
    }
}

#[inline(always)]
fn status_of(entry: &IbvWc) -> WcStatus {
    u8::try_from(entry.status).map_or(WcStatus::GeneralErr, WcStatus::from_code)
}

/// Retires the receive that has completed, and returns its `wr_id`, its opcode and its buffers.
#[inline(always)]
fn received(receives: &SpinLock<Receives>, entry: &IbvWc) -> Option<(u64, WcOpcode, Loan)> {
    const RECV_RDMA_WITH_IMM: i32 = 129;
    let received = receives.lock().retire(entry.wr_id)?;
    let opcode = match entry.opcode {
        RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
        _ => WcOpcode::Recv,
    };
    Some((received.wr_id, opcode, received.loan))
}

impl CqOps for CompletionQueue {
    fn cqe(&self) -> u32 {
        self.cq.cqe().unwrap_or(0)
    }

    #[inline]
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let mut polled = self.polled.lock();
        let kept = polled.hand_out(completions);
        match self.take(&mut polled, &mut completions[kept..]) {
            // Completions from before the overrun are still reported first.
            Ok(0)
                if kept == 0
                    && !completions.is_empty()
                    && self.has_overrun.load(Ordering::Relaxed) =>
            {
                Err(VerbError::CqOverrun)
            }
            Ok(taken) => Ok(kept + taken),
            Err(_) if kept > 0 => Ok(kept),
            Err(error) => {
                let is_overrun = error == VerbError::CqOverrun;
                self.has_overrun.fetch_or(is_overrun, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        if self.notices.has_come.load(Ordering::Acquire) {
            self.notices.drain();
        }
        let mut polled = self.polled.lock();
        if polled.is_open {
            // SAFETY: an open queue is alive.
            unsafe { self.poller.req_notify(notify == Notify::Solicited)? };
        }
        // Arming does not report whether a completion is already there; only a poll does.
        if polled.kept.is_empty() {
            let mut slot = [Completion::default()];
            if self.take(&mut polled, &mut slot)? > 0 {
                polled.kept.extend(slot);
            }
        }
        Ok(!polled.kept.is_empty())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.notices.channel.fd().ok()
    }

    fn drain(&self) {
        self.notices.drain();
    }

    fn resize(&self, cqe: u32, reply: Reply<u32>) {
        if self.has_overrun.load(Ordering::Relaxed) {
            return reply.send(Err(VerbError::CqOverrun));
        }
        let cq = Arc::clone(&self.cq);
        self.context.start(reply, move || {
            cq.resize(cqe)?;
            cq.cqe()
        });
    }

    fn destroy(&self, reply: Reply<()>) {
        let me = Weak::clone(&self.me);
        self.context.destroy(reply, move || {
            let queue = me.upgrade().ok_or(VerbError::Canceled)?;
            queue.end()
        });
    }
}
