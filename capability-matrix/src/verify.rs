//! Runs the conformance probes of each feature on each device.

use polyverbs::probe::{Evidence, Probe, Rig, verify};
use polyverbs::{Device, capability::FeatureBits, extension::Extensions, provider::RegistryError};

use crate::described::described;
use crate::matrix::{Matrix, Proof, Section};

/// A probe that is about to run, for a progress report.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step<'a> {
    /// How many of all probes are done, including those that cannot run on their device.
    pub done: usize,
    /// The number of all probes, where each counts once for each device.
    pub total: usize,
    /// The name of the device that is probed.
    pub device: &'a str,
    /// The probe that is about to run.
    pub probe: &'a Probe,
}

impl Matrix {
    /// Makes the matrix of these devices: their claims, and what the probes of the core and of every linked extension found
    /// about each claimed or unclaimed feature.
    ///
    /// Each probe opens its device twice, in real time. Where a probe checks that something does not happen, it waits fifty
    /// milliseconds, unless the device is [idle](polyverbs::provider::DeviceOps::is_idle). `told` is called before each
    /// probe.
    ///
    /// # Errors
    /// Two linked extensions contradict each other, for example by having the same name.
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

    /// Makes the matrix of these devices: their claims, and what the probes of the core and of `extensions` found about
    /// each feature. `rig` is called for every probe, to open both ends of a connection for it: with every feature that the
    /// device claims, and with the bits of `beyond`, which it may not claim.
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
            // The rows of this section were made from the same features, in the same order.
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
