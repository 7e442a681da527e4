//! From the texts of the files to a [`Policy`], or to everything that is wrong with
//! them.
//!
//! Files are taken whole or not at all. Mistakes are collected, so that one look at the
//! error is enough to mend them: those of form by `schema.rs`, those of meaning by the
//! compiler, which looks at files that have no mistake of form.

use serde::de::DeserializeOwned;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error as YamlError, Location};

use crate::Policy;
use crate::compile::{ParsedFile, compile_policy};
use crate::document::Document;
use crate::problem::{LoadError, Problem, Problems, limits};
use crate::schema;
use airlock_settings::hint::suggest;

pub(crate) const NO_SUCH_FIELD: &str = "there is no such field";

/// The text of a file, and what it is called in errors.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

impl Policy {
    /// Reads the text of a policy that is one file.
    pub fn load(text: &str) -> Result<Self, LoadError> {
        Self::load_files(&[Source { name: "", text }])
    }

    /// Reads several files that make up one policy. **Earlier files win**: their rules
    /// are asked first, and a default that two files name is the first one's. What a
    /// file takes from a tenant is taken, whichever file it is.
    ///
    /// So the file with what nobody may get around stands first, and no overlay can
    /// allow what it denies.
    pub fn load_files(files: &[Source<'_>]) -> Result<Self, LoadError> {
        let mut problems = Problems::default();
        if files.is_empty() || files.len() > limits::FILES {
            let message = format!(
                "{} files; from 1 to {} make up a policy",
                files.len(),
                limits::FILES
            );
            return Err(Problem::at(Location::UNKNOWN, "", message).into());
        }
        let mut parts = Vec::with_capacity(files.len());
        for source in files {
            source.name.clone_into(&mut problems.file);
            match parse_yaml::<Document>(source.text) {
                Ok(document) => parts.push(ParsedFile {
                    source: *source,
                    document,
                }),
                Err(first) => {
                    for problem in merge_schema_problems(first, schema::find_problems(source.text))
                    {
                        problems.push(problem);
                    }
                }
            }
        }
        let policy = compile_policy(&parts, &mut problems)?;
        let warnings = problems.into_result()?;
        Ok(Self { warnings, ..policy })
    }
}

/// The mistake at which reading stopped, among all that the schema tells about.
fn merge_schema_problems(first: Problem, mut all: Vec<Problem>) -> Vec<Problem> {
    if all.is_empty() {
        return vec![first];
    }
    let place = (first.line, first.column);
    let same = all.iter_mut().find(|p| (p.line, p.column) == place);
    // The reader knows best which fields there are.
    let unknown = |p: &&mut Problem| p.message == first.message && p.message == NO_SUCH_FIELD;
    if let Some(known) = same.filter(unknown) {
        known.hint = first.hint;
    }
    all
}

/// Reads one file of any kind, strictly.
pub(crate) fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    if text.len() > limits::FILE_BYTES {
        let message = format!(
            "the file is {} bytes long; at most {} are allowed",
            text.len(),
            limits::FILE_BYTES
        );
        return Err(Problem::at(Location::UNKNOWN, "", message));
    }
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        // A merged mapping could bring a condition in, or hide one, far from the rule.
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| yaml_error_to_problem(&e))
}

/// An error of the YAML reader, as a problem with a hint.
fn yaml_error_to_problem(error: &YamlError) -> Problem {
    let place = error.location().unwrap_or(Location::UNKNOWN);
    match error.without_snippet() {
        YamlError::SerdeUnknownField {
            field, expected, ..
        } => match cordum_field_hint(field) {
            Some(instead) => Problem::at(place, field, "this field of Cordum is not supported")
                .with_hint(instead),
            None => Problem::at(place, field, NO_SUCH_FIELD).with_hint(suggest(field, expected)),
        },
        YamlError::SerdeUnknownVariant {
            variant, expected, ..
        } => Problem::at(
            place,
            field_of_variants(expected),
            format!("unknown word {variant:?}"),
        )
        .with_hint(variant_hint(variant, expected)),
        YamlError::SerdeMissingField { field, .. } => {
            Problem::at(place, *field, "this field is missing")
        }
        YamlError::DuplicateMappingKey { key, .. } => Problem::at(
            place,
            key.clone().unwrap_or_default(),
            "this key is given twice",
        ),
        YamlError::MergeKeyNotAllowed { .. } => {
            Problem::at(place, "<<", "merge keys are not supported")
                .with_hint("write the conditions out in each rule")
        }
        // The reader's own errors are many and say what they mean; the place is
        // dropped from their text because the problem carries it.
        other => Problem::at(place, "", strip_location(&other.to_string())),
    }
}

/// What to do instead of a field that Cordum has and Airlock has not.
pub(crate) fn cordum_field_hint(field: &str) -> Option<&'static str> {
    Some(match field {
        "input_rules" => "write input_policy.content_rules, with patterns, keywords and max_bytes",
        "tier" | "selector" => {
            "rules hold for every job; write conditions, and put the file where it wins"
        }
        "require_human" => "write decision: require_approval in the rules that are meant",
        "max_scan_bytes" => "inputs are looked at as a whole; content_rules have max_bytes",
        "agent_risk_tiers" | "agent_data_classifications" | "delegation" => {
            "write it as a label, and ask for that with labels or label_in"
        }
        "predicate" => "write when",
        "allowed_repo_hosts" | "denied_repo_hosts" => {
            "write a rule with label_not_in or label_in over a label with the host"
        }
        "scanners" | "detectors" | "content_patterns" | "content_types" | "scope" => {
            "write patterns and keywords in input_policy.content_rules"
        }
        "enabled" => "enforce: false tries a rule out; leave a rule out to switch it off",
        _ => return None,
    })
}

/// The words a field takes tell which field it was.
fn field_of_variants(expected: &[&'static str]) -> &'static str {
    if expected.contains(&"deny") {
        "decision"
    } else if expected.contains(&"critical") {
        "severity"
    } else {
        "fail_mode"
    }
}

fn variant_hint(variant: &str, expected: &[&str]) -> String {
    match variant {
        "approve" | "approval" if expected.contains(&"require_approval") => {
            "did you mean require_approval?".to_owned()
        }
        other => suggest(other, expected),
    }
}

/// The first line, without "at line …, column …" at its end.
fn strip_location(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.split(" at line ").next().unwrap_or(line).to_owned()
}
