//! The declaration of a header: its fields in the order of the wire, each with its width in bits, as the standards draw
//! them.
//!
//! `header!` makes three things of a declaration: the owned form (a struct of plain numbers in this machine's byte order), the
//! view (the bytes themselves, read in place), and the conversions between them. Every bit belongs to a field, so that a header
//! that is decoded and encoded again has the same bytes. The compiler checks that the widths add up to the length.

use core::fmt;

/// A header in its owned form: a struct of its fields.
pub trait Header: Copy + Default {
    /// The type of the view, which reads the header's bytes in place.
    type View: zerocopy::FromBytes
        + zerocopy::IntoBytes
        + zerocopy::KnownLayout
        + zerocopy::Immutable
        + zerocopy::Unaligned
        + 'static;

    /// Length of the header on the wire, in bytes.
    const LEN: usize;

    /// Decodes the header from its bytes.
    fn of(view: &Self::View) -> Self;

    /// Encodes the header into its bytes.
    fn to_view(&self) -> Self::View;

    /// Decodes the header at the beginning of the input, and returns it with the bytes after it; `None` if the input is too
    /// short.
    #[inline]
    fn split(octets: &[u8]) -> Option<(Self, &[u8])> {
        let (view, rest) = view::<Self>(octets)?;
        Some((Self::of(view), rest))
    }

    /// Writes the header to the beginning of `out`, and returns the part of `out` after it; `None` if `out` is too short.
    #[inline]
    fn put<'o>(&self, out: &'o mut [u8]) -> Option<&'o mut [u8]> {
        let (front, rest) = out.split_at_mut_checked(Self::LEN)?;
        front.copy_from_slice(zerocopy::IntoBytes::as_bytes(&self.to_view()));
        Some(rest)
    }
}

/// Returns a view of the header at the beginning of the input, and the bytes after it; `None` if the input is too short.
#[inline]
pub fn view<H: Header>(octets: &[u8]) -> Option<(&H::View, &[u8])> {
    <H::View as zerocopy::FromBytes>::ref_from_prefix(octets).ok()
}

/// A type that a field of a header may have.
///
/// A field whose declared width is outside `WIDTHS` does not compile. A value that does not fit into the field's width
/// loses its high bits.
pub trait Field: Copy {
    /// The smallest and the largest width in bits that a field of this type may have.
    const WIDTHS: (usize, usize);

    /// Decodes the field of `width` bits that begins at bit `start` of the header, counted from the most significant bit of
    /// the first byte.
    fn take(octets: &[u8], start: usize, width: usize) -> Self;

    /// Writes the value into the field of `width` bits at bit `start`, and leaves all other bits as they are.
    fn put(self, octets: &mut [u8], start: usize, width: usize);

    /// Returns whether a text form may leave the field out, which is true only for a reserved field that is zero.
    fn is_blank(&self) -> bool {
        false
    }
}

/// A reserved field: bits that senders set to zero and receivers ignore. The owned form keeps them, so that decoding loses
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct Reserved(pub u32);

/// A field of `N` bytes without further structure.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Octets<const N: usize>(pub [u8; N]);

impl<const N: usize> Octets<N> {
    /// Returns the given bytes, followed by zeros; `None` if there are more than `N`.
    pub fn padded(octets: &[u8]) -> Option<Self> {
        let mut all = [0; N];
        all.get_mut(..octets.len())?.copy_from_slice(octets);
        Some(Self(all))
    }

    /// Encodes a header, followed by zeros. A header that is longer than `N` bytes does not compile.
    pub fn holding<H: Header>(header: &H) -> Self {
        const { assert!(H::LEN <= N) };
        let mut all = [0; N];
        header.put(&mut all);
        Self(all)
    }

    /// Decodes the header at the beginning. A header that is longer than `N` bytes does not compile.
    pub fn header<H: Header>(&self) -> H {
        const { assert!(H::LEN <= N) };
        H::split(&self.0).map_or_else(H::default, |(header, _)| header)
    }
}

impl<const N: usize> Default for Octets<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Octets<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> fmt::Display for Octets<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

macro_rules! number_fields {
    ($($number:ty),*) => {$(
        impl Field for $number {
            const WIDTHS: (usize, usize) = (1, <$number>::BITS as usize);

            #[inline(always)]
            fn take(octets: &[u8], start: usize, width: usize) -> Self {
                take_bits(octets, start, width) as Self
            }

            #[inline(always)]
            fn put(self, octets: &mut [u8], start: usize, width: usize) {
                put_bits(octets, start, width, u64::from(self));
            }
        }
    )*};
}

number_fields!(u8, u16, u32, u64);

/// Declares a field of a fixed width that is a newtype over a number. Its [`Debug`](fmt::Debug) form also prints the
/// meaning of the number in words.
macro_rules! newtype_field {
    ($(#[$meta:meta])* $newtype:ident($number:ty) = $bits:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Serialize, serde::Deserialize),
            serde(transparent)
        )]
        pub struct $newtype(pub $number);

        impl core::fmt::Debug for $newtype {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({:#x}, {self})", stringify!($newtype), self.0)
            }
        }

        impl crate::layout::Field for $newtype {
            const WIDTHS: (usize, usize) = ($bits, $bits);

            #[inline(always)]
            fn take(octets: &[u8], start: usize, width: usize) -> Self {
                Self(crate::layout::Field::take(octets, start, width))
            }

            #[inline(always)]
            fn put(self, octets: &mut [u8], start: usize, width: usize) {
                crate::layout::Field::put(self.0, octets, start, width);
            }
        }
    };
}
pub(crate) use newtype_field;

impl Field for bool {
    const WIDTHS: (usize, usize) = (1, 1);

    #[inline(always)]
    fn take(octets: &[u8], start: usize, width: usize) -> Self {
        take_bits(octets, start, width) != 0
    }

    #[inline(always)]
    fn put(self, octets: &mut [u8], start: usize, width: usize) {
        put_bits(octets, start, width, u64::from(self));
    }
}

/// A table: `N` fields of one type and width, which is the width of the table divided by `N`.
impl<T: Field, const N: usize> Field for [T; N] {
    const WIDTHS: (usize, usize) = (N * T::WIDTHS.0, N * T::WIDTHS.1);

    #[inline(always)]
    fn take(octets: &[u8], start: usize, width: usize) -> Self {
        core::array::from_fn(|at| T::take(octets, start + at * (width / N), width / N))
    }

    #[inline(always)]
    fn put(self, octets: &mut [u8], start: usize, width: usize) {
        for (at, entry) in self.into_iter().enumerate() {
            entry.put(octets, start + at * (width / N), width / N);
        }
    }
}

impl Field for Reserved {
    const WIDTHS: (usize, usize) = (1, 32);

    #[inline(always)]
    fn take(octets: &[u8], start: usize, width: usize) -> Self {
        Self(u32::take(octets, start, width))
    }

    #[inline(always)]
    fn put(self, octets: &mut [u8], start: usize, width: usize) {
        self.0.put(octets, start, width);
    }

    fn is_blank(&self) -> bool {
        self.0 == 0
    }
}

impl<const N: usize> Field for Octets<N> {
    const WIDTHS: (usize, usize) = (8 * N, 8 * N);

    #[inline(always)]
    fn take(octets: &[u8], start: usize, _width: usize) -> Self {
        let mut taken = [0; N];
        taken.copy_from_slice(&octets[start / 8..start / 8 + N]);
        Self(taken)
    }

    #[inline(always)]
    fn put(self, octets: &mut [u8], start: usize, _width: usize) {
        octets[start / 8..start / 8 + N].copy_from_slice(&self.0);
    }
}

// Reads `width` bits. They fit into eight bytes and into the header: `header!` has the compiler check both. If `start` and
// `width` are constants, the compiler reduces the loops to a load, a byte swap, a shift and a mask.
#[inline(always)]
fn take_bits(octets: &[u8], start: usize, width: usize) -> u64 {
    let (first, end) = (start / 8, (start + width).div_ceil(8));
    let mut value = 0;
    for octet in &octets[first..end] {
        value = value << 8 | u64::from(*octet);
    }
    value >> (8 * end - start - width) & (u64::MAX >> (64 - width))
}

#[inline(always)]
fn put_bits(octets: &mut [u8], start: usize, width: usize, value: u64) {
    let (first, end) = (start / 8, (start + width).div_ceil(8));
    let shift = 8 * end - start - width;
    let mask = (u64::MAX >> (64 - width)) << shift;
    let value = value << shift & mask;
    for (behind, octet) in octets[first..end].iter_mut().rev().enumerate() {
        let (keep, set) = (!(mask >> (8 * behind)) as u8, (value >> (8 * behind)) as u8);
        *octet = *octet & keep | set;
    }
}

/// Returns the position of the first bit of the field with this name. It is public because `header!` expands to calls of
/// it.
#[doc(hidden)]
pub const fn start_of(fields: &[(&str, usize)], name: &str) -> usize {
    let (mut at, mut start) = (0, 0);
    while at < fields.len() {
        if same(fields[at].0, name) {
            return start;
        }
        start += fields[at].1;
        at += 1;
    }
    panic!("no such field")
}

/// Returns the sum of all widths in bits. The compiler stops with an error if a field neither fits into eight bytes nor
/// fills whole bytes of its own.
#[doc(hidden)]
pub const fn total(fields: &[(&str, usize)]) -> usize {
    let (mut at, mut bits) = (0, 0);
    while at < fields.len() {
        let width = fields[at].1;
        assert!(width > 0 && (bits % 8 + width <= 64 || bits % 8 + width % 8 == 0));
        bits += width;
        at += 1;
    }
    bits
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Declares the owned form and the view of a header: see the [module](self).
macro_rules! header {
    (
        $(#[$meta:meta])*
        $name:ident, $view:ident: $octets:literal octets {
            $( $field:ident: $type:ty = $width:literal, $doc:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Serialize, serde::Deserialize),
            serde(deny_unknown_fields)
        )]
        pub struct $name {
            $(
                #[doc = $doc]
                #[cfg_attr(
                    feature = "serde",
                    serde(default, skip_serializing_if = "crate::layout::Field::is_blank")
                )]
                pub $field: $type,
            )*
        }

        #[doc = concat!("The bytes of a [`", stringify!($name), "`], read in place.")]
        #[derive(
            Clone,
            Copy,
            PartialEq,
            Eq,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::KnownLayout,
            zerocopy::Immutable,
            zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $view(pub [u8; $octets]);

        impl $name {
            const FIELDS: &'static [(&'static str, usize)] = &[$((stringify!($field), $width)),*];

            /// Length of the header on the wire, in bytes.
            pub const LEN: usize = {
                assert!(crate::layout::total(Self::FIELDS) == 8 * $octets);
                $(
                    let (fewest, most) = <$type as crate::layout::Field>::WIDTHS;
                    assert!(fewest <= $width && $width <= most);
                )*
                $octets
            };
        }

        const _: usize = $name::LEN;

        impl $view {
            $(
                #[doc = $doc]
                #[inline]
                pub fn $field(&self) -> $type {
                    const START: usize =
                        crate::layout::start_of($name::FIELDS, stringify!($field));
                    crate::layout::Field::take(&self.0, START, $width)
                }
            )*
        }

        impl crate::layout::Header for $name {
            type View = $view;

            const LEN: usize = Self::LEN;

            #[inline]
            fn of(view: &$view) -> Self {
                Self { $($field: view.$field(),)* }
            }

            #[inline]
            fn to_view(&self) -> $view {
                let mut octets = [0; $octets];
                $(
                    crate::layout::Field::put(
                        self.$field,
                        &mut octets,
                        const { crate::layout::start_of(Self::FIELDS, stringify!($field)) },
                        $width,
                    );
                )*
                $view(octets)
            }
        }

        impl core::fmt::Debug for $view {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                <$name as crate::layout::Header>::of(self).fmt(f)
            }
        }
    };
}
pub(crate) use header;

// Text formats represent the bytes as hexadecimal digits.
#[cfg(feature = "serde")]
impl<const N: usize> serde::Serialize for Octets<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de, const N: usize> serde::Deserialize<'de> for Octets<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let octets = || {
            let mut octets = [0; N];
            let pairs = digits.as_bytes().chunks_exact(2);
            for (octet, pair) in octets.iter_mut().zip(pairs) {
                let digit = |at: usize| char::from(pair[at]).to_digit(16);
                *octet = (digit(0)? << 4 | digit(1)?) as u8;
            }
            (digits.len() == 2 * N).then_some(Self(octets))
        };
        octets().ok_or_else(|| serde::de::Error::custom(format_args!("not {N} octets")))
    }
}

#[cfg(test)]
#[allow(unreachable_pub)] // `header!` makes the items that it declares here `pub`.
mod tests {
    use super::*;

    header! {
        /// Fields of every kind.
        Sample, SampleView: 16 octets {
            flag: bool = 1, "One bit.";
            reserved: Reserved = 2, "Reserved.";
            across: u16 = 9, "Crosses a byte boundary.";
            low: u8 = 4, "The rest.";
            middle: u32 = 24, "24 bits.";
            name: Octets<3> = 24, "Bytes.";
            long: u64 = 64, "64 bits.";
        }
    }

    const OCTETS: [u8; 16] = [
        0xd5, 0xa3, 1, 2, 3, 0xaa, 0xbb, 0xcc, 1, 2, 3, 4, 5, 6, 7, 8,
    ];

    #[test]
    fn fields_begin_where_the_widths_before_them_end() {
        let (sample, rest) = Sample::split(&OCTETS).unwrap();
        assert!(rest.is_empty());
        assert!(sample.flag);
        assert_eq!(sample.reserved, Reserved(0b10));
        assert_eq!(sample.across, 0b1_0101_1010);
        assert_eq!(sample.low, 0b0011);
        assert_eq!(sample.middle, 0x01_0203);
        assert_eq!(sample.name, Octets([0xaa, 0xbb, 0xcc]));
        assert_eq!(sample.long, 0x0102_0304_0506_0708);
    }

    #[test]
    fn encoding_overwrites_exactly_the_bytes_of_the_header() {
        let (sample, _) = Sample::split(&OCTETS).unwrap();
        let mut out = [0xa5; 18];
        let rest = sample.put(&mut out).unwrap();
        assert_eq!(rest, [0xa5; 2]);
        assert_eq!(out[..16], OCTETS);
    }

    #[test]
    fn short_input_and_short_output_give_none() {
        let (sample, _) = Sample::split(&OCTETS).unwrap();
        for length in 0..16 {
            assert!(Sample::split(&OCTETS[..length]).is_none());
            assert!(sample.put(&mut [0; 16][..length]).is_none());
        }
    }

    #[test]
    fn an_oversized_value_leaves_adjacent_fields_alone() {
        let sample = Sample {
            across: u16::MAX,
            low: u8::MAX,
            ..Sample::default()
        };
        assert_eq!(sample.to_view().0[..3], [0x1f, 0xff, 0]);
    }

    header! {
        /// A table whose entries are narrower than a byte, and one whose entries are wider.
        Tables, TablesView: 8 octets {
            narrow: [u8; 8] = 32, "4 bits each.";
            wide: [u16; 2] = 32, "16 bits each.";
        }
    }

    #[test]
    fn entries_of_a_table_follow_one_another() {
        let octets = [0x12, 0x34, 0x56, 0x78, 0xab, 0xcd, 0xef, 0x01];
        let (tables, _) = Tables::split(&octets).unwrap();
        assert_eq!(tables.narrow, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(tables.wide, [0xabcd, 0xef01]);
        assert_eq!(tables.to_view().0, octets);
    }

    #[test]
    fn a_byte_string_holds_a_header_and_zeros() {
        let (sample, _) = Sample::split(&OCTETS).unwrap();
        let held = Octets::<18>::holding(&sample);
        assert_eq!(held.0, [&OCTETS[..], &[0, 0]].concat()[..]);
        assert_eq!(held.header::<Sample>(), sample);
    }

    #[test]
    fn short_byte_strings_are_padded_and_long_ones_refused() {
        assert_eq!(Octets::<4>::padded(&[1, 2]), Some(Octets([1, 2, 0, 0])));
        assert_eq!(Octets::<1>::padded(&[1, 2]), None);
    }
}
