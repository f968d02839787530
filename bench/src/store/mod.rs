//! The store's bars: bytes on disk, turns that do not slow down with history, what durability costs, and what is quick.

mod agents;
mod bare;
mod bare_writer;
mod branches;
mod btrees;
mod bytes;
mod crowd;
mod custom;
mod files;
mod flat;
mod foreign;
mod fsyncs;
mod group;
mod large;
mod open;
mod slow_disk;
mod wal;

use std::fs::File;
use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use everturn::store::{Durability, SqliteOptions, SqliteStore};

use crate::report::{Bar, Figure, Report};
use crate::stats::{median, millis};

/// Measures the SQLite store and says which bars it clears.
///
/// Each figure is a ratio of two things timed in turns within this run, a count, or a median. Bars that are missed are
/// marked; with --check they also make the exit status 1. Run it alone: whatever else keeps the machine busy makes
/// medians worse, though ratios less so.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  everturn-bench store                            everything, half a minute on a quick disk
  everturn-bench store --quick --check            a first answer, as a gate
  everturn-bench store --only flat                figures whose names begin with `flat`
  everturn-bench store --only agent --beside OLD  agents' turns by another build, in turns with ours
  everturn-bench store --dir /mnt/disk --json f   on another disk, figures also to a file")]
pub(crate) struct Options {
    /// Also write the figures to this file, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a bar is missed, naming it
    #[arg(long)]
    check: bool,
    /// Shorter sessions and fewer samples: a third of the time, less certain
    #[arg(long)]
    quick: bool,
    /// Only the figures whose names begin so
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Where the stores are made; its disk is what is measured [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Another build of this benchmark, whose agents take turns beside ours
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
}

/// A measurement and the figures it gives, in order; the last ones may be left out.
struct Measurement {
    figures: &'static [Figure],
    run: fn(&Bench) -> Result<Vec<f64>>,
}

const MEASUREMENTS: [Measurement; 15] = [
    Measurement { figures: agents::BYTES, run: agents::bytes },
    Measurement { figures: agents::RATES, run: agents::rates },
    Measurement { figures: bytes::FIGURES, run: bytes::run },
    Measurement { figures: flat::FIGURES, run: flat::run },
    Measurement { figures: foreign::FIGURES, run: foreign::run },
    Measurement { figures: custom::FIGURES, run: custom::run },
    Measurement { figures: branches::FIGURES, run: branches::run },
    Measurement { figures: bare::FIGURES, run: bare::run },
    Measurement { figures: group::FIGURES, run: group::run },
    Measurement { figures: slow_disk::FIGURES, run: slow_disk::run },
    Measurement { figures: fsyncs::FIGURES, run: fsyncs::run },
    Measurement { figures: btrees::FIGURES, run: btrees::run },
    Measurement { figures: open::FIGURES, run: open::run },
    Measurement { figures: large::FIGURES, run: large::run },
    Measurement { figures: crowd::FIGURES, run: crowd::run },
];

/// What every measurement is given.
struct Bench {
    quick: bool,
    dir: PathBuf,
    beside: Option<PathBuf>,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    /// A store of one's own: a path in a directory that holds nothing else.
    fn path(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir.join("store.db"))
    }

    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(work)
    }
}

/// Opens a store that does not wait for the disk: to fill it, or to time what a wait for the disk would hide.
fn open_without_fsync(path: &std::path::Path) -> Result<SqliteStore> {
    Ok(SqliteOptions::new(path).durability(Durability::ProcessSafe).open()?)
}

fn progress(text: impl AsRef<str>) {
    eprintln!("  {}", text.as_ref());
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let wanted = wanted(options.only.as_deref())?;
    let temp = match &options.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    }
    .context("cannot create a directory for the stores")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let bench = Bench { quick: options.quick, dir: temp.path().to_owned(), beside: options.beside.clone(), runtime };
    let mut report = Report::default();
    let start = Instant::now();
    report.add(&FSYNC, fsync_millis(&bench)?);
    for measurement in wanted {
        let names: Vec<_> = measurement.figures.iter().map(|figure| figure.name).collect();
        eprintln!("{:>4.0} s  {}", start.elapsed().as_secs_f64(), names.join(", "));
        let values = (measurement.run)(&bench).with_context(|| format!("while measuring {}", names.join(", ")))?;
        for (figure, value) in measurement.figures.iter().zip(values) {
            report.add(figure, value);
        }
    }
    eprintln!("{:>4.0} s  done", start.elapsed().as_secs_f64());
    report.print();
    if options.quick {
        println!(
            "quick: 10,000 turns were 3,000 (2,000 with a large state), depth 1,000 was 500, 1,000 turns were 250"
        );
    }
    if let Some(path) = &options.json {
        report.write_json(path, options.quick)?;
    }
    Ok(report.verdict(options.check))
}

fn wanted(only: Option<&str>) -> Result<Vec<&'static Measurement>> {
    let begins = |figure: &Figure| only.is_none_or(|only| figure.name.starts_with(only));
    let wanted: Vec<_> = MEASUREMENTS.iter().filter(|m| m.figures.iter().any(begins)).collect();
    if wanted.is_empty() {
        let names: Vec<_> = MEASUREMENTS.iter().flat_map(|m| m.figures).map(|figure| figure.name).collect();
        bail!("no figure begins with {:?}; there are {}", only.unwrap_or(""), names.join(", "));
    }
    Ok(wanted)
}

const FSYNC: Figure = Figure { name: "fsync_ms", what: "this disk: append 16 KiB, fdatasync (ms)", bar: Bar::None };

fn fsync_millis(bench: &Bench) -> Result<f64> {
    let mut file = File::create(bench.dir.join("fsync"))?;
    let mut samples = Vec::new();
    for _ in 0..100 {
        file.write_all(&[7; 16 << 10])?;
        let start = Instant::now();
        file.sync_data()?;
        samples.push(millis(start.elapsed()));
    }
    Ok(median(&samples))
}
