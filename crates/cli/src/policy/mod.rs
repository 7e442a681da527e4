//! `airlock policy …`: for those who write the policy. Checking and testing need no API;
//! simulating and explaining use the policy in force, or a file that is not.

mod ask;
mod bundles;
mod local;
mod replay;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::Api;
use crate::exit::Exit;
use crate::session::{self, Answer, Session};
use crate::terminal::Terminal;

#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub api: Api,
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Loads policy files and names every mistake by file, line and column
    Check {
        /// Several files are one policy; the earlier one wins
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Runs the tests beside a policy: requests with the decision and rule expected
    Test {
        /// The policy; several files are one, and the earlier one wins
        #[arg(default_value = "config/safety.yaml")]
        files: Vec<PathBuf>,
        /// Files of tests [default: safety.test.yaml beside safety.yaml, for each file]
        #[arg(long = "tests", value_name = "FILE")]
        tests: Vec<PathBuf>,
        /// Fails when fewer of the rules, in percent, decide in a test
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
        coverage: Option<u8>,
    },
    /// Says what would be decided about a job, without counting it
    Simulate(Box<Job>),
    /// The same, with every rule that is asked and what would change the answer
    Explain(Box<Job>),
    /// Tries a candidate on the jobs of the past: what would be newly denied, allowed, held
    Replay {
        /// How far back, as in 7d or 12h, or a moment in RFC 3339
        #[arg(long, default_value = "7d")]
        since: String,
        /// How many changed jobs of each kind to show
        #[arg(long, value_name = "N", default_value = "20")]
        show: NonZeroUsize,
        /// The candidate; several files are one, and the earlier one wins
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Puts a bundle in force; needs an administrator's key
    Publish {
        file: PathBuf,
        /// What it is called [default: the file's name without its ending]
        #[arg(long)]
        name: Option<String>,
        /// Where it stands among the others: the lowest is asked first
        #[arg(long, default_value = "0", allow_hyphen_values = true)]
        position: i32,
        /// An Ed25519 signature over the file, in base64 or hexadecimal, or @FILE
        #[arg(long)]
        signature: Option<String>,
        /// Which key signed it
        #[arg(long)]
        key_id: Option<String>,
        /// Why; kept in the audit trail
        #[arg(long)]
        note: Option<String>,
    },
    /// Lists bundles and their versions, newest first
    Bundles {
        #[arg(long)]
        name: Option<String>,
    },
    /// Goes back to an earlier version of a bundle, by one when none is named
    Rollback {
        name: String,
        #[arg(long, value_name = "VERSION")]
        to: Option<u64>,
    },
    /// Lists the rules in force, in the order they are asked
    Rules,
    /// Lists the policies the kernel remembers, the one in force first
    Snapshots,
    /// Shows what each safety kernel has loaded, or refuses and why; fails when one does not
    /// have what is published
    Status,
}

/// A job that is not there yet.
#[derive(Debug, Args)]
pub struct Job {
    /// What kind of job, as in job.echo
    pub topic: String,
    /// By this policy instead of the one in force; several files are one
    #[arg(long = "file", short, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// For this tenant; another than one's own needs an administrator's key
    #[arg(long)]
    pub tenant: Option<String>,
    #[arg(long)]
    pub principal: Option<String>,
    /// CRITICAL, INTERACTIVE or BATCH
    #[arg(long)]
    pub priority: Option<airlock_model::Priority>,
    /// May be repeated
    #[arg(long = "label", short, value_name = "KEY=VALUE", value_parser = crate::args::pair)]
    pub labels: Vec<(String, String)>,
    #[arg(long)]
    pub capability: Option<String>,
    /// May be repeated
    #[arg(long = "risk-tag", value_name = "TAG")]
    pub risk_tags: Vec<String>,
    /// May be repeated
    #[arg(long, value_name = "CAPABILITY")]
    pub requires: Vec<String>,
    #[arg(long)]
    pub pack: Option<String>,
    #[arg(long)]
    pub actor: Option<String>,
    /// human or service
    #[arg(long)]
    pub actor_type: Option<String>,
    #[arg(long, value_name = "NUMBER")]
    pub estimated_cost: Option<airlock_model::job::Cost>,
    /// The input: JSON, @FILE, or - for standard input
    #[arg(long, short, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub payload: Option<String>,
}

pub fn run(args: PolicyArgs, terminal: Terminal) -> Exit {
    let json = args.api.json;
    // What needs no API must work without one.
    match &args.action {
        Action::Check { files } => local::check(files, terminal, json),
        Action::Test {
            files,
            tests,
            coverage,
        } => local::test(files, tests, *coverage, terminal, json),
        Action::Simulate(job) if !job.files.is_empty() => {
            local::simulate(job, false, terminal, json)
        }
        Action::Explain(job) if !job.files.is_empty() => local::simulate(job, true, terminal, json),
        Action::Simulate(_)
        | Action::Explain(_)
        | Action::Replay { .. }
        | Action::Publish { .. }
        | Action::Bundles { .. }
        | Action::Rollback { .. }
        | Action::Rules
        | Action::Snapshots
        | Action::Status => session::run(args.api, terminal, |session| act(session, args.action)),
    }
}

async fn act(session: Session, action: Action) -> Answer {
    match action {
        // Answered before, without an API.
        Action::Check { .. } | Action::Test { .. } => Ok(Exit::Done),
        Action::Simulate(job) => ask::simulate(&session, &job).await,
        Action::Explain(job) => ask::explain(&session, &job).await,
        Action::Replay { since, show, files } => {
            replay::run(&session, &since, show.get(), &files).await
        }
        Action::Publish {
            file,
            name,
            position,
            signature,
            key_id,
            note,
        } => {
            let new = bundles::New {
                name,
                position,
                signature,
                key_id,
                note,
            };
            bundles::publish(&session, &file, new).await
        }
        Action::Bundles { name } => bundles::list(&session, name.as_deref()).await,
        Action::Rollback { name, to } => bundles::rollback(&session, &name, to).await,
        Action::Rules => ask::rules(&session).await,
        Action::Snapshots => ask::snapshots(&session).await,
        Action::Status => bundles::status(&session).await,
    }
}
