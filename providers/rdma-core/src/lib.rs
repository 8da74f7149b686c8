//! Real devices: those of `libibverbs.so.1`, rdma-core's library. The library is loaded when the provider is asked for devices,
//! and is not needed to build.
//!
//! A device has the library's name, such as `mlx5_0` or `rxe0`, and claims what the library reports. A trial finds out what the
//! library does not report. A device without a file in `/dev/infiniband`, such as those of this project's own C library, is
//! called `NAME@libibverbs`. [`FILE_VARIABLE`] names another library, and so does [`LibIbverbs::in_file`]:
//!
//! ```no_run
//! use rdma_core_provider::LibIbverbs;
//! let mut registry = verbs_api::Registry::new();
//! registry.add_provider(LibIbverbs::in_file("/opt/rdma-core/lib/libibverbs.so.1"))?;
//! # Ok::<(), verbs_api::provider::RegistryError>(())
//! ```
//!
//! A module uses modules of its row and of the rows above:
//!
//! | module | holds |
//! | --- | --- |
//! | `lock`, `spin` | the locks: of control verbs, and of posting and polling |
//! | `library` | the loaded file and its functions |
//! | `verbs/` | those functions on live objects: the only code with raw pointers to them |
//! | `interface`, `port` | network interfaces; ports and their GID tables |
//! | `worker`, `watch` | the thread that runs blocking verbs; the thread that waits for events |
//! | [`xrc`] | domains of extended reliable connections |
//! | `rdmacm/` | connections by librdmacm |
//! | `lock_limit` | whether the limit of locked memory has refused a registration |
//! | `keys`, `context` | the local keys in use; the state that the objects of an open device share |
//! | `domain`, `region`, `address_handle`, `window` | protection domains, and the objects that belong to them |
//! | `outstanding`, `completion_queue` | requests that have not completed; completions |
//! | `request`, `receive_queue`, `queue_pair` | requests in the form of C; posting |
//! | `pd_ops`, `open_device` | the verbs of protection domains and of open devices; events of devices |
//! | [`binding`], `trial`, `device` | the claims of a device: from extensions, from a trial, from the library |
//! | `listing` | the list of devices, and why one cannot be used |
#![deny(unsafe_code)]

mod address_handle;
pub mod binding;
mod completion_queue;
mod context;
mod device;
mod domain;
mod interface;
mod keys;
mod library;
mod listing;
mod lock_limit;
mod open_device;
mod outstanding;
mod pd_ops;
mod port;
mod queue_pair;
mod rdmacm;
mod receive_queue;
mod region;
mod request;
mod trial;
mod verbs;
mod watch;
mod window;
mod worker;
pub mod xrc;

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::extension::Extensions;
use verbs_api::provider::{
    Absent, DeviceList, MadeOnce, Mutex, PerProcess, Provider, link_provider, own,
};

use binding::Bindings;
use device::Device;
use library::{File, Library};

pub use open_device::OpenDevice;

/// The environment variable that names the file of the library, in place of the one that the dynamic linker finds. A
/// program with more rights than the user who runs it ignores the variable, as the linker ignores its own variables there.
pub const FILE_VARIABLE: &str = "POLYVERBS_RDMA_CORE";

/// The name by which the dynamic linker finds the library.
const FILE: &str = "libibverbs.so.1";

/// The directory in which the kernel lists its RDMA devices.
const KERNELS: &str = "/sys/class/infiniband";

/// The provider of the devices that `libibverbs.so.1` lists.
#[derive(Debug)]
pub struct LibIbverbs {
    /// The file of the library; `None` if the environment variable or else the dynamic linker decides.
    file: Option<PathBuf>,
    /// Whether the library is loaded into a namespace of its own.
    is_apart: bool,
    library: MadeOnce<Result<&'static Library, VerbError>>,
}

/// The provider that registers itself if this crate is linked and named.
pub static PROVIDER: LibIbverbs = LibIbverbs::new(None);

link_provider!(PROVIDER);

impl LibIbverbs {
    const fn new(file: Option<PathBuf>) -> Self {
        Self {
            file,
            is_apart: false,
            library: MadeOnce::new(),
        }
    }

    /// Returns the provider that uses the library in this file. The same path always gives the same provider.
    pub fn in_file(path: impl AsRef<Path>) -> &'static Self {
        static KNOWN: PerProcess<Mutex<Vec<&LibIbverbs>>> = PerProcess::new(Mutex::default);
        let path = path.as_ref();
        let mut known = KNOWN.lock();
        if let Some(same) = known
            .iter()
            .find(|known| known.file.as_deref() == Some(path))
        {
            return same;
        }
        let made = Box::leak(Box::new(Self::new(Some(path.to_path_buf()))));
        known.push(made);
        made
    }

    /// Returns the provider that loads the library in this file into a namespace of its own, for a program that has another
    /// library of that name. The first path counts.
    pub fn apart(path: impl AsRef<Path>) -> &'static Self {
        static MADE: MadeOnce<LibIbverbs> = MadeOnce::new();
        MADE.get_or_make(|| Self {
            is_apart: true,
            ..Self::new(Some(path.as_ref().to_path_buf()))
        })
    }

    fn named(&self) -> Option<PathBuf> {
        let in_environment = || {
            let named = env::var_os(FILE_VARIABLE).filter(|named| !named.is_empty());
            named.filter(|_| !library::has_more_rights_than_its_user())
        };
        self.file
            .clone()
            .or_else(|| in_environment().map(PathBuf::from))
    }

    fn library(&self, file: &OsStr) -> Result<&'static Library, VerbError> {
        let load = || {
            let file = match self.is_apart {
                true => File::load_apart(file)?,
                false => File::load(file)?,
            };
            Ok(&*Box::leak(Box::new(Library::of(&file)?)))
        };
        self.library.get_or_make(load).clone()
    }

    /// Returns the loaded library, or why it cannot be offered. Fails if the user has named a file that cannot be loaded.
    fn wanted(&self) -> Result<Result<&'static Library, Absent>, VerbError> {
        if let Some(named) = self.named() {
            return self.library(named.as_os_str()).map(Ok);
        }
        let is_needed = std::fs::read_dir(KERNELS).is_ok_and(|mut listed| listed.next().is_some());
        let found = match is_needed {
            true => self.library(OsStr::new(FILE)),
            false => Err(VerbError::UnsupportedHere(format!(
                "the kernel has no RDMA device: there is nothing in {KERNELS}"
            ))),
        };
        let what = || FILE.to_owned();
        Ok(found.map_err(|why| Absent { what: what(), why }))
    }
}

impl Provider for LibIbverbs {
    fn name(&self) -> &'static str {
        "libibverbs"
    }

    fn devices(&self, extensions: &Extensions) -> Result<DeviceList, VerbError> {
        self.refresh(DeviceList::default(), extensions)
    }

    fn refresh(&self, known: DeviceList, extensions: &Extensions) -> Result<DeviceList, VerbError> {
        let known: Vec<Arc<Device>> = known
            .devices
            .iter()
            .filter_map(|ops| own(ops, "device").ok())
            .collect();
        match self.wanted()? {
            Ok(library) => {
                let bindings = Bindings::of(extensions)?;
                listing::list(library, self.name(), &bindings, &known)
            }
            Err(absent) => Ok(DeviceList {
                devices: Vec::new(),
                absent: vec![absent],
            }),
        }
    }
}
