//! Copies between two programs: a server that stores files, and clients that send them.
//!
//! A connection is made by address and port, whichever transport the device has. Unlike with two sides in one process, either
//! side may vanish: a side that receives nothing probes whether the other still exists, and fails if not.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::connection::{ConnectError, Connection, ConnectionOptions, Connector, Incoming};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{Completion, Device, PathOptions};

use super::digest::{Algorithm, Hasher};
use super::files::{Part, Room, UNFINISHED};
use super::peers::{Accepting, BUSY, Peer, refuse};
use super::{
    Copied, CopyOptions, Failed, Filled, LOOK, Message, Moved, PAUSE, Result, Side, WINDOWS,
    check_interrupted, finish, open_source, open_to_reads, printable, send_file, store_file,
};

/// How long a server waits for the client to end a connection over which everything has been sent.
const GOODBYE: Duration = Duration::from_secs(2);

/// Sends the file `from` to the server at `to`, under its own name.
///
/// A server that has no free place is asked again for the time `insists`. `progress` is called with the number of bytes
/// that the server has fetched so far.
pub(crate) fn put(
    device: &Device,
    from: &Path,
    to: SocketAddr,
    insists: Duration,
    algorithm: Algorithm,
    progress: impl Fn(u64),
) -> Result<Copied> {
    let source = open_source(from)?;
    let name = from
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or("the file has no name that can be sent")?;
    let client = Side::open(device, 4 * WINDOWS + 2, WINDOWS)?;
    client.prepare()?;
    let windows = client.windows()?;
    let hasher = Hasher::start(algorithm)?;
    let connection = client.connect(to, insists)?;
    client.watch(&connection);

    let begun = Instant::now();
    let (digest, name) = (algorithm.name().to_owned(), name.to_owned());
    client.say(&Message::File { digest, name }, LOOK)?;
    let sent = send_file(&client, &windows, &source, from, hasher, progress)?;
    let copied = Copied {
        bytes: sent.bytes,
        windows: sent.requests,
        pieces: 0,
        algorithm,
        client_digest: sent.digest,
        server_digest: sent.peer_digest,
        elapsed: begun.elapsed(),
    };
    // The file has arrived, whether or not the disconnect succeeds.
    drop(connection.disconnect().wait());
    Ok(copied)
}

/// Returns the reason with which a server refused a connection; `None` if it gave none, or the error is another one.
pub(crate) fn refusal(error: &ConnectError) -> Option<String> {
    let ConnectError::Refused { private_data, .. } = error else {
        return None;
    };
    let reason = private_data.split(|byte| *byte == 0).next()?;
    let reason = String::from_utf8_lossy(reason);
    (!reason.is_empty()).then(|| printable(reason))
}

/// A folder in which the files of clients are stored.
pub(crate) struct Store {
    pub(crate) device: Device,
    pub(crate) folder: PathBuf,
    pub(crate) options: CopyOptions,
    /// The largest number of bytes that a file may have.
    pub(crate) limit: u64,
    /// The limit for all unfinished files together.
    pub(crate) room: Room,
}

/// The server's side of a connection.
pub(crate) struct Server(Side);

/// A file that has been received and stored.
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    pub(crate) copied: Copied,
}

impl Store {
    /// Begins to accept a client's connection request. If there can be no queue pair for it now, the client is refused as if no
    /// place were free, and tries again.
    pub(crate) fn accept(&self, incoming: Incoming) -> Result<Accepting<Server>> {
        let side = match self.side() {
            Ok(side) => side,
            Err(error) => {
                refuse(incoming, BUSY);
                return Err(error);
            }
        };
        let options = ConnectionOptions::new().path(open_to_reads());
        let (accepting, answer) = incoming.begin_accept(&side.qp, options)?;
        Ok((Server(side), accepting, answer))
    }

    fn side(&self) -> Result<Side> {
        let depth = self.options.depth;
        let side = Side::open(&self.device, 2 * (WINDOWS + depth) + 2, WINDOWS + depth)?;
        side.prepare()?;
        Ok(side)
    }

    /// Receives one file over a connection. If it does not arrive completely, or cannot be stored, no file remains, and the
    /// other side receives the reason.
    pub(crate) fn take(
        &self,
        Server(mut server): Server,
        connection: &Connection,
        peer: &Arc<Peer>,
        progress: impl Fn(u64),
    ) -> Result<Stored> {
        server.peer = Some(Arc::clone(peer));
        server.watch(connection);
        // Reads may be outstanding when the file fails, and would break the connection without their memory.
        let mut sinks = Vec::new();
        let stored = self.store(&server, peer, &mut sinks, progress);
        if let Err(error) = &stored {
            // Only the reason is sent: the path of the folder does not concern the other side.
            let reason = match error.downcast_ref::<Failed>() {
                Some(Failed { cause, .. }) => cause.to_string(),
                None => error.to_string(),
            };
            // Over a broken connection no message can be sent.
            let _ = server.say(&Message::Failed { reason }, LOOK);
        }
        // The other side ends the connection when it has the last message. A side that was silent before would not, so it
        // keeps its place no longer than the message takes.
        server.wait_for_end(match peer.check() {
            Ok(()) => GOODBYE,
            Err(_) => PAUSE,
        });
        stored
    }

    fn store(
        &self,
        server: &Side,
        peer: &Peer,
        sinks: &mut Vec<Filled>,
        progress: impl Fn(u64),
    ) -> Result<Stored> {
        let begun = Instant::now();
        let mut slots: [Completion; 1] = Default::default();
        let (digest, name) = loop {
            let [done] = server.wait(&mut slots)? else {
                continue;
            };
            if let Message::File { digest, name } = Message::decode(done.buffer())? {
                break (digest, name);
            }
            return Err("the peer did not say which file it is".into());
        };
        slots[0].take_buffers().for_each(drop);
        peer.steps();
        server.post_receives()?;
        let path = self.path_of(&name)?;
        let algorithm = Algorithm::of_name(&digest)?;
        let hasher = Hasher::start(algorithm)?;
        let part = Part::within(&self.folder)?;
        // The share is dropped before the file, so that the room is free when the file is gone.
        let mut share = self.room.share(self.limit);
        *sinks = server.sinks(self.options)?;
        let moved = store_file(
            server,
            sinks,
            part.file(),
            &path,
            &mut share,
            hasher,
            progress,
        )?;
        peer.waits();
        let moved = finish(server, moved, || part.keep(&path))?;
        peer.steps();
        let Moved {
            bytes,
            requests,
            digest,
            peer_digest,
        } = moved;
        let copied = Copied {
            bytes,
            windows: 0,
            pieces: requests,
            algorithm,
            client_digest: peer_digest,
            server_digest: digest,
            elapsed: begun.elapsed(),
        };
        Ok(Stored { path, copied })
    }

    // The path of a file name; names that lead out of the folder are refused.
    fn path_of(&self, name: &str) -> Result<PathBuf> {
        let is_plain = !matches!(name, "" | "." | ".." | UNFINISHED) && !name.contains(['/', '\0']);
        if !is_plain {
            return Err(format!("{name:?} is not the name of a file").into());
        }
        Ok(self.folder.join(name))
    }
}

impl Side {
    // Receives are posted before the other side can send, because a message may come with the connection.
    fn prepare(&self) -> Result<()> {
        self.qp.init(PathOptions::new()).wait()?;
        self.post_receives()
    }

    // Ends outstanding requests when the other side disconnects.
    fn watch(&self, connection: &Connection) {
        let (ended, qp) = (Arc::clone(&self.ended), self.qp.clone());
        connection.disconnected().on_done(move |_| {
            let _ = ended.set(());
            // A queue pair that can no longer be modified has ended already.
            qp.modify(QpAttributes::new().qp_state(QpState::Err))
                .on_done(|_| {});
        });
    }

    // Connects; repeats the request for a while if the server is busy.
    fn connect(&self, to: SocketAddr, insists: Duration) -> Result<Connection> {
        let connector = Connector::of(&self.context)?;
        let begun = Instant::now();
        loop {
            let options = ConnectionOptions::new().path(open_to_reads());
            let error = match connector.connect(&self.qp, to, options).wait() {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let reason = refusal(&error);
            let is_busy = reason.as_deref() == Some(BUSY);
            if is_busy && begun.elapsed() < insists {
                check_interrupted()?;
                thread::sleep(PAUSE);
                continue;
            }
            let cause = match reason {
                Some(reason) => format!("the connection was refused: {reason}").into(),
                None => error.into(),
            };
            let what = to.to_string();
            return Err(Failed { what, cause }.into());
        }
    }

    fn wait_for_end(&self, patience: Duration) {
        let begun = Instant::now();
        let is_up = |done: Option<Completion>| done.is_none_or(|done| done.status.is_success());
        while self.ended.get().is_none()
            && begun.elapsed() < patience
            && self.cq.next().wait_for(PAUSE).is_ok_and(is_up)
        {}
    }
}
