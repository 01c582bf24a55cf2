//! The command `thalweg` turns photographs into adaptive visual tokens.
//!
//! `command` parses the command line (`args`). `tokens`, `augment`, `process`, `train`, `predict`,
//! `ask`, `devices` and `trace` are subcommands. `tokens` finds the photographs (`inputs`), decodes
//! them (`photos`), computes the results (`engine`), writes files that are either whole or absent
//! (`output`) and reports what it did (`report`). `devices` lists the devices. `launch` runs a
//! program as several ranks. `trace` reads logs of calls.

mod args;
#[cfg(feature = "train")]
mod ask;
mod augment;
mod command;
mod devices;
mod engine;
mod inputs;
#[cfg(feature = "ranks")]
mod launch;
mod output;
mod photos;
#[cfg(feature = "train")]
mod predict;
mod process;
mod report;
mod tokens;
mod trace;
#[cfg(feature = "train")]
mod train;

use std::process::ExitCode;

use command::Command;

fn main() -> ExitCode {
    let done = match command::parse() {
        Command::Tokens(run) => tokens::run(&run),
        Command::Augment(args) => augment::run(&args),
        Command::Process(args) => process::run(&args),
        #[cfg(feature = "train")]
        Command::Train(args) => train::run(&args),
        #[cfg(feature = "train")]
        Command::Predict(args) => predict::run(&args),
        #[cfg(feature = "train")]
        Command::Ask(args) => ask::run(&args),
        Command::Devices(list) => devices::run(&list),
        Command::Trace(args) => trace::run(&args),
        #[cfg(feature = "ranks")]
        Command::Launch(launch) => launch::run(&launch),
        Command::Completions { shell } => output::print(&command::completions(shell)).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        output::say(format_args!("thalweg: {error}"));
        ExitCode::FAILURE
    })
}
