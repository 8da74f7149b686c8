//! The probes with a device of another process as the end that posts requests, over UDP and over TCP.

use acme_checksum::EXTENSION;
use two_processes::{examined, other_process};
use verbs_api::Transport;
use verbs_api::probe::Verdict;

other_process!();

fn all_pass(transport: Transport) {
    for feature in EXTENSION.all_features() {
        let found = examined(transport, feature, EXTENSION.all_probes());
        assert_eq!(found.verdict, Verdict::Verified, "{}", found.because);
        let probes = EXTENSION.all_probes().iter();
        let of_feature = probes.filter(|probe| probe.proves(feature)).count();
        assert_eq!(found.passed(), of_feature, "{}", feature.name);
    }
}

#[test]
fn the_memory_of_another_process_is_summed_there_over_udp() {
    all_pass(Transport::InfiniBand);
}

#[test]
fn the_memory_of_another_process_is_summed_there_over_tcp() {
    all_pass(Transport::Iwarp);
}
