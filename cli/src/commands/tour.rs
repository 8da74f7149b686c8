//! The tour that the command gives without a subcommand: the devices, what they support, and a file copied over each.

use std::io::Write as _;

use capability_matrix::{Matrix, Section};

use crate::commands::{copy, devices};
use crate::output::{BOLD, DIM, GOOD, format_bytes, progress, say, width, wrapped};
use crate::transfer::{Algorithm, CopyOptions};

const FILE: usize = 64 << 20;

pub(crate) fn run() -> anyhow::Result<()> {
    let all = polyverbs::devices()?;
    if all.is_empty() {
        anyhow::bail!("there is no device");
    }
    say!("{BOLD}The devices there are{BOLD:#}  {DIM}polyverbs devices{DIM:#}\n")?;
    devices::print(&devices::reports()?)?;

    say!("\n{BOLD}What each can do{BOLD:#}  {DIM}polyverbs matrix{DIM:#}\n")?;
    let matrix = Matrix::of(&all)?;
    for section in [Section::Operations, Section::Features, Section::Gaps] {
        if matrix.section(section).next().is_some() {
            say!("{}\n", matrix.section_to_text(section, width(), false))?;
        }
    }

    say!(
        "{BOLD}One program, a file of {}, every device{BOLD:#}  {DIM}polyverbs copy{DIM:#}\n",
        format_bytes(FILE as u64)
    )?;
    let folder = tempfile::tempdir()?;
    let from = folder.path().join("file");
    generate(&from)?;
    let mut intact = true;
    for device in &all {
        let to = folder.path().join(device.name());
        let options = CopyOptions::default();
        let run = copy::copy(device, &from, &to, options, Algorithm::default())?;
        copy::print(device, &run)?;
        intact &= run.copied.is_intact();
        std::fs::remove_file(to)?;
    }
    if !intact {
        anyhow::bail!("a copy differs from the file");
    }
    let names: Vec<_> = all.iter().map(polyverbs::Device::name).collect();
    say!("\n{GOOD}Verified over {}.{GOOD:#}\n", names.join(" and "))?;
    next(names[0], names[names.len() - 1])
}

fn next(one: &str, other: &str) -> anyhow::Result<()> {
    say!("{BOLD}What to try next{BOLD:#}")?;
    let tries = [
        (
            format!("polyverbs plan --device {other} read-and-invalidate"),
            "what an operation becomes",
        ),
        (
            format!("polyverbs plan --device {one} read-and-invalidate"),
            "and on the other transport",
        ),
        (
            format!("polyverbs copy FILE --device {one} --to COPY --fault drop=5%"),
            "the same on a bad link",
        ),
        (
            format!("polyverbs perf send-latency --device {one}"),
            "how fast it is",
        ),
        (
            "polyverbs matrix --format html --output matrix.html".to_owned(),
            "the matrix as a page",
        ),
    ];
    for (command, why) in tries {
        if 2 + 62 + 2 + 26 <= width() {
            say!("  {command:<62}  {DIM}{why}{DIM:#}")?;
        } else {
            say!("  {DIM}# {why}{DIM:#}\n  {command}")?;
        }
    }
    let last = "From a clone, `cargo run --release --` stands for `polyverbs`. The program that ran is \
                cli/src/transfer, examples/copy.rs its short form; the README has a smaller one to begin with.";
    say!("\n{}", wrapped(last.split(' '), " ", 0, width()))?;
    Ok(())
}

// Bytes without a pattern that could hide a fault.
fn generate(path: &std::path::Path) -> anyhow::Result<()> {
    let bar = progress(FILE as u64, "{bar:32.cyan/dim} generating a file");
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for index in 0..FILE / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes())?;
        if index % (1 << 20) == 0 {
            bar.set_position(index as u64 * 8);
        }
    }
    file.flush()?;
    bar.finish_and_clear();
    Ok(())
}
