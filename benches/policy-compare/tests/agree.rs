//! All three engines give the same answer to every request, and the sample is worth
//! asking: many are allowed, many refused, by many different rules.

use policy_compare::{REQUESTS, RULES, engines, rules};

#[test]
fn all_engines_agree_on_every_request() {
    assert_eq!(rules().len(), RULES);
    let mut engines = engines();
    let mut allowed = 0;
    for request in 0..REQUESTS {
        let answers: Vec<(&str, bool)> = engines
            .iter_mut()
            .map(|e| (e.name(), e.allows(request)))
            .collect();
        let first = answers[0].1;
        assert!(
            answers.iter().all(|(_, a)| *a == first),
            "request {request}: {answers:?}"
        );
        allowed += usize::from(first);
    }
    println!("{allowed} of {REQUESTS} requests are allowed");
    assert!(
        (REQUESTS / 5..REQUESTS * 4 / 5).contains(&allowed),
        "{allowed}"
    );
}
