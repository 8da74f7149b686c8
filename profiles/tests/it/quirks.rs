//! Each rule on a device that obeys it, and its absence on the same device without the rule.

use std::sync::Arc;

use polyverbs::capability::Baseline;
use polyverbs::completion::WcOpcode;
use polyverbs::emulated::EmulatedOptions;
use polyverbs::provider::Mutex;
use polyverbs::wr::{Batch, Data, ReceiveRequest, UdDestination};
use polyverbs::{
    Access, Completion, Context, Cq, Device, ErrorKind, Limit, Memory, PathOptions, Pd, PostError,
    Qp, QpOptions, Requirements, VerbError, WcStatus, connect_pair, wr,
};
use polyverbs_profiles::Profile;

const HEAD: &str = r#"
profile = 1
name = "one-quirk"
class = "none"
summary = "a device with one quirk"
transport = "roce"

[[fact]]
sure = "measured"
source = "this test"
has = ["RC", "UC", "UD", "SRQ"]
limits = { max_qp_rd_atom = 16, max_qp_init_rd_atom = 16, max_qp_wr = 1024, max_mr = 1000 }

[[quirk]]
sure = "measured"
source = "this test"
"#;

/// One device with a rule, an equal one without it, and the quirks that programs have met.
struct Devices {
    quirky: Device,
    plain: Device,
    met: Arc<Mutex<Vec<String>>>,
}

fn devices(rule: &str) -> Devices {
    let profile = Profile::parse("one-quirk", &format!("{HEAD}rule = \"{rule}\"\n")).unwrap();
    let options = EmulatedOptions::default();
    let met = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&met);
    let told = Arc::new(move |quirk: &str, _: &str| told.lock().push(quirk.to_owned()));
    let except = [profile.quirks[0].name()];
    Devices {
        quirky: profile.device_telling(&options, &[], told).unwrap(),
        plain: profile.device(&options, &except).unwrap(),
        met,
    }
}

/// An open device with a domain and a completion queue.
struct Rig {
    context: Context,
    pd: Pd,
    cq: Cq,
}

impl Rig {
    fn of(device: &Device) -> Self {
        let context = device
            .open(&Requirements::new().needs(Baseline::RC))
            .unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(256).wait().unwrap();
        Self { context, pd, cq }
    }

    fn rc(&self) -> Result<Qp, VerbError> {
        self.pd.create_qp(QpOptions::rc(&self.cq)).wait()
    }

    fn pair(&self) -> [Qp; 2] {
        let pair = [self.rc().unwrap(), self.rc().unwrap()];
        connect_pair(&pair[0], &pair[1], Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        pair
    }

    fn register(&self, length: usize, access: Access) -> Result<polyverbs::Mr, VerbError> {
        self.pd
            .register(Memory::zeroed(length).unwrap(), access)
            .wait()
    }

    fn poll_all(&self) -> Vec<(u64, WcStatus, WcOpcode)> {
        let mut slots: [Completion; 16] = Default::default();
        let found = self.cq.poll(&mut slots).unwrap().iter();
        found.map(|it| (it.wr_id, it.status, it.opcode)).collect()
    }
}

#[track_caller]
fn errno(result: Result<impl Sized, VerbError>) -> Option<i32> {
    match result {
        Ok(_) => None,
        Err(VerbError::Os { errno, .. }) => Some(errno),
        Err(other) => panic!("{other}"),
    }
}

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;

// Kind 1: ibv_query_device(3) counts max_res_rd_atom per device.
#[test]
fn the_reads_that_a_device_serves_are_one_budget() {
    let devices = devices("budget res-rd-atom=31, errno=EINVAL");
    let serve = |rig: &Rig| {
        let [near, far] = [rig.rc().unwrap(), rig.rc().unwrap()];
        let refused = connect_pair(&near, &far, Access::REMOTE_READ).wait().err();
        (refused, near, far)
    };
    let rig = Rig::of(&devices.quirky);
    let (refused, near, far) = serve(&rig);
    assert_eq!(errno(refused.map_or(Ok(()), Err)), Some(EINVAL));
    assert_eq!(*devices.met.lock(), ["budget-res-rd-atom"]);
    // What a queue pair has taken is free again when it is destroyed.
    for qp in [near, far] {
        qp.destroy().wait().unwrap();
    }
    let [first, second] = [rig.rc().unwrap(), rig.rc().unwrap()];
    let options = PathOptions::new().max_dest_rd_atomic(15);
    let endpoints = [second.endpoint().unwrap(), first.endpoint().unwrap()];
    first.connect(&endpoints[0], options).wait().unwrap();
    second.connect(&endpoints[1], options).wait().unwrap();
    assert!(serve(&Rig::of(&devices.plain)).0.is_none());
}

// Kind 3: an error that reads as a request to try again.
#[test]
fn a_budget_ends_objects_below_the_advertised_number() {
    let found = devices("budget qp=10, errno=EBUSY");
    let rig = Rig::of(&found.quirky);
    assert!(rig.context.limits().max_qp > 10);
    let mut qps: Vec<_> = (0..10).map(|_| rig.rc().unwrap()).collect();
    assert_eq!(errno(rig.rc()), Some(EBUSY));
    qps.pop();
    qps.push(rig.rc().unwrap());
    assert_eq!(errno(rig.rc()), Some(EBUSY));
    let plain = Rig::of(&found.plain);
    let more: Vec<_> = (0..11).map(|_| plain.rc().unwrap()).collect();
    assert_eq!(more.len(), 11);

    let found = devices("budget mr=100, errno=ENOMEM");
    let rig = Rig::of(&found.quirky);
    let regions: Vec<_> = (0..100)
        .map(|_| rig.register(8, Access::empty()).unwrap())
        .collect();
    assert_eq!(errno(rig.register(8, Access::empty())), Some(ENOMEM));
    deregister(regions);
    assert!(rig.register(8, Access::empty()).is_ok());

    let found = devices("budget cq=3, errno=ENOMEM");
    let rig = Rig::of(&found.quirky);
    let _two = [(); 2].map(|()| rig.context.create_cq(1).wait().unwrap());
    assert_eq!(errno(rig.context.create_cq(1).wait()), Some(ENOMEM));
    assert!(
        [(); 3]
            .map(|()| Rig::of(&found.plain).context.create_cq(1).wait())
            .iter()
            .all(Result::is_ok)
    );
}

/// A region that is only dropped is deregistered a moment later, and counts until then.
fn deregister(regions: Vec<polyverbs::Mr>) {
    for region in regions {
        region.deregister().wait().unwrap();
    }
}

// Kinds 2 and 4: the budget does not count objects.
#[test]
fn a_budget_counts_bytes_or_requests() {
    let found = devices("budget mr-bytes=65536, errno=ENOMEM");
    let rig = Rig::of(&found.quirky);
    let many: Vec<_> = (0..16)
        .map(|_| rig.register(4096, Access::empty()).unwrap())
        .collect();
    assert_eq!(errno(rig.register(1, Access::empty())), Some(ENOMEM));
    deregister(many);
    let _one = rig.register(65536, Access::empty()).unwrap();
    assert_eq!(errno(rig.register(1, Access::empty())), Some(ENOMEM));
    assert!(
        Rig::of(&found.plain)
            .register(65537, Access::empty())
            .is_ok()
    );

    let found = devices("budget wr-total=1000, errno=ENOMEM");
    let deep = |rig: &Rig| {
        let options = QpOptions::rc(&rig.cq).max_send_wr(200).max_recv_wr(200);
        rig.pd.create_qp(options).wait()
    };
    let rig = Rig::of(&found.quirky);
    let _two = [deep(&rig).unwrap(), deep(&rig).unwrap()];
    assert_eq!(errno(deep(&rig)), Some(ENOMEM));
    let plain = Rig::of(&found.plain);
    assert!([(); 3].map(|()| deep(&plain)).iter().all(Result::is_ok));
}

// Kind 5.
#[test]
fn a_maximum_is_what_is_left_of_it() {
    let devices = devices("attributes-remaining");
    let limits = |device: &Device| {
        let limits = device.attributes().limits;
        (limits.max_qp, limits.max_mr)
    };
    for (device, used) in [(&devices.quirky, (5, 1)), (&devices.plain, (0, 0))] {
        let (qps, mrs) = limits(device);
        let rig = Rig::of(device);
        let _used = (
            [(); 5].map(|()| rig.rc().unwrap()),
            rig.register(8, Access::empty()).unwrap(),
        );
        assert_eq!(limits(device), (qps - used.0, mrs - used.1));
    }
}

// Kind 6.
#[test]
fn the_advertised_depth_is_one_too_many() {
    let devices = devices("max-qp-wr-off-by entries=1, errno=ENOMEM");
    let deepest = |rig: &Rig, less: u32| {
        let most = rig.context.limits().max_qp_wr - less;
        rig.pd
            .create_qp(QpOptions::rc(&rig.cq).max_send_wr(most))
            .wait()
    };
    let rig = Rig::of(&devices.quirky);
    assert_eq!(errno(deepest(&rig, 0)), Some(ENOMEM));
    assert!(deepest(&rig, 1).is_ok());
    assert!(deepest(&Rig::of(&devices.plain), 0).is_ok());
}

// Kind 7.
#[test]
fn fewer_requests_can_be_posted_than_a_queue_pair_says() {
    let devices = devices("usable-wr send=63, recv=63, errno=ENOMEM");
    for (device, taken) in [(&devices.quirky, 63), (&devices.plain, 64)] {
        let rig = Rig::of(device);
        let [near, far] = rig.pair();
        let cap = near.cap();
        assert_eq!((cap.max_send_wr, cap.max_recv_wr), (64, 64));
        let receives = (0..64).take_while(|id| {
            far.post_receive(ReceiveRequest::new(*id, Data::None))
                .is_ok()
        });
        assert_eq!(receives.count(), taken);
        // A receive that has completed makes room for another one.
        near.post_one(wr::Send::new(b"").signaled(7)).unwrap();
        assert_eq!(rig.poll_all().len(), 2);
        assert!(
            far.post_receive(ReceiveRequest::new(99, Data::None))
                .is_ok()
        );
    }
}

// Most programs signal few requests, and some give all the same wr_id.
#[test]
fn unsignaled_requests_free_their_places() {
    let devices = devices("usable-wr send=48, errno=ENOMEM");
    let rig = Rig::of(&devices.quirky);
    let [near, _far] = rig.pair();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = rig.register(8, rights).unwrap();
    let write = || wr::Write::new(b"", region.remote(0));
    for _ in 0..20 {
        for _ in 0..15 {
            near.post_one(write().wr_id(1)).unwrap();
        }
        near.post_one(write().signaled(1)).unwrap();
        assert_eq!(rig.poll_all().len(), 1);
    }
    assert!(devices.met.lock().is_empty());
}

// Kind 10.
#[test]
fn inline_data_are_limited_by_the_type_of_the_queue_pair() {
    let devices = devices("inline-by-type rc=988, ud=512, errno=EINVAL");
    let make = |rig: &Rig, options: QpOptions, bytes| {
        errno(rig.pd.create_qp(options.max_inline_data(bytes)).wait())
    };
    let rig = Rig::of(&devices.quirky);
    assert_eq!(make(&rig, QpOptions::rc(&rig.cq), 988), None);
    assert_eq!(make(&rig, QpOptions::rc(&rig.cq), 989), Some(EINVAL));
    assert_eq!(make(&rig, QpOptions::ud(&rig.cq), 512), None);
    assert_eq!(make(&rig, QpOptions::ud(&rig.cq), 513), Some(EINVAL));
    assert_eq!(make(&rig, QpOptions::uc(&rig.cq), 1024), None);
    let plain = Rig::of(&devices.plain);
    assert_eq!(make(&plain, QpOptions::ud(&plain.cq), 513), None);
}

#[track_caller]
fn refused(result: Result<(), PostError>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

// Kind 11.
#[test]
fn inline_data_are_promised_and_refused_when_posted() {
    let devices = devices("inline-post errno=EINVAL");
    for (device, expected) in [
        (&devices.quirky, Some(ErrorKind::InvalidArgument)),
        (&devices.plain, None),
    ] {
        let rig = Rig::of(device);
        let [near, far] = rig.pair();
        let region = rig.register(16, Access::LOCAL_WRITE).unwrap();
        far.post_receive(ReceiveRequest::new(1, region.sge(0, 16).unwrap()))
            .unwrap();
        assert!(near.cap().max_inline_data > 0);
        assert_eq!(
            refused(near.post_one(wr::Send::new(b"few").signaled(1))),
            expected
        );
        near.post_one(wr::Send::new(region.sge(0, 3).unwrap()).signaled(2))
            .unwrap();
    }
}

// Kind 22.
#[test]
fn a_receive_without_an_entry_is_refused() {
    let devices = devices("zero-sge on=recv, errno=EINVAL");
    for (device, expected) in [
        (&devices.quirky, Some(ErrorKind::InvalidArgument)),
        (&devices.plain, None),
    ] {
        let rig = Rig::of(device);
        let [near, far] = rig.pair();
        let empty = ReceiveRequest::new(1, Data::None);
        assert_eq!(refused(far.post_receive(empty)), expected);
        // A send without an entry is another thing.
        assert_eq!(refused(near.post_one(wr::Send::new(Data::None))), None);
    }
}

// Kind 24.
#[test]
fn a_chain_of_requests_fails() {
    let devices = devices("chain-max most=1, status=LOC_QP_OP_ERR");
    let statuses = |device: &Device| {
        let rig = Rig::of(device);
        let [near, far] = rig.pair();
        for id in 0..4 {
            far.post_receive(ReceiveRequest::new(100 + id, Data::None))
                .unwrap();
        }
        near.post_one(wr::Send::new(b"").signaled(0)).unwrap();
        let mut chain: Batch = (1..4).map(|id| wr::Send::new(b"").signaled(id)).collect();
        near.post(&mut chain).unwrap();
        let sends = rig.poll_all().into_iter().filter(|(id, ..)| *id < 100);
        sends.map(|(_, status, _)| status).collect::<Vec<_>>()
    };
    use WcStatus::{LocQpOpErr, Success, WrFlushErr};
    assert_eq!(
        statuses(&devices.quirky),
        [Success, LocQpOpErr, WrFlushErr, WrFlushErr]
    );
    assert_eq!(statuses(&devices.plain), [Success; 4]);
}

// Kind 25.
#[test]
fn too_many_bytes_in_flight_end_a_queue_pair() {
    let devices = devices("inflight-bytes most=8192, status=RETRY_EXC_ERR");
    let statuses = |device: &Device| {
        let rig = Rig::of(device);
        let [near, _far] = rig.pair();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = rig.register(4096, rights).unwrap();
        let write = |id| {
            let write = wr::Write::new(region.sge(0, 4096).unwrap(), region.remote(0));
            near.post_one(write.signaled(id)).unwrap();
        };
        write(1);
        write(2);
        let two = rig.poll_all();
        (3..6).for_each(write);
        let more = rig.poll_all();
        let all = two.into_iter().chain(more);
        all.map(|(_, status, _)| status).collect::<Vec<_>>()
    };
    use WcStatus::{RetryExcErr, Success};
    assert_eq!(
        statuses(&devices.quirky),
        [Success, Success, Success, Success, RetryExcErr]
    );
    assert_eq!(statuses(&devices.plain), [Success; 5]);
}

// Kind 15.
#[test]
fn a_region_for_atomics_is_refused() {
    let devices = devices("mr-access-refused access=REMOTE_ATOMIC, errno=EINVAL");
    let rig = Rig::of(&devices.quirky);
    assert_eq!(
        errno(rig.register(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)),
        Some(EINVAL)
    );
    assert!(
        rig.register(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .is_ok()
    );
    let plain = Rig::of(&devices.plain);
    assert!(
        plain
            .register(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)
            .is_ok()
    );
}

// Kind 26.
#[test]
fn a_depth_of_reads_beyond_the_device_is_cut() {
    let devices = devices("rd-atomic-clamped");
    for (device, is_cut) in [(&devices.quirky, true), (&devices.plain, false)] {
        let rig = Rig::of(device);
        let [near, far] = [rig.rc().unwrap(), rig.rc().unwrap()];
        let deep = PathOptions::new().max_rd_atomic(255);
        let to = far.endpoint().unwrap();
        let connected = near.connect(&to, deep).wait();
        assert_eq!(connected.is_ok(), is_cut, "{connected:?}");
    }
    assert_eq!(*devices.met.lock(), ["rd-atomic-clamped"]);
}

// Kind 18.
#[test]
fn a_datagram_to_the_own_device_is_lost() {
    let devices = devices("loopback-lost");
    for (device, arrives) in [(&devices.quirky, 0), (&devices.plain, 2)] {
        let rig = Rig::of(device);
        let [near, far] =
            [(); 2].map(|()| rig.pd.create_qp(QpOptions::ud(&rig.cq)).wait().unwrap());
        for qp in [&near, &far] {
            qp.activate(PathOptions::new().qkey(0x1111_1111))
                .wait()
                .unwrap();
        }
        let region = rig.register(64, Access::LOCAL_WRITE).unwrap();
        far.post_receive(ReceiveRequest::new(1, region.sge(0, 64).unwrap()))
            .unwrap();
        let port = rig.context.query_port(1).unwrap();
        let gid = port.gid(port.default_gid_index()).unwrap();
        let path = rig.context.path_to(1, port.address, gid).unwrap();
        let to = UdDestination {
            ah: rig.pd.create_ah(path).wait().unwrap(),
            remote_qpn: far.qp_num(),
            remote_qkey: 0x1111_1111,
        };
        near.post_one(wr::Send::new(b"hello").to(&to).signaled(2))
            .unwrap();
        assert_eq!(rig.poll_all().len(), arrives);
    }
}

// Kind 32.
#[test]
fn a_failed_completion_is_rubbish_but_for_its_status() {
    let devices = devices("error-wc");
    for (device, opcode) in [
        (&devices.quirky, WcOpcode::Send),
        (&devices.plain, WcOpcode::RdmaWrite),
    ] {
        let rig = Rig::of(device);
        let [near, _far] = rig.pair();
        let remote = polyverbs::RemoteAddress::new(0, polyverbs::RKey::new(0));
        near.post_one(wr::Write::new(b"lost", remote).signaled(7))
            .unwrap();
        assert_eq!(rig.poll_all(), [(7, WcStatus::RemAccessErr, opcode)]);
    }
    assert_eq!(*devices.met.lock(), ["error-wc"]);
}

#[test]
fn a_limit_is_refused_without_a_quirk() {
    let rig = Rig::of(&devices("error-wc").plain);
    let over = rig.context.limits().max_qp_wr + 1;
    let refused = rig
        .pd
        .create_qp(QpOptions::rc(&rig.cq).max_send_wr(over))
        .wait();
    assert!(matches!(refused, Err(VerbError::Limit(short)) if short.limit == Limit::MaxQpWr));
}
