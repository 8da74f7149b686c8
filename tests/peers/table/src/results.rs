//! The results of all rows, kept from run to run: the page is made from them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::rows::Trial;

/// How a run ended.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Outcome {
    /// The failure, if there was one.
    pub(crate) failure: Option<String>,
    pub(crate) seconds: f64,
}

/// The last outcome of each trial by its name, stored in a file.
pub(crate) struct Results {
    folder: PathBuf,
    outcomes: BTreeMap<String, Outcome>,
}

impl Results {
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = folder.join(FILE);
        let outcomes = match fs::read(&file) {
            Ok(text) => {
                serde_json::from_slice(&text).with_context(|| format!("{}", file.display()))?
            }
            Err(_) => BTreeMap::new(),
        };
        Ok(Self {
            folder: folder.to_path_buf(),
            outcomes,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn of(&self, trial: &Trial<'_>) -> Option<&Outcome> {
        self.outcomes.get(&trial.name())
    }

    /// Writes the outcome at once, so that an interrupted run loses no result.
    pub(crate) fn keep(&mut self, trial: &Trial<'_>, outcome: Outcome) -> anyhow::Result<()> {
        self.outcomes.insert(trial.name(), outcome);
        let text = serde_json::to_vec_pretty(&self.outcomes)?;
        fs::write(self.folder.join(FILE), text).context("cannot keep the results")
    }
}

const FILE: &str = "results.json";
