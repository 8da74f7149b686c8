//! The probes of masked atomics and of XRC, whose ends are two processes.
// The default extensions are linked: the probes need features of several of them.

use polyverbs as _;
use two_processes::{examined, other_process};
use verbs_api::probe::{Probe, Verdict};
use verbs_api::{Transport, extension::ExtensionDescriptor};

other_process!(xrc::INITIATOR);

fn all_pass(transport: Transport, extension: &ExtensionDescriptor, probes: &[Probe]) {
    for feature in extension.all_features() {
        let found = examined(transport, feature, probes);
        let failed: Vec<_> = { found.findings.iter() }
            .filter(|finding| !finding.passed())
            .map(|finding| (finding.probe.id(), finding.evidence.clone()))
            .collect();
        assert_eq!(found.verdict, Verdict::Verified, "{failed:#?}");
        assert_eq!(found.passed(), probes.len(), "{failed:#?}");
    }
}

fn masked_atomics_pass(transport: Transport) {
    all_pass(
        transport,
        &masked_atomics::EXTENSION,
        masked_atomics::PROBES,
    );
}

// covers 4.20 4.21 4.22 4.24 4.24b 4.25 4.26 4.30 4.31
#[test]
fn masked_atomics_reach_another_process_over_udp() {
    masked_atomics_pass(Transport::InfiniBand);
}

// covers 4.20 4.21 4.22 4.24 4.24b 4.25 4.27 4.30 4.31
#[test]
fn masked_atomics_reach_another_process_over_tcp() {
    masked_atomics_pass(Transport::Iwarp);
}

// covers 4.03 4.06 4.07 4.08 4.09 4.10 4.11 4.12
#[test]
fn an_xrc_initiator_reaches_another_process_over_udp() {
    all_pass(Transport::InfiniBand, &xrc::EXTENSION, xrc::PROBES);
    all_pass(Transport::InfiniBand, &xrc::EXTENSION, xrc::CARRIED);
}
