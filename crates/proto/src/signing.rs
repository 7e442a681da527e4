//! Signatures of packets, as the agent protocol has them: ECDSA on P-256 over SHA-256,
//! DER, of the packet without its field 14.
//!
//! What must stay true: a signature is checked over the very bytes that came, with the
//! signature cut out, and made over the bytes that any peer would write for the same
//! packet: fields in ascending order, map entries sorted and complete. Our encoder writes
//! a packet's payload before fields of lower numbers and leaves defaults out of map
//! entries; peers that encode again before they verify do neither, so [`SigningKey::sign`]
//! puts both right first.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};

/// The field the signature is in.
const SIGNATURE: u32 = 14;

/// What comes before the point of a P-256 public key (SubjectPublicKeyInfo, DER).
const SPKI_P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// An uncompressed point.
const POINT: usize = 65;

/// Why a text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("no PEM block \"{0}\" in it")]
    NoBlock(&'static str),
    #[error("its PEM block is not base64")]
    NotBase64,
    #[error("not a public key on P-256 with an uncompressed point")]
    NotPublic,
    #[error("not a PKCS#8 key on P-256 (openssl pkcs8 -topk8 -nocrypt makes one)")]
    NotPrivate,
}

/// Why a packet's signature is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the packet is not signed")]
    Missing,
    #[error("the packet's signature is not its sender's")]
    Wrong,
    #[error("the packet cannot be read")]
    Malformed,
    #[error("the packet could not be signed")]
    Failed,
}

/// A sender's public key.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    point: Vec<u8>,
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifyingKey(P-256)")
    }
}

impl VerifyingKey {
    /// Reads `-----BEGIN PUBLIC KEY-----`.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let der = decode_pem_block(pem, "PUBLIC KEY")?;
        match der.strip_prefix(&SPKI_P256) {
            Some(point) if point.len() == POINT && point[0] == 4 => Ok(Self {
                point: point.to_vec(),
            }),
            Some(_) | None => Err(KeyError::NotPublic),
        }
    }

    /// The key as PEM, for a peer that verifies.
    pub fn to_pem(&self) -> String {
        let der: Vec<u8> = SPKI_P256.iter().chain(&self.point).copied().collect();
        let text = STANDARD.encode(der);
        let mut pem = "-----BEGIN PUBLIC KEY-----\n".to_owned();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(rest.len().min(64));
            pem.push_str(line);
            pem.push('\n');
            rest = after;
        }
        pem.push_str("-----END PUBLIC KEY-----\n");
        pem
    }

    /// Whether the encoded packet carries this key's signature.
    pub fn verify(&self, packet: &[u8]) -> Result<(), SignatureError> {
        let (unsigned, signature) = split_signature(packet)?;
        let signature = signature.ok_or(SignatureError::Missing)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point)
            .verify(&unsigned, signature)
            .map_err(|_| SignatureError::Wrong)
    }
}

/// A private key to sign packets with.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(P-256, …)")
    }
}

impl SigningKey {
    /// Reads `-----BEGIN PRIVATE KEY-----` (PKCS#8, without a password).
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let der = decode_pem_block(pem, "PRIVATE KEY")?;
        Self::from_pkcs8(&der)
    }

    /// A new key, for tests and for who has none yet; the second is its PKCS#8.
    pub fn generate() -> Result<(Self, Vec<u8>), KeyError> {
        let made =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
                .map_err(|_| KeyError::NotPrivate)?;
        let der = made.as_ref().to_vec();
        Ok((Self::from_pkcs8(&der)?, der))
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random)
            .map_err(|_| KeyError::NotPrivate)?;
        Ok(Self { pair, random })
    }

    /// What others verify with.
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey {
            point: self.pair.public_key().as_ref().to_vec(),
        }
    }

    /// Signs an encoded packet. A signature it has already is replaced.
    pub fn sign(&self, packet: &[u8]) -> Result<Bytes, SignatureError> {
        let (packet, _) = split_signature(packet)?;
        let fields = canonicalize_fields(&packet, &PACKET)?;
        let mut unsigned = Vec::with_capacity(packet.len());
        for (_, bytes) in &fields {
            unsigned.extend_from_slice(bytes);
        }
        let signature = self
            .pair
            .sign(&self.random, &unsigned)
            .map_err(|_| SignatureError::Failed)?;
        let mut out = Vec::with_capacity(unsigned.len() + 80);
        let mut field = Vec::with_capacity(80);
        put_bytes(&mut field, SIGNATURE, signature.as_ref());
        let mut pending = Some(field);
        for (number, bytes) in fields {
            if number > SIGNATURE
                && let Some(signature) = pending.take()
            {
                out.extend(signature);
            }
            out.extend(bytes);
        }
        out.extend(pending.unwrap_or_default());
        Ok(Bytes::from(out))
    }
}

/// The packet without its signature, in the order it came, and the signature.
fn split_signature(packet: &[u8]) -> Result<(Vec<u8>, Option<&[u8]>), SignatureError> {
    let mut rest = packet;
    let mut unsigned = Vec::with_capacity(packet.len());
    let mut signature = None;
    while !rest.is_empty() {
        let field = next_field(&mut rest).ok_or(SignatureError::Malformed)?;
        match (field.number, field.content) {
            (SIGNATURE, Some(content)) => signature = Some(content),
            (SIGNATURE, None) => return Err(SignatureError::Malformed),
            (_, _) => unsigned.extend_from_slice(field.whole),
        }
    }
    Ok((unsigned, signature.filter(|s| !s.is_empty())))
}

/// Which of a message's fields are maps, with what stands for a value left out, and which
/// are messages that have some.
struct Shape {
    maps: &'static [(u32, &'static [u8])],
    messages: &'static [(u32, &'static Shape)],
}

const EMPTY_TEXT: &[u8] = &[0x12, 0];
const FALSE: &[u8] = &[0x10, 0];

const META: Shape = Shape {
    maps: &[(9, EMPTY_TEXT)],
    messages: &[],
};
const COMPENSATION: Shape = Shape {
    maps: &[(5, EMPTY_TEXT), (11, EMPTY_TEXT)],
    messages: &[(12, &META)],
};
const REQUEST: Shape = Shape {
    maps: &[(6, EMPTY_TEXT), (15, EMPTY_TEXT)],
    messages: &[(16, &META), (17, &COMPENSATION)],
};
const HEARTBEAT: Shape = Shape {
    maps: &[(13, EMPTY_TEXT)],
    messages: &[],
};
const ALERT: Shape = Shape {
    maps: &[(8, EMPTY_TEXT)],
    messages: &[],
};
const HANDSHAKE: Shape = Shape {
    maps: &[(4, FALSE)],
    messages: &[],
};
const AUTHENTICATE: Shape = Shape {
    maps: &[],
    messages: &[(2, &HANDSHAKE)],
};
const PACKET: Shape = Shape {
    maps: &[],
    messages: &[
        (10, &REQUEST),
        (12, &HEARTBEAT),
        (13, &ALERT),
        (17, &HANDSHAKE),
        (21, &AUTHENTICATE),
    ],
};

/// The fields of a message as every peer would write them.
fn canonicalize_fields(
    message: &[u8],
    shape: &Shape,
) -> Result<Vec<(u32, Vec<u8>)>, SignatureError> {
    let mut rest = message;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let field = next_field(&mut rest).ok_or(SignatureError::Malformed)?;
        let nested = shape.messages.iter().find(|(n, _)| *n == field.number);
        let map = shape.maps.iter().find(|(n, _)| *n == field.number);
        let bytes = match (nested, map, field.content) {
            (Some((_, inner)), _, Some(content)) => {
                let parts = canonicalize_fields(content, inner)?;
                let content: Vec<u8> = parts.into_iter().flat_map(|(_, b)| b).collect();
                let mut bytes = Vec::with_capacity(content.len() + 6);
                put_bytes(&mut bytes, field.number, &content);
                bytes
            }
            (None, Some((_, default)), Some(entry)) => {
                let mut bytes = Vec::with_capacity(entry.len() + 10);
                put_bytes(
                    &mut bytes,
                    field.number,
                    &complete_map_entry(entry, default)?,
                );
                bytes
            }
            (_, _, None) | (None, None, Some(_)) => field.whole.to_vec(),
        };
        fields.push((field.number, bytes));
    }
    fields.sort_by_key(|(number, _)| *number);
    Ok(fields)
}

/// A map entry with its key and its value, both written out even where they are empty.
fn complete_map_entry(entry: &[u8], default: &[u8]) -> Result<Vec<u8>, SignatureError> {
    let mut rest = entry;
    let (mut key, mut value) = (None, None);
    while !rest.is_empty() {
        let field = next_field(&mut rest).ok_or(SignatureError::Malformed)?;
        match field.number {
            1 => key = Some(field.whole),
            2 => value = Some(field.whole),
            _ => return Err(SignatureError::Malformed),
        }
    }
    // All maps of the protocol have text as key.
    let mut out = key.unwrap_or(&[0x0a, 0]).to_vec();
    out.extend_from_slice(value.unwrap_or(default));
    Ok(out)
}

/// One field of an encoded message.
struct Field<'a> {
    number: u32,
    /// With its tag.
    whole: &'a [u8],
    /// Of a length-delimited field.
    content: Option<&'a [u8]>,
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    let start = *rest;
    let tag = read_varint(rest)?;
    let number = u32::try_from(tag >> 3).ok().filter(|n| *n > 0)?;
    let content = match tag & 7 {
        0 => {
            read_varint(rest)?;
            None
        }
        1 => {
            take_bytes(rest, 8)?;
            None
        }
        2 => {
            let len = usize::try_from(read_varint(rest)?).ok()?;
            Some(take_bytes(rest, len)?)
        }
        5 => {
            take_bytes(rest, 4)?;
            None
        }
        _ => return None,
    };
    let whole = &start[..start.len() - rest.len()];
    Some(Field {
        number,
        whole,
        content,
    })
}

fn take_bytes<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    put_varint(out, (u64::from(number) << 3) | 2);
    put_varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// The bytes of the first block of this kind.
fn decode_pem_block(pem: &str, kind: &'static str) -> Result<Vec<u8>, KeyError> {
    let begin = format!("-----BEGIN {kind}-----");
    let end = format!("-----END {kind}-----");
    let body = pem
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once(&end))
        .map(|(body, _)| body)
        .ok_or(KeyError::NoBlock(kind))?;
    let text: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(text).map_err(|_| KeyError::NotBase64)
}

#[cfg(test)]
mod tests;
