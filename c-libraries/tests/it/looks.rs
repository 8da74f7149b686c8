//! Programs that look for devices below `/sys` and `/dev`, over the folder that `polyverbs run` puts there.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::program::compile;

#[test]
fn each_way_to_look_below_sys_and_dev_sees_the_devices() {
    let program = compile("looks");
    // The kernel reports paths without symbolic links.
    let root = program
        .parent()
        .unwrap()
        .canonicalize()
        .unwrap()
        .join("root");
    let port = root.join("sys/class/infiniband/ib0/ports/1");
    for folder in [
        &*port.join("gid_attrs/types"),
        &root.join("sys/class/infiniband_verbs"),
        &root.join("dev/infiniband"),
    ] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
    fs::write(port.join("gid_attrs/types/0"), "RoCE v2\n").unwrap();
    symlink("/dev/null", root.join("dev/infiniband/rdma_cm")).unwrap();
    let redirect = test_kit::libraries::built().with_file_name("libpolyverbs_redirect.so");
    let ran = Command::new(program)
        .env("POLYVERBS_ROOT", root)
        .env("LD_PRELOAD", redirect)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let told = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(told, "ib0\n4: ACTIVE\n4: ACTIVE\nall seen\n", "{ran:?}");
}
