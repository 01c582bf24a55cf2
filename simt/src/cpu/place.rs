//! The state that the threads of a block share: the block's position and its shared memory.

use super::checker::Checker;
use crate::host::Parameter;
use crate::violation::violation;
use crate::{Dim3, Element, SharedMemory};

/// The position, the extents and the shared memory of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) parameters: &'static [Parameter],
    /// The slots of the launch for the parameters.
    pub(super) slots: &'a [u64],
    pub(super) idx: Dim3,
    pub(super) grid: Dim3,
    pub(super) dim: Dim3,
    /// The start of the block's shared memory, 16-byte aligned.
    pub(super) shared: *mut u8,
    pub(super) shared_len: u32,
    /// The shadow memory of the launch, on the checked device.
    pub(super) checker: Option<&'a Checker>,
    /// The order of the threads of an independent block.
    pub(super) turns: Turns,
}

/// An order of `n` things.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turns {
    Ascending,
    Descending,
    /// `start`, `start + step` and so on, modulo `n`. `step` has no common divisor with `n`.
    Drawn {
        start: u32,
        step: u32,
    },
}

impl Turns {
    /// Draws an order of `n` things.
    pub(super) fn draw(n: usize, random: &mut u64) -> Self {
        let n = n.max(1) as u64;
        let gcd = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let mut next = || {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*random >> 33) % n
        };
        let start = next();
        let first = next();
        let step = (first..first + n).map(|step| step % n).find(|step| gcd(*step, n) == 1).unwrap_or(1);
        Self::Drawn { start: start as u32, step: step as u32 }
    }

    /// Returns which of `n` things has turn `turn`.
    #[inline]
    pub(super) fn at(self, turn: usize, n: usize) -> usize {
        match self {
            Self::Ascending => turn,
            Self::Descending => n - 1 - turn,
            Self::Drawn { start, step } => ((u64::from(start) + turn as u64 * u64::from(step)) % n as u64) as usize,
        }
    }
}

impl Place<'_> {
    /// Returns the position of the thread with this rank.
    pub(super) fn thread(&self, rank: u32) -> Dim3 {
        let Dim3 { x, y, .. } = self.dim;
        if rank < x {
            return Dim3 { x: rank, y: 0, z: 0 }; // without divisions: most blocks have one dimension
        }
        Dim3 { x: rank % x, y: rank / x % y, z: rank / (x * y) }
    }

    /// Returns the name of the buffer that has an element or a tail at `address`.
    #[cold]
    pub(super) fn buffer_at(&self, address: usize) -> &'static str {
        let mut rest = self.slots;
        let slots = self.parameters.iter().map(|parameter| {
            let (slots, after) = rest.split_at(parameter.slots());
            rest = after;
            (parameter, slots)
        });
        let starts_before = slots.filter(|(p, slots)| p.is_buffer() && slots[1] > 0 && slots[0] <= address as u64);
        let found = starts_before.max_by_key(|(_, slots)| slots[0]).map(|(parameter, _)| parameter.name());
        found.unwrap_or("(unknown)")
    }

    /// Makes a window of shared memory after checking its alignment.
    #[inline]
    #[track_caller]
    pub(super) fn window<T: Element>(byte_offset: u32) -> SharedMemory<T> {
        if !(byte_offset as usize).is_multiple_of(align_of::<T>()) {
            violation(format!(
                "a window of `{}` at byte {byte_offset}, which is not a multiple of {}",
                std::any::type_name::<T>(),
                align_of::<T>()
            ));
        }
        SharedMemory { start: byte_offset, element: std::marker::PhantomData }
    }

    /// Returns the address of elements `i` to `i + n - 1` of a window of shared memory after
    /// checking that they are inside shared memory, and that the first one is aligned to `align`
    /// bytes.
    #[inline(always)]
    #[track_caller]
    pub(super) fn shared_at<T: Element>(&self, s: SharedMemory<T>, i: u32, n: u32, align: usize) -> *mut T {
        let start = u64::from(s.start) + u64::from(i) * size_of::<T>() as u64;
        if align > align_of::<T>() && !start.is_multiple_of(align as u64) {
            misaligned(std::any::type_name::<T>(), s.start, i, n, align);
        }
        if start + u64::from(n) * size_of::<T>() as u64 > u64::from(self.shared_len) {
            past_the_end(std::any::type_name::<T>(), s.start, i, n);
        }
        // SAFETY: `run_block` made the buffer with at least `shared_len` bytes, and the check above
        // says that the elements end there or before.
        unsafe { self.shared.add(start as usize).cast() }
    }
}

// These are functions of their own so that little code is inlined for each access.

#[cold]
#[inline(never)]
#[track_caller]
fn misaligned(element: &str, window: u32, i: u32, n: u32, align: usize) -> ! {
    violation(format!(
        "{n} elements at once from element {i} of a window of `{element}` that starts at byte {window}, which needs a \
         multiple of {align} bytes"
    ))
}

#[cold]
#[inline(never)]
#[track_caller]
fn past_the_end(element: &str, window: u32, i: u32, n: u32) -> ! {
    let last = u64::from(i) + u64::from(n) - 1;
    violation(format!("element {last} of a window of `{element}` that starts at byte {window}"))
}
