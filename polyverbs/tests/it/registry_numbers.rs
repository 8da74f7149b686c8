//! The registry numbers the operations of extensions for one process only. Two processes with different numbers carry out
//! each other's requests all the same.

use masked_atomics::{COMPARE_SWAP, FETCH_ADD, MaskedCompareSwap, MaskedFetchAdd};
use polyverbs::{Completion, WcStatus};
use test_kit::waiting::until;

use crate::programs::{Asked, Pair, Program};

/// The peer's word after both operations.
const SWAPPED: u64 = 7;

/// Adds to the word of the peer and swaps it, and waits until the peer has done the same to the local word.
fn exchange(program: &Program) {
    let (end, peer) = (&program.end, program.peer);
    let result = || end.mr.sge(8, 8).unwrap();
    let add = MaskedFetchAdd::new(peer, 3);
    end.qp.post_one(add.request(result()).signaled(1)).unwrap();
    assert_eq!(original(program), (FETCH_ADD.wc_opcode().code(), 0));
    let swap = MaskedCompareSwap::new(peer, 3, SWAPPED);
    end.qp.post_one(swap.request(result()).signaled(2)).unwrap();
    assert_eq!(original(program), (COMPARE_SWAP.wc_opcode().code(), 3));
    until(|| end.memory.load_u64(0).unwrap() == SWAPPED);
}

/// The opcode of the next completion, and the value that its operation returned.
fn original(program: &Program) -> (u8, u64) {
    let mut slots = [Completion::default()];
    until(|| program.end.cq.poll(&mut slots).unwrap().len() == 1);
    assert_eq!(slots[0].status, WcStatus::Success);
    let original = program.end.memory.load_u64(8).unwrap();
    (slots[0].opcode.code(), original)
}

/// Runs as the other process of a test, in which fetch-and-add has the lower number.
#[test]
#[ignore = "a process of the other tests"]
fn other_process() {
    let Some(asked) = Asked::by_a_test() else {
        return;
    };
    // An operation gets its number when it is first used.
    let operations = FETCH_ADD.bit() | COMPARE_SWAP.bit();
    assert!(FETCH_ADD.bit().bits() < COMPARE_SWAP.bit().bits());
    asked.connect(operations, exchange);
}

fn are_carried_out(device: &'static str, addresses: [[u8; 4]; 2]) {
    let operations = COMPARE_SWAP.bit() | FETCH_ADD.bit();
    assert!(COMPARE_SWAP.bit().bits() < FETCH_ADD.bit().bits());
    let other = ("registry_numbers::other_process", "-");
    Pair::new(device, addresses).in_two_processes(operations, other, exchange);
}

// covers 4.20 4.21 4.26 4.30
#[test]
fn operations_run_over_udp_whatever_their_numbers() {
    are_carried_out("ib0", [[127, 0, 24, 111], [127, 0, 24, 112]]);
}

// covers 4.20 4.21 4.27 4.30
#[test]
fn operations_run_over_tcp_whatever_their_numbers() {
    are_carried_out("iw0", [[127, 0, 24, 113], [127, 0, 24, 114]]);
}

// covers 4.20 4.21 4.30
#[test]
fn operations_run_in_shared_memory_whatever_their_numbers() {
    are_carried_out("ib0", [[127, 0, 24, 115]; 2]);
    are_carried_out("iw0", [[127, 0, 24, 116]; 2]);
}
