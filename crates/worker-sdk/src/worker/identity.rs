//! What a worker goes by: its name and, unless it was given one, an id of its own.
//!
//! What must stay true: replicas of one program never share an id by default. The name is
//! what they have in common; the id tells one process from another.

use uuid::Uuid;

const LONGEST_HOST: usize = 40;
const RANDOM: usize = 4;
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// An id for one process of this name: where it runs, and something random.
pub(crate) fn generate_worker_id(name: &str) -> String {
    format_worker_id(name, &host_name(), Uuid::new_v4())
}

fn format_worker_id(name: &str, host: &str, random: Uuid) -> String {
    let host: String = host
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(LONGEST_HOST)
        .collect();
    let host = match host.trim_matches('-') {
        "" => "host",
        host => host,
    };
    let mut left = random.as_u128();
    let random: String = (0..RANDOM)
        .map(|_| {
            let letter = LETTERS[usize::try_from(left % 36).unwrap_or(0)];
            left /= 36;
            char::from(letter)
        })
        .collect();
    format!("{name}-{host}-{random}")
}

fn host_name() -> String {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use airlock_bus::subjects;
    use airlock_model::WorkerId;

    use super::*;

    #[test]
    fn an_id_is_name_host_and_something_random() {
        let id = format_worker_id("resizer", "web-1.example.org\n", Uuid::from_u128(0));
        assert_eq!(id, "resizer-web-1-example-org-0000");
        assert_eq!(
            format_worker_id("r", "..", Uuid::from_u128(35)),
            "r-host-z000"
        );
        let long = format_worker_id("r", &"h".repeat(300), Uuid::nil());
        assert!(long.len() < 50, "{long}");
    }

    #[test]
    fn every_process_has_another_one_that_the_bus_can_address() {
        let ids: std::collections::BTreeSet<String> =
            (0..100).map(|_| generate_worker_id("resizer")).collect();
        assert!(ids.len() > 95, "{ids:?}");
        for id in ids {
            assert!(id.starts_with("resizer-"));
            assert!(subjects::is_addressable(&WorkerId::new(id).expect("valid")));
        }
    }
}
