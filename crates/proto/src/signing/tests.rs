use airlock_model::Timestamp;
use prost::Message;

use super::*;
use crate::cap::bus_packet::Payload;
use crate::cap::{BusPacket, Handshake, JobMetadata, JobRequest};
use crate::packet;

/// A packet that the public Python SDK signed, and the key of who did.
const SIGNED: &str = "0a0174120970792d636c69656e741a060880e2cfaa062001522f0a026a3112086a6f622e6563686f \
     32060a01581201797a060a01611201317a050a016212008201074a050a016d12007247304502203e \
     873bee3d1aa89f85d17da91424057444a422b104e84bcd7e2d22f7f858928c022100f34409da2241 \
     d3388997fb1cf916c31826030e5035eec7c27d4066ba58acc6ca920103746f6b";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEpo8Kl38ZDKstPdk49nXKb72+XqO3
DgvEMHu6uiCHesnh7c+D2FhgpRKdZp+j4Wzkd+cHMt/9OMniGtj80OWBJg==
-----END PUBLIC KEY-----
";
/// The same packet as that SDK encodes it without the signature.
const UNSIGNED: &str = "0a0174120970792d636c69656e741a060880e2cfaa062001522f0a026a3112086a6f622e6563686f \
     32060a01581201797a060a01611201317a050a016212008201074a050a016d1200920103746f6b";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn pem(kind: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n",
        STANDARD.encode(der)
    )
}

#[test]
fn a_packet_signed_by_another_sdk_verifies_and_a_changed_one_does_not() {
    let key = VerifyingKey::from_pem(PUBLIC).unwrap();
    let packet = hex(SIGNED);
    assert_eq!(key.verify(&packet), Ok(()));
    let mut changed = packet.clone();
    changed[2] ^= 1;
    assert_eq!(key.verify(&changed), Err(SignatureError::Wrong));
    assert_eq!(key.verify(&hex(UNSIGNED)), Err(SignatureError::Missing));
    assert_eq!(key.verify(&[0xff]), Err(SignatureError::Malformed));
    let (other, _) = SigningKey::generate().unwrap();
    assert_eq!(
        other.verifying_key().verify(&packet),
        Err(SignatureError::Wrong)
    );
}

#[test]
fn what_we_sign_is_what_another_sdk_would_encode() {
    // Decoded and encoded by us the payload stands before lower fields, and empty values
    // are left out; signing puts both back.
    let ours = BusPacket::decode(hex(UNSIGNED).as_slice()).unwrap();
    let encoded = ours.encode_to_vec();
    assert_ne!(encoded, hex(UNSIGNED));
    let (key, _) = SigningKey::generate().unwrap();
    let signed = key.sign(&encoded).unwrap();
    assert_eq!(split_signature(&signed).unwrap().0, hex(UNSIGNED));
    assert_eq!(key.verifying_key().verify(&signed), Ok(()));
    let back = BusPacket::decode(signed).unwrap();
    assert!(!back.signature.is_empty());
    assert_eq!(back.payload, ours.payload);
}

#[test]
fn signing_again_replaces_the_signature() {
    let (first, _) = SigningKey::generate().unwrap();
    let (second, _) = SigningKey::generate().unwrap();
    let request = JobRequest {
        job_id: "j".into(),
        topic: "job.echo".into(),
        meta: Some(JobMetadata::default()),
        ..JobRequest::default()
    };
    let packet = packet::encode("me", "t", Timestamp(1), Payload::JobRequest(request));
    let twice = second.sign(&first.sign(&packet).unwrap()).unwrap();
    assert_eq!(second.verifying_key().verify(&twice), Ok(()));
    assert_eq!(
        first.verifying_key().verify(&twice),
        Err(SignatureError::Wrong)
    );
}

#[test]
fn fields_are_ascending_and_entries_whole() {
    let handshake = Handshake {
        component_id: "w".into(),
        capabilities: [("job.a".to_owned(), false)].into(),
        ..Handshake::default()
    };
    let packet = packet::encode("w", "t", Timestamp(1), Payload::Handshake(handshake));
    let (key, _) = SigningKey::generate().unwrap();
    let signed = key.sign(&packet).unwrap();
    let mut rest = &signed[..];
    let mut numbers = Vec::new();
    while !rest.is_empty() {
        numbers.push(next_field(&mut rest).unwrap().number);
    }
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert_eq!(numbers, sorted);
    let entry = b"\x0a\x05job.a\x10\x00";
    assert!(signed.windows(entry.len()).any(|w| w == entry));
}

#[test]
fn keys_come_as_pem_and_others_are_refused_with_a_word() {
    let (key, der) = SigningKey::generate().unwrap();
    let read = SigningKey::from_pem(&pem("PRIVATE KEY", &der)).unwrap();
    assert_eq!(read.verifying_key(), key.verifying_key());
    let public = VerifyingKey::from_pem(&key.verifying_key().to_pem()).unwrap();
    assert_eq!(public, key.verifying_key());
    assert_eq!(
        VerifyingKey::from_pem("nothing"),
        Err(KeyError::NoBlock("PUBLIC KEY"))
    );
    assert_eq!(
        VerifyingKey::from_pem(&pem("PUBLIC KEY", b"short")),
        Err(KeyError::NotPublic)
    );
    assert!(matches!(
        SigningKey::from_pem(&pem("PRIVATE KEY", b"short")),
        Err(KeyError::NotPrivate)
    ));
    assert!(matches!(
        SigningKey::from_pem("-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----"),
        Err(KeyError::NotBase64)
    ));
}

#[test]
fn a_key_does_not_show_itself() {
    let (key, der) = SigningKey::generate().unwrap();
    let shown = format!("{key:?} {:?}", key.verifying_key());
    assert!(!shown.contains(&format!("{:?}", &der[..4])));
    assert_eq!(shown, "SigningKey(P-256, …) VerifyingKey(P-256)");
}
