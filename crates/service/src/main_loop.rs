//! From arguments to exit code.
//!
//! Order: arguments, configuration, telemetry, ports, run, drain, flush. The
//! first SIGTERM or SIGINT asks for a drain and bounds it; the second exits at
//! once. Invariant: the process ends within `shutdown.grace_seconds` plus a few
//! seconds of the first signal, whatever its tasks do.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, ConfigError, Loaded, ServiceConfig, Sources};
use crate::supervisor::catch_panic;
use crate::{Context, Service, ops, telemetry};

/// What `run` gets beyond the grace, to report its own timeouts.
const REPORT_MARGIN: Duration = Duration::from_secs(1);
/// How long blocking threads may hold up the end of the process.
const RUNTIME_BOUND: Duration = Duration::from_millis(500);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Clean,
    Failed,
    /// The arguments or the configuration are wrong.
    Config,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Clean => 0,
            Exit::Failed => 1,
            Exit::Config => 2,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Why a hosted service ended badly.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    Serve(#[from] ops::ServeError),
    #[error("{service} failed")]
    Run {
        service: &'static str,
        source: anyhow::Error,
    },
    #[error("{service} did not stop within {grace:?}; still running: {}", tasks.join(", "))]
    Overdue {
        service: &'static str,
        grace: Duration,
        tasks: Vec<String>,
    },
}

/// The whole `main` of a service.
pub fn main<S: Service>() -> ExitCode {
    run_with_args::<S>(std::env::args_os()).into()
}

/// [`main`] with the arguments given, the program's name first.
pub fn run_with_args<S: Service>(args: impl IntoIterator<Item = OsString>) -> Exit {
    let matches = match build_command::<S>().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            // --help and --version arrive here too, and are no mistakes. When the
            // reader of our output is gone, the error has no other way out.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Config
            } else {
                Exit::Clean
            };
        }
    };
    let mut sources = Sources::from_process();
    sources.file = matches.get_one::<PathBuf>("config").cloned();
    sources.set = matches
        .get_many::<String>("set")
        .into_iter()
        .flatten()
        .cloned()
        .collect();

    let loaded = match config::load::<S>(&sources) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    match run_config_flags::<S>(&matches, &loaded) {
        Some(exit) => exit,
        None => start_process::<S>(loaded, sources),
    }
}

fn build_command<S: Service>() -> Command {
    let name = format!("airlock-{}", S::NAME);
    Command::new(S::NAME)
        .bin_name(name.clone())
        .display_name(name)
        .about(format!("Airlock's {}", S::NAME))
        .version(crate::VERSION)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .help("Configuration file [default: config/<service>.yaml where it exists]"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("SECTION.FIELD=VALUE")
                .action(ArgAction::Append)
                .help("Set one value, over every other layer; may be repeated"),
        )
        .arg(
            Arg::new("check-config")
                .long("check-config")
                .action(ArgAction::SetTrue)
                .help("Check the configuration and exit with 0 or 2"),
        )
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the effective configuration, secrets masked, and exit"),
        )
}

/// Standard output may be a closed pipe, which is no reason to panic as
/// `println!` would.
fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn report_config_error(error: &ConfigError) -> Exit {
    print_error(&format!("error: {error}"));
    Exit::Config
}

/// The two flags that inspect the configuration without running.
fn run_config_flags<S: Service>(matches: &ArgMatches, loaded: &Loaded<S::Config>) -> Option<Exit> {
    if matches.get_flag("print-config") {
        return Some(match serde_json::to_string_pretty(&loaded.config) {
            // JSON is YAML, so this can be saved and edited.
            Ok(text) => {
                print_line(&text);
                Exit::Clean
            }
            Err(error) => {
                print_error(&format!("error: printing the configuration: {error}"));
                Exit::Failed
            }
        });
    }
    if matches.get_flag("check-config") {
        match &loaded.file {
            Some(path) => print_line(&format!("ok: {} ({})", S::NAME, path.display())),
            None => print_line(&format!("ok: {} (no file)", S::NAME)),
        }
        return Some(Exit::Clean);
    }
    None
}

fn start_process<S: Service>(loaded: Loaded<S::Config>, sources: Sources) -> Exit {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("error: starting the runtime: {error}"));
            return Exit::Failed;
        }
    };
    let result = runtime.block_on(run_process::<S>(loaded, sources));
    runtime.shutdown_timeout(RUNTIME_BOUND);
    match result {
        Ok(()) => Exit::Clean,
        Err(error) => {
            let mut block = format!("error: {error}");
            for cause in error.chain().skip(1) {
                block.push_str(&format!("\n  because: {cause}"));
            }
            print_error(&block);
            Exit::Failed
        }
    }
}

async fn run_process<S: Service>(
    loaded: Loaded<S::Config>,
    sources: Sources,
) -> anyhow::Result<()> {
    let guard = telemetry::init(S::NAME, loaded.config.telemetry())?;
    log_panics();
    let ctx = Context::for_host(S::NAME).with_sources(sources);
    // Installed before anything starts, so that no signal is missed.
    let signals = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // Not supervised, because the second signal must be received during the drain.
    tokio::spawn(handle_signals(signals, ctx.clone()));
    tracing::info!(
        service = S::NAME,
        version = crate::VERSION,
        config = loaded.file.as_ref().map(|path| path.display().to_string()),
        "starting"
    );
    if !loaded.ignored.is_empty() {
        tracing::info!(variables = ?loaded.ignored, "settings of other services ignored");
    }
    let result = host_service::<S>(loaded.config, ctx).await;
    if result.is_ok() {
        tracing::info!(service = S::NAME, "stopped");
    }
    guard.flush().await;
    Ok(result?)
}

/// The first signal drains, the second exits without looking back.
async fn handle_signals((mut terminate, mut interrupt): (Signal, Signal), ctx: Context) {
    let mut next = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let name = next().await;
    tracing::info!(signal = name, "stopping, a second signal exits at once");
    ctx.shutdown.cancel();
    let name = next().await;
    print_error(&format!(
        "error: second signal ({name}), exiting at once; still running: {}",
        ctx.tasks.running_tasks().join(", ")
    ));
    std::process::exit(i32::from(Exit::Failed.code()));
}

/// Panics become log lines like any other, so that they reach the log's reader.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let reason = info.payload_as_str().unwrap_or("without a message");
        tracing::error!(place, reason, "panic");
    }));
}

/// Runs the service in `ctx` until it ends or `ctx.shutdown` is cancelled, then
/// drains its tasks. Telemetry is the host's affair.
pub async fn host_service<S: Service>(config: S::Config, ctx: Context) -> Result<(), HostError> {
    let grace = config.shutdown().grace();
    if !S::SERVES_HTTP && !config.http().listen.is_empty() {
        ops::serve(config.http(), ops::standalone_router(&ctx), &ctx).await?;
    }

    let stopping_since = OnceLock::new();
    let deadline = async {
        ctx.shutdown.cancelled().await;
        let since = *stopping_since.get_or_init(Instant::now);
        tokio::time::sleep_until((since + grace + REPORT_MARGIN).into()).await;
    };
    let finished = tokio::select! {
        result = catch_panic(S::run(config, ctx.clone())) => Some(result),
        () = deadline => None,
    };
    // Also after an early end of `run`: its tasks must not outlive it.
    ctx.shutdown.cancel();
    let mut overdue = Vec::new();
    // One grace for all: what `run` has used of it, the tasks have had too.
    let used = stopping_since
        .get()
        .map_or(Duration::ZERO, Instant::elapsed);
    let left = (grace + REPORT_MARGIN).saturating_sub(used);
    if let Err(tasks) = ctx.tasks.drain(left).await {
        overdue = tasks;
    }
    if finished.is_none() {
        overdue.insert(0, "run".to_owned());
    }

    // A task's failure that stopped the service is the cause; whatever `run` says
    // about the shutdown that followed is only a consequence.
    let failure = ctx
        .tasks
        .take_failure()
        .or_else(|| finished.and_then(Result::err));
    match failure {
        Some(source) => Err(HostError::Run {
            service: S::NAME,
            source,
        }),
        None if overdue.is_empty() => Ok(()),
        None => Err(HostError::Overdue {
            service: S::NAME,
            grace,
            tasks: overdue,
        }),
    }
}
