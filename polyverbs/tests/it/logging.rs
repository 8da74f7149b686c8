//! The events of devices and connections that a subscriber of `tracing` gets.

use std::fmt::Write as _;
use std::sync::Arc;

use polyverbs::connection::{ConnectError, ConnectionOptions, Connector};
use polyverbs::emulated::{self, EmulatedOptions, VirtualClock};
use polyverbs::qp::connect_pair_with;
use polyverbs::{
    Access, Context, Cq, PathOptions, Pd, Qp, QpOptions, RKey, RemoteAddress, Requirements, wr,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use verbs_api::provider::Mutex;

/// Keeps each event as a line: level, message and fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// The lines of the events that `run` causes in this thread.
    fn of(run: impl FnOnce()) -> Vec<String> {
        let lines = Self::default();
        tracing::subscriber::with_default(lines.clone(), run);
        std::mem::take(&mut *lines.0.lock())
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "polyverbs"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        }
        .unwrap();
    }
}

#[track_caller]
fn assert_logged(lines: &[String], parts: &[&str]) {
    let is_it = |line: &String| parts.iter().all(|part| line.contains(part));
    assert!(lines.iter().any(is_it), "{parts:?} in {lines:#?}");
}

struct Ends {
    device: Context,
    _pd: Pd,
    _cq: Cq,
    near: Qp,
    far: Qp,
}

fn ends(options: &EmulatedOptions) -> Ends {
    let device = emulated::device("ib0", options).unwrap();
    let device = device.open(&Requirements::new()).unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(16).wait().unwrap();
    let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let (near, far) = (qp(), qp());
    Ends {
        device,
        _pd: pd,
        _cq: cq,
        near,
        far,
    }
}

#[test]
fn a_log_says_why_a_request_waits_and_fails() {
    let clock = VirtualClock::new();
    let lost = EmulatedOptions {
        clock: Some(clock.clone()),
        faults: "drop=100%".parse().unwrap(),
        ..EmulatedOptions::default()
    };
    let sound = EmulatedOptions {
        faults: Default::default(),
        ..lost.clone()
    };
    let options = PathOptions::new().rnr_retry(1).retry_cnt(1);
    let run = |device: &EmulatedOptions| {
        let ends = ends(device);
        let lines = Lines::of(|| {
            let connected = connect_pair_with(&ends.near, &ends.far, options);
            connected.wait().unwrap();
            let sent = ends.near.submit(wr::Send::new(b"early"));
            clock.advance_until_idle().unwrap();
            sent.wait().unwrap_err();
        });
        (format!("qp={}", ends.near.qp_num()), lines)
    };
    let (qp, lines) = run(&sound);
    assert_logged(
        &lines,
        &[
            "DEBUG a queue pair changes its state",
            &qp,
            "from=RTR to=RTS",
        ],
    );
    assert_logged(
        &lines,
        &["DEBUG a request waits because the peer has no receive", &qp],
    );
    assert_logged(&lines, &["WARN a request fails", &qp, "RNR"]);
    assert_logged(&lines, &["changes its state", &qp, "from=RTS to=ERR"]);
    let (qp, lines) = run(&lost);
    assert_logged(
        &lines,
        &[
            "DEBUG a queue pair retransmits",
            &qp,
            "cause=acknowledge timeout",
        ],
    );
}

#[test]
fn a_log_has_the_key_and_the_address_that_were_refused() {
    let ends = ends(&EmulatedOptions::default());
    let connected = connect_pair_with(
        &ends.near,
        &ends.far,
        PathOptions::new().access(Access::REMOTE_WRITE),
    );
    connected.wait().unwrap();
    let lines = Lines::of(|| {
        let nowhere = RemoteAddress::new(0x1234, RKey::new(0xabc_de00));
        let write = wr::Write::new(b"refused", nowhere);
        ends.near.submit(write).wait().unwrap_err();
    });
    let refused = [
        "WARN a peer is refused access to memory",
        "rkey=0xabcde00",
        "addr=0x1234",
        "length=7",
        "reason=Key",
    ];
    assert_logged(&lines, &refused);
}

#[test]
fn a_log_has_messages_that_the_system_refuses_to_send() {
    let device = emulated::device_at("ib0", [127, 0, 46, 91].into(), &EmulatedOptions::default());
    let device = device.unwrap().open(&Requirements::new()).unwrap();
    let connector = Connector::of(&device).unwrap();
    let lines = Lines::of(|| {
        // Datagrams to a broadcast address need an option of the socket.
        let broadcast = "255.255.255.255:7".parse().unwrap();
        connector.ping(broadcast).wait().unwrap_err();
    });
    let refused = [
        "DEBUG the system refuses to send",
        "qp=0x000001",
        "to=255.255.255.255",
        "error=Permission denied",
    ];
    assert_logged(&lines, &refused);
}

#[test]
fn a_log_says_how_connections_begin_are_refused_and_end() {
    let Ends {
        device, near, far, ..
    } = &ends(&EmulatedOptions::default());
    let lines = Lines::of(|| {
        let connector = Connector::of(device).unwrap();
        let server = "192.0.2.1:7471".parse().unwrap();
        let ask = || connector.connect(near, server, ConnectionOptions::new());
        assert!(matches!(ask().wait(), Err(ConnectError::Refused { .. })));
        let listener = connector.listen(server, 1).unwrap();
        let asked = ask();
        listener.next().wait().unwrap().reject(b"").unwrap();
        assert!(asked.wait().is_err());
        let asked = ask();
        let incoming = listener.next().wait().unwrap();
        let agreed = incoming.accept(far, ConnectionOptions::new());
        let at_near = asked.wait().unwrap();
        let _at_far = agreed.wait().unwrap();
        at_near.disconnect().wait().unwrap();
    });
    for parts in [
        &["DEBUG asks for a connection", "to=192.0.2.1:7471"][..],
        &["DEBUG a connection has an event", "Rejected(NoListener)"],
        &["DEBUG is asked for a connection"],
        &["DEBUG refuses a connection", "reason=Program"],
        &["event=Rejected(Program)"],
        &["event=Accepted"],
        &["event=Completed"],
        &["DEBUG disconnects"],
        &["event=Disconnected"],
    ] {
        assert_logged(&lines, parts);
    }
}
