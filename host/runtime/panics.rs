//! The panics that kernels on a GPU have reported.

use std::sync::Mutex;

use crate::driver::cuda::PanicRecord;
use crate::lock;

/// The loaded modules whose kernels report panics.
#[derive(Debug, Default)]
pub(crate) struct Panics(Mutex<Vec<Reporting>>);

#[derive(Debug)]
struct Reporting {
    text: &'static str,
    record: PanicRecord,
    /// The names of the entries that were looked up, and those of their kernels.
    kernels: Vec<(&'static str, &'static str)>,
}

/// The report of a kernel that panicked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Panicked {
    pub(crate) kernel: String,
    pub(crate) block: [u32; 3],
    pub(crate) thread: [u32; 3],
}

impl Panics {
    /// Adds a module by its text.
    pub(crate) fn add(&self, text: &'static str, record: PanicRecord) {
        lock(&self.0).push(Reporting { text, record, kernels: Vec::new() });
    }

    /// Notes the name of a kernel whose entry is in the module of this text.
    pub(crate) fn name(&self, text: &'static str, entry: &'static str, kernel: &'static str) {
        if let Some(module) = lock(&self.0).iter_mut().find(|module| std::ptr::eq(module.text, text)) {
            module.kernels.push((entry, kernel));
        }
    }

    /// Returns the panic that a module has reported, if there is one.
    pub(crate) fn first(&self) -> Option<Panicked> {
        lock(&self.0).iter().find_map(|module| {
            let (number, block, thread) = module.record.read()?;
            let mut entries = module.text.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
            let entry = entries.nth(number)?.split('(').next()?.trim();
            let kernel = module.kernels.iter().find(|(name, _)| *name == entry).map_or(entry, |(_, kernel)| kernel);
            Some(Panicked { kernel: kernel.to_owned(), block, thread })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_kernel_by_the_number_of_its_entry() {
        let text = ".version 6.3\n.visible .entry a__u32(\n)\n{\n}\n.visible .entry b__f32(\n)\n{\n}\n";
        let record = |words: [u32; 7]| PanicRecord::of(Box::leak(Box::new(words)));
        let panics = Panics::default();
        panics.add("another text", record([0; 7]));
        panics.name(text, "b__f32", "b");
        assert_eq!(panics.first(), None);
        panics.add(text, record([2, 3, 4, 5, 6, 7, 8]));
        let panicked = |kernel: &str| Panicked { kernel: kernel.to_owned(), block: [3, 4, 5], thread: [6, 7, 8] };
        assert_eq!(panics.first(), Some(panicked("b__f32")));
        panics.name(text, "a__u32", "a");
        panics.name(text, "b__f32", "b");
        assert_eq!(panics.first(), Some(panicked("b")));
    }
}
