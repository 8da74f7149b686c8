//! The same between two programs: one that stores files, and those that put them there.
//!
//! A connection is made by address and port, whichever transport the device has. What is different from two sides in one
//! process is that either may vanish: a side that hears nothing looks whether the other is there, and says so if not.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use polyverbs::connection::{Connection, ConnectionOptions, Connector, Incoming};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{Completion, ConnectOptions, Device};

use super::{
    Copied, CopyOptions, Failed, LOOK, Message, Result, Side, WINDOWS, cannot, open_source,
    open_to_reads, send_file, store_file,
};

/// Sends the file `from` to whoever stores files at `to`, under its own name.
///
/// `progress` is told the octets that the other side has fetched so far.
pub(crate) fn put(
    device: &Device,
    from: &Path,
    to: SocketAddr,
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
    let connector = Connector::of(&client.context)?;
    let options = ConnectionOptions::new().qp(open_to_reads());
    let asked = connector.connect(&client.context, &client.qp, to, options);
    let connected = asked.wait().and_then(|accepted| accepted.complete().wait());
    let connection = connected.map_err(|error| Failed {
        what: to.to_string(),
        cause: error.into(),
    })?;
    client.watch(&connection);

    let begun = Instant::now();
    let name = name.to_owned();
    client.say(&Message::File { name }, LOOK)?;
    let sent = send_file(&client, &windows, &source, from, progress)?;
    let copied = Copied {
        bytes: sent.bytes,
        windows: sent.requests,
        pieces: 0,
        client_digest: sent.digest,
        server_digest: sent.peer_digest,
        elapsed: begun.elapsed(),
    };
    // It has arrived, whatever becomes of the connection.
    drop(connection.disconnect(&client.context, &client.qp).wait());
    Ok(copied)
}

/// Stores the files that others send, in a folder.
pub(crate) struct Store {
    pub(crate) device: Device,
    pub(crate) folder: PathBuf,
    pub(crate) options: CopyOptions,
}

/// A file that has been stored.
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    pub(crate) copied: Copied,
}

impl Store {
    /// Takes one file from whoever asks. One that does not arrive whole is not there afterwards.
    pub(crate) fn take(&self, incoming: Incoming, progress: impl Fn(u64)) -> Result<Stored> {
        let depth = self.options.depth;
        let server = Side::open(&self.device, 2 * (WINDOWS + depth) + 2, WINDOWS + depth)?;
        server.prepare()?;
        let sinks = server.sinks(self.options)?;
        let accepted = incoming.accept(
            &server.context,
            &server.qp,
            ConnectionOptions::new().qp(open_to_reads()),
        );
        let connection = accepted.wait()?;
        server.watch(&connection);

        let begun = Instant::now();
        let mut slots: [Completion; 1] = Default::default();
        let name = loop {
            let [done] = server.wait(&mut slots)? else {
                continue;
            };
            if let Message::File { name } = Message::decode(done.buffer())? {
                break name;
            }
            return Err("who asked did not say which file it is".into());
        };
        slots[0].take_buffers().for_each(drop);
        server.post_receives()?;
        let path = self.path_of(&name)?;
        let part = Part::create(&path)?;
        let moved = store_file(&server, &sinks, &part.file, &path, progress)?;
        let copied = Copied {
            bytes: moved.bytes,
            windows: 0,
            pieces: moved.requests,
            client_digest: moved.peer_digest,
            server_digest: moved.digest,
            elapsed: begun.elapsed(),
        };
        if copied.is_intact() {
            part.keep(&path)?;
        }
        // The other side ends the connection when it has the last message; one that does not is not waited for.
        server.wait_for_end();
        Ok(Stored { path, copied })
    }

    // A name, and not a way out of the folder.
    fn path_of(&self, name: &str) -> Result<PathBuf> {
        let is_plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
        if !is_plain {
            return Err(format!("{name:?} is not the name of a file").into());
        }
        Ok(self.folder.join(name))
    }
}

/// What the names of unfinished files end with.
const PART: &str = ".part";

/// Removes what servers left in a folder that were killed. A file that is being written is locked by whoever writes it.
pub(crate) fn clean(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|error| cannot("read", folder, error))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_part = name.starts_with('.') && name.ends_with(PART);
        // What cannot be opened or removed is somebody else's.
        if is_part && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

/// A file that is being written: gone if it is not kept.
pub(super) struct Part {
    pub(super) file: File,
    path: PathBuf,
    is_kept: bool,
}

impl Part {
    // Beside the file that it will be, under a name of its own.
    pub(super) fn create(whole: &Path) -> Result<Self> {
        let name = whole.file_name().unwrap_or_default().to_string_lossy();
        for attempt in 0..1000 {
            let id = std::process::id();
            let path = whole.with_file_name(format!(".{name}.{id}.{attempt}{PART}"));
            match File::create_new(&path) {
                Ok(file) => {
                    // As long as this process lives: see `clean`.
                    file.lock().map_err(|error| cannot("lock", &path, error))?;
                    return Ok(Self {
                        file,
                        path,
                        is_kept: false,
                    });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(cannot("write", whole, error).into()),
            }
        }
        Err(format!("too many unfinished copies of {name}").into())
    }

    pub(super) fn keep(mut self, whole: &Path) -> Result<()> {
        fs::rename(&self.path, whole).map_err(|error| cannot("write", whole, error))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_kept {
            // Nothing is left to be told where this fails.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Side {
    // Receives are there before the other side can send: a connection begins with whatever comes first.
    fn prepare(&self) -> Result<()> {
        self.qp.init(ConnectOptions::new()).wait()?;
        self.post_receives()
    }

    // Whatever is outstanding ends when the other side says that the connection has.
    fn watch(&self, connection: &Connection) {
        let (ended, qp) = (Arc::clone(&self.ended), self.qp.clone());
        connection.disconnected().on_done(move |_| {
            let _ = ended.set(());
            // A queue pair that cannot be changed any more has ended already.
            qp.modify(QpAttributes::new().qp_state(QpState::Err))
                .on_done(|_| {});
        });
    }

    fn wait_for_end(&self) {
        let mut slots: [Completion; 4] = Default::default();
        while self.ended.get().is_none() && self.wait(&mut slots).is_ok() {}
    }
}
