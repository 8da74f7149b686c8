//! Liveness probes: check whether the peers of connections still exist.
//!
//! A connection that carries nothing does not show that its peer is gone, and a killed process sends no DREQ where no
//! operating system sends one for it. So each adapter with connections to this one is probed periodically, once for all of
//! them, with a DREQ for an unused communication ID: a live connection manager answers it with a DREP, so that the sender
//! need not repeat the DREQ. An adapter that has answered and then stops answering is gone, and its connections end. An
//! adapter whose GUID is one of this library's is expected to answer from the start: it may have been killed right after it
//! connected.

use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::{Drep, Dreq};
use verbs_api::ids::LinkAddress;

use super::manager::Manager;
use super::probed::{Adapter, Probe};
use super::types::{CommId, Event, State};

impl Manager {
    /// Probes this adapter from now on, because there is a connection with it.
    pub(super) fn watch_adapter(&mut self, now: Time, address: LinkAddress, guid: u64) {
        let adapter = (address, guid);
        let is_full = self.liveness.len() >= self.options.max_connections;
        if self.options.liveness_interval.is_none()
            || is_full
            || self.liveness.probes.contains_key(&adapter)
        {
            return;
        }
        let probe = Probe {
            due: now.after(FIRST),
            transaction_id: 0,
            unanswered: 0,
            has_answered: always_answers(guid),
        };
        self.liveness.set(adapter, probe);
    }

    /// Sends the probes that are due, and ends the connections of adapters that have stopped answering.
    pub(super) fn probe_adapters(&mut self, now: Time) {
        while let Some(&(due, adapter)) = self.liveness.due.first()
            && due <= now
        {
            if let Some(probe) = self.liveness.remove(adapter) {
                self.on_probe_due(now, adapter, probe);
            }
        }
    }

    fn on_probe_due(&mut self, now: Time, adapter: Adapter, probe: Probe) {
        let anew = |due| Probe {
            due,
            unanswered: 0,
            ..probe
        };
        let is_established = |id: &u32| self.state(CommId(*id)) == Some(State::Established);
        let established = self.connections_with(adapter).find(is_established);
        let has_none = self.connections_with(adapter).next().is_none();
        let next = match established {
            None if has_none => return,
            // All of them are still being established, or are ending.
            None => anew(now.after(FIRST)),
            Some(id) if probe.unanswered < MOST => self.send_probe(now, id, probe),
            Some(_) if probe.has_answered => {
                self.end_connections_with(now, adapter);
                anew(now.after(FIRST))
            }
            Some(_) => anew(now.after(self.options.patience)),
        };
        self.liveness.set(adapter, next);
    }

    /// Returns the connections with an adapter, in any state.
    fn connections_with(&self, (address, guid): Adapter) -> impl Iterator<Item = u32> + use<'_> {
        let all = (address, guid, 0)..=(address, guid, u32::MAX);
        self.by_request.range(all).map(|(_, id)| *id)
    }

    /// Probes the adapter of connection `id`: sends a DREQ with the peer's communication ID but an unused one of this side,
    /// so that it reaches the peer's process and ends no connection. Returns the probe with its new due time.
    fn send_probe(&mut self, now: Time, id: u32, probe: Probe) -> Probe {
        if self.liveness.unused_id == 0 {
            self.liveness.unused_id = self.free_id().unwrap_or_default();
        }
        let own = self.liveness.unused_id;
        let transaction_id = match probe.unanswered {
            0 => self.transaction(own),
            _ => probe.transaction_id,
        };
        if let Some(of) = self.connections.get(&id) {
            let dreq = Dreq {
                local_comm_id: own,
                remote_comm_id: of.remote_comm_id,
                remote_qpn: of.remote_qpn.value(),
                private_data: Octets::padded(&marked_guid(of.remote_guid)).unwrap_or_default(),
                ..Dreq::default()
            };
            let to = of.path.address;
            self.send_to(to, transaction_id, dreq.into());
        }
        Probe {
            due: now.after(AGAIN),
            transaction_id,
            unanswered: probe.unanswered + 1,
            ..probe
        }
    }

    /// Whether a DREQ is a liveness probe for an adapter that had this address earlier and no longer exists.
    pub(super) fn is_probe_for_another(&self, dreq: &Dreq) -> bool {
        let marked = &dreq.private_data.0;
        marked.starts_with(&MARK) && !marked.starts_with(&marked_guid(self.options.ca_guid))
    }

    /// Whether a DREP answers a liveness probe; then the adapter is alive, and its next probe is scheduled.
    pub(super) fn answers_probe(
        &mut self,
        now: Time,
        from: LinkAddress,
        transaction: u64,
        drep: &Drep,
    ) -> bool {
        if self.liveness.unused_id == 0 || drep.remote_comm_id != self.liveness.unused_id {
            return false;
        }
        let all = (from, 0)..=(from, u64::MAX);
        let is_it = |probe: &Probe| probe.unanswered > 0 && probe.transaction_id == transaction;
        let found = self
            .liveness
            .probes
            .range(all)
            .find(|(_, probe)| is_it(probe));
        if let Some((&adapter, &probe)) = found {
            let interval = self.options.liveness_interval;
            let answered = Probe {
                due: now.after(interval.unwrap_or(self.options.patience)),
                unanswered: 0,
                has_answered: true,
                ..probe
            };
            self.liveness.set(adapter, answered);
        }
        true
    }

    /// Ends the connections with an adapter that no longer answers. A DREQ is sent for each, in case the peer was only
    /// stopped and resumes.
    fn end_connections_with(&mut self, now: Time, adapter: Adapter) {
        for id in self.connections_with(adapter).collect::<Vec<_>>() {
            let of = self.connections.get(&id);
            let Some(of) = of.filter(|of| of.state == State::Established) else {
                continue;
            };
            let dreq = Dreq {
                local_comm_id: id,
                remote_comm_id: of.remote_comm_id,
                remote_qpn: of.remote_qpn.value(),
                ..Dreq::default()
            };
            self.send(id, dreq.into());
            self.enter_timewait(now, id);
            self.tell(Event::PeerLost { id: CommId(id) });
        }
    }
}

/// Returns the GUID of an adapter of this library. Its upper half shows other such adapters that it answers probes.
pub(super) const fn guid(number: u32) -> u64 {
    OURS | number as u64
}

const fn always_answers(guid: u64) -> bool {
    guid >> u32::BITS == OURS >> u32::BITS
}

/// Returns the private data of a probe, which names the adapter that is probed. Other connection managers ignore it.
fn marked_guid(guid: u64) -> [u8; 16] {
    let mut marked = [0; 16];
    marked[..8].copy_from_slice(&MARK);
    marked[8..].copy_from_slice(&guid.to_be_bytes());
    marked
}

const MARK: [u8; 8] = *b"polyverb";
/// Upper half of the GUID of this library's adapters, an EUI-64 that no manufacturer assigns: the local bit, and "pvb".
const OURS: u64 = 0x0270_7662_0000_0000;
/// The time from the beginning of a connection to the first probe of its adapter.
const FIRST: Duration = Duration::from_millis(500);
/// The time after which an unanswered probe is repeated.
const AGAIN: Duration = Duration::from_millis(1500);
const MOST: u32 = 7;
