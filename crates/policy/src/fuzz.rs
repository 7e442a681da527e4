//! Entry points for fuzzing: whatever bytes come, nothing panics, overflows the stack,
//! hangs or takes much memory. `fuzz/` drives them where a nightly compiler is at
//! hand, the tests of this crate with random bytes everywhere.

use std::collections::BTreeMap;

use crate::clause::Facts;
use airlock_scan::Scanner;

use crate::output::{MetadataCheck, OutputContent, OutputRequest};
use crate::request::{Budget, Content, Request};
use crate::velocity::NoCounters;
use crate::when::{INPUT_VARIABLES, When};
use crate::{Policy, Source};

/// Bytes as the text of a policy. What loads is also asked.
pub fn fuzz_load(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let source = Source {
        name: "fuzz.yaml",
        text,
    };
    match Policy::load_files(&[source]) {
        Ok(policy) => with_largest_request(|request| {
            let answer = policy.explain(request, &mut NoCounters);
            let _ = answer.to_string();
        }),
        Err(error) => {
            let _ = error.to_string();
        }
    }
}

/// Bytes as a `when` expression. What compiles is also asked.
pub fn fuzz_when(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(when) = When::compile(text, INPUT_VARIABLES) {
        with_largest_request(|request| {
            let _ = when.holds(&Facts::new(request, "acme").vars);
        });
    }
}

/// The lines of a text before `---` as the list of output rules, the bytes after it as an
/// output. What loads is also asked, in both phases.
pub fn fuzz_output(bytes: &[u8]) {
    const BETWEEN: &[u8] = b"---\n";
    let at = bytes.windows(BETWEEN.len()).position(|w| w == BETWEEN);
    let (rules, output) = match at {
        Some(at) => (&bytes[..at], &bytes[at + BETWEEN.len()..]),
        None => (bytes, bytes),
    };
    let Ok(rules) = std::str::from_utf8(rules) else {
        return;
    };
    let text = format!("version: 1\nrules: []\noutput_rules:\n{rules}");
    let Ok(policy) = Policy::load(&text) else {
        return;
    };
    with_largest_request(|request| {
        let asked = OutputRequest {
            tenant: request.tenant,
            labels: request.labels,
            risk_tags: request.risk_tags,
            capabilities: request.requires,
            content_type: "text/plain",
            size: output.len() as u64,
            ..OutputRequest::new("job.a")
        };
        let scanner = Scanner::builtin();
        let content = OutputContent {
            bytes: output,
            report: &scanner.scan(output),
            complete: true,
        };
        let ruling = policy.output().check_content(&asked, &content);
        match policy.output().check_metadata(&asked, None) {
            MetadataCheck::Decided(decided) => assert!(decided == ruling, "the phases differ"),
            MetadataCheck::ContentNeeded { .. } => {}
        }
        let _ = policy
            .output()
            .mask(ruling.rule_id.as_deref(), &scanner, output);
    });
}

/// A request as large as one may be, so that what grows with it shows.
fn with_largest_request(ask: impl FnOnce(&Request<'_>)) {
    let word = "x".repeat(64);
    let many: Vec<String> = (0..Request::MAX_LIST)
        .map(|i| format!("tag-{i}-{word}"))
        .collect();
    let mut labels: BTreeMap<String, String> = many
        .iter()
        .take(200)
        .map(|t| (t.clone(), t.clone()))
        .collect();
    for name in ["a", "b", "env", "mcp.server", "mcp.tool", "amount"] {
        labels.insert(name.to_owned(), "7".to_owned());
    }
    ask(&Request {
        tenant: "acme",
        risk_tags: &many,
        requires: &many,
        labels: &labels,
        budget: Budget {
            deadline_ms: i64::MAX,
            ..Budget::default()
        },
        estimated_cost: f64::MAX,
        content: Some(Content {
            bytes: Some(word.as_bytes()),
            content_type: "text/plain",
            size: word.len() as u64,
        }),
        ..Request::new("job.a")
    });
}
