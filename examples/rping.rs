//! `rping`: the ping of rdma-core, on any transport.
//!
//! A client and a server of this program understand each other, and each understands rdma-core's `rping`. The protocol:
//! the client advertises a buffer with a message of 16 bytes (address, remote key, length); the server reads the
//! buffer, and confirms that with a message; the client advertises a second buffer; the server writes the bytes there
//! that it has read, and confirms that. Then the client compares both, and begins again.
//!
//! ```text
//! rping -s -a 127.0.0.1 -v
//! rping -c -a 127.0.0.1 -C 10 -S 4096 -V -v
//! ```
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polyverbs::connection::{Connection, ConnectionOptions, Connector, devices_at, source_of};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, Context, Cq, Device, Memory, Mr, PathOptions, Qp, QpOptions, RKey,
    RemoteAddress, Requirements,
    completion::WcOpcode,
    portable::read_sink_access,
    wr::{self, ReceiveRequest, WorkRequest},
};

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

const USAGE: &str =
    "usage: rping -s|-c -a ADDRESS [-p PORT] [-C COUNT] [-S SIZE] [-V] [-v] [--device NAME]
  -s          server
  -c          client
  -a ADDRESS  of the server
  -p PORT     of the server (7174)
  -C COUNT    pings (without end)
  -S SIZE     octets of a ping, 64 to 65536 (64)
  -V          compare what comes back
  -v          print what is pinged
  --device    the device to use or to make there (ib0)";

fn main() -> ExitCode {
    match run_with(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs with these arguments.
pub(crate) fn run_with(given: impl Iterator<Item = String>) -> Result<()> {
    let arguments = Arguments::read(given)?;
    if arguments.is_server {
        serve(&arguments)
    } else {
        ping(&arguments)
    }
}

struct Arguments {
    is_server: bool,
    address: IpAddr,
    port: u16,
    count: u64,
    size: usize,
    validates: bool,
    is_verbose: bool,
    device: String,
}

impl Arguments {
    fn read(mut given: impl Iterator<Item = String>) -> Result<Self> {
        let (mut is_server, mut address) = (None, None);
        let mut arguments = Self {
            is_server: false,
            address: IpAddr::from([0; 4]),
            port: 7174,
            count: u64::MAX,
            size: 64,
            validates: false,
            is_verbose: false,
            device: "ib0".to_owned(),
        };
        while let Some(option) = given.next() {
            let mut value = || given.next().ok_or(USAGE);
            match option.as_str() {
                "-s" => is_server = Some(true),
                "-c" => is_server = Some(false),
                "-a" => address = Some(value()?.parse()?),
                "-p" => arguments.port = value()?.parse()?,
                "-C" => arguments.count = value()?.parse()?,
                "-S" => arguments.size = value()?.parse()?,
                "-V" => arguments.validates = true,
                "-v" => arguments.is_verbose = true,
                "--device" => arguments.device = value()?,
                _ => return Err(USAGE.into()),
            }
        }
        if !(64..=LARGEST).contains(&arguments.size) {
            return Err(format!("a ping has 64 to {LARGEST} bytes").into());
        }
        arguments.is_server = is_server.ok_or(USAGE)?;
        arguments.address = address.ok_or(USAGE)?;
        Ok(arguments)
    }

    fn server(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    // The registered device of this name at the address, or an emulated one that is made at it.
    fn device(&self, at: IpAddr) -> Result<Device> {
        let registry = polyverbs::registry()?;
        let there = devices_at(&registry, at);
        match there.into_iter().find(|it| it.name() == self.device) {
            Some(device) => Ok(device),
            None => {
                let options = EmulatedOptions::default();
                Ok(emulated::device_at(&self.device, at, &options)?)
            }
        }
    }
}

fn serve(arguments: &Arguments) -> Result<()> {
    let end = End::new(&arguments.device(arguments.address)?)?;
    let listener = Connector::of(&end.context)?.listen(arguments.server(), 1)?;
    let incoming = listener.next().wait()?;
    let accepted = incoming.accept(&end.qp, one_read());
    let connection = accepted.wait()?;
    end.watch(&connection);
    while let Some(source) = end.advertised()? {
        let length = source.length;
        if length > LARGEST {
            return Err(format!("a ping of {length} bytes").into());
        }
        let sink = end.pong.mr.sge(0, length as u32)?;
        end.post(wr::Read::new(sink, source.remote).signaled(0))?;
        end.completed(WcOpcode::RdmaRead)?;
        let text = end.pong.text(length)?;
        if arguments.is_verbose {
            println!("server ping data: {}", shown(&text));
        }
        end.say(&end.pong, 0)?;
        let Some(target) = end.advertised()? else {
            break;
        };
        // The length of the text with its terminating zero.
        let length = text.len() + 1;
        if length > target.length {
            return Err("the buffer is smaller than the ping".into());
        }
        let data = end.pong.mr.sge(0, length as u32)?;
        end.post(wr::Write::new(data, target.remote).signaled(0))?;
        end.completed(WcOpcode::RdmaWrite)?;
        end.say(&end.pong, 0)?;
    }
    connection.disconnect().wait()?;
    Ok(())
}

fn ping(arguments: &Arguments) -> Result<()> {
    let server = arguments.server();
    let end = End::new(&arguments.device(source_of(server)?)?)?;
    let connector = Connector::of(&end.context)?;
    let connection = connector.connect(&end.qp, server, one_read()).wait()?;
    end.watch(&connection);
    let mut first = b'A';
    for number in 0..arguments.count {
        let octets = text_of(number, first, arguments.size);
        first = after(first);
        end.ping.memory.write(0, &octets)?;
        end.say(&end.ping, arguments.size)?;
        end.answered()?;
        end.say(&end.pong, arguments.size)?;
        end.answered()?;
        if arguments.validates && end.pong.memory.to_vec(0, arguments.size)? != octets {
            return Err(format!("ping {number} came back changed").into());
        }
        if arguments.is_verbose {
            let text = end.pong.text(arguments.size)?;
            println!("ping data: {}", shown(&text));
        }
    }
    connection.disconnect().wait()?;
    Ok(())
}

// The text of a ping: its number, then letters that begin one later in each ping, then a zero.
fn text_of(number: u64, first: u8, size: usize) -> Vec<u8> {
    let mut octets = format!("rdma-ping-{number}: ").into_bytes();
    let mut letter = first;
    while octets.len() < size {
        octets.push(letter);
        letter = after(letter);
    }
    octets.truncate(size - 1);
    octets.push(0);
    octets
}

const fn after(letter: u8) -> u8 {
    if letter == b'z' { b'A' } else { letter + 1 }
}

// The text without control characters, which a terminal would obey.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(
        |letter: char| !matches!(letter, ' '..='~' | char::REPLACEMENT_CHARACTER),
        "?",
    )
}

// The rights of the peer on the advertised memory.
const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn one_read() -> ConnectionOptions {
    ConnectionOptions::new()
        .path(PathOptions::new().access(RIGHTS))
        .reads(1, 1)
}

/// A buffer that the other side has advertised.
struct Advertised {
    remote: RemoteAddress,
    length: usize,
}

/// A buffer and its keys.
struct Buffer {
    memory: Memory,
    mr: Mr,
}

impl Buffer {
    // The text up to the first zero.
    fn text(&self, length: usize) -> Result<Vec<u8>> {
        let mut octets = self.memory.to_vec(0, length)?;
        let end = octets.iter().position(|octet| *octet == 0);
        octets.truncate(end.unwrap_or(length.saturating_sub(1)));
        Ok(octets)
    }
}

/// One side of the connection.
struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    ping: Buffer,
    pong: Buffer,
    message: Buffer,
    ended: Arc<AtomicBool>,
}

impl End {
    fn new(device: &Device) -> Result<Self> {
        let context = device.open(&Requirements::new())?;
        let pd = context.alloc_pd().wait()?;
        let cq = context.create_cq(32).wait()?;
        let options = QpOptions::rc(&cq).max_send_wr(16).max_recv_wr(2);
        let qp = pd.create_qp(options).wait()?;
        let buffer = |length, access| -> Result<Buffer> {
            let memory = Memory::zeroed(length)?;
            let mr = pd.register(&memory, access).wait()?;
            Ok(Buffer { memory, mr })
        };
        let shared = Access::LOCAL_WRITE | RIGHTS;
        let end = Self {
            ping: buffer(LARGEST, shared)?,
            pong: buffer(LARGEST, shared | read_sink_access(&context).access)?,
            message: buffer(MESSAGE, Access::LOCAL_WRITE)?,
            context,
            cq,
            qp,
            ended: Arc::default(),
        };
        // A receive is posted before connecting, because the first message may come with the connection.
        end.qp.init(PathOptions::new()).wait()?;
        end.post_receive()?;
        Ok(end)
    }

    // Ends outstanding requests when the other side disconnects.
    fn watch(&self, connection: &Connection) {
        let (ended, qp) = (Arc::clone(&self.ended), self.qp.clone());
        connection.disconnected().on_done(move |_| {
            ended.store(true, Ordering::SeqCst);
            // A queue pair that can no longer be modified has ended already.
            qp.modify(QpAttributes::new().qp_state(QpState::Err))
                .on_done(|_| {});
        });
    }

    fn post_receive(&self) -> Result<()> {
        let room = self.message.mr.sge(0, MESSAGE as u32)?;
        Ok(self.qp.post_receive(ReceiveRequest::new(0, room))?)
    }

    fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<()> {
        Ok(self.qp.post_one(request)?)
    }

    // Advertises a buffer in a message; of the messages of the server, only their arrival matters.
    fn say(&self, buffer: &Buffer, length: usize) -> Result<()> {
        let remote = buffer.mr.remote(0);
        let mut message = [0; MESSAGE];
        message[..RemoteAddress::BYTES].copy_from_slice(&remote.to_bytes());
        message[RemoteAddress::BYTES..].copy_from_slice(&(length as u32).to_be_bytes());
        self.post(wr::Send::new(&message).signaled(0))
    }

    // Waits for the next message and returns the advertised buffer; `None` if the other side has disconnected.
    fn advertised(&self) -> Result<Option<Advertised>> {
        let done = match self.completed(WcOpcode::Recv) {
            Ok(done) => done,
            Err(_) if self.ended.load(Ordering::SeqCst) => return Ok(None),
            Err(error) => return Err(error),
        };
        if done.byte_len as usize != MESSAGE {
            return Err(format!("a message of {} bytes", done.byte_len).into());
        }
        let octets = self.message.memory.to_vec(0, MESSAGE)?;
        self.post_receive()?;
        let (remote, length) = octets.split_at(RemoteAddress::BYTES);
        Ok(Some(Advertised {
            remote: RemoteAddress::from_bytes(remote.try_into()?),
            length: u32::from_be_bytes(length.try_into()?) as usize,
        }))
    }

    fn answered(&self) -> Result<()> {
        let answer = self.advertised()?;
        answer
            .map(drop)
            .ok_or_else(|| "the server ended the connection".into())
    }

    // Waits for the next completion of this kind; send completions before it are skipped. A silent peer is probed.
    fn completed(&self, opcode: WcOpcode) -> Result<Completion> {
        let mut is_looking = false;
        loop {
            let Some(done) = self.cq.next().wait_for(SILENCE)? else {
                if !is_looking {
                    let nowhere = RemoteAddress::new(0, RKey::new(0));
                    self.post(wr::Write::new((), nowhere).signaled(LOOK))?;
                    is_looking = true;
                }
                continue;
            };
            if !done.status.is_success() {
                let (status, what) = (done.status, done.opcode);
                return Err(format!("the connection broke: {status:?} ({what:?})").into());
            }
            let is_look = !done.opcode.is_receive() && done.wr_id == LOOK;
            is_looking &= !is_look;
            if done.opcode == opcode && !is_look {
                return Ok(done);
            }
        }
    }
}

/// Bytes of a message.
const MESSAGE: usize = 16;
/// Bytes of the largest ping.
const LARGEST: usize = 65_536;
/// The silence after which the other side is probed, and the identity of the request that probes it.
const SILENCE: Duration = Duration::from_secs(1);
const LOOK: u64 = 1;
