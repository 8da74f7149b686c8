//! Peers that are silent, send rubbish or are many, and killed servers: no file is lost, and other clients are served.
//!
//! `.ci/nightly` sets `POLYVERBS_RUNS=50`: 1,000 clients of each kind, files of 100 MB, and 200 killed servers.

use std::any::Any;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use polyverbs::connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming,
};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, Completion, Cq, Memory, PathOptions, Pd, Qp, QpOptions, RemoteAddress, Requirements,
    VerbError, wr,
};
use test_kit::waiting::{PATIENCE, until, until_some};

use super::network::{DEVICES, Running, Server, arrives, names, next, path};
use super::stored::failing;
use super::{Folder, complaint, devices_and_digests, digest, digests, text};

/// The factor by which a longer run multiplies the number of clients, killed servers and bytes.
fn runs() -> usize {
    std::env::var("POLYVERBS_RUNS").map_or(1, |runs| runs.parse().unwrap())
}

/// A client that sends its own messages to a server, without `polyverbs put`.
struct Client {
    pd: Pd,
    cq: Cq,
    connector: Connector,
}

/// A queue pair of a client with its accepted or completed connection, which dropping this ends.
struct Line {
    qp: Qp,
    connected: Box<dyn Any + Send>,
}

impl Client {
    fn new(device: &str, at: &str) -> Self {
        let at: IpAddr = at.parse().unwrap();
        let device = emulated::device_at(device, at, &EmulatedOptions::default()).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        Self {
            pd: context.alloc_pd().wait().unwrap(),
            cq: context.create_cq(4096).wait().unwrap(),
            connector: Connector::of(&context).unwrap(),
        }
    }

    /// Requests a connection and does not complete it after the server has accepted.
    fn ask(&self, to: SocketAddr) -> Result<Line, ConnectError> {
        let (qp, accepted) = self.begin(to, b"")?;
        let connected = Box::new(accepted);
        Ok(Line { qp, connected })
    }

    fn begin(&self, to: SocketAddr, says: &[u8]) -> Result<(Qp, Accepted), ConnectError> {
        let qp = self.create_qp()?;
        let options = permits_probes().private_data(says);
        let asked = self.connector.request(&qp, to, options);
        Ok((qp, asked.wait()?))
    }

    fn create_qp(&self) -> Result<Qp, VerbError> {
        let options = QpOptions::rc(&self.cq).max_send_wr(4).max_recv_wr(4);
        self.pd.create_qp(options.max_inline_data(64)).wait()
    }

    /// Accepts a client in the place of a server.
    fn accept(&self, incoming: Incoming) -> Line {
        let qp = self.create_qp().unwrap();
        qp.init(PathOptions::new()).wait().unwrap();
        self.post_receives(&qp);
        let connected = Box::new(incoming.accept(&qp, permits_probes()).wait().unwrap());
        Line { qp, connected }
    }

    /// Posts receives for messages of the other side.
    fn post_receives(&self, qp: &Qp) {
        let buffers = self.pd.register_buffers(4, 300).wait().unwrap();
        while let Some(buffer) = buffers.take() {
            qp.post_receive(buffer).unwrap();
        }
    }

    /// Waits for the next message of the other side.
    fn message(&self) -> Vec<u8> {
        let is_message = |done: &Completion| done.opcode.is_receive();
        let next = || self.cq.next().wait_for(PATIENCE).unwrap().unwrap();
        let done = std::iter::repeat_with(next).find(is_message).unwrap();
        assert!(done.status.is_success(), "{done:?}");
        done.buffer().to_vec()
    }

    fn connect(&self, to: SocketAddr, says: &[u8]) -> Result<Line, ConnectError> {
        let (qp, accepted) = self.begin(to, says)?;
        let connected = Box::new(accepted.complete().wait()?);
        Ok(Line { qp, connected })
    }
}

impl Line {
    fn say(&self, message: &[u8]) {
        // Posting fails if the server has ended the connection.
        let _ = self.qp.post_one(wr::Send::new(message));
    }

    /// Ends a connection that was completed.
    fn end(self) {
        let connection = self.connected.downcast::<Connection>().unwrap();
        // The call fails if the server has ended the connection.
        let _ = connection.disconnect().wait();
    }
}

/// The server and `put` probe the other side with writes of zero bytes, which need these rights.
fn permits_probes() -> ConnectionOptions {
    ConnectionOptions::new()
        .path(PathOptions::new().access(Access::REMOTE_READ | Access::REMOTE_WRITE))
}

/// The first message of `put`.
fn file_message(digest: &str, name: &str) -> Vec<u8> {
    let names = format!("{digest}\0{name}");
    [&3u32.to_be_bytes()[..], names.as_bytes()].concat()
}

/// The last message of `put`, and that of `serve` after it.
fn end_message(bytes: u64, digest: [u8; 32]) -> Vec<u8> {
    [&2u32.to_be_bytes()[..], &bytes.to_be_bytes(), &digest].concat()
}

/// The message of `put` that lends a window of its memory to the server.
fn window(at: [u8; RemoteAddress::BYTES], offset: u64, length: u32) -> Vec<u8> {
    let mut message = 1u32.to_be_bytes().to_vec();
    message.extend(at);
    message.extend(offset.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(0u32.to_be_bytes());
    message
}

/// The private data with which `perf write-latency` requests a connection.
fn measurement(size: u32) -> Vec<u8> {
    [&b"polyprf2"[..], &[1], &size.to_be_bytes()].concat()
}

fn address(of: &str) -> SocketAddr {
    of.parse().unwrap()
}

struct Listener {
    process: Running,
    address: String,
}

impl Listener {
    fn new(device: &str, at: &str, more: &[&str]) -> Self {
        let listen = ["perf", "--listen", at, "--device", device, "--json"];
        let mut process = Running::new(&[&listen[..], more].concat());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap());
        let address = next(&mut lines)["listening"].as_str().unwrap().to_owned();
        Self { process, address }
    }
}

#[test]
fn silent_clients_give_way_to_those_that_send() {
    for device in DEVICES {
        let mut server = Server::new(device, "127.0.24.20:0", &["--max-connections", "4"]);
        let (client, to) = (Client::new(device, "127.0.24.21"), address(&server.address));
        let lines = [(); 2].map(|()| client.connect(to, b"").unwrap());
        // The sending client has the same address, so that it competes for the same places.
        arrives(&mut server, device, 5000, &["--from", "127.0.24.21"]);
        drop(lines);
    }
}

#[test]
fn requests_that_are_not_completed_take_no_place() {
    for device in DEVICES {
        let mut server = Server::new(device, "127.0.24.165:0", &["--max-connections", "1"]);
        let (client, to) = (
            Client::new(device, "127.0.24.166"),
            address(&server.address),
        );
        let asked = [(); 3].map(|()| client.ask(to).unwrap());
        // This client does not ask again if it is refused.
        arrives(&mut server, device, 5000, &["--timeout", "0"]);
        drop(asked);
    }
}

#[test]
fn a_client_that_names_a_file_and_is_silent_gives_way() {
    for device in DEVICES {
        let mut server = Server::new(device, "127.0.24.22:0", &["--max-connections", "1"]);
        let client = Client::new(device, "127.0.24.23");
        let line = client.connect(address(&server.address), b"").unwrap();
        line.say(&file_message("blake3", "silent"));
        until(|| !server.stored().is_empty());
        arrives(&mut server, device, 5000, &[]);
        assert_eq!(server.stored(), ["file"]);
        drop(line);
    }
}

#[test]
fn a_silent_client_is_let_go_after_a_while() {
    for device in DEVICES {
        let more = ["--files", "1", "--timeout", "0.3"];
        let server = Server::new(device, "127.0.24.24:0", &more);
        let client = Client::new(device, "127.0.24.25");
        let _line = client.connect(address(&server.address), b"").unwrap();
        let (succeeded, told) = server.process.end();
        assert!(!succeeded && told.contains("nothing came"), "{told}");
    }
}

#[test]
fn one_address_gets_half_of_the_places_and_then_the_reason() {
    let folder = Folder::new();
    let (large, small) = (folder.endless(), folder.file(5000));
    for device in DEVICES {
        // With small pieces the transfer is slow and writes little.
        let more = ["--max-connections", "2", "--piece", "1k"];
        let mut server = Server::new(device, "127.0.24.26:0", &more);
        let to = [&server.address, "--device", device, "--from", "127.0.24.27"];
        let running = Running::new(&[&["put", path(&large)], &to[..]].concat());
        until(|| unfinished_bytes(&server) > 0);
        let once = ["--timeout", "0"];
        let refused = complaint(&[&["put", path(&small)], &to[..], &once].concat());
        assert!(
            refused.ends_with("refused: it serves as many as it may at one time"),
            "{refused}"
        );
        arrives(&mut server, device, 5000, &["--from", "127.0.24.28"]);
        drop(running);
    }
}

#[test]
fn a_server_outlives_a_thread_that_cannot_be_created() {
    for device in DEVICES {
        let folder = Folder::new();
        let (file, fails, mark) = (folder.file(5000), failing(&folder), folder.path("mark"));
        let environment = [("LD_PRELOAD", path(&fails)), ("FAILS_WHILE", path(&mark))];
        let at = "127.0.24.29:0";
        let server = Server::within(Folder::new(), device, at, &["--files", "1"], &environment);
        fs::write(&mark, "").unwrap();
        let put = Running::new(&["put", path(&file), &server.address, "--device", device]);
        until(|| fs::metadata(&mark).unwrap().len() > 0);
        fs::remove_file(&mark).unwrap();
        // The client was refused at first, and has asked again.
        assert_eq!(put.end(), (true, String::new()));
        let (is_fine, reported) = server.process.end();
        let mut reported = reported.lines();
        assert!(
            is_fine && reported.all(|line| line.starts_with("polyverbs: no file can be taken: "))
        );
    }
}

fn unfinished(server: &Server) -> PathBuf {
    server.folder.path("stored/.polyverbs-unfinished")
}

/// The number of bytes in unfinished files.
fn unfinished_bytes(server: &Server) -> u64 {
    let parts = fs::read_dir(unfinished(server))
        .into_iter()
        .flatten()
        .flatten();
    parts
        .map(|part| part.metadata().map_or(0, |part| part.len()))
        .sum()
}

#[test]
fn unfinished_files_have_so_many_bytes_together_at_most() {
    let folder = Folder::new();
    let file = folder.file(5001);
    for device in DEVICES {
        let mut server = Server::new(device, "127.0.24.151:0", &["--max-unfinished", "10000"]);
        let client = Client::new(device, "127.0.24.152");
        let memory = Memory::zeroed(5100).unwrap();
        let lent = (client.pd).register(&memory, Access::REMOTE_READ | Access::LOCAL_WRITE);
        let lent = lent.wait().unwrap();
        let line = client.connect(address(&server.address), b"").unwrap();
        let answer = lent.sge(5000, 100).unwrap();
        line.qp
            .post_receive(wr::ReceiveRequest::new(0, answer))
            .unwrap();
        line.say(&file_message("blake3", "unfinished"));
        line.say(&window(lent.remote(0).to_bytes(), 0, 5000));
        until(|| unfinished_bytes(&server) == 5000);
        let told = complaint(&["put", path(&file), &server.address, "--device", device]);
        let reason = "unfinished files may have 10000 bytes together there";
        assert!(told.contains(reason), "{told}");
        // Finished files no longer count.
        for _ in 0..2 {
            arrives(&mut server, device, 5000, &[]);
        }
        drop(line);
        until(|| !unfinished(&server).exists());
        arrives(&mut server, device, 10_000, &[]);
    }
}

// The server reaches its limit while it reads from the client.
#[test]
fn each_client_without_room_is_sent_the_reason() {
    let folder = Folder::new();
    let file = folder.file(8 << 20);
    for device in DEVICES {
        let limit = ["--max-unfinished", "4000000"];
        let server = Server::new(device, "127.0.24.153:0", &limit);
        let reason = "unfinished files may have 4000000 bytes together there";
        server.refuses_each(&file, device, reason);
    }
}

#[test]
fn messages_out_of_turn_end_their_own_connection_only() {
    let end = |bytes: u64| end_message(bytes, digest("blake3", &vec![0; bytes as usize]));
    for device in DEVICES {
        let mut server = Server::new(device, "127.0.24.30:0", &["--files", "9"]);
        let client = Client::new(device, "127.0.24.31");
        let to = address(&server.address);
        let memory = Memory::zeroed(100).unwrap();
        let lent = client.pd.register(&memory, Access::REMOTE_READ).wait();
        let lent = lent.unwrap();
        let (readable, nowhere) = (lent.remote(0).to_bytes(), [0; RemoteAddress::BYTES]);
        let lines = [
            vec![b"rubbish".to_vec()],
            vec![[&3u32.to_be_bytes()[..], b"without a digest"].concat()],
            vec![file_message("blake3", "../file")],
            vec![file_message("blake3", "")],
            // These files would have a hole, or parts that the digest does not cover.
            vec![
                file_message("blake3", "far"),
                window(readable, 1 << 30, 100),
                end(100),
            ],
            vec![
                file_message("blake3", "twice"),
                window(readable, 0, 100),
                window(readable, 0, 100),
                end(200),
            ],
            vec![
                file_message("blake3", "long"),
                window(readable, 0, u32::MAX),
            ],
            vec![
                file_message("blake3", "unreadable"),
                window(nowhere, 0, 100),
            ],
        ]
        .map(|messages| {
            let line = client.connect(to, b"").unwrap();
            messages.iter().for_each(|message| line.say(message));
            line
        });
        arrives(&mut server, device, 5000, &[]);
        let Server {
            mut process,
            folder,
            ..
        } = server;
        // The server prints one line for each, so it has noticed all faults before the clients disconnect.
        let mut told = BufReader::new(process.0.stderr.take().unwrap()).lines();
        let complaints: Vec<_> = told.by_ref().take(lines.len()).collect();
        assert_eq!(complaints.len(), lines.len(), "{complaints:?}");
        lines.into_iter().for_each(|line| line.end());
        assert_eq!(told.count(), 1, "the line with the number of missing files");
        assert_eq!(names(&folder.path("stored")), ["file"]);
    }
}

#[test]
fn a_changed_byte_is_an_error_of_the_server() {
    for (device, name) in devices_and_digests() {
        let mut server = Server::new(device, "127.0.24.160:0", &["--files", "1"]);
        let client = Client::new(device, "127.0.24.161");
        let memory = Memory::zeroed(100).unwrap();
        let lent = client.pd.register(&memory, Access::REMOTE_READ).wait();
        let lent = lent.unwrap();
        let (stored, mut sent) = ([0; 100], [0; 100]);
        sent[99] = 1;
        let line = client.connect(address(&server.address), b"").unwrap();
        client.post_receives(&line.qp);
        line.say(&file_message(name, "changed"));
        line.say(&window(lent.remote(0).to_bytes(), 0, 100));
        line.say(&end_message(100, digest(name, &sent)));
        // The server returns the window first.
        assert_eq!(client.message()[..4], 4u32.to_be_bytes());
        assert_eq!(client.message(), end_message(100, digest(name, &stored)));
        line.end();
        let told = next(&mut server.lines);
        assert_eq!(told["digests"], digests(name, &sent, &stored));
        assert_eq!(server.stored(), [""; 0]);
        let failed = "polyverbs: 1 file did not arrive\n".to_owned();
        assert_eq!(server.process.end(), (false, failed));
    }
}

#[test]
fn a_digest_of_other_bytes_is_an_error_of_the_client() {
    let folder = Folder::new();
    let file = folder.file(0);
    for (device, name) in devices_and_digests() {
        let server = Client::new(device, "127.0.24.162");
        let listener = server.connector.listen(address("127.0.24.162:0"), 0);
        let listener = listener.unwrap();
        let to = listener.address().to_string();
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let incoming = listener.next().wait_for(PATIENCE).unwrap().unwrap();
                let line = server.accept(incoming);
                assert_eq!(server.message(), file_message(name, "file"));
                assert_eq!(server.message(), end_message(0, digest(name, b"")));
                line.say(&end_message(0, digest(name, b"!")));
                line
            });
            let put = ["put", path(&file), &to, "--device", device];
            let told = complaint(&[&put[..], &["--digest", name]].concat());
            assert_eq!(told, "polyverbs: the digests differ");
            serving.join().unwrap();
        });
    }
}

#[test]
fn an_unknown_digest_is_refused_with_the_known_ones() {
    for device in DEVICES {
        let server = Server::new(device, "127.0.24.163:0", &["--files", "1"]);
        let client = Client::new(device, "127.0.24.164");
        let line = client.connect(address(&server.address), b"").unwrap();
        client.post_receives(&line.qp);
        line.say(&file_message("md5", "file"));
        let reason = "the digest \"md5\" is not known there: choose blake3 or sha256";
        let failed = [&5u32.to_be_bytes()[..], reason.as_bytes()].concat();
        assert_eq!(client.message(), failed);
        line.end();
        assert_eq!(server.stored(), [""; 0]);
        let (succeeded, told) = server.process.end();
        assert!(!succeeded && told.contains(reason), "{told}");
    }
}

/// The listener rejects with a reason that contains escape sequences.
#[test]
fn a_refusal_is_printed_without_control_characters() {
    for device in DEVICES {
        let client = Client::new(device, "127.0.24.32");
        let listener = client
            .connector
            .listen(address("127.0.24.32:0"), 0)
            .unwrap();
        let to = listener.address().to_string();
        let folder = Folder::new();
        let file = folder.file(10);
        let refused = [
            &["put", path(&file), &to, "--device", device][..],
            &["perf", "write-latency", &to, "--device", device],
        ];
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in refused {
                    let incoming = listener.next().wait_for(PATIENCE).unwrap().unwrap();
                    incoming.reject("no\u{1b}[2J\u{9b}way".as_bytes()).unwrap();
                }
            });
            for refused in refused {
                let told = complaint(refused);
                assert!(told.contains("refused: no"), "{told}");
                assert!(!told.contains(char::is_control), "{told:?}");
            }
        });
    }
}

#[test]
fn a_listener_is_at_rest_while_its_peer_does_nothing() {
    for device in DEVICES {
        let listener = Listener::new(device, "127.0.24.33:0", &[]);
        let client = Client::new(device, "127.0.24.34");
        let _line = client
            .connect(address(&listener.address), &measurement(8))
            .unwrap();
        let process = &listener.process;
        let (used, paused) = (process.processor_time(), pauses(&process.0));
        // If a thread polled without pause, it would use seconds until the others have slept this often.
        until(|| pauses(&process.0) >= paused + 40);
        let used = process.processor_time() - used;
        assert!(used < Duration::from_millis(200), "{device}: {used:?}");
    }
}

/// How often the threads of a process have gone to sleep.
fn pauses(process: &Child) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    // A thread may end between the listing and the read.
    let texts =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    texts
        .map(|text| field(&text, "voluntary_ctxt_switches"))
        .sum()
}

#[test]
fn a_listener_has_as_many_peers_and_as_much_memory_as_it_may() {
    for device in DEVICES {
        let more = ["--max-connections", "2", "--max-bytes", "1M"];
        let listener = Listener::new(device, "127.0.24.35:0", &more);
        let to = &listener.address;
        let perf = |size, from| {
            let perf = ["perf", "bandwidth", to, "--device", device, "--iters", "20"];
            [&perf[..], &["--size", size, "--from", from]].concat()
        };
        let large = complaint(&perf("2M", "127.0.24.36"));
        assert!(
            large.ends_with("refused: it has no memory left for measurements of that size"),
            "{large}"
        );
        // The client gets the refusal a moment before its place is free.
        until(|| super::run(&perf("512k", "127.0.24.36")).status.success());
        // A peer that has not completed its connection may be forged, so it keeps no memory from others.
        let unproven = Client::new(device, "127.0.24.38");
        let asked = unproven.begin(address(to), &measurement(1 << 20)).unwrap();
        text(&perf("512k", "127.0.24.36"));
        drop(asked);
        // An idle peer has the one place of its address, and gives way to the next peer.
        let client = Client::new(device, "127.0.24.37");
        let line = client.connect(address(to), &measurement(8)).unwrap();
        text(&perf("512k", "127.0.24.36"));
        until(|| super::run(&perf("512k", "127.0.24.37")).status.success());
        drop(line);
    }
}

#[test]
fn a_killed_server_keeps_confirmed_files_and_no_partial_ones() {
    let seed = std::env::var("POLYVERBS_SEED").map_or_else(
        |_| RandomState::new().hash_one(()),
        |seed| seed.parse().unwrap(),
    );
    println!("POLYVERBS_SEED={seed}");
    let mut random = Random(seed | 1);
    let folder = Folder::new();
    let length = (3 << 20) + 12345;
    let file = folder.file(length);
    let bytes = fs::read(&file).unwrap();
    let mut stored = Folder::new();
    for kill in 0..4 * runs() {
        let device = DEVICES[kill % 2];
        let mut server = Server::within(stored, device, "127.0.24.38:0", &[], &[]);
        let within = server.folder.path("stored");
        let left: Vec<_> = server.stored();
        assert!(left.iter().all(|name| name == "file"), "{left:?}");
        let mut put = Running::new(&["put", path(&file), &server.address, "--device", device]);
        let length = length as u64;
        let (moment, part) = (random.next() % 4, random.next() % length);
        until(|| {
            let is_time = match moment {
                0 => unfinished(&server).exists(),
                1 => unfinished_bytes(&server) > part,
                // The file is complete and about to be renamed.
                2 => unfinished_bytes(&server) == length,
                // The server has answered the client.
                _ => false,
            };
            is_time || put.0.try_wait().unwrap().is_some()
        });
        server.process.0.kill().unwrap();
        server.process.0.wait().unwrap();
        let (succeeded, _) = put.end();
        let mut said = String::new();
        server.lines.read_to_string(&mut said).unwrap();
        let is_said = succeeded || said.ends_with('\n');
        match fs::read(within.join("file")) {
            Ok(there) => assert!(there == bytes, "a partial file of {} bytes", there.len()),
            Err(error) => assert!(!is_said, "{error}, but confirmed: {said}"),
        }
        // In the other runs the server has to replace a file.
        if random.next().is_multiple_of(2) {
            let _ = fs::remove_file(within.join("file"));
        }
        stored = server.folder;
    }
    let mut server = Server::within(stored, "ib0", "127.0.24.38:0", &[], &[]);
    arrives(&mut server, "ib0", 1, &[]);
    until(|| server.stored() == ["file"]);
}

/// The resources that a server occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Occupied {
    descriptors: usize,
    threads: usize,
    abstract_sockets: usize,
}

impl Occupied {
    fn by(process: &Child) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap();
        // A descriptor may be closed between the listing and the read.
        let targets = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let targets: Vec<_> = targets.map(|target| target.display().to_string()).collect();
        let table = fs::read_to_string(format!("/proc/{}/net/unix", process.id())).unwrap();
        let is_own = |line: &&str| {
            let inode = line.split_whitespace().nth(6).unwrap();
            line.contains('@') && targets.contains(&format!("socket:[{inode}]"))
        };
        Self {
            descriptors: targets.len(),
            threads: status(process, "Threads"),
            abstract_sockets: table.lines().filter(is_own).count(),
        }
    }

    /// The resources of a server without peers, after serving clients by `serve` until that no longer adds any.
    fn settled(process: &Child, serve: impl Fn()) -> Self {
        let mut found = Vec::new();
        until_some(|| {
            serve();
            until(|| serving(process) == 0);
            found.push(Self::by(process));
            match found[..] {
                [.., first, second, third] if first == second && second == third => Some(third),
                _ => None,
            }
        })
    }

    fn is_within(self, other: Self) -> bool {
        self.descriptors <= other.descriptors
            && self.threads <= other.threads
            && self.abstract_sockets <= other.abstract_sockets
    }
}

/// The number of threads of a server that serve peers: these have the name of the process, as its first thread does.
fn serving(process: &Child) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let names =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name == "polyverbs\n").count() - 1
}

/// A number in the status of a process; memory is in KiB.
fn status(process: &Child, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    field(&status, name)
}

fn field(status: &str, name: &str) -> usize {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap().trim_start_matches(':').split_whitespace();
    number.map(|word| word.parse().unwrap()).next().unwrap()
}

/// Transfers all files at the same time, each by a client that repeats its request while the server is busy.
fn put_all(files: &[PathBuf], to: &str, device: &str) {
    let more = ["--from", "127.0.24.43", "--timeout", "300"];
    let running = files.iter().map(|file| {
        let put = ["put", path(file), to, "--device", device];
        Running::new(&[&put[..], &more].concat())
    });
    for put in running.collect::<Vec<_>>() {
        assert_eq!(put.end(), (true, String::new()));
    }
}

/// Makes client `number` silent or noisy, each kind in turn. The result keeps its connection open.
fn disturb(client: &Client, to: SocketAddr, number: usize, rubbish: &[u8]) -> Option<Box<dyn Any>> {
    let line = |line: Result<Line, ConnectError>, says: &[u8]| {
        let line = line.ok()?;
        line.say(says);
        Some(Box::new(line) as _)
    };
    match number % 6 {
        // Silent clients.
        0 => client.ask(to).ok().map(|line| Box::new(line) as _),
        1 => client.connect(to, b"").ok().map(|line| Box::new(line) as _),
        2 => line(
            client.connect(to, b""),
            &file_message("blake3", &format!("silent-{number}")),
        ),
        // Clients that send rubbish.
        3 => line(client.connect(to, b""), rubbish),
        4 => line(client.connect(to, rubbish.get(..40)?), &[3, 0, 0, 0]),
        _ => {
            let datagrams = UdpSocket::bind("127.0.24.44:0").unwrap();
            let _ = datagrams.send_to(rubbish, (to.ip(), 4791));
            let mut stream = TcpStream::connect(to).ok()?;
            let _ = stream.write_all(rubbish);
            Some(Box::new(stream))
        }
    }
}

#[test]
fn silent_and_noisy_clients_hold_up_no_transfer() {
    let (disturbers, length) = (40 * runs(), 2_000_000 * runs());
    let folder = Folder::new();
    let files = (0..8).map(|number| {
        let named = folder.path(&format!("file-{number}"));
        fs::rename(folder.file(length), &named).unwrap();
        named
    });
    let files: Vec<_> = files.collect();
    let clients = |device| ["127.0.24.42", "127.0.24.43"].map(|at| Client::new(device, at));
    for device in DEVICES {
        let mut server = Server::new(device, "127.0.24.41:0", &[]);
        let (to, clients) = (address(&server.address), clients(device));
        // The output of the server is read, because a full pipe would stop the server.
        let stderr = server.process.0.stderr.take().unwrap();
        let readers = [
            thread::spawn(move || drop(std::io::read_to_string(stderr))),
            thread::spawn(move || drop(std::io::read_to_string(server.lines))),
        ];
        let process = &server.process.0;
        let empty = status(process, "VmRSS");
        let before = Occupied::settled(process, || put_all(&files[..1], &server.address, device));
        put_all(&files, &server.address, device);
        let resident = status(process, "VmRSS");
        let most_threads = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (come, comes) = mpsc::channel();
            let leave = clients.iter().enumerate().map(|(index, client)| {
                let (come, most_threads) = (come.clone(), &most_threads);
                let (leave, leaves) = mpsc::channel::<()>();
                scope.spawn(move || {
                    let mut random = Random(17 + index as u64);
                    let mut kept = Vec::new();
                    for number in (index..disturbers).step_by(2) {
                        kept.push(disturb(client, to, number / 2, &random.bytes(200)));
                        most_threads.fetch_max(status(process, "Threads"), Ordering::Relaxed);
                        come.send(()).unwrap();
                    }
                    // All clients stay connected until the files have arrived.
                    let _ = leaves.recv();
                });
                leave
            });
            let leave: Vec<_> = leave.collect();
            // The transfers begin when a tenth of the disturbing clients have come.
            comes.iter().take(disturbers / 10).count();
            put_all(&files, &server.address, device);
            comes.iter().take(disturbers - disturbers / 10).count();
            drop(leave);
        });
        // 64 places have two threads each: one serves the client, the other computes the digest.
        let threads = most_threads.into_inner();
        assert!(
            threads <= before.threads + 2 * 64,
            "{threads} threads, {before:?}"
        );
        let peak = status(process, "VmHWM") - empty;
        println!("{device}: {threads} threads, {peak} KiB at most");
        assert!(peak < (64 * 3) << 10, "{peak} KiB");
        until(|| Occupied::by(process).is_within(before));
        let left = status(process, "VmRSS").saturating_sub(resident);
        println!("{device}: {left} KiB are left");
        assert!(left < 32 << 10, "{left} KiB are left");
        let mut stored = names(&server.folder.path("stored"));
        stored.sort();
        let named: Vec<_> = (0..8).map(|number| format!("file-{number}")).collect();
        assert_eq!(stored, named);
        drop(server.process);
        for reader in readers {
            reader.join().unwrap();
        }
    }
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next() as u8)
            .take(count)
            .collect()
    }
}
