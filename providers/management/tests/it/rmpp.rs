//! Messages of several segments: how they are cut, joined, acknowledged and repeated.

use std::time::Duration;

use polyverbs_management::rmpp::{Progress, Receiver, Sender, header_len, header_of};
use polyverbs_wire::mad::MAD_LEN;
use polyverbs_wire::mad::sa::SA_CLASS;

const NOW: Duration = Duration::from_secs(5);

fn message(data: usize) -> Vec<u8> {
    let mut message = vec![0; header_len(SA_CLASS)];
    message[..4].copy_from_slice(&[1, SA_CLASS, 2, 0x92]);
    message.extend((0..data).map(|at| at as u8));
    message
}

/// Sends what the window allows, drops the segments that `lost` names, and returns the message and whether the sender is done.
fn exchange(
    sender: &mut Sender,
    receiver: &mut Receiver,
    lost: &mut dyn FnMut(u32) -> bool,
) -> (Option<Vec<u8>>, Progress) {
    let (mut joined, mut progress) = (None, Progress::Goes);
    while let Some(segment) = sender.next_segment() {
        if lost(header_of(&segment).unwrap().segment_number) {
            continue;
        }
        let received = receiver.take(&segment, NOW);
        joined = joined.or(received.message);
        if let Some(answer) = received.acknowledgement {
            progress = sender.take(&header_of(&answer).unwrap(), NOW);
        }
    }
    (joined, progress)
}

#[test]
fn a_message_of_any_length_arrives_as_it_was_sent() {
    for data in [0, 1, 199, 200, 201, 400, 64 * 200, 65 * 200, 130 * 200 + 7] {
        let sent = message(data);
        let mut sender = Sender::new(&sent, NOW).unwrap();
        let mut receiver = Receiver::new(NOW);
        let (joined, progress) = exchange(&mut sender, &mut receiver, &mut |_| false);
        let joined = joined.unwrap();
        // The RMPP header is that of the first segment.
        assert_eq!((&joined[..24], &joined[36..]), (&sent[..24], &sent[36..]));
        assert_eq!(progress, Progress::Done, "{data}");
    }
}

#[test]
fn the_first_segment_has_the_length_of_all_and_the_last_its_own() {
    let mut sender = Sender::new(&message(450), NOW).unwrap();
    let mut segments = Vec::new();
    let mut receiver = Receiver::new(NOW);
    exchange(&mut sender, &mut receiver, &mut |_| false);
    let mut again = Sender::new(&message(450), NOW).unwrap();
    let mut receiver = Receiver::new(NOW);
    while let Some(segment) = again.next_segment() {
        segments.push(header_of(&segment).unwrap());
        let answer = receiver.take(&segment, NOW).acknowledgement;
        if let Some(answer) = answer {
            again.take(&header_of(&answer).unwrap(), NOW);
        }
    }
    // Each segment has 20 bytes of the class's header besides the data.
    let lengths: Vec<_> = segments.iter().map(|it| it.length).collect();
    assert_eq!(lengths, [450 + 3 * 20, 0, 50 + 20]);
}

#[test]
fn a_lost_segment_is_sent_again_after_its_time() {
    let sent = message(500);
    let mut sender = Sender::new(&sent, NOW).unwrap();
    let mut receiver = Receiver::new(NOW);
    let mut is_lost = true;
    let mut lost = |number| number == 2 && std::mem::take(&mut is_lost);
    let (joined, progress) = exchange(&mut sender, &mut receiver, &mut lost);
    assert_eq!((joined, progress), (None, Progress::Goes));
    assert_eq!(sender.next_segment(), None);
    let later = sender.deadline();
    assert_eq!(sender.expire(later), Progress::Goes);
    let (joined, progress) = exchange(&mut sender, &mut receiver, &mut |_| false);
    assert_eq!(joined.unwrap()[36..], sent[36..]);
    assert_eq!(progress, Progress::Done);
}

#[test]
fn a_sender_without_any_acknowledgement_gives_up() {
    let mut sender = Sender::new(&message(500), NOW).unwrap();
    let mut sent = 0;
    loop {
        sent += std::iter::from_fn(|| sender.next_segment()).count();
        let later = sender.deadline();
        if sender.expire(later) == Progress::Failed {
            break;
        }
    }
    assert_eq!(sent, 20, "the first segment, each two seconds of forty");
}

#[test]
fn a_late_segment_is_acknowledged_again_and_changes_nothing() {
    let mut sender = Sender::new(&message(10), NOW).unwrap();
    let segment = sender.next_segment().unwrap();
    let mut receiver = Receiver::new(NOW);
    let first = receiver.take(&segment, NOW);
    let again = receiver.take(&segment, NOW);
    assert_eq!(again.acknowledgement, first.acknowledgement);
    assert_eq!((first.message.is_some(), again.message), (true, None));
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_ends_the_message() {
    let mut sender = Sender::new(&message(500), NOW).unwrap();
    let segment = sender.next_segment().unwrap();
    let answer = Receiver::new(NOW).take(&segment, NOW).acknowledgement;
    let mut rmpp = header_of(&answer.unwrap()).unwrap();
    rmpp.segment_number = 2;
    assert_eq!(sender.take(&rmpp, NOW), Progress::Failed);
}

#[test]
fn a_mad_without_rmpp_is_dropped() {
    let mut receiver = Receiver::new(NOW);
    let received = receiver.take(&[0; MAD_LEN], NOW);
    assert_eq!(received, Default::default());
    assert!(Sender::new(&[1, SA_CLASS], NOW).is_none());
}
