//! The atlas: the profiles of all classes of devices in one table, and a page for each.

use std::fmt::Write as _;

use polyverbs::Limit;
use polyverbs::capability::AtomicScope;
use serde_json::{Value, json};

use crate::ability::Ability;
use crate::profile::{Evidence, Profile, Sure};
use crate::show::{number, scope, source};

/// All profiles side by side.
pub struct Atlas<'a> {
    profiles: &'a [Profile],
    rows: Vec<Row<'a>>,
}

/// One thing that is known or not of each class.
struct Row<'a> {
    section: &'static str,
    name: String,
    cells: Vec<Option<(String, &'a Evidence)>>,
}

const SECTIONS: [(&str, &str); 3] = [
    ("abilities", "What they can do"),
    ("limits", "Limits"),
    ("quirks", "Quirks"),
];

impl<'a> Atlas<'a> {
    /// Makes the atlas of these profiles.
    pub fn of(profiles: &'a [Profile]) -> Self {
        let mut rows = Vec::new();
        let mut row =
            |section, name: String, of: &dyn Fn(&'a Profile) -> Option<(String, &'a Evidence)>| {
                let cells: Vec<_> = profiles.iter().map(of).collect();
                // A row without any cell is left out.
                if cells.iter().any(Option::is_some) {
                    rows.push(Row {
                        section,
                        name,
                        cells,
                    });
                }
            };
        for ability in Ability::all() {
            row("abilities", ability.to_string(), &|profile| {
                let (has, evidence) = profile.ability(&ability)?;
                Some((if has { "yes" } else { "no" }.to_owned(), evidence))
            });
        }
        row("limits", "atomic_cap".to_owned(), &|profile| {
            let (cap, evidence): (AtomicScope, _) = profile.atomic_cap()?;
            Some((scope(cap).to_owned(), evidence))
        });
        for &limit in Limit::ALL {
            row("limits", limit.name().to_owned(), &|profile| {
                let (value, evidence) = profile.limit(limit)?;
                Some((number(limit, value), evidence))
            });
        }
        let mut quirks: Vec<_> = profiles
            .iter()
            .flat_map(|profile| profile.quirks.iter().map(|quirk| quirk.name()))
            .collect();
        quirks.sort();
        quirks.dedup();
        for name in quirks {
            row("quirks", name.clone(), &|profile| {
                let mut quirks = profile.quirks.iter();
                let found = quirks.find(|quirk| quirk.name() == name)?;
                let rule = found.rule.to_string();
                let parameters = rule.split_once(' ').map_or("yes", |(_, rest)| rest);
                Some((parameters.to_owned(), &found.evidence))
            });
        }
        Self { profiles, rows }
    }

    /// Returns every file of the atlas: its name and its text.
    ///
    /// # Errors
    /// A value cannot be written as JSON.
    pub fn files(&self) -> Result<Vec<(String, String)>, serde_json::Error> {
        let json = serde_json::to_string_pretty(&self.to_json())? + "\n";
        let mut files = vec![
            ("README.md".to_owned(), self.readme()),
            ("atlas.html".to_owned(), self.to_html()),
            ("atlas.json".to_owned(), json),
            ("atlas.text".to_owned(), self.to_text()),
        ];
        files.extend(
            self.profiles
                .iter()
                .map(|profile| (format!("{}.md", profile.name), page(profile))),
        );
        Ok(files)
    }

    /// Returns the table as JSON; `docs/atlas/atlas.schema.json` describes it.
    pub fn to_json(&self) -> Value {
        let profiles = self.profiles.iter().map(|profile| {
            json!({
                "name": profile.name,
                "class": profile.class,
                "summary": profile.summary,
                "transport": profile.transport_name(),
            })
        });
        let rows = self.rows.iter().map(|row| {
            let cells = self
                .profiles
                .iter()
                .zip(&row.cells)
                .filter_map(|(profile, cell)| {
                    let (value, evidence) = cell.as_ref()?;
                    let cell =
                        json!({ "value": value, "sure": evidence.sure, "source": evidence.source });
                    Some((profile.name.clone(), cell))
                });
            json!({
                "section": row.section,
                "name": row.name,
                "cells": cells.collect::<serde_json::Map<_, _>>(),
            })
        });
        json!({
            "schema": 1,
            "profiles": profiles.collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    /// Returns the table as text: one block for each row, because there are more classes than fit a line.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (section, title) in SECTIONS {
            let _ = writeln!(text, "{}\n", title.to_uppercase());
            for row in self.rows.iter().filter(|row| row.section == section) {
                let _ = writeln!(text, "{}", row.name);
                for (profile, cell) in self.profiles.iter().zip(&row.cells) {
                    if let Some((value, evidence)) = cell {
                        let _ = writeln!(text, "  {:18} {value} ({})", profile.name, evidence.sure);
                    }
                }
                text.push('\n');
            }
        }
        text
    }

    /// Returns the table as one HTML page without scripts and other files.
    pub fn to_html(&self) -> String {
        let mut page = String::from(HEAD);
        page.push_str("<nav>");
        for (section, title) in SECTIONS {
            let _ = write!(page, "<a href=\"#{section}\">{title}</a> ");
        }
        page.push_str("</nav>\n</header>\n<main>\n");
        for (section, title) in SECTIONS {
            let _ = write!(
                page,
                "<h2 id=\"{section}\">{title}</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\n<table>\n<thead><tr><th></th>"
            );
            for profile in self.profiles {
                let _ = write!(
                    page,
                    "<th scope=\"col\" title=\"{}\">{}</th>",
                    escape(&profile.summary),
                    escape(&profile.name)
                );
            }
            page.push_str("</tr></thead>\n<tbody>\n");
            for row in self.rows.iter().filter(|row| row.section == section) {
                let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escape(&row.name));
                for cell in &row.cells {
                    match cell {
                        Some((value, evidence)) => {
                            let _ = write!(
                                page,
                                "<td class=\"{}{}\" title=\"{}\">{}</td>",
                                evidence.sure,
                                if value == "no" { " no" } else { "" },
                                escape(&source(evidence)),
                                escape(value)
                            );
                        }
                        None => page.push_str("<td class=\"unknown\">?</td>"),
                    }
                }
                page.push_str("</tr>\n");
            }
            page.push_str("</tbody>\n</table>\n</div>\n");
        }
        page.push_str("</main>\n<footer>Made by <code>polyverbs profile atlas</code>.</footer>\n</body>\n</html>\n");
        page
    }

    fn readme(&self) -> String {
        let mut text = String::from(README);
        for profile in self.profiles {
            let _ = writeln!(
                text,
                "| [{}]({}.md) | {} | {} | {} |",
                profile.name,
                profile.name,
                profile.summary,
                profile.transport_name(),
                surest(profile),
            );
        }
        text.push_str(SUBMIT);
        text
    }
}

/// The kinds of sources of a profile, the surest first.
fn surest(profile: &Profile) -> String {
    let facts = profile.facts.iter().map(|fact| fact.evidence.sure);
    let mut all: Vec<Sure> = facts
        .chain(profile.quirks.iter().map(|it| it.evidence.sure))
        .collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// The page of one class.
fn page(profile: &Profile) -> String {
    let mut text = format!(
        "# {}\n\n{}. Class `{}`; an emulated {} device takes it on: `polyverbs run --as {} -- PROGRAM`.\n",
        profile.name,
        profile.summary,
        profile.class,
        profile.transport_name(),
        profile.name
    );
    for fact in &profile.facts {
        let _ = writeln!(text, "\n## {}\n", fact.evidence.sure);
        let _ = writeln!(text, "{}\n", about(&fact.evidence));
        for line in fact.lines() {
            let _ = writeln!(text, "- {line}");
        }
    }
    if !profile.quirks.is_empty() {
        text.push_str("\n## Quirks\n\n| rule | sure | source |\n| --- | --- | --- |\n");
    }
    for quirk in &profile.quirks {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |",
            quirk.rule.to_string().replace('|', "\\|"),
            quirk.evidence.sure,
            about(&quirk.evidence).replace('|', "\\|")
        );
    }
    text
}

/// Returns the source of facts, when it was seen, and the note, in one line.
pub(crate) fn about(evidence: &Evidence) -> String {
    let mut text = evidence.source.clone();
    if let Some(seen) = &evidence.seen {
        let _ = write!(text, " ({seen})");
    }
    if let Some(note) = &evidence.note {
        let _ = write!(text, ". {note}");
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const README: &str = "\
# Atlas of RDMA devices

The public knowledge about each class of RDMA devices, for people who write programs that must run on all of them. All classes are in
one table: [atlas.html](atlas.html) for a browser, [atlas.text](atlas.text) for a terminal, and [atlas.json](atlas.json), which
[atlas.schema.json](atlas.schema.json) describes, for programs. `polyverbs profile atlas --output docs/atlas` makes these files from the
[profiles](../profiles.md).

Try it: `polyverbs run --as amd-ionic -- ibv_devinfo -v`.

| profile | devices | transport | from |
| --- | --- | --- | --- |
";

const SUBMIT: &str = "
Each fact says how sure it is: *measured* by our probes on such a device, read in the *source* of a driver or library, in the
published *output* of a tool, or in the *report* of one user. A question mark stands for an unknown fact.

## Send one from your machine

On a machine with a card, one command makes the file. It runs the conformance probes of `polyverbs matrix --verify`, which need a
minute and change nothing:

```sh
polyverbs profile record mlx5_0 > my-card.toml
```

The file has no addresses, GUIDs, GIDs or names of machines: read it, name it after the class of the card, write the name of the product into
`summary`, and send it as one file in `profiles/cards/` in one pull request. [profile.schema.json](profile.schema.json) describes it;
`polyverbs profile show ./my-card.toml` reads the file and names its faults. Where the command cannot be run, the output of
`ibv_devinfo -v` will do: `polyverbs profile import devinfo.txt`.
";

const HEAD: &str = r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Atlas of RDMA devices</title>
<style>
:root { color-scheme: light dark; --line: #8885; --card: light-dark(#fff, #16191d); --text: light-dark(#1b1f24, #e6e9ed); --quiet: light-dark(#59636e, #9aa4af); }
body { margin: 0 auto; max-width: 96rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; background: var(--card); color: var(--text); }
nav a { margin-right: 1rem; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; }
table { border-collapse: separate; border-spacing: 0; font-size: .85rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: left; }
thead th { border-bottom-width: 2px; }
tr > th:first-child { position: sticky; left: 0; background: var(--card); font-weight: 600; border-right: 1px solid var(--line); }
td.no, td.unknown { color: var(--quiet); }
td.measured { box-shadow: inset .25rem 0 #1a7f37; }
td.source { box-shadow: inset .25rem 0 #0969da; }
td.output { box-shadow: inset .25rem 0 #9a6700; }
td.report { box-shadow: inset .25rem 0 #cf222e; }
.key span { padding-left: .6rem; margin-right: 1rem; white-space: nowrap; }
.key .measured { box-shadow: inset .25rem 0 #1a7f37; } .key .source { box-shadow: inset .25rem 0 #0969da; }
.key .output { box-shadow: inset .25rem 0 #9a6700; } .key .report { box-shadow: inset .25rem 0 #cf222e; }
@media (max-width: 40rem) { body { padding: .6rem; } tr > th:first-child { max-width: 8rem; overflow: hidden; text-overflow: ellipsis; } }
</style>
</head>
<body>
<header>
<h1>Atlas of RDMA devices</h1>
<p>The public knowledge about each class of devices. The mark of a cell says how sure it is; its title names the source. A question mark stands for an unknown fact.</p>
<p class="key"><span class="measured">measured by our probes</span><span class="source">source of a driver or library</span><span class="output">published output</span><span class="report">report</span></p>
"##;
