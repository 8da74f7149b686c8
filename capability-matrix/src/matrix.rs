//! The matrix: a column for each device, a row for each thing that a device may be able to do.

use polyverbs::qp::QpType;
use polyverbs::{BaselineGaps, Device, DeviceAttributes, Features, Limit, Operations};

use crate::about::about;
use crate::device::{DeviceReport, scope};

/// What devices can do, side by side.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Matrix {
    /// The devices, in the order of the cells of each row.
    pub columns: Vec<Column>,
    /// The rows, those of one section together.
    pub rows: Vec<Row>,
}

/// A device of the matrix.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Column {
    /// What it tells about itself.
    pub device: DeviceReport,
}

/// What rows are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// Kinds of queue pairs.
    Services,
    /// Work requests, and the services that take them.
    Operations,
    /// Opt-in abilities.
    Features,
    /// What the baseline promises and a device lacks.
    Gaps,
    /// Numbers.
    Limits,
}

impl Section {
    /// Every section, in the order in which they are shown.
    pub const ALL: [Self; 5] = [
        Self::Services,
        Self::Operations,
        Self::Features,
        Self::Gaps,
        Self::Limits,
    ];

    /// Its heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Services => "Services",
            Self::Operations => "Operations",
            Self::Features => "Features",
            Self::Gaps => "Gaps",
            Self::Limits => "Limits",
        }
    }

    /// What it lists.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Services => "Kinds of queue pairs.",
            Self::Operations => "Work requests, and the services whose queue pairs take them.",
            Self::Features => {
                "Opt-in abilities: a program that needs one says so when it opens a device."
            }
            Self::Gaps => "What every device is expected to have and this one lacks.",
            Self::Limits => "Upper bounds, not guarantees.",
        }
    }
}

/// Something that a device may be able to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// What it belongs to.
    pub section: Section,
    /// Its name, as the API has it.
    pub name: String,
    /// One line for those who do not know the name.
    pub about: &'static str,
    /// A cell for each device.
    pub cells: Vec<Cell>,
}

/// What one device says about one row, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cell {
    /// What it says.
    pub claim: Claim,
    /// What was found.
    pub proof: Proof,
}

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It has it.
    Yes,
    /// It does not.
    No,
    /// As much as this.
    Number(u64),
    /// A set of bits.
    Bits(u64),
    /// It has it in these forms.
    Words(Vec<&'static str>),
}

impl Claim {
    /// Whether the device says that it has nothing of it.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::No => true,
            Self::Words(words) => words.is_empty(),
            Self::Yes | Self::Number(_) | Self::Bits(_) => false,
        }
    }
}

/// What a probe of the device found out about a claim.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Proof {
    /// Nothing was tried.
    #[default]
    Untested,
}

impl Matrix {
    /// The claims of these devices. Nothing is opened, and nothing tried.
    pub fn of(devices: &[Device]) -> Self {
        let devices: Vec<_> = devices.iter().map(Device::attributes).collect();
        Self::of_attributes(&devices)
    }

    /// The claims of devices with these attributes.
    pub fn of_attributes(devices: &[DeviceAttributes]) -> Self {
        let mut gathering = Gathering {
            devices,
            rows: Vec::new(),
        };
        gathering.services();
        gathering.operations();
        gathering.features();
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

    /// The rows of a section.
    pub fn section(&self, section: Section) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.section == section)
    }
}

struct Gathering<'d> {
    devices: &'d [DeviceAttributes],
    rows: Vec<Row>,
}

impl Gathering<'_> {
    fn row(&mut self, section: Section, name: &str, claim: impl Fn(&DeviceAttributes) -> Claim) {
        let cell = |device| Cell {
            claim: claim(device),
            proof: Proof::Untested,
        };
        let cells = self.devices.iter().map(cell).collect();
        self.rows.push(Row {
            section,
            name: name.to_owned(),
            about: about(name),
            cells,
        });
    }

    fn services(&mut self) {
        for (service, name) in SERVICES {
            self.row(Section::Services, name, |device| {
                yes(has_service(device, service))
            });
        }
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

    fn features(&mut self) {
        for (name, feature) in Features::all().iter_names() {
            self.row(Section::Features, name, |device| {
                yes(device.features.contains(feature))
            });
        }
        let mut extensions: Vec<_> = (self.devices.iter())
            .flat_map(|device| &device.extensions)
            .flat_map(|set| set.names.iter().map(|&name| (set.set, name)))
            .collect();
        extensions.sort_unstable();
        extensions.dedup();
        for (set, name) in extensions {
            self.row(Section::Features, &format!("{set}::{name}"), |device| {
                yes(device
                    .extensions
                    .iter()
                    .any(|other| other.set == set && other.names.contains(&name)))
            });
        }
        self.row(Section::Features, "atomic_cap", |device| {
            words(scope(device.atomic_cap))
        });
        self.row(Section::Features, "masked_atomic_cap", |device| {
            words(scope(device.masked_atomic_cap))
        });
    }

    fn gaps(&mut self) {
        for (name, gap) in BaselineGaps::all().iter_names() {
            // Most gaps are nobody's; a page of them would tell nothing.
            if self.devices.iter().any(|device| device.gaps.contains(gap)) {
                self.row(Section::Gaps, name, |device| yes(device.gaps.contains(gap)));
            }
        }
    }

    fn limits(&mut self) {
        for &limit in Limit::ALL {
            self.row(Section::Limits, limit.name(), |device| {
                let value = device.limits.value(limit);
                match limit {
                    Limit::PageSizeCap => Claim::Bits(value),
                    _ => Claim::Number(value),
                }
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
        QpType::Uc => BaselineGaps::NO_UC,
        QpType::Ud => BaselineGaps::NO_UD,
        // Whatever a device is, it has reliable connections.
        _ => BaselineGaps::empty(),
    };
    !device.gaps.intersects(lacking)
}

// What a queue pair of this service can be created for, by what the device claims.
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
        let is_window = operation == Operations::BIND_MW;
        let has_window = device.features.intersects(Features::WINDOW_2);
        if !device.features.contains(operation.required_features()) || (is_window && !has_window) {
            operations -= operation;
        }
    }
    operations
}
