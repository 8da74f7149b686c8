//! The process's limit of locked memory (`RLIMIT_MEMLOCK`). A registration that exceeds it fails with the same error number as one
//! for which there is no memory.

use std::fs;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use verbs_api::VerbError;
use verbs_api::provider::RegionMemory;

/// Converts ENOMEM of the registration of this memory to an error that names the limit, where the limit can be the cause.
pub(crate) fn named(error: VerbError, memory: &RegionMemory) -> VerbError {
    let no_memory = matches!(
        error,
        VerbError::Os {
            errno: libc::ENOMEM,
            ..
        }
    );
    let limit = getrlimit(Resource::Memlock).current;
    let Some(limit) = limit.filter(|_| no_memory) else {
        return error;
    };
    let wanted = memory.len() as u64;
    let bytes = pages(memory.address() as u64, wanted);
    let file = |name| fs::read_to_string(name).unwrap_or_default();
    let (status, uid_map) = (file("/proc/self/status"), file("/proc/self/uid_map"));
    match may_refuse(limit, bytes, &status, &uid_map) {
        true => VerbError::MemoryLock { wanted, limit },
        false => error,
    }
}

// The bytes of the pages in which this memory lies: the kernel pins whole pages.
fn pages(address: u64, length: u64) -> u64 {
    let page = page_size() as u64;
    let first = address - address % page;
    (address + length).next_multiple_of(page) - first
}

/// Whether the kernel refuses to pin so many bytes more because of the limit. `status` and `uid_map` are the process's files of
/// these names below `/proc`.
fn may_refuse(limit: u64, bytes: u64, status: &str, uid_map: &str) -> bool {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let rights = field("CapEff:").and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    // The kernel asks for the capability of the initial user namespace, which maps each user to itself.
    let is_initial = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    if is_initial && rights.is_some_and(|rights| rights & CAP_IPC_LOCK != 0) {
        return false;
    }
    let pinned = field("VmPin:").and_then(|pinned| pinned.trim().strip_suffix(" kB"));
    let pinned = pinned.and_then(|kibibytes| kibibytes.parse::<u64>().ok());
    // Where the kernel does not say how much is pinned, any registration may be one too many.
    pinned.is_none_or(|kibibytes| kibibytes * 1024 + bytes > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 64 << 10;
    const INITIAL: &str = "         0          0 4294967295\n";
    const CONTAINER: &str = "         0     100000      65536\n";

    fn status(pinned_kib: u64, rights: &str) -> String {
        format!("VmLck:\t       0 kB\nVmPin:\t{pinned_kib:8} kB\nCapEff:\t{rights}\n")
    }

    #[test]
    fn only_what_is_pinned_beyond_the_limit_is_refused() {
        let user = "0000000000000000";
        for (pinned_kib, bytes, refuses) in [
            (0, LIMIT, false),
            (0, LIMIT + 4096, true),
            (60, 4096, false),
            (60, 8192, true),
        ] {
            let status = status(pinned_kib, user);
            assert_eq!(may_refuse(LIMIT, bytes, &status, INITIAL), refuses);
        }
        assert!(may_refuse(LIMIT, 1, "", ""));
    }

    #[test]
    fn the_capability_lifts_the_limit_in_the_initial_namespace_only() {
        let root = status(0, "000001ffffffffff");
        assert!(!may_refuse(LIMIT, 2 * LIMIT, &root, INITIAL));
        assert!(may_refuse(LIMIT, 2 * LIMIT, &root, CONTAINER));
    }

    #[test]
    fn memory_counts_by_the_pages_in_which_it_lies() {
        let page = page_size() as u64;
        assert_eq!(pages(page, 1), page);
        assert_eq!(pages(page, page), page);
        assert_eq!(pages(2 * page - 1, 2), 2 * page);
    }

    #[test]
    fn another_error_keeps_its_cause() {
        let memory = verbs_api::Memory::zeroed(1).unwrap();
        let memory = RegionMemory::from(&memory.range(0, 1).unwrap());
        let refused = VerbError::Os {
            verb: "ibv_reg_mr",
            errno: libc::EFAULT,
        };
        assert_eq!(named(refused.clone(), &memory), refused);
    }
}
