//! The jobs that are submitted, as JSON.
//!
//! What must stay true: at most half of the decisions on them can come from a cache.
//! Every second job carries a customer that no other has had; each of the others
//! repeats the customer of a job some way before it, so that its decision has been
//! made by then and a cache has its fair chance. The policy's rules look at the
//! customer, so nobody may leave it out of the cache's key.

use std::fmt::Write;

/// The topic of all jobs.
pub const TOPIC: &str = "job.noop";

/// How far back a repeated customer was first seen. Odd, so that odd jobs repeat even
/// ones.
const BACK: usize = 1_001;

/// The customer of the job with this number in its phase.
fn customer(phase: &str, number: usize) -> String {
    let first = match number.checked_sub(BACK) {
        Some(earlier) if number % 2 == 1 => earlier,
        Some(_) | None => number,
    };
    format!("{phase}-{first}")
}

/// One job as a request's body.
pub fn body(phase: &str, number: usize) -> String {
    let mut text = String::with_capacity(192);
    append(&mut text, phase, number);
    text
}

/// A whole batch as a request's body.
pub fn batch(phase: &str, numbers: std::ops::Range<usize>) -> String {
    let mut text = String::with_capacity(16 + numbers.len() * 192);
    text.push_str(r#"{"jobs":["#);
    for (i, number) in numbers.enumerate() {
        if i > 0 {
            text.push(',');
        }
        append(&mut text, phase, number);
    }
    text.push_str("]}");
    text
}

fn append(text: &mut String, phase: &str, number: usize) {
    let customer = customer(phase, number);
    let region = number % 5;
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        r#"{{"topic":"{TOPIC}","payload":{{"order":{number},"items":["apples","pears"]}},"labels":{{"customer":"{customer}","region":"eu-{region}"}},"principal_id":"bench"}}"#
    );
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn at_most_half_of_the_decisions_repeat() {
        for total in [1_000, 20_000, 50_000] {
            let customers: HashSet<String> = (0..total).map(|n| customer("p", n)).collect();
            assert!(
                customers.len() * 2 >= total,
                "{} of {total}",
                customers.len()
            );
        }
        assert_eq!(customer("p", 1_003), customer("p", 2));
    }

    #[test]
    fn bodies_are_json() {
        let one: serde_json::Value = serde_json::from_str(&body("single", 7)).expect("json");
        assert_eq!(one["labels"]["customer"], "single-7");
        let all: serde_json::Value = serde_json::from_str(&batch("bulk", 3..6)).expect("json");
        assert_eq!(all["jobs"].as_array().map(Vec::len), Some(3));
        assert_eq!(all["jobs"][2]["payload"]["order"], 5);
    }
}
