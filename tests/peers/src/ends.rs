//! Connections that are refused, and the ways in which established ones end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use polyverbs::connection::ConnectError;
use polyverbs::qp::QpType;
use polyverbs::{WcStatus, wr};

use crate::ours::{Host, TIMEOUT, remote};
use crate::report::{Outcome, Row};
use crate::stage::{Meeting, Place, Stage, ensure_words, reach, within};
use crate::theirs::{Card, Event};

/// The private data of a rejection.
const REASON: &[u8] = b"not today";
/// How long a side that has lost its peer may take to notice: eight times the acknowledge timeout, which devices may
/// quadruple.
const CONFIGURED: Duration = Duration::from_nanos(8 * 4 * (4096 << TIMEOUT));
/// The bytes of a write.
const OCTETS: usize = 65_536;
/// Where the second half of the memory begins.
const HALF: usize = 2 << 20;

type End = fn(&Host, &mut Place) -> anyhow::Result<String>;

/// Exercises every end that a connection can have.
pub(crate) fn all(host: &Host, place: &mut Place) -> Vec<Row> {
    let ends: [(&str, &str, End); 8] = [
        ("refused, no listener", "we connect", refused_out),
        ("refused, no listener", "they connect", refused_in),
        ("rejected with private data", "we connect", rejected_out),
        ("rejected with private data", "they connect", rejected_in),
        ("disconnected by us", "we connect", disconnected_by_us),
        ("disconnected by them", "they connect", disconnected_by_them),
        ("the kernel's side killed", "we connect", theirs_killed),
        ("our side killed", "we connect", ours_killed),
    ];
    let row = |(what, who, end): (_, _, End)| match end(host, place) {
        Ok(seen) => Row::new(what, who, "", seen, Ok(Outcome::Ok)),
        Err(error) => Row::new(what, who, "", String::new(), Err(error)),
    };
    ends.into_iter().map(row).collect()
}

fn refused_out(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let ours = host.make(QpType::Rc)?;
    let port = place.port();
    let began = Instant::now();
    match within(ours.ask(place.at(port), &[])?)? {
        Err(ConnectError::Refused { private_data, .. }) => {
            ensure_words(&private_data, &[])?;
            Ok(format!("refused after {}", seconds(began.elapsed())))
        }
        Err(error) => bail!("{error}"),
        Ok(_) => bail!("connected"),
    }
}

fn refused_in(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let at = (host.address, place.port()).into();
    let event = place.peer()?.event(&reach(at, &[]))?;
    ensure_words(&event.data, &[])?;
    // On iWARP the call itself waits for the answer and fails.
    let name = match host.is_infiniband() {
        true => REJECTED,
        false => "rdma_connect",
    };
    ensure!(event.status != 0, "{event:?}");
    expect(&event, name)
}

fn rejected_out(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let (ours, mut theirs) = (host.make(QpType::Rc)?, place.peer()?);
    let port = place.port();
    theirs.tell(&format!("listen {port:x}"))?;
    let asked = ours.ask(place.at(port), &[])?;
    theirs.heard("await", "request")?;
    theirs.tell(&format!("reject {}", crate::theirs::hexadecimal(REASON)))?;
    match within(asked)? {
        Err(ConnectError::Refused { private_data, .. }) => ensure_words(&private_data, REASON)?,
        Err(error) => bail!("{error}"),
        Ok(_) => bail!("connected"),
    }
    Ok("refused, with the reason".to_owned())
}

fn rejected_in(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let listener = host.listen(place.port())?;
    let mut theirs = place.peer()?;
    let reach = reach(listener.address(), &[]);
    theirs.begin(&reach)?;
    within(listener.next())??.reject(REASON)?;
    let event = Event::parse(&theirs.answer(&reach)?)?;
    ensure_words(&event.data, REASON)?;
    expect(&event, REJECTED)
}

fn disconnected_by_us(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let mut stage = Stage::new(host, place, QpType::Rc, Meeting::WeConnect)?;
    stage.theirs.tell("recv 0 8")?;
    let connection = stage.connection.take().context("no connection")?;
    connection.disconnect().wait()?;
    let seen = expect(&stage.theirs.event("event")?, DISCONNECTED)?;
    stage.theirs.tell("disconnect")?;
    let flushed = stage.theirs.ask("poll")?;
    ensure!(flushed.starts_with("wc 5 "), "its receive: {flushed}");
    Ok(seen)
}

fn disconnected_by_them(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let mut stage = Stage::new(host, place, QpType::Rc, Meeting::TheyConnect)?;
    stage.ours.receive(0, 8)?;
    let connection = stage.connection.take().context("no connection")?;
    stage.theirs.tell("disconnect")?;
    within(connection.disconnected())??;
    connection.disconnect().wait()?;
    let flushed = stage.ours.next()?;
    ensure!(flushed.status == WcStatus::WrFlushErr, "{flushed:?}");
    expect(&stage.theirs.event("event")?, DISCONNECTED)
}

// The process of the kernel's side is killed while we write.
fn theirs_killed(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let Stage {
        ours,
        mut theirs,
        card,
        connection,
        ..
    } = Stage::new(host, place, QpType::Rc, Meeting::WeConnect)?;
    let connection = connection.context("no connection")?;
    let (data, to) = (ours.sge(0, OCTETS)?, remote(&card, HALF));
    for _ in 0..DEPTH {
        ours.qp.post_one(wr::Write::new(data, to).signaled(1))?;
    }
    for _ in 0..WRITES {
        ours.completes()?;
        ours.qp.post_one(wr::Write::new(data, to).signaled(1))?;
    }
    theirs.begin("die")?;
    let began = Instant::now();
    let error = loop {
        let done = ours.next()?;
        if done.status != WcStatus::Success {
            break done.status;
        }
        // Our queue pair may have entered its error state meanwhile; then the post fails.
        let _ = ours.qp.post_one(wr::Write::new(data, to).signaled(1));
    };
    let completed = began.elapsed();
    within(connection.disconnected())??;
    let told = began.elapsed();
    ensure!(
        completed.max(told) <= CONFIGURED,
        "{completed:?} and {told:?}"
    );
    Ok(format!(
        "{error:?} after {}, reported after {}",
        seconds(completed),
        seconds(told)
    ))
}

// Our process is killed while the kernel's side writes; the victim is therefore a process of its own.
fn ours_killed(host: &Host, place: &mut Place) -> anyhow::Result<String> {
    let mut theirs = place.peer()?;
    let port = place.port();
    theirs.tell(&format!("listen {port:x}"))?;
    let mut victim = Victim::start(host, place.at(port))?;
    let card = Card::told(&theirs.heard("await", "request")?)?;
    theirs.tell("accept -")?;
    victim.connected()?;
    // A message that arrived before the receive was posted would end an iWARP connection.
    theirs.tell("recv 0 8")?;
    victim.begin()?;
    theirs.completes()?;
    let write = format!("write 0 {OCTETS:x} {:x} {:x}", card.address, card.rkey);
    for _ in 0..WRITES {
        theirs.tell(&write)?;
        theirs.completes()?;
    }
    theirs.tell("recv 0 8")?;
    victim.0.kill()?;
    victim.0.wait()?;
    let began = Instant::now();
    let status = loop {
        // The queue pair of the kernel's side may have entered the error state meanwhile: then it posts nothing, and its
        // flushed receive shows that.
        theirs.ask(&write)?;
        let answer = theirs.ask("poll")?;
        let status = answer.strip_prefix("wc ").context(answer.clone())?;
        let (status, _) = status.split_once(' ').context("a status")?;
        if status != "0" {
            break status.to_owned();
        }
    };
    let completed = began.elapsed();
    ensure!(completed <= CONFIGURED, "after {completed:?}");
    // A peer of InfiniBand's connection manager sends nothing when it is killed: the side that has noticed must disconnect.
    if host.is_infiniband() {
        theirs.tell("disconnect")?;
    }
    let told = expect(&theirs.event("event")?, DISCONNECTED)?;
    Ok(format!(
        "status {} after {}, {told} after {}",
        status_name(&status),
        seconds(completed),
        seconds(began.elapsed())
    ))
}

/// Our process that connects and waits to be killed.
struct Victim(Child);

impl Victim {
    fn start(host: &Host, to: std::net::SocketAddr) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["--device", host.name()])
            .args(["--at", &host.address.to_string()])
            .args(["victim", &to.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }

    fn connected(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        let output = self.0.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "connected\n", "it said {line:?}");
        Ok(())
    }

    /// Has the process send its message.
    fn begin(&mut self) -> anyhow::Result<()> {
        let input = self.0.stdin.as_mut().context("no input")?;
        Ok(input.write_all(b"begin\n")?)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of the process that will be killed.
pub(crate) fn victim(host: &Host, to: std::net::SocketAddr) -> anyhow::Result<()> {
    let ours = host.make(QpType::Rc)?;
    let accepted = within(ours.ask(to, &[])?)??;
    let _connection = within(accepted.complete())??;
    println!("connected");
    std::io::stdin().read_line(&mut String::new())?;
    ours.succeeds(wr::Send::new(ours.sge(0, 1)?).signaled(0))?;
    loop {
        std::thread::park();
    }
}

fn expect(event: &Event, name: &str) -> anyhow::Result<String> {
    ensure!(event.name == name, "{event:?}");
    Ok(match event.status {
        0 => name.to_owned(),
        status => format!("{name} {status}"),
    })
}

// The name of a status, by its number in libibverbs.
fn status_name(status: &str) -> &str {
    match status {
        "5" => "WR_FLUSH_ERR",
        "c" => "RETRY_EXC_ERR",
        other => other,
    }
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

const REJECTED: &str = "RDMA_CM_EVENT_REJECTED";
const DISCONNECTED: &str = "RDMA_CM_EVENT_DISCONNECTED";
/// Writes that are outstanding at a time.
const DEPTH: usize = 8;
/// Writes that complete before a process is killed.
const WRITES: usize = 20;
