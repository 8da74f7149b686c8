//! A working queue pair with a hostile peer: the part that both transports share.

use std::sync::Arc;
use std::time::Duration;

use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::Frame;
use polyverbs_engine::network::{Member, Network};
use polyverbs_io::sim::Simulation;
use verbs_api::Qp;
use verbs_api::qp::{QpAttributes, QpState};

use crate::program::Program;
use crate::script::Script;

/// A program and its neighbour, on one network.
pub(crate) struct AtWork<D: Driver> {
    pub(crate) simulation: Simulation,
    pub(crate) network: Arc<Network<Device<D>>>,
    /// The queue pair of the victim whose peer the fuzzer plays.
    pub(crate) qp: Qp,
    pub(crate) victim: Program,
    pub(crate) honest: Program,
    /// The queue pairs that connect the victim and the neighbour, one of each.
    pub(crate) neighbours: [Qp; 2],
}

/// A peer that the fuzzer plays.
pub(crate) trait Peer {
    type Driver: Driver;

    /// A time longer than any wait for an answer of this peer.
    const PATIENCE: Duration;

    fn at_work(&mut self) -> &mut AtWork<Self::Driver>;

    /// Sends a message that the script makes up.
    fn say(&mut self, script: &mut Script<'_>);

    /// The queue pair of the peer, if a connection needs one.
    fn own(&self) -> Option<&Qp>;

    /// Connects both ends, which are in RESET.
    fn connect(&mut self);
}

/// Has a peer act by the script, and checks that it harmed nothing. The peer can be used again.
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

// The program ends the connection, and connects the same queue pair again.
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

/// The most steps of a run: more make it longer but not deeper.
const STEPS: usize = 64;
