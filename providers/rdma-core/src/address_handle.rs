//! Address handles.

use std::sync::Arc;

use polyverbs_abi::{IbvAh, IbvPd};
use verbs_api::ids::LinkAddress;
use verbs_api::provider::{AhOps, Reply};
use verbs_api::qp::AddressVector;
use verbs_api::{ArgumentReason, VerbError};

use crate::context::Context;
use crate::port;
use crate::verbs::Live;

pub(crate) struct AddressHandle {
    pub(crate) ah: Arc<Live<IbvAh>>,
    path: AddressVector,
    context: Arc<Context>,
}

impl AddressHandle {
    pub(crate) fn create(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        path: AddressVector,
    ) -> Result<Self, VerbError> {
        check_path(&context, &path)?;
        let created = pd.create_ah((&path).into());
        let ah = Arc::new(created.map_err(|error| refused(&context, &path, error))?);
        Ok(Self { ah, path, context })
    }
}

impl AhOps for AddressHandle {
    fn path(&self) -> AddressVector {
        self.path
    }

    fn destroy(&self, reply: Reply<()>) {
        let ah = Arc::clone(&self.ah);
        self.context.destroy(reply, move || ah.destroy());
    }
}

/// Checks a path before the library does, because the library finds some errors only when the path is used, and others
/// never.
fn check_path(context: &Context, path: &AddressVector) -> Result<(), VerbError> {
    path.check(context.properties.limits.phys_port_cnt)?;
    let is_lid = matches!(path.address, LinkAddress::Lid(_));
    if is_lid && !port::is_infiniband(&context.live.query_port(path.port_num)?) {
        let reason = ArgumentReason::NotOnNetwork(path.address);
        return Err(VerbError::argument("ah_attr.address", reason));
    }
    Ok(())
}

/// Returns a more precise error for a path that the library refused, because the library reports only an error number.
fn refused(context: &Context, path: &AddressVector, error: VerbError) -> VerbError {
    let entry = context
        .live
        .query_gid(path.port_num, path.sgid_index.into());
    match entry {
        Ok(entry) if entry.gid.raw != [0; 16] => error,
        _ => VerbError::argument("sgid_index", "the port has no such identifier"),
    }
}
