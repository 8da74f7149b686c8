//! Management datagrams of C programs, at a fabric of this process.

use std::io;
use std::os::fd::AsFd as _;
use std::thread;

use polyverbs_fabric::FabricName;
use polyverbs_fabric::process::Process;
use test_kit::waiting::PATIENCE;

use crate::program::{compile, must_print};

/// Runs a function while a fabric of two nodes has this name.
fn with_fabric(name: &str, run: impl FnOnce()) {
    let topology = "Ca 1 \"A\"\n[1] \"B\"[1]\n\nCa 1 \"B\"\n".parse().unwrap();
    let name: FabricName = name.parse().unwrap();
    let process = Process::new(&topology, name).unwrap();
    let (stop, stopped) = io::pipe().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| process.run(Some(stop.as_fd())));
        // The end of the other side stops the process, also if the function panics.
        let stopped = stopped;
        run();
        drop(stopped);
        serving.join().unwrap().unwrap();
    });
}

// covers 8.69, 8.71
#[test]
fn a_program_sends_receives_and_is_cancelled_while_it_waits() {
    let name = format!("polyverbs-test-umad.{}", std::process::id());
    with_fabric(&name, || {
        let fabric = format!("device = []\n[fabric]\nsocket = \"{name}\"\n");
        let patience = PATIENCE.as_secs().to_string();
        must_print(&compile("umad"), &[&patience], &fabric, "");
    });
}

#[test]
fn no_hostile_argument_ends_a_program_of_a_fabric() {
    let name = format!("polyverbs-test-hostile-umad.{}", std::process::id());
    with_fabric(&name, || {
        let fabric = format!("device = []\n[fabric]\nsocket = \"{name}\"\n");
        let patience = PATIENCE.as_secs().to_string();
        let arguments = ["1", "4000", &patience];
        must_print(
            &compile("hostile_umad"),
            &arguments,
            &fabric,
            "all refused or done\n",
        );
    });
}
