//! Both sides against each other, and each against the bytes that a peer may send.

use hex_literal::hex;
use polyverbs_engine::time::Time;
use polyverbs_wire::iwarp::start::{self, LEFT_TO_PROGRAM};
use polyverbs_wire::iwarp::terminate::TerminateCode;

use super::*;

const START: Time = Time(0);

struct Met {
    near: Result<Output, Failure>,
    far: Option<Started>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

fn meet_with(near: StartOptions, far: StartOptions, reply: StartReply) -> Met {
    let mut initiator = Negotiation::initiator(START, near, b"hello").unwrap();
    let mut responder = Negotiation::responder(START, far);
    let request = initiator.poll_bytes();
    let Output::Requested { private_data } = responder.handle_bytes(&request).unwrap() else {
        panic!("no request came");
    };
    assert_eq!(private_data, b"hello");
    let far = responder.answer(reply, b"well").unwrap();
    let reply = responder.poll_bytes();
    Met {
        near: initiator.handle_bytes(&reply),
        far,
        request,
        reply,
    }
}

fn meet(near: StartOptions, far: StartOptions) -> (Started, Started) {
    let met = meet_with(near, far, StartReply::Accept);
    match (met.near, met.far) {
        (
            Ok(Output::Started {
                started,
                private_data,
            }),
            Some(far),
        ) => {
            assert_eq!(private_data, b"well");
            (started, far)
        }
        (near, far) => panic!("{near:?} {far:?}"),
    }
}

fn options() -> StartOptions {
    StartOptions::default()
}

/// The output of an initiator that gets this reply.
fn answered(
    options: StartOptions,
    flags: u8,
    revision: u8,
    private: &[u8],
) -> Result<Output, Failure> {
    let mut initiator = Negotiation::initiator(START, options, b"").unwrap();
    let mut reply = b"MPA ID Rep Frame".to_vec();
    reply.extend([flags, revision, 0, private.len() as u8]);
    reply.extend(private);
    initiator.handle_bytes(&reply)
}

/// The settings and the reply of a responder that gets this request.
fn asked(
    options: StartOptions,
    flags: u8,
    revision: u8,
    private: &[u8],
) -> (Option<Started>, Vec<u8>) {
    let mut responder = Negotiation::responder(START, options);
    let mut request = b"MPA ID Req Frame".to_vec();
    request.extend([flags, revision, 0, private.len() as u8]);
    request.extend(private);
    assert!(matches!(
        responder.handle_bytes(&request),
        Ok(Output::Requested { .. })
    ));
    let started = responder.answer(StartReply::Accept, b"").unwrap();
    (started, responder.poll_bytes())
}

fn fields(ird: u16, ord: u16) -> [u8; 4] {
    let [a, b] = ird.to_be_bytes();
    let [c, d] = ord.to_be_bytes();
    [a, b, c, d]
}

// covers 7.30 7.37 7.38
#[test]
fn request_and_reply_are_as_the_standard_draws_them() {
    let near = StartOptions {
        depths: Depths { ird: 4, ord: 8 },
        ..options()
    };
    let far = StartOptions {
        depths: Depths { ird: 6, ord: 6 },
        most_ird: 6,
        rtr: ReadyForms::READ,
        ..options()
    };
    let met = meet_with(near, far, StartReply::Accept);
    assert_eq!(
        met.request,
        hex!("4d504120494420526571204672616d65 50 02 0009 c004 c008 68656c6c6f")
    );
    assert_eq!(
        met.reply,
        hex!("4d504120494420526570204672616d65 50 02 0008 8006 4004 77656c6c")
    );
}

// covers 7.36 7.38
#[test]
fn the_lower_revision_is_used_and_the_reply_is_enhanced_if_the_request_is() {
    let of = |revision| StartOptions {
        revision,
        ..options()
    };
    for (near, far, expected) in [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 2)] {
        let (at_near, at_far) = meet(of(near), of(far));
        assert_eq!((at_near.revision, at_far.revision), (expected, expected));
        assert_eq!(at_near.peer.is_some(), expected == 2);
        assert_eq!(at_far.rtr.is_some(), expected == 2);
    }
    // Revision 2 without the enhanced header: the reply has none either.
    let (started, reply) = asked(options(), 0x40, 2, b"");
    assert_eq!((reply[16] & 0x10, reply[17]), (0, 2));
    assert_eq!(started.map(|started| started.rtr), Some(None));
    let plain = answered(options(), 0x40, 2, b"");
    assert_eq!(plain, Err(Failure::Form));
    assert_eq!(answered(options(), 0x40, 3, b""), Err(Failure::Revision(3)));
    assert_eq!(answered(of(1), 0x40, 2, b""), Err(Failure::Revision(2)));
}

// covers 7.36
#[test]
fn a_peer_that_closes_upon_revision_2_may_be_asked_with_revision_1() {
    let mut initiator = Negotiation::initiator(START, options(), b"").unwrap();
    let closed = initiator.handle_close().unwrap_err();
    assert!(initiator.may_fall_back(&closed));
    let one = StartOptions {
        revision: 1,
        ..options()
    };
    let mut initiator = Negotiation::initiator(START, one, b"").unwrap();
    let closed = initiator.handle_close().unwrap_err();
    assert!(!initiator.may_fall_back(&closed));
}

// covers 7.31 7.32
#[test]
fn markers_are_chosen_by_the_receiver_and_checksums_by_either_side() {
    for bits in 0..16 {
        let bit = |n: u8| bits >> n & 1 == 1;
        let near = StartOptions {
            markers: bit(0),
            crc: bit(1),
            ..options()
        };
        let far = StartOptions {
            markers: bit(2),
            crc: bit(3),
            ..options()
        };
        let (at_near, at_far) = meet(near, far);
        assert_eq!(at_near.settings, at_far.settings);
        assert_eq!(at_near.settings.responder_markers, bit(0));
        assert_eq!(at_near.settings.initiator_markers, bit(2));
        assert_eq!(at_near.settings.crc, bit(1) || bit(3));
    }
}

// covers 7.33
#[test]
fn a_rejection_carries_private_data_and_a_reject_bit_in_a_request_is_ignored() {
    let met = meet_with(options(), options(), StartReply::Reject);
    assert_eq!(met.far, None);
    assert_eq!(
        met.near,
        Ok(Output::Rejected {
            private_data: b"well".to_vec()
        })
    );
    let (started, _) = asked(options(), 0x60, 1, b"");
    assert!(started.is_some());
}

// covers 7.30 7.34
#[test]
fn invalid_input_ends_the_negotiation_without_an_answer() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"MPA ID Req Frame\x40\x01\x02\x01",
    ] {
        let mut responder = Negotiation::responder(START, options());
        assert!(matches!(
            responder.handle_bytes(bytes),
            Err(Failure::Malformed(_))
        ));
        assert!(responder.poll_bytes().is_empty());
        assert_eq!(
            responder.answer(StartReply::Accept, b""),
            Err(Failure::State)
        );
        assert_eq!(responder.next_due(), None);
    }
    let mut responder = Negotiation::responder(START, options());
    let reply = b"MPA ID Rep Frame\x40\x01\x00\x00";
    assert_eq!(responder.handle_bytes(reply), Err(Failure::SameRole));
    let mut initiator = Negotiation::initiator(START, options(), b"").unwrap();
    let request = b"MPA ID Req Frame\x4f\x01\x00\x00";
    assert_eq!(initiator.handle_bytes(request), Err(Failure::SameRole));
    // Reserved bits are ignored.
    let (started, _) = asked(options(), 0x4f, 1, b"");
    assert!(started.is_some());
}

// covers 7.39
#[test]
fn no_side_starts_more_reads_than_the_other_serves() {
    let near = StartOptions {
        depths: Depths { ird: 4, ord: 8 },
        ..options()
    };
    let far = StartOptions {
        depths: Depths { ird: 6, ord: 6 },
        most_ird: 6,
        ..options()
    };
    let (at_near, at_far) = meet(near, far);
    assert_eq!(at_far.depths, Depths { ird: 6, ord: 4 });
    assert_eq!(at_near.depths, Depths { ird: 4, ord: 6 });
    assert_eq!(at_far.peer, Some((Depth::Reads(4), Depth::Reads(8))));
    assert_eq!(at_near.peer, Some((Depth::Reads(6), Depth::Reads(4))));
}

#[test]
fn a_responder_serves_the_initiators_ord_if_it_can() {
    for (most_ird, served) in [(10, 8), (8, 8), (7, 7), (4, 4)] {
        let near = StartOptions {
            depths: Depths { ird: 4, ord: 8 },
            ..options()
        };
        let far = StartOptions {
            depths: Depths { ird: 4, ord: 6 },
            most_ird,
            ..options()
        };
        let (at_near, at_far) = meet(near, far);
        assert_eq!(
            at_far.depths,
            Depths {
                ird: served,
                ord: 4
            }
        );
        assert_eq!(
            at_near.depths,
            Depths {
                ird: 4,
                ord: served
            }
        );
    }
}

// covers 7.39
#[test]
fn a_depth_left_to_the_programs_returns_in_the_opposite_field() {
    let far = StartOptions {
        depths: Depths { ird: 6, ord: 6 },
        most_ird: 6,
        ..options()
    };
    let (started, reply) = asked(far, 0x50, 2, &fields(LEFT_TO_PROGRAM, 8));
    let (reply, _) = start::decode(&reply).unwrap().unwrap();
    let enhanced = reply.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (6, LEFT_TO_PROGRAM));
    assert_eq!(started.unwrap().depths, far.depths);

    let (started, reply) = asked(far, 0x50, 2, &fields(4, LEFT_TO_PROGRAM));
    let (reply, _) = start::decode(&reply).unwrap().unwrap();
    let enhanced = reply.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (LEFT_TO_PROGRAM, 4));
    assert_eq!(started.unwrap().depths, Depths { ird: 6, ord: 4 });

    let one_way = StartOptions {
        rtr: ReadyForms::empty(),
        ..options()
    };
    let left = fields(LEFT_TO_PROGRAM, LEFT_TO_PROGRAM);
    let Ok(Output::Started { started, .. }) = answered(one_way, 0x50, 2, &left) else {
        panic!()
    };
    assert_eq!(started.depths, one_way.depths);
}

// covers 7.39
#[test]
fn an_initiator_serves_the_responders_ord_or_terminates() {
    let one_way = StartOptions {
        rtr: ReadyForms::empty(),
        depths: Depths { ird: 4, ord: 8 },
        most_ird: 10,
        ..options()
    };
    let Ok(Output::Started { started, .. }) = answered(one_way, 0x50, 2, &fields(2, 10)) else {
        panic!()
    };
    assert_eq!(started.depths, Depths { ird: 10, ord: 2 });
    let too_many = answered(one_way, 0x50, 2, &fields(2, 11));
    assert_eq!(
        too_many,
        Err(Failure::Terminate(TerminateCode::new(2, 0, 6)))
    );
}

// covers 7.39
#[test]
fn a_read_as_ready_to_receive_indication_needs_an_ird_of_one() {
    let far = StartOptions {
        depths: Depths { ird: 0, ord: 0 },
        most_ird: 0,
        rtr: ReadyForms::READ,
        ..options()
    };
    let (at_near, at_far) = meet(options(), far);
    assert_eq!(
        (at_far.depths.ird, at_near.rtr),
        (1, Some(ReadyForms::READ))
    );
}

// covers 7.40
#[test]
fn the_initiator_chooses_a_ready_to_receive_form_that_both_support() {
    let of = |rtr| StartOptions { rtr, ..options() };
    for near in 1..8 {
        for far in 1..8 {
            let (near, far) = (
                ReadyForms::from_bits_retain(near),
                ReadyForms::from_bits_retain(far),
            );
            let met = meet_with(of(near), of(far), StartReply::Accept);
            let (reply, _) = start::decode(&met.reply).unwrap().unwrap();
            let enhanced = reply.enhanced.unwrap();
            assert!(enhanced.peer_to_peer);
            assert!(enhanced.rtr_send || enhanced.rtr_write || enhanced.rtr_read);
            let common = near & far;
            match met.near {
                Ok(Output::Started { started, .. }) => {
                    assert!(common.contains(started.rtr.unwrap()), "{near:?} {far:?}");
                }
                Err(failure) => {
                    let expected = Failure::Terminate(TerminateCode::new(2, 0, 7));
                    assert_eq!(failure, expected, "{near:?} {far:?}");
                    assert!(common.is_empty());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

// covers 7.37
// concerns 7.35
#[test]
fn without_the_peer_to_peer_model_there_is_no_ready_to_receive_indication() {
    let near = StartOptions {
        rtr: ReadyForms::empty(),
        ..options()
    };
    let (at_near, at_far) = meet(near, options());
    assert_eq!((at_near.rtr, at_far.rtr), (None, None));
    // B, C and D mean nothing where A is not set.
    let (started, reply) = asked(options(), 0x50, 2, &[0x40, 4, 0xc0, 4]);
    assert_eq!(started.unwrap().rtr, None);
    assert_eq!((reply[20] & 0xc0, reply[22] & 0xc0), (0, 0));
}

// covers 7.41
#[test]
fn a_peer_that_sends_its_request_too_slowly_times_out() {
    let mut responder = Negotiation::responder(START, options());
    for byte in &b"MPA ID Req Frame\x40\x01\x00"[..] {
        assert_eq!(responder.handle_bytes(&[*byte]), Ok(Output::Pending));
    }
    let due = responder.next_due().unwrap();
    assert_eq!(due, START.after(options().patience));
    assert_eq!(responder.handle_timeout(Time(due.0 - 1)), Ok(()));
    assert_eq!(responder.handle_timeout(due), Err(Failure::TimedOut));
    assert!(responder.poll_bytes().is_empty());
    let mut initiator = Negotiation::initiator(START, options(), b"").unwrap();
    assert_eq!(initiator.handle_timeout(due), Err(Failure::TimedOut));
}

// covers 7.42
#[test]
fn it_may_come_byte_by_byte_or_with_more_behind_it() {
    let met = meet_with(options(), options(), StartReply::Accept);
    let mut initiator = Negotiation::initiator(START, options(), b"hello").unwrap();
    let (last, front) = met.reply.split_last().unwrap();
    for byte in front {
        assert_eq!(initiator.handle_bytes(&[*byte]), Ok(Output::Pending));
    }
    let end = initiator.handle_bytes(&[*last, 1, 2, 3]).unwrap();
    assert!(matches!(end, Output::Started { .. }));
    assert_eq!(initiator.take_rest(), [1, 2, 3]);
}

// covers 7.48
#[test]
fn private_data_has_512_bytes_and_4_less_where_the_header_is_enhanced() {
    let big = [1; 513];
    let one = StartOptions {
        revision: 1,
        ..options()
    };
    for (options, max) in [(one, 512), (options(), 508)] {
        assert!(Negotiation::initiator(START, options, &big[..max]).is_ok());
        let len = max + 1;
        let failure = Negotiation::initiator(START, options, &big[..len]).unwrap_err();
        assert_eq!(failure, Failure::PrivateData { len, max });
    }
}

#[test]
fn endless_bytes_are_not_kept() {
    let mut responder = Negotiation::responder(START, options());
    responder
        .handle_bytes(b"MPA ID Req Frame\x40\x01\x00\x00")
        .unwrap();
    let mut outcome = Ok(Output::Pending);
    for _ in 0..100 {
        outcome = responder.handle_bytes(&[0; 4096]);
        if outcome.is_err() {
            break;
        }
    }
    assert!(outcome.is_err());
}
