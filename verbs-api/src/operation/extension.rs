//! Operations of extensions: what a request of one is, and the registry's numbers for them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::WcOpcode;
use super::numbers::{Number, Numbers};
use crate::capability::FeatureInfo;
use crate::service::Operations;

/// Operations of extensions that one process can have.
const MOST: usize = 32;
/// The bit of the first one in [`Operations`].
const FIRST_BIT: u32 = 32;
/// The bit that no queue pair has: of an operation for which there is no place any more.
const NO_PLACE: Operations = Operations::from_bits_retain(1 << 31);
/// The completion opcode of the first one.
const FIRST_OPCODE: u8 = 64;

/// What an operation does with the scatter/gather list of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationData {
    /// It has none.
    None,
    /// Its bytes travel with the request, at most this many.
    Source {
        /// Bytes.
        most: u16,
    },
    /// The answer is placed there, at least this many bytes.
    Sink {
        /// Bytes.
        least: u16,
    },
}

/// An operation of an extension: a `static` of its crate.
///
/// Its requests travel in the send queue like any other. An operation is carried out at the peer and answered; it counts
/// as a read or an atomic, which fences wait for and `max_rd_atomic` limits. One that is [local](Self::local) is carried
/// out where it was posted.
///
/// ```
/// use verbs_api::{capability::FeatureSet, extension::{ExtensionOperation, FeatureInfo, OperationData, feature}};
/// # bitflags::bitflags! { #[derive(Clone, Copy)] pub struct Checksums: u64 { const REMOTE = 1; } }
/// # impl FeatureSet for Checksums { const SET: &'static str = "checksum"; }
/// const REMOTE: FeatureInfo = feature!(Checksums::REMOTE, "the checksum of a remote range");
///
/// pub static CHECKSUM: ExtensionOperation =
///     ExtensionOperation::new("checksum", "CHECKSUM", 1, &REMOTE)
///         .body(24)
///         .data(OperationData::Sink { least: 4 });
/// ```
pub struct ExtensionOperation {
    extension: &'static str,
    extension_id: u32,
    name: &'static str,
    number: u16,
    feature: FeatureInfo,
    body: u16,
    data: OperationData,
    is_local: bool,
    place: Number,
}

impl ExtensionOperation {
    /// Bytes of the body and the data of a request together, and of an answer: they fit the smallest packet.
    pub const MAX_OCTETS: usize = 240;

    /// The operation `number` of an extension, which takes `feature`. The number is what travels, so it stays.
    pub const fn new(
        extension: &'static str,
        name: &'static str,
        number: u16,
        feature: &FeatureInfo,
    ) -> Self {
        Self {
            extension,
            extension_id: extension_id(extension),
            name,
            number,
            feature: *feature,
            body: 0,
            data: OperationData::None,
            is_local: false,
            place: Number::new(),
        }
    }

    /// Its requests have a body of so many bytes.
    ///
    /// # Panics
    /// More than [`MAX_OCTETS`](Self::MAX_OCTETS): at compile time, for a `static`.
    #[must_use]
    pub const fn body(mut self, bytes: u16) -> Self {
        self.body = bytes;
        self.check();
        self
    }

    /// What it does with the scatter/gather list.
    ///
    /// # Panics
    /// More than [`MAX_OCTETS`](Self::MAX_OCTETS), with the body: at compile time, for a `static`.
    #[must_use]
    pub const fn data(mut self, data: OperationData) -> Self {
        self.data = data;
        self.check();
        self
    }

    /// It is carried out where it was posted, and nothing travels.
    #[must_use]
    pub const fn local(mut self) -> Self {
        self.is_local = true;
        self
    }

    const fn check(&self) {
        let data = match self.data {
            OperationData::None => 0,
            OperationData::Source { most } => most,
            OperationData::Sink { least } => {
                assert!(
                    least as usize <= Self::MAX_OCTETS,
                    "an answer fits one packet"
                );
                0
            }
        };
        assert!(
            self.body as usize + data as usize <= Self::MAX_OCTETS,
            "body and data fit one packet"
        );
    }

    /// Name of its extension.
    pub const fn extension(&self) -> &'static str {
        self.extension
    }

    /// The number of its extension on the wire.
    #[inline]
    pub const fn extension_id(&self) -> u32 {
        self.extension_id
    }

    /// Its name, like the bit of an operation: `CHECKSUM`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Its number on the wire, within the extension.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// The feature that it takes.
    pub const fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// Bytes of the body of a request.
    pub const fn body_len(&self) -> usize {
        self.body as usize
    }

    /// What it does with the scatter/gather list.
    pub const fn data_use(&self) -> OperationData {
        self.data
    }

    /// Whether it is carried out where it was posted.
    pub const fn is_local(&self) -> bool {
        self.is_local
    }

    /// Its bit in the operations of a queue pair: a number of this process, which never leaves it.
    #[inline]
    pub fn bit(&'static self) -> Operations {
        match self.place() {
            Some(place) => Operations::from_bits_retain(1 << (FIRST_BIT + u32::from(place))),
            None => NO_PLACE,
        }
    }

    /// The opcode of its completions: a number of this process, which never leaves it.
    #[inline]
    pub fn wc_opcode(&'static self) -> WcOpcode {
        WcOpcode::from_code(FIRST_OPCODE + self.place().unwrap_or(MOST as u8 - 1))
    }

    #[inline]
    pub(crate) fn place(&'static self) -> Option<u8> {
        TABLE.of(self, &self.place)
    }
}

static TABLE: Numbers<ExtensionOperation, MOST> = Numbers::new();

impl Operations {
    /// Those of the core.
    pub const CORE: Self = Self::all();

    /// The operations of extensions among these.
    pub fn of_extensions(self) -> impl Iterator<Item = &'static ExtensionOperation> {
        let places = (self.bits() >> FIRST_BIT) as u32;
        (0..MOST)
            .filter(move |place| places >> place & 1 != 0)
            .filter_map(|place| TABLE.at(place))
    }

    /// The names of all of them, those of extensions included.
    pub fn names(self) -> Vec<&'static str> {
        let core = self.iter_names().map(|(name, _)| name);
        core.chain(self.of_extensions().map(ExtensionOperation::name))
            .collect()
    }
}

/// The operation of the extension whose completions have this opcode.
pub(super) fn of_opcode(code: u8) -> Option<&'static ExtensionOperation> {
    TABLE.at(usize::from(code.checked_sub(FIRST_OPCODE)?))
}

impl PartialEq for ExtensionOperation {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for ExtensionOperation {}

impl fmt::Debug for ExtensionOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.extension, self.name)
    }
}

/// Objects that a request keeps alive until it has retired.
#[derive(Clone)]
pub struct Held(Arc<dyn Any + Send + Sync>);

impl Held {
    /// Holds this: a handle, or several in a tuple.
    pub fn new(objects: impl Any + Send + Sync) -> Self {
        Self(Arc::new(objects))
    }

    /// What is held, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// The number of an extension on the wire, made of its name: 32 bits (FNV-1a).
///
/// Everything without a standard encoding of its own shares one opcode of a transport, and this number says whose it is.
pub const fn extension_id(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}
