//! What can be typed, one file per command.

mod access;
mod backup;
mod demo;
mod keys;
mod serve;
mod store;
mod terminal;
mod transfer;
mod tree;
mod verify;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use keys::Keys;
use serve::Serve;
pub(crate) use store::StoreSpec;
use terminal::Style;
use transfer::{Export, Import};
use verify::Verify;

use crate::config::{Config, Flags, Layers};

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
  everturn                                   serve the demo agents on 127.0.0.1:4100
  everturn serve --demo --addr 127.0.0.1:0   the same on any free port
  everturn serve --demo --store memory:      the same, keeping nothing
  everturn keys create --user ann            make an API key; from then on the server asks for one
  everturn export echo tea -o tea.ndjson     write a session of the agent echo as a file
  everturn import tea.ndjson --fresh         bring it in, under an id of its own
  everturn backup copy.db                    copy the store while servers use it
  everturn verify                            find out whether the store is damaged, and where
  everturn demo                              play a conversation in ./.everturn/sessions.db and draw its tree
  everturn demo --ascii | less               the same for a terminal without Unicode

Colours are used on a terminal unless NO_COLOR is set.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve agents and their sessions over HTTP (the default, with the demo agents)
    Serve(Serve),
    /// Make, list and revoke API keys: who may reach the server from other machines, and what they may do there
    #[command(arg_required_else_help = true)]
    Keys(Keys),
    /// Write a session as one file, to be kept or brought into another store
    Export(Export),
    /// Bring a session in from such a file, all of it or nothing
    Import(Import),
    /// Copy the store to a new file while servers go on using it
    Backup {
        /// The copy, which must not exist yet
        #[arg(value_name = "FILE")]
        to: PathBuf,
    },
    /// Check that what the store holds is what was written to it; servers may go on using it
    Verify(Verify),
    /// Play a short conversation with a failure, a rewind, a branch and a fork, and draw what is kept
    Demo,
}

#[derive(Debug, Args)]
struct Options {
    /// Where sessions are kept: sqlite:PATH (made when it is missing) or memory: [default:
    /// sqlite:./.everturn/sessions.db, or what EVERTURN_STORE says]
    #[arg(long, value_name = "STORE", global = true)]
    store: Option<String>,
    /// A file of settings in TOML; EVERTURN_CONFIG can name it, too
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Draw with ASCII only; also chosen when the locale is not UTF-8
    #[arg(long, global = true)]
    ascii: bool,
}

impl Everturn {
    /// Says what the process ends with; an error is an exit code of 1.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let style = Style::detect(self.options.ascii);
        let command = self.command.unwrap_or_else(|| Command::Serve(Serve::demo()));
        let layers = match &command {
            Command::Serve(serve) => self.options.layers(serve.flags())?,
            _ => self.options.layers(Flags::new())?,
        };
        let store: StoreSpec = layers.one("store")?;
        let out = &mut io::stdout();
        match command {
            Command::Verify(verify) => return verify.run(&Config::read(&layers)?, out).await,
            Command::Serve(serve) => serve.run(layers, out).await,
            Command::Keys(keys) => keys.run(&store, layers.maybe("keys")?, out),
            Command::Export(export) => export.run(&Config::read(&layers)?, out).await,
            Command::Import(import) => import.run(&Config::read(&layers)?, out).await,
            Command::Backup { to } => backup::run(store.path()?, &to, out),
            Command::Demo => demo::run(store.path()?, style, out).await,
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

impl Options {
    /// All settings: from the file, the environment and these flags.
    fn layers(&self, mut flags: Flags) -> anyhow::Result<Layers> {
        if let Some(store) = &self.store {
            flags.insert("store", vec![store.clone()]);
        }
        let variable = |name: &str| std::env::var(name).ok();
        let named = || variable("EVERTURN_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let file = self.config.clone().or_else(named);
        Layers::new(file.as_deref(), variable, &flags)
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
            assert_eq!(parsed.options.store.as_deref(), Some("x"));
        }
    }
}
