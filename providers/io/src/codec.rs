//! The wire format of a driver, as a link needs it.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use crate::QpnRange;
use crate::sockets::StreamError;
use polyverbs_engine::payload::Payload;
use verbs_api::ids::Gid;

use crate::queue::ByteQueue;

/// The parts of a datagram's IP and UDP headers that a checksum may cover and that the socket decides.
///
/// DF is set and there are no options. The other header fields follow from lengths or are masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The receiver's address and port.
    pub to: SocketAddr,
    /// Identification of the IPv4 header. It depends on the kind of system call that sends the datagram.
    pub identification: u16,
}

/// The properties of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The receiver's address and port.
    pub to: SocketAddr,
    /// TOS or traffic class; its lower two bits are those of congestion notification.
    pub traffic_class: u8,
    /// Number of the datagram among those that the kernel has joined. The identification is the sum of this number and the
    /// identification of the first of them, which is unknown and mostly 0.
    pub segment: u16,
}

/// How a frame is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxMeta {
    /// The queue pair that sends the frame. The link notifies it if the system refuses the frame.
    pub sender: u32,
    /// Frames of one flow keep their order and have one source port. Any number is allowed.
    pub flow: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 for the system's default.
    pub hop_limit: u8,
}

/// A parsed datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened<'d, H> {
    /// The header.
    pub header: H,
    /// The payload.
    pub payload: &'d [u8],
    /// The checksum is wrong.
    pub damaged: bool,
}

/// The process for which a datagram to the shared queue pair is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// The process that has the datagram.
    Anybody,
    /// The process that has this range of queue pair numbers.
    Range(QpnRange),
    /// The process that serves this service; the process that has the datagram, if no process serves it.
    Service(u64),
}

/// The wire format of a transport over datagrams.
pub trait DatagramCodec: Send + Sync + 'static {
    /// A frame's header, as a value.
    type Header: Clone + Debug + Send + Sync + 'static;

    /// Bytes that the longest headers and the longest trailer take together.
    const OVERHEAD: usize;

    /// How a frame is sent.
    fn tx_meta(&self, header: &Self::Header) -> TxMeta;

    /// Writes the headers of a payload of `payload` bytes to the beginning of `into`, which holds data of earlier frames,
    /// and returns their length. Returns `None` if this wire format cannot represent the header.
    fn encode_header(
        &self,
        header: &Self::Header,
        payload: usize,
        into: &mut [u8],
    ) -> Option<usize>;

    /// The length in bytes of the trailer of a payload of `payload` bytes.
    fn trailer(&self, payload: usize) -> usize;

    /// Writes the trailer; the payload, which ends at `payload_end`, is in its place. A link calls this again with another
    /// envelope if the datagram leaves by another kind of system call than expected.
    fn seal(&self, envelope: &Envelope, payload_end: usize, datagram: &mut [u8]);

    /// Parses a datagram. Returns `None` if it does not have this format; the link counts that.
    fn open<'d>(&self, arrival: &Arrival, datagram: &'d [u8]) -> Option<Opened<'d, Self::Header>>;

    /// Writes the header of a frame that goes through shared memory, where its payload is stored separately.
    fn encode_record(
        &self,
        header: &Self::Header,
        payload: usize,
        into: &mut [u8],
    ) -> Option<usize> {
        self.encode_header(header, payload, into)
    }

    /// Parses the header that [`encode_record`](Self::encode_record) has written in another process.
    fn open_record(&self, arrival: &Arrival, header: &[u8]) -> Option<Self::Header>;

    /// The header that notifies a queue pair that the system refuses its frames, with the error number. The link delivers it
    /// as if the destination of those frames had sent it.
    fn refusal(&self, sender: u32, errno: i32) -> Self::Header;

    /// The multicast group to which a frame goes, instead of the frame's destination; `None` if it goes to no group.
    fn group(&self, header: &Self::Header) -> Option<IpAddr> {
        let _ = header;
        None
    }

    /// The address that members of a group join; `None` if the transport has no groups.
    fn address_of_group(&self, group: Gid) -> Option<IpAddr> {
        let _ = group;
        None
    }

    /// The process for which a datagram to the common queue pair is meant.
    fn common(&self, datagram: &[u8]) -> Common {
        let _ = datagram;
        Common::Anybody
    }
}

/// The effect of a header on the stream that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It is a frame.
    Frame,
    /// This side sends nothing more: the stream ends after everything that was sent.
    End,
    /// It is the last frame: the stream ends after it, and frames of the peer are dropped.
    Last,
    /// The connection is reset at once.
    Reset,
}

/// Events of a stream other than frames.
#[derive(Debug)]
pub enum StreamEvent {
    /// The peer has ended its direction, and everything that it sent has been delivered.
    End,
    /// The connection is lost.
    Lost(StreamError),
    /// A stream that had no room has room again.
    Room,
    /// The first frame has arrived and was delivered.
    First,
}

/// The first frame of the bytes that have arrived.
#[derive(Debug)]
pub enum Found<'o, H> {
    /// The frame is not complete yet.
    Partial,
    /// A frame.
    Frame {
        /// Its header.
        header: H,
        /// Its payload.
        payload: &'o [u8],
        /// Bytes of the stream that the frame takes.
        taken: usize,
    },
    /// The stream cannot be parsed further: a checksum, a length or a marker is wrong. The link delivers this header to the
    /// driver with a frame that is marked as damaged.
    Broken(H),
}

/// The wire format of a transport over streams.
pub trait StreamCodec: Send + Sync + 'static {
    /// A frame's header, as a value.
    type Header: Clone + Debug + Send + Sync + 'static;
    /// The state of the sending half of a connection, and the parameters that both ends agreed on.
    type Sender: Send + 'static;
    /// The state of the receiving half of a connection, and the parameters that both ends agreed on.
    type Receiver: Send + 'static;

    /// Bytes of the stream that the longest frame takes.
    const LONGEST: usize;

    /// The key of the connection that carries a frame: a number that this end chooses, below 2^63.
    fn key(&self, header: &Self::Header) -> u64;

    /// The effect of a header on its stream.
    fn leaving(&self, header: &Self::Header) -> Leaving;

    /// Bytes that a frame may carry on a path with segments of this size.
    fn max_unit(&self, sender: &Self::Sender, segment: usize) -> usize {
        let _ = sender;
        segment
    }

    /// How many of the bytes of [`max_unit`](Self::max_unit) are payload in a frame with this header; `None` if there is
    /// no limit.
    fn max_payload(&self, header: &Self::Header, unit: usize) -> Option<usize> {
        let _ = (header, unit);
        None
    }

    /// Returns whether a frame may be sent between the last frame and the other frames of its message.
    fn may_follow(&self, sender: &Self::Sender, header: &Self::Header) -> bool {
        let _ = (sender, header);
        true
    }

    /// Returns whether the last message is complete, so that any frame may follow.
    fn is_between(&self, sender: &Self::Sender) -> bool {
        let _ = sender;
        true
    }

    /// Appends a frame to the bytes that leave.
    fn encode(
        &self,
        sender: &mut Self::Sender,
        header: &Self::Header,
        payload: &Payload<'_>,
        into: &mut ByteQueue,
    );

    /// Writes the headers of a frame, without the framing of a stream: at most 96 bytes. Returns `None` if there is nothing
    /// to send.
    fn encode_header<'i>(&self, header: &Self::Header, into: &'i mut [u8]) -> Option<&'i [u8]>;

    /// Updates the sender's state after a frame has been sent by any means.
    fn sent(&self, sender: &mut Self::Sender, header: &Self::Header);

    /// Parses the header that [`encode_header`](Self::encode_header) has written in another process, for a payload of
    /// `payload` bytes. Returns it with the part of the payload that follows it in `header`.
    ///
    /// # Errors
    /// The header is invalid. The link delivers the header of the error to the driver with a frame that is marked as
    /// damaged.
    fn open_header<'o>(
        &self,
        receiver: &mut Self::Receiver,
        header: &'o [u8],
        payload: usize,
    ) -> Result<(Self::Header, &'o [u8]), Self::Header>;

    /// Finds the frame that begins `bytes`. The codec may change them, to remove bytes that interrupt the payload.
    fn open<'o>(
        &self,
        receiver: &mut Self::Receiver,
        key: u64,
        bytes: &'o mut [u8],
    ) -> Found<'o, Self::Header>;

    /// The header that reports an event to the driver; `None` if the driver does not need it.
    fn event(&self, key: u64, event: &StreamEvent) -> Option<Self::Header>;
}
