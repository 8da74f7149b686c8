//! The rows: the programs, and the output that they must have.

use std::fs;
use std::path::Path;

use anyhow::Context;
use regex::Regex;
use serde::Deserialize;
use serde::de::Error;

/// A file of rows: one part of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) title: String,
    /// The text of the page above the rows.
    #[serde(default)]
    pub(crate) text: String,
    #[serde(rename = "row")]
    pub(crate) rows: Vec<Row>,
}

/// A program, and the way to run it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The name of the program on the page.
    pub(crate) program: String,
    /// Debian packages; `pip:NAME==VERSION` and `cargo:NAME@VERSION` come from those registries.
    #[serde(default)]
    pub(crate) install: Vec<String>,
    /// A shell command that is started first and ended afterwards.
    pub(crate) server: Option<String>,
    /// The output of the server when it is ready. Without this, the server has a second to get ready.
    pub(crate) ready: Option<Pattern>,
    /// The shell command that has to end with status 0 in time.
    pub(crate) run: String,
    /// The output of both has to match each of these.
    pub(crate) seen: Vec<Pattern>,
    /// The row is run once for each of these devices, which is then the only device; if the list is empty, once with all devices.
    #[serde(default)]
    pub(crate) on: Vec<String>,
    /// More options of `polyverbs run`, as a shell would split them at spaces.
    #[serde(default)]
    pub(crate) options: String,
    /// The least number of bytes that the devices of `run` carry, according to their capture.
    pub(crate) carried: Option<u64>,
    /// The row is run a second time with this `--fault`.
    pub(crate) faults: Option<String>,
    /// The settings that a user has to make, and the reason, for the page.
    #[serde(default)]
    pub(crate) settings: String,
    /// The reason why the program cannot work; `seen` matches its message, and its exit status is ignored.
    pub(crate) refused: Option<String>,
    /// How long `run` may take.
    #[serde(default = "a_minute")]
    pub(crate) seconds: u64,
    /// Whether the row is left out unless `--full` is given.
    #[serde(default)]
    pub(crate) full: bool,
}

fn a_minute() -> u64 {
    60
}

/// A regular expression; `^` and `$` are the ends of a line.
#[derive(Debug)]
pub(crate) struct Pattern(pub(crate) Regex);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Regex::new(&format!("(?m){text}"))
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// A run of a row on one device, with or without faults.
#[derive(Clone, Copy)]
pub(crate) struct Trial<'a> {
    pub(crate) group: &'a str,
    pub(crate) row: &'a Row,
    pub(crate) device: Option<&'a str>,
    pub(crate) faults: Option<&'a str>,
}

impl Group {
    pub(crate) fn trials(&self) -> impl Iterator<Item = Trial<'_>> {
        self.rows.iter().flat_map(|row| self.of_row(row))
    }

    pub(crate) fn of_row<'a>(&'a self, row: &'a Row) -> Vec<Trial<'a>> {
        let devices: Vec<Option<&str>> = match &*row.on {
            [] => vec![None],
            on => on.iter().map(|device| Some(device.as_str())).collect(),
        };
        let faults = [None].into_iter().chain(row.faults.as_deref().map(Some));
        faults
            .flat_map(|faults| {
                devices.iter().map(move |&device| Trial {
                    group: &self.title,
                    row,
                    device,
                    faults,
                })
            })
            .collect()
    }
}

impl Trial<'_> {
    /// A name that is unique in the table.
    pub(crate) fn name(&self) -> String {
        [Some(self.row.program.as_str()), self.device, self.faults]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
    }

    pub(crate) fn is_named(&self, word: &str) -> bool {
        self.name().contains(word) || self.group.contains(word)
    }
}

/// All files of the folder, by their names.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Vec<Group>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "toml")
    });
    files.sort();
    let groups: Vec<Group> = files
        .iter()
        .map(|file| {
            let text = fs::read_to_string(file)?;
            toml::from_str(&text).with_context(|| format!("{}", file.display()))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut names: Vec<_> = groups
        .iter()
        .flat_map(Group::trials)
        .map(|trial| trial.name())
        .collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        anyhow::bail!("two rows are named {:?}", twice[0]);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_the_table_are_read() {
        let groups = read(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/table/rows"
        )))
        .unwrap();
        assert!(groups.iter().flat_map(Group::trials).count() > 0);
    }

    #[test]
    fn a_row_runs_on_each_device_with_and_without_faults() {
        let group: Group = toml::from_str(
            r#"
            title = "t"
            [[row]]
            program = "p"
            run = "p"
            seen = ["^ok$"]
            on = ["ib0", "iw0"]
            faults = "drop=1%"
            "#,
        )
        .unwrap();
        let names: Vec<_> = group.trials().map(|trial| trial.name()).collect();
        assert_eq!(
            names,
            ["p, ib0", "p, iw0", "p, ib0, drop=1%", "p, iw0, drop=1%"]
        );
        assert!(group.rows[0].seen[0].0.is_match("first\nok\n"));
    }

    #[test]
    fn a_misspelled_key_and_a_bad_pattern_are_errors() {
        for line in ["sean = []", "seen = [\"(\"]"] {
            let text = format!("title = \"t\"\n[[row]]\nprogram = \"p\"\nrun = \"p\"\n{line}\n");
            assert!(toml::from_str::<Group>(&text).is_err(), "{line}");
        }
    }
}
