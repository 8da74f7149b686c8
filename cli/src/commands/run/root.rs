//! The folder of one program that stands for `/sys` and `/dev`.
//!
//! Its name contains the number of the process, which stays when the process executes the program, and random letters, so that other
//! users cannot create it first. The program removes the folder when it exits; the folders of killed programs are removed here.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use polyverbs::capability::GidType;
use polyverbs_configuration::{Configuration, Device, LinkLayer, TransportName, interfaces};
use polyverbs_fabric::files::by_fours;
use polyverbs_fabric::protocol::NodeReport;

use super::adapter;

const NAME: &str = "polyverbs-run";
const SHARED_MEMORY: &str = "/dev/shm";

/// Makes the folder that stands for `/sys` and `/dev`, with the files of these devices and of the adapter in an emulated fabric, and
/// returns its path.
pub(super) fn make(
    configuration: &Configuration,
    adapter: Option<&NodeReport>,
) -> anyhow::Result<PathBuf> {
    let named = |variable| env::var_os(variable).map(PathBuf::from);
    // The first two are in memory, where folders and links occupy nothing: a machine with many interfaces has thousands of them. A
    // process that has changed its user may not write to the first user's folder, and a container may have no shared memory.
    let folders = [
        named("XDG_RUNTIME_DIR"),
        Some(SHARED_MEMORY.into()),
        named("TMPDIR"),
        Some("/tmp".into()),
    ];
    make_in_first(folders.into_iter().flatten(), configuration, adapter)
}

fn make_in_first(
    folders: impl Iterator<Item = PathBuf>,
    configuration: &Configuration,
    adapter: Option<&NodeReport>,
) -> anyhow::Result<PathBuf> {
    let mut refused = Vec::new();
    for within in folders {
        match make_within(&within, configuration, adapter) {
            Ok(root) => return Ok(root),
            Err(error) => refused.push(format!("{error:#}")),
        }
    }
    anyhow::bail!(
        "{}: set TMPDIR to a folder that can be written",
        refused.join("; ")
    )
}

fn make_within(
    within: &Path,
    configuration: &Configuration,
    adapter: Option<&NodeReport>,
) -> anyhow::Result<PathBuf> {
    let namespace = namespace();
    sweep(within, &namespace);
    let name = format!("{NAME}.{namespace}.{}.", std::process::id());
    // The system reports paths below it without symbolic links.
    let made = within
        .canonicalize()
        .and_then(|within| tempfile::Builder::new().prefix(&name).tempdir_in(within));
    let root = made.with_context(|| format!("cannot make a folder in {}", within.display()))?;
    // When the program first looks, it may have changed its user and be unable to write here.
    let filled = fill(root.path(), configuration, interfaces()).and_then(|()| match adapter {
        Some(adapter) => adapter::fill(root.path(), configuration, adapter),
        None => Ok(()),
    });
    filled.with_context(|| format!("cannot fill {}", root.path().display()))?;
    Ok(root.keep())
}

// Process numbers are unique in a namespace only.
fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = link
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect::<String>();
    if digits.is_empty() {
        "0".to_owned()
    } else {
        digits
    }
}

// Removes the folders of processes that no longer exist. The system keeps those of other users.
fn sweep(within: &Path, namespace: &str) {
    let begin = format!("{NAME}.{namespace}.");
    for entry in fs::read_dir(within).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(&begin));
        let process = process.and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn fill(
    root: &Path,
    configuration: &Configuration,
    interfaces: Vec<(String, IpAddr)>,
) -> io::Result<()> {
    let mut view = View {
        contents: HashMap::new(),
        interfaces,
    };
    // The program may change its user.
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    let (verbs, dev) = (
        root.join("sys/class/infiniband_verbs"),
        root.join("dev/infiniband"),
    );
    fs::create_dir_all(root.join("sys/class/infiniband"))?;
    fs::create_dir_all(&dev)?;
    view.write(&verbs, &[("abi_version", "6".to_owned())])?;
    // Programs expect device files that they may open.
    symlink("/dev/null", dev.join("rdma_cm"))?;
    for device in &configuration.devices {
        symlink("/dev/null", dev.join(&device.name))?;
        let entries = [
            ("ibdev", device.name.clone()),
            ("abi_version", "1".to_owned()),
        ];
        view.write(&verbs.join(&device.name), &entries)?;
        if device.is_in_fabric() {
            continue;
        }
        view.describe(
            &root.join("sys/class/infiniband").join(&device.name),
            device,
        )?;
    }
    Ok(())
}

/// Writes the files of the folder. Most are the same for all devices: files of equal content are hard links to one file,
/// which takes less space and time.
struct View {
    contents: HashMap<String, PathBuf>,
    interfaces: Vec<(String, IpAddr)>,
}

impl View {
    fn describe(&mut self, at: &Path, device: &Device) -> io::Result<()> {
        let guid = by_fours(&device.guid());
        let node_type = match device.transport {
            TransportName::Roce | TransportName::Infiniband => "1: CA",
            TransportName::Iwarp => "4: RNIC",
        };
        let (fw_ver, hw_ver) = match device.identity() {
            Some(identity) => (identity.fw_ver, identity.hw_ver),
            None => (env!("CARGO_PKG_VERSION").to_owned(), 0),
        };
        let about = [
            ("node_type", node_type.to_owned()),
            ("node_guid", guid.clone()),
            ("sys_image_guid", guid),
            ("node_desc", device.name.clone()),
            ("fw_ver", fw_ver),
            ("hw_rev", format!("{hw_ver:#x}")),
            ("hca_type", "polyverbs".to_owned()),
            ("board_id", "polyverbs".to_owned()),
        ];
        self.write(at, &about)?;
        self.write(&at.join("device"), &[("numa_node", "-1".to_owned())])?;
        let of = |(_, address): &&(String, IpAddr)| *address == device.address;
        let interface = self.interfaces.iter().find(of);
        let interface = interface.map(|(name, _)| name.clone());
        if let Some(name) = &interface {
            fs::create_dir_all(at.join("device/net").join(name))?;
        }
        let infiniband = device.link_layer() == LinkLayer::Infiniband;
        let lid = device.lid().unwrap_or(0);
        let port = at.join("ports/1");
        let about = [
            ("state", "4: ACTIVE".to_owned()),
            ("phys_state", "5: LinkUp".to_owned()),
            (
                "link_layer",
                if infiniband { "InfiniBand" } else { "Ethernet" }.to_owned(),
            ),
            ("lid", format!("{lid:#x}")),
            ("sm_lid", format!("{lid:#x}")),
            ("lid_mask_count", "0".to_owned()),
            ("sm_sl", "0".to_owned()),
            // The port capabilities of ibv_query_port: a connection manager, and GIDs that are IP addresses.
            ("cap_mask", "0x04010000".to_owned()),
            ("rate", "2.5 Gb/sec (1X SDR)".to_owned()),
        ];
        self.write(&port, &about)?;
        self.write(&port.join("pkeys"), &[("0", "0xffff".to_owned())])?;
        let gid_type = |gid_type| match gid_type {
            GidType::RoceV2 if !infiniband => "RoCE v2",
            _ => "IB/RoCE v1",
        };
        let [gids, types, ndevs] =
            ["gids", "gid_attrs/types", "gid_attrs/ndevs"].map(|folder| port.join(folder));
        for folder in [&gids, &types, &ndevs] {
            fs::create_dir_all(folder)?;
        }
        let interface = interface.unwrap_or_default();
        for (index, gid) in device.gids().iter().enumerate() {
            let index = index.to_string();
            self.write_one(gids.join(&index), &by_fours(&gid.gid.0))?;
            // As in the kernel, an empty entry has no type.
            if gid.is_empty() {
                continue;
            }
            self.write_one(types.join(&index), gid_type(gid.gid_type))?;
            self.write_one(ndevs.join(&index), &interface)?;
        }
        Ok(())
    }

    fn write(&mut self, folder: &Path, files: &[(&str, String)]) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for (name, text) in files {
            self.write_one(folder.join(name), text)?;
        }
        Ok(())
    }

    fn write_one(&mut self, file: PathBuf, text: &str) -> io::Result<()> {
        // A file system may have no second names, or too few.
        let known = self.contents.get(text);
        if known.is_none_or(|known| fs::hard_link(known, &file).is_err()) {
            fs::write(&file, format!("{text}\n"))?;
            self.contents.insert(text.to_owned(), file);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn folders_that_cannot_be_written_are_named() {
        let folders = ["/proc", "/nowhere"].map(PathBuf::from);
        let refused = make_in_first(folders.into_iter(), &Configuration::default(), None);
        let said = refused.unwrap_err().to_string();
        for part in ["/proc: ", "/nowhere: ", "set TMPDIR"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn the_first_folder_that_can_be_written_is_used() {
        let within = tempfile::tempdir().unwrap();
        let folders = [Path::new("/proc"), within.path()].map(PathBuf::from);
        let root = make_in_first(folders.into_iter(), &Configuration::default(), None).unwrap();
        assert!(root.starts_with(within.path()));
    }

    // Another user may take any name that can be guessed.
    #[test]
    fn names_that_others_can_guess_are_not_needed() {
        let within = tempfile::tempdir().unwrap();
        let guessed = format!("{NAME}.{}.{}", namespace(), std::process::id());
        for name in [guessed.clone(), format!("{guessed}.")] {
            fs::write(within.path().join(name), "").unwrap();
        }
        for number in 0..4000 {
            fs::write(within.path().join(format!("{guessed}.{number}")), "").unwrap();
        }
        let make = || make_within(within.path(), &Configuration::default(), None).unwrap();
        assert_ne!(make(), make());
    }

    /// The files below a folder, each once: their numbers and texts.
    fn texts(folder: &Path) -> HashMap<u64, String> {
        let mut found = HashMap::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.metadata().unwrap() {
                about if about.is_dir() => found.extend(texts(&path)),
                about if about.is_file() => {
                    found.insert(about.ino(), fs::read_to_string(path).unwrap());
                }
                // The null device.
                _ => {}
            }
        }
        found
    }

    // A file takes a page of memory, or a block of a disk.
    #[test]
    fn an_interface_adds_eight_files_and_no_text_is_stored_twice() {
        let within = tempfile::tempdir().unwrap();
        let made = |interfaces: u8| {
            let mut configuration = Configuration::default();
            let addresses = (1..=interfaces).map(|last| IpAddr::from([192, 0, 2, last]));
            let interfaces: Vec<_> = addresses
                .map(|at| (format!("interface-{at}"), at))
                .collect();
            for (_, address) in &interfaces {
                for transport in [TransportName::Roce, TransportName::Iwarp] {
                    let device = Device {
                        transport,
                        address: *address,
                        ..Device::default()
                    };
                    configuration.add(device).unwrap();
                }
            }
            let root = tempfile::tempdir_in(&within).unwrap();
            fill(root.path(), &configuration, interfaces).unwrap();
            texts(root.path())
        };
        let forty = made(40);
        // The names of both devices, their GUIDs, their three GIDs, and the name of the interface.
        assert_eq!(forty.len(), made(1).len() + 39 * 8);
        let distinct: HashSet<_> = forty.values().collect();
        assert_eq!(distinct.len(), forty.len());
    }
}
