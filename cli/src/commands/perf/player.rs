//! One side of a message that goes to and fro, in one process and between two alike.

use polyverbs::{
    Completion,
    wr::{self, Data},
};

use super::pair::{Side, check};

/// One of the two that send to each other; the side has receives already.
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

    pub(super) fn new(side: &'s Side, size: u32) -> Self {
        let fits = size <= side.qp.cap().max_inline_data;
        Self {
            side,
            size,
            inline: fits.then(|| vec![0; size as usize]),
            slots: Default::default(),
            sent: 0,
        }
    }

    /// Sends a message and waits for its answer; `next` waits for completions.
    pub(super) fn ask(
        &mut self,
        next: impl FnMut(&mut [Completion]) -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        self.send()?;
        self.await_message(next)
    }

    /// Waits for a message and answers it.
    pub(super) fn answer(
        &mut self,
        next: impl FnMut(&mut [Completion]) -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        self.await_message(next)?;
        self.send()
    }

    /// Sends a message; a receive takes the place of the last one that a message took.
    pub(super) fn send(&mut self) -> anyhow::Result<()> {
        let data = match &self.inline {
            Some(bytes) => Data::from(bytes.as_slice()),
            None => Data::from(self.side.region.sge(0, self.size)?),
        };
        let mut request = wr::Send::new(data);
        self.sent += 1;
        if self.sent.is_multiple_of(Self::SIGNAL_EVERY) {
            request = request.signaled(0);
        }
        self.side.post(request)?;
        // Only now: nobody waits for it while the message is on its way.
        self.side.receive(self.size)
    }

    fn await_message(
        &mut self,
        mut next: impl FnMut(&mut [Completion]) -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        let mut came = false;
        while !came {
            let found = next(&mut self.slots)?;
            for done in &self.slots[..found] {
                check(done)?;
                came |= done.opcode.is_receive();
            }
        }
        Ok(())
    }
}
