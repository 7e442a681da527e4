//! The jobs that are submitted, as JSON.
//!
//! What must stay true: at most half of the decisions on them can come from a cache.
//! Every second job carries labels that no other has had; each of the others repeats
//! the labels of a job some way before it, so that its decision has been made by then
//! and a cache has its fair chance. The policy's rules look at these labels, so nobody
//! may leave them out of the cache's key.

use std::fmt::Write;

/// The topic of all jobs.
pub const TOPIC: &str = "job.noop";

/// How far back repeated labels were first seen, where thousands come each second and
/// where fifty do: about a second. Odd, so that odd jobs repeat even ones.
pub const BACK: usize = 5_001;
pub const BACK_SLOW: usize = 51;

/// The job whose labels the one with this number has.
fn number_for_labels(number: usize, back: usize) -> usize {
    match number.checked_sub(back) {
        Some(earlier) if number % 2 == 1 => earlier,
        Some(_) | None => number,
    }
}

/// One job as a request's body.
pub fn job_body(phase: &str, number: usize, back: usize) -> String {
    let mut text = String::with_capacity(192);
    append_job_json(&mut text, phase, number, back);
    text
}

/// A whole batch as a request's body.
pub fn batch_body(phase: &str, numbers: std::ops::Range<usize>) -> String {
    let mut text = String::with_capacity(16 + numbers.len() * 192);
    text.push_str(r#"{"jobs":["#);
    for (i, number) in numbers.enumerate() {
        if i > 0 {
            text.push(',');
        }
        append_job_json(&mut text, phase, number, BACK);
    }
    text.push_str("]}");
    text
}

fn append_job_json(text: &mut String, phase: &str, number: usize, back: usize) {
    let customer = number_for_labels(number, back);
    let region = customer % 5;
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        r#"{{"topic":"{TOPIC}","payload":{{"order":{number},"items":["apples","pears"]}},"labels":{{"customer":"{phase}-{customer}","region":"eu-{region}"}},"principal_id":"bench"}}"#
    );
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn at_most_half_of_the_decisions_repeat() {
        for (total, back) in [(1_050, BACK_SLOW), (20_000, BACK), (50_000, BACK)] {
            let own: HashSet<usize> = (0..total).map(|n| number_for_labels(n, back)).collect();
            assert!(own.len() * 2 >= total, "{} of {total}", own.len());
            assert!(own.len() * 3 < total * 2, "{} of {total}", own.len());
        }
    }

    #[test]
    fn repeated_labels_are_the_same() {
        let labels = |number| {
            let job: serde_json::Value =
                serde_json::from_str(&job_body("p", number, BACK_SLOW)).expect("json");
            job["labels"].clone()
        };
        assert_eq!(labels(53), labels(2));
        assert_ne!(labels(54), labels(3));
    }

    #[test]
    fn bodies_are_json() {
        let one: serde_json::Value =
            serde_json::from_str(&job_body("single", 7, BACK)).expect("json");
        assert_eq!(one["labels"]["customer"], "single-7");
        let all: serde_json::Value = serde_json::from_str(&batch_body("bulk", 3..6)).expect("json");
        assert_eq!(all["jobs"].as_array().map(Vec::len), Some(3));
        assert_eq!(all["jobs"][2]["payload"]["order"], 5);
    }
}
