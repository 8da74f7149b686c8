use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;
use crate::exit::tests::no_child_starts;

fn name(of: &str) -> String {
    format!("polyverbs-test/{}/{of}", std::process::id())
}

/// Returns the messages of an inbox.
fn messages(inbox: &Inbox, admission: &Admission) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut take = |_: &Connection, bytes: &[u8]| all.push(bytes.to_vec());
    inbox
        .attend(admission, &AtomicU64::new(0), &mut take)
        .unwrap();
    all
}

fn send(connection: &Connection, bytes: &[u8]) -> io::Result<()> {
    connection.send(&[IoSlice::new(bytes)], &[])
}

#[test]
fn a_name_has_one_holder_and_is_free_when_it_has_gone() {
    let _open = no_child_starts();
    let (name, admission) = (name("held"), Admission::default());
    let inbox = Inbox::named(&name).unwrap();
    let second = Inbox::named(&name).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    let own = rustix::process::geteuid().as_raw();
    let held = holder(&name).map(|holder| (holder.pid as u32, holder.uid));
    assert_eq!(held, Some((std::process::id(), own)));
    let connection = Connection::to(&name, &admission).unwrap();
    send(&connection, b"hello").unwrap();
    drop(inbox);
    let gone = send(&connection, b"hello").unwrap_err();
    // The connection had a message that no process has read.
    assert_eq!(gone.kind(), io::ErrorKind::ConnectionReset);
    let gone = send(&connection, b"hello").unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    let nobody = Connection::to(&name, &admission).unwrap_err();
    assert_eq!(nobody.kind(), io::ErrorKind::ConnectionRefused);
    assert!(holder(&name).is_none());
    Inbox::named(&name).unwrap();
}

#[test]
fn a_message_outlives_the_connection_that_it_came_by() {
    let _open = no_child_starts();
    let (name, admission) = (name("outlives"), Admission::default());
    let inbox = Inbox::named(&name).unwrap();
    for _ in 0..3 {
        send(&Connection::to(&name, &admission).unwrap(), b"request").unwrap();
    }
    assert_eq!(messages(&inbox, &admission), [b"request"; 3]);
    assert!(inbox.accepted.lock().connections.is_empty());
}

#[test]
fn only_requested_descriptors_arrive() {
    let _open = no_child_starts();
    let (name, admission) = (name("descriptors"), Admission::default());
    let inbox = Inbox::named(&name).unwrap();
    let asker = Connection::to(&name, &admission).unwrap();
    // The other end of this pair reports when no process has it any longer.
    let (mut told, unasked) = UnixStream::pair().unwrap();
    let passed = [unasked.as_fd()];
    asker.send(&[IoSlice::new(b"take")], &passed).unwrap();
    drop(unasked);
    let passed = [inbox.as_fd(); DESCRIPTORS];
    let mut taken = 0;
    let mut take = |connection: &Connection, bytes: &[u8]| {
        assert_eq!(bytes, b"take");
        taken += 1;
        connection.send(&[IoSlice::new(b"ok")], &passed).unwrap();
    };
    inbox
        .attend(&admission, &AtomicU64::new(0), &mut take)
        .unwrap();
    assert_eq!(taken, 1);
    assert_eq!(told.read(&mut [0]).unwrap(), 0);
    Connection::wait(std::slice::from_ref(&asker), Duration::from_secs(5)).unwrap();
    let (bytes, descriptors) = asker.receive_descriptors().unwrap();
    assert_eq!((&bytes, descriptors.len()), (b"ok", DESCRIPTORS));
    let none = asker.receive_descriptors().unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn others_are_admitted_by_name() {
    let own = rustix::process::geteuid().as_raw();
    let stranger = own.wrapping_add(4711);
    let admission = Admission::default();
    assert!(admission.admits(own) && admission.admits(0));
    assert!(!admission.admits(stranger));
    let users = vec![stranger];
    assert!(Admission { users }.admits(stranger));
}

#[test]
fn an_inbox_closes_its_oldest_connections_at_its_limit() {
    let _open = no_child_starts();
    let (name, admission) = (name("most"), Admission::default());
    let inbox = Inbox::named(&name).unwrap();
    let connect = || Connection::to(&name, &admission).unwrap();
    let all: Vec<_> = (0..MOST + 5).map(|_| connect()).collect();
    while !messages(&inbox, &admission).is_empty() || is_ready(&inbox) {}
    assert_eq!(inbox.accepted.lock().connections.len(), MOST);
    // The oldest connections are closed, and the others are read.
    assert!(all[..5].iter().all(|gone| send(gone, b"!").is_err()));
    all[5..].iter().for_each(|kept| send(kept, b"!").unwrap());
    let mut read = 0;
    while is_ready(&inbox) {
        read += messages(&inbox, &admission).len();
    }
    assert_eq!(read, MOST);
}

fn is_ready(inbox: &Inbox) -> bool {
    let mut asked = [PollFd::new(&inbox.ready, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).unwrap() > 0
}
