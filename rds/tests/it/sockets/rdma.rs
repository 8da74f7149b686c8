//! Operations on remote memory, which cookies name.

use std::io::{IoSlice, IoSliceMut};

use polyverbs::Memory;
use polyverbs_rds::{
    AtomicOperation, AtomicRequest, Control, Cookie, LocalMemory, OperationStatus, Outgoing,
    RdmaFlags, RdmaRequest, RdmaStatus, RdsError, RdsSocket, RdsTransport, Wait,
};

use crate::sockets::{at, content, errno, over_both, receive, socket_at, sockets};

const PAGE: u64 = 4096;

fn send(
    from: &RdsSocket,
    to: &RdsSocket,
    data: &[u8],
    control: Control,
) -> Result<usize, RdsError> {
    let data = [IoSlice::new(data)];
    let message = Outgoing {
        data: &data,
        to: to.local_addr(),
        control,
    };
    from.send_msg(message, Wait::Until(test_kit::waiting::deadline()))
}

fn memory(bytes: &[u8]) -> Memory {
    let memory = Memory::zeroed(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn part(memory: &Memory, offset: usize, length: usize) -> LocalMemory {
    memory.range(offset, length).unwrap().into()
}

fn all(memory: &Memory) -> LocalMemory {
    part(memory, 0, memory.len())
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// Waits for the statuses of operations.
fn statuses(socket: &RdsSocket) -> Vec<RdmaStatus> {
    let wait = Wait::Until(test_kit::waiting::deadline());
    let received = socket.recv_msg(&mut [IoSliceMut::new(&mut [])], wait, false);
    let received = received.unwrap();
    assert_eq!((received.from, received.length), (None, 0));
    received.statuses
}

fn told(user_token: u64, status: OperationStatus) -> Vec<RdmaStatus> {
    vec![RdmaStatus { user_token, status }]
}

fn request(cookie: Cookie, local: LocalMemory, length: usize, flags: RdmaFlags) -> RdmaRequest {
    RdmaRequest {
        cookie,
        remote_offset: 0,
        remote_length: length as u64,
        local: vec![local],
        flags,
        user_token: 77,
    }
}

const WRITE: RdmaFlags = RdmaFlags::READWRITE.union(RdmaFlags::NOTIFY_ME);
const READ: RdmaFlags = RdmaFlags::NOTIFY_ME;

/// Writes to the peer's memory with a message. Returns the statuses.
fn write(near: &RdsSocket, far: &RdsSocket, cookie: Cookie, sent: &[u8]) -> Vec<RdmaStatus> {
    let local = memory(sent);
    let asked = request(cookie, all(&local), sent.len(), WRITE);
    send(near, far, b"written", Control::Rdma(asked)).unwrap();
    statuses(near)
}

/// Writes to, and reads from, a range that is not memory of the peer. Both operations fail, and their messages do not arrive.
fn fails(near: &RdsSocket, far: &RdsSocket, cookie: Cookie, offset: u64, length: usize) {
    let local = memory(&vec![0xee; length]);
    let asked = |flags| RdmaRequest {
        remote_offset: offset,
        ..request(cookie, all(&local), length, flags)
    };
    let refused = Control::Rdma(asked(RdmaFlags::READWRITE));
    send(near, far, b"never arrives", refused).unwrap();
    near.send_to(b"after the write", at(far)).unwrap();
    assert_eq!(receive(far, 100), b"after the write");
    let refused = Control::Rdma(asked(READ | RdmaFlags::FENCE));
    send(near, far, b"never arrives", refused).unwrap();
    assert_eq!(statuses(near), told(77, OperationStatus::RemoteError));
    near.send_to(b"after the read", at(far)).unwrap();
    assert_eq!(receive(far, 100), b"after the read");
    assert_eq!(bytes(&local), vec![0xee; length]);
}

// covers 8.37 8.38 8.42 8.44 8.50
#[test]
fn a_write_is_visible_when_its_message_arrives() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        for length in [1, 4096, 9000, 1 << 20] {
            let target = Memory::zeroed(length).unwrap();
            let cookie = far
                .get_mr(target.range(0, length).unwrap(), RdmaFlags::empty())
                .unwrap();
            send(&far, &near, b"here", Control::Destination(cookie)).unwrap();
            let mut room = [0; 100];
            let received = near.recv_from(&mut room).unwrap();
            assert_eq!(received.cookie, Some(cookie));
            let sent = content(length, length);
            let local = memory(&sent);
            let asked = request(cookie, all(&local), length, RdmaFlags::READWRITE);
            send(&near, &far, b"written", Control::Rdma(asked)).unwrap();
            assert_eq!(receive(&far, 100), b"written");
            assert_eq!(bytes(&target), sent);
            far.free_mr(cookie).unwrap();
        }
    });
}

// covers 8.37 8.42
#[test]
fn a_read_has_its_bytes_when_its_status_arrives() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let source = memory(&content(5, 100_000));
        let cookie = far
            .get_mr(source.range(0, 100_000).unwrap(), RdmaFlags::empty())
            .unwrap();
        for fence in [RdmaFlags::empty(), RdmaFlags::FENCE] {
            let local = Memory::zeroed(100_000).unwrap();
            let asked = request(cookie, all(&local), 100_000, READ | fence);
            send(&near, &far, b"read", Control::Rdma(asked)).unwrap();
            assert_eq!(statuses(&near), told(77, OperationStatus::Success));
            assert_eq!(bytes(&local), bytes(&source));
            assert_eq!(receive(&far, 100), b"read");
        }
    });
}

// covers 8.37
#[test]
fn a_fenced_message_arrives_after_the_read_before_it() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let source = memory(&[1; 1 << 20]);
        let cookie = far
            .get_mr(source.range(0, 1 << 20).unwrap(), RdmaFlags::empty())
            .unwrap();
        for _ in 0..5 {
            source.write(0, &[1; 1 << 20]).unwrap();
            let local = Memory::zeroed(1 << 20).unwrap();
            let asked = request(cookie, all(&local), 1 << 20, READ | RdmaFlags::FENCE);
            send(&near, &far, b"read", Control::Rdma(asked)).unwrap();
            receive(&far, 100);
            source.write(0, &[2; 1 << 20]).unwrap();
            assert_eq!(statuses(&near), told(77, OperationStatus::Success));
            assert_eq!(bytes(&local), vec![1; 1 << 20]);
        }
    });
}

// covers 8.38
#[test]
fn a_cookie_has_the_offset_of_the_memory_in_its_page() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(3 * PAGE as usize).unwrap();
        let range = target.range(PAGE as usize + 123, 5000).unwrap();
        let address = range.address();
        let cookie = far.get_mr(range, RdmaFlags::empty()).unwrap();
        assert_eq!(u64::from(cookie.offset()), address % PAGE);
        assert_eq!(cookie.0, u64::from(cookie.rkey()) | (address % PAGE) << 32);
        let asked = RdmaRequest {
            remote_offset: 1000,
            ..request(cookie, all(&memory(&[9; 10])), 10, WRITE)
        };
        send(&near, &far, b"written", Control::Rdma(asked)).unwrap();
        receive(&far, 100);
        let mut expected = vec![0; 3 * PAGE as usize];
        expected[PAGE as usize + 1123..][..10].fill(9);
        assert_eq!(bytes(&target), expected);
        // The peer cannot reach bytes outside the memory of the cookie.
        assert_eq!(statuses(&near), told(77, OperationStatus::Success));
        fails(&near, &far, cookie, 5000, 10);
        assert_eq!(bytes(&target), expected);
    });
}

// covers 8.37
#[test]
fn a_message_registers_the_memory_whose_cookie_it_carries() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(10_000).unwrap();
        let map = Control::Map(part(&target, 100, 5000), RdmaFlags::empty());
        send(&far, &near, b"here", map).unwrap();
        let mut room = [0; 100];
        let cookie = near.recv_from(&mut room).unwrap().cookie.unwrap();
        let written = write(&near, &far, cookie, &[3; 5000]);
        assert_eq!(written, told(77, OperationStatus::Success));
        receive(&far, 100);
        assert_eq!(bytes(&target)[100..5100], [3; 5000]);
        far.free_mr(cookie).unwrap();
    });
}

// covers 8.37
#[test]
fn local_pieces_map_to_one_range_of_remote_memory() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(9000).unwrap();
        let cookie = far
            .get_mr(target.range(0, 9000).unwrap(), RdmaFlags::empty())
            .unwrap();
        let sent = content(1, 9000);
        let local = memory(&sent);
        let pieces = vec![
            part(&local, 0, 1),
            part(&local, 1, 4999),
            part(&local, 5000, 4000),
        ];
        let asked = RdmaRequest {
            local: pieces,
            ..request(cookie, all(&local), 9000, WRITE)
        };
        send(&near, &far, b"written", Control::Rdma(asked)).unwrap();
        receive(&far, 100);
        assert_eq!(bytes(&target), sent);
        assert_eq!(statuses(&near), told(77, OperationStatus::Success));

        let back = Memory::zeroed(9000).unwrap();
        let asked = RdmaRequest {
            local: vec![part(&back, 4000, 5000), part(&back, 0, 4000)],
            ..request(cookie, all(&back), 9000, READ)
        };
        send(&near, &far, b"read", Control::Rdma(asked)).unwrap();
        assert_eq!(statuses(&near), told(77, OperationStatus::Success));
        assert_eq!(bytes(&back), [&sent[5000..], &sent[..5000]].concat());
    });
}

// covers 8.40
#[test]
fn memory_for_one_use_is_not_reached_a_second_time() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(100).unwrap();
        let range = || target.range(0, 100).unwrap();
        let flags = RdmaFlags::USE_ONCE | RdmaFlags::INVALIDATE;
        let cookie = far.get_mr(range(), flags).unwrap();
        assert_eq!(
            write(&near, &far, cookie, &[1; 100]),
            told(77, OperationStatus::Success)
        );
        receive(&far, 100);
        test_kit::waiting::until(|| {
            let local = Memory::zeroed(100).unwrap();
            let asked = request(cookie, all(&local), 100, READ);
            send(&near, &far, b"read", Control::Rdma(asked)).unwrap();
            statuses(&near) == told(77, OperationStatus::RemoteError)
        });
        assert_eq!(errno(far.free_mr(cookie)), Some(libc::EINVAL));
        assert_eq!(bytes(&target), [1; 100]);
        // Without the flag, the memory can be used again.
        let cookie = far.get_mr(range(), RdmaFlags::empty()).unwrap();
        for value in 3..6 {
            let written = write(&near, &far, cookie, &[value; 100]);
            assert_eq!(written, told(77, OperationStatus::Success));
            test_kit::waiting::until(|| receive(&far, 100) == b"written");
            assert_eq!(bytes(&target), [value; 100]);
        }
    });
}

// covers 8.39 8.42
#[test]
fn an_operation_on_freed_memory_fails_with_its_message() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(100).unwrap();
        let cookie = far
            .get_mr(target.range(0, 100).unwrap(), RdmaFlags::empty())
            .unwrap();
        far.free_mr(cookie).unwrap();
        assert_eq!(errno(far.free_mr(cookie)), Some(libc::EINVAL));
        far.free_mr(Cookie(0)).unwrap();
        fails(&near, &far, cookie, 0, 100);
        assert_eq!(bytes(&target), [0; 100]);
    });
}

// covers 8.49
#[test]
fn memory_of_a_closed_socket_is_not_reached() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let other = socket_at(std::net::SocketAddr::new(at(&far).ip(), 0), transport);
        let target = Memory::zeroed(100).unwrap();
        let cookie = far
            .get_mr(target.range(0, 100).unwrap(), RdmaFlags::empty())
            .unwrap();
        assert_eq!(
            write(&near, &other, cookie, &[1; 100]),
            told(77, OperationStatus::Success)
        );
        receive(&other, 100);
        drop(far);
        fails(&near, &other, cookie, 0, 100);
        assert_eq!(bytes(&target), [1; 100]);
    });
}

// covers 8.44
#[test]
fn failures_are_reported_on_request_or_by_the_option() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(100).unwrap();
        let cookie = far
            .get_mr(target.range(0, 100).unwrap(), RdmaFlags::empty())
            .unwrap();
        let gone = Cookie(cookie.0 ^ 0x5500);
        // The operation is a read, because a write over iWARP only sees the end of the connection.
        let quiet = |cookie| {
            let local = Memory::zeroed(100).unwrap();
            Control::Rdma(request(cookie, all(&local), 100, RdmaFlags::FENCE))
        };
        send(&near, &far, b"fails", quiet(gone)).unwrap();
        // This message follows the failed one, so the failure has been noticed when it arrives.
        near.send_to(b"next", at(&far)).unwrap();
        assert_eq!(receive(&far, 100), b"next");
        assert!(!near.readiness().readable);
        near.set_options(|options| options.recverr = true);
        send(&near, &far, b"done", quiet(cookie)).unwrap();
        assert_eq!(receive(&far, 100), b"done");
        assert!(!near.readiness().readable);
        send(&near, &far, b"fails", quiet(gone)).unwrap();
        assert_eq!(statuses(&near), told(77, OperationStatus::RemoteError));
    });
}

// covers 8.37
#[test]
fn a_silent_operation_without_data_sends_no_message() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(100).unwrap();
        let cookie = far
            .get_mr(target.range(0, 100).unwrap(), RdmaFlags::empty())
            .unwrap();
        let local = memory(&[4; 100]);
        let asked = request(cookie, all(&local), 100, WRITE | RdmaFlags::SILENT);
        send(&near, &far, &[], Control::Rdma(asked)).unwrap();
        assert_eq!(statuses(&near), told(77, OperationStatus::Success));
        near.send_to(b"next", at(&far)).unwrap();
        assert_eq!(receive(&far, 100), b"next");
        assert_eq!(bytes(&target), [4; 100]);
        // An operation that is not silent does send a message.
        let asked = request(cookie, all(&local), 100, WRITE);
        send(&near, &far, &[], Control::Rdma(asked)).unwrap();
        assert_eq!(receive(&far, 100), b"");
    });
}

fn atomic(near: &RdsSocket, far: &RdsSocket, cookie: Cookie, operation: AtomicOperation) -> u64 {
    let before = Memory::zeroed(8).unwrap();
    let asked = AtomicRequest {
        cookie,
        remote_offset: 8,
        local: all(&before),
        operation,
        flags: RdmaFlags::NOTIFY_ME,
        user_token: 77,
    };
    send(near, far, b"changed", Control::Atomic(asked)).unwrap();
    assert_eq!(statuses(near), told(77, OperationStatus::Success));
    assert_eq!(receive(far, 100), b"changed");
    before.read_as(0).unwrap()
}

// covers 4.29 8.37 8.43
#[test]
fn atomics_change_eight_bytes_and_return_the_old_value() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let target = Memory::zeroed(24).unwrap();
        let cookie = far
            .get_mr(target.range(0, 24).unwrap(), RdmaFlags::empty())
            .unwrap();
        let fetch_add = |add, nocarry_mask| AtomicOperation::FetchAdd { add, nocarry_mask };
        let compare_swap = |compare, swap, compare_mask, swap_mask| AtomicOperation::CompareSwap {
            compare,
            swap,
            compare_mask,
            swap_mask,
        };
        let all = u64::MAX;
        for (operation, before, after) in [
            (fetch_add(0xff, 0), 0, 0xff),
            (fetch_add(1, 0), 0xff, 0x100),
            // The mask keeps the carry of the lowest byte from the next one.
            (fetch_add(0xff, 0x80), 0x100, 0x1ff),
            (fetch_add(0x01, 0x80), 0x1ff, 0x100),
            (compare_swap(0x100, 0xabcd, all, all), 0x100, 0xabcd),
            (compare_swap(0x100, 0, all, all), 0xabcd, 0xabcd),
            (
                compare_swap(0xff00_00cd, 0x1234, 0xff, 0xff00),
                0xabcd,
                0x12cd,
            ),
            (compare_swap(0xcc, 0, 0xff, all), 0x12cd, 0x12cd),
        ] {
            assert_eq!(
                atomic(&near, &far, cookie, operation),
                before,
                "{operation:?}"
            );
            let words: [u64; 3] = [0, 8, 16].map(|place| target.read_as(place).unwrap());
            assert_eq!(words, [0, after, 0], "{operation:?}");
        }
    });
}

// covers 8.43
#[test]
fn the_result_of_an_atomic_needs_eight_aligned_bytes() {
    let [near, far] = sockets(RdsTransport::InfiniBand);
    let memory = Memory::zeroed(64).unwrap();
    let cookie = far
        .get_mr(memory.range(0, 64).unwrap(), RdmaFlags::empty())
        .unwrap();
    let place = memory.range(0, 64).unwrap().address() as usize % 8;
    for (offset, length) in [(1, 8), (4, 8), (8, 7)] {
        let asked = AtomicRequest {
            cookie,
            remote_offset: 0,
            local: part(&memory, (8 - place) % 8 + offset, length),
            operation: AtomicOperation::FetchAdd {
                add: 1,
                nocarry_mask: 0,
            },
            flags: RdmaFlags::empty(),
            user_token: 0,
        };
        let refused = send(&near, &far, b"", Control::Atomic(asked));
        assert_eq!(errno(refused), Some(libc::EFAULT));
    }
}

// covers 8.37 8.39 8.41
#[test]
fn invalid_operations_are_refused_before_anything_is_sent() {
    let [near, far] = sockets(RdsTransport::InfiniBand);
    let large = Memory::zeroed(2 << 20).unwrap();
    let get = |length| far.get_mr(large.range(0, length).unwrap(), RdmaFlags::empty());
    assert_eq!(errno(get(0)), Some(libc::EINVAL));
    assert_eq!(errno(get((1 << 20) + 4097)), Some(libc::EMSGSIZE));
    let cookie = get(1 << 20).unwrap();
    let pieces = |length: u64, local| RdmaRequest {
        remote_length: length,
        local,
        ..request(cookie, all(&large), 0, WRITE)
    };
    for (asked, number) in [
        (pieces(100, Vec::new()), libc::EINVAL),
        (pieces(100, vec![part(&large, 0, 0)]), libc::EINVAL),
        (pieces(100, vec![part(&large, 0, 101)]), libc::EINVAL),
        (
            pieces(100, vec![part(&large, 0, 60), part(&large, 60, 41)]),
            libc::EINVAL,
        ),
        (pieces(200, vec![part(&large, 0, 1); 129]), libc::EMSGSIZE),
        (
            (pieces((1 << 20) + 1, vec![part(&large, 0, 1)])),
            libc::EMSGSIZE,
        ),
    ] {
        let refused = send(&near, &far, b"", Control::Rdma(asked));
        assert_eq!(errno(refused), Some(number));
    }
    let unknown = send(&near, &far, b"", Control::Destination(Cookie(5)));
    assert_eq!(errno(unknown), Some(libc::EINVAL));
    assert_eq!(near.paths().unwrap(), []);
    // The maximum of 128 pieces is accepted.
    let asked = pieces(128, vec![part(&large, 0, 1); 128]);
    send(&near, &far, b"", Control::Rdma(asked)).unwrap();
    assert_eq!(statuses(&near), told(77, OperationStatus::Success));
}

// covers 8.37 8.47
#[test]
fn operations_on_the_own_address_are_refused() {
    let [near] = sockets(RdsTransport::InfiniBand);
    let far = socket_at(
        std::net::SocketAddr::new(at(&near).ip(), 0),
        RdsTransport::InfiniBand,
    );
    let target = Memory::zeroed(100).unwrap();
    let cookie = far
        .get_mr(target.range(0, 100).unwrap(), RdmaFlags::empty())
        .unwrap();
    let asked = request(cookie, all(&target), 100, WRITE);
    let refused = send(&near, &far, b"", Control::Rdma(asked));
    assert_eq!(errno(refused), Some(libc::EOPNOTSUPP));
}
