//! Profiles of real devices on the command line.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use super::{Folder, complaint, json, run, text};

#[test]
fn profiles_are_listed_shown_and_compared() {
    let list = json(&["profile", "list", "--json"]);
    let names = list.as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert!(
        names.len() >= 15 && names.contains(&"amd-ionic"),
        "{names:?}"
    );
    let listed = text(&["profile", "list"]);
    assert!(names.iter().all(|name| listed.contains(name)));
    let shown = text(&["profile", "show", "amd-ionic"]);
    for part in [
        "max_res_rd_atom 16",
        "report: kvcache-ai/Mooncake#3977",
        "quirk budget-res-rd-atom: budget res-rd-atom=16, errno=EINVAL",
    ] {
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let shown = json(&["profile", "show", "amd-ionic", "--json"]);
    assert_eq!(shown["quirks"][0]["evidence"]["sure"], "report");
    let diff = json(&["profile", "diff", "amd-ionic", "rxe-6.1", "--json"]);
    let of = |what: &str| {
        let rows = diff.as_array().unwrap().iter();
        let mut found = rows.filter(|row| row["what"] == what);
        found
            .next()
            .map(|row| (row["first"].clone(), row["second"].clone()))
    };
    assert_eq!(of("UC"), Some((Value::from("no"), Value::from("yes"))));
    assert_eq!(
        of("max_send_sge"),
        Some((Value::from("8"), Value::from("32")))
    );
    let same = text(&["profile", "diff", "amd-ionic", "amd-ionic"]);
    assert_eq!(same, "amd-ionic and amd-ionic say the same\n");
}

#[test]
fn a_profile_that_is_not_there_lists_those_that_are() {
    for arguments in [
        &["profile", "show", "pollara"][..],
        &["run", "--as", "pollara", "--", "true"],
        &["plan", "--as", "pollara", "read-and-invalidate"],
    ] {
        let output = run(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            told.contains("no profile has this name; there are alibaba-erdma, "),
            "{told}"
        );
        assert_eq!(output.status.code(), Some(2));
    }
    let told = complaint(&["devices", "--as", "pollara"]);
    assert!(told.contains("no profile has this name"), "{told}");
}

#[test]
fn a_wrong_profile_names_its_file_and_line() {
    let folder = Folder::new();
    let file = folder.path("card.toml");
    fs::write(&file, "profile = 1\nname = \"card\"\nspeed = 7\n").unwrap();
    let file = file.to_str().unwrap();
    let output = run(&["profile", "show", file]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains(&format!("{file}:3: unknown field `speed`")),
        "{told}"
    );
}

#[test]
fn requirements_are_checked_against_cards_that_are_not_there() {
    let folder = Folder::new();
    let file = folder.path("needs.toml");
    fs::write(
        &file,
        "needs = [\"RC\", \"UC\"]\n[limits]\nmax_send_sge = 16\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let output = run(&["check", file, "--json"]);
    assert_eq!(output.status.code(), Some(1), "it does not run on all");
    let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |profile: &str| {
        let mut rows = answers.as_array().unwrap().iter();
        rows.find(|row| row["profile"] == profile).unwrap().clone()
    };
    assert_eq!(of("mellanox-cx5")["runs"], true);
    let missing = of("amd-ionic")["missing"].to_string();
    assert!(missing.contains("lacks baseline::UC"), "{missing}");
    assert!(
        missing.contains("max_send_sge: wanted at least 16, offered 8"),
        "{missing}"
    );
    assert_eq!(
        of("mellanox-cx4-lx")["unknown"],
        serde_json::json!(["max_send_sge"])
    );
    assert_eq!(
        text(&["check", file, "--as", "mellanox-cx5"]),
        "mellanox-cx5: runs\n"
    );
    fs::write(file, "needs = [\"RCS\"]\n").unwrap();
    let told = complaint(&["check", file]);
    assert!(
        told.contains("needs.toml:1: no ability is called RCS"),
        "{told}"
    );
}

#[test]
fn devices_and_plans_of_cards_are_shown() {
    let devices = json(&["devices", "--as", "all", "--json"]);
    let devices = devices.as_array().unwrap();
    let ionic = devices.iter().find(|it| it["name"] == "amd-ionic").unwrap();
    assert_eq!(ionic["identity"]["vendor_id"], 0x1dd8);
    assert_eq!(ionic["limits"]["max_res_rd_atom"], 16);
    assert!(ionic["gaps"].as_array().unwrap().contains(&"NO_UC".into()));
    let plan = json(&[
        "plan",
        "--as",
        "intel-x722",
        "read-and-invalidate",
        "--json",
    ]);
    assert_eq!(plan["device"], "intel-x722");
}

#[test]
fn a_posted_text_becomes_a_profile() {
    let folder = Folder::new();
    let (posted, card) = (folder.path("posted.txt"), folder.path("card.toml"));
    fs::write(
        &posted,
        "hca_id: x\n\tmax_qp: 100\n\tfw_ver: 1.2\n\tspeed: 7\n",
    )
    .unwrap();
    let profile = text(&[
        "profile",
        "import",
        posted.to_str().unwrap(),
        "--name",
        "card",
    ]);
    assert!(
        profile.ends_with("# not understood: speed: 7\n"),
        "{profile}"
    );
    fs::write(&card, profile).unwrap();
    let devices = json(&["devices", "--as", card.to_str().unwrap(), "--json"]);
    assert_eq!(devices[0]["limits"]["max_qp"], 100);
    let recorded = text(&["profile", "record", "iw0", "--unverified"]);
    fs::write(&card, recorded).unwrap();
    let shown = json(&["profile", "show", card.to_str().unwrap(), "--json"]);
    assert_eq!(shown["transport"], "iwarp");
}

/// Runs `polyverbs run` with the real libraries.
fn run_as(arguments: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
    // The folders that cargo sets for tests would come before the libraries.
    run.env_remove("LD_LIBRARY_PATH");
    test_kit::libraries::built();
    run.arg("run").args(arguments).output().unwrap()
}

#[test]
fn a_program_runs_as_each_of_several_cards() {
    let script = r#"case $POLYVERBS_CONFIG in *'profile = "intel-x722'*) exit 0; esac; exit 1"#;
    let output = run_as(&["--as", "intel-x722,siw-6.1", "--", "/bin/sh", "-c", script]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told.ends_with("==\nintel-x722  ran\nsiw-6.1     exit status 1\n"),
        "{told}"
    );
    // Only the profile with more than our devices have is reported.
    let told = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 1, "{told}");
    assert!(lines[0].contains("as siw-6.1, our device has"), "{told}");
    assert!(
        lines[0].contains("max_qp_wr 16384 instead of 32768"),
        "{told}"
    );
}

#[test]
fn profiles_are_given_once() {
    let output = run_as(&["--as", "siw-6.1", "--as", "rxe-6.1", "--", "/bin/true"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("cannot be used multiple times"), "{told}");
}

#[test]
fn a_quirk_is_turned_off_by_its_name() {
    let show = |arguments: &[&str]| {
        let output = run_as(&[&["--as", "apple-thunderbolt", "--show"], arguments].concat());
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (shown, told) = show(&["--except", "budget-qp"]);
    assert!(shown && told.contains("except = [\"budget-qp\"]"), "{told}");
    let (shown, told) = show(&["--except", "budgets"]);
    assert!(!shown, "{told}");
    assert!(
        told.contains(
            "apple-thunderbolt has no quirk budgets; it has budget-qp, budget-mr, usable-wr"
        ),
        "{told}"
    );
}
