//! Probes that verify each bit: edge cases more than ordinary use.

mod invalidate;
mod lists;
mod register;
mod windows;

use verbs_api::probe::{Evidence, Fast, Pair, Probe, Rig};
use verbs_api::{Access, extension::FeatureInfo};

use crate::{
    BLOCK_LIST, BMME, FENCE, READ_WITH_INVALIDATE, SG_GAPS, WINDOW_1, WINDOW_2A, WINDOW_2B, ZBVA,
};

/// The rights for remote read and write.
const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

/// Fast-registers memory of the far side through the far queue pair of `pair`, with remote access and so that windows can
/// be bound to it.
fn registered(rig: &Rig, pair: &Pair) -> Result<Fast, Evidence> {
    let fast = rig.far.fast(8192)?;
    fast.fill(0x5a)?;
    rig.succeeds(&pair.far, fast.register(OPEN | Access::MW_BIND))?;
    Ok(fast)
}

const WITH_BMME: &[FeatureInfo] = &[BMME];

/// The probes of the extension.
pub static PROBES: &[Probe] = &[
    // BMME
    Probe::new(
        &BMME,
        "bmme.fresh-key",
        "2.20",
        "a fresh key opens nothing, locally or from afar",
        register::fresh_key,
    ),
    Probe::new(
        &BMME,
        "bmme.register-and-use",
        "2.23",
        "a request behind a registration in one list may use the key",
        register::one_list,
    ),
    Probe::new(
        &BMME,
        "bmme.register-twice",
        "2.21",
        "a key must be free to be registered",
        register::twice,
    ),
    Probe::new(
        &BMME,
        "bmme.register-elsewhere",
        "2.21",
        "a key is registered through a queue pair of its own domain",
        register::foreign_domain,
    ),
    Probe::new(
        &BMME,
        "bmme.wrong-index",
        "2.22",
        "only the low byte of a key may be changed",
        register::wrong_index,
    ),
    Probe::new(
        &BMME,
        "bmme.low-byte",
        "1.19",
        "the low byte is the program's, and the earlier key dies",
        register::low_byte,
    ),
    Probe::new(
        &BMME,
        "bmme.depth",
        "1.14",
        "a key maps no more than it was allocated for, and is allocated for no more than the limit",
        register::depth,
    ),
    Probe::new(
        &BMME,
        "bmme.rights",
        "2.05",
        "every right is asked for",
        register::rights,
    ),
    Probe::new(
        &BMME,
        "bmme.bounds",
        "2.06",
        "only the bytes that were named are registered",
        register::bounds,
    ),
    Probe::new(
        &BMME,
        "bmme.completions",
        "2.29",
        "local operations complete in posting order, with their own opcodes",
        register::completions,
    ),
    Probe::new(
        &BMME,
        "bmme.stale-key",
        "2.26",
        "an invalidated key opens nothing, and can be registered again",
        invalidate::stale_key,
    ),
    Probe::new(
        &BMME,
        "bmme.stale-byte",
        "2.28",
        "a wrong key byte invalidates nothing",
        invalidate::stale_byte,
    ),
    Probe::new(
        &BMME,
        "bmme.no-such-key",
        "2.26",
        "what is no allocated key cannot be invalidated",
        invalidate::no_such_key,
    ),
    Probe::new(
        &BMME,
        "bmme.send-inv",
        "2.63",
        "send-with-invalidate frees the key before its receive completes",
        invalidate::send,
    ),
    Probe::new(
        &BMME,
        "bmme.send-inv-no-receive",
        "2.63",
        "send-with-invalidate touches no key before it has a receive",
        invalidate::send_without_receive,
    ),
    Probe::new(
        &BMME,
        "bmme.send-inv-refused",
        "2.64",
        "a peer invalidates neither ordinary regions nor stale, free or local keys",
        invalidate::send_refused,
    ),
    Probe::new(
        &BMME,
        "bmme.send-inv-domain",
        "2.64",
        "a peer invalidates no key of another domain",
        invalidate::send_foreign_domain,
    ),
    // LOCAL_INVALIDATE_FENCE
    Probe::new(
        &FENCE,
        "bmme.fence",
        "2.24",
        "a fenced invalidate waits for the read into its key",
        invalidate::fenced,
    )
    .needs(WITH_BMME),
    Probe::new(
        &FENCE,
        "bmme.fence-all",
        "2.25",
        "a fenced invalidate waits for every earlier read",
        invalidate::fenced_all,
    )
    .needs(WITH_BMME),
    // READ_WITH_INVALIDATE
    Probe::new(
        &READ_WITH_INVALIDATE,
        "bmme.read-inv",
        "2.62",
        "the sink's key is free when the read has completed",
        invalidate::read,
    )
    .needs(WITH_BMME),
    Probe::new(
        &READ_WITH_INVALIDATE,
        "bmme.read-inv-ordinary",
        "2.62",
        "a sink that cannot be invalidated fails the read",
        invalidate::read_ordinary,
    )
    .needs(WITH_BMME),
    // WINDOW_1
    Probe::new(
        &WINDOW_1,
        "bmme.window-1",
        "2.40",
        "a type-1 window is bound, bound again and unbound, with a fresh key each time",
        windows::type_1_life,
    ),
    Probe::new(
        &WINDOW_1,
        "bmme.window-1-domain",
        "2.41",
        "a type-1 window answers every queue pair of its domain and no other",
        windows::type_1_domain,
    ),
    Probe::new(
        &WINDOW_1,
        "bmme.window-1-bounds",
        "2.52",
        "a type-1 window keeps its own bounds",
        windows::type_1_bounds,
    ),
    Probe::new(
        &WINDOW_1,
        "bmme.window-1-local-inv",
        "2.50",
        "a type-1 window cannot be invalidated",
        windows::type_1_invalidate,
    )
    .needs(WITH_BMME),
    // WINDOW_2A and WINDOW_2B: first what they have in common, then how they differ.
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a",
        "2.42",
        "a type-2 window must be free to be bound",
        windows::type_2_life,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-bounds",
        "2.52",
        "a window keeps its own bounds",
        windows::type_2_bounds,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-rights",
        "2.44",
        "a window has its own rights, and the region need have none for peers",
        windows::type_2_rights,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-queue-pair",
        "2.43",
        "a type-2 window answers its own queue pair only",
        windows::type_2_queue_pair,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-key",
        "2.47",
        "a type-2 window takes its key byte from the request",
        windows::type_2_key,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-invalidate",
        "2.51",
        "its own queue pair and its peer's messages invalidate a type-2 window, and no other queue pair",
        windows::type_2_invalidate,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-region",
        "2.27",
        "a region with a window bound to it stays",
        windows::type_2_region,
    )
    .needs(WITH_BMME)
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2A,
        "bmme.window-2a-gone",
        "2.54",
        "a window dies with its queue pair",
        windows::type_2_gone,
    )
    .or_else(&WINDOW_2B),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b",
        "2.42",
        "a type-2 window must be free to be bound",
        windows::type_2_life,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-bounds",
        "2.52",
        "a window keeps its own bounds",
        windows::type_2_bounds,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-rights",
        "2.44",
        "a window has its own rights, and the region need have none for peers",
        windows::type_2_rights,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-queue-pair",
        "2.43",
        "a type-2 window answers its own queue pair only",
        windows::type_2_queue_pair,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-key",
        "2.47",
        "a type-2 window takes its key byte from the request",
        windows::type_2_key,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-invalidate",
        "2.51",
        "its own queue pair and its peer's messages invalidate a type-2 window, and no other queue pair",
        windows::type_2_invalidate,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-region",
        "2.27",
        "a region with a window bound to it stays",
        windows::type_2_region,
    )
    .needs(WITH_BMME)
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-gone",
        "2.54",
        "a window dies with its queue pair",
        windows::type_2_gone,
    )
    .or_else(&WINDOW_2A),
    Probe::new(
        &WINDOW_2B,
        "bmme.window-2b-domain",
        "2.44",
        "a bind asks for one domain",
        windows::type_2_domain,
    )
    .or_else(&WINDOW_2A),
    // ZBVA
    Probe::new(
        &ZBVA,
        "bmme.zero-based-region",
        "2.66",
        "a zero-based region counts from its first byte, and ends with its last",
        lists::zero_based_region,
    ),
    Probe::new(
        &ZBVA,
        "bmme.zero-based-offset",
        "2.67",
        "a zero-based registration keeps the offset in its first page",
        lists::zero_based_offset,
    )
    .needs(WITH_BMME),
    Probe::new(
        &ZBVA,
        "bmme.zero-based-window",
        "2.53",
        "a zero-based window counts from its own first byte",
        windows::zero_based,
    ),
    // BLOCK_LIST and SG_GAPS
    Probe::new(
        &BLOCK_LIST,
        "bmme.blocks",
        "2.33",
        "blocks of any size are found by division",
        lists::blocks,
    )
    .needs(WITH_BMME),
    Probe::new(
        &SG_GAPS,
        "bmme.gaps",
        "2.32",
        "a list with gaps maps each element whole",
        lists::gaps,
    )
    .needs(WITH_BMME),
    Probe::new(
        &SG_GAPS,
        "bmme.gaps-window",
        "2.52",
        "a window opens a stretch of a list with gaps",
        lists::gaps_window,
    )
    .needs(WITH_BMME),
];
