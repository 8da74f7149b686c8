//! Operations that a queue pair carries out at its own device: fast-register, invalidate, bind, and those of extensions.

use verbs_api::extension::ExtensionOperation;
use verbs_api::wr::SendFlags;
use verbs_api::{Access, Features, WcStatus};

use super::{Qp, Requester};
use crate::device::Cx;
use crate::device::driver::Driver;
use crate::fault::Fault;
use crate::key_table::Binding;
use crate::operation::{self, Aligned, Octets, TargetMemory};
use crate::request::{Op, Request};

impl<D: Driver> Qp<D> {
    /// Carries out a fast-register, an invalidate or a bind.
    pub fn local_operation(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &Cx<'_, D>,
    ) -> WcStatus {
        let result = match request.op {
            Op::Extension(operation) => self.extension_operation(request, operation, cx),
            _ => self.manage_memory(requester, request),
        };
        let status = match result {
            Ok(()) => WcStatus::Success,
            Err(_) if matches!(request.op, Op::Bind { .. }) => WcStatus::MwBindErr,
            // A failed memory management operation has no status of its own in verbs: docs/decisions.md, 4.
            Err(_) => WcStatus::LocQpOpErr,
        };
        if self.cold.is_traced {
            self.trace(request, status);
        }
        status
    }

    fn manage_memory(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
    ) -> Result<(), Fault> {
        let keys = self.device.memory_management().ok_or(Fault::Operation)?;
        let mut used = Features::empty();
        match request.op {
            Op::FastRegister {
                key,
                access,
                iova,
                length,
            } => {
                let pages = request.pages.ok_or(Fault::Operation)?;
                used.set(Features::BLOCK_LIST, pages.is_block_list());
                used.set(Features::SG_GAPS, pages.has_gaps());
                used.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
                self.check_claimed(used)?;
                keys.fast_register(key.value(), self.pd, pages, access, iova, length)
            }
            Op::LocalInvalidate(key) => {
                let fenced = request.flags.contains(SendFlags::FENCE);
                used.set(Features::LOCAL_INVALIDATE_FENCE, fenced);
                self.check_claimed(used)?;
                keys.invalidate_local(key.value(), self.pd, self.qpn)
            }
            Op::Bind {
                window,
                region,
                addr,
                length,
                access,
            } => {
                used.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
                self.check_claimed(used)?;
                let binding = Binding {
                    region: region.value(),
                    addr,
                    length,
                    access,
                    pd: self.pd,
                    qpn: self.qpn,
                };
                keys.bind(window.value(), &binding)?;
                requester.note_window(window.value());
                Ok(())
            }
            _ => Err(Fault::Operation),
        }
    }

    // Carries out an operation at its poster's device: on that device's memory, to which it has all rights.
    fn extension_operation(
        &self,
        request: &Request<'_>,
        operation: &'static ExtensionOperation,
        cx: &Cx<'_, D>,
    ) -> Result<(), Fault> {
        let emulation = self.device.operation(operation);
        let emulation = emulation.ok_or(Fault::UnknownOperation)?;
        let message = self.gather_message(request, operation, cx)?;
        let sink = self.gather_answer(request, operation, cx)?;
        let users = (self.pd, self.qpn);
        let keys = self.device.keys();
        let memory = TargetMemory::new(keys, cx.pin, users, Access::REMOTE, Aligned::Memory);
        let mut answer = Octets::new();
        operation::respond(emulation, &message, request.held, &memory, &mut answer)?;
        operation::place(emulation, answer, &sink);
        Ok(())
    }

    // A program cannot use a feature that it was not granted; and a device refuses features that it does not report,
    // whichever program asks.
    fn check_claimed(&self, used: Features) -> Result<(), Fault> {
        if self.device.features().contains(used) {
            Ok(())
        } else {
            Err(Fault::Operation)
        }
    }
}
