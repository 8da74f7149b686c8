//! An open device with a protection domain, from which a measurement makes its other objects.

use anyhow::Result;
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, Context, Cq, Device, Memory, Mr, Pd, QpOptions, Requirements, capability::BaselineGaps,
    extension::Extensions, portable::read_sink_access,
};

/// The access rights of a memory region that local requests read and write, and that no peer accesses.
pub const LOCAL: Access = Access::LOCAL_WRITE;

/// The access rights that a queue pair grants to its peer: remote write, read and atomics.
pub const PEERS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A device that was opened with every feature that it offers, and a protection domain of it.
pub struct Rig {
    /// The open device, with every feature that it offers.
    pub context: Context,
    /// The protection domain, in which a measurement creates its queue pairs and registers memory.
    pub pd: Pd,
}

impl Rig {
    /// Opens the device with the name `device`. If the name is that of a kind of emulated devices, such as `ib0` or `iw0`,
    /// this creates a new device of that kind, which has no network: its queue pairs reach only one another. Otherwise it
    /// opens the device with this name in the registry.
    ///
    /// # Errors
    /// There is neither a kind nor a registered device with this name, or the device cannot be opened.
    pub fn new(device: &str) -> Result<Self> {
        match polyverbs::registry()?.device(device) {
            Some(registered) if emulated::kind(device).is_none() => Self::open(registered),
            _ => Self::with(device, &EmulatedOptions::default()),
        }
    }

    /// Creates and opens an emulated device of the kind `device` that has no extension, even if the program links some.
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

    /// Opens the device with every feature that it offers, and allocates a protection domain.
    ///
    /// # Errors
    /// The device refuses to be opened, or to allocate the protection domain.
    pub fn open(device: &Device) -> Result<Self> {
        let context = device.open(&Requirements::everything_of(&device.attributes()))?;
        let pd = context.alloc_pd().wait()?;
        Ok(Self { context, pd })
    }

    /// Returns whether the queue pairs of this device support compare-and-swap and fetch-and-add.
    pub fn has_atomics(&self) -> bool {
        !self
            .context
            .attributes()
            .gaps
            .contains(BaselineGaps::NO_ATOMICS)
    }

    /// Returns the access rights of a memory region that peers read and write, and that may also be the sink of RDMA reads.
    /// They include remote atomics only if this device supports atomics.
    pub fn remote(&self) -> Access {
        let mut rights = PEERS | read_sink_access(&self.context).access;
        rights.set(Access::REMOTE_ATOMIC, self.has_atomics());
        rights
    }

    /// Returns options for an RC queue pair, with `cq` for its completions, that supports every operation which the linked
    /// extensions add to RC queue pairs of this device.
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
            // The device refuses an operation that only another queue pair type supports; it is left out.
            let with = options.clone().operations(operation.bit());
            if self.pd.create_qp(with.clone()).wait().is_ok() {
                options = with;
            }
        }
        Ok(options)
    }

    /// Allocates `length` bytes of page-aligned memory, filled with zeros, and registers them with these access rights.
    ///
    /// # Errors
    /// There is too little memory, or the device refused to register the memory.
    pub fn memory(&self, length: usize, access: Access) -> Result<(Memory, Mr)> {
        let memory = Memory::zeroed(length)?;
        let region = self.pd.register(&memory, access).wait()?;
        Ok((memory, region))
    }
}
