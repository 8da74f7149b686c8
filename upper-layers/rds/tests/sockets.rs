//! Sockets at two addresses of this machine: two hosts in one process.

use polyverbs_rds::{RdsError, RdsSocket};

fn pair(subnet: u8) -> [RdsSocket; 2] {
    [1, 2].map(|host| RdsSocket::bind(format!("127.0.{subnet}.{host}:0").parse().unwrap()).unwrap())
}

// covers 8.20
#[test]
fn a_message_arrives_whole_with_its_sender() -> Result<(), RdsError> {
    let [near, far] = pair(30);
    let to = far.local_addr().unwrap();
    for length in [0, 1, 4095, 4096, 4097, 8193, 65536] {
        let sent: Vec<u8> = (0..length).map(|at: u32| (at % 251) as u8).collect();
        assert_eq!(near.send_to(&sent, to)?, sent.len());
        let mut room = vec![0; sent.len() + 1];
        let received = far.recv_from(&mut room)?;
        assert_eq!(received.from, near.local_addr());
        assert_eq!(received.length, sent.len());
        assert_eq!(room[..received.length], sent[..]);
    }
    Ok(())
}
