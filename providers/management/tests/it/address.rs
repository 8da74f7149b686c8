//! Which MADs queue pairs 0 and 1 take.

use polyverbs_management::address::{SMI_QP, is_admitted};
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::smp::{DIRECTED_CLASS, LID_CLASS};
use polyverbs_wire::mad::{Attribute as _, CM_CLASS, ClassPortInfo, GSI_Q_KEY, GSI_QP, method};

use crate::rig::Request;

fn request(class: u8, method: u8) -> Request {
    Request {
        class,
        method,
        ..Request::get::<ClassPortInfo>()
    }
}

// covers 8.69
#[test]
fn queue_pair_0_takes_subnet_management_and_nothing_else() {
    for class in 0..=u8::MAX {
        let mad = request(class, method::GET).to_mad();
        let expected = matches!(class, LID_CLASS | DIRECTED_CLASS);
        for q_key in [0, 1, GSI_Q_KEY] {
            assert_eq!(is_admitted(&mad, SMI_QP, q_key), expected, "class {class}");
        }
        assert_eq!(
            is_admitted(&mad, GSI_QP, GSI_Q_KEY),
            !expected,
            "class {class}"
        );
    }
}

// covers 8.69
#[test]
fn queue_pair_1_demands_its_q_key() {
    let mad = request(PERF_CLASS, method::GET).to_mad();
    for q_key in [0, 1, GSI_Q_KEY - 1, GSI_Q_KEY + 1] {
        assert!(!is_admitted(&mad, GSI_QP, q_key), "{q_key:#x}");
    }
    assert!(is_admitted(&mad, GSI_QP, GSI_Q_KEY));
}

// covers 8.69
#[test]
fn connection_management_has_one_method() {
    let send = Request {
        attribute_id: 0x10,
        ..request(CM_CLASS, method::SEND)
    };
    let get = Request {
        method: method::GET,
        ..send
    };
    let class_port_info = Request {
        attribute_id: ClassPortInfo::ID,
        ..get
    };
    for (request, expected) in [(send, true), (get, false), (class_port_info, true)] {
        let mad = request.to_mad();
        assert_eq!(
            is_admitted(&mad, GSI_QP, GSI_Q_KEY),
            expected,
            "{request:?}"
        );
    }
}

// covers 8.64
#[test]
fn other_queue_pairs_and_versions_take_no_mad() {
    let mut mad = request(PERF_CLASS, method::GET).to_mad();
    assert!(!is_admitted(&mad, 2, GSI_Q_KEY));
    mad[0] = 2;
    assert!(!is_admitted(&mad, GSI_QP, GSI_Q_KEY));
}
