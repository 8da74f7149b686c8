//! The verbs that return names of constants, and those that convert static rates.

use std::ffi::{CStr, c_char, c_int};

fn text(texts: &[&'static CStr], code: c_int, unknown: &'static CStr) -> *const c_char {
    let found = usize::try_from(code).ok().and_then(|code| texts.get(code));
    found.copied().unwrap_or(unknown).as_ptr()
}

/// Implements `ibv_node_type_str`.
pub extern "C-unwind" fn node_type_str(node_type: c_int) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    text(TEXTS, node_type, c"unknown")
}

/// Implements `ibv_port_state_str`.
pub extern "C-unwind" fn port_state_str(state: c_int) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    text(TEXTS, state, c"unknown")
}

/// Implements `ibv_event_type_str`.
pub extern "C-unwind" fn event_type_str(event: c_int) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    text(TEXTS, event, c"unknown")
}

/// Implements `ibv_wc_status_str`.
pub extern "C-unwind" fn wc_status_str(status: c_int) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory bind operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    text(TEXTS, status, c"unknown")
}

/// Implements `ibv_wr_opcode_str`.
pub extern "C-unwind" fn wr_opcode_str(opcode: c_int) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    text(TEXTS, opcode, c"unknown")
}

// The codes of `enum ibv_rate`, each with its rate in Mb/s.
const RATES: [(c_int, c_int); 23] = [
    (2, 2_500),
    (5, 5_000),
    (3, 10_000),
    (6, 20_000),
    (4, 30_000),
    (7, 40_000),
    (8, 60_000),
    (9, 80_000),
    (10, 120_000),
    (11, 14_062),
    (12, 56_250),
    (13, 112_500),
    (14, 168_750),
    (15, 25_781),
    (16, 103_125),
    (17, 206_250),
    (18, 309_375),
    (19, 28_125),
    (20, 53_125),
    (21, 425_000),
    (22, 637_500),
    (23, 850_000),
    (24, 1_275_000),
];

const SINGLE: c_int = 2_500;

/// Implements `ibv_rate_to_mbps`.
pub extern "C-unwind" fn rate_to_mbps(rate: c_int) -> c_int {
    let known = RATES.iter().find(|(code, _)| *code == rate);
    known.map_or(-1, |&(_, mbps)| mbps)
}

/// Implements `mbps_to_ibv_rate`.
pub extern "C-unwind" fn mbps_to_rate(mbps: c_int) -> c_int {
    let known = RATES.iter().find(|(_, known)| *known == mbps);
    known.map_or(0, |&(code, _)| code)
}

/// Implements `ibv_rate_to_mult`: returns the rate as a multiple of 2.5 Gb/s, or -1 if it is not a multiple.
pub extern "C-unwind" fn rate_to_mult(rate: c_int) -> c_int {
    match rate_to_mbps(rate) {
        mbps if mbps > 0 && mbps % SINGLE == 0 => mbps / SINGLE,
        _ => -1,
    }
}

/// Implements `mult_to_ibv_rate`.
pub extern "C-unwind" fn mult_to_rate(mult: c_int) -> c_int {
    mult.checked_mul(SINGLE)
        .map_or(0, |mbps| mbps_to_rate(mbps))
}
