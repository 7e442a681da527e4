//! The way through an input: which texts are in it, what stands around each, and where.
//!
//! JSON is walked token by token with one small frame for each open bracket, up to the
//! limit of depth; nothing recurses by depth. Everything else is one plain text.

use std::ops::Range;
use std::rc::Rc;

use crate::encoded;
use crate::inspect::{Context, Detectors, Found, Match, Part, inspect};
use crate::json::{Literal, Token, Tokens};
use crate::limits;
use crate::personal;
use crate::report::{Encoding, excerpt};
use crate::secret::secret_name;
use crate::text::Mapped;
use crate::words::{Text, Use};

/// Keys whose sibling says what the value is.
const VALUE_KEYS: &[&str] = &[
    "value",
    "val",
    "content",
    "text",
    "data",
    "raw",
    "default",
    "plaintext",
    "current",
    "new_value",
    "newvalue",
];
/// Keys whose value says what a sibling is.
const NAME_KEYS: &[&str] = &[
    "name",
    "key",
    "field",
    "header",
    "variable",
    "env",
    "label",
    "parameter",
    "title",
    "id",
    "type",
];

/// Something found, before findings are made of it.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// `None`: a limit.
    pub(crate) detector: Option<u16>,
    /// In the input.
    pub(crate) range: Range<usize>,
    /// The content of the string that it is in; in plain text, what redaction may widen
    /// to is the line.
    pub(crate) literal: Option<Range<usize>>,
    pub(crate) pointer: Option<Rc<str>>,
    pub(crate) encoding: Option<Encoding>,
    pub(crate) excerpt: String,
    pub(crate) redactable: bool,
    pub(crate) beside_keyword: bool,
}

/// Where a text came from.
enum Source<'a> {
    /// It stands in the input from here on.
    At(usize),
    Mapped(&'a Mapped),
    /// All of it stands for this.
    Whole(Range<usize>),
}

impl Source<'_> {
    fn back(&self, range: Range<usize>) -> Range<usize> {
        match self {
            Self::At(base) => base + range.start..base + range.end,
            Self::Mapped(map) => map.back(range),
            Self::Whole(whole) => whole.clone(),
        }
    }
}

/// Everything found in an input, in no order.
pub(crate) fn spans(detectors: &Detectors, input: &[u8]) -> Vec<Span> {
    let seen = input.get(..limits::INPUT_BYTES).unwrap_or(input);
    let mut walk = Walk {
        detectors,
        spans: Vec::new(),
        found: Found::new(detectors, seen.len() * 16 + (1 << 20)),
        pointer_bytes: limits::POINTERS_BYTES,
    };
    match std::str::from_utf8(seen) {
        Ok(text) if let Some(texts) = is_json(text) => walk.json(text, texts > 1, None),
        _ => walk.plain(seen),
    }
    if walk.found.exhausted {
        walk.limit(0..seen.len());
    }
    if seen.len() < input.len() {
        walk.limit(seen.len()..input.len());
    }
    walk.spans
}

/// How many JSON texts this is. Several must be objects, arrays or strings each: numbers
/// with space between are a plain text.
fn is_json(text: &str) -> Option<usize> {
    let mut tokens = Tokens::new(text);
    let mut scalars = 0;
    loop {
        let top = tokens.depth() == 0;
        match tokens.next() {
            Ok(Some(Token::Number(_) | Token::Word(_))) if top => scalars += 1,
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return None,
        }
    }
    let texts = tokens.texts();
    (texts == 1 || scalars == 0).then_some(texts)
}

/// An open bracket.
#[derive(Default)]
struct Frame<'a> {
    object: bool,
    index: usize,
    key: Option<Literal>,
    /// Of the current key.
    own: Context<'a>,
    /// Of the key that the bracket is the value of.
    outer: Context<'a>,
    /// Of a sibling that names the value.
    sibling: Option<Context<'a>>,
    /// A value whose sibling has not come yet.
    value: Option<(Token, Literal)>,
}

struct Walk<'s> {
    detectors: &'s Detectors,
    spans: Vec<Span>,
    found: Found<'s>,
    /// Bytes that pointers may still take.
    pointer_bytes: usize,
}

/// The document that is walked.
#[derive(Clone, Copy)]
struct Document<'a> {
    text: &'a str,
    all: Text<'a>,
}

impl Walk<'_> {
    fn limit(&mut self, range: Range<usize>) {
        self.spans.push(Span {
            detector: None,
            range,
            literal: None,
            pointer: None,
            encoding: None,
            excerpt: String::new(),
            redactable: false,
            beside_keyword: false,
        });
    }

    fn plain(&mut self, bytes: &[u8]) {
        let hits = self.detectors.words.find(bytes);
        let text = Text::new(bytes, &hits, &self.detectors.words);
        self.text(
            &text,
            &Source::At(0),
            &Context::default(),
            Part::Value,
            true,
        );
    }

    /// Walks a text that is JSON. With `inside`, it stands in a string of that range.
    fn json(&mut self, text: &str, several: bool, inside: Option<&Range<usize>>) {
        let hits = self.detectors.words.find(text.as_bytes());
        let all = Text::new(text.as_bytes(), &hits, &self.detectors.words);
        let document = Document { text, all };
        let mut frames: Vec<Frame<'_>> = Vec::new();
        let mut deeper = 0_usize;
        let mut tokens = Tokens::new(text);
        while let Ok(Some(token)) = tokens.next() {
            let first = self.spans.len();
            match &token {
                Token::Open(_) if deeper > 0 || frames.len() == limits::DEPTH => {
                    if deeper == 0 && inside.is_none() {
                        let at = tokens.position() - 1;
                        self.limit(at..at + 1);
                    }
                    deeper += 1;
                }
                Token::Open(byte) => {
                    let outer = frames.last().map(value_context).unwrap_or_default();
                    frames.push(Frame {
                        object: *byte == b'{',
                        outer,
                        ..Frame::default()
                    });
                }
                Token::Close(_) if deeper > 0 => deeper -= 1,
                Token::Close(_) => {
                    frames.pop();
                }
                Token::Comma => {
                    if let Some(frame) = frames.last_mut().filter(|_| deeper == 0) {
                        frame.index += 1;
                    }
                }
                Token::Key(literal) => {
                    let own = self.key(document, *literal, inside);
                    if let Some(frame) = frames.last_mut().filter(|_| deeper == 0) {
                        frame.key = Some(*literal);
                        frame.own = own;
                    }
                }
                Token::Text(_) | Token::Number(_) => {
                    let context = frames.last().map(value_context).unwrap_or_default();
                    self.value(document, &token, &context, inside);
                    if deeper == 0
                        && let Some(frame) = frames.last_mut()
                    {
                        self.siblings(document, frame, token, inside);
                    }
                }
                Token::Word(_) => {}
            }
            if self.spans.len() > first && inside.is_none() {
                let index = several.then(|| tokens.texts() - 1);
                self.point(text, &frames, index, first);
            }
        }
    }

    /// Gives the spans from `first` on their pointer.
    fn point(&mut self, text: &str, frames: &[Frame<'_>], index: Option<usize>, first: usize) {
        let most = self.pointer_bytes.min(limits::POINTER_BYTES);
        let Some(pointer) = pointer(text, frames, index, most) else {
            return;
        };
        self.pointer_bytes -= pointer.len();
        let pointer: Rc<str> = pointer.into();
        for span in self.spans.iter_mut().skip(first) {
            span.pointer = Some(Rc::clone(&pointer));
        }
    }

    /// Looks at a key, and at what it says about its value.
    fn key<'a>(
        &mut self,
        document: Document<'a>,
        literal: Literal,
        inside: Option<&Range<usize>>,
    ) -> Context<'a> {
        let mut context = Context::default();
        self.literal(document, literal, inside, |walk, text, source| {
            walk.text(text, source, &Context::default(), Part::Key, false);
            context = name_context(text);
        });
        context.names[0] = literal.of(document.text);
        context
    }

    fn value(
        &mut self,
        document: Document<'_>,
        token: &Token,
        context: &Context<'_>,
        inside: Option<&Range<usize>>,
    ) {
        match token {
            Token::Text(literal) => {
                self.literal(document, *literal, inside, |walk, text, source| {
                    let inner = inside.is_none().then(|| json_inside(text.bytes)).flatten();
                    match inner {
                        Some(inner) => {
                            let whole = literal.start..literal.end;
                            walk.text(text, source, context, Part::Outside, false);
                            walk.json(inner, false, Some(&whole));
                        }
                        None => walk.text(text, source, context, Part::Value, inside.is_none()),
                    }
                });
            }
            Token::Number(range) => {
                let text = document.all.part(range.clone());
                let source = match inside {
                    Some(whole) => Source::Whole(whole.clone()),
                    None => Source::At(range.start),
                };
                let first = self.spans.len();
                self.text(&text, &source, context, Part::Number, false);
                for span in self
                    .spans
                    .iter_mut()
                    .skip(first)
                    .filter(|_| inside.is_some())
                {
                    span.encoding = Some(Encoding::Json);
                    span.redactable = true;
                }
            }
            Token::Open(_) | Token::Close(_) | Token::Comma | Token::Key(_) | Token::Word(_) => {}
        }
    }

    /// `{"name": "DB_PASSWORD", "value": "…"}`, in either order.
    fn siblings<'a>(
        &mut self,
        document: Document<'a>,
        frame: &mut Frame<'a>,
        token: Token,
        inside: Option<&Range<usize>>,
    ) {
        let Some(key) = frame.key.filter(|_| frame.object) else {
            return;
        };
        let name = key.of(document.text).to_ascii_lowercase();
        if VALUE_KEYS.contains(&name.as_str()) {
            frame.value = Some((token, key));
        } else if NAME_KEYS.contains(&name.as_str())
            && let Token::Text(literal) = token
        {
            let mut context = Context::default();
            self.literal(document, literal, inside, |_, text, _| {
                context = name_context(text)
            });
            context.names[1] = literal.of(document.text);
            if let Some((value, key)) = frame.value.take() {
                let first = self.spans.len();
                self.value(document, &value, &context, inside);
                // The pointer is made of the current key.
                frame.key = Some(key);
                drop_repeated(&mut self.spans, first);
            }
            if context.class.is_some() || context.topics != 0 || frame.sibling.is_none() {
                frame.sibling = Some(context);
            }
        }
    }

    /// Calls `with` for the decoded content of a string.
    fn literal(
        &mut self,
        document: Document<'_>,
        literal: Literal,
        inside: Option<&Range<usize>>,
        with: impl FnOnce(&mut Self, &Text<'_>, &Source<'_>),
    ) {
        let first = self.spans.len();
        if literal.escaped {
            let decoded = literal.decode(document.text);
            let words = &self.detectors.words;
            let hits = words.find(&decoded.bytes);
            let text = Text::new(&decoded.bytes, &hits, words);
            match inside {
                Some(whole) => with(self, &text, &Source::Whole(whole.clone())),
                None => with(self, &text, &Source::Mapped(&decoded)),
            }
        } else {
            let text = document.all.part(literal.start..literal.end);
            match inside {
                Some(whole) => with(self, &text, &Source::Whole(whole.clone())),
                None => with(self, &text, &Source::At(literal.start)),
            }
        }
        for span in self.spans.iter_mut().skip(first) {
            let whole = inside.cloned().unwrap_or(literal.start..literal.end);
            span.literal = Some(whole);
            if inside.is_some() {
                span.encoding = Some(Encoding::Json);
                span.redactable = true;
            }
        }
    }

    /// Runs all detectors over a text and, when `decode` is set, over what it encodes.
    fn text(
        &mut self,
        text: &Text<'_>,
        source: &Source<'_>,
        context: &Context<'_>,
        part: Part,
        decode: bool,
    ) {
        let direct = self.matches(text, context, part);
        for m in &direct {
            self.add(m, text.bytes, source.back(m.range.clone()), None, part);
        }
        if !decode {
            return;
        }
        let words = &self.detectors.words;
        encoded::decode(text.bytes, |run| {
            let hits = words.find(&run.bytes);
            let inner = Text::new(&run.bytes, &hits, words);
            let whole = run.range == (0..text.bytes.len());
            let outer = if whole { *context } else { Context::default() };
            for m in self.matches(&inner, &outer, part) {
                let value = run.bytes.get(m.range.clone());
                let again = |d: &Match| {
                    d.detector == m.detector && text.bytes.get(d.range.clone()) == value
                };
                // A name and its value: the value is whatever the run says it is.
                if !direct.iter().any(again)
                    && !(whole && outer.class.is_some() && m.range == (0..run.bytes.len()))
                {
                    self.add(
                        &m,
                        &run.bytes,
                        source.back(run.range.clone()),
                        Some(run.encoding),
                        part,
                    );
                }
            }
        });
        if let Some(folded) = encoded::folded(text.bytes) {
            let hits = words.find(&folded.bytes);
            let inner = Text::new(&folded.bytes, &hits, words);
            for m in self.matches(&inner, context, part) {
                let written = folded.back(m.range.clone());
                if text.bytes.get(written.clone()) != folded.bytes.get(m.range.clone()) {
                    self.add(
                        &m,
                        &folded.bytes,
                        source.back(written),
                        Some(Encoding::Unicode),
                        part,
                    );
                }
            }
        }
    }

    fn matches(&mut self, text: &Text<'_>, context: &Context<'_>, part: Part) -> Vec<Match> {
        inspect(text, context, part, &mut self.found);
        let mut matches = std::mem::take(&mut self.found.matches);
        self.resolve(&mut matches);
        let marks = marks(text.bytes);
        matches.retain(|m| {
            let before = marks.partition_point(|mark| mark.start <= m.range.start);
            let mark = before.checked_sub(1).and_then(|i| marks.get(i));
            m.range.start < m.range.end && mark.is_none_or(|mark| m.range.end > mark.end)
        });
        matches
    }

    /// Of matches of one kind that overlap, the lower rank stays, then the longer one.
    /// Personal data in a secret is the secret.
    fn resolve(&self, matches: &mut Vec<Match>) {
        if matches.len() < 2 {
            return;
        }
        let order = |m: &Match| {
            let (kind, rank) = self
                .detectors
                .get(m.detector)
                .map_or((None, 0), |d| (Some(d.kind), d.rank));
            (kind, rank, usize::MAX - m.range.len(), m.range.start)
        };
        matches.sort_by_key(order);
        let mut kept: Vec<(
            Option<crate::report::Kind>,
            std::collections::BTreeMap<usize, usize>,
        )> = Vec::new();
        matches.retain(|m| {
            let kind = order(m).0;
            let covers = |taken: &std::collections::BTreeMap<usize, usize>| {
                let before = taken.range(..m.range.end).next_back();
                before.is_some_and(|(_, end)| *end > m.range.start)
            };
            let secret =
                |k: Option<crate::report::Kind>| k == Some(crate::report::Kind::SecretLeak);
            let personal = kind == Some(crate::report::Kind::Pii);
            let hidden = kept
                .iter()
                .any(|(k, taken)| (*k == kind || (secret(*k) && personal)) && covers(taken));
            if hidden {
                return false;
            }
            match kept.iter_mut().find(|(k, _)| *k == kind) {
                Some((_, taken)) => {
                    taken.insert(m.range.start, m.range.end);
                }
                None => kept.push((kind, [(m.range.start, m.range.end)].into())),
            }
            true
        });
    }

    fn add(
        &mut self,
        m: &Match,
        text: &[u8],
        range: Range<usize>,
        encoding: Option<Encoding>,
        part: Part,
    ) {
        let value = text.get(m.range.clone()).unwrap_or_default();
        self.spans.push(Span {
            detector: Some(m.detector),
            range,
            literal: None,
            pointer: None,
            encoding,
            excerpt: excerpt(value),
            redactable: matches!(part, Part::Value | Part::Outside),
            beside_keyword: m.beside_keyword,
        });
    }
}

/// A string whose content is JSON again.
fn json_inside(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let starts = text.trim_ascii_start().starts_with(['{', '[']);
    let marked = || !marks(text.trim_ascii().as_bytes()).is_empty();
    (starts && text.len() > 2 && is_json(text).is_some() && !(marked() && text.len() < 30))
        .then_some(text)
}

/// What a name says about its value.
fn name_context(text: &Text<'_>) -> Context<'static> {
    let secret = |uses: &[Use]| {
        uses.iter()
            .any(|u| matches!(u, Use::SecretName | Use::Scheme))
    };
    let named = text.hits().any(|(_, uses)| secret(uses));
    Context {
        class: named.then(|| secret_name(text.bytes)).flatten(),
        topics: personal::of_name(text),
        names: [""; 2],
    }
}

/// What is known about the next value of a bracket.
fn value_context<'a>(frame: &Frame<'a>) -> Context<'a> {
    if !frame.object {
        return frame.outer;
    }
    let mut context = frame.own;
    let value = VALUE_KEYS
        .iter()
        .any(|k| context.names[0].eq_ignore_ascii_case(k));
    if value {
        let sibling = frame.sibling.unwrap_or_default();
        context.class = context.class.or(sibling.class).or(frame.outer.class);
        context.topics |= sibling.topics | frame.outer.topics;
        context.names[1] = if sibling.names[1].is_empty() {
            frame.outer.names[0]
        } else {
            sibling.names[1]
        };
    }
    context
}

/// Spans from `first` on that are there already.
fn drop_repeated(spans: &mut Vec<Span>, first: usize) {
    let new = spans.split_off(first.min(spans.len()));
    for span in new {
        let same = |s: &Span| s.detector == span.detector && s.range == span.range;
        // A value is seldom far behind its sibling.
        if !spans.iter().rev().take(64).any(same) {
            spans.push(span);
        }
    }
}

/// The marks of an earlier redaction.
pub(crate) fn marks(text: &[u8]) -> Vec<Range<usize>> {
    let starts = memchr::memmem::find_iter(text, b"[REDACTED:");
    starts
        .filter_map(|start| {
            let rest = text.get(start..)?;
            let kinds = crate::report::Kind::ALL.map(crate::report::Kind::mark);
            let mark = kinds
                .iter()
                .find(|mark| rest.starts_with(mark.as_bytes()))?;
            Some(start..start + mark.len())
        })
        .collect()
}

/// RFC 6901. `None`: it is longer than `most` bytes.
fn pointer(text: &str, frames: &[Frame<'_>], index: Option<usize>, most: usize) -> Option<String> {
    let mut out = String::new();
    if let Some(index) = index {
        out.push_str(&format!("/{index}"));
    }
    for frame in frames {
        out.push('/');
        match frame.key {
            Some(key) if frame.object => {
                let name = key.decode(text).bytes;
                let name = String::from_utf8_lossy(&name);
                out.push_str(&name.replace('~', "~0").replace('/', "~1"));
            }
            _ => out.push_str(&frame.index.to_string()),
        }
        if out.len() > most {
            return None;
        }
    }
    Some(out)
}
