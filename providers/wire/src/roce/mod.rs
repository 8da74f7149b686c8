//! RoCEv2: packets of the InfiniBand transport in UDP datagrams (IBTA chapter 9; annexes A14, A17, A19).
//!
//! | module | holds |
//! | --- | --- |
//! | [`opcode`] | the table of opcodes: which headers, which payload, which service and operation |
//! | [`bth`], [`aeth`], [`extended`] | headers |
//! | [`packet`] | decoding and encoding of a packet |
//! | [`icrc`] | the invariant CRC, also where the IP header is not visible |
//! | [`route`] | GRH |

pub mod aeth;
pub mod bth;
pub mod extended;
pub mod icrc;
pub mod opcode;
pub mod packet;
pub mod route;

pub use aeth::{Aeth, AethView, Nak, Syndrome, SyndromeKind};
pub use bth::{Bth, BthView};
pub use extended::{
    AtomicAckEth, AtomicEth, Cnp, Deth, ExtendedHeader, ExtensionEth, Feth, HeaderSet, Ieth, ImmDt,
    Reth, Xrceth,
};
pub use icrc::{Envelope, Icrc};
pub use opcode::{Facts, Opcode, Operation, PayloadRule, Position, SendExtra, Service};
pub use packet::{Headers, Packet, Reject, decode, decode_front, decode_headers, pad_count};
pub use route::{Grh, GrhView};
