//! Code that is compiled twice: for every processor, and for those with wider vectors.
//!
//! It is the only unsafe code of this crate. Without it, decoding a baseline file of 1080p takes
//! 1.4 to 1.8 times as long, which is longer than zune-jpeg and libjpeg-turbo take; with it, it
//! takes as long as libjpeg-turbo or less.

/// Computes an expression, compiled for AVX2 and BMI2 if the processor has them. Each function that
/// it calls must be `#[inline(always)]`, or that function is compiled for every processor. A macro,
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
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
        fn compiled_for_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        let has = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("lzcnt");
        if has {
            // SAFETY: The processor has each of these features, as was just asked.
            return unsafe { compiled_for_avx2(work) };
        }
    }
    work()
}
