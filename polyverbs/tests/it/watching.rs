//! Programs that watch their own memory for the writes of the peer. They do not poll while they watch, and the writes
//! are placed all the same, whether the program has polled before or never polls.

use polyverbs::{Completion, Operations, wr};
use test_kit::waiting::until;

use crate::programs::{Asked, Pair, Program};

/// Turns of a game; `POLYVERBS_RUNS`, if it is set, multiplies them.
fn turns() -> u64 {
    let runs = std::env::var("POLYVERBS_RUNS");
    100 * runs.map_or(1, |runs| runs.parse::<u64>().unwrap())
}

/// Writes the turn to the peer's memory. A program that `polls` waits for the completion, as those of perftest do.
fn write(program: &Program, turn: u64, polls: bool) {
    let end = &program.end;
    let turn_bytes = turn.to_ne_bytes();
    let write = wr::Write::new(&turn_bytes, program.peer);
    if !polls {
        return end.qp.post_one(write).unwrap();
    }
    end.qp.post_one(write.signaled(turn)).unwrap();
    let mut slots = [Completion::default()];
    until(|| end.cq.poll(&mut slots).unwrap().len() == 1);
    assert!(slots[0].status.is_success(), "turn {turn}: {:?}", slots[0]);
}

fn watch(program: &Program, turn: u64) {
    until(|| program.end.memory.load_u64(0).unwrap() == turn);
}

/// The program that accepted answers each turn.
fn answer(program: &Program, polls: bool) {
    for turn in 1..=turns() {
        watch(program, turn);
        write(program, turn, polls);
    }
}

/// The program that connected begins each turn.
fn begin(program: &Program, polls: bool) {
    for turn in 1..=turns() {
        write(program, turn, polls);
        watch(program, turn);
    }
}

/// Runs as the other process of a test.
#[test]
#[ignore = "a process of the other tests"]
fn other_process() {
    let Some(asked) = Asked::by_a_test() else {
        return;
    };
    let polls = asked.more.parse().unwrap();
    asked.connect(Operations::empty(), |program| {
        begin(program, polls);
    });
}

/// Plays a game in which the programs never poll, and one in which they poll for the completion of each write.
fn play_in_two_processes(device: &'static str, addresses: [[u8; 4]; 2]) {
    for polls in [false, true] {
        let other = ("watching::other_process", &*polls.to_string());
        let answer = |program: &Program| answer(program, polls);
        Pair::new(device, addresses).in_two_processes(Operations::empty(), other, answer);
    }
}

fn play_in_one_process(device: &'static str, address: [u8; 4]) {
    for polls in [false, true] {
        let begin = |program: &Program| begin(program, polls);
        let answer = |program: &Program| answer(program, polls);
        Pair::new(device, [address; 2]).in_one_process(Operations::empty(), begin, answer);
    }
}

#[test]
fn a_watching_program_sees_writes_over_udp() {
    play_in_two_processes("ib0", [[127, 0, 24, 101], [127, 0, 24, 102]]);
}

#[test]
fn a_watching_program_sees_writes_over_tcp() {
    play_in_two_processes("iw0", [[127, 0, 24, 103], [127, 0, 24, 104]]);
}

#[test]
fn a_watching_program_sees_roce_writes_in_shared_memory() {
    play_in_two_processes("ib0", [[127, 0, 24, 105]; 2]);
}

#[test]
fn a_watching_program_sees_iwarp_writes_in_shared_memory() {
    play_in_two_processes("iw0", [[127, 0, 24, 106]; 2]);
}

#[test]
fn a_watching_program_sees_writes_within_one_process() {
    play_in_one_process("ib0", [127, 0, 24, 107]);
    play_in_one_process("iw0", [127, 0, 24, 108]);
}
