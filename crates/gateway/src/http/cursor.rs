//! Where the next page of a list begins, as an opaque text.

use airlock_model::{JobId, Timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Raise when the meaning changes, so that an old cursor is refused, not misread.
const VERSION: &str = "1";

pub fn encode_cursor(at: Timestamp, id: &JobId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{VERSION}:{}:{id}", at.as_micros()))
}

pub fn decode_cursor(text: &str) -> Option<(Timestamp, JobId)> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let mut parts = text.splitn(3, ':');
    if parts.next()? != VERSION {
        return None;
    }
    let at = Timestamp(parts.next()?.parse().ok()?);
    Some((at, JobId::new(parts.next()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_wrote_and_nothing_else() {
        let place = (Timestamp(1_768_910_400_123_456), JobId::new("a:b").unwrap());
        assert_eq!(
            decode_cursor(&encode_cursor(place.0, &place.1)),
            Some(place)
        );
        let old = URL_SAFE_NO_PAD.encode("0:1:a");
        for bad in ["", "x", "MTI", "1:2:3", "%%%", old.as_str()] {
            assert_eq!(decode_cursor(bad), None, "{bad}");
        }
    }
}
