use core::iter;

/// The 16 bytes of an RDS header that hold its extension headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions([u8; 16]);

/// An extension header of an RDS message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Extension {
    /// The version of the protocol, sent if the private data of the connection does not state it.
    Version(u32),
    /// The sender has finished an RDMA operation with this R_Key, which came in a cookie: the receiver no longer needs the
    /// region.
    Rdma {
        /// The R_Key of the receiver's region.
        rkey: u32,
    },
    /// Memory of the sender that the receiver may access by RDMA: the contents of a cookie.
    RdmaDestination {
        /// The R_Key of the memory.
        rkey: u32,
        /// The offset in bytes of the memory in its first page.
        offset: u32,
    },
    /// The number of connections that the sender allows between the two hosts (multipath).
    Paths(u16),
    /// A number that changes each time the sending host starts.
    Generation(u32),
    /// The sequence number that the original sender gave a forwarded message. Only processes of this project at one address
    /// send this to one another.
    Passed {
        /// The lower 48 bits of the sequence number.
        sequence: u64,
        /// Whether another process may already have forwarded the message, so that it may be a duplicate.
        again: bool,
    },
}

const VERSION: u8 = 1;
const RDMA: u8 = 2;
const RDMA_DESTINATION: u8 = 3;
const PATHS: u8 = 5;
const GENERATION: u8 = 6;
const PASSED: u8 = 0x70;
const PASSED_AGAIN: u8 = 0x71;

impl Extensions {
    /// Creates the space with a single extension header, which is all that a sender uses.
    pub fn of(extension: Extension) -> Self {
        Self([0; 16]).and(extension)
    }

    /// Adds an extension header. If there is no room for it, it is left out.
    fn and(self, extension: Extension) -> Self {
        let Self(mut bytes) = self;
        let end = bytes.len() - self.rest().len();
        let mut put = |kind, data: &[u8]| {
            if let Some(room) = bytes[end..].get_mut(..=data.len()) {
                room[0] = kind;
                room[1..].copy_from_slice(data);
            }
        };
        match extension {
            Extension::Version(version) => put(VERSION, &version.to_be_bytes()),
            Extension::Rdma { rkey } => put(RDMA, &rkey.to_be_bytes()),
            Extension::RdmaDestination { rkey, offset } => {
                let both = u64::from(rkey) << 32 | u64::from(offset);
                put(RDMA_DESTINATION, &both.to_be_bytes());
            }
            Extension::Paths(paths) => put(PATHS, &paths.to_be_bytes()),
            Extension::Generation(generation) => put(GENERATION, &generation.to_be_bytes()),
            Extension::Passed { sequence, again } => {
                let kind = if again { PASSED_AGAIN } else { PASSED };
                put(kind, &sequence.to_be_bytes()[2..]);
            }
        }
        Self(bytes)
    }

    /// Returns the extension headers up to the end mark, or up to one that is unknown or does not fit.
    pub fn iter(&self) -> impl Iterator<Item = Extension> {
        let mut rest = &self.0[..];
        iter::from_fn(move || {
            let (extension, behind) = split(rest)?;
            rest = behind;
            Some(extension)
        })
    }

    /// The bytes after the known extension headers, which begin with the end mark or with an unknown extension header.
    pub fn rest(&self) -> &[u8] {
        let mut rest = &self.0[..];
        while let Some((_, behind)) = split(rest) {
            rest = behind;
        }
        rest
    }

    /// Creates the space for extension headers from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes that hold the extension headers.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

fn split(bytes: &[u8]) -> Option<(Extension, &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let number = |rest: &[u8; 4]| u32::from_be_bytes(*rest);
    Some(match *kind {
        VERSION => {
            let (version, rest) = rest.split_first_chunk()?;
            (Extension::Version(number(version)), rest)
        }
        RDMA => {
            let (rkey, rest) = rest.split_first_chunk()?;
            (Extension::Rdma { rkey: number(rkey) }, rest)
        }
        RDMA_DESTINATION => {
            let (rkey, rest) = rest.split_first_chunk()?;
            let (offset, rest) = rest.split_first_chunk()?;
            let (rkey, offset) = (number(rkey), number(offset));
            (Extension::RdmaDestination { rkey, offset }, rest)
        }
        PATHS => {
            let (paths, rest) = rest.split_first_chunk()?;
            (Extension::Paths(u16::from_be_bytes(*paths)), rest)
        }
        GENERATION => {
            let (generation, rest) = rest.split_first_chunk()?;
            (Extension::Generation(number(generation)), rest)
        }
        PASSED | PASSED_AGAIN => {
            let (&[a, b, c, d, e, f], rest) = rest.split_first_chunk()?;
            let sequence = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
            let again = *kind == PASSED_AGAIN;
            (Extension::Passed { sequence, again }, rest)
        }
        _ => return None,
    })
}

impl FromIterator<Extension> for Extensions {
    fn from_iter<I: IntoIterator<Item = Extension>>(all: I) -> Self {
        all.into_iter().fold(Self([0; 16]), Self::and)
    }
}

impl Extension {
    /// Creates the extension header for a cookie, whose lower half is the R_Key and whose upper half is the offset.
    pub const fn from_cookie(cookie: u64) -> Self {
        Self::RdmaDestination {
            rkey: cookie as u32,
            offset: (cookie >> 32) as u32,
        }
    }

    /// Returns the cookie; `None` if the extension header names no memory for RDMA.
    pub const fn cookie(self) -> Option<u64> {
        match self {
            Self::RdmaDestination { rkey, offset } => Some((offset as u64) << 32 | rkey as u64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    fn listed(bytes: [u8; 16]) -> Vec<Extension> {
        Extensions::from_bytes(bytes).iter().collect()
    }

    // covers 8.27
    #[test]
    fn each_extension_header_has_its_type_and_length() {
        let all = [
            (
                Extension::Version(0x0301),
                hex!("01 00000301 0000000000000000000000"),
            ),
            (
                Extension::Rdma { rkey: 0x1122_3344 },
                hex!("02 11223344 0000000000000000000000"),
            ),
            (
                Extension::RdmaDestination {
                    rkey: 0x1122_3344,
                    offset: 0xfff,
                },
                hex!("03 11223344 00000fff 00000000000000"),
            ),
            (
                Extension::Paths(8),
                hex!("05 0008 00000000000000000000000000"),
            ),
            (
                Extension::Generation(0x8899_aabb),
                hex!("06 8899aabb 0000000000000000000000"),
            ),
            (
                Extension::Passed {
                    sequence: 0x1122_3344_5566,
                    again: false,
                },
                hex!("70 112233445566 000000000000000000"),
            ),
            (
                Extension::Passed {
                    sequence: 0x1122_3344_5566,
                    again: true,
                },
                hex!("71 112233445566 000000000000000000"),
            ),
        ];
        for (extension, bytes) in all {
            assert_eq!(Extensions::of(extension).bytes(), &bytes);
            assert_eq!(listed(bytes), [extension]);
        }
    }

    // covers 8.27
    #[test]
    fn extension_headers_follow_each_other_until_type_0() {
        let both = hex!("05 0008 06 00000001 00 02 00000001 0000");
        assert_eq!(
            listed(both),
            [Extension::Paths(8), Extension::Generation(1)]
        );
        assert_eq!(listed([0; 16]), []);
    }

    #[test]
    fn a_cookie_and_a_passed_sequence_number_fit_together() {
        let both = [
            Extension::from_cookie(0x0fff_1122_3344),
            Extension::Passed {
                sequence: 7,
                again: true,
            },
        ];
        let extensions: Extensions = both.into_iter().collect();
        assert!(extensions.iter().eq(both));
        assert_eq!(extensions.rest(), []);
        let three = both.into_iter().chain([Extension::Paths(1)]);
        assert_eq!(three.collect::<Extensions>(), extensions);
    }

    // covers 8.27
    #[test]
    fn an_unknown_type_ends_the_extension_headers() {
        for unknown in (0..=255).filter(|kind| ![1, 2, 3, 5, 6, 0x70, 0x71].contains(kind)) {
            let mut bytes = hex!("05 0008 ff 05 0008 0000000000000000 00");
            bytes[3] = unknown;
            assert_eq!(listed(bytes), [Extension::Paths(8)]);
        }
    }

    // covers 8.27
    #[test]
    fn a_truncated_header_ends_the_extension_headers() {
        let fits = hex!("05 0001 05 0002 05 0003 05 0004 05 0005 00");
        assert_eq!(listed(fits).len(), 5);
        assert_eq!(Extensions::from_bytes(fits).rest(), [0]);
        let does_not = hex!("03 00000001 00000002 03 00000003 0000");
        assert_eq!(
            listed(does_not),
            [Extension::RdmaDestination { rkey: 1, offset: 2 }]
        );
        assert_eq!(
            Extensions::from_bytes(does_not).rest(),
            hex!("03 00000003 0000")
        );
    }

    // covers 8.38
    #[test]
    fn a_cookie_has_the_key_low_and_the_offset_high() {
        let cookie = 0x0000_007b_aabb_ccdd;
        let memory = Extension::from_cookie(cookie);
        assert_eq!(
            memory,
            Extension::RdmaDestination {
                rkey: 0xaabb_ccdd,
                offset: 123,
            }
        );
        let arrived = Extensions::of(memory).iter().next().unwrap();
        assert_eq!(arrived.cookie(), Some(cookie));
        assert_eq!(Extension::Rdma { rkey: 1 }.cookie(), None);
    }
}
