//! Writes mutations into a text, each behind the switch.

use std::ops::Range;

use crate::table::Mutation;

/// A place of a file, and what is there while a mutation is in force.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    /// The number of the mutation.
    pub(crate) number: u32,
    /// The bytes of the file that it replaces. They are none for a line that is added.
    pub(crate) at: Range<usize>,
    pub(crate) form: Form,
}

#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// An expression or statements instead of these: `if ... { new } else { old }`.
    Instead(String),
    /// Text with `MUTATED` where it asks whether the mutation is in force.
    Whole(String),
}

/// The word of a table for whether its mutation is in force.
const MUTATED: &str = "MUTATED";

fn switch(home: &str, number: u32) -> String {
    format!("{home}::__mutated({number})")
}

/// Finds the places of a mutation in the text of its file.
pub(crate) fn find(text: &str, mutation: &Mutation, number: u32) -> Result<Vec<Patch>, String> {
    let mut from = 0;
    if let Some(near) = &mutation.near {
        from = match &*places(text, near, 0) {
            [place] => place.end,
            places => return Err(format!("{}: {} has {near:?} {} times", mutation.name, mutation.file, places.len())),
        };
    }
    let mut patches = Vec::new();
    for hunk in &mutation.hunks {
        let found = places(text, &hunk.old, from);
        let at = match &*found {
            [at] => at.clone(),
            // The first one behind the context.
            [at, ..] if mutation.near.is_some() => at.clone(),
            _ => return Err(format!("{}: {} has {:?} {} times", mutation.name, mutation.file, hunk.old, found.len())),
        };
        patches.push(match hunk.new.contains(MUTATED) {
            true => Patch { number, at, form: Form::Whole(hunk.new.clone()) },
            false => {
                let (at, new) = value(text, at, &hunk.new);
                Patch { number, at, form: Form::Instead(new.to_owned()) }
            }
        });
    }
    Ok(patches)
}

/// Of two `let` of one name, returns the place of the old value, and the new one. A name would not
/// outlast a branch.
fn value<'n>(text: &str, at: Range<usize>, new: &'n str) -> (Range<usize>, &'n str) {
    let parts =
        |text: &str| Some((text.find(" = ").filter(|_| text.starts_with("let "))? + 3, text.strip_suffix(';')?.len()));
    match (parts(&text[at.clone()]), parts(new)) {
        (Some((from, to)), Some((first, last))) if text[at.start..at.start + from] == new[..first] => {
            (at.start + from..at.start + to, &new[first..last])
        }
        _ => (at, new),
    }
}

/// Returns where a text is in another one, from a place on. Each run of white space is like any
/// other.
fn places(text: &str, wanted: &str, from: usize) -> Vec<Range<usize>> {
    let words: Vec<&str> = wanted.split_whitespace().collect();
    let Some((first, rest)) = words.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for (start, _) in text[from..].match_indices(first) {
        let start = from + start;
        let mut end = Some(start + first.len());
        for word in rest {
            end = end.and_then(|end| {
                let blank = text[end..].len() - text[end..].trim_start().len();
                let there = blank > 0 && text[end + blank..].starts_with(word);
                there.then_some(end + blank + word.len())
            });
        }
        found.extend(end.map(|end| start..end));
    }
    found
}

/// A text with mutations, and where each of them is in it.
#[derive(Default)]
pub(crate) struct Mutated {
    pub(crate) text: String,
    pub(crate) places: Vec<(u32, Range<usize>)>,
}

/// Writes patches into a text. Of two patches, one must be within the other, or they must be apart.
/// `home` is the crate that has the switch.
pub(crate) fn apply(text: &str, mut patches: Vec<Patch>, home: &str) -> Result<Mutated, (u32, u32)> {
    // What contains another one comes first.
    patches.sort_by_key(|patch| (patch.at.start, std::cmp::Reverse(patch.at.end), patch.number));
    let mut mutated = Mutated::default();
    write(text, 0..text.len(), &patches, home, &mut mutated)?;
    Ok(mutated)
}

fn write(text: &str, all: Range<usize>, patches: &[Patch], home: &str, to: &mut Mutated) -> Result<(), (u32, u32)> {
    let mut at = all.start;
    let mut rest = patches;
    while let [patch, following @ ..] = rest {
        let inside = following.iter().take_while(|next| next.at.start < patch.at.end).count();
        let (inner, after) = following.split_at(inside);
        rest = after;
        if let Some(across) = inner.iter().find(|next| next.at.end > patch.at.end) {
            return Err((patch.number, across.number));
        }
        to.text += &text[at..patch.at.start];
        let start = to.text.len();
        let old = &text[patch.at.clone()];
        match &patch.form {
            Form::Whole(new) => {
                if let Some(hidden) = inner.first() {
                    return Err((patch.number, hidden.number));
                }
                to.text += &new.replace(MUTATED, &switch(home, patch.number));
            }
            Form::Instead(new) => {
                // A statement may not be in parentheses, and an operand must be.
                let statement = old.is_empty() || old.ends_with([';', '}']);
                let [open, close] = if statement { ["", ""] } else { ["(", ")"] };
                to.text += &format!("{open}if {} {{ {new} }} ", switch(home, patch.number));
                if !old.is_empty() {
                    to.text += "else { ";
                    write(text, patch.at.clone(), inner, home, to)?;
                    to.text += " }";
                }
                to.text += close;
            }
        }
        to.places.push((patch.number, start..to.text.len()));
        at = patch.at.end;
    }
    to.text += &text[at..all.end];
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instead(number: u32, at: Range<usize>, new: &str) -> Patch {
        Patch { number, at, form: Form::Instead(new.into()) }
    }

    #[test]
    fn a_mutation_within_another_one_is_in_its_second_branch() {
        let text = "f(a + b);";
        let done =
            apply(text, vec![instead(2, 2..7, "a - b"), instead(1, 0..9, ""), instead(3, 6..7, "0")], "crate").unwrap();
        assert_eq!(
            done.text,
            "if crate::__mutated(1) {  } else { f((if crate::__mutated(2) { a - b } else { \
             a + (if crate::__mutated(3) { 0 } else { b }) })); }"
        );
        let third = &done.places.iter().find(|it| it.0 == 3).unwrap().1;
        assert_eq!(&done.text[third.clone()], "(if crate::__mutated(3) { 0 } else { b })");
        assert_eq!(apply(text, vec![instead(1, 0..3, ""), instead(2, 2..7, "")], "crate").err(), Some((1, 2)));
    }

    #[test]
    fn a_text_is_found_however_its_lines_are_broken() {
        assert_eq!(places("x.wait(\n    event,\n)", "x.wait( event, )", 0).first(), Some(&(0..20)));
        assert_eq!(places("a b a  b ab", "a b", 0), [0..3, 4..8]);
        assert_eq!(places("a b a  b ab", "a b", 1).first(), Some(&(4..8)));
    }
}
