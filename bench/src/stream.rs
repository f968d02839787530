//! Kept streams' bars: what keeping costs a token, how many rows it makes, and what coming back costs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use everturn::model::ModelChunk;
use everturn::store::{SqliteStore, Store};
use everturn::{Agent, Init, Json, Position, SessionId, Turn};

use crate::report::{Bar, Figure, Report};
use crate::stats::{median, micros};

const FIGURES: &[Figure] = &[
    Figure {
        name: "stream_token_us",
        what: "a token of a kept stream less one of a stream that is not, on SQLite (us)",
        bar: Bar::AtMost(2.0),
    },
    Figure { name: "kept_token_us", what: "a token of a kept stream (us)", bar: Bar::None },
    Figure { name: "plain_token_us", what: "a token of a stream that is not kept (us)", bar: Bar::None },
    Figure {
        name: "rows_over_allowed",
        what: "rows of a paced stream over one for each 50 ms or 64 chunks",
        bar: Bar::AtMost(1.0),
    },
    Figure {
        name: "reconnect_ratio",
        what: "coming back near the end of 100,000 chunks over near their start",
        bar: Bar::AtMost(1.5),
    },
    Figure { name: "reconnect_us", what: "coming back near the end, to the next chunk (us)", bar: Bar::None },
];

/// Measures streams that are kept: their cost per token, their rows, and coming back to them.
#[derive(Args)]
pub(crate) struct Options {
    /// Also write the figures to this file, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a bar is missed, naming it
    #[arg(long)]
    check: bool,
    /// Fewer samples, less certain
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let quick = options.quick;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let values = runtime.block_on(async move { tokio::spawn(measure(quick)).await? })?;
    let mut report = Report::default();
    for (figure, value) in FIGURES.iter().zip(values) {
        report.add(figure, value);
    }
    report.print();
    if let Some(path) = &options.json {
        report.write_json(path, quick)?;
    }
    Ok(report.verdict(options.check))
}

/// Says so many tokens, with a pause after each where one is asked for: `COUNT MICROSECONDS`.
fn talker(store: Arc<dyn Store>) -> Result<Agent<Json>> {
    let flow = |turn: Turn<Json>| async move {
        let text = turn.text();
        let (count, pause) = text.split_once(' ').ok_or(everturn::Failure::new("INVALID_ARGUMENT", "two numbers"))?;
        let (count, pause): (u64, u64) = (count.parse()?, pause.parse()?);
        let responder = turn.responder();
        let token = ModelChunk::text("token ");
        let start = Instant::now();
        for _ in 0..count {
            responder.model_chunk(token.clone()).await?;
            if pause > 0 {
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
        }
        Ok(u64::try_from(start.elapsed().as_nanos())?)
    };
    Ok(Agent::flow("talker", flow).shared_store(store).build()?)
}

/// One turn of so many tokens, read to its end: how long saying them took, and the snapshot behind it.
async fn turn(agent: &Agent<Json>, text: String, init: Init) -> Result<(Duration, everturn::SnapshotId)> {
    let mut connection = agent.connect(init).await?;
    connection.send_text(text).await?;
    let output = connection.output().await?;
    anyhow::ensure!(output.error.is_none(), "a turn failed: {:?}", output.error);
    let took: u64 = output.output.unwrap_or_default().to()?;
    Ok((Duration::from_nanos(took), output.snapshot_id.unwrap_or(everturn::SnapshotId::nil())))
}

async fn measure(quick: bool) -> Result<Vec<f64>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("sessions.db");
    let agent = talker(Arc::new(SqliteStore::open(&file)?))?;
    let (count, rounds) = if quick { (20_000_u64, 5) } else { (100_000, 9) };
    let (mut kept, mut plain) = (Vec::new(), Vec::new());
    let mut last = everturn::SnapshotId::nil();
    for round in 0..rounds {
        let init = |what: &str| Ok::<_, everturn::Error>(Init::session(SessionId::new(format!("{what}{round}"))?));
        let (took, _) = turn(&agent, format!("{count} 0"), init("plain")?).await?;
        plain.push(micros(took) / count as f64);
        let (took, id) = turn(&agent, format!("{count} 0"), init("kept")?.keep_stream()).await?;
        kept.push(micros(took) / count as f64);
        last = id;
    }
    let paced = 1_000;
    let before = rows(&file)?;
    let (took, _) =
        turn(&agent, format!("{paced} 1000"), Init::session(SessionId::new("paced")?).keep_stream()).await?;
    let made = rows(&file)? - before;
    let allowed = (took.as_secs_f64() / 0.05).ceil().max((paced as f64 / 64.0).ceil()) + 1.0;
    let (mut early, mut late) = (Vec::new(), Vec::new());
    let first = {
        // What is kept is bounded: the start of what is still there.
        let mut following = agent.follow(last, None).await?;
        loop {
            let Some(next) = following.next().await? else { anyhow::bail!("nothing was kept") };
            if let Some(position) = next.position {
                break position;
            }
        }
    };
    for _ in 0..if quick { 50 } else { 300 } {
        late.push(come_back(&agent, last, Position::new(1, count - 100)).await?);
        early.push(come_back(&agent, last, first).await?);
    }
    Ok(vec![
        median(&kept) - median(&plain),
        median(&kept),
        median(&plain),
        made / allowed,
        median(&late) / median(&early),
        median(&late),
    ])
}

async fn come_back(agent: &Agent<Json>, id: everturn::SnapshotId, at: Position) -> Result<f64> {
    let start = Instant::now();
    let next = agent.follow(id, Some(at)).await?.next().await?;
    anyhow::ensure!(next.is_some_and(|next| next.position == Some(Position::new(at.attempt, at.n + 1))), "a gap");
    Ok(micros(start.elapsed()))
}

fn rows(file: &std::path::Path) -> Result<f64> {
    let db = rusqlite::Connection::open_with_flags(file, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    Ok(db.query_row("SELECT count(*) FROM pack", [], |row| row.get::<_, i64>(0))? as f64)
}
