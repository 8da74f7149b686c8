//! A server confirms a file only when it is stored, and touches no file of others.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::network::{DEVICES, Running, Server, arrives, path};
use super::{Folder, complaint, text};

/// A library that is preloaded before the C library and makes some functions fail.
pub(super) fn failing(folder: &Folder) -> PathBuf {
    test_kit::preload::failing(&folder.path("fails.so"))
}

#[test]
fn a_file_that_cannot_take_its_name_is_an_error_on_both_sides() {
    for device in DEVICES {
        let folder = Folder::new();
        let file = folder.file(5000);
        let server = Server::new(device, "127.0.24.1:0", &["--files", "1"]);
        let taken = server.folder.path("stored/file");
        fs::create_dir(&taken).unwrap();
        let told = complaint(&["put", path(&file), &server.address, "--device", device]);
        assert!(
            told.contains("the server does not store it: Is a directory"),
            "{told}"
        );
        assert_eq!(server.stored(), ["file"], "no other file is left");
        let Server { process, .. } = server;
        let (succeeded, told) = process.end();
        assert!(!succeeded && told.contains("Is a directory"), "{told}");
    }
}

#[test]
fn a_file_is_synced_before_the_server_confirms_it() {
    let folder = Folder::new();
    let (file, fails) = (folder.file(5000), failing(&folder));
    for (device, what) in [("ib0", "fsync-file"), ("iw0", "fsync-folder")] {
        let environment = [("LD_PRELOAD", path(&fails)), ("FAILS", what)];
        let within = Folder::new();
        let more = ["--files", "1"];
        let server = Server::within(within, device, "127.0.24.4:0", &more, &environment);
        let told = complaint(&["put", path(&file), &server.address, "--device", device]);
        assert!(told.contains("Input/output error"), "{what}: {told}");
        let has_name = !server.stored().is_empty();
        assert_eq!(has_name, what == "fsync-folder", "{what}");
    }
}

// The server fails while it reads from the client.
#[test]
fn each_client_of_a_server_with_a_full_disk_is_sent_the_reason() {
    let folder = Folder::new();
    let (file, fails) = (folder.file(8 << 20), failing(&folder));
    let environment = [("LD_PRELOAD", path(&fails)), ("FAILS", "pwrite")];
    for device in DEVICES {
        let server = Server::within(Folder::new(), device, "127.0.24.5:0", &[], &environment);
        let reason = "the server does not store it: No space left on device";
        server.refuses_each(&file, device, reason);
    }
}

#[test]
fn a_copy_is_synced_before_it_replaces_its_target() {
    let folder = Folder::new();
    let (file, fails, to) = (folder.file(5000), failing(&folder), folder.path("to"));
    fs::write(&to, "old").unwrap();
    let arguments = ["copy", path(&file), "--device", "ib0", "--to", path(&to)];
    let environment = [("LD_PRELOAD", path(&fails)), ("FAILS", "fsync-file")];
    let (succeeded, told) = Running::with(&arguments, &environment).end();
    assert!(!succeeded && told.contains("Input/output error"), "{told}");
    assert_eq!(fs::read(&to).unwrap(), b"old");
}

#[test]
fn a_file_without_a_thread_for_its_digest_is_an_error() {
    let folder = Folder::new();
    let (file, fails, to) = (folder.file(5000), failing(&folder), folder.path("to"));
    for device in DEVICES {
        let server = Server::new(device, "127.0.24.12:0", &[]);
        let copy = ["copy", path(&file), "--device", device, "--to", path(&to)];
        let put = ["put", path(&file), &server.address, "--device", device];
        for arguments in [&copy[..], &put] {
            let fails_without_thread = |number: u32| {
                let what = format!("thread-{number}");
                let environment = [("LD_PRELOAD", path(&fails)), ("FAILS", &what)];
                let (succeeded, told) = Running::with(arguments, &environment).end();
                !succeeded && told.starts_with("polyverbs: no thread for the digest, ")
            };
            assert!((1..=12).any(fails_without_thread), "{arguments:?}");
        }
    }
}

#[test]
fn a_server_deletes_only_what_servers_have_left() {
    let within = Folder::new();
    let stored = within.path("stored");
    let (apart, elsewhere) = (
        stored.join(".polyverbs-unfinished"),
        within.path("elsewhere"),
    );
    fs::create_dir_all(&apart).unwrap();
    fs::set_permissions(&apart, fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let kept = [
        stored.join(".draft.part"),
        stored.join(".file.17.0.part"),
        apart.join("notes"),
        elsewhere.join("part-1"),
    ];
    for kept in &kept {
        fs::write(kept, "of the user").unwrap();
    }
    fs::write(apart.join("part-left"), "by a server").unwrap();
    symlink(&elsewhere, apart.join("part-link")).unwrap();
    for fifo in [stored.join(".fifo.part"), apart.join("part-fifo")] {
        mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
    }
    let mut server = Server::within(within, "ib0", "127.0.24.6:0", &[], &[]);
    arrives(&mut server, "ib0", 5000, &[]);
    for kept in &kept {
        assert_eq!(fs::read(kept).unwrap(), b"of the user", "{kept:?}");
    }
    assert!(apart.join("part-link").is_symlink());
    for fifo in [stored.join(".fifo.part"), apart.join("part-fifo")] {
        assert!(fs::metadata(fifo).unwrap().file_type().is_fifo());
    }
    assert!(!apart.join("part-left").exists());
}

#[test]
fn unfinished_files_are_in_a_folder_of_the_server_only() {
    // A link or file of the user has the name of that folder.
    for is_link in [false, true] {
        let within = Folder::new();
        let stored = within.path("stored");
        fs::create_dir(&stored).unwrap();
        let (apart, elsewhere) = (
            stored.join(".polyverbs-unfinished"),
            within.path("elsewhere"),
        );
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("part-1"), "of the user").unwrap();
        match is_link {
            true => symlink(&elsewhere, &apart).unwrap(),
            false => fs::write(&apart, "of the user").unwrap(),
        }
        let file = within.file(5000);
        let server = Server::within(within, "ib0", "127.0.24.7:0", &[], &[]);
        let told = complaint(&["put", path(&file), &server.address, "--device", "ib0"]);
        assert!(told.contains("File exists"), "{told}");
        assert_eq!(server.stored(), [".polyverbs-unfinished"]);
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    }
}

#[test]
fn no_upload_has_the_name_of_the_folder_of_unfinished_files() {
    let folder = Folder::new();
    let named = folder.path(".polyverbs-unfinished");
    fs::write(&named, "new").unwrap();
    for device in DEVICES {
        let server = Server::new(device, "127.0.24.8:0", &[]);
        let told = complaint(&["put", path(&named), &server.address, "--device", device]);
        assert!(told.contains("is not the name of a file"), "{told}");
        assert_eq!(server.stored(), [""; 0]);
    }
}

#[test]
fn a_file_beyond_the_limit_is_refused_with_the_reason() {
    let folder = Folder::new();
    let file = folder.file(5001);
    for device in DEVICES {
        let more = ["--max-bytes", "5000"];
        let mut server = Server::new(device, "127.0.24.9:0", &more);
        let told = complaint(&["put", path(&file), &server.address, "--device", device]);
        assert!(told.contains("a file may have 5000 bytes there"), "{told}");
        assert_eq!(server.stored(), [""; 0]);
        arrives(&mut server, device, 5000, &[]);
    }
}

/// Characters that are no control characters, and that a terminal obeys: two directions of text, and a separator of lines.
const OBEYED: [char; 3] = ['\u{202e}', '\u{61c}', '\u{2028}'];

/// A file name with control characters, and with all of [`OBEYED`].
const CLEARS: &str = "a\u{1b}[2Jb\u{9b}31mc\u{202e}d\u{61c}e\u{2028}f";

#[track_caller]
fn is_plain(shown: &str) {
    let is_hidden =
        |letter: char| (letter.is_control() && letter != '\n') || OBEYED.contains(&letter);
    assert!(
        shown.contains('b') && !shown.contains(is_hidden),
        "{shown:?}"
    );
}

#[test]
fn file_names_are_printed_without_control_characters() {
    let folder = Folder::new();
    let named = folder.path(CLEARS);
    fs::write(&named, "new").unwrap();
    for more in [&["--json"][..], &[]] {
        let stored = folder.path("stored");
        fs::create_dir_all(&stored).unwrap();
        let at = ["serve", "--listen", "127.0.24.10:0", "--device", "ib0"];
        let to = ["--dir", path(&stored), "--files", "1"];
        let mut server = Running::new(&[&at[..], &to, more].concat());
        let mut lines = server.0.stdout.take().unwrap();
        let mut first = [0; 200];
        let length = lines.read(&mut first).unwrap();
        let first = String::from_utf8_lossy(&first[..length]).into_owned();
        let address = first.split(|letter: char| letter.is_whitespace() || letter == '"');
        let address = address
            .rev()
            .find(|word| word.contains("127.0.24.10:"))
            .unwrap();
        text(&["put", path(&named), address, "--device", "ib0"]);
        let mut told = String::new();
        lines.read_to_string(&mut told).unwrap();
        is_plain(&told);
        assert!(stored.join(CLEARS).exists(), "the file keeps its name");
    }
    let (missing, within) = (folder.path("no").join(CLEARS), folder.path(CLEARS));
    let (missing, file) = (path(&missing), path(&within));
    for failing in [
        &["put", missing, "127.0.24.10:9", "--device", "ib0"][..],
        &["copy", missing, "--device", "ib0", "--to", "/dev/null"],
        &["copy", file, "--device", "ib0", "--to", missing],
        &["matrix", "--output", missing],
        &["dissect", missing],
        &["capture", missing, "ping", "127.0.24.10", "--device", "ib0"],
        &["run", "--config", missing, "--", "true"],
        &["run", "--", missing],
        &["copy", missing, "--device", CLEARS, "--to", missing],
        &[CLEARS],
    ] {
        is_plain(&complaint(failing));
    }
    test_kit::libraries::built();
    let prefix = folder.path(CLEARS).join("prefix");
    is_plain(&text(&["install", "--prefix", path(&prefix), "--dry-run"]));
}
