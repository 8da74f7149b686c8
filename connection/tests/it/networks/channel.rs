//! Identifiers and channels of events.

use std::time::Duration;

use conformance::Flavour;
use polyverbs::Qp;
use polyverbs_connection::{
    ChannelEvent, ChannelEventKind, ConnectError, ConnectionOptions, EventChannel, Identifier,
};

use crate::networks::ends::{Ends, address_of, on, on_each};

fn options() -> ConnectionOptions {
    ConnectionOptions::new()
}

fn next(ends: &Ends, channel: &EventChannel) -> ChannelEvent {
    ends.end(channel.next())
}

/// A listener, an identifier that connects to it, and the event of the request.
fn asked(ends: &Ends, channel: &EventChannel, qp: &Qp) -> (Identifier, Identifier, ChannelEvent) {
    let far = &ends.rig.far;
    let listener = Identifier::new(channel, &ends.far.connector, &far.context);
    let at = listener.listen(address_of(far), 0).unwrap();
    let asking = Identifier::new(channel, &ends.near.connector, &ends.rig.near.context);
    asking.connect(qp, at, options().private_data(b"may I"));
    let event = next(ends, channel);
    assert!(event.is_of(&listener));
    (listener, asking, event)
}

// covers 7.14 7.54 7.58 7.60
#[test]
fn events_of_many_identifiers_arrive_in_order_on_one_channel() {
    on_each(|ends| {
        let channel = EventChannel::new();
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (listener, asking, mut event) = asked(ends, &channel, &near);
        let ChannelEventKind::ConnectRequest { private_data } = event.kind() else {
            panic!("{:?}", event.kind());
        };
        assert!(private_data.starts_with(b"may I"));
        let asked = event.take_request().unwrap();
        assert!(event.take_request().is_none());
        drop(event);
        asked.accept(&far, options().private_data(b"yes")).unwrap();
        assert_eq!(asked.reject(b""), Err(ConnectError::NotConnected));
        for _ in 0..2 {
            let event = next(ends, &channel);
            let ChannelEventKind::Established { private_data } = event.kind() else {
                panic!("{:?}", event.kind());
            };
            assert_eq!(event.is_of(&asking), private_data.starts_with(b"yes"));
        }
        ends.talk(&near, &far);
        assert_eq!(listener.disconnect(&far), Err(ConnectError::NotConnected));
        asking.disconnect(&near).unwrap();
        let each = if ends.is_stream() { 1 } else { 2 };
        let mut gone = vec![next(ends, &channel), next(ends, &channel)];
        ends.run_for(Duration::from_secs(1));
        gone.extend((2..2 * each).map(|_| next(ends, &channel)));
        for identifier in [&asking, &asked] {
            let told = gone.iter().filter(|event| event.is_of(identifier));
            let told: Vec<_> = told.map(ChannelEvent::kind).collect();
            assert!(
                matches!(told[0], ChannelEventKind::Disconnected),
                "{told:?}"
            );
            // On InfiniBand the communication IDs stay reserved for a while after the end.
            assert!(
                told[1..]
                    .iter()
                    .all(|told| matches!(told, ChannelEventKind::TimewaitExit))
            );
            assert_eq!(told.len(), each);
        }
        drop(gone);
        assert!(channel.poll().is_none());
        for identifier in [listener, asking, asked] {
            ends.end(identifier.destroy());
        }
    });
}

// covers 7.60
#[test]
fn an_accepted_connection_precedes_the_next_request() {
    // Over sockets the order of the two messages is not deterministic.
    on(&[Flavour::Ib, Flavour::Iwarp], |ends| {
        let channel = EventChannel::new();
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let next_qp = ends.near_qp();
        let listener = Identifier::new(&channel, &ends.far.connector, &ends.rig.far.context);
        let at = listener.listen(address_of(&ends.rig.far), 0).unwrap();
        let (connector, context) = (&ends.near.connector, &ends.rig.near.context);
        let first = connector.connect(context, &near, at, options());
        let mut event = next(ends, &channel);
        let asked = event.take_request().unwrap();
        drop(event);
        let (connector, context) = (connector.clone(), context.clone());
        first.on_done(move |accepted| {
            accepted.unwrap().complete().on_done(move |connection| {
                std::mem::forget(connection);
                connector
                    .connect(&context, &next_qp, at, options())
                    .on_done(|_| {});
            });
        });
        asked.accept(&far, options()).unwrap();
        let told = [next(ends, &channel), next(ends, &channel)];
        let told = told.each_ref().map(ChannelEvent::kind);
        assert!(
            matches!(told[0], ChannelEventKind::Established { .. }),
            "{told:?}"
        );
        assert!(
            matches!(told[1], ChannelEventKind::ConnectRequest { .. }),
            "{told:?}"
        );
    });
}

// covers 7.61
#[test]
fn an_identifier_is_destroyed_when_its_events_are_acknowledged() {
    on_each(|ends| {
        let channel = EventChannel::new();
        let near = ends.near_qp();
        let (listener, asking, event) = asked(ends, &channel, &near);
        let destroyed = listener.destroy();
        ends.settle();
        assert!(!destroyed.is_done());
        // Dropping the event rejects the request in it.
        drop(event);
        ends.end(destroyed);
        let refused = next(ends, &channel);
        assert!(matches!(refused.kind(), ChannelEventKind::Rejected { .. }));
        // The destroy of the identifier waits only for the event that the program has taken
        // from the channel.
        let destroyed = asking.destroy();
        assert!(!destroyed.is_done());
        drop(refused);
        ends.end(destroyed);
        assert!(channel.poll().is_none());
    });
}

// covers 7.64
#[test]
fn an_identifier_moves_after_its_taken_events_are_acknowledged() {
    on_each(|ends| {
        let (old, new) = (EventChannel::new(), EventChannel::new());
        let near = ends.near_qp();
        let (listener, asking, event) = asked(ends, &old, &near);
        let moved = listener.migrate(&new);
        // During the move, events are reported on neither channel.
        let other = Identifier::new(&old, &ends.near.connector, &ends.rig.near.context);
        let second = ends.near_qp();
        let at = listener.address().unwrap();
        other.connect(&second, at, options());
        ends.settle();
        assert!(!moved.is_done());
        assert!(old.poll().is_none() && new.poll().is_none());
        drop(event);
        ends.end(moved);
        // The rejected identifier gets its event on the channel that it is still on.
        let refused = next(ends, &old);
        assert!(refused.is_of(&asking));
        let mut request = next(ends, &new);
        assert!(request.is_of(&listener));
        request.take_request().unwrap().reject(b"").unwrap();
        assert!(next(ends, &old).is_of(&other));
        // The program holds no event of the identifier, so it moves at once.
        drop(refused);
        ends.end(asking.migrate(&new));
        assert!(old.poll().is_none());
    });
}

// covers 7.62
#[test]
fn every_identifier_of_a_removed_device_gets_an_event() {
    on_each(|ends| {
        let channel = EventChannel::new();
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (listener, asking, mut event) = asked(ends, &channel, &near);
        let asked = event.take_request().unwrap();
        asked.accept(&far, options()).unwrap();
        drop(event);
        drop((next(ends, &channel), next(ends, &channel)));
        ends.rig.far.steer().remove();
        let removals = |identifier: &Identifier, events: &[ChannelEvent]| {
            let removal = |event: &&ChannelEvent| {
                event.is_of(identifier) && matches!(event.kind(), ChannelEventKind::DeviceRemoval)
            };
            events.iter().filter(removal).count()
        };
        let mut events = Vec::new();
        while removals(&listener, &events) + removals(&asked, &events) < 2 {
            events.push(next(ends, &channel));
        }
        assert_eq!(
            (removals(&listener, &events), removals(&asked, &events)),
            (1, 1)
        );
        assert_eq!(removals(&asking, &events), 0);
        drop(events);
        ends.end(listener.destroy());
        ends.end(asked.destroy());
        // A future that is dropped consumes no event.
        drop(channel.next());
        let waits = channel.next();
        ends.rig.near.steer().remove();
        let told = ends.end(waits);
        assert!(told.is_of(&asking));
    });
}
