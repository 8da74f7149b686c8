//! XRC domains of emulated devices: one per device and file, which the processes at the device's address share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use polyverbs_engine::emulation::{DomainId, Domains, Target, Targets};
use polyverbs_engine::rules::{self, Rule};
use polyverbs_io::Name;
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{MadeOnce, Mutex, PerProcess, forks, random};
use verbs_api::{Context, VerbError, objects::DeviceId};

use crate::opening::{FileId, OpenXrcd};
use crate::remote::{self, Remote};
use crate::target::SharedTarget;

/// An XRC domain of an emulated device: its shared receive queues and its targets, each by number.
pub(crate) struct Domain {
    me: Weak<Self>,
    /// The identity by which other processes at the device's address know the domain; `None` if they cannot have it.
    id: Option<DomainId>,
    contents: Mutex<Contents>,
    pub(crate) remote: Remote,
}

#[derive(Default)]
struct Contents {
    opened: usize,
    /// What shows other processes that this one has the domain, until the last opening and the last object have gone.
    hold: Option<Hold>,
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
static NEXT: MadeOnce<AtomicU32> = MadeOnce::new();

impl Domain {
    /// Creates a domain that cannot be opened again.
    pub(crate) fn anonymous() -> Arc<Self> {
        Self::new(None, None)
    }

    /// Opens or creates the domain of a file on a device, as `how` says. `group` are the processes at the device's address. A name
    /// that another process has given up may remain taken, because a child of a fork still has it: this waits for that child, but
    /// no longer than `patience`.
    pub(crate) fn of_file(
        device: DeviceId,
        file: FileId,
        how: OpenXrcd<'_>,
        group: Option<&Group>,
        patience: Duration,
    ) -> Result<Arc<Self>, VerbError> {
        match group {
            None => {
                // Checked before the flags: a domain of another process is not taken for none. No lock is held while this
                // waits.
                let claim = Claim::of(file, patience)?;
                Self::here_or_new(device, file, how, None, || Ok(Some(Hold::Claim(claim))))
            }
            Some(group) => {
                // No other process opens or creates the domain meanwhile.
                let _opening = group.begin(file, patience)?;
                let exists = group.has_domain(file);
                let join = || match exists {
                    true if how.create && how.exclusive => Err(exists_already()),
                    false if !how.create => Ok(None),
                    _ => group.join(file, patience).map(Hold::Member).map(Some),
                };
                Self::here_or_new(device, file, how, Some(file.bytes()), join)
            }
        }
    }

    // Opens the domain of a file that this process has on the device, or makes one with what `hold` returns. `hold` returns
    // nothing if there is no domain of another process, and none is to be created.
    fn here_or_new(
        device: DeviceId,
        file: FileId,
        how: OpenXrcd<'_>,
        id: Option<DomainId>,
        hold: impl FnOnce() -> Result<Option<Hold>, VerbError>,
    ) -> Result<Arc<Self>, VerbError> {
        let mut known = KNOWN.lock();
        // A thread may hold a reference for a moment after the domain has ended.
        known.retain(|one| one.domain.upgrade().is_some_and(|domain| domain.is_there()));
        let domain = known
            .iter()
            .find(|one| one.device == device && one.file == file)
            .and_then(|one| one.domain.upgrade());
        match domain {
            Some(_) if how.create && how.exclusive => Err(exists_already()),
            Some(domain) => {
                domain.contents.lock().opened += 1;
                Ok(domain)
            }
            None => {
                let hold = match hold()? {
                    Some(hold) if how.create || matches!(hold, Hold::Member(_)) => hold,
                    _ => {
                        return Err(VerbError::argument(
                            "oflags",
                            "the file has no domain, and none was to be created",
                        ));
                    }
                };
                let domain = Self::new(Some(hold), id);
                known.push(Known {
                    device,
                    file,
                    domain: Arc::downgrade(&domain),
                });
                Ok(domain)
            }
        }
    }

    fn new(hold: Option<Hold>, id: Option<DomainId>) -> Arc<Self> {
        let contents = Contents {
            opened: 1,
            hold,
            ..Contents::default()
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            id,
            contents: Mutex::new(contents),
            remote: Remote::default(),
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
        contents.release();
        Ok(())
    }

    /// Closes one opening whose handle was dropped. Objects of the domain continue to exist.
    pub(crate) fn forget_opening(&self) {
        let mut contents = self.contents.lock();
        contents.opened = contents.opened.saturating_sub(1);
        contents.release();
    }

    /// Adds a shared receive queue to the domain; returns its number, which is one of its device's `numbers`.
    pub(crate) fn add_srq(
        &self,
        id: ObjectId,
        (first, end): (u32, u32),
        target: impl Fn(u32) -> Target,
    ) -> Result<u32, VerbError> {
        // Processes begin with different numbers, so that a queue does not get the number of one that has just gone with its
        // process.
        let next = NEXT.get_or_make(|| AtomicU32::new(random() as u32));
        let count = end.saturating_sub(first).max(1);
        let mut contents = self.contents.lock();
        let number = (0..count)
            .map(|_| first + next.fetch_add(1, Ordering::Relaxed) % count)
            .find(|number| !contents.srqs.contains_key(number))
            .ok_or(VerbError::Resources("numbers of shared receive queues"))?;
        contents.srqs.insert(number, (id, Arc::new(target(number))));
        Ok(number)
    }

    /// Makes the domain known to a device that shares its address with other processes, so that requests which these receive
    /// reach the domain's queues.
    pub(crate) fn publish(&self, to: &Arc<Domains>) {
        if let Some(id) = self.id {
            to.add(id, self.me.clone());
            self.remote.publish(to);
        }
    }

    /// Sends a message to this domain in the process with this number.
    pub(crate) fn send_message(&self, number: u32, message: &[u8]) {
        if let (Some(id), Some(domains)) = (self.id, self.remote.domains()) {
            domains.send_message(number, &id, message);
        }
    }

    /// Returns a counted reference to the domain; `None` once it ends.
    pub(crate) fn shared(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Returns all targets with their numbers.
    pub(crate) fn targets(&self) -> Vec<(u32, Arc<SharedTarget>)> {
        let contents = self.contents.lock();
        let targets = contents.targets.iter();
        targets
            .map(|(qpn, shared)| (*qpn, Arc::clone(shared)))
            .collect()
    }

    pub(crate) fn remove_srq(&self, number: u32) {
        let mut contents = self.contents.lock();
        let removed = contents.srqs.remove(&number);
        contents.release();
        drop(contents);
        // Targets may still know the queue, and would drop it with a lock held.
        if let Some((_, target)) = removed {
            target.end();
        }
    }

    pub(crate) fn add_target(&self, qpn: u32, shared: Arc<SharedTarget>) {
        self.contents.lock().targets.insert(qpn, shared);
    }

    pub(crate) fn remove_target(&self, qpn: u32) {
        let mut contents = self.contents.lock();
        let removed = contents.targets.remove(&qpn);
        contents.release();
        drop(contents);
        drop(removed);
    }

    pub(crate) fn find_target(&self, qpn: u32) -> Option<Arc<SharedTarget>> {
        self.contents.lock().targets.get(&qpn).cloned()
    }

    // The domain exists until all openings are closed and no object lives.
    fn is_there(&self) -> bool {
        self.contents.lock().is_there()
    }
}

fn exists_already() -> VerbError {
    VerbError::argument(
        "oflags",
        "the file has a domain already, and a new one was asked for",
    )
}

impl Contents {
    fn is_there(&self) -> bool {
        let is_held = self.opened > 0 || self.holders().next().is_some();
        is_held || self.targets.values().any(|target| target.has_remote())
    }

    // Shows other processes that this one no longer has the domain, if that is so.
    fn release(&mut self) {
        if !self.is_there() {
            self.hold = None;
        }
    }

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

    fn all(&self) -> Vec<Arc<Target>> {
        let contents = self.contents.lock();
        let targets = contents.srqs.values().map(|(_, target)| target);
        targets.cloned().collect()
    }

    fn domain(&self) -> Option<DomainId> {
        self.id
    }

    fn handle_message(&self, from: u32, message: &[u8]) {
        remote::handle_message(self, from, message);
    }

    fn handle_gone(&self, numbers: Range<u32>) {
        remote::handle_gone(self, &numbers);
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}

/// What shows other processes that this one has a domain. It ends with the process, however that ends.
enum Hold {
    /// The device has no address: no other process may have a domain of the file.
    Claim(#[allow(dead_code, reason = "held until it is dropped")] Claim),
    /// The processes at the device's address share the domain, and each has a name that says so.
    Member(#[allow(dead_code, reason = "held until it is dropped")] Name),
}

/// The processes at one address, and the place of this device among them.
pub(crate) struct Group {
    name: String,
    member: u32,
    members: u32,
}

impl Group {
    /// Returns the group of a device; `None` if no other process shares its address.
    pub(crate) fn of(context: &Context) -> Option<Self> {
        let Carrier::Datagrams(port) = context.carrier()? else {
            return None;
        };
        // Each member has the communication IDs of its range, and so a number.
        let (first, bits) = port.communication_ids();
        Some(Self {
            name: port.group()?,
            member: first >> bits,
            members: 1 << (u32::BITS - bits),
        })
    }

    fn prefix(&self, file: FileId) -> String {
        format!("polyverbs/xrc/{}/{file}", self.name)
    }

    fn member(&self, file: FileId, number: u32) -> String {
        format!("{}/{number}", self.prefix(file))
    }

    // Waits until no other process opens or creates the domain of the file.
    fn begin(&self, file: FileId, patience: Duration) -> Result<Name, VerbError> {
        let (name, begun) = (format!("{}/opening", self.prefix(file)), Instant::now());
        loop {
            match Name::take(&name, patience) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    if begun.elapsed() >= patience {
                        return Err(VerbError::os("opening of a domain", error));
                    }
                    thread::sleep(PAUSE);
                }
                taken => return taken.map_err(|error| VerbError::os("opening of a domain", error)),
            }
        }
    }

    // Returns whether a member has the domain of the file.
    fn has_domain(&self, file: FileId) -> bool {
        (0..self.members).any(|member| Name::is_taken(&self.member(file, member)))
    }

    fn join(&self, file: FileId, patience: Duration) -> Result<Name, VerbError> {
        let name = Name::take(&self.member(file, self.member), patience);
        name.map_err(|error| VerbError::os("opening of a domain", error))
    }
}

/// How long a process waits before it looks again whether another one has opened its domain.
const PAUSE: Duration = Duration::from_millis(1);

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
        "a domain that {process} has: a device without an address shares domains within one process"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use emulated_ib::InfiniBand;
    use polyverbs_engine::device::{Device as Engine, DeviceOptions};
    use polyverbs_io::sim::Simulation;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
    use verbs_api::{Device, Requirements, ids::LinkAddress};

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
        Domain::of_file(context.device_id(), file, how, None, patience)
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
