use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::layout::Octets;
use crate::mad::rdma_cm::RdmaCm;
use crate::mad::{self, MAD_LEN, encode};

// Messages that Linux's connection manager sent, without the zeros at their ends.
const REQ: &[u8] = &hex!(
    "0107020300000000 0000000295ebf999 0010000000000000"
    "99f9eb95 00000000 0000000001061c06 505400fffe000002 00000000 00000000"
    "00002201 00000001 000000a0 c7c11da7 ffff 37f0 ffff ffff"
    "00000000000000000000ffff0a4d0002 00000000000000000000ffff0a4d0001"
    "86fa2000 00400098 "
    "00000000000000000000000000000000 00000000000000000000000000000000 000000000000000000000000"
    "0040c8e4 0000000000000000000000000a4d0002 0000000000000000000000000a4d0001"
);
const REP: &[u8] = &hex!(
    "0107020300000000 0000000295ebf999 0013000000000000"
    "a5c30134 99f9eb95 00000000 00001600 00000000 c8991200 010178e0 505400fffe000001"
);
const REJ: &[u8] =
    &hex!("0107020300000000 0000000295ebf99b 0012000000000000 00000000 9bf9eb95 0000 0008");

fn whole(front: &[u8]) -> [u8; MAD_LEN] {
    Octets::padded(front).unwrap().0
}

fn message(front: &[u8]) -> Message {
    decode(&mad::decode(&whole(front)).unwrap()).unwrap()
}

#[test]
fn a_request_of_linux_is_decoded() {
    let Message::Req(req) = message(REQ) else {
        panic!("not a REQ");
    };
    assert_eq!(req.local_comm_id, 0x99f9_eb95);
    assert_eq!(req.service_id, 0x0106_1c06);
    assert_eq!(req.ca_guid, 0x5054_00ff_fe00_0002);
    assert_eq!((req.qpn, req.starting_psn), (0x22, 0xc7_c11d));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.remote_response_timeout, req.transport_type), (20, 0));
    assert_eq!((req.local_response_timeout, req.retry_count), (20, 7));
    assert_eq!((req.p_key, req.path_mtu), (0xffff, 3));
    assert_eq!(
        (req.rnr_retry_count, req.max_cm_retries, req.srq),
        (7, 15, false)
    );
    let gid = Octets(hex!("00000000000000000000ffff0a4d0002"));
    assert_eq!(
        (req.primary_local_lid, req.primary_local_gid),
        (0xffff, gid)
    );
    assert_eq!(
        (req.primary_flow_label, req.primary_packet_rate),
        (0x86fa2, 0)
    );
    assert_eq!(
        encode(
            &header_of(&req.into(), 0x2_95eb_f999),
            &Message::Req(req).to_data()
        ),
        whole(REQ)
    );
    let (rdma_cm, _) = RdmaCm::split(&req.private_data.0).unwrap();
    assert_eq!(rdma_cm.source_port, 0xc8e4);
    let between = ([10, 77, 0, 2].into(), [10, 77, 0, 1].into());
    assert_eq!(rdma_cm.addresses(), Some(between));
    assert_eq!(req.primary_hop_limit, 64);
}

#[test]
fn answers_of_linux_are_decoded() {
    let Message::Rep(rep) = message(REP) else {
        panic!("not a REP");
    };
    assert_eq!(
        (rep.local_comm_id, rep.remote_comm_id),
        (0xa5c3_0134, 0x99f9_eb95)
    );
    assert_eq!((rep.qpn, rep.starting_psn), (0x16, 0xc8_9912));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count), (15, 7));
    assert_eq!(rep.ca_guid, 0x5054_00ff_fe00_0001);
    assert_eq!(
        encode(
            &header_of(&rep.into(), 0x2_95eb_f999),
            &Message::Rep(rep).to_data()
        ),
        whole(REP)
    );

    let Message::Rej(rej) = message(REJ) else {
        panic!("not a REJ");
    };
    assert_eq!((rej.local_comm_id, rej.message), (0, 0));
    assert_eq!(rej.reason, reason::INVALID_SERVICE_ID);
}

// Each line has a position after the header of the management datagram and the meaning of one bit
// there.
#[test]
fn fields_are_at_the_positions_of_the_standard() {
    let fields = |attribute: u16, at: usize, octet: u8| {
        let mut data = [0; DATA_LEN];
        data[at] = octet;
        Message::of(attribute, &data).unwrap()
    };
    macro_rules! lies {
        ($message:ident, $attribute:literal, $at:expr, $octet:expr, $field:ident = $value:expr) => {
            let expected = $message {
                $field: $value,
                ..$message::default()
            };
            assert_eq!(fields($attribute, $at, $octet), Message::$message(expected));
        };
    }
    lies!(Req, 0x10, 35, 4, responder_resources = 4);
    lies!(Req, 0x10, 39, 2, initiator_depth = 2);
    lies!(Req, 0x10, 43, 0x06, transport_type = 3);
    lies!(Req, 0x10, 43, 0x01, flow_control = true);
    lies!(Req, 0x10, 50, 0x08, rdc_exists = true);
    lies!(Req, 0x10, 51, 0x08, srq = true);
    lies!(Req, 0x10, 51, 0x01, extended_transport_type = 1);
    lies!(Req, 0x10, 91, 0x06, primary_packet_rate = 6);
    lies!(Req, 0x10, 93, 64, primary_hop_limit = 64);
    lies!(Req, 0x10, 94, 0x10, primary_service_level = 1);
    lies!(Req, 0x10, 94, 0x08, primary_subnet_local = true);
    lies!(Req, 0x10, 95, 0x98, primary_ack_timeout = 19);
    lies!(Req, 0x10, 97, 7, alternate_local_lid = 7);
    lies!(Req, 0x10, 139, 0x98, alternate_ack_timeout = 19);
    lies!(Mra, 0x11, 8, 0x40, message = 1);
    lies!(Mra, 0x11, 9, 0xa8, service_timeout = 21);
    lies!(Rej, 0x12, 9, 0x10, info_length = 8);
    lies!(Rej, 0x12, 11, 10, reason = reason::STALE_CONNECTION);
    lies!(Rep, 0x13, 14, 9, qpn = 9);
    lies!(Rep, 0x13, 24, 3, responder_resources = 3);
    lies!(Rep, 0x13, 26, 0x02, failover_accepted = 1);
    lies!(Rep, 0x13, 27, 0x10, srq = true);
    lies!(Dreq, 0x15, 10, 5, remote_qpn = 5);
    lies!(SidrReq, 0x17, 15, 5, service_id = 5);
    lies!(SidrRep, 0x18, 4, 2, status = 2);
    lies!(SidrRep, 0x18, 10, 7, qpn = 7);
    lies!(SidrRep, 0x18, 23, 7, q_key = 7);
    lies!(Lap, 0x19, 14, 7, remote_qpn = 7);
    lies!(Lap, 0x19, 21, 7, local_lid = 7);
    lies!(Lap, 0x19, 61, 6, packet_rate = 6);
    lies!(Lap, 0x19, 63, 0x98, ack_timeout = 19);
    lies!(Apr, 0x1a, 9, 1, status = 1);
}

#[test]
fn private_data_has_the_size_that_its_message_prescribes() {
    let sizes = [
        (0x10, 92),
        (0x11, 222),
        (0x12, 148),
        (0x13, 196),
        (0x14, 224),
        (0x15, 220),
        (0x16, 224),
        (0x17, 216),
        (0x18, 136),
        (0x19, 168),
        (0x1a, 148),
    ];
    for (attribute, size) in sizes {
        let message = Message::of(attribute, &[0; DATA_LEN]).unwrap();
        assert_eq!(message.private_data().len(), size, "{}", message.name());
        assert_eq!(message.attribute_id(), attribute);
        // Private data is the last field of each message.
        let mut data = [0; DATA_LEN];
        data[DATA_LEN - size] = 0xa5;
        data[DATA_LEN - 1] = 0x5a;
        let message = Message::of(attribute, &data).unwrap();
        let private_data = message.private_data();
        assert_eq!((private_data[0], private_data[size - 1]), (0xa5, 0x5a));
    }
}

// covers 8.64
#[test]
fn a_datagram_that_is_no_cm_message_is_refused() {
    let good = whole(REQ);
    let with = |at: usize, octet: u8| {
        let mut octets = good;
        octets[at] = octet;
        mad::decode(&octets)
            .and_then(|mad| decode(&mad))
            .unwrap_err()
    };
    assert_eq!(with(0, 2), Reject::BaseVersion);
    assert_eq!(with(1, 4), Reject::Class);
    assert_eq!(with(2, 1), Reject::Class);
    assert_eq!(with(3, 0x81), Reject::Method);
    assert_eq!(with(17, 0x0f), Reject::Attribute);
    for length in [0, 23, 24, 255] {
        assert_eq!(mad::decode(&good[..length]).unwrap_err(), Reject::Length);
    }
    assert_eq!(
        mad::decode(&[&good[..], &[0]].concat()).unwrap_err(),
        Reject::Length
    );
}

proptest! {
    #[test]
    fn every_message_encodes_to_the_bytes_it_came_from(
        attribute in 0x10_u16..=0x1a,
        data in proptest::collection::vec(any::<u8>(), DATA_LEN),
    ) {
        let data: [u8; DATA_LEN] = data.try_into().unwrap();
        let message = Message::of(attribute, &data).unwrap();
        prop_assert_eq!(message.to_data(), data);
        prop_assert!(Message::of(0x1b, &data).is_none() && Message::of(0x0f, &data).is_none());
    }

    #[test]
    fn any_input_decodes_or_is_refused(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(mad) = mad::decode(&octets) {
            let _ = decode(&mad);
        }
    }
}
