//! How many RDMA Reads each side may have outstanding: IRD and ORD (RFC 6581 section 9.1).

use polyverbs_wire::iwarp::start::LEFT_TO_PROGRAM;

/// A read limit (IRD or ORD) in an MPA request or reply: 14 bits, of which all ones leave the limit to the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The limit is this many reads.
    Reads(u16),
    /// The programs agree on the limit themselves.
    LeftToProgram,
}

/// Both read limits of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// IRD: how many reads of the peer the side executes at one time.
    pub ird: u16,
    /// ORD: how many reads of its own the side has outstanding at one time.
    pub ord: u16,
}

impl Depth {
    /// Converts a field of the MPA header.
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
    /// Returns both limits as fields of the MPA header, capped to the largest number.
    pub(super) fn fields(self) -> (u16, u16) {
        let largest = LEFT_TO_PROGRAM - 1;
        (self.ird.min(largest), self.ord.min(largest))
    }

    /// Returns the limits of a responder, and the fields IRD and ORD of its reply. `self` are the limits that it prefers, and
    /// `most_ird` is how many reads it can execute at one time; the other arguments are from the request.
    ///
    /// The responder has at most as many reads outstanding as the initiator executes at one time, and executes as many as
    /// the initiator starts, if it can. A limit that the initiator leaves to the programs is left to them in the opposite
    /// field of the reply.
    pub(super) fn answer(
        self,
        most_ird: u16,
        ird_asked: u16,
        ord_asked: u16,
        rtr_is_read: bool,
    ) -> (Self, (u16, u16)) {
        let (ird, most_ord) = self.fields();
        let ord = match Depth::of(ird_asked).reads() {
            Some(served) => most_ord.min(served),
            None => most_ord,
        };
        let started = Depth::of(ord_asked).reads().unwrap_or_default();
        let least = started.min(most_ird).max(u16::from(rtr_is_read));
        let agreed = Self {
            ird: ird.max(least),
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

    /// Returns the limits of an initiator after a reply with these fields; `None` if it cannot execute as many reads as the
    /// responder will start.
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
