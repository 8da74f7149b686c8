//! Probes of memory regions, atomics, and when written data become visible.

use std::fs::File;

use verbs_api::memory::MrReregister;
use verbs_api::probe::{Evidence, Outcome, Pair, Region, Rig, ensure, ensure_eq};
use verbs_api::wr::{AtomicWrite, CompareSwap, FetchAdd, Flush, Read, ReceiveRequest, Send, Write};
use verbs_api::{
    Access, DestroyError, ErrorKind, Memory, MrOptions, RKey, RemoteAddress, WcStatus,
};

use crate::{filled, fresh};

const PAGE: usize = 4096;
/// Access for all that a peer can do without atomics.
const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

// covers 2.06
pub(crate) fn bounds(rig: &Rig) -> Outcome {
    // The second of three pages is registered, and the memory around it must not change.
    let all = rig.far.region(3 * 4096, Access::LOCAL_WRITE)?;
    all.fill(1)?;
    let before = all.bytes(0, 3 * 4096)?;
    let page = all.memory.range(4096, 4096)?;
    let mr = rig.finish(rig.far.pd.register(page, OPEN))?;
    let first = mr.iova();
    for (addr, length, granted) in [
        (first - 1, 1, false),
        (first - 1, 8, false),
        (first - 8, 9, false),
        (first + 4089, 8, false),
        (first + 4095, 2, false),
        (first + 4096, 1, false),
        (first + 4096, 8, false),
        (first, 4097, false),
        (0, 8, false),
        (u64::MAX, 1, false),
        (u64::MAX - 3, 8, false),
        (u64::MAX - 7, 8, false),
        (first, 4096, true),
        (first, 1, true),
        (first + 4088, 8, true),
        (first + 4095, 1, true),
    ] {
        let remote = RemoteAddress::new(addr, mr.rkey());
        let found = (
            rig.can_write_bytes(&rig.rc()?, remote, length)?,
            rig.can_read_bytes(&rig.rc()?, remote, length)?,
        );
        let offset = addr.wrapping_sub(first) as i64;
        ensure_eq!(
            found,
            (granted, granted),
            "whether a peer writes and reads {length} bytes from byte {offset} of 4096"
        );
        // InfiniBand checks a message before it writes the first byte, iWARP each segment.
        let may_change = granted || !rig.acknowledges();
        let kept = if may_change { 8192 } else { 4096 };
        let after = all.bytes(0, 3 * 4096)?;
        ensure!(
            after[..4096] == before[..4096] && after[kept..] == before[kept..],
            "bytes outside the region changed with {length} bytes from byte {offset} of 4096"
        );
    }
    Ok(())
}

// covers 2.05
pub(crate) fn rights(rig: &Rig) -> Outcome {
    for (access, write, read) in [
        (Access::LOCAL_WRITE, false, false),
        (Access::REMOTE_READ, false, true),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, true, false),
        (OPEN, true, true),
    ] {
        let desk = rig.far.region(64, access)?;
        let found = (
            rig.can_write(&rig.rc()?, desk.remote(0))?,
            rig.can_read(&rig.rc()?, desk.remote(0))?,
        );
        ensure_eq!(
            found,
            (write, read),
            "whether {access:?} lets a peer write and read"
        );
    }
    Ok(())
}

// covers 2.04
pub(crate) fn legal_rights(rig: &Rig) -> Outcome {
    let memory = Memory::zeroed(64)?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let made = rig.outcome(rig.far.pd.register_with(&memory, MrOptions::new(access)))?;
        ensure!(made.is_err(), "a region was made with {access:?} alone");
    }
    Ok(())
}

// covers 2.07
pub(crate) fn domain(rig: &Rig) -> Outcome {
    let other = rig.far.other_pd()?;
    let desk = rig.far.region_with(&other, 64, MrOptions::new(OPEN))?;
    ensure!(
        !rig.can_write(&rig.rc()?, desk.remote(0))?,
        "a peer wrote memory of another domain"
    );
    ensure!(
        !rig.can_read(&rig.rc()?, desk.remote(0))?,
        "a peer read memory of another domain"
    );
    ensure!(
        rig.can_write(&rig.rc_in(&other)?, desk.remote(0))?,
        "a peer cannot write memory of its own domain"
    );
    Ok(())
}

// covers 2.03
pub(crate) fn dead_key(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let was = desk.remote(0);
    let Region { memory, mr } = desk;
    rig.finish_destroy(mr.deregister())?;
    for _ in 0..8 {
        let again = rig.finish(rig.far.pd.register_with(&memory, MrOptions::new(OPEN)))?;
        ensure!(
            !rig.can_write(&rig.rc()?, was)?,
            "the key of a region that is gone opens memory"
        );
        rig.finish_destroy(again.deregister())?;
    }
    Ok(())
}

// covers 2.02 7.88
pub(crate) fn no_key(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, Access::LOCAL_WRITE)?;
    let none = RKey::new(0);
    ensure_eq!(
        (desk.mr.rkey(), desk.remote(0).rkey),
        (none, none),
        "the key for peers of a region without rights for them"
    );
    // A peer may also guess the local key.
    let local = RKey::new(desk.mr.lkey().value());
    let first = desk.mr.iova();
    for (addr, key) in [(first, none), (0, none), (first, local)] {
        let remote = RemoteAddress::new(addr, key);
        let found = (
            rig.can_read(&rig.rc()?, remote)?,
            rig.can_write(&rig.rc()?, remote)?,
        );
        ensure_eq!(
            found,
            (false, false),
            "whether key {key:?} lets a peer read and write memory without rights for peers"
        );
    }
    Ok(())
}

// covers 2.15
pub(crate) fn rereg_rights(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let before = desk.remote(0);
    rig.finish(
        desk.mr
            .rereg(MrReregister::new().access(Access::REMOTE_READ)),
    )?;
    ensure!(
        rig.can_read(&rig.rc()?, desk.remote(0))?,
        "a region does not have its new right"
    );
    ensure!(
        !rig.can_write(&rig.rc()?, desk.remote(0))?,
        "a region has a right that was taken from it"
    );
    if before.rkey != desk.mr.rkey() {
        ensure!(
            !rig.can_read(&rig.rc()?, before)?,
            "a region still answers to the key that a change replaced"
        );
    }
    let refused = rig.outcome(
        desk.mr
            .rereg(MrReregister::new().access(Access::REMOTE_WRITE)),
    )?;
    ensure!(
        refused.is_err(),
        "a region was given rights that no region may have"
    );
    ensure!(
        rig.can_read(&rig.rc()?, desk.remote(0))?,
        "a refused change has harmed the region"
    );
    Ok(())
}

// covers 2.15
pub(crate) fn rereg_domain(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let other = rig.far.other_pd()?;
    rig.finish(desk.mr.rereg(MrReregister::new().pd(&other)))?;
    ensure!(
        !rig.can_read(&rig.rc()?, desk.remote(0))?,
        "a region answers the domain that it has left"
    );
    ensure!(
        rig.can_read(&rig.rc_in(&other)?, desk.remote(0))?,
        "a region does not answer its new domain"
    );
    let destroyed = rig.outcome(other.clone().destroy())?;
    ensure!(
        matches!(destroyed, Err(DestroyError::Busy { .. })),
        "a domain was destroyed that a region has moved to"
    );
    rig.finish(desk.mr.rereg(MrReregister::new().pd(&rig.far.pd)))?;
    rig.finish_destroy(other.destroy())
}

// covers 2.15
pub(crate) fn rereg_memory(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let memory = Memory::zeroed(8192)?;
    memory.write(8184, b"the end.")?;
    rig.finish(desk.mr.rereg(MrReregister::new().memory(&memory)))?;
    ensure_eq!(
        (desk.mr.len(), desk.mr.iova()),
        (8192, memory.address()),
        "the region's length and address"
    );
    let pair = rig.rc()?;
    rig.succeeds(
        &pair.near,
        Read::new(rig.scratch.sge(0, 8)?, desk.remote(8184)),
    )?;
    ensure_eq!(
        rig.scratch.bytes(0, 8)?,
        b"the end.",
        "the last bytes of the new memory"
    );
    Ok(())
}

/// Eight bytes that peers may access by atomics, with this value in them, and a pair of connected QPs.
fn counter(rig: &Rig, value: u64) -> Result<(Pair, Region), Evidence> {
    let cell = rig.far.region(64, OPEN | Access::REMOTE_ATOMIC)?;
    cell.set_word(0, value)?;
    cell.set_word(8, u64::MAX)?;
    Ok((rig.rc()?, cell))
}

// covers 3.31
pub(crate) fn fetch_add(rig: &Rig) -> Outcome {
    let (pair, cell) = counter(rig, u64::MAX - 1)?;
    let add = FetchAdd::new(rig.scratch.sge(0, 8)?, cell.remote(0), 5);
    rig.succeeds(&pair.near, add)?;
    ensure_eq!(rig.scratch.word(0)?, u64::MAX - 1, "the original value");
    ensure_eq!(cell.word(0)?, 3, "the sum, which wraps");
    ensure_eq!(cell.word(8)?, u64::MAX, "the bytes behind it");
    Ok(())
}

// covers 3.31
pub(crate) fn compare_swap(rig: &Rig) -> Outcome {
    let (pair, cell) = counter(rig, 0x1122_3344_5566_7788)?;
    for (compare, after) in [(7, 0x1122_3344_5566_7788), (0x1122_3344_5566_7788, 9)] {
        let swap = CompareSwap::new(rig.scratch.sge(0, 8)?, cell.remote(0), compare, 9);
        rig.succeeds(&pair.near, swap)?;
        ensure_eq!(
            rig.scratch.word(0)?,
            0x1122_3344_5566_7788,
            "the original value, compared with {compare:#x}"
        );
        ensure_eq!(
            cell.word(0)?,
            after,
            "the value, compared with {compare:#x}"
        );
    }
    Ok(())
}

// covers 3.31
pub(crate) fn atomic_alignment(rig: &Rig) -> Outcome {
    for offset in [1, 4, 7] {
        let (pair, cell) = counter(rig, 0)?;
        let before = cell.bytes(0, 16)?;
        let add = FetchAdd::new(rig.scratch.sge(0, 8)?, cell.remote(offset), 1).signaled(1);
        // Some devices check the alignment of the address when the request is posted; others leave it to the peer.
        let found = match pair.near.post_one(add) {
            Err(refused) if refused.kind() == ErrorKind::InvalidArgument => WcStatus::RemInvReqErr,
            Err(refused) => return Err(refused.into()),
            Ok(()) => rig.take(&pair.near.cq, 1)?[0].status,
        };
        ensure!(
            found != WcStatus::Success,
            "an atomic was carried out at byte {offset}"
        );
        ensure_eq!(
            cell.bytes(0, 16)?,
            before,
            "the memory after it was refused"
        );
    }
    Ok(())
}

// covers 2.05
pub(crate) fn atomic_rights(rig: &Rig) -> Outcome {
    let plain = rig.far.region(64, OPEN)?;
    ensure!(
        !rig.can_add(&rig.rc()?, plain.remote(0))?,
        "a peer added to memory that lets it read and write"
    );
    let atomic = rig
        .far
        .region(64, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    ensure!(
        rig.can_add(&rig.rc()?, atomic.remote(0))?,
        "a peer cannot add to memory that lets it"
    );
    ensure!(
        !rig.can_write(&rig.rc()?, atomic.remote(0))?,
        "a peer wrote memory that lets it add only"
    );
    Ok(())
}

pub(crate) fn atomic_write(rig: &Rig) -> Outcome {
    let (pair, cell) = counter(rig, 1)?;
    rig.scratch
        .put(0, &0x0102_0304_0506_0708_u64.to_ne_bytes())?;
    rig.succeeds(
        &pair.near,
        AtomicWrite::new(rig.scratch.sge(0, 8)?, cell.remote(0)),
    )?;
    ensure_eq!(cell.word(0)?, 0x0102_0304_0506_0708, "the eight bytes");
    ensure_eq!(cell.word(8)?, u64::MAX, "the bytes behind them");
    Ok(())
}

pub(crate) fn atomic_write_alignment(rig: &Rig) -> Outcome {
    let (pair, cell) = counter(rig, 0)?;
    let before = cell.bytes(0, 16)?;
    filled(rig)?;
    let write = AtomicWrite::new(rig.scratch.sge(0, 8)?, cell.remote(4));
    let found = rig.verdict(&pair, write)?;
    ensure!(
        found != WcStatus::Success,
        "eight bytes were written at byte 4"
    );
    ensure_eq!(
        cell.bytes(0, 16)?,
        before,
        "the memory after it was refused"
    );
    Ok(())
}

/// A pair of connected QPs, of which the far one lets its peer flush too.
fn flushing(rig: &Rig) -> Result<Pair, Evidence> {
    let access = Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT;
    fresh(rig, access)
}

pub(crate) fn flush(rig: &Rig) -> Outcome {
    let pair = flushing(rig)?;
    let desk = rig.far.region(64, OPEN | Access::FLUSH_GLOBAL)?;
    filled(rig)?;
    pair.near
        .post_one(Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)))?;
    rig.succeeds(
        &pair.near,
        Flush::new(desk.remote(0), 8, Access::FLUSH_GLOBAL),
    )?;
    ensure_eq!(
        desk.bytes(0, 8)?,
        rig.scratch.bytes(0, 8)?,
        "what was written, once it is flushed"
    );
    Ok(())
}

// covers 2.05
pub(crate) fn flush_rights(rig: &Rig) -> Outcome {
    let both = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    for (rights, asked, granted) in [
        (Access::FLUSH_GLOBAL, Access::FLUSH_GLOBAL, true),
        (Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT, false),
        (Access::FLUSH_GLOBAL, both, false),
        (both, both, true),
        (OPEN, Access::FLUSH_GLOBAL, false),
    ] {
        let desk = rig.far.region(64, rights)?;
        let found = rig.is_granted(&flushing(rig)?, Flush::new(desk.remote(0), 8, asked))?;
        ensure_eq!(
            found,
            granted,
            "whether {rights:?} lets a peer ask for {asked:?}"
        );
    }
    Ok(())
}

/// Memory of two pages in a file, registered on demand at the far end.
fn paged(rig: &Rig) -> Result<(Region, File), Evidence> {
    let made = Memory::shared(2 * PAGE);
    let (memory, file) = made.map_err(|error| Evidence::wrong(error.to_string()))?;
    memory.write(0, b"released")?;
    let options = MrOptions::new(OPEN).on_demand();
    let mr = rig.finish(rig.far.pd.register_with(&memory, options))?;
    Ok((Region { memory, mr }, File::from(file)))
}

/// Takes the pages of a file away, which has new ones, of zeros, on demand.
fn release(file: &File) -> Outcome {
    let released = file.set_len(0).and_then(|()| file.set_len(2 * PAGE as u64));
    released.map_err(|error| Evidence::wrong(error.to_string()))
}

pub(crate) fn on_demand(rig: &Rig) -> Outcome {
    let (desk, file) = paged(rig)?;
    let pair = rig.rc()?;
    let read = || -> Result<Vec<u8>, Evidence> {
        rig.succeeds(
            &pair.near,
            Read::new(rig.scratch.sge(0, 8)?, desk.remote(0)),
        )?;
        rig.scratch.bytes(0, 8)
    };
    ensure_eq!(read()?, b"released", "the first pages");
    release(&file)?;
    ensure_eq!(
        read()?,
        [0; 8],
        "pages that are read before they are written"
    );
    desk.put(0, b"new page")?;
    ensure_eq!(
        read()?,
        b"new page",
        "pages that the program has written since"
    );
    Ok(())
}

pub(crate) fn on_demand_sink(rig: &Rig) -> Outcome {
    let (desk, file) = paged(rig)?;
    let pair = rig.rc()?;
    filled(rig)?;
    release(&file)?;
    rig.succeeds(
        &pair.near,
        Write::new(rig.scratch.sge(0, 8)?, desk.remote(PAGE as u64 - 4)),
    )?;
    // On iWARP a write completes before its bytes are placed.
    rig.settle();
    ensure_eq!(
        desk.bytes(PAGE - 4, 8)?,
        rig.scratch.bytes(0, 8)?,
        "a write across two pages that were not there"
    );
    release(&file)?;
    desk.memory
        .prefetch(0, 2 * PAGE)
        .map_err(|error| Evidence::wrong(error.to_string()))?;
    pair.far
        .post_receive(ReceiveRequest::new(1, desk.sge(0, 64)?))?;
    rig.succeeds(&pair.near, Send::new(rig.scratch.sge(0, 8)?))?;
    rig.take(&pair.far.cq, 1)?;
    ensure_eq!(
        desk.bytes(0, 8)?,
        rig.scratch.bytes(0, 8)?,
        "a message into pages that were prefetched"
    );
    Ok(())
}
