//! What went wrong, and what to do about it.

use std::error::Error;

use airlock_client::{ClientError, Problem};

use crate::connect::Target;
use crate::exit::Exit;
use crate::terminal::{Terminal, strip_control_chars};

/// How the types of the API's problems begin.
const PROBLEM_TYPE_PREFIX: &str = "urn:airlock:problem:";

/// An error as a person reads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Explained {
    pub text: String,
    /// What to try next.
    pub hint: Option<String>,
    pub exit: Exit,
}

impl Explained {
    /// Prints it. Hints are printed for scripts too: their logs are read when they fail.
    pub fn print(&self, terminal: Terminal) -> Exit {
        terminal.error(&strip_control_chars(&self.text));
        if let Some(hint) = &self.hint {
            terminal.note(&terminal.err.dim(&strip_control_chars(hint)));
        }
        self.exit
    }
}

/// Whether the same question may be answered later.
pub fn is_transient(error: &ClientError) -> bool {
    error.is_retryable()
}

/// What `error` means to whoever asked `target`.
pub fn explain_error(error: &ClientError, target: &Target) -> Explained {
    let url = target.url_without_password();
    match error {
        ClientError::Config(text) => Explained {
            text: text.clone(),
            hint: None,
            exit: Exit::Usage,
        },
        ClientError::Problem(problem) => Explained {
            text: format_problem(problem),
            hint: hint_for_problem(problem, target),
            exit: exit_for_problem(problem),
        },
        ClientError::Transport(cause) => Explained {
            text: format!("cannot reach the API at {url}: {}", root_cause_text(cause)),
            hint: Some(
                "is it running? try ./dev up; or say where it is with --url or AIRLOCK_URL"
                    .to_owned(),
            ),
            exit: Exit::Unreachable,
        },
        ClientError::Unexpected { status, detail } => Explained {
            text: format!("what answers at {url} is not Airlock's API (status {status}): {detail}"),
            hint: Some("check --url or AIRLOCK_URL".to_owned()),
            exit: Exit::Unreachable,
        },
    }
}

fn format_problem(problem: &Problem) -> String {
    let mut text = problem.to_string();
    // With one field the detail names it already.
    if problem.errors.len() > 1 {
        for error in &problem.errors {
            text.push_str(&format!("\n  {}: {}", error.field, error.message));
        }
    }
    if problem.status >= 500
        && let Some(trace) = &problem.trace_id
    {
        text.push_str(&format!(" [trace {trace}]"));
    }
    text
}

fn exit_for_problem(problem: &Problem) -> Exit {
    match problem.status {
        // The job or the saga stood in the way, not the request.
        409 if problem.state.is_some() || problem.saga_state.is_some() => Exit::Failed,
        429 | 500.. => Exit::Unreachable,
        _ => Exit::Usage,
    }
}

/// What to try next, by the type of the problem: one status has many meanings.
fn hint_for_problem(problem: &Problem, target: &Target) -> Option<String> {
    let kind = problem
        .kind
        .strip_prefix(PROBLEM_TYPE_PREFIX)
        .unwrap_or_default();
    let field = problem.field.as_deref();
    let text = match kind {
        "unauthorized" => return Some(hint_about_key(target)),
        "key-expired" => "whoever runs the gateway can renew it: expires_at in auth.keys",
        // Of a job that may be seen, only a vote is refused.
        "forbidden" if problem.job_id.is_some() => {
            "somebody else's key is needed: --api-key KEY (after ./dev up: $AIRLOCK_APPROVER_KEY)"
        }
        "forbidden" if field == Some("X-Tenant-ID") => {
            "only an administrator's key may act for another tenant"
        }
        "no-such-job" => "airlock job list shows the jobs this key may see",
        "no-such-dead-letter" => "airlock dlq list shows the dead letters this key may see",
        "no-such-approval" => "airlock approval list shows what waits for approval",
        "no-such-saga" => "airlock saga list shows the sagas this key may see",
        "invalid-request" if field == Some("X-Tenant-ID") => "say which one with --tenant",
        "no-such-bundle" => "airlock policy bundles shows the bundles and their versions",
        "no-such-route" | "wrong-method" => {
            "the API at this address does not know this; check --url, and that it is as new as \
             this command"
        }
        "conflict" if field == Some("idempotency_key") => {
            "the idempotency key belongs to another request; use a new one"
        }
        "overloaded" | "unavailable" => "try again in a moment",
        _ if problem.status == 429 => "try again in a moment",
        _ => return None,
    };
    Some(text.to_owned())
}

fn hint_about_key(target: &Target) -> String {
    match (&target.key, &target.file) {
        (None, _) => {
            "no key was given: set AIRLOCK_API_KEY (after ./dev up: . .airlock/dev.env)".to_owned()
        }
        (Some(_), Some(file)) => {
            let file = file.display();
            format!("the key in {file} is not the one the API knows; ./dev up writes it anew")
        }
        (Some(_), None) => {
            "the key in AIRLOCK_API_KEY (or --api-key) is not one the API knows".to_owned()
        }
    }
}

/// The last cause, which is the one that says something: `Connection refused`.
fn root_cause_text(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use airlock_client::FieldProblem;
    use airlock_model::JobState;

    use super::*;

    fn target(key: Option<&str>) -> Target {
        Target {
            url: "http://127.0.0.1:8080".to_owned(),
            key: key.map(Into::into),
            file: None,
        }
    }

    fn problem(status: u16) -> Problem {
        Problem {
            title: "Title".into(),
            detail: "detail".to_owned(),
            status,
            ..Problem::default()
        }
    }

    fn typed(status: u16, kind: &str) -> Problem {
        Problem {
            kind: format!("{PROBLEM_TYPE_PREFIX}{kind}"),
            ..problem(status)
        }
    }

    fn explained(problem: Problem, key: Option<&str>) -> Explained {
        explain_error(&ClientError::Problem(Box::new(problem)), &target(key))
    }

    #[test]
    fn the_exit_code_tells_whose_fault_it_is() {
        for (status, exit) in [
            (400, Exit::Usage),
            (401, Exit::Usage),
            (404, Exit::Usage),
            (409, Exit::Usage),
            (413, Exit::Usage),
            (429, Exit::Unreachable),
            (500, Exit::Unreachable),
            (503, Exit::Unreachable),
        ] {
            assert_eq!(explained(problem(status), None).exit, exit, "{status}");
        }
        let ended = Problem {
            state: Some(JobState::Succeeded),
            ..problem(409)
        };
        assert_eq!(explained(ended, None).exit, Exit::Failed);
    }

    #[test]
    fn a_missing_key_and_a_wrong_one_are_told_apart() {
        let missing = explained(typed(401, "unauthorized"), None).hint.unwrap();
        assert!(
            missing.contains("no key was given: set AIRLOCK_API_KEY"),
            "{missing}"
        );
        let wrong = explained(typed(401, "unauthorized"), Some("hunter2"))
            .hint
            .unwrap();
        assert!(wrong.contains("AIRLOCK_API_KEY"), "{wrong}");
        assert!(!wrong.contains("hunter2"));
    }

    #[test]
    fn the_hint_follows_the_type_and_not_the_status() {
        let hint = |problem: Problem| explained(problem, Some("k")).hint.unwrap_or_default();
        for (status, kind, part) in [
            (404, "no-such-job", "airlock job list"),
            (404, "no-such-dead-letter", "airlock dlq list"),
            (404, "no-such-approval", "airlock approval list"),
            (404, "no-such-bundle", "airlock policy bundles"),
            (404, "no-such-route", "--url"),
            (401, "key-expired", "expires_at"),
            (503, "overloaded", "try again"),
        ] {
            let text = hint(typed(status, kind));
            assert!(text.contains(part), "{kind}: {text}");
        }
        // What its own words say already gets none: a vote that was cast the other way, a
        // question for administrators.
        assert_eq!(hint(typed(409, "conflict")), "");
        assert_eq!(hint(typed(403, "forbidden")), "");
        let about = |status, kind, field: &str| Problem {
            field: Some(field.to_owned()),
            ..typed(status, kind)
        };
        let reused = hint(about(409, "conflict", "idempotency_key"));
        assert!(reused.contains("use a new one"), "{reused}");
        let tenant = hint(about(403, "forbidden", "X-Tenant-ID"));
        assert!(tenant.contains("another tenant"), "{tenant}");
        let own = Problem {
            job_id: Some("j".to_owned()),
            ..typed(403, "forbidden")
        };
        let vote = hint(own);
        assert!(vote.contains("AIRLOCK_APPROVER_KEY"), "{vote}");
    }

    #[test]
    fn every_field_is_named() {
        let field = |name: &str| FieldProblem {
            field: name.to_owned(),
            message: "is wrong".to_owned(),
        };
        let both = Problem {
            errors: vec![field("topic"), field("labels.x")],
            ..problem(400)
        };
        let text = explained(both, None).text;
        assert_eq!(
            text,
            "Title (400): detail\n  topic: is wrong\n  labels.x: is wrong"
        );
    }

    #[tokio::test]
    async fn nobody_there_says_how_to_start_it() {
        let client = airlock_client::Client::new("http://127.0.0.1:9", "k").unwrap();
        let error = client.with_retries(0).get("x").await.unwrap_err();
        let explained = explain_error(&error, &target(None));
        assert_eq!(explained.exit, Exit::Unreachable);
        assert!(explained.text.contains("refused"), "{}", explained.text);
        assert!(explained.hint.unwrap().contains("./dev up"));
    }
}
