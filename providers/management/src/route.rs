//! Directed routes (IBTA 14.2.2): which way a directed SMP takes at a node.
//!
//! The requester lists the ports by which the SMP leaves each node, and each node notes the port by which the SMP has entered. A
//! part of the way before the first directed hop, or after the last one, may be routed by LID.

use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::smp::{DIRECTED_CLASS, Hops, PERMISSIVE_LID, Smp};
use polyverbs_wire::mad::{self, MAD_LEN, MadHeader};

/// Where a MAD goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Out of this port, directed: both LIDs of the packet are permissive.
    Port(u8),
    /// To the port with this LID, by the forwarding tables.
    Lid(u16),
    /// An answer: to the port from which the request came. A request: to the address that its sender gave.
    Address,
    /// Nowhere: it is for an agent of this node.
    Here,
    /// Nowhere: the caller drops it.
    Dropped,
}

/// What directed routes depend on at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether the node is a switch, which forwards SMPs.
    pub is_switch: bool,
    /// The number of its ports; port 0 of a switch is not counted.
    pub ports: u8,
}

/// Moves a MAD that has arrived at this port on by one hop. A MAD that is not directed has come to its destination.
pub fn arrive(mad: &mut [u8; MAD_LEN], place: Place, port: u8) -> NextHop {
    follow(mad, NextHop::Here, |hops, smp| {
        if hops.is_returning {
            place.return_arrives(hops, smp)
        } else {
            place.request_arrives(hops, smp, port)
        }
    })
}

/// Begins the way of a MAD that an agent of this node sends by this port. A MAD that is not directed goes to its address.
pub fn depart(mad: &mut [u8; MAD_LEN], place: Place, port: u8) -> NextHop {
    follow(mad, NextHop::Address, |hops, smp| {
        if hops.is_returning {
            place.return_departs(hops, smp)
        } else {
            request_departs(hops, smp, port)
        }
    })
}

fn follow(
    mad: &mut [u8; MAD_LEN],
    undirected: NextHop,
    step: impl FnOnce(&mut Hops, &mut Smp) -> NextHop,
) -> NextHop {
    let Ok(decoded) = mad::decode(mad) else {
        return NextHop::Dropped;
    };
    if decoded.header.management_class() != DIRECTED_CLASS {
        return undirected;
    }
    let mut header = MadHeader::of(decoded.header);
    let (mut hops, mut smp) = (Hops::of(&header), Octets(*decoded.data).header());
    if hops.count > Hops::MAX_COUNT || hops.pointer > hops.count + 1 {
        return NextHop::Dropped;
    }
    let next = step(&mut hops, &mut smp);
    hops.put(&mut header);
    *mad = mad::encode(&header, &smp.to_view().0);
    next
}

impl Place {
    fn request_arrives(self, hops: &mut Hops, smp: &mut Smp, port: u8) -> NextHop {
        let (at, count) = (hops.pointer, hops.count);
        if at > count {
            return NextHop::Here;
        }
        // The part that is routed by LID ends here, and the directed one begins.
        let begins = at == 0 && count > 0;
        if begins && smp.dr_slid == PERMISSIVE_LID {
            return NextHop::Dropped;
        }
        if at > 0 {
            smp.return_path.0[usize::from(at)] = port;
        }
        hops.pointer += 1;
        if at < count {
            return self.out(smp.initial_path.0[usize::from(at) + 1]);
        }
        match smp.dr_dlid {
            PERMISSIVE_LID => NextHop::Here,
            lid => self.on(NextHop::Lid(lid)),
        }
    }

    fn return_arrives(self, hops: &mut Hops, smp: &Smp) -> NextHop {
        match hops.pointer {
            0 => NextHop::Here,
            1 => {
                hops.pointer = 0;
                match smp.dr_slid {
                    PERMISSIVE_LID => NextHop::Here,
                    lid => self.on(NextHop::Lid(lid)),
                }
            }
            // Beyond the count, the part that is routed by LID ends here, and the directed one begins.
            at if at <= hops.count || smp.dr_dlid != PERMISSIVE_LID => {
                hops.pointer = at - 1;
                self.out(smp.return_path.0[usize::from(at) - 1])
            }
            _ => NextHop::Dropped,
        }
    }

    fn return_departs(self, hops: &mut Hops, smp: &Smp) -> NextHop {
        if smp.dr_dlid != PERMISSIVE_LID {
            return NextHop::Address;
        }
        if hops.pointer != hops.count + 1 {
            return NextHop::Dropped;
        }
        hops.pointer = hops.count;
        if hops.count > 0 {
            let port = smp.return_path.0[usize::from(hops.count)];
            return self.through(port);
        }
        match smp.dr_slid {
            PERMISSIVE_LID => NextHop::Here,
            _ => NextHop::Address,
        }
    }

    /// Only a switch forwards.
    fn on(self, next: NextHop) -> NextHop {
        if self.is_switch {
            next
        } else {
            NextHop::Dropped
        }
    }

    fn out(self, port: u8) -> NextHop {
        self.on(self.through(port))
    }

    fn through(self, port: u8) -> NextHop {
        if (1..=self.ports).contains(&port) {
            NextHop::Port(port)
        } else {
            NextHop::Dropped
        }
    }
}

fn request_departs(hops: &mut Hops, smp: &Smp, port: u8) -> NextHop {
    if hops.pointer != 0 {
        return NextHop::Dropped;
    }
    if smp.dr_slid != PERMISSIVE_LID {
        return NextHop::Address;
    }
    hops.pointer = 1;
    match hops.count {
        0 => NextHop::Here,
        _ if smp.initial_path.0[1] == port => NextHop::Port(port),
        _ => NextHop::Dropped,
    }
}
