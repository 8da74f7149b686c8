//! Two queue pairs of one device, directly connected.

use std::sync::Arc;

use emulated_ib::InfiniBand;
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::network::Network;
use polyverbs_engine::time::{Host, Time};
use verbs_api::*;
use verbs_api::{
    ids::LinkAddress,
    wr::{self, ReceiveRequest},
};

struct Still;

impl Host for Still {
    fn now(&self) -> Time {
        Time(0)
    }
    fn wake_at(&self, _: Time) {}

    fn random(&self) -> u64 {
        0
    }
}

#[test]
fn messages_writes_reads_and_atomics_arrive() {
    let network = Network::new(Arc::new(Still), None);
    let address = LinkAddress::InProcess(1);
    let driver = InfiniBand {
        name: "ib0".into(),
        address,
        windows_2a: false,
        management: None,
        subnet: None,
    };
    let engine = Engine::new(driver, &network, DeviceOptions::default()).unwrap();
    let device = Device::of(engine);
    let context = device
        .open(&Requirements::everything_of(&device.attributes()))
        .unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let a = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let b = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    connect_pair(&a, &b, remote).wait().unwrap();
    let memory = Memory::zeroed(4096).unwrap();
    let mr = pd
        .register(&memory, remote | Access::LOCAL_WRITE)
        .wait()
        .unwrap();
    let mut slots: [Completion; 8] = Default::default();

    memory.write(0, b"hello").unwrap();
    b.post_receive(ReceiveRequest::new(7, mr.sge(100, 16).unwrap()))
        .unwrap();
    a.post_one(wr::Send::new(mr.sge(0, 5).unwrap()).signaled(1))
        .unwrap();
    let done = cq.poll(&mut slots).unwrap();
    assert_eq!(done.len(), 2);
    assert_eq!(
        (done[0].wr_id, done[0].status, done[0].byte_len),
        (7, WcStatus::Success, 5)
    );
    assert_eq!((done[1].wr_id, done[1].status), (1, WcStatus::Success));
    assert_eq!(memory.to_vec(100, 5).unwrap(), b"hello");

    a.post_one(wr::Write::new(mr.sge(0, 5).unwrap(), mr.remote(200)).signaled(2))
        .unwrap();
    a.post_one(wr::Read::new(mr.sge(300, 5).unwrap(), mr.remote(200)).signaled(3))
        .unwrap();
    memory.store_u64(400, 41).unwrap();
    a.post_one(wr::FetchAdd::new(mr.sge(408, 8).unwrap(), mr.remote(400), 1).signaled(4))
        .unwrap();
    let done = cq.poll(&mut slots).unwrap();
    assert_eq!(
        done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(),
        [2, 3, 4].map(|id| (id, WcStatus::Success))
    );
    assert_eq!(memory.to_vec(300, 5).unwrap(), b"hello");
    assert_eq!(
        (memory.load_u64(400).unwrap(), memory.load_u64(408).unwrap()),
        (42, 41)
    );
}
