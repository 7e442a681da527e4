//! Whatever bytes come: no panic, no stack overflow, no hang, bounded memory. The
//! tests run on a thread's ordinary stack, so an overflow would end them all.

use airlock_policy::fuzz;
use airlock_policy::limits;
use proptest::collection::vec;
use proptest::prelude::*;

/// Pieces of expressions, so that more than the first character is read.
fn expression() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "topic",
        "labels",
        "risk_tags",
        "budget",
        "mcp",
        ".a",
        ".env",
        "['a']",
        "[0]",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        " && ",
        " || ",
        " == ",
        " != ",
        " < ",
        " in ",
        " + ",
        " - ",
        " * ",
        " / ",
        " % ",
        "!",
        "-",
        "? ",
        ": ",
        ", ",
        "'x'",
        "\"y\"",
        "'''",
        "r'\\",
        "b'z'",
        "1",
        "0u",
        "2.5",
        "1e9",
        "0x",
        "true",
        "null",
        "has(",
        "size(",
        ".exists(t, t",
        ".all(t, t",
        ".map(t, t",
        ".filter(t, t",
        ".matches('",
        ".startsWith('",
        "int(",
        "//",
        "\n",
        "\\",
        "`",
        "9223372036854775807",
        "-9223372036854775808",
        "é",
        "\u{0}",
    ]);
    vec(piece, 0..40).prop_map(|parts| parts.concat())
}

/// Pieces of a policy.
fn file() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "version: 1\n",
        "rules:\n",
        "  - ",
        "id: r",
        "match: ",
        "{",
        "}",
        "[",
        "]",
        "topics: ",
        "when: ",
        "'*'",
        ", ",
        "decision: ",
        "deny",
        "allow",
        "velocity: ",
        "max_requests: 1",
        "window_seconds: ",
        "tenants:\n",
        "  a: ",
        "input_policy:\n",
        "content_rules: ",
        "patterns: ",
        "\n",
        "  ",
        "&x ",
        "*x",
        "<<: ",
        "!!str ",
        "\"",
        "'",
        "|\n",
        "? ",
        "- ",
        "enforce: false\n",
        "1e309",
        ".nan",
        "~",
        "# c\n",
        "constraints: ",
        "mcp: ",
        "label_threshold: ",
        "\t",
    ]);
    vec(piece, 0..60).prop_map(|parts| parts.concat())
}

/// Pieces of one output rule, most of which make a rule.
fn output_rules() -> impl Strategy<Value = String> {
    let condition = prop::sample::select(vec![
        "topics: ['*']",
        "topics: [job.a, 'job.?']",
        "tenants: [ACME]",
        "capabilities: [x]",
        "risk_tags: [tag-1]",
        "content_types: ['text/*']",
        "output_size_gt: 10",
        "has_error: false",
        "detectors: [secret_leak, pii]",
        "scanners: [email, custom]",
        "keywords: [custom, 'a', 'é']",
        "content_patterns: ['[a-z]+', '^.', '(?i)x$']",
        "when: \"size(risk_tags) > 2 && labels.env == '7'\"",
        "when: \"labels.absent == 'x'\"",
        "keywords: []",
        "content_patterns: ['(']",
    ]);
    let decision = prop::sample::select(vec!["allow", "deny", "quarantine", "redact"]);
    let mode = prop::sample::select(vec!["", ", fail_mode: closed", ", enabled: false"]);
    let rule = (vec(condition, 1..3), decision, mode);
    vec(rule, 1..5).prop_map(|rules| {
        let line = |(i, (conditions, decision, mode)): (usize, (Vec<&str>, &str, &str))| {
            let conditions = conditions.join(", ");
            format!("- {{id: r{i}, match: {{{conditions}}}, decision: {decision}{mode}}}\n")
        };
        rules.into_iter().enumerate().map(line).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_harm_the_loader(bytes in vec(any::<u8>(), 0..512)) {
        fuzz::fuzz_load(&bytes);
    }

    #[test]
    fn no_pieces_harm_the_loader(text in file()) {
        fuzz::fuzz_load(text.as_bytes());
    }

    #[test]
    fn no_bytes_harm_an_expression(bytes in vec(any::<u8>(), 0..256)) {
        fuzz::fuzz_when(&bytes);
    }

    #[test]
    fn no_pieces_harm_an_expression(text in expression()) {
        fuzz::fuzz_when(text.as_bytes());
    }

    #[test]
    fn no_pieces_harm_output_rules(text in output_rules(), output in vec(any::<u8>(), 0..256)) {
        let mut bytes = format!("{text}\n---\n").into_bytes();
        bytes.extend(output);
        fuzz::fuzz_output(&bytes);
    }

    #[test]
    fn no_expression_harms_a_policy(text in expression()) {
        let quoted = text.replace('\'', "''");
        let file = format!("version: 1\nrules:\n  - id: r\n    match:\n      when: '{quoted}'\n    decision: deny\n");
        fuzz::fuzz_load(file.as_bytes());
    }
}

#[test]
fn what_nests_is_refused_before_it_hurts() {
    let max = limits::WHEN_BYTES;
    for (open, middle, close) in [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{1:", "1", "}"),
        ("!", "true", ""),
        ("-", "1", ""),
        ("f(", "1", ")"),
        ("a?", "1", ":1"),
        ("1+", "1", ""),
        ("true||", "true", ""),
        ("true&&", "true", ""),
        ("1==", "1", ""),
        ("a.", "b", ""),
        ("a[", "1", "]"),
        ("[1].all(x,", "true", ")"),
        ("has(", "a.b", ")"),
    ] {
        let times = (max - middle.len()) / (open.len() + close.len());
        for times in [times, times * 100] {
            let text = format!("{}{middle}{}", open.repeat(times), close.repeat(times));
            fuzz::fuzz_when(text.as_bytes());
        }
        let text = format!("{}{middle}{}", open.repeat(times), close.repeat(times));
        fuzz::fuzz_load(text.as_bytes());
    }
    let deep = "[".repeat(100_000);
    fuzz::fuzz_load(format!("version: {deep}").as_bytes());
    fuzz::fuzz_load("a: ".repeat(100_000).as_bytes());
    fuzz::fuzz_load("- ".repeat(100_000).as_bytes());
    // Aliases that would multiply.
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        laughs += &format!(
            "a{i}: &a{i} [{}]\n",
            vec![format!("*a{}", i - 1); 9].join(", ")
        );
    }
    fuzz::fuzz_load(laughs.as_bytes());
}

#[test]
fn the_dearest_expressions_are_still_cheap() {
    // The largest loop there is, over the largest request, a few times over: a hang
    // would be noticed by whoever waits for the tests.
    for text in [
        "risk_tags.all(t, t.matches('x*x*x*$') || t in requires || t.contains('tag'))",
        "labels.exists(l, labels[l] + labels[l] + labels[l] == l)",
        "size(risk_tags.filter(t, size(t + t + t + t) > 5)) > size(requires.map(t, t + t))",
    ] {
        for _ in 0..20 {
            fuzz::fuzz_when(text.as_bytes());
        }
    }
}
