//! NVTX: labelled ranges of a thread's time, for a tool that listens, such as Nsight Systems.
//!
//! A tool names its library in `NVTX_INJECTION64_PATH`. Whoever marks ranges loads it and calls its `InitializeInjectionNvtx2` with a function
//! that hands out tables of slots; the tool stores its own functions in them. That is what NVIDIA's header does, and all of it that ranges
//! need. (The `nvtx` crate builds that header with a C compiler and libclang, and `cudarc` wants a library of the CUDA toolkit.)

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::transmute;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A range that is open on this thread until it is dropped; nothing where no tool listens.
pub(crate) struct Range(Option<&'static Tool>, PhantomData<*const ()>);

/// Opens a range of this name.
#[inline]
pub(crate) fn range(label: &str) -> Range {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    let tool = TOOL.get_or_init(injected).as_ref();
    if let Some(tool) = tool {
        tool.push(label);
    }
    Range(tool, PhantomData)
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if let Some(tool) = self.0 {
            // SAFETY: the tool's function, as the header declares it; a range of this thread is open.
            unsafe { (tool.pop)() };
        }
    }
}

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// The functions of a tool that listens.
struct Tool {
    push: Push,
    pop: Pop,
}

impl Tool {
    fn push(&self, label: &str) {
        let label = CString::new(label.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the tool's function, as the header declares it; it copies the text.
        unsafe { (self.push)(label.as_ptr()) };
    }
}

/// Slots of each of the header's modules, from the second on; the first of each stays empty. Module 1 is the one with ranges.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const RANGES: usize = 1;
const PUSH: usize = 9;
const POP: usize = 11;

/// A module's slots, and pointers to them ending in null, which is what a tool sees.
struct Module {
    slots: [AtomicPtr<c_void>; 16],
    table: [AtomicPtr<AtomicPtr<c_void>>; 17],
}

static MODULES: [Module; SIZES.len()] = [const {
    Module { slots: [const { AtomicPtr::new(null_mut()) }; 16], table: [const { AtomicPtr::new(null_mut()) }; 17] }
}; SIZES.len()];

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module: unsafe extern "C" fn(u32, *mut *const c_void, *mut c_uint) -> c_int,
}

#[repr(C)]
struct Version {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_tool_version: unsafe extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module };
static VERSION: Version = Version { bytes: size_of::<Version>(), version: 3, reserved: 0, set_tool_version };

unsafe extern "C" fn set_tool_version(_: u32) {}

unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION).cast(),
        _ => null(),
    }
}

/// Gives a tool the table of a module.
unsafe extern "C" fn module(which: u32, table: *mut *const c_void, size: *mut c_uint) -> c_int {
    let Some((module, &slots)) = MODULES.get(which as usize).zip(SIZES.get(which as usize)).filter(|m| *m.1 > 0) else {
        return 0;
    };
    for (entry, slot) in module.table.iter().zip(&module.slots).take(slots).skip(1) {
        entry.store((&raw const *slot).cast_mut(), Ordering::Relaxed);
    }
    // SAFETY: each is null or a place for the tool's result, says the header.
    unsafe {
        if !table.is_null() {
            *table = module.table.as_ptr().cast();
        }
        if !size.is_null() {
            *size = slots as c_uint;
        }
    }
    1
}

/// Lets a tool store its functions.
///
/// # Safety
/// `initialize` is the `InitializeInjectionNvtx2` of a tool that stays loaded.
unsafe fn attach(initialize: Initialize) -> Option<Tool> {
    // SAFETY: the caller's promise; the tables are static, and their slots are as wide as pointers to functions.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    let slot = |id: usize| Some(MODULES[RANGES].slots[id].load(Ordering::Acquire)).filter(|f| !f.is_null());
    let (push, pop) = slot(PUSH).zip(slot(POP))?;
    // SAFETY: a tool stores functions of these types in these slots.
    Some(unsafe { Tool { push: transmute::<*mut c_void, Push>(push), pop: transmute::<*mut c_void, Pop>(pop) } })
}

/// The tool that the environment names.
#[cfg(all(unix, target_pointer_width = "64"))]
fn injected() -> Option<Tool> {
    use std::os::unix::ffi::OsStringExt;

    let path = CString::new(std::env::var_os("NVTX_INJECTION64_PATH")?.into_vec()).ok()?;
    // SAFETY: two texts that end in null. Loading runs the tool's initialisers, which is what the user asked for by the variable; it
    // is never unloaded.
    let initialize = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, c"InitializeInjectionNvtx2".as_ptr())
    };
    if initialize.is_null() {
        return None;
    }
    // SAFETY: the symbol's type, as the header declares it.
    unsafe { attach(transmute::<*mut c_void, Initialize>(initialize)) }
}

#[cfg(not(all(unix, target_pointer_width = "64")))]
fn injected() -> Option<Tool> {
    None
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::sync::Mutex;

    use super::*;

    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    unsafe extern "C" fn push(label: *const c_char) -> c_int {
        // SAFETY: a text that ends in null.
        HEARD.lock().unwrap().push(unsafe { CStr::from_ptr(label) }.to_string_lossy().into_owned());
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        HEARD.lock().unwrap().push("pop".into());
        0
    }

    /// What a tool does: asks for the callbacks, by them for the table, and stores its functions there.
    unsafe extern "C" fn tool(get: GetExportTable) -> c_int {
        // SAFETY: the tables are as the header declares them.
        unsafe {
            assert!(get(2).is_null());
            let version = &*get(3).cast::<Version>();
            assert_eq!((version.bytes, version.version), (24, 3));
            (version.set_tool_version)(3);
            let callbacks = &*get(1).cast::<Callbacks>();
            assert_eq!(callbacks.bytes, 16);
            let (mut table, mut size) = (null(), 0);
            assert_eq!((callbacks.module)(0, &mut table, &mut size), 0);
            assert_eq!((callbacks.module)(7, &mut table, &mut size), 0);
            assert_eq!((callbacks.module)(1, &mut table, &mut size), 1);
            assert_eq!(size, 16);
            let table = std::slice::from_raw_parts(table.cast::<*mut *mut c_void>(), 17);
            assert!(table[0].is_null() && table[16].is_null() && table[1..16].iter().all(|slot| !slot.is_null()));
            *table[PUSH] = push as *mut c_void;
            *table[POP] = pop as *mut c_void;
        }
        1
    }

    #[test]
    fn a_tool_hears_ranges() {
        // SAFETY: it does what a tool does, and is part of the program.
        let tool = Box::leak(Box::new(unsafe { attach(tool) }.unwrap()));
        tool.push("outer");
        let outer = Range(Some(tool), PhantomData);
        tool.push("with\0null");
        drop(Range(Some(tool), PhantomData));
        drop(outer);
        assert_eq!(*HEARD.lock().unwrap(), ["outer", "with null", "pop", "pop"]);
    }
}
