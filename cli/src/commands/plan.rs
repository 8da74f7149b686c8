//! `polyverbs plan`: shows the requests that a portable operation is posted as on a device.

use std::io::Write as _;

use clap::ValueEnum;
use polyverbs::emulated::EmulatedOptions;
use polyverbs::{
    Context, RKey, RemoteAddress, Requirements,
    portable::{
        Plan, PlanStep, ReadAndInvalidate, ReadSink, RegisterForRemoteAccess, SendAndInvalidate,
        read_sink_access,
    },
    wr::SendFlags,
};
use polyverbs_configuration::ChosenProfile;
use serde_json::{Value, json};

use crate::output::{DIM, device, print_json, say};

/// Show what a portable operation becomes on a device
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs plan --device ib0 read-and-invalidate
  polyverbs plan --device iw0 read-and-invalidate
  polyverbs plan --as intel-x722 read-and-invalidate
  polyverbs plan --device ib0 register-for-remote-access --json | jq .slots")]
pub(crate) struct Arguments {
    /// Name of the device
    #[arg(long, value_name = "NAME", required_unless_present = "profile")]
    device: Option<String>,
    /// A profile of real devices in place of a device: a name of `polyverbs profile list`, or a TOML file
    #[arg(long = "as", value_name = "PROFILE", conflicts_with = "device")]
    profile: Option<ChosenProfile>,
    /// The portable operation
    #[arg(value_enum)]
    operation: Operation,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Operation {
    /// Read remote memory, and then invalidate the key of the local memory
    ReadAndInvalidate,
    /// Give a peer access to memory under a fresh key
    RegisterForRemoteAccess,
    /// Send a message that also invalidates a key of the peer
    SendAndInvalidate,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let device = match (&arguments.profile, &arguments.device) {
        (Some(chosen), _) => {
            let profile = chosen.profile();
            let named = EmulatedOptions {
                name: Some(profile.name.clone()),
                ..EmulatedOptions::default()
            };
            profile.device(&named, &[])?
        }
        (None, name) => device(name.as_deref().unwrap_or_default())?,
    };
    let context = device.open(&Requirements::everything_of(&device.attributes()))?;
    let plan = match arguments.operation {
        Operation::ReadAndInvalidate => {
            let sink = ReadSink::outline(&context);
            context.plan(&ReadAndInvalidate::new(RemoteAddress::default(), &sink))?
        }
        Operation::SendAndInvalidate => {
            let key = Some(RKey::default());
            context.plan(&SendAndInvalidate::new(&[], key))?
        }
        Operation::RegisterForRemoteAccess => {
            context.plan(&RegisterForRemoteAccess::outline(context.features(), true)?)?
        }
    };
    let note = note(arguments.operation, &context);
    if arguments.json {
        return print_json(&to_json(device.name(), &plan, note.as_deref()));
    }
    say!("{}: {}", device.name(), plan.to_string().trim_end())?;
    say!("  {DIM}slots of the send queue: {}{DIM:#}", plan.slots())?;
    if let Some(note) = note {
        say!("  {DIM}{note}{DIM:#}")?;
    }
    Ok(())
}

// A note about memory that the plan does not contain.
fn note(operation: Operation, context: &Context) -> Option<String> {
    match operation {
        Operation::ReadAndInvalidate => {
            Some(format!("the sink needs {}", read_sink_access(context)))
        }
        Operation::RegisterForRemoteAccess | Operation::SendAndInvalidate => None,
    }
}

fn to_json(device: &str, plan: &Plan, note: Option<&str>) -> Value {
    json!({
        "device": device,
        "operation": plan.operation,
        "control_verb": plan.control_verb,
        "slots": plan.slots(),
        "completions": 1,
        "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        "note": note,
    })
}

fn step(PlanStep { operation, flags }: &PlanStep) -> Value {
    let names: Vec<_> = operation.iter_names().map(|(name, _)| name).collect();
    json!({
        "operation": names.join(" "),
        "fenced": flags.contains(SendFlags::FENCE),
        "signaled": flags.contains(SendFlags::SIGNALED),
    })
}
