//! What needs no API: checking, testing, and evaluating a policy that is only a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use airlock_policy::fixtures::{self, Report, Suite};
use airlock_policy::{LoadError, NoCounters, OwnedRequest, Policy, Source, limits};

use super::Job;
use crate::exit::Exit;
use crate::payload;
use crate::terminal::{Terminal, clean, one_line};

/// Why a file cannot be used as a policy, and the exit code.
pub struct Unusable {
    pub text: String,
    pub exit: Exit,
}

impl Unusable {
    fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self {
            text: format!("reading {}: {error}", path.display()),
            exit: Exit::Usage,
        }
    }

    /// One mistake a line, as compilers do.
    fn invalid(error: &LoadError) -> Self {
        let mut text = String::new();
        for problem in &error.problems {
            text.push_str(&format!("\n  {problem}"));
        }
        if error.more > 0 {
            text.push_str(&format!("\n  and {} more", error.more));
        }
        Self {
            text: format!("the policy cannot be used:{text}"),
            exit: Exit::Failed,
        }
    }

    fn report(&self, terminal: Terminal) -> Exit {
        terminal.error(&clean(&self.text));
        self.exit
    }
}

/// A text file that is not larger than a policy may be.
pub fn text(path: &Path) -> Result<String, Unusable> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| {
            let most = limits::FILE_BYTES as u64 + 1;
            file.take(most).read_to_string(&mut text)
        })
        .map_err(|e| Unusable::unreadable(path, &e))?;
    Ok(text)
}

pub fn load(files: &[PathBuf]) -> Result<Policy, Unusable> {
    let mut named = Vec::with_capacity(files.len());
    for path in files {
        named.push((path.display().to_string(), text(path)?));
    }
    let sources: Vec<Source<'_>> = named
        .iter()
        .map(|(name, text)| Source { name, text })
        .collect();
    Policy::load_files(&sources).map_err(|e| Unusable::invalid(&e))
}

fn print(value: &impl serde::Serialize, terminal: Terminal) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => terminal.say(&text),
        Err(error) => terminal.error(&format!("writing JSON: {error}")),
    }
}

pub fn check(files: &[PathBuf], terminal: Terminal, json: bool) -> Exit {
    let policy = match load(files) {
        Ok(policy) => policy,
        Err(unusable) => return unusable.report(terminal),
    };
    if json {
        let rules: Vec<_> = policy.rules().collect();
        print(
            &serde_json::json!({
                "policy_snapshot": &**policy.snapshot(),
                "rules": rules,
                "warnings": policy.warnings(),
            }),
            terminal,
        );
        return Exit::Done;
    }
    for warning in policy.warnings() {
        terminal.note(&clean(&format!("warning: {warning}")));
    }
    terminal.say(&format!(
        "ok: {} rules, {} otherwise, snapshot {}",
        policy.rules().count(),
        policy.default_decision(),
        policy.snapshot()
    ));
    Exit::Done
}

/// `safety.yaml` has its tests in `safety.test.yaml`.
fn beside(policy: &Path) -> PathBuf {
    let ending = policy.extension().unwrap_or_default().to_string_lossy();
    policy.with_extension(format!("test.{ending}"))
}

pub fn test(
    files: &[PathBuf],
    tests: &[PathBuf],
    coverage: Option<u8>,
    terminal: Terminal,
    json: bool,
) -> Exit {
    let policy = match load(files) {
        Ok(policy) => policy,
        Err(unusable) => return unusable.report(terminal),
    };
    let paths: Vec<PathBuf> = if tests.is_empty() {
        let found = files.iter().map(|f| beside(f)).filter(|p| p.exists());
        found.collect()
    } else {
        tests.to_vec()
    };
    if paths.is_empty() {
        let wanted: Vec<String> = files
            .iter()
            .map(|f| beside(f).display().to_string())
            .collect();
        terminal.error(&format!("there are no tests at {}", wanted.join(", ")));
        return Exit::Usage;
    }
    let mut suites = Vec::with_capacity(paths.len());
    for path in &paths {
        let text = match text(path) {
            Ok(text) => text,
            Err(unusable) => return unusable.report(terminal),
        };
        match Suite::load(&path.display().to_string(), &text) {
            Ok(suite) => suites.push(suite),
            Err(error) => return Unusable::invalid(&error).report(terminal),
        }
    }
    let report = fixtures::run(&policy, &suites);
    let enough = coverage.is_none_or(|wanted| percent(&report) >= usize::from(wanted));
    if json {
        print(&report, terminal);
    } else {
        print_report(&report, terminal);
        if !enough {
            terminal.error("too few of the rules decide in a test");
        }
    }
    if report.passed() && enough {
        Exit::Done
    } else {
        Exit::Failed
    }
}

fn percent(report: &Report) -> usize {
    let all = report.covered.len() + report.uncovered.len();
    (report.covered.len() * 100).checked_div(all).unwrap_or(100)
}

fn print_report(report: &Report, terminal: Terminal) {
    for case in report.cases.iter().filter(|c| !c.passed) {
        let why = case.why.as_deref().unwrap_or_default();
        terminal.say(&one_line(&format!(
            "FAILED {}:{} {}: {why}",
            case.suite, case.line, case.name
        )));
    }
    let all = report.covered.len() + report.uncovered.len();
    terminal.say(&format!(
        "{} tests, {} failed; {} of {all} rules decide in a test ({}%)",
        report.cases.len(),
        report.failures(),
        report.covered.len(),
        percent(report)
    ));
    for rule in &report.uncovered {
        terminal.say(&one_line(&format!("  never decides: {rule}")));
    }
}

/// Asks a policy that is only a file.
pub fn simulate(job: &Job, explain: bool, terminal: Terminal, json: bool) -> Exit {
    let policy = match load(&job.files) {
        Ok(policy) => policy,
        Err(unusable) => return unusable.report(terminal),
    };
    let request = match request(job) {
        Ok(request) => request,
        Err(error) => {
            terminal.error(&error.to_string());
            return Exit::Usage;
        }
    };
    let explanation = policy.explain(&request.as_request(), &mut NoCounters);
    match (json, explain) {
        (true, true) => print(&explanation, terminal),
        (true, false) => print(&explanation.evaluation, terminal),
        (false, true) => {
            terminal.say(&clean(&explanation.to_string()));
            for change in &explanation.changes {
                terminal.say(&one_line(&format!("  {}", change.text)));
            }
        }
        (false, false) => {
            let e = &explanation.evaluation;
            let rule = e.rule_id.as_deref().unwrap_or(fixtures::DEFAULT);
            let line = format!("{} by {rule}: {}", e.decision.wire(), e.reason);
            terminal.say(&one_line(&line));
            for shadow in &e.shadows {
                terminal.say(&one_line(&format!("  on trial: {}", shadow.reason)));
            }
        }
    }
    Exit::Done
}

/// The request that these arguments describe.
pub fn request(job: &Job) -> Result<OwnedRequest, payload::PayloadError> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let input = job.payload.as_deref().map(payload::read).transpose()?;
    Ok(OwnedRequest {
        topic: job.topic.clone(),
        tenant: text(&job.tenant),
        principal_id: text(&job.principal),
        priority: job
            .priority
            .map(|p| p.as_str().to_ascii_lowercase())
            .unwrap_or_default(),
        labels: job.labels.iter().cloned().collect(),
        estimated_cost: job.estimated_cost.map(f64::from),
        meta: airlock_policy::Meta {
            capability: text(&job.capability),
            risk_tags: job.risk_tags.clone(),
            requires: job.requires.clone(),
            pack_id: text(&job.pack),
            actor_id: text(&job.actor),
            actor_type: text(&job.actor_type),
            ..airlock_policy::Meta::default()
        },
        input: input.map(|raw| raw.get().to_owned()),
        ..OwnedRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_stand_beside_their_policy() {
        let beside = |path: &str| super::beside(Path::new(path)).display().to_string();
        assert_eq!(beside("config/safety.yaml"), "config/safety.test.yaml");
        assert_eq!(beside("a.yml"), "a.test.yml");
    }
}
