//! The extensions and providers that a program finds registered. This module is in each form of the program; it names no extension
//! and no provider, so that those are found which the rest of the program names.

use std::fmt;

use verbs_api::{
    Access, Device, Memory, Operations, PageList, QpOptions, RKey, Registry, Requirements,
    capability::feature_names, connect_pair, wr,
};

/// The registered extensions, providers and devices.
pub(crate) struct Report {
    /// Names of the extensions.
    pub(crate) extensions: Vec<&'static str>,
    /// Names of the providers.
    pub(crate) providers: Vec<&'static str>,
    /// Name of each device, the features of the core that it claims, and the outcome of a fast-register.
    pub(crate) devices: Vec<(String, Vec<&'static str>, String)>,
}

impl Report {
    /// Reports the content of `registry`.
    pub(crate) fn of(registry: &Registry) -> Self {
        let extensions = registry.extensions().iter();
        let devices = registry.devices().map(|device| {
            let attributes = device.attributes();
            let names = feature_names(attributes.features);
            let outcome = fast_register(device).err();
            let outcome = outcome.map_or("done".into(), |error| error.to_string());
            (attributes.name, names, outcome)
        });
        Self {
            extensions: extensions.map(|extension| extension.name()).collect(),
            providers: registry.providers().collect(),
            devices: devices.collect(),
        }
    }
}

/// Registers memory by a work request, with every feature granted that the device claims.
fn fast_register(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
    let everything = Requirements::everything_of(&device.attributes());
    let context = device.open(&everything)?;
    let pd = context.alloc_pd().wait()?;
    let cq = context.create_cq(8).wait()?;
    let able = QpOptions::rc(&cq).operations(Operations::FAST_REGISTER);
    let able = pd.create_qp(able).wait();
    let refusal = able.as_ref().err().map(ToString::to_string);
    let plain = || pd.create_qp(QpOptions::rc(&cq)).wait();
    let (near, far) = (able.or_else(|_| plain())?, plain()?);
    connect_pair(&near, &far, Access::empty()).wait()?;
    let memory = Memory::zeroed(4096)?;
    let pages = PageList::map(&[(&memory).into()], 4096, 1)?.list;
    let allocated = pd.alloc_key(1).wait();
    let request = match &allocated {
        Ok(key) => wr::FastRegister::new(key, &pages),
        // The request is refused because of its operation, before any device looks for the key.
        Err(_) => wr::FastRegister::new(RKey::new(0x100), &pages),
    };
    let posted = near.post_one(request.signaled(1));
    // Without the feature there are two refusals: of a queue pair with the operation, and of the request
    // on any other queue pair.
    posted.map_err(|refused| format!("{}; {refused}", refusal.unwrap_or_default()))?;
    let done = cq.next().wait()?;
    match done.status.is_success() {
        true => Ok(()),
        false => Err(format!("{:?}", done.status).into()),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "extensions: {}", self.extensions.join(" "))?;
        writeln!(f, "providers: {}", self.providers.join(" "))?;
        for (name, features, fast_register) in &self.devices {
            writeln!(f, "{name} claims: {}", features.join(" "))?;
            writeln!(f, "{name} fast-register: {fast_register}")?;
        }
        Ok(())
    }
}
