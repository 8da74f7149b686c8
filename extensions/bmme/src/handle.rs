//! Base memory management as a typed handle.

use verbs_api::{
    Context, Features, MrKey, Operations, Pd, Started,
    extension::{Extension, Unsupported},
};

/// The typed handle of base memory management: allocated keys, fast-register, local invalidate and send-with-invalidate;
/// also read-with-invalidate and windows of type 2 if they were granted.
///
/// ```no_run
/// use bmme::Bmme;
/// use verbs_api::{Features, QpOptions, Requirements, open};
/// let device = open(Requirements::new().needs(Features::BMME))?;
/// let registration = device.extension::<Bmme>()?;
/// let pd = device.alloc_pd().wait()?;
/// let cq = device.create_cq(64).wait()?;
/// let key = registration.alloc_key(&pd, 256).wait()?.next_consumer_key();
/// let qp = pd.create_qp(QpOptions::rc(&cq).operations(&registration)).wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bmme {
    operations: Operations,
}

impl Bmme {
    /// Allocates a key without memory in `pd`: see [`Pd::alloc_key`].
    ///
    /// # Errors
    /// As [`Pd::alloc_key`].
    pub fn alloc_key(&self, pd: &Pd, max_num_sg: u32) -> Started<MrKey> {
        pd.alloc_key(max_num_sg)
    }
}

impl Extension for Bmme {
    type Features = Features;

    const NAME: &'static str = "bmme";
    const NEEDS: Features = Features::BMME;

    fn load(context: &Context) -> Result<Self, Unsupported> {
        Self::require(context)?;
        let granted = context.features();
        let mut operations =
            Operations::FAST_REGISTER | Operations::LOCAL_INV | Operations::SEND_WITH_INV;
        operations.set(
            Operations::READ_WITH_INV,
            granted.contains(Features::READ_WITH_INVALIDATE),
        );
        operations.set(Operations::BIND_MW, granted.intersects(Features::WINDOW_2));
        Ok(Self { operations })
    }

    fn operations(&self) -> Operations {
        self.operations
    }
}
