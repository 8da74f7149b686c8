//! One side of a ping-pong, within one process or between two.

use polyverbs::{
    Completion,
    wr::{self, Data},
};

use super::pair::{Side, check};

/// One of two that send to each other; receives are posted already.
pub(super) struct Player<'s> {
    side: &'s Side,
    size: u32,
    inline: Option<Vec<u8>>,
    slots: [Completion; 4],
    sent: u64,
}

impl<'s> Player<'s> {
    // Only every few sends are signaled: a completion covers the sends before it.
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

    /// Sends a message; a receive replaces the one that the last message used.
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
        // Posted here, where it does not delay the message.
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
