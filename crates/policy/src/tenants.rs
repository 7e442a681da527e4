//! What a tenant may do at all, before any rule is asked. Its lists only take away:
//! what they let through still needs a rule that allows it.

use std::collections::HashMap;

use crate::glob::Glob;
use crate::mcp::McpLists;
use crate::request::Request;
use airlock_model::reads::Reads;
use airlock_model::text::fold_name;

#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) allow_topics: Option<Box<[Glob]>>,
    pub(crate) deny_topics: Option<Box<[Glob]>>,
    pub(crate) max_concurrent_jobs: Option<u32>,
    pub(crate) mcp: Option<McpLists>,
    /// Whether its file is enforced.
    pub(crate) enforced: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Tenants(pub(crate) HashMap<String, Vec<Tenant>>);

impl Tenants {
    /// What each file says about a tenant; all of it holds.
    pub(crate) fn get(&self, tenant: &str) -> &[Tenant] {
        if self.0.is_empty() {
            return &[];
        }
        // Most are written as they are stored.
        let found = self
            .0
            .get(tenant)
            .or_else(|| self.0.get(&fold_name(tenant)));
        found.map_or(&[], Vec::as_slice)
    }

    /// The lowest limit of the files that are enforced.
    pub(crate) fn max_concurrent_jobs(&self, tenant: &str) -> Option<u32> {
        let enforced = self.get(tenant).iter().filter(|t| t.enforced);
        enforced.filter_map(|t| t.max_concurrent_jobs).min()
    }

    pub(crate) fn collect_reads(&self, reads: &mut Reads) {
        if self.0.values().flatten().any(|t| t.mcp.is_some()) {
            McpLists::collect_all_label_reads(reads);
        }
    }
}

impl Tenant {
    /// Why this job is not for this tenant.
    pub(crate) fn denial_reason(&self, request: &Request<'_>) -> Option<String> {
        let fits = |globs: &[Glob]| globs.iter().any(|g| g.matches(request.topic));
        if self.deny_topics.as_deref().is_some_and(fits) {
            return Some(format!("the topic {:?} is on its deny list", request.topic));
        }
        if self
            .allow_topics
            .as_deref()
            .is_some_and(|globs| !fits(globs))
        {
            return Some(format!(
                "the topic {:?} is not on its allow list",
                request.topic
            ));
        }
        let lists = self.mcp.as_ref()?;
        // A job that calls no tool is not held to the lists about tools.
        if !McpLists::is_mcp_call(request.labels) {
            return None;
        }
        let refused = lists.first_refused_label(request.labels)?;
        let list = if refused.denied {
            "on its deny list"
        } else {
            "not on its allow list"
        };
        Some(format!("the label {} is {list}", refused.label))
    }
}
