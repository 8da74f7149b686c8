//! What this transport says of requests that go the [short way](polyverbs_engine::express).

use polyverbs_engine::express::Express;
use verbs_api::Access;

use crate::driver::Iwarp;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::{Qp, Receiving};

impl Express for Iwarp {
    // What a peer may write: see `requester::sink_spans`.
    const READ_SINK: Access = Access::REMOTE_WRITE;

    #[inline]
    fn is_ready(qp: &Qp, sending: &Requester, responder: &Receiving) -> bool {
        let epoch = sending.peer.as_ref().map(|peer| peer.end.epoch);
        epoch == Some(responder.driver.epoch)
            && responder.takes_express()
            && responder.current.is_none()
            && qp.device.is_port_active()
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
