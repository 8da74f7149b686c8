//! The list of devices, and the reasons why one cannot be used.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use nix::unistd::{Gid, Group};
use verbs_api::VerbError;
use verbs_api::provider::{Absent, DeviceList};

use crate::binding::Bindings;
use crate::device::Device;
use crate::library::Library;
use crate::verbs::{List, Listed};

/// The directory with the device files of RDMA devices.
const FILES: &str = "/dev/infiniband";

/// Returns the devices that the library lists, taking those that still exist from `known`, and the devices that cannot be
/// used.
///
/// # Errors
/// The library cannot list them.
pub(crate) fn list(
    library: &'static Library,
    provider: &'static str,
    bindings: &Bindings,
    known: &[Arc<Device>],
) -> Result<DeviceList, VerbError> {
    let mut found = DeviceList::default();
    for listed in List::of(library)?.iter() {
        let same = known.iter().find(|known| known.is(&listed));
        let device = same.map_or_else(
            || usable(provider, bindings, &listed),
            |same| Ok(Arc::clone(same)),
        );
        match device {
            Ok(device) => found.devices.push(device),
            Err(why) => found.absent.push(Absent {
                what: name(&listed),
                why,
            }),
        }
    }
    Ok(found)
}

fn name(listed: &Listed<'_>) -> String {
    match listed.file().starts_with("uverbs") {
        true => listed.name(),
        false => format!("{}@libibverbs", listed.name()),
    }
}

fn usable(
    provider: &'static str,
    bindings: &Bindings,
    listed: &Listed<'_>,
) -> Result<Arc<Device>, VerbError> {
    let opened = listed
        .open()
        .map_err(|error| unopened(error, &listed.file()))?;
    let device = Device::new(provider, name(listed), bindings, opened)?;
    Ok(Arc::new(device))
}

/// Returns a more precise error for a device that cannot be opened, with advice for the user.
fn unopened(error: VerbError, file: &str) -> VerbError {
    let path = Path::new(FILES).join(file);
    let at = path.display();
    let VerbError::Os { errno, .. } = error else {
        return error;
    };
    let why = match errno {
        libc::EACCES | libc::EPERM => {
            format!("{at} may not be opened by this user{}", access_to(&path))
        }
        libc::ENOENT => format!("there is no {at}: load the module ib_uverbs"),
        // The library returns this for a device that none of its drivers knows.
        0 | libc::ENOSYS => format!("the library has no driver for it, or {at} does not open"),
        _ => return error,
    };
    VerbError::UnsupportedHere(why)
}

fn access_to(path: &Path) -> String {
    let Ok(metadata) = path.metadata() else {
        return String::new();
    };
    let gid = metadata.gid();
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    let group = group.map_or_else(|| gid.to_string(), |group| group.name);
    let mode = metadata.permissions().mode() & 0o777;
    let hint = match mode & 0o060 {
        0o060 => format!("join it with `usermod -aG {group} USER`, and log in again"),
        _ => "let a rule of udev open it to that group".to_owned(),
    };
    format!(": it is of group {group}, with mode {mode:03o}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_permission_is_named_with_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("uverbs0");
        std::fs::write(&file, "").unwrap();
        let own = Group::from_gid(Gid::current()).unwrap().unwrap().name;
        let with = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, permissions).unwrap();
            access_to(&file)
        };
        let said = with(0o660);
        assert!(
            said.contains(&format!("group {own}, with mode 660")),
            "{said}"
        );
        assert!(said.contains(&format!("usermod -aG {own}")), "{said}");
        assert!(with(0o600).contains("a rule of udev"));
        let error = VerbError::Os {
            verb: "open_device",
            errno: libc::EACCES,
        };
        let said = unopened(error, "uverbs7").to_string();
        assert!(said.contains("/dev/infiniband/uverbs7"), "{said}");
    }
}
