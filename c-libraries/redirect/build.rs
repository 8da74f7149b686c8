//! Sets how the library is linked: all symbols are bound when it is loaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
