//! Who published a bundle: an Ed25519 signature over its bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, VerifyingKey};

/// A key whose signatures are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("a public key is 32 bytes in base64 or hexadecimal digits")]
    BadKey,
    #[error("a signature is 64 bytes in base64 or hexadecimal digits")]
    BadSignature,
    #[error("there is no key to check a signature with")]
    NoKeys,
    #[error("the signature is not by any of the known keys")]
    Unknown,
}

impl PublicKey {
    /// Reads 32 bytes in base64 or hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, SignatureError> {
        let bytes: [u8; 32] = decode_bytes(text).ok_or(SignatureError::BadKey)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| SignatureError::BadKey)?;
        // A key of low order would accept one signature for several contents.
        if key.is_weak() {
            return Err(SignatureError::BadKey);
        }
        Ok(Self(key))
    }
}

/// Whether one of the keys signed exactly these bytes.
pub fn verify_signature(
    content: &[u8],
    signature: &str,
    keys: &[PublicKey],
) -> Result<(), SignatureError> {
    if keys.is_empty() {
        return Err(SignatureError::NoKeys);
    }
    let bytes: [u8; 64] = decode_bytes(signature).ok_or(SignatureError::BadSignature)?;
    let signature = Signature::from_bytes(&bytes);
    let signed = |key: &PublicKey| key.0.verify_strict(content, &signature).is_ok();
    if keys.iter().any(signed) {
        Ok(())
    } else {
        Err(SignatureError::Unknown)
    }
}

fn decode_bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.trim();
    let bytes = if text.len() == N * 2 {
        decode_hex(text)?
    } else if text.len() <= N * 2 {
        STANDARD.decode(text).ok()?
    } else {
        return None;
    };
    bytes.try_into().ok()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;

    #[test]
    fn only_a_known_keys_signature_over_the_same_bytes_is_taken() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let other = SigningKey::from_bytes(&[8; 32]);
        let hex: String = key
            .verifying_key()
            .as_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let known = PublicKey::parse(&hex).unwrap();
        let also = PublicKey::parse(&STANDARD.encode(other.verifying_key().as_bytes())).unwrap();
        let content = b"version: 1\nrules: []\n";
        let signature = STANDARD.encode(key.sign(content).to_bytes());
        let keys = [also.clone(), known];
        assert_eq!(verify_signature(content, &signature, &keys), Ok(()));
        assert_eq!(
            verify_signature(b"version: 1\n", &signature, &keys),
            Err(SignatureError::Unknown)
        );
        assert_eq!(
            verify_signature(content, &signature, &[also]),
            Err(SignatureError::Unknown)
        );
        assert_eq!(
            verify_signature(content, &signature, &[]),
            Err(SignatureError::NoKeys)
        );
        assert_eq!(
            verify_signature(content, "AAAA", &keys),
            Err(SignatureError::BadSignature)
        );
        assert_eq!(
            verify_signature(content, "ä", &keys),
            Err(SignatureError::BadSignature)
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "AAAA", &"0".repeat(64), &"g".repeat(64)] {
            assert_eq!(
                PublicKey::parse(text),
                Err(SignatureError::BadKey),
                "{text}"
            );
        }
    }
}
