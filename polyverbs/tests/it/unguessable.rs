//! Numbers that a peer could guess for an attack differ in each process.
use std::process::Command;

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{Access, Memory, QpOptions, Requirements};

const ASKED: &str = "POLYVERBS_TEST_NUMBERS";

/// The first queue pair number, PSN and key of a new device; the key as its index and its consumer byte.
fn numbers() -> [u32; 4] {
    let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let memory = Memory::zeroed(64).unwrap();
    let mr = pd.register(&memory, Access::REMOTE_READ).wait().unwrap();
    let psn = qp.endpoint().unwrap().sq_psn;
    let key = mr.rkey().value();
    [qp.qp_num().value(), psn.value(), key >> 8, key & 0xff]
}

fn numbers_of_another_process() -> [u32; 4] {
    let test = std::env::current_exe().unwrap();
    let name = "unguessable::queue_pair_numbers_psns_and_keys_of_two_processes_differ";
    let mut child = Command::new(test);
    let child = child.args(["--exact", name, "--nocapture"]).env(ASKED, "1");
    let said = String::from_utf8(child.output().unwrap().stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix(ASKED));
    let numbers = line.expect(&said).split_whitespace();
    let numbers: Vec<u32> = numbers.map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn queue_pair_numbers_psns_and_keys_of_two_processes_differ() {
    if std::env::var_os(ASKED).is_some() {
        let [qpn, psn, index, byte] = numbers();
        println!("\n{ASKED} {qpn} {psn} {index} {byte}");
        return;
    }
    let all: Vec<_> = std::iter::repeat_with(numbers_of_another_process)
        .take(8)
        .collect();
    for (place, what) in ["number", "PSN", "key index"].iter().enumerate() {
        let mut seen: Vec<_> = all.iter().map(|numbers| numbers[place]).collect();
        seen.sort_unstable();
        seen.dedup();
        // Two of eight numbers of 23 bits may be equal once in a while; three practically never are.
        assert!(seen.len() >= 7, "{what}: {all:?}");
    }
    // Eight equal bytes have a chance of one in 2^56.
    assert!(all.iter().any(|numbers| numbers[3] != all[0][3]), "{all:?}");
}
