//! Resolution of the queue pair that serves datagrams: asked, answered, and used.

use std::time::Duration;

use conformance::Flavour;
use polyverbs::{
    PathOptions, Qp, QpOptions, VerbError,
    wr::{self, UdDestination},
};
use polyverbs_connection::{ConnectError, Refusal};

use crate::networks::ends::{Ends, on, on_each};
use crate::rig::End;

const QKEY: u32 = 0x1357_9bdf;
const INFINIBAND: [Flavour; 2] = [Flavour::Ib, Flavour::IbUdp];

fn datagram_qp(ends: &Ends, end: &End) -> Qp {
    let created = end.pd.create_qp(QpOptions::ud(&end.cq));
    let qp = ends.rig.finish(created).unwrap();
    let activated = qp.activate(PathOptions::new().qkey(QKEY));
    ends.rig.finish(activated).unwrap();
    qp
}

// covers 7.18 7.17
#[test]
fn resolving_a_port_yields_the_queue_pair_and_its_qkey() {
    on(&INFINIBAND, |ends| {
        let (near, far) = (datagram_qp(ends, &ends.near), datagram_qp(ends, &ends.far));
        let services = ends
            .far
            .connector
            .listen_datagrams(ends.far.at(0), 0)
            .unwrap();
        let to = services.address();
        let asked = ends.near.connector.resolve(to, b"who");
        let question = ends.end(services.next());
        assert!(question.private_data().starts_with(b"who"));
        assert!(!asked.is_done());
        question.answer(&far, b"it is me").unwrap();
        let service = ends.end(asked);
        assert_eq!((service.qp_num, service.qkey), (far.qp_num(), QKEY));
        assert!(service.private_data.starts_with(b"it is me"));

        ends.far.post_receive(&far, 5);
        let path = service.path(&ends.near.context, 1).unwrap();
        let ah = ends.rig.finish(ends.near.pd.create_ah(path)).unwrap();
        let destination = UdDestination {
            ah: ah.clone(),
            remote_qpn: service.qp_num,
            remote_qkey: service.qkey,
        };
        let send = wr::Send::new(&b"hello"[..]).signaled(1);
        near.post_one(send.to(&destination)).unwrap();
        let done = ends.take(&ends.far, 1);
        assert_eq!((done[0].wr_id, done[0].status.is_success()), (5, true));
        assert!(ends.take(&ends.near, 1)[0].status.is_success());
    });
}

// covers 7.17 7.63
#[test]
fn datagram_services_and_connections_have_separate_ports() {
    on(&INFINIBAND, |ends| {
        let at = ends.listener.address();
        let services = ends.far.connector.listen_datagrams(at, 0).unwrap();
        assert_eq!(services.address(), at);
        let again = ends.far.connector.listen_datagrams(at, 0);
        assert!(matches!(again, Err(ConnectError::AddressInUse { address, .. }) if address == at));
        // A connect reaches the listener, and a resolution the datagram service.
        let qp = ends.near_qp();
        let asked = ends.request(&qp);
        let resolved = ends.near.connector.resolve(at, b"");
        let incoming = ends.end(ends.listener.next());
        let question = ends.end(services.next());
        drop(services);
        drop(question);
        assert!(matches!(ends.error(resolved), ConnectError::Refused { .. }));
        incoming.reject(b"").unwrap();
        ends.error(asked);
        // The dropped service answers no longer, and the remaining listener does not answer for it.
        let resolved = ends.near.connector.resolve(at, b"");
        // The near end asks again for a while, because a service may be about to listen.
        ends.run_for(Duration::from_millis(100));
        assert!(matches!(ends.error(resolved), ConnectError::Refused { .. }));
        assert!(ends.far.connector.listen_datagrams(at, 0).is_ok());
    });
}

// covers 7.18 7.52
#[test]
fn invalid_questions_and_answers_are_errors() {
    on_each(|ends| {
        let (near, at) = (&ends.near.connector, ends.far.at(0));
        if ends.flavour == Flavour::IwTcp {
            // iWARP has no datagrams.
            let none = |error| matches!(error, ConnectError::Verb(VerbError::UnsupportedVerb(_)));
            assert!(none(near.listen_datagrams(at, 0).unwrap_err()));
            assert!(none(ends.error(near.resolve(at, b""))));
            return;
        }
        if ends.is_stream() {
            return;
        }
        let services = ends.far.connector.listen_datagrams(at, 1).unwrap();
        let to = services.address();
        let too_much = ConnectError::PrivateData { len: 181, max: 180 };
        assert_eq!(ends.error(near.resolve(to, &[0; 181])), too_much);
        // A connected queue pair cannot answer; an answer may be too long; and a backlog may be full.
        let asked = near.resolve(to, &[1; 180]);
        let question = ends.end(services.next());
        assert_eq!(&question.private_data()[..180], [1; 180]);
        assert!(question.answer(&ends.far_qp(), b"").is_err());
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        let asked = near.resolve(to, b"");
        let far = datagram_qp(ends, &ends.far);
        let answered = ends.end(services.next()).answer(&far, &[0; 137]);
        assert_eq!(
            answered,
            Err(ConnectError::PrivateData { len: 137, max: 136 })
        );
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        let waits = near.resolve(to, b"");
        let refused = near.resolve(to, b"");
        assert!(matches!(ends.error(refused), ConnectError::Refused { .. }));
        assert!(!waits.is_done());
    });
}

#[test]
fn a_rejected_resolution_gets_the_private_data() {
    on(&INFINIBAND, |ends| {
        let services = ends.far.connector.listen_datagrams(ends.far.at(0), 0);
        let services = services.unwrap();
        for (said, sent) in [(&b"not here"[..], true), (&[0; 137][..], false)] {
            let asked = ends.near.connector.resolve(services.address(), b"");
            let rejected = ends.end(services.next()).reject(said);
            let ConnectError::Refused {
                reason,
                private_data,
            } = ends.error(asked)
            else {
                panic!("it was not refused");
            };
            assert_eq!(reason, Refusal::Program);
            assert_eq!(rejected.is_ok(), sent);
            assert_eq!(private_data.starts_with(said), sent);
        }
    });
}

// covers 7.18 7.62
#[test]
fn resolutions_fail_if_either_device_is_removed() {
    on(&[Flavour::IbUdp], |ends| {
        let (near, at) = (&ends.near.connector, ends.far.at(0));
        let services = ends.far.connector.listen_datagrams(at, 0).unwrap();
        let asked = near.resolve(services.address(), b"");
        let question = ends.end(services.next());
        ends.rig.far.steer().remove();
        drop(question);
        ends.expire();
        assert_eq!(ends.error(asked), ConnectError::TimedOut);
        let asked = near.resolve(services.address(), b"");
        ends.rig.near.steer().remove();
        let error = ends.error(asked);
        assert_eq!(error, ConnectError::Verb(VerbError::DeviceRemoved));
    });
}
