//! `output_scanners.yaml`: patterns of one's own, and changes to built-in detectors.
//!
//! A file is taken as a whole or not at all. Every mistake in it is named with its line.

use std::fmt;

use serde::Deserialize;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Location, Spanned};

use airlock_settings::hint::suggest;

use crate::detector::{Check, Detector, Pattern, Run};
use crate::limits;
use crate::report::{Kind, LIMIT, Severity};
use crate::scanner::{detector, keywords, specs};

/// One mistake, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Counted from 1; 0 when the place is not known.
    pub line: u64,
    pub column: u64,
    /// As in `scanners.custom.patterns[0].regex`; empty when it is about the whole file.
    pub field: String,
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}, column {}: ", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// Never empty.
    pub problems: Vec<ConfigProblem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let lead = if i == 0 { "" } else { "; " };
            write!(f, "{lead}{problem}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    scanners: Option<Sections>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sections {
    #[serde(default)]
    secret: Option<Section>,
    #[serde(default)]
    pii: Option<Section>,
    #[serde(default)]
    injection: Option<Section>,
    #[serde(default)]
    custom: Option<Section>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    #[serde(default)]
    patterns: Option<Vec<Spanned<Entry>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    #[serde(default)]
    regex: Option<Spanned<String>>,
    #[serde(default)]
    severity: Option<Severity>,
    #[serde(default)]
    confidence: Option<Spanned<f64>>,
    #[serde(default)]
    context_required: Option<bool>,
    #[serde(default)]
    keywords: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    allow: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    enabled: Option<bool>,
}

type Loaded = Vec<(Detector, &'static [&'static str])>;

/// The built-in detectors with the changes of a configuration, and its own.
pub(crate) fn load(text: &str) -> Result<Loaded, ConfigError> {
    let document = read(text).map_err(|problem| ConfigError {
        problems: vec![problem],
    })?;
    let sections = document.scanners.unwrap_or_default();
    let mut loader = Loader {
        detectors: specs()
            .map(|s| (detector(s), keywords(s), s.enabled))
            .collect(),
        named: Vec::new(),
        problems: Vec::new(),
    };
    let all = [
        ("secret", Kind::SecretLeak, sections.secret),
        ("pii", Kind::Pii, sections.pii),
        ("injection", Kind::CodeInjection, sections.injection),
        ("custom", Kind::Custom, sections.custom),
    ];
    for (section, kind, content) in all {
        let patterns = content.and_then(|c| c.patterns).unwrap_or_default();
        for (i, entry) in patterns.into_iter().enumerate() {
            let field = format!("scanners.{section}.patterns[{i}]");
            loader.entry(kind, &field, entry);
        }
    }
    if !loader.problems.is_empty() {
        loader.problems.truncate(20);
        return Err(ConfigError {
            problems: loader.problems,
        });
    }
    let on = loader.detectors.into_iter().filter(|(_, _, on)| *on);
    Ok(on.map(|(detector, words, _)| (detector, words)).collect())
}

fn read(text: &str) -> Result<Document, ConfigProblem> {
    let whole = |message: String| ConfigProblem {
        line: 0,
        column: 0,
        field: String::new(),
        message,
    };
    if text.len() > limits::CONFIG_BYTES {
        let most = limits::CONFIG_BYTES;
        return Err(whole(format!("the file is larger than {most} bytes")));
    }
    if text
        .lines()
        .all(|l| l.trim().is_empty() || l.trim_start().starts_with('#'))
    {
        return Ok(Document::default());
    }
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().unwrap_or(Location::UNKNOWN);
        ConfigProblem {
            line: place.line(),
            column: place.column(),
            field: String::new(),
            message: error.without_snippet().to_string(),
        }
    })
}

struct Loader {
    /// With its keywords, and whether it is switched on.
    detectors: Vec<(Detector, &'static [&'static str], bool)>,
    /// Names that the file has used.
    named: Vec<String>,
    problems: Vec<ConfigProblem>,
}

impl Loader {
    fn problem(&mut self, place: Location, field: &str, message: impl Into<String>) {
        self.problems.push(ConfigProblem {
            line: place.line(),
            column: place.column(),
            field: field.to_owned(),
            message: message.into(),
        });
    }

    fn entry(&mut self, kind: Kind, field: &str, entry: Spanned<Entry>) {
        let place = entry.referenced;
        let entry = entry.value;
        let name = entry.name.value.clone();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty()
            || name.chars().count() > limits::WORD_CHARS
            || !name.chars().all(fits)
            || name == LIMIT
        {
            let most = limits::WORD_CHARS;
            let message = format!(
                "a name has 1 to {most} letters, digits, `_`, `-` or `.`, and is not `{LIMIT}`"
            );
            return self.problem(entry.name.referenced, &format!("{field}.name"), message);
        }
        if self.named.contains(&name) {
            return self.problem(
                entry.name.referenced,
                &format!("{field}.name"),
                "another pattern has this name",
            );
        }
        self.named.push(name.clone());
        if self.named.len() > limits::PATTERNS {
            let most = limits::PATTERNS;
            return self.problem(place, field, format!("there are more than {most} patterns"));
        }
        let pattern = self.pattern(field, entry.regex.as_ref());
        let known = self.detectors.iter().position(|(d, _, _)| *d.name == *name);
        if let Some(known) = known
            && self
                .detectors
                .get(known)
                .is_some_and(|(d, _, _)| d.kind != kind)
        {
            let message = "a built-in detector of another section has this name";
            return self.problem(entry.name.referenced, &format!("{field}.name"), message);
        }
        if known.is_none() && entry.regex.is_none() {
            let names: Vec<&str> = specs().filter(|s| s.kind == kind).map(|s| s.name).collect();
            let hint = airlock_settings::hint::nearest(&name, &names);
            let hint = hint
                .map(|_| format!(" ({})", suggest(&name, &names)))
                .unwrap_or_default();
            let message = format!("no built-in detector has this name, so it needs a regex{hint}");
            return self.problem(entry.name.referenced, field, message);
        }
        let changed = self.changed(field, place, &entry);
        let (Some(changed), Ok(pattern)) = (changed, pattern) else {
            return;
        };
        let index = known.unwrap_or(self.detectors.len());
        if known.is_none() {
            let new = Detector {
                name: name.into(),
                kind,
                severity: Severity::Medium,
                confidence: 0.8,
                run: Run::Code,
                keywords: Box::default(),
                context_required: false,
                allow: Box::default(),
                rank: 2,
            };
            self.detectors.push((new, &[], true));
        }
        let Some((detector, words, on)) = self.detectors.get_mut(index) else {
            return;
        };
        if let Some(pattern) = pattern {
            detector.run = Run::Search {
                pattern,
                check: Check::None,
            };
            *words = &[];
        }
        *on = entry.enabled.unwrap_or(*on);
        detector.severity = entry.severity.unwrap_or(detector.severity);
        detector.confidence = entry.confidence.map_or(detector.confidence, |c| c.value);
        detector.context_required = entry.context_required.unwrap_or(false);
        detector.keywords = changed.keywords;
        detector.allow = changed.allow;
    }

    fn pattern(
        &mut self,
        field: &str,
        regex: Option<&Spanned<String>>,
    ) -> Result<Option<Pattern>, ()> {
        let Some(regex) = regex else {
            return Ok(None);
        };
        let field = format!("{field}.regex");
        self.compiled(&field, regex).map(Some)
    }

    fn compiled(&mut self, field: &str, regex: &Spanned<String>) -> Result<Pattern, ()> {
        let length = regex.value.chars().count();
        if length == 0 || length > limits::PATTERN_CHARS {
            let most = limits::PATTERN_CHARS;
            let message = format!("a pattern has 1 to {most} characters; this one has {length}");
            self.problem(regex.referenced, field, message);
            return Err(());
        }
        Pattern::configured(&regex.value).map_err(|message| {
            self.problem(regex.referenced, field, message);
        })
    }

    fn changed(&mut self, field: &str, place: Location, entry: &Entry) -> Option<Changed> {
        let before = self.problems.len();
        if let Some(confidence) = &entry.confidence
            && !(0.0..=1.0).contains(&confidence.value)
        {
            self.problem(
                confidence.referenced,
                &format!("{field}.confidence"),
                "a confidence is from 0 to 1",
            );
        }
        let words: Vec<String> = entry
            .keywords
            .iter()
            .flat_map(|k| &k.value)
            .map(|w| w.to_lowercase())
            .collect();
        let bad_word = |w: &String| w.trim().is_empty() || w.chars().count() > limits::WORD_CHARS;
        if words.len() > limits::WORDS || words.iter().any(bad_word) {
            let (most, long) = (limits::WORDS, limits::WORD_CHARS);
            let message =
                format!("at most {most} keywords of 1 to {long} characters each are allowed");
            let at = entry.keywords.as_ref().map_or(place, |k| k.referenced);
            self.problem(at, &format!("{field}.keywords"), message);
        }
        if entry.context_required == Some(true) && words.is_empty() {
            self.problem(
                place,
                &format!("{field}.context_required"),
                "there are no keywords that could be required",
            );
        }
        let allow = entry.allow.as_deref().unwrap_or_default();
        if allow.len() > limits::WORDS {
            let most = limits::WORDS;
            self.problem(
                place,
                &format!("{field}.allow"),
                format!("at most {most} patterns are allowed"),
            );
        }
        let mut allowed = Vec::new();
        for (i, regex) in allow.iter().take(limits::WORDS).enumerate() {
            if let Ok(pattern) = self.compiled(&format!("{field}.allow[{i}]"), regex) {
                allowed.push(pattern);
            }
        }
        (self.problems.len() == before).then(|| Changed {
            keywords: words.into_boxed_slice(),
            allow: allowed.into_boxed_slice(),
        })
    }
}

struct Changed {
    keywords: Box<[String]>,
    allow: Box<[Pattern]>,
}
