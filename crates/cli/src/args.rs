//! The command line, as clap sees it.
//!
//! What clap can check is checked here, so that a mistake is found before anything
//! is sent. What only the API can know (whether a topic or a label is allowed) is left
//! to the API: a second copy of its rules would sooner or later disagree with it.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::Duration;

use airlock_model::job::Cost;
use airlock_model::{JobState, Priority, Timestamp};
use clap::{Args, Parser, Subcommand};
use secrecy::SecretString;

/// How long `--wait` without a value waits. Long enough for a person's job, short
/// enough that a script does not hang for ever on one that is held for approval.
const DEFAULT_WAIT: &str = "60s";

const EXIT_CODES: &str = "\
Exit codes:
  0  the job succeeded, or the request was answered
  1  the job did not succeed
  2  the request is invalid: arguments, key, unknown job
  3  the API cannot be reached or cannot answer now
  4  the job had not ended when the wait ended";

/// Submit jobs to Airlock and follow them
#[derive(Debug, Parser)]
#[command(name = "airlock", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Submit, show, follow and cancel jobs
    Job(Job),
    /// List, show, approve and reject held jobs
    Approval(crate::approval::ApprovalArgs),
    /// Check, test, simulate and publish policies
    Policy(crate::policy::PolicyArgs),
    /// Scan and redact outputs, and review quarantined ones
    Output(crate::output::OutputArgs),
    /// Run every service in one process, for development
    #[cfg(feature = "dev")]
    Dev(Dev),
    /// List, show, retry and delete dead letters
    Dlq(crate::dlq::DlqArgs),
    /// Show which scheduler leads, and ask it to hand over
    Leader(crate::leader::LeaderArgs),
    /// List, show, roll back and decide about sagas
    Saga(crate::saga::SagaArgs),
    /// Create a worker project
    Worker(crate::worker::Worker),
    /// Print a completion script for your shell
    Completions { shell: clap_complete::Shell },
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Job {
    #[command(flatten)]
    pub api: Api,
    #[command(subcommand)]
    pub action: Action,
}

/// Where the API is and who asks.
#[derive(Debug, Args)]
pub struct Api {
    /// Address of the API [default: the one in .airlock/dev.env here or in a parent
    /// folder, else http://127.0.0.1:8080]
    #[arg(long, env = "AIRLOCK_URL", global = true)]
    pub url: Option<String>,
    /// API key; prefer AIRLOCK_API_KEY, since others can see a command line [default: the
    /// one in .airlock/dev.env]
    #[arg(
        long,
        env = "AIRLOCK_API_KEY",
        hide_env_values = true,
        value_parser = parse_secret,
        global = true
    )]
    pub api_key: Option<SecretString>,
    /// Print the API's JSON, for scripts
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Submit a job
    Submit(Box<Submit>),
    /// Show a job with its history and its result
    Get {
        #[arg(value_name = "JOB")]
        id: String,
    },
    /// List jobs, newest first
    List(List),
    /// Follow a job until it ends, showing each state as it is reached
    Watch {
        #[arg(value_name = "JOB")]
        id: String,
    },
    /// Explain in a sentence what a job waits for, and since when
    Explain {
        #[arg(value_name = "JOB")]
        id: String,
    },
    /// Cancel a job
    Cancel {
        #[arg(value_name = "JOB")]
        id: String,
        /// Reason; kept in the job's history
        #[arg(long)]
        reason: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct Submit {
    /// Topic of the job, as in job.echo
    pub topic: String,
    /// Input of the job: JSON, @FILE, or - for standard input
    #[arg(long, short, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// Priority: CRITICAL, INTERACTIVE or BATCH
    #[arg(long)]
    pub priority: Option<Priority>,
    /// Label of the job; may be repeated
    #[arg(long = "label", short, value_name = "KEY=VALUE", value_parser = parse_key_value)]
    pub labels: Vec<(String, String)>,
    /// Risk tag, which the policy evaluates; may be repeated
    #[arg(long = "risk-tag", value_name = "TAG")]
    pub risk_tags: Vec<String>,
    /// Capability that a worker must have; may be repeated
    #[arg(long, value_name = "CAPABILITY")]
    pub requires: Vec<String>,
    /// Capability that the job uses, which the policy evaluates
    #[arg(long)]
    pub capability: Option<String>,
    /// Estimated cost of the job, which the policy evaluates
    #[arg(long, value_name = "NUMBER")]
    pub estimated_cost: Option<Cost>,
    /// Do not run it before this much time has passed, as in 5s or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "due_at")]
    pub delay: Option<Duration>,
    /// Do not run it before this time, in RFC 3339
    #[arg(long, value_name = "TIMESTAMP", value_parser = parse_timestamp)]
    pub due_at: Option<Timestamp>,
    /// Maximum number of attempts
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<NonZeroU32>,
    /// Longest time that a run may take, as in 30s; a longer one ends the job as TIMEOUT
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Submitting again with the same key returns the same job
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Workflow run that the job belongs to
    #[arg(long, value_name = "ID")]
    pub workflow_id: Option<String>,
    /// Submit for this tenant; needs an administrator's key
    #[arg(long)]
    pub tenant: Option<String>,
    /// Follow the job until it ends, for at most TIME [default: 60s]
    #[arg(
        long,
        short,
        value_name = "TIME",
        value_parser = parse_duration,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = DEFAULT_WAIT
    )]
    pub wait: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct List {
    /// Only jobs in this state; may be repeated
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = parse_state)]
    pub states: Vec<JobState>,
    /// Only jobs of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only jobs of this workflow run
    #[arg(long, value_name = "ID")]
    pub workflow_id: Option<String>,
    /// Maximum number of entries
    #[arg(long, value_name = "N", default_value = "20")]
    pub limit: NonZeroU32,
    /// Continue where an earlier list ended
    #[arg(long)]
    pub cursor: Option<String>,
}

#[cfg(feature = "dev")]
#[derive(Debug, Args)]
pub struct Dev {
    /// Address that REST listens on [default: http.listen of the gateway's configuration, else
    /// 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
}

fn parse_secret(text: &str) -> Result<SecretString, Infallible> {
    Ok(SecretString::from(text))
}

pub(crate) fn parse_key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected KEY=VALUE".to_owned()),
    }
}

/// In the grammar of the services' settings.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    airlock_settings::duration::parse(text).map_err(|error| error.to_string())
}

pub fn parse_timestamp(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse_rfc3339(text)
        .map_err(|_| "write it as in 2030-01-31T12:00:00Z or 2030-01-31T12:00:00+02:00".to_owned())
}

fn parse_state(text: &str) -> Result<JobState, String> {
    JobState::ALL
        .into_iter()
        .find(|state| state.as_str().eq_ignore_ascii_case(&text.replace('-', "_")))
        .ok_or_else(|| {
            let known = JobState::ALL.map(JobState::as_str).join(", ");
            format!("there are {known}")
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn submit(args: &[&str]) -> Result<Submit, clap::Error> {
        let all = ["airlock", "job", "submit", "job.echo"];
        let cli = Cli::try_parse_from(all.iter().chain(args))?;
        match cli.command {
            Command::Job(Job {
                action: Action::Submit(submit),
                ..
            }) => Ok(*submit),
            other => panic!("not a submission: {other:?}"),
        }
    }

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_about_a_job_can_be_said() {
        let job = submit(&[
            "--payload",
            "-5",
            "--priority",
            "batch",
            "--label",
            "team=a=b",
            "-l",
            "x=",
            "--risk-tag",
            "destructive",
            "--requires",
            "gpu",
            "--requires",
            "net",
            "--capability",
            "shell",
            "--delay",
            "1m30s",
            "--max-attempts",
            "2",
            "--timeout",
            "500ms",
            "--idempotency-key",
            "k",
            "--workflow-id",
            "w",
            "--tenant",
            "acme",
            "--wait=5s",
        ])
        .unwrap();
        assert_eq!(job.payload.as_deref(), Some("-5"));
        assert_eq!(job.priority, Some(Priority::Batch));
        let labels = [("team", "a=b"), ("x", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(job.labels, labels);
        assert_eq!(job.requires, ["gpu", "net"]);
        assert_eq!(job.delay, Some(Duration::from_secs(90)));
        assert_eq!(job.timeout, Some(Duration::from_millis(500)));
        assert_eq!(job.wait, Some(Duration::from_secs(5)));
    }

    #[test]
    fn wait_needs_no_value_and_never_swallows_the_next_word() {
        assert_eq!(submit(&[]).unwrap().wait, None);
        let plain = submit(&["--wait", "--priority", "CRITICAL"]).unwrap();
        assert_eq!(plain.wait, Some(Duration::from_secs(60)));
        // Without `=` a duration after --wait is a stray word, not silently a bound.
        assert!(submit(&["--wait", "5s"]).is_err());
    }

    #[test]
    fn mistakes_are_usage_errors() {
        for args in [
            &["--delay", "5"][..],
            &["--delay", "-5s"],
            &["--delay", "5s", "--due-at", "2030-01-01T00:00:00Z"],
            &["--due-at", "tomorrow"],
            &["--label", "novalue"],
            &["--label", "=v"],
            &["--priority", "urgent"],
            &["--max-attempts", "0"],
            &["--colour"],
        ] {
            let error = submit(args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}");
            assert_ne!(error.kind(), ErrorKind::DisplayHelp, "{args:?}");
        }
    }

    #[test]
    fn days_are_24_hours() {
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86_400)));
        assert!(parse_duration("9999999999999999999d").is_err());
        assert!(parse_duration("999999999999999d").is_err());
    }

    #[test]
    fn states_may_be_written_as_one_likes() {
        let args = [
            "airlock",
            "job",
            "list",
            "--state",
            "approval-required,DENIED",
            "--state",
            "running",
        ];
        let Command::Job(Job {
            action: Action::List(list),
            ..
        }) = Cli::try_parse_from(args).unwrap().command
        else {
            panic!("not a list");
        };
        let expected = [
            JobState::ApprovalRequired,
            JobState::Denied,
            JobState::Running,
        ];
        assert_eq!(list.states, expected);
    }

    #[test]
    fn the_key_shows_nowhere() {
        let args = ["airlock", "job", "get", "1", "--api-key", "hunter2"];
        let cli = Cli::try_parse_from(args).unwrap();
        assert!(!format!("{cli:?}").contains("hunter2"));
    }
}
