use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::mad::notice::{
    KeyViolation, LinkErrors, LinkState, LocalChange, MKeyViolation, Notice, trap,
};
use polyverbs_wire::mad::perf::{
    PERF_CLASS, Perf, PortCounters, PortCountersExtended, PortSamplesControl,
};
use polyverbs_wire::mad::rmpp::Rmpp;
use polyverbs_wire::mad::sa::{McMemberRecord, PathRecord, SA_CLASS, SaMad};
use polyverbs_wire::mad::smp::{
    DIRECTED_CLASS, GuidInfo, Hops, LID_CLASS, LinearForwardingTable, MulticastForwardingTable,
    NodeDescription, NodeInfo, PKeyTable, PortInfo, SlToVlTable, SmInfo, Smp, SwitchInfo,
    VlArbitrationTable,
};
use polyverbs_wire::mad::{self, Attribute, ClassPortInfo, DATA_LEN, MadHeader, cm};

/// Decodes a management datagram, to the fields of the attribute that it carries.
pub fn run(octets: &[u8]) {
    let Ok(datagram) = mad::decode(octets) else {
        return;
    };
    let mut header = MadHeader::of(datagram.header);
    let payload = Octets(*datagram.data);
    let data = match header.management_class {
        LID_CLASS | DIRECTED_CLASS => {
            Hops::of(&header).put(&mut header);
            let mut smp: Smp = payload.header();
            smp.data = of_subnet(header.attribute_id, smp.data);
            smp.to_view().0
        }
        SA_CLASS => {
            let mut sa: SaMad = payload.header();
            sa.rmpp = again::<Rmpp, _>(sa.rmpp);
            sa.data = of_administrator(header.attribute_id, sa.data);
            sa.to_view().0
        }
        PERF_CLASS => {
            let mut perf: Perf = payload.header();
            perf.data = of_performance(header.attribute_id, perf.data);
            perf.to_view().0
        }
        _ => other(&datagram),
    };
    assert_eq!(mad::encode(&header, &data), octets);
}

fn other(datagram: &mad::Mad<'_>) -> [u8; DATA_LEN] {
    match cm::decode(datagram) {
        Ok(message) => message.to_data(),
        Err(_) => *datagram.data,
    }
}

/// Decodes the attribute at the beginning, and encodes it in place.
fn again<A: Header, const N: usize>(data: Octets<N>) -> Octets<N> {
    let mut out = data;
    data.header::<A>().put(&mut out.0);
    out
}

fn of_subnet(attribute_id: u16, data: Octets<64>) -> Octets<64> {
    match attribute_id {
        Notice::ID => notice(data),
        NodeDescription::ID => again::<NodeDescription, _>(data),
        NodeInfo::ID => again::<NodeInfo, _>(data),
        SwitchInfo::ID => again::<SwitchInfo, _>(data),
        GuidInfo::ID => again::<GuidInfo, _>(data),
        PortInfo::ID => again::<PortInfo, _>(data),
        PKeyTable::ID => again::<PKeyTable, _>(data),
        SlToVlTable::ID => again::<SlToVlTable, _>(data),
        VlArbitrationTable::ID => again::<VlArbitrationTable, _>(data),
        LinearForwardingTable::ID => again::<LinearForwardingTable, _>(data),
        MulticastForwardingTable::ID => again::<MulticastForwardingTable, _>(data),
        SmInfo::ID => again::<SmInfo, _>(data),
        _ => data,
    }
}

fn notice(data: Octets<64>) -> Octets<64> {
    let mut notice: Notice = data.header();
    notice.details = match notice.trap_number {
        trap::LINK_STATE => again::<LinkState, _>(notice.details),
        trap::LOCAL_LINK_INTEGRITY..=trap::FLOW_CONTROL => again::<LinkErrors, _>(notice.details),
        trap::LOCAL_CHANGE => again::<LocalChange, _>(notice.details),
        trap::M_KEY => again::<MKeyViolation, _>(notice.details),
        trap::P_KEY | trap::Q_KEY => again::<KeyViolation, _>(notice.details),
        _ => notice.details,
    };
    Octets::holding(&notice)
}

fn of_administrator(attribute_id: u16, data: Octets<200>) -> Octets<200> {
    match attribute_id {
        ClassPortInfo::ID => again::<ClassPortInfo, _>(data),
        PathRecord::ID => again::<PathRecord, _>(data),
        McMemberRecord::ID => again::<McMemberRecord, _>(data),
        _ => data,
    }
}

fn of_performance(attribute_id: u16, data: Octets<192>) -> Octets<192> {
    match attribute_id {
        ClassPortInfo::ID => again::<ClassPortInfo, _>(data),
        PortSamplesControl::ID => again::<PortSamplesControl, _>(data),
        PortCounters::ID => again::<PortCounters, _>(data),
        PortCountersExtended::ID => again::<PortCountersExtended, _>(data),
        _ => data,
    }
}
