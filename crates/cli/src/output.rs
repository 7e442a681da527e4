//! `airlock output …`: secrets, personal data and injections in outputs. Scanning and
//! redacting a file needs no API; the quarantine does.

mod review;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use airlock_scan::{Finding, ScanReport, Scanner, limits};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::exit::Exit;
use crate::terminal::{Terminal, one_line, strip_control_chars};

const EXIT_CODES: &str = "\
Exit codes:
  0  no findings; or every finding was replaced
  1  findings; or some could not be replaced
  2  the file or the configuration cannot be read";

#[derive(Debug, Args)]
pub struct OutputArgs {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Report secrets, personal data and injections in a file
    #[command(after_help = EXIT_CODES)]
    Scan {
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: Source,
    },
    /// Print a file with every finding replaced by [REDACTED:<kind>]
    #[command(after_help = EXIT_CODES)]
    Redact {
        #[command(flatten)]
        source: Source,
    },
    #[command(flatten)]
    Review(review::Action),
}

#[derive(Debug, Args)]
pub struct Source {
    /// Use the patterns of this file beside the built-in detectors
    #[arg(long, env = "OUTPUT_SCANNERS_PATH", value_name = "FILE")]
    pub scanners: Option<PathBuf>,
    /// The file to read, or - for standard input
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
}

impl Source {
    fn name(&self) -> String {
        self.file.display().to_string()
    }

    /// The scanner and what it is to look at, or why there is none.
    fn open(&self) -> Result<(Scanner, Input), String> {
        let path = self.scanners.as_deref();
        let scanner = match path.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => load(path)?,
            None => Scanner::builtin(),
        };
        let input = if self.file == Path::new("-") {
            Input::read(std::io::stdin().lock())
        } else {
            File::open(&self.file).and_then(Input::read)
        };
        let input = input.map_err(|error| format!("reading {}: {error}", self.name()))?;
        Ok((scanner, input))
    }
}

fn load(path: &Path) -> Result<Scanner, String> {
    let name = path.display();
    let mut text = String::new();
    File::open(path)
        .and_then(|file| {
            let most = limits::CONFIG_BYTES as u64 + 1;
            file.take(most).read_to_string(&mut text)
        })
        .map_err(|error| format!("reading {name}: {error}"))?;
    Scanner::from_yaml(&text).map_err(|error| {
        let lines = error.problems.iter().map(|p| format!("\n  {p}"));
        format!("{name} cannot be used:{}", lines.collect::<String>())
    })
}

/// What is scanned: as much as the scanner looks at, and one byte more where there is more.
struct Input {
    bytes: Vec<u8>,
    /// Of all there is.
    length: u64,
}

impl Input {
    fn read(mut source: impl Read) -> std::io::Result<Self> {
        let most = limits::INPUT_BYTES as u64 + 1;
        let mut bytes = Vec::new();
        let read = source.by_ref().take(most).read_to_end(&mut bytes)? as u64;
        let rest = if read == most {
            std::io::copy(&mut source, &mut std::io::sink())?
        } else {
            0
        };
        Ok(Self {
            bytes,
            length: read + rest,
        })
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a str,
    #[serde(flatten)]
    report: ScanReport,
}

pub fn run(args: OutputArgs, terminal: Terminal) -> Exit {
    let (source, json) = match args.action {
        Action::Review(action) => return review::run(action, terminal),
        Action::Scan { source, json } => (source, Some(json)),
        Action::Redact { source } => (source, None),
    };
    let (scanner, input) = match source.open() {
        Ok(opened) => opened,
        Err(message) => {
            terminal.error(&strip_control_chars(&message));
            return Exit::Usage;
        }
    };
    match json {
        Some(json) => scan(&scanner, &input, &source.name(), json, terminal),
        None => redact(&scanner, &input, &source.name(), terminal),
    }
}

fn scan(scanner: &Scanner, input: &Input, name: &str, json: bool, terminal: Terminal) -> Exit {
    let mut report = scanner.scan(&input.bytes);
    let length = usize::try_from(input.length).unwrap_or(usize::MAX);
    // The scanner saw one byte of what it does not look at; all of that is the finding.
    if length > report.bytes {
        for finding in &mut report.findings {
            if finding.end == report.bytes && finding.start == limits::INPUT_BYTES {
                finding.end = length;
            }
        }
        report.bytes = length;
    }
    let exit = if report.is_clean() {
        Exit::Done
    } else {
        Exit::Failed
    };
    if json {
        match serde_json::to_string_pretty(&Report { file: name, report }) {
            Ok(text) => terminal.print(&text),
            Err(error) => terminal.error(&format!("writing JSON: {error}")),
        }
        return exit;
    }
    for finding in &report.findings {
        terminal.print(&one_line(&format!("{name}:{}", describe(finding))));
    }
    let count = match report.findings.len() {
        0 => "no findings".to_owned(),
        1 => "1 finding".to_owned(),
        n => format!("{n} findings"),
    };
    let more = if report.truncated {
        ", a limit was reached"
    } else {
        ""
    };
    terminal.note(&format!("{count} in {} bytes{more}", report.bytes));
    exit
}

/// A finding on one line: place, detector, how it is written, and what little is shown.
fn describe(finding: &Finding) -> String {
    let Finding {
        kind,
        detector,
        severity,
        start,
        end,
        ..
    } = finding;
    let mut line = format!("{start}-{end}: {severity} {kind} {detector}");
    if let Some(pointer) = &finding.pointer {
        line.push_str(&format!(" at {pointer:?}"));
    }
    if let Some(encoding) = finding.encoding {
        line.push_str(&format!(" in {encoding}"));
    }
    if !finding.excerpt.is_empty() {
        line.push_str(&format!(": {}", finding.excerpt));
    }
    line
}

fn redact(scanner: &Scanner, input: &Input, name: &str, terminal: Terminal) -> Exit {
    let redacted = scanner.redact(&input.bytes);
    let mut out = std::io::stdout().lock();
    let written = out.write_all(&redacted.bytes).and_then(|()| out.flush());
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        terminal.error(&format!("writing the redacted text: {error}"));
        return Exit::Usage;
    }
    if input.bytes.len() > limits::INPUT_BYTES {
        let most = limits::INPUT_BYTES >> 20;
        terminal.error(&format!(
            "{name} is larger than {most} MiB, so nothing of it is printed"
        ));
        return Exit::Failed;
    }
    if redacted.remaining.is_empty() {
        return Exit::Done;
    }
    terminal
        .error("some findings cannot be replaced: they are in a key or a number, or over a limit");
    for finding in &redacted.remaining {
        let place = one_line(&format!("  {name}:{}", describe(finding)));
        terminal.note(&place);
    }
    Exit::Failed
}
