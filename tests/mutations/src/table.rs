//! The tables of mutations, which are text files: see `docs/testing.md`.

use std::path::Path;

/// A test that is expected to notice: the package, its test binary (or `lib`), and filters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: String,
    pub(crate) binary: String,
    pub(crate) filters: Vec<String>,
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.package, self.binary, self.filters.join(" "))
    }
}

/// A text and what stands there instead.
#[derive(Clone, Debug)]
pub(crate) struct Hunk {
    pub(crate) old: String,
    pub(crate) new: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    pub(crate) area: String,
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) tests: Vec<Test>,
    /// The text behind which the first hunk is.
    pub(crate) near: Option<String>,
    pub(crate) hunks: Vec<Hunk>,
    /// Why no test can notice.
    pub(crate) equivalent: Option<String>,
    /// Whether only a GPU runs the code.
    pub(crate) gpu: bool,
}

/// A file of which the generator makes mutations.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) tests: Vec<Test>,
}

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) sources: Vec<Source>,
    /// The generated mutations that no test can notice, by name, with the reason.
    pub(crate) equivalents: Vec<(String, String)>,
}

/// Reads every table of a folder, in the order of their names.
pub(crate) fn read(folder: &Path) -> Result<Tables, String> {
    let mut tables = Tables::default();
    let listed = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    for file in files {
        let area = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        parse(&area, &text, &mut tables)?;
    }
    let mut names: Vec<_> = tables.mutations.iter().map(|it| &it.name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two mutations have the name {:?}", pair[0])),
        None => Ok(tables),
    }
}

/// Adds the mutations of a text. Blocks are apart by empty lines; one without a name sets the file
/// and the tests of those that follow.
fn parse(area: &str, text: &str, tables: &mut Tables) -> Result<(), String> {
    let (mut file, mut tests) = (String::new(), Vec::new());
    let blocks = text.split("\n\n").map(|block| block.lines().filter(|line| !line.trim().is_empty()).collect());
    for lines in blocks.filter(|block: &Vec<_>| !block.is_empty()) {
        let lines: Vec<&str> = lines;
        let fail = |why: &str| Err(format!("{area}: {why} in the block\n{}", lines.join("\n")));
        let mut block = Block::default();
        for line in &lines {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "//" => {}
                "#" => block.name = Some(rest.to_owned()),
                "in" => block.file = Some(rest.to_owned()),
                "generate" => block.generate = true,
                "near" => block.near = Some(rest.to_owned()),
                "equivalent" => block.equivalent = Some(rest.to_owned()),
                "gpu" => block.gpu = true,
                "by" => {
                    let words: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
                    let [package, binary, filters @ ..] = &*words else {
                        return fail("`by` needs a package and a test");
                    };
                    let (package, binary) = (package.clone(), binary.clone());
                    block.tests.push(Test { package, binary, filters: filters.to_vec() });
                }
                "-" => match block.hunks.last_mut() {
                    Some((old, new)) if new.is_empty() => old.push(rest),
                    _ => block.hunks.push((vec![rest], Vec::new())),
                },
                "+" => match block.hunks.last_mut() {
                    Some((_, new)) => new.push(rest),
                    None => return fail("`+` before `-`"),
                },
                _ => return fail(&format!("the unknown word {word:?}")),
            }
        }
        if let Some(to) = &block.file {
            (file, tests) = (to.clone(), if block.name.is_some() { tests } else { Vec::new() });
        }
        if block.name.is_none() && !block.tests.is_empty() {
            tests = block.tests.clone();
        }
        let own = if block.tests.is_empty() { tests.clone() } else { block.tests };
        if block.generate {
            tables.sources.push(Source { file: file.clone(), tests: own.clone() });
        }
        let Some(name) = block.name else { continue };
        if block.hunks.is_empty() {
            match block.equivalent {
                Some(reason) => tables.equivalents.push((name, reason)),
                None => return fail("nothing is changed"),
            }
            continue;
        }
        if own.is_empty() || file.is_empty() {
            return fail("no file or no test");
        }
        let hunks = block.hunks.iter().map(|(old, new)| Hunk { old: old.join("\n"), new: new.join("\n") }).collect();
        tables.mutations.push(Mutation {
            area: area.to_owned(),
            name,
            file: file.clone(),
            tests: own,
            near: block.near,
            hunks,
            equivalent: block.equivalent,
            gpu: block.gpu,
        });
    }
    Ok(())
}

/// The lines of one block.
#[derive(Default)]
struct Block<'a> {
    name: Option<String>,
    file: Option<String>,
    generate: bool,
    near: Option<String>,
    equivalent: Option<String>,
    gpu: bool,
    tests: Vec<Test>,
    hunks: Vec<(Vec<&'a str>, Vec<&'a str>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_a_name_sets_what_the_next_ones_have() {
        let text = "in a.rs\nby one main x\n\n# first\n- old\n+ new\n\n# second\nby two lib y z\nnear here\n- a\n- b\n+ c\n\n\
                    # g\nequivalent because\n";
        let mut tables = Tables::default();
        parse("area", text, &mut tables).unwrap();
        let [first, second] = &*tables.mutations else { panic!() };
        assert_eq!((&*first.file, &*first.tests[0].package, &*first.hunks[0].new), ("a.rs", "one", "new"));
        assert_eq!((&*second.file, second.tests[0].filters.len(), &*second.hunks[0].old), ("a.rs", 2, "a\nb"));
        assert_eq!(tables.equivalents, [("g".to_owned(), "because".to_owned())]);
        for bad in ["# no text\nin a.rs\nby a b", "# no test\nin a.rs\n- a\n+ b", "what is this", "+ a"] {
            assert!(parse("area", bad, &mut Tables::default()).is_err(), "{bad}");
        }
    }
}
