//! The C library: it is found and loaded when devices are asked for, and never linked.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{io, ptr};

use polyverbs_abi::{
    IbvAh, IbvAhAttr, IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr,
    IbvGid, IbvGidEntry, IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvSrq,
    IbvSrqAttr, IbvSrqInitAttr,
};
use verbs_api::VerbError;

/// A file that the dynamic linker has loaded. It is never unloaded.
#[derive(Clone, Debug)]
pub(crate) struct File {
    name: OsString,
    handle: *mut c_void,
    /// The namespace of the linker in which the file is, if not that of the program.
    namespace: Option<libc::Lmid_t>,
}

/// The place of `errno` in the C library of another namespace: null until a library was loaded into one.
static ERRNO_APART: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns the error number that the library has set last for this thread.
pub(crate) fn errno() -> Option<c_int> {
    let apart = ERRNO_APART.load(Ordering::Acquire);
    if apart.is_null() {
        return io::Error::last_os_error().raw_os_error();
    }
    // SAFETY: the function `__errno_location` of a C library, which is never unloaded.
    let location =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_int>(apart) };
    // SAFETY: the place is the calling thread's own.
    Some(unsafe { *location() })
}

// SAFETY: the linker accepts its handles on every thread.
unsafe impl Send for File {}
// SAFETY: the linker accepts its handles on every thread.
unsafe impl Sync for File {}

impl File {
    /// Loads a file by its path, or by a name that the linker searches for.
    ///
    /// # Errors
    /// The message of the linker.
    pub(crate) fn load(name: &OsStr) -> Result<Self, VerbError> {
        Self::load_into(None, name)
    }

    /// Loads a file into a namespace of its own, with its own copy of everything that it depends on. The program has another
    /// library of the same name, which the file and its drivers would find otherwise.
    ///
    /// # Errors
    /// The message of the linker.
    pub(crate) fn load_apart(name: &OsStr) -> Result<Self, VerbError> {
        let mut file = Self::load_into(Some(libc::LM_ID_NEWLM), name)?;
        let mut namespace: libc::Lmid_t = 0;
        // SAFETY: the handle is open, and there is room for the number of a namespace.
        let told = unsafe {
            let place = (&raw mut namespace).cast();
            libc::dlinfo(file.handle, libc::RTLD_DI_LMID, place)
        };
        if told != 0 {
            return Err(missing());
        }
        file.namespace = Some(namespace);
        // Each namespace has a C library, with an `errno` of its own.
        let location = file.symbol("__errno_location\0")?;
        ERRNO_APART.store(location, Ordering::Release);
        Ok(file)
    }

    /// Loads a file into the namespace in which this one is.
    ///
    /// # Errors
    /// The message of the linker.
    pub(crate) fn load_beside(&self, name: &OsStr) -> Result<Self, VerbError> {
        Self::load_into(self.namespace, name)
    }

    fn load_into(namespace: Option<libc::Lmid_t>, name: &OsStr) -> Result<Self, VerbError> {
        let unusable = |_| VerbError::UnsupportedHere("a file name with a zero in it".into());
        let path = CString::new(name.as_bytes()).map_err(unusable)?;
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the user who names the file answers for it; the initialisers of rdma-core's libraries demand nothing of the
        // process.
        let handle = unsafe {
            match namespace {
                None => libc::dlopen(path.as_ptr(), flags),
                Some(namespace) => libc::dlmopen(namespace, path.as_ptr(), flags),
            }
        };
        if handle.is_null() {
            return Err(missing());
        }
        Ok(Self {
            name: name.to_owned(),
            handle,
            namespace,
        })
    }

    /// Returns the name by which the file was loaded.
    pub(crate) fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Returns the address of a symbol of the file; `name` must end with a zero byte.
    ///
    /// # Errors
    /// The message of the linker, and the release that introduced the symbol.
    pub(crate) fn symbol(&self, name: &'static str) -> Result<*mut c_void, VerbError> {
        // SAFETY: the file is open, and the name ends with a zero byte.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr().cast::<c_char>()) };
        if found.is_null() {
            let said = missing();
            let why = format!("{said}; the library is older than rdma-core 32, or another one");
            return Err(VerbError::UnsupportedHere(why));
        }
        Ok(found)
    }
}

macro_rules! symbols {
    (
        $(#[$doc:meta])*
        $table:ident $(in $file:ident)? { $($name:ident($($argument:ty),*) $(-> $answer:ty)?;)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $table {
            $(pub(crate) $file: $crate::library::File,)?
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl $table {
            /// Finds the functions of this table in a file.
            ///
            /// # Errors
            /// The file lacks a function.
            pub(crate) fn of(file: &$crate::library::File) -> Result<Self, verbs_api::VerbError> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the file stays loaded. The symbol of this name is a function with these arguments: they are
                        // part of the library's interface, which its version 1 keeps.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(file.symbol(name)?) }
                    },)*
                    $($file: file.clone(),)?
                })
            }
        }
    };
}

pub(crate) use symbols;

symbols! {
    /// The functions of libibverbs. The inline functions of `<infiniband/verbs.h>`, such as `ibv_post_send`, are not in it:
    /// they are calls through the table of a context.
    Library in file {
        ibv_get_device_list(*mut c_int) -> *mut *mut IbvDevice;
        ibv_free_device_list(*mut *mut IbvDevice);
        ibv_open_device(*mut IbvDevice) -> *mut IbvContext;
        ibv_close_device(*mut IbvContext) -> c_int;
        ibv_query_device(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
        ibv_query_port(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
        _ibv_query_gid_ex(*mut IbvContext, u32, u32, *mut IbvGidEntry, u32, usize) -> c_int;
        _ibv_query_gid_table(*mut IbvContext, *mut IbvGidEntry, usize, u32, usize) -> isize;
        ibv_query_pkey(*mut IbvContext, u8, c_int, *mut u16) -> c_int;
        ibv_get_async_event(*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
        ibv_ack_async_event(*mut IbvAsyncEvent);
        ibv_alloc_pd(*mut IbvContext) -> *mut IbvPd;
        ibv_dealloc_pd(*mut IbvPd) -> c_int;
        ibv_reg_mr_iova2(*mut IbvPd, *mut c_void, usize, u64, c_uint) -> *mut IbvMr;
        ibv_rereg_mr(*mut IbvMr, c_int, *mut IbvPd, *mut c_void, usize, c_int) -> c_int;
        ibv_dereg_mr(*mut IbvMr) -> c_int;
        ibv_create_comp_channel(*mut IbvContext) -> *mut IbvCompChannel;
        ibv_destroy_comp_channel(*mut IbvCompChannel) -> c_int;
        ibv_create_cq(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
        ibv_resize_cq(*mut IbvCq, c_int) -> c_int;
        ibv_destroy_cq(*mut IbvCq) -> c_int;
        ibv_get_cq_event(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut IbvCq, c_uint);
        ibv_create_srq(*mut IbvPd, *mut IbvSrqInitAttr) -> *mut IbvSrq;
        ibv_modify_srq(*mut IbvSrq, *mut IbvSrqAttr, c_int) -> c_int;
        ibv_query_srq(*mut IbvSrq, *mut IbvSrqAttr) -> c_int;
        ibv_destroy_srq(*mut IbvSrq) -> c_int;
        ibv_create_qp(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
        ibv_modify_qp(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        ibv_query_qp(*mut IbvQp, *mut IbvQpAttr, c_int, *mut IbvQpInitAttr) -> c_int;
        ibv_destroy_qp(*mut IbvQp) -> c_int;
        ibv_create_ah(*mut IbvPd, *mut IbvAhAttr) -> *mut IbvAh;
        ibv_destroy_ah(*mut IbvAh) -> c_int;
        ibv_attach_mcast(*mut IbvQp, *const IbvGid, u16) -> c_int;
        ibv_detach_mcast(*mut IbvQp, *const IbvGid, u16) -> c_int;
    }
}

/// Whether the program has more rights than the user who runs it and sets its environment.
pub(crate) fn has_more_rights_than_its_user() -> bool {
    // SAFETY: the call reads a number that the kernel has stored for the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the error that the dynamic linker reported last.
fn missing() -> VerbError {
    // SAFETY: the message belongs to this thread until the thread's next call of the linker.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return VerbError::UnsupportedHere("the dynamic linker gives no reason".into());
    }
    // SAFETY: the message is still valid, and ends with a zero byte.
    let message = unsafe { CStr::from_ptr(message) };
    VerbError::UnsupportedHere(message.to_string_lossy().into_owned())
}
