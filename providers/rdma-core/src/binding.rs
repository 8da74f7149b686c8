//! Bindings: the parts of extensions that real devices need.
//!
//! A [`Binding`] is the [part](verbs_api::extension::Part) of an extension for this provider, as an emulation is the part for
//! software devices. It says which of the extension's features a device has. An extension without a binding does not exist on
//! real devices: no device claims it, and each refuses its operations by name.
//!
//! ```
//! use rdma_core_provider::binding::{Binding, BindingPart, Described, Gains};
//! use verbs_api::extension::ExtensionDescriptor;
//!
//! struct OnAcme;
//!
//! impl Binding for OnAcme {
//!     fn gains(&self, device: &Described<'_>) -> Gains {
//!         let has_it = device.vendor_id == 0x00_ac_4e && device.vendor_part_id >= 12;
//!         Gains {
//!             own: u64::from(has_it),
//!             ..Gains::default()
//!         }
//!     }
//! }
//!
//! static BINDING: BindingPart = BindingPart(&OnAcme);
//! pub static EXTENSION: ExtensionDescriptor =
//!     ExtensionDescriptor::new("acme", "an example").parts(&[&BINDING]);
//! ```

use std::ffi::c_void;

use polyverbs_abi::{IbvContext, IbvDeviceAttr};
use verbs_api::VerbError;
use verbs_api::capability::{DeviceAttributes, Features};
use verbs_api::extension::{ExtensionDescriptor, Extensions, Part};

use crate::verbs::Live;

/// The family of parts that are bindings to devices of `libibverbs`.
pub const FAMILY: &str = "rdma-core-provider";

/// The implementation of an extension on real devices.
pub trait Binding: Send + Sync + 'static {
    /// Returns the features of the extension that a device has. Called once for each device, while the provider has it open
    /// to inspect it.
    fn gains(&self, device: &Described<'_>) -> Gains;
}

/// The features and limits that a device has through an extension.
#[derive(Clone, Debug, Default)]
pub struct Gains {
    /// Feature bits of the extension's own set that the device has.
    pub own: u64,
    /// Names and values of the extension's limits.
    pub limits: Vec<(&'static str, u64)>,
}

/// A device of `libibverbs`, described for a [`Binding`].
#[non_exhaustive]
pub struct Described<'d> {
    /// The attributes that the device claims without extensions.
    pub attributes: &'d DeviceAttributes,
    /// The vendor's ID, from `ibv_query_device`.
    pub vendor_id: u32,
    /// The vendor's number of the device model, from `ibv_query_device`.
    pub vendor_part_id: u32,
    /// The capability flags, from `ibv_query_device`.
    pub device_cap_flags: u32,
    /// Whether the device supports XRC ([`Xrcd`](crate::xrc::Xrcd)): it reports so, and the library has the verbs for it.
    pub has_xrc: bool,
    listed: &'d Live<IbvContext>,
}

impl Described<'_> {
    /// Calls `look` with the `ibv_context*` of the device, for instance to use a driver's direct verbs. The pointer is valid
    /// until `look` returns, and `look` must not close the device.
    ///
    /// # Errors
    /// The device was removed.
    pub fn with_context<R>(&self, look: impl FnOnce(*mut c_void) -> R) -> Result<R, VerbError> {
        self.listed.with(|at| look(at.cast()))
    }
}

/// Makes a binding a part of an extension's descriptor.
pub struct BindingPart(pub &'static dyn Binding);

impl Part for BindingPart {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn check(&self, extension: &ExtensionDescriptor) -> Result<(), String> {
        match extension.feature_set() {
            Some(_) => Ok(()),
            None => Err("a set of features of its own".into()),
        }
    }
}

/// The registered extensions that have a binding, each with it.
pub(crate) struct Bindings(Vec<(&'static ExtensionDescriptor, &'static BindingPart)>);

impl Bindings {
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, VerbError> {
        let parts = extensions.parts(FAMILY);
        let parts = parts.map_err(|error| VerbError::argument("extensions", error))?;
        Ok(Self(parts))
    }

    /// Adds the features and limits that a device has through extensions to its claims.
    pub(crate) fn add_to(
        &self,
        attributes: &mut DeviceAttributes,
        said: &IbvDeviceAttr,
        has_xrc: bool,
        listed: &Live<IbvContext>,
    ) -> Result<(), VerbError> {
        let device = Described {
            attributes,
            vendor_id: said.vendor_id,
            vendor_part_id: said.vendor_part_id,
            device_cap_flags: said.device_cap_flags,
            has_xrc,
            listed,
        };
        let claimed = self.0.iter().map(|(extension, binding)| {
            let Gains { own, limits } = binding.0.gains(&device);
            let claimed = extension.claimed(Features::empty(), own, &limits);
            claimed.map_err(|reason| VerbError::argument("extensions", reason))
        });
        let claimed: Vec<_> = claimed.collect::<Result<_, _>>()?;
        attributes.extensions.extend(claimed.into_iter().flatten());
        Ok(())
    }
}
