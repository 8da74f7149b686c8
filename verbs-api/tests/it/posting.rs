//! Posting: refused requests, drained batches, and the owners of buffers.

use verbs_api::provider::Operation as _;
use verbs_api::qp::{AddressVector, QpState};
use verbs_api::*;
use verbs_api::{
    ids::{Gid, LKey, LinkAddress, Qpn},
    memory::MwType,
    objects::ObjectKind,
    wr::{self, Data, PostReason, ReceiveBatch, ReceiveRequest, UdDestination, WorkRequest},
};

use crate::mock;

const REMOTE: RemoteAddress = RemoteAddress::new(0x1000, RKey::new(0x123));
const SGE: Sge = mock::sge(0x2000, 8, 0x456);

fn request<'a>(operation: Operations, pages: &'a PageList, window: &'a Mw) -> WorkRequest<'a> {
    match operation {
        Operations::WRITE => wr::Write::new(SGE, REMOTE).into(),
        Operations::WRITE_WITH_IMM => wr::WriteWithImmediate::new(SGE, REMOTE, [0; 4]).into(),
        Operations::SEND => wr::Send::new(SGE).into(),
        Operations::SEND_WITH_IMM => wr::SendWithImmediate::new(SGE, [0; 4]).into(),
        Operations::READ => wr::Read::new(SGE, REMOTE).into(),
        Operations::ATOMIC_CMP_AND_SWP => wr::CompareSwap::new(SGE, REMOTE, 0, 1).into(),
        Operations::ATOMIC_FETCH_AND_ADD => wr::FetchAdd::new(SGE, REMOTE, 1).into(),
        Operations::LOCAL_INV => wr::LocalInvalidate::new(REMOTE.rkey).into(),
        Operations::BIND_MW => wr::BindWindow::unbind(window).into(),
        Operations::SEND_WITH_INV => wr::SendWithInvalidate::new(SGE, REMOTE.rkey).into(),
        Operations::READ_WITH_INV => wr::ReadWithInvalidate::new(SGE, REMOTE).into(),
        Operations::FAST_REGISTER => wr::FastRegister::new(REMOTE.rkey, pages).into(),
        Operations::FLUSH => wr::Flush::new(REMOTE, 8, Access::FLUSH_GLOBAL).into(),
        _ => wr::AtomicWrite::new(SGE, REMOTE).into(),
    }
}

// covers 3.20
#[test]
fn a_queue_pair_refuses_exactly_the_operations_not_granted() {
    let mut attributes = mock::attributes("mock0");
    attributes.features |= Features::READ_WITH_INVALIDATE;
    let (mock, _, context) = mock::open_with(attributes);
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let path = AddressVector::new(LinkAddress::InProcess(1), Gid::default(), 1);
    let ah = pd.create_ah(path).wait().unwrap();
    let to = UdDestination {
        ah,
        remote_qpn: Qpn::new(2),
        remote_qkey: 1,
    };
    let memory = Memory::zeroed(4096).unwrap();
    let pages = PageList::map(&[memory.into()], 4096, 1).unwrap().list;
    let window = pd.alloc_mw(MwType::Type2).wait().unwrap();
    let peer = pd
        .create_qp(QpOptions::rc(&cq))
        .wait()
        .unwrap()
        .endpoint()
        .unwrap();
    for qp_type in mock::ALL_TYPES {
        let options = match qp_type {
            qp::QpType::Rc => QpOptions::rc(&cq),
            qp::QpType::Uc => QpOptions::uc(&cq),
            _ => QpOptions::ud(&cq),
        };
        let qp = pd
            .create_qp(options.operations(qp_type.operations()))
            .wait()
            .unwrap();
        match qp_type {
            qp::QpType::Ud => qp.activate(PathOptions::new()).wait().unwrap(),
            _ => qp.connect(&peer, PathOptions::new()).wait().unwrap(),
        }
        assert_eq!(qp.query().unwrap().state, QpState::Rts);
        for operation in Operations::all().iter() {
            let posted = match (qp_type, operation) {
                (qp::QpType::Ud, Operations::SEND) => qp.post_one(wr::Send::new(SGE).to(&to)),
                (qp::QpType::Ud, Operations::SEND_WITH_IMM) => {
                    qp.post_one(wr::SendWithImmediate::new(SGE, [0; 4]).to(&to))
                }
                _ => qp.post_one(request(operation, &pages, &window)),
            };
            match posted {
                Ok(()) => assert!(qp_type.operations().contains(operation)),
                Err(rejected) => {
                    assert!(
                        !qp_type.operations().contains(operation),
                        "{qp_type:?} {rejected}"
                    );
                    let missing = operation;
                    assert_eq!(rejected.reason, PostReason::OperationNotEnabled { missing });
                }
            }
        }
    }
    let per_type: usize = mock::ALL_TYPES
        .iter()
        .map(|qp_type| qp_type.operations().iter().count())
        .sum();
    assert_eq!(mock.posted.lock().len(), per_type);
}

// covers 3.21 7.82
#[test]
fn a_batch_is_posted_up_to_its_first_bad_entry() {
    let (_mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    let good = |wr_id| wr::Send::new(SGE).signaled(wr_id);
    let bad = || wr::FetchAdd::new(SGE.at(0x2000, 4), REMOTE, 1).signaled(99);
    let mut batch = Batch::new();
    batch.push(good(1));
    batch.push(good(2));
    batch.push(bad());
    batch.push(good(4));
    let error = qp.post(&mut batch).unwrap_err();
    assert_eq!(
        error,
        PostError {
            index: 2,
            reason: PostReason::AtomicLength { given: 4 }
        }
    );
    assert_eq!(batch.len(), 2);
    assert_eq!(batch.remove_first().unwrap().common().wr_id, 99);
    let mut slots: [Completion; 8] = Default::default();
    let done: Vec<_> = cq
        .poll(&mut slots)
        .unwrap()
        .iter()
        .map(|done| done.wr_id)
        .collect();
    assert_eq!(done, [1, 2]);
    qp.post(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(cq.poll(&mut slots).unwrap()[0].wr_id, 4);
    batch.push(bad());
    batch.push(good(5));
    assert_eq!(qp.post(&mut batch).unwrap_err().index, 0);
    assert_eq!((batch.len(), cq.poll(&mut slots).unwrap().len()), (2, 0));
}

#[test]
fn one_bad_entry_keeps_a_whole_batch_from_being_posted() {
    let (_mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    let mut batch = Batch::new();
    batch.push(wr::Send::new(SGE).signaled(1));
    batch.push(wr::FetchAdd::new(SGE.at(0x2000, 4), REMOTE, 1).signaled(2));
    let error = qp.post_whole(&mut batch).unwrap_err();
    assert_eq!(
        (error.index, error.reason),
        (1, PostReason::AtomicLength { given: 4 })
    );
    assert_eq!(batch.len(), 2);
    let mut slots: [Completion; 2] = Default::default();
    assert!(cq.poll(&mut slots).unwrap().is_empty());
}

#[test]
fn a_batch_keeps_the_order_of_its_requests() {
    let good = |wr_id| wr::Send::new(SGE).signaled(wr_id);
    let mut batch: Batch<'_> = (1..3).map(good).collect();
    batch.extend((3..5).map(good));
    batch.extend([WorkRequest::from(wr::Write::new(SGE, REMOTE).signaled(5))]);
    let mut seen = Vec::new();
    for request in &batch {
        seen.push(request.common().wr_id);
    }
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    assert_eq!(batch.len(), 5, "gone through by reference");
    let taken = batch.into_iter().map(|request| request.common().wr_id);
    assert_eq!(taken.collect::<Vec<_>>(), seen);
}

// covers 3.22
#[test]
fn a_full_queue_returns_the_untaken_requests() {
    let (_mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    let pool = pd.register_buffers(100, 16).wait().unwrap();
    let mut batch = Batch::new();
    for wr_id in 0..100 {
        batch.push(wr::Send::new(pool.take().unwrap()).signaled(wr_id));
    }
    let error = qp.post(&mut batch).unwrap_err();
    assert_eq!(
        error,
        PostError {
            index: 64,
            reason: PostReason::QueueFull { max: 64 }
        }
    );
    assert_eq!((batch.len(), pool.available()), (36, 0));
    let first = batch.remove_first().unwrap();
    assert!(matches!(first.data(), Data::Buffer(_)), "not handed over");
    drop(first);
    batch.clear();
    assert_eq!(pool.available(), 36);
    let mut slots: [Completion; 64] = std::array::from_fn(|_| Completion::default());
    assert_eq!(cq.poll(&mut slots).unwrap().len(), 64);
    assert_eq!(pool.available(), 36, "the slots hold the buffers");
    slots.iter_mut().for_each(|done| drop(done.take_buffers()));
    drop(slots);
    assert_eq!(pool.available(), 100);
}

// covers 3.21
#[test]
fn a_post_error_counts_posted_requests_and_converts() {
    let (_mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    let post = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        qp.post_receive(ReceiveRequest::new(1, SGE))?;
        qp.post_one(wr::FetchAdd::new(SGE.at(0x2000, 4), REMOTE, 1))?;
        Ok(())
    };
    let reason = "an atomic operation needs 8 bytes, the data has 4";
    assert_eq!(
        post().unwrap_err().to_string(),
        format!("refused: {reason}")
    );
    let mut batch = Batch::new();
    batch.push(wr::Send::new(SGE));
    batch.push(wr::FetchAdd::new(SGE.at(0x2000, 4), REMOTE, 1));
    assert_eq!(
        qp.post(&mut batch).unwrap_err().to_string(),
        format!("request 2 of the batch was refused, those before it were posted: {reason}")
    );
}

#[test]
fn a_request_posted_in_place_is_kept_until_it_is_taken() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let pool = pd.register_buffers(4, 16).wait().unwrap();
    let buffers = || vec![pool.take().unwrap(), pool.take().unwrap()];

    // The request is refused and unchanged.
    let mut send = WorkRequest::from(wr::Send::new(pool.take().unwrap()));
    let refused = qp.post_in_place(&mut send).unwrap_err();
    assert_eq!(refused.reason, PostReason::InvalidState(QpState::Reset));
    assert!(matches!(send.data(), Data::Buffer(_)));
    let mut receive = ReceiveRequest::new(1, buffers());
    let too_many = PostReason::TooManySges { max: 1, given: 2 };
    let refused = qp.post_receive_in_place(&mut receive).unwrap_err();
    assert_eq!(refused.reason, too_many);
    let refused = srq.post_receive_in_place(&mut receive).unwrap_err();
    assert_eq!(refused.reason, too_many);
    assert_eq!((receive.data.num_sge(), pool.available()), (2, 1));

    // The receive is posted and now empty: posting it again transfers no buffer a second time.
    receive.data = Data::from(pool.take().unwrap());
    assert_eq!(pool.available(), 2);
    qp.post_receive_in_place(&mut receive).unwrap();
    assert!(matches!(receive.data, Data::None));
    let peer = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    connect_pair(&qp, &peer, Access::empty()).wait().unwrap();
    qp.post_in_place(&mut send).unwrap();
    assert!(matches!(send.data(), Data::None));
    qp.post_in_place(&mut send).unwrap();
}

#[test]
fn a_refused_request_gives_its_buffers_back_to_their_pool() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq).srq(&srq)).wait().unwrap();
    let pool = pd.register_buffers(2, 16).wait().unwrap();
    qp.post_one(wr::Send::new(pool.take().unwrap()))
        .unwrap_err();
    qp.post_receive(pool.take().unwrap()).unwrap_err();
    let two = vec![pool.take().unwrap(), pool.take().unwrap()];
    srq.post_receive(ReceiveRequest::new(1, two)).unwrap_err();
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_buffer_returns_with_the_completion_of_its_request() {
    let (_mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    let pool = pd.register_buffers(2, 32).wait().unwrap();
    let mut buffer = pool.take().unwrap();
    buffer[..5].copy_from_slice(b"hello");
    buffer.set_len(5);
    qp.post_one(wr::Send::new(buffer).signaled(1)).unwrap();
    qp.post_receive(pool.take().unwrap()).unwrap();
    assert!(pool.take().is_none());
    let mut slots: [Completion; 4] = Default::default();
    let mut texts = Vec::new();
    for done in cq.poll(&mut slots).unwrap() {
        texts.push(done.buffer().len());
    }
    assert_eq!(texts, [5, 32]);
    // A slot that is filled again releases the buffers that it held.
    qp.post_one(wr::Send::new(()).signaled(2)).unwrap();
    qp.post_one(wr::Send::new(()).signaled(3)).unwrap();
    assert!(
        cq.poll(&mut slots)
            .unwrap()
            .iter()
            .all(|done| done.buffer().is_empty())
    );
    assert_eq!(pool.available(), 2);
}

// covers 2.12
#[test]
fn inline_data_is_for_sends_and_writes_of_the_granted_size() {
    let (_mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    let bytes = [7_u8; 65];
    qp.post_one(wr::Send::new(&bytes[..64])).unwrap();
    qp.post_one(wr::Write::new(&bytes[..64], REMOTE)).unwrap();
    let too_long = PostReason::InlineTooLong { max: 64, given: 65 };
    assert_eq!(
        qp.post_one(wr::Send::new(&bytes[..])).unwrap_err().reason,
        too_long
    );
    let read = qp.post_one(wr::Read::new(&bytes[..8], REMOTE)).unwrap_err();
    assert_eq!(read.reason, PostReason::InlineNotAllowed);
    let receive = qp
        .post_receive(ReceiveRequest::new(1, &bytes[..8]))
        .unwrap_err();
    assert_eq!(receive.reason, PostReason::InlineNotAllowed);
}

// covers 2.11
#[test]
fn the_sum_of_the_entries_is_bounded() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let qp = pd
        .create_qp(QpOptions::rc(&cq).max_send_sge(4))
        .wait()
        .unwrap();
    let long = [SGE.at(0x2000, u32::MAX); 4];
    let given = 4 * u64::from(u32::MAX);
    let refused = qp.post_one(wr::Send::new(&long)).unwrap_err();
    assert_eq!(
        refused.reason,
        PostReason::MessageTooLong {
            max: 1 << 31,
            given
        }
    );
}

#[test]
fn posting_in_a_wrong_state_is_refused_and_posts_nothing() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let refused = qp.post_one(wr::Send::new(SGE)).unwrap_err();
    assert_eq!(refused.reason, PostReason::InvalidState(QpState::Reset));
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

// covers 3.80
#[test]
fn with_a_shared_queue_receives_are_posted_there() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(8).max_sge(2)).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq).srq(&srq)).wait().unwrap();
    let refused = qp.post_receive(ReceiveRequest::new(1, SGE)).unwrap_err();
    assert_eq!(refused.reason, PostReason::HasSrq);
    srq.post_receive(ReceiveRequest::new(1, SGE)).unwrap();
    let mut list: ReceiveBatch<'_> = vec![
        ReceiveRequest::new(1, SGE),
        ReceiveRequest::new(2, &[SGE; 3]),
    ];
    let error = srq.post_receives(&mut list).unwrap_err();
    assert_eq!(
        error,
        PostError {
            index: 1,
            reason: PostReason::TooManySges { max: 2, given: 3 }
        }
    );
    assert_eq!(list[0].wr_id, 2);
}

// covers 3.81
#[test]
fn a_limit_beyond_the_queue_is_refused() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    assert_eq!(
        srq.arm_limit(9).wait().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    srq.arm_limit(8).wait().unwrap();
    let refused = pd.create_srq(SrqOptions::new(8).srq_limit(9)).wait();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        srq.resize(5000).wait().unwrap_err().kind(),
        ErrorKind::Limit
    );
}

#[test]
fn datagrams_need_a_live_destination_of_their_domain() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let other = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpOptions::ud(&cq)).wait().unwrap();
    qp.activate(PathOptions::new().qkey(5)).wait().unwrap();
    let path = AddressVector::new(LinkAddress::InProcess(1), Gid::default(), 1);
    let destination = |ah| UdDestination {
        ah,
        remote_qpn: Qpn::new(2),
        remote_qkey: 5,
    };
    let own = destination(pd.create_ah(path).wait().unwrap());
    let foreign = destination(other.create_ah(path).wait().unwrap());
    let reason = |request: wr::Send<'_>| qp.post_one(request).unwrap_err().reason;
    assert_eq!(reason(wr::Send::new(SGE)), PostReason::NoDestination);
    assert_eq!(
        reason(wr::Send::new(SGE).to(&foreign)),
        PostReason::ForeignAh
    );
    qp.post_one(wr::Send::new(SGE).to(&own)).unwrap();
    own.ah.clone().destroy().wait().unwrap();
    assert_eq!(
        reason(wr::Send::new(SGE).to(&own)),
        PostReason::InvalidHandle
    );
    let rc = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let refused = rc.post_one(wr::Send::new(SGE).to(&own)).unwrap_err();
    assert_eq!(refused.reason, PostReason::DestinationOnConnected);
    assert!(
        pd.create_ah(AddressVector {
            port_num: 3,
            ..path
        })
        .wait()
        .is_err()
    );
}

#[test]
fn objects_of_another_open_device_are_refused() {
    let (_mock, first) = mock::open();
    let (_other, second) = mock::open();
    let pd = first.alloc_pd().wait().unwrap();
    let cq = second.create_cq(8).wait().unwrap();
    let refused = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "send_cq: belongs to another open device"
    );
    let channel = first.create_completion_channel().unwrap();
    assert!(
        second
            .create_cq(CqOptions::new(8).channel(&channel))
            .wait()
            .is_err()
    );
}

// covers 2.20
#[test]
fn a_key_has_a_new_byte_for_each_use() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let key = pd.alloc_key(8).wait().unwrap();
    let (first, same) = (key.rkey(), key.clone());
    let key = key.next_consumer_key();
    assert_eq!(key.rkey(), first.next());
    assert_eq!(same.rkey(), key.rkey(), "clones share it");
    assert_eq!(key.lkey().value(), key.rkey().value());
    assert_eq!(key.sge(16, 8).lkey(), key.lkey());
}

#[test]
fn type_1_windows_are_bound_by_a_verb() {
    let (_mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    let memory = Memory::zeroed(4096).unwrap();
    let mr = pd
        .register(&memory, Access::LOCAL_WRITE | Access::MW_BIND)
        .wait()
        .unwrap();
    let mw = pd.alloc_mw(MwType::Type1).wait().unwrap();
    let bind = || wr::BindWindow::new(&mw, &mr, mr.iova(), 64).access(Access::REMOTE_READ);
    assert_ne!(qp.bind_mw(bind()).unwrap(), mw.rkey());
    let ud = pd.create_qp(QpOptions::ud(&cq)).wait().unwrap();
    let missing = Operations::BIND_MW;
    assert_eq!(
        ud.bind_mw(bind()).unwrap_err().reason,
        PostReason::OperationNotEnabled { missing }
    );
    let type_2 = pd.alloc_mw(MwType::Type2).wait().unwrap();
    let refused = qp.bind_mw(wr::BindWindow::unbind(&type_2)).unwrap_err();
    assert_eq!(refused.reason, PostReason::WindowType);
}

struct Windowed {
    pd: Pd,
    qp: Qp,
    mr: Mr,
    mw: Mw,
}

impl Windowed {
    fn new() -> Self {
        let (_mock, context) = mock::open();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(8).wait().unwrap();
        let options = QpOptions::rc(&cq).operations(Operations::BIND_MW);
        let qp = || pd.create_qp(options.clone()).wait().unwrap();
        let (qp, peer) = (qp(), qp());
        connect_pair(&qp, &peer, Access::empty()).wait().unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        let mr = pd.register(&memory, Access::MW_BIND);
        Self {
            qp,
            mr: mr.wait().unwrap(),
            mw: pd.alloc_mw(MwType::Type2).wait().unwrap(),
            pd,
        }
    }

    fn refusal(&self, bind: wr::BindWindow<'_>) -> PostReason {
        self.qp.post_one(bind).unwrap_err().reason
    }
}

// covers 2.44
#[test]
fn a_bind_names_live_objects_of_its_context() {
    let (own, other) = (Windowed::new(), Windowed::new());
    let bind = |mw, mr| wr::BindWindow::new(mw, mr, 0, 64);
    own.qp.post_one(bind(&own.mw, &own.mr)).unwrap();
    let foreign = PostReason::AnotherDevice;
    let mw = foreign(ObjectKind::Mw);
    assert_eq!(own.refusal(bind(&other.mw, &own.mr)), mw);
    let mr = foreign(ObjectKind::Mr);
    assert_eq!(own.refusal(bind(&own.mw, &other.mr)), mr);
    let type_1 = own.pd.alloc_mw(MwType::Type1).wait().unwrap();
    let refused = own.qp.bind_mw(bind(&type_1, &other.mr)).unwrap_err();
    assert_eq!(refused.reason, mr);
    assert_eq!(own.refusal(wr::BindWindow::default()), PostReason::NoWindow);
    let (mw, mr) = (own.mw.clone(), own.mr.clone());
    mw.destroy().wait().unwrap();
    assert_eq!(
        own.refusal(wr::BindWindow::unbind(&own.mw)),
        PostReason::InvalidHandle
    );
    mr.deregister().wait().unwrap();
    let mw = own.pd.alloc_mw(MwType::Type2).wait().unwrap();
    assert_eq!(own.refusal(bind(&mw, &own.mr)), PostReason::InvalidHandle);
}

// covers 2.47
#[test]
fn a_bind_takes_the_next_key_or_the_given_byte() {
    let Windowed { mr, mw, pd, .. } = Windowed::new();
    let bind = wr::BindWindow::new(&mw, &mr, 0, 64);
    assert_eq!(
        (bind.key(), bind.region_key()),
        (mw.rkey().next(), mr.lkey())
    );
    let key = pd.alloc_key(8).wait().unwrap();
    key.advance();
    let bind = wr::BindWindow::new(&mw, &key, 0, 64);
    assert_eq!(bind.region_key(), key.lkey());
    let bind = bind.key_byte(0xa7).region_key_byte(0x5a);
    assert_eq!(bind.key(), mw.rkey().with_key_byte(0xa7));
    assert_eq!(bind.region_key(), key.lkey().with_key_byte(0x5a));
    let unbind = wr::BindWindow::unbind(&mw);
    assert_eq!((unbind.length, unbind.region_key()), (0, LKey::default()));
    assert!(unbind.mw().is_some() && unbind.mr().is_none());
}

#[test]
fn ranges_of_a_region_are_checked() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let memory = Memory::zeroed(100).unwrap();
    let options = MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE).iova(u64::MAX - 200);
    let mr = pd
        .register_with(memory.range(10, 80).unwrap(), options)
        .wait()
        .unwrap();
    assert_eq!(mr.sge_all().length(), 80);
    assert_eq!(mr.sge(70, 10).unwrap().addr(), u64::MAX - 130);
    assert!(mr.sge(71, 10).is_err() && mr.sge(usize::MAX, 1).is_err());
    assert_eq!(mr.remote(4), RemoteAddress::new(u64::MAX - 196, mr.rkey()));
    let zero_based = MrOptions::new(Access::LOCAL_WRITE).zero_based();
    let mr = pd.register_with(&memory, zero_based).wait().unwrap();
    assert_eq!((mr.iova(), mr.len(), mr.rkey().value()), (0, 100, 0));
}
