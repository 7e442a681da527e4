//! E-mail addresses of people.

use super::EMAIL;
use crate::inspect::Found;
use crate::words::Text;

/// Reserved by RFC 2606 and RFC 6761, or used inside one network only.
const RESERVED: &[&str] = &[
    "example",
    "test",
    "invalid",
    "localhost",
    "local",
    "internal",
    "lan",
    "localdomain",
    "example.com",
    "example.net",
    "example.org",
    "example.edu",
    "iam.gserviceaccount.com",
    "gserviceaccount.com",
    "noreply.github.com",
    "calendar.google.com",
    "domain.com",
    "yourdomain.com",
    "your-domain.com",
    "yourcompany.com",
    "your-company.com",
    "mydomain.com",
];

/// What a program calls itself when it writes a mail.
const MACHINES: &[&str] = &[
    "git",
    "noreply",
    "no-reply",
    "no_reply",
    "donotreply",
    "do-not-reply",
    "do_not_reply",
    "mailer-daemon",
    "postmaster",
    "hostmaster",
    "nobody",
    "notifications",
    "bounce",
    "bounces",
    "svn",
    "hg",
];

/// Endings of file names, which follow an `@` in `logo@2x.png`.
const FILES: &[&str] = &[
    "png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "mjs", "ts", "tsx", "jsx", "json",
    "html", "htm", "yml", "yaml", "xml", "txt", "md", "map", "lock", "service", "socket", "timer",
    "target", "mount", "slice", "scope", "py", "go", "rb", "java", "tgz", "gz", "zip", "tar",
    "exe", "dll", "conf", "log",
];

pub(super) fn find(text: &Text<'_>, found: &mut Found<'_>) {
    for at in memchr::memchr_iter(b'@', text.bytes) {
        let from = at.saturating_sub(65);
        let before = text.bytes.get(from..at).unwrap_or_default();
        let local = |b: &u8| b.is_ascii_alphanumeric() || b"._%+-'".contains(b) || *b >= 0x80;
        let start = before.iter().rposition(|b| !local(b)).map_or(0, |i| i + 1);
        let name = before.get(start..).unwrap_or_default();
        let cut = name.iter().take_while(|b| !is_first(**b)).count();
        let name = name.get(cut..).unwrap_or_default();
        let start = from + start + cut;
        let rest = text
            .bytes
            .get(at + 1..text.bytes.len().min(at + 255))
            .unwrap_or_default();
        let part = |b: &u8| b.is_ascii_alphanumeric() || *b == b'.' || *b == b'-';
        let len = rest.iter().take_while(|b| part(b)).count();
        let mut domain = rest.get(..len).unwrap_or_default();
        while let [init @ .., b'.' | b'-'] = domain {
            domain = init;
        }
        if name.is_empty() || name.len() > 64 || name.ends_with(b".") {
            continue;
        }
        let end = at + 1 + domain.len();
        let after = text.at(end);
        if is_public(domain)
            && !is_machine(name)
            && !in_url(text, start)
            && after != b'@'
            && !is_ssh(after, text.at(end + 1))
        {
            found.add(EMAIL, start..end);
        }
    }
}

fn is_first(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// `deploy@host.net:path` is a place to copy to.
fn is_ssh(after: u8, next: u8) -> bool {
    after == b':' && (next == b'/' || next == b'~')
}

/// Whether it stands in a URL as the user, or the password, before a host.
fn in_url(text: &Text<'_>, start: usize) -> bool {
    let from = start.saturating_sub(128);
    let before = text.bytes.get(from..start).unwrap_or_default();
    match before.last() {
        Some(b'/') => before.ends_with(b"//"),
        Some(b':') => {
            let begin = before
                .iter()
                .rposition(|b| b.is_ascii_whitespace() || matches!(b, b'"' | b'\''));
            let word = before.get(begin.map_or(0, |i| i + 1)..).unwrap_or_default();
            memchr::memmem::find(word, b"://").is_some()
        }
        _ => false,
    }
}

fn is_public(domain: &[u8]) -> bool {
    let domain = String::from_utf8_lossy(domain).to_ascii_lowercase();
    let labels: Vec<&str> = domain.split('.').collect();
    let fits = |l: &&str| !l.is_empty() && l.len() < 64 && !l.starts_with('-') && !l.ends_with('-');
    let Some((last, rest)) = labels.split_last() else {
        return false;
    };
    let top = (2..=24).contains(&last.len())
        && (last.bytes().all(|b| b.is_ascii_alphabetic()) || last.starts_with("xn--"))
        && !FILES.contains(last);
    let reserved = |r: &&str| {
        domain == **r
            || (domain.ends_with(*r)
                && domain.as_bytes().get(domain.len() - r.len() - 1) == Some(&b'.'))
    };
    !rest.is_empty() && labels.iter().all(fits) && top && !RESERVED.iter().any(reserved)
}

fn is_machine(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let base = name.split('+').next().unwrap_or_default();
    MACHINES.contains(&base)
        || name.contains("noreply")
        || name.contains("no-reply")
        || name.contains("your")
}
