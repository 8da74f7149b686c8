//! Private data: how many bytes each message has room for, and how many of them the program may use.
//!
//! With the RDMA connection manager, the private data of REQ and SIDR_REQ begin with a header of 36 bytes (IBTA annex A11).

use std::net::SocketAddr;

use polyverbs_wire::layout::Header;
use polyverbs_wire::mad::rdma_cm::{RdmaCm, port_of};

use verbs_api::provider::backend::PrivateDataLimits;

use super::types::CmError;

/// Bytes of private data in a REQ.
pub const REQ: usize = 92;
/// Bytes of private data in an MRA.
pub const MRA: usize = 222;
/// Bytes of private data in a REJ.
pub const REJ: usize = 148;
/// Bytes of private data in a REP.
pub const REP: usize = 196;
/// Bytes of private data in an RTU.
pub const RTU: usize = 224;
/// Bytes of private data in a DREQ.
pub const DREQ: usize = 220;
/// Bytes of private data in a DREP.
pub const DREP: usize = 224;
/// Bytes of private data in a SIDR_REQ.
pub const SIDR_REQ: usize = 216;
/// Bytes of private data in a SIDR_REP.
pub const SIDR_REP: usize = 136;
/// Bytes that the RDMA connection manager's header takes of the private data of a REQ or SIDR_REQ.
pub const RDMA_CM: usize = RdmaCm::LEN;

// What the API promises to programs.
const _: () = {
    let limits = PrivateDataLimits::INFINIBAND;
    assert!(limits.connect == REQ - RDMA_CM && limits.accept == REP && limits.reject == REJ);
    assert!(limits.resolve == SIDR_REQ - RDMA_CM && limits.answer == SIDR_REP);
};

/// The private data of a REQ or SIDR_REQ that begins with the RDMA connection manager's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressed<'a> {
    /// The socket address of the active side.
    pub source: SocketAddr,
    /// The socket address of the passive side.
    pub destination: SocketAddr,
    /// The program's private data, padded with zeros.
    pub private_data: &'a [u8],
}

/// Returns private data with the RDMA connection manager's header in front, of at most `room` bytes together.
///
/// # Errors
/// The program's private data does not fit, or the two addresses are of different families.
pub fn with_addresses(
    room: usize,
    source: SocketAddr,
    destination: SocketAddr,
    private_data: &[u8],
) -> Result<Vec<u8>, CmError> {
    let header = RdmaCm::new(source.ip(), source.port(), destination.ip())
        .ok_or(CmError::Argument("addresses of two families"))?;
    super::limits::fits(private_data, room.saturating_sub(RDMA_CM))?;
    let mut bytes = header.to_view().0.to_vec();
    bytes.extend_from_slice(private_data);
    Ok(bytes)
}

/// Splits private data into the RDMA connection manager's header and the program's part; `None` if the header is missing or
/// invalid, or the service ID is not that of a port.
pub fn addresses(service_id: u64, private_data: &[u8]) -> Option<Addressed<'_>> {
    let (header, private_data) = RdmaCm::split(private_data)?;
    let (source, destination) = header.addresses()?;
    let (_, port) = port_of(service_id)?;
    Some(Addressed {
        source: SocketAddr::new(source, header.source_port),
        destination: SocketAddr::new(destination, port),
        private_data,
    })
}

#[cfg(test)]
mod tests {
    use polyverbs_wire::mad::rdma_cm::{port_space, service_id};

    use super::*;

    // covers 7.52 7.53
    #[test]
    fn private_data_has_the_room_that_the_header_leaves() {
        let (source, destination) = (
            "10.0.0.1:5000".parse().unwrap(),
            "10.0.0.2:4420".parse().unwrap(),
        );
        let service = service_id(port_space::TCP, 4420);
        assert_eq!(
            with_addresses(REQ, source, destination, &[1; 57]),
            Err(CmError::PrivateData { len: 57, max: 56 })
        );
        assert!(with_addresses(SIDR_REQ, source, destination, &[1; 180]).is_ok());
        assert!(with_addresses(SIDR_REQ, source, destination, &[1; 181]).is_err());
        let bytes = with_addresses(REQ, source, destination, &[1; 56]).unwrap();
        assert_eq!(bytes.len(), REQ);
        let found = addresses(service, &bytes).unwrap();
        assert_eq!((found.source, found.destination), (source, destination));
        assert_eq!(found.private_data, [1; 56]);

        let mut other = bytes.clone();
        other[0] = 1;
        assert_eq!(addresses(service, &other), None);
        assert_eq!(addresses(7, &bytes), None);
        assert_eq!(addresses(service, &bytes[..35]), None);
        let six = "[::1]:1".parse().unwrap();
        assert!(with_addresses(REQ, source, six, &[]).is_err());
    }
}
