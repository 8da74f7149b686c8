//! The kernel's side: the commands of `peer.c`, and its answers.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use polyverbs::ids::Gid;

/// The description of a queue pair and its memory, for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: Gid,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

impl Card {
    /// Bytes of the private data of a request or an accept.
    pub(crate) const PRIVATE: usize = 12;

    /// The private data: the address of the memory, and its key.
    pub(crate) fn private(&self) -> [u8; Self::PRIVATE] {
        let mut told = [0; Self::PRIVATE];
        told[..8].copy_from_slice(&self.address.to_be_bytes());
        told[8..].copy_from_slice(&self.rkey.to_be_bytes());
        told
    }

    /// Reads the private data; the connection itself has carried the rest.
    pub(crate) fn told(private: &[u8]) -> anyhow::Result<Self> {
        let Some(&[a, b, c, d, e, f, g, h, ref rkey @ ..]) = private.get(..Self::PRIVATE) else {
            bail!("{} octets of private data", private.len());
        };
        Ok(Self {
            qpn: 0,
            psn: 0,
            gid: Gid([0; 16]),
            address: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: rkey
                .iter()
                .fold(0, |key, octet| key << 8 | u32::from(*octet)),
        })
    }
}

/// An event of its connection that `peer` reports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The name of the event in librdmacm.
    pub(crate) name: String,
    /// A reason of the connection manager, or an errno.
    pub(crate) status: i32,
    pub(crate) data: Vec<u8>,
}

impl Event {
    /// Parses an answer of `peer`.
    pub(crate) fn parse(answer: &str) -> anyhow::Result<Self> {
        let fields: Vec<_> = answer.split(' ').collect();
        let &["event", name, status, data] = &fields[..] else {
            bail!("no event: {answer}");
        };
        Ok(Self {
            name: name.to_owned(),
            status: status.parse()?,
            data: octets(data)?,
        })
    }
}

/// A connection to `peer`.
pub(crate) struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    pub(crate) fn connect(at: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(at).with_context(|| format!("peer at {at}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(90)))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a command without waiting for its answer.
    pub(crate) fn begin(&mut self, command: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.stream.get_mut(), "{command}")?)
    }

    /// Sends a command and returns its answer.
    pub(crate) fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.begin(command)?;
        self.answer(command)
    }

    /// Waits for the answer of a command that was sent.
    pub(crate) fn answer(&mut self, command: &str) -> anyhow::Result<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        read.with_context(|| format!("{command}: no answer"))?;
        Ok(line.trim_end().to_owned())
    }

    /// Sends a command that must be answered by `ok`.
    pub(crate) fn tell(&mut self, command: &str) -> anyhow::Result<()> {
        let answer = self.ask(command)?;
        ensure!(answer == "ok", "{command}: {answer}");
        Ok(())
    }

    /// Sends a command and returns the rest of its answer after this word.
    pub(crate) fn told(&mut self, command: &str, word: &str) -> anyhow::Result<String> {
        let answer = self.ask(command)?;
        let behind = answer.strip_prefix(word).map(str::trim_start);
        Ok(behind
            .with_context(|| format!("{command}: {answer}"))?
            .to_owned())
    }

    /// Sends a command and returns the bytes of its answer after this word.
    pub(crate) fn heard(&mut self, command: &str, word: &str) -> anyhow::Result<Vec<u8>> {
        octets(&self.told(command, word)?)
    }

    /// Sends a command and returns the event that it answers.
    pub(crate) fn event(&mut self, command: &str) -> anyhow::Result<Event> {
        Event::parse(&self.ask(command)?)
    }

    /// Waits for a successful completion; returns its length and immediate data.
    pub(crate) fn completes(&mut self) -> anyhow::Result<(u32, u32)> {
        let answer = self.ask("poll")?;
        let numbers = hexadecimals(answer.strip_prefix("wc ").unwrap_or_default());
        match numbers[..] {
            [0, _, length, data, _] => Ok((length as u32, data as u32)),
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

    /// The number that is stored in the memory of `peer`.
    pub(crate) fn number(&mut self, at: usize) -> anyhow::Result<u64> {
        let answer = self.ask(&format!("get {at:x}"))?;
        let number = answer.strip_prefix("number ").context("no number")?;
        Ok(u64::from_str_radix(number, 16)?)
    }
}

/// Parses bytes in hexadecimal; `-` stands for none.
pub(crate) fn octets(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    ensure!(
        digits.len().is_multiple_of(2) && digits.is_ascii(),
        "no octets: {text}"
    );
    let octet = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16);
    Ok((0..digits.len())
        .step_by(2)
        .map(octet)
        .collect::<Result<_, _>>()?)
}

/// Writes bytes in hexadecimal; `-` stands for none.
pub(crate) fn hexadecimal(octets: &[u8]) -> String {
    match octets {
        [] => "-".to_owned(),
        _ => octets.iter().map(|octet| format!("{octet:02x}")).collect(),
    }
}

fn hexadecimals(text: &str) -> Vec<u64> {
    text.split(' ')
        .filter_map(|number| u64::from_str_radix(number, 16).ok())
        .collect()
}

/// Parses a GID of 32 hexadecimal digits.
pub(crate) fn parse_gid(text: &str) -> anyhow::Result<Gid> {
    let number = u128::from_str_radix(text, 16).with_context(|| format!("identifier {text}"))?;
    Ok(Gid(number.to_be_bytes()))
}

pub(crate) fn gid_text(gid: Gid) -> String {
    format!("{:032x}", u128::from_be_bytes(gid.0))
}

/// The pattern with which both sides fill memory.
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

    #[test]
    fn bytes_are_written_as_they_are_read() {
        for some in [&[][..], &[0], &[0, 1, 0xfe]] {
            assert_eq!(octets(&hexadecimal(some)).unwrap(), some);
        }
        assert!(octets("1").is_err() && octets("0g").is_err());
    }

    #[test]
    fn a_description_survives_the_exchange() {
        let card = Card {
            qpn: 0,
            psn: 0,
            gid: Gid([0; 16]),
            address: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
        };
        assert_eq!(Card::told(&card.private()).unwrap(), card);
        assert!(Card::told(&[0; 11]).is_err());
    }
}
