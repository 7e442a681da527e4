//! The string literals of a Rust file, without a parser.
//!
//! Enough to tell a literal from a comment and production code from the `mod tests` at
//! a file's end, which is where this tree keeps its unit tests. A full parser was
//! rejected: it would be the largest dependency of the tests, for three questions.

/// Each literal outside of comments and unit tests, with its line.
pub fn of_production(text: &str) -> Vec<(usize, String)> {
    let mut scan = Scan {
        rest: text,
        line: 1,
        found: Vec::new(),
    };
    while !scan.rest.is_empty() && !scan.at_unit_tests() {
        scan.step();
    }
    scan.found
}

struct Scan<'a> {
    rest: &'a str,
    line: usize,
    found: Vec<(usize, String)>,
}

impl Scan<'_> {
    fn at_unit_tests(&self) -> bool {
        self.rest
            .strip_prefix("#[cfg(test)]")
            .is_some_and(|after| after.trim_start().starts_with("mod ") && !starts_outline(after))
    }

    fn step(&mut self) {
        if self.rest.starts_with("//") {
            self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.skip(self.rest.find("*/").map_or(self.rest.len(), |at| at + 2));
        } else if let Some(hashes) = raw_string(self.rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = &self.rest[hashes + 2..];
            let end = body.find(&close).unwrap_or(body.len());
            self.found.push((self.line, body[..end].to_owned()));
            self.skip((hashes + 2 + end + close.len()).min(self.rest.len()));
        } else if let Some(body) = self.rest.strip_prefix('"') {
            let end = closing_quote(body);
            self.found.push((self.line, body[..end].to_owned()));
            self.skip((end + 2).min(self.rest.len()));
        } else if let Some(length) = char_literal(self.rest) {
            self.skip(length);
        } else if let Some(c) = self.rest.chars().next() {
            self.skip(self.word().max(c.len_utf8()));
        }
    }

    /// The length of the identifier here, so that its last `r` is no raw string.
    fn word(&self) -> usize {
        self.rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len())
    }

    fn skip(&mut self, bytes: usize) {
        let (over, rest) = self.rest.split_at(bytes);
        self.line += over.matches('\n').count();
        self.rest = rest;
    }
}

/// `mod tests;` tells of another file, and the code goes on after it.
fn starts_outline(after: &str) -> bool {
    let end = after.find(['{', ';']);
    end.is_some_and(|at| after[at..].starts_with(';'))
}

fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn closing_quote(body: &str) -> usize {
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    body.len()
}

/// `'x'` or `'\n'`; a lifetime has no second quote.
fn char_literal(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    let first = body.chars().next()?;
    if first == '\\' {
        let after = body.get(2..)?;
        return Some(3 + after.find('\'')? + 1);
    }
    body[first.len_utf8()..]
        .starts_with('\'')
        .then(|| first.len_utf8() + 2)
}

#[test]
fn literals_are_told_from_comments_and_tests() {
    let text = r###"//! "a comment"
fn f<'a>(x: &'a str) { g("one", 'x', '"', '\'', "two \" three"); /* "no" */ }
const R: &str = r#"raw "inner" text"#; // "no"
#[cfg(test)]
mod outline;
const LAST: &str = "last";
#[cfg(test)]
mod tests {
    const T: &str = "not this";
}
"###;
    let found = of_production(text);
    let expected = [
        (2, "one"),
        (2, "two \\\" three"),
        (3, "raw \"inner\" text"),
        (6, "last"),
    ];
    let found: Vec<(usize, &str)> = found.iter().map(|(n, s)| (*n, s.as_str())).collect();
    assert_eq!(found, expected);
}
