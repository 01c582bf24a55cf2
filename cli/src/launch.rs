//! The subcommand `thalweg launch`: a program as several processes, each a rank, on this machine.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use thalweg_collective::{StoreLimits, StoreServer};

use crate::args::number;
use crate::output;

pub(crate) const NOTES: &str = "\
Examples:
  thalweg launch -n 2 -- target/release/examples/all_reduce
      runs a program that joins the ranks by World::from_env of thalweg-collective

  thalweg launch -n 2 -- thalweg train photos/ --out model.safetensors
      trains on two GPUs, or on two CPU devices if there is no GPU";

pub(crate) const ABOUT: &str = "\
Run a program as several processes of this machine, each a rank.

Each process gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, as with torchrun, and the address and the secret of a store in
which programs that use thalweg-collective meet. Its lines of output have its
rank before them; its standard input is empty. If a rank fails, the others have
5 seconds to end; then they are killed, and so they are after Ctrl-C or SIGTERM.
The exit code is that of the first rank that failed, or 128 plus the number of
the signal that ended it.";

#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// The number of processes
    #[arg(short = 'n', long = "ranks", value_name = "N", allow_hyphen_values = true, value_parser = size)]
    pub(crate) ranks: usize,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

fn size(text: &str) -> Result<usize, String> {
    number(text, "a whole number of processes, 1 to 1024", |n| (1..=1024).contains(n))
}

/// The time that the other ranks have to end by themselves after one has failed. Ranks that are in
/// an operation with it end with an error that names it.
const GRACE: Duration = Duration::from_secs(5);

/// The time that ranks have to end by themselves after a signal.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// The pause between two looks whether a rank has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// The ranks. Dropping them ends those that still run.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|child| _ = child.kill());
        self.0.iter_mut().for_each(|child| _ = child.wait());
    }
}

/// The destination of the output of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Each line gets the number of its rank.
    Numbered,
    #[cfg_attr(not(feature = "train"), expect(dead_code))] // only `train --gpus` asks for it
    AsItIs,
}

/// Runs the subcommand.
pub(crate) fn run(args: &LaunchArgs) -> Result<ExitCode, String> {
    ranks(args.ranks, &args.program, Output::Numbered)
}

/// Runs a program as several ranks, and returns the exit code of the first one that fails.
pub(crate) fn ranks(size: usize, program: &[OsString], output: Output) -> Result<ExitCode, String> {
    let secret = secret();
    let store = StoreServer::bind("127.0.0.1:0", secret.as_bytes(), StoreLimits::default());
    let store = store.map_err(|error| format!("cannot start a store: {error}"))?;
    // For programs that meet in another way, such as those of PyTorch.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.map_err(|error| format!("cannot find a free port: {error}"))?.port().to_string();

    let (name, rest) = program.split_first().ok_or("there is no program to run")?;
    let signal = signals()?;
    let (count, mut ranks, mut printers) = (size.to_string(), Ranks(Vec::new()), Vec::new());
    let pipe = || if output == Output::Numbered { Stdio::piped() } else { Stdio::inherit() };
    for rank in 0..size {
        let mut child = Command::new(name)
            .args(rest)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", &count)
            .env("LOCAL_WORLD_SIZE", &count)
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env("THALWEG_STORE", store.address().to_string())
            .env("THALWEG_SECRET", &secret)
            .stdin(Stdio::null())
            .stdout(pipe())
            .stderr(pipe())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", name.to_string_lossy()))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        ranks.0.push(child);
        printers.extend(out.map(|out| thread::spawn(move || prefix(rank, out, io::stdout()))));
        printers.extend(err.map(|err| thread::spawn(move || prefix(rank, err, io::stderr()))));
    }
    let outcome = wait(&mut ranks, &signal);
    drop(ranks);
    // What a rank started itself may still have its output open.
    let end = Instant::now() + GRACE;
    while printers.iter().any(|printer| !printer.is_finished()) && Instant::now() < end {
        thread::sleep(PAUSE);
    }
    outcome
}

/// The number of the signal that asks this process to end, or 0.
fn signals() -> Result<Arc<AtomicUsize>, String> {
    let signal = Arc::new(AtomicUsize::new(0));
    #[cfg(unix)]
    let handled = {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        [SIGINT, SIGTERM, SIGHUP].into_iter().try_for_each(|number| {
            signal_hook::flag::register_usize(number, signal.clone(), number.cast_unsigned() as usize).map(drop)
        })
    };
    #[cfg(not(unix))]
    let handled = {
        let signal = signal.clone();
        ctrlc::set_handler(move || signal.store(2, Ordering::Relaxed)) // SIGINT
    };
    handled.map_err(|error| format!("cannot handle Ctrl-C: {error}"))?;
    Ok(signal)
}

/// Waits for all ranks. After one has failed, the others have a grace period; then they are killed.
fn wait(ranks: &mut Ranks, signal: &AtomicUsize) -> Result<ExitCode, String> {
    let mut ended: Vec<Option<ExitStatus>> = ranks.0.iter().map(|_| None).collect();
    let mut failed: Option<(usize, ExitStatus, Instant)> = None;
    loop {
        let mut now: Vec<(usize, ExitStatus)> = Vec::new();
        for (rank, child) in ranks.0.iter_mut().enumerate() {
            if ended[rank].is_some() {
                continue;
            }
            let status = child.try_wait().map_err(|error| format!("cannot wait for rank {rank}: {error}"))?;
            if let Some(status) = status {
                ended[rank] = Some(status);
                // A terminal sends Ctrl-C to the ranks too: they end by it, and have not failed.
                if !status.success() && signal.load(Ordering::Relaxed) == 0 {
                    now.push((rank, status));
                }
            }
        }
        // A rank that needs a killed one may have failed before this looks at both.
        let first = now.iter().find(|(_, status)| status.code().is_none()).or(now.first());
        if let (None, Some(&(rank, status))) = (failed, first) {
            output::say(format_args!("thalweg: rank {rank} has failed: {status}"));
            failed = Some((rank, status, Instant::now()));
        }
        let signal = signal.load(Ordering::Relaxed);
        if signal != 0 {
            // A terminal sends it to the ranks too. Those that are writing a file end after that.
            let end = Instant::now() + SHUTDOWN_GRACE;
            while Instant::now() < end && ranks.0.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
                thread::sleep(PAUSE);
            }
            return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)));
        }
        let running = || ended.iter().enumerate().filter(|(_, ended)| ended.is_none()).map(|(rank, _)| rank);
        match failed {
            None if running().next().is_none() => return Ok(ExitCode::SUCCESS),
            Some((_, status, since)) if running().next().is_none() || since.elapsed() >= GRACE => {
                running().for_each(|rank| output::say(format_args!("thalweg: rank {rank} is killed")));
                return Ok(code(status));
            }
            _ => thread::sleep(PAUSE),
        }
    }
}

/// The exit code of a rank; 128 plus its number if a signal ended it.
fn code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(1));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code != 0).unwrap_or(1))
}

/// Copies lines, each with the rank before it. What is no text is copied too, and a last line
/// without an end gets one.
fn prefix(rank: usize, from: impl Read, mut to: impl Write) {
    let mut from = BufReader::new(from);
    let mut line = format!("[{rank}] ").into_bytes();
    let start = line.len();
    // A closed output is no reason to stop reading: the rank would block.
    while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        _ = to.write_all(&line).and_then(|()| to.flush());
        line.truncate(start);
    }
}

/// A secret that nobody can guess. `RandomState` has random keys of the system.
fn secret() -> String {
    use std::hash::{BuildHasher, RandomState};
    (0..4u8).map(|k| format!("{:016x}", RandomState::new().hash_one(k))).collect()
}
