//! Checksums and measures that tell a real token or number from one that only looks
//! like it.

/// CRC-32 as in zip and PNG.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// GitHub and npm write the CRC-32 of the random part as six digits of base 62.
pub(crate) fn base62_crc(body: &[u8]) -> bool {
    let Some((random, check)) = body.split_last_chunk::<6>() else {
        return false;
    };
    let value = check.iter().try_fold(0_u64, |sum, b| {
        let digit = match b {
            b'0'..=b'9' => b - b'0',
            b'A'..=b'Z' => b - b'A' + 10,
            b'a'..=b'z' => b - b'a' + 36,
            _ => return None,
        };
        Some(sum * 62 + u64::from(digit))
    });
    value == Some(u64::from(crc32(random)))
}

/// Atlassian ends its tokens with `=` and the CRC-32 of what stands before, in
/// hexadecimal digits. Whether the prefix counts is not documented, so either is taken.
pub(crate) fn atlassian_crc(token: &[u8], prefix: usize) -> bool {
    let Some((rest, check)) = token.split_last_chunk::<9>() else {
        return false;
    };
    let Some((b'=', digits)) = check.split_first() else {
        return false;
    };
    let value = std::str::from_utf8(digits).ok();
    let value = value.and_then(|d| u32::from_str_radix(d, 16).ok());
    let bodies = [rest, rest.get(prefix..).unwrap_or_default()];
    value.is_some_and(|value| bodies.iter().any(|body| crc32(body) == value))
}

/// The digits of a number; other bytes are skipped.
#[cfg(test)]
pub(crate) fn digits(text: &[u8]) -> Vec<u8> {
    let digits = text.iter().filter(|b| b.is_ascii_digit());
    digits.map(|b| b - b'0').collect()
}

pub(crate) fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| match (i % 2, u32::from(*d) * 2) {
            (0, doubled) => doubled / 2,
            (_, doubled) if doubled > 9 => doubled - 9,
            (_, doubled) => doubled,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// The sum of digits times weights.
pub(crate) fn weighted(digits: &[u8], weights: &[u32]) -> u32 {
    let pairs = digits.iter().zip(weights);
    pairs.map(|(d, w)| u32::from(*d) * w).sum()
}

/// The number that digits and letters (A = 10) make, modulo 97, as IBANs have it.
pub(crate) fn mod97(text: impl IntoIterator<Item = u8>) -> u32 {
    text.into_iter().fold(0, |rest, b| match b {
        b'0'..=b'9' => (rest * 10 + u32::from(b - b'0')) % 97,
        b'A'..=b'Z' => (rest * 100 + u32::from(b - b'A') + 10) % 97,
        _ => rest,
    })
}

/// Verhoeff's check over the dihedral group of order ten.
pub(crate) fn verhoeff(digits: &[u8]) -> bool {
    const STEP: [u8; 10] = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4];
    let product = |a: u8, b: u8| match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => (a + b - 5) % 5 + 5,
        (false, true) => (a - 5 + 5 - b) % 5 + 5,
        (false, false) => (a + 5 - b) % 5,
    };
    let sum = digits.iter().rev().enumerate().fold(0, |sum, (i, d)| {
        let moved = (0..i % 8).fold(*d, |d, _| STEP.get(usize::from(d)).copied().unwrap_or(0));
        product(sum, moved)
    });
    sum == 0
}

/// Shannon's entropy in bits a byte.
pub(crate) fn entropy(text: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in text {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    }
    let all = text.len() as f64;
    let used = counts.iter().filter(|c| **c > 0);
    used.map(|c| f64::from(*c) / all)
        .map(|p| -p * p.log2())
        .sum()
}

/// How many different bytes there are.
pub(crate) fn distinct(text: &[u8]) -> usize {
    let mut seen = [0_u128; 2];
    for byte in text {
        if let Some(half) = seen.get_mut(usize::from(byte >> 7)) {
            *half |= 1 << (byte & 0x7f);
        }
    }
    seen.iter().map(|half| half.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_agree_with_published_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert!(luhn(&digits(b"4539 1488 0343 6467")));
        assert!(!luhn(&digits(b"4539 1488 0343 6468")));
        // The example of Verhoeff's scheme: 236 has the check digit 3.
        assert!(verhoeff(&[2, 3, 6, 3]));
        assert!(!verhoeff(&[2, 3, 6, 4]) && !verhoeff(&[3, 2, 6, 3]));
        // The example of ISO 13616, with its first four characters at the end.
        assert_eq!(mod97(*b"WEST12345698765432GB82"), 1);
    }

    #[test]
    fn a_changed_character_fails_the_checksum_of_a_token() {
        let random = b"a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5";
        let mut n = u64::from(crc32(random));
        let alphabet = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut check = [b'0'; 6];
        for place in check.iter_mut().rev() {
            *place = alphabet[(n % 62) as usize];
            n /= 62;
        }
        let mut body = [&random[..], &check].concat();
        assert!(base62_crc(&body));
        body[3] = b'x';
        assert!(!base62_crc(&body));
    }

    #[test]
    fn entropy_of_a_constant_is_zero_and_of_a_pair_is_one() {
        assert!(entropy(b"aaaa").abs() < 1e-9);
        assert!((entropy(b"abab") - 1.0).abs() < 1e-9);
        assert_eq!(distinct(b"abca"), 3);
    }
}
