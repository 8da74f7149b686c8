//! The queue pairs that can be connected, over all devices.

use polyverbs::connection::{ConnectError, ConnectionOptions, Connector};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, ArgumentReason, Context, PathOptions, Qp, QpOptions, Requirements, Transport,
    VerbError, connect_pair, qp::QpState,
};

fn opened(kind: &str) -> Context {
    let device = emulated::device(kind, &EmulatedOptions::default()).unwrap();
    device.open(&Requirements::new()).unwrap()
}

fn qp(context: &Context) -> Qp {
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(16).wait().unwrap();
    pd.create_qp(QpOptions::rc(&cq)).wait().unwrap()
}

fn state(qp: &Qp) -> QpState {
    qp.query().unwrap().state
}

#[test]
fn a_pair_of_two_transports_is_refused_at_once() {
    let (near, far) = (qp(&opened("ib0")), qp(&opened("iw0")));
    let refused = connect_pair(&near, &far, Access::empty());
    assert!(refused.is_done());
    let reason = ArgumentReason::AnotherTransport(Transport::InfiniBand, Transport::Iwarp);
    assert_eq!(refused.wait(), Err(VerbError::argument("qp", reason)));
    assert_eq!(
        (state(&near), state(&far)),
        (QpState::Reset, QpState::Reset)
    );
}

#[test]
fn a_pair_of_two_contexts_of_one_device_connects() {
    let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
    let [near, far] = [(); 2].map(|()| qp(&device.open(&Requirements::new()).unwrap()));
    connect_pair(&near, &far, Access::empty()).wait().unwrap();
}

#[test]
fn a_connector_takes_only_its_own_device() {
    let foreign = VerbError::argument("qp", ArgumentReason::AnotherDevice);
    let foreign = Some(ConnectError::Verb(foreign));
    let options = ConnectionOptions::new;
    for other in ["ib0", "iw0"] {
        let (context, others) = (opened("ib0"), opened(other));
        let (own, another) = (qp(&context), qp(&others));
        let connector = Connector::of(&context).unwrap();
        let listener = connector.listen("192.0.2.1:0".parse().unwrap(), 1).unwrap();
        let at = listener.address();
        let refused = connector.connect(&another, at, options()).wait();
        assert_eq!(refused.err(), foreign);
        let asked = connector.connect(&own, at, options());
        let incoming = listener.next().wait().unwrap();
        let refused = incoming.accept(&another, options()).wait();
        assert_eq!(refused.err(), foreign);
        assert!(matches!(asked.wait(), Err(ConnectError::Refused { .. })));
    }
}

#[test]
fn rights_from_init_stay_unless_an_option_sets_others() {
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for kind in ["ib0", "iw0"] {
        let context = opened(kind);
        let [near, far] = [(); 2].map(|()| qp(&context));
        for end in [&near, &far] {
            end.init(PathOptions::new().access(rights)).wait().unwrap();
        }
        let connector = Connector::of(&context).unwrap();
        let listener = connector.listen("192.0.2.1:0".parse().unwrap(), 1).unwrap();
        let options = ConnectionOptions::new;
        let connecting = connector.connect(&near, listener.address(), options());
        let incoming = listener.next().wait().unwrap();
        let accepting = incoming.accept(&far, options());
        let _both = (connecting.wait().unwrap(), accepting.wait().unwrap());
        for end in [&near, &far] {
            let status = end.query().unwrap();
            assert_eq!(status.state, QpState::Rts);
            assert_eq!(status.attributes.qp_access_flags, Some(rights));
        }
    }
}

#[test]
fn an_option_that_is_set_replaces_what_was_set_in_init() {
    let context = opened("ib0");
    let [near, far] = [(); 2].map(|()| qp(&context));
    let rights = PathOptions::new().access(Access::REMOTE_WRITE);
    near.init(rights).wait().unwrap();
    let options = PathOptions::new().access(Access::empty());
    near.connect(&far.endpoint().unwrap(), options)
        .wait()
        .unwrap();
    let attributes = near.query().unwrap().attributes;
    assert_eq!(attributes.qp_access_flags, Some(Access::empty()));
}
