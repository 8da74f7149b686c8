//! The output of commands: devices, the matrix, plans, figures, the tour, help.

#[cfg(debug_assertions)]
use std::process::Command;

use serde_json::Value;

use super::{DEVICES, Folder, complaint, json, text};

fn names(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect()
}

#[test]
fn devices_are_an_array_of_objects() {
    let devices = json(&["devices", "--json"]);
    let devices = devices.as_array().unwrap();
    let found: Vec<_> = devices
        .iter()
        .map(|device| device["name"].as_str().unwrap())
        .collect();
    assert_eq!(found, DEVICES);
    for (device, transport) in devices.iter().zip(["infiniband", "iwarp"]) {
        assert_eq!(device["transport"], transport);
        assert!(
            device["provider"]
                .as_str()
                .unwrap()
                .starts_with("emulated-")
        );
        assert!(names(&device["features"]).contains(&"BMME"));
        assert!(device["limits"]["max_qp"].as_u64().unwrap() > 0);
        assert!(["none", "hca", "global"].contains(&device["atomic_cap"].as_str().unwrap()));
        assert_eq!(device["ports"][0]["port"], 1);
        assert_eq!(device["ports"][0]["state"], "active");
    }
    assert_eq!(names(&devices[0]["gaps"]), [""; 0]);
    assert!(names(&devices[1]["gaps"]).contains(&"NO_UD"));
    assert!(names(&devices[1]["features"]).contains(&"READ_WITH_INVALIDATE"));
}

#[test]
fn tables_fit_a_hundred_columns() {
    for arguments in [
        &["devices"][..],
        &["matrix"],
        &["matrix", "--device", "iw0"],
        &["matrix", "--verify"],
    ] {
        let text = text(arguments);
        let widest = text
            .lines()
            .max_by_key(|line| line.chars().count())
            .unwrap();
        assert!(widest.chars().count() <= 100, "{widest}");
        assert!(text.contains("iw0"));
    }
}

#[test]
fn a_matrix_has_every_format() {
    let folder = Folder::new();
    let matrix = json(&["matrix", "--format", "json"]);
    assert_eq!(json(&["matrix", "--json"]), matrix);
    let claims = matrix["claims"].as_array().unwrap();
    let row = claims
        .iter()
        .find(|row| row["name"] == "READ_WITH_INV")
        .unwrap();
    assert_eq!(row["cells"]["iw0"], serde_json::json!(["RC"]));
    assert_eq!(row["cells"]["ib0"], serde_json::json!([]));
    assert!(text(&["matrix", "--format", "markdown"]).contains("| `BMME` | yes | yes |"));
    let in_file = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    let outputs = ["a.html", "a.json", "a.md", "a"].map(|name| folder.path(name));
    let mut command = vec!["matrix"];
    for output in &outputs {
        command.extend(["--output", output.to_str().unwrap()]);
    }
    assert_eq!(text(&command), "");
    assert_eq!(
        serde_json::from_str::<Value>(&in_file("a.json")).unwrap(),
        matrix
    );
    assert!(in_file("a.md").contains("| `BMME` | yes | yes |"));
    assert!(in_file("a").starts_with(" FEATURES"));
    let page = in_file("a.html");
    text(&[&command[..], &["--format", "markdown"]].concat());
    assert_eq!(in_file("a.json"), in_file("a.md"));
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("http"));
}

#[test]
fn a_matrix_is_verified_on_the_devices() {
    let matrix = json(&["matrix", "--verify", "--format", "json"]);
    assert_eq!(names(&matrix["devices"]), DEVICES);
    assert_eq!(
        (&matrix["schema"], &matrix["verified"]),
        (&1.into(), &true.into())
    );
    assert_eq!(matrix["tally"]["mismatch"], 0);
    let rows = matrix["rows"].as_array().unwrap();
    for row in rows {
        for device in DEVICES {
            let cell = &row["cells"][device];
            let expected = match cell["claimed"].as_bool().unwrap() {
                true => "verified",
                false => "refused",
            };
            assert_eq!(cell["verdict"], expected, "{row:#}");
            assert_eq!(cell["probes_failed"], 0, "{row:#}");
            let passed = cell["probes_passed"].as_u64().unwrap();
            assert!(passed > 0 || expected == "refused", "{row:#}");
        }
    }
    let of = |feature: &str| rows.iter().find(|row| row["feature"] == feature).unwrap();
    assert_eq!(of("BMME")["extension"], "bmme");
    assert_eq!(of("UD")["extension"], "core");
    assert_eq!(of("UD")["cells"]["iw0"]["verdict"], "refused");
}

// Only builds with debug assertions have devices that break a rule.
#[cfg(debug_assertions)]
#[test]
fn every_format_shows_a_mismatch_and_the_command_fails() {
    let lines = [
        ("text", "✗ ib0 UD: claimed; core.ud-qkey: "),
        ("markdown", "* `UD` of `ib0`: core.ud-qkey: "),
        ("json", "\"verdict\": \"mismatch\""),
        ("html", "<details open class=\"wrong\" id=\"features-UD\">"),
    ];
    for (format, line) in lines {
        let command = ["matrix", "--verify", "--device", "ib0", "--format", format];
        let output = Command::new(env!("CARGO_BIN_EXE_polyverbs"))
            .args(command)
            .env("POLYVERBS_BREAKS", "datagram-qkey")
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{format}: {shown}");
        assert!(shown.contains(line), "{format}: {shown}");
    }
}

#[test]
fn a_release_has_no_devices_that_break_rules() {
    let command = std::fs::read(env!("CARGO_BIN_EXE_polyverbs")).unwrap();
    let variable = b"POLYVERBS_BREAKS";
    let is_read = command
        .windows(variable.len())
        .any(|bytes| bytes == variable);
    assert_eq!(is_read, cfg!(debug_assertions));
}

#[test]
fn a_plan_is_what_the_device_needs() {
    let plan = |device| json(&["plan", "--device", device, "read-and-invalidate", "--json"]);
    let iwarp = plan("iw0");
    assert_eq!(
        (&iwarp["slots"], &iwarp["completions"]),
        (&1.into(), &1.into())
    );
    assert_eq!(iwarp["steps"][0]["operation"], "READ_WITH_INV");
    let infiniband = plan("ib0");
    assert_eq!(
        (&infiniband["slots"], &infiniband["completions"]),
        (&2.into(), &1.into())
    );
    let steps = infiniband["steps"].as_array().unwrap();
    let steps: Vec<_> = steps
        .iter()
        .map(|step| {
            (
                step["operation"].as_str().unwrap(),
                step["fenced"] == true,
                step["signaled"] == true,
            )
        })
        .collect();
    assert_eq!(steps, [("READ", false, false), ("LOCAL_INV", true, true)]);
    let shown = text(&["plan", "--device", "ib0", "read-and-invalidate"]);
    assert!(
        shown.starts_with("ib0: read-and-invalidate: 2 work requests, one completion\n"),
        "{shown}"
    );
    assert!(shown.contains("2. LOCAL_INV (fenced, signaled)"), "{shown}");
    let registration = json(&[
        "plan",
        "--device",
        "iw0",
        "register-for-remote-access",
        "--json",
    ]);
    assert_eq!(registration["steps"][0]["operation"], "FAST_REGISTER");
}

#[test]
fn figures_stand_beside_their_yardsticks() {
    for device in DEVICES {
        for test in [
            "write-latency",
            "read-latency",
            "bandwidth",
            "message-rate",
            "send-latency",
        ] {
            let figures = json(&["perf", test, "--device", device, "--iters", "100", "--json"]);
            assert!(
                figures["nanoseconds"].as_f64().unwrap() > 0.0,
                "{figures:#}"
            );
            let yardstick = &figures["yardsticks"][0];
            for field in ["before_ns", "after_ns", "ratio"] {
                assert!(yardstick[field].as_f64().unwrap() > 0.0, "{figures:#}");
            }
            if test.ends_with("latency") {
                let quantile = |name: &str| figures["one_by_one"][name].as_f64().unwrap();
                assert!(
                    quantile("p50_ns") <= quantile("p99_ns")
                        && quantile("p99_ns") <= quantile("max_ns")
                );
            }
        }
        let shown = text(&[
            "perf",
            "write-latency",
            "--device",
            device,
            "--iters",
            "100",
            "--size",
            "4096",
        ]);
        assert!(
            shown.contains("p99.9") && shown.contains('█') && shown.contains("memcpy"),
            "{shown}"
        );
    }
    let figures = json(&[
        "perf",
        "atomic-latency",
        "--device",
        "ib0",
        "--iters",
        "100",
        "--json",
    ]);
    assert_eq!(figures["size"], 8);
}

#[test]
fn the_tour_copies_over_every_device() {
    let text = text::<&str>(&[]);
    assert!(text.contains("Verified over ib0 and iw0."), "{text}");
    assert!(text.contains("What to try next"));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&["completions", shell]);
        for command in ["capture", "ping", "serve"] {
            assert!(script.contains(command), "{shell}");
        }
    }
    assert!(complaint(&["completions", "tcsh"]).contains("bash"));
}

#[test]
fn help_has_examples() {
    assert_eq!(text(&["help"]), text(&["--help"]));
    assert!(complaint(&["help", "fly"]).contains("unrecognized subcommand 'fly'"));
    for command in ["copy", "devices", "matrix", "perf", "plan"] {
        let help = text(&[command, "--help"]);
        assert_eq!(text(&["help", command]), help);
        assert!(help.contains("Examples:\n  polyverbs "), "{help}");
    }
    assert!(text(&["--help"]).contains("a short guided tour"));
    assert!(text(&["--version"]).starts_with("polyverbs "));
}
