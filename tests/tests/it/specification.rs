//! The page about the specification tells the truth.
//!
//! What must stay true: every promise of the documents has its line, every path and
//! every test that a line names is there, and the documents' constants and keys stand in
//! the page and in the very file it points at. Whoever moves code or renames a test
//! learns here which line to change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use airlock_testkit::repository_root;
use anyhow::{Context, Result, ensure};

/// The parts of the specification and how many promises each has.
const PARTS: &[(&str, usize)] = &[
    ("S4-0", 4),
    ("S4-1", 30),
    ("S4-2", 33),
    ("S4-3", 24),
    ("S4-4", 25),
    ("S4-5", 32),
    ("S4-6", 29),
    ("S4-7", 15),
    ("S4-8", 44),
    ("S4-9", 18),
    ("S4-10", 21),
    ("S4-11", 9),
    ("S4-12", 24),
    ("S0", 56),
    ("S1", 22),
    ("S2", 24),
    ("S3", 22),
    ("C", 17),
];

/// What a promise may be waiting for.
const NOT_YET: &[&str] = &[
    "output policy",
    "saga manager",
    "workflow engine",
    "second singleton",
    "sharded election",
    "deployment",
];

/// The documents' constants and keys, one per line: the number of the promise, what its
/// line must say, a file that it points at, and what must stand in there.
const CONSTANTS: &str = include_str!("specification/constants.txt");

/// One line of the page.
struct Line {
    promised: String,
    paths: Vec<String>,
    tests: Vec<String>,
    decisions: Vec<String>,
    shown: String,
}

fn page() -> Result<BTreeMap<String, Line>> {
    let text = std::fs::read_to_string(repository_root().join("docs/specification.md"))?;
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", id, promised, places, shown, ""] = cells[..] else {
            ensure!(
                !line.starts_with("| S") && !line.starts_with("| C."),
                "not four cells: {line}"
            );
            continue;
        };
        if id.is_empty() || id.starts_with('-') {
            continue;
        }
        let first = shown.split(';').next().unwrap_or_default();
        let first = if first.starts_with("decided in") {
            ""
        } else {
            first
        };
        let line = Line {
            promised: promised.to_owned(),
            paths: quoted(places),
            tests: quoted(first),
            decisions: links(shown),
            shown: shown.to_owned(),
        };
        ensure!(lines.insert(id.to_owned(), line).is_none(), "{id} twice");
    }
    Ok(lines)
}

/// Whatever stands between backticks.
fn quoted(text: &str) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

/// The files that are linked to.
fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The names of all tests below a folder.
pub fn tests_under(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                names.extend(tests_in(&std::fs::read_to_string(&path)?));
            }
        }
    }
    Ok(names)
}

/// A test is a function below an attribute that ends in `test]`, or whose words between
/// end in it: comments and other attributes may stand between the two.
fn tests_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut marked = false;
    // Names in this list become tests, one on each backend of the election.
    let mut listed = false;
    for line in text.lines().map(str::trim) {
        if listed {
            listed = line != "}";
            found.extend(line.strip_suffix(',').map(str::to_owned));
        } else if line == "on_every_backend! {" {
            listed = true;
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(rest) = function(line) {
            if marked {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                found.push(name.trim().to_owned());
            }
            marked = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            marked = false;
        }
    }
    found
}

fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")
}

/// Where a package of the workspace lives.
pub fn package_folder(package: &str) -> Result<PathBuf> {
    let root = repository_root();
    let mut folders = vec![root.join("tests")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        folders.push(entry?.path());
    }
    for folder in folders {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        if manifest.contains(&format!("\nname = \"{package}\"\n")) {
            return Ok(folder);
        }
    }
    anyhow::bail!("there is no package {package}")
}

#[test]
fn every_promise_has_its_line() -> Result<()> {
    let page = page()?;
    let mut expected = BTreeSet::new();
    for (part, count) in PARTS {
        expected.extend((1..=*count).map(|n| format!("{part}.{n:02}")));
    }
    let found: BTreeSet<String> = page.keys().cloned().collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let unknown: Vec<_> = found.difference(&expected).collect();
    ensure!(missing.is_empty(), "missing: {missing:?}");
    ensure!(unknown.is_empty(), "unknown: {unknown:?}");
    Ok(())
}

#[test]
fn every_line_points_at_what_is_there() -> Result<()> {
    let root = repository_root();
    let mut tests = tests_under(&root.join("crates"))?;
    tests.extend(tests_under(&root.join("tests"))?);
    ensure!(tests.len() > 500, "only {} tests were found", tests.len());
    let mut wrong = Vec::new();
    for (id, line) in page()? {
        if line.promised.is_empty() {
            wrong.push(format!("{id} promises nothing"));
        }
        for path in &line.paths {
            if !root.join(path).exists() {
                wrong.push(format!("{id}: there is no {path}"));
            }
        }
        for link in &line.decisions {
            if !root.join("docs").join(link).is_file() {
                wrong.push(format!("{id}: there is no docs/{link}"));
            }
        }
        if let Some(rest) = line.shown.strip_prefix("**not yet**: ") {
            if !NOT_YET.iter().any(|what| rest.starts_with(what)) {
                wrong.push(format!("{id} waits for something unknown: {rest}"));
            }
            continue;
        }
        if line.paths.is_empty() {
            wrong.push(format!("{id} is nowhere"));
        }
        if line.tests.is_empty() && line.decisions.is_empty() {
            wrong.push(format!("{id} is shown by nothing"));
        }
        for test in line.tests.iter().filter(|t| !tests.contains(*t)) {
            wrong.push(format!("{id}: there is no test {test}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn every_constant_is_in_the_page_and_in_the_code() -> Result<()> {
    let page = page()?;
    let mut wrong = Vec::new();
    for constant in CONSTANTS.lines() {
        let cells: Vec<&str> = constant.split(" :: ").collect();
        let [id, promised, file, code] = cells[..] else {
            anyhow::bail!("not four cells: {constant}");
        };
        let line = page.get(id).with_context(|| format!("no line {id}"))?;
        if !line.promised.contains(promised) && !line.shown.contains(promised) {
            wrong.push(format!("{id} does not say {promised:?}"));
        }
        if !line.paths.iter().any(|p| p == file) {
            wrong.push(format!("{id} does not point at {file}"));
        }
        let text = std::fs::read_to_string(repository_root().join(file))?;
        if !text.contains(code) {
            wrong.push(format!("{id}: {file} has no {code:?}"));
        }
    }
    ensure!(CONSTANTS.lines().count() > 80, "constants are missing");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn tests_are_told_from_other_functions() {
    let text = "#[test]\nfn a() {}\nfn b() {}\n#[tokio::test(flavor = \"x\")]\n/// Words.\n\
                #[cfg(unix)]\nasync fn c() {}\n#[test]\nlet x;\nfn d() {}\n\
                on_every_backend! {\n    e,\n}\nfn f() {}";
    assert_eq!(tests_in(text), ["a", "c", "e"]);
}
