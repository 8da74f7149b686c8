//! The traits by which a driver supplies its wire format to a link.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use crate::QpnRange;
use crate::sockets::StreamError;
use polyverbs_engine::payload::Payload;
use verbs_api::ids::Gid;

use crate::queue::ByteQueue;

/// The fields of a datagram's IP and UDP headers that the socket sets and that a checksum (the ICRC) may cover.
///
/// DF is set and there are no IP options. The other header fields follow from lengths, or the checksum masks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The receiver's address and port.
    pub to: SocketAddr,
    /// Identification of the IPv4 header: the index of the datagram in a call with segmentation offload, otherwise 0.
    pub identification: u16,
}

/// The addresses and IP header fields of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The receiver's address and port.
    pub to: SocketAddr,
    /// TOS of IPv4 or traffic class of IPv6. The lower two bits are ECN.
    pub traffic_class: u8,
    /// The index of the datagram among those that the kernel has joined into one message (receive offload, GRO); 0 if it
    /// has joined none. The IPv4 identification is this index plus that of the first datagram, which the socket does not
    /// report and which is mostly 0.
    pub segment: u16,
}

/// The sender of a frame, its flow, and the IP header fields with which it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxMeta {
    /// The number of the QP that sends the frame. The link notifies this QP if the system refuses the frame.
    pub sender: u32,
    /// The flow of the frame. Frames of one flow leave in order and from one source port. Any number is allowed.
    pub flow: u32,
    /// TOS of IPv4 or traffic class of IPv6.
    pub traffic_class: u8,
    /// Time to live of IPv4 or hop limit of IPv6; 0 for the socket's default.
    pub hop_limit: u8,
}

/// A received datagram, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened<'d, H> {
    /// The header of the frame.
    pub header: H,
    /// The payload of the frame, inside the datagram.
    pub payload: &'d [u8],
    /// Whether the checksum is wrong.
    pub damaged: bool,
}

/// The process of a port group that gets a datagram to QP 1 (the GSI), which all processes of the group share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// The process whose socket received the datagram.
    Anybody,
    /// The process that leases this range of QP numbers.
    Range(QpnRange),
    /// The process that listens for connection requests with this service ID; if there is none, the process whose socket
    /// received the datagram.
    Service(u64),
}

/// The wire format of a transport whose frames are datagrams, such as RoCEv2.
pub trait DatagramCodec: Send + Sync + 'static {
    /// The header of a frame as a value: everything but its payload.
    type Header: Clone + Debug + Send + Sync + 'static;

    /// The most bytes that the headers and the trailer of a datagram take together.
    const OVERHEAD: usize;

    /// Returns the sender and the flow of the frame with this header, and the IP header fields with which it leaves.
    fn tx_meta(&self, header: &Self::Header) -> TxMeta;

    /// Writes the headers of a frame to the beginning of `into`, which holds data of earlier frames, and returns their
    /// length. A payload of `payload` bytes will follow them. Returns `None` if this wire format cannot represent the
    /// header.
    fn encode_header(
        &self,
        header: &Self::Header,
        payload: usize,
        into: &mut [u8],
    ) -> Option<usize>;

    /// Returns the length in bytes of the trailer that follows a payload of `payload` bytes.
    fn trailer(&self, payload: usize) -> usize;

    /// Writes the trailer into `datagram`, whose headers and payload are complete; the payload ends at `payload_end`. A
    /// link calls this again with another envelope if the datagram leaves by another kind of system call than expected.
    fn seal(&self, envelope: &Envelope, payload_end: usize, datagram: &mut [u8]);

    /// Parses a datagram. Returns `None` if it does not have this format; the link then drops and counts it.
    fn open<'d>(&self, arrival: &Arrival, datagram: &'d [u8]) -> Option<Opened<'d, Self::Header>>;

    /// Writes the header of a frame that goes through shared memory, and returns its length. The payload of `payload` bytes
    /// is stored separately. Returns `None` if this wire format cannot represent the header.
    fn encode_record(
        &self,
        header: &Self::Header,
        payload: usize,
        into: &mut [u8],
    ) -> Option<usize> {
        self.encode_header(header, payload, into)
    }

    /// Parses the header that [`encode_record`](Self::encode_record) has written in another process; `None` if it is
    /// invalid.
    fn open_record(&self, arrival: &Arrival, header: &[u8]) -> Option<Self::Header>;

    /// Returns the header with which the link notifies the QP `sender` that the system refuses its frames, with the error
    /// number `errno`. The link delivers it as if the destination of those frames had sent it.
    fn refusal(&self, sender: u32, errno: i32) -> Self::Header;

    /// Returns the multicast address to which a frame goes instead of to the frame's destination; `None` for a unicast
    /// frame.
    fn group(&self, header: &Self::Header) -> Option<IpAddr> {
        let _ = header;
        None
    }

    /// Returns the IP address that members of a multicast group join; `None` if the transport has no multicast.
    fn address_of_group(&self, group: Gid) -> Option<IpAddr> {
        let _ = group;
        None
    }

    /// Returns the process of a port group that gets this datagram to QP 1 (the GSI).
    fn common(&self, datagram: &[u8]) -> Common {
        let _ = datagram;
        Common::Anybody
    }
}

/// The effect of a header that the driver sends on the stream that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The header begins a frame, and the stream stays open.
    Frame,
    /// The header stands for no frame: the link ends its direction of the stream after everything that was sent before.
    End,
    /// The header begins the last frame: the link ends its direction of the stream after it, and drops frames of the peer.
    Last,
    /// The header stands for no frame: the link resets the connection at once.
    Reset,
}

/// Events of a stream, other than frames, that the link reports to the driver.
#[derive(Debug)]
pub enum StreamEvent {
    /// The peer has ended its direction, and every frame that it sent before has been delivered.
    End,
    /// The connection is lost, for this reason.
    Lost(StreamError),
    /// The link accepts frames of the stream again, after it refused one.
    Room,
    /// The first frame of the peer has arrived and was delivered.
    First,
}

/// The result of parsing the received bytes of a stream: the frame with which they begin.
#[derive(Debug)]
pub enum Found<'o, H> {
    /// The first frame has not arrived completely.
    Partial,
    /// The first frame is complete.
    Frame {
        /// The frame's header.
        header: H,
        /// The frame's payload.
        payload: &'o [u8],
        /// The length of the frame in bytes of the stream, with its framing.
        taken: usize,
    },
    /// The stream cannot be parsed further: a checksum, a length or a marker is wrong. The link delivers this header to the
    /// driver with a frame that is marked as damaged.
    Broken(H),
}

/// The wire format of a transport whose frames are sent on a stream, such as iWARP.
pub trait StreamCodec: Send + Sync + 'static {
    /// The header of a frame as a value: everything but its payload.
    type Header: Clone + Debug + Send + Sync + 'static;
    /// The state of the sending half of a connection, with the parameters that both ends have negotiated.
    type Sender: Send + 'static;
    /// The state of the receiving half of a connection, with the parameters that both ends have negotiated.
    type Receiver: Send + 'static;

    /// The most bytes of the stream that one frame takes, with its framing.
    const LONGEST: usize;

    /// Returns the key of the connection that carries the frame with this header: a number below 2^63 that identifies the
    /// connection at this end.
    fn key(&self, header: &Self::Header) -> u64;

    /// Returns the effect of a header on the stream that carries it.
    fn leaving(&self, header: &Self::Header) -> Leaving;

    /// Returns the most bytes, without framing, that a frame may have so that it fits into one TCP segment of `segment`
    /// bytes.
    fn max_unit(&self, sender: &Self::Sender, segment: usize) -> usize {
        let _ = sender;
        segment
    }

    /// Returns how many of the `unit` bytes of [`max_unit`](Self::max_unit) may be payload in a frame with this header;
    /// `None` if there is no limit.
    fn max_payload(&self, header: &Self::Header, unit: usize) -> Option<usize> {
        let _ = (header, unit);
        None
    }

    /// Returns whether the frame with this header may be sent next: it must not interrupt a message of which only some
    /// frames have been sent.
    fn may_follow(&self, sender: &Self::Sender, header: &Self::Header) -> bool {
        let _ = (sender, header);
        true
    }

    /// Returns whether every message that was begun has been sent completely, so that any frame may follow.
    fn is_between(&self, sender: &Self::Sender) -> bool {
        let _ = sender;
        true
    }

    /// Appends an encoded frame to `into`, the queue of bytes for the socket.
    fn encode(
        &self,
        sender: &mut Self::Sender,
        header: &Self::Header,
        payload: &Payload<'_>,
        into: &mut ByteQueue,
    );

    /// Writes the headers of a frame that goes through shared memory, without the framing of a stream, and returns them: at
    /// most 96 bytes. Returns `None` if the header stands for no frame.
    fn encode_header<'i>(&self, header: &Self::Header, into: &'i mut [u8]) -> Option<&'i [u8]>;

    /// Updates the sender's state after a frame with this header was sent through shared memory;
    /// [`encode`](Self::encode) updates it by itself.
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

    /// Parses the frame with which `bytes` begin. The codec may change the bytes, to remove markers that interrupt the
    /// payload.
    fn open<'o>(
        &self,
        receiver: &mut Self::Receiver,
        key: u64,
        bytes: &'o mut [u8],
    ) -> Found<'o, Self::Header>;

    /// Returns the header that reports an event to the driver; `None` if the driver does not need it.
    fn event(&self, key: u64, event: &StreamEvent) -> Option<Self::Header>;
}
