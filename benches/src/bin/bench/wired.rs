//! Two devices that are connected by RoCEv2 over UDP or by iWARP over TCP, on loopback, and are compared with
//! [bare sockets](crate::sockets).

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

/// The number of bytes of each RDMA write of a stream.
pub(crate) const WRITE: u32 = 64 << 10;
/// The largest number of requests of a stream that are outstanding at a time.
const DEPTH: u64 = 16;
/// The number of bytes of memory that each of the two devices registers for a stream of writes.
const MEMORY: usize = 2 << 20;
/// The longest time that a stream of writes may take; a longer one fails.
const TOO_LONG: Duration = Duration::from_secs(10);
/// The UDP or TCP port of the devices, which differs from the port of RoCEv2, because a kernel driver may hold that
/// port.
const PORT: u16 = 14_791;

/// A device that sends its packets through sockets or shared memory, and the value that keeps these open until it is
/// dropped.
type OnWire = (Arc<dyn DeviceOps>, Box<dyn Any + Sync + Send>);

/// A device, and the queue pair, completion queue and memory that the device has for a stream of RDMA writes.
struct End {
    side: Side,
    rig: Rig,
    _wire: Box<dyn Any + Sync + Send>,
}

/// Two devices that are connected twice: a pair of QPs for a ping-pong of messages, and a pair for a stream of RDMA writes
/// from `near` to `far`.
pub(crate) struct WiredPair {
    messages: PingPong,
    near: End,
    far: Arc<End>,
}

impl WiredPair {
    /// Creates two RoCEv2 devices at two addresses of loopback and connects them over UDP, with these socket offloads.
    ///
    /// # Errors
    /// A socket cannot be opened, or a device refused to create or connect an object.
    pub(crate) fn roce(offload: Offload) -> Result<Self> {
        Self::roce_at([1, 2], offload)
    }

    /// Creates two RoCEv2 devices at one address of loopback, which connect through shared memory, as the devices of two
    /// processes of one machine usually do.
    ///
    /// # Errors
    /// Those of [`roce`](Self::roce).
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
                subnet: None,
            };
            let wire = emulated_ib::OnWire::new(driver, options, DeviceOptions::default())?;
            let device = Arc::clone(&wire.device) as Arc<dyn DeviceOps>;
            Ok((device, Box::new(wire) as Box<_>))
        })
    }

    /// Creates two iWARP devices and connects them over TCP. If `crc` is true, they ask for a CRC in each FPDU.
    ///
    /// # Errors
    /// Those of [`roce`](Self::roce).
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

    /// Returns half of the mean time of `turns` round trips of a send of 64 bytes, in nanoseconds. The calling thread and
    /// the partner's thread poll.
    ///
    /// # Errors
    /// A send or a receive was refused or failed.
    pub(crate) fn half_round_trip(&mut self, partner: &Partner, turns: u64) -> Result<f64> {
        self.messages.half_round_trip(partner, turns)
    }

    /// Posts RDMA writes of [`WRITE`] bytes each, the given number of bytes in total, from the near to the far device
    /// in the calling thread, while the partner's thread polls the completion queue of the far device. Returns the
    /// bytes per nanosecond, measured until all bytes have been placed in the memory of the far device.
    ///
    /// # Errors
    /// A request was refused or failed, or the writes took more than ten seconds.
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

    // A read is posted after the writes, because its completion shows that the peer has placed them. On iWARP the
    // completions of the writes do not show that.
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
