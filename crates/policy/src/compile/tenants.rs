//! What each tenant may do at all.

use serde_saphyr::Spanned;

use super::ParsedFile;
use super::matches::compile_mcp;
use super::text::{check_text_len, compile_globs, truncate_key};
use crate::document::TenantDoc;
use crate::problem::{Problem, Problems, limits};
use crate::tenants::{Tenant, Tenants};
use airlock_model::text::fold_name;

pub(super) fn compile_tenants(
    part: &ParsedFile<'_>,
    tenants: &mut Tenants,
    problems: &mut Problems,
) {
    let mut names = std::collections::HashMap::new();
    for (name, tenant) in &part.document.tenants {
        let path = format!("tenants.{}", truncate_key(name));
        let place = tenant.referenced;
        check_text_len(name.trim(), limits::WORD_BYTES, place, &path, problems);
        if tenants.0.len() >= limits::TENANTS {
            let message = format!("more than {} tenants", limits::TENANTS);
            problems.push(Problem::at(place, "tenants", message));
            return;
        }
        let folded = fold_name(name);
        if let Some(other) = names.insert(folded.clone(), name) {
            let message = format!("{name:?} and {other:?} are the same tenant");
            problems.push(
                Problem::at(place, path.as_str(), message).with_hint("make one entry of them"),
            );
        }
        let compiled = compile_tenant(&path, tenant, part.document.enforce, problems);
        tenants.0.entry(folded).or_default().push(compiled);
    }
}

fn compile_tenant(
    path: &str,
    tenant: &Spanned<TenantDoc>,
    enforced: bool,
    problems: &mut Problems,
) -> Tenant {
    let TenantDoc {
        allow_topics,
        deny_topics,
        max_concurrent_jobs,
        mcp,
    } = &tenant.value;
    if allow_topics.is_none()
        && deny_topics.is_none()
        && max_concurrent_jobs.is_none()
        && mcp.is_none()
    {
        problems.push(
            Problem::at(tenant.referenced, path, "nothing is said about this tenant").with_hint(
                "leave it out, or give allow_topics, deny_topics, max_concurrent_jobs or mcp",
            ),
        );
    }
    if let Some(max) = max_concurrent_jobs
        && max.value == 0
    {
        problems.push(
            Problem::at(
                max.referenced,
                format!("{path}.max_concurrent_jobs"),
                "no job could ever run",
            )
            .with_hint("write deny_topics: [\"*\"] to stop a tenant"),
        );
    }
    let mut topics = |name: &str, list: &Option<crate::document::List>| {
        list.as_ref()
            .map(|l| compile_globs(&format!("{path}.{name}"), l, problems))
    };
    Tenant {
        allow_topics: topics("allow_topics", allow_topics),
        deny_topics: topics("deny_topics", deny_topics),
        max_concurrent_jobs: max_concurrent_jobs.as_ref().map(|m| m.value),
        mcp: mcp
            .as_ref()
            .map(|m| compile_mcp(&format!("{path}.mcp"), m, problems)),
        enforced,
    }
}
