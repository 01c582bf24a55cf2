//! The subcommand `thalweg trace`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use thalweg::trace::{Rejected, Summary, check_log};

use crate::output;

pub(crate) const NOTES: &str = "\
Examples:
  THALWEG_TRACE=run.log ./program
  thalweg trace check run.log
      looks for two accesses to memory that no event or wait orders

  THALWEG_TRACE=check ./program
      looks while the program runs, and panics at the second access

For each log it prints how much it read, or both accesses: what they are, their
streams, the bytes, and the lines of the program. The rows of a log are the calls
of one process, which every schedule has: a missing wait is found although it had
no effect in that run. docs/trace.md says more.

Exit code:
  0  every log is accepted
  1  a log is rejected, or cannot be read
  2  wrong usage";

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Look for accesses to memory that nothing orders, in the logs of THALWEG_TRACE
    #[command(after_long_help = NOTES)]
    Check {
        /// Logs that programs wrote, or - for one on standard input
        #[arg(required = true, value_name = "FILE|-")]
        files: Vec<PathBuf>,
    },
}

/// Checks each log, and reports those that are rejected or cannot be read.
pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode, String> {
    let TraceCommand::Check { files } = &args.command;
    let mut bad = 0;
    let mut text = String::new();
    for file in files {
        text.clear();
        let name = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
        match open(file).map_err(Rejected::Io).and_then(|log| check_log(BufReader::new(log))) {
            Ok(Summary { rows, accesses, streams, .. }) => {
                _ = writeln!(text, "{name}: accepted, {rows} rows, {accesses} accesses, {streams} streams");
            }
            Err(Rejected::Race(race)) => {
                bad += 1;
                _ = writeln!(text, "{name}: rejected: {race}");
            }
            Err(why) => {
                bad += 1;
                output::say(format_args!("thalweg: {name}: {why}"));
            }
        }
        output::print(&text)?;
    }
    Ok(ExitCode::from(u8::from(bad > 0)))
}

fn open(file: &Path) -> io::Result<Box<dyn Read>> {
    Ok(if file == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(File::open(file)?) })
}
