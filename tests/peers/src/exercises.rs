//! Every operation in both directions, with `peer`.

use anyhow::{Context as _, ensure};
use polyverbs::qp::QpType;
use polyverbs::{PageList, RKey, WcStatus, completion::WcFlags, wr};

use crate::ours::{Host, QKEY, remote};
use crate::report::{Outcome, Row};
use crate::stage::{Meeting, Place, Stage, up_to};
use crate::theirs::gid_text;

/// Lengths of datagrams.
const SHORT: [usize; 4] = [1, 64, 1000, 1024];
/// Where the second half of the memory begins.
const HALF: usize = 2 << 20;
/// Bytes of the GRH before a datagram.
const GRH: usize = 40;

pub(crate) const OUT: &str = "ours to the kernel's";
pub(crate) const IN: &str = "the kernel's to ours";

type Run = fn(&mut Stage) -> anyhow::Result<()>;

/// The `peer` command of an operation that iWARP does not define and refuses.
type Undefined = Option<&'static str>;

const RC: [(&str, &str, Undefined, Run); 16] = [
    ("send", OUT, None, send_out),
    ("send", IN, None, send_in),
    (
        "send with immediate",
        OUT,
        Some("sendimm 0 8 1"),
        send_immediate_out,
    ),
    (
        "send with immediate",
        IN,
        Some("sendimm 0 8 1"),
        send_immediate_in,
    ),
    ("send with invalidate", OUT, None, send_invalidate_out),
    ("send with invalidate", IN, None, send_invalidate_in),
    ("write", OUT, None, write_out),
    ("write", IN, None, write_in),
    (
        "write with immediate",
        OUT,
        Some("writeimm 0 8 0 0 1"),
        write_immediate_out,
    ),
    (
        "write with immediate",
        IN,
        Some("writeimm 0 8 0 0 1"),
        write_immediate_in,
    ),
    ("read", OUT, None, read_out),
    ("read", IN, None, read_in),
    ("compare and swap", OUT, Some("cas 0 0 0 0 0"), swap_out),
    ("compare and swap", IN, Some("cas 0 0 0 0 0"), swap_in),
    ("fetch and add", OUT, Some("fadd 0 0 0 0"), add_out),
    ("fetch and add", IN, Some("fadd 0 0 0 0"), add_in),
];

const UD: [(&str, &str, Run); 2] = [
    ("datagram", OUT, datagram_out),
    ("datagram", IN, datagram_in),
];

/// Runs every exercise, over connections that either side requested.
pub(crate) fn all(host: &Host, place: &mut Place) -> Vec<Row> {
    let mut rows = Vec::new();
    for meeting in [Meeting::WeConnect, Meeting::TheyConnect] {
        for (operation, direction, undefined, run) in RC {
            let undefined = undefined.filter(|_| !host.is_infiniband());
            let outcome =
                Stage::new(host, place, QpType::Rc, meeting).and_then(
                    |mut stage| match undefined {
                        Some(command) => refuses(&mut stage, command),
                        None => run(&mut stage).map(|()| Outcome::Ok),
                    },
                );
            rows.push(Row::new(
                operation,
                meeting.name(),
                direction,
                how_much(operation, place),
                outcome,
            ));
        }
    }
    for (operation, direction, run) in UD {
        let outcome = if host.is_infiniband() {
            let stage = Stage::new(host, place, QpType::Ud, Meeting::Told);
            stage.and_then(|mut stage| run(&mut stage).map(|()| Outcome::Ok))
        } else {
            no_datagrams(place)
        };
        rows.push(Row::new(
            operation,
            "",
            direction,
            format!("{SHORT:?} B"),
            outcome,
        ));
    }
    rows
}

fn how_much(operation: &str, place: &Place) -> String {
    match operation {
        "compare and swap" | "fetch and add" => "8 B, 100 times".to_owned(),
        "send with invalidate" => "1000 B, and a write with the key afterwards".to_owned(),
        _ => format!("{:?} B", up_to(place.largest)),
    }
}

fn refuses(stage: &mut Stage, command: &str) -> anyhow::Result<Outcome> {
    let answer = stage.theirs.ask(command)?;
    ensure!(answer.starts_with("error"), "{command}: {answer}");
    Ok(Outcome::NotDefined)
}

fn no_datagrams(place: &Place) -> anyhow::Result<Outcome> {
    let answer = place.peer()?.ask("ud")?;
    ensure!(answer.starts_with("error"), "ud: {answer}");
    Ok(Outcome::NotDefined)
}

fn send_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
        stage.theirs.tell(&format!("recv 0 {HALF:x}"))?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        stage.ours.succeeds(wr::Send::new(data).signaled(1))?;
        let (received, _) = stage.theirs.completes()?;
        ensure!(received as usize == length, "{received} octets of {length}");
        stage.peer_checks(0, length, seed)?;
    }
    Ok(())
}

fn send_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
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
    for (seed, length) in stage.lengths() {
        stage.theirs.tell(&format!("recv 0 {HALF:x}"))?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        stage
            .ours
            .succeeds(wr::SendWithImmediate::new(data, [1, 2, 3, seed as u8]).signaled(1))?;
        let (received, imm) = stage.theirs.completes()?;
        ensure!(received as usize == length && imm == 0x0102_0300 + seed as u32);
        stage.peer_checks(0, length, seed)?;
    }
    Ok(())
}

fn send_immediate_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
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

// Invalidates a window where the device has windows: the kernel offers programs no
// fast-register.
fn send_invalidate_out(stage: &mut Stage) -> anyhow::Result<()> {
    let key = stage.theirs.told(&format!("key {HALF:x} 1000"), "key")?;
    let key = RKey::new(u32::from_str_radix(&key, 16)?);
    let mut to = remote(&stage.card, HALF);
    to.rkey = key;
    stage.ours.fill(0, 1000, 1)?;
    let data = stage.ours.sge(0, 1000)?;
    stage.ours.succeeds(wr::Write::new(data, to).signaled(1))?;
    stage.say()?;
    stage.peer_checks(HALF, 1000, 1)?;
    stage.theirs.tell("recv 0 1000")?;
    stage
        .ours
        .succeeds(wr::SendWithInvalidate::new(data, key).signaled(1))?;
    let (received, invalidated) = stage.theirs.completes()?;
    // Neither driver reports to programs which key was invalidated; that it is no longer valid
    // shows.
    let is_told = [0, key.value()].contains(&invalidated);
    ensure!(received == 1000 && is_told, "{invalidated:x} for {key:?}");
    stage.peer_checks(0, 1000, 1)?;
    stage
        .ours
        .qp
        .post_one(wr::Write::new(data, to).signaled(1))?;
    let done = stage.ours.next()?;
    // On a stream the write completes before the peer answers.
    let is_gone = done.status == WcStatus::Success && !stage.is_infiniband;
    let status = if is_gone {
        stage.ours.ended()?
    } else {
        done.status
    };
    ensure!(
        status != WcStatus::Success,
        "the key is used after its invalidation"
    );
    Ok(())
}

fn send_invalidate_in(stage: &mut Stage) -> anyhow::Result<()> {
    let ours = &stage.ours;
    let key = ours
        .bmme
        .alloc_key(&ours.pd, 16)
        .wait()?
        .next_consumer_key();
    let range = ours.memory.range(HALF, 1000).context("a range")?;
    let mapped = PageList::map(&[range], 4096, 16).map_err(|error| anyhow::anyhow!("{error}"))?;
    let registration = wr::FastRegister::new(&key, &mapped.list).access(Host::KEY_RIGHTS);
    ours.succeeds(registration.signaled(1))?;
    let (at, rkey) = (mapped.list.address(), key.rkey());
    let write = format!("write 0 3e8 {at:x} {:x}", rkey.value());
    stage.peer_fills(0, 1000, 1)?;
    stage.theirs.tell(&write)?;
    stage.theirs.completes()?;
    stage.ours.receive(0, 1000)?;
    stage
        .theirs
        .tell(&format!("sendinv 0 3e8 {:x}", rkey.value()))?;
    let done = stage.ours.completes()?;
    ensure!(
        done.byte_len == 1000 && done.invalidated_rkey() == Some(rkey),
        "{done:?}"
    );
    stage.theirs.completes()?;
    stage.ours.check(0, 1000, 1)?;
    stage.ours.check(HALF, 1000, 1)?;
    // A request that uses the key now fails, and changes nothing.
    stage.ours.receive(0, 8)?;
    stage.peer_fills(0, 1000, 2)?;
    stage.theirs.tell(&write)?;
    let flushed = stage.ours.next()?;
    ensure!(flushed.status == WcStatus::WrFlushErr, "{flushed:?}");
    stage.ours.check(HALF, 1000, 1)
}

fn write_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        let to = remote(&stage.card, HALF);
        stage.ours.succeeds(wr::Write::new(data, to).signaled(1))?;
        stage.say()?;
        stage.peer_checks(HALF, length, seed)?;
    }
    Ok(())
}

fn write_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
        stage.peer_fills(0, length, seed)?;
        let (at, rkey) = (stage.own.address + HALF as u64, stage.own.rkey);
        stage
            .theirs
            .tell(&format!("write 0 {length:x} {at:x} {rkey:x}"))?;
        stage.theirs.completes()?;
        stage.hear()?;
        stage.ours.check(HALF, length, seed as u8)?;
    }
    Ok(())
}

fn write_immediate_out(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
        stage.theirs.tell("recv 0 8")?;
        stage.ours.fill(0, length, seed as u8)?;
        let data = stage.ours.sge(0, length)?;
        let to = remote(&stage.card, HALF);
        let write = wr::WriteWithImmediate::new(data, to, [9, 8, 7, seed as u8]);
        stage.ours.succeeds(write.signaled(1))?;
        let (received, imm) = stage.theirs.completes()?;
        ensure!(received as usize == length && imm == 0x0908_0700 + seed as u32);
        stage.peer_checks(HALF, length, seed)?;
    }
    Ok(())
}

fn write_immediate_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
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
    for (seed, length) in stage.lengths() {
        stage.peer_fills(HALF, length, seed)?;
        let sink = stage.ours.sge(0, length)?;
        let from = remote(&stage.card, HALF);
        stage.ours.succeeds(wr::Read::new(sink, from).signaled(1))?;
        stage.ours.check(0, length, seed as u8)?;
    }
    Ok(())
}

fn read_in(stage: &mut Stage) -> anyhow::Result<()> {
    for (seed, length) in stage.lengths() {
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
        let swap = wr::CompareSwap::new(result, word, old, old + 1);
        stage.ours.succeeds(swap.signaled(1))?;
        ensure!(stage.ours.memory.load_u64(0)? == old, "the value before");
    }
    // A compare-and-swap that finds another value changes nothing.
    let swap = wr::CompareSwap::new(result, word, 7, 8);
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
            .succeeds(wr::FetchAdd::new(result, word, 3).signaled(1))?;
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
        stage
            .ours
            .succeeds(wr::Send::new(data).to(&way).signaled(1))?;
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
