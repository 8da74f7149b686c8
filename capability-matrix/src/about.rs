//! A short description of each row, for readers who do not know its name.

/// The description of a QP type, operation, feature, gap or limit with this name; empty for an unknown name.
pub(crate) fn about(name: &str) -> &'static str {
    let found = ABOUT.iter().find(|(known, _)| *known == name);
    found.map_or("", |(_, about)| about)
}

const ABOUT: &[(&str, &str)] = &[
    // Services.
    (
        "RC",
        "reliable connection: everything arrives once and in order",
    ),
    ("UC", "unreliable connection: a lost message stays lost"),
    ("UD", "unreliable datagrams, to any peer and to groups"),
    // Operations.
    ("WRITE", "octets into remote memory"),
    (
        "WRITE_WITH_IMM",
        "a write, then four octets that complete a receive",
    ),
    ("SEND", "a message into the peer's next receive"),
    ("SEND_WITH_IMM", "a message with four octets beside it"),
    ("READ", "octets from remote memory"),
    ("ATOMIC_CMP_AND_SWP", "compare and swap eight remote octets"),
    ("ATOMIC_FETCH_AND_ADD", "add to eight remote octets"),
    ("LOCAL_INV", "end one's own key"),
    ("BIND_MW", "bind a memory window"),
    ("SEND_WITH_INV", "a message that ends a key of its receiver"),
    ("READ_WITH_INV", "a read that ends the key of its sink"),
    ("FAST_REGISTER", "register memory with a work request"),
    ("FLUSH", "earlier writes become visible or persistent"),
    ("ATOMIC_WRITE", "eight octets written at once"),
    // Features.
    ("BMME", "fast-register, invalidate, send-with-invalidate"),
    (
        "LOCAL_INVALIDATE_FENCE",
        "a local invalidate can wait for earlier reads",
    ),
    ("WINDOW_1", "windows bound by a verb"),
    (
        "WINDOW_2A",
        "windows bound by request, checked by queue pair",
    ),
    (
        "WINDOW_2B",
        "windows bound by request, checked by queue pair and domain",
    ),
    (
        "READ_WITH_INVALIDATE",
        "a read ends the key of its sink by itself",
    ),
    (
        "ZBVA",
        "addresses of a region or window may count from zero",
    ),
    ("BLOCK_LIST", "fast-register of blocks of any one size"),
    ("SG_GAPS", "fast-register of pieces of any sizes, with gaps"),
    ("SRQ", "queue pairs share a receive queue"),
    ("MULTICAST", "datagrams to groups"),
    (
        "COMPLETION_COUNTERS",
        "completions are counted, successes and errors apart",
    ),
    ("ON_DEMAND", "registered memory need not be resident"),
    // Gaps.
    ("NO_UD", "no unreliable datagrams"),
    ("NO_UC", "no unreliable connections"),
    ("NO_SEND_WITH_IMMEDIATE", "a send carries no immediate data"),
    (
        "NO_WRITE_WITH_IMMEDIATE",
        "a write is followed by no immediate data",
    ),
    ("NO_ATOMICS", "no compare-and-swap, no fetch-and-add"),
    (
        "READ_SINK_NEEDS_REMOTE_WRITE",
        "the sink of a read is writable by the peer meanwhile",
    ),
    (
        "NO_RNR_RETRY",
        "a message that finds no receive ends the connection",
    ),
    (
        "NO_BMME",
        "base memory management is demanded, and its emulation not linked",
    ),
    (
        "NO_LOCAL_INVALIDATE_FENCE",
        "the fence is demanded, and its emulation not linked",
    ),
    (
        "NO_WINDOW_2B",
        "2B windows are demanded, and their emulation not linked",
    ),
    (
        "NO_ZBVA",
        "zero-based addresses are demanded, and their emulation not linked",
    ),
    (
        "NO_READ_WITH_INVALIDATE",
        "read-with-invalidate is demanded, and its emulation not linked",
    ),
    ("NO_REREG_MR", "a region cannot be changed"),
    ("NO_RESIZE_CQ", "a completion queue keeps its size"),
    ("NO_RC", "no reliable connections"),
    (
        "NO_MODIFY_TO_RTR",
        "a queue pair is ready when its peer connects, not before",
    ),
    // Limits.
    ("max_qp", "queue pairs"),
    ("max_qp_wr", "requests outstanding on a queue"),
    ("max_send_sge", "entries of a send-queue request"),
    ("max_recv_sge", "entries of a receive"),
    ("max_sge_rd", "entries of a read"),
    ("max_inline_data", "octets that travel in a request"),
    ("max_msg_sz", "octets of a message"),
    ("max_cq", "completion queues"),
    ("max_cqe", "entries of a completion queue"),
    ("num_comp_vectors", "completion vectors"),
    ("max_mr", "memory regions and keys"),
    ("max_mr_size", "octets of a memory region"),
    ("max_mw", "memory windows"),
    ("max_pd", "protection domains"),
    ("max_ah", "address handles"),
    ("max_srq", "shared receive queues"),
    ("max_srq_wr", "receives on a shared queue"),
    ("max_srq_sge", "entries of a receive there"),
    ("max_qp_rd_atom", "reads and atomics served at one time"),
    ("max_qp_init_rd_atom", "reads and atomics outstanding"),
    (
        "max_res_rd_atom",
        "reads and atomics served at one time, over all queue pairs",
    ),
    ("max_fast_reg_page_list_len", "pages of a fast-register"),
    ("page_size_cap", "page sizes, bit n for 2^n octets"),
    ("max_mcast_grp", "multicast groups"),
    ("max_mcast_qp_attach", "queue pairs in a group"),
    ("max_comp_cntr", "completion counters"),
    ("phys_port_cnt", "ports"),
    (
        "local_ca_ack_delay",
        "delay before an acknowledge, 4.096 µs x 2^n",
    ),
    // Atomic scope.
    ("atomic_cap", "with respect to whom atomics are atomic"),
    ("masked_atomic_cap", "the same of masked atomics"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use polyverbs::{Features, Limit, Operations, capability::BaselineGaps};

    #[test]
    fn every_row_says_what_it_is() {
        let names = (Features::all().iter_names().map(|(name, _)| name))
            .chain(BaselineGaps::all().iter_names().map(|(name, _)| name))
            .chain(Operations::all().iter_names().map(|(name, _)| name))
            .chain(Limit::ALL.iter().map(|limit| limit.name()));
        let silent: Vec<_> = names.filter(|name| about(name).is_empty()).collect();
        assert!(silent.is_empty(), "{silent:?}");
    }
}
