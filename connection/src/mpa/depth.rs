//! How many reads each side may have outstanding: IRD and ORD (RFC 6581 section 9.1).

use polyverbs_wire::iwarp::start::LEFT_TO_PROGRAM;

/// A depth as a header has it: 14 bits, of which all ones leave it to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// So many reads.
    Reads(u16),
    /// The programs agree on it by themselves.
    LeftToProgram,
}

/// What a side serves, and what it has outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// IRD: reads that the side serves at one time.
    pub ird: u16,
    /// ORD: reads that the side has outstanding at one time.
    pub ord: u16,
}

impl Depth {
    /// What a field says.
    pub const fn of(field: u16) -> Self {
        if field == LEFT_TO_PROGRAM {
            Self::LeftToProgram
        } else {
            Self::Reads(field)
        }
    }

    const fn reads(self) -> Option<u16> {
        match self {
            Self::Reads(reads) => Some(reads),
            Self::LeftToProgram => None,
        }
    }
}

impl Depths {
    /// As fields: one that is too large is the largest that is a number.
    pub(super) fn fields(self) -> (u16, u16) {
        let largest = LEFT_TO_PROGRAM - 1;
        (self.ird.min(largest), self.ord.min(largest))
    }

    /// What a responder takes, of what it can do at most, and the fields IRD and ORD of its reply.
    ///
    /// It has no more outstanding than the initiator serves, and serves what the initiator starts, if it can. What the
    /// initiator leaves to the programs comes back so, in the crossed field, and changes nothing.
    pub(super) fn answer(
        self,
        ird_asked: u16,
        ord_asked: u16,
        rtr_is_read: bool,
    ) -> (Self, (u16, u16)) {
        let (most_ird, most_ord) = self.fields();
        let ord = match Depth::of(ird_asked).reads() {
            Some(served) => most_ord.min(served),
            None => most_ord,
        };
        let least = u16::from(rtr_is_read);
        let agreed = Self {
            ird: most_ird.max(least),
            ord,
        };
        let field = |asked, value| match Depth::of(asked) {
            Depth::LeftToProgram => LEFT_TO_PROGRAM,
            Depth::Reads(_) => value,
        };
        (
            agreed,
            (field(ord_asked, agreed.ird), field(ird_asked, ord)),
        )
    }

    /// What an initiator takes of a reply; `None` where it cannot serve what the responder will start.
    pub(super) fn settle(self, most_ird: u16, ird: u16, ord: u16) -> Option<Self> {
        let mut agreed = self;
        if let Some(served) = Depth::of(ird).reads() {
            agreed.ord = agreed.ord.min(served);
        }
        if let Some(started) = Depth::of(ord).reads() {
            agreed.ird = agreed.ird.max(started);
        }
        (agreed.ird <= most_ird.max(self.ird)).then_some(agreed)
    }
}
