//! The messages between the process that has a target and the one that has a shared receive queue. Both run the same version
//! of this program, so numbers are in the machine's byte order.

use polyverbs_engine::emulation::DomainId;
use verbs_api::ids::Psn;
use verbs_api::qp::QpType;
use verbs_api::{Access, RKey, RemoteAddress};

use crate::header::{Body, Header, Nak, Position, SendExtra};

/// A request that another process executes; its header and payload follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The number of the target.
    pub(super) qpn: u32,
    /// The number of the initiator.
    pub(super) peer_qpn: u32,
    /// The number of the shared receive queue.
    pub(super) srqn: u32,
    /// Distinguishes this connection of the target from earlier ones.
    pub(super) generation: u64,
    /// The number of the request among those of the connection.
    pub(super) number: u64,
    /// The number of this message, which its outcome repeats.
    pub(super) step: u32,
    /// The rights that the target grants to its peer.
    pub(super) access: u32,
    /// For a read, the bytes from here to the end of what the initiator reads.
    pub(super) left: u32,
    /// The domain of the target.
    pub(super) domain: DomainId,
    /// The path MTU of the target: its log2.
    pub(super) mtu_shift: u8,
}

/// The outcome of a request. Bytes that it returns follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) qpn: u32,
    pub(super) generation: u64,
    pub(super) step: u32,
    pub(super) code: Code,
    pub(super) fails: Fails,
}

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// It was carried out, and returns nothing.
    Done,
    /// It found no receive.
    Rnr,
    /// It was refused.
    Nak(Nak),
    /// An atomic returns the original value of its operand.
    Value(u64),
    /// A read, a flush or an operation of an extension returns the bytes that follow.
    Bytes,
    /// It was not carried out, because the shared receive queue or its completion queue has failed.
    Fatal,
}

/// Whether the target goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fails {
    No,
    /// It does, and the completion of a receive has reported that.
    Silently,
    /// It does, and an event reports that.
    WithEvent,
}

/// A message that was received.
#[derive(Debug, PartialEq)]
pub(super) enum Message<'m> {
    Request(Request, Header, &'m [u8]),
    Outcome(Outcome, &'m [u8]),
    /// The target with this number ends its connection of this generation.
    End(u32, u64),
}

/// The most bytes of a read that one message asks for: a multiple of every path MTU.
pub(super) const PIECE: u32 = 32 << 10;
/// The bits that log2 of a path MTU takes.
const MTU_SHIFT: u8 = 0x0f;

const REQUEST: u8 = 1;
const OUTCOME: u8 = 2;
const END: u8 = 3;

impl Request {
    /// Returns the message of this request; `None` if `header` is not that of a request.
    pub(super) fn encode(&self, header: &Header, payload: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(128 + payload.len());
        out.push(REQUEST);
        for word in [
            self.qpn,
            self.peer_qpn,
            self.srqn,
            self.step,
            self.access,
            self.left,
            header.psn.value(),
        ] {
            out.extend(word.to_ne_bytes());
        }
        for word in [self.generation, self.number] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(self.domain);
        let flags = u8::from(header.solicited) | u8::from(header.joined) << 1;
        out.extend([self.mtu_shift, header.mtu_shift, flags]);
        put_body(&mut out, header.body)?;
        out.extend(payload);
        Some(out)
    }
}

impl Outcome {
    /// Returns the message of this outcome.
    pub(super) fn encode(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + bytes.len());
        let (code, value) = match self.code {
            Code::Done => (0, 0),
            Code::Rnr => (1, 0),
            Code::Nak(nak) => (2, u64::from(nak.0)),
            Code::Value(value) => (3, value),
            Code::Bytes => (4, 0),
            Code::Fatal => (5, 0),
        };
        out.extend([OUTCOME, code, self.fails as u8]);
        out.extend(self.qpn.to_ne_bytes());
        out.extend(self.step.to_ne_bytes());
        out.extend(self.generation.to_ne_bytes());
        out.extend(value.to_ne_bytes());
        out.extend(bytes);
        out
    }
}

/// Returns the message that ends the stand-ins of a target.
pub(super) fn end(qpn: u32, generation: u64) -> Vec<u8> {
    let mut out = vec![END];
    out.extend(qpn.to_ne_bytes());
    out.extend(generation.to_ne_bytes());
    out
}

/// Parses a message; `None` if it is invalid.
pub(super) fn read(message: &[u8]) -> Option<Message<'_>> {
    let mut from = Reader(message);
    match from.byte()? {
        REQUEST => read_request(from),
        OUTCOME => {
            let (code, fails) = (from.byte()?, from.byte()?);
            let (qpn, step) = (from.word()?, from.word()?);
            let (generation, value) = (from.long()?, from.long()?);
            let outcome = Outcome {
                qpn,
                generation,
                step,
                code: match code {
                    0 => Code::Done,
                    1 => Code::Rnr,
                    2 => Code::Nak(Nak(value as u8)),
                    3 => Code::Value(value),
                    4 => Code::Bytes,
                    5 => Code::Fatal,
                    _ => return None,
                },
                fails: match fails {
                    0 => Fails::No,
                    1 => Fails::Silently,
                    2 => Fails::WithEvent,
                    _ => return None,
                },
            };
            Some(Message::Outcome(outcome, from.0))
        }
        END => Some(Message::End(from.word()?, from.long()?)),
        _ => None,
    }
}

fn read_request(mut from: Reader<'_>) -> Option<Message<'_>> {
    let mut words = [0; 7];
    for word in &mut words {
        *word = from.word()?;
    }
    let [qpn, peer_qpn, srqn, step, access, left, psn] = words;
    let (generation, number) = (from.long()?, from.long()?);
    let domain = from.take()?;
    let [mtu_shift, sender_shift, flags] = from.take()?;
    // The path MTU is one of InfiniBand's: 256 to 4096 bytes.
    if !(8..=12).contains(&mtu_shift) {
        return None;
    }
    let body = read_body(&mut from)?;
    if matches!(body, Body::ReadRequest(_, length) if length > PIECE) {
        return None;
    }
    let request = Request {
        qpn,
        peer_qpn,
        srqn,
        generation,
        number,
        step,
        access,
        left,
        domain,
        mtu_shift,
    };
    let header = Header {
        solicited: flags & 1 != 0,
        joined: flags & 2 != 0,
        mtu_shift: sender_shift & MTU_SHIFT,
        xrc: Some(srqn),
        ..Header::new(QpType::Rc, peer_qpn, qpn, Psn::new(psn), body)
    };
    Some(Message::Request(request, header, from.0))
}

const SEND: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const COMPARE_SWAP: u8 = 4;
const FETCH_ADD: u8 = 5;
const ATOMIC_WRITE: u8 = 6;
const FLUSH: u8 = 7;
const EXTENSION: u8 = 8;

fn put_body(out: &mut Vec<u8>, body: Body) -> Option<()> {
    let remote = |out: &mut Vec<u8>, remote: RemoteAddress| {
        out.extend(remote.addr.to_ne_bytes());
        out.extend(remote.rkey.value().to_ne_bytes());
    };
    match body {
        Body::Send(position, extra) => {
            out.extend([SEND, position_code(position)]);
            let (kind, value) = match extra {
                SendExtra::Nothing => (0, [0; 4]),
                SendExtra::Immediate(bytes) => (1, bytes),
                SendExtra::Invalidate(key) => (2, key.to_ne_bytes()),
            };
            out.push(kind);
            out.extend(value);
        }
        Body::Write(position, address, total, immediate) => {
            out.extend([WRITE, position_code(position), immediate.is_some().into()]);
            remote(out, address);
            out.extend(total.to_ne_bytes());
            out.extend(immediate.unwrap_or_default());
        }
        Body::ReadRequest(address, length) => {
            out.push(READ);
            remote(out, address);
            out.extend(length.to_ne_bytes());
        }
        Body::CompareSwap(address, compare, swap) => {
            out.push(COMPARE_SWAP);
            remote(out, address);
            out.extend(compare.to_ne_bytes());
            out.extend(swap.to_ne_bytes());
        }
        Body::FetchAdd(address, add) => {
            out.push(FETCH_ADD);
            remote(out, address);
            out.extend(add.to_ne_bytes());
        }
        Body::AtomicWrite(address) => {
            out.push(ATOMIC_WRITE);
            remote(out, address);
        }
        Body::Flush(address, length, placement, whole) => {
            out.extend([FLUSH, whole.into()]);
            remote(out, address);
            out.extend(length.to_ne_bytes());
            out.extend(placement.bits().to_ne_bytes());
        }
        Body::ExtensionRequest(extension, operation) => {
            out.push(EXTENSION);
            out.extend(extension.to_ne_bytes());
            out.extend(operation.to_ne_bytes());
        }
        _ => return None,
    }
    Some(())
}

fn read_body(from: &mut Reader<'_>) -> Option<Body> {
    Some(match from.byte()? {
        SEND => {
            let (position, kind) = (read_position(from)?, from.byte()?);
            let value = from.take()?;
            let extra = match kind {
                0 => SendExtra::Nothing,
                1 => SendExtra::Immediate(value),
                2 => SendExtra::Invalidate(u32::from_ne_bytes(value)),
                _ => return None,
            };
            Body::Send(position, extra)
        }
        WRITE => {
            let (position, has_immediate) = (read_position(from)?, from.byte()? != 0);
            let (remote, total, immediate) = (from.remote()?, from.word()?, from.take()?);
            Body::Write(position, remote, total, has_immediate.then_some(immediate))
        }
        READ => Body::ReadRequest(from.remote()?, from.word()?),
        COMPARE_SWAP => Body::CompareSwap(from.remote()?, from.long()?, from.long()?),
        FETCH_ADD => Body::FetchAdd(from.remote()?, from.long()?),
        ATOMIC_WRITE => Body::AtomicWrite(from.remote()?),
        FLUSH => {
            let whole = from.byte()? != 0;
            let (remote, length) = (from.remote()?, from.word()?);
            let placement = Access::from_bits_truncate(from.word()?);
            Body::Flush(remote, length, placement, whole)
        }
        EXTENSION => {
            let extension = from.word()?;
            Body::ExtensionRequest(extension, u16::from_ne_bytes(from.take()?))
        }
        _ => return None,
    })
}

const fn position_code(position: Position) -> u8 {
    match position {
        Position::First => 0,
        Position::Middle => 1,
        Position::Last => 2,
        Position::Only => 3,
    }
}

fn read_position(from: &mut Reader<'_>) -> Option<Position> {
    Some(match from.byte()? {
        0 => Position::First,
        1 => Position::Middle,
        2 => Position::Last,
        3 => Position::Only,
        _ => return None,
    })
}

/// The bytes of a message that were not read yet.
struct Reader<'m>(&'m [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn remote(&mut self) -> Option<RemoteAddress> {
        let (addr, rkey) = (self.long()?, self.word()?);
        Some(RemoteAddress::new(addr, RKey::new(rkey)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Vec<Body> {
        let remote = RemoteAddress::new(0x1234_5678_9abc, RKey::new(77));
        vec![
            Body::Send(Position::Only, SendExtra::Nothing),
            Body::Send(Position::Last, SendExtra::Immediate([1, 2, 3, 4])),
            Body::Send(Position::Only, SendExtra::Invalidate(5)),
            Body::Write(Position::First, remote, 9000, None),
            Body::Write(Position::Only, remote, 3, Some([4, 3, 2, 1])),
            Body::ReadRequest(remote, PIECE),
            Body::CompareSwap(remote, 1, u64::MAX),
            Body::FetchAdd(remote, 7),
            Body::AtomicWrite(remote),
            Body::Flush(remote, 8, Access::FLUSH_GLOBAL, true),
            Body::ExtensionRequest(0x1_0000, 9),
        ]
    }

    #[test]
    fn each_request_is_read_as_it_was_written() {
        let request = Request {
            qpn: 0x04_0011,
            peer_qpn: 0x08_0012,
            srqn: 0x0c_0013,
            generation: u64::MAX - 1,
            number: 1 << 40,
            step: 3,
            access: Access::REMOTE_READ.bits(),
            left: 5,
            domain: *b"device and inode",
            mtu_shift: 10,
        };
        for body in bodies() {
            let header = Header {
                solicited: true,
                joined: true,
                mtu_shift: 12,
                xrc: Some(request.srqn),
                ..Header::new(QpType::Rc, request.peer_qpn, request.qpn, Psn::new(8), body)
            };
            let message = request.encode(&header, b"payload").unwrap();
            let expected = Message::Request(request, header, b"payload");
            assert_eq!(read(&message), Some(expected));
            let headers = message.len() - b"payload".len();
            for length in 0..headers {
                assert_eq!(read(&message[..length]), None);
            }
        }
    }

    #[test]
    fn each_outcome_is_read_as_it_was_written() {
        let codes = [
            Code::Done,
            Code::Rnr,
            Code::Nak(Nak::REMOTE_ACCESS),
            Code::Value(u64::MAX),
            Code::Bytes,
            Code::Fatal,
        ];
        let fails = [Fails::No, Fails::Silently, Fails::WithEvent];
        for (code, fails) in codes
            .iter()
            .flat_map(|code| fails.map(|fails| (*code, fails)))
        {
            let outcome = Outcome {
                qpn: 0x04_0011,
                generation: 1 << 50,
                step: 6,
                code,
                fails,
            };
            let message = outcome.encode(b"data");
            assert_eq!(read(&message), Some(Message::Outcome(outcome, b"data")));
            for length in 0..message.len() - b"data".len() {
                assert_eq!(read(&message[..length]), None);
            }
        }
        assert_eq!(read(&end(7, 8)), Some(Message::End(7, 8)));
    }

    #[test]
    fn a_read_of_more_than_a_piece_is_invalid() {
        let request = Request {
            qpn: 1,
            peer_qpn: 2,
            srqn: 3,
            generation: 4,
            number: 5,
            step: 6,
            access: 7,
            left: 8,
            domain: [0; 16],
            mtu_shift: 12,
        };
        let remote = RemoteAddress::new(0, RKey::new(0));
        let body = Body::ReadRequest(remote, PIECE + 1);
        let header = Header::new(QpType::Rc, 2, 1, Psn::new(0), body);
        assert_eq!(read(&request.encode(&header, b"").unwrap()), None);
        let other = Request {
            mtu_shift: 64,
            ..request
        };
        let header = Header::new(QpType::Rc, 2, 1, Psn::new(0), Body::AtomicWrite(remote));
        assert_eq!(read(&other.encode(&header, b"").unwrap()), None);
    }

    #[test]
    fn arbitrary_bytes_are_read_without_panic() {
        for kind in 0..=u8::MAX {
            for length in 0..100 {
                let mut bytes = vec![kind; length];
                if let Some(first) = bytes.first_mut() {
                    *first = kind % 5;
                }
                let _ = read(&bytes);
            }
        }
    }
}
