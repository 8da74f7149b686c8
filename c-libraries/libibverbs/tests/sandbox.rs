//! Devices in a sandbox that refuses system calls.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::{io, thread};

use libc::sock_filter;
use polyverbs_libibverbs::{device, mr, open, pd};

const DEVICES: &str = "[[device]]\naddress = \"127.0.41.80\"\n";
const LOCAL_WRITE: c_int = 1;

const fn step(code: u32, then: u8, otherwise: u8, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: then,
        jf: otherwise,
        k,
    }
}

/// Makes the system refuse a call of this thread, and of the threads that it starts.
fn refuse(call: c_long) {
    let mut filter = [
        // The number of the call is the first field of the filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            call as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter is memory of the test, and only the call reads it.
    let answers = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ),
        ]
    };
    assert_eq!(answers, [0, 0], "{}", io::Error::last_os_error());
}

/// Opens a device, registers memory and closes it, or returns the error number of opening.
fn use_device() -> Result<(), i32> {
    let mut memory = vec![0_u8; 10_000];
    let context = open::open_device(device::devices()[0].as_public());
    if context.is_null() {
        return Err(io::Error::last_os_error().raw_os_error().unwrap());
    }
    // SAFETY: pointers are to memory of the test, or to objects of the library.
    unsafe {
        let pd = pd::alloc(context);
        let region = mr::reg(pd, memory.as_mut_ptr().cast(), memory.len(), LOCAL_WRITE);
        assert!(!region.is_null(), "{}", io::Error::last_os_error());
        assert_eq!(mr::dereg(region), 0);
        assert_eq!(pd::dealloc(pd), 0);
        assert_eq!(open::close_device(context), 0);
    }
    Ok(())
}

#[test]
fn devices_work_without_calls_that_have_a_substitute() {
    test_kit::configure(DEVICES);
    let in_sandbox = |call| {
        let used = thread::spawn(move || {
            refuse(call);
            use_device()
        });
        used.join().unwrap()
    };
    for call in [
        libc::SYS_memfd_create,
        libc::SYS_madvise,
        libc::SYS_getrandom,
    ] {
        assert_eq!(in_sandbox(call), Ok(()), "{call}");
    }
    for call in [libc::SYS_eventfd2, libc::SYS_epoll_create1, libc::SYS_pipe2] {
        assert_eq!(in_sandbox(call), Err(libc::EPERM), "{call}");
    }
}
