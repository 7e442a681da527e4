//! Bytes as a `when` expression: compiled, and what compiles is asked.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| airlock_policy::fuzz::fuzz_when(bytes));
