//! Whether the peers of connections are still there.
//!
//! A connection that carries nothing does not tell that the other side is gone, and a process that was killed says no last
//! word where no operating system speaks for it. So each adapter that connections are with is asked now and then, once for
//! all of them, for the end of a connection that there is not: a connection manager confirms that, so that whoever asks may
//! stop asking. One that has done so, and then does not, is gone, and its connections with it. One whose number says that it
//! is of this library need not have done so before: it may have been killed right after it connected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::{Drep, Dreq};
use verbs_api::ids::LinkAddress;

use super::manager::Manager;
use super::types::{CommId, Event, State};

/// An adapter: its address, and what it says to be.
type Adapter = (LinkAddress, u64);

/// Who is looked for.
#[derive(Debug, Default)]
pub(super) struct Looks {
    adapters: BTreeMap<Adapter, Look>,
    due: BTreeSet<(Time, Adapter)>,
    /// The number of the connection that there is not; 0 until it is needed.
    pub(super) id: u32,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    due: Time,
    transaction_id: u64,
    unanswered: u32,
    /// Of who never has, silence says nothing.
    has_answered: bool,
}

impl Looks {
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.adapters.len()
    }

    fn set(&mut self, adapter: Adapter, look: Look) {
        self.remove(adapter);
        self.due.insert((look.due, adapter));
        self.adapters.insert(adapter, look);
    }

    fn remove(&mut self, adapter: Adapter) -> Option<Look> {
        let look = self.adapters.remove(&adapter)?;
        self.due.remove(&(look.due, adapter));
        Some(look)
    }
}

impl Manager {
    /// There will be a connection with this adapter.
    pub(super) fn look_for(&mut self, now: Time, address: LinkAddress, guid: u64) {
        let adapter = (address, guid);
        let is_full = self.looks.len() >= self.options.max_connections;
        if self.options.look_every.is_none()
            || is_full
            || self.looks.adapters.contains_key(&adapter)
        {
            return;
        }
        let look = Look {
            due: now.after(FIRST),
            transaction_id: 0,
            unanswered: 0,
            has_answered: always_answers(guid),
        };
        self.looks.set(adapter, look);
    }

    /// Time has passed.
    pub(super) fn look(&mut self, now: Time) {
        while let Some(&(due, adapter)) = self.looks.due.first()
            && due <= now
        {
            if let Some(look) = self.looks.remove(adapter) {
                self.look_at(now, adapter, look);
            }
        }
    }

    fn look_at(&mut self, now: Time, adapter: Adapter, look: Look) {
        let anew = |due| Look {
            due,
            unanswered: 0,
            ..look
        };
        let is_there = |id: &u32| self.state(CommId(*id)) == Some(State::Established);
        let there = self.with(adapter).find(is_there);
        let is_over = self.with(adapter).next().is_none();
        let next = match there {
            None if is_over => return,
            // None of them is there yet, or none is there any more.
            None => anew(now.after(FIRST)),
            Some(id) if look.unanswered < MOST => self.ask(now, id, look),
            Some(_) if look.has_answered => {
                self.lose(now, adapter);
                anew(now.after(FIRST))
            }
            Some(_) => anew(now.after(self.options.patience)),
        };
        self.looks.set(adapter, next);
    }

    /// The connections with an adapter, in any state.
    fn with(&self, (address, guid): Adapter) -> impl Iterator<Item = u32> + use<'_> {
        let all = (address, guid, 0)..=(address, guid, u32::MAX);
        self.by_request.range(all).map(|(_, id)| *id)
    }

    // As if one of their connections had another number here: so that the same process is asked, and none is ended.
    fn ask(&mut self, now: Time, id: u32, look: Look) -> Look {
        if self.looks.id == 0 {
            self.looks.id = self.free_id().unwrap_or_default();
        }
        let own = self.looks.id;
        let transaction_id = match look.unanswered {
            0 => self.transaction(own),
            _ => look.transaction_id,
        };
        if let Some(of) = self.connections.get(&id) {
            let question = Dreq {
                local_comm_id: own,
                remote_comm_id: of.remote_comm_id,
                remote_qpn: of.remote_qpn.value(),
                private_data: Octets::padded(&named(of.remote_guid)).unwrap_or_default(),
                ..Dreq::default()
            };
            let to = of.path.address;
            self.send_to(to, transaction_id, question.into());
        }
        Look {
            due: now.after(AGAIN),
            transaction_id,
            unanswered: look.unanswered + 1,
            ..look
        }
    }

    /// Whether somebody asks for another adapter, which was here before: then it is gone.
    pub(super) fn is_for_another(&self, question: &Dreq) -> bool {
        let said = &question.private_data.0;
        said.starts_with(&MARK) && !said.starts_with(&named(self.options.ca_guid))
    }

    /// Whether this confirms that somebody is there, who is noted then.
    pub(super) fn has_found(
        &mut self,
        now: Time,
        from: LinkAddress,
        transaction: u64,
        drep: &Drep,
    ) -> bool {
        if self.looks.id == 0 || drep.remote_comm_id != self.looks.id {
            return false;
        }
        let all = (from, 0)..=(from, u64::MAX);
        let is_asked = |look: &Look| look.unanswered > 0 && look.transaction_id == transaction;
        let found = self
            .looks
            .adapters
            .range(all)
            .find(|(_, look)| is_asked(look));
        if let Some((&adapter, &look)) = found {
            let every = self.options.look_every.unwrap_or(self.options.patience);
            let found = Look {
                due: now.after(every),
                unanswered: 0,
                has_answered: true,
                ..look
            };
            self.looks.set(adapter, found);
        }
        true
    }

    // One that was only stopped is told, for when it goes on.
    fn lose(&mut self, now: Time, adapter: Adapter) {
        for id in self.with(adapter).collect::<Vec<_>>() {
            let of = self.connections.get(&id);
            let Some(of) = of.filter(|of| of.state == State::Established) else {
                continue;
            };
            let end = Dreq {
                local_comm_id: id,
                remote_comm_id: of.remote_comm_id,
                remote_qpn: of.remote_qpn.value(),
                ..Dreq::default()
            };
            self.send(id, end.into());
            self.linger(now, id);
            self.tell(Event::PeerLost { id: CommId(id) });
        }
    }
}

/// The number of an adapter of this library, by which others know that it answers.
pub(super) const fn guid(number: u32) -> u64 {
    OURS | number as u64
}

const fn always_answers(guid: u64) -> bool {
    guid >> u32::BITS == OURS >> u32::BITS
}

/// What a question names the adapter by that it is for. Other connection managers take no notice of it.
fn named(guid: u64) -> [u8; 16] {
    let mut named = [0; 16];
    named[..8].copy_from_slice(&MARK);
    named[8..].copy_from_slice(&guid.to_be_bytes());
    named
}

const MARK: [u8; 8] = *b"polyverb";
/// Begins an EUI-64 that no manufacturer gave: that bit, and "pvb".
const OURS: u64 = 0x0270_7662_0000_0000;
/// When who has begun to connect is looked for.
const FIRST: Duration = Duration::from_millis(500);
/// When one that has not answered is asked again, and how often.
const AGAIN: Duration = Duration::from_millis(1500);
const MOST: u32 = 7;
