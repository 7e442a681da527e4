//! `docs/output-scanning.md` names every detector, and its examples work.

use airlock_scan::{ScanReport, Scanner};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/output-scanning.md");
    std::fs::read_to_string(path).unwrap()
}

/// The code blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let parts = page.split(fence.as_str()).skip(1);
    parts.map(|p| p.split("```").next().unwrap()).collect()
}

#[test]
fn the_page_names_every_detector() {
    let page = page();
    for (name, _, _) in Scanner::builtin_detectors() {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_examples_of_the_page_load() {
    let page = page();
    let configurations = blocks(&page, "yaml");
    assert_eq!(configurations.len(), 1);
    let scanner = Scanner::from_yaml(configurations[0]).unwrap();
    let report: ScanReport = scanner.scan(b"EMP-123456 has the badge 654321 and mail a@corp.io");
    let names: Vec<&str> = report
        .findings
        .iter()
        .map(|f| f.detector.as_str())
        .collect();
    assert_eq!(names, ["employee_number", "badge"]);
    let shown: serde_json::Value = serde_json::from_str(blocks(&page, "json")[0]).unwrap();
    let finding = serde_json::to_value(&report.findings[0]).unwrap();
    let keys =
        |v: &serde_json::Value| -> Vec<String> { v.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(keys(&shown["findings"][0]), keys(&finding));
}
