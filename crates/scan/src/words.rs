//! The one pass of keywords: where in a text anything might be.
//!
//! All keywords of all detectors are in one automaton, so a clean text costs one pass
//! however many detectors there are. What a keyword's hit is for, its [`Use`]s tell.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::{Anchored, MatchKind, StartKind};

/// Parts of a text that are searched at the same time.
const LANES: usize = 4;

/// Why a keyword is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It begins, or is in, the token of this detector.
    Token(u16),
    /// This detector searches texts in which the keyword is.
    Search(u16),
    /// A personal number of this topic may stand beside it.
    Topic(u64),
    /// A part of a name such as `db_password`, whose value is a secret.
    SecretName,
    /// `://`, after which a user and a password may come.
    Url,
    /// `@tcp(` of a DSN without a scheme.
    Dsn,
    /// `Bearer` and the like.
    Scheme,
    /// The first line of a private key.
    PrivateKey,
}

/// A keyword in a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    start: u32,
    word: u16,
}

#[derive(Debug)]
pub(crate) struct Words {
    /// `None`: the keywords do not fit, which the limits of the configuration rule out.
    automaton: Option<DFA>,
    longest: usize,
    words: Vec<(usize, Box<[Use]>)>,
}

impl Words {
    /// Keywords compare without regard to the case of ASCII letters.
    pub(crate) fn new(entries: impl IntoIterator<Item = (String, Use)>) -> Self {
        let mut by_word: BTreeMap<String, Vec<Use>> = BTreeMap::new();
        for (word, of) in entries {
            let uses = by_word.entry(word.to_ascii_lowercase()).or_default();
            if !uses.contains(&of) {
                uses.push(of);
            }
        }
        let automaton = DFA::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .start_kind(StartKind::Unanchored)
            // Then only matches are special states.
            .prefilter(false)
            .build(by_word.keys())
            .ok();
        let longest = by_word.keys().map(String::len).max().unwrap_or(0);
        let words = by_word
            .into_iter()
            .map(|(word, uses)| (word.len(), uses.into_boxed_slice()))
            .collect();
        Self {
            automaton,
            longest,
            words,
        }
    }

    pub(crate) fn find(&self, text: &[u8]) -> Vec<Hit> {
        let mut hits = Vec::new();
        let Some(automaton) = &self.automaton else {
            return hits;
        };
        let Ok(start) = automaton.start_state(Anchored::No) else {
            return hits;
        };
        let part = text.len() / LANES;
        let mut at = 0;
        if part > 4 * self.longest {
            // Each step of the automaton waits for the one before, so the processor has
            // time for the steps of other parts of the text in between.
            let begins: [usize; LANES] =
                std::array::from_fn(|i| (part * i).saturating_sub(self.longest));
            let lane = |from: usize| text.get(from..from + part + self.longest);
            let [a, b, c, d] = begins.map(|from| lane(from).unwrap_or_default());
            let [mut s0, mut s1, mut s2, mut s3] = [start; LANES];
            let steps = a.iter().zip(b).zip(c.iter().zip(d)).enumerate();
            for (step, ((a, b), (c, d))) in steps {
                s0 = automaton.next_state(Anchored::No, s0, *a);
                s1 = automaton.next_state(Anchored::No, s1, *b);
                s2 = automaton.next_state(Anchored::No, s2, *c);
                s3 = automaton.next_state(Anchored::No, s3, *d);
                let special = automaton.is_special(s0)
                    | automaton.is_special(s1)
                    | automaton.is_special(s2)
                    | automaton.is_special(s3);
                if special {
                    for (i, state) in [s0, s1, s2, s3].into_iter().enumerate() {
                        let end = begins.get(i).map_or(0, |from| from + step + 1);
                        if end > part * i && end <= part * (i + 1) {
                            self.record(automaton, state, end, &mut hits);
                        }
                    }
                }
            }
            at = part * LANES - self.longest;
        }
        let done = if at == 0 { 0 } else { at + self.longest };
        let mut state = start;
        for (i, byte) in text.iter().enumerate().skip(at) {
            state = automaton.next_state(Anchored::No, state, *byte);
            if automaton.is_special(state) && i + 1 > done {
                self.record(automaton, state, i + 1, &mut hits);
            }
        }
        // They come in the order of their ends, part by part.
        hits.sort_unstable_by_key(|h| (h.start, h.word));
        hits
    }

    /// Keeps the keywords that end here.
    fn record(&self, automaton: &DFA, state: StateID, end: usize, hits: &mut Vec<Hit>) {
        if !automaton.is_match(state) {
            return;
        }
        for i in 0..automaton.match_len(state) {
            let word = automaton.match_pattern(state, i).as_usize();
            let len = self.words.get(word).map_or(0, |(len, _)| *len);
            let hit = u32::try_from(end - len).ok().zip(u16::try_from(word).ok());
            hits.extend(hit.map(|(start, word)| Hit { start, word }));
        }
    }

    fn uses(&self, hit: Hit) -> (usize, &[Use]) {
        match self.words.get(usize::from(hit.word)) {
            Some((len, uses)) => (*len, uses),
            None => (0, &[]),
        }
    }
}

/// What is in a text, and so which detectors can find something in it. Most strings of
/// JSON are short and have nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    /// Digits enough for the shortest id.
    pub(crate) number: bool,
    /// `@`.
    pub(crate) at: bool,
    /// Something that may be encoded.
    pub(crate) encoded: bool,
    pub(crate) keyword: bool,
}

impl Traits {
    pub(crate) fn any(self) -> bool {
        self.number || self.at || self.encoded || self.keyword
    }
}

/// A text with the keywords in it.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) bytes: &'a [u8],
    hits: &'a [Hit],
    /// Where `bytes` begin in the text that the hits were found in.
    base: usize,
    words: &'a Words,
}

impl<'a> Text<'a> {
    pub(crate) fn new(bytes: &'a [u8], hits: &'a [Hit], words: &'a Words) -> Self {
        Self {
            bytes,
            hits,
            base: 0,
            words,
        }
    }

    /// A part of this text, with the keywords that begin in it. `cursor` is where in the
    /// hits the last part ended: parts are asked for in order, nearly always.
    pub(crate) fn part(&self, range: Range<usize>, cursor: &Cell<usize>) -> Self {
        let start = self.base + range.start;
        let end = self.base + range.end;
        let place = |i: usize| self.hits.get(i).map(|h| h.start as usize);
        let mut from = cursor.get();
        if from > 0 && place(from - 1).is_none_or(|at| at >= start) {
            from = self.hits.partition_point(|h| (h.start as usize) < start);
        }
        while place(from).is_some_and(|at| at < start) {
            from += 1;
        }
        let mut to = from;
        while place(to).is_some_and(|at| at < end) {
            to += 1;
        }
        cursor.set(to);
        Self {
            bytes: self.bytes.get(range).unwrap_or_default(),
            hits: self.hits.get(from..to).unwrap_or_default(),
            base: start,
            words: self.words,
        }
    }

    pub(crate) fn has_hits(&self) -> bool {
        !self.hits.is_empty()
    }

    /// What of a text is worth a closer look.
    pub(crate) fn traits(&self) -> Traits {
        const SPECIAL: u8 = 1;
        const DIGIT: u8 = 2;
        const RUN: u8 = 4;
        const AT: u8 = 8;
        const CLASSES: [u8; 256] = {
            let mut classes = [0; 256];
            let mut i = 0;
            while i < 256 {
                let byte = i as u8;
                if matches!(byte, b'%' | b'\\' | b'[' | b'{') || byte >= 0x80 {
                    classes[i] = SPECIAL;
                } else if byte == b'@' {
                    classes[i] = AT;
                } else if byte.is_ascii_digit() {
                    classes[i] = DIGIT | RUN;
                } else if byte.is_ascii_alphabetic() || matches!(byte, b'+' | b'/' | b'-' | b'_') {
                    classes[i] = RUN;
                }
                i += 1;
            }
            classes
        };
        if self.bytes.len() > 4096 {
            return Traits {
                number: true,
                at: true,
                encoded: true,
                keyword: true,
            };
        }
        let (mut all, mut digits, mut run, mut longest) = (0_u8, 0_u32, 0_u32, 0_u32);
        for byte in self.bytes {
            let class = CLASSES.get(usize::from(*byte)).copied().unwrap_or(SPECIAL);
            all |= class;
            digits += u32::from(class & DIGIT != 0);
            run = if class & RUN != 0 { run + 1 } else { 0 };
            longest = longest.max(run);
        }
        Traits {
            number: digits >= 4,
            at: all & AT != 0,
            encoded: all & SPECIAL != 0 || longest >= 16,
            keyword: !self.hits.is_empty(),
        }
    }

    /// Keywords and what they are for, in the order of the text.
    pub(crate) fn hits(self) -> impl Iterator<Item = (Range<usize>, &'a [Use])> {
        self.hits.iter().filter_map(move |hit| {
            let (len, uses) = self.words.uses(*hit);
            let start = (hit.start as usize).checked_sub(self.base)?;
            (start + len <= self.bytes.len()).then_some((start..start + len, uses))
        })
    }

    /// The byte before a place; a line break where there is none.
    pub(crate) fn before(&self, at: usize) -> u8 {
        let before = at.checked_sub(1).and_then(|i| self.bytes.get(i));
        before.copied().unwrap_or(b'\n')
    }

    /// The byte at a place; a line break where there is none.
    pub(crate) fn at(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(b'\n')
    }

    /// Whether a word can begin here: after anything but a letter, a digit or `_`, or
    /// after an escape such as `\n` that stands in the text as it is.
    pub(crate) fn starts_word(&self, at: usize) -> bool {
        let before = self.before(at);
        let escape = matches!(before, b'n' | b'r' | b't') && self.before(at.max(1) - 1) == b'\\';
        !is_word(before) || escape
    }

    pub(crate) fn ends_word(&self, at: usize) -> bool {
        !is_word(self.at(at))
    }

    /// Whether a keyword stands for itself in a name or a sentence: `ssn` in `user_ssn`
    /// and `userSsn`, not in `assn`.
    pub(crate) fn is_own_word(&self, range: &Range<usize>) -> bool {
        let before = self.before(range.start);
        let after = self.at(range.end);
        let first = self.at(range.start);
        let last = self.at(range.end.max(1) - 1);
        let camel_start = before.is_ascii_lowercase() && first.is_ascii_uppercase();
        let camel_end = last.is_ascii_lowercase() && after.is_ascii_uppercase();
        let letter = |b: u8| b.is_ascii_alphabetic() || b >= 0x80;
        let plural = after == b's' && !letter(self.at(range.end + 1));
        // Beyond ASCII there are languages that put no space between words.
        let starts = !letter(before) || camel_start || first >= 0x80;
        let ends = !letter(after) || camel_end || plural || last >= 0x80;
        starts && ends
    }

    /// The topics of the words that stand near a place: up to `before` bytes before it,
    /// or 24 after its end, and on the same line.
    pub(crate) fn topics_near(&self, range: &Range<usize>, before: usize) -> u64 {
        let from = range.start.saturating_sub(before);
        let to = (range.end + 24).min(self.bytes.len());
        let first = self
            .hits
            .partition_point(|h| (h.start as usize) < self.base + from);
        let mut topics = 0;
        for hit in self.hits.get(first..).unwrap_or_default() {
            let (len, uses) = self.words.uses(*hit);
            let start = (hit.start as usize).saturating_sub(self.base);
            let word = start..start + len;
            if word.start >= to {
                break;
            }
            let between = if word.end <= range.start {
                word.end..range.start
            } else if word.start >= range.end {
                range.end..word.start
            } else {
                continue;
            };
            let found = topics_of(uses);
            if found == 0 || !self.is_own_word(&word) {
                continue;
            }
            let gap = self.bytes.get(between).unwrap_or_default();
            if !gap.contains(&b'\n') {
                topics |= found;
            }
        }
        topics
    }

    /// The topics of all words of a name, or only of those that end it.
    pub(crate) fn topics(&self, only_last: bool) -> u64 {
        let own = |(range, uses): (Range<usize>, &[Use])| match topics_of(uses) {
            0 => 0,
            _ if only_last && range.end < self.bytes.len() => 0,
            found if self.is_own_word(&range) => found,
            _ => 0,
        };
        self.hits().map(own).fold(0, |all, found| all | found)
    }
}

fn topics_of(uses: &[Use]) -> u64 {
    uses.iter().fold(0, |all, of| match of {
        Use::Topic(topic) => all | topic,
        _ => all,
    })
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keyword_is_found_once_wherever_a_text_is_cut() {
        let words = Words::new(
            ["ab", "b", "secret", "a longer keyword"].map(|w| (w.to_owned(), Use::SecretName)),
        );
        let mut text = String::new();
        for i in 0..200 {
            text.push_str(["Secret ", "xab", "a longer keyWORD", "--"][i % 4]);
            let hits = words.find(text.as_bytes());
            let lower = text.to_lowercase();
            let mut expected: Vec<(usize, usize)> = Vec::new();
            for (k, word) in ["a longer keyword", "ab", "b", "secret"].iter().enumerate() {
                let all = (0..lower.len()).filter(|at| lower[*at..].starts_with(word));
                expected.extend(all.map(|at| (at, k)));
            }
            expected.sort_unstable();
            let found: Vec<(usize, usize)> = hits
                .iter()
                .map(|h| (h.start as usize, usize::from(h.word)))
                .collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
