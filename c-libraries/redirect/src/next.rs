//! Calls of the C library's own functions, which are looked up by name.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's function of this name, which the function of this library interposes. It is looked up when first needed.
pub(crate) struct Next {
    name: &'static CStr,
    /// The version by which `libibverbs.so.1` interposes the function too, where it does. That version is no default one, so
    /// that a look-up without it would pass that library over.
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self::with_version(name, None)
    }

    /// Prefers the function of this version to the default one.
    pub(crate) const fn with_version(name: &'static CStr, version: Option<&'static CStr>) -> Self {
        Self {
            name,
            version,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let mut found = self
            .version
            .map_or(ptr::null_mut(), |of| self.versioned(of));
        if found.is_null() {
            // SAFETY: the name is a text.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        }
        if found.is_null() {
            // Only old programs have it, or only libraries that are loaded here.
            found = self.versioned(FIRST_VERSION);
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }

    fn versioned(&self, version: &CStr) -> *mut c_void {
        // SAFETY: both are texts.
        unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) }
    }
}

/// The first version of the C library on this processor, which most of its functions have.
pub(crate) const FIRST_VERSION: &CStr = match cfg!(target_arch = "aarch64") {
    true => c"GLIBC_2.17",
    false => c"GLIBC_2.2.5",
};

/// The C string of a literal that ends with a zero byte.
pub(crate) const fn text(with_zero: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_zero.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("one zero, at the end"),
    }
}

/// The result of calling a function that the C library does not have; `errno` is then ENOSYS.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for () {
    const FAILED: Self = ();
}

impl Failed for isize {
    const FAILED: Self = -1;
}

/// The result of `signal`, a signal handler as a number.
impl Failed for usize {
    const FAILED: Self = libc::SIG_ERR;
}

impl<T> Failed for *mut T {
    const FAILED: Self = ptr::null_mut();
}

// Calls the function at this address with these arguments. A null address is a function that does not exist: the call fails
// with ENOSYS. The caller has looked up the address by the name of a function with these arguments.
macro_rules! call {
    ($address:expr => fn($($argument:ident: $type:ty),* $(,)?) -> $answer:ty) => {{
        let address = $address;
        if address.is_null() {
            *libc::__errno_location() = libc::ENOSYS;
            <$answer as $crate::next::Failed>::FAILED
        } else {
            let function: unsafe extern "C" fn($($type),*) -> $answer = std::mem::transmute(address);
            function($($argument),*)
        }
    }};
}
pub(crate) use call;
