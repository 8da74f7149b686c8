//! The mandatory parts of the contract, which are the same in each form of the driver.

use polyverbs_engine::driver::{Change, Driver};
use polyverbs_engine::qp::{Requester, Responder};
use verbs_api::qp::QpState;

use crate::{Common, Header, Receiving, Sending};

/// A form of the driver.
pub trait Form:
    Driver<Header = Header, Requester = Sending, Responder = Receiving> + From<Common>
{
    /// What every form holds.
    fn common(&self) -> &Common;
}

/// Makes a form of the driver, which overrides these defaults of the contract. The overrides can name whatever the mandatory
/// parts name: `Cx`, `Qp`, `Requester`, …
#[macro_export]
macro_rules! form {
    ($(#[$about:meta])* $name:ident: $($override:item)*) => {
        $(#[$about])*
        pub struct $name($crate::Common);

        impl From<$crate::Common> for $name {
            fn from(common: $crate::Common) -> Self {
                Self(common)
            }
        }

        impl $crate::Form for $name {
            fn common(&self) -> &$crate::Common {
                &self.0
            }
        }

        const _: () = {
            use $crate::polyverbs_engine::device::{Cx, Device};
            use $crate::polyverbs_engine::driver::{Change, Driver, Executed};
            use $crate::polyverbs_engine::link::Frame;
            use $crate::polyverbs_engine::qp::{Qp, Requester, Responder};
            use $crate::polyverbs_engine::request::Request;
            use $crate::polyverbs_engine::time::Time;
            use $crate::verbs_api::capability::DeviceAttributes;
            use $crate::verbs_api::ids::LinkAddress;
            use $crate::{driver, frames, requester};

            impl Driver for $name {
                type Header = $crate::Header;
                type Requester = $crate::Sending;
                type Responder = $crate::Receiving;

                fn attributes(&self) -> DeviceAttributes {
                    self.0.attributes.clone()
                }

                fn link_address(&self) -> LinkAddress {
                    self.0.address
                }

                fn execute(
                    qp: &Qp<Self>,
                    half: &mut Requester<Self>,
                    request: &Request<'_>,
                    cx: &mut Cx<'_, Self>,
                ) -> Executed {
                    requester::execute(qp, half, request, cx)
                }

                fn pump(qp: &Qp<Self>, half: &mut Requester<Self>, cx: &mut Cx<'_, Self>) {
                    requester::pump(qp, half, cx);
                }

                fn handle_timeout(
                    qp: &Qp<Self>,
                    half: &mut Requester<Self>,
                    now: Time,
                    cx: &mut Cx<'_, Self>,
                ) {
                    requester::handle_timeout(qp, half, now, cx);
                }

                fn handle_frame(
                    device: &Device<Self>,
                    frame: Frame<'_, $crate::Header>,
                    cx: &mut Cx<'_, Self>,
                ) {
                    frames::handle(device, frame, cx);
                }

                fn modify(
                    _: &Qp<Self>,
                    sending: &mut Requester<Self>,
                    receiving: &mut Responder<Self>,
                    change: &Change<'_>,
                    _: &mut Cx<'_, Self>,
                ) {
                    driver::modify(sending, receiving, change);
                }

                $($override)*
            }
        };
    };
}

/// Takes over the attributes of a modify.
pub fn modify<D: Form>(
    sending: &mut Requester<D>,
    receiving: &mut Responder<D>,
    change: &Change<'_>,
) {
    if change.given.ah_attr.is_some() {
        sending.direct = None;
    }
    sending.driver.attributes = *change.all;
    receiving.driver.attributes = *change.all;
    if change.to == QpState::Rts && change.from == QpState::Rtr {
        sending.driver.begin();
    }
}
