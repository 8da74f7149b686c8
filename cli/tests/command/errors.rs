//! Each failure has an exit status other than zero and prints one line with the reason.

use super::network::Server;
use super::{DEVICES, Folder, complaint, run};

#[test]
fn an_unknown_device_is_reported_with_the_existing_ones() {
    let complaints = [
        complaint(&["copy", "Cargo.toml", "--device", "ib7", "--to", "/dev/null"]),
        complaint(&[
            "copy",
            "Cargo.toml",
            "--device",
            "ib7",
            "--to",
            "/dev/null",
            "--fault",
            "drop=1%",
        ]),
        complaint(&["plan", "--device", "ib7", "read-and-invalidate"]),
        complaint(&["perf", "write-latency", "--device", "ib7"]),
        complaint(&["matrix", "--device", "ib7"]),
    ];
    for complaint in complaints {
        assert_eq!(
            complaint,
            "polyverbs: no device is named ib7; there are ib0, iw0"
        );
    }
}

#[test]
fn an_unreadable_or_unwritable_file_is_named() {
    let folder = Folder::new();
    let (file, gone) = (folder.file(1000), folder.path("gone"));
    let (file, gone) = (file.to_str().unwrap(), gone.to_str().unwrap());
    let copy = |from: &str, to: &str| complaint(&["copy", from, "--device", "ib0", "--to", to]);
    assert!(copy(gone, file).contains(&format!("cannot read {gone}: No such file")));
    assert_eq!(
        std::fs::read(file).unwrap().len(),
        1000,
        "the target was left alone"
    );
    assert!(copy("/", gone).contains("cannot read /: it is a directory"));
    assert!(copy(file, "/gone/too").contains("cannot write /gone/too: No such file"));
    assert!(copy(file, file).contains("it is the file that is to be copied"));
    assert_eq!(
        std::fs::read(file).unwrap().len(),
        1000,
        "the file survived"
    );
}

#[test]
fn a_full_disk_fails_both_sides() {
    let folder = Folder::new();
    for length in [1, 5 << 20] {
        let file = folder.file(length);
        for device in DEVICES {
            let line = complaint(&[
                "copy",
                file.to_str().unwrap(),
                "--device",
                device,
                "--to",
                "/dev/full",
            ]);
            assert!(
                line.contains("cannot write /dev/full: No space left on device"),
                "{line}"
            );
        }
    }
}

#[test]
fn faults_of_the_other_kind_of_link_are_refused() {
    let copy = |device, fault| {
        complaint(&[
            "copy",
            "Cargo.toml",
            "--device",
            device,
            "--to",
            "/dev/null",
            "--fault",
            fault,
        ])
    };
    assert!(copy("iw0", "drop=5%").contains("drop is a fault of a datagram link (InfiniBand)"));
    assert!(copy("ib0", "chunk=64").contains("chunk is a fault of a stream link (iWARP)"));
    assert!(copy("ib0", "drop").contains("is not of the form name=value"));
    assert!(copy("ib0", "drop=150%").contains("expected a percentage"));
    assert!(copy("ib0", "flood=1%").contains("no fault is called"));
}

#[test]
fn a_broken_connection_ends_the_copy() {
    let folder = Folder::new();
    let file = folder.file(3 << 20);
    let broken = [
        "copy",
        file.to_str().unwrap(),
        "--device",
        "iw0",
        "--to",
        "/dev/null",
        "--fault",
        "reset-after=40",
    ];
    assert!(complaint(&broken).contains("the connection broke"));
}

#[test]
fn an_invalid_command_line_is_reported_in_one_line() {
    assert!(complaint(&["fly"]).contains("unrecognized subcommand 'fly'"));
    assert!(complaint(&["copy", "Cargo.toml", "--device", "ib0"]).contains("--to <PATH>"));
    assert!(complaint(&["plan", "--device", "ib0", "teleport"]).contains("read-and-invalidate"));
    let copy = |option, value| {
        complaint(&[
            "copy",
            "Cargo.toml",
            "--device",
            "ib0",
            "--to",
            "/dev/null",
            option,
            value,
        ])
    };
    for piece in ["0", "2M", "some", "", "64 parsecs"] {
        assert!(copy("--piece", piece).contains("--piece"), "{piece}");
    }
    for depth in ["0", "100000", "few"] {
        assert!(copy("--depth", depth).contains("--depth"), "{depth}");
    }
    let perf = |test, size| complaint(&["perf", test, "--device", "ib0", "--size", size]);
    assert!(perf("atomic-latency", "16").contains("an atomic operation has 8 bytes, not 16"));
    assert!(perf("bandwidth", "0").contains("1 byte to 1G"));
    assert_eq!(run(&["fly"]).status.code(), Some(2));
}

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let line = complaint(&[
        "matrix",
        "--format",
        "html",
        "--output",
        "/gone/matrix.html",
    ]);
    assert!(
        line.contains("cannot write /gone/matrix.html: No such file"),
        "{line}"
    );
    assert!(
        complaint(&["matrix", "--format", "html", "--output", "/dev/full"])
            .contains("No space left")
    );
}

#[test]
fn a_full_standard_output_ends_every_command_with_one_line() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (file, capture) = (
        folder.file(1000).to_str().unwrap().to_owned(),
        path("capture"),
    );
    let (to, prefix) = (path("to"), path("prefix"));
    std::fs::create_dir(&prefix).unwrap();
    let copy = ["copy", &file, "--device", "ib0", "--to", &to];
    run(&[&["capture", &capture], &copy[..]].concat());
    let listens = ["--device", "ib0"];
    let server = Server::new("ib0", "127.0.26.1:0", &[]);
    for arguments in [
        &[][..],
        &["--help"],
        &["--version"],
        &["capture", &path("other"), "devices"],
        &["completions", "bash"],
        &copy,
        &["devices"],
        &["devices", "--json"],
        &["dissect", &capture],
        &["install", "--dry-run", "--prefix", &prefix],
        &["matrix", "--device", "ib0"],
        &["perf", "write-latency", "--device", "ib0"],
        &[&["ping", &*server.address], &listens[..]].concat(),
        &["plan", "--device", "ib0", "read-and-invalidate"],
        &[&["rds", "receive", "127.0.26.2:4000"], &listens[..]].concat(),
        &["run", "--show"],
        &[
            &["serve", "--listen", "127.0.26.3:0", "--dir", &prefix],
            &listens[..],
        ]
        .concat(),
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_polyverbs"));
        let ended = command.args(arguments).stdout(full).output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {told}");
        assert_eq!(
            told,
            "polyverbs: cannot write to standard output: No space left on device (os error 28)\n",
            "{arguments:?}"
        );
    }
}
