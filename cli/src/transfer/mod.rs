//! Copies a file the way storage protocols move data, by the same code for every transport.
//!
//! The *client* has the file. It reads a part of it into a buffer, opens the buffer under a new key, and sends the key to the
//! server. The *server* fetches the part in pieces, several at a time: each into a sink that is registered for it, with a read
//! that invalidates the sink's key. It writes the pieces to the target, and answers with a message that invalidates the client's
//! key, so that no peer can use it again. Then the buffer is free for the next part.
//!
//! Both sides may be in one process ([`copy`]), or in two processes, on machines of one IP network ([`network`]): the difference
//! is how the queue pairs are brought up.
//!
//! This code does not ask which transport or device it runs on: [`RemoteAccess`] opens the buffer by a fast register, a window or
//! a region, [`ReadAndInvalidate`] becomes one work request on iWARP and two on InfiniBand, and a [`ReadSink`] has the rights
//! that the transport needs.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Batch, BufferPool, Completion, Context, Cq, Device, Features, Memory, PathOptions, Pd,
    Qp, QpOptions, RKey, RemoteAddress, Requirements,
    portable::{Portable, ReadAndInvalidate, ReadSink, RemoteAccess, SendAndInvalidate},
    wr::{self, WorkRequest},
};

mod digest;
pub(crate) mod files;
pub(crate) mod network;
pub(crate) mod peers;

use digest::Hasher;
pub(crate) use digest::{Algorithm, Digest};
use files::{Room, Share, Target};
use peers::Peer;

/// Any error of a copy, as a boxed trait object.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// The size of a window: how many bytes of the file the client registers under one key.
pub(crate) const WINDOW: u32 = 1 << 20;
/// How many windows the client has: so many can be with the server at one time.
const WINDOWS: u32 = 8;
/// The length of the longest file name in bytes.
const LONGEST: usize = 255;
/// If no completion arrives for this long, client or server probes whether the other side still exists.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a waiting client or server sleeps before it checks again whether it was interrupted or the connection was
/// lost.
const PAUSE: Duration = Duration::from_millis(100);
/// The `wr_id` of send requests whose completions need no action: probes whether the other side exists, and messages
/// for whose completions the sender does not wait.
const LOOK: u64 = u64::MAX;

/// Set when the program has been interrupted: a side that waits then fails, and removes its files.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn check_interrupted() -> Result<()> {
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => Err("interrupted".into()),
        false => Ok(()),
    }
}

/// How a file is copied: the size and number of reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyOptions {
    /// Bytes that one RDMA read fetches, 1 to [`WINDOW`].
    pub(crate) piece: u32,
    /// RDMA reads that are outstanding at one time.
    pub(crate) depth: u32,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            piece: 256 << 10,
            depth: 8,
        }
    }
}

/// The result of copying a file from the client to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    /// The number of bytes of the file.
    pub(crate) bytes: u64,
    /// How many windows the client has registered.
    pub(crate) windows: u64,
    /// How many RDMA reads the server has used to fetch the file.
    pub(crate) pieces: u64,
    /// The algorithm of both digests.
    pub(crate) algorithm: Algorithm,
    /// The digest of the bytes that the client read from its file.
    pub(crate) client_digest: Digest,
    /// The digest of the bytes that the server wrote to its file.
    pub(crate) server_digest: Digest,
    /// The time from the client's first request to the server's last answer.
    pub(crate) elapsed: Duration,
}

impl Copied {
    /// Whether the bytes that arrived are those that were sent.
    pub(crate) fn is_intact(&self) -> bool {
        self.client_digest == self.server_digest
    }
}

/// Returns requirements for a device: none is mandatory, but the copy uses some features if the device has them.
pub(crate) fn requirements() -> Requirements {
    let registers =
        Features::BMME | Features::LOCAL_INVALIDATE_FENCE | Features::READ_WITH_INVALIDATE;
    Requirements::new().prefers(registers | Features::WINDOW_2A | Features::WINDOW_2B)
}

/// Copies the file `from` to `to` over `device`: the client runs on a thread of its own, the server on the calling
/// thread.
///
/// `progress` is called with the number of bytes written so far. A copy that fails, or differs, leaves `to` as it was.
pub(crate) fn copy(
    device: &Device,
    from: &Path,
    to: &Path,
    options: CopyOptions,
    algorithm: Algorithm,
    progress: impl Fn(u64),
) -> Result<Copied> {
    let (source, target) = open_files(from, to)?;
    let client = Side::open(device, 4 * WINDOWS, WINDOWS)?;
    let server = Side::open(
        device,
        2 * (WINDOWS + options.depth),
        WINDOWS + options.depth,
    )?;
    connect(&client.qp, &server.qp)?;
    client.post_receives()?;
    server.post_receives()?;
    let windows = client.windows()?;
    let sinks = server.sinks(options)?;
    let (client_hasher, server_hasher) = (Hasher::start(algorithm)?, Hasher::start(algorithm)?);

    let begun = Instant::now();
    let failure = OnceLock::new();
    // A side that fails disconnects, so that the other does not wait for ever; the first failure is the one to report.
    let fail = |error: Error| {
        let _ = failure.set(error);
        hang_up(&client.qp);
        hang_up(&server.qp);
    };
    let (sent, stored) = thread::scope(|scope| {
        let send =
            || send_file(&client, &windows, &source, from, client_hasher, |_| ()).map_err(&fail);
        let sending = match thread::Builder::new().spawn_scoped(scope, send) {
            Ok(sending) => sending,
            Err(error) => {
                fail(no_thread("client", error));
                return (Ok(Err(())), Err(()));
            }
        };
        let all = Room::new(u64::MAX);
        let mut share = all.share(u64::MAX);
        let stored = store_file(
            &server,
            &sinks,
            target.file(),
            to,
            &mut share,
            server_hasher,
            progress,
        )
        .and_then(|stored| finish(&server, stored, || target.keep()))
        .map_err(&fail);
        (sending.join(), stored)
    });
    let elapsed = begun.elapsed();
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    let (Ok(Ok(sent)), Ok(stored)) = (sent, stored) else {
        return Err("a side of the copy panicked".into());
    };
    if sent.bytes != stored.bytes {
        return Err(format!("{} bytes were sent, {} arrived", sent.bytes, stored.bytes).into());
    }
    Ok(Copied {
        bytes: sent.bytes,
        windows: sent.requests,
        pieces: stored.requests,
        algorithm,
        client_digest: sent.digest,
        server_digest: stored.digest,
        elapsed,
    })
}

/// What the client has lent or the server has fetched: the number of bytes, the number of requests for them, and the
/// digest of the bytes.
#[derive(Default)]
struct Moved {
    bytes: u64,
    requests: u64,
    digest: Digest,
    // The digest that the other side reports.
    peer_digest: Digest,
}

/// The error of a failed operation, and the description of that operation.
#[derive(Debug)]
struct Failed {
    what: String,
    cause: Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

impl std::error::Error for Failed {}

fn cannot(verb: &str, path: &Path, cause: impl Into<Error>) -> Failed {
    Failed {
        what: format!("cannot {verb} {}", printable(path.display())),
        cause: cause.into(),
    }
}

fn no_thread(purpose: &str, error: io::Error) -> Error {
    format!("no thread for the {purpose}, raise the limit of threads or memory: {error}").into()
}

/// Replaces characters that would control a terminal, in a text from another machine.
pub(crate) fn printable(text: impl fmt::Display) -> String {
    let mut shown = String::new();
    for letter in text.to_string().chars() {
        match is_command(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Whether a terminal does anything with the character other than showing it: the character begins a line, reorders the text
/// after it, or is invisible. Apart from control characters, these are the separators of lines and paragraphs and the characters
/// that Unicode calls *format*.
pub(crate) fn is_command(letter: char) -> bool {
    let is_format = matches!(
        letter,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}'
    );
    letter.is_control() || is_format
}

fn open_source(from: &Path) -> Result<File> {
    let source = File::open(from).map_err(|error| cannot("read", from, error))?;
    let found = source.metadata();
    if found.map_err(|error| cannot("read", from, error))?.is_dir() {
        return Err(cannot("read", from, "it is a directory").into());
    }
    Ok(source)
}

fn open_files(from: &Path, to: &Path) -> Result<(File, Target)> {
    let source = open_source(from)?;
    let found = source
        .metadata()
        .map_err(|error| cannot("read", from, error))?;
    let is_same = fs::metadata(to).is_ok_and(|there| {
        found.is_file() && (there.dev(), there.ino()) == (found.dev(), found.ino())
    });
    if is_same {
        return Err(cannot("write", to, "it is the file that is to be copied").into());
    }
    Ok((source, Target::open(to)?))
}

/// One side of a copy: an open device of its own, and the objects that it needs.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    // The buffers of received messages, and those of sent ones.
    messages: BufferPool,
    words: BufferPool,
    // Whether the other side ended the connection.
    ended: Arc<OnceLock<()>>,
    // How the connection broke, if completions had arrived before that.
    broke: OnceLock<String>,
    // The other side, if it is one of many.
    peer: Option<Arc<Peer>>,
}

impl Side {
    fn open(device: &Device, send_wr: u32, portable: u32) -> Result<Self> {
        let context = device.open(&requirements())?;
        let pd = context.alloc_pd().wait()?;
        let cq = context
            .create_cq(send_wr + 2 * portable + WINDOWS + 3)
            .wait()?;
        let options = QpOptions::rc(&cq)
            .max_send_wr(send_wr)
            .max_recv_wr(WINDOWS + 1)
            .max_inline_data(Message::SHORTEST as u32)
            .reserve_portable(portable);
        let qp = pd.create_qp(options).wait()?;
        let messages = pd.register_buffers(WINDOWS + 1, Message::MOST).wait()?;
        let words = pd.register_buffers(WINDOWS + 2, Message::MOST).wait()?;
        Ok(Self {
            context,
            pd,
            cq,
            qp,
            messages,
            words,
            ended: Arc::default(),
            broke: OnceLock::new(),
            peer: None,
        })
    }

    // Posts a receive for a message of each window, and for the last message.
    fn post_receives(&self) -> Result<()> {
        while let Some(buffer) = self.messages.take() {
            self.qp.post_receive(buffer)?;
        }
        Ok(())
    }

    // Waits for at least one completion. A side that receives nothing for a while probes whether the other still exists.
    // Completions that arrived before the connection broke are returned first: they may say why.
    fn wait<'s>(&self, slots: &'s mut [Completion]) -> Result<&'s mut [Completion]> {
        let mut is_looking = false;
        let mut silence = Duration::ZERO;
        loop {
            check_interrupted()?;
            if let Some(broke) = self.broke.get() {
                return Err(broke.as_str().into());
            }
            let mut filled = self.cq.poll(slots)?.len();
            if filled == 0 {
                if let Some(peer) = &self.peer {
                    peer.check()?;
                }
                match self.cq.next().wait_for(PAUSE)? {
                    Some(done) => {
                        slots[0] = done;
                        filled = 1;
                    }
                    None if is_looking || silence < SILENCE => {
                        silence += PAUSE;
                        continue;
                    }
                    None => {
                        // The probe is a write of no bytes: the other device answers it, if it still exists.
                        let nowhere = RemoteAddress::new(0, RKey::new(0));
                        self.post(wr::Write::new((), nowhere).signaled(LOOK))?;
                        is_looking = true;
                        continue;
                    }
                }
            }
            let is_broken = |done: &Completion| !done.status.is_success();
            if let Some(first) = slots[..filled].iter().position(is_broken) {
                let broke = self.broke.get_or_init(|| self.broken(&slots[first]));
                if first == 0 {
                    return Err(broke.as_str().into());
                }
                filled = first;
            }
            if slots[..filled].iter().all(is_look) {
                is_looking = false;
                silence = Duration::ZERO;
                continue;
            }
            return Ok(&mut slots[..filled]);
        }
    }

    fn broken(&self, done: &Completion) -> String {
        if self.ended.get().is_some() {
            return "the other side ended the connection".to_owned();
        }
        format!(
            "the connection broke: {:?} ({:?})",
            done.status, done.opcode
        )
    }

    fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<()> {
        Ok(self.qp.post_one(request)?)
    }

    fn post_portable(&self, operation: impl Portable) -> Result<()> {
        Ok(self.qp.post_portable(operation)?)
    }

    // Sends a message; its buffer returns with its completion.
    fn say(&self, message: &Message, wr_id: u64) -> Result<()> {
        let mut word = self.words.take().ok_or("too many messages at one time")?;
        let octets = message.encode();
        word.set_len(octets.len());
        word.copy_from_slice(&octets);
        self.post(wr::Send::new(word).signaled(wr_id))
    }

    fn windows(&self) -> Result<Vec<Lent>> {
        let lent = || {
            let memory = Memory::zeroed(WINDOW as usize)?;
            // If the device has nothing better than a region, peers may read the memory as long as this exists.
            let access =
                RemoteAccess::prepare(&self.pd, &memory, Access::REMOTE_READ, true).wait()?;
            Ok(Lent { memory, access })
        };
        (0..WINDOWS).map(|_| lent()).collect()
    }

    fn sinks(&self, options: CopyOptions) -> Result<Vec<Filled>> {
        let filled = || {
            let memory = Memory::zeroed(options.piece as usize)?;
            let sink = ReadSink::prepare(&self.pd, &memory, true).wait()?;
            Ok(Filled { memory, sink })
        };
        (0..options.depth).map(|_| filled()).collect()
    }
}

/// A buffer of the client, to which the client repeatedly gives the server access.
struct Lent {
    memory: Memory,
    access: RemoteAccess,
}

/// A buffer of the server that an RDMA read fills.
struct Filled {
    memory: Memory,
    sink: ReadSink,
}

fn is_look(done: &Completion) -> bool {
    !done.opcode.is_receive() && done.wr_id == LOOK
}

/// The access rights that client and server grant to each other: to read lent memory, and to probe by an RDMA write of
/// no bytes.
pub(crate) const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Returns the options to connect a queue pair that permits its peer RDMA reads and writes ([`RIGHTS`]).
pub(crate) fn open_to_reads() -> PathOptions {
    PathOptions::new().access(RIGHTS)
}

fn connect(one: &Qp, other: &Qp) -> Result<()> {
    let (at_one, at_other) = (one.endpoint()?, other.endpoint()?);
    // Both are started before this waits for either: a stream needs both ends.
    let options = open_to_reads();
    let first = one.connect(&at_other, options);
    let second = other.connect(&at_one, options);
    first.wait()?;
    Ok(second.wait()?)
}

// Ends the requests of the other side, as a connection manager would.
fn hang_up(qp: &Qp) {
    // A queue pair that can no longer be modified has ended already.
    drop(qp.modify(QpAttributes::new().qp_state(QpState::Err)).wait());
}

/// The state of a window that the client has lent to the server. The client can lend the window again when its own
/// requests for it have completed and the server has returned it.
#[derive(Clone, Copy, Default)]
struct Loan {
    length: u64,
    /// How many of the client's requests for the window are outstanding: the one that registers the window, and the
    /// message that lends it to the server.
    own_requests: u8,
    is_with_server: bool,
}

impl Loan {
    fn of(length: u64) -> Self {
        Self {
            length,
            own_requests: 2,
            is_with_server: true,
        }
    }

    // The message may come from a hostile server, so its claim is checked.
    fn give_back(&mut self) -> Result<()> {
        match std::mem::take(&mut self.is_with_server) {
            true => Ok(()),
            false => Err("the server gave back a window that it did not have".into()),
        }
    }

    fn is_over(&self) -> bool {
        self.own_requests == 0 && !self.is_with_server
    }
}

// The client: lends the file to the server, window by window.
fn send_file(
    side: &Side,
    windows: &[Lent],
    source: &File,
    from: &Path,
    mut hasher: Hasher,
    progress: impl Fn(u64),
) -> Result<Moved> {
    let mut free: Vec<usize> = (0..windows.len()).collect();
    let mut loans = vec![Loan::default(); windows.len()];
    let mut fetched = 0;
    let mut octets = vec![0; WINDOW as usize];
    let mut slots: [Completion; 16] = Default::default();
    let mut moved = Moved::default();
    let mut is_read = false;
    loop {
        while !is_read && let Some(index) = free.pop() {
            check_interrupted()?;
            let length = fill(source, &mut octets).map_err(|error| cannot("read", from, error))?;
            is_read = length < octets.len();
            if length == 0 {
                free.push(index);
                break;
            }
            windows[index].memory.write(0, &octets[..length])?;
            lend(side, index, &windows[index], length as u32, moved.bytes)?;
            loans[index] = Loan::of(length as u64);
            moved.bytes += length as u64;
            moved.requests += 1;
            hasher.update(&octets[..length]);
        }
        if is_read && free.len() == windows.len() {
            break;
        }
        for done in side
            .wait(&mut slots)?
            .iter_mut()
            .filter(|done| !is_look(done))
        {
            let index = match done.opcode.is_receive() {
                true => {
                    let index = given_back(side, windows, done)?;
                    loans[index].give_back()?;
                    index
                }
                false => {
                    let index = done.wr_id as usize;
                    loans[index].own_requests -= 1;
                    index
                }
            };
            done.take_buffers().for_each(drop);
            if loans[index].is_over() {
                free.push(index);
                fetched += loans[index].length;
                progress(fetched);
            }
        }
        side.post_receives()?;
    }
    moved.digest = hasher.finish()?;
    agree(side, &mut moved, &mut slots)?;
    Ok(moved)
}

// Opens a window and notifies the server: the message is posted after the opening, and so takes effect after it.
fn lend(side: &Side, index: usize, window: &Lent, length: u32, offset: u64) -> Result<()> {
    let opening = window.access.register_first(length);
    side.post_portable(opening.wr_id(index as u64))?;
    let message = Message::Window {
        remote: window.access.remote(),
        length,
        offset,
        is_for_one_use: window.access.invalidation().is_some(),
    };
    side.say(&message, index as u64)
}

// The window that the server has returned. The server's message has closed it, or else the client closes it.
fn given_back(side: &Side, windows: &[Lent], done: &Completion) -> Result<usize> {
    let Message::Back { rkey } = Message::of_server(done)? else {
        return Err("a message out of turn".into());
    };
    let is_it = |window: &Lent| window.access.remote().rkey == rkey;
    let index = windows.iter().position(is_it);
    let index = index.ok_or("the server gave back a key that it was not lent")?;
    if done.invalidated_rkey().is_some_and(|ended| ended != rkey) {
        return Err("the server ended another key than it says".into());
    }
    let closing = windows[index].access.invalidation();
    if let Some(closing) = closing.filter(|_| done.invalidated_rkey().is_none()) {
        side.post(closing)?;
    }
    Ok(index)
}

// Notifies the server of the end of the file, and waits for its confirmation.
fn agree(side: &Side, moved: &mut Moved, slots: &mut [Completion]) -> Result<()> {
    let (bytes, digest) = (moved.bytes, moved.digest);
    side.say(&Message::End { bytes, digest }, LOOK)?;
    loop {
        for done in side.wait(slots)? {
            if done.opcode.is_receive() {
                let Message::End { digest, .. } = Message::of_server(done)? else {
                    return Err("a message out of turn".into());
                };
                done.take_buffers().for_each(drop);
                moved.peer_digest = digest;
                return Ok(());
            }
        }
    }
}

// The server: fetches the windows that it is lent, and writes them, as far as there is room.
fn store_file(
    side: &Side,
    sinks: &[Filled],
    target: &File,
    to: &Path,
    share: &mut Share<'_>,
    mut hasher: Hasher,
    progress: impl Fn(u64),
) -> Result<Moved> {
    let mut free: Vec<usize> = (0..sinks.len()).collect();
    let mut lent: VecDeque<Window> = VecDeque::new();
    let mut fetching: VecDeque<Piece> = VecDeque::new();
    let most = sinks.first().map_or(0, |sink| sink.memory.len()) as u32;
    let mut octets = vec![0; most as usize];
    let mut slots: [Completion; 16] = Default::default();
    let mut moved = Moved::default();
    let mut total = None;
    let mut announced = 0;
    while total.is_none() || !lent.is_empty() || !fetching.is_empty() {
        while let Some(window) = lent.front_mut()
            && let Some(sink) = free.pop()
        {
            let piece = window.cut(sink, most);
            if piece.ends.is_some() {
                lent.pop_front();
            }
            fetch(side, &sinks[sink], &piece)?;
            fetching.push_back(piece);
        }
        for done in side
            .wait(&mut slots)?
            .iter_mut()
            .filter(|done| !is_look(done))
        {
            if done.opcode.is_receive() {
                match Message::decode(done.buffer())? {
                    Message::Window {
                        remote,
                        length,
                        offset,
                        is_for_one_use,
                    } => {
                        if offset != announced || total.is_some() {
                            return Err("a window out of turn".into());
                        }
                        announced += u64::from(length);
                        share.check(announced)?;
                        lent.push_back(Window {
                            remote,
                            length,
                            offset,
                            is_for_one_use,
                        });
                    }
                    Message::End { bytes, digest } => {
                        total = Some(bytes);
                        moved.peer_digest = digest;
                    }
                    Message::File { .. } | Message::Back { .. } | Message::Failed { .. } => {
                        return Err("a message out of turn".into());
                    }
                }
                done.take_buffers().for_each(drop);
                continue;
            }
            // Requests of one queue complete in order, so this is the oldest piece, and the next one of the file.
            let Some(piece) = fetching
                .pop_front()
                .filter(|piece| piece.sink as u64 == done.wr_id)
            else {
                return Err("a piece arrived that was not asked for".into());
            };
            let stretch = &mut octets[..piece.length as usize];
            sinks[piece.sink].memory.read(0, stretch)?;
            hasher.update(stretch);
            share.take(piece.length.into())?;
            target
                .write_all_at(stretch, piece.offset)
                .map_err(|error| cannot("write", to, error))?;
            free.push(piece.sink);
            moved.bytes += u64::from(piece.length);
            moved.requests += 1;
            if let Some(peer) = &side.peer {
                peer.moves(piece.length.into());
            }
            progress(moved.bytes);
            if let Some(rkey) = piece.ends {
                // A receive for the client's next message must be posted before the client may send one.
                side.post_receives()?;
                let message = Message::Back { rkey }.encode();
                let ended = piece.is_for_one_use.then_some(rkey);
                side.post_portable(SendAndInvalidate::new(&message, ended).wr_id(LOOK))?;
            }
        }
    }
    if total != Some(moved.bytes) {
        return Err(format!("{} bytes of {} arrived", moved.bytes, total.unwrap_or(0)).into());
    }
    moved.digest = hasher.finish()?;
    Ok(moved)
}

// Keeps a file that has arrived completely, and only then notifies the client that it is stored.
fn finish(side: &Side, moved: Moved, keep: impl FnOnce() -> Result<()>) -> Result<Moved> {
    if moved.digest == moved.peer_digest {
        keep()?;
    }
    let (bytes, digest) = (moved.bytes, moved.digest);
    side.say(&Message::End { bytes, digest }, LOOK)?;
    Ok(moved)
}

// A read with a sink that is registered for it and is invalid when it has completed; both steps have one completion.
fn fetch(side: &Side, filled: &Filled, piece: &Piece) -> Result<()> {
    let mut batch = Batch::with_capacity(1);
    batch.extend(filled.sink.register(piece.length));
    side.qp.post(&mut batch)?;
    let sink = filled.sink.sink(piece.length);
    side.post_portable(ReadAndInvalidate::new(piece.remote, &sink).wr_id(piece.sink as u64))
}

/// A window as the server sees it: the part of the file in the client's memory that the server has not requested yet.
struct Window {
    remote: RemoteAddress,
    length: u32,
    offset: u64,
    is_for_one_use: bool,
}

struct Piece {
    sink: usize,
    remote: RemoteAddress,
    length: u32,
    offset: u64,
    // The key that is returned to the client when this piece has arrived.
    ends: Option<RKey>,
    is_for_one_use: bool,
}

impl Window {
    fn cut(&mut self, sink: usize, most: u32) -> Piece {
        let length = self.length.min(most);
        let Self { remote, offset, .. } = *self;
        self.remote = remote.plus(u64::from(length));
        self.offset += u64::from(length);
        self.length -= length;
        let ends = (self.length == 0).then_some(remote.rkey);
        Piece {
            sink,
            remote,
            length,
            offset,
            ends,
            is_for_one_use: self.is_for_one_use,
        }
    }
}

/// The messages that client and server exchange.
enum Message {
    /// The client has a file of this name, and `digest` names the algorithm of the digests. The server may not know it.
    File { digest: String, name: String },
    /// The client lends a window to the server. `is_for_one_use` says whether the server's answer can invalidate its key.
    Window {
        remote: RemoteAddress,
        length: u32,
        offset: u64,
        is_for_one_use: bool,
    },
    /// The server has fetched the window with this key, and returns it.
    Back { rkey: RKey },
    /// From the client: the file is complete, with this length and digest. From the server: the file is stored, with the
    /// length and digest of the bytes that have arrived.
    End { bytes: u64, digest: Digest },
    /// The server will not or cannot store the file.
    Failed { reason: String },
}

impl Message {
    /// The length of the longest message in bytes, which contains the names of a digest and of a file.
    const MOST: usize = 4 + Algorithm::LONGEST + 1 + LONGEST;
    /// The length in bytes of the message that returns a window.
    const SHORTEST: usize = 4 + 4;

    fn encode(&self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(64);
        match self {
            Self::Window {
                remote,
                length,
                offset,
                is_for_one_use,
            } => {
                octets.extend(1u32.to_be_bytes());
                octets.extend(remote.to_bytes());
                octets.extend(offset.to_be_bytes());
                octets.extend(length.to_be_bytes());
                octets.extend(u32::from(*is_for_one_use).to_be_bytes());
            }
            Self::Back { rkey } => {
                octets.extend(4u32.to_be_bytes());
                octets.extend(rkey.value().to_be_bytes());
            }
            Self::End { bytes, digest } => {
                octets.extend(2u32.to_be_bytes());
                octets.extend(bytes.to_be_bytes());
                octets.extend(digest);
            }
            Self::File { digest, name } => {
                octets.extend(3u32.to_be_bytes());
                octets.extend(digest.as_bytes());
                octets.push(0);
                octets.extend(name.as_bytes());
            }
            Self::Failed { reason } => {
                octets.extend(5u32.to_be_bytes());
                octets.extend(reason.bytes().take(LONGEST));
            }
        }
        octets
    }

    fn decode(octets: &[u8]) -> Result<Self> {
        Self::read(octets).ok_or_else(|| "a message that makes no sense".into())
    }

    // If the server gives up, its reason becomes an error of this side.
    fn of_server(done: &Completion) -> Result<Self> {
        match Self::decode(done.buffer())? {
            Self::Failed { reason } => {
                Err(format!("the server does not store it: {}", printable(reason)).into())
            }
            message => Ok(message),
        }
    }

    fn read(mut octets: &[u8]) -> Option<Self> {
        let octets = &mut octets;
        let message = match short(octets)? {
            1 => {
                let remote = octets.split_off(..RemoteAddress::BYTES)?.try_into().ok()?;
                let remote = RemoteAddress::from_bytes(remote);
                let offset = long(octets)?;
                let length = short(octets).filter(|length| (1..=WINDOW).contains(length))?;
                let is_for_one_use = short(octets)? != 0;
                Self::Window {
                    remote,
                    length,
                    offset,
                    is_for_one_use,
                }
            }
            2 => Self::End {
                bytes: long(octets)?,
                digest: octets.split_off(..32)?.try_into().ok()?,
            },
            3 => {
                let names = std::str::from_utf8(std::mem::take(octets)).ok()?;
                let (digest, name) = names.split_once('\0')?;
                Self::File {
                    digest: digest.to_owned(),
                    name: name.to_owned(),
                }
            }
            4 => Self::Back {
                rkey: RKey::new(short(octets)?),
            },
            5 => {
                let reason = String::from_utf8_lossy(std::mem::take(octets));
                let reason = reason.into_owned();
                Self::Failed { reason }
            }
            _ => return None,
        };
        octets.is_empty().then_some(message)
    }
}

fn short(octets: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(octets.split_off(..4)?.try_into().ok()?))
}

fn long(octets: &mut &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(octets.split_off(..8)?.try_into().ok()?))
}

// Reads as many bytes as the file has, up to the length of the buffer.
fn fill(mut source: &File, octets: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < octets.len() {
        match source.read(&mut octets[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_given_back_once() {
        let mut loan = Loan::of(7);
        assert!(loan.give_back().is_ok());
        assert!(!loan.is_over(), "its own requests are under way");
        assert!(loan.give_back().is_err());
        loan.own_requests = 0;
        assert!(loan.is_over());
        assert!(
            Loan::default().give_back().is_err(),
            "no server has the window"
        );
    }
}
