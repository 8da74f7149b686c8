//! The contents of Terminates, and when one is sent.

use emulated_iwarp::header::{Body, Message};
use polyverbs_wire::iwarp::{SegmentHeader, terminate::TerminatedRequest};
use verbs_api::qp::QpState;
use verbs_api::{
    RKey, RemoteAddress,
    wr::{self, ReceiveRequest},
};

use crate::iwarp::lab::{Lab, with_lkey};

fn nowhere() -> RemoteAddress {
    RemoteAddress::new(0, RKey::new(0x4242_4242))
}

// covers 9.42
#[test]
fn only_the_first_error_is_reported_and_ends_the_stream() {
    for max_frame in [None, Some(8)] {
        let lab = Lab::stream(max_frame);
        // Both requests will be refused, for different reasons, before the peer gets the first
        // refusal.
        lab.a
            .post(wr::Write::new(&b"nowhere"[..], nowhere()).signaled(1));
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 8), nowhere()).signaled(2));
        lab.b
            .post(wr::Send::new(&b"from the other side"[..]).signaled(3));
        lab.settle();
        let said = lab.wire().terminates();
        assert_eq!(said.len(), 1, "{said:?}");
        let error = said[0].code();
        assert_eq!((error.layer, error.etype, error.code), (1, 1, 0));
        assert_eq!(lab.b.terminated(), None);
        assert_eq!(lab.a.terminated(), Some((1, 1, 0)));
        assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
        // After the Terminate only the end of the stream follows.
        let seen = lab.wire().seen();
        let is_terminate =
            |message: &Message| matches!(message, Message::Untagged(_, Body::Terminate));
        let at = seen.iter().position(is_terminate);
        let behind = &seen[at.unwrap() + 1..];
        let ends = |message: &Message| matches!(message, Message::Close | Message::Reset);
        assert!(behind.iter().all(ends), "{behind:?}");
    }
}

// covers 9.43
#[test]
fn a_local_fault_shows_no_header_of_the_peer() {
    let lab = Lab::stream(None);
    let bad = with_lkey(lab.b.sge(0, 8), 0x7777_7777);
    lab.b.qp.post_receive(ReceiveRequest::new(10, bad)).unwrap();
    lab.a.post(wr::Send::new(&b"octets"[..]).signaled(1));
    lab.settle();
    let said = lab.wire().terminates();
    let error = said[0].code();
    assert_eq!((error.layer, error.etype, error.code), (1, 0, 0));
    assert_eq!((said[0].ddp, said[0].rdmap), (None, None));
}

// The responder checks a read as a whole before it serves any of it, so the unserved part is the
// whole read.
// covers 9.52
#[test]
fn a_refused_read_is_reported_with_its_request() {
    let lab = Lab::stream(None);
    lab.a
        .post(wr::Read::new(lab.a.sge(8, 100), nowhere()).signaled(1));
    lab.settle();
    let mut seen = lab.wire().seen().into_iter();
    let (segment, request) = seen
        .find_map(|message| match message {
            Message::Untagged(segment, Body::ReadRequest(request)) => Some((segment, request)),
            _ => None,
        })
        .unwrap();
    let said = lab.wire().terminates()[0];
    assert_eq!(said.ddp, Some(SegmentHeader::Untagged(segment)));
    assert_eq!(said.rdmap, Some(TerminatedRequest::Read(request)));
}
