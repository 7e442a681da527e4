//! The way through an input: which texts are in it, what stands around each, and where.
//!
//! JSON is walked token by token with one small frame for each open bracket, up to the
//! limit of depth; nothing recurses by depth. Everything else is one plain text.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use crate::encoded;
use crate::inspect::{Context, Detectors, Found, Match, Part, inspect};
use crate::json::{Literal, NotJson, Token, Tokens};
use crate::limits;
use crate::personal;
use crate::report::{Encoding, excerpt};
use crate::secret::{NameClass, secret_name};
use crate::text::Mapped;
use crate::words::{Text, Traits, Use};

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
    /// Which of several JSON texts it is in.
    text: usize,
    pub(crate) encoding: Option<Encoding>,
    pub(crate) excerpt: String,
    pub(crate) redactable: bool,
    pub(crate) beside_keyword: bool,
}

impl Span {
    /// This was not looked at, or not all that is in it is told.
    pub(crate) fn limit(range: Range<usize>) -> Self {
        Self {
            detector: None,
            range,
            literal: None,
            pointer: None,
            text: 0,
            encoding: None,
            excerpt: String::new(),
            redactable: false,
            beside_keyword: false,
        }
    }
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
        found: Found::new(detectors, 0),
        pointer_bytes: 0,
    };
    walk.start(seen.len());
    let hits = detectors.words.find(seen);
    let all = Text::new(seen, &hits, &detectors.words);
    let json = std::str::from_utf8(seen).map(|text| walk.json(text, all, None));
    if !matches!(json, Ok(Ok(()))) {
        walk.start(seen.len());
        walk.plain(&all);
    }
    if walk.found.exhausted {
        walk.limit(0..seen.len());
    }
    if seen.len() < input.len() {
        walk.limit(seen.len()..input.len());
    }
    walk.spans
}

/// What a name says about its value.
#[derive(Clone, Copy, Default)]
struct Known {
    class: Option<NameClass>,
    topics: u64,
}

impl Known {
    fn is_something(self) -> bool {
        self.class.is_some() || self.topics != 0
    }

    fn or(self, other: Self) -> Self {
        Self {
            class: self.class.or(other.class),
            topics: self.topics | other.topics,
        }
    }
}

/// What a key is to its siblings.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Plain,
    /// Its value says what a sibling is.
    Name,
    /// A sibling says what its value is.
    Value,
}

impl Role {
    fn of(key: &str) -> Self {
        let one_of = |all: &[&str]| all.iter().any(|k| key.eq_ignore_ascii_case(k));
        match key.len() {
            0..2 | 10.. => Self::Plain,
            _ if one_of(VALUE_KEYS) => Self::Value,
            _ if one_of(NAME_KEYS) => Self::Name,
            _ => Self::Plain,
        }
    }
}

/// An open bracket.
#[derive(Default)]
struct Frame {
    object: bool,
    role: Role,
    index: usize,
    key: Option<Literal>,
    /// Of the current key.
    own: Known,
    /// Of the key that the bracket is the value of.
    outer: Known,
    outer_name: Option<Literal>,
    /// Of a sibling that names the value.
    sibling: Known,
    sibling_name: Option<Literal>,
    /// A value whose sibling has not come yet.
    value: Option<(Token, Literal)>,
}

impl Frame {
    /// What is known about the next value.
    fn known(&self) -> Known {
        match (self.object, self.role) {
            (false, _) => self.outer,
            (true, Role::Value) => self.own.or(self.sibling).or(self.outer),
            (true, Role::Plain | Role::Name) => self.own,
        }
    }

    /// The names that say something about the next value.
    fn names<'a>(&self, text: &'a str) -> [&'a str; 2] {
        let name = |literal: Option<Literal>| literal.map_or("", |l| l.of(text));
        match (self.object, self.role) {
            (false, _) => [name(self.outer_name), ""],
            (true, Role::Value) => [name(self.key), name(self.sibling_name.or(self.outer_name))],
            (true, Role::Plain | Role::Name) => [name(self.key), ""],
        }
    }
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
    cursor: &'a Cell<usize>,
}

impl Walk<'_> {
    fn limit(&mut self, range: Range<usize>) {
        self.spans.push(Span::limit(range));
    }

    /// Forgets everything found so far.
    fn start(&mut self, bytes: usize) {
        self.spans.clear();
        self.found = Found::new(self.detectors, bytes * 16 + (1 << 20));
        self.pointer_bytes = limits::POINTERS_BYTES;
    }

    fn plain(&mut self, text: &Text<'_>) {
        let context = Context::default();
        self.text(text, &Source::At(0), &context, Part::Value, true);
    }

    /// Walks a text that is JSON, or several JSON texts. With `inside`, it stands in a
    /// string of that range. Several must be objects, arrays or strings each: numbers
    /// with space between are a plain text.
    fn json(
        &mut self,
        text: &str,
        all: Text<'_>,
        inside: Option<&Range<usize>>,
    ) -> Result<(), NotJson> {
        let document = Document {
            text,
            all,
            cursor: &Cell::new(0),
        };
        let mut frames: Vec<Frame> = Vec::new();
        let mut deeper = 0_usize;
        let mut tokens = Tokens::new(text);
        let mut scalars = 0;
        while let Some(token) = tokens.next()? {
            let first = self.spans.len();
            match &token {
                Token::Open(_) if deeper > 0 || frames.len() == limits::DEPTH => {
                    if deeper == 0 {
                        let at = tokens.position() - 1;
                        self.limit(inside.cloned().unwrap_or(at..at + 1));
                    }
                    deeper += 1;
                }
                Token::Open(byte) => {
                    let last = frames.last();
                    frames.push(Frame {
                        object: *byte == b'{',
                        outer: last.map(Frame::known).unwrap_or_default(),
                        outer_name: last.and_then(|f| f.key.filter(|_| f.object).or(f.outer_name)),
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
                        frame.role = Role::of(literal.of(text));
                    }
                }
                Token::Text(_) | Token::Number(_) => {
                    let last = frames.last();
                    let known = last.map(Frame::known).unwrap_or_default();
                    let named = last.filter(|_| self.detectors.has_keywords);
                    let context = Context {
                        class: known.class,
                        topics: known.topics,
                        names: named.map_or([""; 2], |f| f.names(text)),
                    };
                    self.value(document, &token, &context, inside);
                    if deeper == 0
                        && let Some(frame) = frames.last_mut()
                        && frame.role != Role::Plain
                    {
                        self.siblings(document, frame, token.clone(), inside);
                    }
                }
                Token::Word(_) => {}
            }
            if tokens.depth() == 0 && matches!(token, Token::Number(_) | Token::Word(_)) {
                scalars += 1;
            }
            if scalars > 0 && tokens.texts() > 1 && inside.is_none() {
                return Err(NotJson);
            }
            if self.spans.len() > first && inside.is_none() {
                self.point(text, &frames, tokens.texts() - 1, first);
            }
        }
        if tokens.texts() > 1 && inside.is_none() {
            for span in &mut self.spans {
                let pointer = span.pointer.take();
                span.pointer = pointer.map(|p| format!("/{}{p}", span.text).into());
            }
        }
        Ok(())
    }

    /// Gives the spans from `first` on their pointer.
    fn point(&mut self, text: &str, frames: &[Frame], index: usize, first: usize) {
        let most = self.pointer_bytes.min(limits::POINTER_BYTES);
        let Some(pointer) = pointer(text, frames, most) else {
            return;
        };
        self.pointer_bytes -= pointer.len();
        let pointer: Rc<str> = pointer.into();
        for span in self.spans.iter_mut().skip(first) {
            span.pointer = Some(Rc::clone(&pointer));
            span.text = index;
        }
    }

    /// Looks at a key, and at what it says about its value.
    fn key(
        &mut self,
        document: Document<'_>,
        literal: Literal,
        inside: Option<&Range<usize>>,
    ) -> Known {
        let mut known = Known::default();
        self.literal(document, literal, inside, |walk, text, source| {
            walk.text(text, source, &Context::default(), Part::Key, false);
            known = name_says(text);
        });
        known
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
                            if walk.json(inner, *text, Some(&whole)).is_err() {
                                walk.text(text, source, context, Part::Value, true);
                            }
                        }
                        None => walk.text(text, source, context, Part::Value, inside.is_none()),
                    }
                });
            }
            Token::Number(range) => {
                let text = document.all.part(range.clone(), document.cursor);
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
    fn siblings(
        &mut self,
        document: Document<'_>,
        frame: &mut Frame,
        token: Token,
        inside: Option<&Range<usize>>,
    ) {
        let Some(key) = frame.key.filter(|_| frame.object) else {
            return;
        };
        match (frame.role, token) {
            (Role::Value, token) => frame.value = Some((token, key)),
            (Role::Name, Token::Text(literal)) => {
                let mut known = Known::default();
                self.literal(document, literal, inside, |_, text, _| {
                    known = name_says(text);
                });
                if let Some((value, key)) = frame.value.take() {
                    let first = self.spans.len();
                    let context = Context {
                        class: known.class,
                        topics: known.topics,
                        names: [key.of(document.text), literal.of(document.text)],
                    };
                    self.value(document, &value, &context, inside);
                    // The pointer is made of the current key.
                    frame.key = Some(key);
                    drop_repeated(&mut self.spans, first);
                }
                if known.is_something() || frame.sibling_name.is_none() {
                    frame.sibling = known;
                    frame.sibling_name = Some(literal);
                }
            }
            (Role::Plain | Role::Name, _) => {}
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
            let text = document
                .all
                .part(literal.start..literal.end, document.cursor);
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
        let traits = text.traits();
        if !traits.any() && context.class.is_none() && self.detectors.always.is_empty() {
            return;
        }
        let direct = self.matches(text, traits, context, part);
        for m in &direct {
            self.add(m, text.bytes, source.back(m.range.clone()), None, part);
        }
        if !decode || !traits.encoded {
            return;
        }
        let words = &self.detectors.words;
        encoded::decode(text.bytes, |run| {
            let hits = words.find(&run.bytes);
            let inner = Text::new(&run.bytes, &hits, words);
            let whole = run.range == (0..text.bytes.len());
            let outer = if whole { *context } else { Context::default() };
            for m in self.matches(&inner, inner.traits(), &outer, part) {
                let value = run.bytes.get(m.range.clone());
                let again = |d: &Match| {
                    d.detector == m.detector && text.bytes.get(d.range.clone()) == value
                };
                // A name and its value: the value is whatever the run says it is.
                let named = whole && outer.class.is_some() && m.range == (0..run.bytes.len());
                if !named && !direct.iter().any(again) {
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
            for m in self.matches(&inner, inner.traits(), context, part) {
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

    fn matches(
        &mut self,
        text: &Text<'_>,
        traits: Traits,
        context: &Context<'_>,
        part: Part,
    ) -> Vec<Match> {
        inspect(text, traits, context, part, &mut self.found);
        let mut matches = std::mem::take(&mut self.found.matches);
        self.resolve(&mut matches);
        if matches.is_empty() {
            return matches;
        }
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
            text: 0,
            encoding,
            excerpt: excerpt(value),
            redactable: matches!(part, Part::Value | Part::Outside),
            beside_keyword: m.beside_keyword,
        });
    }
}

/// A string whose content is JSON again.
fn json_inside(bytes: &[u8]) -> Option<&str> {
    if !matches!(bytes.trim_ascii_start(), [b'{' | b'[', ..]) {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    (text.len() > 2 && is_json(text)).then_some(text)
}

fn is_json(text: &str) -> bool {
    let mut tokens = Tokens::new(text);
    loop {
        match tokens.next() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// What a name says about its value.
fn name_says(text: &Text<'_>) -> Known {
    if !text.has_hits() {
        return Known::default();
    }
    let secret = |uses: &[Use]| {
        uses.iter()
            .any(|u| matches!(u, Use::SecretName | Use::Scheme))
    };
    let named = text.hits().any(|(_, uses)| secret(uses));
    Known {
        class: named.then(|| secret_name(text.bytes)).flatten(),
        topics: personal::of_name(text),
    }
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
fn pointer(text: &str, frames: &[Frame], most: usize) -> Option<String> {
    let mut out = String::new();
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
