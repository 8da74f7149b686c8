//! Control messages (`cmsghdr`), in the layout that they have in the memory of C programs.

use std::ffi::c_int;

use rustix::io::Errno;

const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGNED: usize = align_of::<libc::cmsghdr>();

/// The buffer with the control messages of a message that a program sends.
pub(crate) struct Sent<'a>(pub(crate) &'a [u8]);

/// One control message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ControlMessage<'a> {
    pub(crate) level: c_int,
    pub(crate) kind: c_int,
    pub(crate) data: &'a [u8],
}

impl<'a> Iterator for Sent<'a> {
    type Item = Result<ControlMessage<'a>, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.0.split_first_chunk::<{ size_of::<usize>() }>()?;
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, data) = rest.split_first_chunk()?;
        let length = usize::from_ne_bytes(*length);
        let Some(data) = length
            .checked_sub(HEADER)
            .and_then(|length| data.get(..length))
        else {
            self.0 = &[];
            return Some(Err(Errno::INVAL));
        };
        self.0 = self
            .0
            .get(length.next_multiple_of(ALIGNED)..)
            .unwrap_or(&[]);
        Some(Ok(ControlMessage {
            level: c_int::from_ne_bytes(*level),
            kind: c_int::from_ne_bytes(*kind),
            data,
        }))
    }
}

/// The program's buffer for the control messages of a received message.
pub(crate) struct Room<'a> {
    all: &'a mut [u8],
    used: usize,
    truncated: bool,
}

impl<'a> Room<'a> {
    pub(crate) fn new(all: &'a mut [u8]) -> Self {
        Self {
            all,
            used: 0,
            truncated: false,
        }
    }

    /// The number of control messages with this many bytes of data for which the buffer still has room.
    pub(crate) fn count(&self, data: usize) -> usize {
        (self.all.len() - self.used) / (HEADER + data).next_multiple_of(ALIGNED)
    }

    /// Appends a control message of level `SOL_RDS`, truncated to the room that is left.
    pub(crate) fn put(&mut self, kind: c_int, data: &[u8]) {
        let rest = &mut self.all[self.used..];
        if rest.len() < HEADER {
            self.truncated = true;
            return;
        }
        let whole = HEADER + data.len();
        let length = whole.min(rest.len());
        self.truncated |= length < whole;
        let header = [
            &length.to_ne_bytes()[..],
            &libc::SOL_RDS.to_ne_bytes(),
            &kind.to_ne_bytes(),
        ];
        rest[..HEADER].copy_from_slice(&header.concat());
        rest[HEADER..length].copy_from_slice(&data[..length - HEADER]);
        self.used += whole.next_multiple_of(ALIGNED).min(rest.len());
    }

    /// Returns the number of bytes used, and whether a control message was truncated.
    pub(crate) fn finish(self) -> (usize, bool) {
        (self.used, self.truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<ControlMessage<'_>, Errno>> {
        Sent(bytes).collect()
    }

    fn of_rds(kind: c_int, data: &[u8]) -> Result<ControlMessage<'_>, Errno> {
        Ok(ControlMessage {
            level: libc::SOL_RDS,
            kind,
            data,
        })
    }

    #[test]
    fn written_control_messages_are_read_back() {
        let mut bytes = [0xa5; 80];
        let mut room = Room::new(&mut bytes);
        assert_eq!(room.count(8), 3);
        room.put(2, &[1; 8]);
        room.put(4, &[2; 12]);
        assert_eq!(room.count(8), 1);
        assert_eq!(room.finish(), (56, false));
        assert_eq!(
            read(&bytes[..56]),
            [of_rds(2, &[1; 8]), of_rds(4, &[2; 12])]
        );
    }

    #[test]
    fn control_messages_are_cut_to_the_room() {
        for (room, expected) in [(0, 0), (15, 0), (16, 16), (20, 20), (24, 24)] {
            let mut bytes = [0xa5; 32];
            let mut control = Room::new(&mut bytes[..room]);
            control.put(2, &[1; 8]);
            assert_eq!(control.finish(), (expected, room < 24), "{room}");
            assert_eq!(bytes[expected..], [0xa5; 32][expected..]);
        }
    }

    #[test]
    fn invalid_lengths_are_refused() {
        let mut bytes = [0; 24];
        Room::new(&mut bytes).put(2, &[1; 8]);
        for length in [0, 15, 25, usize::MAX] {
            bytes[..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(read(&bytes), [Err(Errno::INVAL)], "{length}");
        }
        assert_eq!(read(&bytes[..15]), []);
    }
}
