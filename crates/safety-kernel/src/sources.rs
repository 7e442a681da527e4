//! What a policy is made of: files on this machine's disk, and bundles from the ledger.
//!
//! What must stay true: where signatures are required, nothing that is not signed by a
//! known key becomes part of a policy, wherever it came from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use airlock_policy::signature::{self, PublicKey, SignatureError};
use airlock_policy::{LoadError, Policy, Source, limits};
use serde::{Deserialize, Serialize};

/// Text of a policy, with where it is from and what vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// As mistakes in it are reported.
    pub name: String,
    pub text: String,
    /// Base64 or hexadecimal.
    pub signature: Option<String>,
}

/// Why pieces did not become a policy.
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
    #[error("the signature of the policy {name} is not good: {source}")]
    BadSignature {
        name: String,
        source: SignatureError,
    },
    #[error(
        "a velocity rule is strict, which needs a ledger to count in; this kernel has none (database.url)"
    )]
    NothingToCountIn,
    #[error("the policy was refused: {0}")]
    Refused(#[from] LoadError),
}

/// Whom to believe.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    pub keys: Vec<PublicKey>,
    pub required: bool,
}

impl Trust {
    fn check(&self, piece: &Piece) -> Result<(), SourceError> {
        let name = || piece.name.clone();
        match &piece.signature {
            None if self.required => Err(SourceError::Unsigned { name: name() }),
            // A signature that nobody can check says nothing.
            Some(signature) if !self.keys.is_empty() => {
                signature::verify(piece.text.as_bytes(), signature, &self.keys).map_err(|source| {
                    SourceError::BadSignature {
                        name: name(),
                        source,
                    }
                })
            }
            None | Some(_) => Ok(()),
        }
    }
}

/// A policy of these pieces, in the order in which their rules are asked.
pub fn load(pieces: &[Piece], trust: &Trust) -> Result<Policy, SourceError> {
    for piece in pieces {
        if piece.text.len() > limits::FILE_BYTES {
            return Err(SourceError::TooLong {
                name: piece.name.clone(),
            });
        }
        trust.check(piece)?;
    }
    let sources: Vec<Source<'_>> = pieces
        .iter()
        .map(|piece| Source {
            name: &piece.name,
            text: &piece.text,
        })
        .collect();
    Ok(Policy::load_files(&sources)?)
}

/// The files, with the signatures beside them. Blocks on the disk.
pub fn read_files(paths: &[PathBuf]) -> Result<Vec<Piece>, SourceError> {
    paths.iter().map(|path| read_file(path)).collect()
}

fn read_file(path: &Path) -> Result<Piece, SourceError> {
    let path_buf = || path.to_owned();
    let name = path.display().to_string();
    let bytes = read(path, limits::FILE_BYTES).map_err(|source| SourceError::Read {
        path: path_buf(),
        source,
    })?;
    if bytes.len() > limits::FILE_BYTES {
        return Err(SourceError::TooLong { name });
    }
    let text = String::from_utf8(bytes).map_err(|_| SourceError::NotText { path: path_buf() })?;
    let beside = signature_path(path);
    let signature = match read(&beside, 1_024) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => {
            return Err(SourceError::Read {
                path: beside,
                source,
            });
        }
    };
    Ok(Piece {
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

/// One byte more than allowed tells a file at the limit from one above it.
fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(most as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
