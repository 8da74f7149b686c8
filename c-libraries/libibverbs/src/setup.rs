//! The configuration that `polyverbs run` passes to this process.
#![allow(unsafe_code)]

use std::path::Path;

use polyverbs::emulated::Tap;
use polyverbs_configuration::{Configuration, VARIABLE, complain};
use verbs_api::provider::MadeOnce;

/// The configuration of this process. If it cannot be read, it has no devices, and a message on standard error says why.
pub fn configuration() -> &'static Configuration {
    static READ: MadeOnce<Configuration> = MadeOnce::new();
    READ.get_or_make(|| {
        let mut configuration = Configuration::from_environment().unwrap_or_else(|error| {
            complain(format_args!("{VARIABLE}: {error}"));
            Configuration::default()
        });
        if configuration.over_system.is_some() && is_apart() {
            configuration = Configuration::standard();
        }
        configuration
    })
}

/// Whether another copy of this library has loaded this one as the system's library, into a namespace of its own.
fn is_apart() -> bool {
    let own: fn() -> &'static Configuration = configuration;
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut file: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut namespace: libc::Lmid_t = 0;
    // SAFETY: an address of this library, and room for both answers. The linker looks for the file in the namespace of its caller.
    unsafe {
        if libc::dladdr(own as *const libc::c_void, &raw mut file) == 0 {
            return false;
        }
        let handle = libc::dlopen(file.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let place = (&raw mut namespace).cast();
        !handle.is_null() && libc::dlinfo(handle, libc::RTLD_DI_LMID, place) == 0 && namespace != 0
    }
}

/// The packet capture that all devices of this process share; `None` if none is configured or its file cannot be written,
/// which a message on standard error reports.
pub(crate) fn tap() -> Option<Tap> {
    let configuration = configuration();
    configuration.tap().unwrap_or_else(|error| {
        let file = configuration.pcap.as_deref().unwrap_or(Path::new(""));
        complain(format_args!("cannot write {}: {error}", file.display()));
        None
    })
}
