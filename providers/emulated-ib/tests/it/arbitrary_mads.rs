//! Whatever arrives for queue pairs 0 and 1, a device answers honest requests, and keeps a bounded number of MADs.

use polyverbs_engine::network::Member as _;
use polyverbs_engine::time::Time;
use polyverbs_wire::mad::smp::{LID_CLASS, NodeInfo};
use polyverbs_wire::mad::{GSI_Q_KEY, MAD_LEN};
use proptest::prelude::*;
use verbs_api::objects::management::AgentRegistration;

use crate::subnet::{activate, answers, carried, deliver, get, managed, port};

/// A MAD whose header is plausible, so that it gets beyond the first checks.
fn mad() -> impl Strategy<Value = Vec<u8>> {
    let class = prop_oneof![
        Just(1_u8),
        Just(0x81),
        Just(4),
        Just(3),
        Just(0x32),
        any::<u8>()
    ];
    let method = prop_oneof![Just(1_u8), Just(2), Just(0x81), Just(7), any::<u8>()];
    let attribute = prop_oneof![0x10..0x21_u8, Just(1), any::<u8>()];
    let length = prop_oneof![8 => Just(MAD_LEN), 1 => 0..300_usize];
    let content = proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 300);
    (
        class,
        method,
        attribute,
        0..70_u8,
        0..70_u8,
        length,
        content,
    )
        .prop_map(
            |(class, method, attribute, pointer, count, length, mut mad)| {
                mad[..4].copy_from_slice(&[1, class, 1, method]);
                (mad[6], mad[7]) = (pointer, count);
                mad[16..18].copy_from_slice(&[0, attribute]);
                mad[32..36].fill(0xff);
                mad.truncate(length);
                mad
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    // covers 8.64 8.65 8.66 8.69
    #[test]
    fn arbitrary_mads_harm_no_one(
        mads in proptest::collection::vec((0..3_u32, any::<bool>(), mad()), 1..60)
    ) {
        let rig = managed();
        activate(&rig, &rig.b, 5);
        let registration = AgentRegistration::new(0x32, 1).oui([0, 0, 1]).methods(0..128);
        let agent = rig.b.context.register_agent(1, registration).unwrap();
        for (qpn, has_q_key, mad) in &mads {
            let q_key = if *has_q_key { GSI_Q_KEY } else { 0 };
            deliver(&rig.b, &carried(&rig, &rig.b, *qpn, q_key, mad));
        }
        prop_assert!(answers(&rig, &rig.b).len() <= mads.len() + 6, "an answer for each at most");
        prop_assert!(std::iter::from_fn(|| agent.poll_event()).count() <= mads.len());
        let link = port(&rig.b);
        rig.wire.forget();
        let request = carried(&rig, &rig.b, 0, 0, &get::<NodeInfo>(LID_CLASS));
        rig.b.engine.handle_frame(request.as_frame(), Time(2));
        let is_answered = answers(&rig, &rig.b).len() == 1;
        // A MAD may have disabled the port, as a subnet manager can.
        let is_up = link.phys_state == verbs_api::capability::PhysState::LinkUp;
        prop_assert!(is_answered || !is_up || has_key(&mads));
    }
}

/// Whether a write may have set an M_Key that protects reads, too.
fn has_key(mads: &[(u32, bool, Vec<u8>)]) -> bool {
    let sets = |mad: &[u8]| mad.len() == MAD_LEN && mad[3] == 2 && mad[17] == 0x15;
    mads.iter().any(|(_, _, mad)| sets(mad))
}
