//! What an output rule may look at beside the content, and its names in `when`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use airlock_model::output::OutputMetadata;
use airlock_model::text::{find_label, fold_name};
use cel::common::types::{CelBool, CelInt, CelString};
use cel::common::value::CowVal;

use crate::request::Request;
use crate::when::{
    LABEL_PREFIX, LazyVal, VariableNames, Variables, cel_list, cel_map, cel_string, get_or_make,
};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// The names of an output rule's `when`.
pub(crate) const OUTPUT_VARIABLES: &VariableNames = &[
    ("topic", None),
    ("tenant", None),
    ("principal_id", None),
    ("labels", None),
    ("capabilities", None),
    ("risk_tags", None),
    ("pack_id", None),
    ("content_type", None),
    ("output_size_bytes", None),
    ("has_error", None),
    ("error_code", None),
    ("execution_ms", None),
    ("worker_id", None),
    ("workflow_id", None),
    ("step_id", None),
];

/// What is known of one output without its content. An empty string and a zero mean "not
/// given".
#[derive(Debug, Clone, Copy)]
pub struct OutputRequest<'a> {
    pub topic: &'a str,
    /// Empty: the policy's default tenant.
    pub tenant: &'a str,
    pub principal_id: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub capabilities: &'a [String],
    pub risk_tags: &'a [String],
    pub pack_id: &'a str,
    pub content_type: &'a str,
    /// Bytes of the whole output.
    pub size: u64,
    pub has_error: bool,
    pub error_code: &'a str,
    pub execution_ms: i64,
    pub worker_id: &'a str,
    pub workflow_id: &'a str,
    pub step_id: &'a str,
}

/// Why an output is quarantined before any rule is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutputRequestFault {
    #[error("the check has {count} {field}; at most {max} are allowed", max = Request::MAX_LIST)]
    TooMany { field: &'static str, count: usize },
    #[error("one of the {field} is {len} bytes long; at most {max} are allowed", max = Request::MAX_WORD)]
    TooLong { field: &'static str, len: usize },
}

impl<'a> OutputRequest<'a> {
    /// An output of a topic about which nothing else is known, to be filled in.
    pub fn new(topic: &'a str) -> Self {
        Self {
            topic,
            tenant: "",
            principal_id: "",
            labels: &NO_LABELS,
            capabilities: &[],
            risk_tags: &[],
            pack_id: "",
            content_type: "",
            size: 0,
            has_error: false,
            error_code: "",
            execution_ms: 0,
            worker_id: "",
            workflow_id: "",
            step_id: "",
        }
    }

    /// What the rules that fail closed are compared with.
    pub fn metadata(&self) -> OutputMetadata<'a> {
        OutputMetadata {
            tenant: self.tenant,
            topic: self.topic,
            capabilities: self.capabilities,
            risk_tags: self.risk_tags,
            content_type: self.content_type,
            size: self.size,
            has_error: self.has_error,
        }
    }

    /// What is too large is refused, so that nobody can make a thousand rules expensive.
    pub fn check(&self) -> Result<(), OutputRequestFault> {
        let words = [
            ("topics", self.topic),
            ("tenants", self.tenant),
            ("principals", self.principal_id),
            ("pack ids", self.pack_id),
            ("content types", self.content_type),
            ("error codes", self.error_code),
            ("worker ids", self.worker_id),
            ("workflow ids", self.workflow_id),
            ("step ids", self.step_id),
        ];
        for (field, word) in words {
            check_list(field, 1, [word])?;
        }
        for (field, list) in [
            ("capabilities", self.capabilities),
            ("risk tags", self.risk_tags),
        ] {
            check_list(field, list.len(), list.iter().map(String::as_str))?;
        }
        let words = self.labels.iter().flat_map(|(k, v)| [k.as_str(), v]);
        check_list("labels", self.labels.len(), words)
    }
}

fn check_list<'a>(
    field: &'static str,
    count: usize,
    words: impl IntoIterator<Item = &'a str>,
) -> Result<(), OutputRequestFault> {
    if count > Request::MAX_LIST {
        return Err(OutputRequestFault::TooMany { field, count });
    }
    let mut lengths = words.into_iter().map(str::len);
    match lengths.find(|len| *len > Request::MAX_WORD) {
        Some(len) => Err(OutputRequestFault::TooLong { field, len }),
        None => Ok(()),
    }
}

/// The values of [`OUTPUT_VARIABLES`] for one output.
pub(crate) struct OutputVars<'a> {
    request: &'a OutputRequest<'a>,
    tenant: &'a str,
    labels: LazyVal<'a>,
    capabilities: LazyVal<'a>,
    risk_tags: LazyVal<'a>,
}

impl<'a> OutputVars<'a> {
    pub(crate) fn new(request: &'a OutputRequest<'a>, tenant: &'a str) -> Self {
        Self {
            request,
            tenant,
            labels: OnceLock::new(),
            capabilities: OnceLock::new(),
            risk_tags: OnceLock::new(),
        }
    }
}

impl<'a> Variables for OutputVars<'a> {
    fn variable_value(&self, name: &str) -> Option<CowVal<'_, '_>> {
        let request = self.request;
        let word = |word: &'a str| Some(CowVal::owned(CelString::from(word)));
        let number = |n: i64| Some(CowVal::owned(CelInt::from(n)));
        if let Some(label) = name.strip_prefix(LABEL_PREFIX) {
            return find_label(request.labels, label).and_then(word);
        }
        match name {
            "topic" => word(request.topic),
            "tenant" => word(self.tenant),
            "principal_id" => word(request.principal_id),
            "pack_id" => word(request.pack_id),
            "content_type" => word(request.content_type),
            "error_code" => word(request.error_code),
            "worker_id" => word(request.worker_id),
            "workflow_id" => word(request.workflow_id),
            "step_id" => word(request.step_id),
            "output_size_bytes" => number(i64::try_from(request.size).unwrap_or(i64::MAX)),
            "execution_ms" => number(request.execution_ms),
            "has_error" => Some(CowVal::owned(CelBool::from(request.has_error))),
            "labels" => get_or_make(&self.labels, || {
                let labels = request.labels.iter();
                cel_map(labels.map(|(k, v)| (fold_name(k), cel_string(v))))
            }),
            "capabilities" => get_or_make(&self.capabilities, || cel_list(request.capabilities)),
            "risk_tags" => get_or_make(&self.risk_tags, || cel_list(request.risk_tags)),
            _ => None,
        }
    }
}
