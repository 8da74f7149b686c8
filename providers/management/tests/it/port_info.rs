//! PortInfo: configuration as a whole, and the states of the link.

use polyverbs_management::Event;
use polyverbs_wire::mad::smp::{PhysicalState, PortInfo, PortState};
use polyverbs_wire::mad::status;

use crate::rig::{Request, Rig};

// covers 8.72
#[test]
fn a_port_is_down_and_polls_until_it_has_a_link() {
    let mut rig = Rig::new();
    let info = rig.port_info();
    assert_eq!(
        (info.port_state, info.physical_state),
        (PortState::DOWN, PhysicalState::POLLING)
    );
    assert_eq!((info.lid, info.local_port_num), (0, 1));
    rig.link_up();
    let info = rig.port_info();
    assert_eq!(
        (info.port_state, info.physical_state),
        (PortState::INIT, PhysicalState::LINK_UP)
    );
    // 4x at 10 Gbit/s, and at 25 Gbit/s for those who know of extended speeds.
    assert_eq!((info.link_width_active, info.link_speed_active), (2, 4));
    assert_eq!(info.link_speed_ext_active, 2);
}

// covers 8.72
#[test]
fn a_link_has_the_best_speed_that_both_ends_enable() {
    let mut rig = Rig::new();
    rig.configure(|info| {
        info.link_width_enabled = 1;
        info.link_speed_enabled = 3;
        info.link_speed_ext_enabled = 1;
    });
    rig.link_up();
    let info = rig.port_info();
    assert_eq!(
        (
            info.link_width_active,
            info.link_speed_active,
            info.link_speed_ext_active
        ),
        (1, 2, 1)
    );
    let info = rig.configure(|info| {
        info.link_width_enabled = 0xff;
        info.link_speed_enabled = 0x0f;
        info.link_speed_ext_enabled = 0x1f;
    });
    assert_eq!(
        (
            info.link_width_enabled,
            info.link_speed_enabled,
            info.link_speed_ext_enabled
        ),
        (3, 7, 3)
    );
    let info = rig.configure(|info| {
        (info.link_width_enabled, info.link_speed_enabled) = (0, 0);
        info.link_speed_ext_enabled = 0;
    });
    assert_eq!(
        (
            info.link_width_enabled,
            info.link_speed_enabled,
            info.link_speed_ext_enabled
        ),
        (3, 7, 3),
        "0 changes nothing"
    );
}

// covers 8.72
#[test]
fn a_subnet_manager_brings_a_port_to_active_step_by_step() {
    let mut rig = Rig::new();
    rig.link_up();
    let info = rig.configure(|info| {
        (info.lid, info.sm_lid, info.lmc) = (5, 1, 1);
        (info.neighbor_mtu, info.operational_vls) = (4, 2);
        info.subnet_timeout = 18;
    });
    assert_eq!((info.lid, info.sm_lid, info.lmc), (5, 1, 1));
    assert_eq!((info.neighbor_mtu, info.operational_vls), (4, 2));
    assert_eq!(info.port_state, PortState::INIT);
    assert_eq!(rig.events(), [(1, Event::LidChange), (1, Event::SmChange)]);

    let info = rig.configure(|info| info.port_state = PortState::ARMED);
    assert_eq!(info.port_state, PortState::ARMED);
    assert_eq!(rig.events(), []);
    let info = rig.configure(|info| {
        info.port_state = PortState::ACTIVE;
        info.client_reregister = true;
    });
    assert_eq!(info.port_state, PortState::ACTIVE);
    assert!(info.client_reregister, "the answer repeats the bit");
    assert_eq!(
        rig.events(),
        [(1, Event::ClientReregister), (1, Event::PortActive)]
    );
    assert!(!rig.port_info().client_reregister);
}

// Each row: the state of the port, the states that a write wants, and the state afterwards, or none where the write is refused.
// covers 8.72
#[test]
fn only_the_transitions_of_the_standard_are_made() {
    use {PhysicalState as Physical, PortState as State};
    const STATES: [State; 4] = [State::DOWN, State::INIT, State::ARMED, State::ACTIVE];
    for from in STATES {
        for state in 0..=5 {
            for physical in 0..=6 {
                let mut rig = Rig::new();
                if from != State::DOWN {
                    rig.link_up();
                }
                for step in [State::ARMED, State::ACTIVE] {
                    if from.0 >= step.0 {
                        rig.configure(|info| info.port_state = step);
                    }
                }
                let before = rig.port_info();
                assert_eq!(before.port_state, from);
                let expected = match (from, State(state), Physical(physical)) {
                    (_, State::NO_CHANGE, Physical::NO_CHANGE) => Some(from),
                    (State::INIT, State::ARMED, Physical::NO_CHANGE) => Some(State::ARMED),
                    (State::ARMED, State::ACTIVE, Physical::NO_CHANGE) => Some(State::ACTIVE),
                    (_, State::NO_CHANGE, Physical(1..=3)) => Some(State::DOWN),
                    (_, State::DOWN, Physical(0..=3)) => Some(State::DOWN),
                    _ => None,
                };
                let request = rig.change(|info| {
                    (info.port_state, info.physical_state) = (State(state), Physical(physical));
                });
                match expected {
                    Some(expected) => {
                        assert_eq!(rig.read::<PortInfo>(request).port_state, expected);
                    }
                    None => {
                        assert_eq!(rig.refusal(request), status::INVALID_FIELD);
                        assert_eq!(rig.port_info(), before);
                    }
                }
            }
        }
    }
}

// covers 8.72
#[test]
fn a_write_takes_the_link_down_and_the_caller_brings_it_up() {
    let mut rig = Rig::new();
    rig.link_up();
    rig.configure(|info| (info.lid, info.sm_lid) = (5, 1));
    rig.configure(|info| info.port_state = PortState::ARMED);
    rig.configure(|info| info.port_state = PortState::ACTIVE);
    rig.events();
    let info = rig.configure(|info| info.port_state = PortState::DOWN);
    assert_eq!(
        (info.port_state, info.physical_state),
        (PortState::DOWN, PhysicalState::POLLING)
    );
    assert_eq!(rig.events(), [(1, Event::PortErr), (1, Event::Retrain)]);
    rig.link_up();
    let info = rig.port_info();
    assert_eq!((info.port_state, info.lid), (PortState::INIT, 5));
}

// covers 8.72
#[test]
fn a_disabled_port_stays_down_until_it_is_enabled() {
    let mut rig = Rig::new();
    rig.link_up();
    rig.configure(|info| info.physical_state = PhysicalState::DISABLED);
    rig.link_up();
    rig.configure(|info| info.port_state = PortState::DOWN);
    rig.link_up();
    let info = rig.port_info();
    assert_eq!(
        (info.port_state, info.physical_state),
        (PortState::DOWN, PhysicalState::DISABLED)
    );
    rig.events();
    rig.configure(|info| info.physical_state = PhysicalState::POLLING);
    assert_eq!(rig.events(), [(1, Event::Retrain)]);
    rig.link_up();
    assert_eq!(rig.port_info().port_state, PortState::INIT);
}

// covers 8.72
#[test]
fn a_lost_link_is_an_error_of_an_active_port_only() {
    let mut rig = Rig::new();
    rig.link_up();
    rig.node.port_mut(1).unwrap().link_down();
    assert_eq!(rig.events(), []);
    rig.link_up();
    rig.configure(|info| info.port_state = PortState::ARMED);
    rig.configure(|info| {
        info.port_state = PortState::ACTIVE;
        info.link_down_default_state = PhysicalState::SLEEP;
    });
    rig.events();
    rig.node.port_mut(1).unwrap().link_down();
    assert_eq!(rig.events(), [(1, Event::PortErr)]);
    assert_eq!(rig.port_info().physical_state, PhysicalState::SLEEP);
}

// covers 8.65 8.72
#[test]
fn a_write_with_one_invalid_field_changes_nothing() {
    let invalid: [fn(&mut PortInfo); 11] = [
        |info| info.lid = 0,
        |info| info.lid = 0xc000,
        |info| info.sm_lid = 0xffff,
        |info| info.link_width_enabled = 4,
        |info| info.link_speed_enabled = 8,
        |info| info.link_speed_ext_enabled = 4,
        |info| info.link_down_default_state = PhysicalState::DISABLED,
        |info| info.neighbor_mtu = 0,
        |info| info.neighbor_mtu = 6,
        |info| info.operational_vls = 4,
        |info| info.port_state = PortState::ACTIVE,
    ];
    let mut rig = Rig::new();
    rig.link_up();
    rig.configure(|info| (info.lid, info.sm_lid) = (5, 1));
    rig.events();
    let before = rig.port_info();
    for spoil in invalid {
        let request = rig.change(|info| {
            (info.lid, info.m_key, info.gid_prefix) = (6, 7, 8);
            info.client_reregister = true;
            spoil(info);
        });
        assert_eq!(rig.refusal(request), status::INVALID_FIELD);
        assert_eq!(rig.port_info(), before);
        assert_eq!(rig.events(), []);
    }
}

// covers 8.72
#[test]
fn lid_0_can_be_written_to_a_port_that_has_no_lid() {
    let mut rig = Rig::new();
    rig.link_up();
    let info = rig.configure(|info| info.physical_state = PhysicalState::DISABLED);
    assert_eq!(
        (info.lid, info.physical_state),
        (0, PhysicalState::DISABLED)
    );
}

// covers 8.72
#[test]
fn the_other_port_of_an_adapter_is_read_and_not_written() {
    let mut rig = Rig::new();
    let request = rig.change(|info| info.lid = 5).modifier(2);
    let info: PortInfo = rig.read(request);
    assert_eq!((info.lid, info.local_port_num), (0, 1));
    assert_eq!(rig.node.port(2).unwrap().info().lid, 0);
    // The highest bit of the modifier is not part of the number.
    let read = Request::get::<PortInfo>();
    rig.read::<PortInfo>(read.modifier(1 << 31 | 2));
    for number in [3, 256, 257, 1 << 30] {
        assert_eq!(rig.refusal(read.modifier(number)), status::INVALID_FIELD);
    }
}
