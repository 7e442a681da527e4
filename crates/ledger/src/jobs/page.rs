//! Lists in pages: newest first, each going on behind the last line of the one before.
//!
//! What must stay true: a page asks for one row more than it shows. So a last page says
//! that it is the last, and nobody has to ask for an empty one.

use airlock_model::{JobId, Timestamp};

use crate::ts::Ts;

/// The last line of a page: when it came, and which it was among those of that moment.
pub(crate) type PageCursor = (Timestamp, JobId);

/// How many rows to ask for.
pub(crate) fn limit_plus_one(limit: u32) -> i64 {
    i64::from(limit) + 1
}

/// The two parameters that a query compares with.
pub(crate) fn cursor_params(cursor: Option<&PageCursor>) -> (Option<Ts>, &str) {
    match cursor {
        Some((at, id)) => (Some(Ts(*at)), id.as_str()),
        None => (None, ""),
    }
}

/// Takes the row too many away, and says where the next page begins if there was one.
pub(crate) fn truncate_page<T>(
    rows: &mut Vec<T>,
    limit: u32,
    cursor: impl FnOnce(&T) -> PageCursor,
) -> Option<PageCursor> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| more).map(cursor)
}
