//! Many connections at once between two processes at one address, each awaited by a task of its own.
//!
//! The test runs itself again, as the server and as the client. With default options, the connections move from sockets to
//! shared memory while requests are outstanding.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use polyverbs::connection::{ConnectionOptions, Connector};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, Context, Cq, Memory, Mr, PathOptions, Qp, QpOptions, RemoteAddress, Requirements,
    completion::WcOpcode,
    portable::read_sink_access,
    wr::{self, ReceiveRequest, WorkRequest},
};
use test_kit::process::ChildProcess;
use verbs_api::provider::{Condvar, Mutex};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The rights of each end on the memory that its peer advertises.
const RIGHTS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);
const CONNECTIONS: usize = 100;
/// Requests of each connection: enough for some before, during and after the move to shared memory.
const REQUESTS: u64 = 40;

/// How often each device is tried; `.ci/nightly` sets more.
const RUNS: &str = "POLYVERBS_RUNS";
/// Set for the other processes: `server DEVICE` or `client DEVICE ADDRESS`.
const ROLE: &str = "POLYVERBS_ROLE";
const ADDRESS: &str = "127.0.41.1";

#[test]
fn a_hundred_connections_of_two_processes_work_over_udp() {
    all_are_answered("ib0");
}

#[test]
fn a_hundred_connections_of_two_processes_work_over_tcp() {
    all_are_answered("iw0");
}

fn all_are_answered(device: &str) {
    let runs = std::env::var(RUNS).map_or(3, |runs| runs.parse().unwrap());
    for run in 1..=runs {
        println!("{device}, run {run}");
        let mut server = start(&format!("server {device}"));
        let address = server.answer();
        let mut client = start(&format!("client {device} {address}"));
        client.ends_well();
        server.ends_well();
    }
}

fn start(role: &str) -> ChildProcess {
    ChildProcess::start("many_connections::another_process", ROLE, role)
}

/// Runs as one of the other processes.
#[test]
#[ignore = "a process of the other tests"]
fn another_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match *role.split(' ').collect::<Vec<_>>() {
        ["server", device] => serve(device).unwrap(),
        ["client", device, server] => ask(device, server.parse().unwrap()).unwrap(),
        _ => panic!("no such role: {role}"),
    }
}

// ---- the server and the client

/// Length of a request or an answer: a number, and the remote address of the sender's buffer.
const MESSAGE: usize = 24;

/// One side of one connection.
struct End {
    cq: Cq,
    qp: Qp,
    message: Memory,
    message_mr: Mr,
    /// A counter, and a word that the client writes and reads: at the server the memory itself, at the client the results.
    buffer: Memory,
    buffer_mr: Mr,
    is_received: bool,
    is_completed: bool,
}

impl End {
    async fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd().await?;
        let cq = context.create_cq(16).await?;
        let options = QpOptions::rc(&cq)
            .max_send_wr(8)
            .max_recv_wr(4)
            .max_inline_data(MESSAGE as u32);
        let qp = pd.create_qp(options).await?;
        let message = Memory::zeroed(MESSAGE)?;
        let message_mr = pd.register(&message, Access::LOCAL_WRITE).await?;
        let buffer = Memory::zeroed(16)?;
        let shared = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | read_sink_access(context).access;
        let buffer_mr = pd.register(&buffer, shared).await?;
        qp.init(PathOptions::new()).await?;
        let end = Self {
            cq,
            qp,
            message,
            message_mr,
            buffer,
            buffer_mr,
            is_received: false,
            is_completed: false,
        };
        end.post_receive()?;
        Ok(end)
    }

    fn post_receive(&self) -> Result<()> {
        let room = self.message_mr.sge(0, MESSAGE as u32)?;
        let posted = self.qp.post_receive(ReceiveRequest::new(0, room));
        posted.map_err(|refused| refused.to_string().into())
    }

    fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<()> {
        let posted = self.qp.post_one(request);
        posted.map_err(|rejected| rejected.to_string().into())
    }

    // Sends and receives complete in one queue, in any order.
    async fn next(&mut self) -> Result<()> {
        let done = self.cq.next().await?;
        if !done.status.is_success() {
            return Err(format!("{:?} of {:?}", done.status, done.opcode).into());
        }
        match done.opcode {
            WcOpcode::Recv => self.is_received = true,
            _ => self.is_completed = true,
        }
        Ok(())
    }

    async fn completed(&mut self) -> Result<()> {
        while !std::mem::take(&mut self.is_completed) {
            self.next().await?;
        }
        Ok(())
    }

    async fn say(&mut self, number: u64) -> Result<()> {
        let remote = self.buffer_mr.remote(0);
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&number.to_be_bytes());
        message[8..20].copy_from_slice(&remote.to_bytes());
        self.post(wr::Send::new(&message).signaled(0))?;
        self.completed().await
    }

    async fn heard(&mut self) -> Result<(u64, RemoteAddress)> {
        while !std::mem::take(&mut self.is_received) {
            self.next().await?;
        }
        let octets = self.message.to_vec(0, MESSAGE)?;
        self.post_receive()?;
        let number = u64::from_be_bytes(octets[..8].try_into()?);
        let remote = RemoteAddress::from_bytes(octets[8..20].try_into()?);
        Ok((number, remote))
    }

    // Counts in the server's memory, writes a word there, and reads it back.
    async fn count_on(&mut self, server: RemoteAddress, number: u64) -> Result<()> {
        let before = self.buffer_mr.sge(0, 8)?;
        self.post(wr::FetchAdd::new(before, server, 1).signaled(0))?;
        self.completed().await?;
        assert_eq!(self.buffer.to_vec(0, 8)?, (number - 1).to_ne_bytes());
        let behind = RemoteAddress::new(server.addr + 8, server.rkey);
        self.post(wr::Write::new(&number.to_be_bytes(), behind).signaled(0))?;
        self.completed().await?;
        let sink = self.buffer_mr.sge(8, 8)?;
        self.post(wr::Read::new(sink, behind).signaled(0))?;
        self.completed().await?;
        assert_eq!(self.buffer.to_vec(8, 8)?, number.to_be_bytes());
        Ok(())
    }
}

fn serve(device: &str) -> Result<()> {
    let at: IpAddr = ADDRESS.parse()?;
    let device = emulated::device_at(device, at, &EmulatedOptions::default())?;
    let context = device.open(&Requirements::new())?;
    let listener = Connector::of(&context)?.listen(SocketAddr::new(at, 0), CONNECTIONS)?;
    let listener = Rc::new(listener);
    println!("> {}", listener.address());
    let tasks = Tasks::default();
    let (spawner, accepting) = (tasks.clone(), Rc::clone(&listener));
    tasks.spawn(async move {
        for _ in 0..CONNECTIONS {
            let incoming = accepting.next().await?;
            let context = context.clone();
            spawner.spawn(async move {
                let mut end = End::new(&context).await?;
                let options = ConnectionOptions::new()
                    .path(PathOptions::new().access(RIGHTS))
                    .reads(4, 4);
                let connection = incoming.accept(&end.qp, options).await?;
                for number in 0..REQUESTS {
                    let (asked, _) = end.heard().await?;
                    assert_eq!(asked, number);
                    end.say(asked).await?;
                }
                // The client counts once between every two requests.
                assert_eq!(end.buffer.to_vec(0, 8)?, (REQUESTS - 1).to_ne_bytes());
                connection.disconnected().await?;
                Ok(())
            });
        }
        Ok(())
    });
    tasks.run()
}

fn ask(device: &str, server: SocketAddr) -> Result<()> {
    let device = emulated::device_at(device, server.ip(), &EmulatedOptions::default())?;
    let context = device.open(&Requirements::new())?;
    let tasks = Tasks::default();
    for _ in 0..CONNECTIONS {
        let context = context.clone();
        tasks.spawn(async move {
            let mut end = End::new(&context).await?;
            let options = ConnectionOptions::new()
                .path(PathOptions::new().access(RIGHTS))
                .reads(4, 4);
            let connector = Connector::of(&context)?;
            let connection = connector.connect(&end.qp, server, options).await?;
            let mut server = None;
            for number in 0..REQUESTS {
                if let Some(server) = server {
                    end.count_on(server, number).await?;
                }
                end.say(number).await?;
                let (answered, buffer) = end.heard().await?;
                assert_eq!(answered, number);
                server = Some(buffer);
            }
            connection.disconnect().await?;
            Ok(())
        });
    }
    tasks.run()
}

// ---- an executor of one thread, which blocks while no task is ready

type Task = Pin<Box<dyn Future<Output = Result<()>>>>;

/// Tasks of one thread.
#[derive(Clone, Default)]
struct Tasks {
    tasks: Rc<RefCell<Vec<Option<Task>>>>,
    ready: Arc<Ready>,
}

/// The numbers of the tasks that are ready.
#[derive(Default)]
struct Ready {
    numbers: Mutex<VecDeque<usize>>,
    any: Condvar,
}

struct WakeTask(Arc<Ready>, usize);

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        self.0.numbers.lock().push_back(self.1);
        self.0.any.notify_one();
    }
}

impl Tasks {
    fn spawn(&self, task: impl Future<Output = Result<()>> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let number = tasks.len();
        tasks.push(Some(Box::pin(task)));
        Waker::from(Arc::new(WakeTask(Arc::clone(&self.ready), number))).wake();
    }

    // Runs until all tasks have ended, or one has failed.
    fn run(&self) -> Result<()> {
        while self.tasks.borrow().iter().any(Option::is_some) {
            let mut numbers = self.ready.numbers.lock();
            let number = loop {
                match numbers.pop_front() {
                    Some(number) => break number,
                    None => numbers = self.ready.any.wait(numbers),
                }
            };
            drop(numbers);
            // The list is not borrowed while a task runs, because the task may spawn others.
            let task = self.tasks.borrow_mut()[number].take();
            let Some(mut task) = task else { continue };
            let waker = Waker::from(Arc::new(WakeTask(Arc::clone(&self.ready), number)));
            match task.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
                Poll::Ready(ended) => ended?,
                Poll::Pending => self.tasks.borrow_mut()[number] = Some(task),
            }
        }
        Ok(())
    }
}
