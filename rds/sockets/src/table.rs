//! The sockets of this process, by descriptor.
//!
//! A child of a fork inherits the descriptors of its parent's sockets but not the sockets, because their threads and connections
//! belong to the parent. It begins with an empty table. A child that shares its parent's memory (`vfork`) changes nothing here.
// The table calls `fstat` on numbers that may not be open descriptors.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs::provider::{MadeOnce, PerProcess, RwLock};

use crate::socket::Socket;

/// A bit for each descriptor.
pub(crate) type Descriptors = [AtomicU64; 1024];

type Sockets = RwLock<HashMap<RawFd, Arc<Socket>>>;

/// The descriptors whose calls come here, including those of the parent's sockets.
static DESCRIPTORS: MadeOnce<&'static Descriptors> = MadeOnce::new();
/// The inode of each descriptor. Another inode means that the program has closed the descriptor by a call that is not redirected, and
/// that the kernel has reused its number.
static INODES: [AtomicU64; 65_536] = [const { AtomicU64::new(0) }; 65_536];
/// The sockets of this process.
static SOCKETS: PerProcess<Sockets> = PerProcess::new(RwLock::default);
/// The process that this memory belongs to.
static PROCESS: PerProcess<u32> = PerProcess::new(std::process::id);

/// Stores the bits, which are set and cleared from now on.
pub(crate) fn start(descriptors: &'static Descriptors) {
    DESCRIPTORS.get_or_make(|| descriptors);
    // A child of `vfork` must find the number of its parent.
    let _ = *PROCESS;
}

/// Whether the memory belongs to this process, and not to a parent that waits until this child runs another program.
pub(crate) fn is_own() -> bool {
    *PROCESS == std::process::id()
}

/// Enters a socket under a descriptor. Returns `false` if the table has no place for this number.
pub(crate) fn insert(descriptor: RawFd, socket: Arc<Socket>) -> bool {
    let (Some((word, bit)), Some(inode)) = (place(descriptor), inode(descriptor)) else {
        return false;
    };
    INODES[descriptor as usize].store(inode, Ordering::SeqCst);
    let mut all = SOCKETS.write();
    // The program has closed the old descriptor by a call that is not redirected.
    let closed = all.insert(descriptor, socket);
    word.fetch_or(bit, Ordering::SeqCst);
    drop(all);
    drop(closed);
    true
}

/// Whether a descriptor is still the socket that [`insert`] has entered. If not, clears its bit, so that calls on it are
/// forwarded to the C library. Takes no lock.
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

/// The socket of a descriptor in this process.
pub(crate) fn find(descriptor: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.made()?.read().get(&descriptor).cloned()
}

/// Removes a descriptor before it is closed; the socket is closed with its last descriptor.
pub(crate) fn remove(descriptor: RawFd) -> Option<Arc<Socket>> {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
    SOCKETS.made()?.write().remove(&descriptor)
}

/// Whether this process has no socket.
pub(crate) fn is_empty() -> bool {
    SOCKETS.made().is_none_or(|all| all.read().is_empty())
}

/// The descriptors in a range whose calls come here.
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
