//! The scanner as its users meet it: bytes in, findings and redacted bytes out.

mod bounds;
mod configuration;
mod corpus;
mod docs;
mod findings;
mod properties;
mod redaction;
