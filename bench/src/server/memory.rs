//! What the server keeps in memory for sessions that nobody uses at the moment, and for streams that are open.

use std::path::Path;

use anyhow::Result;

use super::load::Http;
use super::servers;
use super::wire::Wire;
use crate::report::{Bar, Figure};

/// How much of decoded states a store keeps at hand, whatever the number of sessions.
const CACHE: f64 = (64 << 20) as f64;

const SESSIONS: usize = 10_000;
const STREAMS: usize = 1_000;

/// Connections that fill the store with sessions.
const FILLERS: usize = 32;

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "idle_session_bytes",
        what: "memory per session, 10,000 of them idle (bytes; 16 KB and its share of the 64 MiB cache)",
        bar: Bar::AtMost(16_384.0 + (CACHE / SESSIONS as f64).floor()),
    },
    Figure {
        name: "stream_bytes",
        what: "memory per open stream, 1,000 of them, each in a turn (bytes)",
        bar: Bar::None,
    },
    Figure { name: "server_rss_mb", what: "memory of the server with both (MB)", bar: Bar::None },
];

pub(super) async fn run(everturn: &Path, dir: &Path, quick: bool) -> Result<Vec<f64>> {
    let server = servers::everturn(everturn, dir)?;
    // Code, pools and buffers that are there once are no session's.
    fill(&server, "warm", 500).await?;
    let before = server.resident()?;
    let sessions = if quick { SESSIONS / 4 } else { SESSIONS };
    fill(&server, "idle", sessions).await?;
    let filled = server.resident()?;
    let mut streams = Vec::new();
    for n in 0..STREAMS {
        let mut http = Http::connect(server.addr).await?;
        let (path, body) = Wire::Everturn.turn(&format!("stream-{n}"), None, "slow 600000");
        http.open_stream(&path, &body).await?;
        streams.push(http);
    }
    let streaming = server.resident()?;
    drop(streams);
    Ok(vec![(filled - before) / sessions as f64, (streaming - filled) / STREAMS as f64, streaming / 1e6])
}

/// Opens so many sessions by one turn each.
async fn fill(server: &super::process::Process, name: &str, sessions: usize) -> Result<()> {
    let fillers: Vec<_> = (0..FILLERS)
        .map(|filler| {
            let (addr, name) = (server.addr, name.to_owned());
            tokio::spawn(async move {
                let mut http = Http::connect(addr).await?;
                for n in (filler..sessions).step_by(FILLERS) {
                    let (path, body) = Wire::Everturn.turn(&format!("{name}-{n}"), None, "Where is it?");
                    http.post(&path, &body).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for filler in fillers {
        filler.await??;
    }
    Ok(())
}
