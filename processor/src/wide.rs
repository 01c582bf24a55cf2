//! Code that is compiled twice: for every processor, and for those with wider vectors.

/// Computes an expression, compiled for AVX2 if the processor has it. Each function that it
/// calls must be `#[inline(always)]`, or that function is compiled for every processor. A macro,
/// because the closure around the expression needs the attribute, too.
macro_rules! wide {
    ($work:expr) => {
        $crate::wide::run(
            #[inline(always)]
            || $work,
        )
    };
}
pub(crate) use wide;

/// Runs what [`wide!`] was given.
#[inline(always)]
#[allow(unsafe_code, reason = "nothing else lets code that is built for every processor use what this one has")]
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn compiled_for_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: The processor has this feature, as was just asked.
            return unsafe { compiled_for_avx2(work) };
        }
    }
    work()
}
