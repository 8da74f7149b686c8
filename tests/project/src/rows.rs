//! The rows of `rows.toml`.

use serde::Deserialize;

/// Rows that must be covered by a test and cannot be exempt: ranges of ids, both ends included.
const NEVER_EXEMPT: &[(&str, &str)] = &[
    ("2.24", "2.28"),
    ("2.42", "2.52"),
    ("2.62", "2.65"),
    ("3.40", "3.54"),
    ("5.01", "5.09"),
    ("5.15", "5.15"),
    ("5.27", "5.27"),
    ("5.29", "5.29"),
];

/// The groups of the file, in its order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// The groups.
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
}

/// Rows that share a heading.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The heading, with the number of the group.
    pub title: String,
    /// The rows, in the order of their ids.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

impl Group {
    /// The section, with its number: the words before the colon.
    pub fn section(&self) -> &str {
        let (section, _) = self.title.split_once(": ").unwrap_or((&self.title, ""));
        section
    }

    /// The heading within the section, if the section has several groups.
    pub fn heading(&self) -> Option<&str> {
        Some(self.title.split_once(": ")?.1)
    }
}

/// One feature.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The id that a `// covers` line names.
    pub id: String,
    /// The feature in a few words.
    pub feature: String,
    /// The promise of the feature, in one sentence.
    pub says: String,
    /// Why the row cannot apply yet, if it cannot.
    pub not_yet: Option<String>,
    /// The part of the work that is not done, if the row waits for it.
    pub missing: Option<String>,
}

impl Row {
    /// Whether the row needs no test: it cannot apply yet, or the work is not done.
    pub fn is_exempt(&self) -> bool {
        self.not_yet.is_some() || self.missing.is_some()
    }
}

impl Rows {
    /// Reads the rows of this crate's own file.
    ///
    /// # Errors
    /// The parser's message, if the file is malformed.
    pub fn load() -> Result<Self, toml::de::Error> {
        toml::from_str(include_str!("../rows.toml"))
    }

    /// All rows, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.groups.iter().flat_map(|group| &group.rows)
    }
}

/// Whether the row of this id may not be exempted.
pub fn is_never_exempt(id: &str) -> bool {
    // Ids of one group have the same length, so that their order is that of the text.
    NEVER_EXEMPT
        .iter()
        .any(|&(first, last)| (first..=last).contains(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_ascending_within_a_group() {
        let rows = Rows::load().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for group in &rows.groups {
            assert!(
                group.rows.is_sorted_by(|a, b| a.id < b.id),
                "{}",
                group.title
            );
            for row in &group.rows {
                assert!(seen.insert(&row.id), "{} is there twice", row.id);
            }
        }
    }

    #[test]
    fn a_range_holds_both_its_ends_and_nothing_else() {
        assert!(is_never_exempt("2.42") && is_never_exempt("2.52") && is_never_exempt("5.15"));
        assert!(!is_never_exempt("2.41") && !is_never_exempt("2.53") && !is_never_exempt("3.S"));
    }

    #[test]
    fn every_row_that_is_never_exempt_exists() {
        let rows = Rows::load().unwrap();
        let ids: Vec<_> = rows.iter().map(|row| row.id.as_str()).collect();
        for (first, last) in NEVER_EXEMPT {
            assert!(
                ids.contains(first) && ids.contains(last),
                "{first} to {last}"
            );
        }
    }

    #[test]
    fn every_exemption_gives_one_reason() {
        let rows = Rows::load().unwrap();
        for row in rows.iter().filter(|row| row.is_exempt()) {
            let reasons = [&row.not_yet, &row.missing];
            let reasons: Vec<_> = reasons.into_iter().flatten().collect();
            assert!(
                reasons.len() == 1 && reasons[0].contains(' '),
                "{}: {reasons:?}",
                row.id
            );
        }
    }
}
