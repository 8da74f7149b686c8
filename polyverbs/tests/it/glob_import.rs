//! A program that imports the whole root can still use the names of the standard prelude.

use std::io::prelude::*;

use polyverbs::*;

fn copied<R: Read + Send>(
    mut from: R,
    into: &mut (impl Write + Send + Sync),
) -> Result<(), String> {
    let mut bytes: Vec<u8> = Vec::new();
    from.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    into.write_all(&bytes).map_err(|e| e.to_string())
}

#[test]
fn a_glob_import_hides_no_name_of_the_prelude() {
    let mut into: Vec<u8> = Vec::new();
    let twice: Box<dyn Fn(u8) -> Option<u8> + Send> = Box::new(|byte| byte.checked_mul(2));
    assert_eq!(copied(&b"abc"[..], &mut into), Ok(()));
    assert_eq!(twice(into[0]), Some(194));
    drop(twice);
    let device: Context = open(Requirements::new()).expect("a device of software");
    assert!(device.limits().max_qp > 0);
}
