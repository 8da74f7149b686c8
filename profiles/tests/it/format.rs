//! What wrong profiles get: one error with file, line and what would be right.

use polyverbs_profiles::rule::Rule;
use polyverbs_profiles::{Profile, Wanted};
use proptest::prelude::*;

const HEAD: &str =
    "profile = 1\nname = \"x\"\nclass = \"c\"\nsummary = \"s\"\ntransport = \"roce\"\n";
const FACT: &str = "[[fact]]\nsure = \"source\"\nsource = \"a driver\"\n";

#[track_caller]
fn complaint(text: &str) -> String {
    Profile::parse("x.toml", text).unwrap_err().to_string()
}

#[test]
fn a_wrong_profile_names_its_line_and_what_is_right() {
    let services = "has = [\"RC\"]\nlacks = [\"UC\", \"UD\"]\n";
    let whole = format!("{HEAD}{FACT}{services}");
    Profile::parse("x.toml", &whole).unwrap();
    for (text, told) in [
        (
            whole.replace("profile = 1", "profile = 2"),
            "x.toml:1: the format is 1, not 2",
        ),
        (
            whole.replace("\"x\"", "\"X y\""),
            "x.toml:2: a name has small letters, digits, - and ., not \"X y\"",
        ),
        (
            whole.replace("roce", "ethernet"),
            "x.toml:5: transport is roce or iwarp, not ethernet",
        ),
        (
            format!("{whole}speed = 7\n"),
            "x.toml:11: unknown field `speed`, expected one of",
        ),
        (
            whole.replace("a driver", " "),
            "x.toml:8: a source is a file of a driver, an issue or a page",
        ),
        (
            whole.replace("\"source\"\n", "\"certain\"\n"),
            "x.toml:7: unknown variant `certain`, expected one of `measured`, `source`, `output`, `report`",
        ),
        (
            format!("{whole}limits = {{ max_fun = 1 }}\n"),
            "x.toml:11: no limit is called max_fun; there are max_qp, ",
        ),
        (
            whole.replace("[\"RC\"]", "[\"RCC\"]"),
            "x.toml:9: no ability is called RCC; there are RC, UC, UD, ",
        ),
        (
            whole.replace("[\"UC\", \"UD\"]", "[\"UC\", \"UD\", \"REGIONS\"]"),
            "x.toml:10: every device has REGIONS",
        ),
        (
            whole.replace("[\"UC\", \"UD\"]", "[\"UC\", \"UD\", \"RC\"]"),
            "x.toml:10: RC is said in line 9 already",
        ),
        (
            whole.replace("\"UC\", ", ""),
            "x.toml: nothing is said about UC",
        ),
        (
            whole.replace("[\"RC\"]", "[\"RC\", \"SRQ\"]\nlimits = { max_srq = 0 }"),
            "x.toml:9: has SRQ, but max_srq is 0: one of the two is wrong",
        ),
        (
            format!("{whole}atomic-cap = \"hca\"\nport = {{ active-mtu = 1500 }}\n"),
            "x.toml:12: an MTU is 256, 512, 1024, 2048 or 4096, not 1500",
        ),
        (
            format!("{whole}port = {{ gids = [\"v3\"] }}\n"),
            "x.toml:11: a GID is one of empty, v1 link-local",
        ),
        (
            format!("{whole}[[quirk]]\nrule = \"budget\"\nsure = \"report\"\nsource = \"s\"\n"),
            "x.toml:12: budget needs exactly one of qp, cq, mr",
        ),
        (
            format!(
                "{whole}[[quirk]]\nrule = \"error-wc\"\nsure = \"report\"\nsource = \"s\"\n[[quirk]]\nrule = \"error-wc\"\nsure = \"report\"\nsource = \"s\"\n"
            ),
            "x.toml:16: there is a quirk error-wc already",
        ),
        (format!("{whole}[[fact]\n"), "x.toml:11: "),
        ("profile = 1\n".to_owned(), "x.toml"),
    ] {
        let complaint = complaint(&text);
        assert!(complaint.starts_with(told), "{complaint}\nnot {told}");
    }
}

#[test]
fn an_unknown_name_lists_the_profiles() {
    let told = Profile::named("pollara").unwrap_err().to_string();
    assert!(
        told.starts_with("pollara: no profile has this name; there are alibaba-erdma, "),
        "{told}"
    );
    let told = Profile::named("./not-there.toml").unwrap_err().to_string();
    assert!(
        told.starts_with("./not-there.toml: cannot be read: "),
        "{told}"
    );
}

#[test]
fn requirements_are_read_with_their_faults() {
    for (text, told) in [
        (
            "needs = [\"RC\"]\nmax_qp = 7\n",
            "r.toml:2: unknown field `max_qp`",
        ),
        (
            "needs = [\"SRQS\"]\n",
            "r.toml:1: no ability is called SRQS",
        ),
        (
            "[limits]\nmax_qps = 1\n",
            "r.toml:2: no limit is called max_qps",
        ),
        (
            "transport = \"tcp\"\n",
            "r.toml:1: transport is infiniband, roce or iwarp, not tcp",
        ),
    ] {
        let complaint = Wanted::parse("r.toml", text).unwrap_err().to_string();
        assert!(complaint.starts_with(told), "{complaint}\nnot {told}");
    }
}

/// A shipped profile with some bytes replaced, cut off at a place.
fn damaged() -> impl Strategy<Value = String> {
    let names: Vec<_> = Profile::names().collect();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let parts = (
        proptest::sample::select(names),
        changes,
        any::<prop::sample::Index>(),
    );
    parts.prop_map(|(name, changes, end)| {
        let mut bytes = Profile::named(name).unwrap().to_toml().into_bytes();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let end = end.index(bytes.len() + 1);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    })
}

proptest! {
    #[test]
    fn a_damaged_profile_is_read_or_refused(text in damaged()) {
        if let Ok(profile) = Profile::parse("x.toml", &text) {
            let again = Profile::parse("x.toml", &profile.to_toml()).unwrap();
            prop_assert_eq!(again.differences(&profile), []);
        }
    }

    #[test]
    fn any_text_is_imported_or_refused(text in "\\PC*(\n\\PC*)*", lines in proptest::collection::vec("[a-z_]{1,8}: \\PC*", 0..4)) {
        for text in [text, lines.join("\n"), format!("max_qp: 1\n{}", lines.join("\n"))] {
            if let Ok(imported) = Profile::import("x", "page", &text) {
                let text = imported.profile.to_toml();
                prop_assert!(Profile::parse("x.toml", &text).is_ok(), "{}", text);
            }
        }
    }

    #[test]
    fn any_rule_is_read_or_refused(text in "[a-z-]{0,12}( [a-z-]{1,8}=\\PC{0,8},?){0,3}") {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
    }
}
