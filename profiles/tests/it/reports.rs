//! Public bug reports: the smallest part of a program that shows the fault, on the profile of the card that it was met on, and
//! with the fix that was published.

use polyverbs::emulated::EmulatedOptions;
use polyverbs::wr::{Data, ReceiveRequest};
use polyverbs::{
    Access, Batch, Completion, Context, Cq, ErrorKind, Memory, PathOptions, Pd, Qp, QpOptions,
    Requirements, VerbError, WcStatus, connect_pair, wr,
};
use polyverbs_profiles::Profile;

struct Program {
    context: Context,
    pd: Pd,
    cq: Cq,
}

impl Program {
    fn on(profile: &str) -> Self {
        let device = Profile::named(profile).unwrap();
        let device = device.device(&EmulatedOptions::default(), &[]).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        Self {
            pd: context.alloc_pd().wait().unwrap(),
            cq: context.create_cq(256).wait().unwrap(),
            context,
        }
    }

    fn rc(&self) -> Qp {
        self.pd.create_qp(QpOptions::rc(&self.cq)).wait().unwrap()
    }

    /// Connects two queue pairs that serve this many reads each.
    fn pair(&self, depth: u8) -> Result<[Qp; 2], VerbError> {
        let pair = [self.rc(), self.rc()];
        let options = PathOptions::new().max_dest_rd_atomic(depth);
        let options = options.access(Access::REMOTE_WRITE | Access::REMOTE_READ);
        let ends = [pair[1].endpoint()?, pair[0].endpoint()?];
        for (qp, peer) in pair.iter().zip(&ends) {
            qp.connect(peer, options).wait()?;
        }
        Ok(pair)
    }
}

fn is_errno(error: &VerbError, wanted: i32) -> bool {
    matches!(error, VerbError::Os { errno, .. } if *errno == wanted)
}

// kvcache-ai/Mooncake#3977: each queue pair asked for a responder depth of 16, which is the whole card's. Fixed by a depth that
// is shared among the queue pairs.
#[test]
fn mooncake_3977_asks_the_whole_depth_for_each_queue_pair() {
    const EINVAL: i32 = 22;
    let program = Program::on("amd-ionic");
    let most = program.context.limits().max_qp_rd_atom as u8;
    let Err(refused) = program.pair(most) else {
        panic!("the second RTR passed")
    };
    assert!(is_errno(&refused, EINVAL), "{refused}");
    let fixed = Program::on("amd-ionic");
    let served = fixed.context.limits().max_res_rd_atom as u8;
    let _eight: Vec<_> = (0..4).map(|_| fixed.pair(served / 8).unwrap()).collect();
}

// ml-explore/mlx#3162: the eleventh queue pair fails with EBUSY, and a loop that tries again while the error says so never ends.
// Fixed by not taking it for a passing state.
#[test]
fn mlx_3162_tries_again_for_a_queue_pair_that_never_comes() {
    const EBUSY: i32 = 16;
    let program = Program::on("apple-thunderbolt");
    let make = || program.pd.create_qp(QpOptions::uc(&program.cq)).wait();
    let mut qps = Vec::new();
    let mut tries = 0;
    // The loop as reported, with a bound that stands for "for ever".
    while qps.len() < 11 && tries < 1000 {
        tries += 1;
        match make() {
            Ok(qp) => qps.push(qp),
            Err(error) if is_errno(&error, EBUSY) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((qps.len(), tries), (10, 1000));
    // With the fix the first refusal ends the loop, and the program uses the queue pairs that it has.
    let error = make().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    qps.pop();
    assert!(make().is_ok(), "a queue pair that is given back can be had");
}

// hellas-ai/thunderbolt-ibverbs#41: a program posts as many receives as its queue pair says, 64, and the last fails with ENOMEM.
// Fixed by stopping one short.
#[test]
fn thunderbolt_ibverbs_41_posts_as_many_receives_as_it_is_told() {
    let post = |receives: u64| {
        let program = Program::on("apple-thunderbolt");
        let options = QpOptions::uc(&program.cq).max_recv_wr(64);
        let qps = [(); 2].map(|()| program.pd.create_qp(options.clone()).wait().unwrap());
        connect_pair(&qps[0], &qps[1], Access::empty())
            .wait()
            .unwrap();
        let cap = u64::from(qps[0].cap().max_recv_wr);
        assert_eq!(cap, 64);
        let wanted = (0..receives.min(cap)).map(|id| ReceiveRequest::new(id, Data::None));
        let mut wanted: Vec<_> = wanted.collect();
        qps[0]
            .post_receives(&mut wanted)
            .map_err(|error| error.index)
    };
    assert_eq!(post(64), Err(63));
    assert_eq!(post(63), Ok(()));
}

// ROCm/mori#497: a region is registered with every right, and refused, although the card claims atomics. Fixed by leaving the right
// out where the card refuses it.
#[test]
fn mori_497_registers_with_every_right() {
    const EINVAL: i32 = 22;
    let program = Program::on("amd-ionic");
    let memory = Memory::zeroed(4096).unwrap();
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let refused = program.pd.register(&memory, all).wait().unwrap_err();
    assert!(is_errno(&refused, EINVAL), "{refused}");
    assert!(
        program
            .pd
            .register(&memory, all - Access::REMOTE_ATOMIC)
            .wait()
            .is_ok()
    );
}

fn statuses(program: &Program) -> Vec<WcStatus> {
    let mut slots: [Completion; 16] = Default::default();
    let found = program.cq.poll(&mut slots).unwrap().iter();
    found.map(|it| it.status).collect()
}

// uccl-project/uccl, p2p/rdma/rdma_connection.cc: a list of writes in one post fails as a whole on Broadcom's cards. Its fix posts
// them one by one there.
#[test]
fn uccl_posts_a_list_of_writes() {
    let run = |one_by_one: bool| {
        let program = Program::on("broadcom-thor");
        let [near, _far] = program.pair(1).unwrap();
        let memory = Memory::zeroed(64).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = program.pd.register(&memory, rights).wait().unwrap();
        let write = |id| wr::Write::new(region.sge(0, 8).unwrap(), region.remote(8)).signaled(id);
        if one_by_one {
            (0..4).for_each(|id| near.post_one(write(id)).unwrap());
        } else {
            let mut list: Batch = (0..4).map(write).collect();
            near.post(&mut list).unwrap();
        }
        statuses(&program)
    };
    assert_eq!(run(false)[0], WcStatus::LocQpOpErr);
    assert_eq!(run(true), [WcStatus::Success; 4]);
}

// spdk/spdk#3069: a request of 30 entries, each a read of its own, waits until it can post all its reads at once, which the 16 of a
// ConnectX-6 never allow. Fixed by posting as many as there are places for.
#[test]
fn spdk_3069_waits_for_more_reads_than_there_are() {
    let program = Program::on("mellanox-cx6");
    let limits = program.context.limits();
    let entries = limits.max_send_sge;
    let depth = limits.max_qp_rd_atom;
    assert_eq!((entries, depth), (30, 16));
    let [near, _far] = program.pair(depth as u8).unwrap();
    let memory = Memory::zeroed(4096).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = program.pd.register(&memory, rights).wait().unwrap();
    // The target has a request of so many reads. In each turn it posts the reads that have a place, and polls; it gives up after some turns,
    // which stand for "for ever".
    let serve = |in_parts: bool| {
        let mut left = entries;
        for _ in 0..100 {
            let place = if in_parts { left.min(depth) } else { left };
            if place > depth {
                continue;
            }
            for id in 0..place {
                let read = wr::Read::new(region.sge(8, 8).unwrap(), region.remote(0));
                near.post_one(read.signaled(id.into())).unwrap();
            }
            let done = statuses(&program);
            assert!(done.iter().all(|status| status.is_success()));
            left -= done.len() as u32;
        }
        left
    };
    assert_eq!(serve(false), entries, "nothing of it was ever read");
    assert_eq!(serve(true), 0);
}
