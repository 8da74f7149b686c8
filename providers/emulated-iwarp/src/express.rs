//! This transport's rules for requests that take the [short path](polyverbs_engine::express).

use polyverbs_engine::express::Express;
use verbs_api::Access;

use crate::driver::Iwarp;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::{Qp, Receiving};

impl Express for Iwarp {
    // A peer must be able to write the sink: see `requester::sink_spans`.
    const READ_SINK: Access = Access::REMOTE_WRITE;

    #[inline]
    fn is_ready(qp: &Qp, sending: &Requester, responder: &Receiving) -> bool {
        let epoch = sending.peer.as_ref().map(|peer| peer.end.epoch);
        epoch == Some(responder.driver.epoch)
            && responder.takes_express()
            && responder.current.is_none()
            && qp.device.is_port_active()
            && responder.device.is_port_active()
    }

    #[inline]
    fn permits(receiving: &Responder) -> Access {
        receiving.access
    }

    #[inline]
    fn has_read_budget(sending: &Requester, receiving: &Responder) -> bool {
        sending.ord != 0 && receiving.ird != 0
    }
}
