//! Probes that verify the feature.

mod carried;
mod objects;
mod traffic;

use verbs_api::probe::{End, Evidence, Outcome, Probe, Region, Rig, Side, open};
use verbs_api::qp::QpType;
use verbs_api::{
    Access, Completion, Cq, Features, PathOptions, Pd, Qp, SrqOptions, WcStatus,
    extension::{FeatureInfo, feature},
    wr::{ReceiveRequest, WorkRequest},
};

use crate::{OpenXrcd, XRC, Xrc, XrcSrq, Xrcd};

const SRQ: FeatureInfo = feature!(Features::SRQ, "queue pairs share a receive queue");
const BMME: FeatureInfo = feature!(
    Features::BMME,
    "keys registered and invalidated by work requests"
);
const ALONE: &[FeatureInfo] = &[];
const SHARES: &[FeatureInfo] = &[SRQ];
const REGISTERS: &[FeatureInfo] = &[SRQ, BMME];

macro_rules! probes {
    ($(#[$doc:meta])* $list:ident $($id:literal $rule:literal $about:literal => $needs:ident $run:path;)*) => {
        $(#[$doc])*
        pub static $list: &[Probe] = &[
            $(Probe::new(&XRC, concat!("xrc.", $id), $rule, $about, $run).needs($needs),)*
        ];
    };
}

probes! {
    /// The probes of the extension.
    PROBES
    "domain-of-a-file" "4.01" "a file has one domain, which is opened or created as is asked" => ALONE objects::files;
    "busy" "4.02" "the last opening of a domain is busy while the domain has anything" => SHARES objects::busy;
    "delivery" "4.03" "a message completes where the queue that it names completes" => SHARES traffic::delivery;
    "initiator" "4.05" "an initiator has no receives, and each of its requests names a queue" => ALONE objects::initiator;
    "target" "4.06" "a target has no queues" => ALONE objects::target;
    "protection" "4.06" "a request is carried out in the domain of the queue that it names" => SHARES traffic::protection;
    "receive-memory" "4.06" "receives are checked against the domain of their queue" => SHARES traffic::receive_memory;
    "handles" "4.07" "a target lives as long as one of its handles" => SHARES objects::handles;
    "events" "4.07" "what happens to a target is told to all its handles" => ALONE objects::events;
    "foreign-queue" "4.09" "a queue of another domain is not reached" => SHARES traffic::foreign_queue;
    "starved" "4.10" "a queue without receives holds up its initiator and no other" => SHARES traffic::starved;
    "order" "4.11" "each of several queues gets its messages in order" => SHARES traffic::order;
    "operations" "4.12" "an initiator writes, reads and operates as any other" => SHARES traffic::operations;
    "keys" "4.12" "an initiator registers and invalidates, here and at the peer" => REGISTERS traffic::keys;
    "transitions" "4.16" "each end is told what its half needs, and no more" => SHARES objects::transitions;
}

probes! {
    /// Probes of rules of other features, tried through an XRC initiator. A device that breaks one of them breaks it for
    /// all queue pairs, and supports XRC nevertheless, so these do not verify XRC. Tests run them.
    CARRIED
    "waiting" "4.10" "a message that finds no receive waits, and so do those after it" => SHARES carried::waiting;
    "immediates" "4.12" "immediate data arrives, of sends and of writes" => SHARES carried::immediates;
    "invalidated" "4.12" "a key that a message has invalidated grants no access" => REGISTERS carried::invalidated;
}

const QUEUE_LENGTH: u32 = 64;
const ROOM: u32 = 64;

/// A shared receive queue of an XRC domain, its completion queue, and the memory of its receives.
struct Mailbox {
    srq: XrcSrq,
    cq: Cq,
    landing: Region,
}

impl Mailbox {
    fn new(rig: &Rig, domain: &Xrcd, pd: &Pd) -> Result<Self, Evidence> {
        let cq = rig.far.cq(2 * QUEUE_LENGTH)?;
        let srq = rig.finish(domain.create_srq(pd, SrqOptions::new(QUEUE_LENGTH), &cq))?;
        let length = (QUEUE_LENGTH * ROOM) as usize;
        let landing = rig.far.region_with(pd, length, local())?;
        Ok(Self { srq, cq, landing })
    }

    fn receive(&self, slot: u32) -> Outcome {
        let sge = self.landing.sge((slot * ROOM) as usize, ROOM)?;
        Ok(self
            .srq
            .post_receive(ReceiveRequest::new(u64::from(slot), sge))?)
    }

    fn receives(&self, count: u32) -> Outcome {
        (0..count).try_for_each(|slot| self.receive(slot))
    }

    fn bytes(&self, done: &Completion) -> Result<Vec<u8>, Evidence> {
        let offset = done.wr_id as usize * ROOM as usize;
        self.landing.bytes(offset, done.byte_len as usize)
    }
}

fn local() -> verbs_api::MrOptions {
    verbs_api::MrOptions::new(Access::LOCAL_WRITE)
}

/// An XRC target in a domain of the far side, and an initiator of the near side that is connected to it.
struct XrcConnection {
    initiator: Side,
    domain: Xrcd,
    target: Qp,
}

impl XrcConnection {
    fn new(rig: &Rig) -> Result<Self, Evidence> {
        let connection = Self::made(rig, anonymous(rig, &rig.far)?)?;
        connection.connect(rig)?;
        Ok(connection)
    }

    // Makes initiator and target without connecting them.
    fn made(rig: &Rig, domain: Xrcd) -> Result<Self, Evidence> {
        let target = rig.finish(domain.create_target())?;
        let initiator = initiator(&rig.near)?;
        Ok(Self {
            initiator,
            domain,
            target,
        })
    }

    fn connect(&self, rig: &Rig) -> Outcome {
        self.connect_with(rig, open())
    }

    fn connect_with(&self, rig: &Rig, options: PathOptions) -> Outcome {
        let (here, there) = (self.initiator.endpoint()?, self.target.endpoint()?);
        rig.finish(self.target.connect(&here, options))?;
        rig.finish(self.initiator.connect(&there, options))
    }

    // Posts a request that must complete with `expected`.
    fn ends<'a>(
        &self,
        rig: &Rig,
        request: impl Into<WorkRequest<'a>>,
        expected: WcStatus,
    ) -> Outcome {
        match rig.run(&self.initiator, request)? {
            status if status == expected => Ok(()),
            status => Err(Evidence::wrong(format!(
                "a request ended with {status:?}, expected {expected:?}"
            ))),
        }
    }
}

fn anonymous(rig: &Rig, end: &End) -> Result<Xrcd, Evidence> {
    let xrc = end.context.extension::<Xrc>()?;
    rig.finish(xrc.open(OpenXrcd::anonymous()))
}

fn initiator(end: &End) -> Result<Side, Evidence> {
    let xrc = end.context.extension::<Xrc>()?;
    end.side_with(&end.pd, |cq| end.options(QpType::Rc, cq).with(&xrc))
}
