//! Completion queues.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use polyverbs_abi::{IbvCq, IbvWc};
use verbs_api::completion::{Completion, Notify, WcFlags, WcOpcode, WcStatus};
use verbs_api::ids::Qpn;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{CqOps, Reply};
use verbs_api::{VerbError, memory::Loan};

use crate::context::{Context, lock};
use crate::outstanding::{Receives, Sends, is_receive, set_loan};
use crate::verbs::{Live, Zero as _};

/// Entries that are taken from the library at a time.
const TAKEN: usize = 16;

/// What a queue pair has outstanding.
pub(crate) struct Outstanding {
    pub(crate) sends: Mutex<Sends>,
    /// Its own, or those of its shared receive queue.
    pub(crate) receives: Arc<Mutex<Receives>>,
}

pub(crate) struct CompletionQueue {
    pub(crate) cq: Arc<Live<IbvCq>>,
    id: ObjectId,
    context: Arc<Context>,
    fetched: Mutex<Fetched>,
}

struct Fetched {
    queue_pairs: HashMap<u32, Arc<Outstanding>>,
    /// Taken from the library before the program asked for them.
    kept: VecDeque<Completion>,
}

impl CompletionQueue {
    pub(crate) fn new(context: Arc<Context>, id: ObjectId, cq: Live<IbvCq>) -> Arc<Self> {
        Arc::new(Self {
            cq: Arc::new(cq),
            id,
            context,
            fetched: Mutex::new(Fetched {
                queue_pairs: HashMap::new(),
                // Arming allocates nothing: it keeps one at most.
                kept: VecDeque::with_capacity(1),
            }),
        })
    }

    /// Requests of this queue pair complete here.
    pub(crate) fn add(&self, qp_num: u32, outstanding: &Arc<Outstanding>) {
        let mut fetched = lock(&self.fetched);
        fetched.queue_pairs.insert(qp_num, Arc::clone(outstanding));
    }

    pub(crate) fn remove(&self, qp_num: u32) {
        let removed = lock(&self.fetched).queue_pairs.remove(&qp_num);
        drop(removed);
    }

    /// Keeps what has completed: the library drops it with its queue pair.
    pub(crate) fn keep_all(&self) {
        let mut fetched = lock(&self.fetched);
        let mut slots: [Completion; TAKEN] = Default::default();
        while let Ok(taken @ 1..) = self.take(&fetched, &mut slots) {
            let taken = slots[..taken].iter_mut().map(std::mem::take);
            fetched.kept.extend(taken);
        }
    }

    /// Fills `slots` with what the library has, until it has no more.
    fn take(&self, fetched: &Fetched, slots: &mut [Completion]) -> Result<usize, VerbError> {
        let mut filled = 0;
        while filled < slots.len() {
            let mut entries: [IbvWc; TAKEN] = std::array::from_fn(|_| IbvWc::zero());
            let wanted = TAKEN.min(slots.len() - filled);
            let polled = match self.cq.poll(&mut entries[..wanted]) {
                Ok(polled) => polled,
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            };
            for entry in &entries[..polled] {
                if let Some(completion) = fetched.completion(entry) {
                    slots[filled] = completion;
                    filled += 1;
                }
            }
            if polled < wanted {
                break;
            }
        }
        Ok(filled)
    }
}

impl Fetched {
    /// `None` where the program is not told: of a queue pair that is no more, or of a request that completes unseen.
    fn completion(&self, entry: &IbvWc) -> Option<Completion> {
        let outstanding = self.queue_pairs.get(&entry.qp_num)?;
        let status = u8::try_from(entry.status).map_or(WcStatus::GeneralErr, WcStatus::from_code);
        if is_receive(entry.wr_id) {
            let received = lock(&outstanding.receives).retire(entry.wr_id)?;
            let opcode = WcOpcode::from_code(match entry.opcode {
                RECV_RDMA_WITH_IMM => RECV_RDMA_WITH_IMM as u8,
                _ => WcOpcode::Recv.code(),
            });
            return Some(told(entry, status, received.wr_id, opcode, received.loan));
        }
        let retired = lock(&outstanding.sends).retire(entry.wr_id, status.is_success())?;
        Some(told(
            entry,
            status,
            retired.wr_id,
            retired.opcode,
            retired.loan,
        ))
    }
}

const RECV_RDMA_WITH_IMM: i32 = 129;

fn told(entry: &IbvWc, status: WcStatus, wr_id: u64, opcode: WcOpcode, loan: Loan) -> Completion {
    let wc_flags = WcFlags::from_bits_truncate(entry.wc_flags as u8);
    let mut completion = Completion::default();
    completion.wr_id = wr_id;
    completion.status = status;
    completion.opcode = opcode;
    completion.wc_flags = wc_flags;
    completion.byte_len = entry.byte_len;
    completion.qp_num = Qpn::new(entry.qp_num);
    completion.src_qp = Qpn::new(entry.src_qp);
    completion.vendor_err = entry.vendor_err;
    completion.slid = entry.slid;
    completion.sl = entry.sl;
    completion.dlid_path_bits = entry.dlid_path_bits;
    completion.pkey_index = entry.pkey_index;
    // Immediate data lies there as it travelled, an invalidated key as a number.
    completion.imm_data = match wc_flags.contains(WcFlags::WITH_INV) {
        true => entry.imm_data.to_be_bytes(),
        false => entry.imm_data.to_ne_bytes(),
    };
    set_loan(&mut completion, loan);
    completion
}

impl CqOps for CompletionQueue {
    fn cqe(&self) -> u32 {
        self.cq.cqe().unwrap_or(0)
    }

    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let mut fetched = lock(&self.fetched);
        let kept = completions.len().min(fetched.kept.len());
        for (slot, completion) in completions.iter_mut().zip(fetched.kept.drain(..kept)) {
            *slot = completion;
        }
        match self.take(&fetched, &mut completions[kept..]) {
            Ok(taken) => Ok(kept + taken),
            Err(_) if kept > 0 => Ok(kept),
            Err(error) => Err(error),
        }
    }

    fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        self.cq.req_notify(notify == Notify::Solicited)?;
        // The library does not say whether something is there: only a poll does.
        let mut fetched = lock(&self.fetched);
        if fetched.kept.is_empty() {
            let mut slot = [Completion::default()];
            if self.take(&fetched, &mut slot)? > 0 {
                fetched.kept.extend(slot);
            }
        }
        Ok(!fetched.kept.is_empty())
    }

    fn resize(&self, cqe: u32, reply: Reply<u32>) {
        let cq = Arc::clone(&self.cq);
        self.context.start(reply, move || {
            cq.resize(cqe)?;
            cq.cqe()
        });
    }

    fn destroy(&self, reply: Reply<()>) {
        let (cq, id, context) = (Arc::clone(&self.cq), self.id, Arc::clone(&self.context));
        self.context.start(reply, move || {
            cq.destroy()?;
            context.forget_sink(id);
            Ok(())
        });
    }
}
