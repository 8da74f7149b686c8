//! The sockets of this process, by descriptor.
//!
//! A child of a fork inherits the descriptors of its parent's sockets but not the sockets, because their threads and
//! connections exist only in the parent. So it begins with an empty table. A child that shares its parent's memory
//! (`vfork`) does not change the table.
// The table calls `fstat` on numbers that may not be open descriptors.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs::provider::{MadeOnce, PerProcess, RwLock};

use crate::socket::Socket;

/// One bit for each descriptor number below 65,536.
pub(crate) type Descriptors = [AtomicU64; 1024];

type Sockets = RwLock<HashMap<RawFd, Arc<Socket>>>;

/// The bits of the descriptors whose calls are redirected to this library. In a child of a fork they include the inherited
/// descriptors of the parent's sockets.
static DESCRIPTORS: MadeOnce<&'static Descriptors> = MadeOnce::new();
/// The inode of each descriptor's file. If it has changed, the program has closed the descriptor by a call that is not
/// redirected, and the kernel has reused its number.
static INODES: [AtomicU64; 65_536] = [const { AtomicU64::new(0) }; 65_536];
/// The sockets of this process, by descriptor.
static SOCKETS: PerProcess<Sockets> = PerProcess::new(RwLock::default);
/// The process ID of the process that this memory belongs to.
static PROCESS: PerProcess<u32> = PerProcess::new(std::process::id);

/// Stores the bit array, whose bits this module sets and clears from now on.
pub(crate) fn start(descriptors: &'static Descriptors) {
    DESCRIPTORS.get_or_make(|| descriptors);
    // Read now, so that a child of `vfork` finds the process ID of its parent.
    let _ = *PROCESS;
}

/// Whether the memory belongs to this process. False in a child of `vfork`, which shares the memory of its waiting parent.
pub(crate) fn is_own() -> bool {
    *PROCESS == std::process::id()
}

/// Adds a descriptor of a socket to the table. Returns `false` if the number is too large for the table or not an open
/// descriptor.
pub(crate) fn insert(descriptor: RawFd, socket: Arc<Socket>) -> bool {
    let (Some((word, bit)), Some(inode)) = (place(descriptor), inode(descriptor)) else {
        return false;
    };
    INODES[descriptor as usize].store(inode, Ordering::SeqCst);
    let mut all = SOCKETS.write();
    // An old entry is that of a descriptor which the program has closed by a call that is not redirected.
    let closed = all.insert(descriptor, socket);
    word.fetch_or(bit, Ordering::SeqCst);
    drop(all);
    drop(closed);
    true
}

/// Whether a descriptor still is the socket that [`insert`] has added. If not, clears its bit, so that later calls on it go
/// to the C library directly. Takes no lock.
pub(crate) fn is_there(descriptor: RawFd) -> bool {
    let Some((word, bit)) = place(descriptor) else {
        return false;
    };
    let known = INODES[descriptor as usize].load(Ordering::SeqCst);
    let is_there = inode(descriptor) == Some(known);
    if !is_there {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
    is_there
}

fn inode(descriptor: RawFd) -> Option<u64> {
    // SAFETY: the descriptor is used for `fstat` only, which fails if it is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::fs::fstat(descriptor).ok().map(|file| file.st_ino)
}

/// The socket of a descriptor; `None` if this process has none for it.
pub(crate) fn find(descriptor: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.made()?.read().get(&descriptor).cloned()
}

/// Removes a descriptor, which is about to be closed, and returns its socket. The socket is closed with the last of its
/// descriptors.
pub(crate) fn remove(descriptor: RawFd) -> Option<Arc<Socket>> {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
    SOCKETS.made()?.write().remove(&descriptor)
}

/// Whether the table is empty, because this process has no RDS socket.
pub(crate) fn is_empty() -> bool {
    SOCKETS.made().is_none_or(|all| all.read().is_empty())
}

/// The descriptors in this range whose calls are redirected to this library.
pub(crate) fn within(range: RangeInclusive<u32>) -> impl Iterator<Item = RawFd> {
    let words = DESCRIPTORS.made().into_iter().flat_map(|all| all.iter());
    let all = words.zip(0..).flat_map(|(word, place)| {
        let word = word.load(Ordering::SeqCst);
        (0..64)
            .filter(move |bit| word >> bit & 1 != 0)
            .map(move |bit| place * 64 + bit)
    });
    all.filter(move |number: &u32| range.contains(number))
        .map(|number| number as RawFd)
}

fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((DESCRIPTORS.made()?.get(number / 64)?, 1 << (number % 64)))
}
