//! Protection domains and the objects that are created in them: regions, windows, address handles, queues.

use std::ffi::c_int;
use std::ptr;

use polyverbs_abi::{
    IbvAh, IbvAhAttr, IbvCq, IbvMr, IbvMw, IbvPd, IbvQp, IbvQpInitAttr, IbvSrq, IbvSrqAttr,
    IbvSrqInitAttr,
};
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{MwType, RegionMemory};
use verbs_api::{Access, VerbError};

use super::{Live, cookie, last_error};

impl Live<IbvPd> {
    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        self.end("dealloc_pd", self.library.ibv_dealloc_pd)
    }

    /// Registers memory. The caller keeps the memory valid for as long as the region exists.
    pub(crate) fn reg_mr(
        &self,
        memory: &RegionMemory,
        iova: u64,
        access: Access,
    ) -> Result<Live<IbvMr>, VerbError> {
        let (address, length) = (
            ptr::with_exposed_provenance_mut(memory.address()),
            memory.len(),
        );
        let register = self.library.ibv_reg_mr_iova2;
        // SAFETY: `with` keeps the domain alive, and a provider may use the memory of a `RegionMemory` until it has answered the
        // deregistration.
        let made = self.with(|at| unsafe { register(at, address, length, iova, access.bits()) })?;
        Live::new(self.library, ObjectKind::Mr, "reg_mr", made)
    }

    pub(crate) fn create_srq(
        &self,
        id: ObjectId,
        attr: IbvSrqAttr,
    ) -> Result<(Live<IbvSrq>, IbvSrqAttr), VerbError> {
        let mut init = IbvSrqInitAttr {
            srq_context: cookie(id),
            attr,
        };
        // SAFETY: `with` keeps the domain alive, and the call writes the sizes back.
        let made = self.with(|at| unsafe { (self.library.ibv_create_srq)(at, &raw mut init) })?;
        Ok((
            Live::new(self.library, ObjectKind::Srq, "create_srq", made)?,
            init.attr,
        ))
    }

    /// Creates a queue pair on the given queues; its actual sizes are written to `init`.
    pub(crate) fn create_qp(
        &self,
        init: &mut IbvQpInitAttr,
        (send_cq, recv_cq): (&Live<IbvCq>, &Live<IbvCq>),
        srq: Option<&Live<IbvSrq>>,
    ) -> Result<Live<IbvQp>, VerbError> {
        init.send_cq = send_cq.with(|cq| cq)?;
        init.recv_cq = recv_cq.with(|cq| cq)?;
        init.srq = srq.map_or(Ok(ptr::null_mut()), |srq| srq.with(|srq| srq))?;
        // SAFETY: `with` keeps the domain alive, and the safe objects destroy no queue that a queue pair uses.
        let made = self.with(|at| unsafe { (self.library.ibv_create_qp)(at, init) })?;
        Live::new(self.library, ObjectKind::Qp, "create_qp", made)
    }

    pub(crate) fn alloc_mw(&self, mw_type: MwType) -> Result<Live<IbvMw>, VerbError> {
        let in_c = match mw_type {
            MwType::Type1 => 1,
            MwType::Type2 => 2,
        };
        let made = self.with(|at| {
            // SAFETY: `with` keeps the object alive, and its context outlives it.
            unsafe {
                let alloc = op!((*at).context, ALLOC_MW: fn(*mut IbvPd, c_int) -> *mut IbvMw);
                alloc.map(|alloc| alloc(at, in_c))
            }
        })?;
        let verb = "alloc_mw";
        let made = made.ok_or(VerbError::UnsupportedVerb(verb))?;
        Live::new(self.library, ObjectKind::Mw, verb, made)
    }

    pub(crate) fn create_ah(&self, mut attr: IbvAhAttr) -> Result<Live<IbvAh>, VerbError> {
        // SAFETY: `with` keeps the object alive.
        let made = self.with(|at| unsafe { (self.library.ibv_create_ah)(at, &raw mut attr) })?;
        Live::new(self.library, ObjectKind::Ah, "create_ah", made)
    }
}

/// The changes of a region that is re-registered.
pub(crate) struct Change<'a> {
    pub(crate) memory: Option<&'a RegionMemory>,
    pub(crate) pd: Option<&'a Live<IbvPd>>,
    pub(crate) access: Option<Access>,
}

impl Live<IbvMr> {
    /// Returns the keys of the region: for local requests and for peers.
    pub(crate) fn keys(&self) -> Result<(u32, u32), VerbError> {
        // SAFETY: `with` keeps the object alive.
        self.with(|at| unsafe { ((*at).lkey, (*at).rkey) })
    }

    pub(crate) fn rereg(&self, change: &Change<'_>) -> Result<(), VerbError> {
        const TRANSLATION: c_int = 1;
        const PD: c_int = 1 << 1;
        const ACCESS: c_int = 1 << 2;
        let mut flags = 0;
        let (mut address, mut length) = (ptr::null_mut(), 0);
        if let Some(memory) = change.memory {
            flags |= TRANSLATION;
            (address, length) = (
                ptr::with_exposed_provenance_mut(memory.address()),
                memory.len(),
            );
        }
        let mut pd = ptr::null_mut();
        if let Some(other) = change.pd {
            flags |= PD;
            pd = other.with(|pd| pd)?;
        }
        let access = change.access.map_or(0, |access| {
            flags |= ACCESS;
            access.bits() as c_int
        });
        let rereg = self.library.ibv_rereg_mr;
        // SAFETY: `with` keeps the region alive, the domain is alive too, and the memory is as for a registration.
        rereg_answer(self.with(|at| unsafe { rereg(at, flags, pd, address, length, access) })?)
    }

    pub(crate) fn dereg(&self) -> Result<(), VerbError> {
        self.end("dereg_mr", self.library.ibv_dereg_mr)
    }
}

// A negative answer reports the state of the region, and `errno` the reason. From -3 on the region has changed, and the error
// itself may suggest that it is unchanged.
fn rereg_answer(answer: c_int) -> Result<(), VerbError> {
    match answer {
        0 => Ok(()),
        -2..=-1 => Err(last_error("rereg_mr")),
        _ => Err(match last_error("rereg_mr") {
            VerbError::Os { verb, .. } => VerbError::Os {
                verb,
                errno: libc::EIO,
            },
            other => other,
        }),
    }
}

impl Live<IbvMw> {
    pub(crate) fn rkey(&self) -> Result<u32, VerbError> {
        // SAFETY: `with` keeps the object alive.
        self.with(|at| unsafe { (*at).rkey })
    }

    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        // SAFETY: `with` keeps the object alive, and its context outlives it.
        let dealloc =
            self.with(|at| unsafe { op!((*at).context, DEALLOC_MW: fn(*mut IbvMw) -> c_int) })?;
        let verb = "dealloc_mw";
        self.end(verb, dealloc.ok_or(VerbError::UnsupportedVerb(verb))?)
    }
}

impl Live<IbvAh> {
    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_ah", self.library.ibv_destroy_ah)
    }
}
