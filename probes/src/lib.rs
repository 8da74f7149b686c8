//! The features of the core, and the conformance probes that prove them.
//!
//! An extension has its own features and probes. This crate lists, in the same form, those of the [baseline](Baseline),
//! which every device has unless it lists a gap, and of the opt-in bits that belong to no extension.
#![forbid(unsafe_code)]

mod connections;
mod datagrams;
mod memory;
mod queues;

use verbs_api::capability::{Baseline, FeatureInfo};
use verbs_api::extension::feature;
use verbs_api::probe::{Evidence, Outcome, Pair, Probe, Rig};
use verbs_api::qp::QpType;
use verbs_api::{Access, Completion, Features, PathOptions, WcStatus};

macro_rules! features {
    ($($name:ident = $set:ident::$bit:ident, $about:expr;)*) => {
        $(const $name: FeatureInfo = feature!($set::$bit, $about);)*

        /// The features of the core: what every device supports unless it lists a gap, and the opt-in bits that no
        /// extension emulates.
        pub static CORE_FEATURES: &[FeatureInfo] = &[$($name),*];
    };
}

features! {
    RC = Baseline::RC, "reliable connection: everything arrives once and in order";
    UC = Baseline::UC, "unreliable connection: a lost message stays lost";
    UD = Baseline::UD, "unreliable datagrams, to any peer";
    SEND = Baseline::SEND, "a message into the peer's next receive";
    SEND_WITH_IMM = Baseline::SEND_WITH_IMM, "a message with four bytes of immediate data";
    WRITE = Baseline::WRITE, "bytes into remote memory";
    WRITE_WITH_IMM = Baseline::WRITE_WITH_IMM, "a write, then four bytes that complete a receive";
    READ = Baseline::READ, "bytes from remote memory";
    LOCAL_READ_SINK = Baseline::LOCAL_READ_SINK, "the sink of a read is closed to peers meanwhile";
    ATOMICS = Baseline::ATOMICS, "compare-and-swap and fetch-and-add on eight bytes";
    INLINE = Baseline::INLINE, "bytes copied while posting, free for reuse at once";
    RNR_RETRY = Baseline::RNR_RETRY, "a message that finds no receive is tried again";
    REGIONS = Baseline::REGIONS, "memory behind keys, with rights, bounds and a domain";
    REREG_MR = Baseline::REREG_MR, "a region's memory, rights or domain can be changed";
    RESIZE_CQ = Baseline::RESIZE_CQ, "a completion queue keeps what it holds when resized";
    SRQ = Features::SRQ, "queue pairs share a receive queue";
    COMPLETION_COUNTERS = Features::COMPLETION_COUNTERS, "completions are counted, successes and errors apart";
    MULTICAST = Features::MULTICAST, "datagrams to groups";
    ATOMIC_WRITE = Features::ATOMIC_WRITE, "eight bytes written at once";
    FLUSH = Features::FLUSH, "earlier writes become visible or persistent";
}

macro_rules! probes {
    ($($feature:ident: $id:literal $rule:literal $about:literal => $run:path $(, or $lacking:path)?;)*) => {
        /// The probes of the core's features.
        pub static CORE_PROBES: &[Probe] = &[
            $(Probe::new(&$feature, concat!("core.", $id), $rule, $about, $run)$(.lacking($lacking))?),*
        ];
    };
}

probes! {
    RC: "rc-order" "3.27" "messages arrive once, in order, each with its completion" => connections::rc_order;
    RC: "rc-flush" "3.29" "the first error is told, and what follows is flushed" => connections::rc_flush;
    RC: "rc-peer-gone" "3.61" "a peer that is gone is noticed, and seven retries are seven" => connections::rc_peer_gone;
    RC: "rc-large" "3.34" "a message of several packets arrives whole" => connections::rc_large;
    UC: "uc-large" "3.20" "a message of several packets arrives whole" => connections::uc;
    UC: "uc-is-no-rc" "3.20" "no reads, and what is lost harms nobody" => connections::uc_is_no_rc;
    UD: "ud" "3.33" "a datagram follows 40 bytes of header, and its completion has the sender's QPN" => datagrams::arrives;
    UD: "ud-qkey" "3.55" "a wrong Q_Key is dropped" => datagrams::wrong_qkey;
    UD: "ud-no-room" "3.55" "without a receive that holds it a datagram is lost" => datagrams::no_room;
    SEND: "send-scattered" "3.34" "a message is gathered, and scattered again" => connections::send_scattered;
    SEND: "send-too-long" "3.50" "a message longer than its receive fails on both sides" => connections::send_too_long;
    SEND_WITH_IMM: "send-imm" "3.35" "the four bytes arrive with the message" => connections::send_immediate;
    WRITE: "write" "3.20" "a write changes its bytes and no others, and consumes no receive" => connections::write_lands;
    WRITE: "write-nothing" "2.08" "the key of a write of no bytes is not checked" => connections::write_nothing;
    WRITE: "write-queue-pair" "3.45" "a queue pair that takes no writes refuses them" => connections::write_queue_pair;
    WRITE_WITH_IMM: "write-imm" "3.35" "the receive completes when the write has landed" => connections::write_immediate;
    READ: "read" "3.20" "a read of several packets brings its bytes and no others" => connections::read;
    READ: "read-queue-pair" "3.45" "a queue pair that takes no reads refuses them" => connections::read_queue_pair;
    READ: "read-behind-write" "3.72" "a read sees what was written before it" => connections::read_sees_writes;
    LOCAL_READ_SINK: "local-read-sink" "2.60" "a sink with local rights only takes a read" => connections::local_sink, or connections::local_sink_refused;
    ATOMICS: "fetch-add" "3.31" "fetch-and-add brings the original, and adds modulo 2^64" => memory::fetch_add;
    ATOMICS: "compare-swap" "3.31" "compare-and-swap swaps what is equal, and nothing else" => memory::compare_swap;
    ATOMICS: "atomic-alignment" "3.31" "eight bytes that are not aligned are refused untouched" => memory::atomic_alignment;
    ATOMICS: "atomic-rights" "2.05" "the right to operate atomically is one of its own" => memory::atomic_rights;
    INLINE: "inline" "2.12" "inline bytes are copied when the request is posted" => connections::inline;
    INLINE: "inline-too-long" "2.12" "more inline bytes than max_inline_data are refused" => connections::inline_too_long;
    RNR_RETRY: "rnr" "3.51" "a send waits for its receive" => connections::rnr, or connections::no_rnr;
    REGIONS: "key-bounds" "2.06" "a key grants access to its bytes and to none around them" => memory::bounds;
    REGIONS: "key-rights" "2.05" "every right is asked for" => memory::rights;
    REGIONS: "key-legal-rights" "2.04" "peers that write need local write as well" => memory::legal_rights;
    REGIONS: "key-domain" "2.07" "a key answers its own domain only" => memory::domain;
    REGIONS: "key-dead" "2.03" "the key of a region that is gone stays dead" => memory::dead_key;
    REGIONS: "key-none" "2.02" "without rights for peers no key opens anything" => memory::no_key;
    REREG_MR: "rereg-rights" "2.15" "rights change at once, and a refused change changes nothing" => memory::rereg_rights;
    REREG_MR: "rereg-domain" "2.15" "a region moves to another domain" => memory::rereg_domain;
    REREG_MR: "rereg-memory" "2.15" "a region gets other memory" => memory::rereg_memory;
    RESIZE_CQ: "resize-cq" "3.89" "what waits is kept, and too small a size refused" => queues::resize_cq;
    SRQ: "srq-shared" "3.80" "each message takes the next receive of the queue" => queues::srq_shared;
    SRQ: "srq-limit" "3.81" "the limit is told once, when receives fall below it" => queues::srq_limit;
    SRQ: "srq-domain" "2.07" "receives are checked against the domain of the queue" => queues::srq_domain;
    SRQ: "srq-survives" "3.84" "what was not taken serves another queue pair" => queues::srq_survives;
    COMPLETION_COUNTERS: "counters-count" "rdma-core 65" "what completes is counted, also without a completion of its own" => queues::counters_count;
    COMPLETION_COUNTERS: "counters-errors" "rdma-core 65" "what fails or is flushed is counted apart" => queues::counters_errors;
    COMPLETION_COUNTERS: "counters-attach" "rdma-core 65" "one counter for each operation, until the queue pair ends" => queues::counters_attach;
    MULTICAST: "multicast" "4.45" "each member of a group gets a copy, and nobody else" => datagrams::members;
    MULTICAST: "multicast-attach" "4.44" "groups only, members only, and they hold their queue pair" => datagrams::attachments;
    MULTICAST: "multicast-datagrams" "4.44" "connected queue pairs join no group" => datagrams::datagrams_only;
    ATOMIC_WRITE: "atomic-write" "IBTA 1.5" "eight bytes are written, and none after them" => memory::atomic_write;
    ATOMIC_WRITE: "atomic-write-alignment" "IBTA 1.5" "eight bytes that are not aligned are refused untouched" => memory::atomic_write_alignment;
    FLUSH: "flush" "IBTA 1.5" "a flush ends when earlier writes are visible" => memory::flush;
    FLUSH: "flush-rights" "2.05" "each kind of flush is a right of its own" => memory::flush_rights;
}

/// Fills the scratch memory of the near end with a pattern that differs from byte to byte, so that misplaced bytes are
/// noticed.
fn filled(rig: &Rig) -> Outcome {
    rig.scratch.fill(0x3c)
}

/// A new pair of connected RC QPs, each of which grants this access to its peer.
fn fresh(rig: &Rig, access: Access) -> Result<Pair, Evidence> {
    rig.connected_with(
        rig.near.side(QpType::Rc)?,
        rig.far.side(QpType::Rc)?,
        PathOptions::new().access(access),
    )
}

fn statuses(done: &[Completion]) -> Vec<(u64, WcStatus)> {
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}
