//! Cedar: a refusal beats any permission, and nothing is allowed by default.

use std::str::FromStr as _;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, EntityUid, PolicySet, Request, RestrictedExpression,
};

use crate::{Ask, Condition, Engine, Rule};

pub struct Cedar {
    authorizer: Authorizer,
    policies: PolicySet,
    entities: Entities,
    requests: Vec<Request>,
}

impl Cedar {
    pub fn new(rules: &[Rule], requests: &[Ask]) -> Self {
        let text: String = rules.iter().map(policy).collect();
        Self {
            authorizer: Authorizer::new(),
            policies: PolicySet::from_str(&text).expect("sound policies"),
            entities: Entities::empty(),
            requests: requests.iter().map(request).collect(),
        }
    }
}

impl Engine for Cedar {
    fn name(&self) -> &'static str {
        "cedar-policy"
    }

    fn allows(&mut self, request: usize) -> bool {
        let request = &self.requests[request];
        let answer = self
            .authorizer
            .is_authorized(request, &self.policies, &self.entities);
        answer.decision() == Decision::Allow
    }
}

fn policy(rule: &Rule) -> String {
    let effect = if rule.allow { "permit" } else { "forbid" };
    let quoted = |words: &[String]| {
        let words: Vec<_> = words.iter().map(|w| format!("\"{w}\"")).collect();
        words.join(", ")
    };
    let conditions: Vec<String> = rule
        .conditions
        .iter()
        .map(|c| match c {
            Condition::TopicPrefix(prefix) => format!("context.topic like \"{prefix}*\""),
            Condition::Topic(topic) => format!("context.topic == \"{topic}\""),
            Condition::Tenants(tenants) => {
                format!("[{}].contains(context.tenant)", quoted(tenants))
            }
            Condition::RiskTags(tags) => {
                format!("context.risk_tags.containsAny([{}])", quoted(tags))
            }
            Condition::Label(name, value) => {
                format!("context.labels has {name} && context.labels.{name} == \"{value}\"")
            }
        })
        .collect();
    format!(
        "{effect}(principal, action, resource) when {{ {} }};\n",
        conditions.join(" && ")
    )
}

fn request(ask: &Ask) -> Request {
    let text = |s: &str| RestrictedExpression::new_string(s.to_owned());
    let labels = ask.labels.iter().map(|(n, v)| (n.clone(), text(v)));
    let labels = RestrictedExpression::new_record(labels).expect("labels");
    let tags = RestrictedExpression::new_set(ask.risk_tags.iter().map(|t| text(t)));
    let context = Context::from_pairs([
        ("topic".to_owned(), text(&ask.topic)),
        ("tenant".to_owned(), text(&ask.tenant)),
        ("risk_tags".to_owned(), tags),
        ("labels".to_owned(), labels),
    ])
    .expect("a context");
    let uid = |text: &str| EntityUid::from_str(text).expect("an entity");
    Request::new(
        uid("User::\"client\""),
        uid("Action::\"submit\""),
        uid("Job::\"job\""),
        context,
        None,
    )
    .expect("a request")
}
