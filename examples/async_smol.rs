//! A hundred connections of one process, each with a smol task: one device, one completion queue, one thread.
//!
//! Each task writes into memory of its peer, reads it back, and gives up after a second. Another task watches the
//! events of the device.
#![forbid(unsafe_code)]

use std::time::Duration;

use polyverbs::portable::read_sink_access;
use polyverbs::{Access, Context, Cq, Memory, Pd, QpOptions, Requirements, connect_pair, open, wr};
use smol::future::FutureExt as _;
use smol::stream::StreamExt as _;
use smol::{LocalExecutor, Timer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const CONNECTIONS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn main() -> Result<()> {
    let context = open(Requirements::new())?;
    let executor = LocalExecutor::new();
    smol::block_on(executor.run(write_all(&context, &executor)))
}

async fn write_all(context: &Context, executor: &LocalExecutor<'_>) -> Result<()> {
    let pd = context.alloc_pd().await?;
    let cq = context.create_cq(2 * CONNECTIONS as u32).await?;
    let watched = context.clone();
    let watch = executor.spawn(async move {
        let mut events = watched.events();
        while let Some(event) = events.next().await {
            println!("{event:?}");
        }
    });
    let connections = (0..CONNECTIONS).map(|number| {
        let (context, pd, cq) = (context.clone(), pd.clone(), cq.clone());
        executor.spawn(async move {
            let written = write(&context, &pd, &cq, number);
            written.or(give_up(number)).await
        })
    });
    for connection in connections.collect::<Vec<_>>() {
        connection.await?;
    }
    watch.cancel().await;
    println!("{CONNECTIONS} peers were written to");
    Ok(())
}

async fn write(context: &Context, pd: &Pd, cq: &Cq, number: usize) -> Result<()> {
    let (near, far) = (
        pd.create_qp(QpOptions::rc(cq).max_inline_data(64)).await?,
        pd.create_qp(QpOptions::rc(cq)).await?,
    );
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    connect_pair(&near, &far, rights).await?;
    let memory = Memory::zeroed(64)?;
    let sink_rights = read_sink_access(context).access;
    let region = pd.register(&memory, Access::LOCAL_WRITE | rights | sink_rights);
    let region = region.await?;
    let text = format!("written by connection {number:4}");
    let length = text.len() as u32;
    near.submit(wr::Write::new(text.as_bytes(), region.remote(32)))
        .await?;
    near.submit(wr::Read::new(region.sge(0, length)?, region.remote(32)))
        .await?;
    assert_eq!(memory.to_vec(0, text.len())?, text.as_bytes());
    Ok(())
}

async fn give_up(number: usize) -> Result<()> {
    Timer::after(PATIENCE).await;
    Err(format!("connection {number} took longer than {PATIENCE:?}").into())
}
