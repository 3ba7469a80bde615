//! Narrowing conversions of integers that are known to fit.
//!
//! The higher crates deny `clippy::cast_possible_truncation`. An integer from a caller or a file
//! goes through `try_from` and becomes a typed error, and wrapping computations mask the bits that
//! they keep. All other narrowing happens here, where debug builds, and so all tests and
//! simulations, check it.

// The higher crates store many memory indices as `u32` and convert them back to `usize`.
const _: () = assert!(
    size_of::<usize>() >= size_of::<u32>(),
    "targets with less than 32 bits"
);

/// An integer type that can be narrowed to `To`; see [`narrow`].
pub trait Narrow<To>: Copy {
    #[doc(hidden)]
    fn narrow(self) -> To;
}

macro_rules! narrows {
    ($($from:ty => $($to:ty),+;)+) => {$($(
        impl Narrow<$to> for $from {
            #[inline(always)]
            #[track_caller]
            fn narrow(self) -> $to {
                debug_assert!(
                    <$to>::try_from(self).is_ok(),
                    "{self} does not fit into {}",
                    stringify!($to)
                );
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the caller knows that it fits, and debug builds check that"
                )]
                let narrowed = self as $to;
                narrowed
            }
        }
    )+)+};
}

narrows! {
    u64 => u8, u16, u32;
    usize => u8, u16, u32;
}

/// Narrows an integer that is known to fit. The surrounding code or a comment says why it fits.
///
/// # Panics
/// In a debug build, if the integer does not fit.
///
/// ```
/// let slots = vec![0; 300];
/// assert_eq!(braid_rt::narrow::<u16>(slots.len()), 300_u16);
/// ```
#[inline(always)]
#[track_caller]
pub fn narrow<To>(number: impl Narrow<To>) -> To {
    number.narrow()
}

/// Converts a size, an index or an offset to `usize`. Free on a 64-bit target, where every value
/// fits.
///
/// # Panics
/// On a 32-bit target, if the value exceeds the address space.
///
/// ```
/// assert_eq!(braid_rt::to_usize(1 << 20), 1_048_576);
/// ```
#[inline(always)]
#[track_caller]
pub fn to_usize(number: u64) -> usize {
    match usize::try_from(number) {
        Ok(number) => number,
        Err(_) => beyond_the_address_space(number),
    }
}

#[cold]
#[track_caller]
fn beyond_the_address_space(number: u64) -> ! {
    panic!("{number} exceeds the address space of this target")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept() {
        assert_eq!(narrow::<u8>(255_u64), u8::MAX);
        assert_eq!(narrow::<u16>(65_535_usize), u16::MAX);
        assert_eq!(narrow::<u32>(u64::from(u32::MAX)), u32::MAX);
        assert_eq!(to_usize(usize::MAX as u64), usize::MAX);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "65536 does not fit into u16")]
    fn debug_builds_check() {
        narrow::<u16>(65_536_usize);
    }
}
