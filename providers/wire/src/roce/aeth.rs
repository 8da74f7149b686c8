//! The acknowledge extended transport header (IBTA 9.3.5, 9.7.5.2).

use core::fmt;

use crate::layout::{Field, header};

header! {
    /// Acknowledge extended transport header.
    Aeth, AethView: 4 octets {
        /// What is said.
        syndrome: Syndrome = 8,
        /// Messages that the responder has completed, a read when it was accepted (IBTA C9-148): 24 bits.
        msn: u32 = 24,
    }
}

/// What an answer says, as the wire has it: see [`kind`](Self::kind).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct Syndrome(pub u8);

/// What a syndrome means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyndromeKind {
    /// Everything up to the PSN has arrived; with a credit code, 31 for no limit.
    Ack(u8),
    /// No receive was posted: the timer code says how long to wait.
    RnrNak(u8),
    /// Refused, with a code: 0 PSN sequence error, 1 invalid request, 2 remote access error, 3 remote operational error,
    /// 4 invalid RD request, the others reserved.
    Nak(u8),
    /// Without a meaning.
    Reserved,
}

impl Syndrome {
    /// An ACK that sets no limit.
    pub const ACK: Self = Self::ack(31);
    /// NAK: the packet is ahead of the expected one.
    pub const NAK_SEQUENCE_ERROR: Self = Self(0x60);
    /// NAK: invalid request.
    pub const NAK_INVALID_REQUEST: Self = Self(0x61);
    /// NAK: remote access error.
    pub const NAK_REMOTE_ACCESS: Self = Self(0x62);
    /// NAK: remote operational error.
    pub const NAK_REMOTE_OPERATION: Self = Self(0x63);
    /// NAK: invalid RD request.
    pub const NAK_INVALID_RD_REQUEST: Self = Self(0x64);

    /// An ACK with this credit code, of 5 bits.
    pub const fn ack(credit: u8) -> Self {
        Self(credit & 0x1f)
    }

    /// An RNR NAK with this timer code, of 5 bits.
    pub const fn rnr_nak(timer: u8) -> Self {
        Self(0x20 | timer & 0x1f)
    }

    /// What it means (IBTA 9.7.5.2; the highest bit is zero).
    pub const fn kind(self) -> SyndromeKind {
        let code = self.0 & 0x1f;
        match self.0 >> 5 {
            0 => SyndromeKind::Ack(code),
            1 => SyndromeKind::RnrNak(code),
            3 => SyndromeKind::Nak(code),
            _ => SyndromeKind::Reserved,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAKS: [&str; 5] = [
            "PSN sequence error",
            "invalid request",
            "remote access error",
            "remote operational error",
            "invalid RD request",
        ];
        match self.kind() {
            SyndromeKind::Ack(_) => f.write_str("ACK"),
            SyndromeKind::RnrNak(timer) => write!(f, "RNR NAK, timer {timer}"),
            SyndromeKind::Nak(code) => match NAKS.get(usize::from(code)) {
                Some(name) => write!(f, "NAK {name}"),
                None => write!(f, "NAK {code}"),
            },
            SyndromeKind::Reserved => write!(f, "syndrome {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x}, {self})", self.0)
    }
}

impl Field for Syndrome {
    const WIDTHS: (usize, usize) = (8, 8);

    #[inline(always)]
    fn take(octets: &[u8], start: usize, width: usize) -> Self {
        Self(u8::take(octets, start, width))
    }

    #[inline(always)]
    fn put(self, octets: &mut [u8], start: usize, width: usize) {
        self.0.put(octets, start, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Header;

    #[test]
    fn every_syndrome_has_one_meaning() {
        for octet in 0..=u8::MAX {
            let expected = match octet {
                0x00..=0x1f => SyndromeKind::Ack(octet),
                0x20..=0x3f => SyndromeKind::RnrNak(octet - 0x20),
                0x60..=0x7f => SyndromeKind::Nak(octet - 0x60),
                _ => SyndromeKind::Reserved,
            };
            assert_eq!(Syndrome(octet).kind(), expected);
        }
        assert_eq!(Syndrome::ack(5).kind(), SyndromeKind::Ack(5));
        assert_eq!(Syndrome::rnr_nak(14).kind(), SyndromeKind::RnrNak(14));
        assert_eq!(Syndrome::NAK_REMOTE_ACCESS.kind(), SyndromeKind::Nak(2));
    }

    #[test]
    fn it_is_taken_apart_and_built_again() {
        let octets = [0x62, 0x00, 0x01, 0x07];
        let (aeth, _) = Aeth::split(&octets).unwrap();
        assert_eq!(aeth.syndrome, Syndrome::NAK_REMOTE_ACCESS);
        assert_eq!(aeth.msn, 0x107);
        assert_eq!(aeth.to_view().0, octets);
    }
}
