//! The compiler's message if a body over [`Simt`] uses an operation of [`Cooperative`].

use crate::{Cooperative, Element, SharedMemory, Simt, Word};

macro_rules! refused {
    ($(($($unsafe:ident)?) $name:ident $(<$t:ident: $bound:ident>)? ($($arg:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {
        /// The operations of [`Cooperative`], for bodies over [`Simt`]. A call does not compile,
        /// and the message is that of [`Cooperative`]. Without this trait, the compiler would say
        /// that there is no such method.
        #[doc(hidden)]
        pub trait Independent: Copy {
            $(
                #[doc = concat!("See [`Cooperative::", stringify!($name), "`].")]
                ///
                /// # Safety
                /// It is that of the method of [`Cooperative`], if that has one.
                #[inline(always)]
                $($unsafe)? fn $name $(<$t: $bound>)? (self $(, $arg: $ty)*) $(-> $result)?
                where
                    Self: Cooperative,
                {
                    refused!(@ ($($unsafe)?) Cooperative::$name(self $(, $arg)*))
                }
            )*
        }
        impl<C: Simt> Independent for C {}
    };
    (@ () $call:expr) => { $call };
    // SAFETY: The caller promises what the same method of `Cooperative` requires.
    (@ (unsafe) $call:expr) => { unsafe { $call } };
}

refused! {
    () barrier();
    () barrier_and(p: bool) -> bool;
    () barrier_or(p: bool) -> bool;
    () barrier_count(p: bool) -> u32;
    () rank() -> u32;
    () lane() -> u32;
    () warp() -> u32;
    () shuffle_xor<T: Word>(v: T, mask: u32) -> T;
    () shuffle_up<T: Word>(v: T, delta: u32) -> T;
    () shuffle_down<T: Word>(v: T, delta: u32) -> T;
    () shuffle<T: Word>(v: T, source: u32) -> T;
    () ballot(p: bool) -> u32;
    () warp_sum(v: f32) -> f32;
    () warp_max(v: f32) -> f32;
    () warp_min(v: f32) -> f32;
    () warp_sum_u32(v: u32) -> u32;
    () warp_barrier();
    (unsafe) shared<T: Element>(byte_offset: u32) -> SharedMemory<T>;
    (unsafe) shared_at<T: Element>(address: u32) -> SharedMemory<T>;
    (unsafe) shared_get<T: Element>(s: SharedMemory<T>, i: u32) -> T;
    (unsafe) shared_set<T: Element>(s: SharedMemory<T>, i: u32, v: T);
    (unsafe) shared_get4<T: Word>(s: SharedMemory<T>, i: u32) -> [T; 4];
    (unsafe) shared_set4<T: Word>(s: SharedMemory<T>, i: u32, v: [T; 4]);
    (unsafe) shared_add(s: SharedMemory<u32>, i: u32, v: u32) -> u32;
}
