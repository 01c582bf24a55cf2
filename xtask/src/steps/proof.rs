//! The proof that streams have no races: the page, the theorem and the model.

use std::fs;

use super::check::{apart, install};
use crate::command::{line, need, output, root, run, shown, words};

/// Compares `docs/soundness.md` with the code.
pub(crate) fn soundness() -> Result<(), String> {
    line(".ci/soundness.py")
}

/// Checks the theorem, and searches the model as far as an ordinary run does.
pub(crate) fn proof() -> Result<(), String> {
    if output(&mut words("coqc --version")).is_err() {
        install(&["coq"])?;
    }
    need("coqc", "apt-get install coq")?;
    line("proof/theorem/check.py")?;
    let mut model = apart("proof/model", "run -q --release");
    println!("$ {}", shown(&model));
    let done = model.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&done.stdout);
    print!("{text}");
    if !done.status.success() {
        return Err(format!("{}: the model ended with {}", String::from_utf8_lossy(&done.stderr), done.status));
    }
    // A rule that has changed has changed the states, and the page says how many there are.
    let page = fs::read_to_string(root().join("docs/soundness.md")).map_err(|error| error.to_string())?;
    let searches: Vec<_> = text.lines().filter_map(search).collect();
    if searches.is_empty() {
        return Err("the model printed no search".into());
    }
    for (name, states) in searches {
        let (start, end) = (format!("| {name} |"), format!("| {states} |"));
        if !page.lines().any(|row| row.starts_with(&start) && row.ends_with(&end)) {
            return Err(format!("docs/soundness.md has no search `{name}` of {states} states"));
        }
    }
    run(&mut apart("proof/model", "run -q --release -- compare"))
}

/// Reads the name of a search and its number of states, written with spaces, from a line that the
/// model prints.
fn search(line: &str) -> Option<(String, String)> {
    let (name, states) = line.split_once(" states in up to ")?.0.rsplit_once(' ')?;
    let digits = states.len();
    let spaced = states.char_indices().flat_map(|(at, digit)| {
        let space = at > 0 && (digits - at) % 3 == 0;
        space.then_some(' ').into_iter().chain([digit])
    });
    Some((name.trim().to_owned(), spaced.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_are_read_from_what_the_model_prints() {
        let line = "shared, page-locked                 1090877 states in up to 11 transitions,   0.7 s";
        assert_eq!(search(line), Some(("shared, page-locked".into(), "1 090 877".into())));
        assert_eq!(
            search("forks                                 210 states in up to  9 transitions,   0.7 s").unwrap().1,
            "210"
        );
        assert_eq!(search("an event is made without its record: 3 transitions"), None);
    }
}
