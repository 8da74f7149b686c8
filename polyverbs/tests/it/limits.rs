//! A device with limits smaller than its own.

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Context, ErrorKind, Features, Limit, QpOptions, Requirements, SrqOptions, VerbError,
};

#[test]
fn a_device_with_smaller_limits_reports_and_keeps_them() {
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
        // A limit beyond the device's own does not apply.
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

/// Creates one object of a kind, which lives as long as the returned handle.
type Create = fn(&Context) -> Result<Box<dyn Send>, VerbError>;

#[test]
fn each_kind_of_object_has_the_reported_limit() {
    fn kept<T: Send + 'static>(made: T) -> Box<dyn Send> {
        Box::new(made)
    }
    let kinds: [(Limit, Create); 3] = [
        (Limit::MaxPd, |device| device.alloc_pd().wait().map(kept)),
        (Limit::MaxCq, |device| device.create_cq(8).wait().map(kept)),
        (Limit::MaxSrq, |device| {
            let pd = device.alloc_pd().wait()?;
            pd.create_srq(SrqOptions::new(8)).wait().map(kept)
        }),
    ];
    for name in ["ib0", "iw0"] {
        for (limit, create) in kinds {
            let options = EmulatedOptions {
                limits: vec![(limit, 2)],
                ..EmulatedOptions::default()
            };
            let device = emulated::device(name, &options).unwrap();
            let device = device
                .open(&Requirements::new().needs(Features::SRQ))
                .unwrap();
            let first = create(&device).unwrap();
            let _second = create(&device).unwrap();
            let refused = create(&device).map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Resources, "{name}: {limit:?}");
            drop(first);
            // The device frees the object of the dropped handle before it carries out the next verb.
            create(&device).unwrap();
        }
    }
}
