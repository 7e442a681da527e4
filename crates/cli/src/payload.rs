//! The input of a job: given in place, from a file, or from standard input.
//!
//! It is checked to be JSON here, where the mistake was made, and otherwise kept byte
//! for byte: large numbers and the order of keys arrive as they were written.

use std::io::Read;
use std::path::PathBuf;

use serde_json::value::RawValue;

/// The gateway takes less unless it is told otherwise; this bounds our memory.
const MAX_BYTES: u64 = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("reading the payload from {}: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("reading the payload from standard input: {0}")]
    Stdin(std::io::Error),
    #[error("the payload is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    #[error(
        "the payload is not JSON: {source}\n\
         a text needs quotes of its own, as in --payload '\"text\"'; \
         @FILE reads a file, - standard input"
    )]
    NotJson { source: serde_json::Error },
}

/// Reads what `--payload` names.
pub fn read_payload(argument: &str) -> Result<Box<RawValue>, PayloadError> {
    let text = if argument == "-" {
        read_bounded(std::io::stdin().lock(), PayloadError::Stdin)?
    } else if let Some(path) = argument.strip_prefix('@') {
        let path = PathBuf::from(path);
        let failed = |source| PayloadError::File {
            path: path.clone(),
            source,
        };
        read_bounded(std::fs::File::open(&path).map_err(failed)?, failed)?
    } else {
        argument.to_owned()
    };
    RawValue::from_string(text).map_err(|source| PayloadError::NotJson { source })
}

fn read_bounded(
    source: impl Read,
    failed: impl Fn(std::io::Error) -> PayloadError,
) -> Result<String, PayloadError> {
    let mut text = String::new();
    let read = source
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if read as u64 > MAX_BYTES {
        return Err(PayloadError::TooLarge);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_kept_as_it_was_written() {
        let text = r#"{"b": 12345678901234567890123, "a": "\u0000"}"#;
        assert_eq!(read_payload(text).unwrap().get(), text);
    }

    #[test]
    fn a_file_is_read_and_missing_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.json");
        std::fs::write(&path, "[1, 2]\n").unwrap();
        let payload = read_payload(&format!("@{}", path.display())).unwrap();
        assert_eq!(payload.get().trim_end(), "[1, 2]");
        let error = read_payload("@/no/such/file").unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
    }

    #[test]
    fn a_bare_word_gets_a_hint() {
        let error = read_payload("hello").unwrap_err().to_string();
        assert!(error.contains("line 1 column 1"), "{error}");
        assert!(error.contains("quotes"), "{error}");
    }

    #[test]
    fn what_is_too_large_is_refused_without_reading_it_all() {
        let endless = std::io::repeat(b' ');
        let error = read_bounded(endless, PayloadError::Stdin).unwrap_err();
        assert!(matches!(error, PayloadError::TooLarge));
    }
}
