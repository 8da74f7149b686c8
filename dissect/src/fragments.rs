//! Reassembles IP packets from fragments that arrive in any order.

use std::collections::{HashMap, VecDeque};

use polyverbs_wire::layout::Header;
use polyverbs_wire::net::{Ipv4, Ipv6, Ipv6Extension};

use crate::assembly::{Assembly, Inserted};
use crate::encode::append_ip;
use crate::form::{Hex, Ip};
use crate::layers::{Fragment, Reason, extension_len};
use crate::line::addresses;

/// The most incomplete packets that are kept; if there are more, the oldest is given up.
const KEPT: usize = 1024;

/// The IP packets of which not all fragments have arrived.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    /// The packets with the fragments that have arrived, the oldest first.
    incomplete: VecDeque<(Key, Parts)>,
    /// How many fragments belonged to packets that were given up, by the version of IP.
    given_up: HashMap<&'static str, u64>,
    /// The packet that the last fragment has completed, if it did.
    whole: Option<Vec<u8>>,
}

/// The fields that all fragments of one packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    addresses: (std::net::IpAddr, std::net::IpAddr),
    protocol: u8,
    identification: u32,
}

/// The fragments of one packet that have arrived.
#[derive(Debug)]
struct Parts {
    version: &'static str,
    /// The IP headers of the fragment at offset 0; `None` until it has arrived.
    headers: Option<Ip>,
    payload: Assembly,
    /// The length of the payload in bytes; `None` until the last fragment has arrived.
    end: Option<u64>,
    fragments: u64,
}

impl Fragments {
    /// Inserts a fragment, and puts the packet together if it is complete now.
    ///
    /// # Errors
    /// The fragment overlaps one that has arrived, or exceeds the end of its packet.
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

    /// Takes the packet that the last fragment has completed; `None` if it completed none. The packet begins with its IP
    /// header.
    pub(crate) fn poll_whole(&mut self) -> Option<Vec<u8>> {
        self.whole.take()
    }

    /// Gives up all incomplete packets. Returns how many fragments of incomplete packets there were, by the reason to pass
    /// them over.
    pub(crate) fn of_incomplete_packets(&mut self) -> impl Iterator<Item = (Reason, u64)> {
        while self.give_up_the_oldest() {}
        self.given_up.drain().map(|(version, count)| {
            let reason = format!("{version} fragment of a packet that is not whole");
            (reason, count)
        })
    }

    // Begins a packet, and returns its index.
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

    // Returns the packet; `None` while a fragment is missing.
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

/// Returns the headers that a packet had before it was cut into fragments; `None` if it would be too long for an IP packet.
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

// Returns the field that names the protocol after the last extension header.
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

/// Returns the name of an IP version.
pub(crate) fn version(ip: &Ip) -> &'static str {
    match ip {
        Ip::V4 { .. } => "IPv4",
        Ip::V6 { .. } | Ip::Grh { .. } => "IPv6",
    }
}
