//! Finds out which program holds a port that cannot be joined, as far as the system reports it.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::process::geteuid;

use super::{GroupOptions, local};

/// The program that holds a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A program of this other user.
    User(u32),
    /// A program of the user of this process, or of an unknown user.
    Somebody,
}

impl Holder {
    pub(super) fn of(options: &GroupOptions) -> Self {
        let address = options.address;
        let table = match address {
            SocketAddr::V4(_) => "/proc/net/udp",
            SocketAddr::V6(_) => "/proc/net/udp6",
        };
        let text = fs::read_to_string(table).unwrap_or_default();
        let making = local::holder(&options.making()).map(|holder| holder.uid);
        let users = [making, user_at(&text, address)];
        let other = users
            .into_iter()
            .flatten()
            .find(|user| *user != geteuid().as_raw());
        other.map_or(Self::Somebody, Self::User)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(
                f,
                "user {user}: an address is one user's at a time, and others take another (127.0.0.2, where nobody else is to \
                 be reached)"
            ),
            Self::Somebody => {
                f.write_str("something that does not share it: `ss -uap` and `ss -xap` tell what")
            }
        }
    }
}

// Finds the user of the socket at an address, in a table of the system: `sl local remote state queues timer retransmit uid
// …`.
fn user_at(table: &str, address: SocketAddr) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (ip, port) = fields.next()?.split_once(':')?;
        let at = SocketAddr::new(ip_of(ip)?, u16::from_str_radix(port, 16).ok()?);
        let is_there = at == address || at.ip().is_unspecified() && at.port() == address.port();
        is_there.then(|| fields.nth(5)?.parse().ok()).flatten()
    })
}

// Parses words of 32 bits, each in the machine's byte order.
fn ip_of(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(digits.get(at..at + 8)?, 16).ok();
    if digits.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into());
    }
    let mut bytes = [0; 16];
    for (place, four) in bytes.chunks_exact_mut(4).enumerate() {
        four.copy_from_slice(&word(8 * place)?.to_ne_bytes());
    }
    Some(Ipv6Addr::from(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_user_of_a_socket_is_in_the_tables_of_the_system() {
        let v4 = "  97: 0200007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 7 2 0 0\n";
        let any = "  98: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 8 2 0 0\n";
        let v6 = " 99: 000000FD000000000000000002000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 9 2 0 0\n";
        let table = [HEAD, v4, any, v6, "short\n", "1: xx:yy z\n"].concat();
        let user = |address: &str| user_at(&table, address.parse().unwrap());
        assert_eq!(user("127.0.0.2:4791"), Some(1000));
        assert_eq!(user("127.0.0.3:4791"), None);
        assert_eq!(user("127.0.0.3:4792"), Some(0));
        assert_eq!(user("[fd00::2]:4791"), Some(1001));
        assert_eq!(user_at("", "127.0.0.2:4791".parse().unwrap()), None);
    }

    #[test]
    fn a_holder_is_named_with_the_remedy() {
        let told = Holder::User(1000).to_string();
        assert!(
            told.starts_with("user 1000: an address is one user's at a time"),
            "{told}"
        );
    }
}
