//! Decoded text that knows where each of its bytes came from.

use std::ops::Range;

/// From `here` in the decoded text on, bytes come from `there` on in the source.
#[derive(Debug, Clone, Copy)]
struct Mark {
    here: usize,
    there: usize,
    /// All bytes up to the next mark stand for one thing, an escape say, that ends where
    /// the next mark points.
    coded: bool,
}

/// Decoded text, and the way back to its source.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) bytes: Vec<u8>,
    marks: Vec<Mark>,
}

impl Mapped {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            marks: Vec::new(),
        }
    }

    /// Adds bytes that stand in the source as they are.
    pub(crate) fn plain(&mut self, bytes: &[u8], there: usize) {
        if bytes.is_empty() {
            return;
        }
        let here = self.bytes.len();
        let goes_on = |m: &Mark| !m.coded && there.wrapping_sub(m.there) == here - m.here;
        if !self.marks.last().is_some_and(goes_on) {
            self.mark(there, false);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds bytes that stand for something else that begins `there` in the source.
    pub(crate) fn coded(&mut self, bytes: &[u8], there: usize) {
        self.mark(there, true);
        self.bytes.extend_from_slice(bytes);
    }

    /// Must be called once, at the end, with the end of the source.
    pub(crate) fn finish(&mut self, there: usize) {
        self.mark(there, true);
    }

    fn mark(&mut self, there: usize, coded: bool) {
        let here = self.bytes.len();
        self.marks.push(Mark { here, there, coded });
    }

    /// Where in the source the bytes of this range come from.
    pub(crate) fn back(&self, range: Range<usize>) -> Range<usize> {
        let index = |at: usize| {
            self.marks
                .partition_point(|m| m.here <= at)
                .saturating_sub(1)
        };
        let point = |i: usize, at: usize| {
            let m = self.marks.get(i);
            m.map_or(0, |m| m.there + if m.coded { 0 } else { at - m.here })
        };
        let first = index(range.start);
        let start = point(first, range.start);
        let last = index(range.end.max(range.start + 1) - 1);
        let end = match self.marks.get(last) {
            Some(m) if m.coded => point(last + 1, range.end),
            Some(_) | None => point(last, range.end),
        };
        start..end.max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lead_back_to_their_source() {
        // The source is `ab\u0063d` and one byte that is left out, then `e`.
        let mut m = Mapped::default();
        m.plain(b"ab", 10);
        m.coded(b"c", 12);
        m.plain(b"d", 18);
        m.plain(b"e", 20);
        m.finish(21);
        assert_eq!(m.bytes, b"abcde");
        assert_eq!(m.back(0..2), 10..12);
        assert_eq!(m.back(1..3), 11..18);
        assert_eq!(m.back(2..3), 12..18);
        assert_eq!(m.back(3..5), 18..21);
        assert_eq!(m.back(3..4), 18..19);
    }
}
