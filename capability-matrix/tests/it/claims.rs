//! The matrix of invented devices: whatever their claims and names are, every page stays well formed.

use capability_matrix::{Claim, Matrix, Section};
use polyverbs::{
    Features,
    capability::{BaselineGaps, DeviceAttributes, ExtensionFeatures},
    extension::Extensions,
};

fn devices() -> Vec<DeviceAttributes> {
    let mut devices: Vec<_> = (polyverbs::devices().unwrap().iter())
        .map(|device| device.attributes())
        .collect();
    devices[0].name = "<b>&\"one\"|'".into();
    devices[0].features -= Features::BMME;
    devices[0].gaps |= BaselineGaps::NO_ATOMICS;
    devices[0].extensions.push(ExtensionFeatures {
        set: "acme",
        bits: 1,
        names: vec!["TELEPORT"],
        limits: vec![("max_distance", 7)],
    });
    devices
}

fn matrix(devices: &[DeviceAttributes]) -> Matrix {
    Matrix::of_attributes(devices, &Extensions::linked().unwrap())
}

fn claim<'m>(matrix: &'m Matrix, section: Section, name: &str) -> &'m Claim {
    let row = matrix.section(section).find(|row| row.name == name);
    &row.unwrap_or_else(|| panic!("there is no row {name}"))
        .cells[0]
        .claim
}

#[test]
fn operations_follow_from_features_and_gaps() {
    let matrix = matrix(&devices());
    assert!(claim(&matrix, Section::Operations, "FAST_REGISTER").is_absent());
    assert!(claim(&matrix, Section::Operations, "ATOMIC_FETCH_AND_ADD").is_absent());
    assert_eq!(
        *claim(&matrix, Section::Operations, "SEND"),
        Claim::Words(vec!["RC", "UC", "UD"])
    );
    assert_eq!(*claim(&matrix, Section::Gaps, "NO_ATOMICS"), Claim::Yes);
}

#[test]
fn bits_of_extensions_have_rows() {
    let matrix = matrix(&devices());
    assert_eq!(
        *claim(&matrix, Section::Features, "acme::TELEPORT"),
        Claim::Yes
    );
    assert!(
        matrix.columns[0]
            .device
            .features
            .contains(&"acme::TELEPORT".to_owned())
    );
}

#[test]
fn no_name_breaks_the_page() {
    let page = matrix(&devices()).to_html();
    assert!(!page.contains("<b>"));
    assert!(page.contains("&lt;b&gt;&amp;&quot;one&quot;|&#39;"));
    for tag in ["table", "section", "tr", "article", "code", "dl"] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn a_table_of_markdown_has_as_many_cells_in_each_row() {
    let mut devices = devices();
    devices[0].name = "one".into();
    let page = matrix(&devices).to_markdown();
    for line in page.lines().filter(|line| line.starts_with('|')) {
        assert_eq!(line.matches('|').count(), devices.len() + 3, "{line}");
    }
}

#[test]
fn without_devices_there_are_still_pages() {
    let matrix = matrix(&[]);
    assert!(matrix.to_html().contains("</html>"));
    assert!(!matrix.to_text(100, false).is_empty() && !matrix.to_markdown().is_empty());
    assert_eq!(matrix.to_json()["devices"], serde_json::json!([]));
}

#[test]
fn many_devices_still_fit_the_terminal() {
    let devices: Vec<_> = devices().into_iter().cycle().take(4).collect();
    let text = matrix(&devices).to_text(100, false);
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}
