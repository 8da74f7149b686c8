//! MPA's connection setup with a peer whose bytes a fuzzer makes up, for the initiator and for the responder.
//!
//! However the bytes are cut, the negotiation does not panic, keeps a bounded number of bytes, answers a request with one reply, uses no
//! more than both sides offer, and gives a silent peer up when the patience is over.

use polyverbs_connection::mpa::{
    Depth, Depths, Failure, Negotiation, Output, ReadyForms, StartOptions, StartReply, Started,
};
use polyverbs_engine::time::Time;
use polyverbs_wire::iwarp::start::{self, Kind, MAX_START_LEN};

use crate::script::Script;

/// Sends the bytes of a fuzzer to an initiator or to a responder.
pub fn run(octets: &[u8]) {
    let mut script = Script::new(octets);
    let options = options(&mut script);
    let (negotiation, own) = match script.octet() & 1 {
        0 => (Negotiation::responder(START, options), Kind::Reply),
        _ => {
            let initiator = Negotiation::initiator(START, options, b"hello");
            (initiator.expect("little private data"), Kind::Request)
        }
    };
    let mut side = Side {
        negotiation,
        options,
        own,
        is_over: false,
    };
    if own == Kind::Request {
        side.check_said();
    }
    while !script.is_over() {
        side.step(&mut script);
    }
    side.end();
}

struct Side {
    negotiation: Negotiation,
    options: StartOptions,
    /// The kind of message that this side sends.
    own: Kind,
    is_over: bool,
}

impl Side {
    fn step(&mut self, script: &mut Script<'_>) {
        let how = script.octet();
        let outcome = match how & 7 {
            0..6 => {
                let mut piece = script.octets(usize::from(how >> 3)).to_vec();
                if how & 7 == 0 {
                    piece = start(script);
                }
                self.negotiation.handle_bytes(&piece)
            }
            6 => return self.answer(script),
            _ => self.negotiation.handle_close().map(|()| Output::Pending),
        };
        let was_over = self.is_over;
        self.is_over |= !matches!(outcome, Ok(Output::Pending | Output::Requested { .. }));
        if was_over {
            assert!(!matches!(
                outcome,
                Ok(Output::Started { .. } | Output::Requested { .. })
            ));
        }
        if let Ok(Output::Started { started, .. }) = outcome {
            assert_eq!(self.own, Kind::Request);
            self.check_agreed(&started);
        }
    }

    fn answer(&mut self, script: &mut Script<'_>) {
        let how = script.octet();
        let reply = match how & 1 {
            0 => StartReply::Accept,
            _ => StartReply::Reject,
        };
        let private_data = vec![7; usize::from(how) * 3];
        let asked = self.negotiation.asked();
        let could = self.negotiation.has_request();
        match self.negotiation.answer(reply, &private_data) {
            Ok(started) => {
                assert!(could && started.is_some() == (reply == StartReply::Accept));
                self.is_over = true;
                self.check_said();
                if let Some(started) = started {
                    self.check_agreed(&started);
                    if let Some((Depth::Reads(served), _)) = asked.filter(|_| started.revision > 1)
                    {
                        assert!(started.depths.ord <= served);
                    }
                }
            }
            Err(Failure::State) => assert!(!could),
            Err(error) => assert!(could && matches!(error, Failure::PrivateData { .. })),
        }
    }

    // Checks that the agreed settings stay within the offers of both sides.
    fn check_agreed(&self, started: &Started) {
        assert!((1..=self.options.revision).contains(&started.revision));
        assert!(started.settings.crc || !self.options.crc);
        let Depths { ird, ord } = self.options.depths;
        assert!(started.depths.ord <= ord);
        assert!(started.depths.ird <= self.options.most_ird.max(ird).max(1));
    }

    // Checks that this side has sent one whole request or reply.
    fn check_said(&mut self) {
        let said = self.negotiation.poll_bytes();
        let (start, len) = start::decode(&said)
            .expect("a valid message")
            .expect("a whole message");
        assert_eq!((start.kind, len), (self.own, said.len()));
    }

    fn end(&mut self) {
        if let Some(due) = self.negotiation.next_due() {
            let outcome = self.negotiation.handle_timeout(due);
            assert_eq!(outcome, Err(Failure::TimedOut));
        } else {
            assert!(self.is_over || self.negotiation.has_request());
        }
        assert!(self.negotiation.next_due().is_none());
        assert!(self.negotiation.poll_bytes().is_empty());
        assert!(self.negotiation.take_rest().len() <= MOST_KEPT);
    }
}

fn options(script: &mut Script<'_>) -> StartOptions {
    let how = script.octet();
    StartOptions {
        revision: 1 + (how & 1),
        markers: how & 2 != 0,
        crc: how & 4 != 0,
        depths: Depths {
            ird: u16::from(script.octet()),
            ord: u16::from(script.octet()) << (how >> 4),
        },
        most_ird: u16::from(script.octet()),
        rtr: ReadyForms::from_bits_truncate(how >> 3),
        ..StartOptions::default()
    }
}

// A request or reply of valid length, with flags, revision and private data from the script.
fn start(script: &mut Script<'_>) -> Vec<u8> {
    let how = script.octet();
    let kind = match how & 1 {
        0 => Kind::Request,
        _ => Kind::Reply,
    };
    let fixed = script.octets(2);
    let private_data = script.octets(usize::from(how >> 1));
    let length = (private_data.len() as u16).to_be_bytes();
    [&kind.key()[..], fixed, &length, private_data].concat()
}

const START: Time = Time(0);
/// The most bytes that may be kept after a request or reply: another one, or as many frames as a socket holds.
const MOST_KEPT: usize = MAX_START_LEN + (1 << 16);
