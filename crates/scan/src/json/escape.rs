//! Escapes of JSON: what each stands for, and how long it is.

/// The character that an escape at the start of `text` stands for, and how long the escape
/// is. Half a pair of surrogates stands for no character.
pub(crate) fn escape(text: &str) -> Option<(char, usize)> {
    let mut chars = text.strip_prefix('\\')?.chars();
    let c = match chars.next()? {
        c @ ('"' | '\\' | '/') => c,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let high = hex(text.get(2..6)?)?;
            if let Some(c) = char::from_u32(high) {
                return Some((c, 6));
            }
            let low = text.get(6..8).filter(|s| *s == "\\u");
            let low = low.and_then(|_| hex(text.get(8..12)?));
            return match low {
                Some(low @ 0xdc00..=0xdfff) if high < 0xdc00 => {
                    let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                    Some((char::from_u32(code)?, 12))
                }
                Some(_) | None => Some((char::REPLACEMENT_CHARACTER, 6)),
            };
        }
        _ => return None,
    };
    Some((c, 2))
}

pub(crate) fn hex(digits: &str) -> Option<u32> {
    let fit = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| fit)
}
