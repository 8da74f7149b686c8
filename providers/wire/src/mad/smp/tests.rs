use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::layout::Header;
use crate::mad::notice::{self, Notice};
use crate::mad::perf::{self, Perf};
use crate::mad::sa::{self, SaMad};
use crate::mad::{self, Attribute, ClassPortInfo, DATA_LEN, MAD_LEN, method};

// A directed request for the SMInfo of a node two hops away and its answer, from Wireshark's sample capture of InfiniBand
// (`infiniband.pcap`).
const DATA: usize = 64;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;
const REQUEST: &[u8] =
    &hex!("0181010100000102 0001509c000125c8 0020000000000000 0000000000000000 ffff ffff");
const ANSWER: &[u8] =
    &hex!("0181018180000102 0001509c000125c8 0020000000000000 0000000000000000 ffff ffff");

fn whole(parts: &[(usize, &[u8])]) -> [u8; MAD_LEN] {
    let mut octets = [0; MAD_LEN];
    for (at, part) in parts {
        octets[*at..at + part.len()].copy_from_slice(part);
    }
    octets
}

fn decoded(octets: &[u8; MAD_LEN]) -> (MadHeader, Smp) {
    let mad = mad::decode(octets).unwrap();
    let (header, smp) = (MadHeader::of(mad.header), Octets(*mad.data).header());
    assert_eq!(mad::encode(&header, &Smp::to_view(&smp).0), *octets);
    (header, smp)
}

#[test]
fn a_captured_directed_request_is_decoded() {
    let octets = whole(&[(0, REQUEST), (INITIAL_PATH, &[0, 2, 3])]);
    let (header, smp) = decoded(&octets);
    assert_eq!(
        (header.management_class, header.class_version, header.method),
        (DIRECTED_CLASS, CLASS_VERSION, method::GET)
    );
    assert_eq!(header.attribute_id, SmInfo::ID);
    let hops = Hops {
        is_returning: false,
        pointer: 1,
        count: 2,
    };
    assert_eq!(Hops::of(&header), hops);
    assert_eq!((smp.dr_slid, smp.dr_dlid), (PERMISSIVE_LID, PERMISSIVE_LID));
    assert_eq!(smp.initial_path, Octets::padded(&[0, 2, 3]).unwrap());
}

#[test]
fn the_captured_answer_is_on_its_way_back() {
    let sm_info = hex!("0002c9020020b4dd 0000000000000000 0000923a 03");
    let parts: [(_, &[u8]); 4] = [
        (0, ANSWER),
        (DATA, &sm_info),
        (INITIAL_PATH, &[0, 2, 3]),
        (RETURN_PATH, &[0, 6, 1]),
    ];
    let (header, smp) = decoded(&whole(&parts));
    assert!(Hops::of(&header).is_returning);
    assert_eq!(smp.return_path, Octets::padded(&[0, 6, 1]).unwrap());
    let expected = SmInfo {
        guid: 0x0002_c902_0020_b4dd,
        act_count: 0x923a,
        sm_state: 3,
        ..SmInfo::default()
    };
    assert_eq!(smp.data.header::<SmInfo>(), expected);
}

#[test]
fn a_place_on_the_path_leaves_the_status_code_alone() {
    let mut header = MadHeader {
        status: mad::status::INVALID_FIELD,
        ..MadHeader::default()
    };
    let hops = Hops {
        is_returning: true,
        pointer: 3,
        count: 4,
    };
    hops.put(&mut header);
    assert_eq!((header.status, header.class_specific), (0x801c, 0x0304));
    assert_eq!(Hops::of(&header), hops);
    Hops::default().put(&mut header);
    assert_eq!(header.status, mad::status::INVALID_FIELD);
}

// Each line has a position in the attribute and the meaning of the byte there, after opensm's `ib_types.h` and Linux's `ib_smi.h`.
#[test]
fn fields_are_at_the_positions_of_the_standard() {
    macro_rules! check {
        ($($attribute:ident $at:literal $octet:literal $field:ident = $value:expr;)*) => {$(
            let mut octets = [0; $attribute::LEN];
            octets[$at] = $octet;
            let expected = $attribute { $field: $value, ..$attribute::default() };
            assert_eq!($attribute::split(&octets).unwrap().0, expected, "{}", stringify!($attribute $at));
        )*};
    }
    check! {
        NodeInfo 2 1 node_type = 1;
        NodeInfo 3 2 num_ports = 2;
        NodeInfo 11 1 system_image_guid = 1;
        NodeInfo 19 1 node_guid = 1;
        NodeInfo 27 1 port_guid = 1;
        NodeInfo 29 1 partition_cap = 1;
        NodeInfo 31 1 device_id = 1;
        NodeInfo 35 1 revision = 1;
        NodeInfo 36 1 local_port_num = 1;
        NodeInfo 39 1 vendor_id = 1;
        SwitchInfo 1 1 linear_fdb_cap = 1;
        SwitchInfo 5 1 multicast_fdb_cap = 1;
        SwitchInfo 7 1 linear_fdb_top = 1;
        SwitchInfo 11 0x90 life_time_value = 18;
        SwitchInfo 11 4 port_state_change = true;
        SwitchInfo 13 1 lids_per_port = 1;
        SwitchInfo 15 1 partition_enforcement_cap = 1;
        SwitchInfo 16 0x08 enhanced_port0 = true;
        SwitchInfo 19 1 multicast_fdb_top = 1;
        PortInfo 7 1 m_key = 1;
        PortInfo 15 1 gid_prefix = 1;
        PortInfo 17 1 lid = 1;
        PortInfo 19 1 sm_lid = 1;
        PortInfo 23 2 capability_mask = capability::IS_SM;
        PortInfo 20 2 capability_mask = capability::CLIENT_REREGISTRATION;
        PortInfo 27 1 m_key_lease_period = 1;
        PortInfo 28 1 local_port_num = 1;
        PortInfo 29 1 link_width_enabled = 1;
        PortInfo 30 1 link_width_supported = 1;
        PortInfo 31 1 link_width_active = 1;
        PortInfo 32 0x10 link_speed_supported = 1;
        PortInfo 32 4 port_state = PortState::ACTIVE;
        PortInfo 33 0x50 physical_state = PhysicalState::LINK_UP;
        PortInfo 33 2 link_down_default_state = PhysicalState::POLLING;
        PortInfo 34 0x80 m_key_protect_bits = 2;
        PortInfo 34 7 lmc = 7;
        PortInfo 35 0x40 link_speed_active = 4;
        PortInfo 35 7 link_speed_enabled = 7;
        PortInfo 36 0x50 neighbor_mtu = 5;
        PortInfo 36 3 sm_sl = 3;
        PortInfo 37 0x40 vl_cap = 4;
        PortInfo 38 1 vl_high_limit = 1;
        PortInfo 41 5 mtu_cap = 5;
        PortInfo 42 0x20 vl_stall_count = 1;
        PortInfo 42 0x12 hoq_life = 18;
        PortInfo 43 0x40 operational_vls = 4;
        PortInfo 43 8 partition_enforcement_inbound = true;
        PortInfo 43 4 partition_enforcement_outbound = true;
        PortInfo 45 1 m_key_violations = 1;
        PortInfo 47 1 p_key_violations = 1;
        PortInfo 49 1 q_key_violations = 1;
        PortInfo 50 1 guid_cap = 1;
        PortInfo 51 0x80 client_reregister = true;
        PortInfo 51 0x12 subnet_timeout = 18;
        PortInfo 52 0x10 resp_time_value = 16;
        PortInfo 53 0x80 local_phy_errors = 8;
        PortInfo 53 8 overrun_errors = 8;
        PortInfo 61 1 capability_mask2 = 1;
        PortInfo 62 0x10 link_speed_ext_active = 1;
        PortInfo 62 2 link_speed_ext_supported = 2;
        PortInfo 63 3 link_speed_ext_enabled = 3;
    }
}

#[test]
fn tables_have_their_entries_in_order() {
    let octets = core::array::from_fn::<_, 64, _>(|at| at as u8);
    let (table, _) = SlToVlTable::split(&hex!("0123456789abcdef")).unwrap();
    assert_eq!(table.vls, core::array::from_fn(|at| at as u8));
    let (table, _) = GuidInfo::split(&octets).unwrap();
    assert_eq!(table.guids[1], 0x0809_0a0b_0c0d_0e0f);
    let (table, _) = PKeyTable::split(&octets).unwrap();
    assert_eq!((table.p_keys[0], table.p_keys[31]), (0x0001, 0x3e3f));
    let (table, _) = MulticastForwardingTable::split(&octets).unwrap();
    assert_eq!(table.port_masks[1], 0x0203);
}

// Checks of every format of management datagrams: any bytes decode, and encode to the same bytes.
fn comes_back<H: Header>(octets: &[u8]) {
    let (header, _) = H::split(octets).unwrap();
    assert_eq!(
        header.put(&mut [0xa5; DATA_LEN]).unwrap().len(),
        DATA_LEN - H::LEN
    );
    let mut out = [0xa5; DATA_LEN];
    header.put(&mut out);
    assert_eq!(out[..H::LEN], octets[..H::LEN]);
    assert!(out[H::LEN..].iter().all(|octet| *octet == 0xa5));
    for length in 0..H::LEN {
        assert!(H::split(&octets[..length]).is_none());
    }
}

proptest! {
    #[test]
    fn any_management_datagram_encodes_to_the_bytes_it_came_from(
        octets in proptest::collection::vec(any::<u8>(), DATA_LEN),
    ) {
        comes_back::<Smp>(&octets);
        comes_back::<NodeInfo>(&octets);
        comes_back::<SwitchInfo>(&octets);
        comes_back::<GuidInfo>(&octets);
        comes_back::<PortInfo>(&octets);
        comes_back::<PKeyTable>(&octets);
        comes_back::<SlToVlTable>(&octets);
        comes_back::<MulticastForwardingTable>(&octets);
        comes_back::<SmInfo>(&octets);
        comes_back::<Notice>(&octets);
        comes_back::<notice::LocalChange>(&octets);
        comes_back::<notice::MKeyViolation>(&octets);
        comes_back::<notice::KeyViolation>(&octets);
        comes_back::<SaMad>(&octets);
        comes_back::<sa::PathRecord>(&octets);
        comes_back::<sa::McMemberRecord>(&octets);
        comes_back::<ClassPortInfo>(&octets);
        comes_back::<Perf>(&octets);
        comes_back::<perf::PortSamplesControl>(&octets);
        comes_back::<perf::PortCounters>(&octets);
        comes_back::<perf::PortCountersExtended>(&octets);
    }
}
