//! An allocator that counts, and the number of heap allocations that posting and polling a request makes in steady state.
// The trait `GlobalAlloc` is unsafe to implement.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use anyhow::Result;
use polyverbs::{
    Batch, Buffer, BufferPool, Completion, Cq, Qp, QpOptions, RemoteAddress, Sge, connect_pair,
    wr::{self, ReceiveRequest, WorkRequest},
};

use crate::loopback::BATCH;
use crate::rig::{PEERS, Rig};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which also counts the heap allocations and reallocations of each thread.
///
/// A program that calls [`count`] makes this its `#[global_allocator]`.
pub struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

fn count_one() {
    // A thread that ends may allocate after its thread-local count was dropped; that allocation is not counted.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

/// Returns the number of heap allocations that the calling thread has made so far; always 0 unless [`Counting`] is the
/// program's global allocator.
pub fn count() -> u64 {
    COUNT.get()
}

/// One turn of a kind of request: posts the request (some kinds post several) and polls its completions.
/// [`per_request`] repeats the turn.
type Turn = fn(&mut Bench);

const TURNS: [(&str, Turn); 12] = [
    ("send", |bench| bench.send(bench.local)),
    ("send of inline bytes", |bench| bench.send(&[7; 32])),
    ("send of a private buffer", |bench| {
        let buffer = bench.buffer();
        bench.send(buffer);
    }),
    ("receive into a private buffer", |bench| {
        let buffer = bench.buffer();
        bench.receive(buffer);
        bench.request(wr::Send::new(bench.local).signaled(1), 2);
    }),
    ("unsignaled sends of private buffers", |bench| {
        for _ in 0..4 {
            bench.receive(bench.local);
            let buffer = bench.buffer();
            bench.request(wr::Send::new(buffer), 1);
        }
        bench.send(bench.local);
    }),
    ("write", |bench| {
        bench.request(wr::Write::new(bench.local, bench.remote).signaled(1), 1)
    }),
    ("write of inline bytes", |bench| {
        bench.request(wr::Write::new(&[7; 32], bench.remote).signaled(1), 1)
    }),
    ("read", |bench| {
        bench.request(wr::Read::new(bench.local, bench.remote).signaled(1), 1)
    }),
    ("compare and swap", |bench| {
        bench.request(
            wr::CompareSwap::new(bench.word, bench.remote, 0, 0).signaled(1),
            1,
        );
    }),
    ("fetch and add", |bench| {
        bench.request(
            wr::FetchAdd::new(bench.word, bench.remote, 1).signaled(1),
            1,
        )
    }),
    ("batch of 32 writes", |bench| {
        bench.batch(|bench| wr::Write::new(bench.local, bench.remote).into())
    }),
    ("batch of 32 reads", |bench| {
        bench.batch(|bench| wr::Read::new(bench.local, bench.remote).into())
    }),
];

struct Bench {
    near: Qp,
    far: Qp,
    cq: Cq,
    pool: BufferPool,
    batch: Batch<'static>,
    /// The slot into which the thread polls each completion. There is only one slot, because a slot allocates room for
    /// many buffers on its first use.
    completions: [Completion; 1],
    local: Sge,
    word: Sge,
    remote: RemoteAddress,
}

impl Bench {
    fn buffer(&mut self) -> Buffer {
        self.pool
            .take()
            .expect("a buffer: each comes back with its completion")
    }

    fn receive(&self, data: impl Into<polyverbs::wr::Data<'static>>) {
        self.far
            .post_receive(ReceiveRequest::new(2, data))
            .expect("a receive with room");
    }

    fn send(&mut self, data: impl Into<polyverbs::wr::Data<'static>>) {
        self.receive(self.local);
        self.request(wr::Send::new(data).signaled(1), 2);
    }

    fn request(&mut self, request: impl Into<WorkRequest<'static>>, completions: usize) {
        self.near
            .post_one(request)
            .expect("a request within the region");
        self.poll(completions);
    }

    fn batch(&mut self, request: fn(&Self) -> WorkRequest<'static>) {
        for _ in 1..BATCH {
            let request = request(self);
            self.batch.push(request);
        }
        self.batch
            .push(wr::Write::new(self.local, self.remote).signaled(1));
        self.near
            .post(&mut self.batch)
            .expect("requests within the region");
        self.poll(1);
    }

    fn poll(&mut self, mut completions: usize) {
        while completions > 0 {
            let done = self
                .cq
                .poll(&mut self.completions)
                .expect("a queue that does not overrun");
            for done in done {
                assert!(done.status.is_success(), "{:?}", done.status);
                done.take_buffers().for_each(drop);
                completions -= 1;
            }
        }
    }
}

/// Connects two QPs of the device and posts and polls each kind of request `turns` times; returns the name of each kind and
/// the number of heap allocations that the calling thread made in those turns.
///
/// Allocations of the first use are not counted: 64 turns precede the counted ones. Atomics are left out on a device that
/// has none.
///
/// # Errors
/// The device refused to create or connect the QPs, or to register memory.
pub fn per_request(rig: &Rig, turns: u32) -> Result<Vec<(&'static str, u64)>> {
    let cq = rig.context.create_cq(256).wait()?;
    let near = rig.pd.create_qp(QpOptions::rc(&cq)).wait()?;
    let far = rig.pd.create_qp(QpOptions::rc(&cq)).wait()?;
    connect_pair(&near, &far, PEERS).wait()?;
    let (_memory, region) = rig.memory(4096, rig.remote())?;
    let mut bench = Bench {
        near,
        far,
        cq,
        pool: rig.pd.register_buffers(8, 64).wait()?,
        batch: Batch::with_capacity(BATCH),
        completions: Default::default(),
        local: region.sge(0, 64)?,
        word: region.sge(64, 8)?,
        remote: region.remote(128),
    };
    let atomics = rig.has_atomics();
    let possible = TURNS
        .iter()
        .filter(|(name, _)| atomics || !name.contains(" and "));
    Ok(possible
        .map(|(name, turn)| {
            // These turns make the allocations of the first use, which are not counted.
            (0..64).for_each(|_| turn(&mut bench));
            let before = count();
            (0..turns).for_each(|_| turn(&mut bench));
            (*name, count() - before)
        })
        .collect())
}
