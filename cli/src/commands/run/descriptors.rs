//! Raises the limit of file descriptors for a program whose devices need many.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many file descriptors an open device with listeners and a few peers needs.
const OF_DEVICE: u64 = 20;

/// Raises the limit of file descriptors if the devices need more than half of it. Returns a warning if the system does not
/// allow as many.
pub(super) fn make_room(devices: usize) -> Option<String> {
    let limit = getrlimit(Resource::Nofile);
    let raised = raised(devices, limit)?;
    let refused = setrlimit(Resource::Nofile, raised).is_err();
    let most = if refused {
        limit.current
    } else {
        raised.current
    }?;
    let needed = OF_DEVICE * devices as u64;
    (most < needed).then(|| {
        format!(
            "{devices} devices need up to {needed} descriptors, and the program may have {most}: choose some devices with \
             --device, or raise `ulimit -Hn`"
        )
    })
}

// The limit that leaves the program as many descriptors as it had; `None` if the present one suffices.
fn raised(devices: usize, limit: Rlimit) -> Option<Rlimit> {
    let needed = OF_DEVICE * devices as u64;
    let current = limit.current.filter(|current| needed > current / 2)?;
    let wanted = current + needed;
    let current = Some(limit.maximum.map_or(wanted, |most| wanted.min(most)));
    Some(Rlimit { current, ..limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_devices_raise_the_limit_up_to_the_hard_one() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let usual = limit(Some(1024), Some(4096));
        let currents = [2, 25, 80, 1000].map(|devices| raised(devices, usual)?.current);
        assert_eq!(currents, [None, None, Some(1024 + 1600), Some(4096)]);
        let open = limit(Some(1024), None);
        assert_eq!(raised(1000, open).unwrap().current, Some(21_024));
        assert!(raised(1000, limit(None, None)).is_none());
    }
}
