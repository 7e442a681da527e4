//! Bytes as the text of a policy: loaded, and what loads is asked.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| airlock_policy::fuzz::fuzz_load(bytes));
