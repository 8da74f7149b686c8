//! The matrix as one HTML page: no script, no other file, readable on a narrow screen and in the dark.

use std::fmt::Write as _;

use crate::device::DeviceReport;
use crate::matrix::{Cell, Claim, Matrix, Row, Section};

impl Matrix {
    /// A page that needs nothing but itself.
    pub fn to_html(&self) -> String {
        let mut page = String::from(HEAD);
        page.push_str("<header>\n<h1>What each device can do</h1>\n");
        page.push_str("<p>What the devices of this machine <strong>claim</strong>, side by side. Nothing on this page has been tried out.</p>\n");
        self.contents(&mut page);
        page.push_str("</header>\n<main>\n<section class=\"cards\" aria-label=\"Devices\">\n");
        for column in &self.columns {
            card(&mut page, &column.device);
        }
        page.push_str("</section>\n");
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                self.table(&mut page, section);
            }
        }
        page.push_str("</main>\n<footer>Made by <code>polyverbs matrix --format html</code>.</footer>\n</body>\n</html>\n");
        page
    }

    fn contents(&self, page: &mut String) {
        page.push_str("<nav aria-label=\"Sections\">");
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                let title = section.title();
                // Writing to a string does not fail.
                let _ = write!(page, "<a href=\"#{}\">{title}</a>", title.to_lowercase());
            }
        }
        page.push_str("</nav>\n");
    }

    fn table(&self, page: &mut String, section: Section) {
        let title = section.title();
        let id = title.to_lowercase();
        let about = section.about();
        let _ = write!(
            page,
            "<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{about}</p>\n<table class=\"{id}\">\n<thead><tr><th scope=\"col\">{title}</th>"
        );
        for column in &self.columns {
            let _ = write!(
                page,
                "<th scope=\"col\">{}</th>",
                escape(&column.device.name)
            );
        }
        page.push_str("</tr></thead>\n<tbody>\n");
        for row in self.section(section) {
            self.row_of_table(page, row);
        }
        page.push_str("</tbody>\n</table>\n</section>\n");
    }

    fn row_of_table(&self, page: &mut String, row: &Row) {
        let _ = write!(
            page,
            "<tr><th scope=\"row\"><code>{}</code><small>{}</small></th>",
            escape(&row.name),
            escape(row.about)
        );
        for (column, cell) in self.columns.iter().zip(&row.cells) {
            let _ = write!(
                page,
                "<td data-device=\"{}\"><span class=\"{}\">{}</span></td>",
                escape(&column.device.name),
                class(row.section, cell),
                escape(&shown(cell))
            );
        }
        page.push_str("</tr>\n");
    }
}

fn card(page: &mut String, device: &DeviceReport) {
    let _ = write!(
        page,
        "<article class=\"{}\"><h2>{}</h2><p class=\"kind\">{}</p><dl>",
        device.transport,
        escape(&device.name),
        match device.transport {
            "iwarp" => "iWARP",
            _ => "InfiniBand",
        },
    );
    let mut facts = vec![
        ("Provider", device.provider.to_owned()),
        ("Features", device.features.len().to_string()),
        ("Gaps", device.gaps.len().to_string()),
        ("Atomics", device.atomic_cap.to_owned()),
    ];
    for port in &device.ports {
        facts.push((
            "Port",
            format!(
                "{}: {}, {}, MTU {}",
                port.port, port.state, port.address, port.active_mtu
            ),
        ));
    }
    for (name, value) in facts {
        let _ = write!(
            page,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            escape(&value)
        );
    }
    page.push_str("</dl></article>\n");
}

fn class(section: Section, cell: &Cell) -> &'static str {
    match (&cell.claim, section) {
        (Claim::Number(_) | Claim::Bits(_), _) => "number",
        // A gap that is not there is good news.
        (claim, Section::Gaps) => {
            if claim.is_absent() {
                "no"
            } else {
                "gap"
            }
        }
        (claim, _) => {
            if claim.is_absent() {
                "no"
            } else {
                "yes"
            }
        }
    }
}

fn shown(cell: &Cell) -> String {
    let text = cell.claim.to_string();
    match cell.claim {
        Claim::Number(_) => grouped(&text),
        _ => text,
    }
}

// Thin spaces between groups of three digits.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

const HEAD: &str = r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What each device can do – Polyverbs</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7c; --paper: #f6f7f9; --sheet: #fff; --line: #dde2e8;
  --yes: #0b6b3a; --yes-back: #dff3e7; --gap: #8a4b00; --gap-back: #fdeccf; --ib: #2f5fd0; --iw: #b0413e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --soft: #9aa8ba; --paper: #12161c; --sheet: #1a2029;
  --line: #2d3643; --yes: #7fdca6; --yes-back: #143524; --gap: #ffc46b; --gap-back: #3d2b0e; --ib: #86a9ff; --iw: #ff9a94; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.25rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 0; }
section[id] { margin-top: 2.5rem; scroll-margin-top: 1rem; }
section[id] > p { margin: .1rem 0 .8rem; color: var(--soft); }
header > p { margin: 0 0 1rem; max-width: 42rem; color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .5rem; }
nav a { color: inherit; text-decoration: none; border: 1px solid var(--line); background: var(--sheet);
  border-radius: 99px; padding: .15rem .8rem; font-size: .9rem; }
nav a:hover, nav a:focus { border-color: var(--ink); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; margin-top: 1.75rem; }
article { background: var(--sheet); border: 1px solid var(--line); border-top: 4px solid var(--ib); border-radius: 10px;
  padding: 1rem 1.1rem; }
article.iwarp { border-top-color: var(--iw); }
.kind { margin: 0 0 .6rem; color: var(--soft); }
dl { margin: 0; font-size: .9rem; }
dl div { display: flex; gap: .75rem; padding: .15rem 0; }
dt { color: var(--soft); flex: 0 0 5rem; }
dd { margin: 0; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: separate; border-spacing: 0; background: var(--sheet); border: 1px solid var(--line);
  border-radius: 10px; }
th, td { padding: .5rem .8rem; border-bottom: 1px solid var(--line); text-align: center; vertical-align: middle; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { position: sticky; top: 0; background: var(--sheet); font-size: .9rem; z-index: 1; }
thead th:first-child { border-top-left-radius: 10px; } thead th:last-child { border-top-right-radius: 10px; }
th:first-child { text-align: left; font-weight: 500; }
th small { display: block; color: var(--soft); font-weight: 400; }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
td span { white-space: nowrap; }
.yes, .gap { border-radius: 99px; padding: .1rem .65rem; font-size: .9rem; }
.yes { color: var(--yes); background: var(--yes-back); }
.gap { color: var(--gap); background: var(--gap-back); }
.no { color: var(--soft); }
.number { font-variant-numeric: tabular-nums; }
table.limits td { text-align: right; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .9rem; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .8rem 2rem; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody, tr, th, td { display: block; }
  tr { padding: .6rem .8rem; border-bottom: 1px solid var(--line); }
  tbody tr:last-child { border-bottom: 0; }
  th, td, table.limits td { border: 0; padding: .15rem 0; text-align: left; }
  td { display: flex; gap: .75rem; align-items: baseline; }
  td::before { content: attr(data-device); color: var(--soft); flex: 0 0 5rem; overflow-wrap: anywhere; }
}
@media print { body { background: #fff; } thead th { position: static; } nav { display: none; } }
</style>
</head>
<body>
"##;
