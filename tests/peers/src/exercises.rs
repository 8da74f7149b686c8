//! Every operation in both directions, with `peer`.

use std::net::SocketAddr;

use anyhow::ensure;
use verbs_api::qp::QpType;
use verbs_api::{
    CompareSwap, FetchAdd, Read, Send, SendWithImmediate, WcFlags, WcStatus, Write,
    WriteWithImmediate,
};

use crate::ours::{Host, MTU, Ours, QKEY, remote};
use crate::theirs::{Card, Peer, gid_text};

/// Lengths of messages: around the path MTU, and larger than a window.
const LENGTHS: [usize; 9] = [1, 8, 1000, 1024, 1025, 4096, 10_000, 65_536, 1 << 20];
/// Lengths of datagrams.
const SHORT: [usize; 4] = [1, 64, 1000, 1024];
/// Where the second half of the memory begins.
const HALF: usize = 2 << 20;
/// Routing header before a datagram.
const GRH: usize = 40;

/// What was exercised, and how it ended.
pub(crate) struct Row {
    pub(crate) operation: &'static str,
    pub(crate) direction: &'static str,
    pub(crate) what: String,
    pub(crate) outcome: Result<(), String>,
}

impl Row {
    pub(crate) fn new(
        operation: &'static str,
        direction: &'static str,
        what: String,
        outcome: anyhow::Result<()>,
    ) -> Self {
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        println!("{operation}, {direction}: {outcome:?}");
        Self {
            operation,
            direction,
            what,
            outcome,
        }
    }

    pub(crate) fn cells(&self) -> [String; 4] {
        let outcome = match &self.outcome {
            Ok(()) => "ok",
            Err(error) => error,
        };
        [self.operation, self.direction, &self.what, outcome].map(str::to_owned)
    }

    pub(crate) fn line(&self) -> String {
        format!("| {} |\n", self.cells().join(" | "))
    }
}

pub(crate) const OUT: &str = "ours to the kernel's";
pub(crate) const IN: &str = "the kernel's to ours";

type Exercise = fn(&mut Stage) -> anyhow::Result<()>;

/// Two queue pairs, connected.
struct Stage {
    ours: Ours,
    own: Card,
    theirs: Peer,
    card: Card,
}

impl Stage {
    fn new(host: &Host, at: SocketAddr, qp_type: QpType) -> anyhow::Result<Self> {
        let mut theirs = Peer::connect(at)?;
        let what = match qp_type {
            QpType::Ud => "ud".to_owned(),
            _ => format!("rc {:x}", MTU as u8),
        };
        let card = theirs.make(&what)?;
        let ours = host.make(qp_type)?;
        let own = ours.card();
        let gid = gid_text(own.gid);
        theirs.tell(&format!("connect {:x} {:x} {gid}", own.qpn, own.psn))?;
        ours.connect(&card)?;
        Ok(Self {
            ours,
            own,
            theirs,
            card,
        })
    }

    fn peer_checks(&mut self, at: usize, length: usize, seed: usize) -> anyhow::Result<()> {
        self.theirs
            .tell(&format!("check {at:x} {length:x} {seed:x}"))
    }

    fn peer_fills(&mut self, at: usize, length: usize, seed: usize) -> anyhow::Result<()> {
        self.theirs
            .tell(&format!("fill {at:x} {length:x} {seed:x}"))
    }
}

/// Everything.
pub(crate) fn all(host: &Host, at: SocketAddr) -> Vec<Row> {
    let exercises: [(&str, &str, QpType, Exercise); 17] = [
        ("send", OUT, QpType::Rc, send_out),
        ("send", IN, QpType::Rc, send_in),
        ("send with immediate", OUT, QpType::Rc, send_immediate_out),
        ("send with immediate", IN, QpType::Rc, send_immediate_in),
        ("write", OUT, QpType::Rc, write_out),
        ("write", IN, QpType::Rc, write_in),
        ("write with immediate", OUT, QpType::Rc, write_immediate_out),
        ("write with immediate", IN, QpType::Rc, write_immediate_in),
        ("read", OUT, QpType::Rc, read_out),
        ("read", IN, QpType::Rc, read_in),
        ("compare and swap", OUT, QpType::Rc, swap_out),
        ("compare and swap", IN, QpType::Rc, swap_in),
        ("fetch and add", OUT, QpType::Rc, add_out),
        ("fetch and add", IN, QpType::Rc, add_in),
        ("datagram", OUT, QpType::Ud, datagram_out),
        ("datagram", IN, QpType::Ud, datagram_in),
        ("write, peer gone", OUT, QpType::Rc, gone),
    ];
    let row = |(operation, direction, qp_type, exercise): (_, _, _, Exercise)| {
        let outcome = Stage::new(host, at, qp_type).and_then(|mut stage| exercise(&mut stage));
        let lengths = match (operation, qp_type) {
            ("compare and swap" | "fetch and add", _) => "8 B, 100 times".to_owned(),
            ("write, peer gone", _) => "ends in an error".to_owned(),
            (_, QpType::Ud) => format!("{SHORT:?} B"),
            _ => format!("{LENGTHS:?} B"),
        };
        Row::new(operation, direction, lengths, outcome)
    };
    exercises.into_iter().map(row).collect()
}

fn send_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.theirs.tell(&format!("recv 0 {HALF:x}"))?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        stage.ours.succeeds(Send::new(data).signaled(1))?;
        let (received, _) = stage.theirs.completes()?;
        ensure!(received as usize == length, "{received} octets of {length}");
        stage.peer_checks(0, length, seed)?;
    }
    Ok(())
}

fn send_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.ours.receive(0, HALF)?;
        stage.peer_fills(0, length, seed)?;
        stage.theirs.tell(&format!("send 0 {length:x}"))?;
        let done = stage.ours.completes()?;
        ensure!(done.byte_len as usize == length, "{done:?}");
        stage.theirs.completes()?;
        stage.ours.check(0, length, seed as u8)?;
    }
    Ok(())
}

fn send_immediate_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.theirs.tell(&format!("recv 0 {HALF:x}"))?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        stage
            .ours
            .succeeds(SendWithImmediate::new(data, [1, 2, 3, seed as u8]).signaled(1))?;
        let (received, imm) = stage.theirs.completes()?;
        ensure!(received as usize == length && imm == 0x0102_0300 + seed as u32);
        stage.peer_checks(0, length, seed)?;
    }
    Ok(())
}

fn send_immediate_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.ours.receive(0, HALF)?;
        stage.peer_fills(0, length, seed)?;
        stage
            .theirs
            .tell(&format!("sendimm 0 {length:x} a0b0c0d0"))?;
        let done = stage.ours.completes()?;
        ensure!(done.byte_len as usize == length && done.imm_data == [0xa0, 0xb0, 0xc0, 0xd0]);
        ensure!(done.wc_flags.contains(WcFlags::WITH_IMM), "{done:?}");
        stage.theirs.completes()?;
        stage.ours.check(0, length, seed as u8)?;
    }
    Ok(())
}

fn write_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        let to = remote(&stage.card, HALF);
        stage.ours.succeeds(Write::new(data, to).signaled(1))?;
        stage.peer_checks(HALF, length, seed)?;
    }
    Ok(())
}

fn write_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.peer_fills(0, length, seed)?;
        let (at, rkey) = (stage.own.address + HALF as u64, stage.own.rkey);
        stage
            .theirs
            .tell(&format!("write 0 {length:x} {at:x} {rkey:x}"))?;
        stage.theirs.completes()?;
        stage.ours.check(HALF, length, seed as u8)?;
    }
    Ok(())
}

fn write_immediate_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.theirs.tell("recv 0 8")?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        let to = remote(&stage.card, HALF);
        let write = WriteWithImmediate::new(data, to, [9, 8, 7, seed as u8]);
        stage.ours.succeeds(write.signaled(1))?;
        let (received, imm) = stage.theirs.completes()?;
        ensure!(received as usize == length && imm == 0x0908_0700 + seed as u32);
        stage.peer_checks(HALF, length, seed)?;
    }
    Ok(())
}

fn write_immediate_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.ours.receive(0, 8)?;
        stage.peer_fills(0, length, seed)?;
        let (at, rkey) = (stage.own.address + HALF as u64, stage.own.rkey);
        stage
            .theirs
            .tell(&format!("writeimm 0 {length:x} {at:x} {rkey:x} 1020304"))?;
        let done = stage.ours.completes()?;
        ensure!(done.byte_len as usize == length && done.imm_data == [1, 2, 3, 4]);
        stage.theirs.completes()?;
        stage.ours.check(HALF, length, seed as u8)?;
    }
    Ok(())
}

fn read_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.peer_fills(HALF, length, seed)?;
        let sink = stage.ours.sge(0, length)?;
        let from = remote(&stage.card, HALF);
        stage.ours.succeeds(Read::new(sink, from).signaled(1))?;
        stage.ours.check(0, length, seed as u8)?;
    }
    Ok(())
}

fn read_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        stage.ours.fill(HALF, length, seed as u8)?;
        let (at, rkey) = (stage.own.address + HALF as u64, stage.own.rkey);
        stage
            .theirs
            .tell(&format!("read 0 {length:x} {at:x} {rkey:x}"))?;
        stage.theirs.completes()?;
        stage.peer_checks(0, length, seed)?;
    }
    Ok(())
}

fn swap_out(stage: &mut Stage) -> anyhow::Result<()> {
    stage.theirs.tell("put 0 64")?;
    let (result, word) = (stage.ours.sge(0, 8)?, remote(&stage.card, 0));
    for old in 100..200 {
        let swap = CompareSwap::new(result, word, old, old + 1);
        stage.ours.succeeds(swap.signaled(1))?;
        ensure!(stage.ours.memory.load_u64(0)? == old, "the value before");
    }
    // One that finds another value changes nothing.
    let swap = CompareSwap::new(result, word, 7, 8);
    stage.ours.succeeds(swap.signaled(1))?;
    ensure!(stage.ours.memory.load_u64(0)? == 200);
    ensure!(stage.theirs.number(0)? == 200, "theirs");
    Ok(())
}

fn swap_in(stage: &mut Stage) -> anyhow::Result<()> {
    stage.ours.memory.store_u64(0, 100)?;
    let (at, rkey) = (stage.own.address, stage.own.rkey);
    for old in 100_u64..200 {
        stage
            .theirs
            .tell(&format!("cas 40 {at:x} {rkey:x} {old:x} {:x}", old + 1))?;
        stage.theirs.completes()?;
        ensure!(stage.theirs.number(0x40)? == old, "the value before");
    }
    ensure!(stage.ours.memory.load_u64(0)? == 200, "ours");
    Ok(())
}

fn add_out(stage: &mut Stage) -> anyhow::Result<()> {
    stage.theirs.tell("put 0 5")?;
    let (result, word) = (stage.ours.sge(0, 8)?, remote(&stage.card, 0));
    for turn in 0..100 {
        stage
            .ours
            .succeeds(FetchAdd::new(result, word, 3).signaled(1))?;
        ensure!(stage.ours.memory.load_u64(0)? == 5 + 3 * turn);
    }
    ensure!(stage.theirs.number(0)? == 305, "theirs");
    Ok(())
}

fn add_in(stage: &mut Stage) -> anyhow::Result<()> {
    stage.ours.memory.store_u64(0, 5)?;
    let (at, rkey) = (stage.own.address, stage.own.rkey);
    for turn in 0..100 {
        stage.theirs.tell(&format!("fadd 40 {at:x} {rkey:x} 3"))?;
        stage.theirs.completes()?;
        ensure!(stage.theirs.number(0x40)? == 5 + 3 * turn);
    }
    ensure!(stage.ours.memory.load_u64(0)? == 305, "ours");
    Ok(())
}

fn datagram_out(stage: &mut Stage) -> anyhow::Result<()> {
    let way = stage.ours.way_to(&stage.card)?;
    for (seed, length) in SHORT.into_iter().enumerate() {
        stage.theirs.tell(&format!("recv 0 {HALF:x}"))?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        stage.ours.succeeds(Send::new(data).to(&way).signaled(1))?;
        let (received, _) = stage.theirs.completes()?;
        ensure!(received as usize == GRH + length, "{received} octets");
        stage.peer_checks(GRH, length, seed)?;
    }
    Ok(())
}

fn datagram_in(stage: &mut Stage) -> anyhow::Result<()> {
    let (qpn, gid) = (stage.own.qpn, gid_text(stage.own.gid));
    for (seed, length) in SHORT.into_iter().enumerate() {
        stage.ours.receive(0, 4096)?;
        stage.peer_fills(0, length, seed)?;
        let answer = stage
            .theirs
            .ask(&format!("datagram 0 {length:x} {qpn:x} {gid} {QKEY:x}"))?;
        ensure!(answer.starts_with("wc 0 "), "{answer}");
        let done = stage.ours.completes()?;
        ensure!(done.byte_len as usize == GRH + length, "{done:?}");
        ensure!(done.src_qp.value() == stage.card.qpn, "{done:?}");
        stage.ours.check(GRH, length, seed as u8)?;
    }
    Ok(())
}

fn gone(stage: &mut Stage) -> anyhow::Result<()> {
    let data = stage.ours.sge(0, 65_536)?;
    let to = remote(&stage.card, HALF);
    stage.ours.succeeds(Write::new(data, to).signaled(1))?;
    // It destroys its queue pair when it has nobody to listen to.
    let Stage { ours, theirs, .. } = stage;
    theirs.hang_up()?;
    let began = std::time::Instant::now();
    while began.elapsed().as_secs() < 15 {
        ours.qp.post_one(Write::new(data, to).signaled(2))?;
        let done = ours.next()?;
        if done.status != WcStatus::Success {
            ensure!(done.status == WcStatus::RetryExcErr, "{:?}", done.status);
            return Ok(());
        }
    }
    anyhow::bail!("it goes on writing")
}
