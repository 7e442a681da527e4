//! The sources of a policy: files on this machine's disk, and bundles from the ledger.
//!
//! What must stay true: where signatures are required, nothing that is not signed by a
//! known key becomes part of a policy, wherever it came from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use airlock_policy::signature::{self, PublicKey, SignatureError};
use airlock_policy::{LoadError, Policy, Source, limits};
use serde::{Deserialize, Serialize};

/// One source of a policy: its text, where it is from, and its signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySource {
    /// Mistakes in the text are reported under this name.
    pub name: String,
    pub text: String,
    /// Base64 or hexadecimal.
    pub signature: Option<String>,
}

/// Why the sources did not make a policy.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("reading the policy {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the policy {name} is longer than {max} bytes", max = limits::FILE_BYTES)]
    TooLong { name: String },
    #[error("the policy {path} is not UTF-8 text")]
    NotText { path: PathBuf },
    #[error("the policy {name} is not signed, and policy.require_signature is set")]
    Unsigned { name: String },
    #[error("the signature of the policy {name} is invalid: {source}")]
    BadSignature {
        name: String,
        source: SignatureError,
    },
    #[error(
        "a velocity rule is strict and needs a ledger to count in; this kernel has none, set database.url"
    )]
    StrictWithoutLedger,
    #[error("the policy was refused: {0}")]
    Refused(#[from] LoadError),
}

/// Which signatures count, and whether every source must be signed.
#[derive(Debug, Clone, Default)]
pub struct SignatureRules {
    pub keys: Vec<PublicKey>,
    pub required: bool,
}

impl SignatureRules {
    fn check_signature(&self, source: &PolicySource) -> Result<(), SourceError> {
        let name = || source.name.clone();
        match &source.signature {
            None if self.required => Err(SourceError::Unsigned { name: name() }),
            // Without keys a signature cannot be checked, so it is ignored.
            Some(signature) if !self.keys.is_empty() => {
                signature::verify_signature(source.text.as_bytes(), signature, &self.keys).map_err(
                    |source| SourceError::BadSignature {
                        name: name(),
                        source,
                    },
                )
            }
            None | Some(_) => Ok(()),
        }
    }
}

/// Compiles the sources into a policy; their rules are evaluated in this order.
pub fn load_policy(
    sources: &[PolicySource],
    signature_rules: &SignatureRules,
) -> Result<Policy, SourceError> {
    for source in sources {
        if source.text.len() > limits::FILE_BYTES {
            return Err(SourceError::TooLong {
                name: source.name.clone(),
            });
        }
        signature_rules.check_signature(source)?;
    }
    let sources: Vec<Source<'_>> = sources
        .iter()
        .map(|source| Source {
            name: &source.name,
            text: &source.text,
        })
        .collect();
    Ok(Policy::load_files(&sources)?)
}

/// Reads the files and the signatures beside them. Blocks on the disk.
pub fn read_files(paths: &[PathBuf]) -> Result<Vec<PolicySource>, SourceError> {
    paths.iter().map(|path| read_file(path)).collect()
}

fn read_file(path: &Path) -> Result<PolicySource, SourceError> {
    let path_buf = || path.to_owned();
    let name = path.display().to_string();
    let bytes = read_at_most(path, limits::FILE_BYTES).map_err(|source| SourceError::Read {
        path: path_buf(),
        source,
    })?;
    if bytes.len() > limits::FILE_BYTES {
        return Err(SourceError::TooLong { name });
    }
    let text = String::from_utf8(bytes).map_err(|_| SourceError::NotText { path: path_buf() })?;
    let beside = signature_path(path);
    let signature = match read_at_most(&beside, 1_024) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => {
            return Err(SourceError::Read {
                path: beside,
                source,
            });
        }
    };
    Ok(PolicySource {
        name,
        text,
        signature,
    })
}

/// `safety.yaml.sig` for `safety.yaml`.
pub fn signature_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".sig");
    path.with_file_name(name)
}

/// Reads one byte more than allowed, so that a file above the limit can be told from one
/// that is exactly as long.
fn read_at_most(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(most as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
