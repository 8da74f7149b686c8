//! `polyverbs ping`: whether somebody manages connections at an address.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::connection::{ConnectError, ConnectionOptions, Connector};
use polyverbs::{QpOptions, Requirements};
use serde_json::json;

use super::network::DeviceOptions;
use crate::output::{nanoseconds, say};

/// Find out whether an RDMA device answers at an address, and how soon
///
/// It asks for a connection to a service that nobody has, and waits for the refusal: any device with a connection manager
/// gives one, and no program there is disturbed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs ping 127.0.0.1 --device ib0
  polyverbs ping 192.0.2.7 --device ib0 --count 10 --interval 0.2 --json")]
pub(crate) struct Arguments {
    /// The address
    address: IpAddr,
    #[command(flatten)]
    device: DeviceOptions,
    /// The own address, if not that of the way there
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 4)]
    count: u64,
    /// Seconds in between
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// Print a JSON object in each line
    #[arg(long)]
    json: bool,
}

/// The port that is asked for: the one that discards (RFC 863).
const PORT: u16 = 9;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let to = SocketAddr::new(arguments.address, PORT);
    let interval = Duration::try_from_secs_f64(arguments.interval)
        .map_err(|error| anyhow::anyhow!("--interval: {error}"))?;
    let device = arguments.device.reaching(to, arguments.from)?;
    let context = device.open(&Requirements::new())?;
    let connector = Connector::of(&context)?;
    let pd = context.alloc_pd().wait()?;
    let cq = context.create_cq(1).wait()?;
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait()?;
    for number in 1..=arguments.count {
        if number > 1 {
            thread::sleep(interval);
        }
        let began = Instant::now();
        let asked = connector.connect(&context, &qp, to, ConnectionOptions::new());
        match asked.wait() {
            // Dropped, the connection is given up: whoever listens there hears no more of it.
            Ok(_) | Err(ConnectError::Refused { .. }) => {}
            Err(error) => anyhow::bail!("{}: {error}", arguments.address),
        }
        let time = began.elapsed();
        if arguments.json {
            let seconds = time.as_secs_f64();
            say!(
                "{}",
                json!({ "address": arguments.address, "number": number, "seconds": seconds })
            )?;
        } else {
            let time = nanoseconds(time.as_secs_f64() * 1e9);
            say!("{} answers in {time}", arguments.address)?;
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
