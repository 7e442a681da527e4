//! What a scan looks at, at most. Whatever is over a limit is a finding of its own, so
//! that content nobody looked at is never called clean.

/// Bytes of one input. What follows them is not looked at.
pub const INPUT_BYTES: usize = 8 << 20;
/// How deep JSON may nest. What is deeper is scanned too, without its context.
pub const DEPTH: usize = 10_000;
/// Findings of one report.
pub const FINDINGS: usize = 1_000;
/// Matches that one scan keeps before findings are made of them.
pub(crate) const MATCHES: usize = 100_000;
/// Bytes of a JSON pointer in a finding; a longer one is left out.
pub(crate) const POINTER_BYTES: usize = 64 << 10;
/// Bytes of all JSON pointers of one scan; further ones are left out.
pub(crate) const POINTERS_BYTES: usize = 32 << 20;
/// Bytes of the scanner configuration.
pub const CONFIG_BYTES: usize = 1 << 20;
/// Patterns of the scanner configuration.
pub const PATTERNS: usize = 200;
/// Characters of a configured pattern.
pub const PATTERN_CHARS: usize = 256;
/// Bytes of memory that one compiled pattern may take.
pub const PATTERN_COMPILED: usize = 256 << 10;
/// Keywords, or allowed patterns, of one configured pattern.
pub const WORDS: usize = 50;
/// Characters of a keyword or of a pattern's name.
pub const WORD_CHARS: usize = 64;
