//! Errors of control verbs: what they say, and of which kind they are.

use std::io;

use verbs_api::{ErrorKind, VerbError};

#[test]
fn an_error_of_the_system_has_its_text_its_number_and_a_kind() {
    let error = VerbError::os("eventfd", io::Error::from_raw_os_error(24));
    let text = "eventfd: Too many open files (os error 24)";
    assert_eq!(error.to_string(), text);
    // ENOENT, EIO, ENOMEM, EBUSY, ENODEV, EINVAL, EMFILE, ENOSPC, ENOSYS, EOPNOTSUPP.
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
