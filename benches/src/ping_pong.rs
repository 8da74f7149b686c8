//! Two ends that send a message to and fro: two threads of this process, or two processes.

use std::sync::Arc;

use anyhow::Result;
use polyverbs::provider::Mutex;
use polyverbs::{
    Completion, Sge,
    wr::{self, Data, ReceiveRequest},
};

use crate::partner::Partner;
use crate::rig::{LOCAL, Rig};
use crate::sample::timed;
use crate::side::{Side, check};

/// Receives that are posted ahead: a message waits neither for a receive nor for the cache line that holds it.
const AHEAD: u32 = 512;
/// Receives posted together.
const AT_ONCE: usize = 8;
/// Room for sends.
const SENDS: u32 = 64;

/// How the two ends send.
#[derive(Clone, Copy, Debug)]
pub struct SendPattern {
    /// Bytes of a message.
    pub size: u32,
    /// One of so many sends is signaled: its completion covers the sends before it.
    pub signaled_every: u64,
    /// Whether the receiver reads the message, and sends its content back.
    pub read: bool,
    /// Whether a message that is short enough is passed with its request.
    pub inline: bool,
}

impl Default for SendPattern {
    /// 64 bytes from registered memory; one of 32 sends is signaled, and the receiver does not read the message: the programs
    /// of rdma-core measure in this way.
    fn default() -> Self {
        Self {
            size: 64,
            signaled_every: 32,
            read: false,
            inline: false,
        }
    }
}

/// One of two that send to each other.
pub struct Player {
    side: Arc<Side>,
    pattern: SendPattern,
    source: Sge,
    room: Sge,
    room_at: usize,
    inline: Option<Vec<u8>>,
    slot: [Completion; 1],
    sent: u64,
    // Receives to be posted again.
    refill: Vec<ReceiveRequest<'static>>,
}

impl Player {
    /// A player who sends from the start of the memory of its side, and receives at this place in it. Its caller posts the first
    /// receives.
    ///
    /// # Errors
    /// The memory is too small.
    pub fn new(side: Arc<Side>, room_at: usize, pattern: SendPattern) -> Result<Self> {
        let size = pattern.size;
        let is_inline = pattern.inline && size <= side.qp.cap().max_inline_data;
        Ok(Self {
            source: side.region.sge(0, size)?,
            room: side.region.sge(room_at, size)?,
            room_at,
            inline: is_inline.then(|| vec![0; size as usize]),
            slot: Default::default(),
            sent: 0,
            refill: Vec::with_capacity(AT_ONCE),
            side,
            pattern,
        })
    }

    /// Sends a message and waits for its answer; `next` waits for completions.
    ///
    /// # Errors
    /// A request failed or was refused, or `next` fails.
    #[inline]
    pub fn ask(
        &mut self,
        next: impl FnMut(&Side, &mut [Completion]) -> Result<usize>,
    ) -> Result<()> {
        self.send()?;
        self.receive(next)
    }

    /// Waits for a message and answers it.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    #[inline]
    pub fn answer(
        &mut self,
        next: impl FnMut(&Side, &mut [Completion]) -> Result<usize>,
    ) -> Result<()> {
        self.receive(next)?;
        self.send()
    }

    /// Sends a message. Every few messages it posts receives in the place of those that were used: after the message, where they
    /// do not delay it.
    ///
    /// # Errors
    /// A request was refused.
    #[inline]
    pub fn send(&mut self) -> Result<()> {
        let data = match &self.inline {
            Some(bytes) => Data::from(bytes.as_slice()),
            None => Data::from(self.source),
        };
        let mut send = wr::Send::new(data);
        self.sent += 1;
        if self.sent.is_multiple_of(self.pattern.signaled_every) {
            send = send.signaled(self.sent);
        }
        self.side.post(send)?;
        self.refill.push(ReceiveRequest::new(0, self.room));
        if self.refill.len() == AT_ONCE {
            self.side.qp.post_receives(&mut self.refill)?;
        }
        Ok(())
    }

    #[inline]
    fn receive(
        &mut self,
        mut next: impl FnMut(&Side, &mut [Completion]) -> Result<usize>,
    ) -> Result<()> {
        loop {
            next(&self.side, &mut self.slot)?;
            check(&self.slot[0])?;
            if self.slot[0].opcode.is_receive() {
                break;
            }
        }
        if self.pattern.read {
            let found = self.side.memory.load_u64(self.room_at)?;
            self.side.memory.store_u64(0, found + 1)?;
        }
        Ok(())
    }
}

/// Two connected players, one for each thread.
pub struct PingPong {
    near: Player,
    far: Arc<Mutex<Player>>,
    sides: [Arc<Side>; 2],
}

impl PingPong {
    /// Connects queue pairs of two devices, or of one that is named twice, each with a completion queue of its own.
    ///
    /// # Errors
    /// One of the devices refused.
    pub fn new(rigs: [&Rig; 2], pattern: SendPattern) -> Result<Self> {
        // The message that arrives has a cache line of its own, apart from the message that is sent.
        let room_at = (pattern.size as usize).next_multiple_of(128);
        let side = |rig| Side::new(rig, 2 * room_at, LOCAL, [SENDS, AHEAD]);
        let [near, far] = rigs.map(side);
        let sides = [Arc::new(near?), Arc::new(far?)];
        sides[0].connect(&sides[1])?;
        let player = |side: &Arc<Side>| Player::new(Arc::clone(side), room_at, pattern);
        let [near, far] = sides.each_ref().map(player);
        let (near, far) = (near?, far?);
        for player in [&near, &far] {
            // One more fits: the player who begins posts it before any message has arrived.
            for _ in 1..AHEAD {
                let receive = ReceiveRequest::new(0, player.room);
                player.side.qp.post_receive(receive)?;
            }
        }
        Ok(Self {
            near,
            far: Arc::new(Mutex::new(far)),
            sides,
        })
    }

    /// Has `ours` play with the partner, who answers so many messages.
    ///
    /// # Errors
    /// `ours` or the partner failed. Both queue pairs are flushed then, so that neither waits for the other any longer.
    pub fn play<T>(
        &mut self,
        partner: &Partner,
        round_trips: u64,
        ours: impl FnOnce(&mut Player) -> Result<T>,
    ) -> Result<T> {
        let (far, sides) = (Arc::clone(&self.far), self.sides.clone());
        let echo = move || {
            let mut far = far.lock();
            let answered = (0..round_trips).try_for_each(|_| far.answer(Side::next));
            or_hang_up(&sides, answered)
        };
        let (answered, played) =
            partner.with(echo, || or_hang_up(&self.sides, ours(&mut self.near)));
        let played = played?;
        answered?;
        Ok(played)
    }

    /// Half of a round trip in nanoseconds, over `round_trips` of them.
    ///
    /// # Errors
    /// A request failed.
    pub fn half_round_trip(&mut self, partner: &Partner, round_trips: u64) -> Result<f64> {
        let ask = |near: &mut Player| timed(round_trips, || near.ask(Side::next));
        Ok(self.play(partner, round_trips, ask)? / 2.0)
    }
}

fn or_hang_up<T>(sides: &[Arc<Side>; 2], result: Result<T>) -> Result<T> {
    result.inspect_err(|_| sides.iter().for_each(|side| side.hang_up()))
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_player_who_gives_up_ends_the_wait_of_the_other() {
        let rig = Rig::new("ib0").unwrap();
        let mut pair = PingPong::new([&rig, &rig], SendPattern::default()).unwrap();
        let partner = Partner::start();
        let gives_up = |near: &mut Player| -> Result<()> {
            near.ask(Side::next)?;
            bail!("enough")
        };
        let ended = pair.play(&partner, 1000, gives_up);
        assert_eq!(ended.unwrap_err().to_string(), "enough");
    }

    #[test]
    fn messages_that_are_read_come_back_counted() {
        let rig = Rig::new("ib0").unwrap();
        let pattern = SendPattern {
            read: true,
            ..SendPattern::default()
        };
        let mut pair = PingPong::new([&rig, &rig], pattern).unwrap();
        pair.half_round_trip(&Partner::start(), 20).unwrap();
        assert_eq!(pair.sides[0].memory.load_u64(0).unwrap(), 40);
    }
}
