//! From arguments to an exit code.

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::job;
use crate::terminal::Terminal;

pub fn run_command_line(args: impl IntoIterator<Item = OsString>) -> Exit {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // --help and --version arrive here too, and are no mistakes. When the
            // reader of our output is gone, there is nobody to tell.
            let _ = error.print();
            if let Some(hint) = wait_hint(&args) {
                let _ = writeln!(std::io::stderr(), "\n{hint}");
            }
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
        }
    };
    let terminal = Terminal::from_process();
    match cli.command {
        Command::Job(args) => job::run(args, terminal),
        Command::Approval(args) => crate::approval::run(args, terminal),
        Command::Policy(args) => crate::policy::run(args, terminal),
        Command::Output(args) => crate::output::run(args, terminal),
        #[cfg(feature = "dev")]
        Command::Dev(args) => crate::dev::run(&args, terminal),
        Command::Dlq(args) => crate::dlq::run(args, terminal),
        Command::Leader(args) => crate::leader::run(args, terminal),
        Command::Saga(args) => crate::saga::run(args, terminal),
        Command::Worker(args) => crate::worker::run(args, terminal),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "airlock", &mut script);
            let _ = std::io::stdout().write_all(&script);
            Exit::Done
        }
    }
}

/// `--wait` takes its value with `=` only, so that it never swallows the next word; who
/// writes it otherwise is told.
fn wait_hint(args: &[OsString]) -> Option<String> {
    let pair = args
        .windows(2)
        .find(|pair| pair[0] == "--wait" || pair[0] == "-w")?;
    let value = pair[1].to_str()?;
    let time = crate::args::parse_duration(value).is_ok() || value.parse::<u64>().is_ok();
    time.then(|| format!("hint: write --wait={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_after_wait_is_pointed_at() {
        let hint = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            wait_hint(&args)
        };
        let text = hint(&["airlock", "job", "submit", "job.a", "--wait", "5s"]);
        assert_eq!(text.as_deref(), Some("hint: write --wait=5s"));
        assert_eq!(hint(&["airlock", "job", "submit", "--wait", "job.a"]), None);
        assert_eq!(hint(&["airlock", "--wait"]), None);
    }
}
