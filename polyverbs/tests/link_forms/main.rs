//! Registrations counted in each form in which a program can be linked: exactly the crates that the facade names are there. A binary
//! of its own, because it names the facade and nothing else that registers itself.

mod report;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use polyverbs as _;
use report::Report;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The content of a report: extensions, providers and devices.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    extensions: BTreeSet<String>,
    providers: BTreeSet<String>,
    fast_registers: Vec<String>,
    text: String,
}

fn said(text: String) -> Said {
    let words = |of: &str| -> BTreeSet<String> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(of));
        let words = lines.next().unwrap_or_else(|| panic!("no {of} in: {text}"));
        words.split_whitespace().map(str::to_owned).collect()
    };
    let outcomes = text.lines().filter_map(|line| {
        let (_, outcome) = line.split_once(" fast-register: ")?;
        Some(outcome.to_owned())
    });
    Said {
        extensions: words("extensions:"),
        providers: words("providers:"),
        fast_registers: outcomes.collect(),
        text,
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

fn run(program: impl AsRef<Path>) -> Said {
    said(output(&mut Command::new(program.as_ref())))
}

/// What the facade names to register it, as its source lists the crates: extensions, and providers. The provider of rdma-core has
/// the name of the library that it loads.
fn named_by_the_facade() -> (BTreeSet<String>, BTreeSet<String>) {
    let source = std::fs::read_to_string(format!("{ROOT}/polyverbs/src/lib.rs")).unwrap();
    let named = source.lines().filter_map(|line| {
        let name = line.strip_prefix("use ")?.strip_suffix(" as _;")?;
        let name = name.trim_start_matches("::").replace('_', "-");
        Some(name.replace("rdma-core-provider", "libibverbs"))
    });
    named.partition(|name| Path::new(ROOT).join("extensions").join(name).exists())
}

fn has_the_default_set(said: &Said) {
    let (extensions, providers) = named_by_the_facade();
    assert!(extensions.contains("bmme") && providers.contains("emulated-ib"));
    assert_eq!(said.extensions, extensions);
    assert_eq!(said.providers, providers);
    assert_eq!(said.fast_registers, ["done", "done"]);
}

// covers 1.17
#[test]
fn one_line_adds_an_extension_to_a_binary() {
    let lines = |name: &str| {
        let text = std::fs::read_to_string(source(&format!("{name}.rs"))).unwrap();
        // The first line is skipped, because it describes the difference.
        let lines = text.lines().skip(1).map(|line| format!("{line}\n"));
        lines.collect::<String>()
    };
    let line = "use bmme as _;\n";
    let (with, without) = (lines("with_bmme"), lines("without_bmme"));
    assert!(with.contains(line) && with.replacen(line, "", 1) == without);

    let providers = ["emulated-ib", "emulated-iwarp"].map(str::to_owned).into();
    // The program depends on `bmme` and on the facade; a crate that it does not name is not there.
    let without = run(built("without_bmme"));
    assert_eq!(
        (without.extensions.len(), &without.providers),
        (0, &providers)
    );
    assert_eq!(without.fast_registers.len(), 2);
    for refused in &without.fast_registers {
        let (creation, post) = refused.split_once("; ").unwrap();
        assert!(creation.contains("BMME"), "{creation}");
        assert!(post.contains("FAST_REGISTER"), "{post}");
    }
    let with = run(built("with_bmme"));
    assert_eq!(with.extensions, ["bmme".to_owned()].into());
    assert_eq!(with.providers, providers);
    assert_eq!(with.fast_registers, ["done", "done"]);

    let claims = |said: &Said, feature: &str| {
        let lines = said.text.lines().filter(|line| line.contains(" claims: "));
        let claiming = lines.filter(|line| line.split_whitespace().any(|word| word == feature));
        claiming.count()
    };
    let registry = polyverbs::registry().unwrap();
    let of_bmme = registry.extensions().find("bmme").unwrap();
    for feature in of_bmme.all_features() {
        assert_eq!(claims(&without, feature.name), 0, "{}", feature.name);
    }
    assert_eq!(claims(&with, "BMME"), 2);
}

// covers 1.17
#[test]
fn an_integration_test_has_what_the_facade_names() {
    let report = Report::of(&polyverbs::registry().unwrap());
    has_the_default_set(&said(report.to_string()));
}

/// A file in the folder of the programs.
fn source(name: &str) -> PathBuf {
    Path::new(ROOT)
        .join("polyverbs/tests/link_forms/programs")
        .join(name)
}

/// A program or a library of that folder. They are examples of this package, because cargo builds examples before tests.
fn built(name: &str) -> PathBuf {
    // The test is target/debug/deps/link_forms-…, and the examples are in target/debug/examples.
    let test = std::env::current_exe().unwrap();
    let file = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        file.exists(),
        "there is no {}: `cargo test -p polyverbs` builds it",
        file.display()
    );
    file
}

/// The library for C, built in both forms.
struct Built {
    shared: PathBuf,
    archive: PathBuf,
    folder: tempfile::TempDir,
}

impl Built {
    fn new() -> Self {
        Self {
            shared: built("liblink_forms_c.so"),
            archive: built("liblink_forms_c.a"),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// The C program, linked with these arguments.
    fn program(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let program = self.folder.path().join(name);
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source("link_forms.c"));
        cc.args(arguments);
        output(&mut cc);
        program
    }
}

/// The libraries that the standard library needs when it is linked from an archive.
const SYSTEM: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

#[test]
fn a_shared_library_has_what_the_facade_names() {
    let built = Built::new();
    let folder = built.shared.parent().unwrap().display();
    let (search, run_path) = (format!("-L{folder}"), format!("-Wl,-rpath,{folder}"));
    let program = built.program("shared", &[&search, &run_path, "-llink_forms_c"]);
    has_the_default_set(&run(program));
}

#[test]
fn a_static_library_linked_whole_has_what_the_facade_names() {
    let built = Built::new();
    let archive = built.archive.to_str().unwrap();
    let whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"];
    let program = built.program("whole", &[&whole[..], &SYSTEM].concat());
    has_the_default_set(&run(program));
}

#[test]
fn a_static_library_always_has_what_is_added_by_hand() {
    let built = Built::new();
    let archive = built.archive.to_str().unwrap();
    let program = built.program("parts", &[&[archive][..], &SYSTEM].concat());
    let added = said(output(Command::new(&program).arg("added")));
    assert_eq!(added.extensions, ["bmme".to_owned()].into());
    assert_eq!(added.providers.len(), 2);
    assert_eq!(added.fast_registers, ["done", "done"]);
}
