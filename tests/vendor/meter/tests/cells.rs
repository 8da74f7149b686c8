//! The verdict of the matrix on the device: it does what it claims, and refuses the rest.

use acme_meter as _;
use capability_matrix::{Matrix, Section};

const VERIFIED: &str = "\
    RC UC UD SEND SEND_WITH_IMM WRITE WRITE_WITH_IMM READ LOCAL_READ_SINK ATOMICS INLINE RNR_RETRY REGIONS REREG_MR \
    RESIZE_CQ SRQ COMPLETION_COUNTERS ON_DEMAND MULTICAST ATOMIC_WRITE FLUSH BMME LOCAL_INVALIDATE_FENCE WINDOW_1 \
    WINDOW_2B ZBVA BLOCK_LIST SG_GAPS \
    block-loopback::BLOCK_MULTICAST low-latency-qp::LOW_LATENCY masked-atomics::MASKED_64";
const REFUSED: &str = "WINDOW_2A READ_WITH_INVALIDATE xrc::XRC";

fn sorted<'n>(names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn claims_are_verified_and_the_rest_is_refused() {
    let registry = polyverbs::registry().unwrap();
    let device = registry.device("meter0").unwrap();
    let matrix = Matrix::verified(std::slice::from_ref(device), &mut |_| ()).unwrap();
    let wrong: Vec<_> = matrix
        .mismatches()
        .map(|(row, _, found)| (&row.name, &found.because))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let found = |wanted: &str| {
        let rows = matrix.section(Section::Features);
        let rows = rows.filter(|row| row.cells[0].proof.verdict().unwrap().name() == wanted);
        sorted(rows.map(|row| &*row.name))
    };
    assert_eq!(found("verified"), sorted(VERIFIED.split_whitespace()));
    assert_eq!(found("refused"), sorted(REFUSED.split_whitespace()));
    assert_eq!(found("not-verifiable"), [""; 0]);
}
