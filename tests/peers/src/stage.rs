//! Two connected queue pairs: connected by their connection managers, or by hand.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use polyverbs::connection::{ConnectError, Connection, Listener};
use polyverbs::qp::QpType;
use polyverbs::{Started, wr};

use crate::ours::{Host, MTU, Ours};
use crate::theirs::{Card, Peer, gid_text, hexadecimal, octets};

/// The private data of the kernel's side when it connects or accepts, and that of our side.
const THEIR_WORDS: &[u8] = b"from the kernel";
const OUR_WORDS: &[u8] = b"from a program";
/// How long a step of a connection may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How two queue pairs find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// The attributes of each are passed to the other over TCP.
    Told,
    WeConnect,
    TheyConnect,
}

impl Meeting {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Told => "",
            Self::WeConnect => "we connect",
            Self::TheyConnect => "they connect",
        }
    }
}

/// Lengths of messages: around the path MTU, and larger than a window.
const LENGTHS: [usize; 9] = [1, 8, 1000, 1024, 1025, 4096, 10_000, 65_536, 1 << 20];

/// The lengths that are at most `largest`.
pub(crate) fn up_to(largest: usize) -> Vec<usize> {
    let fits = |length: &usize| *length <= largest;
    LENGTHS.into_iter().filter(fits).collect()
}

/// The address of the kernel's side, and ports that no exercise has used yet.
pub(crate) struct Place {
    control: SocketAddr,
    pub(crate) largest: usize,
    next_port: u16,
}

impl Place {
    pub(crate) const fn new(control: SocketAddr, largest: usize) -> Self {
        Self {
            control,
            largest,
            next_port: 7300,
        }
    }

    /// Connects to a new process of the kernel's side.
    pub(crate) fn peer(&self) -> anyhow::Result<Peer> {
        Peer::connect(self.control)
    }

    pub(crate) const fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// The address at which the kernel's side accepts connections.
    pub(crate) const fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.control.ip(), port)
    }
}

/// Two connected queue pairs.
pub(crate) struct Stage {
    pub(crate) ours: Ours,
    pub(crate) own: Card,
    pub(crate) theirs: Peer,
    pub(crate) card: Card,
    pub(crate) is_infiniband: bool,
    largest: usize,
    pub(crate) connection: Option<Connection>,
}

impl Stage {
    pub(crate) fn new(
        host: &Host,
        place: &mut Place,
        qp_type: QpType,
        meeting: Meeting,
    ) -> anyhow::Result<Self> {
        let (mut theirs, ours) = (place.peer()?, host.make(qp_type)?);
        let met = match meeting {
            Meeting::Told => told(&ours, &mut theirs)?,
            Meeting::WeConnect => {
                let port = place.port();
                we_connect(&ours, &mut theirs, place.at(port))?
            }
            Meeting::TheyConnect => {
                let listener = host.listen(place.port())?;
                they_connect(&ours, &mut theirs, &listener)?
            }
        };
        Ok(Self {
            ours,
            own: met.own,
            theirs,
            card: met.card,
            is_infiniband: host.is_infiniband(),
            largest: place.largest,
            connection: met.connection,
        })
    }

    /// The lengths of messages, each with an index.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        up_to(self.largest).into_iter().enumerate()
    }

    /// Sends a message to the peer: earlier writes have been placed when it arrives.
    pub(crate) fn say(&mut self) -> anyhow::Result<()> {
        self.theirs.tell("recv 0 8")?;
        self.ours
            .succeeds(wr::Send::new(self.ours.sge(0, 1)?).signaled(0))?;
        self.theirs.completes().map(drop)
    }

    /// Receives a message from the peer.
    pub(crate) fn hear(&mut self) -> anyhow::Result<()> {
        self.ours.receive(0, 8)?;
        self.theirs.tell("send 0 1")?;
        self.theirs.completes()?;
        self.ours.completes().map(drop)
    }

    pub(crate) fn peer_checks(
        &mut self,
        at: usize,
        length: usize,
        seed: usize,
    ) -> anyhow::Result<()> {
        self.theirs
            .tell(&format!("check {at:x} {length:x} {seed:x}"))
    }

    pub(crate) fn peer_fills(
        &mut self,
        at: usize,
        length: usize,
        seed: usize,
    ) -> anyhow::Result<()> {
        self.theirs
            .tell(&format!("fill {at:x} {length:x} {seed:x}"))
    }
}

/// The descriptions that two queue pairs have exchanged.
struct Met {
    own: Card,
    card: Card,
    connection: Option<Connection>,
}

fn told(ours: &Ours, theirs: &mut Peer) -> anyhow::Result<Met> {
    let what = match ours.qp.qp_type() {
        QpType::Ud => "ud".to_owned(),
        _ => format!("rc {:x}", MTU as u8),
    };
    let card = theirs.make(&what)?;
    let own = ours.card();
    let gid = gid_text(own.gid);
    theirs.tell(&format!("connect {:x} {:x} {gid}", own.qpn, own.psn))?;
    ours.connect(&card)?;
    Ok(Met {
        own,
        card,
        connection: None,
    })
}

fn we_connect(ours: &Ours, theirs: &mut Peer, to: SocketAddr) -> anyhow::Result<Met> {
    theirs.tell(&format!("listen {:x}", to.port()))?;
    let asked = ours.ask(to, OUR_WORDS)?;
    let heard = theirs.heard("await", "request")?;
    let own = ours.card();
    ensure_words(&heard, &[&own.private(), OUR_WORDS].concat())?;
    let accept = format!("accept {}", hexadecimal(THEIR_WORDS));
    theirs.begin(&accept)?;
    let accepted = within(asked)?.context("we ask")?;
    let card = Card::told(accepted.private_data())?;
    ensure_words(
        accepted.private_data(),
        &[&card.private(), THEIR_WORDS].concat(),
    )?;
    let connection = within(accepted.complete())?.context("we complete")?;
    let answer = theirs.answer(&accept)?;
    ensure!(answer == "ok", "{accept}: {answer}");
    theirs.tell("recv 0 8")?;
    // On iWARP, the side that requested the connection must send first.
    ours.succeeds(wr::Send::new(ours.sge(0, 1)?).signaled(0))?;
    theirs.completes()?;
    Ok(Met {
        own,
        card,
        connection: Some(connection),
    })
}

fn they_connect(ours: &Ours, theirs: &mut Peer, listener: &Listener) -> anyhow::Result<Met> {
    ours.receive(0, 8)?;
    let reach = reach(listener.address(), THEIR_WORDS);
    theirs.begin(&reach)?;
    let incoming = within(listener.next())?.context("they ask")?;
    let card = Card::told(incoming.private_data())?;
    ensure_words(
        incoming.private_data(),
        &[&card.private(), THEIR_WORDS].concat(),
    )?;
    let connection = within(ours.accept(incoming, OUR_WORDS))?.context("we accept")?;
    let answer = theirs.answer(&reach)?;
    let heard = answer
        .strip_prefix("established ")
        .context(answer.clone())?;
    let own = ours.card();
    ensure_words(&octets(heard)?, &[&own.private(), OUR_WORDS].concat())?;
    theirs.tell("send 0 1")?;
    theirs.completes()?;
    ours.completes()?;
    Ok(Met {
        own,
        card,
        connection: Some(connection),
    })
}

/// The command that makes the kernel's side request a connection.
pub(crate) fn reach(to: SocketAddr, words: &[u8]) -> String {
    format!("reach {} {:x} {}", to.ip(), to.port(), hexadecimal(words))
}

/// Checks private data; InfiniBand's connection manager pads it with zeros.
pub(crate) fn ensure_words(told: &[u8], expected: &[u8]) -> anyhow::Result<()> {
    let rest = told.strip_prefix(expected);
    let is_same = rest.is_some_and(|rest| rest.iter().all(|octet| *octet == 0));
    ensure!(
        is_same,
        "told {}, not {}",
        hexadecimal(told),
        hexadecimal(expected)
    );
    Ok(())
}

/// Waits for the result of a verb, for a bounded time.
pub(crate) fn within<T: Send + 'static>(
    started: Started<T, ConnectError>,
) -> anyhow::Result<Result<T, ConnectError>> {
    let (ended, answer) = mpsc::channel();
    started.on_done(move |outcome| drop(ended.send(outcome)));
    answer
        .recv_timeout(PATIENCE)
        .with_context(|| format!("nothing within {PATIENCE:?}"))
}
