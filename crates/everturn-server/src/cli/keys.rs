//! `everturn keys`: API keys, made, listed and revoked.

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use everturn::{AppName, Clock as _, SystemClock, Timestamp, UserId};

use super::access::key_file;
use super::store::StoreSpec;
use crate::auth::{ApiKey, KeyFile, KeyId, Revoked, Rights, Standing, Token};

/// Characters a label may have.
const MAX_LABEL: usize = 100;

#[derive(Debug, Clone, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    action: Action,
    /// The file of keys; keys.json beside the store unless given
    #[arg(long, value_name = "FILE", global = true)]
    keys: Option<PathBuf>,
}

const CREATE_HELP: &str = "\
The key is printed once, alone on standard output, and kept nowhere: the file has only its hash.
A server that runs takes it within two seconds.

Examples:
  everturn keys create --user ann                                reads and writes ann's sessions of every app
  everturn keys create --user ann --app echo --rights read       looks at ann's sessions of the app echo
  KEY=$(everturn keys create --user ci --expires 30d --label CI)
  curl http://127.0.0.1:4100/genkit/echo -H \"Authorization: Bearer $KEY\" ...";

#[derive(Debug, Clone, Subcommand)]
enum Action {
    /// Make a key and print it, once
    #[command(after_help = CREATE_HELP)]
    Create(Create),
    /// List the keys, without their secrets
    List,
    /// Revoke a key for good; servers that run refuse it within two seconds
    Revoke {
        /// Which one: the first column of `everturn keys list`
        #[arg(value_name = "ID")]
        id: KeyId,
    },
}

#[derive(Debug, Clone, Args)]
struct Create {
    /// Whose sessions the key opens
    #[arg(long, value_name = "USER")]
    user: UserId,
    /// The only app it reaches; all of them unless given. An agent's app is its name unless it says otherwise
    #[arg(long, value_name = "APP")]
    app: Option<AppName>,
    /// What it may do: read (look), write (run turns and abort them, too), admin (everything)
    #[arg(long, value_name = "RIGHTS", default_value = "read,write")]
    rights: Rights,
    /// A note for people
    #[arg(long, value_name = "TEXT", value_parser = label)]
    label: Option<String>,
    /// How long it works: 90m, 12h, 30d; for good unless given
    #[arg(long, value_name = "TIME")]
    expires: Option<Lifetime>,
}

/// How long a key works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lifetime(Duration);

impl FromStr for Lifetime {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a time is a number of minutes, hours or days, up to 36500d: 90m, 12h, 30d".to_owned();
        let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
        let seconds = match unit {
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
        seconds
            .filter(|seconds| (1..=36_500 * 86_400).contains(seconds))
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(wrong)
    }
}

fn label(text: &str) -> Result<String, String> {
    if text.chars().any(char::is_control) || text.chars().count() > MAX_LABEL {
        return Err(format!("a label is one line of at most {MAX_LABEL} characters"));
    }
    Ok(text.to_owned())
}

impl Keys {
    /// `configured` is the file that a server with the same configuration asks.
    pub(crate) fn run(self, store: &StoreSpec, configured: Option<PathBuf>, out: &mut dyn Write) -> anyhow::Result<()> {
        let file = key_file(self.keys.or(configured).as_deref(), store);
        let file = file.context("a store in memory has no file of keys beside it: name one with --keys FILE")?;
        let now = SystemClock::new().now();
        match self.action {
            Action::Create(create) => create.run(&file, now, out),
            Action::List => list(&file, now, out),
            Action::Revoke { id } => {
                match file.revoke(&id, now)? {
                    Revoked::Now => writeln!(out, "key {id} is revoked")?,
                    Revoked::Before(before) => writeln!(out, "key {id} was revoked already, at {}", second(before))?,
                }
                Ok(())
            }
        }
    }
}

impl Create {
    fn run(self, file: &KeyFile, now: Timestamp, out: &mut dyn Write) -> anyhow::Result<()> {
        let token = Token::random()?;
        let mut key = ApiKey::new(&token, self.user, self.rights, now);
        key.app = self.app;
        key.label = self.label;
        key.expires = self.expires.map(|Lifetime(lifetime)| now.plus(lifetime));
        let about = format!("key {} for {} ({})", key.id, key.user, key.rights);
        file.add(key)?;
        writeln!(out, "{}", token.reveal())?;
        out.flush()?;
        // Beside the key, so that `KEY=$(everturn keys create …)` gets the key alone.
        eprintln!("{about} is in {}: keep it now, it is not shown again", file.path().display());
        Ok(())
    }
}

fn list(file: &KeyFile, now: Timestamp, out: &mut dyn Write) -> anyhow::Result<()> {
    let keys = file.read()?.unwrap_or_default();
    if keys.is_empty() {
        writeln!(out, "there are no keys in {}: `everturn keys create --user NAME` makes one", file.path().display())?;
        return Ok(());
    }
    let mut rows = vec![["ID", "USER", "APP", "RIGHTS", "CREATED", "STATE", "LABEL"].map(str::to_owned)];
    rows.extend(keys.iter().map(|key| row(key, now)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn row(key: &ApiKey, now: Timestamp) -> [String; 7] {
    let state = match (key.standing(now), key.revoked, key.expires) {
        (Standing::Revoked, Some(at), _) => format!("revoked {}", second(at)),
        (Standing::Expired, _, Some(at)) => format!("expired {}", second(at)),
        (_, _, Some(at)) => format!("until {}", second(at)),
        _ => "valid".to_owned(),
    };
    let app = key.app.as_ref().map_or("(all)", AppName::as_str).to_owned();
    let label = key.label.clone().unwrap_or_default();
    [key.id.to_string(), key.user.to_string(), app, key.rights.to_string(), second(key.created), state, label]
}

/// A time to the second.
fn second(time: Timestamp) -> String {
    Timestamp::from_micros(time.as_micros() / 1_000_000 * 1_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_a_unit_and_an_end() {
        assert_eq!("90m".parse(), Ok(Lifetime(Duration::from_secs(5400))));
        assert_eq!("30d".parse(), Ok(Lifetime(Duration::from_secs(30 * 86_400))));
        for bad in ["", "d", "30", "0d", "-1d", "1.5h", "36501d", "99999999999999999999d", "30é", "é"] {
            assert!(bad.parse::<Lifetime>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_label_is_one_short_line() {
        assert!(label("CI of the shop, 漢字").is_ok());
        assert!(label("two\nlines").is_err() && label("\u{1b}[2J").is_err() && label(&"x".repeat(101)).is_err());
    }
}
