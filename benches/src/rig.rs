//! A device, and the objects that every measurement needs of it.

use anyhow::Result;
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, Context, Cq, Device, Memory, Mr, Pd, QpOptions, Requirements, capability::BaselineGaps,
    extension::Extensions, portable::read_sink_access,
};

/// Rights of memory that only local requests access.
pub const LOCAL: Access = Access::LOCAL_WRITE;

/// Rights of peers through a queue pair.
pub const PEERS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A device that is opened for every feature that it has, with a protection domain.
pub struct Rig {
    /// The device.
    pub context: Context,
    /// The domain.
    pub pd: Pd,
}

impl Rig {
    /// Makes an emulated device of this kind, whose queue pairs reach one another directly, and opens it; or opens the
    /// registered device of this name.
    ///
    /// # Errors
    /// There is neither such a kind nor such a device.
    pub fn new(device: &str) -> Result<Self> {
        match polyverbs::registry()?.device(device) {
            Some(registered) if emulated::kind(device).is_none() => Self::open(registered),
            _ => Self::with(device, &EmulatedOptions::default()),
        }
    }

    /// Makes and opens such an emulated device without any extension, whichever are linked.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn without_extensions(device: &str) -> Result<Self> {
        let options = EmulatedOptions {
            extensions: Some(Extensions::new()),
            ..EmulatedOptions::default()
        };
        Self::with(device, &options)
    }

    fn with(device: &str, options: &EmulatedOptions) -> Result<Self> {
        Self::open(&emulated::device(device, options)?)
    }

    /// Opens this device.
    ///
    /// # Errors
    /// The device refuses.
    pub fn open(device: &Device) -> Result<Self> {
        let context = device.open(&Requirements::everything_of(&device.attributes()))?;
        let pd = context.alloc_pd().wait()?;
        Ok(Self { context, pd })
    }

    /// Whether queue pairs have atomic operations.
    pub fn has_atomics(&self) -> bool {
        !self
            .context
            .attributes()
            .gaps
            .contains(BaselineGaps::NO_ATOMICS)
    }

    /// Rights of memory that peers access and that may be the sink of reads, as far as this device has them.
    pub fn remote(&self) -> Access {
        let mut rights = PEERS | read_sink_access(&self.context).access;
        rights.set(Access::REMOTE_ATOMIC, self.has_atomics());
        rights
    }

    /// Options of queue pairs that do every operation which an extension adds to reliable connections.
    ///
    /// # Errors
    /// The linked extensions do not fit together.
    pub fn extended(&self, cq: &Cq) -> Result<QpOptions> {
        let extensions = Extensions::linked()?;
        let all = extensions
            .iter()
            .flat_map(|extension| extension.all_operations());
        let mut options = QpOptions::rc(cq);
        for operation in all {
            // An operation of another queue pair type is refused here.
            let with = options.clone().operations(operation.bit());
            if self.pd.create_qp(with.clone()).wait().is_ok() {
                options = with;
            }
        }
        Ok(options)
    }

    /// Allocates page-aligned memory of this length and registers it.
    ///
    /// # Errors
    /// Out of memory, or the device refused.
    pub fn memory(&self, length: usize, access: Access) -> Result<(Memory, Mr)> {
        let memory = Memory::zeroed(length)?;
        let region = self.pd.register(&memory, access).wait()?;
        Ok((memory, region))
    }
}
