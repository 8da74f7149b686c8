//! This transport's part of the [express path](polyverbs_engine::express).

use polyverbs_engine::express::Express;
use verbs_api::Access;

use crate::driver::InfiniBand;
use crate::header::packets;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::{Qp, Receiving};

impl Express for InfiniBand {
    const READ_SINK: Access = Access::LOCAL_WRITE;

    #[inline]
    fn is_ready(qp: &Qp, sending: &Requester, responder: &Receiving) -> bool {
        responder.driver.is_between_messages(sending.next_psn)
            && responder.driver.epoch == sending.peer_epoch
            && qp.device.is_port_active()
            && responder.device.is_port_active()
    }

    #[inline]
    fn permits(receiving: &Responder) -> Access {
        receiving.access
    }

    // The peer refuses reads and atomics if it permits none; the limit of the requester is at least 1.
    #[inline]
    fn has_read_budget(_sending: &Requester, receiving: &Responder) -> bool {
        receiving.rest.max_dest_rd_atomic != 0
    }

    #[inline]
    fn step(sending: &mut Requester, receiving: &mut Responder, length: u32) {
        let taken = packets(u64::from(length), sending.mtu_shift);
        let next = sending.next_psn.plus(taken);
        sending.next_psn = next;
        receiving.expected = next;
    }
}
