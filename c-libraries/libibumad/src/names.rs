//! The functions that return names of classes, methods, attributes and status codes, which programs print.

use std::ffi::{CStr, c_char};

const UNKNOWN: &CStr = c"<unknown>";

type Names = &'static [(u16, &'static CStr)];

fn named(names: Names, code: u16) -> Option<&'static CStr> {
    let found = names.iter().find(|(known, _)| *known == code);
    found.map(|(_, name)| *name)
}

/// Implements `umad_class_str`.
pub extern "C-unwind" fn class_str(class: u8) -> *const c_char {
    const NAMES: Names = &[
        (0x01, c"Subn"),
        (0x81, c"Subn"),
        (0x03, c"SubnAdm"),
        (0x04, c"Perf"),
        (0x05, c"BM"),
        (0x06, c"DevMgt"),
        (0x07, c"ComMgt"),
        (0x08, c"SNMP"),
        (0x10, c"DevAdm"),
        (0x11, c"BootMgt"),
        (0x12, c"BIS"),
        // The spelling is that of rdma-core.
        (0x21, c"CongestionManagment"),
    ];
    let ranges = || match class {
        0x09..=0x0f | 0x30..=0x4f => Some(c"Vendor"),
        0x10..=0x2f => Some(c"Application"),
        _ => None,
    };
    let name = named(NAMES, class.into()).or_else(ranges);
    name.unwrap_or(UNKNOWN).as_ptr()
}

/// Implements `umad_method_str`.
pub extern "C-unwind" fn method_str(class: u8, method: u8) -> *const c_char {
    const ADMINISTRATION: u8 = 0x03;
    const SA: Names = &[
        (0x12, c"GetTable"),
        (0x92, c"GetTableResp"),
        (0x15, c"Delete"),
        (0x95, c"DeleteResp"),
        (0x14, c"GetMulti"),
        (0x94, c"GetMultiResp"),
        (0x13, c"GetTraceTable"),
    ];
    const COMMON: Names = &[
        (0x01, c"Get"),
        (0x02, c"Set"),
        (0x81, c"GetResp"),
        (0x03, c"Send"),
        (0x05, c"Trap"),
        (0x06, c"Report"),
        (0x86, c"ReportResp"),
        (0x07, c"TrapRepress"),
    ];
    let method = method.into();
    let own = (class == ADMINISTRATION).then(|| named(SA, method));
    let name = own.flatten().or_else(|| named(COMMON, method));
    // rdma-core's text has no closing bracket here.
    name.unwrap_or(c"<unknown").as_ptr()
}

/// Implements `umad_common_mad_status_str`. The status is big-endian.
pub extern "C-unwind" fn common_mad_status_str(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    let name = match status {
        _ if status & 1 != 0 => c"Busy",
        _ if status & 2 != 0 => c"Redirection required",
        _ => match status & 0x1c {
            0x04 => c"Bad Version",
            0x08 => c"Method not supported",
            0x0c => c"Method/Attribute combo not supported",
            0x1c => c"Invalid attribute/modifier field",
            _ => c"Success",
        },
    };
    name.as_ptr()
}

/// Implements `umad_sa_mad_status_str`. The status is big-endian.
pub extern "C-unwind" fn sa_mad_status_str(status: u16) -> *const c_char {
    const NAMES: Names = &[
        (0, c"Success"),
        (1, c"No Resources"),
        (2, c"Request Invalid"),
        (3, c"No Records"),
        (4, c"Too Many Records"),
        (5, c"Invalid GID"),
        (6, c"Insufficient Components"),
        (7, c"Request Denied"),
        (8, c"Priority Suggested"),
    ];
    let name = named(NAMES, u16::from_be(status) >> 8);
    name.unwrap_or(c"Undefined Error").as_ptr()
}

/// Implements `umad_attribute_str`. The attribute is big-endian.
pub extern "C-unwind" fn attribute_str(class: u8, attribute: u16) -> *const c_char {
    const COMMON: Names = &[
        (0x01, c"Class Port Info"),
        (0x02, c"Notice"),
        (0x03, c"Inform Info"),
    ];
    let own = match class {
        0x01 | 0x81 => SUBNET,
        0x03 => RECORDS,
        0x07 => CONNECTION,
        _ => &[],
    };
    let attribute = u16::from_be(attribute);
    let name = named(own, attribute).or_else(|| named(COMMON, attribute));
    name.unwrap_or(UNKNOWN).as_ptr()
}

const SUBNET: Names = &[
    (0x10, c"NodeDescription"),
    (0x11, c"NodeInfo"),
    (0x12, c"SwitchInfo"),
    (0x14, c"GUIDInfo"),
    (0x15, c"PortInfo"),
    (0x16, c"P_KeyTable"),
    (0x17, c"SLtoVLMappingTable"),
    (0x18, c"VLArbitrationTable"),
    (0x19, c"LinearForwardingTable"),
    (0x1a, c"RandomForwardingTable"),
    (0x1b, c"MulticastForwardingTable"),
    (0x1c, c"LinkSpeedWidthPairsTable"),
    (0x1d, c"VendorSpecificMadsTable"),
    (0x1e, c"HierarchyInfo"),
    (0x20, c"SMInfo"),
    (0x30, c"VendorDiag"),
    (0x31, c"LedInfo"),
    (0x32, c"CableInfo"),
    (0x33, c"PortInfoExtended"),
];

const RECORDS: Names = &[
    (0x11, c"NodeRecord"),
    (0x12, c"PortInfoRecord"),
    (0x13, c"SLtoVLMappingTableRecord"),
    (0x14, c"SwitchInfoRecord"),
    (0x15, c"LinearForwardingTableRecord"),
    (0x16, c"RandomForwardingTableRecord"),
    (0x17, c"MulticastForwardingTableRecord"),
    (0x18, c"SMInfoRecord"),
    (0x19, c"LinkSpeedWidthPairsTableRecord"),
    (0x20, c"LinkRecord"),
    (0x30, c"GuidInfoRecord"),
    (0x31, c"ServiceRecord"),
    (0x33, c"P_KeyTableRecord"),
    (0x35, c"PathRecord"),
    (0x36, c"VLArbitrationTableRecord"),
    (0x38, c"MCMemberRecord"),
    (0x39, c"TraceRecord"),
    (0x3a, c"MultiPathRecord"),
    (0x3b, c"ServiceAssociationRecord"),
    (0x3c, c"HierarchyInfoRecord"),
    (0x3d, c"CableInfoRecord"),
    (0x3e, c"PortInfoExtendedRecord"),
    (0xf3, c"InformInfoRecord"),
];

const CONNECTION: Names = &[
    (0x10, c"ConnectRequest"),
    (0x11, c"MsgRcptAck"),
    (0x12, c"ConnectReject"),
    (0x13, c"ConnectReply"),
    (0x14, c"ReadyToUse"),
    (0x15, c"DisconnectRequest"),
    (0x16, c"DisconnectReply"),
    (0x17, c"ServiceIDResReq"),
    (0x18, c"ServiceIDResReqResp"),
    (0x19, c"LoadAlternatePath"),
    (0x1a, c"AlternatePathResponse"),
    (0x1b, c"SuggestAlternatePath"),
    (0x1c, c"SuggestPathResponse"),
];
