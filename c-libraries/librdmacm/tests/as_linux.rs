//! Calls that behave as with Linux's core where the manual pages say nothing or otherwise.
#![allow(unsafe_code)]

mod cm;

use std::ffi::{c_int, c_void};
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel as messages};
use std::{ptr, thread};

use polyverbs::emulated::{EmulatedOptions, device_at};
use polyverbs::{Context, Requirements};
use polyverbs_libibverbs::abi::{IbvQpAttr, IbvQpInitAttr, IbvSrqInitAttr, qp_type};
use polyverbs_libibverbs::qp as verbs_qp;
use polyverbs_librdmacm::abi::{
    RdmaAddrinfo, RdmaCmId, RdmaConnParam, RdmaEventChannel, SockaddrIb, event, port_space,
};
use polyverbs_librdmacm::rsocket::calls;
use polyverbs_librdmacm::{
    bind, channel, connect, endpoint, id, info, multicast, options, qp, resolve,
};
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad;
use polyverbs_wire::mad::cm::{Message, Req, Rtu, decode, header_of};
use polyverbs_wire::mad::rdma_cm::{self, RdmaCm, service_id};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use verbs_api::ids::{Gid, Qpn};
use verbs_api::provider::carrier::{Carrier, ManagementPort, ManagementSink};
use verbs_api::qp::QpState;

use cm::{
    asking, call, create_qp, destroy_all, fetch, is_empty, listening, new_id, next, private_data,
    qp_state, queue_pair, refused, resolved, resolved_in, sockaddr, zeroed,
};

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.35"
[[device]]
address = "127.0.41.36"
transport = "iwarp"
"#;
const ROCE: &str = "127.0.41.35";
const IWARP: &str = "127.0.41.36";
/// The address of a device that is not the library's.
const FOREIGN: &str = "127.0.41.37";

const ID: c_int = 0;
const IB: c_int = 1;
const TOS: c_int = 0;
const REUSE_ADDRESS: c_int = 1;
const ALONE_IN_FAMILY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;
const PATH: c_int = 1;

fn configure() {
    test_kit::configure(DEVICES);
}

fn on_each(test: impl Fn(&str)) {
    configure();
    [ROCE, IWARP].into_iter().for_each(test);
}

/// An identifier that listens, its event channel, and one for identifiers that connect to it. They are destroyed with this, after
/// the identifiers of the test.
struct Scene {
    channel: *mut RdmaEventChannel,
    server_channel: *mut RdmaEventChannel,
    listener: *mut RdmaCmId,
    to: SocketAddr,
}

impl Scene {
    /// Listens at this address.
    fn at(ip: &str) -> Self {
        let (channel, server_channel) = (channel::create(), channel::create());
        let (listener, to) = listening(server_channel, ip);
        Self {
            channel,
            server_channel,
            listener,
            to,
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A failed test has events that are not acknowledged, for which destroying would wait.
        if !thread::panicking() {
            call!(endpoint::destroy(self.listener));
            call!(channel::destroy(self.channel));
            call!(channel::destroy(self.server_channel));
        }
    }
}

/// Returns the result of `rdma_bind_addr`.
fn bind(id: *mut RdmaCmId, to: &str) -> c_int {
    let mut at = sockaddr(to);
    call!(bind::bind_addr(id, (&raw mut at).cast()))
}

/// Returns the result of `rdma_resolve_addr`.
fn resolve(id: *mut RdmaCmId, to: &str) -> c_int {
    let mut to = sockaddr(to);
    let (source, to) = (ptr::null_mut(), (&raw mut to).cast());
    call!(resolve::resolve_addr(id, source, to, 1))
}

/// Returns the result of `rdma_set_option`.
fn set<T>(id: *mut RdmaCmId, level: c_int, name: c_int, mut value: T) -> c_int {
    let at = (&raw mut value).cast();
    call!(options::set(id, level, name, at, size_of::<T>()))
}

/// Returns the result of `rdma_connect`.
fn connect(id: *mut RdmaCmId) -> c_int {
    call!(connect::connect(id, ptr::null_mut()))
}

/// Acknowledges the next connection request; returns its identifier.
fn request(channel: *mut RdmaEventChannel) -> *mut RdmaCmId {
    let (kind, server, status) = next(channel);
    assert_eq!((kind, status), (event::CONNECT_REQUEST, 0));
    server
}

/// An identifier for datagrams, with a queue pair, that has its peer's address.
fn datagrams(channel: *mut RdmaEventChannel, to: &str) -> *mut RdmaCmId {
    let client = new_id(channel, port_space::UDP);
    assert_eq!(resolve(client, to), 0);
    assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
    client
}

fn create_datagram_qp(of: *mut RdmaCmId) {
    let mut init = queue_pair();
    init.qp_type = qp_type::UD;
    assert_eq!(call!(qp::create(of, ptr::null_mut(), &raw mut init)), 0);
}

fn resolve_route(id: *mut RdmaCmId, channel: *mut RdmaEventChannel) {
    assert_eq!(call!(resolve::resolve_route(id, 1)), 0);
    assert_eq!(next(channel), (event::ROUTE_RESOLVED, id, 0));
}

#[test]
fn each_step_is_taken_once_and_in_order() {
    on_each(|ip| {
        let scene = Scene::at(ip);
        let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
        refused(bind(scene.listener, &format!("{ip}:0")), libc::EINVAL);
        refused(resolve(scene.listener, &to.to_string()), libc::EINVAL);

        let client = new_id(channel, port_space::TCP);
        refused(connect(client), libc::EINVAL);
        assert_eq!(bind(client, &format!("{ip}:0")), 0);
        refused(bind(client, &format!("{ip}:0")), libc::EINVAL);
        refused(call!(resolve::resolve_route(client, 1)), libc::EINVAL);
        assert_eq!(resolve(client, &to.to_string()), 0);
        assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
        refused(resolve(client, &to.to_string()), libc::EINVAL);
        refused(call!(bind::listen(client, 1)), libc::EINVAL);
        create_qp(client);
        refused(connect(client), libc::EINVAL);
        resolve_route(client, channel);
        refused(call!(resolve::resolve_route(client, 1)), libc::EINVAL);
        assert_eq!(connect(client), 0);

        let server = request(server_channel);
        assert_eq!(call!(connect::reject(server, ptr::null(), 0)), 0);
        refused(call!(connect::reject(server, ptr::null(), 0)), libc::EINVAL);
        let (kind, of, _) = next(channel);
        assert_eq!((kind, of), (event::REJECTED, client));
        // An identifier asks for one connection.
        refused(connect(client), libc::EINVAL);
        is_empty(channel);
        destroy_all([client, server]);
    });
}

#[test]
fn an_address_is_resolved_again_after_an_error() {
    configure();
    let channel = channel::create();
    let client = new_id(channel, port_space::TCP);
    // The route to this address of the machine begins at an address without a device.
    assert_eq!(resolve(client, "127.0.41.39:7471"), 0);
    assert_eq!(next(channel), (event::ADDR_ERROR, client, -libc::ENODEV));
    // Without a route the call fails.
    refused(
        resolve(client, "[::ffff:127.0.41.35]:7471"),
        libc::ENETUNREACH,
    );
    is_empty(channel);
    assert_eq!(resolve(client, "127.0.41.35:7471"), 0);
    assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
    assert_eq!(call!(id::destroy(client)), 0);
    call!(channel::destroy(channel));
}

#[test]
fn addresses_are_of_one_family() {
    configure();
    let channel = channel::create();
    let bound = new_id(channel, port_space::TCP);
    assert_eq!(bind(bound, "127.0.41.35:0"), 0);
    refused(resolve(bound, "[::1]:7471"), libc::EINVAL);
    let mapped = new_id(channel, port_space::TCP);
    refused(bind(mapped, "[::ffff:127.0.41.35]:0"), libc::EADDRNOTAVAIL);
    is_empty(channel);
    destroy_all([bound, mapped]);
    call!(channel::destroy(channel));
}

#[test]
fn the_wildcard_address_as_destination_is_this_machine() {
    configure();
    let scene = Scene::at(ROCE);
    let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
    let client = new_id(channel, port_space::TCP);
    assert_eq!(bind(client, &format!("{ROCE}:0")), 0);
    assert_eq!(resolve(client, &format!("0.0.0.0:{}", to.port())), 0);
    assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
    resolve_route(client, channel);
    create_qp(client);
    assert_eq!(connect(client), 0);
    let server = request(server_channel);
    create_qp(server);
    assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
    assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
    destroy_all([client, server]);
}

#[test]
fn options_are_taken_in_the_states_that_they_are_for() {
    configure();
    let channel = channel::create();
    let [idle, bound, listener] = [(); 3].map(|()| new_id(channel, port_space::TCP));
    for id in [bound, listener] {
        assert_eq!(bind(id, "127.0.41.35:0"), 0);
    }
    assert_eq!(call!(bind::listen(listener, 1)), 0);
    assert_eq!(set(idle, ID, REUSE_ADDRESS, 0), 0);
    assert_eq!(set(bound, ID, REUSE_ADDRESS, 1), 0);
    refused(set(bound, ID, REUSE_ADDRESS, 0), libc::EINVAL);
    refused(set(listener, ID, REUSE_ADDRESS, 1), libc::EINVAL);
    assert_eq!(set(bound, ID, ALONE_IN_FAMILY, 1), 0);
    refused(set(listener, ID, ALONE_IN_FAMILY, 1), libc::EINVAL);
    let datagrams = new_id(channel, port_space::UDP);
    assert_eq!(set(idle, ID, ACK_TIMEOUT, 14_u8), 0);
    refused(set(datagrams, ID, ACK_TIMEOUT, 14_u8), libc::EINVAL);
    let nothing = ptr::null_mut();
    refused(call!(options::set(idle, ID, 0, nothing, 1)), libc::EFAULT);
    destroy_all([idle, bound, listener, datagrams]);
    call!(channel::destroy(channel));
}

#[test]
fn a_path_that_a_program_sets_resolves_the_route() {
    on_each(|ip| {
        const USES: u32 = 0x2b;
        let channel = channel::create();
        let client = new_id(channel, port_space::TCP);
        let mut path = [0_u32; 18];
        path[0] = USES;
        refused(set(client, IB, PATH, path), libc::EINVAL);
        assert_eq!(resolve(client, &format!("{ip}:7471")), 0);
        assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
        refused(set(client, IB, PATH, [USES; 17]), libc::EINVAL);
        refused(set(client, IB, PATH, [0_u32; 18]), libc::EINVAL);
        is_empty(channel);
        assert_eq!(set(client, IB, PATH, path), 0);
        assert_eq!(next(channel), (event::ROUTE_RESOLVED, client, 0));
        refused(set(client, IB, PATH, path), libc::EINVAL);
        assert_eq!(call!(id::destroy(client)), 0);
        call!(channel::destroy(channel));
    });
}

#[test]
fn a_listener_shares_its_port_with_no_identifier() {
    configure();
    let channel = channel::create();
    let sharing = || {
        let id = new_id(channel, port_space::TCP);
        assert_eq!(set(id, ID, REUSE_ADDRESS, 1), 0);
        id
    };
    let [first, second, late] = [(); 3].map(|()| sharing());
    for id in [first, second] {
        assert_eq!(bind(id, "127.0.41.35:7011"), 0);
    }
    refused(call!(bind::listen(first, 1)), libc::EADDRINUSE);
    assert_eq!(call!(id::destroy(second)), 0);
    assert_eq!(call!(bind::listen(first, 1)), 0);
    refused(bind(late, "127.0.41.35:7011"), libc::EADDRINUSE);
    refused(bind(late, "0.0.0.0:7011"), libc::EADDRNOTAVAIL);
    destroy_all([first, late]);
    call!(channel::destroy(channel));
}

#[test]
fn a_privileged_port_needs_the_right_to_it() {
    configure();
    // Capabilities belong to a thread, so only this one loses the right.
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::NET_BIND_SERVICE);
    set_capabilities(None, own).unwrap();
    let system = TcpListener::bind((IWARP, 1021)).map(drop);
    let is_as_system = |bound| match &system {
        Ok(()) => assert_eq!(bound, 0),
        Err(error) => refused(bound, error.raw_os_error().unwrap()),
    };
    let channel = channel::create();
    for ip in [ROCE, IWARP, "0.0.0.0"] {
        let to = format!("{ip}:1021");
        let id = new_id(channel, port_space::TCP);
        is_as_system(bind(id, &to));
        assert_eq!(call!(id::destroy(id)), 0);
        let socket = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let (at, length) = (sockaddr(&to), size_of::<libc::sockaddr_in>() as u32);
        is_as_system(call!(calls::bind(socket, (&raw const at).cast(), length)));
        assert_eq!(calls::close(socket), 0);
    }
    call!(channel::destroy(channel));
}

fn queried(of: *mut RdmaCmId) -> IbvQpAttr {
    let (mut attr, mut init): (IbvQpAttr, IbvQpInitAttr) = (zeroed(), zeroed());
    let (at, init) = (&raw mut attr, &raw mut init);
    assert_eq!(call!(verbs_qp::query((*of).qp, at, 0, init)), 0);
    attr
}

#[test]
fn each_side_retries_as_often_as_its_peer_asks() {
    configure();
    let scene = Scene::at(ROCE);
    let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
    for (asked, seen) in [([5, 3], [5, 3]), ([9, 200], [7, 7])] {
        let client = resolved(channel, to);
        let mut param: RdmaConnParam = zeroed();
        [param.retry_count, param.rnr_retry_count] = asked;
        assert_eq!(call!(connect::connect(client, &raw mut param)), 0);
        let request = fetch(server_channel);
        let (server, told) = call!(((*request).id, (*request).param.conn));
        assert_eq!([told.retry_count, told.rnr_retry_count], seen);
        create_qp(server);
        let mut param: RdmaConnParam = zeroed();
        param.rnr_retry_count = 2;
        assert_eq!(call!(connect::accept(server, &raw mut param)), 0);
        assert_eq!(call!(channel::ack_event(request)), 0);
        assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
        assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));
        let (near, far) = (queried(client), queried(server));
        assert_eq!([far.retry_cnt, far.rnr_retry], seen);
        assert_eq!([near.retry_cnt, near.rnr_retry], [seen[0], 2]);
        // A peer that retries a few times waits 655 ms each time.
        assert_eq!(far.min_rnr_timer, 0);
        assert_eq!(near.min_rnr_timer == 0, seen[1] < 7);
        destroy_all([client, server]);
    }
}

/// The next event, of this kind and acknowledged: its identifier, and the parameters of the peer.
fn parameters(channel: *mut RdmaEventChannel, kind: c_int) -> (*mut RdmaCmId, RdmaConnParam) {
    let fetched = fetch(channel);
    let (told, of, param) = call!(((*fetched).event, (*fetched).id, (*fetched).param.conn));
    assert_eq!(told, kind);
    assert_eq!(call!(channel::ack_event(fetched)), 0);
    (of, param)
}

#[test]
fn the_peer_sees_flow_control_and_srq_over_infiniband() {
    on_each(|ip| {
        let scene = Scene::at(ip);
        let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
        // The messages have one bit of the number.
        let told = |value: u8| if ip == ROCE { value & 1 } else { 0 };
        for [asks, answers] in [[1, 0], [0, 1], [2, 3]] {
            let client = resolved(channel, to);
            let mut param: RdmaConnParam = zeroed();
            param.flow_control = asks;
            assert_eq!(call!(connect::connect(client, &raw mut param)), 0);
            let (server, seen) = parameters(server_channel, event::CONNECT_REQUEST);
            assert_eq!((seen.flow_control, seen.srq), (told(asks), 0));
            let mut queue: IbvSrqInitAttr = zeroed();
            (queue.attr.max_wr, queue.attr.max_sge) = (1, 1);
            let no_pd = ptr::null_mut();
            assert_eq!(call!(qp::create_srq(server, no_pd, &raw mut queue)), 0);
            create_qp(server);
            param.flow_control = answers;
            assert_eq!(call!(connect::accept(server, &raw mut param)), 0);
            let (of, seen) = parameters(channel, event::ESTABLISHED);
            assert_eq!(of, client);
            assert_eq!((seen.flow_control, seen.srq), (told(answers), told(1)));
            assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));
            destroy_all([client, server]);
        }
    });
}

#[test]
fn the_accepting_side_has_the_traffic_class_of_the_request() {
    const ASKED: u8 = 0x68;
    configure();
    let scene = Scene::at(ROCE);
    let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
    let client = new_id(channel, port_space::TCP);
    assert_eq!(set(client, ID, TOS, ASKED), 0);
    assert_eq!(resolve(client, &to.to_string()), 0);
    assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
    resolve_route(client, channel);
    create_qp(client);
    assert_eq!(connect(client), 0);
    let server = request(server_channel);
    assert_eq!(set(server, ID, TOS, 0x20_u8), 0);
    create_qp(server);
    assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
    assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
    assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));
    let classes = [client, server].map(|of| queried(of).ah_attr.grh.traffic_class);
    assert_eq!(classes, [ASKED, ASKED]);
    destroy_all([client, server]);
}

#[test]
fn a_request_is_withdrawn_over_infiniband_only() {
    const TIMEOUT: c_int = 4;
    on_each(|ip| {
        let scene = Scene::at(ip);
        let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
        let client = asking(channel, to);
        let server = request(server_channel);
        create_qp(server);
        let withdraw = || call!(connect::reject(client, ptr::null(), 0));
        let accept = |server| call!(connect::accept(server, ptr::null_mut()));
        if ip == IWARP {
            refused(withdraw(), libc::EINVAL);
            assert_eq!(accept(server), 0);
            assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
            assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));
            destroy_all([client, server]);
        } else {
            assert_eq!(withdraw(), 0);
            refused(withdraw(), libc::EINVAL);
            refused(connect(client), libc::EINVAL);
            assert_eq!(next(server_channel), (event::REJECTED, server, TIMEOUT));
            refused(accept(server), libc::EINVAL);
            // A destroyed identifier withdraws its request, too.
            let second = asking(channel, to);
            let other = request(server_channel);
            call!(endpoint::destroy(second));
            assert_eq!(next(server_channel), (event::REJECTED, other, TIMEOUT));
            is_empty(channel);
            is_empty(server_channel);
            destroy_all([client, server, other]);
        }
    });
}

#[test]
fn the_asking_side_may_reject_the_answer() {
    const CONSUMER: c_int = 28;
    const SAID: &[u8] = b"too slow";
    configure();
    let scene = Scene::at(ROCE);
    let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
    let client = resolved(channel, to);
    // The identifier does not have the queue pair, so that the program gets the answer before it completes the connection.
    let own = call!((*client).qp);
    call!((*client).qp = ptr::null_mut());
    let mut param: RdmaConnParam = zeroed();
    param.qp_num = call!((*own).qp_num);
    assert_eq!(call!(connect::connect(client, &raw mut param)), 0);
    let server = request(server_channel);
    create_qp(server);
    assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
    assert_eq!(next(channel), (event::CONNECT_RESPONSE, client, 0));
    let (at, length) = (SAID.as_ptr().cast(), SAID.len() as u8);
    assert_eq!(call!(connect::reject(client, at, length)), 0);
    refused(call!(connect::establish(client)), libc::EINVAL);
    let fetched = fetch(server_channel);
    let told = call!(((*fetched).event, (*fetched).id, (*fetched).status));
    assert_eq!(told, (event::REJECTED, server, CONSUMER));
    assert!(private_data(fetched).starts_with(SAID));
    assert_eq!(call!(channel::ack_event(fetched)), 0);
    is_empty(channel);
    call!((*client).qp = own);
    destroy_all([client, server]);
}

/// The connection manager of a foreign device, which hands its messages to the test and sends only those of the test.
struct Foreign {
    _context: Context,
    port: Arc<dyn ManagementPort>,
    received: Receiver<Message>,
}

struct Received(Sender<Message>);

impl ManagementSink for Received {
    fn datagram(&self, _: IpAddr, datagram: &[u8]) {
        let message = decode(&mad::decode(datagram).unwrap()).unwrap();
        // The test may have ended.
        let _ = self.0.send(message);
    }

    fn refused(&self, _: IpAddr, _: i32) {}

    fn traffic(&self, _: Qpn) {}

    fn due(&self) {}
}

impl Foreign {
    fn new(address: IpAddr) -> Self {
        let device = device_at("ib0", address, &EmulatedOptions::default()).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let Some(Carrier::Datagrams(port)) = context.carrier() else {
            panic!("no queue pair 1");
        };
        let (sender, received) = messages();
        port.attach(&mut || Arc::new(Received(sender.clone())));
        Self {
            _context: context,
            port,
            received,
        }
    }

    fn send(&self, to: SocketAddr, message: impl Into<Message>) {
        let message = message.into();
        let datagram = mad::encode(&header_of(&message, 1), &message.to_data());
        self.port.send(to.ip(), &datagram);
        self.port.progress();
    }
}

// The request of the peer allows two seconds for the answer to a message, with all its repetitions: the test waits no longer.
#[test]
fn a_disconnect_that_the_peer_does_not_confirm_has_timed_out() {
    configure();
    let channel = channel::create();
    let (listener, to) = listening(channel, ROCE);
    let own: IpAddr = FOREIGN.parse().unwrap();
    let peer = Foreign::new(own);
    let (own_ids, _) = peer.port.communication_ids();
    let comm_id = own_ids | 7;
    let named = RdmaCm::new(own, 9, to.ip()).unwrap().to_view().0;
    peer.send(
        to,
        Req {
            local_comm_id: comm_id,
            service_id: service_id(rdma_cm::port_space::TCP, to.port()),
            ca_guid: 5,
            qpn: 0x99,
            path_mtu: 1,
            local_response_timeout: 16,
            max_cm_retries: 7,
            primary_local_gid: Octets(Gid::from(own).0),
            private_data: Octets::padded(&named).unwrap(),
            ..Req::default()
        },
    );
    let server = request(channel);
    create_qp(server);
    assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
    let Message::Rep(rep) = peer.received.recv().unwrap() else {
        panic!("no reply");
    };
    let rtu = Rtu {
        local_comm_id: comm_id,
        remote_comm_id: rep.local_comm_id,
        ..Rtu::default()
    };
    peer.send(to, rtu);
    assert_eq!(next(channel), (event::ESTABLISHED, server, 0));
    assert_eq!(call!(connect::disconnect(server)), 0);
    let timed_out = (event::DISCONNECTED, server, -libc::ETIMEDOUT);
    assert_eq!(next(channel), timed_out);
    assert_eq!(next(channel), (event::TIMEWAIT_EXIT, server, 0));
    destroy_all([server, listener]);
    call!(channel::destroy(channel));
}

#[test]
fn disconnecting_succeeds_where_nothing_is_connected() {
    on_each(|ip| {
        let scene = Scene::at(ip);
        let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
        let client = asking(channel, to);
        let server = request(server_channel);
        assert_eq!(call!(connect::disconnect(server)), 0);
        // The request can still be rejected. Without private data their length is ignored.
        assert_eq!(call!(connect::reject(server, ptr::null(), 9)), 0);
        let (kind, of, _) = next(channel);
        assert_eq!((kind, of), (event::REJECTED, client));
        assert_eq!(qp_state(client), QpState::Err as c_int);
        for id in [client, server] {
            assert_eq!(call!(connect::disconnect(id)), 0);
        }
        let idle = new_id(channel, port_space::TCP);
        refused(call!(connect::disconnect(idle)), libc::EINVAL);
        is_empty(channel);
        is_empty(server_channel);
        destroy_all([client, server, idle]);
    });
}

// The server closes the streams of both requests, that of revision 2 and then that of revision 1.
#[test]
fn a_stream_that_ends_before_the_reply_is_a_rejection() {
    configure();
    let server = TcpListener::bind((IWARP, 0)).unwrap();
    let to: SocketAddr = server.local_addr().unwrap();
    thread::spawn(move || {
        for stream in server.incoming() {
            stream.unwrap().read_exact(&mut [0; 20]).unwrap();
        }
    });
    let channel = channel::create();
    let client = asking(channel, to);
    assert_eq!(next(channel), (event::REJECTED, client, -libc::ECONNRESET));
    call!(endpoint::destroy(client));
    call!(channel::destroy(channel));
}

#[test]
fn requests_wait_whatever_the_backlog_says() {
    on_each(|ip| {
        let (channel, server_channel) = (channel::create(), channel::create());
        let listener = new_id(server_channel, port_space::TCP);
        assert_eq!(bind(listener, &format!("{ip}:0")), 0);
        assert_eq!(call!(bind::listen(listener, 1)), 0);
        let port = u16::from_be(call!(id::get_src_port(listener)));
        let to = SocketAddr::new(ip.parse().unwrap(), port);
        let clients = [(); 4].map(|()| asking(channel, to));
        let servers = clients.map(|_| request(server_channel));
        for server in servers {
            create_qp(server);
            assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
        }
        for channel in [channel, server_channel] {
            for _ in clients {
                let (kind, _, status) = next(channel);
                assert_eq!((kind, status), (event::ESTABLISHED, 0));
            }
        }
        destroy_all(clients.into_iter().chain(servers).chain([listener]));
        call!(channel::destroy(channel));
        call!(channel::destroy(server_channel));
    });
}

/// Returns the status of the next event, which must be `UNREACHABLE`.
fn unreachable(channel: *mut RdmaEventChannel, client: *mut RdmaCmId) -> c_int {
    let (kind, of, status) = next(channel);
    assert_eq!((kind, of), (event::UNREACHABLE, client));
    status
}

#[test]
fn a_refused_datagram_request_reports_the_status() {
    const UNSUPPORTED: c_int = 1;
    const REJECTED: c_int = 2;
    configure();
    let (channel, server_channel) = (channel::create(), channel::create());
    let listener = new_id(server_channel, port_space::UDP);
    assert_eq!(bind(listener, &format!("{ROCE}:7012")), 0);
    let ask = || {
        let client = datagrams(channel, &format!("{ROCE}:7012"));
        resolve_route(client, channel);
        // A datagram request needs neither a queue pair nor parameters.
        assert_eq!(connect(client), 0);
        client
    };
    let early = ask();
    assert_eq!(unreachable(channel, early), UNSUPPORTED);
    assert_eq!(call!(bind::listen(listener, 1)), 0);
    let client = ask();
    let server = request(server_channel);
    let long = [7_u8; 137];
    let at: *const c_void = long.as_ptr().cast();
    refused(call!(connect::reject(server, at, 137)), libc::EINVAL);
    // A request that cannot be accepted is rejected.
    create_datagram_qp(server);
    let mut param: RdmaConnParam = zeroed();
    (param.private_data, param.private_data_len) = (at, 137);
    refused(call!(connect::accept(server, &raw mut param)), libc::EINVAL);
    assert_eq!(unreachable(channel, client), REJECTED);
    destroy_all([listener, early, client, server]);
    call!(channel::destroy(channel));
    call!(channel::destroy(server_channel));
}

#[test]
fn a_rejected_datagram_request_gets_the_private_data() {
    const SAID: &[u8] = b"not here";
    configure();
    let (channel, server_channel) = (channel::create(), channel::create());
    let listener = new_id(server_channel, port_space::UDP);
    assert_eq!(bind(listener, &format!("{ROCE}:7013")), 0);
    assert_eq!(call!(bind::listen(listener, 1)), 0);
    let client = datagrams(channel, &format!("{ROCE}:7013"));
    resolve_route(client, channel);
    assert_eq!(connect(client), 0);
    let server = request(server_channel);
    let (at, length) = (SAID.as_ptr().cast(), SAID.len() as u8);
    assert_eq!(call!(connect::reject(server, at, length)), 0);
    let fetched = fetch(channel);
    assert_eq!(call!((*fetched).event), event::UNREACHABLE);
    let told = private_data(fetched);
    assert_eq!((&told[..SAID.len()], told.len()), (SAID, 136));
    assert_eq!(call!(channel::ack_event(fetched)), 0);
    destroy_all([listener, client, server]);
    call!(channel::destroy(channel));
    call!(channel::destroy(server_channel));
}

#[test]
fn services_of_two_port_spaces_share_a_port() {
    const PORT: u16 = 7014;
    const SPACES: [c_int; 2] = [port_space::TCP, port_space::IB];
    on_each(|ip| {
        let (channel, server_channel) = (channel::create(), channel::create());
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let listener = |space| {
            let listener = new_id(server_channel, space);
            assert_eq!(bind(listener, &to.to_string()), 0);
            assert_eq!(call!(bind::listen(listener, 1)), 0);
            listener
        };
        // A stream has one port for both.
        let spaces = &SPACES[usize::from(ip == IWARP)..];
        let listeners: Vec<_> = spaces.iter().map(|space| listener(*space)).collect();
        for (&space, &listener) in spaces.iter().zip(&listeners) {
            let client = resolved_in(space, channel, to);
            assert_eq!(connect(client), 0);
            let asked = fetch(server_channel);
            let (server, of) = call!(((*asked).id, (*asked).listen_id));
            assert_eq!((of, call!((*server).ps)), (listener, space));
            assert_eq!(call!(channel::ack_event(asked)), 0);
            create_qp(server);
            assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
            assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
            assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));
            destroy_all([client, server]);
        }
        destroy_all(listeners);
        call!(channel::destroy(channel));
        call!(channel::destroy(server_channel));
    });
}

#[test]
fn ip_over_infiniband_is_at_no_device_of_ethernet() {
    configure();
    let channel = channel::create();
    let [id, everywhere] = [(); 2].map(|()| new_id(channel, port_space::IPOIB));
    refused(bind(id, &format!("{ROCE}:0")), libc::EINVAL);
    assert_eq!(resolve(id, &format!("{ROCE}:7471")), 0);
    assert_eq!(next(channel), (event::ADDR_ERROR, id, -libc::EINVAL));
    assert_eq!(bind(everywhere, "0.0.0.0:0"), 0);
    assert_eq!(call!(bind::listen(everywhere, 1)), 0);
    is_empty(channel);
    destroy_all([id, everywhere]);
    call!(channel::destroy(channel));
}

#[test]
fn an_address_of_infiniband_is_at_no_device_of_ethernet() {
    const NUMERICHOST: c_int = 1 << 1;
    const FAMILY: c_int = 1 << 3;
    configure();
    let mut hints: RdmaAddrinfo = zeroed();
    (hints.ai_family, hints.ai_port_space) = (libc::AF_IB, port_space::IB);
    let mut look_up = |flags| {
        hints.ai_flags = flags;
        let (node, service) = (c"::ffff:127.0.41.35".as_ptr(), c"7471".as_ptr());
        let mut found = ptr::null_mut();
        let got = call!(info::get(node, service, &raw const hints, &raw mut found));
        assert_eq!(got, 0);
        found
    };
    let found = look_up(FAMILY | NUMERICHOST);
    let to = call!((*found).ai_dst_addr);
    let address = call!(*to.cast::<SockaddrIb>());
    let own: IpAddr = ROCE.parse().unwrap();
    assert_eq!(call!((*found).ai_family), libc::AF_IB);
    assert_eq!(c_int::from(address.sib_family), libc::AF_IB);
    assert_eq!(address.sib_addr, Gid::from(own).0);
    let service = service_id(rdma_cm::port_space::IB, 7471);
    assert_eq!(
        (address.sib_sid, address.sib_sid_mask),
        (service.to_be(), u64::MAX)
    );
    let channel = channel::create();
    let id = new_id(channel, port_space::IB);
    refused(call!(bind::bind_addr(id, to)), libc::ENODEV);
    let source = ptr::null_mut();
    refused(
        call!(resolve::resolve_addr(id, source, to, 1)),
        libc::ENODEV,
    );
    is_empty(channel);
    assert_eq!(call!(id::destroy(id)), 0);
    call!(channel::destroy(channel));
    call!(info::free(found));
    // A program that does not insist on numbers gets the IP address.
    let found = look_up(FAMILY);
    assert_eq!(call!((*found).ai_family), libc::AF_INET6);
    call!(info::free(found));
}

fn join(id: *mut RdmaCmId, group: &str) -> c_int {
    let mut group = sockaddr(group);
    call!(multicast::join(
        id,
        (&raw mut group).cast(),
        ptr::null_mut()
    ))
}

fn leave(id: *mut RdmaCmId, group: &str) -> c_int {
    let mut group = sockaddr(group);
    call!(multicast::leave(id, (&raw mut group).cast()))
}

#[test]
fn groups_are_joined_before_the_route_is_resolved() {
    const GROUP: &str = "239.1.41.35:0";
    configure();
    let channel = channel::create();
    let member = datagrams(channel, GROUP);
    create_datagram_qp(member);
    // A program may join a group several times. Events of a group that it has left are not delivered.
    for _ in 0..2 {
        assert_eq!(join(member, GROUP), 0);
        assert_eq!(next(channel), (event::MULTICAST_JOIN, member, 0));
    }
    assert_eq!(leave(member, GROUP), 0);
    assert_eq!(join(member, GROUP), 0);
    for _ in 0..2 {
        assert_eq!(leave(member, GROUP), 0);
    }
    is_empty(channel);
    refused(leave(member, GROUP), libc::EADDRNOTAVAIL);
    // The group may be of the other family.
    assert_eq!(join(member, "[ff0e::41:35]:0"), 0);
    assert_eq!(next(channel), (event::MULTICAST_JOIN, member, 0));
    assert_eq!(leave(member, "[ff0e::41:35]:0"), 0);
    resolve_route(member, channel);
    refused(join(member, GROUP), libc::EINVAL);
    call!(endpoint::destroy(member));
    call!(channel::destroy(channel));
}

#[test]
fn an_established_connection_is_notified_as_connected() {
    const COMMUNICATION_ESTABLISHED: c_int = 4;
    const PATH_MIGRATED: c_int = 6;
    on_each(|ip| {
        let scene = Scene::at(ip);
        let (channel, server_channel, to) = (scene.channel, scene.server_channel, scene.to);
        let client = asking(channel, to);
        let asked = fetch(server_channel);
        assert!(private_data(asked).iter().all(|byte| *byte == 0));
        let server = call!((*asked).id);
        assert_eq!(call!(channel::ack_event(asked)), 0);
        create_qp(server);
        assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
        assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
        assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));
        let notify = |event| call!(options::notify(server, event));
        match ip {
            ROCE => {
                refused(notify(COMMUNICATION_ESTABLISHED), libc::EISCONN);
                refused(notify(PATH_MIGRATED), libc::EINVAL);
            }
            _ => assert_eq!(notify(COMMUNICATION_ESTABLISHED), 0),
        }
        destroy_all([client, server]);
    });
}

#[test]
fn a_synchronous_identifier_moves_to_a_channel_only() {
    configure();
    let id = new_id(ptr::null_mut(), port_space::TCP);
    refused(call!(id::migrate(id, ptr::null_mut())), libc::EINVAL);
    let channel = channel::create();
    assert_eq!(call!(id::migrate(id, channel)), 0);
    is_empty(channel);
    assert_eq!(call!(id::destroy(id)), 0);
    call!(channel::destroy(channel));
}
