//! The matrix: a column for each device, and a row for each capability that a device may have.

use polyverbs::probe::{Verdict, Verified};
use polyverbs::qp::QpType;
use polyverbs::{
    Device, Limit, Operations,
    capability::{BaselineGaps, DeviceAttributes},
    extension::{Extensions, FeatureInfo},
    provider::RegistryError,
};

use crate::about::about;
use crate::described::{Described, described};
use crate::device::{DeviceReport, scope};

/// The capabilities of several devices, next to each other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Matrix {
    /// The devices. Each row has its cells in the same order.
    pub columns: Vec<Column>,
    /// The rows. Those of one section are adjacent.
    pub rows: Vec<Row>,
}

/// A column of the matrix: one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Column {
    /// The attributes that the device reports.
    pub device: DeviceReport,
}

/// The kind of capability that a row is about; a section of the rendered matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// Features, which a program can require when it opens a device, and which probes can verify.
    Features,
    /// Operations of the send queue, and the QP types that support them.
    Operations,
    /// Gaps: abilities of every other device that a device lacks.
    Gaps,
    /// Limits, such as the number of QPs.
    Limits,
}

impl Section {
    /// All sections, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Features, Self::Operations, Self::Gaps, Self::Limits];

    /// The heading of the section in the rendered matrix.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Features => "Features",
            Self::Operations => "Operations",
            Self::Gaps => "Gaps",
            Self::Limits => "Limits",
        }
    }

    /// The sentence that explains the section in the rendered matrix.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Features => {
                "What a device is or is not able to do: a program that needs it says so when it opens one."
            }
            Self::Operations => "Work requests, and the services whose queue pairs take them.",
            Self::Gaps => "What every device is expected to have and this one lacks.",
            Self::Limits => "Upper bounds, not guarantees.",
        }
    }
}

/// A capability that a device may have, with the claim of each device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The kind of capability.
    pub section: Section,
    /// The name of the extension that a feature belongs to, or `"core"`. Empty in other sections.
    pub extension: &'static str,
    /// The name of the capability in the API.
    pub name: String,
    /// A few words that explain the name.
    pub about: &'static str,
    /// The cells of the row, one for each device in the order of the columns.
    pub cells: Vec<Cell>,
}

/// What one device claims about the capability of a row, and what probes found about the claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cell {
    /// The claim of the device about the capability.
    pub claim: Claim,
    /// What the probes of the capability found; [`Proof::Untested`] if none were run.
    pub proof: Proof,
}

/// What a device claims about a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The device has the capability; in the section of gaps, it has the gap.
    Yes,
    /// The device does not have the capability; in the section of gaps, it does not have the gap.
    No,
    /// The limit of the device has this value.
    Number(u64),
    /// The attribute of the device is this bit mask.
    Bits(u64),
    /// The device has the capability in these forms, such as the QP types that support an operation; empty for none.
    Words(Vec<&'static str>),
}

impl Claim {
    /// Whether the device does not claim the capability: [`Claim::No`], or no forms of it.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::No => true,
            Self::Words(words) => words.is_empty(),
            Self::Yes | Self::Number(_) | Self::Bits(_) => false,
        }
    }
}

/// What probes found about a claim.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Proof {
    /// No probe was run for this claim.
    #[default]
    Untested,
    /// The probes of the feature were run on the device, with this result.
    Probed(Box<Verified>),
}

impl Proof {
    /// The result of the probes; `None` if none were run.
    pub fn probed(&self) -> Option<&Verified> {
        match self {
            Self::Untested => None,
            Self::Probed(verified) => Some(verified),
        }
    }

    /// The verdict of the probes on the claim; `None` if none were run.
    pub fn verdict(&self) -> Option<Verdict> {
        self.probed().map(|verified| verified.verdict)
    }
}

/// The number of cells with each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Features that the device claims and whose probes all passed.
    pub verified: usize,
    /// Features that the device does not claim and refuses.
    pub refused: usize,
    /// Features that the device claims and that failed a probe, or that it does not claim and does not refuse.
    pub mismatch: usize,
    /// Features for which no probe could run.
    pub not_verifiable: usize,
    /// The number of probes that passed, of features that devices claim.
    pub probes_passed: usize,
}

impl Matrix {
    /// Makes the matrix of these devices with their claims only: a row for each feature of every linked extension,
    /// operation, gap and limit. No device is opened, and no probe is run.
    ///
    /// # Errors
    /// Two linked extensions contradict each other, for example by having the same name.
    pub fn of(devices: &[Device]) -> Result<Self, RegistryError> {
        Ok(Self::with_extensions(devices, &Extensions::linked()?))
    }

    /// Makes the matrix of these devices with their claims only, and a row for each feature of `extensions`.
    pub fn with_extensions(devices: &[Device], extensions: &Extensions) -> Self {
        let devices: Vec<_> = devices.iter().map(Device::attributes).collect();
        Self::of_attributes(&devices, extensions)
    }

    /// Makes the matrix of devices with these attributes, with their claims only.
    pub fn of_attributes(devices: &[DeviceAttributes], extensions: &Extensions) -> Self {
        let mut gathering = Gathering {
            devices,
            rows: Vec::new(),
        };
        for feature in described(devices, extensions) {
            gathering.feature(&feature);
        }
        gathering.operations();
        gathering.gaps();
        gathering.limits();
        let columns = devices.iter().map(|device| Column {
            device: DeviceReport::of(device),
        });
        Self {
            columns: columns.collect(),
            rows: gathering.rows,
        }
    }

    /// The rows of a section, in order.
    pub fn section(&self, section: Section) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.section == section)
    }

    /// The extensions that have features, each with the rows of its features.
    pub fn groups(&self) -> Vec<(&'static str, Vec<&Row>)> {
        let mut groups: Vec<(&'static str, Vec<&Row>)> = Vec::new();
        for row in self.section(Section::Features) {
            match groups.last_mut() {
                Some((extension, rows)) if *extension == row.extension => rows.push(row),
                _ => groups.push((row.extension, vec![row])),
            }
        }
        groups
    }

    /// Whether probes were run for at least one cell.
    pub fn is_verified(&self) -> bool {
        let mut cells = self.rows.iter().flat_map(|row| &row.cells);
        cells.any(|cell| cell.proof.probed().is_some())
    }

    /// The cells whose verdict is a mismatch, each with its row, its device and the result of its probes.
    pub fn mismatches(&self) -> impl Iterator<Item = (&Row, &Column, &Verified)> {
        self.probed()
            .filter(|(.., verified)| verified.verdict == Verdict::Mismatch)
    }

    /// The cells for which probes were run, each with its row, its device and the result of its probes.
    pub fn probed(&self) -> impl Iterator<Item = (&Row, &Column, &Verified)> {
        self.rows.iter().flat_map(|row| {
            let cells = self.columns.iter().zip(&row.cells);
            cells.filter_map(move |(column, cell)| Some((row, column, cell.proof.probed()?)))
        })
    }

    /// Counts the cells of each verdict.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (.., verified) in self.probed() {
            *match verified.verdict {
                Verdict::Verified => &mut tally.verified,
                Verdict::Refused => &mut tally.refused,
                Verdict::Mismatch => &mut tally.mismatch,
                Verdict::NotVerifiable => &mut tally.not_verifiable,
            } += 1;
            if verified.claimed {
                tally.probes_passed += verified.passed();
            }
        }
        tally
    }
}

struct Gathering<'d> {
    devices: &'d [DeviceAttributes],
    rows: Vec<Row>,
}

impl Gathering<'_> {
    fn row(&mut self, section: Section, name: &str, claim: impl Fn(&DeviceAttributes) -> Claim) {
        let cells = self.cells(claim);
        self.rows.push(Row {
            section,
            extension: "",
            name: name.to_owned(),
            about: about(name),
            cells,
        });
    }

    fn cells(&self, claim: impl Fn(&DeviceAttributes) -> Claim) -> Vec<Cell> {
        let cell = |device| Cell {
            claim: claim(device),
            proof: Proof::Untested,
        };
        self.devices.iter().map(cell).collect()
    }

    fn feature(&mut self, described: &Described) {
        let info: &FeatureInfo = &described.info;
        let cells = self.cells(|device| yes(device.claims(info)));
        self.rows.push(Row {
            section: Section::Features,
            extension: described.extension,
            name: described.name(),
            about: info.about,
            cells,
        });
    }

    fn operations(&mut self) {
        for (name, operation) in Operations::all().iter_names() {
            self.row(Section::Operations, name, |device| {
                let takes = |(service, _): &(QpType, _)| {
                    operations_of(device, *service).contains(operation)
                };
                Claim::Words(
                    SERVICES
                        .into_iter()
                        .filter(takes)
                        .map(|(_, name)| name)
                        .collect(),
                )
            });
        }
    }

    fn gaps(&mut self) {
        for (name, gap) in BaselineGaps::all().iter_names() {
            // A gap that no device has gets no row, because most gaps would only lengthen the page.
            if self.devices.iter().any(|device| device.gaps.contains(gap)) {
                self.row(Section::Gaps, name, |device| yes(device.gaps.contains(gap)));
            }
        }
    }

    fn limits(&mut self) {
        self.row(Section::Limits, "atomic_cap", |device| {
            words(scope(device.atomic_cap))
        });
        self.row(Section::Limits, "masked_atomic_cap", |device| {
            words(scope(device.masked_atomic_cap))
        });
        for &limit in Limit::ALL {
            self.row(Section::Limits, limit.name(), |device| {
                let value = device.limits.value(limit);
                match limit {
                    Limit::PageSizeCap => Claim::Bits(value),
                    _ => Claim::Number(value),
                }
            });
        }
        let mut own: Vec<_> = (self.devices.iter())
            .flat_map(|device| &device.extensions)
            .flat_map(|set| set.limits.iter().map(|&(name, _)| (set.set, name)))
            .collect();
        own.sort_unstable();
        own.dedup();
        for (set, name) in own {
            self.row(Section::Limits, &format!("{set}::{name}"), |device| {
                let of_set = device.extensions.iter().find(|known| known.set == set);
                let mut numbers = of_set.into_iter().flat_map(|known| &known.limits);
                let found = numbers.find(|(known, _)| *known == name);
                found.map_or(Claim::No, |&(_, value)| Claim::Number(value))
            });
        }
    }
}

fn yes(has: bool) -> Claim {
    if has { Claim::Yes } else { Claim::No }
}

fn words(word: &'static str) -> Claim {
    if word == "none" {
        Claim::No
    } else {
        Claim::Words(vec![word])
    }
}

const SERVICES: [(QpType, &str); 3] = [(QpType::Rc, "RC"), (QpType::Uc, "UC"), (QpType::Ud, "UD")];

fn has_service(device: &DeviceAttributes, service: QpType) -> bool {
    let lacking = match service {
        QpType::Rc => BaselineGaps::NO_RC,
        QpType::Uc => BaselineGaps::NO_UC,
        QpType::Ud => BaselineGaps::NO_UD,
        _ => BaselineGaps::empty(),
    };
    !device.gaps.intersects(lacking)
}

// The operations that a QP of this type supports, by the claims of the device.
fn operations_of(device: &DeviceAttributes, service: QpType) -> Operations {
    if !has_service(device, service) {
        return Operations::empty();
    }
    let closed = [
        (
            BaselineGaps::NO_SEND_WITH_IMMEDIATE,
            Operations::SEND_WITH_IMM,
        ),
        (
            BaselineGaps::NO_WRITE_WITH_IMMEDIATE,
            Operations::WRITE_WITH_IMM,
        ),
        (
            BaselineGaps::NO_ATOMICS,
            Operations::ATOMIC_CMP_AND_SWP | Operations::ATOMIC_FETCH_AND_ADD,
        ),
    ];
    let mut operations = service.operations();
    for (gap, operation) in closed {
        if device.gaps.contains(gap) {
            operations -= operation;
        }
    }
    for operation in operations.iter() {
        if !operation.missing_features(device.features).is_empty() {
            operations -= operation;
        }
    }
    operations
}
