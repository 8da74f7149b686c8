//! What a driver tells a link about its wire format.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use crate::QpnRange;
use crate::sockets::StreamError;
use polyverbs_engine::payload::Payload;
use verbs_api::ids::Gid;

use crate::queue::ByteQueue;

/// What the socket puts before a datagram, as far as a checksum may cover it.
///
/// DF is set and there are no options. What else stands in the headers follows from lengths or is masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The receiver's.
    pub to: SocketAddr,
    /// Identification of the IPv4 header: what kind of call sends it decides.
    pub identification: u16,
}

/// What is known of a datagram that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The receiver's.
    pub to: SocketAddr,
    /// TOS or traffic class; its lower two bits are those of congestion notification.
    pub traffic_class: u8,
    /// Number of the datagram among those that the kernel has joined. The identification is this one more than that of
    /// the first among them, which is not known and mostly 0.
    pub segment: u16,
}

/// How a frame is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxMeta {
    /// Frames of one flow keep their order, and one source port. Any number.
    pub flow: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 for what the system sets.
    pub hop_limit: u8,
}

/// A datagram taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened<'d, H> {
    /// The header.
    pub header: H,
    /// The payload.
    pub payload: &'d [u8],
    /// The checksum is wrong.
    pub damaged: bool,
}

/// Whom a datagram to the queue pair that all processes share is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// Whoever has it.
    Anybody,
    /// The process that has this range of queue pair numbers.
    Range(QpnRange),
    /// The process that answers for this service; whoever has the datagram, where none does.
    Service(u64),
}

/// The wire format of a transport over datagrams.
pub trait DatagramCodec: Send + Sync + 'static {
    /// A frame's header, as a value.
    type Header: Clone + Debug + Send + Sync + 'static;

    /// Octets that the longest headers and the longest trailer take together.
    const OVERHEAD: usize;

    /// How a frame is sent.
    fn tx_meta(&self, header: &Self::Header) -> TxMeta;

    /// Writes what goes before a payload of so many bytes to the beginning of `into`, where what is left from before lies: how
    /// many bytes. `None` where the header has no form on this wire.
    fn encode_header(
        &self,
        header: &Self::Header,
        payload: usize,
        into: &mut [u8],
    ) -> Option<usize>;

    /// How many bytes go behind a payload of so many.
    fn trailer(&self, payload: usize) -> usize;

    /// Writes what goes behind the payload, which is in its place now. `payload` is where it ends. Called again with
    /// another envelope where the datagram leaves in another way than was thought.
    fn seal(&self, envelope: &Envelope, payload_end: usize, datagram: &mut [u8]);

    /// Takes a datagram apart. `None`, and counted, where it is none of this format.
    fn open<'d>(&self, arrival: &Arrival, datagram: &'d [u8]) -> Option<Opened<'d, Self::Header>>;

    /// The same where the frame goes by memory, and its payload apart from that.
    fn encode_record(
        &self,
        header: &Self::Header,
        payload: usize,
        into: &mut [u8],
    ) -> Option<usize> {
        self.encode_header(header, payload, into)
    }

    /// The header that [`encode_record`](Self::encode_record) has written in another process.
    fn open_record(&self, arrival: &Arrival, header: &[u8]) -> Option<Self::Header>;

    /// The group that a frame goes to, where it goes to one; in place of the frame's destination.
    fn group(&self, header: &Self::Header) -> Option<IpAddr> {
        let _ = header;
        None
    }

    /// The address that members of a group join; `None` where the transport has no groups.
    fn address_of_group(&self, group: Gid) -> Option<IpAddr> {
        let _ = group;
        None
    }

    /// Whom a datagram to the common queue pair is for.
    fn common(&self, datagram: &[u8]) -> Common {
        let _ = datagram;
        Common::Anybody
    }
}

/// What a header means for the stream that it is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// A frame.
    Frame,
    /// Nothing more comes: an end follows what was sent.
    End,
    /// The last frame: an end follows it, and nobody wants to know what the peer still says.
    Last,
    /// The connection is given up at once.
    Reset,
}

/// What became of a stream, besides frames.
#[derive(Debug)]
pub enum StreamEvent {
    /// The peer sends no more, and everything that it sent has been delivered.
    End,
    /// The connection is gone.
    Lost(StreamError),
    /// A stream that had no room has some again.
    Room,
    /// The first frame has come, and was delivered.
    First,
}

/// The first frame of what has come.
#[derive(Debug)]
pub enum Found<'o, H> {
    /// It is not whole yet.
    Partial,
    /// A frame.
    Frame {
        /// Its header.
        header: H,
        /// Its payload.
        payload: &'o [u8],
        /// Octets of the stream that it takes.
        taken: usize,
    },
    /// The stream cannot be read on: a checksum, a length, a marker is wrong. The header goes to the driver with a frame
    /// that is marked as damaged.
    Broken(H),
}

/// The wire format of a transport over streams.
pub trait StreamCodec: Send + Sync + 'static {
    /// A frame's header, as a value.
    type Header: Clone + Debug + Send + Sync + 'static;
    /// Where the sending half of a connection stands, and what was agreed on.
    type Sender: Send + 'static;
    /// The same of the receiving half.
    type Receiver: Send + 'static;

    /// Octets of the stream that the longest frame takes.
    const LONGEST: usize;

    /// Which connection a frame is sent on: a number of this end's choice, below 2^63.
    fn key(&self, header: &Self::Header) -> u64;

    /// What a header means for its stream.
    fn leaving(&self, header: &Self::Header) -> Leaving;

    /// Octets that a frame may carry on a path with segments of this size.
    fn max_unit(&self, sender: &Self::Sender, segment: usize) -> usize {
        let _ = sender;
        segment
    }

    /// How many of [those](Self::max_unit) are payload in a frame like this; `None` for as many as there are.
    fn max_payload(&self, header: &Self::Header, unit: usize) -> Option<usize> {
        let _ = (header, unit);
        None
    }

    /// Whether a frame may go between those that went last and those that belong to them.
    fn may_follow(&self, sender: &Self::Sender, header: &Self::Header) -> bool {
        let _ = (sender, header);
        true
    }

    /// Whether any frame may go now.
    fn is_between(&self, sender: &Self::Sender) -> bool {
        let _ = sender;
        true
    }

    /// Appends a frame to what leaves.
    fn encode(
        &self,
        sender: &mut Self::Sender,
        header: &Self::Header,
        payload: &Payload<'_>,
        into: &mut ByteQueue,
    );

    /// Writes what goes before a frame's payload, without what frames on a stream have around them: 96 bytes at most. `None` where
    /// that is nothing to send.
    fn encode_header<'i>(&self, header: &Self::Header, into: &'i mut [u8]) -> Option<&'i [u8]>;

    /// Notes a frame that has been sent, whatever way.
    fn sent(&self, sender: &mut Self::Sender, header: &Self::Header);

    /// The header that [`encode_header`](Self::encode_header) has written in another process, for a payload of so many bytes,
    /// and what of a payload follows it there.
    ///
    /// # Errors
    /// It makes no sense: what tells the driver, with a frame that is marked as damaged.
    fn open_header<'o>(
        &self,
        receiver: &mut Self::Receiver,
        header: &'o [u8],
        payload: usize,
    ) -> Result<(Self::Header, &'o [u8]), Self::Header>;

    /// Finds the frame that `bytes` begin with. They may be changed: what does not belong to the payload is in its way.
    fn open<'o>(
        &self,
        receiver: &mut Self::Receiver,
        key: u64,
        bytes: &'o mut [u8],
    ) -> Found<'o, Self::Header>;

    /// What tells the driver; `None` where it does not want to know.
    fn event(&self, key: u64, event: &StreamEvent) -> Option<Self::Header>;
}
