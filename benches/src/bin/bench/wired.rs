//! Two devices that speak RoCEv2 over UDP or iWARP over TCP, on loopback, to be compared with [bare sockets](crate::sockets).

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use emulated_ib::InfiniBand;
use emulated_iwarp::Iwarp;
use polyverbs::provider::DeviceOps;
use polyverbs::{Completion, Device, wr};
use polyverbs_benches::partner::Partner;
use polyverbs_benches::ping_pong::{PingPong, SendPattern};
use polyverbs_benches::rig::Rig;
use polyverbs_benches::side::{Side, check};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_io::Offload;

/// Bytes of a write.
pub(crate) const WRITE: u32 = 64 << 10;
/// Writes that are outstanding at a time.
const DEPTH: u64 = 16;
/// Bytes of each side's memory.
const MEMORY: usize = 2 << 20;
const TOO_LONG: Duration = Duration::from_secs(10);
/// Differs from the port of RoCEv2, which a kernel driver may hold.
const PORT: u16 = 14_791;

/// A device on a wire, and the value that keeps its link open.
type OnWire = (Arc<dyn DeviceOps>, Box<dyn Any + Sync + Send>);

/// One end for writes, and its device.
struct End {
    side: Side,
    rig: Rig,
    _wire: Box<dyn Any + Sync + Send>,
}

/// Two devices, with connected queue pairs for writes and others for messages.
pub(crate) struct WiredPair {
    messages: PingPong,
    near: End,
    far: Arc<End>,
}

impl WiredPair {
    /// Connects two devices over UDP, at two addresses of loopback.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn roce(offload: Offload) -> Result<Self> {
        Self::roce_at([1, 2], offload)
    }

    /// Connects two devices at one address through shared memory, as two processes of one machine usually are.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn roce_by_memory() -> Result<Self> {
        Self::roce_at([3, 3], Offload::default())
    }

    fn roce_at(hosts: [u8; 2], offload: Offload) -> Result<Self> {
        Self::of(hosts, |host| {
            let address = SocketAddr::from(([127, 0, 91, host], PORT));
            let mut options = emulated_ib::WireOptions::new(address);
            options.link.udp.offload = offload;
            options.group.udp.offload = offload;
            let driver = |at| InfiniBand {
                name: format!("ib at {address}"),
                address: at,
                windows_2a: false,
                management: None,
            };
            let wire = emulated_ib::OnWire::new(driver, options, DeviceOptions::default())?;
            let device = Arc::clone(&wire.device) as Arc<dyn DeviceOps>;
            Ok((device, Box::new(wire) as Box<_>))
        })
    }

    /// Connects two devices over TCP, with or without checksums in the frames.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn iwarp(crc: bool) -> Result<Self> {
        let net = if crc { 93 } else { 92 };
        Self::of([1, 2], |host| {
            let address = SocketAddr::from(([127, 0, net, host], PORT));
            let mut options = emulated_iwarp::WireOptions::new(address);
            options.crc = crc;
            let driver = |at| Iwarp::new(format!("iw at {address}"), at);
            let wire = emulated_iwarp::OnWire::new(driver, options, DeviceOptions::default())?;
            let device = Arc::clone(&wire.device) as Arc<dyn DeviceOps>;
            Ok((device, Box::new(wire) as Box<_>))
        })
    }

    fn of(hosts: [u8; 2], device: impl Fn(u8) -> Result<OnWire>) -> Result<Self> {
        let [near, far] = hosts;
        let (near, far) = (End::new(device(near)?)?, End::new(device(far)?)?);
        near.side.connect(&far.side)?;
        let messages = PingPong::new([&near.rig, &far.rig], SendPattern::default())?;
        let far = Arc::new(far);
        Ok(Self {
            messages,
            near,
            far,
        })
    }

    /// Half of a round trip of a send, in nanoseconds: both threads poll.
    ///
    /// # Errors
    /// A send failed.
    pub(crate) fn half_round_trip(&mut self, partner: &Partner, turns: u64) -> Result<f64> {
        self.messages.half_round_trip(partner, turns)
    }

    /// Bytes per nanosecond that were written, and placed by the other side, which polls.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) fn write_stream(&self, partner: &Partner, octets: u64) -> Result<f64> {
        let (far, over) = (Arc::clone(&self.far), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&over);
        let poll = move || {
            let mut slot = [Completion::default()];
            while !is_over.load(Ordering::Relaxed) {
                let _ = far.side.cq.poll(&mut slot);
            }
        };
        let ((), written) = partner.with(poll, || {
            let result = self.write(octets / u64::from(WRITE));
            over.store(true, Ordering::Relaxed);
            result
        });
        written
    }

    // A read after the writes completes when they have been placed: on iWARP the completions of the writes do not show
    // that.
    fn write(&self, count: u64) -> Result<f64> {
        let (near, far) = (&self.near.side, &self.far.side);
        let source = near.region.sge(0, WRITE)?;
        let target = far.region.remote(1 << 20);
        let sink = near.region.sge(128 << 10, 8)?;
        let (mut posted, mut done) = (0, 0);
        let mut slots: [Completion; DEPTH as usize] = Default::default();
        let began = Instant::now();
        while done <= count {
            while posted <= count && posted - done < DEPTH {
                if posted < count {
                    near.post(wr::Write::new(source, target).signaled(posted))?;
                } else {
                    near.post(wr::Read::new(sink, far.region.remote(0)).signaled(posted))?;
                }
                posted += 1;
            }
            for completion in near.cq.poll(&mut slots)? {
                check(completion)?;
                done += 1;
            }
            if began.elapsed() > TOO_LONG {
                bail!("writes take too long");
            }
        }
        Ok((count * u64::from(WRITE)) as f64 / began.elapsed().as_nanos() as f64)
    }
}

impl End {
    fn new((device, wire): OnWire) -> Result<Self> {
        let rig = Rig::open(&Device::of(device))?;
        let side = Side::new(&rig, MEMORY, rig.remote(), [128, 64])?;
        side.touch();
        Ok(Self {
            side,
            rig,
            _wire: wire,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_writes_arrive() {
        let partner = Partner::start();
        let pairs = [
            WiredPair::roce(Offload::default()),
            WiredPair::iwarp(false),
            WiredPair::iwarp(true),
        ];
        for pair in pairs {
            let mut pair = pair.unwrap();
            assert!(pair.half_round_trip(&partner, 20).unwrap() > 0.0);
            assert!(pair.write_stream(&partner, 4 << 20).unwrap() > 0.0);
        }
    }
}
