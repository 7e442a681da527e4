//! The breakages of `./dev sabotage` still fit the code they break.
//!
//! What must stay true: each one's text is found exactly once in its file, and the test
//! that must turn red is there, in the package that is tested. Whether it does turn red,
//! `./dev sabotage` tells; that takes too long for every run of the suite.

use std::collections::BTreeSet;
use std::path::Path;

use airlock_testkit::repository_root;
use anyhow::{Context, Result, ensure};

use crate::specification::{package_folder, tests_under};

struct Breakage {
    what: String,
    file: String,
    package: String,
    test: String,
    find: String,
    replace: String,
}

fn read(path: &Path) -> Result<Breakage> {
    let text = std::fs::read_to_string(path)?;
    let (head, rest) = text.split_once("\nfind:\n").context("no text to find")?;
    let (find, replace) = rest
        .split_once("\nreplace:\n")
        .context("nothing to put in its place")?;
    let field = |name: &str| {
        let line = head.lines().find_map(|l| l.strip_prefix(name));
        line.map(str::to_owned)
            .with_context(|| format!("no line {name:?}"))
    };
    Ok(Breakage {
        what: field("what: ")?,
        file: field("file: ")?,
        package: field("package: ")?,
        test: field("test: ")?,
        find: find.to_owned(),
        replace: replace.strip_suffix('\n').unwrap_or(replace).to_owned(),
    })
}

fn check(b: &Breakage) -> Result<()> {
    ensure!(!b.what.is_empty(), "it does not say what it breaks");
    ensure!(!b.find.trim().is_empty(), "there is no text to find");
    ensure!(b.find != b.replace, "it changes nothing");
    let root = repository_root();
    let code = std::fs::read_to_string(root.join(&b.file)).context(b.file.clone())?;
    let times = code.matches(&b.find).count();
    ensure!(times == 1, "its text is in {} {times} times", b.file);
    let tests = tests_under(&package_folder(&b.package)?)?;
    ensure!(
        tests.contains(&b.test),
        "{} has no test {}",
        b.package,
        b.test
    );
    Ok(())
}

#[test]
fn every_breakage_still_applies() -> Result<()> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(repository_root().join("sabotage"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|n| n.to_str());
        let name = name.context("a file without a name")?.to_owned();
        let breakage = read(&path).with_context(|| name.clone())?;
        check(&breakage).with_context(|| name.clone())?;
        names.insert(name);
    }
    ensure!(names.len() >= 15, "only {} breakages", names.len());
    Ok(())
}
