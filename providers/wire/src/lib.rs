//! RoCEv2 and iWARP on the wire: every header in two forms, the opcodes in one table for each protocol, the checksums.
//!
//! | module | holds |
//! | --- | --- |
//! | [`roce`] | packets of the InfiniBand transport, and their invariant CRC |
//! | [`mad`] | management datagrams; the messages of the connection manager |
//! | [`iwarp`] | MPA, DDP, RDMAP: what a TCP stream carries |
//! | [`net`] | the headers below: Ethernet, IP, UDP, TCP |
//! | [`layout`] | how a header is declared, read in place, and written |
//!
//! A *view* is the octets themselves, read in place; an *owned form* is a struct of plain numbers. Nothing here
//! allocates, and nothing panics whatever the octets are: what is not of the protocol is a `Reject`, which says why and
//! which code the protocol has for it. What only a queue pair can judge (sequence, rights, lengths against its path MTU)
//! is the drivers'.
//!
//! With the feature `serde` the owned forms can be written and read as JSON and the like; octets are hexadecimal digits.
#![forbid(unsafe_code)]

pub mod iwarp;
pub mod layout;
pub mod mad;
pub mod net;
pub mod roce;

/// What an extension is called on the wire: 32 bits of its name (FNV-1a).
///
/// It stands in [`roce::ExtensionEth`] and [`iwarp::ExtensionHeader`]. Two names may meet on one number, which whoever
/// registers extensions has to look out for.
pub const fn extension_id(name: &str) -> u32 {
    let name = name.as_bytes();
    let (mut id, mut at) = (0x811c_9dc5_u32, 0);
    while at < name.len() {
        id = (id ^ name[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_is_a_number_of_its_name() {
        // The test values of FNV-1a.
        assert_eq!(extension_id(""), 0x811c_9dc5);
        assert_eq!(extension_id("foobar"), 0xbf9c_f968);
    }
}
