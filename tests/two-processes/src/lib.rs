//! Conformance probes whose two ends are two processes, over UDP or TCP.
//!
//! A probe does not know that: its far end is a device of its own process. Its near end, which posts the requests, is a
//! stand-in that forwards each call of the provider contract to a device of another process. `docs/two-processes.md`
//! explains how.
//!
//! The other process is the test binary itself, run again: [`other_process!`] makes the test that it runs.
#![deny(unsafe_code)]

mod memory;
mod peer;
mod protocol;
mod stand_in;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use emulated_ib::InfiniBand;
use emulated_iwarp::Iwarp;
use polyverbs_engine::device::DeviceOptions;
use stand_in::StandIn;
use verbs_api::probe::{Clock, Evidence, Probe, Rig, Verified, verify};
use verbs_api::provider::DeviceOps;
use verbs_api::{
    Device, Requirements, Transport,
    extension::{FeatureInfo, QpVariant},
};

/// Environment variable of the other process: the kind of its device, and the address.
const OTHER: &str = "POLYVERBS_OTHER_PROCESS";
/// Differs from the port of RoCEv2, which a kernel driver may hold.
const PORT: u16 = 14795;

/// Makes the test that the other process runs; in any other process it does nothing. Its arguments are the variants of
/// queue pairs that the probes make.
#[macro_export]
macro_rules! other_process {
    ($($variant:expr),* $(,)?) => {
        #[test]
        fn as_the_other_process() {
            static VARIANTS: &[&::verbs_api::extension::QpVariant] = &[$(&$variant),*];
            $crate::serve(VARIANTS);
        }
    };
}

/// Serves as the other process if the environment variable says so.
pub fn serve(variants: &'static [&'static QpVariant]) {
    let Ok(asked) = std::env::var(OTHER) else {
        return;
    };
    let (transport, at) = asked.split_once(' ').expect("a transport and an address");
    let transport = match transport {
        "Iwarp" => Transport::Iwarp,
        _ => Transport::InfiniBand,
    };
    let device = device(transport, at.parse().expect("an address"));
    let stdin = std::io::stdin();
    let stream = stdin.as_fd().try_clone_to_owned().expect("a descriptor");
    peer::serve(UnixStream::from(stream), &device, variants);
}

/// The verdict of the probes about a feature of devices of this transport, in two processes.
pub fn examined(transport: Transport, feature: &FeatureInfo, probes: &[Probe]) -> Verified {
    let attributes = device(transport, address(0)).attributes();
    verify(
        &attributes,
        feature,
        probes,
        &|_| rig(transport),
        &mut |_| (),
    )
}

fn rig(transport: Transport) -> Result<Rig, Evidence> {
    static RIGS: AtomicU16 = AtomicU16::new(1);
    let rig = RIGS.fetch_add(2, Ordering::Relaxed);
    let far = Device::of(device(transport, address(rig)));
    let wanted = Requirements::everything_of(&far.attributes());
    let not_here = |error: verbs_api::OpenError| Evidence::not_here(error.to_string());
    let far_context = far.open(&wanted).map_err(not_here)?;
    let port = far_context.query_port(1)?;
    let (stream, other_end) = UnixStream::pair().expect("two descriptors");
    let test = std::env::current_exe().expect("the test that runs");
    let process = Command::new(test)
        .args(["--exact", "as_the_other_process", "--nocapture"])
        .env(OTHER, format!("{transport:?} {}", address(rig + 1)))
        .stdin(OwnedFd::from(other_end))
        .stdout(Stdio::null())
        .spawn()
        .expect("a second process of the test");
    let near = StandIn::new(process, stream, far.attributes(), port);
    let near = Device::of(Arc::new(near));
    let near_context = near.open(&wanted).map_err(not_here)?;
    let clock = Clock {
        patience: Duration::from_secs(30),
        moment: Duration::from_millis(20),
    };
    Rig::new(near_context, far_context, clock)
}

// Each rig takes addresses of its own, and so does each process as far as there are enough addresses.
fn address(number: u16) -> SocketAddr {
    let network = 160 + (std::process::id() % 90) as u8;
    let [c, d] = number.to_be_bytes();
    SocketAddr::from(([127, network, c, d], PORT))
}

fn device(transport: Transport, at: SocketAddr) -> Arc<dyn DeviceOps> {
    let options = DeviceOptions::default();
    match transport {
        Transport::InfiniBand => {
            let driver = |address| InfiniBand {
                name: format!("ib at {at}"),
                address,
                windows_2a: false,
                management: None,
            };
            let wire = emulated_ib::WireOptions::new(at);
            let made = emulated_ib::OnWire::new(driver, wire, options);
            made.expect("an address of this machine").device
        }
        Transport::Iwarp => {
            let driver = |address| Iwarp::new(format!("iw at {at}"), address);
            let wire = emulated_iwarp::WireOptions::new(at);
            let made = emulated_iwarp::OnWire::new(driver, wire, options);
            made.expect("an address of this machine").device
        }
    }
}
