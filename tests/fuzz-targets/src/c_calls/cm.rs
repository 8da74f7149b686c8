//! Calls of the connection manager.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::{mem, ptr};

use polyverbs_libibverbs::abi::{IbvQp, IbvQpInitAttr};
use polyverbs_librdmacm::abi::{
    RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, event, port_space,
};
use polyverbs_librdmacm::{address, bind, channel, connect, events, id, options, qp, resolve};

use super::{Arguments, memory, unblock, zeroed};
use crate::c_library::{IWARP, ROCE, call};
use crate::intruder::own_address;

/// The objects that a program has made and not destroyed yet.
#[derive(Default)]
pub(super) struct Program {
    channels: Vec<*mut RdmaEventChannel>,
    ids: Vec<*mut RdmaCmId>,
}

/// Makes a call that returns 0 or -1.
fn outcome(of: impl FnOnce() -> c_int) -> bool {
    let answer = call(|answer| answer != 0, of);
    assert!([0, -1].contains(&answer), "{answer}");
    answer == 0
}

impl Program {
    pub(super) fn qps(&self) -> impl Iterator<Item = *mut IbvQp> {
        let qps = self.ids.iter().map(|id| c!((**id).qp));
        qps.filter(|qp| !qp.is_null())
    }

    pub(super) fn step(&mut self, arguments: &mut Arguments<'_>) {
        let one = arguments.one_or_null(&self.ids);
        match arguments.octet() % 16 {
            0 | 1 => self.create(arguments),
            2 => {
                let mut at = some_address(arguments);
                outcome(|| c!(bind::bind_addr(one, (&raw mut at).cast())));
            }
            3 => {
                let (mut from, mut to) = (some_address(arguments), some_address(arguments));
                let from = match arguments.octet() & 1 {
                    0 => ptr::null_mut(),
                    _ => (&raw mut from).cast(),
                };
                let (to, time) = ((&raw mut to).cast(), arguments.signed());
                outcome(|| c!(resolve::resolve_addr(one, from, to, time)));
            }
            4 => {
                outcome(|| c!(resolve::resolve_route(one, 1000)));
            }
            5 => {
                let backlog = arguments.signed();
                outcome(|| c!(bind::listen(one, backlog)));
            }
            6 => {
                let mut init: IbvQpInitAttr = zeroed();
                (init.cap.max_send_wr, init.cap.max_recv_wr) =
                    (arguments.number(), arguments.number());
                (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
                init.qp_type = 2 + c_int::from(arguments.octet() / 64);
                outcome(|| c!(qp::create(one, ptr::null_mut(), &raw mut init)));
            }
            7..=10 => connect_or_so(one, arguments),
            11 | 12 => self.next_event(arguments),
            13 => {
                if !one.is_null() && c!(!(*one).qp.is_null()) {
                    c!(qp::destroy(one));
                }
            }
            14 => self.destroy(one),
            _ => {
                let channel = arguments.one_of(&self.channels);
                if !channel.is_null() {
                    outcome(|| c!(id::migrate(one, channel)));
                }
            }
        }
    }

    fn create(&mut self, arguments: &mut Arguments<'_>) {
        if self.channels.len() < 2 {
            let made = call(
                |made: *mut RdmaEventChannel| made.is_null(),
                || channel::create(),
            );
            if !made.is_null() {
                unblock(c!((*made).fd));
                self.channels.push(made);
            }
        }
        // The calls of an identifier without a channel would block.
        let channel = arguments.one_of(&self.channels);
        let space = match arguments.octet() {
            0..160 => port_space::TCP,
            160..240 => port_space::UDP,
            _ => arguments.signed(),
        };
        let mut made = ptr::null_mut();
        if outcome(|| c!(id::create(channel, &raw mut made, ptr::null_mut(), space))) {
            self.ids.push(made);
        }
    }

    fn next_event(&mut self, arguments: &mut Arguments<'_>) {
        let channel = arguments.one_or_null(&self.channels);
        let mut fetched: *mut RdmaCmEvent = ptr::null_mut();
        if !outcome(|| c!(events::get_event(channel, &raw mut fetched))) {
            return;
        }
        let (of, what) = c!(((*fetched).id, (*fetched).event));
        if what == event::CONNECT_REQUEST {
            self.ids.push(of);
        }
        assert!(
            self.ids.contains(&of),
            "an event of an identifier that there is not"
        );
        assert!(outcome(|| c!(channel::ack_event(fetched))));
    }

    fn destroy(&mut self, one: *mut RdmaCmId) {
        if !one.is_null() && c!(!(*one).qp.is_null()) {
            c!(qp::destroy(one));
        }
        if outcome(|| c!(id::destroy(one))) {
            self.ids.retain(|other| *other != one);
        }
    }

    pub(super) fn end(&mut self) {
        while let Some(one) = self.ids.pop() {
            self.ids.push(one);
            self.destroy(one);
            assert!(!self.ids.contains(&one), "an identifier that stays");
        }
        for channel in mem::take(&mut self.channels) {
            c!(channel::destroy(channel));
        }
    }
}

fn connect_or_so(one: *mut RdmaCmId, arguments: &mut Arguments<'_>) {
    let [what, length, inbound, outbound, retries] = arguments.octets();
    let mut param: RdmaConnParam = zeroed();
    (param.private_data, param.private_data_len) = (memory().cast_const().cast(), length);
    (param.responder_resources, param.initiator_depth) = (inbound / 8, outbound / 8);
    (param.retry_count, param.rnr_retry_count) = (retries, retries);
    param.qp_num = arguments.number();
    let param = match what & 64 {
        0 => &raw mut param,
        _ => ptr::null_mut(),
    };
    let mut value = arguments.number();
    let value = (&raw mut value).cast();
    outcome(|| {
        c!(match what % 8 {
            0..=2 => connect::connect(one, param),
            3 | 4 => connect::accept(one, param),
            5 => connect::reject(one, memory().cast_const().cast(), length),
            6 => connect::disconnect(one),
            _ => options::set(
                one,
                c_int::from(what >> 7),
                c_int::from(length & 7),
                value,
                4,
            ),
        })
    });
}

fn some_address(arguments: &mut Arguments<'_>) -> polyverbs_librdmacm::abi::Address {
    let [which, port] = arguments.octets();
    let ip = match which {
        0..128 => own_address(ROCE),
        128..192 => own_address(IWARP),
        192..224 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        224..240 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    let port = if port < 64 {
        0
    } else {
        27_000 + u16::from(port % 4)
    };
    address::write(SocketAddr::new(ip, port))
}
