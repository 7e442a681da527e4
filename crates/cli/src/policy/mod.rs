//! `airlock policy …`: for those who write the policy. Checking and testing need no API;
//! simulating and explaining use the policy in force, or a file that is not.

mod bundles;
mod local;
mod query;
mod replay;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::Api;
use crate::exit::Exit;
use crate::session::{self, CommandResult, Session};
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
    /// Check policy files and report every error by file, line and column
    Check {
        /// Policy files; several make one policy, and the earlier one wins
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Run the tests of a policy: requests with the expected decision and rule
    Test {
        /// Policy files; several make one policy, and the earlier one wins
        #[arg(default_value = "config/safety.yaml")]
        files: Vec<PathBuf>,
        /// Test files [default: safety.test.yaml beside safety.yaml, for each file]
        #[arg(long = "tests", value_name = "FILE")]
        tests: Vec<PathBuf>,
        /// Fail when the tests exercise a smaller share of the rules, in percent
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
        coverage: Option<u8>,
    },
    /// Show what the policy would decide about a job, without counting it
    Simulate(Box<Job>),
    /// Explain what the policy would decide about a job: every rule that is evaluated, and
    /// what would change the decision
    Explain(Box<Job>),
    /// Evaluate a candidate policy on past jobs: what would be newly denied, allowed or held
    Replay {
        /// Start of the past jobs: an age, as in 7d or 12h, or a time in RFC 3339
        #[arg(long, default_value = "7d")]
        since: String,
        /// Maximum number of changed jobs to show, of each kind
        #[arg(long, value_name = "N", default_value = "20")]
        show: NonZeroUsize,
        /// Candidate policy; several files make one policy, and the earlier one wins
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Publish and activate a bundle; needs an administrator's key
    Publish {
        file: PathBuf,
        /// Name of the bundle [default: the file's name without its extension]
        #[arg(long)]
        name: Option<String>,
        /// Position among the bundles: the lowest is evaluated first
        #[arg(long, default_value = "0", allow_hyphen_values = true)]
        position: i32,
        /// Ed25519 signature of the file, in base64 or hexadecimal, or @FILE
        #[arg(long)]
        signature: Option<String>,
        /// Id of the key that signed it
        #[arg(long)]
        key_id: Option<String>,
        /// Reason; kept in the audit trail
        #[arg(long)]
        note: Option<String>,
    },
    /// List bundles and their versions, newest first
    Bundles {
        /// Only the versions of this bundle
        #[arg(long)]
        name: Option<String>,
    },
    /// Roll a bundle back to an earlier version, by default the one before
    Rollback {
        name: String,
        /// Version to go back to
        #[arg(long, value_name = "VERSION")]
        to: Option<u64>,
    },
    /// List the active rules, in the order of evaluation
    Rules,
    /// List the policy snapshots the kernel remembers, the active one first
    Snapshots,
    /// Show what each safety kernel has loaded or rejected, and why; fail when one does not
    /// have what is published
    Status,
}

/// A job that is not there yet.
#[derive(Debug, Args)]
pub struct Job {
    /// Topic of the job, as in job.echo
    pub topic: String,
    /// Evaluate this policy instead of the active one; several files make one policy
    #[arg(long = "file", short, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Tenant of the job; another than your own needs an administrator's key
    #[arg(long)]
    pub tenant: Option<String>,
    /// Principal that the job runs for
    #[arg(long)]
    pub principal: Option<String>,
    /// Priority: CRITICAL, INTERACTIVE or BATCH
    #[arg(long)]
    pub priority: Option<airlock_model::Priority>,
    /// Label of the job; may be repeated
    #[arg(long = "label", short, value_name = "KEY=VALUE", value_parser = crate::args::parse_key_value)]
    pub labels: Vec<(String, String)>,
    #[arg(long)]
    pub capability: Option<String>,
    /// Risk tag of the job; may be repeated
    #[arg(long = "risk-tag", value_name = "TAG")]
    pub risk_tags: Vec<String>,
    /// Capability that a worker must have; may be repeated
    #[arg(long, value_name = "CAPABILITY")]
    pub requires: Vec<String>,
    /// Pack that the job comes from
    #[arg(long)]
    pub pack: Option<String>,
    /// Actor that submits the job
    #[arg(long)]
    pub actor: Option<String>,
    /// Type of the actor: human or service
    #[arg(long)]
    pub actor_type: Option<String>,
    #[arg(long, value_name = "NUMBER")]
    pub estimated_cost: Option<airlock_model::job::Cost>,
    /// Input of the job: JSON, @FILE, or - for standard input
    #[arg(long, short, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub payload: Option<String>,
}

pub fn run(args: PolicyArgs, terminal: Terminal) -> Exit {
    let json = args.api.json;
    // What needs no API must work without one.
    match &args.action {
        Action::Check { files } => local::check_policy(files, terminal, json),
        Action::Test {
            files,
            tests,
            coverage,
        } => local::test_policy(files, tests, *coverage, terminal, json),
        Action::Simulate(job) if !job.files.is_empty() => {
            local::simulate_from_files(job, false, terminal, json)
        }
        Action::Explain(job) if !job.files.is_empty() => {
            local::simulate_from_files(job, true, terminal, json)
        }
        Action::Simulate(_)
        | Action::Explain(_)
        | Action::Replay { .. }
        | Action::Publish { .. }
        | Action::Bundles { .. }
        | Action::Rollback { .. }
        | Action::Rules
        | Action::Snapshots
        | Action::Status => session::run_with_session(args.api, terminal, |session| {
            run_action(session, args.action)
        }),
    }
}

async fn run_action(session: Session, action: Action) -> CommandResult {
    match action {
        // Answered before, without an API.
        Action::Check { .. } | Action::Test { .. } => Ok(Exit::Done),
        Action::Simulate(job) => query::print_simulation(&session, &job).await,
        Action::Explain(job) => query::print_explanation(&session, &job).await,
        Action::Replay { since, show, files } => {
            replay::replay_past_decisions(&session, &since, show.get(), &files).await
        }
        Action::Publish {
            file,
            name,
            position,
            signature,
            key_id,
            note,
        } => {
            let new = bundles::BundleOptions {
                name,
                position,
                signature,
                key_id,
                note,
            };
            bundles::publish_bundle(&session, &file, new).await
        }
        Action::Bundles { name } => bundles::list_bundles(&session, name.as_deref()).await,
        Action::Rollback { name, to } => bundles::rollback_bundle(&session, &name, to).await,
        Action::Rules => query::print_rules(&session).await,
        Action::Snapshots => query::print_snapshots(&session).await,
        Action::Status => bundles::print_status(&session).await,
    }
}
