//! A device whose numbers are made smaller than its own.

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{ErrorKind, Limit, QpOptions, Requirements};

#[test]
fn a_device_with_smaller_limits_tells_and_keeps_them() {
    for name in ["ib0", "iw0"] {
        let limits = vec![
            (Limit::MaxQp, 1),
            (Limit::MaxCqe, 8),
            (Limit::MaxSendSge, u64::MAX),
        ];
        let own = emulated::device(name, &EmulatedOptions::default()).unwrap();
        let options = EmulatedOptions {
            limits,
            ..EmulatedOptions::default()
        };
        let device = emulated::device(name, &options).unwrap();
        let told = device.attributes().limits;
        assert_eq!((told.max_qp, told.max_cqe), (1, 8));
        // What would be more than it can stays what it is.
        assert_eq!(told.max_send_sge, own.attributes().limits.max_send_sge);
        let context = device.open(&Requirements::new()).unwrap();
        assert!(context.create_cq(9).wait().is_err());
        let cq = context.create_cq(8).wait().unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let _first = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let second = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap_err();
        assert!(
            matches!(second.kind(), ErrorKind::Limit | ErrorKind::Resources),
            "{second}"
        );
    }
}
