//! Identities and kinds of objects.

use std::fmt;

use crate::ids::{LKey, Qpn, RKey};

/// The identity of an object within its context. It is never used for another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Index of the object in the context's table.
    pub index: u32,
    /// How often this index was used before.
    pub generation: u32,
}

impl ObjectId {
    /// Makes the identity of its two parts.
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectKind {
    /// An address handle.
    Ah,
    /// A completion channel.
    CompletionChannel,
    /// An open device.
    Context,
    /// A completion queue.
    Cq,
    /// A memory region, or an allocated key.
    Mr,
    /// The attachment of a queue pair to a multicast group.
    Multicast,
    /// A memory window.
    Mw,
    /// A protection domain.
    Pd,
    /// A queue pair.
    Qp,
    /// A control request that has not completed yet.
    Request,
    /// A shared receive queue.
    Srq,
}

impl ObjectKind {
    /// Returns the name of the kind: its usual abbreviation, such as `"CQ"`, where there is one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ah => "AH",
            Self::CompletionChannel => "completion channel",
            Self::Context => "context",
            Self::Cq => "CQ",
            Self::Mr => "MR",
            Self::Multicast => "multicast attachment",
            Self::Mw => "MW",
            Self::Pd => "PD",
            Self::Qp => "QP",
            Self::Request => "control request",
            Self::Srq => "SRQ",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An object, or a control request, that uses another object and so prevents that one's destruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Holder {
    /// The kind of the object that is the user.
    pub kind: ObjectKind,
    /// The identity of the object that is the user.
    pub id: ObjectId,
    /// The number by which the program knows the user, where it has one: of a queue pair `qp_num`, of a region `lkey`, of a
    /// window `rkey`.
    pub number: Option<u32>,
}

impl Holder {
    /// Names the object with this identity, without a number.
    pub const fn new(kind: ObjectKind, id: ObjectId) -> Self {
        Self {
            kind,
            id,
            number: None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, id, number } = *self;
        match (kind, number) {
            (ObjectKind::Qp, Some(number)) => write!(f, "{kind} {}", Qpn::new(number)),
            (ObjectKind::Mr, Some(key)) => write!(f, "{kind} with lkey {}", LKey::new(key)),
            (ObjectKind::Mw, Some(key)) => write!(f, "{kind} with rkey {}", RKey::new(key)),
            // Programs have no name for these.
            (ObjectKind::Request | ObjectKind::Multicast, _) => write!(f, "a {kind}"),
            _ => write!(f, "{kind} {id}"),
        }
    }
}
