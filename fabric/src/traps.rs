//! Traps that nodes of a subnet repeat until the subnet manager represses them (IBTA 14.2.5.1, 14.3.4).

use std::collections::VecDeque;
use std::time::Duration;

use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::mad::notice::{
    KeyViolation, LinkErrors, LinkState, LocalChange, MKeyViolation, Notice, trap,
};
use polyverbs_wire::mad::smp::{self, DIRECTED_CLASS, LID_CLASS, PERMISSIVE_LID, PortInfo, Smp};
use polyverbs_wire::mad::{self, Attribute as _, MAD_LEN, MadHeader, method};

use crate::topology::{End, NodeKind};

/// A trap that was not repressed yet.
#[derive(Clone, Debug)]
struct Trap {
    /// The port with the LID of its sender.
    at: End,
    number: u16,
    transaction: u64,
    mad: [u8; MAD_LEN],
    due: Duration,
}

/// The traps of all nodes. A node repeats at most one of each number.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    pending: VecDeque<Trap>,
    last_transaction: u64,
}

impl Traps {
    /// A port of a switch went up or down. `info` is that of its port 0.
    pub(crate) fn link_state(&mut self, at: End, info: &PortInfo) {
        let details = Octets::holding(&LinkState { lid: info.lid });
        let notice = notice(NodeKind::Switch, URGENT, trap::LINK_STATE, info, details);
        self.begin(at, &notice, info);
    }

    /// The capability mask of a port has changed.
    pub(crate) fn capability_mask(&mut self, at: End, kind: NodeKind, info: &PortInfo) {
        const INFORMATIONAL: u8 = 4;
        let details = Octets::holding(&LocalChange {
            lid: info.lid,
            capability_mask: info.capability_mask,
            ..LocalChange::default()
        });
        let notice = notice(kind, INFORMATIONAL, trap::LOCAL_CHANGE, info, details);
        self.begin(at, &notice, info);
    }

    /// A port has counted too many errors of its link: `number` is [`trap::LOCAL_LINK_INTEGRITY`], [`trap::BUFFER_OVERRUN`] or
    /// [`trap::FLOW_CONTROL`]. `own` is the port with the LID of the node, whose `info` it is.
    pub(crate) fn link_errors(
        &mut self,
        number: u16,
        own: End,
        port_num: u8,
        kind: NodeKind,
        info: &PortInfo,
    ) {
        let details = Octets::holding(&LinkErrors {
            lid: info.lid,
            port_num,
            ..LinkErrors::default()
        });
        let notice = notice(kind, URGENT, number, info, details);
        self.begin(own, &notice, info);
    }

    /// A port has refused an SMP from this LID for its M_Key.
    pub(crate) fn m_key(
        &mut self,
        at: End,
        kind: NodeKind,
        info: &PortInfo,
        source: u16,
        mad: &[u8; MAD_LEN],
    ) {
        let Ok(decoded) = mad::decode(mad) else {
            return;
        };
        let header = MadHeader::of(decoded.header);
        let smp: Smp = Octets(*decoded.data).header();
        let is_directed = header.management_class == DIRECTED_CLASS;
        let [pointer, _] = header.class_specific.to_be_bytes();
        let hop_count = if is_directed { pointer.min(63) } else { 0 };
        let mut return_path = Octets::<30>::default();
        // The first entry of the path is unused.
        for (place, port) in return_path.0.iter_mut().zip(&smp.return_path.0[1..]) {
            *place = *port;
        }
        let details = Octets::holding(&MKeyViolation {
            lid: source,
            dr_slid: if is_directed { smp.dr_slid } else { 0 },
            method: header.method,
            attribute_id: header.attribute_id,
            attribute_modifier: header.attribute_modifier,
            m_key: smp.m_key,
            is_directed,
            is_truncated: hop_count > 30,
            hop_count,
            return_path,
            ..MKeyViolation::default()
        });
        let notice = notice(kind, SECURITY, trap::M_KEY, info, details);
        self.begin(at, &notice, info);
    }

    /// Queue pair 1 of a port has dropped a packet for its Q_Key.
    pub(crate) fn q_key(
        &mut self,
        at: End,
        kind: NodeKind,
        info: &PortInfo,
        violation: &KeyViolation,
    ) {
        let details = Octets::holding(violation);
        let notice = notice(kind, SECURITY, trap::Q_KEY, info, details);
        self.begin(at, &notice, info);
    }

    fn begin(&mut self, at: End, notice: &Notice, info: &PortInfo) {
        // Without both LIDs no trap would arrive, and a subnet manager that comes looks at everything.
        if info.lid == 0 || info.sm_lid == 0 {
            return;
        }
        self.pending
            .retain(|it| (it.at, it.number) != (at, notice.trap_number));
        self.last_transaction += 1;
        let header = MadHeader {
            base_version: 1,
            management_class: LID_CLASS,
            class_version: smp::CLASS_VERSION,
            method: method::TRAP,
            transaction_id: self.last_transaction,
            attribute_id: Notice::ID,
            ..MadHeader::default()
        };
        let smp = Smp {
            m_key: info.m_key,
            dr_slid: PERMISSIVE_LID,
            dr_dlid: PERMISSIVE_LID,
            data: Octets::holding(notice),
            ..Smp::default()
        };
        self.pending.push_back(Trap {
            at,
            number: notice.trap_number,
            transaction: self.last_transaction,
            mad: mad::encode(&header, &smp.to_view().0),
            due: Duration::ZERO,
        });
    }

    /// Ends a trap, if this MAD to its node represses it.
    pub(crate) fn repress(&mut self, at: End, mad: &[u8; MAD_LEN]) {
        let Ok(decoded) = mad::decode(mad) else {
            return;
        };
        let header = MadHeader::of(decoded.header);
        if (header.management_class, header.method) == (LID_CLASS, method::TRAP_REPRESS) {
            self.pending
                .retain(|it| it.at != at || it.transaction != header.transaction_id);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.pending.iter().map(|it| it.due).min()
    }

    /// Returns the traps to be sent now, and plans their repetition.
    pub(crate) fn due(
        &mut self,
        now: Duration,
        period: impl Fn(End) -> Duration,
    ) -> Vec<(End, [u8; MAD_LEN])> {
        let due = self.pending.iter_mut().filter(|it| it.due <= now);
        due.map(|it| {
            it.due = now + period(it.at);
            (it.at, it.mad)
        })
        .collect()
    }
}

const URGENT: u8 = 1;
const SECURITY: u8 = 2;

fn notice(
    kind: NodeKind,
    notice_type: u8,
    trap_number: u16,
    info: &PortInfo,
    details: Octets<54>,
) -> Notice {
    Notice {
        is_generic: true,
        notice_type,
        producer_type: match kind {
            NodeKind::Adapter => 1,
            NodeKind::Switch => 2,
        },
        trap_number,
        issuer_lid: info.lid,
        details,
        ..Notice::default()
    }
}
