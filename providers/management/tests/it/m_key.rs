//! The M_Key: which requests pass without it, and how long it protects.

use std::time::Duration;

use polyverbs_management::Processed;
use polyverbs_wire::mad::notice::Notice;
use polyverbs_wire::mad::smp::{NodeInfo, PortInfo};
use polyverbs_wire::mad::{method, status};

use crate::rig::{Request, Rig};

const KEY: u64 = 0xfeed;

fn protected(protection: u8, lease: u16) -> Rig {
    let mut rig = Rig::new();
    rig.configure(|info| {
        info.m_key = KEY;
        info.m_key_protect_bits = protection;
        info.m_key_lease_period = lease;
    });
    rig
}

fn violations(rig: &Rig) -> u16 {
    rig.node.port(1).unwrap().info().m_key_violations
}

fn is_ignored(rig: &mut Rig, request: Request) -> bool {
    rig.process(request) == (Processed::Consumed, request.to_mad())
}

// covers 8.68
#[test]
fn the_protection_decides_who_may_read() {
    for (protection, may_read, sees_key) in [
        (0, true, true),
        (1, true, false),
        (2, false, false),
        (3, false, false),
    ] {
        let mut rig = protected(protection, 0);
        let read = Request::get::<PortInfo>();
        if may_read {
            let info: PortInfo = rig.read(read);
            assert_eq!(info.m_key, if sees_key { KEY } else { 0 }, "{protection}");
            assert_eq!(violations(&rig), 0);
        } else {
            assert!(is_ignored(&mut rig, read), "{protection}");
            assert_eq!(violations(&rig), 1);
        }
        assert_eq!(rig.read::<PortInfo>(read.m_key(KEY)).m_key, KEY);
    }
}

// covers 8.68
#[test]
fn writes_with_a_wrong_key_are_ignored_and_counted() {
    let mut rig = protected(0, 0);
    let write = rig.change(|info| info.lid = 5).m_key(1);
    assert!(is_ignored(&mut rig, write));
    let repress = Request {
        method: method::TRAP_REPRESS,
        ..Request::get::<Notice>()
    };
    assert!(is_ignored(&mut rig, repress.m_key(1)));
    assert_eq!(violations(&rig), 2);
    assert_eq!(rig.node.port(1).unwrap().info().lid, 0);
    // A method that is not supported needs no key to be refused.
    let unknown = Request {
        method: method::DELETE,
        ..Request::get::<NodeInfo>()
    };
    assert_eq!(rig.refusal(unknown.m_key(1)), status::METHOD);
    assert_eq!(violations(&rig), 2);

    rig.configure(|info| info.m_key_violations = 1);
    assert_eq!(violations(&rig), 2, "only 0 clears");
    rig.configure(|info| info.m_key_violations = 0);
    assert_eq!(violations(&rig), 0);
}

// covers 8.68
#[test]
fn the_counter_of_violations_stops_at_its_largest_value() {
    let mut rig = protected(2, 0);
    for _ in 0..0x1_0001 {
        rig.process(Request::get::<NodeInfo>().m_key(1));
    }
    assert_eq!(violations(&rig), u16::MAX);
}

// covers 8.68
#[test]
fn the_lease_ends_the_protection_unless_its_owner_shows_up() {
    let wrong = Request::get::<PortInfo>().m_key(1);
    let second = Duration::from_secs(1);

    let mut rig = protected(2, 10);
    assert!(is_ignored(&mut rig, wrong));
    rig.now += 9 * second;
    assert!(
        is_ignored(&mut rig, wrong),
        "a second one does not start it anew"
    );
    rig.now += second;
    let info: PortInfo = rig.read(wrong);
    assert_eq!((info.m_key_protect_bits, info.m_key), (0, KEY));

    let mut rig = protected(2, 10);
    assert!(is_ignored(&mut rig, wrong));
    rig.now += 9 * second;
    rig.read::<PortInfo>(wrong.m_key(KEY));
    rig.now += 9 * second;
    assert!(is_ignored(&mut rig, wrong), "the owner has ended the lease");

    let mut rig = protected(2, 0);
    assert!(is_ignored(&mut rig, wrong));
    rig.now += 1_000_000 * second;
    assert!(is_ignored(&mut rig, wrong), "a period of 0 never ends");
}
