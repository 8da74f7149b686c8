//! Control messages (ancillary data) of datagrams. Each message begins with a `cmsghdr`.

use arrayvec::ArrayVec;

/// Control messages that accompany a datagram to be sent. They take at most `ROOM` bytes.
#[derive(Debug, Default)]
pub(crate) struct Control<const ROOM: usize>(ArrayVec<u8, ROOM>);

/// Returns how many bytes a control message with `data` bytes of data takes.
pub(crate) const fn space(data: usize) -> usize {
    aligned(aligned(HEADER) + data)
}

const HEADER: usize = size_of::<libc::cmsghdr>();

// The kernel aligns headers and data to its word.
const fn aligned(length: usize) -> usize {
    length.next_multiple_of(size_of::<usize>())
}

impl<const ROOM: usize> Control<ROOM> {
    /// Appends a control message. One that does not fit is left out; that is a mistake of this crate.
    pub(crate) fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let length = aligned(HEADER) + data.len();
        debug_assert!(aligned(length) <= self.0.remaining_capacity());
        if aligned(length) > self.0.remaining_capacity() {
            return;
        }
        // The fields of the header have this order on every Linux.
        self.put(&length.to_ne_bytes());
        self.put(&level.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(data);
        self.put(&[0; size_of::<usize>()][..aligned(length) - length]);
    }

    // `push` has checked that there is room.
    fn put(&mut self, bytes: &[u8]) {
        let _ = self.0.try_extend_from_slice(bytes);
    }

    /// Appends a control message whose value is a number.
    pub(crate) fn push_number(
        &mut self,
        level: libc::c_int,
        kind: libc::c_int,
        number: libc::c_int,
    ) {
        self.push(level, kind, &number.to_ne_bytes());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the level, the type and the data of each control message in `bytes`.
pub(crate) fn messages(bytes: &[u8]) -> impl Iterator<Item = (libc::c_int, libc::c_int, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, fields) = rest.split_first_chunk()?;
        let length = usize::from_ne_bytes(*length);
        let (level, fields) = fields.split_first_chunk()?;
        let (kind, _) = fields.split_first_chunk()?;
        let data = rest.get(aligned(HEADER)..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((
            libc::c_int::from_ne_bytes(*level),
            libc::c_int::from_ne_bytes(*kind),
            data,
        ))
    })
}

/// Returns the number with which `data` begins; `None` if `data` is too short.
pub(crate) fn number(data: &[u8]) -> Option<u32> {
    data.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_control_messages_are_found_again() {
        let mut control = Control::<72>::default();
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &4156_u16.to_ne_bytes());
        control.push_number(libc::IPPROTO_IP, libc::IP_TOS, 0x2a);
        let found: Vec<_> = messages(control.bytes()).collect();
        assert_eq!(
            found,
            [
                (
                    libc::SOL_UDP,
                    libc::UDP_SEGMENT,
                    &4156_u16.to_ne_bytes()[..]
                ),
                (libc::IPPROTO_IP, libc::IP_TOS, &42_i32.to_ne_bytes()[..]),
            ]
        );
        assert_eq!(number(found[1].2), Some(42));
    }

    #[test]
    fn no_length_makes_the_parser_fail() {
        let mut control = Control::<72>::default();
        control.push_number(libc::IPPROTO_IP, libc::IP_TOS, 1);
        let bytes = control.bytes();
        for length in 0..bytes.len() {
            assert!(messages(&bytes[..length]).count() <= 1, "{length}");
        }
        for length in [0, 1, 15, 17, 1000, usize::MAX] {
            let mut lie = bytes.to_vec();
            lie[..size_of::<usize>()].copy_from_slice(&length.to_ne_bytes());
            assert!(messages(&lie).count() <= 1, "{length}");
        }
    }
}
