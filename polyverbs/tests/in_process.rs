//! A program whose devices stay within its process, for which the Cargo feature `emulated` is enough. A binary of its own, because
//! `.ci/run` also builds it with that feature alone.

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{Access, Memory, QpOptions, Requirements, connect_pair, wr};

const KINDS: [&str; 2] = ["ib0", "iw0"];

#[test]
fn each_device_writes_within_the_process() {
    for kind in KINDS {
        let device = emulated::device(kind, &EmulatedOptions::default()).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let [near, far] = [(); 2].map(|()| pd.create_qp(QpOptions::rc(&cq)).wait().unwrap());
        connect_pair(&near, &far, Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        let memory = Memory::zeroed(8).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(&memory, rights).wait().unwrap();
        memory.write(0, b"data").unwrap();
        let write = wr::Write::new(region.sge(0, 4).unwrap(), region.remote(4));
        near.post_one(write.signaled(7)).unwrap();
        let done = cq.next().wait().unwrap();
        assert!(done.status.is_success(), "{kind}: {:?}", done.status);
        assert_eq!(memory.to_vec(4, 4).unwrap(), b"data", "{kind}");
    }
}

#[cfg(not(feature = "sockets"))]
#[test]
fn without_sockets_the_error_for_an_address_names_the_feature() {
    for kind in KINDS {
        let options = EmulatedOptions {
            at: Some("127.0.0.1:4791".parse().unwrap()),
            ..EmulatedOptions::default()
        };
        let error = emulated::device(kind, &options).unwrap_err();
        assert!(error.to_string().contains("feature `sockets`"), "{error}");
    }
}
