//! Errors of control verbs: their texts and their kinds.

use std::io;

use verbs_api::{ArgumentReason, ErrorKind, Operations, QpOptions, SrqOptions, VerbError};

use crate::mock;

// covers 8.05
#[test]
fn an_error_of_the_system_has_its_text_its_number_and_a_kind() {
    let error = VerbError::os("eventfd", io::Error::from_raw_os_error(24));
    let text = "eventfd: Too many open files (os error 24)";
    assert_eq!(error.to_string(), text);
    // The numbers are ENOENT, EIO, ENOMEM, EBUSY, ENODEV, EINVAL, EMFILE, ENOSPC, ENOSYS, EOPNOTSUPP.
    for (errno, kind) in [
        (2, ErrorKind::NotFound),
        (5, ErrorKind::DeviceRemoved),
        (12, ErrorKind::Resources),
        (16, ErrorKind::Busy),
        (19, ErrorKind::DeviceRemoved),
        (22, ErrorKind::InvalidArgument),
        (24, ErrorKind::Resources),
        (28, ErrorKind::Resources),
        (38, ErrorKind::Unsupported),
        (95, ErrorKind::Unsupported),
    ] {
        assert_eq!(
            VerbError::Os {
                verb: "open",
                errno
            }
            .kind(),
            kind,
            "{errno}"
        );
    }
    let without_number = VerbError::os("listen", io::ErrorKind::AddrInUse);
    assert_eq!(without_number.kind(), ErrorKind::Busy);
}

#[test]
fn a_wrong_argument_is_named_with_the_right_value() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let options = SrqOptions::new(8).srq_limit(9);
    let error = pd.create_srq(options).wait().unwrap_err();
    let reason = ArgumentReason::OutOfRange {
        given: 9,
        least: 0,
        most: 8,
    };
    assert_eq!(error, VerbError::argument("srq_limit", reason));
    assert_eq!(error.to_string(), "srq_limit: is 9, allowed are 0 to 8");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);

    let options = QpOptions::ud(&cq).operations(Operations::WRITE);
    let error = pd.create_qp(options).wait().unwrap_err();
    assert_eq!(error.to_string(), "operations: Ud has no WRITE");
    let unknown = Operations::from_bits_retain(1 << 30);
    let options = QpOptions::rc(&cq).operations(unknown);
    let error = pd.create_qp(options).wait().unwrap_err();
    let text = "operations: the bits 0x40000000 have no meaning";
    assert_eq!(error.to_string(), text);
}

// covers 2.13
#[test]
fn a_busy_object_may_have_unnamed_holders() {
    let error = VerbError::Busy(Vec::new());
    let text = "in use by objects that the device does not name";
    assert_eq!(
        (error.to_string().as_str(), error.kind()),
        (text, ErrorKind::Busy)
    );
}
