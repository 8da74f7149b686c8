//! A forged request over UDP, and a capture of the answers that it draws.

use std::fs::File;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polyverbs::emulated::{EmulatedOptions, OctetCapture, Tap, device_at};
use polyverbs::{
    Context, Requirements,
    ids::{Gid, Qpn},
};
use polyverbs_connection::{ConnectError, ConnectionOptions};
use polyverbs_dissect::CaptureFile;
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad;
use polyverbs_wire::mad::cm::{Message, Req, header_of};
use polyverbs_wire::mad::rdma_cm::{RdmaCm, port_space, service_id};
use tempfile::NamedTempFile;
use verbs_api::provider::carrier::{Carrier, ManagementPort, ManagementSink};

use crate::managed::{Clock, Managed};
use crate::rig::End;

pub(crate) fn open(address: IpAddr, tap: Option<Tap>) -> Context {
    let options = EmulatedOptions {
        tap,
        ..EmulatedOptions::default()
    };
    let device = device_at("ib0", address, &options).unwrap();
    device.open(&Requirements::new()).unwrap()
}

/// A management agent that sends and answers no message.
struct Silent;

impl ManagementSink for Silent {
    fn datagram(&self, _: IpAddr, _: &[u8]) {}
    fn refused(&self, _: IpAddr, _: i32) {}
    fn traffic(&self, _: Qpn) {}
    fn due(&self) {}
}

pub(crate) fn silent(context: &Context) -> Arc<dyn ManagementPort> {
    let Some(Carrier::Datagrams(port)) = context.carrier() else {
        panic!("no queue pair 1");
    };
    port.attach(&mut || Arc::new(Silent));
    port
}

/// Bytes of IP packets from one address to another.
fn bytes_between(capture: &NamedTempFile, from: IpAddr, to: IpAddr) -> u64 {
    let mut file = CaptureFile::new(File::open(capture.path()).unwrap()).unwrap();
    let mut bytes = 0;
    while let Some(packet) = file.next_packet().unwrap() {
        let ip = &packet.octets;
        let address = |at: usize| IpAddr::from(*ip[at..].first_chunk::<4>().unwrap());
        if (address(12), address(16)) == (from, to) {
            bytes += u64::from(packet.original_len);
        }
    }
    bytes
}

// covers 7.13 7.47
#[test]
fn a_forged_request_draws_three_times_its_bytes_at_most() {
    let [own, forged]: [IpAddr; 2] = ["127.0.24.61", "127.0.24.62"].map(|ip| ip.parse().unwrap());
    let file = NamedTempFile::new().unwrap();
    let capture = Arc::new(OctetCapture::new(file.reopen().unwrap()).unwrap());
    let context = open(own, Some(Tap(Arc::clone(&capture) as _)));
    let victim = open(forged, None);
    let port = silent(&victim);
    let clock = Arc::new(Clock::default());
    let manager = Managed::new(&context, &clock);
    let listener = manager.connector.listen((own, 0).into(), 0).unwrap();
    let named = RdmaCm::new(forged, 9, own).unwrap().to_view().0;
    let request = Message::from(Req {
        local_comm_id: 5,
        service_id: service_id(port_space::TCP, listener.address().port()),
        ca_guid: 7,
        qpn: 0x99,
        path_mtu: 3,
        max_cm_retries: 15,
        primary_local_gid: Octets(Gid::from(forged).0),
        private_data: Octets::padded(&named).unwrap(),
        ..Req::default()
    });
    port.send(
        own,
        &mad::encode(&header_of(&request, 1), &request.to_data()),
    );

    let end = End::new(&context, manager.connector.clone());
    let incoming = listener.next().wait().unwrap();
    let accepted = incoming.accept(&end.qp, ConnectionOptions::new());
    clock.pass(Duration::from_secs(25));
    let ended = accepted.wait();
    assert!(matches!(ended, Err(ConnectError::TimedOut)), "{ended:?}");
    capture.flush().unwrap();
    let came = bytes_between(&file, forged, own);
    let sent = bytes_between(&file, own, forged);
    assert!(came > 0 && sent > 0);
    assert!(sent <= 3 * came, "{sent} bytes for {came}");
}
