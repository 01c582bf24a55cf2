//! Names: those of the tracks, and the labels of spans.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// The tracks of a timeline, each with a name that no other track has.
#[derive(Default)]
pub(super) struct Tracks {
    names: Vec<Arc<str>>,
    streams: HashMap<u64, u32>,
    /// By the stream's number in the work log.
    logged: HashMap<u64, u32>,
    hosts: HashMap<Arc<str>, u32>,
}

impl Tracks {
    /// The track of the stream with this serial number. `name` names a new track.
    pub(super) fn stream(&mut self, serial: u64, name: impl FnOnce() -> String) -> u32 {
        if let Some(&track) = self.streams.get(&serial) {
            return track;
        }
        let name = self.unused(name(), serial);
        let track = self.add(name);
        self.streams.insert(serial, track);
        track
    }

    /// The track of a stream by its number in the work log: that of [`logged`](Self::logged), or a
    /// new one for a stream without a span.
    pub(super) fn of_log(&mut self, number: u64) -> u32 {
        if let Some(&track) = self.logged.get(&number) {
            return track;
        }
        let name = self.unused(format!("stream {number} without a span"), "log");
        let track = self.add(name);
        self.logged.insert(number, track);
        track
    }

    /// Says which number the stream of a track has in the work log.
    pub(super) fn logged(&mut self, number: u64, track: u32) {
        self.logged.insert(number, track);
    }

    /// The track of the host that was asked for by this name.
    pub(super) fn host(&mut self, name: &str) -> u32 {
        if let Some(&track) = self.hosts.get(name) {
            return track;
        }
        let unused = self.unused(name.to_owned(), "host");
        let track = self.add(unused);
        self.hosts.insert(name.into(), track);
        track
    }

    /// Gives the stream's track this name, and returns the track.
    pub(super) fn rename(&mut self, serial: u64, name: &str) -> u32 {
        let track = self.stream(serial, || name.to_owned());
        let at = track as usize;
        if *self.names[at] != *name {
            self.names[at] = "".into(); // so that the track does not collide with its own old name
            self.names[at] = self.unused(name.to_owned(), serial);
        }
        track
    }

    pub(super) fn name(&self, track: u32) -> Arc<str> {
        self.names[track as usize].clone()
    }

    /// The name, with a note added if another track has that name.
    fn unused(&self, name: String, note: impl fmt::Display) -> Arc<str> {
        let taken = self.names.iter().any(|track| **track == *name);
        if taken { format!("{name} ({note})").into() } else { name.into() }
    }

    fn add(&mut self, name: Arc<str>) -> u32 {
        self.names.push(name);
        self.names.len() as u32 - 1
    }
}

/// Keeps one copy of each label, however many spans have it.
#[derive(Default)]
pub(super) struct Labels(HashSet<Arc<str>>);

impl Labels {
    pub(super) fn get(&mut self, label: &str) -> Arc<str> {
        if let Some(label) = self.0.get(label) {
            return label.clone();
        }
        let label: Arc<str> = label.into();
        self.0.insert(label.clone());
        label
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Names the track of a stream after its tag: the last segment of each path in the name of the
/// tag's type.
pub(super) fn of_stream(tag: &str, serial: u64) -> String {
    if tag.starts_with(concat!(env!("CARGO_CRATE_NAME"), "::any_stream::")) {
        return format!("stream {serial}");
    }
    let paths = tag.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':' | '{' | '}' | '#')));
    let words = paths.filter_map(|path| path.rsplit("::").next()).filter(|word| !matches!(*word, "" | "Within"));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_are_called_as_their_tags() {
        assert_eq!(of_stream("demo::main::Upload", 3), "Upload");
        assert_eq!(of_stream("demo::main::{{closure}}::Upload", 3), "Upload");
        assert_eq!(of_stream("thalweg::brand::Within<demo::Left, demo::Upload>", 3), "Left Upload");
        assert_eq!(of_stream(std::any::type_name::<crate::Scoped<'_>>(), 7), "stream 7");
        assert_eq!(of_stream(std::any::type_name::<crate::PerThread<'_>>(), 7), "stream 7");
    }
}
