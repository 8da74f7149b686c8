//! Requests with forged addresses, over UDP, while a client connects.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use polyverbs::{Qp, QpOptions, ids::Gid};
use polyverbs_connection::ConnectionOptions;
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad;
use polyverbs_wire::mad::cm::{Message, Req, header_of};
use polyverbs_wire::mad::rdma_cm::{RdmaCm, port_space, service_id};

use crate::hostile::amplification::{open, silent};
use crate::rig::End;

const FORGERS: u8 = 48;
/// Forged requests that are unread at the server at one time: so few that all fit into its socket
/// buffer.
const WAITING: u32 = 100;
/// Forged requests that have arrived before the first client connects.
const BEFORE: u32 = 1000;
const CLIENTS: u32 = 10;

fn request(from: IpAddr, to: IpAddr, port: u16, number: u32) -> [u8; mad::MAD_LEN] {
    let named = RdmaCm::new(from, 9, to).unwrap().to_view().0;
    let request = Message::from(Req {
        local_comm_id: number,
        service_id: service_id(port_space::TCP, port),
        ca_guid: number.into(),
        qpn: 2 + number,
        path_mtu: 3,
        max_cm_retries: 15,
        primary_local_gid: Octets(Gid::from(from).0),
        private_data: Octets::padded(&named).unwrap(),
        ..Req::default()
    });
    mad::encode(&header_of(&request, number.into()), &request.to_data())
}

/// Ends the other threads when it is dropped, also after a failure.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A queue pair of which thousands fit.
fn small_qp(of: &End) -> Qp {
    let options = QpOptions::rc(&of.cq).max_send_wr(1).max_recv_wr(1);
    of.pd.create_qp(options).wait().unwrap()
}

// covers 7.47
#[test]
fn a_client_connects_while_forged_requests_arrive_all_the_time() {
    let at = |last: u8| IpAddr::from(Ipv4Addr::new(127, 0, 33, last));
    let (server, client) = (open(at(1), None), open(at(2), None));
    let victims: Vec<_> = (0..FORGERS).map(|n| open(at(100 + n), None)).collect();
    let ports: Vec<_> = victims.iter().map(silent).collect();
    let (server, client) = (End::of(&server), End::of(&client));
    let listener = server.listen();
    let (is_over, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            // The server cannot distinguish forged requests from those of the client.
            let mut kept = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let incoming = listener.next().wait().unwrap();
                let qp = small_qp(&server);
                let accepted = incoming.accept(&qp, ConnectionOptions::new());
                kept.push((qp, accepted));
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (ports, listener) = (&ports, &listener);
        let has_answered = |count| answered.load(Ordering::Relaxed) >= count;
        scope.spawn(move || {
            for number in 0_u32.. {
                test_kit::waiting::until(|| {
                    has_answered(number.saturating_sub(WAITING)) || serving.is_finished()
                });
                // The server ends when it receives a request.
                if serving.is_finished() {
                    return;
                }
                let forger = number as usize % ports.len();
                let from = at(100 + forger as u8);
                let port = listener.address().port();
                ports[forger].send(at(1), &request(from, at(1), port, number));
            }
        });
        let _over = Over(&is_over);
        test_kit::waiting::until(|| has_answered(BEFORE));
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            let qp = small_qp(&client);
            let (to, options) = (listener.address(), ConnectionOptions::new());
            let connection = client.connector.connect(&qp, to, options).wait();
            connections.push((qp, connection.unwrap()));
        }
    });
}
