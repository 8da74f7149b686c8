//! C programs on devices that take on the profile of a card: each fails as programs have failed on the card, the trace says which
//! quirk it has met, and without the quirk it does not fail.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::program::compile;

/// What a program has printed on a card, and the quirks in its trace.
fn run(profile: &str, except: &str, arguments: &[&str]) -> (String, Vec<String>) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let program = PROGRAM.get_or_init(|| compile("cards"));
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let trace = program.with_file_name(format!("{number}.trace"));
    let except = match except {
        "" => String::new(),
        quirk => format!("except = ['{quirk}']\n"),
    };
    let configuration = format!(
        "trace = {trace:?}\n[[device]]\nname = 'card0'\nwire = false\nprofile = '{profile}'\n{except}"
    );
    let ran = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", program.parent().unwrap())
        .env("POLYVERBS_CONFIG", configuration)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{profile}: {ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{profile}");
    let trace = fs::read_to_string(&trace).unwrap();
    let quirks = trace
        .lines()
        .filter_map(|line| line.split_once(" has the quirk "));
    let quirks = quirks.map(|(_, quirk)| quirk.to_owned()).collect();
    (String::from_utf8(ran.stdout).unwrap(), quirks)
}

#[test]
fn a_c_program_sees_the_card() {
    let (text, quirks) = run("amd-ionic", "", &["device"]);
    // The card says that its atomics are global, although it refuses every region for them.
    assert_eq!(
        text,
        "1dd8:4098 1.117.1-a-63 flags 01023486 max_qp 1048576 max_res_rd_atom 16 atomic_cap 2\n"
    );
    assert!(quirks.is_empty());
    let (text, _) = run("mellanox-cx3", "", &["device"]);
    // The flag of windows is set, and there are none.
    assert!(
        text.starts_with("02c9:4099 2.33.5100 flags 057e9c66 max_qp 131000 "),
        "{text}"
    );
}

// ml-explore/mlx#3162 and #4209.
#[test]
fn objects_end_below_the_number_that_the_card_says() {
    let (text, quirks) = run("apple-thunderbolt", "", &["uc"]);
    assert_eq!(text, "10 queue pairs, error 16\none more: made\n");
    assert_eq!(quirks, ["budget-qp: create_qp fails with EBUSY"]);
    let (text, quirks) = run("apple-thunderbolt", "budget-qp", &["uc"]);
    assert_eq!(text, "64 queue pairs, error 0\n");
    assert!(quirks.is_empty());
    let (text, quirks) = run("apple-thunderbolt", "", &["regions"]);
    assert_eq!(text, "100 regions, error 12\n");
    assert_eq!(quirks, ["budget-mr: reg_mr fails with ENOMEM"]);
}

// kvcache-ai/Mooncake#3977, and its fix.
#[test]
fn the_second_queue_pair_asks_for_reads_that_the_first_has() {
    let (text, quirks) = run("amd-ionic", "", &["depth", "16"]);
    assert_eq!(text, "16 reads each: error 0, error 22\n");
    assert_eq!(quirks, ["budget-res-rd-atom: modify_qp fails with EINVAL"]);
    let (text, _) = run("amd-ionic", "", &["depth", "8"]);
    assert_eq!(text, "8 reads each: error 0, error 0\n");
    let (text, _) = run("amd-ionic", "budget-res-rd-atom", &["depth", "16"]);
    assert_eq!(text, "16 reads each: error 0, error 0\n");
}

// ROCm/mori#497.
#[test]
fn a_region_with_every_right_is_refused() {
    let (text, quirks) = run("amd-ionic", "", &["rights"]);
    assert_eq!(text, "with atomics: error 22\nwithout: error 0\n");
    assert_eq!(quirks, ["mr-access-refused: reg_mr fails with EINVAL"]);
}

#[test]
fn a_missing_type_of_queue_pairs_has_the_errno_of_the_driver() {
    const EOPNOTSUPP: i32 = 95;
    const EINVAL: i32 = 22;
    for (profile, errno) in [("amd-ionic", EOPNOTSUPP), ("broadcom-thor", EINVAL)] {
        let (text, quirks) = run(profile, "", &["uc"]);
        assert_eq!(text, format!("0 queue pairs, error {errno}\n"));
        assert_eq!(quirks.len(), 1, "{quirks:?}");
    }
}

// linux-rdma/rdma-core#1624.
#[test]
fn an_argument_that_is_not_used_is_checked() {
    let (text, quirks) = run("mellanox-cx5", "", &["unused"]);
    assert_eq!(text, "0 receives: error 0\ntoo many receives: error 22\n");
    assert!(quirks[0].starts_with("checks-unused: "), "{quirks:?}");
    let (text, _) = run("mellanox-cx5", "checks-unused", &["unused"]);
    assert_eq!(text, "0 receives: error 0\ntoo many receives: error 0\n");
}

#[test]
fn a_maximum_of_the_card_counts_free_objects_only() {
    let (text, _) = run("intel-e810-roce", "", &["left"]);
    assert_eq!(text, "5 fewer\n");
    let (text, _) = run("intel-e810-roce", "attributes-remaining", &["left"]);
    assert_eq!(text, "0 fewer\n");
}

#[test]
fn a_query_for_all_attributes_is_refused_as_a_whole() {
    let (text, quirks) = run("aws-efa", "", &["query"]);
    assert_eq!(text, "state: error 0\nall: error 95\n");
    assert_eq!(quirks.len(), 1, "{quirks:?}");
    let (text, _) = run("aws-efa", "query-qp-mask", &["query"]);
    assert_eq!(text, "state: error 0\nall: error 0\n");
}
