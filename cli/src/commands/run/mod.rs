//! `polyverbs run`: runs an unmodified program on emulated devices.

mod adapter;
mod descriptors;
mod faults;
mod in_turn;
mod preflight;
mod root;
mod sanitizers;
mod system;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use polyverbs::emulated::FaultSpec;
use polyverbs_configuration::{
    ChosenProfile, Configuration, ConfigurationError, Device, LinkLayer, ROOT_VARIABLE,
    STANDARD_ERROR, VARIABLE, devices_as,
};
use polyverbs_layer::Faults;
use polyverbs_profiles::Profile;

use crate::libraries::Libraries;
use crate::output::{complain, print};

/// Run an unmodified program on our devices
///
/// The program finds Polyverbs' libibverbs.so.1 and librdmacm.so.1 before those of the system. It sees a RoCE device (ib0,
/// ib1 …) and an iWARP device (iw0, iw1 …) at the loopback address and at every other address of this machine; no hardware,
/// no kernel module, no privileges. Devices of other processes and machines are reached at their addresses.
#[derive(clap::Args)]
#[command(after_help = "\
A DEVICE is the name of one that there would be, or describes a new one by
settings with commas between them:
  name=NAME                         ib0, ib1 … unless set
  transport=roce|iwarp|infiniband   roce unless set; infiniband: in a fabric
  address=ADDRESS                   127.0.0.1 unless set
  link-layer=ethernet|infiniband    what the port of a RoCE device reports
  fault=FAULTS                      as --fault
  shared-memory=no                  sockets within this machine too
  wire=no                           queue pairs of one process only
  crc=no                            iWARP without checksums
  speaks-first=yes                  iWARP servers that send first
  strict-signaling=no               send queues have room before completions are polled
  profile=NAME                      as --as
  except=QUIRK                      without a quirk of the profile
  max_qp=16                         and other limits, by their names
With --device the program sees the named devices only, in that order.

RULES say what fails, when, and how, as WHAT[FILTER]@WHEN~CHANCE%:ACT->ACT; …:
  reg_mr@101+:ENOMEM                the 101st region and all after it
  modify_qp[to=rtr]@2:EINVAL        the second queue pair that gets ready
  post_send[qp=1]@500:EAGAIN        the first queue pair's 500th request
  wc.write@3:RETRY_EXC              the third write fails, the rest flushes
  wc.read~0.1%:REM_ACCESS; seed=7   one read in a thousand
  wc[qp=2]@10..20:hold 30ms         completions that come late
  wc.send@100:lost                  a completion that never comes
  event@5s:PORT_ERR->after 2s->PORT_ACTIVE
  cm.ESTABLISHED@2:UNREACHABLE      an event of librdmacm
docs/faults.md has all of it.

A FILE of --config is TOML: `polyverbs run --show` prints one to begin with.

Examples:
  polyverbs run -- ibv_devinfo -v
  polyverbs run -- ibv_rc_pingpong -d ib0 -g 0
  polyverbs run -- ibv_rc_pingpong -d ib0 -g 0 127.0.0.1
  polyverbs run --device iw0 -- rping -s
  polyverbs run --device name=mlx5_0,max_qp=100 -- ibv_devinfo
  polyverbs run --fault drop=1%,delay=1ms --pcap PACKETS -- ib_write_bw
  polyverbs run --fail create_qp@11+:EBUSY -- PROGRAM
  polyverbs run --node B -- ibstat
  polyverbs run --as amd-ionic -- ibv_devinfo -v
  polyverbs run --as amd-ionic,aws-efa -- PROGRAM
  polyverbs run --as amd-ionic --except budget-res-rd-atom -- PROGRAM
  polyverbs run --trace=CALLS -- ibv_devices")]
pub(crate) struct Arguments {
    /// File that describes the devices
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A device for the program; may be given several times
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,
    /// Profile of real devices that the program's devices take on: a name of `polyverbs profile list`, or a TOML file. With
    /// several names, the program is run for each in turn
    #[arg(long = "as", value_name = "PROFILE", value_delimiter = ',', action = clap::ArgAction::Set, conflicts_with_all = ["device", "config", "over_system"])]
    profiles: Vec<ChosenProfile>,
    /// A quirk of the profile that the devices do not have; may be given several times
    #[arg(long, value_name = "QUIRK", requires = "profiles")]
    except: Vec<String>,
    /// Link layer that the ports of RoCE devices report: ethernet or infiniband
    #[arg(long, value_name = "LAYER")]
    link_layer: Option<LinkLayer>,
    /// Faults of links, for frames that are sent: see `polyverbs copy --help`
    #[arg(long, value_name = "FAULTS")]
    fault: Option<FaultSpec>,
    /// Make verbs, requests, completions and events fail by these rules; may be given several times. Afterwards the
    /// command reports how often each rule fired; a rule that never fired fails the run (status 125)
    #[arg(long, value_name = "RULES")]
    fail: Vec<String>,
    /// As --fail, with rules from a file: one per line, `#` begins a comment
    #[arg(long, value_name = "FILE")]
    fail_file: Option<PathBuf>,
    /// Seed of the chances in --fail: the same seed gives the same run
    #[arg(long, value_name = "NUMBER")]
    fail_seed: Option<u64>,
    /// Run the program on the devices of the system's own libibverbs, which is loaded behind ours, in place of emulated devices
    #[arg(long, conflicts_with_all = ["device", "link_layer", "fault", "pcap", "fabric", "node"])]
    over_system: bool,
    /// Write each rule that has fired, with its exact count, for --fail-file. The content of FILE is replaced when the program
    /// has been found
    #[arg(long, value_name = "FILE")]
    fail_log: Option<PathBuf>,
    /// Write each verb that is called, with arguments and result; to standard error without a file. The content of FILE is
    /// replaced when the program has been found
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = STANDARD_ERROR)]
    trace: Option<PathBuf>,
    /// Write the packets of the devices. The content of FILE is replaced when the program has been found
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Socket of the emulated fabric that the program is in, as of `polyverbs fabric --socket`
    #[arg(long, value_name = "SOCKET")]
    fabric: Option<String>,
    /// Name of the program's own node in the topology of that fabric; the first adapter unless set. With one of both, the
    /// program's only device is the adapter of that node, unless --device, --as or --config says otherwise
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Print the devices that the program would find, as a file for --config, and run nothing
    #[arg(long)]
    show: bool,
    /// The program to run, with its arguments
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "show",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

// The status that shells and env use.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// Replaces this process by the program, or runs it for each of several profiles.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.profiles.len() > 1 {
        return in_turn::run(&arguments.profiles);
    }
    let mut configuration = configuration(arguments)?;
    if arguments.show {
        print(configuration.to_text()?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let [program, rest @ ..] = &*arguments.program else {
        anyhow::bail!("there is no program to run");
    };
    if let Some(complaint) = descriptors::make_room(configuration.devices.len()) {
        complain(&complaint);
    }
    if let [profile] = &*arguments.profiles {
        tell_unmet(profile.profile())?;
    }
    let log = faults::Log::of(&mut configuration)?;
    let libraries = Libraries::find_or_build()?;
    let adapter = adapter::find(&configuration)?;
    adapter::name(&mut configuration, adapter.as_ref());
    let root = root::make(&configuration, adapter.as_ref())?;
    let prepared = libraries.named(&root).and_then(|named| {
        // Otherwise the error of the system explains the failure.
        if let Some(file) = find(program) {
            empty(&configuration)?;
            if let Some(obstacle) = preflight::obstacle(&file) {
                complain(&obstacle);
            }
        }
        Ok((named, sanitizers::thread_options(&root)?))
    });
    let ((folder, redirect), thread_options) = prepared.inspect_err(|_| {
        // Reports the first error.
        let _ = fs::remove_dir_all(&root);
    })?;
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LD_LIBRARY_PATH", in_front(folder, "LD_LIBRARY_PATH"))
        .env(VARIABLE, configuration.to_text()?);
    let is_over_system = configuration.over_system.is_some();
    if !is_over_system {
        // Devices of the system are below the system's `/sys` and `/dev`.
        command
            .env("LD_PRELOAD", in_front(redirect, "LD_PRELOAD"))
            .env(
                "ASAN_OPTIONS",
                in_front(sanitizers::ADDRESS, "ASAN_OPTIONS"),
            )
            .env("TSAN_OPTIONS", thread_options)
            .env(ROOT_VARIABLE, &root);
    }
    let rules = match configuration.fail.take() {
        // The command removes the folder after the program, which has no library that does.
        None => is_over_system.then(Faults::new),
        rules => rules,
    };
    let failed = match rules {
        None => command.exec(),
        Some(rules) => match faults::supervise(&mut command, &rules, log.path()) {
            Ok(code) => {
                let _ = fs::remove_dir_all(&root);
                return Ok(code);
            }
            Err(failed) => failed,
        },
    };
    // Nothing that would need dropping was started.
    let _ = fs::remove_dir_all(&root);
    let is_there = Path::new(program).exists();
    let program = program.display();
    if failed.kind() == io::ErrorKind::NotFound && is_there {
        complain(&format!(
            "cannot run {program}: what it names to run it is not there"
        ));
        return Ok(ExitCode::from(NOT_RUN));
    }
    if failed.kind() == io::ErrorKind::NotFound {
        complain(&format!(
            "{program} is not there: is it installed, and in PATH?"
        ));
        return Ok(ExitCode::from(NOT_FOUND));
    }
    complain(&format!("cannot run {program}: {failed}"));
    Ok(ExitCode::from(NOT_RUN))
}

/// Prints the features and limits of a profile that emulated devices do not reach: a program that fails for one of them would
/// run on the card.
fn tell_unmet(profile: &Profile) -> anyhow::Result<()> {
    let unmet = profile.unmet()?;
    if !unmet.is_empty() {
        let unmet: Vec<_> = unmet.iter().map(ToString::to_string).collect();
        complain(&format!(
            "as {}, our device has {}",
            profile.name,
            unmet.join(", ")
        ));
    }
    Ok(())
}

// The file that the system would find to run.
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        let there = fs::metadata(file);
        there.is_ok_and(|there| there.is_file() && there.mode() & 0o111 != 0)
    };
    if Path::new(program).components().count() > 1 {
        return Some(program.into()).filter(is_program);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut files = env::split_paths(&path).map(|folder| folder.join(program));
    files.find(is_program)
}

// Every process of the program appends to these files.
fn empty(configuration: &Configuration) -> anyhow::Result<()> {
    for file in [
        &configuration.trace,
        &configuration.pcap,
        &configuration.fail_log,
    ]
    .into_iter()
    .flatten()
    {
        if file.as_os_str() != STANDARD_ERROR {
            File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

fn configuration(arguments: &Arguments) -> anyhow::Result<Configuration> {
    let mut configuration = match &arguments.config {
        Some(file) => read(file)?,
        None => Configuration::from_environment().with_context(|| VARIABLE)?,
    };
    if let [profile] = &*arguments.profiles {
        let mut chosen = Configuration::default();
        for device in devices_as(profile, &arguments.except) {
            chosen.add(device)?;
        }
        configuration.devices = chosen.devices;
    }
    if !arguments.device.is_empty() {
        choose(&mut configuration, &arguments.device)?;
    }
    if let Some(link_layer) = arguments.link_layer {
        configuration
            .set_link_layer(link_layer)
            .context("--link-layer")?;
    }
    if let Some(fault) = arguments.fault {
        configuration.set_fault(fault).context("--fault")?;
    }
    if arguments.fabric.is_some() || arguments.node.is_some() {
        let attachment = configuration.fabric.get_or_insert_default();
        attachment.socket = arguments.fabric.clone().or(attachment.socket.take());
        if let Some(node) = &arguments.node {
            attachment.node.clone_from(node);
        }
        let has_others = arguments.config.is_some()
            || !arguments.device.is_empty()
            || !arguments.profiles.is_empty();
        if !has_others {
            configuration.be_at_node();
        }
    }
    if let Some(file) = &arguments.trace {
        configuration.trace = Some(file.clone());
    }
    if let Some(file) = &arguments.pcap {
        configuration.pcap = Some(file.clone());
    }
    if let Some(rules) = faults::rules(arguments)? {
        configuration.fail = Some(rules);
    }
    if let Some(file) = &arguments.fail_log {
        configuration.fail_log = Some(file.clone());
    }
    if configuration.fail_log.is_some() && configuration.fail.is_none() {
        anyhow::bail!(
            "--fail-log without --fail or --fail-file: there are no rules that could fire"
        );
    }
    if arguments.over_system {
        configuration.over_system = Some(system::library()?);
        configuration.devices = Vec::new();
    }
    // The program may be started in, or change to, another folder.
    for file in [
        &mut configuration.trace,
        &mut configuration.pcap,
        &mut configuration.fail_log,
    ]
    .into_iter()
    .flatten()
    {
        if file.as_os_str() != STANDARD_ERROR {
            *file = std::path::absolute(&*file)?;
        }
    }
    Ok(configuration)
}

fn read(file: &Path) -> anyhow::Result<Configuration> {
    let cannot = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).with_context(cannot)?;
    Configuration::parse(&text).map_err(|ConfigurationError { line, message }| match line {
        Some(line) => anyhow::anyhow!("{}:{line}: {message}", file.display()),
        None => anyhow::anyhow!("{}: {message}", file.display()),
    })
}

// The devices that are named, of the default ones, and new ones.
fn choose(configuration: &mut Configuration, wanted: &[String]) -> anyhow::Result<()> {
    let mut chosen = Configuration::default();
    for text in wanted {
        let device = if text.contains('=') {
            text.parse::<Device>().map_err(anyhow::Error::msg)
        } else {
            configuration
                .named(text)
                .cloned()
                .map_err(anyhow::Error::new)
        };
        let added = device.and_then(|device| Ok(chosen.add(device)?));
        added.with_context(|| format!("--device {text}"))?;
    }
    configuration.devices = chosen.devices;
    Ok(())
}

fn in_front(of: impl Into<OsString>, variable: &str) -> OsString {
    let mut list = of.into();
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(OsStr::new(":"));
        list.push(rest);
    }
    list
}
