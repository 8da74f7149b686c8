//! Removal of the device while a request about a connection is in progress.

use std::sync::Arc;

use conformance::{Flavour, Rig};
use polyverbs_connection::{ConnectError, ConnectionOptions, Connector, InProcess};
use verbs_api::provider::backend::Backend;
use verbs_api::{QpOptions, VerbError};

// covers 5.15
#[test]
fn removal_of_the_device_between_phases_ends_every_request() {
    for flavour in [Flavour::Ib, Flavour::Iwarp] {
        let rig = Rig::new(flavour);
        let (context, pd) = (&rig.near.context, &rig.near.pd);
        let cq = context.create_cq(16).wait().unwrap();
        let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let network = InProcess::new();
        let connector = Connector::new(Arc::clone(&network) as Arc<dyn Backend>);
        let listener = connector.listen("10.0.0.1:0".parse().unwrap(), 0).unwrap();
        let ask = |qp| connector.connect(context, qp, listener.address(), ConnectionOptions::new());
        let qps = [qp(), qp(), qp(), qp()];

        let asked = ask(&qps[0]);
        let incoming = listener.next().wait().unwrap();
        let accepted = incoming.accept(context, &qps[1], ConnectionOptions::new());
        let at_near = asked.wait().unwrap().complete().wait().unwrap();
        let at_far = accepted.wait().unwrap();

        // One request waits for its peer; another is between the end of its connection and the flush.
        let unanswered = ask(&qps[2]);
        network.pause();
        let disconnected = at_near.disconnect(context, &qps[0]);
        rig.near.steer().remove();
        let removed = |error| matches!(error, Err(ConnectError::Verb(VerbError::DeviceRemoved)));
        assert!(removed(disconnected.wait()));
        assert!(removed(unanswered.wait().map(|_| ())));
        network.deliver();
        at_far.disconnected().wait().unwrap();
        assert!(removed(ask(&qps[3]).wait().map(|_| ())));
    }
}
