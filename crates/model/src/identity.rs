//! Who somebody is: what a credential proves, and what a request only claims.
//!
//! What must stay true: after [`JobSpec::set_identity_from`], `principal_id` and `actor_id` are
//! names that the credential stands for. Whatever else was claimed is in `on_behalf_of`,
//! which no rule reads and no approval looks at.

use serde::{Deserialize, Serialize};

use crate::job::JobSpec;
use crate::rules::Glob;

/// Names that a request gave without the right to them. Kept to be shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
}

/// For whom a credential may act besides itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActsFor {
    Anyone,
    /// Patterns with `*`; case does not count. None: nobody else.
    Names(Vec<String>),
}

/// What a request came in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The API key's name, or `bus:` and the sender's id.
    pub name: String,
    /// Who it belongs to.
    pub principal: String,
    pub acts_for: ActsFor,
}

impl Credential {
    /// What every sender's name on the bus begins with. A bus that does not verify
    /// signatures proves nothing, so such a name is never one of an API key.
    pub const BUS: &'static str = "bus:";

    /// What the name of a sender begins with whose packet had a good signature. It stands
    /// beside the name with [`Self::BUS`], never instead of it: rules know that one.
    pub const SIGNED: &'static str = "signed:";

    /// The name that proves a sender, for a packet whose signature was verified.
    pub fn signed_sender(sender: &str) -> String {
        format!("{}{sender}", Self::SIGNED)
    }

    /// Of a client on the bus. Its principal is apart from those of API keys, so that no
    /// sender id poses as one of them.
    pub fn from_bus_sender(sender: &str) -> Self {
        let name = format!("{}{sender}", Self::BUS);
        Self {
            principal: name.clone(),
            name,
            acts_for: ActsFor::Names(Vec::new()),
        }
    }

    fn may_act_for(&self, name: &str) -> bool {
        match &self.acts_for {
            ActsFor::Anyone => true,
            ActsFor::Names(patterns) => {
                let name = name.to_ascii_lowercase();
                patterns
                    .iter()
                    .any(|p| Glob::new(p.to_ascii_lowercase()).matches(&name))
            }
        }
    }

    /// The name that counts, and the claim that does not.
    fn resolve_principal(&self, claimed: Option<String>) -> (String, Option<String>) {
        match claimed.filter(|name| !name.is_empty()) {
            None => (self.principal.clone(), None),
            Some(name) if name.eq_ignore_ascii_case(&self.principal) => {
                (self.principal.clone(), None)
            }
            Some(name) if self.may_act_for(&name) => (name, None),
            Some(name) => (self.principal.clone(), Some(name)),
        }
    }
}

impl JobSpec {
    /// Puts the credential's names in place of what the request claimed.
    pub fn set_identity_from(&mut self, by: &Credential) {
        let (principal, claimed_principal) = by.resolve_principal(self.principal_id.take());
        let (actor, claimed_actor) = by.resolve_principal(self.actor_id.take());
        self.principal_id = Some(principal);
        self.actor_id = Some(actor);
        let claim = Claim {
            principal_id: claimed_principal,
            actor_id: claimed_actor,
        };
        self.on_behalf_of = (claim != Claim::default()).then(|| Box::new(claim));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Topic;

    fn identified(acts_for: ActsFor, principal: Option<&str>, actor: Option<&str>) -> JobSpec {
        let mut spec = JobSpec::new(Topic::new("job.a").unwrap());
        spec.principal_id = principal.map(str::to_owned);
        spec.actor_id = actor.map(str::to_owned);
        spec.set_identity_from(&Credential {
            name: "ann-laptop".to_owned(),
            principal: "ann".to_owned(),
            acts_for,
        });
        spec
    }

    fn names(patterns: &[&str]) -> ActsFor {
        ActsFor::Names(patterns.iter().map(|p| (*p).to_owned()).collect())
    }

    #[test]
    fn a_claim_without_the_right_to_it_is_only_kept() {
        let spec = identified(names(&[]), Some("release-bot"), Some("bob"));
        assert_eq!(spec.principal_id.as_deref(), Some("ann"));
        assert_eq!(spec.actor_id.as_deref(), Some("ann"));
        let claim = spec.on_behalf_of.unwrap();
        assert_eq!(claim.principal_id.as_deref(), Some("release-bot"));
        assert_eq!(claim.actor_id.as_deref(), Some("bob"));
    }

    #[test]
    fn without_a_claim_or_with_ones_own_name_it_is_the_credentials() {
        for own in [None, Some(""), Some("ann"), Some("ANN")] {
            let spec = identified(names(&[]), own, own);
            assert_eq!(spec.principal_id.as_deref(), Some("ann"), "{own:?}");
            assert_eq!(spec.actor_id.as_deref(), Some("ann"), "{own:?}");
            assert_eq!(spec.on_behalf_of, None, "{own:?}");
        }
    }

    #[test]
    fn who_may_act_for_others_is_believed() {
        let spec = identified(names(&["agent-*"]), Some("bob"), Some("Agent-7"));
        assert_eq!(spec.actor_id.as_deref(), Some("Agent-7"));
        assert_eq!(spec.principal_id.as_deref(), Some("ann"));
        assert_eq!(
            spec.on_behalf_of.unwrap().principal_id.as_deref(),
            Some("bob")
        );
        let spec = identified(ActsFor::Anyone, Some("bob"), None);
        assert_eq!(spec.principal_id.as_deref(), Some("bob"));
        assert_eq!(spec.actor_id.as_deref(), Some("ann"));
        assert_eq!(spec.on_behalf_of, None);
    }

    #[test]
    fn a_sender_on_the_bus_is_nobodys_api_key() {
        let by = Credential::from_bus_sender("ann");
        let mut spec = JobSpec::new(Topic::new("job.a").unwrap());
        spec.principal_id = Some("ann".to_owned());
        spec.set_identity_from(&by);
        assert_eq!(spec.principal_id.as_deref(), Some("bus:ann"));
        assert_eq!(
            spec.on_behalf_of.unwrap().principal_id.as_deref(),
            Some("ann")
        );
    }
}
