use polyverbs_wire::rds::{
    CONGESTION_MAP_BYTES, CongestionMap, ConnectData, Extension, Extensions, HEADER, Header,
    Version,
};

/// Decodes what RDS sends. The first byte says what follows: a header, private data of IPv4 or IPv6, or congestion maps.
pub fn run(octets: &[u8]) {
    match octets {
        [0, octets @ ..] => header(octets),
        [kind @ 1..=2, octets @ ..] => private_data(octets, *kind == 2),
        [3, octets @ ..] => congestion_maps(octets),
        _ => {}
    }
}

fn header(octets: &[u8]) {
    let Ok(header) = Header::parse(octets) else {
        return;
    };
    let again = header.to_bytes();
    assert_eq!(Header::parse(&again), Ok(header));
    let (padding, checksum) = (&octets[26..30], &octets[30..32]);
    if padding == [0; 4] && checksum != [0; 2] && checksum != [0xff; 2] {
        assert_eq!(again, octets[..HEADER]);
    }
    let mut known = 0;
    for extension in header.extensions.iter() {
        let alone = Extensions::of(extension);
        let mut listed = alone.iter();
        assert_eq!((listed.next(), listed.next()), (Some(extension), None));
        if let Some(cookie) = extension.cookie() {
            assert_eq!(Extension::from_cookie(cookie), extension);
        }
        let length = alone.bytes().len() - alone.rest().len();
        let here = &header.extensions.bytes()[known..];
        assert_eq!(here[..length], alone.bytes()[..length]);
        known += length;
    }
    assert_eq!(
        header.extensions.bytes()[known..],
        *header.extensions.rest()
    );
}

fn private_data(octets: &[u8], is_v6: bool) {
    let length = if is_v6 { 56 } else { 32 };
    let Some(data) = ConnectData::parse(octets, is_v6) else {
        assert!(octets.len() < length);
        return;
    };
    let mut again = data.to_bytes();
    assert_eq!(ConnectData::parse(&again, is_v6), Some(data));
    // Reserved fields are not kept.
    let reserved = [length - 19..length - 18, length - 4..length];
    for range in reserved {
        again[range.clone()].copy_from_slice(&octets[range]);
    }
    assert_eq!(again, octets[..length]);
    if let Some(version) = data.agreed() {
        assert!([Version::V3_1, Version::V4_0, Version::V4_1].contains(&version));
    }
}

// Decodes one map after the other, each a list of two-byte ports that ends with port 0.
fn congestion_maps(octets: &[u8]) {
    let mut current = CongestionMap::new();
    let mut next = CongestionMap::new();
    for port in octets.as_chunks().0 {
        match u16::from_be_bytes(*port) {
            0 => {
                replace(&mut current, &next);
                next = CongestionMap::new();
            }
            port => next.set(port),
        }
    }
    replace(&mut current, &next);
}

fn replace(current: &mut CongestionMap, next: &CongestionMap) {
    let freed = current.ports().filter(|port| !next.is_set(*port));
    let freed = freed.fold(0, |mask, port| mask | 1 << (port % 64));
    assert_eq!(current.replace(next.bytes()), freed);
    assert_eq!(current, next);

    let mut cleared = current.clone();
    current.ports().for_each(|port| cleared.clear(port));
    assert_eq!(cleared.bytes(), &[0; CONGESTION_MAP_BYTES]);
}
