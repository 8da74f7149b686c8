//! A key-value store whose server only waits: clients read, write and count in its memory.
//!
//! `key_value serve ADDRESS:PORT DEVICE` has the table, and a tokio task for each connection. At most `--max-connections N` exist
//! at one time, and at most half of them from one address; others are refused with a reason. A client has its place when it has
//! completed its connection, because the address of a request may be forged. `--max-keys N` is the size of the table.
//! `key_value try ADDRESS:PORT DEVICE tokio|smol` is a hundred clients, each a task, on one thread and one completion queue; each
//! puts a value, gets it back and counts itself. Devices are `ib0` and `iw0`; the program does not ask which one it is.
//!
//! A key takes its slot by a compare-and-swap of its tag, beginning at the slot of its hash; then a put is one write, a get is
//! one read, and a count one fetch-and-add.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::process::ExitCode;

use polyverbs::capability::Baseline;
use polyverbs::connection::{ConnectError, Connection, ConnectionOptions, Connector, Incoming};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::portable::read_sink_access;
use polyverbs::{
    Access, Context, Cq, Device, Limit, Memory, Mr, PathOptions, Pd, Qp, QpOptions, RemoteAddress,
    Requirements, wr,
};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 100;
const VALUE: usize = 40;
/// The bytes that a put writes inline.
const INLINE: u32 = 64;

const USAGE: &str = "\
usage: key_value serve ADDRESS:PORT DEVICE [--max-connections N] [--max-keys N]
       key_value try ADDRESS:PORT DEVICE tokio|smol";

/// An element of the server's memory. Atomic operations work on native integers.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Slot {
    tag: u64,
    count: u64,
    entry: Entry,
}

/// The value that a put writes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    length: u64,
    value: [u8; VALUE],
}

const SLOT: u64 = size_of::<Slot>() as u64;
const COUNT: u64 = std::mem::offset_of!(Slot, count) as u64;
const ENTRY: u64 = std::mem::offset_of!(Slot, entry) as u64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("key_value: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command of the arguments.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", at, device, ref limits @ ..] => {
            let at: SocketAddr = at.parse()?;
            let device = emulated::device_at(device, at.ip(), &EmulatedOptions::default())?;
            on_tokio(serve(at, &device, Limits::parse(limits)?))
        }
        ["try", server, device, runtime] => {
            let server = server.parse()?;
            let device = emulated::device_reaching(device, server, &EmulatedOptions::default())?;
            match runtime {
                "tokio" => on_tokio(try_on_tokio(server, &device)),
                "smol" => smol::block_on(try_on_smol(server, &device)),
                _ => Err(USAGE.into()),
            }
        }
        _ => Err(USAGE.into()),
    }
}

pub(crate) fn on_tokio(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .build()?
        .block_on(work)
}

/// The limits of a server.
pub(crate) struct Limits {
    connections: NonZero<usize>,
    keys: NonZero<u32>,
}

impl Limits {
    pub(crate) fn parse(options: &[&str]) -> Result<Self> {
        let mut limits = Self {
            connections: const { NonZero::new(256).unwrap() },
            keys: const { NonZero::new(4096).unwrap() },
        };
        for option in options.chunks(2) {
            match *option {
                ["--max-connections", most] => limits.connections = most.parse()?,
                ["--max-keys", most] => limits.keys = most.parse()?,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(limits)
    }

    // An idle client cannot be distinguished from one that reads, so no address may have all places.
    fn admit(&self, clients: &[Option<IpAddr>], from: Option<IpAddr>) -> bool {
        let most = self.connections.get();
        let of_address = clients.iter().filter(|client| **client == from).count();
        clients.len() < most && of_address < most.div_ceil(2)
    }
}

/// Serves clients at an address of the device, until the listener fails.
pub(crate) async fn serve(at: SocketAddr, device: &Device, limits: Limits) -> Result<()> {
    let context = device.open(&needs())?;
    let (pd, cq) = (context.alloc_pd().await?, context.create_cq(16).await?);
    let slots = limits.keys.get();
    let memory = Memory::zeroed((u64::from(slots) * SLOT) as usize)?;
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = pd.register(&memory, Access::LOCAL_WRITE | remote).await?;
    let table = Table {
        at: region.remote(0),
        slots,
    };
    let options = ConnectionOptions::new()
        .path(PathOptions::new().access(remote))
        .private_data(&table.to_bytes());
    let listener = Connector::of(&context)?.listen(at, CLIENTS)?;
    println!("serving at {}", listener.address());
    let (mut accepting, mut unproven) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    let (mut served, mut clients) = (JoinSet::new(), Vec::new());
    let mut next = listener.next();
    loop {
        let asked = async { Event::Asked((&mut next).await) };
        let accepted = async { Event::Accepted(joined(&mut accepting).await) };
        // A completed connection comes before further requests, so that a flood of requests keeps no client out.
        let event = smol::future::or(accepted, asked).await;
        while let Some(ended) = served.try_join_next() {
            let (from, ended): (_, Result<()>) = ended?;
            ended.unwrap_or_else(|error| eprintln!("a client: {error}"));
            let place = clients.iter().position(|client| *client == from);
            place.map(|place| clients.swap_remove(place));
        }
        match event {
            Event::Asked(incoming) => {
                next = listener.next();
                let incoming = incoming?;
                let from = incoming.from().map(|from| from.ip());
                if !limits.admit(&clients, from) {
                    refuse(incoming, BUSY);
                    continue;
                }
                unproven.retain(|request| !request.is_finished());
                if unproven.len() >= MOST_UNPROVEN {
                    unproven.pop_front().inspect(AbortHandle::abort);
                }
                let Ok(qp) = pd.create_qp(QpOptions::rc(&cq)).await else {
                    refuse(incoming, "it has no queue pair left");
                    continue;
                };
                let options = options.clone();
                unproven.push_back(accepting.spawn(async move {
                    let connection = incoming.accept(&qp, options).await?;
                    Ok((from, qp, connection))
                }));
            }
            // If others have taken the last place meanwhile, the client is disconnected.
            Event::Accepted(Ok(Ok((from, qp, connection)))) if limits.admit(&clients, from) => {
                clients.push(from);
                served.spawn(async move { (from, keep(qp, connection).await) });
            }
            // The peer has not completed the connection, or the request has given way to a newer one.
            Event::Accepted(_) => {}
        }
    }
}

/// What the server waits for.
enum Event {
    Asked(std::result::Result<Incoming, ConnectError>),
    Accepted(std::result::Result<Accepted, JoinError>),
}

/// A connection that its client has completed, with the client's address and the server's queue pair.
type Accepted = std::result::Result<(Option<IpAddr>, Qp, Connection), ConnectError>;

async fn joined<T: 'static>(tasks: &mut JoinSet<T>) -> std::result::Result<T, JoinError> {
    match tasks.join_next().await {
        Some(joined) => joined,
        None => pending().await,
    }
}

const BUSY: &str = "it serves as many as it may at one time";
/// How many requests wait at one time for their clients to complete the connection. One more replaces the oldest.
const MOST_UNPROVEN: usize = 4 * CLIENTS;

fn refuse(incoming: Incoming, reason: &str) {
    // A client that has gone does not receive the reason.
    let _ = incoming.reject(reason.as_bytes());
}

// Keeps a connection; a client that dies or sends invalid data ends only its own.
async fn keep(_qp: Qp, connection: Connection) -> Result<()> {
    Ok(connection.disconnected().await?)
}

async fn try_on_tokio(server: SocketAddr, device: &Device) -> Result<()> {
    let clients = Clients::new(server, device).await?;
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        tasks.spawn(clients.clone().try_store(number));
    }
    let mut greatest = 0;
    while let Some(counted) = tasks.join_next().await {
        greatest = greatest.max(counted??);
    }
    clients.report(greatest)
}

pub(crate) async fn try_on_smol(server: SocketAddr, device: &Device) -> Result<()> {
    let clients = Clients::new(server, device).await?;
    let executor = smol::LocalExecutor::new();
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|number| executor.spawn(clients.clone().try_store(number)))
        .collect();
    let all = async {
        let mut greatest = 0;
        for task in tasks {
            greatest = greatest.max(task.await?);
        }
        clients.report(greatest)
    };
    executor.run(all).await
}

/// What both sides need of a device: it is refused where one of them is missing, and fails nowhere later.
pub(crate) fn needs() -> Requirements {
    Requirements::new()
        .needs(Baseline::RC | Baseline::WRITE | Baseline::READ | Baseline::ATOMICS)
        .at_least(Limit::MaxInlineData, INLINE.into())
        .at_least(Limit::MaxQp, 2 * CLIENTS as u64)
}

/// The state that all clients of a process share.
#[derive(Clone)]
struct Clients {
    server: SocketAddr,
    context: Context,
    pd: Pd,
    cq: Cq,
}

impl Clients {
    async fn new(server: SocketAddr, device: &Device) -> Result<Self> {
        let context = device.open(&needs())?;
        let (pd, cq) = (
            context.alloc_pd().await?,
            context.create_cq(4 * CLIENTS as u32).await?,
        );
        Ok(Self {
            server,
            context,
            pd,
            cq,
        })
    }

    async fn try_store(self, number: usize) -> Result<u64> {
        let qp = self
            .pd
            .create_qp(QpOptions::rc(&self.cq).max_inline_data(INLINE))
            .await?;
        let connector = Connector::of(&self.context)?;
        let connecting = connector.connect(&qp, self.server, ConnectionOptions::new());
        let connection = connecting.await.map_err(refusal)?;
        let table =
            Table::from_bytes(connection.private_data()).ok_or("the server told no table")?;
        let store = Store::new(&self, &qp, table).await?;

        let (key, value) = (format!("client-{number}"), format!("value of {number}"));
        store.put(&key, &value).await?;
        let found = store.get(&key).await?;
        if found.as_deref() != Some(value.as_str()) {
            return Err(format!("{key}: put {value:?}, got {found:?}").into());
        }
        let visits = store.count("visits").await?;
        connection.disconnect().await?;
        Ok(visits)
    }

    fn report(&self, visits: u64) -> Result<()> {
        let device = &self.context.attributes().name;
        println!("{CLIENTS} clients put, got and counted over {device}: {visits} visits");
        Ok(())
    }
}

// The error of a refused connection, with the reason of the server.
fn refusal(error: ConnectError) -> Box<dyn std::error::Error + Send + Sync> {
    match &error {
        ConnectError::Refused { private_data, .. } => {
            let reason = private_data.split(|byte| *byte == 0).next();
            format!("{error}: {}", reason.unwrap_or_default().escape_ascii()).into()
        }
        _ => error.into(),
    }
}

/// The address and the number of the slots.
#[derive(Clone, Copy)]
struct Table {
    at: RemoteAddress,
    slots: u32,
}

impl Table {
    fn to_bytes(self) -> Vec<u8> {
        [&self.at.to_bytes()[..], &self.slots.to_be_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (at, rest) = bytes.split_first_chunk()?;
        let slots = u32::from_be_bytes(*rest.first_chunk()?);
        let at = RemoteAddress::from_bytes(*at);
        (slots > 0).then_some(Self { at, slots })
    }
}

/// A client's end: its queue pair, and room for one slot and for the answer of an atomic operation.
struct Store {
    qp: Qp,
    table: Table,
    memory: Memory,
    region: Mr,
}

impl Store {
    async fn new(clients: &Clients, qp: &Qp, table: Table) -> Result<Self> {
        let memory = Memory::zeroed(SLOT as usize + 8)?;
        let access = Access::LOCAL_WRITE | read_sink_access(&clients.context).access;
        let region = clients.pd.register(&memory, access).await?;
        Ok(Self {
            qp: qp.clone(),
            table,
            memory,
            region,
        })
    }

    async fn put(&self, key: &str, value: &str) -> Result<()> {
        let mut entry = Entry {
            length: value.len() as u64,
            value: [0; VALUE],
        };
        let room = entry.value.get_mut(..value.len());
        room.ok_or("the value is too long")?
            .copy_from_slice(value.as_bytes());
        let slot = self.slot_of(key).await?;
        self.qp
            .submit(wr::Write::new(entry.as_bytes(), slot.plus(ENTRY)))
            .await?;
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<String>> {
        for at in self.probe(key) {
            self.qp
                .submit(wr::Read::new(self.region.sge(0, SLOT as u32)?, at))
                .await?;
            let slot: Slot = self.memory.read_as(0)?;
            if slot.tag == tag(key) {
                let value = slot
                    .entry
                    .value
                    .get(..slot.entry.length as usize)
                    .ok_or("a damaged slot")?;
                return Ok(Some(String::from_utf8(value.to_vec())?));
            } else if slot.tag == 0 {
                return Ok(None);
            }
        }
        Ok(None)
    }

    async fn count(&self, key: &str) -> Result<u64> {
        let slot = self.slot_of(key).await?;
        let answer = self.region.sge(SLOT as usize, 8)?;
        self.qp
            .submit(wr::FetchAdd::new(answer, slot.plus(COUNT), 1))
            .await?;
        Ok(self.memory.load_u64(SLOT as usize)? + 1)
    }

    // Finds the slot with the key's tag, or takes a free one for it.
    async fn slot_of(&self, key: &str) -> Result<RemoteAddress> {
        let answer = self.region.sge(SLOT as usize, 8)?;
        for at in self.probe(key) {
            self.qp
                .submit(wr::CompareSwap::new(answer, at, 0, tag(key)))
                .await?;
            let found = self.memory.load_u64(SLOT as usize)?;
            if found == 0 || found == tag(key) {
                return Ok(at);
            }
        }
        Err("the table is full".into())
    }

    fn probe(&self, key: &str) -> impl Iterator<Item = RemoteAddress> + use<> {
        let (Table { at, slots }, first) = (self.table, tag(key));
        let slots = u64::from(slots);
        (0..slots).map(move |step| at.plus(first.wrapping_add(step) % slots * SLOT))
    }
}

// The FNV-1a hash of the key, never 0, which marks a free slot. Keys of the same tag count as the same key here.
fn tag(key: &str) -> u64 {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}
