//! A wire format without a wire: what goes over any datagram link becomes octets, and header values again.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink, TrySend};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;

use crate::capture::DatagramTap;
use crate::codec::{Arrival, DatagramCodec, Envelope, Found, Leaving, StreamCodec};
use crate::queue::OctetQueue;
use crate::sockets::Way;

/// A link around another whose frames arrive as a codec makes them of octets: in virtual time too, and with every fault.
///
/// A frame that the link has damaged gets a wrong checksum, and whether its receiver finds that out is the codec's
/// matter. A header without a form on the wire is lost.
pub struct ThroughOctets<C: DatagramCodec> {
    codec: C,
    link: SharedLink<C::Header>,
    port: u16,
    tap: Option<Arc<dyn DatagramTap>>,
}

impl<C: DatagramCodec> ThroughOctets<C> {
    /// Sends what goes over `link` through `codec`, as if to this port. `tap` is told of every datagram that arrives.
    pub fn new(
        link: SharedLink<C::Header>,
        codec: C,
        port: u16,
        tap: Option<Arc<dyn DatagramTap>>,
    ) -> Self {
        Self {
            codec,
            link,
            port,
            tap,
        }
    }

    fn envelope(&self, frame: &Frame<'_, C::Header>) -> Envelope {
        let to = self.codec.group(&frame.header);
        let flow = self.codec.tx_meta(&frame.header).flow;
        Envelope {
            from: SocketAddr::new(as_ip(frame.from), 0xc000 | flow as u16 & 0x3fff),
            to: SocketAddr::new(to.unwrap_or_else(|| as_ip(frame.to)), self.port),
            identification: 0,
        }
    }

    fn octets(&self, frame: &Frame<'_, C::Header>, envelope: &Envelope) -> Option<Vec<u8>> {
        let length = frame.payload.len();
        // What was left there before is not to matter.
        let mut octets = vec![0xa5; length + C::OVERHEAD];
        let headers = self
            .codec
            .encode_header(&frame.header, length, &mut octets)?;
        let end = headers + length;
        frame.payload.read(octets.get_mut(headers..end)?);
        octets.truncate(end + self.codec.trailer(length));
        self.codec.seal(envelope, end, &mut octets);
        if let (true, Some(last)) = (frame.damaged, octets.last_mut()) {
            *last ^= 1;
        }
        Some(octets)
    }
}

/// Where frames go on, once they were octets.
struct Onward<'l, C: DatagramCodec> {
    through: &'l ThroughOctets<C>,
    network: &'l dyn Deliver<C::Header>,
}

impl<C: DatagramCodec> Deliver<C::Header> for Onward<'_, C> {
    fn deliver(&self, frame: Frame<'_, C::Header>, now: Time) {
        let through = self.through;
        let envelope = through.envelope(&frame);
        let Some(octets) = through.octets(&frame, &envelope) else {
            return;
        };
        let traffic_class = through.codec.tx_meta(&frame.header).traffic_class;
        if let Some(tap) = &through.tap {
            tap.datagram(Way::In, &envelope, traffic_class, &octets);
        }
        let arrival = Arrival {
            from: envelope.from,
            to: envelope.to,
            traffic_class,
            segment: 0,
        };
        let Some(opened) = through.codec.open(&arrival, &octets) else {
            return;
        };
        let payload = if opened.payload.is_empty() {
            Payload::Empty
        } else {
            Payload::Octets(opened.payload)
        };
        let (from, to, header, damaged) = (frame.from, frame.to, opened.header, opened.damaged);
        self.network.deliver(
            Frame {
                from,
                to,
                header,
                payload,
                damaged,
            },
            now,
        );
    }
}

impl<C: DatagramCodec> Link<C::Header> for ThroughOctets<C> {
    fn inner(&self) -> Option<&dyn Link<C::Header>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn send(&self, frame: Frame<'_, C::Header>, now: Time) {
        self.link.send(frame, now);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        let onward = Onward {
            through: self,
            network,
        };
        self.link.progress(now, &onward)
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
}

/// Where the halves of a stream stand that a frame is the first of.
pub type NewStream<C> =
    fn(&<C as StreamCodec>::Header) -> (<C as StreamCodec>::Sender, <C as StreamCodec>::Receiver);

type Halves<C> = (<C as StreamCodec>::Sender, <C as StreamCodec>::Receiver);

/// The same for streams: each frame becomes octets as the next one of its stream, and a frame again.
///
/// A frame that the link has damaged has a bit of its octets flipped.
pub struct StreamThroughOctets<C: StreamCodec> {
    codec: C,
    link: SharedLink<C::Header>,
    begin: NewStream<C>,
    streams: Mutex<HashMap<u64, Halves<C>>>,
}

impl<C: StreamCodec> StreamThroughOctets<C> {
    /// Sends what goes over `link` through `codec`. `begin` makes the halves of a stream.
    pub fn new(link: SharedLink<C::Header>, codec: C, begin: NewStream<C>) -> Self {
        Self {
            codec,
            link,
            begin,
            streams: Mutex::default(),
        }
    }
}

/// Where frames of streams go on, once they were octets.
struct OnwardStream<'l, C: StreamCodec> {
    through: &'l StreamThroughOctets<C>,
    network: &'l dyn Deliver<C::Header>,
}

impl<C: StreamCodec> Deliver<C::Header> for OnwardStream<'_, C> {
    fn deliver(&self, frame: Frame<'_, C::Header>, now: Time) {
        let codec = &self.through.codec;
        if !matches!(codec.leaving(&frame.header), Leaving::Frame | Leaving::Last) {
            return self.network.deliver(frame, now);
        }
        let key = codec.key(&frame.header);
        let streams = &self.through.streams;
        let halves = streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
        let (mut sender, mut receiver) =
            halves.unwrap_or_else(|| (self.through.begin)(&frame.header));
        let mut queue = OctetQueue::default();
        codec.encode(&mut sender, &frame.header, &frame.payload, &mut queue);
        let length = queue.len();
        let octets = queue.last(length);
        if let (true, Some(last)) = (frame.damaged, octets.last_mut()) {
            *last ^= 1;
        }
        let (from, to) = (frame.from, frame.to);
        let deliver = |header, payload: &[u8], damaged| {
            let payload = if payload.is_empty() {
                Payload::Empty
            } else {
                Payload::Octets(payload)
            };
            let frame = Frame {
                from,
                to,
                header,
                payload,
                damaged,
            };
            self.network.deliver(frame, now);
        };
        match codec.open(&mut receiver, key, octets) {
            Found::Partial => {}
            Found::Frame {
                header, payload, ..
            } => deliver(header, payload, false),
            Found::Broken(header) => deliver(header, &[], true),
        }
        streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, (sender, receiver));
    }
}

impl<C: StreamCodec> Link<C::Header> for StreamThroughOctets<C> {
    fn inner(&self) -> Option<&dyn Link<C::Header>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn try_send(&self, frame: Frame<'_, C::Header>, now: Time) -> TrySend {
        self.link.try_send(frame, now)
    }

    fn send(&self, frame: Frame<'_, C::Header>, now: Time) {
        self.link.send(frame, now);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<C::Header>) -> bool {
        let onward = OnwardStream {
            through: self,
            network,
        };
        self.link.progress(now, &onward)
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
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
