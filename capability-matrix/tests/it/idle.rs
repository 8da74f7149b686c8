//! A device is idle only if nothing can happen for which the probes would have to wait.

use polyverbs::wr;

use crate::Simulated;

#[test]
fn a_device_is_idle_unless_it_tries_a_message_again() {
    let simulated = Simulated::new();
    let device = &simulated.devices[0];
    let rig = simulated.rig(device, &[]).unwrap();
    let pair = rig.rc().unwrap();
    // Memory that another test has released may still wait for a thread that reads it: no device is idle meanwhile.
    rig.until("an idle device", || device.ops().is_idle())
        .unwrap();
    // The responder has no receive, so the requester sends the message again later.
    let message = rig.scratch.sge(0, 8).unwrap();
    pair.near.post_one(wr::Send::new(message)).unwrap();
    assert!(!device.ops().is_idle());
    pair.far.receive(&rig.scratch, 64, 8).unwrap();
    rig.take(&pair.far.cq, 1).unwrap();
    rig.until("the end of the retries", || device.ops().is_idle())
        .unwrap();
}
