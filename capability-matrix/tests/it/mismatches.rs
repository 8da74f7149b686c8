//! A mismatch on every page.

use serde_json::Value;

use crate::OF_LIARS;

const HIDDEN: &str = "not claimed, and 4 probes of it pass";
const FAILING: &str = "core.ud: ";

#[test]
fn in_text_it_stands_at_the_end_with_its_evidence() {
    let text = OF_LIARS.to_text(100, false);
    let line = |start: &str| {
        let found = text
            .lines()
            .find(|line| line.trim_start().starts_with(start));
        found.unwrap_or_else(|| panic!("{start}\n{text}"))
    };
    assert!(line("SRQ ").contains("✗ 4/4"), "{text}");
    assert!(line("UD ").contains("✗ 0/3"), "{text}");
    assert!(line("✗ ib0 SRQ: ").contains(HIDDEN), "{text}");
    assert!(line("✗ iw0 UD: claimed; core.ud: ").len() > 30, "{text}");
    assert!(
        text.contains("probes/src/datagrams.rs:"),
        "where it was found: {text}"
    );
    assert!(text.trim_end().ends_with("mismatches."), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let coloured = OF_LIARS.to_text(100, true);
    assert!(
        coloured.contains("\u{1b}[1m\u{1b}[31m✗ ib0 SRQ"),
        "{coloured}"
    );
}

#[test]
fn in_markdown_it_has_a_list() {
    let page = OF_LIARS.to_markdown();
    let (tables, list) = page.split_once("## Mismatches\n\n").expect("a heading");
    let row = |name: &str| {
        let start = format!("| `{name}` |");
        tables
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap()
    };
    assert!(row("SRQ").contains("| **mismatch** | ✓ 4 |"), "{page}");
    assert!(row("UD").contains("| ✓ 3 | **mismatch** |"), "{page}");
    assert!(
        list.contains(&format!("* `SRQ` of `ib0`: {HIDDEN}")),
        "{list}"
    );
    assert!(
        list.contains(&format!("* `UD` of `iw0`: {FAILING}")),
        "{list}"
    );
}

#[test]
fn json_has_the_evidence_of_every_probe() {
    let page = OF_LIARS.to_json();
    let cell = |feature: &str, device: &str| -> Value {
        let rows = page["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["feature"] == feature).unwrap();
        row["cells"][device].clone()
    };
    let hidden = cell("SRQ", "ib0");
    assert_eq!(hidden["claimed"], false);
    assert_eq!(hidden["verdict"], "mismatch");
    assert_eq!(hidden["probes_passed"], 4);
    assert_eq!(hidden["because"], HIDDEN);
    let failing = cell("UD", "iw0");
    assert_eq!(failing["claimed"], true);
    assert_eq!(failing["verdict"], "mismatch");
    assert_eq!(
        (&failing["probes_passed"], &failing["probes_failed"]),
        (&0.into(), &3.into())
    );
    for probe in failing["probes"].as_array().unwrap() {
        assert_eq!(probe["result"], "failed");
        assert!(
            probe["evidence"]
                .as_str()
                .is_some_and(|found| !found.is_empty())
        );
        let at = probe["at"].as_str().unwrap();
        assert!(at.contains(".rs:"), "{at}");
    }
    assert!(page["tally"]["mismatch"].as_u64().unwrap() >= 2);
}

#[test]
fn html_shows_a_mismatch_first() {
    let page = OF_LIARS.to_html();
    let alert = page.find("role=\"alert\"").expect("an alert");
    assert!(alert < page.find("<article").unwrap());
    assert!(page.contains(HIDDEN), "{page}");
    // Its row is open, so that the evidence is seen without a click.
    assert!(page.contains("<details open class=\"wrong\" id=\"features-SRQ\">"));
    assert!(page.contains("<details open class=\"wrong\" id=\"features-UD\">"));
    assert!(page.contains("<p class=\"found\"><b>iw0</b>"));
}
