//! Entry points for fuzzing: whatever bytes come, nothing panics, overflows the stack,
//! hangs or takes much memory. `fuzz/` drives them where a nightly compiler is at
//! hand, the tests of this crate with random bytes everywhere.

use std::collections::BTreeMap;

use crate::clause::Facts;
use crate::request::{Budget, Content, Request};
use crate::velocity::NoCounters;
use crate::when::When;
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
    if let Ok(when) = When::compile(text) {
        with_largest_request(|request| {
            let _ = when.holds(&Facts::new(request, "acme").vars);
        });
    }
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
