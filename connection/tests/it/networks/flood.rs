//! An endless flood of management datagrams, over a wire.

use std::net::IpAddr;

use conformance::Flavour;
use polyverbs_connection::ConnectionOptions;
use polyverbs_wire::mad;
use polyverbs_wire::mad::cm::{Message, header_of};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use verbs_api::provider::carrier::Carrier;

use crate::networks::ends::{Ends, on};

/// A random message of the connection manager with random content.
fn anything(random: &mut SmallRng) -> [u8; 256] {
    let data: [u8; 232] = std::array::from_fn(|_| random.random());
    let attribute = random.random_range(0x10..0x1b);
    let message = Message::of(attribute, &data).expect("every byte is allowed");
    mad::encode(&header_of(&message, random.random()), &data)
}

// covers 7.04 7.08 7.10
#[test]
fn a_flood_disturbs_neither_old_nor_new_connections() {
    on(&[Flavour::IbUdp], |ends: &Ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let both = ends.connected(&near, &far);
        let Some(Carrier::Datagrams(port)) = ends.near.context.carrier() else {
            panic!("no queue pair 1");
        };
        let to: IpAddr = ends.listener.address().ip();
        let mut random = SmallRng::seed_from_u64(3);
        // The datagrams are sent in batches that fit into the socket buffer.
        for _ in 0..200 {
            (0..100).for_each(|_| port.send(to, &anything(&mut random)));
            ends.settle();
        }
        ends.talk(&near, &far);
        let (second, other) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request_with(&second, ConnectionOptions::new().private_data(b"really"));
        let incoming = loop {
            let incoming = ends.end(ends.listener.next());
            if incoming.private_data().starts_with(b"really") {
                break incoming;
            }
        };
        let accepted = ends.accept(incoming, &other);
        let _near = ends.end(ends.end(asked).complete());
        let _far = ends.end(accepted);
        ends.talk(&second, &other);
        ends.talk(&near, &far);
        drop(both);
    });
}
