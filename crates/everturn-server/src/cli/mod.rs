//! What can be typed, one file per command.

mod demo;
mod terminal;
mod tree;

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use terminal::Style;

/// Durable sessions for AI agents.
///
/// Everturn keeps conversations as trees: every turn is on disk before it is acknowledged, every point can be read and
/// resumed, and going back, branching or forking deletes nothing.
#[derive(Debug, Parser)]
#[command(name = "everturn", version, after_help = AFTER_HELP)]
pub(crate) struct Everturn {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

const AFTER_HELP: &str = "\
Examples:
  everturn                          play the demo in ./.everturn/sessions.db and draw its tree
  everturn --ascii | less           the same for a terminal without Unicode
  everturn --store /tmp/trial.db    the same in another file

Colours are used on a terminal unless NO_COLOR is set.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Play a short conversation with a failure, a rewind, a branch and a fork, and draw what is kept (the default)
    Demo,
}

#[derive(Debug, Args)]
struct Options {
    /// The file that sessions are kept in; it and its directory are made when they are missing
    #[arg(long, value_name = "PATH", default_value = "./.everturn/sessions.db", global = true)]
    store: PathBuf,
    /// Draw with ASCII only; also chosen when the locale is not UTF-8
    #[arg(long, global = true)]
    ascii: bool,
}

impl Everturn {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let style = Style::detect(self.options.ascii);
        match self.command.unwrap_or(Command::Demo) {
            Command::Demo => demo::run(&self.options.store, style, &mut io::stdout()).await,
        }
    }
}

/// Whether an error only says that nobody reads our output any more, as in `everturn | head`.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Everturn::command().debug_assert();
    }

    #[test]
    fn options_may_follow_the_command_or_stand_alone() {
        for line in [&["everturn", "demo", "--ascii", "--store", "x"][..], &["everturn", "--store", "x", "--ascii"]] {
            let parsed = Everturn::try_parse_from(line).unwrap();
            assert!(parsed.options.ascii);
            assert_eq!(parsed.options.store, PathBuf::from("x"));
        }
    }
}
