//! Attributes of extensions that requests carry.

use std::fmt;

use super::numbers::{Number, Numbers};

/// A kind of attribute that requests can carry: a `static` of the extension's crate.
#[derive(Debug)]
pub struct RequestAttributeKind {
    extension: &'static str,
    name: &'static str,
    number: Number,
}

static KINDS: Numbers<RequestAttributeKind, 254> = Numbers::new();

impl RequestAttributeKind {
    /// The attribute `name` of an extension.
    pub const fn new(extension: &'static str, name: &'static str) -> Self {
        Self {
            extension,
            name,
            number: Number::new(),
        }
    }

    /// Name of its extension.
    pub const fn extension(&self) -> &'static str {
        self.extension
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// This attribute with a value.
    ///
    /// # Panics
    /// This process has as many kinds as it can have: 254.
    pub fn with(&'static self, value: u32) -> RequestAttribute {
        let number = KINDS.of(self, &self.number);
        RequestAttribute {
            kind: number.expect("at most 254 kinds of attributes") + 1,
            value,
        }
    }
}

impl PartialEq for RequestAttributeKind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for RequestAttributeKind {}

/// An attribute of a request: 32 bits. Any request takes one, with its method `with`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestAttribute {
    // Counted from 1.
    kind: u8,
    value: u32,
}

impl RequestAttribute {
    pub(crate) const fn parts(self) -> (u8, u32) {
        (self.kind, self.value)
    }

    pub(crate) fn of_parts(kind: u8, value: u32) -> Option<Self> {
        (kind != 0).then_some(Self { kind, value })
    }

    /// What kind it is of.
    pub fn kind(self) -> &'static RequestAttributeKind {
        KINDS
            .at(usize::from(self.kind) - 1)
            .expect("made by a kind that is there")
    }

    /// Its value.
    pub const fn value(self) -> u32 {
        self.value
    }
}

impl fmt::Debug for RequestAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        write!(f, "{}::{}({:#x})", kind.extension, kind.name, self.value)
    }
}
