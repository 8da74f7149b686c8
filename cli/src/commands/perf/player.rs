//! One side of a message that goes to and fro.

use polyverbs::{Completion, Data, ReceiveRequest, Send};

use super::pair::{Side, check};

/// One side of the to and fro.
pub(super) struct Player<'s> {
    side: &'s Side,
    size: u32,
    inline: Option<Vec<u8>>,
    slots: [Completion; 4],
    sent: u64,
}

impl<'s> Player<'s> {
    // Only every so many sends complete visibly: a completion tells that those before it have gone too.
    const SIGNAL_EVERY: u64 = 32;

    pub(super) fn new(side: &'s Side, size: u32) -> anyhow::Result<Self> {
        let fits = size <= side.qp.cap().max_inline_data;
        let inline = fits.then(|| vec![0; size as usize]);
        let player = Self {
            side,
            size,
            inline,
            slots: Default::default(),
            sent: 0,
        };
        for _ in 0..4 {
            player.receive()?;
        }
        Ok(player)
    }

    fn receive(&self) -> anyhow::Result<()> {
        let request = ReceiveRequest::new(1, self.side.region.sge(0, self.size)?);
        self.side
            .qp
            .post_receive(request)
            .map_err(|refused| anyhow::anyhow!("{refused}"))
    }

    pub(super) fn ask(&mut self) -> anyhow::Result<()> {
        self.send()?;
        self.await_message()
    }

    pub(super) fn answer(&mut self) -> anyhow::Result<()> {
        self.await_message()?;
        self.send()
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let data = match &self.inline {
            Some(octets) => Data::from(octets.as_slice()),
            None => Data::from(self.side.region.sge(0, self.size)?),
        };
        let mut request = Send::new(data);
        self.sent += 1;
        if self.sent.is_multiple_of(Self::SIGNAL_EVERY) {
            request = request.signaled(0);
        }
        self.side.post(request)
    }

    fn await_message(&mut self) -> anyhow::Result<()> {
        loop {
            let mut came = false;
            for done in self.side.cq.poll(&mut self.slots)? {
                check(done)?;
                came |= done.opcode.is_receive();
            }
            if came {
                return self.receive();
            }
            std::hint::spin_loop();
        }
    }
}
