//! Batches of outgoing datagrams that a UDP link passes to the kernel together.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use verbs_api::provider::errno_of;

use crate::sockets::udp::{MAX_BYTES, MAX_SEGMENTS};
use crate::sockets::{SendError, Transmit, UdpSocket};
use crate::{QpnRange, zeroed};
use arrayvec::ArrayVec;

/// The destination of a datagram and the IP header fields that its sender chose. Datagrams that the kernel cuts out of one
/// buffer share a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

/// A datagram of a batch, as the codec gets it to write its trailer (the ICRC).
pub(super) struct Datagram<'t> {
    pub(super) bytes: &'t mut [u8],
    pub(super) payload_end: usize,
    pub(super) to: SocketAddr,
    /// The index of the datagram among those that the kernel cuts out of one buffer. The kernel writes it into the IPv4
    /// identification, which the ICRC covers.
    pub(super) segment: u16,
}

/// Outgoing datagrams in the order in which they leave, and the memory that holds their bytes.
///
/// Consecutive datagrams that the kernel may cut out of one buffer (segmentation offload, GSO) form a *run*: they have one
/// route, their destination QPs are in one range, and they have one length, except that the last may be shorter.
pub(super) struct TxBatch {
    arena: Box<[u8]>,
    used: usize,
    spans: Vec<Span>,
    runs: Vec<Run>,
    /// The number of runs (datagrams that are cut out of one buffer) that the kernel has taken or refused; the next attempt
    /// to send begins after them.
    left: usize,
    segments: bool,
}

/// The position of a datagram in the arena, and the QP that sends it.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    length: u16,
    payload_end: u16,
    sender: u32,
}

#[derive(Clone, Copy)]
struct Run {
    route: Route,
    range: QpnRange,
    /// Length in bytes of each datagram except the last one, which may be shorter.
    segment: usize,
    bytes: usize,
    /// The index in `spans` of the first datagram of this run.
    first: usize,
    count: usize,
    /// Whether no datagram may be added, because the last one is shorter than the others.
    is_closed: bool,
}

/// Consecutive datagrams of one QP to one address that the system refused with the same error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) sender: u32,
    pub(super) to: SocketAddr,
    pub(super) errno: i32,
    pub(super) datagrams: usize,
}

/// The result of passing a batch to a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SendOutcome {
    /// The number of datagrams that the kernel has taken.
    pub(super) sent: usize,
    /// Datagrams that the system refused, with the reason. The batch drops them.
    pub(super) refused: Vec<Refused>,
    /// Whether the socket is full. The remaining datagrams stay in the batch.
    pub(super) full: bool,
}

impl SendOutcome {
    fn refuse(&mut self, sender: u32, to: SocketAddr, errno: i32) {
        let one = Refused {
            sender,
            to,
            errno,
            datagrams: 1,
        };
        match self.refused.last_mut() {
            Some(last)
                if (Refused {
                    datagrams: 1,
                    ..*last
                }) == one =>
            {
                last.datagrams += 1
            }
            _ => self.refused.push(one),
        }
    }
}

impl TxBatch {
    /// Creates an empty batch with room for `bytes` bytes of datagrams. If `segments` is true, datagrams form runs that the
    /// kernel cuts apart; otherwise each datagram is a run of its own.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub(super) fn new(bytes: usize, segments: bool) -> io::Result<Self> {
        let datagrams = (bytes / 128).max(1);
        let (mut spans, mut runs) = (Vec::new(), Vec::new());
        spans.try_reserve_exact(datagrams)?;
        runs.try_reserve_exact(datagrams)?;
        Ok(Self {
            arena: zeroed(bytes)?,
            used: 0,
            spans,
            runs,
            left: 0,
            segments,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Appends a datagram of at most `most` bytes that the QP `sender` sends. `write` fills it and returns the end of its
    /// payload and its length, or `None` if there is nothing to send; `seal` then writes its trailer. Returns `false`,
    /// without calling either, if the batch has no room.
    pub(super) fn append(
        &mut self,
        (route, sender): (Route, u32),
        most: usize,
        write: impl FnOnce(&mut [u8]) -> Option<(usize, usize)>,
        seal: impl FnOnce(Datagram<'_>),
    ) -> bool {
        let full = self.spans.len() == self.spans.capacity();
        let Some(room) = self.arena.get_mut(self.used..self.used + most) else {
            return false;
        };
        if full {
            return false;
        }
        let Some((payload_end, length)) = write(room) else {
            return true;
        };
        let range = QpnRange::of_datagram(&self.arena[self.used..self.used + length]);
        let segment = self.couple(route, range, length);
        let bytes = &mut self.arena[self.used..self.used + length];
        seal(Datagram {
            bytes,
            payload_end,
            to: route.to,
            segment,
        });
        // An arena has less than 4 GiB, a datagram less than 64 KiB.
        self.spans.push(Span {
            start: self.used as u32,
            length: length as u16,
            payload_end: payload_end as u16,
            sender,
        });
        self.used += length;
        true
    }

    // Returns whether a datagram for this route that is no longer than the last one may extend the last run.
    fn takes_more(&self, route: Route) -> bool {
        let fits = |run: &Run| !run.is_closed && run.route == route;
        self.segments && self.runs.last().is_some_and(fits)
    }

    // Finds or begins the run of a datagram that was just written, and returns the datagram's number in it.
    fn couple(&mut self, route: Route, range: QpnRange, length: usize) -> u16 {
        let fits = |run: &&mut Run| {
            run.range == range
                && length <= run.segment
                && run.count < MAX_SEGMENTS
                && run.bytes + length <= MAX_BYTES
        };
        if self.takes_more(route)
            && let Some(run) = self.runs.last_mut().filter(fits)
        {
            run.is_closed = length < run.segment;
            run.count += 1;
            run.bytes += length;
            return (run.count - 1) as u16;
        }
        self.runs.push(Run {
            route,
            range,
            segment: length,
            bytes: length,
            first: self.spans.len(),
            count: 1,
            // No datagram can follow one without bytes.
            is_closed: length == 0,
        });
        0
    }

    /// Sends the datagrams until all have left or the socket is full. If the kernel turns out to lack segmentation offload,
    /// each datagram becomes a run of its own, and `seal` is called for it again because its index has changed.
    pub(super) fn send(&mut self, socket: &UdpSocket, seal: impl Fn(Datagram<'_>)) -> SendOutcome {
        let mut outcome = SendOutcome::default();
        while self.left < self.runs.len() {
            match self.call(socket) {
                Ok(runs) => {
                    outcome.sent += self.datagrams(self.left..self.left + runs);
                    self.left += runs;
                }
                Err(error) => {
                    self.stay(&error, &mut outcome, &seal);
                    if outcome.full {
                        return outcome;
                    }
                }
            }
        }
        self.used = 0;
        self.left = 0;
        self.spans.clear();
        self.runs.clear();
        outcome
    }

    // Handles the error with which the kernel did not take the first remaining run.
    #[cold]
    fn stay(&mut self, error: &SendError, outcome: &mut SendOutcome, seal: &impl Fn(Datagram<'_>)) {
        match error {
            SendError::NoSegmentation => self.uncouple(seal),
            SendError::Full => outcome.full = true,
            SendError::Refused(error) => {
                let run = self.runs[self.left];
                for datagram in &self.spans[run.first..run.first + run.count] {
                    outcome.refuse(datagram.sender, run.route.to, errno_of(error));
                }
                self.left += 1;
            }
        }
    }

    fn call(&self, socket: &UdpSocket) -> Result<usize, SendError> {
        let runs = self.runs[self.left..].iter().take(AT_ONCE);
        let transmits: ArrayVec<_, AT_ONCE> = runs.map(|run| self.transmit(run)).collect();
        socket.send(&transmits)
    }

    fn transmit(&self, run: &Run) -> Transmit<'_> {
        let start = self.spans[run.first].start as usize;
        Transmit {
            to: run.route.to,
            traffic_class: run.route.traffic_class,
            hop_limit: run.route.hop_limit,
            // A datagram has at most 65,507 bytes.
            segment: if run.count > 1 { run.segment as u16 } else { 0 },
            bytes: &self.arena[start..start + run.bytes],
        }
    }

    // Gives each datagram that has not left a run of its own. Later datagrams get one each, too.
    #[cold]
    fn uncouple(&mut self, seal: &impl Fn(Datagram<'_>)) {
        self.segments = false;
        let coupled = self.runs.split_off(self.left);
        for run in coupled {
            for index in run.first..run.first + run.count {
                let datagram = self.spans[index];
                let (start, length) = (datagram.start as usize, usize::from(datagram.length));
                seal(Datagram {
                    bytes: &mut self.arena[start..start + length],
                    payload_end: datagram.payload_end.into(),
                    to: run.route.to,
                    segment: 0,
                });
                self.runs.push(Run {
                    segment: length,
                    bytes: length,
                    first: index,
                    count: 1,
                    is_closed: true,
                    ..run
                });
            }
        }
    }

    fn datagrams(&self, runs: Range<usize>) -> usize {
        self.runs[runs].iter().map(|run| run.count).sum()
    }
}

/// The most runs (messages that the kernel cuts into datagrams) that one call passes to the socket.
const AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use crate::sockets::{Offload, ReceiveBatch, UdpOptions};

    use super::*;

    const ROUTE: u8 = 0;
    const SENDER: u32 = 9;

    fn socket(offload: Offload) -> UdpSocket {
        let options = UdpOptions {
            offload,
            ..UdpOptions::default()
        };
        UdpSocket::bind("127.0.3.70:0".parse().unwrap(), &options).unwrap()
    }

    fn route(to: &UdpSocket, traffic_class: u8) -> Route {
        Route {
            to: to.local(),
            traffic_class,
            hop_limit: 0,
        }
    }

    // Appends a datagram of zeros for a queue pair. Its last byte is the number with which it is sealed.
    fn append(batch: &mut TxBatch, route: Route, qpn: u32, length: usize) -> bool {
        let write = |room: &mut [u8]| {
            room[..length].fill(0);
            if length >= 8 {
                room[4..8].copy_from_slice(&qpn.to_be_bytes());
            }
            Some((length, length))
        };
        batch.append((route, SENDER), length, write, number)
    }

    fn number(datagram: Datagram<'_>) {
        if let Some(last) = datagram.bytes.last_mut() {
            *last = datagram.segment as u8;
        }
    }

    fn numbers(socket: &UdpSocket) -> Vec<(usize, u8)> {
        let (mut batch, mut all) = (ReceiveBatch::new(8, 65_535).unwrap(), Vec::new());
        while socket.receive(&mut batch).unwrap() > 0 {
            for datagram in batch.messages().flat_map(|message| message.datagrams()) {
                all.push((datagram.len(), datagram.last().copied().unwrap_or(ROUTE)));
            }
        }
        all
    }

    // A batch allocates its lists before its arena, so that this covers the lists too.
    #[test]
    fn memory_that_cannot_be_allocated_is_an_error() {
        let beyond = isize::MAX as usize;
        let errors = [
            TxBatch::new(beyond, true).err(),
            ReceiveBatch::new(1, beyond).err(),
        ];
        let is_memory = |error: Option<io::Error>| {
            error.is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory)
        };
        assert!(errors.into_iter().all(is_memory));
    }

    #[test]
    fn neighbours_of_one_length_are_one_run_until_a_shorter_one() {
        let (from, to) = (socket(Offload::default()), socket(Offload::default()));
        let mut batch = TxBatch::new(1 << 16, true).unwrap();
        // The first packet of a message is longer than the middle ones, and the last is shorter; then the next message
        // begins.
        for length in [116, 100, 100, 100, 40, 116, 100] {
            assert!(append(&mut batch, route(&to, 0), 7, length));
        }
        let outcome = batch.send(&from, number);
        assert_eq!((outcome.sent, outcome.refused), (7, vec![]));
        assert!(batch.is_empty());
        let expected = [
            (116, 0),
            (100, 1),
            (100, 0),
            (100, 1),
            (40, 2),
            (116, 0),
            (100, 1),
        ];
        assert_eq!(numbers(&to), expected);
    }

    #[test]
    fn a_run_has_one_route_and_one_range() {
        let (from, to) = (socket(Offload::default()), socket(Offload::default()));
        let other = socket(Offload::default());
        let mut batch = TxBatch::new(1 << 16, true).unwrap();
        for (route, qpn) in [
            (route(&to, 0), 1),
            (route(&to, 0), 2),
            (route(&to, 2), 2),
            (route(&to, 2), 2 | 1 << 18),
            (route(&other, 2), 2 | 1 << 18),
            (route(&to, 2), 2 | 1 << 18),
        ] {
            append(&mut batch, route, qpn, 64);
        }
        assert_eq!(batch.send(&from, number).sent, 6);
        assert_eq!(numbers(&to), [(64, 0), (64, 1), (64, 0), (64, 0), (64, 0)]);
        assert_eq!(numbers(&other), [(64, 0)]);
    }

    #[test]
    fn a_run_is_no_longer_than_a_call_takes() {
        let (from, to) = (socket(Offload::default()), socket(Offload::default()));
        for (length, most) in [(4156, 15), (100, MAX_SEGMENTS)] {
            let mut batch = TxBatch::new(1 << 20, true).unwrap();
            for _ in 0..most + 1 {
                append(&mut batch, route(&to, 0), 7, length);
            }
            assert_eq!(batch.send(&from, number).sent, most + 1);
            let last: Vec<_> = numbers(&to).iter().map(|(_, number)| *number).collect();
            assert_eq!(last[most - 1..], [(most - 1) as u8, 0]);
        }
    }

    #[test]
    fn without_segmentation_each_datagram_is_a_call() {
        let (from, to) = (socket(Offload::NONE), socket(Offload::default()));
        let mut batch = TxBatch::new(1 << 16, from.can_segment()).unwrap();
        for _ in 0..40 {
            append(&mut batch, route(&to, 0), 7, 100);
        }
        assert_eq!(batch.send(&from, number).sent, 40);
        assert!(numbers(&to).iter().all(|found| *found == (100, 0)));
    }

    #[test]
    fn datagrams_are_sealed_again_if_the_kernel_does_not_cut() {
        let to = socket(Offload::default());
        let mut batch = TxBatch::new(1 << 16, true).unwrap();
        for length in [100, 100, 100, 60, 100] {
            append(&mut batch, route(&to, 0), 7, length);
        }
        let sealed = RefCell::new(0);
        batch.uncouple(&|datagram: Datagram<'_>| {
            *sealed.borrow_mut() += 1;
            number(datagram);
        });
        assert_eq!(sealed.into_inner(), 5);
        append(&mut batch, route(&to, 0), 7, 100);
        assert_eq!(batch.send(&socket(Offload::NONE), number).sent, 6);
        let found: Vec<_> = numbers(&to).iter().map(|(length, _)| *length).collect();
        assert_eq!(found, [100, 100, 100, 60, 100, 100]);
    }

    #[test]
    fn a_refused_datagram_does_not_hold_up_the_others() {
        let (from, to) = (socket(Offload::default()), socket(Offload::default()));
        let mut batch = TxBatch::new(1 << 20, true).unwrap();
        // The system refuses a broadcast by a socket that has not asked for them, also where no network is reachable.
        let nowhere = Route {
            to: "127.255.255.255:9".parse().unwrap(),
            ..route(&to, 0)
        };
        append(&mut batch, route(&to, 0), 7, 100);
        append(&mut batch, nowhere, 7, 100);
        append(&mut batch, nowhere, 7, 100);
        append(&mut batch, route(&to, 0), 7, 65_508);
        append(&mut batch, route(&to, 0), 7, 50);
        let outcome = batch.send(&from, number);
        assert_eq!((outcome.sent, outcome.full), (2, false));
        let refused = |to, errno, datagrams| Refused {
            sender: SENDER,
            to,
            errno,
            datagrams,
        };
        let expected = [
            refused(nowhere.to, libc::EACCES, 2),
            refused(to.local(), libc::EMSGSIZE, 1),
        ];
        assert_eq!(outcome.refused, expected);
        assert_eq!(numbers(&to), [(100, 0), (50, 0)]);
    }

    #[test]
    fn a_batch_is_full_by_bytes_and_by_datagrams() {
        let to = socket(Offload::default());
        let mut batch = TxBatch::new(1000, true).unwrap();
        assert!(append(&mut batch, route(&to, 0), 7, 600));
        assert!(!append(&mut batch, route(&to, 0), 7, 600));
        let mut batch = TxBatch::new(1000, true).unwrap();
        let taken = (0..100)
            .filter(|_| append(&mut batch, route(&to, 0), 7, 1))
            .count();
        assert!((1..100).contains(&taken));
    }
}
