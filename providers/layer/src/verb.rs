//! The verbs of a device, by the names that programs know without `ibv_`.

use std::fmt;

macro_rules! verbs {
    ($($name:literal $verb:ident,)*) => {
        /// A verb that reaches a device. Its name is that of the function of verbs, without `ibv_`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        #[non_exhaustive]
        pub enum Verb {
            $($verb,)*
        }

        impl Verb {
            /// Every verb, in the order in which a program meets them.
            pub const ALL: &[Self] = &[$(Self::$verb,)*];

            /// Returns the name of the verb, such as `create_qp`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$verb => $name,)*
                }
            }
        }
    };
}

verbs! {
    "open_device" OpenDevice,
    "query_port" QueryPort,
    "alloc_pd" AllocPd,
    "dealloc_pd" DeallocPd,
    "create_cq" CreateCq,
    "resize_cq" ResizeCq,
    "destroy_cq" DestroyCq,
    "poll_cq" PollCq,
    "req_notify_cq" ReqNotifyCq,
    "reg_mr" RegMr,
    "rereg_mr" ReregMr,
    "dereg_mr" DeregMr,
    "alloc_mr" AllocMr,
    "alloc_mw" AllocMw,
    "bind_mw" BindMw,
    "dealloc_mw" DeallocMw,
    "create_srq" CreateSrq,
    "modify_srq" ModifySrq,
    "query_srq" QuerySrq,
    "destroy_srq" DestroySrq,
    "post_srq_recv" PostSrqRecv,
    "create_qp" CreateQp,
    "modify_qp" ModifyQp,
    "query_qp" QueryQp,
    "destroy_qp" DestroyQp,
    "post_send" PostSend,
    "post_recv" PostRecv,
    "attach_mcast" AttachMcast,
    "detach_mcast" DetachMcast,
    "qp_attach_comp_cntr" AttachCounter,
    "create_ah" CreateAh,
    "destroy_ah" DestroyAh,
}

impl Verb {
    /// Returns the verb with this name; `None` if no verb of a device has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|verb| verb.name() == name)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
