//! `polyverbs rds stress`: exchanges requests and replies between many sockets, and compares each byte.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use polyverbs_rds::{MAX_MESSAGE, RdsError, RdsSocket};
use serde_json::json;

use super::super::network::{Host, parse_seconds};
use super::super::perf::report::{quantiles, quantiles_to_json};
use super::{Common, described, own, parse_message, peer};
use crate::interrupt::{self, Ending};
use crate::output::{BOLD, DIM, complain, count, format_bytes, nanoseconds, progress, rate, say};

/// The message if the operating system cannot start another thread.
const NO_THREAD: &str =
    "no thread for a task: lower --tasks, or raise the limit of threads or memory";

/// Exchange requests and replies between many sockets, and measure them
///
/// One process listens and answers; others run tasks, each of which has a socket and sends requests. Both sides compare
/// each byte. It works like rds-stress, but does not interoperate with it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs rds stress 127.0.0.2 --listen --device ib0
  polyverbs rds stress 127.0.0.1 --to 127.0.0.2 --device ib0 --tasks 4 --depth 8
  polyverbs rds stress 192.0.2.1 --to 192.0.2.7 --device ib0 --request-bytes 8k --json")]
pub(super) struct Arguments {
    /// Local address; a listener has port 4000 by default
    #[arg(value_name = "HOST[:PORT]")]
    at: Host,
    /// Host that listens
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "listen")]
    to: Option<Host>,
    /// Answer requests until interrupted
    #[arg(long, conflicts_with_all = ["to", "depth", "request_bytes", "reply_bytes", "seconds", "count"])]
    listen: bool,
    #[command(flatten)]
    common: Common,
    /// Tasks that send requests; of a listener, threads that answer
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: u16,
    /// Outstanding requests of each task
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Bytes of each request, 16 to 1M
    #[arg(long, value_name = "BYTES", default_value = "1k", value_parser = |text: &str| parse_message(text, HEADER))]
    request_bytes: usize,
    /// Bytes of each reply, 16 to 1M
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = |text: &str| parse_message(text, HEADER))]
    reply_bytes: usize,
    /// Seconds for which requests are sent
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,
    /// End after this many requests of each task, if that is sooner
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The default port of a listener.
const PORT: u16 = 4000;

/// How long a message may take to be sent or to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that a listener's socket may queue, in each direction.
const LISTENER_BUFFER: usize = 64 << 20;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.to {
        Some(to) => measure(arguments, to),
        None => listen(arguments),
    }
}

fn listen(arguments: &Arguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    let socket = common.bind(own(&arguments.at, PORT)?)?;
    socket.set_options(|options| {
        (options.send_buffer, options.receive_buffer) = (LISTENER_BUFFER, LISTENER_BUFFER);
    });
    let at = json!(socket.local_addr());
    match common.json {
        true => say!("{}", json!({ "listening": at }))?,
        false => say!(
            "{BOLD}{}{BOLD:#}  listens at {}",
            common.device.device,
            at.as_str().unwrap_or_default()
        )?,
    }
    let answered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&answered);
    interrupt::says(Ending::AtOnce, move || {
        let answered = counted.load(Ordering::Relaxed);
        format!("{} answered", count(answered, "request"))
    });
    let (ends, ended) = mpsc::channel();
    let shared = Arc::new((socket, Pattern::new(), answered));
    for _ in 0..arguments.tasks {
        let (shared, ends) = (Arc::clone(&shared), ends.clone());
        let task = move || {
            let (socket, pattern, answered) = &*shared;
            // The main thread waits for the first end of a task only, which ends the process.
            let _ = ends.send(answer(socket, pattern, answered));
        };
        Builder::new().spawn(task).context(NO_THREAD)?;
    }
    ended.recv()?
}

fn answer(socket: &RdsSocket, pattern: &Pattern, answered: &AtomicU64) -> anyhow::Result<()> {
    socket.set_write_timeout(Some(PATIENCE));
    let (mut request, mut reply) = (vec![0; MAX_MESSAGE], Vec::new());
    loop {
        let received = socket.recv_from(&mut request)?;
        let Some(from) = received.from else { continue };
        let Some(head) = pattern.check(&request[..received.length]) else {
            complain(&format!(
                "what {from} has sent is no request, or is damaged"
            ));
            continue;
        };
        pattern.fill(
            &mut reply,
            head.reply,
            Head {
                reply: HEADER,
                ..head
            },
        );
        match socket.send_to(&reply, from) {
            Ok(_) => answered.fetch_add(1, Ordering::Relaxed),
            Err(RdsError::TimedOut) => {
                complain("replies that their receivers do not take are dropped after a while");
                socket.cancel_sent_to(None)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
    }
}

fn measure(arguments: &Arguments, to: &Host) -> anyhow::Result<()> {
    let common = &arguments.common;
    let from = own(&arguments.at, 0)?;
    let (to, _) = peer(common, to, PORT, Some(from.ip()))?;
    let sockets = (0..arguments.tasks).map(|_| {
        let socket = common.bind(SocketAddr::new(from.ip(), 0))?;
        socket.set_read_timeout(Some(PATIENCE));
        socket.set_write_timeout(Some(PATIENCE));
        // Room for all that can be under way: no task waits for itself.
        let depth = usize::from(arguments.depth);
        socket.set_options(|options| {
            options.send_buffer = depth * arguments.request_bytes;
            options.receive_buffer = depth * arguments.reply_bytes;
        });
        Ok(socket)
    });
    let sockets = sockets.collect::<anyhow::Result<Vec<_>>>()?;
    let bar = progress(arguments.seconds.as_secs(), "{bar:32.cyan/dim} {eta} left");
    let replies = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&replies);
    interrupt::says(Ending::AtOnce, move || {
        let replies = counted.load(Ordering::Relaxed);
        format!("{} received, and no figure", count(replies, "reply"))
    });
    let pattern = Pattern::new();
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let figures = thread::scope(|scope| {
        let task = |socket| {
            let task = Task {
                arguments,
                socket,
                to,
                pattern: &pattern,
                is_over: &is_over,
                replies: &replies,
            };
            let histogram = task.run(began + arguments.seconds);
            // A failure ends the others.
            is_over.fetch_or(histogram.is_err(), Ordering::Relaxed);
            histogram
        };
        let mut tasks = Vec::new();
        for socket in &sockets {
            let started = Builder::new().spawn_scoped(scope, move || task(socket));
            // The others would go on until their time is over.
            is_over.fetch_or(started.is_err(), Ordering::Relaxed);
            tasks.push(started.context(NO_THREAD)?);
        }
        while !tasks.iter().all(thread::ScopedJoinHandle::is_finished) {
            bar.set_position(began.elapsed().as_secs());
            thread::sleep(Duration::from_millis(20));
        }
        let mut all = histogram()?;
        for task in tasks {
            all.add(joined(task.join())?)?;
        }
        anyhow::Ok(all)
    });
    bar.finish_and_clear();
    report(arguments, &sockets[0], to, began.elapsed(), &figures?)
}

struct Task<'t> {
    arguments: &'t Arguments,
    socket: &'t RdsSocket,
    to: SocketAddr,
    pattern: &'t Pattern,
    is_over: &'t AtomicBool,
    replies: &'t AtomicU64,
}

impl Task<'_> {
    /// Sends requests until `end`, and returns the times from each request to its reply, in picoseconds.
    fn run(&self, end: Instant) -> anyhow::Result<Histogram<u64>> {
        let Self {
            arguments,
            socket,
            to,
            pattern,
            ..
        } = *self;
        let mut histogram = histogram()?;
        let (mut request, mut room) = (Vec::new(), vec![0; arguments.reply_bytes + 1]);
        let (mut number, mut waiting) = (0, HashMap::new());
        loop {
            while waiting.len() < usize::from(arguments.depth)
                && Instant::now() < end
                && arguments.count.is_none_or(|most| number < most)
                && !self.is_over.load(Ordering::Relaxed)
            {
                let head = Head {
                    number,
                    reply: arguments.reply_bytes,
                };
                pattern.fill(&mut request, arguments.request_bytes, head);
                let sent = Instant::now();
                socket
                    .send_to(&request, to)
                    .map_err(|error| self.late(error))?;
                waiting.insert(number, sent);
                number += 1;
            }
            if waiting.is_empty() {
                return Ok(histogram);
            }
            let received = socket.recv_from(&mut room);
            let received = received.map_err(|error| self.late(error))?;
            if received.from != Some(to) {
                continue;
            }
            let reply = pattern.check(&room[..received.length]);
            let reply = reply.filter(|_| received.full_length == arguments.reply_bytes);
            let Some(sent) = reply.and_then(|reply| waiting.remove(&reply.number)) else {
                anyhow::bail!("what {to} has sent is no reply, or is damaged");
            };
            histogram.saturating_record(sent.elapsed().as_nanos() as u64 * 1000);
            self.replies.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn late(&self, error: RdsError) -> anyhow::Error {
        match error {
            RdsError::TimedOut => anyhow::anyhow!(
                "{} does not answer within {} s",
                self.to,
                PATIENCE.as_secs()
            ),
            error => error.into(),
        }
    }
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    // Up to a minute, to three digits.
    Ok(Histogram::new_with_bounds(1, 60_000_000_000_000, 3)?)
}

fn joined<T>(outcome: thread::Result<anyhow::Result<T>>) -> anyhow::Result<T> {
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn report(
    arguments: &Arguments,
    socket: &RdsSocket,
    to: SocketAddr,
    elapsed: Duration,
    histogram: &Histogram<u64>,
) -> anyhow::Result<()> {
    let Arguments {
        common,
        tasks,
        depth,
        request_bytes,
        reply_bytes,
        ..
    } = arguments;
    let replies = histogram.len();
    anyhow::ensure!(replies > 0, "no request was sent: the time was over before");
    let seconds = elapsed.as_secs_f64();
    let bytes_per_second = (replies as usize * (request_bytes + reply_bytes)) as f64 / seconds;
    let mut figures = described(common, socket);
    figures["to"] = json!(to);
    figures["tasks"] = json!(tasks);
    figures["depth"] = json!(depth);
    figures["request_bytes"] = json!(request_bytes);
    figures["reply_bytes"] = json!(reply_bytes);
    figures["replies"] = json!(replies);
    figures["seconds"] = json!(seconds);
    figures["replies_per_second"] = json!(replies as f64 / seconds);
    figures["bytes_per_second"] = json!(bytes_per_second);
    figures["latency"] = quantiles_to_json(histogram);
    let text = format!(
        "{BOLD}{} to {to}{BOLD:#}  {DIM}{}, {depth} deep; requests of {}, replies of {}{DIM:#}\n  \
         {BOLD}{:.0} replies a second{BOLD:#}, {} in both directions together; {replies} in {}\n  {}",
        common.device.device,
        count(u64::from(*tasks), "task"),
        format_bytes(*request_bytes as u64),
        format_bytes(*reply_bytes as u64),
        replies as f64 / seconds,
        rate(bytes_per_second),
        nanoseconds(seconds * 1e9),
        quantiles(histogram),
    );
    say!("{}", common.end(socket, figures, &text)?)?;
    Ok(())
}

/// The header of a message: its number, the length of its reply, and (when encoded) its own length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    number: u64,
    reply: usize,
}

const HEADER: usize = 16;

/// The bytes of messages after the header. They depend on the message's number, so that bytes of another message are
/// detected.
struct Pattern(Vec<u8>);

/// The number of different patterns, a prime.
const PATTERNS: usize = 251;

impl Pattern {
    fn new() -> Self {
        let bytes = (0..(MAX_MESSAGE + PATTERNS) as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
        Self(bytes.collect())
    }

    fn of(&self, number: u64, length: usize) -> &[u8] {
        let first = (number % PATTERNS as u64) as usize;
        &self.0[first..first + length]
    }

    fn fill(&self, message: &mut Vec<u8>, length: usize, head: Head) {
        message.clear();
        message.extend(head.number.to_be_bytes());
        message.extend((head.reply as u32).to_be_bytes());
        message.extend((length as u32).to_be_bytes());
        message.extend(self.of(head.number, length - HEADER));
    }

    /// Returns the header of a message; `None` if the message is damaged.
    fn check(&self, message: &[u8]) -> Option<Head> {
        let (number, rest) = message.split_first_chunk()?;
        let (reply, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let number = u64::from_be_bytes(*number);
        let reply = u32::from_be_bytes(*reply) as usize;
        let is_whole = u32::from_be_bytes(*length) as usize == message.len()
            && rest == self.of(number, rest.len())
            && (HEADER..=MAX_MESSAGE).contains(&reply);
        is_whole.then_some(Head { number, reply })
    }
}

#[cfg(test)]
mod tests;
