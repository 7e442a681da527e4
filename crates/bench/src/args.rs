//! The command line, and how much work it stands for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Measures Airlock on servers of its own, beside what those servers allow.
#[derive(Debug, Parser)]
#[command(
    name = "airlock-bench",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    #[command(subcommand)]
    pub role: Option<Role>,

    /// Also write the numbers to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// A tenth of the jobs: for trying, not for quoting.
    #[arg(long)]
    pub quick: bool,

    /// Only these phases, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PHASES")]
    pub only: Vec<Phase>,

    /// Keep the services' logs, and say where they are.
    #[arg(long)]
    pub keep_logs: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Role {
    /// The no-op worker that the benchmark starts for itself.
    #[command(hide = true)]
    Worker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// One job per request.
    Single,
    /// Batches of 500.
    Bulk,
    /// How long a lone job takes.
    Latency,
    /// The same stores without Airlock.
    Floor,
}

impl Args {
    pub fn wants(&self, phase: Phase) -> bool {
        self.only.is_empty() || self.only.contains(&phase)
    }

    /// Whether any phase needs the services.
    pub fn wants_stack(&self) -> bool {
        [Phase::Single, Phase::Bulk, Phase::Latency]
            .into_iter()
            .any(|phase| self.wants(phase))
    }

    pub fn sizes(&self) -> Sizes {
        let part = if self.quick { 10 } else { 1 };
        Sizes {
            clients: 64,
            single: 20_000 / part,
            senders: 4,
            batch: 500,
            bulk: 50_000 / part,
            rate: 50,
            latency: Duration::from_secs(if self.quick { 4 } else { 20 }),
            floor: 50_000 / part,
        }
    }
}

/// How much each phase does.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Concurrent clients of the phase *single*.
    pub clients: usize,
    pub single: usize,
    /// Concurrent senders of batches.
    pub senders: usize,
    pub batch: usize,
    pub bulk: usize,
    /// Jobs a second of the phase *latency*, and for how long.
    pub rate: u32,
    pub latency: Duration,
    pub floor: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Args {
        Args::try_parse_from([&["airlock-bench"], words].concat()).expect("arguments")
    }

    #[test]
    fn every_phase_runs_unless_some_are_chosen() {
        let all = parse(&[]);
        assert!(all.wants(Phase::Floor) && all.wants(Phase::Single) && all.wants_stack());
        assert_eq!(all.sizes().single, 20_000);
        let some = parse(&["--only", "floor", "--quick"]);
        assert!(some.wants(Phase::Floor) && !some.wants(Phase::Bulk) && !some.wants_stack());
        assert_eq!(some.sizes().floor, 5_000);
        assert!(parse(&["--only", "single,latency"]).wants(Phase::Latency));
        assert!(Args::try_parse_from(["airlock-bench", "--only", "nothing"]).is_err());
    }

    #[test]
    fn batches_come_out_even() {
        for args in [parse(&[]), parse(&["--quick"])] {
            let sizes = args.sizes();
            assert_eq!(sizes.bulk % sizes.batch, 0);
            assert_eq!(sizes.floor % sizes.batch, 0);
        }
    }
}
