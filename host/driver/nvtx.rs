//! NVTX: labeled ranges of a thread's time, for a profiler such as Nsight Systems.
//!
//! A tool names its library in `NVTX_INJECTION64_PATH`. The program that marks ranges loads the
//! library and calls its `InitializeInjectionNvtx2` with a function that returns tables of slots.
//! The tool stores its own functions in the slots. NVIDIA's header does the same; this file has
//! only the part that ranges need. (The `nvtx` crate builds the header with a C compiler and
//! libclang, and `cudarc` needs a library of the CUDA toolkit.)

#![cfg_attr(not(unix), allow(dead_code, unused_imports, reason = "the library is loaded on Unix only"))]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::transmute;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A range that is open on this thread until it is dropped. Without a tool it does nothing.
pub(crate) struct Range(Option<&'static Tool>, PhantomData<*const ()>);

static TOOL: OnceLock<Option<Tool>> = OnceLock::new();

/// Loads the tool that the environment names. Only the first call of a process reads it.
pub(crate) fn load() {
    TOOL.get_or_init(injected);
}

/// Opens a range of this name. Does nothing before [`load`].
#[inline]
pub(crate) fn range(label: &str) -> Range {
    let tool = TOOL.get().and_then(Option::as_ref);
    if let Some(tool) = tool {
        tool.push(label);
    }
    Range(tool, PhantomData)
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if let Some(tool) = self.0 {
            // SAFETY: [symbol] `attach` got the function from the tool, with the type that the
            // header declares. The range was opened on this thread, because `Range` is not `Send`.
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
        // SAFETY: [symbol] `attach` got the function from the tool, with the type that the header
        // declares. `label` is NUL-terminated and lives until the call returns; the tool copies it.
        unsafe { (self.push)(label.as_ptr()) };
    }
}

/// The number of slots of each of the header's modules, by the module's number. Module 0 does not
/// exist, and slot 0 of each module stays empty. Module 1 has the ranges.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const RANGES: usize = 1;
const PUSH: usize = 9;
const POP: usize = 11;

/// A module's slots, and the table of pointers to them that a tool gets. The table ends with null.
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
    // SAFETY: [symbol] The tool calls this function. By the header, each pointer is null or points
    // to a variable of the tool for this result.
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

/// Calls the tool's `initialize`, which stores its functions in the tables.
///
/// # Safety
/// `initialize` is the `InitializeInjectionNvtx2` of a tool that stays loaded.
unsafe fn attach(initialize: Initialize) -> Option<Tool> {
    // SAFETY: [symbol] The caller passes the `InitializeInjectionNvtx2` of a tool that stays
    // loaded. The tables are static, and each slot is as wide as a function pointer.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    let slot = |id: usize| Some(MODULES[RANGES].slots[id].load(Ordering::Acquire)).filter(|f| !f.is_null());
    let (push, pop) = slot(PUSH).zip(slot(POP))?;
    // SAFETY: [symbol] The pointers are not null (checked by `slot`). By the header, a tool stores
    // functions of these types in these slots.
    Some(unsafe { Tool { push: transmute::<*mut c_void, Push>(push), pop: transmute::<*mut c_void, Pop>(pop) } })
}

/// The tool that the environment names.
#[cfg(all(unix, target_pointer_width = "64"))]
fn injected() -> Option<Tool> {
    use std::os::unix::ffi::OsStringExt;

    let path = CString::new(std::env::var_os("NVTX_INJECTION64_PATH")?.into_vec()).ok()?;
    // SAFETY: [symbol] Both texts are NUL-terminated, and `library` is not null when `dlsym` uses
    // it. Loading runs the tool's initializers, which the user requests by setting the variable.
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
    // SAFETY: [symbol] The symbol is not null, and the header declares it with this type. The
    // library is never unloaded.
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
        // SAFETY: [symbol] `Tool::push` passes a NUL-terminated text.
        HEARD.lock().unwrap().push(unsafe { CStr::from_ptr(label) }.to_string_lossy().into_owned());
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        HEARD.lock().unwrap().push("pop".into());
        0
    }

    /// Does what a tool does: gets the callbacks, gets the table from them, and stores its
    /// functions there.
    unsafe extern "C" fn tool(get: GetExportTable) -> c_int {
        // SAFETY: [symbol] `export_table` returns static tables with the layout that the header
        // declares, and `table` has 17 pointers.
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
        // SAFETY: [symbol] `tool` does what the `InitializeInjectionNvtx2` of a tool does, and it
        // is part of this program, so it stays loaded.
        let tool = Box::leak(Box::new(unsafe { attach(tool) }.unwrap()));
        tool.push("outer");
        let outer = Range(Some(tool), PhantomData);
        tool.push("with\0null");
        drop(Range(Some(tool), PhantomData));
        drop(outer);
        assert_eq!(*HEARD.lock().unwrap(), ["outer", "with null", "pop", "pop"]);
    }
}
