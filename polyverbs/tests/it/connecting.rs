//! Which queue pairs can be connected, over all devices.

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
    let foreign = |argument| {
        let error = VerbError::argument(argument, ArgumentReason::AnotherDevice);
        Some(ConnectError::Verb(error))
    };
    let options = ConnectionOptions::new;
    for other in ["ib0", "iw0"] {
        let (context, others) = (opened("ib0"), opened(other));
        let (own, another) = (qp(&context), qp(&others));
        let connector = Connector::of(&context).unwrap();
        let listener = connector.listen("192.0.2.1:0".parse().unwrap(), 2).unwrap();
        let at = listener.address();
        let connect = |context, qp| connector.connect(context, qp, at, options()).wait().err();
        assert_eq!(connect(&others, &another), foreign("context"));
        assert_eq!(connect(&context, &another), foreign("qp"));
        for (context, argument) in [(&others, "context"), (&context, "qp")] {
            let asked = connector.connect(&own.open_device(), &own, at, options());
            let incoming = listener.next().wait().unwrap();
            let accepted = incoming.accept(context, &another, options()).wait();
            assert_eq!(accepted.err(), foreign(argument));
            assert!(matches!(asked.wait(), Err(ConnectError::Refused { .. })));
        }
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
        let asked = connector.connect(&context, &near, listener.address(), options());
        let incoming = listener.next().wait().unwrap();
        let accepted = incoming.accept(&context, &far, options());
        let _near_end = asked.wait().unwrap().complete().wait().unwrap();
        let _far_end = accepted.wait().unwrap();
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
