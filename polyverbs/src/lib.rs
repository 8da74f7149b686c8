//! RDMA verbs for programs that run on InfiniBand, RoCE and iWARP alike, and where there is no RDMA device at all.
//!
//! This crate is what a program depends on: all of `verbs-api`, and the default devices by name. A program says what
//! it needs, opens a device that has it, makes its objects, posts typed work requests and polls their completions:
//!
//! ```
//! use polyverbs::{Access, Completion, Limit, Memory, QpOptions, Requirements, connect_pair, open, wr};
//!
//! // Say what is needed: a device that has it is opened, or the error lists what each device lacks.
//! let device = open(Requirements::new().at_least(Limit::MaxMsgSz, 1 << 20))?;
//!
//! // A verb that asks the device for something is started: wait for it, or await it.
//! let pd = device.alloc_pd().wait()?;
//! let cq = device.create_cq(16).wait()?;
//! let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
//! let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
//! connect_pair(&near, &far, Access::REMOTE_WRITE).wait()?;
//!
//! // A peer may write this memory at any time, so bytes are copied in and out of it.
//! let memory = Memory::zeroed(64)?;
//! let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let region = pd.register(&memory, rights).wait()?;
//! memory.write(0, b"one write, any transport")?;
//!
//! // Post and poll are direct calls: this writes 24 bytes into the peer's memory.
//! near.post_one(wr::Write::new(region.sge(0, 24)?, region.remote(32)).signaled(7))?;
//! let done = cq.next().wait()?;
//! assert!(done.status.is_success() && done.wr_id == 7);
//! assert_eq!(memory.to_vec(32, 24)?, b"one write, any transport");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same lines run on every device. [`devices`] lists them; [`Requirements`] choose one; [`emulated`] makes more.
//! What differs between transports is behind the [portable operations](portable) and is shown by [`Context::plan`] before
//! anything is posted.
//!
//! The root has what every program types. The rest is by topic: work requests in [`wr`], queue pair attributes and states in
//! [`qp`], what a device tells about itself in [`capability`], completions and events in [`completion`] and [`event`],
//! connections in [`connection`]. What a vendor needs for a provider or an extension is in [`provider`], [`extension`] and
//! [`probe`].
//!
//! # Cargo features
//!
//! All but the last two are on by default. A program that needs only devices within its process builds neither sockets nor the loader
//! of real devices with `polyverbs = { version = "0.1", default-features = false, features = ["emulated"] }`.
//!
//! | feature | with it a program has |
//! | --- | --- |
//! | `emulated` | [emulated] InfiniBand and iWARP devices, which reach one another within the process |
//! | `sockets` | these devices at addresses of the machine, over UDP, TCP and shared memory: [`device_at`](emulated::device_at), [`devices_for`](connection::devices_for); turns `emulated` on |
//! | `rdma-core` | real devices, by the system's `libibverbs` and `librdmacm`, which are loaded at run time |
//! | `extensions` | the [extensions], on each kind of device that the other features choose |
//! | `fabric` | InfiniBand devices at the ports of a fabric that `polyverbs fabric` holds: [`EmulatedOptions::fabric`](emulated::EmulatedOptions::fabric); turns `sockets` on |
//! | `tracing` | events of devices and connections, for a subscriber of the crate `tracing` |
//!
//! [Connections](connection) need no feature, because each device supplies the way to make them.
#![forbid(unsafe_code)]

pub mod connection;
#[cfg(feature = "emulated")]
pub mod emulated;

/// Lets tests of the probes make emulated devices break a rule. Exists only with debug assertions, so not in releases.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use polyverbs_engine::rules;

/// The public names of each extension that is linked.
///
/// ```
/// use polyverbs::extensions::xrc::{Xrc, XrcFeatures};
/// use polyverbs::{Requirements, open};
/// let device = open(Requirements::new().needs(XrcFeatures::XRC))?;
/// let xrc: Xrc = device.extension()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "extensions")]
pub mod extensions {
    /// Datagram queue pairs that do not receive their own multicasts.
    pub mod block_loopback {
        pub use ::block_loopback::{BlockLoopback, LoopbackFeatures};
    }
    /// Fast-register and invalidate by work requests: the handle of the extension, and a pool of keys for it.
    ///
    /// ```
    /// use polyverbs::{Features, Requirements, extensions::bmme::Bmme, open};
    /// let device = open(Requirements::new().needs(Features::BMME))?;
    /// let pd = device.alloc_pd().wait()?;
    /// let registration: Bmme = device.extension()?; // a proof that the feature was granted
    /// let key = registration.alloc_key(&pd, 256).wait()?;
    /// assert_eq!(key.max_num_sg(), 256);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub mod bmme {
        pub use ::bmme::{Bmme, Fmr, FmrError, FmrMapping, FmrPool, FmrPoolOptions};
    }
    /// Completions that a program sees without polling the completion queue.
    pub mod low_latency_qp {
        pub use ::low_latency_qp::{LowLatency, LowLatencyFeatures, Progress, Watch};
    }
    /// Masked compare-and-swap and fetch-and-add on 64 bits.
    pub mod masked_atomics {
        pub use ::masked_atomics::{
            MaskedAtomics, MaskedCompareSwap, MaskedFeatures, MaskedFetchAdd,
        };
    }
    /// Extended reliable connections (XRC).
    pub mod xrc {
        pub use ::xrc::{OpenXrcd, Xrc, XrcFeatures, XrcSrq, Xrcd, remote_srqn};
    }
}

pub use verbs_api::*;

// Providers and extensions register themselves where their crates are linked, and a crate that nothing names is not
// linked: a dependency alone registers nothing. These lines are what makes the default devices, and what they can do,
// exist in every program that names this crate, as far as its features choose them.
#[cfg(feature = "extensions")]
use ::bmme as _;
#[cfg(feature = "extensions")]
use block_loopback as _;
#[cfg(feature = "emulated")]
use emulated_ib as _;
#[cfg(feature = "emulated")]
use emulated_iwarp as _;
#[cfg(feature = "extensions")]
use low_latency_qp as _;
#[cfg(feature = "extensions")]
use masked_atomics as _;
#[cfg(feature = "rdma-core")]
use rdma_core_provider as _;
#[cfg(feature = "extensions")]
use xrc as _;

/// Makes `cargo test` compile and run the example of the README and the recipes.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/recipes.md")]
struct Readme;
