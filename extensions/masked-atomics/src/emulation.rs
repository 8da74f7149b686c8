//! Masked atomics on software devices.

use polyverbs_engine::emulation::{Emulation, EmulationPart, Gains};
use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{
    Arrived, AtomicOp, MaskedAtomics, Octets, OperationEmulation, StandardOperation, TargetMemory,
};
use polyverbs_engine::rules::{self, Rule};
use verbs_api::{
    RemoteAddress, Transport, capability::DeviceAttributes, extension::ExtensionOperation,
};
use zerocopy::FromBytes;

use crate::MaskedFeatures;
use crate::request::{COMPARE_SWAP, FETCH_ADD, MaskedCompareSwap, MaskedFetchAdd};

/// The implementation of masked atomics on software devices, by the processor's own atomics.
pub struct InSoftware;

/// The part of the extension by which software devices find its implementation.
pub static EMULATION: EmulationPart = EmulationPart(&InSoftware);

impl Emulation for InSoftware {
    fn gains(&self, device: &DeviceAttributes) -> Gains {
        Gains {
            own: MaskedFeatures::MASKED_64.bits(),
            masked_atomic_cap: device.atomic_cap,
            ..Gains::default()
        }
    }

    fn operations(&self) -> &'static [&'static dyn OperationEmulation] {
        &[&CompareSwap, &FetchAdd]
    }

    fn masked_atomics(&self) -> Option<&'static dyn MaskedAtomics> {
        Some(&InSoftware)
    }
}

impl MaskedAtomics for InSoftware {
    fn apply(&self, op: AtomicOp, current: u64) -> Option<u64> {
        apply(op, current)
    }
}

/// Returns the value that a masked atomic operation makes of `current`; `None` if it does not change (RFC 7306 section
/// 5.1).
pub(crate) fn apply(op: AtomicOp, current: u64) -> Option<u64> {
    match op {
        AtomicOp::FetchAdd { add, mask } => {
            let mask = if rules::is_broken(Rule::MaskedCarry) {
                0
            } else {
                mask
            };
            // Without the highest bit of each field no carry crosses fields.
            let sum = (current & !mask).wrapping_add(add & !mask);
            Some(sum ^ ((current ^ add) & mask))
        }
        AtomicOp::CompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => {
            let compare_mask = if rules::is_broken(Rule::MaskedCompare) {
                u64::MAX
            } else {
                compare_mask
            };
            let differs = (compare ^ current) & compare_mask != 0;
            (!differs).then_some((current & !swap_mask) | (swap & swap_mask))
        }
    }
}

struct CompareSwap;
struct FetchAdd;

// The original is in network order on the wire, and in host order in the sink (FEATURES 4.25).
fn carry_out(
    parts: Option<(RemoteAddress, AtomicOp)>,
    memory: &TargetMemory<'_>,
    answer: &mut Octets,
) -> Result<(), Fault> {
    let (remote, op) = parts.ok_or(Fault::UnknownOperation)?;
    let original = memory.update(remote, |current| apply(op, current))?;
    answer.extend_from_slice(&original.to_be_bytes());
    Ok(())
}

fn to_native(answer: &mut Octets) {
    if let Ok(bytes) = <[u8; 8]>::try_from(&answer[..]) {
        answer.copy_from_slice(&u64::from_be_bytes(bytes).to_ne_bytes());
    }
}

fn standard(
    transport: Transport,
    parts: Option<(RemoteAddress, AtomicOp)>,
) -> Option<StandardOperation> {
    let (remote, op) = parts?;
    (transport == Transport::Iwarp).then_some(StandardOperation::Atomic(remote, op))
}

fn compare_swap(body: &[u8]) -> Option<(RemoteAddress, AtomicOp)> {
    Some(MaskedCompareSwap::ref_from_bytes(body).ok()?.parts())
}

fn fetch_add(body: &[u8]) -> Option<(RemoteAddress, AtomicOp)> {
    Some(MaskedFetchAdd::ref_from_bytes(body).ok()?.parts())
}

impl OperationEmulation for CompareSwap {
    fn operation(&self) -> &'static ExtensionOperation {
        &COMPARE_SWAP
    }

    fn respond(
        &self,
        request: &Arrived<'_>,
        memory: &TargetMemory<'_>,
        answer: &mut Octets,
    ) -> Result<(), Fault> {
        carry_out(compare_swap(request.body), memory, answer)
    }

    fn complete(&self, answer: &mut Octets) {
        to_native(answer);
    }

    fn standard(&self, transport: Transport, body: &[u8]) -> Option<StandardOperation> {
        standard(transport, compare_swap(body))
    }
}

impl OperationEmulation for FetchAdd {
    fn operation(&self) -> &'static ExtensionOperation {
        &FETCH_ADD
    }

    fn respond(
        &self,
        request: &Arrived<'_>,
        memory: &TargetMemory<'_>,
        answer: &mut Octets,
    ) -> Result<(), Fault> {
        carry_out(fetch_add(request.body), memory, answer)
    }

    fn complete(&self, answer: &mut Octets) {
        to_native(answer);
    }

    fn standard(&self, transport: Transport, body: &[u8]) -> Option<StandardOperation> {
        standard(transport, fetch_add(body))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Bit by bit; the carry out of the highest bit of a field is dropped.
    fn ripple(current: u64, add: u64, mask: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let (a, b) = (current >> bit & 1, add >> bit & 1);
            sum |= (a ^ b ^ carry) << bit;
            carry = if mask >> bit & 1 != 0 {
                0
            } else {
                (a & b) | (carry & (a ^ b))
            };
        }
        sum
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        // covers 4.23
        #[test]
        fn fields_add_as_bit_by_bit(current: u64, add: u64, mask: u64, sparse: u64) {
            for mask in [mask, mask & sparse, mask & sparse & sparse.rotate_left(7)] {
                let op = AtomicOp::FetchAdd { add, mask };
                prop_assert_eq!(apply(op, current), Some(ripple(current, add, mask)));
            }
        }

        // covers 4.20
        #[test]
        fn masks_choose_what_is_compared_and_replaced(
            current: u64, compare: u64, compare_mask: u64, swap: u64, swap_mask: u64,
        ) {
            let equal = (current & compare_mask) | (compare & !compare_mask);
            for compare in [compare, equal] {
                let op = AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask };
                let swaps = current & compare_mask == compare & compare_mask;
                let swapped = (0..64).fold(0, |word, bit| {
                    let from = if swap_mask >> bit & 1 != 0 { swap } else { current };
                    word | (from >> bit & 1) << bit
                });
                prop_assert_eq!(apply(op, current), swaps.then_some(swapped));
            }
        }
    }

    // covers 4.27
    #[test]
    fn ordinary_operations_are_cases_of_masked_ones() {
        for (op, current) in [
            (AtomicOp::fetch_add(u64::MAX), 5),
            (AtomicOp::compare_swap(5, 9), 5),
            (AtomicOp::compare_swap(5, 9), 6),
        ] {
            assert_eq!(op.ordinary(current), Some(apply(op, current)));
        }
    }
}
