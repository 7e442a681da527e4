//! Private keys in PEM and PGP armour.

use std::ops::Range;

use super::PRIVATE_KEY;
use crate::inspect::Found;
use crate::words::Text;

/// The longest key that is looked for.
const KEY: usize = 16 << 10;
/// A header alone, as in a sentence about keys, is no key.
const SHORTEST: usize = 40;

/// The key that begins with `-----BEGIN `, up to its last line or, where that is
/// missing, as far as it reads like one. Returns where it ends.
pub(crate) fn private_key(text: &Text<'_>, hit: &Range<usize>, found: &mut Found<'_>) -> usize {
    let rest = text
        .bytes
        .get(hit.start..text.bytes.len().min(hit.start + KEY))
        .unwrap_or_default();
    let Some(header) = memchr::memmem::find(rest.get(11..).unwrap_or_default(), b"-----") else {
        return hit.end;
    };
    let header = header + 11;
    let label = rest.get(11..header).unwrap_or_default();
    let label_fits = label.len() < 48
        && label
            .iter()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b' ')
        && (label.ends_with(b"PRIVATE KEY") || label.ends_with(b"PRIVATE KEY BLOCK"));
    if !label_fits {
        return hit.end;
    }
    let body = header + 5;
    let after = rest.get(body..).unwrap_or_default();
    // What is not part of a key ends it: the first line may be quoted in a sentence.
    let part = |b: &u8| b.is_ascii_alphanumeric() || b"+/=\\ \r\n\t:,-.()".contains(b);
    let run = after.iter().take_while(|b| part(b)).count();
    let run = after.get(..run).unwrap_or_default();
    let end = match memchr::memmem::find(run, b"-----END ") {
        Some(footer) => {
            let footer = body + footer + 9;
            let tail = rest.get(footer..).unwrap_or_default();
            memchr::memmem::find(tail, b"-----").map_or(rest.len(), |i| footer + i + 5)
        }
        None => body + run.len(),
    };
    let key = rest.get(body..end).unwrap_or_default();
    let material = key.iter().filter(|b| b.is_ascii_alphanumeric()).count();
    if material >= SHORTEST
        && !super::is_placeholder_token(key.get(..key.len().min(200)).unwrap_or_default())
    {
        found.add(PRIVATE_KEY, hit.start..hit.start + end);
        return hit.start + end;
    }
    hit.end
}
