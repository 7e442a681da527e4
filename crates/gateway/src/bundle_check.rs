//! What a policy bundle must be before it is published: loadable, and signed where that
//! is asked for.

use airlock_ledger::Bundle;
use airlock_policy::signature;
pub use airlock_policy::signature::PublicKey;
use airlock_policy::{Policy, Source};

/// Loads by itself and beside the other bundles in force. (With the kernel's own files
/// only the kernel can try it.)
pub fn loads(name: &str, position: i32, content: &str, active: &[Bundle]) -> Result<(), String> {
    let load = |sources: &[Source<'_>]| {
        Policy::load_files(sources)
            .map(drop)
            .map_err(|e| e.to_string())
    };
    load(&[Source {
        name,
        text: content,
    }])?;
    let mut order: Vec<(i32, &str, &str)> = active
        .iter()
        .filter(|b| b.name != name)
        .map(|b| (b.position, b.name.as_str(), b.content.as_str()))
        .collect();
    order.push((position, name, content));
    order.sort_unstable();
    let sources: Vec<Source<'_>> = order
        .iter()
        .map(|(_, name, text)| Source { name, text })
        .collect();
    load(&sources)
}

/// Whether one of the keys signed exactly this.
pub fn verify(content: &[u8], signature: &str, keys: &[PublicKey]) -> Result<(), String> {
    signature::verify(content, signature, keys).map_err(|e| e.to_string())
}
