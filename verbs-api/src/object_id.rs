//! Identities and kinds of objects.

use std::fmt;

use crate::ids::{LKey, Qpn, RKey};

/// The identity of an object within its context: never used again for another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Place in the context's table.
    pub index: u32,
    /// How often the place was used before.
    pub generation: u32,
}

impl ObjectId {
    /// The identity with these parts.
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectKind {
    /// Address handle.
    Ah,
    /// Completion channel.
    CompletionChannel,
    /// Open device.
    Context,
    /// Completion queue.
    Cq,
    /// Memory region, or a key allocated for one.
    Mr,
    /// Multicast attachment of a queue pair.
    Multicast,
    /// Memory window.
    Mw,
    /// Protection domain.
    Pd,
    /// Queue pair.
    Qp,
    /// Control request that has not completed yet.
    Request,
    /// Shared receive queue.
    Srq,
}

impl ObjectKind {
    /// The field's abbreviation.
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

/// One that uses an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Holder {
    /// What it is.
    pub kind: ObjectKind,
    /// Which one.
    pub id: ObjectId,
    /// Its own number, where it has one: of a queue pair `qp_num`, of a region `lkey`, of a window `rkey`.
    pub number: Option<u32>,
}

impl Holder {
    /// The object of this identity.
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
