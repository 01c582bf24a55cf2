//! A declared kernel and the PTX of its crate.

use std::sync::atomic::AtomicPtr;

use super::argument::Parameter;
use crate::__Bounds as Bounds;
use crate::cpu::{Checked, CpuBlock, Unchecked};

/// The entry of a kernel for the CPU device. [`kernel!`](crate::kernel) makes it.
#[derive(Clone, Copy, Debug)]
pub struct CpuEntry {
    /// The function that runs one block on the ordinary CPU device.
    #[doc(hidden)]
    pub block: BlockFn<Unchecked>,
    /// The function that runs one block on the checked device. A crate that is built without debug
    /// assertions has none.
    #[doc(hidden)]
    pub checked: Option<BlockFn<Checked>>,
}

/// The function that runs one block of a kernel on the CPU.
///
/// It is sound to call if the second argument holds what a launch carries for the parameters and
/// the kernel is sound for these arguments and for the shape of the block.
/// [`run_block`](crate::cpu::run_block) says this in full.
pub(crate) type BlockFn<M> = unsafe fn(&CpuBlock<'_, M>, &[u64]);

/// The number of devices for which a kernel remembers its function. Other devices look the function
/// up at each launch.
pub const CACHED_DEVICES: usize = 16;

/// The PTX of a crate's kernels, which [`ptx!`](crate::ptx) declares.
#[derive(Debug)]
pub struct Ptx {
    texts: &'static [&'static str],
}

impl Ptx {
    /// No PTX: what `ptx! {}` declares.
    #[doc(hidden)]
    pub const NONE: Self = Self { texts: &[] };

    /// Makes the PTX for the kernels that a crate declares.
    ///
    /// # Safety
    /// Every entry in `texts` whose name is that of a declaration of the crate does what that
    /// declaration promises, as [`ptx!`](crate::ptx) says.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new(texts: &'static [&'static str]) -> Self {
        Self { texts }
    }

    /// Returns the texts of the files.
    #[must_use]
    pub fn texts(&self) -> &'static [&'static str] {
        self.texts
    }
}

/// A kernel as declared.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// The place of the declaration and the layouts of its parameters.
    pub origin: &'static str,
    /// The name in the declaration.
    pub name: &'static str,
    /// The name of the PTX entry.
    pub entry: &'static str,
    /// The parameters, in their order.
    pub parameters: &'static [Parameter],
    /// The entry for the CPU device, if the declaration has a body.
    pub cpu: Option<CpuEntry>,
    /// Whether the threads of a block may wait for each other.
    pub cooperative: bool,
    /// The clause `bounds`.
    pub bounds: Option<Bounds>,
}

/// A declared kernel.
#[derive(Debug)]
pub struct Kernel {
    ptx: &'static Ptx,
    declared: Declaration,
    functions: [AtomicPtr<()>; CACHED_DEVICES],
}

impl Kernel {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(ptx: &'static Ptx, declared: Declaration) -> Self {
        Self { ptx, declared, functions: [const { AtomicPtr::new(std::ptr::null_mut()) }; CACHED_DEVICES] }
    }

    /// Returns the PTX of the declaring crate.
    ///
    /// # Safety
    /// The caller does not declare a kernel with it. Only kernels of the declaring crate may refer
    /// to it.
    #[doc(hidden)]
    pub unsafe fn ptx(&self) -> &'static Ptx {
        self.ptx
    }

    /// Returns where the kernel is declared: the package, its version and the module path,
    /// separated by spaces. After them come the layouts of those parameters that are structs or
    /// arrays.
    pub fn origin(&self) -> &'static str {
        self.declared.origin
    }

    /// Returns the name in the declaration.
    pub fn name(&self) -> &'static str {
        self.declared.name
    }

    /// Returns the name of the PTX entry, which consists of the name and the signature.
    pub fn entry(&self) -> &'static str {
        self.declared.entry
    }

    /// Returns the parameters, in their order.
    pub fn parameters(&self) -> &'static [Parameter] {
        self.declared.parameters
    }

    /// Returns the entry for the CPU device if the declaration has a body.
    pub fn cpu(&self) -> Option<CpuEntry> {
        self.declared.cpu
    }

    /// Returns whether the kernel is declared over [`Cooperative`](crate::Cooperative), so that the
    /// threads of a block may wait for each other.
    pub fn cooperative(&self) -> bool {
        self.declared.cooperative
    }

    /// Returns the most threads that a block of the kernel may have, if the declaration has
    /// `bounds`.
    pub fn most_threads(&self) -> Option<u32> {
        self.declared.bounds.map(|bounds| bounds.threads)
    }

    /// Returns the loaded functions that the host crate remembers, one slot for each device.
    ///
    /// # Safety
    /// The caller stores nothing in a slot but this kernel's function on the slot's device.
    #[doc(hidden)]
    pub unsafe fn functions(&self) -> &[AtomicPtr<()>; CACHED_DEVICES] {
        &self.functions
    }
}

/// Returns the text of the bytes that `kernel!` made from texts.
#[doc(hidden)]
#[must_use]
pub const fn utf8(bytes: &[u8]) -> &str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("a declaration is text"),
    }
}
