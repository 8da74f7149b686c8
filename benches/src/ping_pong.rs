//! A ping-pong: two players, in two threads of this process or in two processes, send each other a message in turn.

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

/// The number of receives that each player keeps posted. There are so many that an arriving message always finds one, in a
/// cache line of the receive queue that the player is not writing at that time.
const AHEAD: u32 = 512;
/// The number of receives that a player posts with one call, after arriving messages have consumed as many.
const AT_ONCE: usize = 8;
/// The number of sends that fit into the send queue of each player.
const SENDS: u32 = 64;

/// What the players of a ping-pong send, and which of their sends are signaled.
#[derive(Clone, Copy, Debug)]
pub struct SendPattern {
    /// The length of each message of the ping-pong in bytes.
    pub size: u32,
    /// Every how many sends one is signaled; its completion covers the unsignaled sends before it. At 1 every send is
    /// signaled.
    pub signaled_every: u64,
    /// Whether each player reads the first 8 bytes of a message that it has received, adds 1 to them as a number, and
    /// stores them as the beginning of the message that it sends next. An inline message is not changed.
    pub read: bool,
    /// Whether messages are sent as inline data. Messages longer than the `max_inline_data` of the queue pair are sent from
    /// registered memory nevertheless.
    pub inline: bool,
}

impl Default for SendPattern {
    /// Messages of 64 bytes from registered memory, which the receiver does not read; one of 32 sends is signaled. The
    /// ping-pong programs of rdma-core measure in this way.
    fn default() -> Self {
        Self {
            size: 64,
            signaled_every: 32,
            read: false,
            inline: false,
        }
    }
}

/// One of the two participants of a ping-pong, with its queue pair, completion queue and memory.
pub struct Player {
    side: Arc<Side>,
    pattern: SendPattern,
    source: Sge,
    room: Sge,
    room_at: usize,
    inline: Option<Vec<u8>>,
    slot: [Completion; 1],
    sent: u64,
    // Receives that replace consumed ones, and are posted as soon as there are `AT_ONCE` of them.
    refill: Vec<ReceiveRequest<'static>>,
}

impl Player {
    /// Creates a player that sends from offset 0 of the memory of its side, and receives at the offset `room_at` of that
    /// memory. The caller connects the queue pair and posts the first receives.
    ///
    /// # Errors
    /// A message of the pattern's size does not fit into the memory at one of the two offsets.
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

    /// Sends a message and waits for the message with which the other player answers. `next` waits until this player's
    /// completion queue has a completion, and polls the completion into the slot.
    ///
    /// # Errors
    /// A request was refused or failed, or `next` failed.
    #[inline]
    pub fn ask(
        &mut self,
        next: impl FnMut(&Side, &mut [Completion]) -> Result<usize>,
    ) -> Result<()> {
        self.send()?;
        self.receive(next)
    }

    /// Waits for a message of the other player and sends one back. `next` is as in [`ask`](Self::ask).
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

    /// Posts the send of a message without waiting for its completion. After every eighth message it also posts eight
    /// receives, which replace those that the messages of the other player have consumed; they are posted after the send,
    /// so as not to delay it.
    ///
    /// # Errors
    /// The queue pair refused the send or a receive.
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

/// Two connected players of a ping-pong in this process: one for the calling thread, and one for the thread of a
/// [`Partner`].
pub struct PingPong {
    near: Player,
    far: Arc<Mutex<Player>>,
    sides: [Arc<Side>; 2],
}

impl PingPong {
    /// Creates a player on each of two devices, each with a queue pair and a completion queue of its own, connects the
    /// queue pairs and posts the first receives. Both elements of `rigs` may be the same device.
    ///
    /// # Errors
    /// There is too little memory, or one of the devices refused to create or connect an object.
    pub fn new(rigs: [&Rig; 2], pattern: SendPattern) -> Result<Self> {
        // The received message has cache lines of its own, which the sent message does not share.
        let room_at = (pattern.size as usize).next_multiple_of(128);
        let side = |rig| Side::new(rig, 2 * room_at, LOCAL, [SENDS, AHEAD]);
        let [near, far] = rigs.map(side);
        let sides = [Arc::new(near?), Arc::new(far?)];
        sides[0].connect(&sides[1])?;
        let player = |side: &Arc<Side>| Player::new(Arc::clone(side), room_at, pattern);
        let [near, far] = sides.each_ref().map(player);
        let (near, far) = (near?, far?);
        for player in [&near, &far] {
            // Room remains for one more: the first player posts eight receives after its eighth send, when it has consumed
            // only seven.
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

    /// Runs `ours` with the first player on the calling thread, while the partner's thread answers `round_trips` messages
    /// with the second player; returns the result of `ours`.
    ///
    /// # Errors
    /// `ours` or the partner's thread failed. Both queue pairs are then moved to the ERR state, so that neither thread
    /// still waits for a message of the other one.
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

    /// Plays `round_trips` round trips between the calling thread and the partner's thread; returns half of the mean
    /// time of a round trip, in nanoseconds.
    ///
    /// # Errors
    /// A request was refused or failed.
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
