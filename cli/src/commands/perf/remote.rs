//! Measurements between two processes: one listens, the other measures.
//!
//! The connection request carries the measurement and its size, the reply carries the target memory. On iWARP a send without a
//! receive would end the stream: a sender keeps to the receives that the other side has posted. One-sided operations do not show
//! at the listening side, which polls for its device to make progress: the measuring side counts in its memory, now and then.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use polyverbs::connection::{Connection, ConnectionOptions, Connector, Incoming};
use polyverbs::{Completion, Device, PathOptions, RemoteAddress, wr};
use polyverbs_benches::ping_pong::{Player, SendPattern};
use polyverbs_benches::rig::{PEERS, Rig};
use polyverbs_benches::side::{Side, check};
use serde_json::json;

use super::figures::{Figures, in_blocks, one_by_one};
use super::{Job, Test};
use crate::interrupt::{self, Ending};
use crate::output::{complain, count, say};
use crate::transfer::network::refusal;
use crate::transfer::peers::{Accepting, BACKLOG, LEAST, Peer, Peers, refuse};

/// Prefix of the private data of a request.
const MAGIC: &[u8; 8] = b"polyprf2";
/// Requests of each queue.
const DEPTH: u32 = 256;
/// Operations in flight while bytes or messages are counted.
const IN_FLIGHT: u64 = 64;
/// How many messages each report to the sender covers.
const CREDIT: u64 = 32;
/// The connection has ended after this long without anything from the other side.
const SILENCE: Duration = Duration::from_secs(20);
/// How long a side polls while nothing arrives before it lets other threads of its processor run, and after how many polls each time.
const ALONE: Duration = Duration::from_micros(50);
const YIELD_EVERY: u32 = 16;
/// How long a side polls without a pause while nothing arrives, how long while the other only counts, and the pauses after that.
const BUSY: Duration = Duration::from_millis(5);
const BUSY_UNTOLD: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// How often a side checks that the other is still there while nothing arrives.
const LOOK: Duration = Duration::from_secs(1);
const LOOKED: u64 = u64::MAX;

/// One side, and its connection.
struct End {
    rig: Rig,
    side: Arc<Side>,
    /// The place in the memory, after the bytes that are measured with, where the other side counts.
    beats_at: usize,
    is_over: Arc<AtomicBool>,
}

impl End {
    fn new(device: &Device, size: u32) -> anyhow::Result<Self> {
        let rig = Rig::open(device)?;
        let beats_at = (size.max(8) as usize).next_multiple_of(8);
        let side = Side::new(&rig, beats_at + 8, rig.remote(), [DEPTH, DEPTH])?;
        // Receives are posted before the other side can send.
        side.qp.init(PathOptions::new()).wait()?;
        let end = Self {
            rig,
            side: Arc::new(side),
            beats_at,
            is_over: Arc::default(),
        };
        // One more fits: the active side posts it before anything has arrived.
        (1..DEPTH).try_for_each(|_| end.side.receive(size))?;
        Ok(end)
    }

    /// One of two that send messages to and fro.
    fn player(&self, size: u32) -> anyhow::Result<Player> {
        let pattern = SendPattern {
            size,
            inline: true,
            ..SendPattern::default()
        };
        Player::new(Arc::clone(&self.side), 0, pattern)
    }

    /// How often the other side has counted.
    fn beats(&self) -> anyhow::Result<u64> {
        Ok(self.side.memory.load_u64(self.beats_at)?)
    }

    /// Writes a count into the memory of the other side.
    fn beat(&self, count: u64, remote: RemoteAddress) -> anyhow::Result<()> {
        let (side, at) = (&self.side, self.beats_at);
        side.memory.write(at, &count.to_ne_bytes())?;
        let count = side.region.sge(at, 8)?;
        side.post(wr::Write::new(count, remote.plus(at as u64)))
    }

    fn watch(&self, connection: &Connection) {
        let is_over = Arc::clone(&self.is_over);
        connection
            .disconnected()
            .on_done(move |_| is_over.store(true, Ordering::Relaxed));
    }

    /// Polls until a request completes.
    fn next(&self, slots: &mut [Completion]) -> anyhow::Result<usize> {
        let mut silence = Silence::default();
        loop {
            let found = self.side.cq.poll(slots)?.len();
            if found == 1 && slots[0].wr_id == LOOKED {
                check(&slots[0])?;
                continue;
            }
            if found > 0 {
                return Ok(found);
            }
            if self.is_over.load(Ordering::Relaxed) {
                anyhow::bail!("the other side ended the connection");
            }
            let silent = silence.goes_on();
            if silent > SILENCE {
                anyhow::bail!("the other side does not answer");
            }
            self.look(&mut silence, silent)?;
            Rest::after(silence.polls, silent, BUSY).take();
        }
    }

    /// Now and then: a write of no bytes, which fails when the other side is gone.
    fn look(&self, silence: &mut Silence, silent: Duration) -> anyhow::Result<()> {
        if silent < silence.looked + LOOK {
            return Ok(());
        }
        silence.looked = silent;
        let look = wr::Write::new((), RemoteAddress::default());
        self.side.post(look.signaled(LOOKED))
    }

    /// Waits for this many completions; each must be a success.
    fn take(&self, slots: &mut [Completion], count: u64) -> anyhow::Result<()> {
        let mut taken = 0;
        while taken < count {
            let found = self.next(&mut slots[..1])?;
            slots[..found].iter().try_for_each(check)?;
            taken += found as u64;
        }
        Ok(())
    }
}

/// Polls that found nothing, one after another.
#[derive(Default)]
struct Silence {
    polls: u32,
    since: Option<Instant>,
    // How long it had lasted when the other side was last looked for.
    looked: Duration,
}

impl Silence {
    // A completion mostly arrives before this many polls: the clock is not read for them.
    const UNTIMED: u32 = 100;

    /// Counts another poll; returns for how long nothing has arrived.
    fn goes_on(&mut self) -> Duration {
        self.polls += 1;
        if self.polls < Self::UNTIMED {
            return Duration::ZERO;
        }
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}

/// What a side does after this many polls that found nothing, when nothing has arrived for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    None,
    Yield,
    Sleep(Duration),
}

impl Rest {
    fn after(polls: u32, silent: Duration, busy: Duration) -> Self {
        if silent > busy {
            Self::Sleep((silent / 16).clamp(PAUSE, LONGEST_PAUSE))
        } else if silent > ALONE && polls.is_multiple_of(YIELD_EVERY) {
            Self::Yield
        } else {
            Self::None
        }
    }

    fn take(self) {
        match self {
            Self::None => {}
            Self::Yield => thread::yield_now(),
            Self::Sleep(pause) => thread::sleep(pause),
        }
    }
}

/// Tells the listening side now and then that it is measured with.
struct Beats<'e> {
    end: &'e End,
    remote: RemoteAddress,
    every: u64,
    operations: u64,
}

impl<'e> Beats<'e> {
    // So many operations, or so many bytes, take a few milliseconds.
    const OPERATIONS: u64 = 1000;
    const BYTES: u64 = 16 << 20;

    fn new(end: &'e End, remote: RemoteAddress, size: u32) -> Self {
        Self {
            end,
            remote,
            every: (Self::BYTES / u64::from(size)).clamp(1, Self::OPERATIONS),
            operations: 0,
        }
    }

    /// Called before each operation.
    fn count(&mut self) -> anyhow::Result<()> {
        self.operations += 1;
        if self.operations % self.every == 1 % self.every {
            self.end.beat(self.operations, self.remote)?;
        }
        Ok(())
    }
}

/// Measures against the process that listens at `to`.
pub(super) fn measure(job: &Job<'_>, to: SocketAddr) -> anyhow::Result<Figures> {
    let end = End::new(job.device, job.size)?;
    let connector = Connector::of(&end.rig.context)?;
    let mut request = MAGIC.to_vec();
    request.push(job.test.number());
    request.extend(job.size.to_be_bytes());
    let options = options().private_data(&request);
    let connected = connector.connect(&end.side.qp, to, options).wait();
    let connection = connected.map_err(|error| match refusal(&error) {
        Some(reason) => anyhow::anyhow!("{to}: the connection was refused: {reason}"),
        None => anyhow::anyhow!("{to}: {error}"),
    })?;
    let remote = remote_of(connection.private_data())
        .ok_or_else(|| anyhow::anyhow!("{to}: who listens there is no `polyverbs perf`"))?;
    end.watch(&connection);
    let timed_twice = !job.test.counts_bytes() && job.test != Test::MessageRate;
    let total = job.iterations * if timed_twice { 2 } else { 1 };
    let bar = super::bar(total);
    let figures = run(job, &end, remote, &bar);
    bar.finish_and_clear();
    let figures = figures?;
    // The measurement is complete, whatever happens to the connection.
    drop(connection.disconnect().wait());
    Ok(figures)
}

fn run(
    job: &Job<'_>,
    end: &End,
    remote: RemoteAddress,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    let side = &end.side;
    let local = side.region.sge(0, job.size)?;
    let mut slots: [Completion; 1] = Default::default();
    let mut beats = Beats::new(end, remote, job.size);
    match job.test {
        Test::SendLatency => {
            let mut player = end.player(job.size)?;
            latency(job, 2, bar, || player.ask(|_, slots| end.next(slots)))
        }
        Test::WriteLatency => latency(job, 1, bar, || {
            beats.count()?;
            side.post(wr::Write::new(local, remote).signaled(0))?;
            end.take(&mut slots, 1)
        }),
        Test::ReadLatency => latency(job, 1, bar, || {
            beats.count()?;
            side.post(wr::Read::new(local, remote).signaled(0))?;
            end.take(&mut slots, 1)
        }),
        Test::AtomicLatency => {
            job.needs_atomics(&end.rig)?;
            latency(job, 1, bar, || {
                beats.count()?;
                side.post(wr::FetchAdd::new(local, remote, 1).signaled(0))?;
                end.take(&mut slots, 1)
            })
        }
        Test::Bandwidth | Test::MessageRate => in_flight(job, end, bar, || {
            beats.count()?;
            side.post(wr::Write::new(local, remote).signaled(0))
        }),
        Test::ReadBandwidth => in_flight(job, end, bar, || {
            beats.count()?;
            side.post(wr::Read::new(local, remote).signaled(0))
        }),
        Test::SendBandwidth => sends(job, end, bar),
    }
}

// `once` counts as this many operations.
fn latency(
    job: &Job<'_>,
    parts: u64,
    bar: &ProgressBar,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    (0..job.iterations / 10).try_for_each(|_| once())?;
    let median = in_blocks(job.iterations, bar, &mut once)? / parts as f64;
    Ok(Figures {
        median,
        iterations: job.iterations,
        each: Some(one_by_one(job.iterations, parts, bar, once)?),
        yardsticks: Vec::new(),
    })
}

fn in_flight(
    job: &Job<'_>,
    end: &End,
    bar: &ProgressBar,
    mut post: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    let mut slots: [Completion; 1] = Default::default();
    let mut under_way = 0;
    let median = in_blocks(job.iterations, bar, || {
        if under_way == IN_FLIGHT {
            end.take(&mut slots, 1)?;
            under_way -= 1;
        }
        post()?;
        under_way += 1;
        Ok(())
    })?;
    end.take(&mut slots, under_way)?;
    Ok(Figures {
        median,
        iterations: job.iterations,
        each: None,
        yardsticks: Vec::new(),
    })
}

// The other side reports what it has received, so that it always has receives.
fn sends(job: &Job<'_>, end: &End, bar: &ProgressBar) -> anyhow::Result<Figures> {
    let local = end.side.region.sge(0, job.size)?;
    let mut slots: [Completion; 1] = Default::default();
    let (mut sent, mut gone, mut taken) = (0, 0, 0);
    let mut settle = |sent: u64, most: u64| {
        while sent - gone > most || sent - taken > most {
            end.next(&mut slots)?;
            check(&slots[0])?;
            if slots[0].opcode.is_receive() {
                taken += CREDIT;
                end.side.receive(job.size)?;
            } else {
                gone += 1;
            }
        }
        anyhow::Ok(())
    };
    let median = in_blocks(job.iterations, bar, || {
        settle(sent, 2 * CREDIT - 1)?;
        end.side.post(wr::Send::new(local).signaled(0))?;
        sent += 1;
        Ok(())
    })?;
    // Less than one credit is not reported.
    settle(sent, CREDIT - 1)?;
    Ok(Figures {
        median,
        iterations: job.iterations,
        each: None,
        yardsticks: Vec::new(),
    })
}

/// Serves measurements of others, for a number of connections.
pub(super) fn listen(
    device: &Device,
    at: SocketAddr,
    connections: Option<u64>,
    peers: &Peers,
    memory: u64,
    is_json: bool,
) -> anyhow::Result<()> {
    let rig = Rig::open(device)?;
    let listener = Connector::of(&rig.context)?.listen(at, BACKLOG)?;
    if is_json {
        say!("{}", json!({ "listening": listener.address() }))?;
    } else {
        say!("{} listens at {}", device.name(), listener.address())?;
    }
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    interrupt::says(Ending::AtOnce, move || {
        let connections = count(counted.load(Ordering::Relaxed), "connection");
        format!("{connections} taken")
    });
    let memory = Memory::new(memory);
    let served = peers.serve(
        &listener,
        connections.unwrap_or(u64::MAX),
        |incoming, give_up| {
            let accepted = accept(device, &memory, incoming, give_up);
            accepted.map_err(|error| format!("no measurement is begun: {error}"))
        },
        |measured, connection, peer| {
            taken.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = measured.attend(&connection, peer) {
                complain(&format!("a measurement ended: {error}"));
            }
        },
    );
    served.map_err(anyhow::Error::from_boxed)
}

/// Bytes of memory that measurements may have.
struct Memory {
    most: u64,
    left: AtomicU64,
}

struct Share<'m> {
    memory: &'m Memory,
    bytes: u64,
}

impl Memory {
    const fn new(most: u64) -> Self {
        let left = AtomicU64::new(most);
        Self { most, left }
    }

    fn share(&self, bytes: u64) -> Option<Share<'_>> {
        let rest = |left: u64| left.checked_sub(bytes);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        let memory = self;
        taken.is_ok().then_some(Share { memory, bytes })
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.memory.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// This side of a measurement of another.
struct Measured<'m> {
    end: End,
    test: Test,
    size: u32,
    _share: Share<'m>,
}

fn accept<'m>(
    device: &Device,
    memory: &'m Memory,
    incoming: Incoming,
    give_up: &mut dyn FnMut() -> bool,
) -> anyhow::Result<Accepting<Measured<'m>>> {
    let Some((test, size)) = asked(incoming.private_data()) else {
        refuse(incoming, "that is no measurement of this version");
        anyhow::bail!("the peer did not say what to measure");
    };
    // Who has not completed the connection may not exist, and keeps no memory from others.
    let share = loop {
        match memory.share(size.into()) {
            None if u64::from(size) <= memory.most && give_up() => {}
            share => break share,
        }
    };
    let Some(_share) = share else {
        refuse(
            incoming,
            "it has no memory left for measurements of that size",
        );
        // The size is left out: a peer that varies it would make a new reason of each request.
        anyhow::bail!("there was no memory left for the size that the peer asked for");
    };
    let end = End::new(device, size)?;
    let remote = end.side.region.remote(0);
    let mut answer = MAGIC.to_vec();
    answer.extend(remote.to_bytes());
    let options = options().private_data(&answer);
    let (accepting, answer) = incoming.begin_accept(&end.side.qp, options)?;
    let measured = Measured {
        end,
        test,
        size,
        _share,
    };
    Ok((measured, accepting, answer))
}

impl Measured<'_> {
    fn attend(&self, connection: &Connection, peer: &Peer) -> anyhow::Result<()> {
        self.end.watch(connection);
        let attended = answer_each(&self.end, self.test, self.size, peer);
        self.end.side.hang_up();
        attended
    }
}

// Until the other side ends the connection.
fn answer_each(end: &End, test: Test, size: u32, peer: &Peer) -> anyhow::Result<()> {
    let mut slots: [Completion; 1] = Default::default();
    let mut player = end.player(size)?;
    let mut silence = Silence::default();
    let (mut counted, mut beats) = (0, 0);
    let busy = match test.sends_messages() {
        true => BUSY,
        false => BUSY_UNTOLD,
    };
    loop {
        let found = end.side.cq.poll(&mut slots)?.len();
        if end.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        if found == 0 {
            let silent = silence.goes_on();
            if silent.is_zero() {
                continue;
            }
            let told = end.beats()?;
            if told != beats {
                beats = told;
                silence = Silence::default();
                peer.moves(LEAST);
                continue;
            }
            let rest = Rest::after(silence.polls, silent, busy);
            if let Rest::Sleep(_) = rest {
                peer.check().map_err(anyhow::Error::from_boxed)?;
                end.look(&mut silence, silent)?;
            }
            rest.take();
            continue;
        }
        check(&slots[0])?;
        if !slots[0].opcode.is_receive() {
            continue;
        }
        counted += 1;
        // Of those that come at once only a few are told of.
        if silence.since.is_some() || counted % CREDIT == 0 {
            peer.moves(LEAST);
        }
        silence = Silence::default();
        if test == Test::SendLatency {
            player.send()?;
            continue;
        }
        end.side.receive(size)?;
        if test == Test::SendBandwidth && counted % CREDIT == 0 {
            end.side.post(wr::Send::new(()).signaled(0))?;
        }
    }
}

// On a busy machine the other side may not be scheduled for a while: that is a result, not a failure.
fn options() -> ConnectionOptions {
    ConnectionOptions::new().path(PathOptions::new().access(PEERS).timeout(17))
}

fn asked(private_data: &[u8]) -> Option<(Test, u32)> {
    let (number, size) = private_data.strip_prefix(MAGIC)?.split_first()?;
    let size = u32::from_be_bytes(*size.first_chunk()?);
    let is_allowed = (1..=super::LARGEST).contains(&u64::from(size));
    Some((Test::of_number(*number)?, size)).filter(|_| is_allowed)
}

fn remote_of(private_data: &[u8]) -> Option<RemoteAddress> {
    let told = private_data.strip_prefix(MAGIC)?.first_chunk()?;
    Some(RemoteAddress::from_bytes(*told))
}

#[cfg(test)]
mod tests;
