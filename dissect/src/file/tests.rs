use super::*;

fn interface(resolution: u8, offset: i64) -> Interface {
    Interface {
        resolution,
        offset,
        ..UNDESCRIBED
    }
}

#[test]
fn times_are_in_the_units_of_their_interface() {
    let time = |resolution| interface(resolution, 0).time(1_500_000);
    assert_eq!(time(6), Duration::from_millis(1500));
    assert_eq!(time(9), Duration::from_micros(1500));
    assert_eq!(time(0x80), Duration::from_secs(1_500_000));
    assert_eq!(time(0x80 | 20), Duration::from_nanos(1_430_511_474));
    assert_eq!(time(127), Duration::ZERO);
}

#[test]
fn an_offset_is_added_to_each_time() {
    let time = |offset| interface(6, offset).time(1_500_000);
    assert_eq!(
        time(1_000_000_000),
        Duration::from_millis(1_000_000_001_500)
    );
    assert_eq!(time(-1), Duration::from_millis(500));
    assert_eq!(time(-2).as_secs(), 0);
    assert_eq!(time(i64::MIN).as_secs(), 0);
}

#[test]
fn a_file_that_is_no_capture_is_an_error() {
    let open = |octets: &'static [u8]| {
        CaptureFile::new(octets)
            .err()
            .map(|error| error.to_string())
    };
    let neither = Some("it is neither a pcap nor a pcapng file".to_owned());
    assert_eq!(open(b""), neither);
    assert_eq!(open(b"abc"), neither);
    assert_eq!(open(b"# a text"), neither);
    let packed = open(b"\x1f\x8b\x08\0").unwrap();
    assert_eq!(
        packed,
        "it is compressed by gzip: decompress it by gunzip first"
    );
    let foreign = open(b"snoop\0\0\0\0\0\0\x02").unwrap();
    assert!(foreign.contains("editcap -F pcapng"), "{foreign}");
    let cut = open(&[0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4]);
    assert!(cut.is_some_and(|said| said.contains("ends within")));
}
