//! The key table: memory regions, allocated keys and windows, and the one access check.
//!
//! A key is a 24-bit index that the table owns and an 8-bit key that the consumer owns. A slot is read as a seqlock, so a
//! check takes no lock; a change locks the slot for a moment. Memory that a check returns stays mapped while the thread is
//! [pinned](crate::pin): a thread that removes memory first disables its key, then waits for the pins that are held at that
//! time.
// This module makes spans of addresses of checked, registered memory.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use verbs_api::memory::Span;
use verbs_api::provider::RegionMemory;
use verbs_api::{Access, PageList};

use crate::fault::Fault;
use crate::pin::{self, Pin};
use crate::rules::{self, Rule};
use crate::slab::Slab;
use crate::sync::{Mutex, relax};

/// The kind of object (memory region or memory window) that a memory key names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyKind {
    /// An ordinary memory region, which a control verb registers.
    #[default]
    Region = 0,
    /// A region that work requests register (fast registration) and invalidate.
    FastRegion = 1,
    /// A memory window of type 1.
    Window1 = 2,
    /// A memory window of type 2A: its use is checked by queue pair number alone.
    Window2A = 3,
    /// A memory window of type 2B: its use is checked by queue pair number and protection domain.
    Window2B = 4,
}

impl KeyKind {
    const ALL: [Self; 5] = [
        Self::Region,
        Self::FastRegion,
        Self::Window1,
        Self::Window2A,
        Self::Window2B,
    ];

    /// Returns whether a key of this kind names a memory window.
    pub const fn is_window(self) -> bool {
        matches!(self, Self::Window1 | Self::Window2A | Self::Window2B)
    }

    const fn is_type_2(self) -> bool {
        matches!(self, Self::Window2A | Self::Window2B)
    }
}

/// The state of a key: whether it opens memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyState {
    /// The index of the key is not in use.
    #[default]
    Unused = 0,
    /// The key exists and opens nothing: it was invalidated, never registered, or unbound.
    Free = 1,
    /// The key opens memory: it is a registered region or a bound window.
    Valid = 2,
}

/// New memory for an existing memory region, which replaces the region's present memory.
pub struct Translation {
    /// The memory that replaces the region's present memory.
    pub memory: RegionMemory,
    /// The address by which requests name the first byte of the memory.
    pub iova: u64,
    /// Whether the region keeps its key, so that peers that know it reach the new memory.
    pub keeps_key: bool,
}

impl Translation {
    /// Creates a replacement of the region's memory that comes with a new key.
    pub const fn new(memory: RegionMemory, iova: u64) -> Self {
        Self {
            memory,
            iova,
            keeps_key: false,
        }
    }
}

/// The fields of a key, as its slot stores them. `link` counts the bound windows of a region, and is the region's index for
/// a window; `aux` is the depth of a fast-registered key and the queue pair of a type-2 window; `start` is the position in
/// a page list at which a window begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyFields {
    /// The low byte of the key, which the consumer owns.
    pub key: u8,
    /// Whether the key opens memory at present.
    pub state: KeyState,
    /// The kind of object that the key names.
    pub kind: KeyKind,
    /// The rights that the key grants.
    pub access: Access,
    /// The protection domain of the region or window.
    pub pd: u32,
    /// The address by which requests name the first byte that the key opens.
    pub iova: u64,
    /// The number of bytes that the key opens.
    pub length: u64,
    /// For a region of work requests, the most entries of its page list; for a type-2 window, the number of its queue pair.
    pub aux: u32,
    /// For a region, the number of windows bound to it; for a window, the index of its region.
    pub link: u64,
    private: bool,
    paged: bool,
    base: u64,
    start: u64,
}

impl KeyFields {
    /// Checks that the key names an ordinary region without bound windows, so that the region's memory can be replaced.
    /// For keys of other kinds `base` belongs to another object, and bound windows have copied it.
    fn check_unbound_region(&self) -> Result<(), Fault> {
        if self.state == KeyState::Unused {
            return Err(Fault::Key);
        }
        if self.kind != KeyKind::Region || self.link != 0 {
            return Err(Fault::Operation);
        }
        Ok(())
    }

    /// Returns the index of the region to which the key's window is bound; `None` if the key names no bound window.
    fn parent(&self) -> Option<u64> {
        (self.kind.is_window() && self.state == KeyState::Valid).then_some(self.link)
    }

    fn words(&self) -> [u64; WORDS] {
        let meta = u64::from(self.key)
            | (self.state as u64) << 8
            | (self.kind as u64) << 10
            | u64::from(self.private) << 13
            | u64::from(self.paged) << 14
            | u64::from(self.access.bits()) << 32;
        let pd_aux = u64::from(self.pd) | u64::from(self.aux) << 32;
        let (length, link) = (self.length, self.link);
        [meta, pd_aux, self.base, self.iova, length, link, self.start]
    }

    #[inline]
    fn of_words([meta, pd_aux, base, iova, length, link, start]: [u64; WORDS]) -> Self {
        Self {
            key: meta as u8,
            state: match meta >> 8 & 3 {
                0 => KeyState::Unused,
                1 => KeyState::Free,
                _ => KeyState::Valid,
            },
            kind: KeyKind::ALL[(meta >> 10 & 7).min(4) as usize],
            private: meta >> 13 & 1 != 0,
            paged: meta >> 14 & 1 != 0,
            access: Access::from_bits_retain((meta >> 32) as u32),
            pd: pd_aux as u32,
            aux: (pd_aux >> 32) as u32,
            base,
            iova,
            length,
            link,
            start,
        }
    }

    /// Returns the offset of `addr` from the first byte, if all `length` bytes are inside; otherwise the fault.
    fn offset_of(&self, addr: u64, length: u64) -> Result<u64, Fault> {
        if addr.checked_add(length).is_none() {
            return Err(Fault::Wrap);
        }
        let offset = addr.wrapping_sub(self.iova);
        if addr < self.iova || offset > self.length || length > self.length - offset {
            return Err(Fault::Bounds);
        }
        Ok(offset)
    }
}

/// The number of words of a slot: key, state, kind and rights; domain and `aux`; base; `iova`; length; `link`; `start`.
const WORDS: usize = 7;

/// The slot of one key. A check reads one cache line.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
    keep: Mutex<Keep>,
}

/// The objects that keep the memory of a key alive. They change together with the key's fields, and a replaced object
/// is dropped when all pins of that time have ended.
#[derive(Default)]
struct Keep {
    memory: Option<RegionMemory>,
    pages: Option<Box<PageList>>,
    // The slot keeps nothing, but its index is still in use.
    is_disabled: bool,
}

impl Keep {
    fn is_empty(&self) -> bool {
        self.memory.is_none() && self.pages.is_none()
    }
}

impl Slot {
    #[inline]
    fn read(&self) -> KeyFields {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let fields = self.load();
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return fields;
                }
            }
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn load(&self) -> KeyFields {
        KeyFields::of_words(std::array::from_fn(|at| self.word(at)))
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    /// Changes the fields of the slot while readers wait. The changed fields are stored only if `change` succeeds.
    fn change<T, E>(&self, change: impl FnOnce(&mut KeyFields) -> Result<T, E>) -> Result<T, E> {
        let sequence = self.take();
        let mut fields = self.load();
        let result = change(&mut fields);
        if result.is_ok() {
            for (word, value) in self.words.iter().zip(fields.words()) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.sequence.store(sequence + 2, Ordering::Release);
        result
    }

    /// Changes the fields, and if that succeeds, replaces the memory that the slot keeps alive. The caller holds no lock.
    fn change_memory<T>(
        &self,
        memory: RegionMemory,
        change: impl FnOnce(&mut KeyFields) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut keep = self.keep.lock();
        let changed = self.change(change)?;
        let old = keep.memory.replace(memory);
        drop(keep);
        if let Some(old) = old {
            pin::after_grace(move || drop(old));
        }
        Ok(changed)
    }

    fn take(&self) -> u64 {
        loop {
            let sequence = self.sequence.load(Ordering::Relaxed);
            let odd = sequence | 1;
            if sequence & 1 == 0
                && self
                    .sequence
                    .compare_exchange_weak(sequence, odd, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                fence(Ordering::Release);
                return sequence;
            }
            relax();
        }
    }
}

/// The memory that a key check has returned, valid as long as the thread stays pinned.
#[derive(Clone, Copy, Debug)]
pub enum Region<'p> {
    /// One contiguous stretch of memory.
    Flat(Span<'p>),
    /// A part of the memory of a page list.
    Paged {
        /// The page list of the memory region.
        list: &'p PageList,
        /// The position of the part's first byte in the memory of the list.
        offset: u64,
        /// The number of bytes of the part.
        length: u64,
    },
}

impl<'p> Region<'p> {
    /// Passes the contiguous stretches of the memory to `each`, in order.
    #[inline]
    pub fn for_each(self, mut each: impl FnMut(Span<'p>)) {
        match self {
            Self::Flat(span) => each(span),
            Self::Paged {
                list,
                mut offset,
                mut length,
            } => {
                while length > 0 {
                    let Some((address, here)) = list.locate(place_in(list, offset)) else {
                        return;
                    };
                    let here = here.min(length);
                    // SAFETY: a page list names only memory that it keeps alive, and is itself kept while pinned.
                    each(unsafe { span(address, here) });
                    offset += here;
                    length -= here;
                }
            }
        }
    }

    /// Returns the first contiguous stretch, cut to `length` bytes if it is longer.
    pub fn first(self, length: usize) -> Span<'p> {
        let mut found = None;
        self.for_each(|span| {
            found.get_or_insert(span);
        });
        found.unwrap_or_else(empty).sub(0, length)
    }
}

// Returns the position in a list for byte `offset`, which is wrong by one if a test breaks the rule for block lists.
#[inline]
fn place_in(list: &PageList, offset: u64) -> u64 {
    let is_off = rules::is_broken(Rule::BlockOffset) && list.is_block_list();
    offset.saturating_sub(u64::from(is_off))
}

fn empty<'p>() -> Span<'p> {
    // SAFETY: no byte of it is ever accessed.
    unsafe { Span::new(std::ptr::dangling_mut(), 0) }
}

unsafe fn span<'p>(address: u64, length: u64) -> Span<'p> {
    // SAFETY: the caller guarantees that the memory is valid.
    unsafe {
        Span::new(
            std::ptr::with_exposed_provenance_mut(address as usize),
            length as usize,
        )
    }
}

/// How the device's own program uses a key, in a request or a receive.
#[derive(Clone, Copy, Debug)]
pub struct LocalUse {
    /// The protection domain of the queue pair or shared receive queue whose request or receive uses the key.
    pub pd: u32,
    /// Whether the memory is a private buffer, which the program has lent with the request.
    pub private: bool,
    /// Whether the device writes to the memory, instead of only reading it.
    pub write: bool,
}

/// How a peer's request uses a key.
#[derive(Clone, Copy, Debug)]
pub struct RemoteUse {
    /// The protection domain of the queue pair that received the request.
    pub pd: u32,
    /// The number of the queue pair that received the request.
    pub qpn: u32,
    /// The rights that the request needs.
    pub access: Access,
}

/// The part of a region to which a window is to be bound, and the rights of the window.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The L_Key of the memory region to which the window is bound.
    pub region: u32,
    /// The address of the part's first byte, as requests to the region name that byte.
    pub addr: u64,
    /// The number of bytes of the part; 0 unbinds a window of type 1.
    pub length: u64,
    /// The rights that the window grants to peers.
    pub access: Access,
    /// The protection domain of the queue pair that binds the window.
    pub pd: u32,
    /// The number of the queue pair that binds the window.
    pub qpn: u32,
}

/// All memory keys of one device.
pub struct KeyTable {
    slots: Slab<Slot>,
    /// The index in a key is the index of its slot combined with this random number by exclusive or.
    mask: u32,
    /// A random number that determines the order in which an index gets its low bytes.
    secret: u64,
}

impl KeyTable {
    /// Creates a table of at most `max` keys, limited to 2^24. No key has the index 0, so key 0 opens nothing. Indices and
    /// low bytes of keys are as hard to guess as the values of `random`.
    pub fn new(max: u32, random: impl Fn() -> u64) -> Self {
        let end = max.saturating_add(1).min(1 << 24);
        // If a slot's index were the mask, its key would have index 0.
        let mask = random() as u32 & 0xff_ffff;
        let mask = [mask, mask | 1 << 23].into_iter().find(|mask| *mask >= end);
        Self {
            slots: Slab::new(1, end),
            mask: mask.unwrap_or_default(),
            secret: random(),
        }
    }

    /// Returns the low byte that an index gets after `byte`: in 256 turns it has each byte once, in an order of its own. A
    /// Feistel network maps a turn to its byte.
    fn next_byte(&self, index: u32, byte: u8) -> u8 {
        let mixed = |round: u8, half: u8| {
            let mut hasher = DefaultHasher::new();
            (self.secret, index, round, half).hash(&mut hasher);
            hasher.finish() as u8 & 0xf
        };
        let (mut high, mut low) = (byte >> 4, byte & 0xf);
        for round in (0..4).rev() {
            (high, low) = (low ^ mixed(round, high), high);
        }
        let turn = (high << 4 | low).wrapping_add(1);
        (high, low) = (turn >> 4, turn & 0xf);
        for round in 0..4 {
            (high, low) = (low, high ^ mixed(round, low));
        }
        high << 4 | low
    }

    #[inline]
    fn index(&self, key: u32) -> u32 {
        key >> 8 ^ self.mask
    }

    #[inline]
    fn slot(&self, key: u32) -> Option<&Slot> {
        self.slots.get(self.index(key))
    }

    /// Returns the number of keys in use.
    pub fn in_use(&self) -> usize {
        self.slots.in_use()
    }

    /// Allocates a key that opens no memory yet; `None` if the table is full. `depth` is the most page list entries of a
    /// region that work requests register. An index gets a low byte again only after it has had all others.
    pub fn allocate(&self, kind: KeyKind, pd: u32, depth: u32) -> Option<u32> {
        let index = self.slots.allocate()?;
        let slot = self.slots.get(index)?;
        let key = self.next_byte(index, slot.read().key);
        let changed = slot.change(|fields| -> Result<u32, ()> {
            *fields = KeyFields {
                key,
                state: KeyState::Free,
                kind,
                pd,
                aux: depth,
                ..KeyFields::default()
            };
            Ok((index ^ self.mask) << 8 | u32::from(key))
        });
        changed.ok()
    }

    /// Gives an ordinary region its memory, address and rights, and makes its key valid. Memory that this replaces is freed
    /// after its last use.
    ///
    /// # Errors
    /// The key is not in use, is of another kind, or windows are bound to it. The region stays as it was.
    pub fn set_region(
        &self,
        key: u32,
        memory: RegionMemory,
        iova: u64,
        access: Access,
        private: bool,
    ) -> Result<(), Fault> {
        let slot = self.slot(key).ok_or(Fault::Key)?;
        let (base, length) = (memory.address() as u64, memory.len() as u64);
        slot.change_memory(memory, |fields| {
            fields.check_unbound_region()?;
            let state = KeyState::Valid;
            *fields = KeyFields {
                state,
                base,
                length,
                iova,
                access,
                private,
                ..*fields
            };
            Ok(())
        })
    }

    /// Changes the memory, the domain or the rights of an ordinary region; `None` leaves each as it is. Returns the
    /// region's key, which new memory may have changed. Replaced memory is freed after its last use.
    ///
    /// # Errors
    /// The key is not in use, is of another kind, or windows are bound to it. The region stays as it was.
    pub fn change_region(
        &self,
        key: u32,
        translation: Option<Translation>,
        pd: Option<u32>,
        access: Option<Access>,
    ) -> Result<u32, Fault> {
        let slot = self.slot(key).ok_or(Fault::Key)?;
        let place = translation
            .as_ref()
            .map(|to| (to.memory.address() as u64, to.memory.len() as u64, to.iova));
        // A peer that knows the key of the old memory must not reach the new memory. New rights apply to the known key.
        let changes_key = translation.as_ref().is_some_and(|to| !to.keeps_key);
        let change = |fields: &mut KeyFields| {
            fields.check_unbound_region()?;
            if let Some((base, length, iova)) = place {
                *fields = KeyFields {
                    base,
                    length,
                    iova,
                    ..*fields
                };
            }
            fields.pd = pd.unwrap_or(fields.pd);
            if !rules::is_broken(Rule::ReregisteredRights) {
                fields.access = access.unwrap_or(fields.access);
            }
            if changes_key {
                fields.key = self.next_byte(self.index(key), fields.key);
            }
            Ok(key & !0xff | u32::from(fields.key))
        };
        match translation {
            Some(to) => slot.change_memory(to.memory, change),
            None => slot.change(change),
        }
    }

    /// Disables a key, so that no later check accepts it. Its memory is released when all pins that are held now have
    /// ended; at that time the caller calls [`release`](Self::release). The caller holds no lock.
    ///
    /// # Errors
    /// The key is not in use, or windows are bound to the region. The key stays as it was.
    pub fn disable(&self, key: u32) -> Result<(), Fault> {
        let slot = self.slot(key).ok_or(Fault::Key)?;
        let mut keep = slot.keep.lock();
        let parent = slot.change(|fields| {
            if fields.state == KeyState::Unused {
                return Err(Fault::Key);
            }
            let is_in_use = !fields.kind.is_window() && fields.link != 0;
            if is_in_use && !rules::is_broken(Rule::RegionInUse) {
                return Err(Fault::Operation);
            }
            let parent = fields.parent();
            fields.state = KeyState::Unused;
            Ok(parent)
        })?;
        let kept = std::mem::take(&mut *keep);
        keep.is_disabled = true;
        drop(keep);
        self.unlink(parent);
        if !kept.is_empty() {
            pin::after_grace(move || drop(kept));
        }
        Ok(())
    }

    /// Frees the index of a key that [`disable`](Self::disable) has disabled. An index can be freed only once.
    ///
    /// # Errors
    /// The key was not disabled, and stays as it was.
    pub fn release(&self, key: u32) -> Result<(), Fault> {
        let slot = self.slot(key).ok_or(Fault::Key)?;
        if !std::mem::take(&mut slot.keep.lock().is_disabled) {
            return Err(Fault::Key);
        }
        self.slots.free(self.index(key));
        Ok(())
    }

    /// Returns the fields of a key's index, whatever the low byte of `key` is; `None` if the index is not in use.
    pub fn fields(&self, key: u32) -> Option<KeyFields> {
        let fields = self.slot(key)?.read();
        (fields.state != KeyState::Unused).then_some(fields)
    }

    /// Returns `key` with its low byte replaced by the one that the key's index has at present.
    pub(crate) fn current(&self, key: u32) -> u32 {
        let byte = self.fields(key).map_or(key as u8, |fields| fields.key);
        key & !0xff | u32::from(byte)
    }

    /// Returns whether the memory window with the key `window` is bound to the memory region with the key `region`. The
    /// low bytes of the keys do not matter.
    pub fn is_bound_to(&self, window: u32, region: u32) -> bool {
        let parent = self.fields(window).and_then(|fields| fields.parent());
        parent == Some(u64::from(self.index(region)))
    }

    /// Does all checks of an access at once, if the region is one flat stretch. Returns `None` if a check fails or `length`
    /// is 0: then [`check_local`](Self::check_local) or [`check_remote`](Self::check_remote) finds the reason.
    #[inline]
    pub fn flat<'p>(
        &self,
        _pin: &'p Pin,
        key: u32,
        addr: u64,
        length: u32,
        pd: u32,
        access: Access,
    ) -> Option<Span<'p>> {
        // One comparison covers key byte, state, kind (a region of either kind), private, paged and rights.
        const FIXED: u64 = 0xff | 3 << 8 | 6 << 10 | 1 << 13 | 1 << 14;
        let rights = u64::from(access.bits()) << 32;
        let slot = self.slot(key)?;
        let sequence = slot.sequence.load(Ordering::Acquire);
        let [meta, pd_aux, base, iova, size] = std::array::from_fn(|at| slot.word(at));
        fence(Ordering::Acquire);
        let stable = sequence & 1 == 0 && slot.sequence.load(Ordering::Relaxed) == sequence;
        let offset = addr.wrapping_sub(iova);
        let length = u64::from(length);
        let valid = u64::from(key as u8) | (KeyState::Valid as u64) << 8 | rights;
        let fits = addr >= iova && offset <= size && length <= size - offset;
        if !stable
            || meta & (FIXED | rights) != valid
            || pd_aux as u32 != pd
            || !fits
            || length == 0
        {
            return None;
        }
        // SAFETY: the thread is pinned, and the fields were valid together.
        Some(unsafe { span(base + offset, length) })
    }

    /// Checks the access of a local request or receive to `length` bytes at `addr`, and returns the memory. Every
    /// scatter/gather entry of every request passes this check.
    ///
    /// # Errors
    /// The first reason to refuse the access.
    #[inline]
    pub fn check_local<'p>(
        &self,
        _pin: &'p Pin,
        lkey: u32,
        addr: u64,
        length: u64,
        user: LocalUse,
    ) -> Result<Region<'p>, Fault> {
        let fields = self.slot(lkey).ok_or(Fault::Key)?.read();
        if fields.key != lkey as u8
            || fields.state != KeyState::Valid
            || fields.kind.is_window()
            || fields.private != user.private
        {
            return Err(Fault::Key);
        }
        if fields.pd != user.pd {
            return Err(Fault::Pd);
        }
        if user.write && !fields.access.contains(Access::LOCAL_WRITE) {
            return Err(Fault::Access);
        }
        // SAFETY: the thread is pinned, and the fields were valid together.
        Ok(unsafe { region(&fields, fields.offset_of(addr, length)?, length) })
    }

    /// Checks a peer's access to `length` bytes at `addr`, and returns the memory. The length is not 0, because a peer's
    /// access of no bytes names no memory.
    ///
    /// # Errors
    /// The first reason to refuse the access.
    #[inline]
    pub fn check_remote<'p>(
        &self,
        _pin: &'p Pin,
        rkey: u32,
        addr: u64,
        length: u64,
        user: RemoteUse,
    ) -> Result<Region<'p>, Fault> {
        let fields = self.slot(rkey).ok_or(Fault::Key)?.read();
        if fields.key != rkey as u8 || !Self::answers_peers(&fields) || fields.private {
            return Err(Fault::Key);
        }
        Self::check_association(&fields, user.pd, user.qpn)?;
        if !(fields.access | Self::unasked(&fields)).contains(user.access) {
            return Err(Fault::Access);
        }
        // SAFETY: the thread is pinned, and the fields were valid together.
        Ok(unsafe { region(&fields, fields.offset_of(addr, length)?, length) })
    }

    // Returns whether a key opens memory to peers. An invalidated key keeps its memory until it is registered again.
    #[inline]
    fn answers_peers(fields: &KeyFields) -> bool {
        let was_registered = fields.kind == KeyKind::FastRegion && fields.length > 0;
        fields.state == KeyState::Valid
            || (rules::is_broken(Rule::StaleKey)
                && was_registered
                && fields.state == KeyState::Free)
    }

    // Returns the remote rights that count as granted because a test breaks the rule that checks them.
    #[inline]
    fn unasked(fields: &KeyFields) -> Access {
        if rules::is_broken(Rule::RegionReadRight) && fields.kind == KeyKind::Region {
            Access::REMOTE_READ
        } else {
            Access::empty()
        }
    }

    // Checks the association of a key: the queue pair number alone authorises a 2A window, the number and the domain a 2B
    // window, and the domain all other kinds (IBTA 10.6.7.2).
    fn check_association(fields: &KeyFields, pd: u32, qpn: u32) -> Result<(), Fault> {
        if fields.kind != KeyKind::Window2A && fields.pd != pd {
            return Err(Fault::Pd);
        }
        if fields.kind.is_type_2() && fields.aux != qpn && !rules::is_broken(Rule::Window2QueuePair)
        {
            return Err(Fault::NotAssociated);
        }
        Ok(())
    }

    /// Registers the memory of `pages` under `key`, whose index is that of a free region of work requests and whose low
    /// byte may be new.
    ///
    /// # Errors
    /// The key does not exist, is not free or belongs to another domain, or the list has more entries than the key permits.
    /// The key stays as it was.
    pub fn fast_register(
        &self,
        key: u32,
        pd: u32,
        pages: &PageList,
        access: Access,
        iova: u64,
        length: u64,
    ) -> Result<(), Fault> {
        let slot = self.slot(key).ok_or(Fault::Operation)?;
        let mut keep = slot.keep.lock();
        let held = keep.pages.as_ref().is_some_and(|held| held.is_same(pages));
        let fresh = (!held).then(|| Box::new(pages.clone()));
        let list: &PageList = fresh
            .as_deref()
            .or(keep.pages.as_deref())
            .ok_or(Fault::Operation)?;
        let (paged, base) = match list.flat_address() {
            Some(address) => (false, address),
            None => (true, std::ptr::from_ref(list).expose_provenance() as u64),
        };
        slot.change(|fields| {
            if fields.kind != KeyKind::FastRegion || fields.state != KeyState::Free {
                return Err(Fault::Operation);
            }
            if fields.pd != pd {
                return Err(Fault::Pd);
            }
            if pages.entries() > fields.aux || length > pages.len() {
                return Err(Fault::Operation);
            }
            let state = KeyState::Valid;
            *fields = KeyFields {
                key: key as u8,
                state,
                access,
                iova,
                length,
                paged,
                base,
                start: 0,
                ..*fields
            };
            Ok(())
        })?;
        if let Some(fresh) = fresh {
            let old = keep.pages.replace(fresh);
            drop(keep);
            if let Some(old) = old {
                pin::after_grace(move || drop(old));
            }
        }
        Ok(())
    }

    /// Invalidates a fast-registered region or a type-2 window by a request of the device's own program.
    ///
    /// A key that is free already stays free, and the operation succeeds. The low byte must match in either case.
    ///
    /// # Errors
    /// The key does not exist or cannot be invalidated through this queue pair, and stays as it was.
    pub fn invalidate_local(&self, key: u32, pd: u32, qpn: u32) -> Result<(), Fault> {
        self.invalidate(key, false, |fields| {
            let is_bound = fields.kind.is_type_2() && fields.state == KeyState::Valid;
            if fields.pd != pd || is_bound && fields.aux != qpn {
                return Err(Fault::Operation);
            }
            Ok(())
        })
    }

    /// Invalidates a fast-registered region or a type-2 window by a message of a peer. Other than by a local request, this
    /// needs a key that is valid and grants some remote right.
    ///
    /// # Errors
    /// The key cannot be invalidated through this queue pair, and stays as it was.
    pub fn invalidate_remote(&self, key: u32, pd: u32, qpn: u32) -> Result<(), Fault> {
        let spares_regions = rules::is_broken(Rule::SendInvalidates);
        self.invalidate(key, spares_regions, |fields| {
            if fields.state != KeyState::Valid {
                return Err(Fault::Key);
            }
            Self::check_association(fields, pd, qpn)?;
            if !fields.access.intersects(Access::REMOTE) {
                return Err(Fault::Access);
            }
            Ok(())
        })
    }

    fn invalidate(
        &self,
        key: u32,
        spares_regions: bool,
        check: impl FnOnce(&KeyFields) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let slot = self.slot(key).ok_or(Fault::Key)?;
        let parent = slot.change(|fields| {
            if fields.state == KeyState::Unused || fields.key != key as u8 {
                return Err(Fault::Key);
            }
            if matches!(fields.kind, KeyKind::Region | KeyKind::Window1) {
                return Err(Fault::CannotInvalidate);
            }
            check(fields)?;
            if fields.kind == KeyKind::FastRegion && fields.link != 0 {
                return Err(Fault::CannotInvalidate);
            }
            let parent = fields.parent();
            if !spares_regions || fields.kind.is_window() {
                fields.state = KeyState::Free;
            }
            Ok(parent)
        })?;
        self.unlink(parent);
        Ok(())
    }

    /// Binds a window to a part of a region. `key` is the window's key afterwards: it has the window's index, and the next
    /// low byte for type 1, any low byte for type 2. A binding of length 0 unbinds a window of type 1.
    ///
    /// The region needs `MW_BIND`, and `LOCAL_WRITE` if the window lets a peer change memory; it needs no remote right of
    /// its own (IBTA C10-72 to C10-75).
    ///
    /// # Errors
    /// The window cannot be bound this way. The window, its old key and the region stay as they were.
    pub fn bind(&self, key: u32, binding: &Binding) -> Result<(), Fault> {
        let window = self.slot(key).ok_or(Fault::Bind)?;
        let old = window.read();
        let type_1 = old.kind == KeyKind::Window1;
        let stale = if type_1 {
            old.key.wrapping_add(1) != key as u8
        } else {
            old.state != KeyState::Free
        };
        let zero_based = binding.access.contains(Access::ZERO_BASED);
        if !old.kind.is_window()
            || old.state == KeyState::Unused
            || stale
            || old.pd != binding.pd
            || (type_1 && zero_based)
            || (!type_1 && binding.length == 0)
            || !(Access::REMOTE | Access::ZERO_BASED).contains(binding.access)
        {
            return Err(Fault::Bind);
        }
        let target = if binding.length == 0 {
            None
        } else {
            Some(self.link(binding)?)
        };
        let changed = window.change(|fields| {
            if fields.state != old.state || fields.key != old.key {
                return Err(Fault::Bind);
            }
            let parent = fields.parent();
            fields.key = key as u8;
            match target {
                None => fields.state = KeyState::Free,
                Some((index, region, offset)) => {
                    let (addr, length, offset) = stretch(type_1, binding, &region, offset);
                    let iova = if zero_based { 0 } else { addr };
                    let (base, start) = if region.paged {
                        (region.base, region.start + offset)
                    } else {
                        (region.base + offset, 0)
                    };
                    *fields = KeyFields {
                        state: KeyState::Valid,
                        access: binding.access,
                        iova,
                        length,
                        aux: binding.qpn,
                        link: index,
                        paged: region.paged,
                        base,
                        start,
                        ..*fields
                    };
                }
            }
            Ok(parent)
        });
        match changed {
            Ok(parent) => {
                self.unlink(parent);
                Ok(())
            }
            Err(fault) => {
                self.unlink(target.map(|(index, ..)| index));
                Err(fault)
            }
        }
    }

    /// Unbinds those of the windows `keys` that are of type 2 and bound through the queue pair `qpn`, which is being reset
    /// or destroyed.
    pub fn unbind_all_of(&self, keys: &[u32], qpn: u32) {
        for &key in keys {
            let Some(slot) = self.slot(key) else {
                continue;
            };
            let parent = slot.change(|fields| {
                if !fields.kind.is_type_2() || fields.state != KeyState::Valid || fields.aux != qpn
                {
                    return Err(());
                }
                fields.state = KeyState::Free;
                Ok(fields.link)
            });
            self.unlink(parent.ok());
        }
    }

    // Counts a window at its region: the region cannot be changed or invalidated until the window is no longer counted.
    fn link(&self, binding: &Binding) -> Result<(u64, KeyFields, u64), Fault> {
        let index = self.index(binding.region);
        let slot = self.slots.get(index).ok_or(Fault::Bind)?;
        slot.change(|region| {
            let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            if region.key != binding.region as u8
                || region.state != KeyState::Valid
                || region.kind.is_window()
                || region.private
                || region.pd != binding.pd
                || !region.access.contains(Access::MW_BIND)
                || (binding.access.intersects(changes)
                    && !region.access.contains(Access::LOCAL_WRITE))
            {
                return Err(Fault::Bind);
            }
            let offset = region
                .offset_of(binding.addr, binding.length)
                .map_err(|_| Fault::Bind)?;
            region.link += 1;
            Ok((u64::from(index), *region, offset))
        })
    }

    fn unlink(&self, parent: Option<u64>) {
        if let Some(slot) = parent.and_then(|index| self.slots.get(index as u32)) {
            let _ = slot.change(|region| -> Result<(), ()> {
                region.link -= 1;
                Ok(())
            });
        }
    }
}

impl Drop for KeyTable {
    fn drop(&mut self) {
        let take = |index| Some(std::mem::take(&mut *self.slots.get(index)?.keep.lock()));
        let mut kept: Vec<_> = (0..self.slots.end()).filter_map(take).collect();
        kept.retain(|keep| !keep.is_empty());
        if !kept.is_empty() {
            // A pin, not the table, limits how long the result of a check is valid.
            pin::after_grace(move || drop(kept));
        }
    }
}

// Returns the range of a window: the address of the first byte, the length, and the offset in the region.
#[inline]
fn stretch(type_1: bool, binding: &Binding, region: &KeyFields, offset: u64) -> (u64, u64, u64) {
    let range = if type_1 {
        Rule::Window1Range
    } else {
        Rule::Window2Range
    };
    let zero_based = binding.access.contains(Access::ZERO_BASED);
    if rules::is_broken(range) && !zero_based && !region.paged {
        return (region.iova, region.length, 0);
    }
    let from_region = zero_based && rules::is_broken(Rule::ZeroBasedStart);
    let offset = if from_region { 0 } else { offset };
    (binding.addr, binding.length, offset)
}

/// Returns the memory of `fields`, beginning at `offset`.
///
/// # Safety
/// `fields` were read from a valid slot while the thread was pinned for `'p`, and `offset` and `length` checked.
#[inline]
unsafe fn region<'p>(fields: &KeyFields, offset: u64, length: u64) -> Region<'p> {
    if fields.paged {
        let list: *const PageList = std::ptr::with_exposed_provenance(fields.base as usize);
        // SAFETY: the slot keeps the list until after the grace period of its replacement.
        let list = unsafe { &*list };
        let is_off = rules::is_broken(Rule::GapWindowStart) && list.has_gaps();
        let start = if is_off { 0 } else { fields.start };
        return Region::Paged {
            list,
            offset: start + offset,
            length,
        };
    }
    // SAFETY: the slot keeps the memory until after the grace period of its release.
    Region::Flat(unsafe { span(fields.base + offset, length) })
}
