//! What a text says, whichever way it is written: the views in which somebody looks for
//! words and patterns in what others sent.
//!
//! JSON has many spellings of one text: `A` is `\u0041`, and a reader of the text never
//! sees the difference. So beside the bytes as they are, a scan looks at the text as a
//! reader would have it. What must stay true: what is found in a decoded string or in the
//! compact text of one spelling is found in every spelling, because those views depend on
//! the decoded text alone.
//!
//! The time is linear in the bytes. Nothing recurses, so depth costs one byte a level;
//! folding makes at most eleven times the bytes.

use std::borrow::Cow;

use airlock_model::text::fold_text;

use crate::json::{Literal, Token, Tokens, escape, hex};

/// How often strings that hold escapes again (JSON in a string of JSON) are decoded.
const MAX_DECODES: usize = 3;

/// The views of one input.
#[derive(Debug)]
pub struct Views<'a> {
    raw: &'a [u8],
    /// Other writings of the whole: without its escapes and the space between tokens,
    /// and folded.
    texts: Vec<String>,
    /// The decoded strings, one a line, and folded.
    lines: Vec<String>,
}

impl<'a> Views<'a> {
    pub fn from_bytes(raw: &'a [u8]) -> Self {
        let text = String::from_utf8_lossy(raw);
        let mut views = Self {
            raw,
            texts: Vec::new(),
            lines: Vec::new(),
        };
        match decode_json(&text) {
            Some(decoded) => {
                views.add_lines(decoded.strings);
                views.add_text(decoded.compact);
            }
            None => {
                // No JSON: there are no strings to tell from the rest, so the whole is
                // looked at as it is, folded, and with what looks like an escape decoded.
                let mut plain = text.into_owned();
                for _ in 0..MAX_DECODES {
                    let next = unescape(&plain).into_owned();
                    let last = next == plain;
                    views.add_text(plain);
                    if last {
                        return views;
                    }
                    plain = next;
                }
                views.add_text(plain);
            }
        }
        views
    }

    /// The bytes as they are, and every other writing of the whole.
    pub fn whole_texts(&self) -> impl Iterator<Item = &[u8]> {
        let texts = self.texts.iter().map(String::as_bytes);
        std::iter::once(self.raw).chain(texts)
    }

    /// The decoded strings, keys and values, one a line. A pattern's `^` and `$` are meant
    /// for each line.
    pub fn string_lines(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(String::as_bytes)
    }

    fn add_text(&mut self, text: String) {
        push_with_folded(&mut self.texts, text);
        // What says nothing new is not looked at again.
        self.texts.retain(|t| t.as_bytes() != self.raw);
    }

    fn add_lines(&mut self, mut strings: String) {
        for _ in 0..MAX_DECODES {
            let next = unescape(&strings).into_owned();
            let last = next == strings;
            push_with_folded(&mut self.lines, strings);
            if last {
                return;
            }
            strings = next;
        }
        push_with_folded(&mut self.lines, strings);
    }
}

/// Adds a text, and the folded one if that is another.
fn push_with_folded(to: &mut Vec<String>, text: String) {
    if text.is_empty() {
        return;
    }
    if let Cow::Owned(folded) = fold_text(&text)
        && folded != text
    {
        to.push(folded);
    }
    to.push(text);
}

/// A JSON text, decoded.
#[derive(Debug, Default, PartialEq, Eq)]
struct DecodedJson {
    /// All strings, keys and values, in their order, one a line.
    strings: String,
    /// The whole without space between tokens, each string in its shortest spelling.
    compact: String,
}

/// Decodes a text that is JSON, or several JSON texts one after the other. `None`: it is
/// not.
fn decode_json(text: &str) -> Option<DecodedJson> {
    let mut tokens = Tokens::new(text);
    let mut out = DecodedJson::default();
    let mut texts = 0;
    while let Some(token) = tokens.next().ok()? {
        if tokens.texts() > texts {
            texts = tokens.texts();
            if texts > 1 {
                out.compact.push('\n');
            }
        }
        match token {
            Token::Open(byte) | Token::Close(byte) => out.compact.push(char::from(byte)),
            Token::Comma => out.compact.push(','),
            Token::Key(literal) => {
                out.string(text, literal)?;
                out.compact.push(':');
            }
            Token::Text(literal) => out.string(text, literal)?,
            Token::Number(range) | Token::Word(range) => out.compact.push_str(text.get(range)?),
        }
    }
    Some(out)
}

impl DecodedJson {
    /// Adds a string, decoded and written again in its shortest spelling.
    fn string(&mut self, text: &str, literal: Literal) -> Option<()> {
        let start = self.strings.len();
        if literal.escaped {
            let decoded = literal.decode(text).bytes;
            self.strings.push_str(&String::from_utf8(decoded).ok()?);
        } else {
            self.strings.push_str(literal.of(text));
        }
        let decoded = self.strings.get(start..)?;
        self.compact.push_str(&serde_json::to_string(decoded).ok()?);
        self.strings.push('\n');
        Some(())
    }
}

/// The text with everything that looks like an escape decoded, wherever it stands.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        // `\x41` is no JSON, and many readers take it.
        let short = || {
            let code = hex(from.strip_prefix("\\x")?.get(..2)?)?;
            Some((char::from_u32(code)?, 4))
        };
        let (c, len) = escape(from).or_else(short).unwrap_or(('\\', 1));
        out.push(c);
        rest = from.get(len..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(text: &str) -> Vec<String> {
        let decoded = decode_json(text).unwrap_or_else(|| panic!("{text} is JSON"));
        decoded.strings.lines().map(str::to_owned).collect()
    }

    #[test]
    fn keys_and_values_are_decoded() {
        let text = r#" {"\u0061b" : ["\ud83d\ude00\/", 1e400, {"c":"\"x\""}], "d":null} "#;
        assert_eq!(strings(text), ["ab", "😀/", "c", "\"x\"", "d"]);
        let decoded = decode_json(text).unwrap();
        assert_eq!(
            decoded.compact,
            r#"{"ab":["😀/",1e400,{"c":"\"x\""}],"d":null}"#
        );
        assert_eq!(
            strings(r#""\ud83d" "\udc00\ud83d\u0041""#),
            ["\u{fffd}", "\u{fffd}\u{fffd}A"]
        );
        assert_eq!(strings("{\"a\":1}\n{\"b\":2}\n"), ["a", "b"]);
    }

    #[test]
    fn what_is_json_is_what_serde_json_takes() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "[1 2]",
            "{1:2}",
            "]",
            "\"a",
            "\"\n\"",
            "01",
            "nul",
            "[}",
            "{\"a\":1]",
            "\"\\x41\"",
            "-",
            "{,}",
            "[\"a\":1]",
            "tru e",
            "{[]:1}",
        ] {
            assert_eq!(decode_json(text), None, "{text:?}");
            assert!(
                serde_json::from_str::<serde::de::IgnoredAny>(text).is_err(),
                "{text:?}"
            );
        }
        for text in [
            "0",
            "-1.5e+7",
            "[]",
            "{}",
            "[[],{}]",
            "{\"\":[true,false,null]}",
            "\"\"",
            "[1,2]",
        ] {
            assert_eq!(decode_json(text).unwrap().compact, text);
        }
    }

    #[test]
    fn depth_costs_no_stack_and_length_little_time() {
        let deep = "[".repeat(500_000) + &"]".repeat(500_000);
        assert!(decode_json(&deep).is_some());
        assert!(decode_json(&"[".repeat(1_000_000)).is_none());
        let slashes = "\\".repeat(1_000_000);
        assert!(!Views::from_bytes(slashes.as_bytes()).texts.is_empty());
        // The character that grows most.
        let wide = "\u{fdfa}".repeat(100_000);
        assert!(
            Views::from_bytes(wide.as_bytes())
                .texts
                .iter()
                .all(|t| t.len() <= 11 * wide.len())
        );
    }

    #[test]
    fn escapes_in_strings_of_strings_are_decoded_too() {
        let inner = r#"{"m":"\u0063onfidential"}"#;
        let text = serde_json::to_string(&serde_json::json!({ "arguments": inner })).unwrap();
        let views = Views::from_bytes(text.as_bytes());
        let found = |view: &[u8]| String::from_utf8_lossy(view).contains("\"confidential\"");
        assert!(views.string_lines().any(found), "{views:?}");
    }
}
