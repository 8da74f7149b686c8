//! Identifiers and the events of their channels, on a device of each transport.
#![allow(unsafe_code)]

mod cm;

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::mpsc;
use std::thread;

use polyverbs_libibverbs::abi::{IbvCq, IbvRecvWr, IbvSendWr, IbvWc};
use polyverbs_libibverbs::{cq, post};
use polyverbs_librdmacm::abi::{
    RdmaAddrinfo, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, event, port_space,
};
use polyverbs_librdmacm::{channel, connect, endpoint, id, info, lookup, qp};
use test_kit::waiting::{WatchedThread, until};
use verbs_api::qp::QpState;

use cm::{
    asking, call, create_qp, destroy_all, fetch, is_empty, listening, new_id, next, private_data,
    qp_state, refused, resolved, zeroed,
};

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.31"
[[device]]
address = "127.0.41.32"
transport = "iwarp"
"#;
const ROCE: &str = "127.0.41.31";
const IWARP: &str = "127.0.41.32";

fn configure() {
    test_kit::configure(DEVICES);
}

fn on_each(test: impl Fn(&str)) {
    configure();
    [ROCE, IWARP].into_iter().for_each(test);
}

fn param(private_data: &'static [u8]) -> RdmaConnParam {
    let mut param: RdmaConnParam = zeroed();
    param.private_data = private_data.as_ptr().cast();
    param.private_data_len = private_data.len() as u8;
    param
}

/// The event of the next request, and the identifier of the request, which has a queue pair.
fn request(channel: *mut RdmaEventChannel, of: *mut RdmaCmId) -> (*mut RdmaCmEvent, *mut RdmaCmId) {
    let asked = fetch(channel);
    let (kind, listener, server) = call!(((*asked).event, (*asked).listen_id, (*asked).id));
    assert_eq!((kind, listener), (event::CONNECT_REQUEST, of));
    create_qp(server);
    (asked, server)
}

fn done(queue: *mut IbvCq) -> IbvWc {
    let mut done: IbvWc = zeroed();
    until(|| call!(cq::poll(queue, 1, &raw mut done)) == 1);
    done
}

/// Sends an empty message from one identifier to another.
fn talk(from: *mut RdmaCmId, to: *mut RdmaCmId) {
    const SEND: c_int = 2;
    let (mut receive, mut send): (IbvRecvWr, IbvSendWr) = (zeroed(), zeroed());
    send.opcode = SEND;
    let (mut no_receive, mut no_send) = (ptr::null_mut(), ptr::null_mut());
    let (qp, peer) = call!(((*from).qp, (*to).qp));
    let posted = call!(post::recv(peer, &raw mut receive, &raw mut no_receive));
    assert_eq!(posted, 0);
    let posted = call!(post::send(qp, &raw mut send, &raw mut no_send));
    assert_eq!(posted, 0);
    assert_eq!(done(call!((*from).send_cq)).status, 0);
    assert_eq!(done(call!((*to).recv_cq)).status, 0);
}

/// Makes a call that has to wait until this event is acknowledged, and acknowledges the event once the call waits.
fn waits_for(fetched: *mut RdmaCmEvent, made: impl FnOnce() -> c_int + Send) {
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            tell.send(WatchedThread::current()).unwrap();
            made()
        });
        let thread = told.recv().unwrap();
        until(|| thread.is_blocked() || waiting.is_finished());
        assert!(!waiting.is_finished());
        assert_eq!(call!(channel::ack_event(fetched)), 0);
        assert_eq!(waiting.join().unwrap(), 0);
    });
}

// covers 7.14 7.54 7.58 7.60
#[test]
fn events_of_many_identifiers_arrive_in_order_on_one_channel() {
    on_each(|ip| {
        let channel = channel::create();
        let (listener, to) = listening(channel, ip);
        let client = resolved(channel, to);
        let (mut may_i, mut yes) = (param(b"may I"), param(b"yes"));
        assert_eq!(call!(connect::connect(client, &raw mut may_i)), 0);
        let (asked, server) = request(channel, listener);
        assert!(private_data(asked).starts_with(b"may I"));
        assert_eq!(call!(connect::accept(server, &raw mut yes)), 0);
        refused(call!(connect::reject(server, ptr::null(), 0)), libc::EINVAL);
        assert_eq!(call!(channel::ack_event(asked)), 0);
        let established: HashMap<_, _> = [(); 2]
            .map(|()| {
                let fetched = fetch(channel);
                let (kind, of) = call!(((*fetched).event, (*fetched).id));
                assert_eq!(kind, event::ESTABLISHED);
                let said = private_data(fetched);
                assert_eq!(call!(channel::ack_event(fetched)), 0);
                (of, said)
            })
            .into();
        assert!(established[&client].starts_with(b"yes"));
        assert!(established[&server].is_empty());
        talk(client, server);

        refused(call!(connect::disconnect(listener)), libc::EINVAL);
        assert_eq!(call!(connect::disconnect(client)), 0);
        // On InfiniBand the communication IDs stay reserved for a while after the end.
        let ends = match ip {
            ROCE => &[event::DISCONNECTED, event::TIMEWAIT_EXIT][..],
            _ => &[event::DISCONNECTED][..],
        };
        let mut ended = HashMap::<_, Vec<_>>::new();
        for _ in 0..2 * ends.len() {
            let (kind, of, status) = next(channel);
            assert_eq!(status, 0);
            ended.entry(of).or_default().push(kind);
        }
        assert_eq!((&ended[&client][..], &ended[&server][..]), (ends, ends));
        is_empty(channel);
        destroy_all([listener, client, server]);
        call!(channel::destroy(channel));
    });
}

// covers 7.60
#[test]
fn a_listener_goes_on_after_a_rejected_request() {
    on_each(|ip| {
        let (channel, server_channel) = (channel::create(), channel::create());
        let (listener, to) = listening(server_channel, ip);
        let mut own = 0;
        call!((*listener).context = (&raw mut own).cast());
        let rejected = asking(channel, to);
        let (asked, first) = request(server_channel, listener);
        assert_eq!(call!(channel::ack_event(asked)), 0);
        assert_eq!(call!(connect::reject(first, ptr::null(), 0)), 0);
        let (kind, of, _) = next(channel);
        assert_eq!((kind, of), (event::REJECTED, rejected));

        let client = asking(channel, to);
        let (asked, second) = request(server_channel, listener);
        assert_eq!(call!(channel::ack_event(asked)), 0);
        assert!(first != second && second != listener);
        assert_eq!(call!((*second).context), (&raw mut own).cast());
        assert_eq!(call!(connect::accept(second, ptr::null_mut())), 0);
        assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
        assert_eq!(next(server_channel), (event::ESTABLISHED, second, 0));
        destroy_all([rejected, client, first, second, listener]);
        call!(channel::destroy(channel));
        call!(channel::destroy(server_channel));
    });
}

// covers 7.61
#[test]
fn an_identifier_is_destroyed_when_its_events_are_acknowledged() {
    on_each(|ip| {
        let channel = channel::create();
        let (listener, to) = listening(channel, ip);
        let client = asking(channel, to);
        let (asked, server) = request(channel, listener);
        let at = AtomicPtr::new(listener);
        waits_for(asked, move || call!(id::destroy(at.into_inner())));
        // Destroying the identifier of the request rejects it.
        call!(endpoint::destroy(server));
        let heard = fetch(channel);
        let (kind, of) = call!(((*heard).event, (*heard).id));
        assert_eq!((kind, of), (event::REJECTED, client));
        call!(qp::destroy(client));
        let at = AtomicPtr::new(client);
        waits_for(heard, move || call!(id::destroy(at.into_inner())));
        is_empty(channel);
        call!(channel::destroy(channel));
    });
}

// covers 7.64
#[test]
fn an_identifier_moves_when_its_events_are_acknowledged() {
    on_each(|ip| {
        let (old, new) = (channel::create(), channel::create());
        let (listener, to) = listening(old, ip);
        let first = asking(old, to);
        let (asked, server) = request(old, listener);
        // The request of another client is queued at the old channel.
        let other = asking(old, to);
        let mut waits = libc::pollfd {
            fd: call!((*old).fd),
            events: libc::POLLIN,
            revents: 0,
        };
        assert_eq!(call!(libc::poll(&raw mut waits, 1, -1)), 1);
        let (at, to_new) = (AtomicPtr::new(listener), AtomicPtr::new(new));
        waits_for(asked, move || {
            call!(id::migrate(at.into_inner(), to_new.into_inner()))
        });
        is_empty(old);
        let (asked, second) = request(new, listener);
        assert_eq!(call!(channel::ack_event(asked)), 0);
        assert_eq!(call!((*second).channel), new);
        assert_eq!(call!(connect::reject(second, ptr::null(), 0)), 0);
        // The clients are still on the old channel.
        let (kind, of, _) = next(old);
        assert_eq!((kind, of), (event::REJECTED, other));
        call!(endpoint::destroy(server));
        let (kind, of, _) = next(old);
        assert_eq!((kind, of), (event::REJECTED, first));
        // The program holds no event of this identifier, so it moves at once.
        assert_eq!(call!(id::migrate(first, new)), 0);
        is_empty(old);
        is_empty(new);
        destroy_all([first, second, other, listener]);
        call!(channel::destroy(old));
        call!(channel::destroy(new));
    });
}

/// MPA's reply of revision 1 (RFC 5044, 7.1), with CRCs and no ready-to-receive message.
const PLAIN: &[u8] = b"MPA ID Rep Frame\x40\x01\0\0";
/// A reply of revision 2 (RFC 6581, 4), which accepts a write of zero bytes as ready-to-receive message: IRD 1, ORD 1.
const ENHANCED: &[u8] = b"MPA ID Rep Frame\x50\x02\0\x04\x80\x01\x80\x01";

// A client connects to a server that implements MPA itself, replies and then closes; the client gets an event for both.
// Returns the state of its queue pair.
fn state_after_a_server_that_goes(reply: &'static [u8]) -> c_int {
    let listener = TcpListener::bind((IWARP, 0)).unwrap();
    let to: SocketAddr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 20];
        stream.read_exact(&mut request).unwrap();
        let mut private_data = vec![0; u16::from_be_bytes([request[18], request[19]]).into()];
        stream.read_exact(&mut private_data).unwrap();
        stream.write_all(reply).unwrap();
    });
    let channel = channel::create();
    let client = asking(channel, to);
    assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
    assert_eq!(next(channel), (event::DISCONNECTED, client, 0));
    let state = qp_state(client);
    call!(endpoint::destroy(client));
    call!(channel::destroy(channel));
    server.join().unwrap();
    state
}

// As with the kernel, a connection exists once the reply has arrived, whatever follows.
#[test]
fn a_server_that_closes_right_after_its_reply_was_connected() {
    configure();
    for reply in [PLAIN, ENHANCED] {
        for _ in 0..10 {
            let state = state_after_a_server_that_goes(reply);
            assert_eq!(state, QpState::Err as c_int);
        }
    }
}

fn hints(flags: c_int) -> RdmaAddrinfo {
    let mut hints: RdmaAddrinfo = zeroed();
    hints.ai_flags = flags;
    hints
}

#[test]
fn an_event_reports_that_a_name_is_resolved() {
    const NUMERICHOST: c_int = 2;
    const SA: c_int = 1 << 4;
    const DNS: c_int = 1 << 5;
    configure();
    let channel = channel::create();
    let id = new_id(channel, port_space::TCP);
    let resolve = |node: &CStr, hints: &RdmaAddrinfo| {
        call!(lookup::resolve_addrinfo(
            id,
            node.as_ptr(),
            c"7471".as_ptr(),
            hints
        ))
    };
    let mut found = ptr::null_mut();
    refused(
        call!(lookup::query_addrinfo(id, &raw mut found)),
        libc::ENOENT,
    );
    assert_eq!(resolve(c"127.0.41.31", &hints(NUMERICHOST | DNS)), 0);
    refused(resolve(c"127.0.41.31", &hints(NUMERICHOST)), libc::EBUSY);
    assert_eq!(next(channel), (event::ADDRINFO_RESOLVED, id, 0));
    refused(
        call!(lookup::query_addrinfo(id, ptr::null_mut())),
        libc::EINVAL,
    );
    assert_eq!(call!(lookup::query_addrinfo(id, &raw mut found)), 0);
    let address = call!(polyverbs_librdmacm::address::read((*found).ai_dst_addr)).unwrap();
    assert_eq!(address, "127.0.41.31:7471".parse().unwrap());
    call!(info::free(found));
    refused(
        call!(lookup::query_addrinfo(id, &raw mut found)),
        libc::ENOENT,
    );

    assert_eq!(resolve(c"no address", &hints(NUMERICHOST)), 0);
    assert_eq!(next(channel), (event::ADDRINFO_ERROR, id, -libc::ENODATA));
    refused(
        call!(lookup::query_addrinfo(id, &raw mut found)),
        libc::ENOENT,
    );
    refused(resolve(c"127.0.41.31", &hints(SA)), libc::EOPNOTSUPP);
    refused(resolve(c"127.0.41.31", &hints(1 << 6)), libc::EINVAL);
    // A result that the program does not fetch ends with the identifier.
    assert_eq!(resolve(c"127.0.41.31", &hints(NUMERICHOST)), 0);
    assert_eq!(next(channel), (event::ADDRINFO_RESOLVED, id, 0));
    destroy_all([id]);
    is_empty(channel);
    call!(channel::destroy(channel));
}

#[test]
fn a_synchronous_identifier_waits_for_its_name() {
    configure();
    let id = new_id(ptr::null_mut(), port_space::TCP);
    let (node, service) = (c"127.0.41.31".as_ptr(), ptr::null());
    assert_eq!(
        call!(lookup::resolve_addrinfo(id, node, service, ptr::null())),
        0
    );
    let mut found = ptr::null_mut();
    assert_eq!(call!(lookup::query_addrinfo(id, &raw mut found)), 0);
    call!(info::free(found));
    destroy_all([id]);
}

#[test]
fn an_event_of_the_program_wakes_its_channel() {
    configure();
    let channel = channel::create();
    let id = new_id(channel, port_space::TCP);
    refused(
        call!(lookup::write_event(id, event::ESTABLISHED, 0, 0)),
        libc::EINVAL,
    );
    assert_eq!(call!(lookup::write_event(id, event::USER, -5, u64::MAX)), 0);
    let fetched = fetch(channel);
    let told = call!(((*fetched).event, (*fetched).status, (*fetched).param.arg));
    assert_eq!(told, (event::USER, -5, u64::MAX));
    assert_eq!(call!(channel::ack_event(fetched)), 0);
    // Those that were not fetched end with the identifier.
    assert_eq!(call!(lookup::write_event(id, event::USER, 0, 1)), 0);
    destroy_all([id]);
    is_empty(channel);
    call!(channel::destroy(channel));
}
