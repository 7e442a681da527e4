//! "Did you mean": the nearest known name for a misspelt one.
//!
//! Readers differ in how they write it, but all of them quote the unknown name in
//! backticks and list the known ones after the word "expected"; reading them there
//! keeps this independent of who wrote the message.

use airlock_settings::hint::nearest;

/// `message` without the value that was found: whoever wrote it knows it, and it may be a
/// secret that stands in the wrong place. What kind of value it was stays.
pub(super) fn strip_found_value(message: String) -> String {
    for what in ["invalid type: ", "invalid value: ", "invalid length "] {
        let Some(start) = message.find(what).map(|at| at + what.len()) else {
            continue;
        };
        let end = message.rfind(", expected").unwrap_or(message.len());
        let Some(found) = message.get(start..end) else {
            continue;
        };
        let kind = found.split(['"', '`']).next().unwrap_or_default().trim();
        return format!("{}{kind}{}", &message[..start], &message[end..]);
    }
    message
}

/// `message` without what it quotes from the configuration. The name of a missing field and
/// the list of what is expected are quoted from the code and stay.
pub(super) fn without_quoted(message: &str) -> String {
    if message.starts_with("missing field") {
        return message.to_owned();
    }
    let end = message.rfind(", expected").unwrap_or(message.len());
    let (before, expected) = message.split_at(end);
    match before.find(['`', '"', '\'']) {
        Some(start) => format!("{}{expected}", before[..start].trim_end()),
        None => message.to_owned(),
    }
}

/// `message` with a suggestion where one of the names it lists is close.
pub(super) fn append_hint(message: String) -> String {
    if !message.contains("unknown") {
        return message;
    }
    let Some((before, after)) = message.split_once("expected") else {
        return message;
    };
    let Some(wrong) = before.split('`').nth(1) else {
        return message;
    };
    let names: Vec<&str> = after
        .split(|c: char| !c.is_ascii_alphanumeric() && !"_-".contains(c))
        .filter(|word| !matches!(*word, "" | "one" | "of" | "or"))
        .collect();
    match nearest(wrong, &names) {
        Some(name) => format!("{message} (did you mean `{name}`?)"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_nearest_name_only_when_it_is_near() {
        let near = append_hint("unknown field `lisen`, expected `listen` or `grace`".into());
        assert!(near.ends_with("(did you mean `listen`?)"), "{near}");
        let bare = append_hint("unknown field `bacth`, expected one of url, batch".into());
        assert!(bare.ends_with("(did you mean `batch`?)"), "{bare}");
        let far = append_hint("unknown field `colour`, expected `listen`".into());
        assert!(!far.contains("did you mean"), "{far}");
        let other = append_hint("invalid type: `x`, expected `y`".into());
        assert!(!other.contains("did you mean"), "{other}");
    }

    #[test]
    fn a_found_value_is_left_out_whatever_is_in_it() {
        for (message, left) in [
            (
                "invalid type: found string \"a, expected b\", expected a sequence",
                "invalid type: found string, expected a sequence",
            ),
            (
                "keys: invalid value: string \"topsecret\", expected u16",
                "keys: invalid value: string, expected u16",
            ),
            (
                "invalid type: integer `123`, expected a map",
                "invalid type: integer, expected a map",
            ),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(strip_found_value(message.to_owned()), left);
        }
    }

    #[test]
    fn what_is_quoted_from_the_configuration_is_left_out() {
        for (message, left) in [
            (
                "unknown variant `top`secret`, expected `user` or `admin`",
                "unknown variant, expected `user` or `admin`",
            ),
            (
                "unknown field `kye`, expected one of `key`, `name` (did you mean `key`?)",
                "unknown field, expected one of `key`, `name` (did you mean `key`?)",
            ),
            ("missing field `name`", "missing field `name`"),
            ("topic \"topsecret\" is wrong", "topic"),
            ("invalid indentation", "invalid indentation"),
        ] {
            assert_eq!(without_quoted(message), left);
        }
    }
}
