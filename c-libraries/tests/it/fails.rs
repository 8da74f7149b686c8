//! Scripts of faults over the library: each verb fails once, and a small C program says what it saw.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_layer::LIBRARY_CALLS;

use crate::program::{compile, compile_in};

const DEVICES: [(&str, &str); 2] = [("ib0", "roce"), ("iw0", "iwarp")];

/// What a run has shown.
struct Run {
    lines: Vec<String>,
    /// The rules that have fired, without the number of the process.
    log: Vec<String>,
    trace: Vec<String>,
}

impl Run {
    fn has(&self, line: &str) -> bool {
        self.lines.iter().any(|known| known == line)
    }

    /// How often the program has printed this line.
    fn count(&self, line: &str) -> usize {
        self.lines.iter().filter(|known| *known == line).count()
    }

    fn completions(&self) -> Vec<&str> {
        let all = self.lines.iter().map(|line| &**line);
        all.filter(|line| line.starts_with("wc 1") && line.len() > "wc 1 status 0".len())
            .collect()
    }
}

/// Runs the program on a device within its process, with these rules.
fn run((name, transport): (&str, &str), rules: &str) -> Run {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let program = PROGRAM.get_or_init(|| compile("fails"));
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let file = |kind: &str| program.with_file_name(format!("{number}.{kind}"));
    let (log, trace) = (file("log"), file("trace"));
    let configuration = format!(
        "fail = '''{rules}'''\nfail-log = {log:?}\ntrace = {trace:?}\n\
         [[device]]\nname = '{name}'\ntransport = '{transport}'\nwire = false\n"
    );
    let ran = Command::new(program)
        .env("LD_LIBRARY_PATH", program.parent().unwrap())
        .env("POLYVERBS_CONFIG", configuration)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{name} {rules}: {ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{name} {rules}");
    let text = String::from_utf8(ran.stdout).unwrap();
    Run {
        lines: text.lines().map(str::to_owned).collect(),
        log: lines(&log).iter().map(|line| rule_of(line)).collect(),
        trace: calls(&lines(&trace)),
    }
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn rule_of(line: &str) -> String {
    let (rule, comment) = line.split_once("  # ").unwrap();
    assert!(comment.contains(", process "), "{line}");
    rule.to_owned()
}

/// The calls of a trace. Polls that have found nothing are left out, because the trace may sum them up.
fn calls(trace: &[String]) -> Vec<String> {
    let calls = trace.iter().map(|line| call_of(line));
    calls
        .filter(|call| call != "ibv_poll_cq 0" && !call.starts_with('…'))
        .collect()
}

/// The function and the result of a line of the trace, without addresses and numbers of threads.
fn call_of(line: &str) -> String {
    let call = line.split_once("] ").map_or(line, |(_, call)| call);
    let name = call.split('(').next().unwrap();
    let result = call.rsplit_once(" = ").map_or("", |(_, result)| result);
    let result = if result.starts_with("0x") {
        "object"
    } else {
        result
    };
    format!("{name} {result}")
}

/// An error that no verb of the program has by itself.
const ERRNO: (&str, i32) = ("ENOSPC", 28);

/// The verbs of the program, by the name in a script. On iWARP some do not exist.
const VERBS: &[&str] = &[
    "open_device",
    "query_port",
    "alloc_pd",
    "dealloc_pd",
    "create_cq",
    "resize_cq",
    "destroy_cq",
    "poll_cq",
    "req_notify_cq",
    "reg_mr",
    "rereg_mr",
    "dereg_mr",
    "create_srq",
    "modify_srq",
    "query_srq",
    "destroy_srq",
    "post_srq_recv",
    "create_qp",
    "query_qp",
    "destroy_qp",
    "post_send",
    "post_recv",
    // Calls of the library.
    "get_device_list",
    "query_device",
    "query_pkey",
    "close_device",
];

const VERBS_OF_IB: &[&str] = &[
    "alloc_mw",
    "bind_mw",
    "dealloc_mw",
    "attach_mcast",
    "detach_mcast",
    "create_ah",
    "destroy_ah",
    "qp_attach_comp_cntr",
    "create_comp_cntr",
];

#[test]
fn each_verb_fails_once_with_the_errno_of_its_rule() {
    for device in DEVICES {
        let plain = run(device, "alloc_mr:EIO").lines;
        let of_ib = VERBS_OF_IB.iter().filter(|_| device.0 == "ib0");
        for verb in VERBS.iter().chain(of_ib) {
            let (name, number) = ERRNO;
            // The program makes other queues before those that it prints, and the library asks a new shared receive queue for
            // its size.
            let count = match *verb {
                "query_srq" => 2,
                "create_cq" | "destroy_cq" => 2,
                "create_qp" | "destroy_qp" if device.0 == "ib0" => 2,
                _ => 1,
            };
            let rule = format!("{verb}@{count}:{name}");
            let ran = run(device, &rule);
            // A failed poll returns no error number.
            let number = if *verb == "poll_cq" { 1 } else { number };
            let failed = format!("{verb} {number}");
            assert!(ran.has(&failed), "{device:?} {rule}: {:?}", ran.lines);
            assert!(!plain.contains(&failed), "{failed}");
            assert_eq!(ran.log, [rule], "{device:?}");
        }
        let ran = run(device, "modify_qp[to=rtr]@2:EINVAL");
        assert_eq!(ran.count("modify_qp to rtr 0"), 1, "{:?}", ran.lines);
        assert_eq!(ran.count("modify_qp to rtr 22"), 1, "{:?}", ran.lines);
    }
}

#[test]
fn a_failed_request_moves_its_queue_pair_to_err_and_flushes() {
    for device in DEVICES {
        let whole = run(device, "wc.send@2:RETRY_EXC");
        let expected = ["wc 10 status 0", "wc 11 status 12", "wc 12 status 5"];
        assert_eq!(whole.completions(), expected, "{device:?}");
        assert!(whole.has("state 6"), "{:?}", whole.lines);

        let bare = run(device, "wc.send@2:bare RETRY_EXC");
        let expected = ["wc 10 status 0", "wc 11 status 12", "wc 12 status 0"];
        assert_eq!(bare.completions(), expected, "{device:?}");
        assert!(bare.has("state 3"), "{:?}", bare.lines);
    }
}

#[test]
fn a_lost_completion_never_comes() {
    for device in DEVICES {
        let ran = run(device, "wc.send@2:lost");
        let expected = ["wc 10 status 0", "wc 12 status 0"];
        assert_eq!(ran.completions(), expected, "{device:?}");
        assert!(ran.has("state 3"), "{:?}", ran.lines);
    }
}

#[test]
fn a_refused_request_is_the_bad_one_and_earlier_ones_are_posted() {
    for device in DEVICES {
        let ran = run(device, "post_send@2:EAGAIN");
        assert!(
            ran.has("post_send 11") && ran.has("bad_wr 1"),
            "{:?}",
            ran.lines
        );
        assert_eq!(ran.completions(), ["wc 10 status 0"], "{device:?}");
    }
}

#[test]
fn a_removed_device_answers_eio_and_reports_device_fatal() {
    for device in DEVICES {
        let ran = run(device, "req_notify_cq@1:DEVICE_FATAL");
        for line in ["req_notify_cq 5", "post_send 5", "rereg_mr 5", "event 8"] {
            assert!(ran.has(line), "{device:?} {line}: {:?}", ran.lines);
        }
        assert_eq!(ran.count("event 8"), 1);
    }
}

#[test]
fn events_are_raised_about_the_object_at_hand_or_the_port() {
    for device in DEVICES {
        let ran = run(device, "query_port@1:PORT_ERR");
        assert!(ran.has("port 1") && ran.has("event 10"), "{:?}", ran.lines);
        let bare = run(device, "query_port@1:bare PORT_ERR");
        assert!(
            bare.has("port 4") && bare.has("event 10"),
            "{:?}",
            bare.lines
        );
        let gids = run(device, "alloc_pd@1:GID_CHANGE");
        assert!(gids.has("event 18"), "{:?}", gids.lines);
        let limit = run(device, "query_srq@1:SRQ_LIMIT_REACHED");
        assert!(limit.has("event 15"), "{:?}", limit.lines);
        let overrun = run(device, "req_notify_cq@1:CQ_ERR");
        assert!(overrun.has("event 0"), "{:?}", overrun.lines);
        assert!(overrun.has("poll_cq 1"), "{:?}", overrun.lines);
        let fatal = run(device, "post_send@1:QP_FATAL");
        assert!(
            fatal.has("event 1") && fatal.has("state 6"),
            "{:?}",
            fatal.lines
        );
    }
}

#[test]
fn fetching_an_event_is_interrupted_as_often_as_the_rule_says() {
    let ran = run(
        DEVICES[0],
        "alloc_pd@1:GID_CHANGE; get_async_event@1..3:EINTR",
    );
    let fetched: Vec<_> = ran
        .lines
        .iter()
        .skip_while(|line| !line.starts_with("get_async"))
        .collect();
    let expected = [
        "get_async_event 4",
        "get_async_event 4",
        "get_async_event 4",
        "get_async_event 0",
        "event 18",
    ];
    assert_eq!(fetched[..5], expected);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut all = HashSet::new();
    for seed in 1..=10 {
        let rules = format!(
            "post_recv~25%:ENOMEM; wc~30%:bare GENERAL; query_srq~50%:EIO; create_srq~20%:ENOMEM; \
             modify_qp~10%:EINVAL; post_send~10%:EAGAIN; seed={seed}"
        );
        for device in DEVICES {
            let [first, second] = [(); 2].map(|()| run(device, &rules));
            assert_eq!(first.lines, second.lines, "{device:?} {seed}");
            assert_eq!(first.log, second.log, "{device:?} {seed}");
            assert_eq!(first.trace, second.trace, "{device:?} {seed}");
            assert!(first.trace.len() > 10, "{:?}", first.trace);
            all.insert((device.0, first.lines));
        }
    }
    assert!(
        all.len() > DEVICES.len(),
        "different seeds give different runs"
    );
}

#[test]
fn a_log_of_fired_rules_replays_the_run() {
    let rules = "post_recv~40%:ENOMEM; wc~50%:bare GENERAL; seed=3";
    let first = run(DEVICES[0], rules);
    assert!(!first.log.is_empty());
    let replayed = run(DEVICES[0], &first.log.join("\n"));
    assert_eq!(replayed.lines, first.lines);
    assert_eq!(replayed.log, first.log);
}

#[test]
fn each_call_that_a_rule_can_name_is_a_function_of_the_library() {
    let exported = [
        include_str!("../../symbols/libibverbs.txt"),
        include_str!("../../symbols/librdmacm.txt"),
        include_str!("../../symbols/rdma-core-65.txt"),
    ];
    let names = exported.iter().flat_map(|list| list.split(['@', '\n']));
    let names: HashSet<_> = names.map(|name| name.trim_start_matches('_')).collect();
    // Programs call these through the table of a context.
    let slots = include_str!("../../libibverbs/src/open.rs");
    for call in LIBRARY_CALLS {
        let function = format!("ibv_{call}");
        let is_slot = slots.contains(&format!("slot!(\"{function}\""));
        assert!(
            is_slot || names.contains(call) || names.contains(&*function),
            "{call}"
        );
    }
}

#[test]
fn the_systems_devices_fail_by_rules_too() {
    // Another copy of this library takes the place of the system's, with its default devices.
    let system = test_kit::libraries::built();
    let program = compile_in("fails-over-system", "fails");
    let configuration =
        format!("fail = 'query_port@1:PORT_ERR; create_srq@1:ENOMEM'\nover-system = {system:?}\n");
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", program.parent().unwrap())
        .env("POLYVERBS_CONFIG", configuration)
        // The second copy is larger than rdma-core's libraries.
        .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let text = String::from_utf8_lossy(&ran.stdout);
    let lines: Vec<_> = text.lines().collect();
    for line in [
        "open_device 0",
        "port 1",
        "event 10",
        "create_srq 12",
        "reg_mr 0",
        "close_device 0",
    ] {
        assert!(lines.contains(&line), "{line}: {lines:?}");
    }
}
