//! Unreliable services: messages get lost; none is duplicated, torn or falsified, and the sender does not notice.

use std::collections::HashMap;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use verbs_api::qp::QpType;
use verbs_api::*;
use verbs_api::{
    completion::WcOpcode,
    event::EventType,
    wr::{self, ReceiveRequest, UdDestination, WorkRequest},
};

use super::endpoint::{Chosen, Pair};
use super::reliable::length;

const SLOT: usize = 8192;
const SLOTS: usize = 16;
/// The position of receives: after the sources, each of which has a slot.
const RECEIVES: usize = SLOT * SLOTS;
/// The slots that the peer writes, each at most once, and then whole or in part.
const WRITTEN_SLOTS: usize = 7;
const RECEIVE_SLOTS: usize = SLOTS - WRITTEN_SLOTS;
const WRITTEN: usize = RECEIVES + RECEIVE_SLOTS * SLOT;
/// Bytes of the GRH before a datagram.
const GRH: usize = 40;

/// The sent messages, by the number that travels as immediate data or as the first bytes.
#[derive(Default)]
struct Sent {
    octets: Vec<Vec<u8>>,
    written: HashMap<usize, Vec<u8>>,
    immediates: HashMap<u32, usize>,
    arrived: Vec<u32>,
}

/// Makes one run over an unreliable service: from the first side to the second.
pub(crate) fn run(qp_type: QpType, seed: u64, rng: &mut SmallRng) {
    let chosen = Chosen::new(qp_type, rng);
    let pair = Pair::new(chosen, seed, rng);
    let [from, to] = &pair.ends;
    let ah = from.pd.create_ah(to.path()).wait().expect("a route");
    let destination = UdDestination {
        ah,
        remote_qpn: to.qp.qp_num(),
        remote_qkey: 7,
    };
    let mut sent = Sent::default();
    let mut receives = Vec::new();
    let mut completed = 0;
    let mut posted = 0;
    for _ in 0..rng.random_range(20..150) {
        match rng.random_range(0..10) {
            0..5 => {
                let number = sent.octets.len() as u32;
                let most = if qp_type == QpType::Ud {
                    chosen.mtu.map_or(4096, |mtu| mtu.octets() as usize)
                } else {
                    SLOT
                };
                let length = length(rng).min(most);
                let mut octets: Vec<u8> = std::iter::repeat_with(|| rng.random())
                    .take(length)
                    .collect();
                if let Some(place) = octets.first_chunk_mut() {
                    *place = number.to_be_bytes();
                }
                let at = number as usize % SLOTS * SLOT;
                from.put(at, &octets);
                let sge = from.sge(at, octets.len());
                let immediate = number.to_be_bytes();
                let slot = sent.written.len();
                let request: WorkRequest<'_> = match qp_type {
                    QpType::Ud => wr::SendWithImmediate::new(sge, immediate)
                        .to(&destination)
                        .signaled(number.into())
                        .into(),
                    _ if rng.random_bool(0.3) && slot < WRITTEN_SLOTS => {
                        sent.written.insert(slot, octets.clone());
                        let remote = to.remote(WRITTEN + slot * SLOT);
                        if rng.random_bool(0.5) {
                            sent.immediates.insert(number, slot);
                            wr::WriteWithImmediate::new(sge, remote, immediate)
                                .signaled(number.into())
                                .into()
                        } else {
                            wr::Write::new(sge, remote).signaled(number.into()).into()
                        }
                    }
                    _ => wr::SendWithImmediate::new(sge, immediate)
                        .signaled(number.into())
                        .into(),
                };
                from.qp.post_one(request).expect("room");
                sent.octets.push(octets);
                posted += 1;
            }
            5..8 => {
                let slot = receives.len() % RECEIVE_SLOTS;
                // A place is used again only when the receive before it has completed.
                if receives.len() < sent.arrived.len() + RECEIVE_SLOTS {
                    let request = ReceiveRequest::new(
                        receives.len() as u64,
                        to.sge(RECEIVES + slot * SLOT, SLOT),
                    );
                    to.qp.post_receive(request).expect("room");
                    receives.push(slot);
                }
            }
            _ => pair.run_for(Duration::from_nanos(rng.random_range(0..400_000))),
        }
        completed += sends_completed(&pair, completed);
        received(&pair, &mut sent, &receives);
    }
    pair.run_for(Duration::from_millis(10));
    completed += sends_completed(&pair, completed);
    received(&pair, &mut sent, &receives);
    assert_eq!(completed, posted, "the sender notices nothing");
    for (slot, octets) in &sent.written {
        let found = to.octets(WRITTEN + slot * SLOT, SLOT);
        for (index, octet) in found.iter().enumerate() {
            let written = octets.get(index).copied().unwrap_or(0);
            assert!(
                *octet == 0 || *octet == written,
                "place {slot}, octet {index} is false: {chosen:?}"
            );
        }
    }
    for end in &pair.ends {
        assert!(
            end.context
                .poll_event()
                .is_none_or(|event| event.event_type() == EventType::CommEst)
        );
        assert_eq!(
            end.qp.query().expect("it lives").state,
            verbs_api::qp::QpState::Rts
        );
    }
}

fn sends_completed(pair: &Pair, before: u64) -> u64 {
    let all = pair.ends[0].completions();
    for (index, done) in all.iter().enumerate() {
        assert_eq!(
            (done.wr_id, done.status),
            (before + index as u64, WcStatus::Success)
        );
    }
    all.len() as u64
}

fn received(pair: &Pair, sent: &mut Sent, receives: &[usize]) {
    let to = &pair.ends[1];
    for done in to.completions() {
        assert_eq!(done.status, WcStatus::Success);
        assert_eq!(
            done.wr_id,
            sent.arrived.len() as u64,
            "receives complete in order"
        );
        let number = u32::from_be_bytes(done.immediate().expect("every message has its number"));
        assert!(
            !sent.arrived.contains(&number),
            "message {number} came twice: {:?}",
            pair.chosen
        );
        let connected = pair.chosen.qp_type == QpType::Uc;
        assert!(
            !connected || sent.arrived.iter().all(|before| *before < number),
            "{number} came late"
        );
        sent.arrived.push(number);
        let octets = &sent.octets[number as usize];
        if let Some(slot) = sent.immediates.get(&number) {
            assert_eq!(done.opcode, WcOpcode::RecvRdmaWithImm);
            assert_eq!(
                &to.octets(WRITTEN + slot * SLOT, octets.len()),
                octets,
                "{number} was written in part"
            );
            continue;
        }
        let header = if connected { 0 } else { GRH };
        assert_eq!(done.byte_len as usize, header + octets.len());
        let found = to.octets(
            RECEIVES + receives[done.wr_id as usize] * SLOT + header,
            octets.len(),
        );
        assert_eq!(
            &found, octets,
            "{number} differs from the sent message: {:?}",
            pair.chosen
        );
    }
}
