//! Renders a matrix as one HTML page, without scripts and other files, that can be read on a narrow screen and in dark
//! mode.

use std::fmt::Write as _;

use polyverbs::probe::{Finding, Probe, ProbeResult, Verdict, Verified};

use crate::device::DeviceReport;
use crate::matrix::{Cell, Claim, Column, Matrix, Row, Section};

/// The most device columns that fit a wide screen. With more, the page is scrolled sideways and the column heads do not
/// stay visible.
const FEW: usize = 4;

/// Writes formatted text to the page; writing to a string cannot fail.
macro_rules! put {
    ($page:expr, $($argument:tt)*) => {
        let _ = write!($page, $($argument)*);
    };
}

impl Matrix {
    /// Renders the matrix as an HTML page that needs no other file.
    pub fn to_html(&self) -> String {
        let mut page = String::from(HEAD);
        put!(
            page,
            "<body class=\"{}\" style=\"--n: {}\">\n",
            if self.columns.len() <= FEW {
                "few"
            } else {
                "many"
            },
            self.columns.len().max(1)
        );
        self.header(&mut page);
        page.push_str("<main>\n");
        self.alarm(&mut page);
        page.push_str("<section class=\"cards\" aria-label=\"Devices\">\n");
        for column in &self.columns {
            card(&mut page, &column.device, self.found_of(column));
        }
        page.push_str("</section>\n");
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                self.titled(&mut page, section);
            }
        }
        page.push_str("</main>\n");
        let verify = if self.is_verified() { " --verify" } else { "" };
        put!(
            page,
            "<footer>Made by <code>polyverbs matrix{verify} --format html</code>.</footer>\n</body>\n</html>\n"
        );
        page
    }

    // Counts the verdicts on the features of a device, in words; empty if no probes were run.
    fn found_of(&self, column: &Column) -> String {
        let of_device = || {
            let probed = self.probed();
            probed.filter(|(_, other, _)| std::ptr::eq(*other, column))
        };
        let verdicts = [
            (Verdict::Verified, "verified"),
            (Verdict::Refused, "refused"),
            (Verdict::Mismatch, "mismatching"),
            (Verdict::NotVerifiable, "not verifiable here"),
        ];
        let counted = verdicts.map(|(verdict, word)| {
            let count = of_device().filter(|(.., found)| found.verdict == verdict);
            (count.count(), word)
        });
        let told = counted.iter().filter(|(count, _)| *count > 0);
        let told: Vec<_> = told
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        told.join(", ")
    }

    fn header(&self, page: &mut String) {
        page.push_str("<header>\n<h1>What each device can do</h1>\n");
        if !self.is_verified() {
            page.push_str("<p>What the devices of this machine <strong>claim</strong>, side by side. Nothing on this page has been tried out: <code>polyverbs matrix --verify</code> does that.</p>\n");
        } else {
            page.push_str("<p>What the devices of this machine claim, and what they <strong>did</strong> when each claim was put to the test. Open a feature to see every probe and its evidence.</p>\n");
            let tally = self.tally();
            page.push_str("<ul class=\"tally\">");
            for (class, count, what) in [
                ("yes", tally.verified, "claimed and verified"),
                ("no", tally.refused, "not claimed and refused"),
                ("bad", tally.mismatch, "mismatches"),
                ("doubt", tally.not_verifiable, "not verifiable here"),
                ("count", tally.probes_passed, "probes passed"),
            ] {
                let quiet = if count == 0 { " quiet" } else { "" };
                put!(
                    page,
                    "<li class=\"{class}{quiet}\"><b>{count}</b> {what}</li>"
                );
            }
            page.push_str("</ul>\n");
        }
        page.push_str("<nav aria-label=\"Sections\">");
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                let title = section.title();
                put!(page, "<a href=\"#{}\">{title}</a>", title.to_lowercase());
            }
        }
        page.push_str("</nav>\n</header>\n");
    }

    // Shows each mismatch at the top of the page.
    fn alarm(&self, page: &mut String) {
        if self.mismatches().next().is_none() {
            return;
        }
        page.push_str("<section class=\"alarm\" role=\"alert\">\n<h2>Mismatches</h2>\n<ul>\n");
        for (row, column, found) in self.mismatches() {
            put!(
                page,
                "<li><a href=\"#{}\"><code>{}</code></a> of <b>{}</b> {}: {}</li>\n",
                anchor(row),
                escape(&row.name),
                escape(&column.device.name),
                if found.claimed {
                    "is claimed and fails"
                } else {
                    "is not claimed"
                },
                escape(&found.because)
            );
        }
        page.push_str("</ul>\n</section>\n");
    }

    fn titled(&self, page: &mut String, section: Section) {
        let title = section.title();
        let id = title.to_lowercase();
        put!(
            page,
            "<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{}</p>\n",
            section.about()
        );
        if section == Section::Features {
            for (extension, rows) in self.groups() {
                let kind = if extension == "core" {
                    ""
                } else {
                    "extension "
                };
                put!(page, "<h3>{kind}<code>{}</code></h3>\n", escape(extension));
                self.table(page, section, "Feature", &rows);
            }
        } else {
            let rows: Vec<_> = self.section(section).collect();
            self.table(page, section, title, &rows);
        }
        page.push_str("</section>\n");
    }

    fn table(&self, page: &mut String, section: Section, first: &str, rows: &[&Row]) {
        let class = section.title().to_lowercase();
        put!(
            page,
            "<div class=\"table {class}\">\n<div class=\"row head\"><span>{first}</span>"
        );
        for column in &self.columns {
            put!(page, "<span>{}</span>", escape(&column.device.name));
        }
        page.push_str("</div>\n");
        for row in rows {
            self.line(page, row);
        }
        page.push_str("</div>\n");
    }

    fn line(&self, page: &mut String, row: &Row) {
        let probed: Vec<_> = row.cells.iter().map(|cell| cell.proof.probed()).collect();
        let is_probed = probed.iter().any(Option::is_some);
        let is_wrong = row
            .cells
            .iter()
            .any(|cell| cell.proof.verdict() == Some(Verdict::Mismatch));
        let id = anchor(row);
        let (opened, closed) = match (is_probed, is_wrong) {
            (true, true) => ("<details open class=\"wrong\"", "</summary>"),
            (true, false) => ("<details", "</summary>"),
            (false, _) => ("<div", "</div>"),
        };
        put!(page, "{opened} id=\"{id}\"");
        page.push_str(if is_probed {
            "><summary class=\"row\">"
        } else {
            " class=\"row\">"
        });
        put!(
            page,
            "<span class=\"name\"><code>{}</code><small>{}</small></span>",
            escape(&row.name),
            escape(row.about)
        );
        for (column, cell) in self.columns.iter().zip(&row.cells) {
            put!(
                page,
                "<span class=\"cell\" data-device=\"{}\">{}</span>",
                escape(&column.device.name),
                pill(row.section, cell)
            );
        }
        page.push_str(closed);
        page.push('\n');
        if is_probed {
            self.evidence(page, &probed);
            page.push_str("</details>\n");
        }
    }

    // Shows each probe of a feature, with its evidence on each device.
    fn evidence(&self, page: &mut String, probed: &[Option<&Verified>]) {
        page.push_str("<div class=\"evidence\">\n");
        for (column, found) in self.columns.iter().zip(probed) {
            let Some(found) = found else { continue };
            put!(
                page,
                "<p><b>{}</b> {}</p>\n",
                escape(&column.device.name),
                escape(&verdict_of(found))
            );
        }
        let mut seen: Vec<&Probe> = Vec::new();
        for finding in probed.iter().flatten().flat_map(|found| &found.findings) {
            if !seen.iter().any(|probe| probe.id() == finding.probe.id()) {
                seen.push(&finding.probe);
            }
        }
        for probe in seen {
            put!(
                page,
                "<div class=\"row probe\"><span class=\"name\">{}<small><code>{}</code> rule {}</small></span>",
                escape(probe.about()),
                escape(probe.id()),
                escape(probe.rule())
            );
            let mut told = String::new();
            for (column, found) in self.columns.iter().zip(probed) {
                let device = escape(&column.device.name);
                let of_probe = found.and_then(|found| finding_of(found, probe));
                let (class, word) = match of_probe.map(|each| each.result) {
                    Some(ProbeResult::Passed) => ("yes", "passed"),
                    Some(ProbeResult::Failed) => ("bad", "failed"),
                    Some(ProbeResult::Refused) => ("no", "refused"),
                    Some(ProbeResult::NotRun) | None => ("no", "not run"),
                };
                put!(
                    page,
                    "<span class=\"cell\" data-device=\"{device}\"><span class=\"{class}\">{word}</span></span>"
                );
                if let Some(evidence) = of_probe.and_then(|each| each.evidence.as_ref()) {
                    put!(
                        told,
                        "<p class=\"found\"><b>{device}</b> {} <small>{}</small></p>",
                        escape(evidence.found()),
                        escape(&evidence.at())
                    );
                }
            }
            put!(page, "</div>{told}\n");
        }
        page.push_str("</div>\n");
    }
}

fn finding_of<'f>(found: &'f Verified, probe: &Probe) -> Option<&'f Finding> {
    let mut findings = found.findings.iter();
    findings.find(|each| each.probe.id() == probe.id())
}

fn verdict_of(found: &Verified) -> String {
    let because = &found.because;
    match (found.verdict, found.claimed) {
        (Verdict::Verified, _) => {
            let count = found.passed();
            let probes = if count == 1 { "probe" } else { "probes" };
            format!("claims it, and {count} {probes} found it so.")
        }
        (Verdict::Refused, _) if found.refused() == 0 => {
            format!("does not claim it, and refuses it by name: {because}.")
        }
        (Verdict::Refused, _) => {
            "does not claim it, refuses it by name, and refuses what was tried.".into()
        }
        (Verdict::Mismatch, true) => format!("claims it, and it fails: {because}"),
        (Verdict::Mismatch, false) => format!("does not claim it, but: {because}"),
        (Verdict::NotVerifiable, true) => {
            format!("claims it, which cannot be verified here: {because}")
        }
        (Verdict::NotVerifiable, false) => {
            format!("does not claim it, which cannot be verified here: {because}")
        }
    }
}

fn anchor(row: &Row) -> String {
    let section = row.section.title().to_lowercase();
    let name = row.name.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() || letter == '_' => letter,
        _ => '-',
    });
    format!("{section}-{}", name.collect::<String>())
}

fn card(page: &mut String, device: &DeviceReport, found: String) {
    put!(
        page,
        "<article class=\"{}\"><h2>{}</h2><p class=\"kind\">{}</p><dl>",
        device.transport,
        escape(&device.name),
        match device.transport {
            "iwarp" => "iWARP",
            _ => "InfiniBand",
        },
    );
    let features = match found.is_empty() {
        true => device.features.len().to_string(),
        false => found,
    };
    let mut facts = vec![
        ("Provider", device.provider.to_owned()),
        ("Features", features),
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
        put!(
            page,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            escape(&value)
        );
    }
    page.push_str("</dl></article>\n");
}

fn pill(section: Section, cell: &Cell) -> String {
    let Some(found) = cell.proof.probed() else {
        let text = escape(&shown(cell));
        return format!("<span class=\"{}\">{text}</span>", class(section, cell));
    };
    let ran = found.findings.iter().filter(|each| each.was_run()).count();
    let passed = found.passed();
    match found.verdict {
        Verdict::Verified => format!("<span class=\"yes\">✓ verified <i>{passed}/{ran}</i></span>"),
        Verdict::Refused => "<span class=\"no\">refused</span>".into(),
        Verdict::Mismatch => format!("<span class=\"bad\">✗ mismatch <i>{passed}/{ran}</i></span>"),
        Verdict::NotVerifiable => "<span class=\"doubt\">not verifiable here</span>".into(),
    }
}

fn class(section: Section, cell: &Cell) -> &'static str {
    match (&cell.claim, section) {
        (Claim::Number(_) | Claim::Bits(_), _) | (_, Section::Limits) => "number",
        // A gap that the device does not have is an ability of the device.
        (claim, Section::Gaps) if !claim.is_absent() => "doubt",
        (claim, _) if claim.is_absent() => "no",
        _ => "yes",
    }
}

fn shown(cell: &Cell) -> String {
    let text = cell.claim.to_string();
    match cell.claim {
        Claim::Number(_) => grouped(&text),
        _ => text,
    }
}

// Puts thin spaces between groups of three digits.
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
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7c; --paper: #f4f6f8; --sheet: #fff; --line: #e1e6ec;
  --shade: #f8fafc; --yes: #0b6b3a; --yes-back: #dff3e7; --doubt: #8a4b00; --doubt-back: #fdeccf; --bad: #a3161b;
  --bad-back: #fbdcdc; --ib: #2f5fd0; --iw: #b0413e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --soft: #9aa8ba; --paper: #12161c; --sheet: #1a2029;
  --line: #2d3643; --shade: #161b23; --yes: #7fdca6; --yes-back: #143524; --doubt: #ffc46b; --doubt-back: #3d2b0e;
  --bad: #ff9a94; --bad-back: #4a1a1c; --ib: #86a9ff; --iw: #ff9a94; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1.25rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 0; }
h3 { font-size: .95rem; margin: 1.4rem 0 .5rem; color: var(--soft); font-weight: 600; }
h3 code { color: var(--ink); font-size: 1rem; }
a { color: inherit; }
section[id] { margin-top: 2.5rem; scroll-margin-top: 1rem; }
section[id] > p { margin: .1rem 0 .8rem; color: var(--soft); }
header > p { margin: 0 0 1rem; max-width: 44rem; color: var(--soft); }
header strong { color: var(--ink); }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
ul.tally { list-style: none; display: flex; flex-wrap: wrap; gap: .5rem; margin: 0 0 1rem; padding: 0; }
ul.tally li { border-radius: 8px; padding: .35rem .8rem; font-size: .9rem; background: var(--sheet); border: 1px solid var(--line); }
ul.tally b { font-size: 1.15rem; margin-right: .15rem; font-variant-numeric: tabular-nums; }
ul.tally .yes { color: var(--yes); background: var(--yes-back); border-color: transparent; }
ul.tally .bad { color: var(--bad); background: var(--bad-back); border-color: transparent; }
ul.tally .doubt { color: var(--doubt); background: var(--doubt-back); border-color: transparent; }
ul.tally .quiet { color: var(--soft); background: none; border-color: var(--line); }
nav { display: flex; flex-wrap: wrap; gap: .5rem; }
nav a { text-decoration: none; border: 1px solid var(--line); background: var(--sheet); border-radius: 99px;
  padding: .15rem .8rem; font-size: .9rem; }
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
.alarm { margin-top: 1.75rem; background: var(--bad-back); color: var(--bad); border-radius: 10px; padding: .9rem 1.1rem; }
.alarm ul { margin: .4rem 0 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.table { background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; overflow-x: auto; }
.row { display: grid; grid-template-columns: minmax(13rem, 1fr) repeat(var(--n), minmax(8.5rem, max-content)); gap: .25rem .75rem;
  align-items: center; padding: .5rem .9rem; border-top: 1px solid var(--line); }
.limits .row { grid-template-columns: minmax(13rem, 1fr) repeat(var(--n), 11.5rem); }
.head { border-top: 0; font-size: .85rem; font-weight: 600; color: var(--soft); background: var(--shade); }
.few .table { overflow: clip; }
.few .head { position: sticky; top: 0; z-index: 1; border-bottom: 1px solid var(--line); }
.few .head + * { border-top: 0; }
.head span + span, .cell { text-align: center; }
.limits .head span + span, .limits .cell { text-align: right; }
.features .row { grid-template-columns: minmax(13rem, 1fr) repeat(var(--n), 9.5rem); }
small { display: block; color: var(--soft); }
details { border-top: 1px solid var(--line); }
summary.row { border-top: 0; cursor: pointer; list-style: none; position: relative; padding-left: 2rem; }
summary.row::-webkit-details-marker { display: none; }
summary.row::before { content: "›"; position: absolute; left: .9rem; top: .45rem; font-size: 1.2rem; line-height: 1.5rem; color: var(--soft);
  transition: transform .15s; }
details[open] > summary::before { transform: rotate(90deg); }
summary.row:hover { background: var(--shade); }
.features .head.row { padding-left: 2rem; }
.wrong > summary { box-shadow: inset 4px 0 0 var(--bad); }
.evidence { background: var(--shade); border-top: 1px solid var(--line); padding: .6rem 0 .5rem; font-size: .92rem; }
.evidence > p { margin: .1rem .9rem .1rem 2rem; }
.evidence .probe.row { padding-left: 2rem; border-top: 1px dotted var(--line); margin-top: .35rem; padding-bottom: 0; }
.evidence .found { margin: .2rem .9rem .3rem 2rem; padding-left: .7rem; border-left: 3px solid var(--line); color: var(--soft);
  overflow-wrap: anywhere; }
.evidence .found small { display: inline; opacity: .8; }
.evidence .name small code { margin-right: .4rem; }
.cell > span { white-space: nowrap; }
.cell i { font-style: normal; opacity: .75; font-variant-numeric: tabular-nums; }
.cell .yes, .cell .doubt, .cell .bad { border-radius: 99px; padding: .1rem .65rem; font-size: .88rem; }
.cell .yes { color: var(--yes); background: var(--yes-back); }
.cell .doubt { color: var(--doubt); background: var(--doubt-back); }
.cell .bad { color: var(--bad); background: var(--bad-back); font-weight: 600; }
.cell .no { color: var(--soft); font-size: .9rem; }
.number { font-variant-numeric: tabular-nums; font-size: .92rem; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .9rem; }
@media (max-width: 44rem) {
  body { padding: 1.25rem .7rem 2rem; }
  .head { display: none; }
  .head + * , .head + .row { border-top: 0; }
  .row, .features .row, .limits .row { grid-template-columns: repeat(var(--n), minmax(0, 1fr)); gap: .3rem .75rem; padding: .6rem .8rem; }
  .name { grid-column: 1 / -1; }
  .cell, .limits .cell { text-align: left; font-size: .95rem; }
  .cell::before { content: attr(data-device); display: block; color: var(--soft); font-size: .78rem; margin-bottom: .05rem; overflow-wrap: anywhere; }
  .cell .yes, .cell .doubt, .cell .bad { padding: .05rem .5rem; font-size: .82rem; }
  .features summary.row, .features .evidence .probe.row { padding-left: 1.8rem; }
  summary.row::before { left: .7rem; top: .45rem; }
  ul.tally { display: grid; grid-template-columns: 1fr 1fr; }
  ul.tally .count { grid-column: 1 / -1; }
  .evidence > p, .evidence .found { margin-left: 1.7rem; }
}
@media print { body { background: #fff; } nav { display: none; } }
</style>
</head>
"##;
