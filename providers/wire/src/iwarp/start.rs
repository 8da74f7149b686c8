//! MPA's request and reply frames, with which a connection begins (RFC 5044 section 7.1.1, RFC 6581 section 6).
//!
//! ```text
//! key, 16 octets | M C R S res | revision | PD_Length | private data …
//! ```
//!
//! If S is set and the revision is 2, the private data begins with the four bytes of [`Enhanced`], which PD_Length counts.

use crate::layout::{Header as _, Octets, Reserved, header, view};

/// The most bytes of private data in an MPA request or reply, [`Enhanced`] included (RFC 5044 section 7.1).
pub const MAX_PRIVATE_DATA: usize = 512;

/// Length of the longest MPA request or reply, in bytes.
pub const MAX_START_LEN: usize = StartHeader::LEN + MAX_PRIVATE_DATA;

/// The value of an inbound or outbound read depth that leaves the negotiation to the program (RFC 6581 section 9.1).
pub const LEFT_TO_PROGRAM: u16 = 0x3fff;

header! {
    /// The header of an MPA request or reply.
    StartHeader, StartHeaderView: 20 octets {
        key: Octets<16> = 128, "The key, which says whether this is a request or a reply: see [`Kind`].";
        markers: bool = 1, "M: the sender wants markers in the FPDUs that it receives.";
        crc: bool = 1, "C: the sender wants CRCs in the FPDUs of both directions.";
        reject: bool = 1, "R: in a reply, the responder rejects the connection; without meaning in a request.";
        enhanced: bool = 1, "S: the private data begins with an [`Enhanced`] header.";
        reserved: Reserved = 4, "Zero; receivers ignore it.";
        revision: u8 = 8, "Revision of MPA: 1 or 2.";
        private_data_len: u16 = 16, "PD_Length: bytes after this header, an [`Enhanced`] header included.";
    }
}

header! {
    /// The four bytes that precede the private data of the program in revision 2 (RFC 6581 section 6).
    ///
    /// Both depths are the resources of the end that sends the frame.
    Enhanced, EnhancedView: 4 octets {
        peer_to_peer: bool = 1, "A: the responder may send first, after the initiator's ready-to-receive indication.";
        rtr_send: bool = 1, "B: the ready-to-receive indication may be a SEND without payload.";
        ird: u16 = 14, "IRD: the number of RDMA Reads that the sender of this header serves at one time.";
        rtr_write: bool = 1, "C: the ready-to-receive indication may be an RDMA Write without payload.";
        rtr_read: bool = 1, "D: the ready-to-receive indication may be an RDMA Read of length zero.";
        ord: u16 = 14, "ORD: the number of RDMA Reads that the sender of this header has outstanding at one time.";
    }
}

/// Whether a frame is a request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The initiator of the connection sends it.
    Request,
    /// The responder sends it.
    Reply,
}

impl Kind {
    /// Returns the key with which such a frame begins.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// The reason why received bytes are neither an MPA request nor a reply. The receiver closes the connection without an
/// answer (RFC 5044 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// The input begins with the key of neither an MPA request nor a reply.
    #[error("neither the key of an MPA request nor that of a reply")]
    Key,
    /// The private data is longer than [`MAX_PRIVATE_DATA`].
    #[error("too much private data")]
    PrivateDataLength,
    /// The flags announce an enhanced header, but the private data is too short for it.
    #[error("no room for the enhanced header")]
    Enhanced,
}

/// An MPA request or reply. Its private data is that of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start<'a> {
    /// Whether this is a request or a reply.
    pub kind: Kind,
    /// The header, as it was received or is to be sent.
    pub header: StartHeader,
    /// The enhanced header; `None` if S is not set or the revision is 1.
    pub enhanced: Option<Enhanced>,
    /// The private data of the program, without the enhanced header.
    pub private_data: &'a [u8],
}

/// Decodes the request or reply with which the received bytes begin, and returns it with its length in bytes; `None` while
/// it is incomplete. Bytes that cannot become a request or reply are refused as soon as that is certain.
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
    /// Creates a frame of revision 2 if `enhanced` is present, otherwise of revision 1. No flag but S may be set in it.
    /// Returns `None` if the private data is too long.
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

    /// Encodes the frame to the beginning of `out`, and returns its length in bytes; `None` if `out` is too short.
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

/// The settings that an MPA request and its reply negotiate (RFC 5044 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether both ends compute the CRC of the frames that they send, and check it in those that they receive.
    pub crc: bool,
    /// Whether the initiator puts markers into the frames that it sends.
    pub initiator_markers: bool,
    /// Whether the responder puts markers into the frames that it sends.
    pub responder_markers: bool,
}

impl Settings {
    /// Combines the wishes of both ends: each asks for markers in the direction that it *receives*, and CRCs are used if at
    /// least one end asks for them.
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
    fn a_request_carries_the_wishes_of_its_sender() {
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
    fn each_flag_sets_its_own_bit() {
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
    fn a_request_may_arrive_in_pieces_or_with_frames_after_it() {
        for length in 0..REQUEST.len() {
            assert_eq!(decode(&REQUEST[..length]), Ok(None));
        }
        let more = [&REQUEST[..], &[0xa5; 9]].concat();
        let (start, len) = decode(&more).unwrap().unwrap();
        assert_eq!((start.private_data, len), (&b"hi"[..], 26));
    }

    // concerns 7.34
    #[test]
    fn bytes_that_cannot_become_a_request_are_refused_at_once() {
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
    fn only_revision_2_has_an_enhanced_header() {
        let mut octets = REQUEST;
        octets[17] = 1;
        let (start, _) = decode(&octets).unwrap().unwrap();
        assert_eq!((start.enhanced, start.private_data.len()), (None, 6));
    }

    // concerns 7.48
    #[test]
    fn the_enhanced_header_counts_towards_512_private_bytes() {
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
    fn markers_hold_for_one_direction_and_checksums_for_both() {
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
        fn any_input_decodes_or_is_refused(
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
