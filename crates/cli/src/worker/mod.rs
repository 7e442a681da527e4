//! `airlock worker new`: a worker's project that compiles and runs as it is.
//!
//! What must stay true: nothing that is there is overwritten, and run from a checkout
//! the project builds against that checkout, with the very versions it was tested with.

mod checkout;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use self::checkout::Checkout;
use crate::exit::Exit;
use crate::terminal::Terminal;

const MAX_NAME_LEN: usize = 64;

/// Create worker projects
#[derive(Debug, Args)]
pub struct Worker {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Create a worker project in a folder of its name
    New(New),
}

#[derive(Debug, Args)]
pub struct New {
    /// Name of the project and the worker: lowercase letters, digits and -
    #[arg(value_parser = parse_worker_name)]
    pub name: String,
    /// Folder to create it in [default: a folder of its name, here]
    #[arg(long, value_name = "FOLDER")]
    pub path: Option<PathBuf>,
    /// Pool of the worker
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// Airlock checkout to build against [default: the one this command runs from]
    #[arg(long, value_name = "FOLDER")]
    pub checkout: Option<PathBuf>,
}

fn parse_worker_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    if begins && text.len() <= MAX_NAME_LEN && text.chars().all(fits) && !text.ends_with('-') {
        return Ok(text.to_owned());
    }
    Err(format!(
        "lowercase letters, digits and -, beginning with a letter, at most {MAX_NAME_LEN}"
    ))
}

pub fn run(args: Worker, terminal: Terminal) -> Exit {
    let Action::New(new) = args.action;
    let checkout = match &new.checkout {
        Some(folder) => match Checkout::at_folder(folder) {
            Some(checkout) => Some(checkout),
            None => {
                let folder = folder.display();
                terminal.error(&format!("{folder} is not a checkout of Airlock"));
                return Exit::Usage;
            }
        },
        None => Checkout::find_enclosing(),
    };
    let folder = new.path.clone().unwrap_or_else(|| new.name.clone().into());
    match create_project(&new, &folder, checkout.as_ref()) {
        Ok(()) => {
            let place = folder.display();
            let env = checkout.as_ref().map(|checkout| {
                let file = checkout.root_path().join(".airlock/dev.env");
                format!("  . {}\n", file.display())
            });
            terminal.print(&format!(
                "created {place}\n\n  cd {place}\n  cargo test\n{}  cargo run\n\nits README.md says \
                 how to give it a job",
                env.unwrap_or_default()
            ));
            if checkout.is_none() {
                terminal.hint(
                    "no checkout of Airlock here: Cargo.toml asks the registry for \
                     airlock-worker; --checkout names a folder instead",
                );
            }
            Exit::Done
        }
        Err(CreateError::NotEmpty) => {
            let place = folder.display();
            terminal.error(&format!(
                "{place} exists and is not empty; nothing was changed"
            ));
            Exit::Usage
        }
        Err(CreateError::Io(action, error)) => {
            terminal.error(&format!("{action}: {error}"));
            Exit::Failed
        }
    }
}

enum CreateError {
    /// The folder has something in it.
    NotEmpty,
    Io(String, std::io::Error),
}

const TEMPLATE_FILES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("template/Cargo.toml.txt")),
    ("README.md", include_str!("template/README.md.txt")),
    ("src/lib.rs", include_str!("template/lib.rs.txt")),
    ("src/main.rs", include_str!("template/main.rs.txt")),
    ("tests/stack.rs", include_str!("template/stack.rs.txt")),
    (".gitignore", "/target\n"),
];

fn create_project(
    new: &New,
    folder: &Path,
    checkout: Option<&Checkout>,
) -> Result<(), CreateError> {
    let action = |what: &str, path: &Path| format!("{what} {}", path.display());
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => return Err(CreateError::NotEmpty),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(CreateError::Io(action("reading", folder), error)),
    }
    let placeholders = Placeholders::for_project(new, checkout);
    for (file, template) in TEMPLATE_FILES {
        let path = folder.join(file);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|e| CreateError::Io(action("creating", parent), e))?;
        }
        std::fs::write(&path, placeholders.fill_template(template))
            .map_err(|e| CreateError::Io(action("writing", &path), e))?;
    }
    if let Some(checkout) = checkout {
        // With the same versions it also builds without the network.
        let (from, to) = (checkout.lock_file_path(), folder.join("Cargo.lock"));
        std::fs::copy(&from, &to).map_err(|e| CreateError::Io(action("copying", &from), e))?;
    }
    Ok(())
}

/// How the command is called: by the place this very one was built at in a checkout, by
/// its name where it is installed.
fn cli_command_path(in_checkout: bool) -> PathBuf {
    let built = in_checkout.then(std::env::current_exe);
    built
        .and_then(Result::ok)
        .unwrap_or_else(|| "airlock".into())
}

/// What stands for what in the templates.
struct Placeholders([(&'static str, String); 7]);

impl Placeholders {
    fn for_project(new: &New, checkout: Option<&Checkout>) -> Self {
        let sdk = match checkout {
            Some(checkout) => format!("{{ path = {:?} }}", checkout.sdk_path()),
            None => format!("{:?}", env!("CARGO_PKG_VERSION")),
        };
        let home = checkout.map_or_else(|| "airlock".into(), Checkout::root_path);
        Self([
            ("{{name}}", new.name.clone()),
            ("{{crate}}", new.name.replace('-', "_")),
            ("{{pool}}", new.pool.clone()),
            ("{{topic}}", format!("job.{}.hello", new.name)),
            ("{{sdk}}", sdk),
            ("{{checkout}}", home.display().to_string()),
            (
                "{{airlock}}",
                cli_command_path(checkout.is_some()).display().to_string(),
            ),
        ])
    }

    fn fill_template(&self, template: &str) -> String {
        let text = template.to_owned();
        self.0
            .iter()
            .fold(text, |text, (name, value)| text.replace(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_crates_and_topics() {
        for good in ["a", "resizer", "thumb-nailer-2"] {
            assert_eq!(parse_worker_name(good).as_deref(), Ok(good));
        }
        let long = "a".repeat(65);
        for bad in [
            "", "2fast", "-a", "a-", "Big", "a_b", "a.b", "a/b", "ü", &long,
        ] {
            assert!(parse_worker_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_word_is_filled_in() {
        let new = New {
            name: "thumb-nailer".to_owned(),
            path: None,
            pool: "media".to_owned(),
            checkout: None,
        };
        let placeholders = Placeholders::for_project(&new, None);
        for (file, template) in TEMPLATE_FILES {
            let text = placeholders.fill_template(template);
            assert!(!text.contains("{{"), "{file}:\n{text}");
        }
        assert!(
            placeholders
                .fill_template("{{crate}}::x")
                .contains("thumb_nailer::x")
        );
    }

    #[test]
    fn what_is_there_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("precious"), "x").expect("written");
        let new = New {
            name: "w".to_owned(),
            path: None,
            pool: "default".to_owned(),
            checkout: None,
        };
        let made = create_project(&new, folder.path(), None);
        assert!(matches!(made, Err(CreateError::NotEmpty)));
        assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 1);
    }
}
