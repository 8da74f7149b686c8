//! `polyverbs devices`: lists the devices.

use std::io::Write as _;

use capability_matrix::DeviceReport;
use comfy_table::{ContentArrangement, Table, TableComponent, presets};

use polyverbs_profiles::Profile;

use crate::output::{BOLD, DIM, print_json, say, width, wrapped};
use crate::transfer::printable;

/// List the devices
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs devices
  polyverbs devices --verbose
  polyverbs devices --as all
  polyverbs devices --json | jq '.[].name'
  polyverbs devices --json | jq '.[] | {name, transport}'")]
pub(crate) struct Arguments {
    /// Print a JSON array with all attributes of the devices
    #[arg(long)]
    json: bool,
    /// The devices that profiles of real ones stand for, in place of those that are here: names of `polyverbs profile list`,
    /// TOML files, or all
    #[arg(
        long = "as",
        value_name = "PROFILE",
        value_delimiter = ',',
        conflicts_with = "verbose"
    )]
    profiles: Vec<String>,
    /// Also say which devices cannot be used, and why
    #[arg(long, short, conflicts_with = "json")]
    verbose: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let devices = match &*arguments.profiles {
        [] => reports()?,
        profiles => reports_as(profiles)?,
    };
    if arguments.json {
        return print_json(&devices);
    }
    if !devices.is_empty() {
        print(&devices)?;
    }
    if arguments.verbose {
        print_absent()?;
    }
    anyhow::ensure!(!devices.is_empty(), "there is no device");
    Ok(())
}

fn print_absent() -> anyhow::Result<()> {
    for (provider, absent) in polyverbs::registry()?.absent() {
        let said = format!("not there: {}, {}", absent.what, absent.why);
        let said = printable(said);
        let said = wrapped(said.split(' '), " ", INDENT, width());
        say!("{BOLD}{provider}{BOLD:#} {DIM}{said}{DIM:#}")?;
    }
    Ok(())
}

fn reports_as(names: &[String]) -> anyhow::Result<Vec<DeviceReport>> {
    let is_all = names.iter().any(|name| name == "all");
    let profiles = match is_all {
        true => Profile::shipped()?,
        false => names
            .iter()
            .map(|name| Profile::named(name))
            .collect::<Result<_, _>>()?,
    };
    let reports = profiles
        .iter()
        .map(|profile| Ok(DeviceReport::of(&profile.attributes()?)));
    reports.collect()
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
    table.set_content_arrangement(ContentArrangement::Disabled);
    let shown: &[&str] = match width() {
        ..77 => &["DEVICE", "TRANSPORT", "ADDRESS"],
        77..94 => &[
            "DEVICE",
            "TRANSPORT",
            "PORT",
            "STATE",
            "ADDRESS",
            "MTU",
            "FEATURES",
            "GAPS",
        ],
        _ => &HEADERS,
    };
    let visible = |cells: [String; 9]| {
        let columns = HEADERS.into_iter().zip(cells);
        let columns = columns.filter(|(header, _)| shown.contains(header));
        columns.map(|(_, cell)| cell).collect::<Vec<_>>()
    };
    table.set_header(shown);
    for device in devices {
        for (index, port) in device.ports.iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            table.add_row(visible([
                once(device.name.clone()),
                once(device.transport.to_owned()),
                once(device.provider.to_owned()),
                port.port.to_string(),
                port.state.to_owned(),
                port.address.clone(),
                port.active_mtu.to_string(),
                once(device.features.len().to_string()),
                once(device.gaps.len().to_string()),
            ]));
        }
    }
    say!("{}\n", table.trim_fmt())?;
    for device in devices {
        let words = [device.name.as_str(), ""].into_iter();
        let words = words.chain(device.features.iter().map(String::as_str));
        let list = wrapped(words, " ", INDENT, width());
        let list = list.trim_start_matches(&device.name);
        say!("{BOLD}{}{BOLD:#}{list}", device.name)?;
        if !device.gaps.is_empty() {
            let words = ["gaps:"].into_iter();
            let gaps = words.chain(device.gaps.iter().copied());
            let gaps = wrapped(gaps, " ", INDENT, width());
            say!("{:INDENT$}{DIM}{gaps}{DIM:#}", "")?;
        }
    }
    Ok(())
}

const HEADERS: [&str; 9] = [
    "DEVICE",
    "TRANSPORT",
    "PROVIDER",
    "PORT",
    "STATE",
    "ADDRESS",
    "MTU",
    "FEATURES",
    "GAPS",
];
/// The number of blanks in front of a device's attributes.
const INDENT: usize = 5;
