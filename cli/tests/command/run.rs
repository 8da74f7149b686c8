//! `polyverbs run` and `polyverbs install`, with empty libraries: tests/peers runs programs over the real ones.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::stored::failing;
use super::{Folder, complaint, run, text};

/// The command installed in a temporary folder.
struct Installed {
    folder: Folder,
}

impl Installed {
    fn new() -> Self {
        let folder = Folder::new();
        let (bin, lib) = (folder.path("bin"), folder.path("lib/polyverbs"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let (built, command) = (env!("CARGO_BIN_EXE_polyverbs"), bin.join("polyverbs"));
        // A link works within one file system. Otherwise another process copies the file: one that this process writes
        // cannot be executed while a child that another test has just started still has it open.
        if fs::hard_link(built, &command).is_err() {
            let copied = Command::new("cp").arg(built).arg(&command).status();
            assert!(copied.unwrap().success());
        }
        let libraries = [
            "libibverbs.so.1",
            "libpolyverbs_redirect.so",
            "libpolyverbs_rds_sockets.so",
        ];
        let empty = folder.path("empty.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-o"])
            .arg(&empty)
            .args(["-x", "c", "/dev/null"]);
        assert!(cc.status().unwrap().success());
        for name in libraries {
            fs::copy(&empty, lib.join(name)).unwrap();
        }
        Self { folder }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.folder.path("bin/polyverbs"));
        command
            .env("XDG_RUNTIME_DIR", self.folder.path(""))
            // Cargo sets this for tests.
            .env_remove("LD_LIBRARY_PATH");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command().arg("run").args(arguments).output().unwrap()
    }

    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The folders of programs that `run` has started.
    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path("")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.to_string_lossy().contains("polyverbs-run"))
            .collect()
    }
}

#[test]
fn a_program_finds_the_libraries_first_and_its_own_arguments() {
    let installed = Installed::new();
    let told = installed.text(&[
        "--",
        "/bin/sh",
        "-c",
        "echo $LD_LIBRARY_PATH $LD_PRELOAD $1",
        "sh",
        "--config",
    ]);
    let lib = installed.folder.path("lib/polyverbs");
    let redirect = lib.join("libpolyverbs_redirect.so");
    assert_eq!(
        told,
        format!("{} {} --config\n", lib.display(), redirect.display())
    );
    let before = installed
        .command()
        .args(["run", "printenv", "LD_LIBRARY_PATH"])
        .env("LD_LIBRARY_PATH", "/x:/y")
        .output();
    assert_eq!(
        String::from_utf8(before.unwrap().stdout).unwrap(),
        format!("{}:/x:/y\n", lib.display())
    );
}

#[test]
fn a_program_has_the_same_exit_status_as_without_run() {
    let installed = Installed::new();
    assert_eq!(
        installed.run(&["/bin/sh", "-c", "exit 7"]).status.code(),
        Some(7)
    );
    assert_eq!(
        installed
            .run(&["/bin/sh", "-c", "kill -TERM $$"])
            .status
            .signal(),
        Some(15)
    );
    assert_eq!(installed.run(&["true"]).status.code(), Some(0));
}

#[test]
fn unwritable_folders_give_way_to_shared_memory() {
    let installed = Installed::new();
    let runs_in = |running: &Path| {
        let mut command = installed.command();
        command.env("XDG_RUNTIME_DIR", running);
        command.env("TMPDIR", installed.folder.path(""));
        let run = command.args(["run", "printenv", "POLYVERBS_ROOT"]);
        String::from_utf8(run.output().unwrap().stdout).unwrap()
    };
    let own = installed.folder.path("");
    let told = runs_in(&own);
    assert!(Path::new(told.trim_end()).starts_with(own), "{told}");
    // The folder for temporary files may be on a disk.
    let told = runs_in(Path::new("/proc"));
    assert!(told.starts_with("/dev/shm/"), "{told}");
}

#[test]
fn the_folder_of_a_program_ends_with_it() {
    let installed = Installed::new();
    let redirect = "libpolyverbs_redirect.so";
    let own = installed.folder.path("lib/polyverbs").join(redirect);
    fs::remove_file(&own).unwrap();
    symlink(test_kit::libraries::built().with_file_name(redirect), own).unwrap();
    installed.text(&["env", "true"]);
    assert!(installed.left().is_empty());
}

#[test]
fn a_folder_name_may_contain_a_blank() {
    let installed = Installed::new();
    let moved = installed.folder.path("two: words");
    fs::create_dir(&moved).unwrap();
    for part in ["bin", "lib"] {
        fs::rename(installed.folder.path(part), moved.join(part)).unwrap();
    }
    let run = |running: &Path| {
        let mut command = Command::new(moved.join("bin/polyverbs"));
        command.env("XDG_RUNTIME_DIR", running);
        command.args(["run", "/bin/sh", "-c", "ls -L $LD_LIBRARY_PATH $LD_PRELOAD"]);
        command.env_remove("LD_LIBRARY_PATH").output().unwrap()
    };
    let output = run(&installed.folder.path(""));
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let refused = run(&moved);
    assert!(!refused.status.success());
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("XDG_RUNTIME_DIR"), "{told}");
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 2);
}

#[test]
fn a_program_sees_devices_below_sys_and_dev() {
    let installed = Installed::new();
    let script = "cd $POLYVERBS_ROOT && ls dev/infiniband && cat sys/class/infiniband/*/ports/1/gids/* && cat sys/class/infiniband/x/ports/1/gid_attrs/*/* && cat sys/class/infiniband/*/node_type";
    let told = installed.text(&[
        "--device",
        "iw0",
        "--device",
        "name=x,address=::1",
        "/bin/sh",
        "-c",
        script,
    ]);
    let expected = [
        "iw0",
        "rdma_cm",
        "x",
        "0270:7f00:0001:0000:0000:0000:0000:0000",
        "fe80:0000:0000:0000:0000:0000:0000:0001",
        "0000:0000:0000:0000:0000:0000:0000:0001",
        "lo",
        "lo",
        "RoCE v2",
        "RoCE v2",
        "4: RNIC",
        "1: CA",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
    // The empty library does not remove the folder of its program; the next run does.
    assert_eq!(installed.left().len(), 1);
    installed.text(&["true"]);
    assert_eq!(installed.left().len(), 1);
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let installed = Installed::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/no-such-shell");
    for (program, status, why) in [
        (
            script,
            126,
            &*format!("cannot run {script}: what it names to run it is not there"),
        ),
        (
            "no-such-program",
            127,
            "no-such-program is not there: is it installed, and in PATH?",
        ),
        (
            "/etc/passwd",
            126,
            "cannot run /etc/passwd: Permission denied",
        ),
    ] {
        let output = installed.run(&[program]);
        assert_eq!(output.status.code(), Some(status));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.starts_with(&format!("polyverbs: {why}")), "{told}");
        assert!(installed.left().is_empty());
    }
    assert!(complaint(&["run"]).contains("<PROGRAM>"));
}

#[test]
fn missing_libraries_are_reported_with_a_remedy() {
    let installed = Installed::new();
    fs::remove_dir_all(installed.folder.path("lib")).unwrap();
    let output = installed.run(&["true"]);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains(
            "libpolyverbs_c_libraries.so: build the libraries with `cargo build --release`"
        ),
        "{told}"
    );
}

#[test]
fn a_printed_configuration_can_be_edited_and_read() {
    let shown = text(&[
        "run",
        "--show",
        "--device",
        "iw0",
        "--device",
        "name=mlx5_0,link-layer=infiniband,max_qp=7",
    ]);
    let expected = "[[device]]\nname = \"iw0\"\ntransport = \"iwarp\"\naddress = \"127.0.0.1\"\n\n[[device]]\nname = \"mlx5_0\"\ntransport = \"roce\"\naddress = \"127.0.0.1\"\nlink-layer = \"infiniband\"\n\n[device.limits]\nmax_qp = 7\n";
    assert_eq!(shown, expected);
    let folder = Folder::new();
    let file = folder.path("devices.toml");
    fs::write(&file, &shown).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(text(&["run", "--config", file, "--show"]), shown);
    let faulty = text(&["run", "--config", file, "--fault", "drop=5%", "--show"]);
    assert_eq!(faulty.matches("fault = \"drop=5%\"").count(), 1, "{faulty}");
}

#[test]
fn invalid_devices_are_reported_in_one_line() {
    let folder = Folder::new();
    let file = folder.path("devices.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "[[device]]\nname = \"ib0\"\n\nadress = \"::1\"\n").unwrap();
    let line = complaint(&["run", "--config", path, "--", "true"]);
    assert!(
        line.contains("devices.toml:4: unknown field `adress`"),
        "{line}"
    );
    assert!(
        complaint(&["run", "--config", "/gone.toml", "true"]).contains("cannot read /gone.toml")
    );
    let device = |text: &str| complaint(&["run", "--device", text, "true"]);
    assert!(device("ib77").contains("--device ib77: no device is named ib77; there are ib0, iw0"));
    assert!(device("max_fun=1").contains("max_fun is none of name, transport"));
    assert!(device("transport=iwarp,fault=drop=1%").contains("drop is a fault of a datagram link"));
    assert!(
        complaint(&["run", "--link-layer", "wood", "true"])
            .contains("link-layer is ethernet or infiniband")
    );
    assert!(
        complaint(&[
            "run",
            "--device",
            "iw0",
            "--link-layer",
            "infiniband",
            "true"
        ])
        .contains("there is none")
    );
}

#[test]
fn the_command_installs_itself_with_its_libraries() {
    let installed = Installed::new();
    let prefix = installed.folder.path("elsewhere");
    let mut install = installed.command();
    install.args(["install", "--prefix"]).arg(&prefix);
    let dry = installed
        .command()
        .args(["install", "--dry-run", "--prefix"])
        .arg(&prefix)
        .output()
        .unwrap();
    assert!(dry.status.success() && !prefix.exists());
    let done = install.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(done.stdout, dry.stdout);
    let lib = prefix.join("lib/polyverbs");
    for name in ["librdmacm.so.1", "libibumad.so.3"] {
        let target = fs::read_link(lib.join(name)).unwrap();
        assert_eq!(target, PathBuf::from("libibverbs.so.1"));
    }
    assert!(lib.join("libpolyverbs_rds_sockets.so").exists());
    assert_eq!(
        fs::metadata(prefix.join("bin/polyverbs"))
            .unwrap()
            .permissions()
            .mode()
            & 0o111,
        0o111
    );
    let pages = prefix.join("share/man/man1");
    let page = |name| fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("polyverbs.1").contains(".SH SUBCOMMANDS"));
    assert!(page("polyverbs-ping.1").contains("No program"));
    assert!(page("polyverbs-rds-send.1").contains("all of them"));
    assert_eq!(fs::read_dir(&pages).unwrap().count(), 32);
    for script in [
        "bash-completion/completions/polyverbs",
        "fish/vendor_completions.d/polyverbs.fish",
        "zsh/site-functions/_polyverbs",
    ] {
        assert!(
            fs::metadata(prefix.join("share").join(script))
                .unwrap()
                .len()
                > 1000
        );
    }
    // A second installation replaces the first, and the installed command works from another folder.
    assert!(install.output().unwrap().status.success());
    assert_eq!(fs::read_dir(&lib).unwrap().count(), 5);
    let moved = installed.folder.path("moved");
    fs::rename(&prefix, &moved).unwrap();
    let ran = Command::new(moved.join("bin/polyverbs"))
        .args(["run", "true"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let refused = run(&["install", "--prefix", "/proc/nowhere"]);
    assert!(!refused.status.success());
}

#[test]
fn an_installed_file_is_synced_before_it_replaces_the_old_one() {
    let installed = Installed::new();
    let prefix = installed.folder.path("elsewhere");
    let (fails, there) = (failing(&installed.folder), prefix.join("bin/polyverbs"));
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    fs::write(&there, "old").unwrap();
    for (what, is_replaced) in [("fsync-file", false), ("fsync-folder", true)] {
        let mut install = installed.command();
        install.args(["install", "--prefix"]).arg(&prefix);
        let ended = install.env("LD_PRELOAD", &fails).env("FAILS", what);
        let ended = ended.output().unwrap();
        assert!(!ended.status.success(), "{what}");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(told.contains("Input/output error"), "{what}: {told}");
        assert_eq!(fs::read(&there).unwrap() != b"old", is_replaced, "{what}");
        let left = fs::read_dir(there.parent().unwrap()).unwrap();
        assert_eq!(left.count(), 1, "{what}");
    }
}

#[test]
fn a_program_that_is_not_there_costs_no_trace_and_no_capture() {
    let installed = Installed::new();
    let file = |name| {
        let file = installed.folder.path(name);
        fs::write(&file, "of before").unwrap();
        file
    };
    let (trace, pcap, text) = (file("trace"), file("pcap"), file("text"));
    let trace_to = format!("--trace={}", trace.display());
    let pcap_to = format!("--pcap={}", pcap.display());
    let run = |program: &str| installed.run(&[&trace_to, &pcap_to, "--", program]);
    for program in [
        "no-such-program",
        "/no/such/program",
        text.to_str().unwrap(),
    ] {
        assert!(!run(program).status.success(), "{program}");
        for file in [&trace, &pcap] {
            assert_eq!(fs::read(file).unwrap(), b"of before", "{program}");
        }
    }
    assert!(run("true").status.success());
    for file in [&trace, &pcap] {
        assert_eq!(fs::read(file).unwrap(), b"");
    }
}

#[test]
fn a_program_that_will_not_load_the_libraries_is_named() {
    let installed = Installed::new();
    let path = |name| installed.folder.path(name);
    let (source, elsewhere) = (path("program.c"), path("elsewhere"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let cc = |to: &Path, arguments: &[&str]| {
        let mut cc = Command::new("cc");
        cc.arg(&source).arg("-o").arg(to).args(arguments);
        let built = cc.current_dir(path("")).output().unwrap();
        assert!(built.status.success(), "{built:?}");
    };
    let library = elsewhere.join("libibverbs.so.1");
    cc(&library, &["-shared", "-Wl,-soname,libibverbs.so.1"]);
    let rpath = format!("-Wl,-rpath,{}", elsewhere.display());
    let linked = [
        "-Wl,--no-as-needed",
        "elsewhere/libibverbs.so.1",
        "-Wl,-rpath,$ORIGIN/elsewhere",
    ];
    let old = [&linked[..], &["-Wl,--disable-new-dtags"]].concat();
    let new = [
        "-Wl,--no-as-needed",
        "elsewhere/libibverbs.so.1",
        &rpath,
        "-Wl,--enable-new-dtags",
    ];
    let programs = [
        ("static", &["-static"][..], Some("is linked statically")),
        (
            "rpath",
            &old,
            Some("elsewhere/libibverbs.so.1 before ours: remove its RPATH"),
        ),
        ("runpath", &new, None),
    ];
    for (name, arguments, why) in programs {
        cc(&path(name), arguments);
        let ran = installed.run(&[path(name).to_str().unwrap()]);
        let told = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.success(), "{name}: {told}");
        assert_eq!(
            told.lines().count(),
            usize::from(why.is_some()),
            "{name}: {told}"
        );
        assert!(told.contains(why.unwrap_or("")), "{name}: {told}");
    }
}

/// Runs a program under rules; it can note in the log that they have fired, as the libraries would. Returns its status and the
/// lines of standard error.
fn supervised(rules: &str, program: &[&str]) -> (Option<i32>, Vec<String>) {
    let installed = Installed::new();
    let log = installed.folder.path("log");
    let log = log.to_str().unwrap();
    let options = ["--fail", rules, "--fail-log", log, "--"];
    let ran = installed.run(&[&options[..], program].concat());
    let said = String::from_utf8(ran.stderr).unwrap();
    (ran.status.code(), said.lines().map(str::to_owned).collect())
}

/// A shell command that notes these lines in the log, which the configuration names.
fn noting(lines: &str) -> String {
    let find = r#"LOG=${POLYVERBS_CONFIG#*fail-log = \"}; LOG=${LOG%%\"*}"#;
    format!("{find}; printf '{lines}' >> \"$LOG\"")
}

#[test]
fn each_rule_is_told_with_how_often_it_has_fired() {
    let note = noting(
        "reg_mr@2:EIO  # rule 1, process 7\\nreg_mr@3:EIO  # rule 1, process 7\\nwc@1:lost  # rule 2, process 8\\n",
    );
    let told = supervised("reg_mr@2+:EIO; wc@1:lost", &["/bin/sh", "-c", &note]);
    let lines = [
        "polyverbs: fault 1, reg_mr@2+:EIO: fired 2 times",
        "polyverbs: fault 2, wc@1:lost: fired once",
    ];
    assert_eq!(told, (Some(0), lines.map(str::to_owned).to_vec()));
}

#[test]
fn a_rule_that_never_fired_fails_a_run_that_succeeded() {
    let never = "polyverbs: fault 1, reg_mr:EIO: never fired".to_owned();
    let told = supervised("reg_mr:EIO", &["true"]);
    assert_eq!(told, (Some(125), vec![never.clone()]));
    let told = supervised("reg_mr:EIO", &["/bin/sh", "-c", "exit 3"]);
    assert_eq!(told, (Some(3), vec![never.clone()]), "its own status");
    let told = supervised("reg_mr:EIO", &["/bin/sh", "-c", "kill -KILL $$"]);
    assert_eq!(told, (Some(128 + 9), vec![never]), "as a shell says it");
}

#[test]
fn a_signal_to_the_command_reaches_the_supervised_program() {
    // The program ends only if the signal comes back to it.
    let waits = "sleep 60 >/dev/null 2>&1 & trap \"kill $!; exit 7\" TERM";
    let program = format!("{waits}; kill -TERM $PPID; wait; exit 1");
    let (status, _) = supervised("reg_mr:EIO", &["/bin/sh", "-c", &program]);
    assert_eq!(status, Some(7));
}

#[test]
fn invalid_rules_are_reported_in_one_line() {
    let folder = Folder::new();
    let file = folder.path("rules");
    let path = file.to_str().unwrap();
    fs::write(&file, "# two rules\nwc@3:lost\nreg_mr:RETRY_EXC\n").unwrap();
    let of_file = complaint(&["run", "--fail-file", path, "true"]);
    assert!(of_file.contains("rules: line 3, column 1"), "{of_file}");
    let of_text = complaint(&["run", "--fail", "wc:lost; create_pq:EIO", "true"]);
    assert!(of_text.contains("column 10: create_pq"), "{of_text}");
    for (arguments, said) in [
        (&["--fail", ""][..], "has no rules"),
        (&["--fail-seed", "3"], "without --fail"),
        (&["--fail-log", "/x"], "without --fail"),
        (&["--fail-file", "/gone"], "cannot read /gone"),
    ] {
        let line = complaint(&[&["run"], arguments, &["true"]].concat());
        assert!(line.contains(said), "{line}");
    }
}

#[test]
fn rules_are_part_of_the_configuration() {
    let shown = text(&["run", "--fail", "wc@3:lost", "--fail-seed", "7", "--show"]);
    assert!(shown.contains("fail = \"wc@3:lost; seed=7\""), "{shown}");
    let folder = Folder::new();
    let file = folder.path("devices.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, &shown).unwrap();
    assert_eq!(text(&["run", "--config", path, "--show"]), shown);
    fs::write(&file, "fail = '''\nwc@3:lost\nwx:lost\n'''\n").unwrap();
    let line = complaint(&["run", "--config", path, "true"]);
    assert!(line.contains("devices.toml:1: "), "{line}");
    assert!(line.contains("line 2, column 1: wx"), "{line}");
}
