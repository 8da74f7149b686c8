//! IP packets, reassembled from fragments in any order.

use std::collections::{HashMap, VecDeque};

use polyverbs_wire::layout::Header;
use polyverbs_wire::net::{Ipv4, Ipv6, Ipv6Extension};

use crate::assembly::{Assembly, Inserted};
use crate::encode::append_ip;
use crate::form::{Hex, Ip};
use crate::layers::{Fragment, Reason, extension_len};
use crate::line::addresses;

/// How many incomplete packets are kept.
const KEPT: usize = 1024;

/// Incomplete packets.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    /// Those of which some fragments have arrived, the oldest first.
    incomplete: VecDeque<(Key, Parts)>,
    /// How many fragments of packets that were given up there were, by the version of IP.
    given_up: HashMap<&'static str, u64>,
    /// The packet that the last fragment has completed.
    whole: Option<Vec<u8>>,
}

/// What the fragments of one packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    addresses: (std::net::IpAddr, std::net::IpAddr),
    protocol: u8,
    identification: u32,
}

/// The fragments of a packet that have arrived.
#[derive(Debug)]
struct Parts {
    version: &'static str,
    /// The headers of the first fragment.
    headers: Option<Ip>,
    payload: Assembly,
    /// Where the payload ends, known from the last fragment.
    end: Option<u64>,
    fragments: u64,
}

impl Fragments {
    /// Inserts a fragment.
    ///
    /// # Errors
    /// Its bytes, or bytes where they belong, have arrived already; or the packet ends before.
    pub(crate) fn insert(
        &mut self,
        ip: &Ip,
        fragment: Fragment,
        octets: &[u8],
    ) -> Result<(), Reason> {
        let key = Key {
            addresses: addresses(ip),
            protocol: fragment.protocol,
            identification: fragment.identification,
        };
        let known = self.incomplete.iter().position(|(known, _)| *known == key);
        let at = known.unwrap_or_else(|| self.begin(key, version(ip)));
        let Some((_, parts)) = self.incomplete.get_mut(at) else {
            return Ok(());
        };
        parts.insert(ip, fragment, octets)?;
        if let Some(whole) = parts.whole(fragment.protocol) {
            self.incomplete.remove(at);
            self.whole = Some(whole);
        }
        Ok(())
    }

    /// The packet that the last fragment has completed, on a raw link.
    pub(crate) fn poll_whole(&mut self) -> Option<Vec<u8>> {
        self.whole.take()
    }

    /// How many fragments there were of packets of which others are missing, by the reason to pass them over.
    pub(crate) fn of_incomplete_packets(&mut self) -> impl Iterator<Item = (Reason, u64)> {
        while self.give_up_the_oldest() {}
        self.given_up.drain().map(|(version, count)| {
            let reason = format!("{version} fragment of a packet that is not whole");
            (reason, count)
        })
    }

    // Returns the place of the new packet.
    fn begin(&mut self, key: Key, version: &'static str) -> usize {
        if self.incomplete.len() == KEPT {
            self.give_up_the_oldest();
        }
        let parts = Parts {
            version,
            headers: None,
            payload: Assembly::default(),
            end: None,
            fragments: 0,
        };
        self.incomplete.push_back((key, parts));
        self.incomplete.len() - 1
    }

    fn give_up_the_oldest(&mut self) -> bool {
        let Some((_, parts)) = self.incomplete.pop_front() else {
            return false;
        };
        *self.given_up.entry(parts.version).or_default() += parts.fragments;
        true
    }
}

impl Parts {
    fn insert(&mut self, ip: &Ip, fragment: Fragment, octets: &[u8]) -> Result<(), Reason> {
        let version = self.version;
        let begin = u64::from(fragment.offset);
        let end = begin + octets.len() as u64;
        let ends_elsewhere = match self.end {
            Some(known) => end > known || (fragment.is_last && end != known),
            None => fragment.is_last && end < self.payload.furthest(),
        };
        if ends_elsewhere {
            return Err(format!("{version} fragment beyond the end of its packet"));
        }
        if self.payload.has_any(begin, end) || self.payload.insert(begin, octets) != Inserted::Taken
        {
            return Err(format!("{version} fragment that overlaps another"));
        }
        self.fragments += 1;
        if fragment.is_last {
            self.end = Some(end);
        }
        if begin == 0 {
            self.headers = Some(ip.clone());
        }
        Ok(())
    }

    // The packet, if nothing of it is missing.
    fn whole(&self, protocol: u8) -> Option<Vec<u8>> {
        let is_whole = self.end == Some(self.payload.end());
        let headers = self.headers.as_ref().filter(|_| is_whole)?;
        let payload = self.payload.from(0);
        let mut whole = Vec::new();
        append_ip(&mut whole, &unfragmented(headers, protocol, payload.len())?);
        whole.extend(payload);
        Some(whole)
    }
}

/// The headers that a packet had before it was cut into fragments; `None` if it is too long to have been one.
fn unfragmented(of_first: &Ip, protocol: u8, payload: usize) -> Option<Ip> {
    Some(match of_first {
        Ip::V4 { header, options } => Ip::V4 {
            header: Ipv4 {
                total_length: (Ipv4::LEN + options.0.len() + payload).try_into().ok()?,
                more_fragments: false,
                ..*header
            },
            options: options.clone(),
        },
        Ip::V6 { header, extensions } => {
            let len = extensions.0.len().checked_sub(Ipv6Extension::LEN)?;
            let mut header = Ipv6 {
                payload_length: (len + payload).try_into().ok()?,
                ..*header
            };
            let mut extensions = extensions.0[..len].to_vec();
            *last_next_header(&mut header, &mut extensions)? = protocol;
            Ip::V6 {
                header,
                extensions: Hex(extensions),
            }
        }
        Ip::Grh { .. } => return None,
    })
}

// The field that names what follows the extension headers.
fn last_next_header<'h>(header: &'h mut Ipv6, extensions: &'h mut [u8]) -> Option<&'h mut u8> {
    let (mut last, mut at, mut number) = (None, 0, header.next_header);
    while at < extensions.len() {
        let (extension, _) = Ipv6Extension::split(&extensions[at..])?;
        last = Some(at);
        at += extension_len(number, &extension);
        number = extension.next_header;
    }
    match last {
        None => Some(&mut header.next_header),
        Some(at) => extensions.get_mut(at),
    }
}

/// The version of an IP header, by name.
pub(crate) fn version(ip: &Ip) -> &'static str {
    match ip {
        Ip::V4 { .. } => "IPv4",
        Ip::V6 { .. } | Ip::Grh { .. } => "IPv6",
    }
}
