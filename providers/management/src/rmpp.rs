//! RMPP, by which a message that is longer than a MAD crosses the network in segments (IBTA 13.6).
//!
//! A [`Sender`] cuts a message into segments, and a [`Receiver`] joins them again. Both have the message as programs do: the header
//! of the class once, and then the data. The caller sends what they make, and asks them again at their deadlines.

use std::time::Duration;

use polyverbs_wire::layout::{Header as _, view};
use polyverbs_wire::mad::rmpp::{Rmpp, rmpp_type};
use polyverbs_wire::mad::sa::SA_CLASS;
use polyverbs_wire::mad::{MAD_LEN, MadHeader, method};

use crate::agent_table::OUI_CLASSES;

/// The length of the header that each segment of a class has: up to the data of the attribute.
pub fn header_len(class: u8) -> usize {
    match class {
        SA_CLASS => 56,
        // The two classes of device management, and BIS.
        0x06 | 0x10 | 0x12 => 64,
        _ if OUI_CLASSES.contains(&class) => 40,
        _ => RMPP_END,
    }
}

/// Returns the RMPP header of a segment; `None` if RMPP is not in use.
pub fn header_of(mad: &[u8]) -> Option<Rmpp> {
    active(mad).filter(|rmpp| rmpp.version == VERSION)
}

/// Whether a program wants a message to be sent in segments. Programs set nothing else of the header: opensm leaves version 0.
pub fn is_wanted(message: &[u8]) -> bool {
    active(message).is_some()
}

fn active(mad: &[u8]) -> Option<Rmpp> {
    let (rmpp, _) = view::<Rmpp>(mad.get(MadHeader::LEN..)?)?;
    Some(Rmpp::of(rmpp)).filter(|rmpp| rmpp.is_active)
}

fn with_header(mut mad: [u8; MAD_LEN], rmpp: &Rmpp) -> [u8; MAD_LEN] {
    mad[MadHeader::LEN..RMPP_END].copy_from_slice(&rmpp.to_view().0);
    mad
}

/// A message that is sent.
#[derive(Clone, Debug)]
pub struct Sender {
    segments: Vec<[u8; MAD_LEN]>,
    acknowledged: usize,
    /// The last segment that may be sent, and the one that was sent last.
    window: usize,
    sent: usize,
    deadline: Duration,
    end: Duration,
}

/// What a sender does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has segments to send, or waits for an acknowledgement.
    Goes,
    /// The receiver has the whole message.
    Done,
    /// The receiver has given up, or does not answer.
    Failed,
}

impl Sender {
    /// Cuts a message into segments. `None` if it is shorter than the header of its class.
    pub fn new(message: &[u8], now: Duration) -> Option<Self> {
        let header_len = header_len(*message.get(1)?);
        let (header, data) = message.split_at_checked(header_len)?;
        let room = MAD_LEN - header_len;
        let count = data.len().div_ceil(room).max(1);
        let padding = count * room - data.len();
        let in_each = MAD_LEN - RMPP_END;
        let segments = (1..=count).map(|number| {
            let mut mad = [0; MAD_LEN];
            mad[..header_len].copy_from_slice(header);
            let piece = data.chunks(room).nth(number - 1).unwrap_or_default();
            mad[header_len..header_len + piece.len()].copy_from_slice(piece);
            let length = match number {
                1 => count * in_each - padding,
                _ if number == count => in_each - padding,
                _ => 0,
            };
            let rmpp = Rmpp {
                version: VERSION,
                packet_type: rmpp_type::DATA,
                response_time: NO_RESPONSE_TIME,
                is_first: number == 1,
                is_last: number == count,
                is_active: true,
                status: 0,
                segment_number: number as u32,
                length: length as u32,
            };
            with_header(mad, &rmpp)
        });
        Some(Self {
            segments: segments.collect(),
            acknowledged: 0,
            window: 1,
            sent: 0,
            deadline: now + ACK_TIME,
            end: now + OVERALL,
        })
    }

    /// Returns the next segment that the window lets leave.
    pub fn next_segment(&mut self) -> Option<[u8; MAD_LEN]> {
        let segment = self.segments[..self.window].get(self.sent)?;
        self.sent += 1;
        Some(*segment)
    }

    /// Takes what the receiver of the message has sent.
    pub fn take(&mut self, rmpp: &Rmpp, now: Duration) -> Progress {
        match rmpp.packet_type {
            rmpp_type::ACK => self.acknowledge(rmpp, now),
            rmpp_type::STOP | rmpp_type::ABORT => Progress::Failed,
            _ => Progress::Goes,
        }
    }

    fn acknowledge(&mut self, rmpp: &Rmpp, now: Duration) -> Progress {
        let (segment, window) = (rmpp.segment_number as usize, rmpp.length as usize);
        if segment > self.sent || window < segment {
            return Progress::Failed;
        }
        if segment >= self.acknowledged {
            self.acknowledged = segment;
            self.window = window.max(self.window).min(self.segments.len());
            self.deadline = now + ACK_TIME;
        }
        if self.acknowledged == self.segments.len() {
            Progress::Done
        } else {
            Progress::Goes
        }
    }

    /// Returns the time at which [`expire`](Self::expire) is to be called.
    pub fn deadline(&self) -> Duration {
        self.deadline.min(self.end)
    }

    /// Goes back to the first segment that was not acknowledged in time.
    pub fn expire(&mut self, now: Duration) -> Progress {
        if now >= self.end {
            return Progress::Failed;
        }
        if now >= self.deadline {
            self.sent = self.acknowledged;
            self.deadline = now + ACK_TIME;
        }
        Progress::Goes
    }
}

/// A message that is received.
#[derive(Clone, Debug)]
pub struct Receiver {
    message: Vec<u8>,
    /// The number of segments that have arrived.
    arrived: u32,
    window: u32,
    is_complete: bool,
    deadline: Duration,
}

/// What a segment causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The acknowledgement to send back.
    pub acknowledgement: Option<[u8; MAD_LEN]>,
    /// The message, once its last segment has arrived.
    pub message: Option<Vec<u8>>,
}

impl Receiver {
    /// Waits for the first segment of a message.
    pub fn new(now: Duration) -> Self {
        Self {
            message: Vec::new(),
            arrived: 0,
            window: 1,
            is_complete: false,
            deadline: now + OVERALL,
        }
    }

    /// Takes a segment. Segments out of order are dropped, and their sender sends them again.
    pub fn take(&mut self, mad: &[u8; MAD_LEN], now: Duration) -> Received {
        let mut received = Received::default();
        let Some(rmpp) = header_of(mad).filter(|it| it.packet_type == rmpp_type::DATA) else {
            return received;
        };
        let is_next = rmpp.segment_number == self.arrived + 1;
        if self.is_complete || !is_next {
            if rmpp.segment_number <= self.arrived {
                received.acknowledgement = Some(self.acknowledgement(mad));
            }
            return received;
        }
        if !self.append(mad, &rmpp) {
            return received;
        }
        self.deadline = now + OVERALL;
        if self.arrived == 1 || self.arrived == self.window || rmpp.is_last {
            self.window = self.arrived + WINDOW;
            received.acknowledgement = Some(self.acknowledgement(mad));
        }
        if rmpp.is_last {
            self.is_complete = true;
            self.deadline = now + LINGER;
            received.message = Some(std::mem::take(&mut self.message));
        }
        received
    }

    /// Appends the data of a segment. Returns false if the message becomes too long, or its first segment is not one.
    fn append(&mut self, mad: &[u8; MAD_LEN], rmpp: &Rmpp) -> bool {
        let header_len = header_len(mad[1]);
        let unused = header_len - RMPP_END;
        // Some senders do not say how long the last segment is.
        let data = match rmpp.length as usize {
            length @ 1.. if rmpp.is_last => length.saturating_sub(unused),
            _ => MAD_LEN - header_len,
        };
        let end = header_len + data;
        if self.message.len() + MAD_LEN > LONGEST || end > MAD_LEN {
            return false;
        }
        if self.arrived == 0 {
            self.message.extend_from_slice(&mad[..header_len]);
        }
        self.message.extend_from_slice(&mad[header_len..end]);
        self.arrived += 1;
        true
    }

    fn acknowledgement(&self, mad: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
        let mut answer = [0; MAD_LEN];
        let header_len = header_len(mad[1]);
        answer[..header_len].copy_from_slice(&mad[..header_len]);
        answer[3] ^= method::RESPONSE;
        let rmpp = Rmpp {
            version: VERSION,
            packet_type: rmpp_type::ACK,
            response_time: NO_RESPONSE_TIME,
            is_active: true,
            segment_number: self.arrived,
            length: self.window,
            ..Rmpp::default()
        };
        with_header(answer, &rmpp)
    }

    /// Returns the time after which the receiver is not needed: the sender is silent, or late segments have had their time.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }
}

const VERSION: u8 = 1;
const RMPP_END: usize = MadHeader::LEN + Rmpp::LEN;
const NO_RESPONSE_TIME: u8 = 31;
/// Segments that may be under way without an acknowledgement.
const WINDOW: u32 = 64;
const LONGEST: usize = 16 << 20;
/// How long an acknowledgement is waited for, a whole message, and late segments after it, as in Linux.
const ACK_TIME: Duration = Duration::from_secs(2);
const OVERALL: Duration = Duration::from_secs(40);
const LINGER: Duration = Duration::from_secs(10);
