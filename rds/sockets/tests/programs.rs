//! C and Python programs with `AF_RDS` sockets, as `polyverbs run` starts them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{MutexGuard, OnceLock};

use polyverbs::provider::Mutex;

const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");

/// Runs the tests one at a time, because their programs use the same addresses. From here on
/// `socket` makes this project's sockets.
fn alone() -> (MutexGuard<'static, ()>, PathBuf) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock();
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(test_kit::libraries::built);
    (alone, built.with_file_name("libpolyverbs_redirect.so"))
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sockets");
        // Fortified, as distributions compile: this redirects the checked calls, such as
        // `__recv_chk`.
        let compiled = Command::new("cc")
            .args(["-O1", "-w", "-pthread", "-D_FORTIFY_SOURCE=2"])
            .args([&format!("{TESTS}/sockets.c"), "-o"])
            .arg(&program)
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{compiled:?}");
        program
    })
}

#[track_caller]
fn does(part: &str) {
    does_over(part, "");
}

#[track_caller]
fn does_over(part: &str, devices: &str) {
    let (_alone, library) = alone();
    let ran = Command::new(program())
        .arg(part)
        .env("LD_PRELOAD", library)
        .env("POLYVERBS_CONFIG", devices)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "done\n", "{ran:?}");
}

#[test]
fn a_socket_has_its_flags_and_refuses_inapplicable_calls() {
    does("made");
}

// covers 8.21 8.22
#[test]
fn addresses_are_bound_reported_and_refused_as_on_linux() {
    does("addresses");
}

// covers 8.20 8.23 8.24
#[test]
fn all_sending_and_receiving_calls_pass_whole_messages() {
    does("messages");
}

// covers 8.20
#[test]
fn a_message_can_be_peeked_measured_and_truncated() {
    does("cut");
}

// covers 8.47
#[test]
fn options_are_stored_or_refused() {
    does("options");
}

#[test]
fn poll_and_select_report_messages_and_room() {
    does("polled");
}

#[test]
fn level_triggered_epoll_reports_messages_and_room() {
    does("level");
}

#[test]
fn edge_triggered_epoll_reports_changes_after_eagain() {
    does("edge");
}

#[test]
fn blocking_calls_end_by_success_timeout_or_signal() {
    does("waits");
}

// covers 8.33 8.34
#[test]
fn a_refused_sender_is_notified_when_the_port_is_free() {
    does("congested");
}

#[test]
fn duplicates_share_the_socket_and_closed_numbers_are_free() {
    does("descriptors");
}

#[test]
fn the_number_of_a_socket_that_was_closed_elsewhere_is_a_files() {
    does("closed_elsewhere");
}

// covers 8.20
#[test]
fn memory_that_is_not_mapped_fails_a_call_and_loses_no_message() {
    does("nowhere");
}

#[test]
fn no_hostile_argument_ends_the_process() {
    does("hostile");
}

#[test]
fn a_program_keeps_the_descriptors_of_the_library() {
    does("busy");
}

#[test]
fn no_thread_or_descriptor_outlives_the_last_socket() {
    does("gone");
}

#[test]
fn a_child_opens_own_sockets_and_leaves_its_parents_alone() {
    does("forked");
}

#[test]
fn a_signal_handler_may_use_the_socket_that_it_interrupts() {
    does("interrupted");
}

#[test]
fn a_child_opens_a_socket_while_its_parent_opens_others() {
    does("forked_meanwhile");
}

#[test]
fn sockets_use_the_configured_devices() {
    let at = |name, address| {
        format!("[[device]]\nname = \"{name}\"\ntransport = \"iwarp\"\naddress = \"{address}\"\n")
    };
    let iwarp = at("iw0", "127.0.25.1") + &at("iw1", "127.0.25.2");
    does_over("over_iwarp", &iwarp);
    does_over("messages", &iwarp);
    // Other addresses get further devices of the configured kind.
    does_over("over_iwarp", &at("iw0", "127.0.25.9"));
}

// covers 8.37 8.38
#[test]
fn a_peer_that_uses_unmapped_memory_does_not_end_the_process() {
    does("gone_memory");
}

// covers 8.37 8.38 8.39 8.43 8.44
#[test]
fn messages_register_write_read_and_change_memory() {
    does("remote");
}

#[test]
fn two_processes_exchange_messages() {
    let (_alone, library) = alone();
    let mut server = Command::new(program())
        .arg("server")
        .env("LD_PRELOAD", &library)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "bound\n");
    let client = Command::new(program())
        .arg("client")
        .env("LD_PRELOAD", &library)
        .output()
        .unwrap();
    if !client.status.success() {
        server.kill().unwrap();
    }
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(server.wait().unwrap().success(), "{rest}{client:?}");
    assert_eq!(rest, "done\n", "{client:?}");
}

#[test]
#[ignore = "needs python3: tests/foreign runs it"]
fn a_python_program_uses_the_sockets() {
    let (_alone, library) = alone();
    let ran = Command::new("python3")
        .arg(format!("{TESTS}/sockets.py"))
        .env("LD_PRELOAD", library)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "done\n", "{ran:?}");
}
