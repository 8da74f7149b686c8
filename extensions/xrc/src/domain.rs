//! XRC domains of emulated devices: one per device and file, within one process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs_engine::emulation::{Target, Targets};
use polyverbs_engine::rules::{self, Rule};
use polyverbs_io::Name;
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::{Mutex, PerProcess, forks};
use verbs_api::{VerbError, objects::DeviceId};

use crate::opening::{FileId, OpenXrcd};
use crate::target::SharedTarget;

/// An XRC domain of an emulated device: its shared receive queues and its targets, each by number.
pub(crate) struct Domain {
    contents: Mutex<Contents>,
    // Held while the domain lives: no other process has a domain of this file meanwhile.
    _claim: Option<Claim>,
}

#[derive(Default)]
struct Contents {
    opened: usize,
    srqs: HashMap<u32, (ObjectId, Arc<Target>)>,
    targets: HashMap<u32, Arc<SharedTarget>>,
}

struct Known {
    device: DeviceId,
    file: FileId,
    domain: Weak<Domain>,
}

// A child of a fork has none of its parent's domains. What its parent claims it finds claimed, as any other process does.
static KNOWN: PerProcess<Mutex<Vec<Known>>> = PerProcess::new(Mutex::default);
static CLAIMS: PerProcess<Mutex<HashMap<FileId, Claimed>>> = PerProcess::new(Mutex::default);
static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// The largest number of a shared receive queue: 24 bits. 0 is invalid.
const LAST_NUMBER: u32 = 0xff_ffff;

impl Domain {
    /// Creates a domain that cannot be opened again.
    pub(crate) fn anonymous() -> Arc<Self> {
        Self::new(None)
    }

    /// Opens or creates the domain of a file on a device, as `how` says. A name of the file that another process has given up may
    /// remain taken, because a child of a fork still has it: this waits for that child, but no longer than `patience`.
    pub(crate) fn of_file(
        device: DeviceId,
        file: FileId,
        how: OpenXrcd<'_>,
        patience: Duration,
    ) -> Result<Arc<Self>, VerbError> {
        // Checked before the flags: a domain of another process is not taken for none. No lock is held while this waits.
        let claim = Claim::of(file, patience)?;
        let mut known = KNOWN.lock();
        // A thread may hold a reference for a moment after the domain has ended.
        known.retain(|one| one.domain.upgrade().is_some_and(|domain| domain.is_there()));
        let domain = known
            .iter()
            .find(|one| one.device == device && one.file == file)
            .and_then(|one| one.domain.upgrade());
        match domain {
            Some(_) if how.create && how.exclusive => Err(VerbError::argument(
                "oflags",
                "the file has a domain already, and a new one was asked for",
            )),
            Some(domain) => {
                domain.contents.lock().opened += 1;
                Ok(domain)
            }
            None if how.create => {
                let domain = Self::new(Some(claim));
                known.push(Known {
                    device,
                    file,
                    domain: Arc::downgrade(&domain),
                });
                Ok(domain)
            }
            None => Err(VerbError::argument(
                "oflags",
                "the file has no domain, and none was to be created",
            )),
        }
    }

    fn new(claim: Option<Claim>) -> Arc<Self> {
        let contents = Contents {
            opened: 1,
            ..Contents::default()
        };
        Arc::new(Self {
            contents: Mutex::new(contents),
            _claim: claim,
        })
    }

    /// Closes one opening. If it is the last one and objects of the domain exist, it fails with Busy and returns those.
    pub(crate) fn close(&self) -> Result<(), Vec<Holder>> {
        let mut contents = self.contents.lock();
        if contents.opened == 1 {
            let holders: Vec<_> = contents.holders().collect();
            if !holders.is_empty() {
                return Err(holders);
            }
        }
        contents.opened -= 1;
        Ok(())
    }

    /// Closes one opening whose handle was dropped. Objects of the domain continue to exist.
    pub(crate) fn forget_opening(&self) {
        let mut contents = self.contents.lock();
        contents.opened = contents.opened.saturating_sub(1);
    }

    /// Adds a shared receive queue to the domain; returns its number.
    pub(crate) fn add_srq(
        &self,
        id: ObjectId,
        target: impl Fn(u32) -> Target,
    ) -> Result<u32, VerbError> {
        let mut contents = self.contents.lock();
        let number = (0..LAST_NUMBER)
            .map(|_| NUMBERS.fetch_add(1, Ordering::Relaxed) % LAST_NUMBER + 1)
            .find(|number| !contents.srqs.contains_key(number))
            .ok_or(VerbError::Resources("numbers of shared receive queues"))?;
        contents.srqs.insert(number, (id, Arc::new(target(number))));
        Ok(number)
    }

    pub(crate) fn remove_srq(&self, number: u32) {
        let removed = self.contents.lock().srqs.remove(&number);
        drop(removed);
    }

    pub(crate) fn add_target(&self, qpn: u32, shared: Arc<SharedTarget>) {
        self.contents.lock().targets.insert(qpn, shared);
    }

    pub(crate) fn remove_target(&self, qpn: u32) {
        let removed = self.contents.lock().targets.remove(&qpn);
        drop(removed);
    }

    pub(crate) fn find_target(&self, qpn: u32) -> Option<Arc<SharedTarget>> {
        self.contents.lock().targets.get(&qpn).cloned()
    }

    // The domain exists until all openings are closed and no object lives.
    fn is_there(&self) -> bool {
        let contents = self.contents.lock();
        contents.opened > 0 || contents.holders().next().is_some()
    }
}

impl Contents {
    // Live objects of the domain.
    fn holders(&self) -> impl Iterator<Item = Holder> {
        let holder = |kind| move |id| Holder::new(kind, id);
        let srqs = self.srqs.values().map(|(id, _)| *id);
        let qps = self.targets.values().flat_map(|shared| shared.handles());
        srqs.map(holder(ObjectKind::Srq))
            .chain(qps.map(holder(ObjectKind::Qp)))
    }
}

impl Targets for Domain {
    fn target(&self, number: u32) -> Option<Arc<Target>> {
        let contents = self.contents.lock();
        if rules::is_broken(Rule::NamedQueue) {
            let all = contents.srqs.values().map(|(_, target)| target);
            return all.min_by_key(|target| target.number).cloned();
        }
        contents
            .srqs
            .get(&number)
            .map(|(_, target)| Arc::clone(target))
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}

/// Proves that this process owns the domain of a file: it holds a name that contains the file's identity, and no other process
/// can hold that name meanwhile. The system frees the name when the process ends in any way.
struct Claim {
    file: FileId,
    /// The [forks] before the process that has made this claim.
    forks: u64,
}

/// The number of claims of this process to a file, and the name that belongs to the file. The first claim takes the name, and later
/// ones wait for that.
#[derive(Default)]
struct Claimed {
    claims: usize,
    name: Arc<Mutex<Option<Name>>>,
}

impl Claim {
    fn of(file: FileId, patience: Duration) -> Result<Self, VerbError> {
        let mut claims = CLAIMS.lock();
        let claimed = claims.entry(file).or_default();
        claimed.claims += 1;
        let name = Arc::clone(&claimed.name);
        drop(claims);
        // The claim ends again if the name cannot be taken.
        let forks = forks();
        let claim = Self { file, forks };
        let mut name = name.lock();
        if name.is_none() {
            *name = Some(take(&name_of(file), patience)?);
        }
        drop(name);
        Ok(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A child of a fork has none of its parent's names.
        if self.forks != forks() {
            return;
        }
        // The lock is held while the name is given up, so that no other thread finds it still taken.
        if let Entry::Occupied(mut claimed) = CLAIMS.lock().entry(self.file) {
            claimed.get_mut().claims -= 1;
            if claimed.get().claims == 0 {
                claimed.remove();
            }
        }
    }
}

fn name_of(file: FileId) -> String {
    format!("polyverbs-xrc/{file}")
}

fn take(name: &str, patience: Duration) -> Result<Name, VerbError> {
    Name::take(name, patience).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => elsewhere(Name::holder(name)),
        _ => VerbError::os("claim of a domain", error),
    })
}

/// How long a program waits for a child of a fork that has a name which its parent has given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

fn elsewhere(process: Option<u32>) -> VerbError {
    let process = process.map_or("another process".to_owned(), |number| {
        format!("process {number}")
    });
    VerbError::UnsupportedHere(format!(
        "a domain that {process} has: emulated devices share domains within one process"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;

    use emulated_ib::InfiniBand;
    use polyverbs_engine::device::{Device as Engine, DeviceOptions};
    use polyverbs_io::sim::Simulation;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
    use verbs_api::{Context, Device, Requirements, ids::LinkAddress};

    use super::*;

    fn device() -> Context {
        let simulation = Simulation::new();
        let driver = InfiniBand {
            name: "ib1".to_owned(),
            address: LinkAddress::InProcess(1),
            windows_2a: false,
            management: None,
            subnet: None,
        };
        let network = simulation.network::<InfiniBand>(None);
        let device = Device::of(Engine::new(driver, &network, DeviceOptions::default()).unwrap());
        device.open(&Requirements::new()).unwrap()
    }

    fn open(
        context: &Context,
        file: FileId,
        (create, exclusive): (bool, bool),
        patience: Duration,
    ) -> Result<Arc<Domain>, VerbError> {
        let how = OpenXrcd {
            create,
            exclusive,
            ..OpenXrcd::anonymous()
        };
        Domain::of_file(context.device_id(), file, how, patience)
    }

    // The thread that answered a request may hold a reference until the thread ends.
    #[test]
    fn a_closed_domain_is_gone_even_while_a_thread_references_it() {
        let context = device();
        let file = tempfile::tempfile().unwrap();
        let file = FileId::of(file.as_fd()).unwrap();
        let open = |create, exclusive| open(&context, file, (create, exclusive), PATIENCE);
        let had = open(true, true).unwrap();
        had.close().unwrap();
        assert!(open(false, false).is_err());
        let new = open(true, true).unwrap();
        assert!(!Arc::ptr_eq(&had, &new));
        assert!(Arc::ptr_eq(&new, &open(false, false).unwrap()));
    }

    #[test]
    fn a_holder_that_accepts_nothing_is_an_error_at_once() {
        let file = tempfile::tempfile().unwrap();
        let file = FileId::of(file.as_fd()).unwrap();
        let held = Name::take(&name_of(file), PATIENCE).unwrap();
        let refused = |expected: &str| {
            let error = Claim::of(file, PATIENCE).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(&format!("process {} has", std::process::id()));
        // Connections that are closed before they are accepted stay in the backlog.
        while Name::holder(&name_of(file)).is_some() {}
        refused("another process has");
        drop(held);
        Claim::of(file, PATIENCE).unwrap();
    }

    #[test]
    fn a_domain_opens_while_another_waits_for_its_name() {
        let context = device();
        let files = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let [taken, free] = files
            .each_ref()
            .map(|file| FileId::of(file.as_fd()).unwrap());
        // The name is bound and nothing listens there, as in a child whose parent has given the name up.
        let flags = SocketFlags::CLOEXEC;
        let held = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let name = SocketAddrUnix::new_abstract_name(name_of(taken).as_bytes()).unwrap();
        bind(&held, &name).unwrap();
        thread::scope(|scope| {
            let open = |file, patience| open(&context, file, (true, true), patience);
            let waits = scope.spawn(move || open(taken, Duration::from_secs(60)).map(drop));
            while !waits.is_finished() && !CLAIMS.lock().contains_key(&taken) {
                thread::yield_now();
            }
            open(free, PATIENCE).unwrap();
            assert!(!waits.is_finished(), "the domains were opened in turn");
            drop(held);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_file_is_claimed_until_its_last_claim_ends() {
        let file = tempfile::tempfile().unwrap();
        let file = FileId::of(file.as_fd()).unwrap();
        let is_taken = || Name::is_taken(&name_of(file));
        let [first, second] = [(); 2].map(|()| Claim::of(file, PATIENCE).unwrap());
        drop(first);
        assert!(is_taken());
        drop(second);
        assert!(!is_taken());
    }
}
