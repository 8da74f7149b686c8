//! Passes the frames of any link through a codec: each becomes bytes, and the bytes are parsed again. Tests use this to
//! check a wire format without a network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink, TrySend};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;
use verbs_api::provider::Mutex;

use crate::capture::DatagramTap;
use crate::codec::{Arrival, DatagramCodec, Envelope, Found, Leaving, StreamCodec};
use crate::queue::ByteQueue;
use crate::sockets::Way;

/// A link that passes each frame of an inner link through a codec when the frame arrives: the codec encodes it and parses
/// the bytes. This works in virtual time, and with every fault.
struct Through<H, F> {
    link: SharedLink<H>,
    /// Encodes an arrived frame, parses the bytes, and delivers the result to the network, or drops the frame.
    pass: F,
}

/// Receives the frames of the inner link, passes them through the codec, and delivers them to `network`.
struct Onward<'l, H, F> {
    through: &'l Through<H, F>,
    network: &'l dyn Deliver<H>,
}

impl<H, F: Fn(Frame<'_, H>, Time, &dyn Deliver<H>)> Deliver<H> for Onward<'_, H, F> {
    fn deliver(&self, frame: Frame<'_, H>, now: Time) {
        (self.through.pass)(frame, now, self.network);
    }
}

impl<H, F> Link<H> for Through<H, F>
where
    H: 'static,
    F: Fn(Frame<'_, H>, Time, &dyn Deliver<H>) + Send + Sync + 'static,
{
    fn inner(&self) -> Option<&dyn Link<H>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn try_send(&self, frame: Frame<'_, H>, now: Time) -> TrySend {
        self.link.try_send(frame, now)
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        self.link.send(frame, now);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        let through = self;
        self.link.progress(now, &Onward { through, network })
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
}

/// Wraps `link` so that `codec` encodes each frame that arrives as a datagram to `port`, and parses it. `tap` observes
/// these datagrams.
///
/// If the link has damaged a frame, its checksum is made wrong, and the codec decides whether the receiver detects that. A
/// frame that the wire format cannot represent is dropped.
pub fn through_datagrams<C: DatagramCodec>(
    link: SharedLink<C::Header>,
    codec: C,
    port: u16,
    tap: Option<Arc<dyn DatagramTap>>,
) -> SharedLink<C::Header> {
    let pass = move |frame: Frame<'_, C::Header>, now: Time, network: &dyn Deliver<C::Header>| {
        let envelope = envelope(&codec, port, &frame);
        let Some(datagram) = datagram(&codec, &frame, &envelope) else {
            return;
        };
        let traffic_class = codec.tx_meta(&frame.header).traffic_class;
        if let Some(tap) = &tap {
            tap.datagram(Way::In, &envelope, traffic_class, &datagram);
        }
        let arrival = Arrival {
            from: envelope.from,
            to: envelope.to,
            traffic_class,
            segment: 0,
        };
        if let Some(opened) = codec.open(&arrival, &datagram) {
            let arrived = Frame {
                header: opened.header,
                payload: Payload::Bytes(opened.payload),
                damaged: opened.damaged,
                ..frame
            };
            network.deliver(arrived, now);
        }
    };
    Arc::new(Through { link, pass })
}

fn envelope<C: DatagramCodec>(codec: &C, port: u16, frame: &Frame<'_, C::Header>) -> Envelope {
    let to = codec.group(&frame.header);
    let flow = codec.tx_meta(&frame.header).flow;
    Envelope {
        from: SocketAddr::new(as_ip(frame.from), 0xc000 | flow as u16 & 0x3fff),
        to: SocketAddr::new(to.unwrap_or_else(|| as_ip(frame.to)), port),
        identification: 0,
    }
}

/// Encodes a frame as a datagram with its trailer; `None` if the wire format cannot represent it.
pub(crate) fn datagram<C: DatagramCodec>(
    codec: &C,
    frame: &Frame<'_, C::Header>,
    envelope: &Envelope,
) -> Option<Vec<u8>> {
    let length = frame.payload.len();
    // The codec must overwrite every byte, so the buffer does not begin with zeros.
    let mut datagram = vec![0xa5; length + C::OVERHEAD];
    let headers = codec.encode_header(&frame.header, length, &mut datagram)?;
    let end = headers + length;
    frame.payload.read(datagram.get_mut(headers..end)?);
    datagram.truncate(end + codec.trailer(length));
    codec.seal(envelope, end, &mut datagram);
    damage_last(frame, &mut datagram);
    Some(datagram)
}

/// Makes the checksum, which comes last, wrong if the link has damaged the frame.
fn damage_last<H>(frame: &Frame<'_, H>, bytes: &mut [u8]) {
    if let (true, Some(last)) = (frame.damaged, bytes.last_mut()) {
        *last ^= 1;
    }
}

type Halves<C> = (<C as StreamCodec>::Sender, <C as StreamCodec>::Receiver);

/// Wraps `link` so that `codec` encodes each frame that arrives as the next one of its stream, and parses it. `begin`
/// returns the states of the sending and the receiving half of a stream, and is called with the stream's first frame.
pub fn through_streams<C: StreamCodec>(
    link: SharedLink<C::Header>,
    codec: C,
    begin: fn(&C::Header) -> Halves<C>,
) -> SharedLink<C::Header> {
    let streams = Mutex::new(HashMap::<u64, Halves<C>>::new());
    let pass = move |frame: Frame<'_, C::Header>, now: Time, network: &dyn Deliver<C::Header>| {
        if !matches!(codec.leaving(&frame.header), Leaving::Frame | Leaving::Last) {
            return network.deliver(frame, now);
        }
        let key = codec.key(&frame.header);
        let halves = streams.lock().remove(&key);
        let (mut sender, mut receiver) = halves.unwrap_or_else(|| begin(&frame.header));
        let mut queue = ByteQueue::default();
        codec.encode(&mut sender, &frame.header, &frame.payload, &mut queue);
        let length = queue.len();
        let bytes = queue.last(length);
        damage_last(&frame, bytes);
        let found = match codec.open(&mut receiver, key, bytes) {
            Found::Partial => None,
            Found::Frame {
                header, payload, ..
            } => Some((header, payload, false)),
            Found::Broken(header) => Some((header, &[][..], true)),
        };
        if let Some((header, payload, damaged)) = found {
            let arrived = Frame {
                header,
                payload: Payload::Bytes(payload),
                damaged,
                ..frame
            };
            network.deliver(arrived, now);
        }
        streams.lock().insert(key, (sender, receiver));
    };
    Arc::new(Through { link, pass })
}

// Represents an address in process by one of the range for documentation (RFC 3849).
fn as_ip(address: LinkAddress) -> IpAddr {
    match address {
        LinkAddress::Ip(ip) => ip,
        LinkAddress::InProcess(number) => {
            let prefix = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0));
            Ipv6Addr::from(prefix | u128::from(number)).into()
        }
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}
