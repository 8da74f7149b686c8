//! Probes that verify the feature: the vectors of RFC 7306's arithmetic, and the rules of atomics.

use verbs_api::probe::{Evidence, Outcome, Pair, Probe, Region, Rig};
use verbs_api::{
    Access, Completion, Features, MrOptions, QpOptions, RemoteAddress, Transport, WcStatus,
    capability::BaselineGaps,
    extension::{FeatureInfo, feature},
    probe::{ensure, ensure_eq},
    wr,
};

use crate::{COMPARE_SWAP, FETCH_ADD, MASKED_64, MaskedAtomics, MaskedCompareSwap, MaskedFetchAdd};

const ZBVA: FeatureInfo = feature!(Features::ZBVA, "zero-based addresses");

/// The probes of the extension.
pub static PROBES: &[Probe] = &[
    Probe::new(
        &MASKED_64,
        "masked-atomics.compare-swap",
        "4.20",
        "masks say which bits are compared and which replaced",
        compare_swap,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.fetch-add",
        "4.21",
        "fields are added apart, and the original comes back",
        fetch_add,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.field-boundary",
        "4.22",
        "a bit of the mask is the highest of its field",
        field_boundary,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.aligned",
        "4.24",
        "a misaligned operand is refused, and nothing changes",
        misaligned,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.aligned-zero-based",
        "4.24b",
        "what must be aligned is what the transport says",
        misaligned_zero_based,
    )
    .needs(&[ZBVA]),
    Probe::new(
        &MASKED_64,
        "masked-atomics.native-order",
        "4.25",
        "arithmetic is in the responder's own order of bytes",
        native_order,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.rights",
        "2.05",
        "a peer needs the right to atomics",
        rights,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.completion",
        "4.30",
        "completions have opcodes of their own and eight bytes",
        completion,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.beside-ordinary",
        "4.31",
        "masked and ordinary atomics see each other's results",
        beside_ordinary,
    )
    .without(BaselineGaps::NO_ATOMICS),
    Probe::new(
        &MASKED_64,
        "masked-atomics.concurrent",
        "4.31",
        "eight queue pairs add to four fields, and each sum is exact",
        concurrent,
    ),
    Probe::new(
        &MASKED_64,
        "masked-atomics.not-asked-for",
        "1.10",
        "a queue pair that was not made for them refuses them",
        not_asked_for,
    ),
];

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Makes two connected queue pairs that support masked atomics.
fn pair(rig: &Rig) -> Result<Pair, Evidence> {
    let near = rig.near.context.extension::<MaskedAtomics>()?;
    let far = rig.far.context.extension::<MaskedAtomics>()?;
    let near = rig
        .near
        .side_with(&rig.near.pd, |cq| QpOptions::rc(cq).operations(&near))?;
    let far = rig
        .far
        .side_with(&rig.far.pd, |cq| QpOptions::rc(cq).operations(&far))?;
    rig.connected(near, far)
}

/// Eight bytes of memory at the far side, on which the probes execute atomics.
struct Word {
    target: Region,
}

impl Word {
    fn new(rig: &Rig) -> Result<Self, Evidence> {
        let target = rig.far.region(64, OPEN)?;
        Ok(Self { target })
    }

    fn remote(&self) -> RemoteAddress {
        self.target.remote(0)
    }

    // Carries a request out on `before`; returns the original and the new value.
    fn run(
        &self,
        rig: &Rig,
        pair: &Pair,
        before: u64,
        request: wr::ExtensionRequest<'_>,
    ) -> Result<(u64, u64), Evidence> {
        self.target.set_word(0, before)?;
        rig.scratch.set_word(0, 0xdead_dead_dead_dead)?;
        rig.succeeds(&pair.near, request)?;
        Ok((rig.scratch.word(0)?, self.target.word(0)?))
    }
}

// covers 4.20
fn compare_swap(rig: &Rig) -> Outcome {
    let (pair, word) = (pair(rig)?, Word::new(rig)?);
    let sink = rig.scratch.sge(0, 8)?;
    let plain = u64::MAX;
    for (before, compare, compare_mask, swap, swap_mask, after) in [
        (
            0x1122_3344_5566_7788,
            0x88,
            0xff,
            0xff00,
            0xff00,
            0x1122_3344_5566_ff88,
        ),
        (
            0x1122_3344_5566_7788,
            0x89,
            0xff,
            0xff00,
            0xff00,
            0x1122_3344_5566_7788,
        ),
        // Nothing is compared: it always swaps.
        (7, 8, 0, 9, plain, 9),
        // Nothing is replaced: a comparison.
        (7, 7, plain, 9, 0, 7),
        // Bits outside the mask do not count.
        (0xf0f0, 0xffff_0000_0000_00f0, 0xff, 0, plain, 0),
        // Other bits are compared than are replaced.
        (0x00ff, 0xff, 0xff, 0xaa00, 0xff00, 0xaaff),
        (u64::MAX, u64::MAX, plain, 0, plain, 0),
    ] {
        let swap = MaskedCompareSwap::new(word.remote(), compare, swap)
            .compare_mask(compare_mask)
            .swap_mask(swap_mask);
        let (original, found) = word.run(rig, &pair, before, swap.request(sink))?;
        ensure_eq!(
            original,
            before,
            "the original of a masked compare-and-swap"
        );
        ensure_eq!(
            found,
            after,
            "{before:#x} compared with {compare:#x} in {compare_mask:#x}, replaced in {swap_mask:#x}"
        );
    }
    Ok(())
}

fn adds(rig: &Rig, vectors: &[(u64, u64, u64, u64)]) -> Outcome {
    let (pair, word) = (pair(rig)?, Word::new(rig)?);
    let sink = rig.scratch.sge(0, 8)?;
    for &(before, add, fields, after) in vectors {
        let add_fields = MaskedFetchAdd::new(word.remote(), add).fields(fields);
        let (original, found) = word.run(rig, &pair, before, add_fields.request(sink))?;
        ensure_eq!(original, before, "the original of a masked fetch-and-add");
        ensure_eq!(
            found,
            after,
            "{before:#x} plus {add:#x} in fields {fields:#x}"
        );
    }
    Ok(())
}

// covers 4.21
fn fetch_add(rig: &Rig) -> Outcome {
    adds(
        rig,
        &[
            (0xffff_ffff, 1, 0x8000_0000, 0),
            (0xffff_ffff, 1, 0, 0x1_0000_0000),
            (u64::MAX, 0x0001_0001_0001_0001, 0x8000_8000_8000_8000, 0),
            (0b1100, 0b1010, u64::MAX, 0b0110),
            (u64::MAX, 1, 1 << 63, 0),
            (u64::MAX, 1, 0, 0),
        ],
    )
}

// covers 4.22
fn field_boundary(rig: &Rig) -> Outcome {
    adds(
        rig,
        &[
            (0xff, 1, 0x80, 0),
            (0xff, 1, 0x100, 0x100),
            (0x1ff, 1, 0x100, 0),
            (0x7f, 1, 0x80, 0x80),
            (0xff00, 0x100, 0x8080, 0),
        ],
    )
}

// A request that the far side refuses as invalid; the word does not change.
fn is_refused(
    rig: &Rig,
    target: &Region,
    at: usize,
    remote: RemoteAddress,
    status: WcStatus,
) -> Outcome {
    target.put(0, &[0x5a; 64])?;
    let sink = rig.scratch.sge(0, 8)?;
    let add = MaskedFetchAdd::new(remote, 1).fields(0x80);
    let swap = MaskedCompareSwap::new(remote, 0, 1).compare_mask(0);
    for request in [add.request(sink), swap.request(sink)] {
        let found = rig.verdict(&pair(rig)?, request)?;
        ensure_eq!(
            found,
            status,
            "the end of a request for bytes {at} to {}",
            at + 7
        );
    }
    ensure_eq!(
        target.bytes(0, 64)?,
        vec![0x5a; 64],
        "what the request was to change"
    );
    Ok(())
}

// covers 4.24
fn misaligned(rig: &Rig) -> Outcome {
    let target = rig.far.region(64, OPEN)?;
    for at in [4, 1, 7] {
        is_refused(
            rig,
            &target,
            at,
            target.remote(at as u64),
            WcStatus::RemInvReqErr,
        )?;
    }
    Ok(())
}

// covers 4.24b
fn misaligned_zero_based(rig: &Rig) -> Outcome {
    let memory = rig.far.region(64, Access::LOCAL_WRITE)?;
    let odd = memory.memory.range(4, 56)?;
    let options = MrOptions::new(OPEN).zero_based();
    let region = rig.finish(rig.far.pd.register_with(odd, options))?;
    // The region begins at byte 4: its offset 0 is misaligned memory, its offset 4 a misaligned address.
    let refused = match rig.attributes().transport {
        Transport::Iwarp => 0,
        Transport::InfiniBand => 4,
    };
    let remote = RemoteAddress::new(refused, region.rkey());
    is_refused(rig, &memory, 4, remote, WcStatus::RemInvReqErr)?;
    if rig.attributes().transport == Transport::Iwarp {
        memory.set_word(8, 41)?;
        let add = MaskedFetchAdd::new(RemoteAddress::new(4, region.rkey()), 1);
        rig.succeeds(&pair(rig)?.near, add.request(rig.scratch.sge(0, 8)?))?;
        ensure_eq!(memory.word(8)?, 42, "aligned memory at a misaligned offset");
    }
    Ok(())
}

// covers 4.25
fn native_order(rig: &Rig) -> Outcome {
    let (pair, word) = (pair(rig)?, Word::new(rig)?);
    let sink = rig.scratch.sge(0, 8)?;
    word.target
        .put(0, &0x0102_0304_0506_07ff_u64.to_ne_bytes())?;
    let add = MaskedFetchAdd::new(word.remote(), 1);
    rig.succeeds(&pair.near, add.request(sink))?;
    ensure_eq!(
        word.target.bytes(0, 8)?,
        0x0102_0304_0506_0800_u64.to_ne_bytes().to_vec(),
        "the bytes in the responder's memory"
    );
    ensure_eq!(
        rig.scratch.bytes(0, 8)?,
        0x0102_0304_0506_07ff_u64.to_ne_bytes().to_vec(),
        "the bytes of the original in the requester's memory"
    );
    Ok(())
}

// covers 2.05 1.06
fn rights(rig: &Rig) -> Outcome {
    let closed = rig.far.region(
        64,
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
    )?;
    is_refused(rig, &closed, 0, closed.remote(0), WcStatus::RemAccessErr)?;
    let open = rig.far.region(64, OPEN)?;
    let beyond = open.remote(64);
    is_refused(rig, &open, 64, beyond, WcStatus::RemAccessErr)
}

// covers 4.30
fn completion(rig: &Rig) -> Outcome {
    let (pair, word) = (pair(rig)?, Word::new(rig)?);
    let sink = rig.scratch.sge(0, 8)?;
    let add = MaskedFetchAdd::new(word.remote(), 1);
    let swap = MaskedCompareSwap::new(word.remote(), 1, 2);
    for (request, opcode) in [
        (add.request(sink), FETCH_ADD.wc_opcode()),
        (swap.request(sink), COMPARE_SWAP.wc_opcode()),
    ] {
        pair.near.post_one(request.signaled(5))?;
        let done: Completion = rig.take(&pair.near.cq, 1)?.remove(0);
        ensure_eq!(
            (done.wr_id, done.status),
            (5, WcStatus::Success),
            "the completion"
        );
        ensure_eq!(done.opcode, opcode, "its opcode");
        ensure_eq!(done.byte_len, 8, "its bytes");
    }
    ensure!(
        FETCH_ADD.wc_opcode() != COMPARE_SWAP.wc_opcode(),
        "both operations have one opcode"
    );
    Ok(())
}

// covers 4.31
fn beside_ordinary(rig: &Rig) -> Outcome {
    let word = Word::new(rig)?;
    let masked = rig.near.context.extension::<MaskedAtomics>()?;
    let near = rig.near.side_with(&rig.near.pd, |cq| {
        QpOptions::rc(cq)
            .operations(&masked)
            .operations(verbs_api::Operations::ATOMIC_FETCH_AND_ADD)
    })?;
    let pair = rig.connected(near, rig.far.side(verbs_api::qp::QpType::Rc)?)?;
    let sink = rig.scratch.sge(0, 8)?;
    for round in 0..50 {
        let ordinary = wr::FetchAdd::new(sink, word.remote(), 1);
        rig.succeeds(&pair.near, ordinary)?;
        ensure_eq!(
            rig.scratch.word(0)?,
            2 * round,
            "what an ordinary atomic found"
        );
        let add = MaskedFetchAdd::new(word.remote(), 1).fields(1 << 31);
        rig.succeeds(&pair.near, add.request(sink))?;
        ensure_eq!(
            rig.scratch.word(0)?,
            2 * round + 1,
            "what a masked atomic found"
        );
    }
    Ok(())
}

// covers 4.31
fn concurrent(rig: &Rig) -> Outcome {
    const EACH: u64 = 300;
    let word = Word::new(rig)?;
    let pairs = (0..8).map(|_| pair(rig)).collect::<Result<Vec<_>, _>>()?;
    let sink = rig.scratch.sge(0, 8)?;
    // Each queue pair adds its number to two of the four fields, so that all of them overflow.
    let add_of = |number: u64| {
        let shift = 16 * (number % 4);
        (((number + 1) * 97) << shift) | (((number + 3) * 131) << ((shift + 16) % 64))
    };
    let (mut posted, mut taken) = ([0; 8], [0; 8]);
    while taken.iter().any(|&taken| taken < EACH) {
        for (at, pair) in pairs.iter().enumerate() {
            while posted[at] < EACH && posted[at] < taken[at] + 8 {
                let add = MaskedFetchAdd::new(word.remote(), add_of(at as u64))
                    .fields(0x8000_8000_8000_8000);
                pair.near.post_one(add.request(sink).signaled(posted[at]))?;
                posted[at] += 1;
            }
        }
        for (at, pair) in pairs.iter().enumerate() {
            let waiting = (posted[at] - taken[at]) as usize;
            let done = rig.take(&pair.near.cq, waiting)?;
            ensure!(
                done.iter().all(|done| done.status.is_success()),
                "an atomic of queue pair {at} failed"
            );
            taken[at] += waiting as u64;
        }
    }
    let mut expected = [0_u64; 4];
    for number in 0..8 {
        for (field, sum) in expected.iter_mut().enumerate() {
            *sum += (add_of(number) >> (16 * field) & 0xffff) * EACH;
        }
    }
    let found = word.target.word(0)?;
    for (field, sum) in expected.iter().enumerate() {
        ensure_eq!(
            found >> (16 * field) & 0xffff,
            sum & 0xffff,
            "the sum of field {field}"
        );
    }
    Ok(())
}

// covers 1.10
fn not_asked_for(rig: &Rig) -> Outcome {
    let word = Word::new(rig)?;
    // The device supports them, as the other probes verify.
    rig.near.context.extension::<MaskedAtomics>()?;
    let pair = rig.rc()?;
    let add = MaskedFetchAdd::new(word.remote(), 1);
    match pair.near.post_one(add.request(rig.scratch.sge(0, 8)?)) {
        Err(refused) if refused.kind() == verbs_api::ErrorKind::Unsupported => {
            let said = refused.reason.to_string();
            ensure!(
                said.contains("MASKED_ATOMIC_FETCH_AND_ADD"),
                "refused without its name: {said}"
            );
            Ok(())
        }
        other => Err(Evidence::wrong(format!(
            "a request that the queue pair was not made for: {other:?}"
        ))),
    }
}
