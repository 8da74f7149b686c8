//! The port spaces of the RDMA connection manager, in which services have their ports.

use polyverbs_wire::mad::rdma_cm::port_space;

/// The port space of a connector: services at equal ports in two spaces are different services to InfiniBand's connection manager.
/// Streams and networks within a process have one space for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortSpace {
    /// That of InfiniBand (`RDMA_PS_IB`), for connections and datagram services alike.
    Ib,
    /// Those of programs that know IP addresses: `RDMA_PS_TCP` for connections, and `RDMA_PS_UDP` for datagram services.
    #[default]
    Ip,
}

impl PortSpace {
    /// Returns the number of the space of connections, for service IDs.
    pub(crate) const fn connections(self) -> u16 {
        match self {
            Self::Ib => port_space::IB,
            Self::Ip => port_space::TCP,
        }
    }

    /// Returns the number of the space of datagram services, for service IDs.
    pub(crate) const fn datagrams(self) -> u16 {
        match self {
            Self::Ib => port_space::IB,
            Self::Ip => port_space::UDP,
        }
    }
}
