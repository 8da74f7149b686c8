//! A wire format without a wire: what goes over any link becomes bytes, and header values again.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink, TrySend};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;

use crate::capture::DatagramTap;
use crate::codec::{Arrival, DatagramCodec, Envelope, Found, Leaving, StreamCodec};
use crate::lock;
use crate::queue::ByteQueue;
use crate::sockets::Way;

/// A link around another whose frames arrive as a codec makes them of bytes: in virtual time too, and with every fault.
struct Through<H, F> {
    link: SharedLink<H>,
    /// Delivers a frame once it was bytes, or loses it.
    pass: F,
}

/// Where the frames of the inner link go.
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

/// `link`, with each of its frames sent through `codec` as a datagram to this port. `tap` is told of those that arrive.
///
/// A frame that the link has damaged gets a wrong checksum, and whether its receiver finds that out is the codec's
/// matter. A header without a form on the wire is lost.
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

/// A frame as its datagram; `None` where it has no form on this wire.
pub(crate) fn datagram<C: DatagramCodec>(
    codec: &C,
    frame: &Frame<'_, C::Header>,
    envelope: &Envelope,
) -> Option<Vec<u8>> {
    let length = frame.payload.len();
    // What was left there before is not to matter.
    let mut datagram = vec![0xa5; length + C::OVERHEAD];
    let headers = codec.encode_header(&frame.header, length, &mut datagram)?;
    let end = headers + length;
    frame.payload.read(datagram.get_mut(headers..end)?);
    datagram.truncate(end + codec.trailer(length));
    codec.seal(envelope, end, &mut datagram);
    damage_last(frame, &mut datagram);
    Some(datagram)
}

/// Makes the checksum of a frame wrong that the link has damaged.
fn damage_last<H>(frame: &Frame<'_, H>, bytes: &mut [u8]) {
    if let (true, Some(last)) = (frame.damaged, bytes.last_mut()) {
        *last ^= 1;
    }
}

type Halves<C> = (<C as StreamCodec>::Sender, <C as StreamCodec>::Receiver);

/// The same for streams: each frame becomes bytes as the next one of its stream. `begin` makes the halves of a stream for
/// the first frame.
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
        let halves = lock(&streams).remove(&key);
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
        lock(&streams).insert(key, (sender, receiver));
    };
    Arc::new(Through { link, pass })
}

// An address of a port of a network in process: of the range that documentation has (RFC 3849).
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
