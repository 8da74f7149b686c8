//! Commits one memory fault on purpose, so that `.ci/memory` can prove that its tool reports it.
//!
//! No other program or test runs this program. `none` commits no fault and shows that the tool
//! does not report one always.

use std::{hint::black_box, process::ExitCode, ptr};

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("none") => drop(black_box(Box::new(7_u64))),
        Some("use-after-free") => use_after_free(),
        Some("leak") => leak(),
        _ => {
            eprintln!("planted-faults: say none, use-after-free or leak");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn use_after_free() {
    let freed = Box::into_raw(Box::new(7_u64));
    // SAFETY: the pointer is the box's own and is freed once.
    drop(unsafe { Box::from_raw(freed) });
    // SAFETY: none; this is the fault.
    black_box(unsafe { ptr::read_volatile(freed) });
}

fn leak() {
    // Several, because an address that remains in a register or on the stack hides a leak.
    for value in 0..64_u64 {
        black_box(Box::into_raw(Box::new(value)));
    }
}
