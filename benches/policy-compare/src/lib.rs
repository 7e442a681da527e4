//! The same 100 rules in three languages, and 1,000 requests to ask them with.
//!
//! The rules are in a form that all three can say: refusals first, then permissions,
//! and whatever neither is about is refused. With that order, "the first rule that
//! matches decides" and "a refusal beats any permission" are the same thing. Each
//! engine gets its rules compiled and its requests in its own form beforehand, so that
//! what is measured is deciding.

mod cedar;
mod ours;
mod rego;
mod sample;

pub use cedar::Cedar;
pub use ours::Ours;
pub use rego::Rego;
pub use sample::{Ask, Condition, REQUESTS, RULES, Rule, requests, rules};

/// Something that decides. Requests are asked by their number.
pub trait Engine {
    fn name(&self) -> &'static str;

    /// Whether the request is allowed.
    fn allows(&mut self, request: usize) -> bool;
}

/// All three, over the sample.
pub fn engines() -> Vec<Box<dyn Engine>> {
    let (rules, requests) = (rules(), requests());
    vec![
        Box::new(Ours::new(&rules, &requests)),
        Box::new(Cedar::new(&rules, &requests)),
        Box::new(Rego::new(&rules, &requests)),
    ]
}
