//! The probes of each feature, run on each device.

use polyverbs::probe::{Evidence, Probe, Rig, verify};
use polyverbs::{Device, capability::FeatureBits, extension::Extensions, provider::RegistryError};

use crate::described::described;
use crate::matrix::{Matrix, Proof, Section};

/// A probe that is about to be run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step<'a> {
    /// How many of all probes are done, including those that cannot be run on their device.
    pub done: usize,
    /// The number of all probes: each counts once for each device.
    pub total: usize,
    /// The device.
    pub device: &'a str,
    /// The probe.
    pub probe: &'a Probe,
}

impl Matrix {
    /// The claims of these devices, and the findings of the probes of every linked extension and of the core about each claim.
    ///
    /// Each probe opens its device twice, in real time. Where a probe checks that something does not happen, it waits fifty
    /// milliseconds, unless the device is [idle](polyverbs::provider::DeviceOps::is_idle). `told` is called before each probe.
    ///
    /// # Errors
    /// The linked extensions do not fit together.
    pub fn verified(
        devices: &[Device],
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<Self, RegistryError> {
        let extensions = Extensions::linked()?;
        Ok(Self::verified_with(
            devices,
            &extensions,
            Rig::of_device,
            told,
        ))
    }

    /// The claims of these devices, and the findings of the probes of `extensions` and of the core about each claim. Every
    /// probe gets a rig of its own: `rig` opens both ends for every feature that the device claims, and for the bits of
    /// `beyond`.
    ///
    /// [`Rig::of_device`] opens the device twice, in real time. A device in a simulation is probed by the clock of the
    /// simulation:
    ///
    /// ```
    /// # use capability_matrix::Matrix;
    /// # use polyverbs::{Device, capability::FeatureBits, extension::Extensions, probe::{Pace, Rig}};
    /// # use std::sync::Arc;
    /// fn simulated(devices: &[Device], simulation: &Arc<impl Pace + 'static>) -> Matrix {
    ///     let extensions = Extensions::linked().expect("extensions that fit together");
    ///     let rig = |device: &Device, beyond: &[FeatureBits]| {
    ///         Rig::of_device_in(device, beyond, Arc::clone(simulation))
    ///     };
    ///     Matrix::verified_with(devices, &extensions, rig, &mut |_| ())
    /// }
    /// ```
    pub fn verified_with(
        devices: &[Device],
        extensions: &Extensions,
        rig: impl Fn(&Device, &[FeatureBits]) -> Result<Rig, Evidence>,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Self {
        let attributes: Vec<_> = devices.iter().map(Device::attributes).collect();
        let features = described(&attributes, extensions);
        let mut matrix = Self::of_attributes(&attributes, extensions);
        let of_each: usize = features.iter().map(|feature| feature.probes.len()).sum();
        let total = of_each * devices.len();
        for (index, (device, attributes)) in devices.iter().zip(&attributes).enumerate() {
            let mut done = index * of_each;
            let rows = matrix.rows.iter_mut();
            // The rows of this section are made of the features, in their order.
            let rows = rows.filter(|row| row.section == Section::Features);
            for (feature, row) in features.iter().zip(rows) {
                let rig = |beyond: &[_]| rig(device, beyond);
                let mut at = done;
                let found = verify(
                    attributes,
                    &feature.info,
                    &feature.probes,
                    &rig,
                    &mut |probe| {
                        told(Step {
                            done: at,
                            total,
                            device: device.name(),
                            probe,
                        });
                        at += 1;
                    },
                );
                done += feature.probes.len();
                row.cells[index].proof = Proof::Probed(Box::new(found));
            }
        }
        matrix
    }
}
