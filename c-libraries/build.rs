//! Sets how the library is linked: with symbol versions and its name, all symbols bound when it is loaded, and never
//! unloaded, because its threads run in it.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=nodes.map");
    for argument in [
        &format!("--version-script={folder}/nodes.map"),
        "-soname,libibverbs.so.1",
        "-z,now",
        "-z,nodelete",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
