//! Programs of others, with which the devices are compared where they are installed.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use polyverbs_benches::sample::median;
use serde_json::Value;

/// A column of the output of `fi_pingpong`.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// MB/s.
    Rate,
    /// Microseconds of half a round trip.
    Time,
}

/// The median of three runs of libfabric's ping-pong, each so long that its start has no influence; `None` where it is not
/// installed, or cannot run the measurement.
pub(crate) fn fi_pingpong(
    [provider, kind]: [&str; 2],
    size: &str,
    turns: &str,
    column: Column,
) -> Option<f64> {
    let arguments = ["-p", provider, "-e", kind, "-S", size, "-I", turns];
    let from_the_right = match column {
        Column::Rate => 2,
        Column::Time => 1,
    };
    let run = || {
        let output = with_server("fi_pingpong", &arguments, &arguments)?;
        let mut words = output.lines().last()?.split_whitespace().rev();
        words.nth(from_the_right)?.parse::<f64>().ok()
    };
    let runs: Vec<_> = (0..3).map_while(|_| run()).collect();
    (runs.len() == 3).then(|| median(runs))
}

/// GB/s of `iperf3`; `None` where it is not installed, or cannot run the measurement.
pub(crate) fn iperf3() -> Option<f64> {
    let output = with_server("iperf3", &["-s", "-1"], &["-J", "-t", "3", "-c"])?;
    let output: Value = serde_json::from_str(&output).ok()?;
    let bits = output["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(bits / 8e9)
}

/// The output of a program that talks to another run of itself; `None` where there is no such program.
fn with_server(program: &str, server: &[&str], client: &[&str]) -> Option<String> {
    // A lost message would keep both waiting for ever.
    let bounded = || {
        let mut command = Command::new("timeout");
        command.args(["10", program]);
        command
    };
    if Command::new(program).arg("-h").output().is_err() {
        eprintln!("{program} is not installed");
        return None;
    }
    let mut server = bounded()
        .args(server)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    sleep(Duration::from_millis(500));
    let output = bounded().args(client).arg("127.0.0.1").output().ok();
    // The server has ended by itself, or is killed now.
    let _ = server.kill();
    let _ = server.wait();
    Some(String::from_utf8_lossy(&output?.stdout).into_owned())
}
