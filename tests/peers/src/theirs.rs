//! The kernel's side: what `peer.c` is told, and what it answers.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use verbs_api::Gid;

/// A queue pair, and the memory behind it, as its owner tells of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: Gid,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// A connection to `peer`.
pub(crate) struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    pub(crate) fn connect(at: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(at).with_context(|| format!("peer at {at}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a command and answers its answer.
    pub(crate) fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        writeln!(self.stream.get_mut(), "{command}")?;
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        read.with_context(|| format!("{command}: no answer"))?;
        Ok(line.trim_end().to_owned())
    }

    /// Sends a command that is obeyed.
    pub(crate) fn tell(&mut self, command: &str) -> anyhow::Result<()> {
        let answer = self.ask(command)?;
        ensure!(answer == "ok", "{command}: {answer}");
        Ok(())
    }

    /// Waits for a completion that succeeds: its length and immediate data.
    pub(crate) fn completes(&mut self) -> anyhow::Result<(u32, u32)> {
        let answer = self.ask("poll")?;
        let numbers = hexadecimals(answer.strip_prefix("wc ").unwrap_or_default());
        match numbers[..] {
            [0, _, length, imm] => Ok((length as u32, imm as u32)),
            _ => bail!("its completion: {answer}"),
        }
    }

    /// Makes a queue pair: `rc` with a path MTU, or `ud`.
    pub(crate) fn make(&mut self, what: &str) -> anyhow::Result<Card> {
        let answer = self.ask(what)?;
        let fields: Vec<_> = answer.split(' ').collect();
        let &["qp", qpn, psn, gid, address, rkey] = &fields[..] else {
            bail!("{what}: {answer}");
        };
        Ok(Card {
            qpn: u32::from_str_radix(qpn, 16)?,
            psn: u32::from_str_radix(psn, 16)?,
            gid: parse_gid(gid)?,
            address: u64::from_str_radix(address, 16)?,
            rkey: u32::from_str_radix(rkey, 16)?,
        })
    }

    /// Says nothing more: it takes its queue pair down.
    pub(crate) fn hang_up(&mut self) -> anyhow::Result<()> {
        Ok(self.stream.get_mut().shutdown(std::net::Shutdown::Both)?)
    }

    /// What lies in its memory.
    pub(crate) fn number(&mut self, at: usize) -> anyhow::Result<u64> {
        let answer = self.ask(&format!("get {at:x}"))?;
        let number = answer.strip_prefix("number ").context("no number")?;
        Ok(u64::from_str_radix(number, 16)?)
    }
}

fn hexadecimals(text: &str) -> Vec<u64> {
    text.split(' ')
        .filter_map(|number| u64::from_str_radix(number, 16).ok())
        .collect()
}

/// Thirty-two hexadecimal digits.
pub(crate) fn parse_gid(text: &str) -> anyhow::Result<Gid> {
    let number = u128::from_str_radix(text, 16).with_context(|| format!("identifier {text}"))?;
    Ok(Gid(number.to_be_bytes()))
}

pub(crate) fn gid_text(gid: Gid) -> String {
    format!("{:032x}", u128::from_be_bytes(gid.0))
}

/// What memory is filled with: the same on both sides.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| {
            let sum = at
                .wrapping_mul(7)
                .wrapping_add((at >> 8).wrapping_mul(13))
                .wrapping_add(seed.into());
            sum as u8
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_written_as_they_are_read() {
        let text = "00000000000000000000ffff0a4e0001";
        assert_eq!(gid_text(parse_gid(text).unwrap()), text);
        assert!(parse_gid("nothing").is_err());
    }
}
