//! Output fits the terminal, and has no escape sequences unless the terminal and the user want them.

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};

use super::{Folder, run};

/// The output and errors of a command on a terminal with so many columns.
fn on_terminal(columns: u16, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
    command.args(arguments).stdin(Stdio::null());
    command.env_remove("COLUMNS").env_remove("NO_COLOR");
    command
        .env("TERM", "xterm")
        .envs(environment.iter().copied());
    command.stdout(pty.slave.try_clone().unwrap());
    command.stderr(pty.slave);
    let mut child = command.spawn().unwrap();
    // Its descriptors would keep the terminal open.
    drop(command);
    let mut shown = Vec::new();
    // Reading a terminal ends with an error.
    let _ = File::from(pty.master).read_to_end(&mut shown);
    child.wait().unwrap();
    String::from_utf8(shown).unwrap()
}

// Removes the escape sequences that change colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    first
        + &parts
            .map(|part| part.split_once('m').map_or("", |(_, rest)| rest))
            .collect::<String>()
}

#[track_caller]
fn assert_fits(text: &str, columns: usize) {
    // A command line is not wrapped, so that it can be copied.
    let is_whole = |line: &str| line.starts_with("Usage: ");
    for line in plain(text).lines().filter(|line| !is_whole(line)) {
        let width = line.trim_end().chars().count();
        assert!(width <= columns, "{width} of {columns}: {line}");
    }
}

const COMMANDS: [&str; 18] = [
    "capture",
    "completions",
    "copy",
    "devices",
    "dissect",
    "install",
    "matrix",
    "perf",
    "ping",
    "plan",
    "put",
    "rds",
    "rds ping",
    "rds receive",
    "rds send",
    "rds stress",
    "run",
    "serve",
];

fn help_of(command: &str) -> Vec<&str> {
    command.split(' ').chain(["--help"]).collect()
}

#[test]
fn tables_and_help_fit_the_terminal() {
    for columns in [40, 80, 200] {
        for shown in [
            &["devices"][..],
            &["matrix"],
            &["matrix", "--verify"],
            &["--help"],
        ] {
            // A progress bar is left out, because it overwrites itself.
            let text = on_terminal(columns, shown, &[("NO_COLOR", "1")]);
            assert!(!text.is_empty());
            assert_fits(&text, columns.into());
        }
        for command in COMMANDS {
            assert_fits(
                &on_terminal(columns, &help_of(command), &[]),
                columns.into(),
            );
        }
    }
    // Lines that are not wrapped fit too.
    for command in COMMANDS {
        let help = plain(&on_terminal(80, &help_of(command), &[]));
        assert!(
            help.lines()
                .all(|line| line.trim_end().chars().count() <= 80),
            "{help}"
        );
    }
}

#[test]
fn copies_and_figures_fit_eighty_columns() {
    let folder = Folder::new();
    let (from, to) = (folder.file(4097), folder.path("copy"));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    for shown in [
        &["copy", from, "--device", "ib0", "--to", to][..],
        &["perf", "write-latency", "--device", "iw0", "--iters", "300"],
        &["plan", "--device", "ib0", "read-and-invalidate"],
    ] {
        let text = on_terminal(80, shown, &[("NO_COLOR", "1")]);
        assert_fits(&text, 80);
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn escape_sequences_are_for_terminals_that_want_them() {
    let folder = Folder::new();
    let (from, to) = (folder.file(3 << 20), folder.path("copy"));
    let copy = [
        "copy",
        from.to_str().unwrap(),
        "--device",
        "ib0",
        "--to",
        to.to_str().unwrap(),
    ];
    for shown in [
        &copy[..],
        &["devices"],
        &["matrix", "--verify"],
        &["help"],
        &["fly"],
    ] {
        let has_any = |environment| on_terminal(80, shown, environment).contains('\u{1b}');
        assert!(has_any(&[]), "{shown:?}");
        assert!(!has_any(&[("NO_COLOR", "1")]), "{shown:?}");
        let piped = run(shown);
        assert!(
            !piped.stdout.contains(&0x1b) && !piped.stderr.contains(&0x1b),
            "{shown:?}"
        );
    }
}

#[test]
fn output_to_a_pipe_depends_only_on_columns() {
    let shown = |columns: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
        command.arg("matrix").env_remove("COLUMNS");
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(shown(None), shown(Some("100")));
    assert_eq!(shown(None), shown(Some("wide")));
    assert_fits(&shown(Some("60")), 60);
}
