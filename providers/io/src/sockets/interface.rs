//! Finds the network interface that has an address.

use std::net::{Ipv6Addr, SocketAddr};
use std::{fs, io};

/// Returns the index of the network interface that has this IPv6 address: its scope, or the index that the kernel lists.
/// Returns 0, which means any interface, for IPv4.
pub(crate) fn interface_of(address: SocketAddr) -> io::Result<u32> {
    let SocketAddr::V6(v6) = address else {
        return Ok(0);
    };
    if v6.scope_id() != 0 {
        return Ok(v6.scope_id());
    }
    let list = fs::read_to_string("/proc/net/if_inet6")?;
    find(&list, *v6.ip()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

// A line begins with the address and the interface's index, both in hexadecimal digits.
fn find(list: &str, ip: Ipv6Addr) -> Option<u32> {
    list.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let found = u128::from_str_radix(fields.next()?, 16).ok()?;
        let index = u32::from_str_radix(fields.next()?, 16).ok()?;
        (Ipv6Addr::from(found) == ip).then_some(index)
    })
}

/// Returns an IPv6 address of this machine other than that of loopback; `None` if it has none.
#[cfg(test)]
pub(crate) fn outside() -> Option<SocketAddr> {
    let list = fs::read_to_string("/proc/net/if_inet6").ok()?;
    list.lines().find_map(|line| {
        let digits = line.split_ascii_whitespace().next()?;
        let ip = Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?);
        let index = find(&list, ip)?;
        let address = std::net::SocketAddrV6::new(ip, 0, 0, index);
        (!ip.is_loopback()).then_some(address.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_the_list() {
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fd000000000000000000000000000002 1f 40 00 82     eth0\n\
                    nonsense\n";
        assert_eq!(find(list, Ipv6Addr::LOCALHOST), Some(1));
        assert_eq!(find(list, "fd00::2".parse().unwrap()), Some(31));
        assert_eq!(find(list, "fd00::3".parse().unwrap()), None);
        assert_eq!(find("", Ipv6Addr::LOCALHOST), None);
    }
}
