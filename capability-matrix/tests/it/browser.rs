//! The page as a browser shows it, on a wide screen and on a narrow one.
//!
//! `tests/foreign` runs these tests, with a browser that it installs; `POLYVERBS_BROWSER` names another.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use capability_matrix::{Matrix, Section};
use polyverbs::probe::Verdict;
use serde_json::Value;

use crate::{OF_LIARS, VERIFIED};

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn browser() -> PathBuf {
    if let Some(named) = env::var_os("POLYVERBS_BROWSER") {
        return named.into();
    }
    let folders: Vec<_> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let mut found = NAMES.iter().flat_map(|name| {
        let paths = folders.iter().map(move |folder| folder.join(name));
        paths.filter(|path| path.is_file())
    });
    found.next().unwrap_or_else(|| {
        let names = NAMES.join(", ");
        panic!("no browser ({names}): install chromium, or name one in POLYVERBS_BROWSER")
    })
}

/// A browser, which is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The browser has ended by itself if the test saw a page.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The content of a page as a browser renders it, as `look.html` reports it.
fn seen(browser: &Path, page: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("matrix.html"), page).unwrap();
    std::fs::write(path("look.html"), include_str!("look.html")).unwrap();
    let started = Command::new(browser)
        .args([
            "--headless",
            // The browser only opens two files of this test, and has no sandbox for root.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--allow-file-access-from-files",
            "--virtual-time-budget=10000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", path("profile").display()))
        .arg(format!("file://{}", path("look.html").display()))
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(path("dom")).unwrap())
        .stderr(std::fs::File::create(path("said")).unwrap())
        .spawn();
    let mut running =
        Running(started.unwrap_or_else(|error| panic!("{}: {error}", browser.display())));
    test_kit::waiting::until(|| running.0.try_wait().unwrap().is_some());
    let dom = std::fs::read_to_string(path("dom")).unwrap();
    let said = std::fs::read_to_string(path("said")).unwrap_or_default();
    let told = dom
        .split_once("<pre id=\"seen\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"));
    let (told, _) = told.unwrap_or_else(|| panic!("nothing was seen\n{dom}\n{said}"));
    let told = told
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}\n{said}"))
}

/// The text of each cell of a feature.
fn shown(matrix: &Matrix) -> Vec<(String, Vec<String>)> {
    let rows = matrix.section(Section::Features);
    rows.map(|row| {
        let cells = row.cells.iter().map(|cell| {
            let found = cell.proof.probed().expect("a matrix that was verified");
            match found.verdict {
                Verdict::Verified => format!("✓ verified {0}/{0}", found.passed()),
                Verdict::Refused => "refused".to_owned(),
                other => other.name().to_owned(),
            }
        });
        (row.name.clone(), cells.collect())
    })
    .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn list(value: &Value) -> &[Value] {
    let list = value.as_array();
    list.unwrap_or_else(|| panic!("no list: {value}"))
}

#[test]
#[ignore = "needs chromium: tests/foreign runs it"]
fn a_browser_shows_the_verified_matrix() {
    let matrix = &*VERIFIED;
    let seen = seen(&browser(), &matrix.to_html());
    for screen in ["wide", "narrow"] {
        let page = &seen[screen];
        assert_eq!(text(&page["title"]), "What each device can do – Polyverbs");
        assert_eq!(text(&page["heading"]), "What each device can do");
        assert_eq!(page["scripts"], 0, "it needs no script");
        assert_eq!(page["loaded"], 0, "it needs no other file");
        is_readable(page, screen);
        let cards: Vec<_> = list(&page["cards"]).iter().map(text).collect();
        assert_eq!(cards, ["ib0", "iw0"], "a card for each device");
        let sections: Vec<_> = list(&page["sections"]).iter().map(text).collect();
        assert_eq!(sections, ["Features", "Operations", "Gaps", "Limits"]);
        let rows: Vec<_> = list(&page["features"])
            .iter()
            .map(|row| {
                let cells = list(&row["cells"]).iter().map(|cell| text(cell).to_owned());
                (text(&row["name"]).to_owned(), cells.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(rows, shown(matrix), "{screen}");
        let tally = matrix.tally();
        let counted = format!("{} claimed and verified", tally.verified);
        assert!(
            list(&page["tally"])
                .iter()
                .any(|item| text(item) == counted),
            "{page:#}"
        );
        // The evidence is one click away, for each probe.
        let evidence = &page["evidence"];
        assert_eq!(evidence["before"], false, "evidence is closed at first");
        assert_eq!(evidence["after"], true, "a click opens it");
        let probes: Vec<_> = list(&evidence["probes"]).iter().map(text).collect();
        assert!(probes.contains(&"bmme.stale-key"), "{probes:?}");
    }
    // Devices are columns, named once; on a narrow screen each cell has the name of its device.
    assert_eq!(seen["wide"]["heads"], true);
    assert_eq!(seen["narrow"]["heads"], false);
    assert_eq!(text(&seen["narrow"]["label"]), "\"ib0\"");
    assert_eq!(text(&seen["wide"]["label"]), "none");
}

fn is_readable(page: &Value, screen: &str) {
    assert_eq!(page["overflow"], 0, "{screen}: the page scrolls sideways");
    assert_eq!(
        page["clipped"],
        serde_json::json!([]),
        "{screen}: text is cut"
    );
    assert_eq!(
        page["faint"],
        serde_json::json!([]),
        "{screen}: hard to read"
    );
}

#[test]
#[ignore = "needs chromium: tests/foreign runs it"]
fn a_browser_shows_a_mismatch_first_and_opened() {
    let seen = seen(&browser(), &OF_LIARS.to_html());
    for screen in ["wide", "narrow"] {
        let page = &seen[screen];
        is_readable(page, screen);
        let alerts: Vec<_> = list(&page["alerts"]).iter().map(text).collect();
        let told = |start: &str| alerts.iter().any(|alert| alert.starts_with(start));
        assert!(
            told("SRQ of ib0 is not claimed: not claimed, and 4 probes"),
            "{alerts:?}"
        );
        assert!(
            told("UD of iw0 is claimed and fails: core.ud: "),
            "{alerts:?}"
        );
        let opened: Vec<_> = list(&page["opened"]).iter().map(text).collect();
        assert!(
            opened.contains(&"SRQ") && opened.contains(&"UD"),
            "{opened:?}"
        );
    }
}

#[test]
fn it_is_known_that_there_is_no_browser() {
    let gone = Path::new("/nowhere/chromium");
    let opened = std::panic::catch_unwind(|| seen(gone, "<!doctype html>"));
    assert!(opened.is_err(), "a page was seen without a browser");
}
