//! What a policy bundle must be before it is published: loadable, beside the other bundles
//! and the kernel's own files, and signed where that is asked for.

use airlock_ledger::Bundle;
use airlock_policy::signature;
pub use airlock_policy::signature::PublicKey;
use airlock_policy::{Policy, Source};
use airlock_proto::own::TriedBundle;

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn to_tried_bundle(bundle: &Bundle) -> TriedBundle {
    TriedBundle {
        name: format!("bundle:{}@{}", bundle.name, bundle.version),
        content: bundle.content.clone(),
        signature: bundle.signature.as_deref().map(to_hex).unwrap_or_default(),
    }
}

/// The bundles in force, with `name` replaced by `new` (at its position) or taken out, in
/// the order in which their rules are asked.
fn replace_bundle(
    name: &str,
    new: Option<(i32, TriedBundle)>,
    active: &[Bundle],
) -> Vec<TriedBundle> {
    let others = active.iter().filter(|b| b.name != name);
    let mut order: Vec<((i32, String), TriedBundle)> = others
        .map(|b| ((b.position, b.name.clone()), to_tried_bundle(b)))
        .collect();
    order.extend(new.map(|(position, bundle)| ((position, name.to_owned()), bundle)));
    order.sort_by(|a, b| a.0.cmp(&b.0));
    order.into_iter().map(|(_, bundle)| bundle).collect()
}

/// What would be in force after this is published.
pub fn bundles_after_publish(
    name: &str,
    position: i32,
    content: &str,
    signature: Option<&[u8]>,
    active: &[Bundle],
) -> Vec<TriedBundle> {
    let new = TriedBundle {
        name: format!("bundle:{name}"),
        content: content.to_owned(),
        signature: signature.map(to_hex).unwrap_or_default(),
    };
    replace_bundle(name, Some((position, new)), active)
}

/// What would be in force after going back to version `to`, or by one. `versions` are all of
/// that name, newest first.
pub fn bundles_after_rollback(
    name: &str,
    to: Option<u64>,
    versions: &[Bundle],
    active: &[Bundle],
) -> Vec<TriedBundle> {
    let now = versions.iter().find(|b| b.active).map_or(0, |b| b.version);
    let wanted = versions.iter().find(|b| match to {
        Some(to) => b.version == to,
        None => b.version < now,
    });
    replace_bundle(
        name,
        wanted.map(|b| (b.position, to_tried_bundle(b))),
        active,
    )
}

/// What is in force now.
pub fn active_bundles(active: &[Bundle]) -> Vec<TriedBundle> {
    replace_bundle("", None, active)
}

/// Loads by themselves; with the kernel's own files only the kernel can try it.
pub fn check_loadable(bundles: &[TriedBundle]) -> Result<(), String> {
    let sources: Vec<Source<'_>> = bundles
        .iter()
        .map(|b| Source {
            name: &b.name,
            text: &b.content,
        })
        .collect();
    Policy::load_files(&sources)
        .map(drop)
        .map_err(|e| e.to_string())
}

/// Whether one of the keys signed exactly this.
pub fn verify_bundle_signature(
    content: &[u8],
    signature: &str,
    keys: &[PublicKey],
) -> Result<(), String> {
    signature::verify_signature(content, signature, keys).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use airlock_model::Timestamp;

    use super::*;

    fn bundle(name: &str, version: u64, position: i32, active: bool) -> Bundle {
        Bundle {
            name: name.to_owned(),
            version,
            position,
            content: format!("{name}{version}"),
            sha256: String::new(),
            signature: None,
            key_id: None,
            note: String::new(),
            published_by: String::new(),
            published_at: Timestamp(0),
            active,
        }
    }

    #[test]
    fn what_would_be_in_force_is_in_the_kernels_order() {
        let active = [bundle("b", 2, 0, true), bundle("a", 1, 5, true)];
        let names = |tried: Vec<TriedBundle>| -> Vec<String> {
            tried.into_iter().map(|b| b.content).collect()
        };
        assert_eq!(names(active_bundles(&active)), ["b2", "a1"]);
        let new =
            |name: &str, position| bundles_after_publish(name, position, "new", None, &active);
        assert_eq!(names(new("c", 1)), ["b2", "new", "a1"]);
        assert_eq!(names(new("b", 9)), ["a1", "new"]);
        let versions = [bundle("b", 2, 0, true), bundle("b", 1, 7, false)];
        let back = |to| bundles_after_rollback("b", to, &versions, &active);
        assert_eq!(names(back(None)), ["a1", "b1"]);
        assert_eq!(names(back(Some(2))), ["b2", "a1"]);
        let first = [bundle("a", 1, 5, true)];
        assert_eq!(
            names(bundles_after_rollback("a", None, &first, &active)),
            ["b2"]
        );
    }
}
