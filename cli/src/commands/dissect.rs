//! `polyverbs dissect`: prints a capture packet by packet, and checks it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use polyverbs_dissect::form::{Content, Pdu, Time, Unit};
use polyverbs_dissect::summary::{PassedOver, Tally};
use polyverbs_dissect::{Capture, CaptureFile, Dissector, FileError, Packet, Summary, line};

use crate::output::{AlreadyReported, BAD, BOLD, DIM, GOOD, format_bytes, print_json, say};

/// Take a capture of RoCEv2 and iWARP apart, and check it
///
/// One line for each packet, with its headers named. Every ICRC and every CRC-32C that is in use is checked, TCP streams
/// are put together, packets that the kernel has joined are split, and the opcodes that were seen are counted. Packets
/// below VLAN tags, MPLS, PPPoE, GRE, ERSPAN, VXLAN and Geneve are found. The exit status is not zero if a checksum is
/// wrong, a packet of the two protocols does not parse, or the file is damaged; packets that the snap length has truncated
/// are no error. Packets that are skipped are counted by the reason: another protocol, or a connection whose beginning was
/// not captured. RDS over either protocol is shown if the connection was made to its port (18634; 16385 with IPv6).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs dissect FILE.pcap
  polyverbs dissect FILE.pcap --json | jq .summary
  polyverbs dissect FILE.pcap --json | jq '.packets[].content.roce.headers'
  polyverbs dissect FILE.pcap --json | jq '.. | objects | .rds.header // empty'")]
pub(crate) struct Arguments {
    /// A pcap or pcapng file of Ethernet, raw IP, Linux's cooked capture or BSD's loopback
    file: PathBuf,
    /// Print a JSON object with every field and all payload, from which the packets could be built again
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = &arguments.file;
    let summary = if arguments.json {
        let capture = json(path).with_context(|| unreadable(path))?;
        print_json(&capture)?;
        if let Some(defect) = capture.defect {
            anyhow::bail!("{}: {defect}", unreadable(path));
        }
        capture.summary
    } else {
        text(path)?
    };
    if summary.is_clean() {
        Ok(())
    } else {
        Err(AlreadyReported.into())
    }
}

fn unreadable(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

fn json(path: &Path) -> Result<Capture, FileError> {
    polyverbs_dissect::dissect(File::open(path).map_err(FileError::Io)?)
}

fn open(path: &Path) -> Result<CaptureFile<'static>, FileError> {
    CaptureFile::new(File::open(path).map_err(FileError::Io)?)
}

fn text(path: &Path) -> anyhow::Result<Summary> {
    let mut file = open(path).with_context(|| unreadable(path))?;
    let mut dissector = Dissector::new();
    let mut first = None;
    let defect = loop {
        match file.next_packet() {
            Ok(Some(captured)) => {
                let packet = dissector.packet(&captured);
                print(&packet, *first.get_or_insert(packet.time))?;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error).with_context(|| unreadable(path)),
        }
    };
    let (unfinished, summary) = dissector.finish();
    for pdu in &unfinished {
        print_unfinished(pdu)?;
    }
    print_summary(&summary)?;
    defect.map(|()| summary)
}

fn print(packet: &Packet, first: Time) -> anyhow::Result<()> {
    let line = line(packet, first);
    let content = packet
        .reassembled
        .as_ref()
        .map_or(&packet.content, |whole| &whole.content);
    let is_of_neither = matches!(content, Content::Fragment(_) | Content::Other(_));
    match &packet.complaints[..] {
        [] if is_of_neither => say!("{DIM}{line}{DIM:#}")?,
        [] => say!("{line}")?,
        complaints => say!("{line}  {BAD}{}{BAD:#}", complaints.join("; "))?,
    }
    Ok(())
}

fn print_unfinished(pdu: &Pdu) -> anyhow::Result<()> {
    let Unit::Octets { complaint, octets } = &pdu.unit else {
        return Ok(());
    };
    let Pdu {
        connection, offset, ..
    } = pdu;
    let count = octets.0.len();
    let line = format!("at the end, connection {connection}: {count} bytes from byte {offset} on");
    match complaint {
        None => say!("{DIM}{line} are not whole{DIM:#}")?,
        Some(complaint) => say!("{line}  {BAD}{complaint}{BAD:#}")?,
    }
    Ok(())
}

fn print_summary(summary: &Summary) -> anyhow::Result<()> {
    if !summary.opcodes.is_empty() {
        say!("\n{}\n", table(summary))?;
    }
    let ours = summary.roce + summary.roce_v1 + summary.iwarp;
    let others = summary.packets - ours;
    let roce_v1 = match summary.roce_v1 {
        0 => String::new(),
        count => format!("{count} RoCEv1, "),
    };
    say!(
        "{BOLD}{} packets{BOLD:#}: {} RoCEv2, {roce_v1}{} iWARP, {others} others",
        summary.packets,
        summary.roce,
        summary.iwarp,
    )?;
    if summary.joined != 0 {
        let count = summary.joined;
        say!("packets that the kernel has joined to datagrams of several (GSO, GRO): {count}")?;
    }
    if summary.reassembled != 0 {
        let count = summary.reassembled;
        say!("packets that were put together from IP fragments: {count}")?;
    }
    for (name, tally) in [("ICRC", summary.icrc), ("CRC-32C", summary.crc32c)] {
        if tally != Tally::default() {
            let Tally {
                right,
                wrong,
                unused,
            } = tally;
            say!("{name}: {right} right, {wrong} wrong, {unused} not in use")?;
        }
    }
    if summary.cut != 0 {
        let count = summary.cut;
        say!("cut by the capture, before the ICRC: {count}")?;
    }
    if !summary.passed_over.is_empty() {
        say!("passed over: {}", passed_over(&summary.passed_over))?;
    }
    match summary.complaints {
        0 if ours == 0 => say!("nothing was checked: no packet is of RoCE or iWARP")?,
        0 => say!("{GOOD}nothing is wrong{GOOD:#}")?,
        1 => say!("{BAD}1 packet is wrong{BAD:#}")?,
        more => say!("{BAD}{more} packets are wrong{BAD:#}")?,
    }
    Ok(())
}

// The most frequent first.
fn passed_over(reasons: &[PassedOver]) -> String {
    const SHOWN: usize = 12;
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|passed| std::cmp::Reverse(passed.count));
    let shown = reasons.iter().take(SHOWN);
    let mut text: Vec<_> = shown
        .map(|PassedOver { reason, count }| format!("{count} {reason}"))
        .collect();
    let rest = reasons.iter().skip(SHOWN).map(|passed| passed.count);
    match rest.sum::<u64>() {
        0 => {}
        rest => text.push(format!("{rest} for other reasons (--json has all)")),
    }
    text.join(", ")
}

fn table(summary: &Summary) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_header(["PROTOCOL", "OPCODE", "COUNT", "PAYLOAD"]);
    for known in &summary.opcodes {
        table.add_row([
            known.protocol.name().to_owned(),
            known.opcode.clone(),
            known.count.to_string(),
            format_bytes(known.octets),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
