//! The command `thalweg` turns photographs into adaptive visual tokens.
//!
//! `args` parses the command line. `tokens`, `augment`, `process`, `train`, `predict` and `devices`
//! are subcommands. `tokens` finds the photographs (`inputs`), decodes them (`photos`), computes
//! the results (`engine`), draws which patches got tokens (`heatmap`), writes files that are either
//! whole or absent (`output`) and reports what it did (`report`). `devices` lists the devices.
//! `launch` runs a program as several ranks.

mod args;
mod augment;
mod devices;
mod engine;
mod heatmap;
mod inputs;
mod launch;
mod output;
mod photos;
mod predict;
mod process;
mod report;
mod tokens;
mod train;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let done = match args::parse() {
        Command::Tokens(run) => tokens::run(&run),
        Command::Augment(args) => augment::run(&args),
        Command::Process(args) => process::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Devices(list) => devices::run(&list),
        Command::Launch(launch) => launch::run(&launch),
        Command::Completions { shell } => output::print(&args::completions(shell)).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        output::say(format_args!("thalweg: {error}"));
        ExitCode::FAILURE
    })
}
