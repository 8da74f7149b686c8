//! Memory that is registered by work requests.

use verbs_api::{Access, Memory, MrKey, PageList, Pd, RKey, RemoteAddress, Sge, ids::LKey, wr};

use crate::rig::{fill, within};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Memory, its page list, and an allocated key that it can be registered under.
pub struct Fast {
    /// The memory.
    pub memory: Memory,
    /// The page list that maps all of the memory.
    pub pages: PageList,
    /// The allocated key.
    pub key: MrKey,
}

impl Fast {
    pub(crate) fn new(pd: &Pd, length: usize) -> Self {
        let memory = Memory::zeroed(length).expect("memory");
        let depth = (length as u64).div_ceil(PAGE) as u32;
        let mapped = PageList::map(&[(&memory).into()], PAGE, depth).expect("a page list");
        assert_eq!(mapped.elements, 1);
        let key = pd.alloc_key(depth).wait().expect("a key");
        Self {
            memory,
            pages: mapped.list,
            key,
        }
    }

    /// Allocates memory of this many bytes and a key in another domain.
    pub fn in_pd(pd: &Pd, length: usize) -> Self {
        Self::new(pd, length)
    }

    /// The request that registers the memory under the key as it is now.
    pub fn register(&self, access: Access) -> wr::FastRegister<'_> {
        wr::FastRegister::new(&self.key, &self.pages).access(access)
    }

    /// The request that registers the memory under the key with the next byte.
    pub fn register_afresh(&self, access: Access) -> wr::FastRegister<'_> {
        self.key.advance();
        self.register(access)
    }

    /// The request that invalidates the key as it is now.
    pub fn invalidate(&self) -> wr::LocalInvalidate<'static> {
        wr::LocalInvalidate::new(&self.key)
    }

    /// The key for peers, as it is now.
    pub fn rkey(&self) -> RKey {
        self.key.rkey()
    }

    /// The key for local requests, as it is now.
    pub fn lkey(&self) -> LKey {
        self.key.lkey()
    }

    /// The scatter/gather entry of a range.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        self.key.sge(self.pages.address() + offset, length)
    }

    /// The remote address by which a peer reaches `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        self.key.remote(self.pages.address() + offset)
    }

    /// Fills the memory with bytes that depend on their position, different for each `seed`.
    pub fn fill(&self, seed: u8) {
        fill(&self.memory, seed);
    }

    /// A copy of a range.
    ///
    /// # Panics
    /// The range is outside the memory.
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        within(self.memory.to_vec(offset, length))
    }
}
