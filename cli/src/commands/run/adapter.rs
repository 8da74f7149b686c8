//! The adapter that a program has in an emulated fabric, as files below `/sys` and `/dev`.
//!
//! The files show the adapter as it is when the program starts. The library that is preloaded asks the fabric for a file of a port when a
//! program opens it, and so the program reads the present state.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context as _;
use polyverbs_configuration::Configuration;
use polyverbs_fabric::FabricName;
use polyverbs_fabric::client::{self, Connection};
use polyverbs_fabric::files::{self, by_fours};
use polyverbs_fabric::protocol::{NodeReport, PortReport};
use polyverbs_wire::layout::Octets;

/// Finds the adapter. `None` if there is no fabric, and the configuration does not ask for one.
///
/// # Errors
/// The fabric or the node that the configuration names is not there.
pub(super) fn find(configuration: &Configuration) -> anyhow::Result<Option<NodeReport>> {
    let wanted = configuration.fabric.clone().unwrap_or_default();
    let name = match &wanted.socket {
        Some(name) => name.parse().map_err(anyhow::Error::msg)?,
        None => FabricName::standard(),
    };
    let described =
        Connection::open(&name).and_then(|it| client::describe(it.as_fd(), &wanted.node));
    if configuration.fabric.is_none() {
        return Ok(described.ok());
    }
    let node = &wanted.node;
    let described = described.with_context(|| match node.is_empty() {
        true => format!("there is no adapter in a fabric {name}"),
        false => format!("there is no adapter {node} in a fabric {name}"),
    })?;
    Ok(Some(described))
}

/// Gives the device that is the adapter, if there is one, the GUID of the node.
pub(super) fn name(configuration: &mut Configuration, adapter: Option<&NodeReport>) {
    let guid = adapter.map(|it| Octets(it.info().node_guid.to_be_bytes()));
    let devices = configuration.devices.iter_mut();
    for device in devices.filter(|device| device.is_in_fabric()) {
        device.guid = guid;
    }
}

/// Writes the files of the adapter.
pub(super) fn fill(
    root: &Path,
    configuration: &Configuration,
    adapter: &NodeReport,
) -> io::Result<()> {
    let name = configuration.adapter();
    let wanted = configuration.fabric.as_ref();
    let socket = wanted.and_then(|it| it.socket.clone());
    let socket = socket.unwrap_or_else(|| FabricName::standard().to_string());
    let info = adapter.info();
    let at = root.join("sys/class/infiniband").join(name);
    write(
        &at,
        &[
            ("node_type", "1: CA".to_owned()),
            ("node_guid", by_fours(&info.node_guid.to_be_bytes())),
            (
                "sys_image_guid",
                by_fours(&info.system_image_guid.to_be_bytes()),
            ),
            ("node_desc", adapter.name.clone()),
            ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
            ("hw_rev", "0x0".to_owned()),
            ("hca_type", "polyverbs".to_owned()),
            ("board_id", "polyverbs".to_owned()),
        ],
    )?;
    fs::write(
        root.join("fabric"),
        format!("{socket}\n{}\n{name}\n", adapter.name),
    )?;
    let class = root.join("sys/class/infiniband_mad");
    write(&class, &[("abi_version", "5".to_owned())])?;
    let devices = root.join("dev/infiniband");
    for (index, port) in adapter.ports.iter().enumerate() {
        let number = index + 1;
        describe(&at.join("ports").join(number.to_string()), port)?;
        for kind in ["umad", "issm"] {
            let file = format!("{kind}{index}");
            let about = [("ibdev", name.to_owned()), ("port", number.to_string())];
            write(&class.join(&file), &about)?;
            symlink("/dev/null", devices.join(&file))?;
        }
    }
    Ok(())
}

fn describe(at: &Path, port: &PortReport) -> io::Result<()> {
    let (narrow, wide) = Default::default();
    for (path, text) in files::of_port(port, &narrow, &wide) {
        let file = at.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, text)?;
    }
    Ok(())
}

fn write(folder: &Path, files: &[(&str, String)]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in files {
        fs::write(folder.join(name), format!("{text}\n"))?;
    }
    Ok(())
}
