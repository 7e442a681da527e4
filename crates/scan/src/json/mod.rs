//! JSON as tokens that know their place in the input.
//!
//! Redaction must leave every other byte as it was and findings name offsets, so a parsed
//! tree is of no use here. The reader keeps one byte for each open bracket and calls
//! nothing recursively, because the depth is the sender's choice.

mod escape;

use std::ops::Range;

pub(crate) use escape::{escape, hex};

use crate::text::Mapped;

/// The text is not JSON, or not a sequence of JSON texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotJson;

/// The content of a string, between its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Literal {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) escaped: bool,
}

impl Literal {
    pub(crate) fn of<'a>(&self, text: &'a str) -> &'a str {
        text.get(self.start..self.end).unwrap_or_default()
    }

    /// The decoded content, and where each part of it stands.
    pub(crate) fn decode(&self, text: &str) -> Mapped {
        let mut out = Mapped::with_capacity(self.end - self.start);
        let mut at = self.start;
        while at < self.end {
            let rest = text.get(at..self.end).unwrap_or_default();
            let plain = memchr::memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len());
            out.plain(rest.get(..plain).unwrap_or_default().as_bytes(), at);
            at += plain;
            let Some((c, len)) = rest.get(plain..).and_then(escape) else {
                break;
            };
            out.coded(c.encode_utf8(&mut [0; 4]).as_bytes(), at);
            at += len;
        }
        out.finish(self.end);
        out
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Open(u8),
    Close(u8),
    Comma,
    /// With the colon after it.
    Key(Literal),
    Text(Literal),
    Number(Range<usize>),
    /// `true`, `false` or `null`.
    Word(Range<usize>),
}

/// A [`Token`] without its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    End,
    Open(u8),
    Close(u8),
    Comma,
    Key,
    Text,
    Number,
    Word,
}

/// What may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    /// Right after `[` or `{`.
    First,
    Key,
    /// After a value: a comma or the end of what is open.
    After,
}

/// Reads JSON texts one after the other.
pub(crate) struct Tokens<'a> {
    text: &'a str,
    at: usize,
    /// The brackets that are open, by what closes them.
    open: Vec<u8>,
    next: Next,
    texts: usize,
    /// The last string, number or word.
    literal: Literal,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: if text.starts_with('\u{feff}') { 3 } else { 0 },
            open: Vec::new(),
            next: Next::Value,
            texts: 0,
            literal: Literal {
                start: 0,
                end: 0,
                escaped: false,
            },
        }
    }

    /// How many texts have begun so far.
    pub(crate) fn texts(&self) -> usize {
        self.texts
    }

    /// Where the reader is in the text.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// How many brackets are open.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// The next token; `None` at the end of the last text.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Token>, NotJson> {
        // A token is put together here, where it is taken apart again: returning it from
        // a function that is called would copy it.
        let range = |tokens: &Self| tokens.literal.start..tokens.literal.end;
        Ok(match self.advance()? {
            Step::End => None,
            Step::Open(byte) => Some(Token::Open(byte)),
            Step::Close(byte) => Some(Token::Close(byte)),
            Step::Comma => Some(Token::Comma),
            Step::Key => Some(Token::Key(self.literal)),
            Step::Text => Some(Token::Text(self.literal)),
            Step::Number => Some(Token::Number(range(self))),
            Step::Word => Some(Token::Word(range(self))),
        })
    }

    /// Reads a token; a literal's place is in `self.literal`.
    fn advance(&mut self) -> Result<Step, NotJson> {
        self.space();
        let Some(&byte) = self.text.as_bytes().get(self.at) else {
            let ended = self.open.is_empty() && self.texts > 0;
            return if ended { Ok(Step::End) } else { Err(NotJson) };
        };
        if self.open.is_empty() {
            self.texts += 1;
        }
        let in_object = self.open.last() == Some(&b'}');
        Ok(match (self.next, byte) {
            (Next::First | Next::After, b']' | b'}') => {
                if self.open.pop() != Some(byte) {
                    return Err(NotJson);
                }
                self.at += 1;
                self.after();
                Step::Close(byte)
            }
            (Next::First | Next::Key, b'"') if in_object => self.key()?,
            (Next::First | Next::Key, _) if in_object => return Err(NotJson),
            (Next::Value | Next::First, b'[' | b'{') => {
                self.open.push(if byte == b'[' { b']' } else { b'}' });
                self.at += 1;
                self.next = Next::First;
                Step::Open(byte)
            }
            (Next::After, b',') => {
                self.at += 1;
                self.next = if in_object { Next::Key } else { Next::Value };
                Step::Comma
            }
            (Next::Value | Next::First, b'"') => {
                self.string()?;
                self.after();
                Step::Text
            }
            (Next::Value | Next::First, _) => self.scalar()?,
            (Next::Key | Next::After, _) => return Err(NotJson),
        })
    }

    fn after(&mut self) {
        self.next = if self.open.is_empty() {
            Next::Value
        } else {
            Next::After
        };
    }

    fn space(&mut self) {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
        self.at += rest.iter().take_while(|b| blank(b)).count();
    }

    fn key(&mut self) -> Result<Step, NotJson> {
        self.string()?;
        self.space();
        if self.text.as_bytes().get(self.at) != Some(&b':') {
            return Err(NotJson);
        }
        self.at += 1;
        self.next = Next::Value;
        Ok(Step::Key)
    }

    fn string(&mut self) -> Result<(), NotJson> {
        let start = self.at + 1;
        let mut escaped = false;
        let mut at = start;
        loop {
            let rest = self.text.as_bytes().get(at..).unwrap_or_default();
            let special = |b: &u8| *b == b'"' || *b == b'\\' || *b < b' ';
            at += rest.iter().position(special).ok_or(NotJson)?;
            match self.text.as_bytes().get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    let rest = self.text.get(at..).unwrap_or_default();
                    let (_, len) = escape(rest).ok_or(NotJson)?;
                    at += len;
                    escaped = true;
                }
                Some(_) | None => return Err(NotJson),
            }
        }
        self.at = at + 1;
        self.literal = Literal {
            start,
            end: at,
            escaped,
        };
        Ok(())
    }

    /// A number or a word. Numbers are taken as they are written.
    fn scalar(&mut self) -> Result<Step, NotJson> {
        let ends = |b: &u8| matches!(b, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let len = rest.iter().position(ends).unwrap_or(rest.len());
        let token = rest.get(..len).unwrap_or_default();
        let step = match token {
            b"true" | b"false" | b"null" => Step::Word,
            number if is_number(number) => Step::Number,
            _ => return Err(NotJson),
        };
        self.literal = Literal {
            start: self.at,
            end: self.at + len,
            escaped: false,
        };
        self.at += len;
        self.after();
        Ok(step)
    }
}

/// Whether the whole is a number in the grammar of JSON.
fn is_number(token: &[u8]) -> bool {
    let digits = |from: usize| {
        let rest = token.get(from..).unwrap_or_default();
        rest.iter().take_while(|b| b.is_ascii_digit()).count()
    };
    let mut at = usize::from(token.first() == Some(&b'-'));
    let whole = digits(at);
    if whole == 0 || (whole > 1 && token.get(at) == Some(&b'0')) {
        return false;
    }
    at += whole;
    if token.get(at) == Some(&b'.') {
        let fraction = digits(at + 1);
        if fraction == 0 {
            return false;
        }
        at += 1 + fraction;
    }
    if matches!(token.get(at), Some(b'e' | b'E')) {
        at += 1 + usize::from(matches!(token.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits(at);
        if exponent == 0 {
            return false;
        }
        at += exponent;
    }
    at == token.len()
}
