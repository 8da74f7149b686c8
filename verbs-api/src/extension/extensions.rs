//! A set of extensions: each one is complete, and none contradicts another.

use std::any::Any;
use std::collections::BTreeMap;

use super::descriptor::CORE;
use super::{ExtensionDescriptor, Part};
use crate::error::RegistryError;
use crate::operation::ExtensionOperation;
use crate::version::CONTRACT_VERSION;

/// An extension that registers itself where its crate is linked and named: see [`link_extension`](crate::extension::link_extension).
pub struct LinkedExtension(pub &'static ExtensionDescriptor);

inventory::collect!(LinkedExtension);

/// Registers a `static` extension in every program that links the extension's crate and names it.
#[doc(hidden)]
#[macro_export]
macro_rules! __link_extension {
    ($extension:path) => {
        $crate::inventory::submit! { $crate::extension::LinkedExtension(&$extension) }
    };
}

/// A set of extensions, sorted by name, which a provider makes its devices with.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    all: BTreeMap<&'static str, &'static ExtensionDescriptor>,
}

impl Extensions {
    /// Creates an empty set of extensions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns every extension that is linked into the program and named by something.
    ///
    /// # Errors
    /// Why the first extension that could not be added was refused.
    pub fn linked() -> Result<Self, RegistryError> {
        let mut all: Vec<_> = inventory::iter::<LinkedExtension>
            .into_iter()
            .map(|linked| linked.0)
            .collect();
        all.sort_by_key(|extension| extension.name());
        let mut extensions = Self::new();
        for extension in all {
            extensions.add(extension)?;
        }
        Ok(extensions)
    }

    /// Adds an extension, as a whole or not at all. Adding the same descriptor again changes nothing.
    ///
    /// # Errors
    /// It was built for another contract version, lacks a mandatory part, or claims a name, feature set or opcode of
    /// another extension.
    pub fn add(&mut self, extension: &'static ExtensionDescriptor) -> Result<(), RegistryError> {
        let (name, built_for) = (extension.name(), extension.contract_version());
        if built_for != CONTRACT_VERSION {
            return Err(RegistryError::ContractVersion { name, built_for });
        }
        check_complete(extension)?;
        for known in self.iter() {
            if std::ptr::eq(known, extension) {
                return Ok(());
            }
            if let Some(what) = conflict(known, extension) {
                return Err(RegistryError::DuplicateExtension {
                    what,
                    first: known.name(),
                    second: name,
                });
            }
        }
        self.all.insert(name, extension);
        Ok(())
    }

    /// Returns this set without the extension of this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.all.remove(name);
        self
    }

    /// Returns the extension of this name; `None` if it is not in the set.
    pub fn find(&self, name: &str) -> Option<&'static ExtensionDescriptor> {
        self.all.get(name).copied()
    }

    /// Iterates over the extensions, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &'static ExtensionDescriptor> + '_ {
        self.all.values().copied()
    }

    /// Returns the number of extensions in the set.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no extensions in the set.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the parts of type `P` that belong to the family, each with its extension.
    ///
    /// # Errors
    /// A part claims to be of the family but has another type: it comes from another build of the family's crate.
    pub fn parts<P: Part>(
        &self,
        family: &str,
    ) -> Result<Vec<(&'static ExtensionDescriptor, &'static P)>, RegistryError> {
        let all = self.iter().flat_map(|extension| {
            let parts = extension.all_parts().iter().copied();
            parts.map(move |part| (extension, part))
        });
        all.filter(|(_, part)| part.family() == family)
            .map(|(extension, part)| {
                let any: &'static dyn Any = part;
                let part = any.downcast_ref().ok_or(RegistryError::Incomplete {
                    extension: extension.name(),
                    missing: format!("a part built with the {family} that is in this program"),
                })?;
                Ok((extension, part))
            })
            .collect()
    }
}

fn check_complete(extension: &'static ExtensionDescriptor) -> Result<(), RegistryError> {
    let incomplete = |missing: String| RegistryError::Incomplete {
        extension: extension.name(),
        missing,
    };
    if extension.name().is_empty() {
        return Err(incomplete("a name".into()));
    }
    if extension.about().is_empty() {
        return Err(incomplete("a line that says what it is".into()));
    }
    let Some(first) = extension.all_features().first() else {
        return Err(incomplete("a feature: nothing could be asked for".into()));
    };
    let own = extension.feature_set().unwrap_or(first.set);
    for feature in extension.all_features() {
        if feature.set != CORE && feature.set != own {
            return Err(incomplete(format!(
                "one set of features: {own} and {} are two",
                feature.set
            )));
        }
        let proves = |probe: &&crate::probe::Probe| probe.proves(feature);
        if !extension.all_probes().iter().any(|probe| proves(&probe)) {
            return Err(incomplete(format!(
                "a probe that proves {}::{}",
                feature.set, feature.name
            )));
        }
    }
    check_operations(extension).map_err(incomplete)?;
    for part in extension.all_parts() {
        part.check(extension)
            .map_err(|missing| incomplete(format!("{missing} (of {})", part.family())))?;
    }
    Ok(())
}

fn check_operations(extension: &'static ExtensionDescriptor) -> Result<(), String> {
    let all = extension.all_operations();
    for (at, operation) in all.iter().enumerate() {
        let name = operation.name();
        if operation.extension() != extension.name() {
            return Err(format!(
                "operation {name}: it says that it is of {}",
                operation.extension()
            ));
        }
        let told = extension.all_features().iter();
        let feature = operation.feature();
        if !told
            .clone()
            .any(|told| (told.set, told.bits) == (feature.set, feature.bits))
        {
            return Err(format!("the feature {} that {name} takes", feature.name));
        }
        let same = |other: &&&ExtensionOperation| {
            other.number() == operation.number() || other.name() == name
        };
        if let Some(other) = all[..at].iter().find(same) {
            let number = operation.number();
            return Err(format!(
                "a name and a number for each operation: {} and {name} ({number})",
                other.name()
            ));
        }
        if operation.place().is_none() {
            return Err(format!(
                "a place for {name}: this process has no more operations"
            ));
        }
    }
    Ok(())
}

// What both claim, if anything.
fn conflict(known: &ExtensionDescriptor, new: &ExtensionDescriptor) -> Option<String> {
    if known.name() == new.name() {
        return Some(format!("the name {}", new.name()));
    }
    if known.id() == new.id() {
        return Some(format!("the number {:#010x} on the wire", new.id()));
    }
    let set = known.feature_set();
    if set.is_some() && set == new.feature_set() {
        return Some(format!("the feature set {}", set.unwrap_or_default()));
    }
    for feature in new.all_features() {
        let taken = known.all_features().iter();
        if taken
            .filter(|other| other.set == feature.set)
            .any(|other| other.bits & feature.bits != 0)
        {
            return Some(format!("the feature {}::{}", feature.set, feature.name));
        }
    }
    for opcodes in new.all_wire_opcodes() {
        let taken = known.all_wire_opcodes().iter();
        if let Some(other) = taken.clone().find(|other| other.overlaps(opcodes)) {
            let opcode = other.first.max(opcodes.first);
            return Some(format!(
                "opcode {opcode:#04x} of {}",
                opcodes.transport.name()
            ));
        }
    }
    None
}
