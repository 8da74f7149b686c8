//! Which queue pairs can be connected, over all devices.

use polyverbs::connection::{ConnectError, ConnectionOptions, Connector};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, ArgumentReason, Context, Qp, QpOptions, Requirements, Transport, VerbError,
    connect_pair, qp::QpState,
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
fn a_pair_of_two_transports_or_networks_is_refused_at_once() {
    let another_transport =
        ArgumentReason::AnotherTransport(Transport::InfiniBand, Transport::Iwarp);
    for (others, reason) in [
        ("iw0", another_transport),
        ("ib0", ArgumentReason::AnotherDevice),
    ] {
        let (near, far) = (qp(&opened("ib0")), qp(&opened(others)));
        let refused = connect_pair(&near, &far, Access::empty());
        assert!(refused.is_done());
        assert_eq!(refused.wait(), Err(VerbError::argument("qp", reason)));
        assert_eq!(
            (state(&near), state(&far)),
            (QpState::Reset, QpState::Reset)
        );
    }
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
