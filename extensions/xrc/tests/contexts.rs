//! Domains that several contexts of one process share, and the error that a second process gets.

use std::fs::{File, hard_link};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use emulated_ib::InfiniBand;
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_io::sim::Simulation;
use verbs_api::objects::ObjectId;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, Completion, Context, Cq, Device, ErrorKind, Features, Memory, Mr, PathOptions, Qp,
    QpOptions, Requirements, SrqOptions, VerbError, connect_pair,
    event::{EventSubject, EventType},
    ids::LinkAddress,
    wr::{self, ReceiveRequest},
};
use xrc::{OpenXrcd, Xrc, XrcFeatures, XrcSrq, Xrcd, remote_srqn};

/// Two devices that reach each other.
struct Lab {
    _simulation: Simulation,
    near: Device,
    far: Device,
}

impl Lab {
    fn new() -> Self {
        let simulation = Simulation::new();
        let network = simulation.network::<InfiniBand>(None);
        let device = |at| {
            let driver = InfiniBand {
                name: format!("ib{at}"),
                address: LinkAddress::InProcess(at),
                windows_2a: false,
                management: None,
                subnet: None,
            };
            Device::of(Engine::new(driver, &network, DeviceOptions::default()).unwrap())
        };
        let (near, far) = (device(1), device(2));
        Self {
            _simulation: simulation,
            near,
            far,
        }
    }
}

fn open(device: &Device) -> Context {
    let wanted = Requirements::new()
        .needs(Features::SRQ)
        .needs(XrcFeatures::XRC);
    device.open(&wanted).unwrap()
}

fn domain(context: &Context, file: &File, create: bool) -> Result<Xrcd, VerbError> {
    let xrc: Xrc = context.extension().unwrap();
    let how = OpenXrcd::of(file.as_fd());
    xrc.open(if create { how.create() } else { how }).wait()
}

/// A program: a context that has opened the domain, and a shared receive queue of its own.
struct Program {
    context: Context,
    domain: Xrcd,
    srq: XrcSrq,
    cq: Cq,
    memory: Memory,
    mr: Mr,
}

impl Program {
    fn new(device: &Device, file: &File) -> Self {
        Self::with_entries(device, file, 16)
    }

    /// A program whose completion queue has `cqe` entries.
    fn with_entries(device: &Device, file: &File, cqe: u32) -> Self {
        let context = open(device);
        let domain = domain(&context, file, true).unwrap();
        let (pd, cq) = (
            context.alloc_pd().wait().unwrap(),
            context.create_cq(cqe).wait().unwrap(),
        );
        let srq = domain
            .create_srq(&pd, SrqOptions::new(16), &cq)
            .wait()
            .unwrap();
        let memory = Memory::zeroed(64).unwrap();
        let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
        let program = Self {
            context,
            domain,
            srq,
            cq,
            memory,
            mr,
        };
        for id in 0..4 {
            let sge = program.mr.sge(16 * id, 16).unwrap();
            let receive = ReceiveRequest::new(id as u64, sge);
            program.srq.post_receive(receive).unwrap();
        }
        program
    }

    fn received(&self) -> Vec<Completion> {
        completions(&self.cq)
    }

    fn events(&self) -> Vec<(EventType, EventSubject)> {
        let events = std::iter::from_fn(|| self.context.poll_event());
        events
            .map(|event| (event.event_type(), event.subject()))
            .collect()
    }
}

fn completions(cq: &Cq) -> Vec<Completion> {
    let mut slots: [Completion; 8] = std::array::from_fn(|_| Completion::default());
    let count = cq.poll(&mut slots).unwrap().len();
    slots.into_iter().take(count).collect()
}

/// An initiator of the near device, connected to a target.
fn initiator(lab: &Lab, target: &Qp) -> (Qp, Cq) {
    let context = open(&lab.near);
    let xrc: Xrc = context.extension().unwrap();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    );
    let qp = pd.create_qp(QpOptions::rc(&cq).with(&xrc)).wait().unwrap();
    let (here, there) = (qp.endpoint().unwrap(), target.endpoint().unwrap());
    target.connect(&here, PathOptions::new()).wait().unwrap();
    qp.connect(&there, PathOptions::new()).wait().unwrap();
    (qp, cq)
}

#[test]
fn an_initiator_connects_only_to_a_target() {
    let lab = Lab::new();
    let (near, far) = (open(&lab.near), open(&lab.far));
    let (pd, cq) = (
        near.alloc_pd().wait().unwrap(),
        near.create_cq(16).wait().unwrap(),
    );
    let xrc: Xrc = near.extension().unwrap();
    let make = |options| pd.create_qp(options).wait().unwrap();
    let initiator = make(QpOptions::rc(&cq).with(&xrc));
    let another = make(QpOptions::rc(&cq).with(&xrc));
    let ordinary = make(QpOptions::rc(&cq));
    for (a, b, why) in [
        (&initiator, &another, "XRC_INI and XRC_INI"),
        (&initiator, &ordinary, "XRC_INI and RC"),
        (&ordinary, &initiator, "RC and XRC_INI"),
    ] {
        let error = connect_pair(a, b, Access::empty()).wait().unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        for qp in [a, b] {
            assert_eq!(qp.query().unwrap().state, QpState::Reset);
        }
    }
    let file = tempfile::tempfile().unwrap();
    let domain = domain(&far, &file, true).unwrap();
    let target = domain.create_target().wait().unwrap();
    connect_pair(&initiator, &target, Access::empty())
        .wait()
        .unwrap();
    for qp in [&initiator, &target] {
        assert_eq!(qp.query().unwrap().state, QpState::Rts);
    }
}

fn object(subject: EventSubject) -> Option<ObjectId> {
    match subject {
        EventSubject::Object(id) => Some(id),
        _ => None,
    }
}

// covers 4.01 4.03 4.07 4.11
#[test]
fn contexts_share_the_domain_of_a_file_whatever_its_path() {
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let (path, other_path) = (folder.path().join("a"), folder.path().join("b"));
    let file = File::create(&path).unwrap();
    hard_link(&path, &other_path).unwrap();
    let programs = [
        Program::new(&lab.far, &file),
        Program::new(&lab.far, &File::open(&other_path).unwrap()),
        Program::new(&lab.far, &File::open(&path).unwrap()),
    ];
    let target = programs[0].domain.create_target().wait().unwrap();
    let (sender, sends) = initiator(&lab, &target);
    for round in 0..3_u8 {
        for (which, program) in programs.iter().enumerate() {
            let bytes = [round, which as u8];
            let message = wr::Send::new(&bytes).with(remote_srqn(program.srq.number()));
            sender.post_one(message.signaled(1)).unwrap();
        }
    }
    assert!(
        completions(&sends)
            .iter()
            .all(|done| done.status.is_success())
    );
    for (which, program) in programs.iter().enumerate() {
        let done = program.received();
        assert_eq!(done.len(), 3);
        for (round, done) in done.iter().enumerate() {
            assert_eq!(done.qp_num, target.qp_num());
            let mut bytes = [0; 2];
            let offset = 16 * done.wr_id as usize;
            program.memory.read(offset, &mut bytes).unwrap();
            assert_eq!(bytes, [round as u8, which as u8]);
        }
    }
    // The target outlives the program that made it, as long as another program has opened it.
    let kept = programs[1]
        .domain
        .open_target(target.qp_num())
        .wait()
        .unwrap();
    target.destroy().wait().unwrap();
    let message = wr::Send::new(&[9]).with(remote_srqn(programs[2].srq.number()));
    sender.post_one(message.signaled(2)).unwrap();
    assert_eq!(programs[2].received().len(), 1);
    kept.destroy().wait().unwrap();
    let gone = programs[1].domain.open_target(sender.qp_num()).wait();
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

// covers 4.07
#[test]
fn each_context_gets_events_of_its_own_handle() {
    let lab = Lab::new();
    let file = tempfile::tempfile().unwrap();
    let programs = [Program::new(&lab.far, &file), Program::new(&lab.far, &file)];
    let made = programs[0].domain.create_target().wait().unwrap();
    let opened = programs[1]
        .domain
        .open_target(made.qp_num())
        .wait()
        .unwrap();
    let error = QpAttributes::new().qp_state(QpState::Init).pkey_index(0);
    opened
        .modify(error.port_num(1).qp_access_flags(Access::empty()))
        .wait()
        .unwrap();
    made.modify(QpAttributes::new().qp_state(QpState::Err))
        .wait()
        .unwrap();
    for (program, handle) in programs.iter().zip([&made, &opened]) {
        let events = program.events();
        assert_eq!(events.len(), 1);
        let (event, subject) = events[0];
        assert_eq!(event, EventType::QpLastWqeReached);
        let id = object(subject).unwrap();
        assert_eq!(id, handle.id());
        assert!(program.context.find_qp(id).is_some());
    }
}

// covers 4.01
#[test]
fn two_devices_have_separate_domains_of_one_file() {
    let lab = Lab::new();
    let file = tempfile::tempfile().unwrap();
    let program = Program::new(&lab.far, &file);
    assert!(domain(&open(&lab.near), &file, false).is_err());
    let other = domain(&open(&lab.near), &file, true).unwrap();
    let target = program.domain.create_target().wait().unwrap();
    assert!(other.open_target(target.qp_num()).wait().is_err());
}

// covers 4.03
#[test]
fn the_completion_queue_of_a_shared_receive_queue_is_busy() {
    let lab = Lab::new();
    let file = tempfile::tempfile().unwrap();
    let program = Program::new(&lab.far, &file);
    let refused = program.cq.clone().destroy().wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    program.srq.destroy().wait().unwrap();
    program.cq.destroy().wait().unwrap();
}

// covers 3.86 4.03
#[test]
fn a_completion_queue_overrun_fails_only_the_targets_that_need_it() {
    let lab = Lab::new();
    let file = tempfile::tempfile().unwrap();
    let full = Program::with_entries(&lab.far, &file, 2);
    let other = Program::new(&lab.far, &file);
    let target = full.domain.create_target().wait().unwrap();
    let apart = other.domain.create_target().wait().unwrap();
    let (sender, sends) = initiator(&lab, &target);
    let (beside, beside_sends) = initiator(&lab, &apart);
    let to = |program: &Program| remote_srqn(program.srq.number());
    for id in 0..3 {
        let message = wr::Send::new(&[1]).with(to(&full));
        sender.post_one(message.signaled(id)).unwrap();
    }
    // The message without room for its completion may have arrived or not; the target fails in either case.
    drop(completions(&sends));
    let told: Vec<_> = full.events().into_iter().map(|(event, _)| event).collect();
    assert!(told.contains(&EventType::CqErr), "{told:?}");
    assert!(told.contains(&EventType::QpFatal), "{told:?}");
    assert_eq!(target.query().unwrap().state, QpState::Err);
    // Another target works until it needs that queue.
    let message = wr::Send::new(&[2]).with(to(&other));
    beside.post_one(message.signaled(7)).unwrap();
    assert!(completions(&beside_sends)[0].status.is_success());
    assert_eq!(other.received().len(), 1);
    assert_eq!(apart.query().unwrap().state, QpState::Rts);
    let message = wr::Send::new(&[3]).with(to(&full));
    beside.post_one(message.signaled(8)).unwrap();
    assert_eq!(apart.query().unwrap().state, QpState::Err);
    let told: Vec<_> = other.events().into_iter().map(|(event, _)| event).collect();
    assert!(told.contains(&EventType::QpFatal), "{told:?}");
}

const FILE: &str = "XRC_TEST_FILE";

// Runs as the second process, which another test starts; otherwise it does nothing.
#[test]
fn second_process() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let lab = Lab::new();
    let file = File::open(Path::new(&path)).unwrap();
    for create in [false, true] {
        match domain(&open(&lab.far), &file, create) {
            Ok(_) => println!("\nsaid opened with create {create}"),
            Err(error) => println!("\nsaid {:?}: {error}", error.kind()),
        }
    }
}

fn as_second_process(path: &Path) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "second_process",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FILE, path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = text.lines().filter_map(|line| line.strip_prefix("said "));
    said.map(str::to_owned).collect()
}

// covers 4.01
#[test]
fn a_second_process_is_told_which_process_has_the_domain() {
    let lab = Lab::new();
    let named = tempfile::NamedTempFile::new().unwrap();
    let first = domain(&open(&lab.far), named.as_file(), true).unwrap();
    let expected = format!("process {}", std::process::id());
    let said = as_second_process(named.path());
    assert_eq!(said.len(), 2, "{said:?}");
    for line in &said {
        assert!(line.starts_with("Unsupported: "), "{line}");
        assert!(line.contains(&expected), "{line}");
    }
    // Once this process has closed the domain, the other may open it.
    first.close().unwrap();
    let said = as_second_process(named.path());
    assert!(said[0].starts_with("InvalidArgument: "), "{said:?}");
    assert_eq!(said[1], "opened with create true");
}
