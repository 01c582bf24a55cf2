//! The kernels of thalweg, in families. Each family is a feature of this crate, a module, and a PTX
//! file, so that a program embeds the kernels that it launches and no others.
//!
//! | feature | module | launched by |
//! |---|---|---|
//! | `augment` | `augment`: from images of any sizes to a batch of one size, changed at random | `thalweg-vision` |
//! | `collective` | `collective`: what several ranks bring becomes one | `thalweg-collective` |
//! | `jpeg` | `jpeg`: from the coded data of JPEG files to pixels | `thalweg-jpeg` |
//! | `linear` | `linear`: products of matrices | programs |
//! | `processor` | `processor`: from images of any sizes to the input of vision-language models | `thalweg-processor` |
//! | `train` | `train`: what training needs beside products of matrices | `thalweg-train` |
//! | `vision` | `vision`: from sRGB images to adaptive visual tokens | `thalweg-vision` |
//!
//! Each kernel is declared once, with [`thalweg_simt::kernel!`]: compiled for `nvptx64` this crate
//! is the PTX, compiled for the host it is the safe launchers and the bodies that the CPU device
//! runs.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]
#![cfg_attr(all(target_arch = "nvptx64", feature = "linear_sm_90a"), feature(asm_experimental_arch))]

thalweg_simt::ptx! {
    unsafe
    #[cfg(feature = "augment")]
    "augment",
    #[cfg(feature = "collective")]
    "collective",
    #[cfg(feature = "jpeg")]
    "jpeg",
    #[cfg(feature = "linear")]
    "linear",
    #[cfg(feature = "linear")]
    "linear_f32_sm_90a",
    #[cfg(feature = "linear")]
    "linear_sm_90a",
    #[cfg(feature = "processor")]
    "processor",
    #[cfg(feature = "processor")]
    "processor_sm_80",
    #[cfg(feature = "train")]
    "train",
    #[cfg(feature = "vision")]
    "vision",
}

#[cfg(feature = "augment")]
pub mod augment;
#[cfg(feature = "collective")]
pub mod collective;
#[cfg(feature = "jpeg")]
pub mod jpeg;
#[cfg(any(
    feature = "linear",
    all(target_arch = "nvptx64", any(feature = "linear_sm_90a", feature = "linear_f32_sm_90a"))
))]
pub mod linear;
#[cfg(any(
    feature = "augment",
    feature = "linear",
    all(target_arch = "nvptx64", any(feature = "linear_sm_90a", feature = "linear_f32_sm_90a")),
    feature = "train",
    feature = "vision"
))]
mod parts;
#[cfg(any(feature = "processor", all(target_arch = "nvptx64", feature = "processor_sm_80")))]
pub mod processor;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "vision")]
pub mod vision;
