//! Hosts, addresses and devices for the commands that reach other processes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use polyverbs::Device;
use polyverbs::connection::{devices_at, source_of};
use polyverbs::emulated::{self, EmulatedOptions, FaultSpec};

use super::ping;
use crate::capture_file::{self, Capture};
use crate::transfer::peers::Peers;

/// A host, by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("it is HOST:PORT, as 127.0.0.1:{PORT}, [::1]:{PORT} or localhost:{PORT}");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = unbracketed(host).ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// A host, by name or address, and optionally a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(Endpoint { host, port }) = text.parse() {
            let port = Some(port);
            return Ok(Self { host, port });
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        let host = bare.unwrap_or(text);
        let without_scope = host.split('%').next().unwrap_or(host);
        let is_address = without_scope.parse::<IpAddr>().is_ok();
        if host.is_empty() || (host.contains(':') && !is_address) {
            return Err("it is HOST or HOST:PORT, as localhost or 127.0.0.1:4420".into());
        }
        let (host, port) = (host.to_owned(), None);
        Ok(Self { host, port })
    }
}

impl From<Endpoint> for Host {
    fn from(Endpoint { host, port }: Endpoint) -> Self {
        let port = Some(port);
        Self { host, port }
    }
}

// An IPv6 address, which contains colons, needs brackets.
fn unbracketed(host: &str) -> Option<&str> {
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some(host)
}

/// Returns the first address of a host that answers. If `from` is given, only addresses of its family are tried. The last
/// one is not tried, but returned if no other answers.
pub(crate) fn first_that_answers(
    (host, port): (&str, u16),
    from: Option<IpAddr>,
    answers: impl Fn(SocketAddr) -> bool,
) -> anyhow::Result<SocketAddr> {
    let mut addresses = addresses_of(host, port)?;
    addresses.retain(|to| from.is_none_or(|from| from.is_ipv4() == to.is_ipv4()));
    first_of(addresses, answers)
        .ok_or_else(|| anyhow::anyhow!("{host} has no address of that kind"))
}

fn first_of(
    mut addresses: Vec<SocketAddr>,
    answers: impl Fn(SocketAddr) -> bool,
) -> Option<SocketAddr> {
    let last = addresses.pop()?;
    Some(
        addresses
            .into_iter()
            .find(|&to| answers(to))
            .unwrap_or(last),
    )
}

/// Returns the addresses of a host, in the system's order of preference.
pub(crate) fn addresses_of(host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    anyhow::ensure!(
        !host.contains('%'),
        "{host} has a scope, which RDMA devices do not support: give an address of the host that is not link-local"
    );
    let found = match (host, port).to_socket_addrs() {
        Ok(found) => found.collect::<Vec<_>>(),
        // For systems without a hosts file; the meaning of this name is fixed (RFC 6761, 6.3).
        Err(_) if host.eq_ignore_ascii_case("localhost") => vec![
            (Ipv4Addr::LOCALHOST, port).into(),
            (Ipv6Addr::LOCALHOST, port).into(),
        ],
        Err(error) => anyhow::bail!("no address of {host} is known: {error}"),
    };
    let mut addresses = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    anyhow::ensure!(!addresses.is_empty(), "{host} has no address");
    Ok(addresses)
}

impl Endpoint {
    /// Returns the first address of this endpoint, to listen at.
    pub(crate) fn own(&self) -> anyhow::Result<SocketAddr> {
        Ok(addresses_of(&self.host, self.port)?[0])
    }
}

/// A port for the examples in help: that of NVMe over fabrics.
const PORT: u16 = 4420;

/// The device, and the faults of its link
#[derive(clap::Args, Clone)]
pub(crate) struct DeviceOptions {
    /// Name of the device
    #[arg(long, value_name = "NAME")]
    pub(crate) device: String,
    /// Faults of the link, for frames that the device sends: see `polyverbs copy --help`
    #[arg(long, value_name = "FAULTS")]
    pub(crate) fault: Option<FaultSpec>,
}

impl DeviceOptions {
    /// Returns the device at an address of this machine: an emulated device, which is made there if there is none; or a
    /// device that is not emulated, whose addresses the caller knows.
    pub(crate) fn at(&self, address: IpAddr) -> anyhow::Result<Device> {
        if emulated::kind(&self.device).is_none() {
            let device = crate::output::device(&self.device)?;
            anyhow::ensure!(
                self.fault.is_none() && capture_file::current().is_none(),
                "{} is no emulated device: it has neither faults nor captures",
                self.device
            );
            return Ok(device);
        }
        // A registered device is used as it is, unless its link should have faults.
        if self.fault.is_none() && capture_file::current().is_none() {
            let registry = polyverbs::registry()?;
            let there = devices_at(&registry, address);
            if let Some(device) = there.into_iter().find(|it| it.name() == self.device) {
                return Ok(device);
            }
        }
        let options = EmulatedOptions {
            faults: self.fault.unwrap_or_default(),
            tap: capture_file::current().map(Capture::tap),
            ..EmulatedOptions::default()
        };
        let device = emulated::device_at(&self.device, address, &options)?;
        if let Some(capture) = capture_file::current() {
            capture.begin()?;
        }
        Ok(device)
    }

    /// Returns the device from which `to` is reached; if `from` is given, the device at that address.
    pub(crate) fn reaching(&self, to: SocketAddr, from: Option<IpAddr>) -> anyhow::Result<Device> {
        match from {
            Some(from) => self.at(from),
            None => self.at(way_to(to)?),
        }
    }

    /// Returns the first address of an endpoint at which a device answers, and the device from which it is reached. If the
    /// endpoint has only one address, it is returned without a trial.
    pub(crate) fn choose(
        &self,
        to: &Endpoint,
        from: Option<IpAddr>,
    ) -> anyhow::Result<(Device, SocketAddr)> {
        let to = first_that_answers((&to.host, to.port), from, |address| {
            // A local device, created there, would answer for others.
            let is_own = way_to(address).is_ok_and(|way| way == address.ip());
            (!is_own || ping::is_held(address.ip()))
                && self
                    .reaching(address, from)
                    .is_ok_and(|device| ping::answers(&device, address))
        })?;
        Ok((self.reaching(to, from)?, to))
    }
}

/// Which peers a listening command serves
#[derive(clap::Args)]
pub(crate) struct Limits {
    /// Peers that are served at one time; further ones, and more than half of them from one address, are refused
    #[arg(long, value_name = "N", requires = "listen", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_connections: u16,
    /// Seconds after which an idle peer is dropped
    #[arg(long, value_name = "SECONDS", requires = "listen", default_value = "30", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,
}

impl Limits {
    pub(crate) fn peers(&self) -> Peers {
        Peers::new(self.max_connections.into(), self.timeout)
    }
}

/// Parses a number of seconds, such as `1` or `0.2`.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .map_err(|_| "a number of seconds is like 1 or 0.2")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "no such time".to_owned())
}

/// Returns the local address from which `to` is reached.
pub(crate) fn way_to(to: SocketAddr) -> anyhow::Result<IpAddr> {
    source_of(to).map_err(|error| anyhow::anyhow!("no way to {to}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_next_address_is_tried_where_one_does_not_answer() {
        let addresses = [1, 2, 3].map(|last| SocketAddr::from(([192, 0, 2, last], 7)));
        for there in addresses {
            let asked = Cell::new(0);
            let found = first_of(addresses.to_vec(), |to| {
                asked.set(asked.get() + 1);
                to == there
            });
            assert_eq!(found, Some(there));
            assert!(asked.get() < addresses.len(), "the last is not asked");
        }
        assert_eq!(first_of(Vec::new(), |_| true), None);
    }

    #[test]
    fn hosts_are_names_or_addresses_with_or_without_a_port() {
        let endpoint = |text: &str| text.parse::<Endpoint>().map(|it| (it.host, it.port));
        for (text, host) in [
            ("127.0.0.1:1", "127.0.0.1"),
            ("[::1]:1", "::1"),
            ("localhost:1", "localhost"),
        ] {
            assert_eq!(endpoint(text), Ok((host.to_owned(), 1)));
        }
        for text in [
            "",
            ":1",
            "localhost",
            "::1",
            "[::1]",
            "[::1:1",
            "a:b:1",
            "a:65536",
            "a:",
            "[]:1",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
        let host = |text: &str| text.parse::<Host>().map(|it| (it.host, it.port));
        for (text, name, port) in [
            ("127.0.0.1", "127.0.0.1", None),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:7", "::1", Some(7)),
            ("localhost:7", "localhost", Some(7)),
        ] {
            assert_eq!(host(text), Ok((name.to_owned(), port)));
        }
        assert!(host("").is_err() && host("a:b").is_err());
    }
}
