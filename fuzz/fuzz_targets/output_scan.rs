//! Bytes as an output: scanned and redacted.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| airlock_scan::fuzz::scan(bytes));
