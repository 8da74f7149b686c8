//! Directed routes: the rules of each step, and the way to an adapter and back.

use polyverbs_management::NextHop;
use polyverbs_management::route::{self, Place};
use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::mad::smp::{DIRECTED_CLASS, Hops, NodeInfo, PERMISSIVE_LID, Smp};
use polyverbs_wire::mad::{self, Attribute, MAD_LEN, MadHeader, method};

use crate::rig::{PORT_GUID, Request, Rig, decoded};

const ADAPTER: Place = Place {
    is_switch: false,
    ports: 2,
};
const SWITCH: Place = Place {
    is_switch: true,
    ports: 8,
};

const LID: u16 = 0x0021;

/// A directed request for NodeInfo with these hops, paths and LIDs.
#[derive(Clone, Copy)]
struct Directed {
    hops: Hops,
    initial_path: &'static [u8],
    return_path: &'static [u8],
    dr_slid: u16,
    dr_dlid: u16,
}

impl Directed {
    fn to_mad(self) -> [u8; MAD_LEN] {
        let mut header = MadHeader {
            base_version: 1,
            management_class: DIRECTED_CLASS,
            class_version: 1,
            method: method::GET,
            attribute_id: NodeInfo::ID,
            ..MadHeader::default()
        };
        self.hops.put(&mut header);
        let smp = Smp {
            dr_slid: self.dr_slid,
            dr_dlid: self.dr_dlid,
            initial_path: Octets::padded(self.initial_path).unwrap(),
            return_path: Octets::padded(self.return_path).unwrap(),
            ..Smp::default()
        };
        mad::encode(&header, &smp.to_view().0)
    }

    /// Lets the SMP take a step, and returns where it goes and the hop pointer that it then has.
    fn step(self, step: impl Fn(&mut [u8; MAD_LEN]) -> NextHop) -> (NextHop, u8) {
        let mut mad = self.to_mad();
        let next = step(&mut mad);
        (next, Hops::of(&decoded(&mad).0).pointer)
    }

    fn arrive(self, place: Place) -> (NextHop, u8) {
        self.step(|mad| route::arrive(mad, place, 5))
    }

    fn depart(self, place: Place) -> (NextHop, u8) {
        self.step(|mad| route::depart(mad, place, 1))
    }

    fn after_lid_part(self) -> Self {
        Self {
            dr_slid: LID,
            ..self
        }
    }

    fn before_lid_part(self) -> Self {
        Self {
            dr_dlid: LID,
            ..self
        }
    }
}

const fn directed(is_returning: bool, pointer: u8, count: u8) -> Directed {
    Directed {
        hops: Hops {
            is_returning,
            pointer,
            count,
        },
        initial_path: &[0, 1, 2, 3, 4],
        return_path: &[0, 5, 6, 7, 8],
        dr_slid: PERMISSIVE_LID,
        dr_dlid: PERMISSIVE_LID,
    }
}

const fn request(pointer: u8, count: u8) -> Directed {
    directed(false, pointer, count)
}

const fn answer(pointer: u8, count: u8) -> Directed {
    directed(true, pointer, count)
}

// covers 8.66
#[test]
fn a_request_begins_with_the_first_port_of_its_path() {
    assert_eq!(request(0, 0).depart(ADAPTER), (NextHop::Here, 1));
    assert_eq!(request(0, 3).depart(ADAPTER), (NextHop::Port(1), 1));
    let by_another_port = Directed {
        initial_path: &[0, 2],
        ..request(0, 1)
    };
    assert_eq!(by_another_port.depart(ADAPTER).0, NextHop::Dropped);
    assert_eq!(request(1, 3).depart(ADAPTER).0, NextHop::Dropped);
    // The pointer does not move before the part that is routed by LID has ended.
    assert_eq!(
        request(0, 3).after_lid_part().depart(ADAPTER),
        (NextHop::Address, 0)
    );
}

// covers 8.66
#[test]
fn a_switch_sends_a_request_on_and_an_adapter_does_not() {
    assert_eq!(request(1, 3).arrive(SWITCH), (NextHop::Port(2), 2));
    assert_eq!(request(2, 3).arrive(SWITCH), (NextHop::Port(3), 3));
    assert_eq!(request(1, 3).arrive(ADAPTER).0, NextHop::Dropped);
    for port in [0, 9, 255] {
        let path: &[u8] = match port {
            0 => &[0, 1, 0],
            9 => &[0, 1, 9],
            _ => &[0, 1, 255],
        };
        let nowhere = Directed {
            initial_path: path,
            ..request(1, 2)
        };
        assert_eq!(nowhere.arrive(SWITCH).0, NextHop::Dropped, "{port}");
    }
}

// covers 8.66
#[test]
fn the_way_of_a_request_ends_at_an_agent_or_goes_on_by_lid() {
    for place in [ADAPTER, SWITCH] {
        assert_eq!(request(3, 3).arrive(place), (NextHop::Here, 4));
        assert_eq!(request(4, 3).arrive(place), (NextHop::Here, 4));
        assert_eq!(request(0, 0).arrive(place), (NextHop::Here, 1));
    }
    assert_eq!(
        request(3, 3).before_lid_part().arrive(SWITCH),
        (NextHop::Lid(LID), 4)
    );
    assert_eq!(
        request(3, 3).before_lid_part().arrive(ADAPTER).0,
        NextHop::Dropped
    );
    // A part that is routed by LID ends where the pointer is still 0.
    assert_eq!(
        request(0, 3).after_lid_part().arrive(SWITCH),
        (NextHop::Port(1), 1)
    );
    assert_eq!(
        request(0, 3).after_lid_part().arrive(ADAPTER).0,
        NextHop::Dropped
    );
    assert_eq!(request(0, 3).arrive(SWITCH).0, NextHop::Dropped);
}

// covers 8.66
#[test]
fn a_request_notes_the_port_by_which_it_has_come() {
    let mut mad = request(2, 3).to_mad();
    route::arrive(&mut mad, SWITCH, 4);
    let (_, smp) = decoded(&mad);
    assert_eq!(smp.return_path, Octets::padded(&[0, 5, 4, 7, 8]).unwrap());
}

// covers 8.66 8.67
#[test]
fn impossible_hops_are_dropped() {
    for is_returning in [false, true] {
        for (pointer, count) in [(0, 64), (64, 64), (5, 3), (255, 63), (255, 255), (2, 0)] {
            let smp = directed(is_returning, pointer, count);
            for place in [ADAPTER, SWITCH] {
                assert_eq!(smp.arrive(place).0, NextHop::Dropped);
                assert_eq!(smp.depart(place).0, NextHop::Dropped);
            }
        }
    }
    let mut mad = request(0, 0).to_mad();
    mad[0] = 2;
    assert_eq!(route::arrive(&mut mad, SWITCH, 1), NextHop::Dropped);
}

// covers 8.67
#[test]
fn an_answer_takes_the_way_back() {
    let last = Directed {
        return_path: &[0, 5, 6, 2],
        ..answer(4, 3)
    };
    assert_eq!(last.depart(ADAPTER), (NextHop::Port(2), 3));
    assert_eq!(
        answer(4, 3).depart(ADAPTER).0,
        NextHop::Dropped,
        "there is no port 7"
    );
    assert_eq!(answer(3, 3).arrive(SWITCH), (NextHop::Port(6), 2));
    assert_eq!(answer(2, 3).arrive(SWITCH), (NextHop::Port(5), 1));
    assert_eq!(answer(2, 3).arrive(ADAPTER).0, NextHop::Dropped);
    for place in [ADAPTER, SWITCH] {
        assert_eq!(answer(1, 3).arrive(place), (NextHop::Here, 0));
        assert_eq!(answer(0, 3).arrive(place), (NextHop::Here, 0));
        assert_eq!(answer(4, 3).arrive(place).0, NextHop::Dropped);
    }
    assert_eq!(
        answer(1, 3).after_lid_part().arrive(SWITCH),
        (NextHop::Lid(LID), 0)
    );
    assert_eq!(
        answer(1, 3).after_lid_part().arrive(ADAPTER).0,
        NextHop::Dropped
    );
}

// covers 8.67
#[test]
fn an_answer_without_hops_or_by_lid_goes_to_its_address() {
    assert_eq!(answer(1, 0).depart(ADAPTER), (NextHop::Here, 0));
    assert_eq!(
        answer(1, 0).after_lid_part().depart(ADAPTER),
        (NextHop::Address, 0)
    );
    assert_eq!(answer(3, 3).depart(ADAPTER).0, NextHop::Dropped);
    // The switch at which the part that is routed by LID ends moves the pointer.
    assert_eq!(
        answer(4, 3).before_lid_part().depart(ADAPTER),
        (NextHop::Address, 4)
    );
    assert_eq!(
        answer(4, 3).before_lid_part().arrive(SWITCH),
        (NextHop::Port(7), 3)
    );
    assert_eq!(
        answer(4, 3).before_lid_part().arrive(ADAPTER).0,
        NextHop::Dropped
    );
}

// covers 8.66 8.67
#[test]
fn a_directed_request_over_two_switches_is_answered() {
    let (mut manager, mut host) = (Rig::new(), Rig::new());
    let now = manager.now;
    let mut mad = Directed {
        initial_path: &[0, 1, 7, 8],
        return_path: &[],
        ..request(0, 3)
    }
    .to_mad();
    assert_eq!(manager.node.send(1, &mut mad, now), NextHop::Port(1));
    // The cables: port 1 of the manager to port 3 of the first switch, port 7 of it to port 4 of the second, and port 8 of that to
    // port 2 of the host.
    assert_eq!(route::arrive(&mut mad, SWITCH, 3), NextHop::Port(7));
    assert_eq!(route::arrive(&mut mad, SWITCH, 4), NextHop::Port(8));
    assert_eq!(host.node.receive(2, &mut mad, now), NextHop::Port(2));
    assert_eq!(route::arrive(&mut mad, SWITCH, 8), NextHop::Port(4));
    assert_eq!(route::arrive(&mut mad, SWITCH, 7), NextHop::Port(3));
    assert_eq!(manager.node.receive(1, &mut mad, now), NextHop::Here);

    let (header, smp) = decoded(&mad);
    assert_eq!(header.method, method::GET | method::RESPONSE);
    let hops = Hops {
        is_returning: true,
        pointer: 0,
        count: 3,
    };
    assert_eq!((Hops::of(&header), header.status), (hops, Hops::RETURNING));
    assert_eq!(smp.return_path, Octets::padded(&[0, 3, 4, 2]).unwrap());
    let info: NodeInfo = smp.data.header();
    assert_eq!((info.port_guid, info.local_port_num), (PORT_GUID + 1, 2));
    assert_eq!(host.events(), []);
}

// covers 8.66
#[test]
fn a_directed_request_without_hops_asks_the_own_node() {
    let mut rig = Rig::new();
    let mut mad = request(0, 0).to_mad();
    assert_eq!(rig.node.send(1, &mut mad, rig.now), NextHop::Here);
    let (header, smp) = decoded(&mad);
    assert_eq!(header.method, method::GET | method::RESPONSE);
    assert_eq!(smp.data.header::<NodeInfo>().local_port_num, 1);
}

// covers 8.60
#[test]
fn a_mad_that_is_not_directed_goes_by_its_address() {
    let mut rig = Rig::new();
    let now = rig.now;
    let read = Request::get::<NodeInfo>();
    let mut mad = read.to_mad();
    assert_eq!(rig.node.send(1, &mut mad, now), NextHop::Address);
    assert_eq!(mad, read.to_mad(), "the request is sent as it is");
    assert_eq!(rig.node.receive(1, &mut mad, now), NextHop::Address);
    assert_eq!(decoded(&mad).0.method, method::GET | method::RESPONSE);
    assert_eq!(
        rig.node.receive(1, &mut mad, now),
        NextHop::Here,
        "an answer is for a program"
    );
    let mut trap = Request {
        method: method::TRAP_REPRESS,
        attribute_id: 2,
        ..read
    }
    .to_mad();
    assert_eq!(rig.node.receive(1, &mut trap, now), NextHop::Dropped);
    let mut unsupported = Request {
        modifier: 1,
        ..read
    }
    .to_mad();
    assert_eq!(rig.node.receive(1, &mut unsupported, now), NextHop::Address);
}
