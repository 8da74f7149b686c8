//! MPA's request and reply, with which a connection begins (RFC 5044 section 7.1.1, RFC 6581 section 6).
//!
//! ```text
//! key, 16 octets | M C R S res | revision | PD_Length | private data …
//! ```
//!
//! With S of revision 2, the private data begins with the four octets of [`Enhanced`], which PD_Length counts.

use crate::layout::{Header as _, Octets, Reserved, header, view};

/// Most octets of private data, those of [`Enhanced`] included (RFC 5044 section 7.1).
pub const MAX_PRIVATE_DATA: usize = 512;

/// Octets of the longest request or reply.
pub const MAX_START_LEN: usize = StartHeader::LEN + MAX_PRIVATE_DATA;

/// An inbound or outbound read depth that says: leave it to the program (RFC 6581 section 9.1).
pub const LEFT_TO_PROGRAM: u16 = 0x3fff;

header! {
    /// What requests and replies begin with.
    StartHeader, StartHeaderView: 20 octets {
        key: Octets<16> = 128, "Which of the two: see [`Kind`].";
        markers: bool = 1, "M: the sender wants markers in what it receives.";
        crc: bool = 1, "C: the sender wants checksums, in both directions.";
        reject: bool = 1, "R: of a reply, there will be no connection. Without meaning in a request.";
        enhanced: bool = 1, "S: the private data begins with an [`Enhanced`] header.";
        reserved: Reserved = 4, "Zero; not looked at.";
        revision: u8 = 8, "Revision: 1 or 2.";
        private_data_len: u16 = 16, "PD_Length: octets of private data.";
    }
}

header! {
    /// What a program of revision 2 says beyond private data (RFC 6581 section 6).
    ///
    /// The depths are the sender's own.
    Enhanced, EnhancedView: 4 octets {
        peer_to_peer: bool = 1, "A: the responder may send first, once a ready-to-receive indication has come.";
        rtr_send: bool = 1, "B: the indication may be a SEND of no octets.";
        ird: u16 = 14, "IRD: reads that the sender serves at one time.";
        rtr_write: bool = 1, "C: the indication may be an RDMA Write of no octets.";
        rtr_read: bool = 1, "D: the indication may be an RDMA Read of no octets.";
        ord: u16 = 14, "ORD: reads that the sender has outstanding at one time.";
    }
}

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl Kind {
    /// The key that the frame begins with.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// Why octets are no request or reply. The connection is closed without an answer (RFC 5044 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// They begin with neither key.
    #[error("no key of MPA")]
    Key,
    /// More private data than there may be.
    #[error("too much private data")]
    PrivateDataLength,
    /// An enhanced header is announced, and there is no room for it.
    #[error("no room for the enhanced header")]
    Enhanced,
}

/// A request or reply, looked at in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start<'a> {
    /// Which.
    pub kind: Kind,
    /// What it begins with.
    pub header: StartHeader,
    /// With revision 2, where S is set.
    pub enhanced: Option<Enhanced>,
    /// The program's.
    pub private_data: &'a [u8],
}

/// Takes a request or reply off the front of what has arrived; answers its length too, and `None` while it is not all
/// there. What cannot become one is refused as soon as that shows.
///
/// # Errors
/// The reason to close the connection.
pub fn decode(octets: &[u8]) -> Result<Option<(Start<'_>, usize)>, Reject> {
    let begins = |kind: &Kind| {
        let both = octets.iter().zip(kind.key());
        both.clone().all(|(octet, key)| octet == key)
    };
    let kind = [Kind::Request, Kind::Reply]
        .into_iter()
        .find(begins)
        .ok_or(Reject::Key)?;
    let Some((header, rest)) = StartHeader::split(octets) else {
        return Ok(None);
    };
    let len = usize::from(header.private_data_len);
    if len > MAX_PRIVATE_DATA {
        return Err(Reject::PrivateDataLength);
    }
    let has_enhanced = header.enhanced && header.revision >= 2;
    if has_enhanced && len < Enhanced::LEN {
        return Err(Reject::Enhanced);
    }
    let Some(private_data) = rest.get(..len) else {
        return Ok(None);
    };
    let (enhanced, private_data) = match view::<Enhanced>(private_data) {
        Some((enhanced, rest)) if has_enhanced => (Some(Enhanced::of(enhanced)), rest),
        _ => (None, private_data),
    };
    let start = Start {
        kind,
        header,
        enhanced,
        private_data,
    };
    Ok(Some((start, StartHeader::LEN + len)))
}

impl<'a> Start<'a> {
    /// A frame of revision 1, or with an enhanced header of revision 2, without any flag; `None` where the private data
    /// is too long.
    pub fn new(kind: Kind, enhanced: Option<Enhanced>, private_data: &'a [u8]) -> Option<Self> {
        let len = private_data.len() + enhanced.map_or(0, |_| Enhanced::LEN);
        (len <= MAX_PRIVATE_DATA).then(|| Self {
            kind,
            header: StartHeader {
                key: Octets(*kind.key()),
                enhanced: enhanced.is_some(),
                revision: if enhanced.is_some() { 2 } else { 1 },
                private_data_len: len as u16,
                ..StartHeader::default()
            },
            enhanced,
            private_data,
        })
    }

    /// Writes the frame to the front of `out` and answers its length; `None` where there is no room.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let room = out.len();
        let mut rest = self.header.put(out)?;
        if let Some(enhanced) = self.enhanced {
            rest = enhanced.put(rest)?;
        }
        let (private_data, rest) = rest.split_at_mut_checked(self.private_data.len())?;
        private_data.copy_from_slice(self.private_data);
        Some(room - rest.len())
    }
}

/// What a request and its reply come to (RFC 5044 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Both sides put checksums into their frames and check them.
    pub crc: bool,
    /// The initiator puts markers into what it sends.
    pub initiator_markers: bool,
    /// The responder puts markers into what it sends.
    pub responder_markers: bool,
}

impl Settings {
    /// Each side asks for markers in what it *receives*; one of them is enough for checksums.
    pub const fn of(request: &StartHeader, reply: &StartHeader) -> Self {
        Self {
            crc: request.crc || reply.crc,
            initiator_markers: reply.markers,
            responder_markers: request.markers,
        }
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;
    use proptest::prelude::*;

    use super::*;

    const REQUEST: [u8; 26] =
        hex!("4d504120494420526571204672616d65" "50 02 0006" "8004 4008" "6869");

    // concerns 7.30 7.37
    #[test]
    fn a_request_says_what_its_sender_wants() {
        let (start, len) = decode(&REQUEST).unwrap().unwrap();
        assert_eq!((start.kind, len), (Kind::Request, 26));
        let header = start.header;
        assert!(header.crc && header.enhanced && !header.markers && !header.reject);
        assert_eq!((header.revision, header.private_data_len), (2, 6));
        let enhanced = Enhanced {
            peer_to_peer: true,
            ird: 4,
            rtr_read: true,
            ord: 8,
            ..Enhanced::default()
        };
        assert_eq!(
            (start.enhanced, start.private_data),
            (Some(enhanced), &b"hi"[..])
        );

        let mut again = Start::new(Kind::Request, Some(enhanced), b"hi").unwrap();
        again.header.crc = true;
        let mut out = [0xa5; 30];
        assert_eq!(again.encode(&mut out), Some(26));
        assert_eq!(out[..26], REQUEST);
        assert_eq!(again.encode(&mut out[..25]), None);
    }

    #[test]
    fn every_flag_has_its_bit() {
        let flags = |octet: u8| {
            let mut octets = [0; 20];
            octets[..16].copy_from_slice(Kind::Reply.key());
            octets[16] = octet;
            let (start, _) = decode(&octets).unwrap().unwrap();
            assert_eq!(start.kind, Kind::Reply);
            let header = start.header;
            [header.markers, header.crc, header.reject, header.enhanced]
        };
        assert_eq!(flags(0x80), [true, false, false, false]);
        assert_eq!(flags(0x40), [false, true, false, false]);
        assert_eq!(flags(0x20), [false, false, true, false]);
        assert_eq!(flags(0x10), [false, false, false, true]);
        assert_eq!(flags(0x0f), [false; 4]);
    }

    // concerns 7.42
    #[test]
    fn it_may_come_octet_by_octet_or_with_more_behind_it() {
        for length in 0..REQUEST.len() {
            assert_eq!(decode(&REQUEST[..length]), Ok(None));
        }
        let more = [&REQUEST[..], &[0xa5; 9]].concat();
        let (start, len) = decode(&more).unwrap().unwrap();
        assert_eq!((start.private_data, len), (&b"hi"[..], 26));
    }

    // concerns 7.34
    #[test]
    fn what_is_no_start_is_refused_at_once() {
        assert_eq!(decode(b"GET / HTTP/1.1"), Err(Reject::Key));
        assert_eq!(decode(b"MPA ID Rex"), Err(Reject::Key));
        let with = |at: usize, octet: u8| {
            let mut octets = REQUEST;
            octets[at] = octet;
            decode(&octets).unwrap_err()
        };
        assert_eq!(with(15, b'x'), Reject::Key);
        assert_eq!(with(18, 3), Reject::PrivateDataLength);
        assert_eq!(with(19, 3), Reject::Enhanced);
    }

    #[test]
    fn an_enhanced_header_is_of_revision_2() {
        let mut octets = REQUEST;
        octets[17] = 1;
        let (start, _) = decode(&octets).unwrap().unwrap();
        assert_eq!((start.enhanced, start.private_data.len()), (None, 6));
    }

    // concerns 7.48
    #[test]
    fn private_data_has_512_octets_less_what_is_enhanced() {
        let data = [1; 513];
        let fits = |enhanced, len| Start::new(Kind::Request, enhanced, &data[..len]).is_some();
        assert!(fits(None, 512) && !fits(None, 513));
        let enhanced = Some(Enhanced::default());
        assert!(fits(enhanced, 508) && !fits(enhanced, 509));

        let start = Start::new(Kind::Reply, enhanced, &data[..508]).unwrap();
        let mut out = [0; MAX_START_LEN];
        assert_eq!(start.encode(&mut out), Some(MAX_START_LEN));
        assert_eq!(decode(&out), Ok(Some((start, MAX_START_LEN))));
    }

    // concerns 7.31 7.32
    #[test]
    fn markers_are_for_what_one_receives_and_checksums_for_both() {
        let header = |markers, crc| StartHeader {
            markers,
            crc,
            ..StartHeader::default()
        };
        for (request, reply) in [(false, false), (false, true), (true, false), (true, true)] {
            let settings = Settings::of(&header(request, request), &header(reply, reply));
            assert_eq!(settings.responder_markers, request);
            assert_eq!(settings.initiator_markers, reply);
            assert_eq!(settings.crc, request || reply);
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_a_start_or_not(
            kind in prop_oneof![Just(Kind::Request), Just(Kind::Reply)],
            octets in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let _ = decode(&octets);
            let octets = [&kind.key()[..], &octets].concat();
            if let Ok(Some((start, len))) = decode(&octets) {
                let mut out = vec![0xa5; len];
                prop_assert_eq!(start.encode(&mut out), Some(len));
                prop_assert_eq!(&out, &octets[..len]);
            }
        }
    }
}
