//! `polyverbs devices`: the devices there are.

use std::io::Write as _;

use capability_matrix::DeviceReport;
use comfy_table::{ContentArrangement, Table, TableComponent, presets};

use crate::output::{BOLD, DIM, print_json, say};

/// List the devices there are
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs devices
  polyverbs devices --json | jq '.[].name'
  polyverbs devices --json | jq '.[] | select(.transport == \"iwarp\") | .limits.max_qp'")]
pub(crate) struct Arguments {
    /// Print a JSON array with everything that the devices tell about themselves
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let devices = reports()?;
    if arguments.json {
        return print_json(&devices);
    }
    if devices.is_empty() {
        anyhow::bail!("there is no device");
    }
    print(&devices)
}

pub(crate) fn reports() -> anyhow::Result<Vec<DeviceReport>> {
    let devices = polyverbs::devices()?;
    Ok(devices
        .iter()
        .map(|device| DeviceReport::of(&device.attributes()))
        .collect())
}

pub(crate) fn print(devices: &[DeviceReport]) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_style(TableComponent::MiddleHeaderIntersections, '─');
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(100);
    table.set_header([
        "DEVICE",
        "TRANSPORT",
        "PROVIDER",
        "PORT",
        "STATE",
        "ADDRESS",
        "MTU",
        "FEATURES",
        "GAPS",
    ]);
    for device in devices {
        for (index, port) in device.ports.iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            table.add_row([
                once(device.name.clone()),
                once(device.transport.to_owned()),
                once(device.provider.to_owned()),
                port.port.to_string(),
                port.state.to_owned(),
                port.address.clone(),
                port.active_mtu.to_string(),
                once(device.features.len().to_string()),
                once(device.gaps.len().to_string()),
            ]);
        }
    }
    say!("{}\n", table.trim_fmt())?;
    for device in devices {
        say!("{BOLD}{}{BOLD:#}  {}", device.name, list(&device.features))?;
        if !device.gaps.is_empty() {
            let gaps: Vec<_> = device.gaps.iter().map(ToString::to_string).collect();
            say!("     {DIM}gaps: {}{DIM:#}", list(&gaps))?;
        }
    }
    Ok(())
}

// Names separated by blanks, in lines of at most 95 columns that the caller has begun with five.
fn list(names: &[String]) -> String {
    let mut text = String::new();
    let mut column = 0;
    for name in names {
        if column > 0 && column + 1 + name.len() > 88 {
            text.push_str("\n     ");
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(name);
        column += name.len();
    }
    text
}
