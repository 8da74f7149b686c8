//! Attributes of extensions that requests carry.

use std::fmt;

use super::numbers::{Number, Numbers};

/// A kind of attribute that an extension adds to requests: a `static` of the extension's crate.
#[derive(Debug)]
pub struct RequestAttributeKind {
    extension: &'static str,
    name: &'static str,
    number: Number,
}

static KINDS: Numbers<RequestAttributeKind, 254> = Numbers::new();

impl RequestAttributeKind {
    /// Describes the attribute `name` of an extension.
    pub const fn new(extension: &'static str, name: &'static str) -> Self {
        Self {
            extension,
            name,
            number: Number::new(),
        }
    }

    /// Returns the name of the extension.
    pub const fn extension(&self) -> &'static str {
        self.extension
    }

    /// Returns the name of the attribute.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the attribute with this value, for the method `with` of a request.
    ///
    /// # Panics
    /// This process uses more than 254 kinds.
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

/// An attribute of a request: a kind, and a value of 32 bits. Every request can have one, set by its method `with`.
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

    /// Returns the kind of the attribute.
    pub fn kind(self) -> &'static RequestAttributeKind {
        KINDS
            .at(usize::from(self.kind) - 1)
            .expect("made by a kind that is there")
    }

    /// Returns the value of the attribute.
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
