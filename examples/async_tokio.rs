//! A hundred connections of one process, each with a tokio task at either end: one device, one completion queue, one
//! thread.
//!
//! Each client sends a name and awaits the greeting; each server awaits the name and sends the greeting.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use polyverbs::connection::{ConnectionOptions, Connector, Incoming};
use polyverbs::{Buffer, Cq, PathOptions, Pd, Qp, QpOptions, Requirements, open, wr};
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CONNECTIONS: usize = 100;

pub(crate) fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(greet_all())
}

async fn greet_all() -> Result<()> {
    let context = open(Requirements::new())?;
    let (pd, cq) = (context.alloc_pd().await?, context.create_cq(512).await?);
    let connector = Connector::of(&context)?;
    let listener = connector.listen("127.0.0.1:0".parse()?, CONNECTIONS)?;
    let mut tasks = JoinSet::new();
    for number in 0..CONNECTIONS {
        let (client, server) = (end(&pd, &cq).await?, end(&pd, &cq).await?);
        tasks.spawn(ask(connector.clone(), client, listener.address(), number));
        tasks.spawn(answer(server, listener.next().await?));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!("{CONNECTIONS} clients were greeted");
    Ok(())
}

async fn ask(
    connector: Connector,
    (qp, buffer): End,
    server: SocketAddr,
    number: usize,
) -> Result<()> {
    let greeting = qp.receive(buffer);
    let options = ConnectionOptions::new();
    let connection = connector.connect(&qp, server, options).await?;
    let name = format!("client {number}");
    qp.submit(wr::Send::new(name.as_bytes())).await?;
    let expected = format!("hello, {name}");
    assert_eq!(greeting.await?.buffer(), expected.as_bytes());
    Ok(connection.disconnect().await?)
}

async fn answer((qp, buffer): End, incoming: Incoming) -> Result<()> {
    let name = qp.receive(buffer);
    let connection = incoming.accept(&qp, ConnectionOptions::new()).await?;
    let greeting = [b"hello, ", name.await?.buffer()].concat();
    qp.submit(wr::Send::new(greeting.as_slice())).await?;
    Ok(connection.disconnected().await?)
}

type End = (Qp, Buffer);

// A queue pair with a posted receive, since a message may come with the connection, and its buffer.
async fn end(pd: &Pd, cq: &Cq) -> Result<End> {
    let options = QpOptions::rc(cq).max_inline_data(64);
    let qp = pd.create_qp(options).await?;
    qp.init(PathOptions::new()).await?;
    let pool = pd.register_buffers(1, 64).await?;
    Ok((qp, pool.take().ok_or("no buffer")?))
}
