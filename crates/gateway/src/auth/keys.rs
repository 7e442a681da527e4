//! API keys: who a request's headers belong to.
//!
//! What must stay true: a user's key reaches its own tenant and nothing else, whatever
//! headers come with it. Keys are kept and compared only as SHA-256 digests, and every
//! key is compared every time, so that the time taken tells nothing about them.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;

use airlock_model::{ActsFor, Credential, TenantId, Timestamp};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::caller::{ANONYMOUS, Caller};
use crate::config::{AuthConfig, Role};
use crate::http::problem::Problem;

const KEY_HEADER: &str = "x-api-key";
const TENANT_HEADER: &str = "x-tenant-id";
/// Whose tenant the development key is.
const DEVELOPMENT_TENANT: &str = "default";
/// How the second key of development is called.
const APPROVER: &str = "approver";
/// A shorter key can be guessed; off loopback it is refused.
const SHORTEST_KEY: usize = 16;

#[derive(Clone, PartialEq, Eq)]
struct Key {
    digest: [u8; 32],
    name: String,
    tenant: TenantId,
    role: Role,
    principal: Option<String>,
    roles: Vec<String>,
    acts_for: ActsFor,
    expires_at: Option<Timestamp>,
}

impl Key {
    fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// The names of the keys in which two configurations differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeyChanges {
    pub(super) added: Vec<String>,
    pub(super) removed: Vec<String>,
    /// Another key under the name, or another tenant, role, expiry and so on.
    pub(super) changed: Vec<String>,
}

impl KeyChanges {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The configured API keys.
#[derive(Clone)]
pub(crate) struct Keys(Vec<Key>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// The configured keys. The configuration was checked before.
    pub(crate) fn new(config: &AuthConfig) -> anyhow::Result<Self> {
        let mut keys = Vec::new();
        for key in &config.keys {
            let digest = if key.key.is_empty() {
                parse_digest(&key.key_sha256)
                    .ok_or_else(|| anyhow::anyhow!("the key {:?} has no digest", key.name))?
            } else {
                digest_key(key.key.expose())
            };
            keys.push(Key {
                digest,
                name: key.name.clone(),
                tenant: key.tenant.clone(),
                role: key.role,
                principal: key.principal.clone(),
                roles: key.roles.clone(),
                acts_for: to_acts_for(key.role, &key.act_for),
                expires_at: key.expires_at,
            });
        }
        for (key, name, role) in [
            (&config.development_key, "development", Role::Admin),
            (&config.approver_key, APPROVER, Role::User),
        ] {
            if !key.is_empty() {
                keys.push(Key {
                    digest: digest_key(key.expose()),
                    name: name.to_owned(),
                    tenant: TenantId::new(DEVELOPMENT_TENANT)?,
                    role,
                    principal: None,
                    roles: Vec::new(),
                    acts_for: to_acts_for(role, &[]),
                    expires_at: None,
                });
            }
        }
        Ok(Self(keys))
    }

    /// What is different in `newer`.
    pub(super) fn changes(&self, newer: &Self) -> KeyChanges {
        let mut changes = KeyChanges::default();
        for key in &newer.0 {
            match self.0.iter().find(|old| old.name == key.name) {
                None => changes.added.push(key.name.clone()),
                Some(old) if old != key => changes.changed.push(key.name.clone()),
                Some(_) => {}
            }
        }
        for key in &self.0 {
            if newer.0.iter().all(|new| new.name != key.name) {
                changes.removed.push(key.name.clone());
            }
        }
        changes
    }

    /// Who these headers belong to at this moment.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Caller, Problem> {
        let presented = presented_key(headers).ok_or_else(|| {
            Problem::unauthorized("an API key is needed, as X-API-Key or Authorization: Bearer")
        })?;
        let digest = digest_key(presented);
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.digest.ct_eq(&digest)) {
                found = Some(key);
            }
        }
        let key = found.ok_or_else(|| Problem::unauthorized("the API key is not known"))?;
        if key.has_expired(now) {
            return Err(Problem::key_expired().with_key_name(&key.name));
        }
        let wanted = match headers.get(TENANT_HEADER) {
            None => None,
            Some(value) => Some(
                value
                    .to_str()
                    .map_err(|_| Problem::invalid_field("X-Tenant-ID", "is not visible ASCII"))?,
            ),
        };
        let (scope, submits_for) = match (key.role, wanted) {
            (Role::User, Some(other)) if other != key.tenant.as_str() => {
                return Err(Problem::other_tenant().with_key_name(&key.name));
            }
            (Role::User, _) => (Some(key.tenant.clone()), Some(key.tenant.clone())),
            (Role::Admin, None) => (None, Some(key.tenant.clone())),
            (Role::Admin, Some("*")) => (None, None),
            (Role::Admin, Some(tenant)) => {
                let tenant = TenantId::new(tenant)
                    .map_err(|e| Problem::invalid_field("X-Tenant-ID", e.to_string()))?;
                (Some(tenant.clone()), Some(tenant))
            }
        };
        let own_role = match key.role {
            Role::Admin => "admin",
            Role::User => "user",
        };
        let mut approver_roles = key.roles.clone();
        approver_roles.push(own_role.to_owned());
        Ok(Caller {
            name: key.name.clone(),
            principal: key.principal.clone(),
            approver_roles,
            acts_for: key.acts_for.clone(),
            role: key.role,
            scope,
            submits_for,
        })
    }
}

fn to_acts_for(role: Role, patterns: &[String]) -> ActsFor {
    match role {
        Role::Admin => ActsFor::Anyone,
        Role::User => ActsFor::Names(patterns.to_vec()),
    }
}

/// Whether only this machine can reach what listens there.
pub fn is_loopback(listen: &str) -> bool {
    match listen.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => listen.starts_with("localhost:"),
    }
}

/// Whether a request brings an API key at all, a wrong one too.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(KEY_HEADER) || headers.contains_key(AUTHORIZATION)
}

fn presented_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(KEY_HEADER) {
        return key.to_str().ok();
    }
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn digest_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut out = [0; 32];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

/// Keys that others could guess, on an address that others can reach.
fn short_keys<'a>(config: &'a AuthConfig, listen: &str) -> Vec<&'a str> {
    if is_loopback(listen) {
        return Vec::new();
    }
    let named = config.keys.iter().map(|k| (k.name.as_str(), &k.key));
    named
        .chain([
            ("AIRLOCK_API_KEY", &config.development_key),
            ("AIRLOCK_APPROVER_KEY", &config.approver_key),
        ])
        .filter(|(_, key)| !key.is_empty() && key.expose().chars().count() < SHORTEST_KEY)
        .map(|(name, _)| name)
        .collect()
}

/// Everything that is wrong with the keys, together. Never quotes one.
pub(crate) fn validate_keys(config: &AuthConfig, listen: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for name in short_keys(config, listen) {
        problems.push(format!(
            "auth: the key {name:?} is shorter than {SHORTEST_KEY} characters, which is allowed \
             only with http.listen on a loopback address"
        ));
    }
    if config.anonymous_tasks && !is_loopback(listen) {
        problems.push("auth.anonymous_tasks needs http.listen on a loopback address".to_owned());
    }
    if config.keys.is_empty() && config.development_key.is_empty() {
        problems.push(
            "auth.keys is empty and AIRLOCK_API_KEY is not set: nobody could come in".to_owned(),
        );
    }
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    if !config.development_key.is_empty() {
        digests.insert(digest_key(config.development_key.expose()));
    }
    if !config.approver_key.is_empty() && !digests.insert(digest_key(config.approver_key.expose()))
    {
        problems.push(
            "AIRLOCK_APPROVER_KEY is the same key as AIRLOCK_API_KEY: nobody approves their own job"
                .to_owned(),
        );
    }
    for key in &config.keys {
        let name = &key.name;
        if name.is_empty() {
            problems.push("auth.keys: every key needs a name".to_owned());
        } else if is_reserved_name(name) || key.principal.as_deref().is_some_and(is_reserved_name) {
            problems.push(format!(
                "auth.keys: the name or the principal of {name:?} is reserved; those who come \
                 without a key or over the bus are called so"
            ));
        } else if !names.insert(name) {
            problems.push(format!("auth.keys: the name {name:?} stands twice"));
        }
        let digest = match (key.key.is_empty(), key.key_sha256.is_empty()) {
            (false, true) => Some(digest_key(key.key.expose())),
            (true, false) => {
                let parsed = parse_digest(&key.key_sha256);
                if parsed.is_none() {
                    problems.push(format!(
                        "auth.keys: key_sha256 of {name:?} is not 64 hexadecimal digits"
                    ));
                }
                parsed
            }
            (true, true) | (false, false) => {
                problems.push(format!(
                    "auth.keys: {name:?} needs either key or key_sha256"
                ));
                None
            }
        };
        if digest.is_some_and(|d| !digests.insert(d)) {
            problems.push(format!("auth.keys: the key of {name:?} is also another's"));
        }
    }
    problems
}

/// Names of those who have no key. One that a key could have would prove nothing.
fn is_reserved_name(name: &str) -> bool {
    name == ANONYMOUS || name.starts_with(Credential::BUS) || name.starts_with(Credential::SIGNED)
}

#[cfg(test)]
mod tests {
    use airlock_service::Secret;

    use super::*;
    use crate::config::KeyConfig;

    const HERE: &str = "127.0.0.1:8080";
    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    fn config() -> AuthConfig {
        let key = |name: &str, key: &str, role| KeyConfig {
            name: name.to_owned(),
            key: Secret::from(key),
            key_sha256: String::new(),
            tenant: TenantId::new(name).unwrap(),
            role,
            principal: None,
            roles: Vec::new(),
            act_for: Vec::new(),
            expires_at: None,
        };
        let mut hashed = key("globex", "", Role::User);
        hashed.key_sha256 = Sha256::digest(b"g-key")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        AuthConfig {
            keys: vec![
                key("acme", "a-key", Role::User),
                hashed,
                key("root", "r-key", Role::Admin),
            ],
            ..AuthConfig::default()
        }
    }

    fn call(headers: &[(&'static str, &str)]) -> Result<Caller, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let keys = Keys::new(&config()).unwrap();
        keys.authenticate(&map, NOW)
            .map_err(|p| p.status().as_u16())
    }

    #[test]
    fn a_users_key_is_its_tenant() {
        let acme = call(&[("x-api-key", "a-key")]).unwrap();
        assert_eq!(acme.scope.as_ref().unwrap().as_str(), "acme");
        assert_eq!(call(&[("authorization", "Bearer a-key")]), Ok(acme.clone()));
        assert_eq!(
            call(&[("x-api-key", "a-key"), ("x-tenant-id", "acme")]),
            Ok(acme)
        );
        for other in ["globex", "*", ""] {
            assert_eq!(
                call(&[("x-api-key", "a-key"), ("x-tenant-id", other)]),
                Err(403)
            );
        }
        assert_eq!(call(&[("x-api-key", "g-key")]).unwrap().name, "globex");
    }

    #[test]
    fn an_admin_acts_for_any_tenant() {
        let all = call(&[("x-api-key", "r-key")]).unwrap();
        assert_eq!(
            (all.scope, all.submits_for.unwrap().as_str()),
            (None, "root")
        );
        let one = call(&[("x-api-key", "r-key"), ("x-tenant-id", "acme")]).unwrap();
        assert_eq!(one.scope, one.submits_for);
        let star = call(&[("x-api-key", "r-key"), ("x-tenant-id", "*")]).unwrap();
        assert!(star.scope.is_none() && star.submit_tenant().is_err());
        assert_eq!(
            call(&[("x-api-key", "r-key"), ("x-tenant-id", "a b")]),
            Err(400)
        );
    }

    #[test]
    fn no_key_no_entry() {
        assert_eq!(call(&[]), Err(401));
        assert_eq!(call(&[("x-api-key", "nope")]), Err(401));
        assert_eq!(call(&[("x-api-key", "")]), Err(401));
        assert_eq!(call(&[("authorization", "Basic a-key")]), Err(401));
    }

    #[test]
    fn a_key_is_refused_from_its_expiry_on_and_only_who_has_it_learns_why() {
        let mut config = config();
        config.keys[0].expires_at = Some(NOW);
        let keys = Keys::new(&config).unwrap();
        let ask = |key: &str, now: Timestamp| {
            let mut headers = HeaderMap::new();
            headers.insert(KEY_HEADER, key.parse().unwrap());
            keys.authenticate(&headers, now).map(|caller| caller.name)
        };
        assert_eq!(ask("a-key", Timestamp(NOW.0 - 1)).unwrap(), "acme");
        for later in [NOW, Timestamp(NOW.0 + 1), Timestamp::MAX] {
            let problem = ask("a-key", later).unwrap_err();
            assert_eq!(problem.key_name(), Some("acme"), "for the log");
            assert_eq!(problem.status().as_u16(), 401);
            let sent = serde_json::to_string(&problem.into_body()).unwrap();
            assert!(sent.contains("problem:key-expired"), "{sent}");
            assert!(sent.contains("expired") && !sent.contains("acme"), "{sent}");
        }
        let unknown = ask("nope", NOW).unwrap_err();
        assert_eq!(unknown.key_name(), None);
        let sent = serde_json::to_string(&unknown.into_body()).unwrap();
        assert!(!sent.contains("expired"), "{sent}");
        // The others have no expiry.
        assert_eq!(ask("g-key", Timestamp::MAX).unwrap(), "globex");
        assert_eq!(ask("r-key", Timestamp::MAX).unwrap(), "root");
    }

    #[test]
    fn changes_are_listed_by_name() {
        let old = Keys::new(&config()).unwrap();
        assert!(old.changes(&old).is_empty());
        let mut config = config();
        config.keys[0].expires_at = Some(NOW);
        config.keys[1].key_sha256.replace_range(..1, "0");
        config.keys[2].name = "operations".to_owned();
        let changes = old.changes(&Keys::new(&config).unwrap());
        assert_eq!(changes.changed, ["acme", "globex"]);
        assert_eq!(changes.added, ["operations"]);
        assert_eq!(changes.removed, ["root"]);
    }

    #[test]
    fn the_two_keys_of_development_are_two_voices() {
        let mut config = AuthConfig {
            development_key: Secret::from("one"),
            approver_key: Secret::from("two"),
            ..AuthConfig::default()
        };
        assert_eq!(validate_keys(&config, HERE), Vec::<String>::new());
        let keys = Keys::new(&config).unwrap();
        let who = |key: &str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(KEY_HEADER),
                key.parse().unwrap(),
            )]);
            keys.authenticate(&headers, NOW).unwrap()
        };
        let (one, two) = (who("one"), who("two"));
        assert_ne!(one.to_voter().name(), two.to_voter().name());
        assert!(one.is_admin() && !two.is_admin());
        assert_eq!(two.scope.unwrap().as_str(), DEVELOPMENT_TENANT);
        config.approver_key = Secret::from("one");
        assert_eq!(validate_keys(&config, HERE).len(), 1);
    }

    #[test]
    fn every_mistake_is_told_and_no_key_quoted() {
        assert_eq!(validate_keys(&config(), HERE), Vec::<String>::new());
        assert_eq!(validate_keys(&AuthConfig::default(), HERE).len(), 1);
        let mut bad = config();
        bad.keys[1].key_sha256 = "zz".to_owned();
        bad.keys[2].name = "acme".to_owned();
        bad.development_key = Secret::from("a-key");
        let text = validate_keys(&bad, HERE).join("\n");
        assert_eq!(validate_keys(&bad, HERE).len(), 3, "{text}");
        assert!(!text.contains("a-key"), "{text}");
    }

    #[test]
    fn a_short_key_is_for_this_machine_only() {
        assert_eq!(validate_keys(&config(), "[::1]:80"), Vec::<String>::new());
        let text = validate_keys(&config(), "0.0.0.0:80").join("\n");
        assert!(text.contains("\"acme\"") && text.contains("16"), "{text}");
        assert!(!text.contains("a-key"), "{text}");
        let mut long = config();
        for key in &mut long.keys {
            if !key.key.is_empty() {
                key.key = Secret::from(format!("{}-0123456789abcdef", key.name));
            }
        }
        assert_eq!(validate_keys(&long, "0.0.0.0:80"), Vec::<String>::new());
        long.anonymous_tasks = true;
        assert_eq!(validate_keys(&long, "0.0.0.0:80").len(), 1);
        assert_eq!(validate_keys(&long, "localhost:80"), Vec::<String>::new());
    }

    #[test]
    fn no_key_takes_the_name_of_those_without_one() {
        for name in [ANONYMOUS, "bus:ann", "signed:ann"] {
            let mut bad = config();
            bad.keys[0].name = name.to_owned();
            assert_eq!(validate_keys(&bad, HERE).len(), 1, "{name}");
        }
    }

    #[test]
    fn an_administrator_acts_for_anybody_and_others_for_whom_they_are_given() {
        let mut config = config();
        config.keys[0].act_for = vec!["agent-*".to_owned()];
        config.keys[0].principal = Some("ann".to_owned());
        let keys = Keys::new(&config).unwrap();
        let who = |key: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(KEY_HEADER, key.parse().unwrap());
            keys.authenticate(&headers, NOW).unwrap().to_credential()
        };
        assert_eq!(who("a-key").principal, "ann");
        let agents = ActsFor::Names(vec!["agent-*".to_owned()]);
        assert_eq!(who("a-key").acts_for, agents);
        assert_eq!(who("g-key").principal, "globex");
        assert_eq!(who("r-key").acts_for, ActsFor::Anyone);
    }
}
