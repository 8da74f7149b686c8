//! Operations of extensions: their description, and the numbers that this process assigns to them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::WcOpcode;
use super::numbers::{Number, Numbers};
use crate::capability::FeatureInfo;
use crate::service::Operations;

/// How many operations of extensions one process can use.
const MOST: usize = 32;
/// The bit in [`Operations`] of the first operation of an extension that is used.
const FIRST_BIT: u32 = 32;
/// The bit that stands for an operation beyond the largest number. No queue pair has it, so that such an operation is
/// refused.
const NO_PLACE: Operations = Operations::from_bits_retain(1 << 31);
/// The completion opcode of the first operation of an extension that is used.
const FIRST_OPCODE: u8 = 64;

/// How an operation uses the scatter/gather list of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationData {
    /// The operation has no scatter/gather list.
    None,
    /// The bytes of the list are sent with the request.
    Source {
        /// The largest number of bytes that the list may contain.
        most: u16,
    },
    /// The answer of the peer is placed into the list.
    Sink {
        /// The least number of bytes that the list must have room for.
        least: u16,
    },
}

/// An operation that an extension adds: a `static` of the extension's crate.
///
/// Its requests are posted to the send queue like others. The peer executes the operation and answers it; it counts as a
/// read or an atomic, for which fences wait and whose number `max_rd_atomic` limits. An operation that is
/// [local](Self::local) is executed by the device that it was posted to.
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
    /// The largest number of bytes of a request's body and data together, and of an answer: they fit into the smallest
    /// packet.
    pub const MAX_OCTETS: usize = 240;

    /// Describes the operation `number` of an extension. The device must have been granted `feature`. The number is sent on
    /// the wire, so it must never change.
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

    /// Sets the number of bytes of a request's body.
    ///
    /// # Panics
    /// More than [`MAX_OCTETS`](Self::MAX_OCTETS): at compile time, for a `static`.
    #[must_use]
    pub const fn body(mut self, bytes: u16) -> Self {
        self.body = bytes;
        self.check();
        self
    }

    /// Sets how the operation uses the scatter/gather list.
    ///
    /// # Panics
    /// More than [`MAX_OCTETS`](Self::MAX_OCTETS), with the body: at compile time, for a `static`.
    #[must_use]
    pub const fn data(mut self, data: OperationData) -> Self {
        self.data = data;
        self.check();
        self
    }

    /// Makes the operation local: the device that it was posted to executes it, and nothing is sent.
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

    /// Returns the name of the extension.
    pub const fn extension(&self) -> &'static str {
        self.extension
    }

    /// Returns the number that identifies the extension on the wire.
    #[inline]
    pub const fn extension_id(&self) -> u32 {
        self.extension_id
    }

    /// Returns the name of the operation, in the style of operation bits: `CHECKSUM`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number that identifies the operation on the wire, within its extension.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Returns the feature that must have been granted.
    pub const fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// Returns the number of bytes of a request's body.
    pub const fn body_len(&self) -> usize {
        self.body as usize
    }

    /// Returns how the operation uses the scatter/gather list.
    pub const fn data_use(&self) -> OperationData {
        self.data
    }

    /// Whether the device that the operation was posted to executes it, and nothing is sent.
    pub const fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns the operation's bit in the operations of a queue pair. The process assigns it, and it is never sent.
    #[inline]
    pub fn bit(&'static self) -> Operations {
        match self.place() {
            Some(place) => Operations::from_bits_retain(1 << (FIRST_BIT + u32::from(place))),
            None => NO_PLACE,
        }
    }

    /// Returns the opcode of the operation's completions. The process assigns it, and it is never sent.
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
    /// All operations of the core.
    pub const CORE: Self = Self::all();

    /// Iterates over the operations of extensions that are in this set.
    pub fn of_extensions(self) -> impl Iterator<Item = &'static ExtensionOperation> {
        let places = (self.bits() >> FIRST_BIT) as u32;
        (0..MOST)
            .filter(move |place| places >> place & 1 != 0)
            .filter_map(|place| TABLE.at(place))
    }

    /// Returns the names of all operations in this set, those of extensions included.
    pub fn names(self) -> Vec<&'static str> {
        let core = self.iter_names().map(|(name, _)| name);
        core.chain(self.of_extensions().map(ExtensionOperation::name))
            .collect()
    }
}

/// Returns the operation of an extension whose completions have this opcode; `None` if there is none.
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

/// Objects that a request, or a queue, keeps alive: until the request has retired, or the queue was destroyed.
#[derive(Clone)]
pub struct Held(Arc<dyn Any + Send + Sync>);

impl Held {
    /// Keeps `objects` alive: a handle, or several in a tuple.
    pub fn new(objects: impl Any + Send + Sync) -> Self {
        Self(Arc::new(objects))
    }

    /// Returns the objects if they are of the type `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// Returns the 32-bit number that identifies an extension on the wire, derived from its name (FNV-1a).
///
/// All operations of extensions without a standard encoding share one opcode of a transport; this number distinguishes the
/// extensions.
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
