//! Layouts: zero-based addresses, blocks of any size, elements with gaps.

use verbs_api::probe::{Evidence, Outcome, Pair, Region, Rig};
use verbs_api::{
    Access, Memory, MrKey, MrOptions, PageList, RemoteAddress, WcStatus,
    memory::{MemoryRange, MwType},
    probe::{ensure, ensure_eq},
    wr,
};

use super::OPEN;

// covers 2.66
pub(super) fn zero_based_region(rig: &Rig) -> Outcome {
    let options = MrOptions::new(OPEN).zero_based();
    let region = rig.far.region_with(&rig.far.pd, 1000, options)?;
    ensure_eq!(region.mr.iova(), 0, "the address of a zero-based region");
    let key = region.mr.rkey();
    for (addr, length, granted) in [
        (0, 1000, true),
        (992, 8, true),
        (999, 1, true),
        (1, 1000, false),
        (993, 8, false),
        (1000, 1, false),
        (1001, 1, false),
        (region.memory.address(), 8, false),
        (u64::MAX, 1, false),
    ] {
        let remote = RemoteAddress::new(addr, key);
        let found = (
            rig.can_write_bytes(&rig.rc()?, remote, length)?,
            rig.can_read_bytes(&rig.rc()?, remote, length)?,
        );
        ensure_eq!(
            found,
            (granted, granted),
            "whether a peer writes and reads {length} bytes at {addr} of 1000 zero-based bytes"
        );
    }
    rig.scratch.fill(0x41)?;
    let pair = rig.rc()?;
    ensure!(
        rig.can_write_bytes(&pair, RemoteAddress::new(0, key), 1000)?,
        "a peer cannot write all of a zero-based region"
    );
    ensure_eq!(
        region.bytes(0, 1000)?,
        rig.scratch.bytes(0, 1000)?,
        "what a write at 0 wrote"
    );
    local_addresses(rig, &pair, &region)
}

// The addresses of local requests count from the first byte of the region too.
fn local_addresses(rig: &Rig, pair: &Pair, region: &Region) -> Outcome {
    pair.near.receive(&rig.scratch, 0x4000, 64)?;
    rig.succeeds(&pair.far, wr::Send::new(region.mr.sge_all().at(100, 50)))?;
    let done = rig.take(&pair.near.cq, 1)?.remove(0);
    ensure_eq!(done.byte_len, 50, "the length of the message");
    ensure_eq!(
        rig.scratch.bytes(0x4000, 50)?,
        region.bytes(100, 50)?,
        "a message from byte 100 of a zero-based region"
    );
    let outside = wr::Send::new(region.mr.sge_all().at(1000, 1));
    rig.fails(&pair.far, outside, &[WcStatus::LocProtErr])
}

// covers 2.67 2.66
pub(super) fn zero_based_offset(rig: &Rig) -> Outcome {
    // Two pages that do not follow each other in the memory.
    let memory = rig.far.region(4 * 4096, Access::LOCAL_WRITE)?;
    let ranges = [
        memory.memory.range(4096 + 123, 4096 - 123)?,
        memory.memory.range(3 * 4096, 500)?,
    ];
    let mapped = PageList::map(&ranges, 4096, 2).map_err(unusable)?;
    let key = rig.finish(rig.far.pd.alloc_key(2))?;
    let pair = rig.rc()?;
    let request = wr::FastRegister::new(&key, &mapped.list).access(OPEN | Access::ZERO_BASED);
    rig.succeeds(&pair.far, request)?;
    rig.scratch.fill(0x42)?;
    let write = wr::Write::new(rig.scratch.sge(0, 4473)?, RemoteAddress::new(0, key.rkey()));
    rig.succeeds(&pair.near, write)?;
    rig.settle();
    let written = [
        memory.bytes(4096 + 123, 3973)?,
        memory.bytes(3 * 4096, 500)?,
    ];
    ensure_eq!(
        written.concat(),
        rig.scratch.bytes(0, 4473)?,
        "what a write at 0 wrote to memory that begins at byte 123 of its page"
    );
    ensure!(
        memory.bytes(4096, 123)?.iter().all(|&byte| byte == 0),
        "bytes in front of a registration have changed"
    );
    ensure!(
        !rig.can_write_bytes(&pair, RemoteAddress::new(4473, key.rkey()), 1)?,
        "a peer wrote beyond the end of a zero-based registration"
    );
    Ok(())
}

fn unusable(error: verbs_api::memory::PageListError) -> Evidence {
    Evidence::wrong(error.to_string())
}

/// Ranges of one memory in any order, registered as one page list.
struct Pieces {
    memory: Memory,
    // Offset and length of each piece, in the list's order.
    places: Vec<(usize, usize)>,
    list: PageList,
    key: MrKey,
}

impl Pieces {
    fn registered(
        rig: &Rig,
        pair: &Pair,
        places: &[(usize, usize)],
        list: impl FnOnce(&[MemoryRange]) -> Result<PageList, verbs_api::memory::PageListError>,
    ) -> Result<Self, Evidence> {
        let memory = Memory::zeroed(1 << 15)?;
        let ranges = places
            .iter()
            .map(|&(offset, length)| memory.range(offset, length))
            .collect::<Result<Vec<_>, _>>()?;
        let list = list(&ranges).map_err(unusable)?;
        let key = rig.finish(rig.far.pd.alloc_key(list.entries()))?;
        let request = wr::FastRegister::new(&key, &list).access(OPEN | Access::MW_BIND);
        rig.succeeds(&pair.far, request)?;
        Ok(Self {
            memory,
            places: places.to_vec(),
            list,
            key,
        })
    }

    fn remote(&self) -> RemoteAddress {
        self.key.remote(self.list.address())
    }

    // The bytes of the list in order, without the first `skip`.
    fn gathered(&self, skip: usize) -> Result<Vec<u8>, Evidence> {
        let mut all = Vec::new();
        for &(offset, length) in &self.places {
            all.extend(self.memory.to_vec(offset, length)?);
        }
        all.drain(..skip);
        Ok(all)
    }
}

// Writes the whole list remotely and compares each byte, then reads a range across piece boundaries back.
fn carries(rig: &Rig, pair: &Pair, pieces: &Pieces, skip: usize) -> Outcome {
    let length = pieces.list.len() as usize;
    rig.scratch.fill(0x77)?;
    let write = wr::Write::new(rig.scratch.sge(0, length as u32)?, pieces.remote());
    rig.succeeds(&pair.near, write)?;
    rig.settle();
    let written = pieces.gathered(skip)?;
    ensure_eq!(
        written[..length],
        rig.scratch.bytes(0, length)?[..],
        "the pieces after a write over all of them"
    );
    let total: usize = pieces.places.iter().map(|&(_, length)| length).sum();
    let all = pieces.memory.to_vec(0, pieces.memory.len())?;
    let touched = all.iter().filter(|&&byte| byte != 0).count();
    ensure!(
        touched <= total,
        "bytes outside the pieces have changed: {touched} of {total}"
    );
    let end = pieces.remote().plus(length as u64 - 7);
    ensure!(
        !rig.can_write(pair, end)?,
        "a peer wrote beyond the end of a list"
    );
    Ok(())
}

// covers 2.33
pub(super) fn blocks(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let places = [
        (9000, 1000),
        (1, 1000),
        (20_003, 1000),
        (5001, 1000),
        (12_345, 1000),
    ];
    let pieces = Pieces::registered(rig, &pair, &places, |ranges| {
        PageList::blocks(ranges, 1000, 37, 4900)
    })?;
    carries(rig, &pair, &pieces, 37)
}

const GAPS: [(usize, usize); 4] = [(17, 5), (4096, 4096), (10_001, 333), (20_000, 1)];

// covers 2.32
pub(super) fn gaps(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let pieces = Pieces::registered(rig, &pair, &GAPS, PageList::gaps)?;
    carries(rig, &pair, &pieces, 0)
}

// covers 2.52
pub(super) fn gaps_window(rig: &Rig) -> Outcome {
    if !rig
        .attributes()
        .features
        .intersects(verbs_api::Features::WINDOW_2)
    {
        return Err(Evidence::not_here("the device has no windows of type 2"));
    }
    let pair = rig.rc()?;
    let pieces = Pieces::registered(rig, &pair, &GAPS, PageList::gaps)?;
    let mw = rig.far.window(MwType::Type2)?;
    let key = mw.rkey().next();
    // From the last byte of the first piece into the second.
    let first = pieces.list.address() + 4;
    let bind = wr::BindWindow::new(&mw, &pieces.key, first, 16).access(Access::REMOTE_WRITE);
    rig.succeeds(&pair.far, bind)?;
    rig.scratch.fill(0x19)?;
    let write = wr::Write::new(rig.scratch.sge(0, 16)?, RemoteAddress::new(first, key));
    rig.succeeds(&pair.near, write)?;
    rig.settle();
    ensure_eq!(
        pieces.gathered(4)?[..16],
        rig.scratch.bytes(0, 16)?[..],
        "a window across the border of two pieces"
    );
    ensure!(
        !rig.can_write(&pair, RemoteAddress::new(first + 9, key))?,
        "a peer wrote beyond the end of a window on a list"
    );
    Ok(())
}
