//! Runs `fi_pingpong` and `iperf3`, with which the devices are compared if those programs are installed.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use polyverbs_benches::sample::median;
use serde_json::Value;

/// The column of the output of `fi_pingpong` whose values [`fi_pingpong`] returns.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// The column with the bandwidth in MB/s.
    Rate,
    /// The column with the time of half a round trip in microseconds.
    Time,
}

/// Runs libfabric's `fi_pingpong` three times over 127.0.0.1, with this provider and kind of endpoint, `turns` messages
/// of `size` bytes; returns the median of the column. `None` means that the program is not installed or a run failed.
/// The caller chooses `turns` so large that the start of a run has no influence.
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

/// Runs `iperf3` for three seconds over 127.0.0.1; returns the received GB/s of its TCP stream, or `None` if `iperf3`
/// is not installed or the run failed.
pub(crate) fn iperf3() -> Option<f64> {
    let output = with_server("iperf3", &["-s", "-1"], &["-J", "-t", "3", "-c"])?;
    let output: Value = serde_json::from_str(&output).ok()?;
    let bits = output["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(bits / 8e9)
}

/// Runs `program` as a server, and again as a client with the argument 127.0.0.1, each for ten seconds at most; returns the
/// standard output of the client. `None` means that the program is not installed or cannot be started.
fn with_server(program: &str, server: &[&str], client: &[&str]) -> Option<String> {
    // After a lost message both processes would wait for ever.
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
