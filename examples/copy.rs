//! Copies a file through an RDMA device, the way storage protocols move data: `copy FROM TO [DEVICE]`.
//!
//! The client lends its file to the server window by window. It opens a window under a fresh key and sends the key; the server
//! reads the window into a sink whose key dies with the read, and answers with a message that invalidates the client's key. The
//! program does not ask which transport it runs on: each portable operation becomes what the device has for it.
//!
//! Both sides are in one process and take turns here. `polyverbs copy`, `serve` and `put` (`cli/src/transfer/`) do the same with
//! many windows in flight, between machines, and against hostile peers.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::process::ExitCode;

use polyverbs::capability::Baseline;
use polyverbs::portable::{self, ReadAndInvalidate, ReadSink, RemoteAccess, SendAndInvalidate};
use polyverbs::{
    Access, Batch, BufferPool, Completion, Context, Cq, Limit, Memory, PathOptions, Pd, Qp,
    QpOptions, RemoteAddress, Requirements, open, qp::connect_pair_with, wr,
};

/// Bytes that are lent under one key.
const WINDOW: usize = 1 << 20;
/// Bytes of the messages: a remote address and the length of a window.
const MESSAGE: usize = RemoteAddress::BYTES + 4;

/// A queue pair, and what belongs to it.
struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    messages: BufferPool,
}

impl Side {
    fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd().wait()?;
        let cq = context.create_cq(16).wait()?;
        let options = QpOptions::rc(&cq)
            .max_inline_data(MESSAGE as u32)
            .reserve_portable(2);
        let qp = pd.create_qp(options).wait()?;
        let messages = pd.register_buffers(1, MESSAGE).wait()?;
        Ok(Self {
            pd,
            cq,
            qp,
            messages,
        })
    }

    /// Posts the receive for the next message of the other side.
    fn expect_message(&self) -> Result<(), Box<dyn Error>> {
        let buffer = self.messages.take().ok_or("one message at a time")?;
        Ok(self.qp.post_receive(buffer)?)
    }

    /// Waits for the next completion that has a message or the identity `wr_id`.
    fn wait(&self, wr_id: Option<u64>) -> Result<Completion, Box<dyn Error>> {
        loop {
            let done = self.cq.next().wait()?;
            if !done.status.is_success() {
                return Err(format!("{:?} ended with {:?}", done.opcode, done.status).into());
            }
            if wr_id.map_or(done.opcode.is_receive(), |wr_id| done.wr_id == wr_id) {
                return Ok(done);
            }
        }
    }
}

/// What the program needs of a device: it is refused where one of them is missing, and fails nowhere later.
pub(crate) fn needs() -> Requirements {
    Requirements::new()
        .needs(Baseline::RC | Baseline::SEND | Baseline::READ | Baseline::INLINE)
        .at_least(Limit::MaxInlineData, MESSAGE as u64)
        .prefers(portable::FEATURES)
}

pub(crate) fn copy(context: &Context, mut from: File, mut to: File) -> Result<u64, Box<dyn Error>> {
    let (client, server) = (Side::new(context)?, Side::new(context)?);
    connect_pair_with(
        &client.qp,
        &server.qp,
        // One read is outstanding at a time, and some devices have few places for reads in all.
        PathOptions::new()
            .access(Access::REMOTE_READ | Access::REMOTE_WRITE)
            .max_rd_atomic(1)
            .max_dest_rd_atomic(1),
    )
    .wait()?;
    let (source, target) = (Memory::zeroed(WINDOW)?, Memory::zeroed(WINDOW)?);
    let window = RemoteAccess::prepare(&client.pd, &source, Access::REMOTE_READ, true).wait()?;
    let sink = ReadSink::prepare(&server.pd, &target, true).wait()?;

    let mut copied = 0;
    let mut bytes = Vec::with_capacity(WINDOW);
    loop {
        bytes.clear();
        let length = (&mut from).take(WINDOW as u64).read_to_end(&mut bytes)?;
        if length == 0 {
            return Ok(copied);
        }
        source.write(0, &bytes)?;
        client.expect_message()?;
        server.expect_message()?;

        // The client opens the window. The message takes effect after that, because it is posted after it.
        client
            .qp
            .post_portable(window.register_first(length as u32).wr_id(1))?;
        let mut message = window.remote().to_bytes().to_vec();
        message.extend((length as u32).to_be_bytes());
        client
            .qp
            .post_one(wr::Send::new(&message[..]).signaled(2))?;

        // The server reads the window, and then gives it back.
        let mut done = server.wait(None)?;
        let (remote, length) = done.buffer().split_at(RemoteAddress::BYTES);
        let remote = RemoteAddress::from_bytes(remote.try_into()?);
        let length = u32::from_be_bytes(length.try_into()?);
        done.take_buffers().for_each(drop);
        let mut registers = Batch::with_capacity(1);
        registers.extend(sink.register(length));
        server.qp.post(&mut registers)?;
        let read = ReadAndInvalidate::new(remote, &sink.sink(length));
        server.qp.post_portable(read.wr_id(3))?;
        server.wait(Some(3))?;
        let lent = window.invalidation().map(|_| remote.rkey);
        server
            .qp
            .post_portable(SendAndInvalidate::new(b"back", lent).wr_id(4))?;
        server.wait(Some(4))?;

        // Where the device has no message that invalidates a key, the client closes the window itself.
        let mut done = client.wait(None)?;
        done.take_buffers().for_each(drop);
        if let (Some(close), None) = (window.invalidation(), done.invalidated_rkey()) {
            client.qp.post_one(close.signaled(5))?;
            client.wait(Some(5))?;
        }
        bytes.resize(length as usize, 0);
        target.read(0, &mut bytes)?;
        to.write_all(&bytes)?;
        copied += u64::from(length);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy FROM TO [DEVICE]".into());
    };
    let mut wanted = needs();
    if let Some(device) = arguments.next() {
        wanted = wanted.device(device.to_string_lossy());
    }
    let context = open(wanted)?;
    let named = |path: &OsStr, error: io::Error| format!("{}: {error}", path.display());
    let source = File::open(&from).map_err(|error| named(&from, error))?;
    let target = File::create(&to).map_err(|error| named(&to, error))?;
    let copied = copy(&context, source, target)?;
    println!("{}: {copied} bytes", context.attributes().name);
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "copy: {error}");
            ExitCode::FAILURE
        }
    }
}
