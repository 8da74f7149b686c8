//! Two threads on two processors that send to each other.

use std::sync::Arc;

use polyverbs::provider::Mutex;
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Qp, QpOptions, Sge, connect_pair,
    wr::{self, ReceiveRequest},
};

use crate::Outcome;
use crate::partner::Partner;
use crate::rig::{LOCAL, Rig};
use crate::sample::nanoseconds;

/// The least number of posted receives: a message waits neither for a receive nor for the cache line that holds it.
const AHEAD: usize = 512;
/// Receives posted together.
const AT_ONCE: usize = 8;
/// Bytes of a message.
pub const MESSAGE: u32 = 64;
/// Polls before a message counts as lost: these take seconds, and half a minute over sockets.
const PATIENCE: u32 = 1 << 27;

/// How the two sides send.
#[derive(Clone, Copy, Debug)]
pub struct SendPattern {
    /// One of so many sends is signaled.
    pub signaled_every: u64,
    /// Whether the receiver reads the message, and sends its content back.
    pub read: bool,
}

impl Default for SendPattern {
    /// One of 32 sends is signaled, and the receiver does not read the message: the programs of rdma-core measure in this way.
    fn default() -> Self {
        Self {
            signaled_every: 32,
            read: false,
        }
    }
}

/// One side: a queue pair, its completion queue, its receives.
struct Side {
    qp: Qp,
    cq: Cq,
    memory: Memory,
    source: Sge,
    slots: Vec<Sge>,
    refill: Vec<ReceiveRequest<'static>>,
    completions: [Completion; 1],
    sent: u64,
    received: u64,
    pattern: SendPattern,
    _region: Mr,
}

/// Two connected queue pairs, one for each thread, that send 64 bytes to and fro.
pub struct PingPong {
    near: Side,
    far: Arc<Mutex<Side>>,
}

impl PingPong {
    /// Connects two queue pairs of a device, each with a completion queue of its own.
    ///
    /// # Errors
    /// The device refused.
    pub fn new(rig: &Rig, pattern: SendPattern) -> Outcome<Self> {
        Self::between([rig, rig], pattern)
    }

    /// Connects queue pairs of two devices.
    ///
    /// # Errors
    /// One of the devices refused.
    pub fn between([near, far]: [&Rig; 2], pattern: SendPattern) -> Outcome<Self> {
        let (near, far) = (Side::new(near, pattern)?, Side::new(far, pattern)?);
        connect_pair(&near.qp, &far.qp, Access::empty()).wait()?;
        let mut sides = [near, far];
        for side in &mut sides {
            while side.refill.len() >= AT_ONCE {
                let mut now: Vec<_> = side.refill.drain(..AT_ONCE).collect();
                side.qp.post_receives(&mut now)?;
            }
        }
        let [near, far] = sides;
        Ok(Self {
            near,
            far: Arc::new(Mutex::new(far)),
        })
    }

    /// Half a round trip in nanoseconds, over `round_trips` of them.
    pub fn half_round_trip(&mut self, partner: &Partner, round_trips: u64) -> f64 {
        let far = Arc::clone(&self.far);
        let echo = move || {
            let mut far = far.lock();
            (0..round_trips).for_each(|_| far.answer());
        };
        let near = &mut self.near;
        partner.with(echo, || nanoseconds(round_trips, || near.ask())) / 2.0
    }
}

impl Side {
    fn new(rig: &Rig, pattern: SendPattern) -> Outcome<Self> {
        let cq = rig.context.create_cq(2 * AHEAD as u32).wait()?;
        let options = QpOptions::rc(&cq).max_recv_wr(AHEAD as u32).max_send_wr(64);
        let qp = rig.pd.create_qp(options).wait()?;
        let (memory, region) = rig.memory(MESSAGE as usize * (AHEAD + 1), LOCAL)?;
        let source = region.sge(0, MESSAGE)?;
        let slot = |slot| region.sge(MESSAGE as usize * (slot + 1), MESSAGE);
        let slots: Vec<_> = (0..AHEAD).map(slot).collect::<Result<_, _>>()?;
        let receive = |(slot, sge): (usize, &Sge)| ReceiveRequest::new(slot as u64, *sge);
        Ok(Self {
            qp,
            cq,
            memory,
            source,
            refill: slots.iter().enumerate().map(receive).collect(),
            slots,
            completions: Default::default(),
            sent: 0,
            received: 0,
            pattern,
            _region: region,
        })
    }

    fn ask(&mut self) {
        self.send();
        self.refill();
        self.receive();
    }

    fn answer(&mut self) {
        self.receive();
        self.send();
        self.refill();
    }

    #[inline]
    fn send(&mut self) {
        self.sent += 1;
        let mut send = wr::Send::new(self.source);
        if self.sent.is_multiple_of(self.pattern.signaled_every) {
            send = send.signaled(self.sent);
        }
        self.qp
            .post_one(send)
            .expect("a send to a peer that has receives");
    }

    // Spins until the next message has arrived.
    #[inline]
    fn receive(&mut self) {
        for _ in 0..PATIENCE {
            let done = self
                .cq
                .poll(&mut self.completions)
                .expect("a queue that does not overrun");
            let Some(done) = done.first() else {
                std::hint::spin_loop();
                continue;
            };
            assert!(done.status.is_success());
            if !done.opcode.is_receive() {
                continue;
            }
            let slot = done.wr_id as usize;
            if self.pattern.read {
                let offset = MESSAGE as usize * (slot + 1);
                let found = self
                    .memory
                    .load_u64(offset)
                    .expect("an aligned word of the slot");
                self.memory
                    .store_u64(0, found + 1)
                    .expect("an aligned word of the source");
            }
            self.received += 1;
            self.refill
                .push(ReceiveRequest::new(slot as u64, self.slots[slot]));
            return;
        }
        panic!("a message was lost");
    }

    #[inline]
    fn refill(&mut self) {
        if self.refill.len() >= AT_ONCE {
            self.qp
                .post_receives(&mut self.refill)
                .expect("receives that were taken before");
        }
    }
}
