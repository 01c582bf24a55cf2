//! What the macros take from the place where they are used.
//!
//! `tokens.txt` has a row for each name that `kernel!`, `by_value!`, `ptx!` and the derive match by
//! its text, or write without saying whose it is. A row says why another meaning of the name is
//! harmless, and which test shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use thalweg::{ByValue, Error, LaunchError, simt};
use vocabulary::names::{generics, with_unsafe, without_unsafe};

use super::on_each_device;

/// The files with macros, and the mark before what a macro fills in.
const MACROS: [(&str, char); 7] = [
    ("simt/src/kernel.rs", '$'),
    ("simt/src/safe/declare.rs", '$'),
    ("simt/src/by_value.rs", '$'),
    ("simt/src/ptx.rs", '$'),
    ("derive/src/lib.rs", '#'),
    ("derive/src/instances.rs", '#'),
    ("derive/src/clause.rs", '#'),
];

/// The words of the language, which nobody can give another meaning.
const KEYWORDS: &str = "as break const continue crate dyn else enum extern false fn for if impl in let loop match mod move \
                        mut pub ref return self Self static struct super trait true type unsafe use where while _ '_ 'static";

/// What can stand after the `:` of a variable of a macro.
const FRAGMENTS: &str = "block expr ident lifetime literal meta tt ty vis";

fn has(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|w| w == word)
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '\'')
}

/// Takes Rust apart, without comments. Texts keep their quotes.
fn tokens(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let len = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => {
                let mut escaped = false;
                let end = rest[1..].find(|c| {
                    let end = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    end
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            '\'' => match rest[1..].char_indices().nth(1) {
                Some((at, '\'')) => at + 2,
                _ if rest[1..].starts_with('\\') => 2 + rest[2..].find('\'').unwrap_or(0) + 1,
                _ => 1 + word(&rest[1..]),
            },
            ':' if rest.starts_with("::") => 2,
            c if c.is_alphanumeric() || c == '_' => word(rest),
            c => c.len_utf8(),
        };
        let token = &rest[..len];
        if !token.starts_with("//") && !first.is_whitespace() {
            found.push(token);
        }
        rest = &rest[len..];
    }
    found
}

/// Returns the tokens of the group that starts at `at`.
fn group<'t, 'a>(tokens: &'t [&'a str], at: usize) -> &'t [&'a str] {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &tokens[at..=i];
        }
    }
    panic!("a group does not end");
}

/// Returns the names in the rules or the results of a macro that are neither filled in nor say
/// whose they are.
fn open_names(macros: &[&str], mark: char) -> BTreeSet<String> {
    let mark = mark.to_string();
    let before = |i: usize, n: usize| i.checked_sub(n).map_or("", |i| macros[i]);
    let mut names = BTreeSet::new();
    for (i, token) in macros.iter().enumerate() {
        let filled_in = before(i, 1) == mark || (before(i, 1) == "d" && before(i, 2) == mark);
        let fragment = before(i, 1) == ":" && has(FRAGMENTS, token) && is_word(before(i, 2));
        // What follows `::` belongs to what stands before it. A path may start with it, and that of
        // a crate has its root.
        let inside = before(i, 1) == "::" && (is_word(before(i, 2)) || before(i, 2) == ">");
        let root = inside && before(i, 2) == "crate" && before(i, 3) != mark;
        if !is_word(token) || has(KEYWORDS, token) || filled_in || fragment || (inside && !root) {
            continue;
        }
        let start = if root {
            "crate::"
        } else if before(i, 1) == "::" {
            "::"
        } else {
            ""
        };
        names.insert(format!("{start}{token}"));
    }
    names
}

/// Returns the names of all macros, each with the macros that have it.
fn names_of_macros(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    let mut add = |names: BTreeSet<String>, place: &str| {
        for name in names {
            found.entry(name).or_default().insert(place.to_owned());
        }
    };
    for (file, mark) in MACROS {
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let all = tokens(&source);
        for (i, token) in all.iter().enumerate() {
            let text = token.trim_matches('"');
            if mark == '$' && all[i..].starts_with(&["macro_export", "]", "macro_rules", "!"]) {
                add(open_names(group(&all, i + 5), mark), all[i + 4]);
            } else if mark == '#' && ["quote", "quote_spanned", "parse_quote"].contains(token) && all[i + 1] == "!" {
                let result = group(&all, i + 2);
                // What stands before `=>` says where errors point.
                let start = result.windows(2).position(|w| w == ["=", ">"]).filter(|_| *token == "quote_spanned");
                add(open_names(&result[start.map_or(0, |start| start + 2)..], mark), file);
            } else if mark == '#'
                && token.starts_with('"')
                && is_word(text)
                && !has(KEYWORDS, text)
                && tokens(text).len() == 1
            {
                // A text of one word is compared with what the author wrote, or names something.
                add(BTreeSet::from([text.to_owned()]), file);
            }
        }
    }
    found
}

/// Returns whether a program gives a name another meaning: by one of its macros for that, or as a
/// lifetime or a label.
fn shadows(source: &str, name: &str) -> bool {
    let all = tokens(source);
    let declared = |at: usize| {
        let [macro_name, "!", "{"] = all[at..at + 3] else { return false };
        has("names methods shadows", macro_name) && group(&all, at + 2).contains(&name)
    };
    if name.starts_with('\'') { all.contains(&name) } else { (0..all.len() - 2).any(declared) }
}

#[test]
fn every_name_that_a_macro_looks_up_is_listed_with_a_test() {
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let (kernels, soundness) = (read("simt/tests/vocabulary/src/names.rs"), read("tests/soundness.rs"));
    let mut names = names_of_macros(root);
    let mut wrong = Vec::new();
    for row in include_str!("tokens.txt").lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let [name, _why, test] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("not `NAME | WHY | TEST`: {row}");
        };
        if names.remove(name).is_none() {
            wrong.push(format!("no macro has `{name}` any more"));
        }
        let shown = match test {
            "names" => shadows(&kernels, name),
            "resource" => shadows(&soundness, name),
            program => {
                let file = root.join("tests/ui").join(program).with_extension("rs");
                let name = name.trim_start_matches("crate").trim_start_matches("::");
                let bugs =
                    |source: String| source.lines().any(|line| line.contains("// bug") && tokens(line).contains(&name));
                fs::read_to_string(file).is_ok_and(bugs)
            }
        };
        if !shown {
            wrong.push(format!("`{name}`: the test `{test}` does not have the name"));
        }
    }
    wrong.extend(names.iter().map(|(name, places)| format!("`{name}` of {places:?} is not listed in tokens.txt")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_declaration_means_the_same_where_all_names_are_shadowed() {
    let size = with_unsafe::Size { grid: 3, value: 10 };
    assert_eq!(format!("{:?}", ByValue::widen(size)), "Size { grid: 3, value: 10 }");
    on_each_device(|s| {
        let unmet = |result: Result<(), Error>| match result {
            Err(Error::Launch(LaunchError::Requirement { requirement, .. })) => requirement,
            other => panic!("{other:?}"),
        };
        let half = simt::f16::from_f32(0.5);
        let x = s.upload_blocking(&[1.0f32, 2.0, 3.0]).unwrap();
        let mut y = s.upload_blocking(&[0.0f32; 3]).unwrap();
        let mut z = s.upload_blocking(&[5u32; 3]).unwrap();
        let mut scale =
            |byte, yes| with_unsafe::shadowed_affine(s, byte, size, [2.0, 0.5], half, yes, &x, &mut y, &mut z);
        scale(1, true).unwrap();
        assert_eq!(unmet(scale(1, false)), "'unmet: { break 'unmet yes }");
        assert_eq!(unmet(scale(0, true)), "byte == 1");
        assert_eq!(s.read_blocking(&y).unwrap(), [2.5, 4.5, 6.5]);
        assert_eq!(s.read_blocking(&z).unwrap(), [15; 3]);

        let x = s.upload_blocking(&[0u8, 1, 2, 3, 4, 5]).unwrap();
        let mut y = s.upload_blocking(&[0u8; 3]).unwrap();
        with_unsafe::shadowed_every(s, 3, &x, &mut y).unwrap();
        assert_eq!(s.read_blocking(&y).unwrap(), [0, 2, 4]);
        let mut y = s.upload_blocking(&[0u32; 2]).unwrap();
        with_unsafe::shadowed_warp_sums(s, &mut y).unwrap();
        assert_eq!(s.read_blocking(&y).unwrap(), [496; 2]);

        let x = s.upload_blocking(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let mut y = s.upload_blocking(&[0.5f32; 4]).unwrap();
        let mut sums = s.upload_blocking(&[0u32]).unwrap();
        without_unsafe::shadowed_rows(s, 4, true, &x, &mut y, &mut sums).unwrap();
        assert_eq!(
            unmet(without_unsafe::shadowed_rows(s, 4, false, &x, &mut y, &mut sums)),
            "'unmet: { break 'unmet yes }"
        );
        assert_eq!(s.read_blocking(&y).unwrap(), [3.5, 7.5, 11.5, 15.5]);
        assert_eq!(s.read_blocking(&sums).unwrap(), [2]);
        let mut y = s.upload_blocking(&[0u32; 64]).unwrap();
        without_unsafe::shadowed_block_sums(s, &mut y).unwrap();
        assert_eq!(s.read_blocking(&y).unwrap(), [496; 64]);

        let mut y = s.upload_blocking(&[0u32]).unwrap();
        generics::shadowed_struct(s, generics::M { m: 7 }, &mut y).unwrap();
        assert_eq!(s.read_blocking(&y).unwrap(), [7]);
    });
}
