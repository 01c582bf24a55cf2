//! The command line of every example.
#![allow(dead_code, unreachable_pub, reason = "each example uses only some parts")]

use std::path::Path;
use std::process::exit;
use std::str::FromStr;

/// An option as `--help` shows it, such as `--steps N` or `--raw`, or a word such as `FOLDER`, and
/// what it does.
pub type Usage = (&'static str, &'static str);

/// The arguments that an example got.
pub struct CommandLine {
    /// The names of the options, and their values. An option without a value has an empty one.
    given: Vec<(String, String)>,
    words: Vec<String>,
}

impl CommandLine {
    /// Reads the arguments of an example that has these options, and that takes these words or
    /// fewer, or any number of them if the last one ends with `...`. `--help` prints `purpose` and
    /// all of them, and ends the program. An argument that the example does not have ends it with
    /// an error message.
    pub fn parse(purpose: &str, words: &[Usage], options: &[Usage]) -> Self {
        let mut line = Self { given: Vec::new(), words: Vec::new() };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--help" || argument == "-h" {
                help(purpose, words, options);
                exit(0)
            }
            if !argument.starts_with('-') {
                line.words.push(argument);
                let any_number = words.last().is_some_and(|(form, _)| form.ends_with("..."));
                if line.words.len() > words.len() && !any_number {
                    refuse(&format!("unknown argument `{}`; --help lists those that there are", line.words.join(" ")))
                }
                continue;
            }
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (&*argument, None),
            };
            let Some((form, _)) = options.iter().find(|(form, _)| name_of(form) == name) else {
                let names: String = options.iter().map(|(form, _)| format!("{}, ", name_of(form))).collect();
                refuse(&format!("unknown option `{name}`; this example has: {names}--help"))
            };
            let value = match (form.split_once(' '), value) {
                (Some((_, what)), None) => {
                    arguments.next().unwrap_or_else(|| refuse(&format!("{name} needs a value: {what}")))
                }
                (None, Some(_)) => refuse(&format!("{name} takes no value")),
                (_, value) => value.unwrap_or_default(),
            };
            line.given.push((name.to_owned(), value));
        }
        line
    }

    /// Returns whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// Returns the value of an option, if it was given. The last one counts.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| given == name).map(|(_, value)| &**value)
    }

    /// Does the same as [`text`](Self::text) for another type, and ends the program if the value is
    /// none of its values.
    pub fn value<T: FromStr>(&self, name: &str) -> Option<T> {
        let parse = |text: &str| text.parse().unwrap_or_else(|_| refuse(&format!("{name} cannot be `{text}`")));
        self.text(name).map(parse)
    }

    /// Returns the words that are not options.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Returns the file of `--timeline`, whose name must end in a way that a trace can be saved.
    pub fn timeline(&self) -> Option<&Path> {
        let path = Path::new(self.text(name_of(TIMELINE.0))?);
        if !path.extension().is_some_and(|e| e == "svg" || e == "json" || e == "txt") {
            refuse(&format!("--timeline {}: expected a name that ends in .svg, .json or .txt", path.display()))
        }
        Some(path)
    }
}

/// The option that saves what ran when.
pub const TIMELINE: Usage = ("--timeline FILE", "save what ran when, as .svg, .json (Perfetto) or .txt");

/// Ends the program, because its arguments are wrong.
pub fn refuse(why: &str) -> ! {
    eprintln!("{why}");
    exit(2)
}

/// Returns the name in the form of an option.
fn name_of(form: &str) -> &str {
    form.split_once(' ').map_or(form, |(name, _)| name)
}

fn help(purpose: &str, words: &[Usage], options: &[Usage]) {
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    print!("{purpose}\n\nusage: {program} [OPTIONS]");
    words.iter().for_each(|(word, _)| print!(" [{word}]"));
    println!("\n");
    let own = [("--help", "print this")];
    let wide = words.iter().chain(options).map(|(form, _)| form.len()).fold(6, usize::max);
    for (form, does) in words.iter().chain(options).chain(&own) {
        println!("  {form:wide$}  {does}");
    }
}
