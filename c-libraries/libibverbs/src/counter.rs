//! Completion counters, for C programs.
#![allow(unsafe_code)]

use std::ffi::c_int;

use verbs_api::Features;
use verbs_api::completion::{CompletionCounter, CountedOperations, CountedUnit};

use crate::abi::{
    IbvCompCntr, IbvCompCntrCaps, IbvCompCntrInitAttr, IbvContext, IbvQp, IbvQpAttachCompCntrAttr,
};
use crate::context;
use crate::errno::{Errno, code, pointer};
use crate::object::Object;
use crate::qp;

/// A counter: its public structure, and the safe object.
type CounterObject = Object<IbvCompCntr, CompletionCounter>;

/// Implements `_ibv_query_comp_cntr_caps`: fills only as much of the structure as the program's version of it has.
///
/// # Safety
/// `size` bytes from `caps` are writable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn query_caps(
    context: *mut IbvContext,
    caps: *mut IbvCompCntrCaps,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        if caps.is_null() || size < size_of::<IbvCompCntrCaps>() {
            return Err(Errno::INVAL);
        }
        if !state
            .context
            .features()
            .contains(Features::COMPLETION_COUNTERS)
        {
            return Err(Errno::OPNOTSUPP);
        }
        let full = IbvCompCntrCaps {
            max_value: u64::MAX,
            max_counters: state.context.limits().max_comp_cntr,
            supported_qp_attach_ops: CountedOperations::all().bits(),
        };
        // SAFETY: as the caller promises, and large enough, as was seen.
        unsafe {
            caps.cast::<u8>().write_bytes(0, size);
            caps.write(full);
        }
        Ok(())
    }))
}

/// Implements `ibv_create_comp_cntr`.
///
/// # Safety
/// `attr` is null or readable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn create(
    context: *mut IbvContext,
    attr: *const IbvCompCntrInitAttr,
) -> *mut IbvCompCntr {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let unit = match attr.cntr_type {
            0 => CountedUnit::Requests,
            1 => CountedUnit::Bytes,
            _ => return Err(Errno::INVAL),
        };
        if attr.flags != 0 {
            return Err(Errno::INVAL);
        }
        let counter = state.context.create_completion_counter(unit)?;
        let handle = state.shared.next_handle();
        Ok(CounterObject::create(
            IbvCompCntr { context, handle },
            counter,
        ))
    }))
}

/// Implements `ibv_destroy_comp_cntr`. Fails with `EBUSY` while the counter is attached to a queue pair.
///
/// # Safety
/// The program does not use the counter after this call.
pub unsafe extern "C-unwind" fn destroy(counter: *mut IbvCompCntr) -> c_int {
    let end = |own: &CompletionCounter| Ok(own.clone().destroy()?);
    // SAFETY: as the caller promises.
    code(unsafe { CounterObject::end(counter, end) })
}

// Calls `verb` with the counter at the program's pointer.
unsafe fn with(counter: *const IbvCompCntr, verb: impl FnOnce(&CompletionCounter)) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { CounterObject::own(counter) }.map(verb))
}

unsafe fn read(
    counter: *const IbvCompCntr,
    value: *mut u64,
    count: impl FnOnce(&CompletionCounter) -> u64,
) -> c_int {
    if value.is_null() {
        return Errno::INVAL.set();
    }
    // SAFETY: as the caller promises, also that the place is writable.
    unsafe { with(counter, |own| value.write(count(own))) }
}

/// Implements `ibv_set_comp_cntr`.
///
/// # Safety
/// The counter is not destroyed during the call.
pub unsafe extern "C-unwind" fn set(counter: *mut IbvCompCntr, value: u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(counter, |own| own.set_successes(value)) }
}

/// Implements `ibv_set_err_comp_cntr`.
///
/// # Safety
/// The counter is not destroyed during the call.
pub unsafe extern "C-unwind" fn set_errors(counter: *mut IbvCompCntr, value: u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(counter, |own| own.set_errors(value)) }
}

/// Implements `ibv_inc_comp_cntr`.
///
/// # Safety
/// The counter is not destroyed during the call.
pub unsafe extern "C-unwind" fn add(counter: *mut IbvCompCntr, amount: u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(counter, |own| own.add_successes(amount)) }
}

/// Implements `ibv_inc_err_comp_cntr`.
///
/// # Safety
/// The counter is not destroyed during the call.
pub unsafe extern "C-unwind" fn add_errors(counter: *mut IbvCompCntr, amount: u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(counter, |own| own.add_errors(amount)) }
}

/// Implements `ibv_read_comp_cntr`.
///
/// # Safety
/// `value` is null or writable, and the counter is not destroyed during the call.
pub unsafe extern "C-unwind" fn read_successes(
    counter: *mut IbvCompCntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { read(counter, value, CompletionCounter::successes) }
}

/// Implements `ibv_read_err_comp_cntr`.
///
/// # Safety
/// `value` is null or writable, and the counter is not destroyed during the call.
pub unsafe extern "C-unwind" fn read_errors(counter: *mut IbvCompCntr, value: *mut u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { read(counter, value, CompletionCounter::errors) }
}

/// Implements `ibv_qp_attach_comp_cntr`.
///
/// # Safety
/// `attr` is null or readable, and neither object is destroyed during the call.
pub unsafe extern "C-unwind" fn attach(
    qp: *mut IbvQp,
    counter: *mut IbvCompCntr,
    attr: *const IbvQpAttachCompCntrAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { qp::own(qp) }.and_then(|own| {
        // SAFETY: as the caller promises.
        let (counter, attr) = unsafe { (CounterObject::own(counter)?, attr.as_ref()) };
        let attr = attr.ok_or(Errno::INVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let operations = CountedOperations::from_bits(attr.op_mask).ok_or(Errno::OPNOTSUPP)?;
        Ok(own.qp.attach_completion_counter(counter, operations)?)
    }))
}
