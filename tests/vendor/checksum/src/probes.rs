//! The probes that prove the bit.

use verbs_api::probe::{Evidence, Outcome, Pair, Probe, Rig};
use verbs_api::{
    Access, ErrorKind, QpOptions, RemoteAddress, WcStatus,
    probe::{ensure, ensure_eq},
    wr,
};

use crate::{CHECKSUM, Checksum, MAX_RANGE, RANGE, Range};

/// The probes of the extension.
pub(crate) static PROBES: &[Probe] = &[
    Probe::new(
        &RANGE,
        "acme-checksum.vectors",
        "Acme 7.1",
        "checksums are those of CRC-32C",
        vectors,
    ),
    Probe::new(
        &RANGE,
        "acme-checksum.range",
        "Acme 7.1",
        "only the range counts, wherever it begins and ends",
        only_the_range,
    ),
    Probe::new(
        &RANGE,
        "acme-checksum.order",
        "Acme 7.2",
        "earlier writes of the queue are included",
        after_a_write,
    ),
    Probe::new(
        &RANGE,
        "acme-checksum.rights",
        "Acme 7.3",
        "a peer needs the right to read, and stays within the region",
        rights,
    ),
    Probe::new(
        &RANGE,
        "acme-checksum.longest",
        "Acme 7.4",
        "a range may be as long as the device says, and no longer",
        longest,
    ),
    Probe::new(
        &RANGE,
        "acme-checksum.completion",
        "Acme 7.5",
        "a completion has the opcode and four bytes",
        completion,
    ),
    Probe::new(
        &RANGE,
        "acme-checksum.not-asked-for",
        "Acme 7.6",
        "a queue pair that was not made for it refuses it",
        not_asked_for,
    ),
];

/// Queue pairs that do checksums, and the handle that makes requests.
fn pair(rig: &Rig) -> Result<(Checksum, Pair), Evidence> {
    let near = rig.near.context.extension::<Checksum>()?;
    let far = rig.far.context.extension::<Checksum>()?;
    let at_near = rig
        .near
        .side_with(&rig.near.pd, |cq| QpOptions::rc(cq).operations(&near))?;
    let at_far = rig
        .far
        .side_with(&rig.far.pd, |cq| QpOptions::rc(cq).operations(&far))?;
    Ok((near, rig.connected(at_near, at_far)?))
}

/// The request, whose answer goes to the beginning of the scratch memory.
fn to_scratch<'r>(rig: &Rig, range: &'r Range) -> Result<wr::ExtensionRequest<'r>, Evidence> {
    Ok(range.request(rig.scratch.sge(0, 4)?))
}

/// The checksum of a remote range, as the far device computes it.
fn checksum(rig: &Rig, pair: &Pair, range: Range) -> Result<u32, Evidence> {
    rig.scratch.put(0, &[0xee; 4])?;
    rig.succeeds(&pair.near, to_scratch(rig, &range)?)?;
    let mut octets = [0; 4];
    octets.copy_from_slice(&rig.scratch.bytes(0, 4)?);
    Ok(u32::from_ne_bytes(octets))
}

// RFC 3720, appendix B.4, and the check value of the polynomial.
fn vectors(rig: &Rig) -> Outcome {
    let (handle, pair) = pair(rig)?;
    let memory = rig
        .far
        .region(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let ascending: Vec<u8> = (0..32).collect();
    for (octets, expected) in [
        (&[0; 32][..], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&ascending, 0x46dd_794e),
        (b"123456789", 0xe306_9283),
        (b"", 0),
    ] {
        memory.put(0, octets)?;
        let range = handle.range(memory.remote(0), octets.len() as u32);
        ensure_eq!(
            checksum(rig, &pair, range)?,
            expected,
            "the checksum of {octets:02x?}"
        );
    }
    Ok(())
}

fn only_the_range(rig: &Rig) -> Outcome {
    let (handle, pair) = pair(rig)?;
    let memory = rig
        .far
        .region(20_000, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    memory.fill(3)?;
    for (from, length) in [(0, 1), (1, 4096), (4095, 2), (7, 19_993), (0, 20_000)] {
        let expected = crc32c::crc32c(&memory.bytes(from, length)?);
        let range = handle.range(memory.remote(from as u64), length as u32);
        ensure_eq!(
            checksum(rig, &pair, range)?,
            expected,
            "the checksum of {length} bytes from {from} on"
        );
    }
    Ok(())
}

fn after_a_write(rig: &Rig) -> Outcome {
    let (handle, pair) = pair(rig)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = rig.far.region(8192, rights)?;
    rig.scratch.fill(9)?;
    let expected = crc32c::crc32c(&rig.scratch.bytes(4096, 8192)?);
    let write = wr::Write::new(rig.scratch.sge(4096, 8192)?, memory.remote(0));
    pair.near.post_one(write)?;
    let found = checksum(rig, &pair, handle.range(memory.remote(0), 8192))?;
    ensure_eq!(found, expected, "the checksum after a write");
    Ok(())
}

// A refusal ends the connection, so each attempt has one of its own.
fn is_refused(rig: &Rig, remote: RemoteAddress, length: u32, expected: WcStatus) -> Outcome {
    let (handle, pair) = pair(rig)?;
    let range = handle.range(remote, length);
    let status = rig.verdict(&pair, to_scratch(rig, &range)?)?;
    ensure_eq!(status, expected, "{length} bytes at {remote:?}");
    Ok(())
}

fn rights(rig: &Rig) -> Outcome {
    let closed = rig
        .far
        .region(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    is_refused(rig, closed.remote(0), 4, WcStatus::RemAccessErr)?;
    let open = rig
        .far
        .region(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    is_refused(rig, open.remote(61), 4, WcStatus::RemAccessErr)
}

fn longest(rig: &Rig) -> Outcome {
    let most = rig.attributes().limit((&MAX_RANGE).into());
    // A longer range might need more memory than this machine has.
    let length = most.min(1 << 24) as u32;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let memory = rig.far.region(length as usize + 1, rights)?;
    let (handle, pair) = pair(rig)?;
    let expected = crc32c::crc32c(&memory.bytes(0, length as usize)?);
    let found = checksum(rig, &pair, handle.range(memory.remote(0), length))?;
    ensure_eq!(found, expected, "the checksum of {length} bytes");
    if u64::from(length) == most {
        is_refused(rig, memory.remote(0), length + 1, WcStatus::RemInvReqErr)?;
    }
    Ok(())
}

fn completion(rig: &Rig) -> Outcome {
    let (handle, pair) = pair(rig)?;
    let memory = rig
        .far
        .region(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let range = handle.range(memory.remote(0), 64);
    pair.near.post_one(to_scratch(rig, &range)?.signaled(5))?;
    let done = rig.take(&pair.near.cq, 1)?.remove(0);
    ensure_eq!(
        (done.wr_id, done.status),
        (5, WcStatus::Success),
        "the completion"
    );
    ensure_eq!(done.opcode, CHECKSUM.wc_opcode(), "its opcode");
    ensure_eq!(done.byte_len, 4, "its bytes");
    Ok(())
}

fn not_asked_for(rig: &Rig) -> Outcome {
    let handle = rig.near.context.extension::<Checksum>()?;
    let memory = rig
        .far
        .region(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let pair = rig.rc()?;
    let range = handle.range(memory.remote(0), 64);
    match pair.near.post_one(to_scratch(rig, &range)?) {
        Err(refused) if refused.kind() == ErrorKind::Unsupported => {
            let said = refused.reason.to_string();
            ensure!(
                said.contains("CHECKSUM"),
                "refused without its name: {said}"
            );
            Ok(())
        }
        other => Err(Evidence::wrong(format!(
            "a request that the queue pair was not made for: {other:?}"
        ))),
    }
}
