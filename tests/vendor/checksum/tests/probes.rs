//! The probes on every kind of software device: with whole messages, segmented, encoded as bytes, through sockets, and through
//! shared memory.

use acme_checksum::EXTENSION;
use conformance::{Flavour, examined};
use verbs_api::probe::Verdict;

fn is_found(flavour: Flavour, expected: Verdict) {
    for feature in EXTENSION.all_features() {
        let found = examined(flavour, feature, EXTENSION.all_probes());
        let name = feature.name;
        assert_eq!(
            found.verdict, expected,
            "{flavour:?}, {name}: {}",
            found.because
        );
        if expected == Verdict::Verified {
            let probes = EXTENSION.all_probes().iter();
            let of_feature = probes.filter(|probe| probe.proves(feature)).count();
            assert_eq!(found.passed(), of_feature, "{name}");
        }
    }
}

macro_rules! flavours {
    ($($name:ident $flavour:ident $verdict:ident;)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Flavour::$flavour, Verdict::$verdict);
            }
        )*
    };
}

flavours! {
    infiniband Ib Verified;
    infiniband_in_frames IbFramed Verified;
    infiniband_in_octets IbWire Verified;
    infiniband_over_udp IbUdp Verified;
    infiniband_in_shared_memory IbMemory Verified;
    infiniband_without_extensions IbPlain Refused;
    iwarp Iwarp Verified;
    iwarp_in_segments IwarpFramed Verified;
    iwarp_in_octets IwWire Verified;
    iwarp_over_tcp IwTcp Verified;
    iwarp_without_extensions IwarpPlain Refused;
}
