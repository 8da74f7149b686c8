//! `ibv_rc_pingpong`, of rdma-core: its exchange over TCP, and its messages in both directions.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use polyverbs::qp::QpType;
use polyverbs::wr;

use crate::Size;
use crate::ours::{Host, Ours};
use crate::report::{Outcome, Row};
use crate::theirs::{Card, gid_text, parse_gid};

/// The bytes of a description: LID, QPN, PSN and GID with colons between, and a zero byte.
const TOLD: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
/// The last words of the connecting side, with a zero byte.
const DONE: &[u8] = b"done\0";
/// Receives that are posted at a time.
const DEPTH: usize = 400;

/// Exchanges messages with a program that waits for us.
pub(crate) fn connect(host: &Host, at: SocketAddr, size: Size) -> Row {
    let outcome = (|| {
        let ours = host.make(QpType::Rc)?;
        let mut stream = reach(at)?;
        stream.write_all(&told(&ours.card()))?;
        let peer = hear(&mut stream)?;
        ours.connect(&peer)?;
        prepare(&ours, size)?;
        stream.write_all(DONE)?;
        // The program posts its receives before it answers; the side that connected begins.
        exchange(&ours, size, true)
    })();
    row("we connect", size, outcome)
}

/// Exchanges messages with a program that connects to us.
pub(crate) fn listen(host: &Host, at: SocketAddr, size: Size) -> Row {
    let outcome = (|| {
        let ours = host.make(QpType::Rc)?;
        let (mut stream, _) = TcpListener::bind(at)?.accept()?;
        let peer = hear(&mut stream)?;
        ours.connect(&peer)?;
        prepare(&ours, size)?;
        stream.write_all(&told(&ours.card()))?;
        let mut done = [0; DONE.len()];
        stream.read_exact(&mut done)?;
        ensure!(done == DONE, "{done:?}");
        exchange(&ours, size, false)
    })();
    row("they connect", size, outcome)
}

fn row(who: &'static str, size: Size, outcome: anyhow::Result<()>) -> Row {
    let outcome = outcome.map(|()| Outcome::Ok);
    Row::new("ibv_rc_pingpong", who, "both", size.to_string(), outcome)
}

// The program may not listen yet, so this tries repeatedly.
fn reach(at: SocketAddr) -> anyhow::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(at) {
            Ok(stream) => return Ok(stream),
            Err(error) if began.elapsed() > Duration::from_secs(10) => {
                return Err(error).with_context(|| at.to_string());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn told(card: &Card) -> Vec<u8> {
    let gid = gid_text(card.gid);
    format!("0000:{:06x}:{:06x}:{gid}\0", card.qpn, card.psn).into_bytes()
}

fn hear(stream: &mut TcpStream) -> anyhow::Result<Card> {
    let mut told = [0; TOLD];
    stream.read_exact(&mut told)?;
    let text = std::str::from_utf8(&told)?.trim_end_matches('\0');
    let fields: Vec<_> = text.split(':').collect();
    let &[_, qpn, psn, gid] = &fields[..] else {
        anyhow::bail!("told {text}");
    };
    Ok(Card {
        qpn: u32::from_str_radix(qpn, 16)?,
        psn: u32::from_str_radix(psn, 16)?,
        gid: parse_gid(gid)?,
        address: 0,
        rkey: 0,
    })
}

fn prepare(ours: &Ours, size: Size) -> anyhow::Result<()> {
    (0..size.count.min(DEPTH)).try_for_each(|_| ours.receive(0, size.octets))
}

// Both sides send one message each in turn.
fn exchange(ours: &Ours, size: Size, begins: bool) -> anyhow::Result<()> {
    let (octets, count) = (size.octets, size.count);
    let data = ours.sge(0, octets)?;
    let (mut sent, mut received, mut completed) = (0, 0, 0);
    if begins {
        ours.qp.post_one(wr::Send::new(data).signaled(u64::MAX))?;
        sent += 1;
    }
    while received < count || completed < count {
        let done = ours.completes()?;
        if done.wr_id == u64::MAX {
            completed += 1;
            continue;
        }
        received += 1;
        ensure!(done.byte_len as usize == octets, "{done:?}");
        if received + DEPTH <= count {
            ours.receive(0, octets)?;
        }
        if sent < count {
            ours.qp.post_one(wr::Send::new(data).signaled(u64::MAX))?;
            sent += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_the_length_that_is_read() {
        let card = Card {
            qpn: 0x11,
            psn: 0xff_fff0,
            gid: parse_gid("00000000000000000000ffff0a4e0002").unwrap(),
            address: 0,
            rkey: 0,
        };
        assert_eq!(told(&card).len(), TOLD);
    }
}
