//! A queue pair that is at work, whatever its peer says: what both transports have in common.

use std::sync::Arc;
use std::time::Duration;

use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::Frame;
use polyverbs_engine::network::{Member, Network};
use polyverbs_sim::Simulation;
use verbs_api::Qp;
use verbs_api::qp::{QpAttributes, QpState};

use crate::program::Program;
use crate::script::Script;

/// A program and its neighbour, on one network.
pub(crate) struct AtWork<D: Driver> {
    pub(crate) simulation: Simulation,
    pub(crate) network: Arc<Network<Device<D>>>,
    /// The queue pair whose peer the fuzzer speaks for.
    pub(crate) qp: Qp,
    pub(crate) victim: Program,
    pub(crate) honest: Program,
    /// The queue pairs of the victim's and of the neighbour's.
    pub(crate) neighbours: [Qp; 2],
}

/// Whom the fuzzer speaks for.
pub(crate) trait Peer {
    type Driver: Driver;

    /// Longer than anything waits for an answer of this peer.
    const PATIENCE: Duration;

    fn at_work(&mut self) -> &mut AtWork<Self::Driver>;

    /// Says something.
    fn say(&mut self, script: &mut Script<'_>);

    /// Those of its own queue pairs that a connection needs.
    fn own(&self) -> Option<&Qp>;

    /// Connects both ends, which are as new.
    fn connect(&mut self);
}

/// Has a peer do what the script says, and sees to it that nothing was harmed. The peer may be used again.
pub(crate) fn run<P: Peer>(peer: &mut P, script: &mut Script<'_>) {
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        step(peer, script);
    }
    peer.at_work().run_for(P::PATIENCE);
    peer.at_work().victim.take();
    begin_again(peer);
    let at_work = peer.at_work();
    at_work.victim.is_unharmed();
    let [one, other] = &at_work.neighbours;
    let run = || at_work.run_for(Duration::from_millis(100));
    at_work.victim.serves(one, &at_work.honest, other, run);
    at_work.victim.tidy();
}

fn step<P: Peer>(peer: &mut P, script: &mut Script<'_>) {
    match script.octet() & 15 {
        0..=7 => peer.say(script),
        what @ 8..=13 => {
            let AtWork { victim, qp, .. } = peer.at_work();
            match what {
                8..=11 => victim.post(qp, script),
                _ => victim.receive(qp, script),
            }
        }
        14 => {
            let nanoseconds = 1 << (script.octet() % 28);
            peer.at_work().run_for(Duration::from_nanos(nanoseconds));
        }
        _ => begin_again(peer),
    }
    let at_work = peer.at_work();
    at_work.network.progress();
    at_work.victim.take();
}

// The program ends the connection, and begins a new one with the same queue pair.
fn begin_again<P: Peer>(peer: &mut P) {
    all_to(peer, QpState::Err);
    let at_work = peer.at_work();
    at_work.network.progress();
    at_work.victim.take();
    at_work.victim.has_all();
    all_to(peer, QpState::Reset);
    peer.connect();
}

fn all_to<P: Peer>(peer: &mut P, state: QpState) {
    let own = peer.own().cloned();
    for qp in [Some(peer.at_work().qp.clone()), own].into_iter().flatten() {
        let modified = qp.modify(QpAttributes::new().qp_state(state));
        modified.wait().expect("any state");
    }
}

impl<D: Driver> AtWork<D> {
    pub(crate) fn deliver(&self, frame: Frame<'_, D::Header>) {
        if let Some(device) = self.network.device(frame.to) {
            device.handle_frame(frame, self.simulation.now());
        }
    }

    pub(crate) fn run_for(&self, time: Duration) {
        let ran = self.simulation.run_for(time);
        ran.expect("a network that is woken");
    }
}

/// Things that happen at most: more make a run long and not deeper.
const STEPS: usize = 64;
