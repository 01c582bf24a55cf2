//! Kernels whose bodies hold no `unsafe`: what their bodies are given.
//!
//! `kernel! { pub fn .. }` without `unsafe` declares such a kernel. `docs/safe-kernels.md` in the
//! repository lists the rules and says why each holds. In short:
//!
//! - **A buffer states its extents**, as in `x: In<f32>[h, w]`. The launcher checks that their
//!   product is the buffer's length. The body checks each coordinate against its extent, and the
//!   compiler removes that check if a loop bound, a guard or an owner already implies it.
//! - **An element of an output has one owner.** `y: Out<f32>[h, w] by [y, x]` says which coordinate
//!   of the launch owns which dimension. A thread writes its own elements through a [`Cell`], and a
//!   write to another thread's element is reported.
//! - **An element is a number or an array of numbers** ([`Item`]). Elements that differ only in
//!   dimensions of `all` are a [`Column`], and a rectangle of an input that was checked once is an
//!   [`Area`].
//! - **A body over `Cooperative` is code of the block.** It holds [`Block`], sees nothing that
//!   differs between the threads of the block, and alone can wait. What threads do apart stands in
//!   closures, the thread steps, which get the witness [`Thread`] and cannot wait.
//! - **Shared memory changes its phase by value**: [`Fresh`], [`Filled`], [`Reading`], [`Writing`]
//!   and [`Adding`].
//!
//! An access outside an extent, or to another thread's element, is reported by a panic. On the CPU
//! device it becomes the error of the launch, and on a GPU it ends the kernel with a trap.
//!
//! The lifetime `'k` names one launch. No reference to a variable of the body lives that long, so a
//! closure that is `Copy + 'k` captures nothing that a thread could write and block code could
//! read.

mod area;
mod block;
mod declare;
mod global;
#[cfg(target_arch = "nvptx64")]
mod gpu;
mod item;
mod owner;
mod report;
mod shared;
mod team;
mod thread;

pub use area::{Area, Spot};
pub use block::{Block, Handles, Local};
#[doc(hidden)]
pub use declare::{__Declared, __count, __decimal, __declared};
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub use declare::{__run_block, __run_threads};
pub use global::{Atomic, Cell, Column, In, InOut, Out, Own};
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub use gpu::__shaped;
pub use item::Item;
pub use owner::{Across, All, By, Global, Group, Owner, Rank, Stride};
pub use shared::{Adding, Filled, Fresh, Reading, Turn, Writing};
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use team::Sealed;
pub use team::Team;
#[doc(hidden)]
pub use team::{Exchange, Member};
pub use thread::{Thread, Witness};
