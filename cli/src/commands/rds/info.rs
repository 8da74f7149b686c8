//! The RDS connections and counters of a process, as text and JSON.

use std::fmt::Write as _;

use polyverbs_rds::RdsSocket;
use polyverbs_rds::protocol::{PathInfo, PathState};
use serde_json::{Map, Value, json};

use crate::output::{BOLD, DIM};

pub(super) fn tables(socket: &RdsSocket) -> anyhow::Result<String> {
    let mut text = format!(
        "\n\n{BOLD}{:39} {:10} {:>16} {:>16} {:>7} {:>7}{BOLD:#}",
        "CONNECTION", "STATE", "NEXT SENT", "NEXT RECV", "QUEUED", "UNACKED",
    );
    for path in socket.paths()? {
        let PathInfo {
            peer,
            next_transmit,
            next_receive,
            queued,
            unacknowledged,
            ..
        } = path;
        let state = name(path.state);
        write!(
            text,
            "\n{peer:39} {state:10} {next_transmit:>16} {next_receive:>16} {queued:>7} {unacknowledged:>7}"
        )?;
    }
    write!(text, "\n\n{BOLD}COUNTER{BOLD:#}")?;
    for (name, count) in socket.counters()?.by_name() {
        write!(text, "\n{name:24} {DIM}{count:>10}{DIM:#}")?;
    }
    Ok(text)
}

pub(super) fn to_json(socket: &RdsSocket) -> anyhow::Result<Value> {
    let paths = socket.paths()?;
    let connections = paths.iter().map(|path| {
        json!({
            "peer": path.peer,
            "state": name(path.state),
            "next_transmit": path.next_transmit,
            "next_receive": path.next_receive,
            "queued": path.queued,
            "unacknowledged": path.unacknowledged,
        })
    });
    let counters = socket.counters()?.by_name().into_iter();
    let counters: Map<_, _> = counters
        .map(|(name, count)| (name.to_owned(), json!(count)))
        .collect();
    Ok(json!({ "connections": connections.collect::<Vec<_>>(), "counters": counters }))
}

fn name(state: PathState) -> &'static str {
    match state {
        PathState::Down { .. } => "down",
        PathState::Connecting => "connecting",
        PathState::Up => "up",
        PathState::Ending => "ending",
    }
}
