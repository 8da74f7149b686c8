//! A device, and the objects that every measurement needs of it.

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, Context, Cq, Device, Memory, Mr, Pd, QpOptions, Requirements, capability::BaselineGaps,
    extension::Extensions,
};

use crate::Outcome;

/// The device that is measured unless the user names another.
pub const DEFAULT_DEVICE: &str = "ib0";

/// The environment variable that names another device, for runs that take no arguments.
pub const DEVICE_VARIABLE: &str = "POLYVERBS_BENCH_DEVICE";

/// Rights of memory that only local requests access.
pub const LOCAL: Access = Access::LOCAL_WRITE;

/// Rights of peers through a queue pair.
pub const PEERS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Rights of memory that peers access, and that may be the sink of reads on every transport.
pub const REMOTE: Access = Access::LOCAL_WRITE.union(PEERS);

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
    pub fn new(device: &str) -> Outcome<Self> {
        match polyverbs::registry()?.device(device) {
            Some(registered) if emulated::kind(device).is_none() => Self::open(registered),
            _ => Self::with(device, &EmulatedOptions::default()),
        }
    }

    /// Makes and opens such an emulated device without any extension, whichever are linked.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn without_extensions(device: &str) -> Outcome<Self> {
        let options = EmulatedOptions {
            extensions: Some(Extensions::new()),
            ..EmulatedOptions::default()
        };
        Self::with(device, &options)
    }

    fn with(device: &str, options: &EmulatedOptions) -> Outcome<Self> {
        Self::open(&emulated::device(device, options)?)
    }

    /// Opens this device.
    ///
    /// # Errors
    /// The device refuses.
    pub fn open(device: &Device) -> Outcome<Self> {
        let context = device.open(&Requirements::everything_of(&device.attributes()))?;
        let pd = context.alloc_pd().wait()?;
        Ok(Self { context, pd })
    }

    /// Makes or opens the device that the environment names.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_environment() -> Outcome<Self> {
        Self::new(&device_of_environment())
    }

    /// Whether queue pairs have atomic operations.
    pub fn has_atomics(&self) -> bool {
        !self
            .context
            .attributes()
            .gaps
            .contains(BaselineGaps::NO_ATOMICS)
    }

    /// Options of queue pairs that do every operation which an extension adds to reliable connections.
    ///
    /// # Errors
    /// The linked extensions do not fit together.
    pub fn extended(&self, cq: &Cq) -> Outcome<QpOptions> {
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

    /// Allocates page-aligned memory of this length, touches it, and registers it.
    ///
    /// # Errors
    /// Out of memory, or the device refused.
    pub fn memory(&self, length: usize, access: Access) -> Outcome<(Memory, Mr)> {
        let memory = Memory::zeroed(length)?;
        for page in (0..length).step_by(4096) {
            memory.write(page, &[1])?;
        }
        let region = self.pd.register(&memory, access).wait()?;
        Ok((memory, region))
    }
}

/// The device that the environment names, or the default one.
pub fn device_of_environment() -> String {
    std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| DEFAULT_DEVICE.to_owned())
}
