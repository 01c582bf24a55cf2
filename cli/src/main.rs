//! The command `thalweg`: photographs to adaptive visual tokens.
//!
//! `args` is the command line; `tokens` and `devices` are the two subcommands. A run of the first finds photographs
//! (`inputs`), reads them (`decode`), computes (`engine`), writes files that are either whole or absent (`output`), draws what was chosen
//! (`heatmap`) and says what it did (`report`).

mod args;
mod devices;
mod engine;
mod heatmap;
mod inputs;
mod output;
mod report;
mod tokens;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let done = match args::parse() {
        Command::Tokens(run) => tokens::run(&run),
        Command::Devices(list) => devices::run(&list),
    };
    done.unwrap_or_else(|error| {
        eprintln!("thalweg: {error}");
        ExitCode::FAILURE
    })
}
