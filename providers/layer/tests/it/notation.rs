//! What a script is, and what an error says.

use polyverbs_layer::{Faults, LIBRARY_CALLS, Verb};
use proptest::prelude::*;

/// Scripts, each as it is written again.
const SCRIPTS: &[(&str, &str)] = &[
    ("reg_mr@101+:ENOMEM", "reg_mr@101+:ENOMEM"),
    ("create_qp@11+:EBUSY", "create_qp@11+:EBUSY"),
    ("modify_qp[to=rtr]@2+:EINVAL", "modify_qp[to=rtr]@2+:EINVAL"),
    ("post_send[qp=1]@500:EAGAIN", "post_send[qp=1]@500:EAGAIN"),
    ("wc.write@3:RETRY_EXC", "wc.write@3:RETRY_EXC"),
    (
        "wc.read~0.1%:REM_ACCESS; seed=7",
        "wc.read~0.1%:REM_ACCESS; seed=7",
    ),
    (
        "event@5s:PORT_ERR->after 2s->PORT_ACTIVE",
        "event@5s:PORT_ERR->after 2s->PORT_ACTIVE",
    ),
    ("wc[qp=2]@10..20:hold 30ms", "wc[qp=2]@10..20:hold 30ms"),
    ("wc.send@100:lost", "wc.send@100:lost"),
    ("reg_mr@5..5+2:EIO", "reg_mr@5:EIO"),
    (
        "get_async_event@1..3:EINTR; cm.ESTABLISHED@2:UNREACHABLE; create_cq@1:ENOMEM->off",
        "get_async_event@1..3:EINTR; cm.ESTABLISHED@2:UNREACHABLE; create_cq@1:ENOMEM->off",
    ),
    // Blanks, comments, lines, long names and other units.
    (
        " wc @ 1 .. 9 + 2 ~ 50 % : bare IBV_WC_REM_ACCESS_ERR vendor 0x81 -> PORT_ERR # why\n\nseed = 0x10 ; poll_cq:EIO",
        "wc@1..9+2~50%:bare REM_ACCESS vendor 0x81->PORT_ERR; poll_cq:EIO; seed=16",
    ),
    (
        "reg_mr[dev=mlx5_0]@2+3:delay 1.5ms",
        "reg_mr[dev=mlx5_0]@2+3:delay 1500us",
    ),
    ("event[type=PORT_ERR]@1:lost", "event[type=PORT_ERR]@1:lost"),
    (
        "event[qp=2]@1m:bare QP_FATAL",
        "event[qp=2]@60s:bare QP_FATAL",
    ),
    (
        "wc[peer=10.0.0.2,type=rc]:FLUSH",
        "wc[type=rc,peer=10.0.0.2]:WR_FLUSH",
    ),
    (
        "cm.CONNECT_REQUEST:lost; cm.ESTABLISHED:ETIMEDOUT",
        "cm.CONNECT_REQUEST:lost; cm.ESTABLISHED:ETIMEDOUT",
    ),
    ("modify_qp:ENOTSUP", "modify_qp:EOPNOTSUPP"),
    ("", ""),
];

#[test]
fn a_script_is_written_as_it_is_read() {
    for (text, again) in SCRIPTS {
        let faults: Faults = text
            .parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(faults.to_string(), *again);
        assert_eq!(again.parse::<Faults>().as_ref(), Ok(&faults), "{again}");
    }
}

#[test]
fn each_verb_and_each_call_of_the_library_has_rules() {
    let verbs = Verb::ALL.iter().map(|verb| verb.name());
    for name in verbs.chain(LIBRARY_CALLS.iter().copied()) {
        let text = format!("{name}@1:EIO");
        assert_eq!(text.parse::<Faults>().unwrap().to_string(), text);
    }
}

/// Texts that are no scripts, each with the column and with parts of the message.
const WRONG: &[(&str, usize, &[&str])] = &[
    (
        "create_qq@1:EIO",
        1,
        &["create_qq", "did you mean create_cq?"],
    ),
    ("ibv_reg_mr:EIO", 1, &["without ibv_", "reg_mr"]),
    ("reg_mr:ENOMEN", 8, &["ENOMEN", "did you mean ENOMEM?"]),
    (
        "reg_mr:RETRY_EXC",
        1,
        &["RETRY_EXC is a status of completions", "EINVAL"],
    ),
    ("wc:ENOMEM", 1, &["RETRY_EXC", "not with ENOMEM"]),
    ("wc.writ:lost", 4, &["writ", "write"]),
    (
        "reg_mr[qp=1]:EIO",
        8,
        &["reg_mr cannot be chosen by qp, but by dev"],
    ),
    (
        "create_qp[qp=1]:EIO",
        11,
        &["create_qp cannot be chosen by qp"],
    ),
    ("wc[colour=1]:lost", 4, &["colour is no filter", "qp"]),
    ("wc[qp=0]:lost", 7, &["counted from 1"]),
    ("modify_qp[to=up]:EIO", 14, &["up is not a state", "rtr"]),
    ("wc@0:lost", 4, &["counted from 1"]),
    ("wc@9..3:lost", 7, &["before the first"]),
    ("wc@5s:lost", 4, &["a time is for `event`"]),
    ("event@5x:PORT_ERR", 7, &["30ms", "5x"]),
    ("wc~0%:lost", 4, &["above 0%"]),
    ("wc~200%:lost", 4, &["at most 100%"]),
    ("wc~5:lost", 5, &["percentage"]),
    ("wc@3", 5, &["`:` and what shall happen", "the line ends"]),
    ("wc:", 4, &["what shall happen belongs here"]),
    ("wc:lost lost", 9, &["`;`", "`->`"]),
    ("wc:lost->RETRY_EXC", 1, &["exclude each other"]),
    ("wc:delay 3ms", 1, &["hold"]),
    ("post_send:hold 3ms", 1, &["delay"]),
    ("post_send:lost", 1, &["cannot be lost"]),
    ("event@1s:PORT_ERR->after 1s->lost", 1, &["lost"]),
    ("event@1s:PORT_ERR->after 1s", 1, &["after"]),
    ("event@1s:PORT_DOWN", 10, &["PORT_DOWN"]),
    ("cm.ESTABLISH:lost", 4, &["did you mean ESTABLISHED?"]),
    ("rdma_connect:PORT_ERR", 1, &["no event of a device"]),
    ("wc:lost; post_sned:EIO", 10, &["did you mean post_send?"]),
];

#[test]
fn an_error_names_the_column_and_what_would_be_right() {
    for (text, column, parts) in WRONG {
        let error = text.parse::<Faults>().expect_err(text);
        assert_eq!(error.column, *column, "{text}: {error}");
        let said = error.to_string();
        assert!(
            parts.iter().all(|part| said.contains(part)),
            "{text}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let error = "wc:lost\n  wx:lost".parse::<Faults>().unwrap_err();
    assert_eq!((error.line, error.column), (2, 3));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_at_a_place_of_it(text in "[a-z_.@~:;\\[\\]=+0-9A-Z #%>\\-\u{e9}\n]{0,60}") {
        if let Err(error) = text.parse::<Faults>() {
            let line = text.lines().nth(error.line - 1).unwrap();
            prop_assert!(error.column <= line.chars().count() + 1);
        }
    }

    #[test]
    fn a_written_script_reads_as_the_same_script(
        head in prop::sample::select(vec!["wc", "wc.read", "reg_mr", "event", "modify_qp[to=rts]"]),
        first in 1_u64..9, last in 9_u64..99, step in 1_u64..5, percent in 1_u32..100_000_000,
        act in prop::sample::select(vec!["PORT_ERR", "bare GID_CHANGE", "PORT_ERR->after 3ms->PORT_ACTIVE", "off"]),
    ) {
        let text = format!("{head}@{first}..{last}+{step}~{}%:{act}", f64::from(percent) / 1e6);
        let faults: Faults = text.parse().unwrap();
        prop_assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults);
    }
}
