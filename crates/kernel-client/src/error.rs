//! Why a call to the safety kernel, or to the output policy, has no answer.
//!
//! What must stay true: only a service that could not be reached, that failed, or that did
//! not answer in time is unavailable. One that answered "not this request" is there.

use std::time::Duration;

use tonic::{Code, Status};

use crate::config::Peer;

#[derive(Debug, Clone, thiserror::Error)]
pub enum KernelError {
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// It could not be reached, or it failed.
    #[error("{code:?}: {message}")]
    Unavailable { code: Code, message: String },
    /// It does not accept this request; a smaller one, perhaps.
    #[error("{code:?}: {message}")]
    Rejected { code: Code, message: String },
}

impl KernelError {
    /// Whether the kernel is there and the request is at fault.
    pub const fn is_rejection(&self) -> bool {
        match self {
            Self::Rejected { .. } => true,
            Self::Timeout(_) | Self::Unavailable { .. } => false,
        }
    }

    /// Without the message, which may name hosts: for readers without a key.
    pub fn summary(&self) -> String {
        match self {
            Self::Timeout(_) => "no answer in time".to_owned(),
            Self::Unavailable { code, .. } | Self::Rejected { code, .. } => format!("{code:?}"),
        }
    }
}

impl From<Status> for KernelError {
    fn from(status: Status) -> Self {
        let (code, message) = (status.code(), status.message().to_owned());
        match code {
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::FailedPrecondition
            | Code::ResourceExhausted => Self::Rejected { code, message },
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Aborted
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
            | Code::Unauthenticated => Self::Unavailable { code, message },
        }
    }
}

/// Why no client could be made. A service that is away is no reason: it is connected to
/// when it is first called.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{}.url {url:?}: {source}", .peer.section())]
    Url {
        peer: Peer,
        url: String,
        source: tonic::transport::Error,
    },
    #[error("reading the CA certificate {path} ({}.tls_ca): {source}", .peer.section())]
    ReadCa {
        peer: Peer,
        path: String,
        source: std::io::Error,
    },
    #[error("{}.tls_ca {path}: {source}", .peer.section())]
    Tls {
        peer: Peer,
        path: String,
        source: tonic::transport::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_the_request_is_not_an_absence() {
        let rejects = |code| KernelError::from(Status::new(code, "why")).is_rejection();
        for code in [
            Code::InvalidArgument,
            Code::OutOfRange,
            Code::FailedPrecondition,
            Code::ResourceExhausted,
        ] {
            assert!(rejects(code), "{code:?}");
        }
        for code in [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::Internal,
            Code::Unimplemented,
            Code::Unauthenticated,
            Code::Unknown,
        ] {
            assert!(!rejects(code), "{code:?}");
        }
        assert!(!KernelError::Timeout(Duration::from_secs(2)).is_rejection());
    }

    #[test]
    fn the_summary_names_no_host() {
        let error = KernelError::from(Status::unavailable("connecting to 10.0.0.7"));
        assert_eq!(error.to_string(), "Unavailable: connecting to 10.0.0.7");
        assert_eq!(error.summary(), "Unavailable");
    }
}
