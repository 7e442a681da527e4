//! Which tools of which servers a job may call, by its `mcp.…` labels.
//!
//! A deny list beats an allow list, and what is on no given allow list is not allowed.

use std::collections::BTreeMap;

use airlock_model::text;

use crate::folded::FoldedText;
use crate::when::MCP_FIELDS;
use airlock_model::reads::Reads;

/// One pair of lists, for one label.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AllowDenyLists {
    pub(crate) allow: Option<Box<[FoldedText]>>,
    pub(crate) deny: Option<Box<[FoldedText]>>,
}

/// In the order of [`MCP_FIELDS`]: servers, tools, resources, actions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct McpLists(pub(crate) [AllowDenyLists; 4]);

/// The label that is refused, its value, and whether a deny list names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedLabel<'a> {
    pub(crate) label: &'static str,
    pub(crate) value: &'a str,
    pub(crate) denied: bool,
}

impl McpLists {
    /// The first label that the lists do not let through.
    pub(crate) fn first_refused_label<'a>(
        &self,
        labels: &'a BTreeMap<String, String>,
    ) -> Option<RefusedLabel<'a>> {
        self.0
            .iter()
            .zip(MCP_FIELDS)
            .find_map(|(pair, (_, label))| {
                if pair.allow.is_none() && pair.deny.is_none() {
                    return None;
                }
                let value = text::find_label(labels, label).unwrap_or_default();
                let on = |list: &Option<Box<[FoldedText]>>| {
                    list.as_ref()
                        .map(|words| words.iter().any(|w| w.matches(value)))
                };
                let denied = on(&pair.deny) == Some(true);
                (denied || on(&pair.allow) == Some(false)).then_some(RefusedLabel {
                    label,
                    value,
                    denied,
                })
            })
    }

    /// Whether a job is a call of a tool at all.
    pub(crate) fn is_mcp_call(labels: &BTreeMap<String, String>) -> bool {
        MCP_FIELDS
            .iter()
            .any(|(_, label)| text::find_label(labels, label).is_some())
    }

    pub(crate) fn collect_reads(&self, reads: &mut Reads) {
        for (pair, (_, label)) in self.0.iter().zip(MCP_FIELDS) {
            if pair.allow.is_some() || pair.deny.is_some() {
                reads.add_label(label);
            }
        }
    }

    /// All four, because whether a job is a call depends on any of them.
    pub(crate) fn collect_all_label_reads(reads: &mut Reads) {
        MCP_FIELDS
            .iter()
            .for_each(|(_, label)| reads.add_label(label));
    }
}
