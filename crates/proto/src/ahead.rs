//! Speculative submissions: jobs announced to the scheduler while they are still being
//! committed, sealed with a key of the ledger's.
//!
//! What must stay true: what is opened here was sealed by somebody who has that key, which
//! is somebody with the ledger's password.

use bytes::Bytes;
use prost::Message;
use ring::hmac;

use crate::own;

/// How many jobs one announcement may have.
pub const JOBS: usize = 4;
/// And how large they may be together, with their inputs.
const MAX_BYTES: usize = 64 * 1024;

/// Identifies the transaction.
pub type Id = [u8; 16];

/// The key of the advisory lock that the ledger holds for the transaction.
pub fn advisory_lock_key(id: Id) -> i64 {
    // Any half is as random as the other.
    u128::from_be_bytes(id) as i64
}

/// The sealing key. Its debug output does not contain the secret.
#[derive(Debug, Clone)]
pub struct Key(hmac::Key);

impl Key {
    pub fn new(secret: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    /// Nothing when they are too large.
    pub fn seal(&self, id: Id, jobs: Vec<own::AheadJob>) -> Option<own::Ahead> {
        let jobs = own::AheadJobs { jobs }.encode_to_vec();
        if jobs.len() > MAX_BYTES {
            return None;
        }
        let mac = hmac::sign(&self.0, &signed_bytes(&id, &jobs));
        Some(own::Ahead {
            id: Bytes::copy_from_slice(&id),
            jobs: Bytes::from(jobs),
            mac: Bytes::copy_from_slice(mac.as_ref()),
        })
    }

    /// Nothing when it was not sealed with this key.
    pub fn open(&self, ahead: &own::Ahead) -> Option<(Id, Vec<own::AheadJob>)> {
        let id: Id = ahead.id.as_ref().try_into().ok()?;
        hmac::verify(&self.0, &signed_bytes(&id, &ahead.jobs), &ahead.mac).ok()?;
        let own::AheadJobs { jobs } = own::AheadJobs::decode(ahead.jobs.clone()).ok()?;
        (jobs.len() <= JOBS).then_some((id, jobs))
    }
}

fn signed_bytes(id: &Id, jobs: &[u8]) -> Vec<u8> {
    [id, jobs].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(n: usize) -> Vec<own::AheadJob> {
        (0..n)
            .map(|n| own::AheadJob {
                job_id: format!("job-{n}"),
                payload: Some(Bytes::from_static(b"{}")),
                ..own::AheadJob::default()
            })
            .collect()
    }

    #[test]
    fn what_was_sealed_is_opened_and_nothing_else() {
        let key = Key::new("the ledger's");
        let sealed = key.seal([7; 16], jobs(2)).expect("small");
        assert_eq!(key.open(&sealed), Some(([7; 16], jobs(2))));
        assert_eq!(Key::new("another").open(&sealed), None);
        let other_id = own::Ahead {
            id: Bytes::from_static(&[8; 16]),
            ..sealed.clone()
        };
        assert_eq!(key.open(&other_id), None);
        let other_jobs = own::Ahead {
            jobs: Bytes::from(own::AheadJobs { jobs: jobs(1) }.encode_to_vec()),
            ..sealed.clone()
        };
        assert_eq!(key.open(&other_jobs), None);
        let unsigned = own::Ahead {
            mac: Bytes::new(),
            ..sealed
        };
        assert_eq!(key.open(&unsigned), None);
    }

    #[test]
    fn there_are_limits() {
        let key = Key::new("the ledger's");
        let mut large = jobs(1);
        large[0].payload = Some(Bytes::from(vec![b' '; MAX_BYTES]));
        assert_eq!(key.seal([0; 16], large), None);
        let many = key.seal([0; 16], jobs(JOBS + 1)).expect("small");
        assert_eq!(key.open(&many), None);
    }

    #[test]
    fn the_key_is_in_no_log() {
        let shown = format!("{:?}", Key::new("the ledger's"));
        assert!(!shown.contains("ledger"), "{shown}");
    }
}
