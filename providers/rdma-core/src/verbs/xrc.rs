//! Extended reliable connections: domains and the objects that are created in them.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use polyverbs_abi::{
    IbvContext, IbvCq, IbvPd, IbvQp, IbvQpInitAttrEx, IbvQpOpenAttr, IbvSrq, IbvSrqAttr,
    IbvSrqInitAttrEx, IbvXrcd, IbvXrcdInitAttr, qp_type,
};
use verbs_api::VerbError;
use verbs_api::objects::{ObjectId, ObjectKind};

use super::{Live, Zero as _, check, cookie};

impl Live<IbvContext> {
    /// Whether the library has all XRC verbs for this device.
    pub(crate) fn has_xrc_verbs(&self) -> bool {
        use polyverbs_abi::verbs::{
            CLOSE_XRCD, CREATE_QP_EX, CREATE_SRQ_EX, GET_SRQ_NUM, OPEN_QP, OPEN_XRCD,
        };
        let needed = [
            OPEN_XRCD,
            CLOSE_XRCD,
            CREATE_SRQ_EX,
            GET_SRQ_NUM,
            CREATE_QP_EX,
            OPEN_QP,
        ];
        // SAFETY: `with` keeps the object alive.
        let is_there =
            |place| self.with(|at| !unsafe { super::extended_slot(at, place) }.is_null());
        needed.into_iter().all(|place| is_there(place) == Ok(true))
    }

    /// Opens the XRC domain of a file, or a new domain that cannot be opened again.
    pub(crate) fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        oflags: c_int,
    ) -> Result<Live<IbvXrcd>, VerbError> {
        const FD: u32 = 1;
        const OFLAGS: u32 = 1 << 1;
        let attr = IbvXrcdInitAttr {
            comp_mask: FD | OFLAGS,
            fd: file.map_or(-1, |file| file.as_raw_fd()),
            oflags,
        };
        let verb = "open_xrcd";
        let made = self.with(|at| {
            // SAFETY: `with` keeps the object alive.
            unsafe {
                let open = extended_op!(at, OPEN_XRCD: fn(*mut IbvContext, *const IbvXrcdInitAttr) -> *mut IbvXrcd);
                open.map(|open| open(at, &raw const attr))
            }
        })?;
        let made = made.ok_or(VerbError::UnsupportedVerb(verb))?;
        // A target names this domain in place of a protection domain.
        Live::new(self.library, ObjectKind::Pd, verb, made)
    }
}

impl Live<IbvXrcd> {
    /// Calls a function of the extended table with the XRC domain.
    fn call<R>(
        &self,
        verb: &'static str,
        call: impl FnOnce(*mut IbvContext, *mut IbvXrcd) -> Option<R>,
    ) -> Result<R, VerbError> {
        // SAFETY: `with` keeps the object alive.
        let called = self.with(|at| call(unsafe { (*at).context }, at))?;
        called.ok_or(VerbError::UnsupportedVerb(verb))
    }

    /// Creates a shared receive queue in the XRC domain, whose receives complete on `cq`. Returns its actual sizes too.
    pub(crate) fn create_srq(
        &self,
        id: ObjectId,
        (pd, cq): (&Live<IbvPd>, &Live<IbvCq>),
        attr: IbvSrqAttr,
    ) -> Result<(Live<IbvSrq>, IbvSrqAttr), VerbError> {
        const TYPE: u32 = 1;
        const PD: u32 = 1 << 1;
        const XRCD: u32 = 1 << 2;
        const CQ: u32 = 1 << 3;
        const TYPE_XRC: c_int = 1;
        let mut init = IbvSrqInitAttrEx {
            srq_context: cookie(id),
            attr,
            comp_mask: TYPE | PD | XRCD | CQ,
            srq_type: TYPE_XRC,
            pd: pd.with(|pd| pd)?,
            cq: cq.with(|cq| cq)?,
            ..IbvSrqInitAttrEx::zero()
        };
        let verb = "create_srq_ex";
        let made = self.call(verb, |context, xrcd| {
            init.xrcd = xrcd;
            // SAFETY: the domain is alive, and the safe objects destroy nothing that a queue uses.
            unsafe {
                let create = extended_op!(context, CREATE_SRQ_EX: fn(*mut IbvContext, *mut IbvSrqInitAttrEx) -> *mut IbvSrq);
                create.map(|create| create(context, &raw mut init))
            }
        })?;
        let srq = Live::new(self.library, ObjectKind::Srq, verb, made)?;
        Ok((srq, init.attr))
    }

    /// Creates an XRC target in the domain.
    pub(crate) fn create_target(&self, id: ObjectId) -> Result<Live<IbvQp>, VerbError> {
        const XRCD: u32 = 1 << 1;
        let mut init = IbvQpInitAttrEx {
            qp_context: cookie(id),
            qp_type: qp_type::XRC_RECV,
            comp_mask: XRCD,
            ..IbvQpInitAttrEx::zero()
        };
        let verb = "create_qp_ex";
        let made = self.call(verb, |context, xrcd| {
            init.xrcd = xrcd;
            // SAFETY: the domain is alive.
            unsafe {
                let create = extended_op!(context, CREATE_QP_EX: fn(*mut IbvContext, *mut IbvQpInitAttrEx) -> *mut IbvQp);
                create.map(|create| create(context, &raw mut init))
            }
        })?;
        Live::new(self.library, ObjectKind::Qp, verb, made)
    }

    /// Opens another handle of an existing XRC target of the domain.
    pub(crate) fn open_target(&self, id: ObjectId, qp_num: u32) -> Result<Live<IbvQp>, VerbError> {
        const NUM: u32 = 1;
        const XRCD: u32 = 1 << 1;
        const CONTEXT: u32 = 1 << 2;
        const TYPE: u32 = 1 << 3;
        let mut attr = IbvQpOpenAttr {
            comp_mask: NUM | XRCD | CONTEXT | TYPE,
            qp_num,
            qp_context: cookie(id),
            qp_type: qp_type::XRC_RECV,
            ..IbvQpOpenAttr::zero()
        };
        let verb = "open_qp";
        let made = self.call(verb, |context, xrcd| {
            attr.xrcd = xrcd;
            // SAFETY: the domain is alive.
            unsafe {
                let open = extended_op!(context, OPEN_QP: fn(*mut IbvContext, *mut IbvQpOpenAttr) -> *mut IbvQp);
                open.map(|open| open(context, &raw mut attr))
            }
        })?;
        Live::new(self.library, ObjectKind::Qp, verb, made)
    }

    pub(crate) fn close(&self) -> Result<(), VerbError> {
        let verb = "close_xrcd";
        let close = self.call(verb, |context, _| {
            // SAFETY: the domain is alive, and so is its context.
            unsafe { extended_op!(context, CLOSE_XRCD: fn(*mut IbvXrcd) -> c_int) }
        })?;
        self.end(verb, close)
    }
}

impl Live<IbvSrq> {
    /// Returns the number by which requests of peers name the queue.
    pub(crate) fn srq_num(&self) -> Result<u32, VerbError> {
        let (verb, mut number) = ("get_srq_num", 0);
        let answer = self.with(|at| {
            // SAFETY: `with` keeps the object alive, its context outlives it, and there is room for the number.
            unsafe {
                let get =
                    extended_op!((*at).context, GET_SRQ_NUM: fn(*mut IbvSrq, *mut u32) -> c_int);
                get.map(|get| get(at, &raw mut number))
            }
        })?;
        check(verb, answer.ok_or(VerbError::UnsupportedVerb(verb))?)?;
        Ok(number)
    }
}
