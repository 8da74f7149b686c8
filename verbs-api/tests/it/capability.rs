//! Granting and refusing of features, the errors of refusals, and the registry.

use std::sync::Arc;

use bmme::Bmme;
use verbs_api::extension::Extension as _;
use verbs_api::provider::{CONTRACT_VERSION, Provider};
use verbs_api::*;
use verbs_api::{
    capability::{Baseline, BaselineGaps, DeviceAttributes, PortCaps},
    memory::{self, MwType},
    provider::{RegistryError, link_provider},
    wr::{self, PostReason, WorkRequest},
};

use crate::mock::{self, MockProvider};

fn provider(name: &'static str, devices: Vec<DeviceAttributes>) -> &'static MockProvider {
    let devices: Vec<_> = devices.into_iter().map(mock::device).collect();
    mock::provider(name, &devices.iter().collect::<Vec<_>>())
}

fn registry(devices: Vec<DeviceAttributes>) -> Result<Registry, RegistryError> {
    let mut registry = Registry::new();
    registry.add_provider(provider("mock", devices))?;
    Ok(registry)
}

fn without(features: Features) -> DeviceAttributes {
    let mut attributes = mock::attributes("mock0");
    attributes.features -= features;
    attributes
}

// covers 1.01
#[test]
fn each_member_of_bmme_is_refused_without_it() {
    let (mock, _, context) = mock::open_with(without(Features::BMME | Features::WINDOW_2));
    let (pd, cq, ..) = mock::pair(&context);
    let missing = Features::BMME;
    assert_eq!(
        pd.alloc_key(4).wait().unwrap_err(),
        VerbError::Unsupported { missing }
    );
    for operation in [
        Operations::FAST_REGISTER,
        Operations::LOCAL_INV,
        Operations::SEND_WITH_INV,
    ] {
        let refused = pd
            .create_qp(QpOptions::rc(&cq).operations(operation))
            .wait()
            .unwrap_err();
        assert_eq!(refused, VerbError::Unsupported { missing });
    }
    let unsupported = context.extension::<Bmme>().unwrap_err();
    assert_eq!(unsupported.missing, ["BMME"]);
    assert_eq!(mock.live("qp"), 0);
    // With the bit there is a handle; on InfiniBand it has no read-with-invalidate.
    let (_mock, context) = mock::open();
    let bmme = context.extension::<Bmme>().unwrap();
    assert!(!bmme.operations().contains(Operations::READ_WITH_INV));
    let pd = context.alloc_pd().wait().unwrap();
    bmme.alloc_key(&pd, 4).wait().unwrap();
}

// covers 1.01
#[test]
fn windows_are_invalidated_without_bmme() {
    let (_mock, _, context) = mock::open_with(without(Features::BMME));
    let (pd, cq, ..) = mock::pair(&context);
    let create = |operations| {
        let options = QpOptions::rc(&cq).operations(operations);
        pd.create_qp(options).wait()
    };
    let of_windows = Operations::BIND_MW | Operations::LOCAL_INV | Operations::SEND_WITH_INV;
    create(of_windows).unwrap();
    let refused = create(of_windows | Operations::FAST_REGISTER).unwrap_err();
    let missing = Features::BMME;
    assert_eq!(refused, VerbError::Unsupported { missing });
}

// covers 1.02 1.04 1.05 1.16
#[test]
fn claims_that_do_not_fit_are_refused_at_registration() {
    let refused =
        |attributes: DeviceAttributes| registry(vec![attributes]).unwrap_err().to_string();
    let mut iwarp = mock::iwarp("iwarp0");
    assert!(registry(vec![iwarp.clone()]).is_ok());
    iwarp.features -= Features::LOCAL_INVALIDATE_FENCE;
    assert!(refused(iwarp.clone()).contains("LOCAL_INVALIDATE_FENCE"));
    iwarp.gaps |= BaselineGaps::NO_LOCAL_INVALIDATE_FENCE;
    assert!(registry(vec![iwarp.clone()]).is_ok());
    iwarp.features -= Features::ZBVA;
    assert!(refused(iwarp).contains("ZBVA"));
    let mut both = mock::attributes("mock0");
    both.features |= Features::WINDOW_2;
    assert!(refused(both).contains("at most one"));
    let mut portless = mock::attributes("mock0");
    portless.ports.clear();
    assert!(refused(portless).contains("port"));
}

// covers 1.03
#[test]
fn gap_and_block_lists_are_not_implied_by_bmme() {
    let (_mock, _, context) = mock::open_with(without(Features::BLOCK_LIST | Features::SG_GAPS));
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let bmme = context.extension::<Bmme>().unwrap();
    let qp = pd
        .create_qp(QpOptions::rc(&cq).operations(&bmme))
        .wait()
        .unwrap();
    let key = pd.alloc_key(8).wait().unwrap();
    let memory = Memory::zeroed(8192).unwrap();
    let ranges = [
        memory.range(0, 1000).unwrap(),
        memory.range(2000, 1000).unwrap(),
    ];
    let gaps = PageList::gaps(&ranges).unwrap();
    let blocks = PageList::blocks(&ranges, 1000, 0, 2000).unwrap();
    for (pages, missing) in [(gaps, Features::SG_GAPS), (blocks, Features::BLOCK_LIST)] {
        let refused = qp
            .post_one(wr::FastRegister::new(&key, &pages))
            .unwrap_err();
        assert_eq!(refused.reason, PostReason::Unsupported { missing });
    }
}

// covers 1.04 2.04
#[test]
fn rights_are_checked_when_memory_is_registered() {
    let (mock, _, context) = mock::open_with(without(Features::ZBVA | Features::FLUSH));
    let pd = context.alloc_pd().wait().unwrap();
    let memory = Memory::zeroed(64).unwrap();
    let zero_based = MrOptions::new(Access::LOCAL_WRITE).zero_based();
    let refused = pd.register_with(&memory, zero_based).wait().unwrap_err();
    assert_eq!(
        refused,
        VerbError::Unsupported {
            missing: Features::ZBVA
        }
    );
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = pd.register(&memory, access).wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().starts_with("access: "));
    }
    assert!(pd.register(&memory, Access::FLUSH_GLOBAL).wait().is_err());
    assert_eq!(mock.live("mr"), 0);
}

// covers 1.05
#[test]
fn windows_need_their_kind() {
    let (_mock, _, context) = mock::open_with(without(Features::WINDOW_1 | Features::WINDOW_2));
    let pd = context.alloc_pd().wait().unwrap();
    for (mw_type, missing) in [
        (MwType::Type1, Features::WINDOW_1),
        (MwType::Type2, Features::WINDOW_2B),
    ] {
        assert_eq!(
            pd.alloc_mw(mw_type).wait().unwrap_err(),
            VerbError::Unsupported { missing }
        );
    }
    let cq = context.create_cq(8).wait().unwrap();
    let refused = pd
        .create_qp(QpOptions::rc(&cq).operations(Operations::BIND_MW))
        .wait();
    assert_eq!(
        refused.unwrap_err(),
        VerbError::Unsupported {
            missing: Features::WINDOW_2B
        }
    );
}

// covers 1.11
#[test]
fn a_verb_that_the_provider_lacks_is_unsupported() {
    let (_mock, context) = mock::open();
    let cq = context.create_cq(8).wait().unwrap();
    let refused = cq.resize(16).wait().unwrap_err();
    assert_eq!(refused, VerbError::UnsupportedVerb("resize_cq"));
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

// covers 1.12 1.13 1.14 1.15
#[test]
fn a_short_limit_is_named_with_wanted_and_offered_value() {
    let (_mock, _, context) = mock::open_with(mock::iwarp("iwarp0"));
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let qp = pd
        .create_qp(QpOptions::rc(&cq).max_send_wr(3).max_send_sge(2))
        .wait()
        .unwrap();
    assert!(qp.cap().max_send_wr >= 3);
    let sges = [mock::sge(0, 1, 1); 2];
    let refused = qp
        .post_one(wr::Read::new(&sges, RemoteAddress::default()))
        .unwrap_err();
    assert_eq!(refused.reason, PostReason::TooManySges { max: 1, given: 2 });
    assert_eq!(
        pd.alloc_key(257).wait().unwrap_err().to_string(),
        "max_fast_reg_page_list_len: wanted at least 257, offered 256"
    );
    assert_eq!(
        pd.alloc_key(0).wait().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let refused = context.create_cq(1 << 20).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Limit);
    for options in [
        QpOptions::rc(&cq).max_send_wr(1025),
        QpOptions::rc(&cq).max_recv_wr(1025),
        QpOptions::rc(&cq).max_send_sge(5),
        QpOptions::rc(&cq).max_recv_sge(5),
        QpOptions::rc(&cq).max_inline_data(129),
    ] {
        assert_eq!(
            pd.create_qp(options).wait().unwrap_err().kind(),
            ErrorKind::Limit
        );
    }
    let memory = Memory::zeroed(8192).unwrap();
    for size in [0, 5000] {
        assert!(PageList::map(&[memory.clone().into()], size, 8).is_err());
    }
}

#[test]
fn receive_limits_are_ignored_with_a_shared_receive_queue() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(4)).wait().unwrap();
    let options = QpOptions::rc(&cq).max_recv_wr(u32::MAX).max_recv_sge(5);
    let cap = pd.create_qp(options.srq(&srq)).wait().unwrap().cap();
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
}

#[test]
fn a_verb_that_a_gap_excludes_is_refused_by_its_name() {
    let all = BaselineGaps::NO_REREG_MR | BaselineGaps::NO_RESIZE_CQ | BaselineGaps::NO_RC;
    let mut attributes = mock::attributes("mock0");
    attributes.gaps |= all;
    assert!(
        !Baseline::of(&attributes)
            .intersects(Baseline::RC | Baseline::REREG_MR | Baseline::RESIZE_CQ)
    );
    assert_eq!(
        (Baseline::RC | Baseline::REREG_MR | Baseline::RESIZE_CQ).gaps(),
        all
    );
    // Granted without the baseline, as programs are that need none of it.
    let registry = registry(vec![attributes]).unwrap();
    let device = registry.devices().next().unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(8).wait().unwrap(),
    );
    let memory = Memory::zeroed(64).unwrap();
    let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
    let change = memory::MrReregister::new().iova(4096);
    let refused = mr.rereg(change).wait().unwrap_err();
    assert_eq!(refused, VerbError::BaselineGap(BaselineGaps::NO_REREG_MR));
    let refused = cq.resize(16).wait().unwrap_err();
    assert_eq!(refused, VerbError::BaselineGap(BaselineGaps::NO_RESIZE_CQ));
    let refused = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap_err();
    assert_eq!(refused, VerbError::BaselineGap(BaselineGaps::NO_RC));
}

#[test]
fn baseline_gaps_are_named() {
    let (_mock, _, context) = mock::open_with(mock::iwarp("iwarp0"));
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    for (options, gap) in [
        (QpOptions::ud(&cq), BaselineGaps::NO_UD),
        (QpOptions::uc(&cq), BaselineGaps::NO_UC),
        (
            QpOptions::rc(&cq).operations(Operations::SEND_WITH_IMM),
            BaselineGaps::NO_SEND_WITH_IMMEDIATE,
        ),
    ] {
        let refused = pd.create_qp(options).wait().unwrap_err();
        assert_eq!(refused, VerbError::BaselineGap(gap));
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    assert!(!qp.operations().contains(Operations::SEND_WITH_IMM));
    assert!(qp.operations().contains(Operations::WRITE_WITH_IMM));
}

// covers 3.20
#[test]
fn a_refused_operation_names_the_gap_or_what_to_type() {
    let refused = |context: &Context, wanted: fn(&Cq) -> QpOptions, request: WorkRequest<'_>| {
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(64).wait().unwrap();
        let qp = pd.create_qp(wanted(&cq)).wait().unwrap();
        let refused: PostError = qp.post_one(request).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        refused.reason.to_string()
    };
    let (_mock, _, iwarp) = mock::open_with(mock::iwarp("iwarp0"));
    let with_immediate = || wr::SendWithImmediate::new((), [0; 4]).into();
    assert_eq!(
        refused(&iwarp, QpOptions::rc, with_immediate()),
        "SEND_WITH_IMM: this device has the gap NO_SEND_WITH_IMMEDIATE"
    );
    let (_mock, device, full) = mock::open_with(mock::attributes("mock0"));
    let plain = device.open(&Requirements::new()).unwrap();
    assert_eq!(
        refused(
            &plain,
            QpOptions::rc,
            wr::LocalInvalidate::new(RKey::new(1)).into()
        ),
        "LOCAL_INV needs BMME, which the device lacks or the program did not ask for (Requirements::needs)"
    );
    assert_eq!(
        refused(
            &full,
            |cq| QpOptions::rc(cq).only(Operations::SEND),
            with_immediate()
        ),
        "the queue pair was not created for SEND_WITH_IMM: \
         QpOptions::operations adds it, where the service has it"
    );
}

// covers 1.10 3.20
#[test]
fn the_whole_set_of_operations_is_granted_or_nothing() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let options = |qp_type| match qp_type {
        qp::QpType::Rc => QpOptions::rc(&cq),
        qp::QpType::Uc => QpOptions::uc(&cq),
        _ => QpOptions::ud(&cq),
    };
    for qp_type in mock::ALL_TYPES {
        for operation in Operations::all().iter() {
            let made = pd.create_qp(options(qp_type).only(operation)).wait();
            let legal = qp_type.operations().contains(operation);
            let possible = legal && operation != Operations::READ_WITH_INV;
            assert_eq!(made.is_ok(), possible, "{qp_type:?} {operation:?}");
            if let Ok(qp) = made {
                assert_eq!(qp.operations(), operation);
            }
        }
    }
    assert_eq!(mock.live("qp"), 0);
    assert!(
        !qp::QpType::Uc
            .operations()
            .contains(Operations::SEND_WITH_INV)
    );
    let refused = pd
        .create_qp(QpOptions::ud(&cq).operations(Operations::WRITE))
        .wait();
    assert_eq!(
        refused.unwrap_err().to_string(),
        "operations: Ud has no WRITE"
    );
}

#[test]
fn a_feature_that_was_not_asked_for_is_not_granted() {
    let registry = registry(vec![mock::attributes("mock0")]).unwrap();
    let context = registry
        .open(&Requirements::new().needs(Features::SRQ))
        .unwrap();
    assert_eq!(context.features(), Features::SRQ);
    let pd = context.alloc_pd().wait().unwrap();
    assert_eq!(
        pd.alloc_key(1).wait().unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    pd.create_srq(SrqOptions::new(4)).wait().unwrap();
}

#[test]
fn one_error_lists_all_that_every_device_lacks() {
    let registry = registry(vec![
        without(Features::BMME | Features::ZBVA),
        mock::iwarp("iwarp0"),
    ])
    .unwrap();
    let wanted = Requirements::new()
        .needs(Features::BMME | Features::ZBVA | Features::MULTICAST)
        .at_least(Limit::MaxSgeRd, 2)
        .at_least(Limit::LocalCaAckDelay, 20);
    let message = registry.open(&wanted).unwrap_err().to_string();
    assert_eq!(
        message,
        "no device meets the requirements: iwarp0: lacks MULTICAST; max_sge_rd: wanted at least 2, offered 1 \
         | mock0: lacks BMME; lacks ZBVA"
    );
    let preferred = Requirements::new().prefers(Features::READ_WITH_INVALIDATE);
    let chosen = registry.open(&preferred).unwrap();
    assert_eq!(chosen.attributes().name, "iwarp0");
    let named = registry
        .open(&Requirements::new().device("mlx5_0"))
        .unwrap_err();
    assert_eq!(
        named.to_string(),
        "no device is named mlx5_0; there are iwarp0, mock0"
    );
}

// covers 1.08
#[test]
fn ports_are_of_different_kinds() {
    let mut attributes = mock::attributes("mock0");
    attributes.ports[0].caps = PortCaps::INFINIBAND;
    let (_mock, _, context) = mock::open_with(attributes);
    assert!(context.query_port(1).unwrap().caps.contains(PortCaps::SMI));
    assert!(!context.query_port(2).unwrap().caps.contains(PortCaps::SMI));
    for port in [0, 3] {
        assert_eq!(
            context.query_port(port).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
}

// covers 1.16
#[test]
fn a_provider_is_registered_whole_or_not_at_all() {
    let mut registry = registry(vec![mock::attributes("b"), mock::attributes("a")]).unwrap();
    let names = |registry: &Registry| {
        registry
            .devices()
            .map(|d| d.name().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&registry), ["a", "b"]);
    let mut refused = |provider: &'static MockProvider| {
        let message = registry
            .add_provider(provider as &'static dyn Provider)
            .unwrap_err()
            .to_string();
        assert_eq!(names(&registry), ["a", "b"]);
        assert_eq!(registry.providers().count(), 1);
        message
    };
    let message = refused(provider("mock", vec![mock::attributes("c")]));
    assert!(message.contains("two providers are named mock") && message.contains("\"c\""));
    let message = refused(provider(
        "other",
        vec![mock::attributes("c"), mock::attributes("a")],
    ));
    assert_eq!(
        message,
        "device a of provider other has the name of a device of provider mock"
    );
    let newer = Box::leak(Box::new(MockProvider::new("newer")));
    newer.version = CONTRACT_VERSION + 1;
    let message = refused(newer);
    assert!(
        message.contains("version 3") && message.contains("version 2"),
        "{message}"
    );
    let broken = mock::provider("broken", &[]);
    broken.fail(VerbError::argument("hook poll", "is missing"));
    assert!(refused(broken).contains("hook poll"));
}

#[test]
fn an_empty_registry_explains_silent_loss() {
    let message = Registry::new()
        .open(&Requirements::new())
        .unwrap_err()
        .to_string();
    assert!(message.contains("use provider_crate as _;") && message.contains("add_provider"));
    let nothing = registry(vec![])
        .unwrap()
        .open(&Requirements::new())
        .unwrap_err();
    assert_eq!(
        nothing.to_string(),
        "no device: the registered providers are mock"
    );
}

static LINKED: MockProvider = MockProvider::new("linked");
link_provider!(LINKED);

#[test]
fn a_linked_provider_is_found() {
    let registry = verbs_api::registry().unwrap();
    assert_eq!(registry.providers().collect::<Vec<_>>(), ["linked"]);
    assert!(devices().unwrap().is_empty());
    assert!(matches!(
        verbs_api::open(Requirements::new()),
        Err(OpenError::NoDevice { .. })
    ));
}

#[test]
fn errors_of_verbs_convert_with_the_question_mark() {
    fn program() -> Result<(), Box<dyn std::error::Error>> {
        let (_mock, context) = mock::open();
        let pd = context.alloc_pd().wait()?;
        let _: Arc<Bmme> = Arc::new(context.extension::<Bmme>()?);
        pd.destroy().wait()?;
        Ok(())
    }
    program().unwrap();
}

#[test]
fn operations_need_a_queue_pair_type_that_has_them() {
    let mut attributes = mock::attributes("datagrams");
    let one_sided = Baseline::READ | Baseline::ATOMICS | Baseline::WRITE;
    assert!(Baseline::of(&attributes).contains(one_sided));
    attributes.gaps |= BaselineGaps::NO_RC;
    let has = Baseline::of(&attributes) & one_sided;
    assert_eq!(has, Baseline::WRITE, "UC writes");
    attributes.gaps |= BaselineGaps::NO_UC;
    assert!(!Baseline::of(&attributes).intersects(one_sided));
    let refused = registry(vec![attributes])
        .unwrap()
        .open(&Requirements::new().needs(Baseline::WRITE));
    assert!(matches!(refused, Err(OpenError::NotMet(_))));
}
