//! From arguments to an exit code.

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::job;
use crate::terminal::Terminal;

pub fn run(args: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // --help and --version arrive here too, and are no mistakes. When the
            // reader of our output is gone, there is nobody to tell.
            let _ = error.print();
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
        #[cfg(feature = "dev")]
        Command::Dev(args) => crate::dev::run(&args, terminal),
        Command::Dlq(args) => crate::dlq::run(args, terminal),
        Command::Worker(args) => crate::worker::run(args, terminal),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "airlock", &mut script);
            let _ = std::io::stdout().write_all(&script);
            Exit::Done
        }
    }
}
