//! The acknowledge extended transport header (IBTA 9.3.5, 9.7.5.2).

use core::fmt;

use crate::layout::{header, newtype_field};

header! {
    /// ACK extended transport header.
    Aeth, AethView: 4 octets {
        syndrome: Syndrome = 8, "ACK, RNR NAK or NAK, with its code.";
        msn: u32 = 24, "Messages that the responder has completed; a read counts once accepted (IBTA C9-148): 24 bits.";
    }
}

newtype_field! {
    /// The syndrome of an AETH, as it is on the wire: the kind of acknowledge and its code, which [`kind`](Self::kind)
    /// decodes.
    Syndrome(u8) = 8
}

/// A decoded syndrome: the kind of acknowledge with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyndromeKind {
    /// An ACK: the responder has received everything up to the PSN. The number is a credit code, which limits how many
    /// messages the requester may send.
    Ack(u8),
    /// An RNR NAK: the responder had no receive posted. The number is a timer code for the time that the requester waits
    /// before it retries.
    RnrNak(u8),
    /// A NAK: the responder refuses the request, with this code.
    Nak(Nak),
    /// The syndrome is reserved.
    Reserved,
}

/// The code with which a NAK refuses a request, 5 bits (IBTA 9.7.5.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nak(pub u8);

impl Nak {
    /// PSN sequence error: the PSN of a packet is ahead of the one that the responder expects.
    pub const SEQUENCE_ERROR: Self = Self(0);
    /// The responder found the request invalid.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The responder does not allow the access to its memory.
    pub const REMOTE_ACCESS: Self = Self(2);
    /// The responder could not complete the request because of an error of its own.
    pub const REMOTE_OPERATION: Self = Self(3);
    /// Invalid RD request, for reliable datagrams, which no device here implements.
    pub const INVALID_RD_REQUEST: Self = Self(4);
}

impl Syndrome {
    /// The credit code of an ACK that sets no limit, because the responder takes receives from an SRQ or does not count
    /// them.
    pub const NO_LIMIT: u8 = 31;

    /// Returns the syndrome of an ACK with this credit code (5 bits).
    pub const fn ack(credit: u8) -> Self {
        Self(credit & 0x1f)
    }

    /// Returns the syndrome of an RNR NAK with this timer code (5 bits).
    pub const fn rnr_nak(timer: u8) -> Self {
        Self(0x20 | timer & 0x1f)
    }

    /// Returns the syndrome of a NAK with this code.
    pub const fn nak(nak: Nak) -> Self {
        Self(0x60 | nak.0 & 0x1f)
    }

    /// Decodes the syndrome (IBTA 9.7.5.2; the highest bit is zero).
    pub const fn kind(self) -> SyndromeKind {
        let code = self.0 & 0x1f;
        match self.0 >> 5 {
            0 => SyndromeKind::Ack(code),
            1 => SyndromeKind::RnrNak(code),
            3 => SyndromeKind::Nak(Nak(code)),
            _ => SyndromeKind::Reserved,
        }
    }

    /// Returns whether this is an ACK, which acknowledges everything up to the PSN.
    pub const fn is_ack(self) -> bool {
        self.0 >> 5 == 0
    }
}

/// The number of receives for each credit code (IBTA 9.7.7.2); [`Syndrome::NO_LIMIT`] is the code for any number.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Aeth {
    /// Creates an ACK after `msn` completed messages. Its credit code is the largest that promises at most `receives`
    /// posted receives; `None` sets no limit.
    pub fn ack(msn: u32, receives: Option<usize>) -> Self {
        let credit = receives.map_or(Syndrome::NO_LIMIT, |receives| {
            CREDITS.partition_point(|&credits| credits as usize <= receives) as u8 - 1
        });
        Self {
            syndrome: Syndrome::ack(credit),
            msn,
        }
    }

    /// Returns the number of the last message that the requester may send after this ACK, modulo 2^24; `None` if there is
    /// no limit, or if this is no ACK.
    pub fn limit(self) -> Option<u32> {
        let credits = CREDITS.get(usize::from(self.syndrome.0))?;
        Some(self.msn.wrapping_add(*credits) & 0xff_ffff)
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
            SyndromeKind::Nak(Nak(code)) => match NAKS.get(usize::from(code)) {
                Some(name) => write!(f, "NAK {name}"),
                None => write!(f, "NAK {code}"),
            },
            SyndromeKind::Reserved => write!(f, "syndrome {:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_has_exactly_one_kind() {
        for octet in 0..=u8::MAX {
            let expected = match octet {
                0x00..=0x1f => SyndromeKind::Ack(octet),
                0x20..=0x3f => SyndromeKind::RnrNak(octet - 0x20),
                0x60..=0x7f => SyndromeKind::Nak(Nak(octet - 0x60)),
                _ => SyndromeKind::Reserved,
            };
            assert_eq!(Syndrome(octet).kind(), expected);
        }
        assert_eq!(Syndrome::ack(5).kind(), SyndromeKind::Ack(5));
        assert_eq!(Syndrome::rnr_nak(14).kind(), SyndromeKind::RnrNak(14));
        let refused = SyndromeKind::Nak(Nak::REMOTE_ACCESS);
        assert_eq!(Syndrome::nak(Nak::REMOTE_ACCESS).kind(), refused);
    }

    // covers 3.68
    #[test]
    fn a_credit_code_promises_no_more_than_is_posted() {
        let of = |receives| Aeth::ack(7, Some(receives)).syndrome.0;
        assert_eq!(
            [0, 1, 4, 5, 6, 7, 24_575, 32_768, 1 << 20].map(of),
            [0, 1, 4, 4, 5, 5, 28, 30, 30]
        );
        assert_eq!(Aeth::ack(0xff_fffe, Some(5)).limit(), Some(2));
        assert_eq!(Aeth::ack(7, None).limit(), None);
    }
}
