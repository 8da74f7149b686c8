//! Requests for measurements, and the pauses of a side that hears nothing.

use super::*;

#[test]
fn a_request_names_measurement_and_size_and_others_are_refused() {
    let request = |number, size: u32| [&MAGIC[..], &[number], &size.to_be_bytes()].concat();
    for test in Test::ALL {
        let asked = asked(&request(test.number(), 64));
        assert_eq!(asked, Some((test, 64)));
    }
    let none: [&[u8]; 4] = [b"", b"polyprf2", b"polyprf2\0\0\0", b"otherper\0\0\0\0\x40"];
    assert!(none.iter().all(|request| asked(request).is_none()));
    assert_eq!(asked(&request(0, 0)), None);
    assert_eq!(asked(&request(0, u32::MAX)), None);
    assert_eq!(asked(&request(200, 64)), None);
    assert_eq!(remote_of(&MAGIC[..]), None);
}

#[test]
fn a_silent_side_looks_fifty_times_a_second_at_most() {
    let after = |silent| Rest::after(YIELD_EVERY, silent, BUSY);
    assert_eq!(after(Duration::ZERO), Rest::None);
    assert_eq!(after(ALONE), Rest::None);
    assert_eq!(after(BUSY), Rest::Yield);
    assert_eq!(Rest::after(YIELD_EVERY + 1, BUSY, BUSY), Rest::None);
    assert_eq!(after(BUSY * 2), Rest::Sleep(BUSY / 8));
    assert_eq!(after(LOOK), Rest::Sleep(LONGEST_PAUSE));
    assert_eq!(after(SILENCE), Rest::Sleep(Duration::from_millis(20)));
}
