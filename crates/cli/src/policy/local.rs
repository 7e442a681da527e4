//! What needs no API: checking, testing, and evaluating a policy that is only a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use airlock_policy::fixtures::{self, Report, Suite};
use airlock_policy::{LoadError, NoCounters, OwnedRequest, Policy, Source, limits};

use super::Job;
use crate::exit::Exit;
use crate::payload;
use crate::terminal::{Terminal, one_line, strip_control_chars};

/// Why a file cannot be used as a policy, and the exit code.
pub struct Unusable {
    pub text: String,
    pub exit: Exit,
}

impl Unusable {
    fn from_io_error(path: &Path, error: &std::io::Error) -> Self {
        Self {
            text: format!("reading {}: {error}", path.display()),
            exit: Exit::Usage,
        }
    }

    /// One mistake a line, as compilers do.
    fn from_load_error(error: &LoadError) -> Self {
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

    fn print_error(&self, terminal: Terminal) -> Exit {
        terminal.error(&strip_control_chars(&self.text));
        self.exit
    }
}

/// A text file that is not larger than a policy may be.
pub fn read_text_file(path: &Path) -> Result<String, Unusable> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| {
            let most = limits::FILE_BYTES as u64 + 1;
            file.take(most).read_to_string(&mut text)
        })
        .map_err(|e| Unusable::from_io_error(path, &e))?;
    Ok(text)
}

pub fn load_policy(files: &[PathBuf]) -> Result<Policy, Unusable> {
    let mut named = Vec::with_capacity(files.len());
    for path in files {
        named.push((path.display().to_string(), read_text_file(path)?));
    }
    let sources: Vec<Source<'_>> = named
        .iter()
        .map(|(name, text)| Source { name, text })
        .collect();
    Policy::load_files(&sources).map_err(|e| Unusable::from_load_error(&e))
}

fn print_json(value: &impl serde::Serialize, terminal: Terminal) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => terminal.print(&text),
        Err(error) => terminal.error(&format!("writing JSON: {error}")),
    }
}

pub fn check_policy(files: &[PathBuf], terminal: Terminal, json: bool) -> Exit {
    let policy = match load_policy(files) {
        Ok(policy) => policy,
        Err(unusable) => return unusable.print_error(terminal),
    };
    if json {
        let rules: Vec<_> = policy.rules().collect();
        print_json(
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
        terminal.note(&strip_control_chars(&format!("warning: {warning}")));
    }
    terminal.print(&format!(
        "ok: {} rules, {} otherwise, snapshot {}",
        policy.rules().count(),
        policy.default_decision(),
        policy.snapshot()
    ));
    Exit::Done
}

/// `safety.yaml` has its tests in `safety.test.yaml`.
fn test_file_for(policy: &Path) -> PathBuf {
    let ending = policy.extension().unwrap_or_default().to_string_lossy();
    policy.with_extension(format!("test.{ending}"))
}

pub fn test_policy(
    files: &[PathBuf],
    tests: &[PathBuf],
    coverage: Option<u8>,
    terminal: Terminal,
    json: bool,
) -> Exit {
    let policy = match load_policy(files) {
        Ok(policy) => policy,
        Err(unusable) => return unusable.print_error(terminal),
    };
    let paths: Vec<PathBuf> = if tests.is_empty() {
        let found = files
            .iter()
            .map(|f| test_file_for(f))
            .filter(|p| p.exists());
        found.collect()
    } else {
        tests.to_vec()
    };
    if paths.is_empty() {
        let wanted: Vec<String> = files
            .iter()
            .map(|f| test_file_for(f).display().to_string())
            .collect();
        terminal.error(&format!("there are no tests at {}", wanted.join(", ")));
        return Exit::Usage;
    }
    let mut suites = Vec::with_capacity(paths.len());
    for path in &paths {
        let text = match read_text_file(path) {
            Ok(text) => text,
            Err(unusable) => return unusable.print_error(terminal),
        };
        match Suite::load(&path.display().to_string(), &text) {
            Ok(suite) => suites.push(suite),
            Err(error) => return Unusable::from_load_error(&error).print_error(terminal),
        }
    }
    let report = fixtures::run_suites(&policy, &suites);
    let enough = coverage.is_none_or(|wanted| coverage_percent(&report) >= usize::from(wanted));
    if json {
        print_json(&report, terminal);
    } else {
        print_test_report(&report, terminal);
        if !enough {
            terminal.error("too few of the rules decide in a test");
        }
    }
    if report.all_passed() && enough {
        Exit::Done
    } else {
        Exit::Failed
    }
}

fn coverage_percent(report: &Report) -> usize {
    let all = report.covered.len() + report.uncovered.len();
    (report.covered.len() * 100).checked_div(all).unwrap_or(100)
}

fn print_test_report(report: &Report, terminal: Terminal) {
    for case in report.cases.iter().filter(|c| !c.passed) {
        let why = case.why.as_deref().unwrap_or_default();
        terminal.print(&one_line(&format!(
            "FAILED {}:{} {}: {why}",
            case.suite, case.line, case.name
        )));
    }
    let all = report.covered.len() + report.uncovered.len();
    terminal.print(&format!(
        "{} tests, {} failed; {} of {all} rules decide in a test ({}%)",
        report.cases.len(),
        report.failure_count(),
        report.covered.len(),
        coverage_percent(report)
    ));
    for rule in &report.uncovered {
        terminal.print(&one_line(&format!("  never decides: {rule}")));
    }
}

/// Asks a policy that is only a file.
pub fn simulate_from_files(job: &Job, explain: bool, terminal: Terminal, json: bool) -> Exit {
    let policy = match load_policy(&job.files) {
        Ok(policy) => policy,
        Err(unusable) => return unusable.print_error(terminal),
    };
    let request = match to_policy_request(job) {
        Ok(request) => request,
        Err(error) => {
            terminal.error(&error.to_string());
            return Exit::Usage;
        }
    };
    let explanation = policy.explain(&request.as_request(), &mut NoCounters);
    match (json, explain) {
        (true, true) => print_json(&explanation, terminal),
        (true, false) => print_json(&explanation.evaluation, terminal),
        (false, true) => {
            terminal.print(&strip_control_chars(&explanation.to_string()));
            for change in &explanation.changes {
                terminal.print(&one_line(&format!("  {}", change.text)));
            }
        }
        (false, false) => {
            let e = &explanation.evaluation;
            let rule = e.rule_id.as_deref().unwrap_or(fixtures::DEFAULT);
            let line = format!("{} by {rule}: {}", e.decision.as_api_str(), e.reason);
            terminal.print(&one_line(&line));
            for shadow in &e.shadows {
                terminal.print(&one_line(&format!("  on trial: {}", shadow.reason)));
            }
        }
    }
    Exit::Done
}

/// The request that these arguments describe.
pub fn to_policy_request(job: &Job) -> Result<OwnedRequest, payload::PayloadError> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let input = job
        .payload
        .as_deref()
        .map(payload::read_payload)
        .transpose()?;
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
        let beside = |path: &str| super::test_file_for(Path::new(path)).display().to_string();
        assert_eq!(beside("config/safety.yaml"), "config/safety.test.yaml");
        assert_eq!(beside("a.yml"), "a.test.yml");
    }
}
