//! The scanner as its users meet it: bytes in, findings and redacted bytes out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod bounds;
mod configuration;
mod corpus;
mod docs;
mod findings;
mod properties;
mod redaction;
