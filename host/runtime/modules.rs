//! The PTX files that devices have loaded, and the functions in them.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use log::debug;
use thalweg_simt::host::Kernel;

use super::device::Device;
use super::sync_stats::HostWait;
use crate::driver::{Cuda, Driver, cuda};
use crate::error::{Error, NotFound, Result, Version};
use crate::lock;

/// The PTX files that a device has loaded, each found by the address of its text.
#[derive(Debug, Default)]
pub(crate) struct Modules(Mutex<Vec<(&'static str, cuda::Module)>>);

impl Modules {
    /// Looks up the function of a kernel and stores it in the kernel's slot for this device.
    #[cold]
    pub(crate) fn find(&self, cuda: &Cuda, kernel: &Kernel, device: Device) -> Result<NonNull<()>> {
        let no_entry = |found| Error::NoEntry {
            entry: kernel.entry(),
            origin: kernel.origin(),
            found,
            device: device.to_string(),
        };
        // SAFETY: [kernel] This function only reads the PTX, and no declaration is made from it.
        let ptx = unsafe { kernel.ptx() };
        let text = text_of(ptx.texts(), kernel, cuda.info.capability).map_err(no_entry)?;
        let mut loaded = lock(&self.0);
        let (mut took, mut reports) = (None, None);
        let module = match loaded.iter().find(|(other, _)| std::ptr::eq(*other, text)) {
            Some((_, module)) => *module,
            None => {
                let start = Instant::now();
                let module = cuda.load(text)?;
                reports = cuda.panic_record(module, text).inspect_err(|_| {
                    // Otherwise each further try would load one more.
                    // SAFETY: [free] Nobody has asked for a function of the module, and it is not
                    // kept.
                    unsafe { cuda.unload(module) }
                })?;
                took = Some(start.elapsed());
                loaded.push((text, module));
                module
            }
        };
        drop(loaded);
        if let Some(record) = reports {
            device.panics().add(text, record);
        }
        // Without the lock, because a logger is code of the user.
        if let Some(took) = took {
            let (kernel, origin) = (kernel.name(), kernel.origin());
            let kib = text.len() >> 10;
            debug!(target: "thalweg::module", "{device} loaded {kib} KiB of PTX in {took:?}, for `{kernel}` of `{origin}`");
        }
        let function = cuda.function(module, kernel.entry())?.ok_or_else(|| no_entry(NotFound::Absent))?;
        device.panics().name(text, kernel.entry(), kernel.name());
        if let Some(slot) = cuda::cached(kernel, cuda.ordinal) {
            slot.store(function.as_ptr(), Ordering::Release);
        }
        Ok(function)
    }
}

/// The architecture that a PTX text is for, such as `sm_80` or `sm_90a`. Of two that a device runs,
/// the greater one is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    capability: Version,
    /// Whether the name ends with `a`. Only devices of exactly this capability run such PTX.
    exact: bool,
}

impl Target {
    /// Reads the directive `.target` of a text.
    fn of(text: &str) -> Option<Self> {
        let name = text.lines().find_map(|line| line.trim_start().strip_prefix(".target "))?;
        let number = name.split(',').next()?.trim().strip_prefix("sm_")?;
        let (number, exact) = number.strip_suffix('a').map_or((number, false), |number| (number, true));
        let number: u32 = number.parse().ok()?;
        Some(Self { capability: Version { major: number / 10, minor: number % 10 }, exact })
    }

    /// Returns whether a device of this capability runs the PTX.
    fn runs_on(self, capability: Version) -> bool {
        if self.exact { self.capability == capability } else { self.capability <= capability }
    }
}

/// Finds the text that has the kernel's entry and was built from the kernel's declaration. If there
/// are several for different architectures, it takes the best one that a device of this capability
/// runs.
fn text_of(
    texts: &[&'static str],
    kernel: &Kernel,
    capability: Version,
) -> std::result::Result<&'static str, NotFound> {
    if texts.is_empty() {
        return Err(NotFound::NoPtx);
    }
    let has_entry = |text: &&&'static str| {
        let names = text.lines().filter_map(|line| line.trim_start().strip_prefix(".visible .entry "));
        names.into_iter().any(|name| name.split('(').next().is_some_and(|name| name.trim() == kernel.entry()))
    };
    let with_entry: Vec<_> = texts.iter().filter(has_entry).map(|text| (Target::of(text), *text)).collect();
    if with_entry.is_empty() {
        let headers = texts.iter().flat_map(|text| text.lines().map_while(|line| line.strip_prefix("// ")));
        let without = headers.into_iter().find_map(|line| line.strip_prefix("none: "));
        return Err(without.map_or(NotFound::Absent, |why| NotFound::BuiltWithout(why.to_owned())));
    }
    // A text that does not say its target is left to the driver.
    let runs = |(target, _): &&(Option<Target>, _)| target.is_none_or(|target| target.runs_on(capability));
    let Some(&(best, text)) = with_entry.iter().filter(runs).max_by_key(|(target, _)| *target) else {
        let targets = with_entry.iter().filter_map(|(_, text)| text.lines().find(|line| line.starts_with(".target ")));
        let targets = targets.map(|line| line[".target ".len()..].to_owned()).collect::<Vec<_>>().join(", ");
        return Err(NotFound::Architecture { targets, capability });
    };
    if with_entry.iter().filter(|(target, _)| *target == best).count() > 1 {
        return Err(NotFound::Twice);
    }
    // A file of thalweg-ptx-builder starts with lines that say where each entry was declared. Text
    // from another source has no such lines; the author of an `unsafe` `ptx!` guarantees that it
    // fits.
    let header = || text.lines().map_while(|line| line.strip_prefix("// "));
    let mut entries = header().filter_map(|line| line.strip_prefix("entry: ")?.split_once(' '));
    match entries.find(|(entry, _)| *entry == kernel.entry()) {
        Some((_, origin)) if origin != kernel.origin() => Err(NotFound::Other(origin.to_owned())),
        Some(_) => Ok(text),
        None if header().any(|line| line.starts_with("compiler: ")) => Err(NotFound::Absent),
        None => Ok(text),
    }
}

impl Device {
    /// Returns the function of a kernel on this device; `None` on the CPU device, which needs none.
    /// The first call for a kernel looks it up and may load PTX.
    #[inline]
    #[track_caller]
    pub(crate) fn function(self, kernel: &'static Kernel) -> Result<Option<NonNull<()>>> {
        match self.driver() {
            Driver::Cpu(_) => Ok(None),
            Driver::Cuda(cuda) => match cuda::remembered(kernel, cuda.ordinal) {
                found @ Some(_) => Ok(found),
                None => {
                    let _wait = self.host_wait(HostWait::ModuleLoad);
                    self.keep(Modules::default).find(cuda, kernel, self).map(Some)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_simt::host::{Declaration, Ptx};

    use super::*;

    const ENTRY: &str = ".version 6.3\n.visible .entry scale__u32_xf32(\n)\n{\n}\n";
    const HEADER: &str = "// Made from Rust\n// compiler: rustc\n";

    fn look(texts: &[&'static str]) -> std::result::Result<&'static str, NotFound> {
        look_on(Version { major: 9, minor: 0 }, texts)
    }

    fn look_on(capability: Version, texts: &[&'static str]) -> std::result::Result<&'static str, NotFound> {
        // SAFETY: [kernel] The tests launch no kernel, so no PTX runs.
        static NONE: Ptx = unsafe { Ptx::new(&[]) };
        static KERNEL: Kernel = Kernel::new(
            &NONE,
            Declaration {
                origin: "blas 0.1.0 blas::one",
                name: "scale",
                entry: "scale__u32_xf32",
                parameters: &[],
                cpu: None,
                cooperative: false,
                bounds: None,
            },
        );
        text_of(texts, &KERNEL, capability)
    }

    #[test]
    fn an_entry_is_found_by_its_name_and_its_declaration() {
        let made = |origin: &str| -> &'static str {
            Box::leak(format!("{HEADER}// entry: scale__u32_xf32 {origin}\n{ENTRY}").into_boxed_str())
        };
        let own = made("blas 0.1.0 blas::one");
        assert_eq!(look(&[own]), Ok(own));
        assert_eq!(look(&[".version 6.3\n", own]), Ok(own));
        for other in ["blas 0.1.0 blas::two", "blas 0.2.0 blas::one", "other 0.1.0 blas::one"] {
            assert_eq!(look(&[made(other)]), Err(NotFound::Other(other.to_owned())));
        }
        assert_eq!(look(&[own, ENTRY]), Err(NotFound::Twice));
        assert_eq!(look(&[]), Err(NotFound::NoPtx));
    }

    #[test]
    fn an_entry_for_another_layout_of_a_struct_is_refused() {
        static NONE: Ptx = Ptx::NONE;
        static KERNEL: Kernel = Kernel::new(
            &NONE,
            Declaration {
                origin: "blas 0.1.0 blas::one Size { width: u32, height: u32 }",
                name: "scale",
                entry: "scale__Size_xf32",
                parameters: &[],
                cpu: None,
                cooperative: false,
                bounds: None,
            },
        );
        let made = |layout: &str| -> &'static str {
            let entry = ".visible .entry scale__Size_xf32(\n)\n{\n}\n";
            format!("{HEADER}// entry: scale__Size_xf32 blas 0.1.0 blas::one{layout}\n{entry}").leak()
        };
        let same = made(" Size { width: u32, height: u32 }");
        assert_eq!(text_of(&[same], &KERNEL, Version { major: 9, minor: 0 }), Ok(same));
        for other in [
            " Size { height: u32, width: u32 }",
            " Size { width: u32, height: i32 }",
            " Size { width: u32, height: u32, depth: u32 }",
            " Size { width: u64, height: u64 }",
            "",
        ] {
            let found = text_of(&[made(other)], &KERNEL, Version { major: 9, minor: 0 }).unwrap_err();
            assert_eq!(found, NotFound::Other(format!("blas 0.1.0 blas::one{other}")));
        }
    }

    #[test]
    fn a_crate_that_was_built_without_ptx_says_so() {
        // This is what `Ptx::none` of thalweg-ptx-builder writes.
        let none = "// There is no PTX in this file. thalweg-ptx-builder wrote it.\n// none: nobody wanted it\n";
        for texts in [&[none][..], &[none, ".version 6.3\n"], &[".version 6.3\n", none]] {
            let found = look(texts).unwrap_err();
            assert_eq!(found, NotFound::BuiltWithout("nobody wanted it".to_owned()));
            assert!(found.to_string().contains("built without PTX: nobody wanted it"));
        }
        assert_eq!(look(&[none, ENTRY]), Ok(ENTRY));
        // The words count in the header only.
        assert_eq!(look(&[".version 6.3\n// none: a comment\n"]), Err(NotFound::Absent));
    }

    #[test]
    fn text_from_elsewhere_needs_no_header_and_text_of_the_builder_does() {
        assert_eq!(look(&[ENTRY]), Ok(ENTRY));
        assert_eq!(look(&[Box::leak(format!("{HEADER}{ENTRY}").into_boxed_str())]), Err(NotFound::Absent));
        // An entry whose name only starts with the same text is another entry.
        assert_eq!(look(&[".visible .entry scale__u32_xf32x("]), Err(NotFound::Absent));
    }

    #[test]
    fn the_best_architecture_that_the_device_runs_is_taken() {
        let made = |target: &str| -> &'static str {
            Box::leak(ENTRY.replace(".version 6.3\n", &format!(".version 6.3\n.target {target}\n")).into_boxed_str())
        };
        let [sm_75, sm_80, sm_90a, sm_100] = ["sm_75, debug", "sm_80", "sm_90a", "sm_100"].map(made);
        let all = [sm_90a, sm_75, sm_100, sm_80];
        assert_eq!(look_on(Version { major: 7, minor: 5 }, &all), Ok(sm_75));
        assert_eq!(look_on(Version { major: 8, minor: 0 }, &all), Ok(sm_80));
        assert_eq!(look_on(Version { major: 8, minor: 9 }, &all), Ok(sm_80));
        assert_eq!(look_on(Version { major: 9, minor: 0 }, &all), Ok(sm_90a));
        // PTX for `sm_90a` runs on no newer device.
        assert_eq!(look_on(Version { major: 10, minor: 0 }, &all[..2]), Ok(sm_75));
        assert_eq!(look_on(Version { major: 12, minor: 0 }, &all), Ok(sm_100));
        assert_eq!(look_on(Version { major: 9, minor: 0 }, &[sm_80, sm_80]), Err(NotFound::Twice));
        let old = look_on(Version { major: 7, minor: 5 }, &[sm_90a, sm_80]).unwrap_err();
        assert_eq!(
            old,
            NotFound::Architecture { targets: "sm_90a, sm_80".to_owned(), capability: Version { major: 7, minor: 5 } }
        );
        assert_eq!(
            old.to_string(),
            "the PTX of its crate has this entry for sm_90a, sm_80 only, and the device has compute capability 7.5"
        );
    }
}
