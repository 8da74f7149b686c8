//! The way of a MAD through a node: along its route, and to the agent of its class.

use std::time::Duration;

use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::perf::{PERF_CLASS, Perf};
use polyverbs_wire::mad::smp::{DIRECTED_CLASS, Hops, LID_CLASS, Smp};
use polyverbs_wire::mad::{self, MAD_LEN, MadHeader, method, status};

use crate::node::{Node, Processed};
use crate::route::{self, NextHop, Place};
use crate::{pma, sma};

impl Node {
    /// Handles a MAD that has arrived at this port, and returns where the MAD, or the answer that has replaced it, goes next.
    pub fn receive(&mut self, port: u8, mad: &mut [u8; MAD_LEN], now: Duration) -> NextHop {
        let next = route::arrive(mad, self.place(), port);
        self.deliver(next, port, mad, now)
    }

    /// Handles a MAD that a program sends by this port, and returns where the MAD, or the answer that has replaced it, goes next.
    pub fn send(&mut self, port: u8, mad: &mut [u8; MAD_LEN], now: Duration) -> NextHop {
        let next = route::depart(mad, self.place(), port);
        self.deliver(next, port, mad, now)
    }

    fn deliver(
        &mut self,
        next: NextHop,
        port: u8,
        mad: &mut [u8; MAD_LEN],
        now: Duration,
    ) -> NextHop {
        if next != NextHop::Here {
            return next;
        }
        match self.process(port, mad, now) {
            Processed::Reply => route::depart(mad, self.place(), port),
            Processed::Consumed => NextHop::Dropped,
            Processed::Pass => NextHop::Here,
        }
    }

    fn place(&self) -> Place {
        Place {
            is_switch: self.switch.is_some(),
            ports: self.identity.num_ports,
        }
    }

    /// Answers a request that has arrived at this port and that no agent takes, in place, and returns where the answer goes. A MAD other than a Get or a Set has no
    /// answer (IBTA 13.4.5).
    pub fn refuse(&self, port: u8, mad: &mut [u8; MAD_LEN]) -> NextHop {
        let Ok(request) = mad::decode(mad) else {
            return NextHop::Dropped;
        };
        let mut header = MadHeader::of(request.header);
        if !matches!(header.method, method::GET | method::SET) {
            return NextHop::Dropped;
        }
        answer(&mut header, status::METHOD_AND_ATTRIBUTE);
        *mad = mad::encode(&header, request.data);
        route::depart(mad, self.place(), port)
    }

    /// Gives a MAD that has come to its destination to the agent of its class.
    pub fn process(&mut self, port: u8, mad: &mut [u8; MAD_LEN], now: Duration) -> Processed {
        let Ok(request) = mad::decode(mad) else {
            return Processed::Consumed;
        };
        let (mut header, data) = (MadHeader::of(request.header), Octets(*request.data));
        if is_for_programs(header.method) {
            return Processed::Pass;
        }
        let (result, data) = match header.management_class {
            LID_CLASS | DIRECTED_CLASS => {
                let mut smp: Smp = data.header();
                let result = sma::process(self, port, &header, &mut smp, now);
                (result, smp.to_view().0)
            }
            PERF_CLASS => {
                let mut perf: Perf = data.header();
                let result = pma::process(self, &header, &mut perf).map(|()| Processed::Reply);
                (result, perf.to_view().0)
            }
            _ => return Processed::Pass,
        };
        let status = match result {
            Ok(Processed::Reply) => status::OK,
            Ok(other) => return other,
            Err(status) => status,
        };
        answer(&mut header, status);
        *mad = mad::encode(&header, &data);
        Processed::Reply
    }
}

/// Whether a method is that of an answer, or of a MAD to a subnet manager, and not of a request to an agent.
fn is_for_programs(method: u8) -> bool {
    method & method::RESPONSE != 0 || matches!(method, method::SEND | method::TRAP | method::REPORT)
}

/// Makes the header of a request that of the answer.
fn answer(header: &mut MadHeader, status: u16) {
    let method = match header.method {
        method::SET => method::GET,
        other => other,
    };
    header.method = method | method::RESPONSE;
    header.status = status;
    if header.management_class == DIRECTED_CLASS {
        header.status |= Hops::RETURNING;
    }
}
