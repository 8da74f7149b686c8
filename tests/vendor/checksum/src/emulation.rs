//! Checksums on software devices.

use polyverbs_engine::emulation::{Emulation, EmulationPart, Gains};
use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{Arrived, Octets, OperationEmulation, TargetMemory};
use verbs_api::{capability::DeviceAttributes, extension::ExtensionOperation};
use zerocopy::FromBytes;

use crate::request::{CHECKSUM, Range};
use crate::{Checksums, MAX_RANGE};

/// Bytes of the longest range: no other request of the queue pair is served meanwhile.
const LONGEST: u64 = 1 << 20;

/// The part of the extension that software devices need.
pub(crate) static EMULATION: EmulationPart = EmulationPart(&InSoftware);

struct InSoftware;

impl Emulation for InSoftware {
    fn gains(&self, _: &DeviceAttributes) -> Gains {
        Gains {
            own: Checksums::RANGE.bits(),
            limits: vec![(MAX_RANGE.name, LONGEST)],
            ..Gains::default()
        }
    }

    fn operations(&self) -> &'static [&'static dyn OperationEmulation] {
        &[&InSoftware]
    }
}

impl OperationEmulation for InSoftware {
    fn operation(&self) -> &'static ExtensionOperation {
        &CHECKSUM
    }

    fn respond(
        &self,
        request: &Arrived<'_>,
        memory: &TargetMemory<'_>,
        answer: &mut Octets,
    ) -> Result<(), Fault> {
        let range = Range::ref_from_bytes(request.body).map_err(|_| Fault::UnknownOperation)?;
        if range.length() > LONGEST {
            return Err(Fault::UnknownOperation);
        }
        let mut checksum = 0;
        memory.read(range.remote(), range.length(), |piece| {
            checksum = crc32c::crc32c_append(checksum, piece);
        })?;
        answer.extend_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    fn complete(&self, answer: &mut Octets) {
        if let Ok(octets) = <[u8; 4]>::try_from(&answer[..]) {
            answer.copy_from_slice(&u32::from_be_bytes(octets).to_ne_bytes());
        }
    }
}
