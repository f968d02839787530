//! Random work, held against a simple reference model.
//!
//! The model keeps whole states, copies everything and knows nothing of segments, patches, caches or files. Whatever a
//! random sequence of operations leads to (turns that complete, fail, die, are stolen, taken over or retried; side
//! lines, rewinds, forks of forks; sessions deleted under all of that), the stores must read the same: states, events,
//! snapshots, turns, scopes, versions, listings, digests. Prevented are all the ways in which a clever layout shows
//! something else than what was written.
//!
//! A failure prints its seed and the shortest sequence of operations that still fails. `EVERTURN_MODEL_SEED` runs one
//! seed again, `EVERTURN_MODEL_CASES` sets how many are run, `EVERTURN_MODEL_OPS` how long each is.

mod support;

#[path = "model/attempts.rs"]
mod attempts;
#[path = "model/compare.rs"]
mod compare;
#[path = "model/compare_rows.rs"]
mod compare_rows;
#[path = "model/content.rs"]
mod content;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/ops_sessions.rs"]
mod ops_sessions;
#[path = "model/ops_turns.rs"]
mod ops_turns;
#[path = "model/sessions.rs"]
mod sessions;
#[path = "model/state.rs"]
mod state;
#[path = "model/tree.rs"]
mod tree;
#[path = "model/turns.rs"]
mod turns;
#[path = "model/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everturn::store::{At, Commit, CreateSession};
use everturn::{Changes, Json, Point};
use ops::Profile;
use support::{Rng, setting};
use world::World;

/// So many operations lie between two comparisons of everything.
const COMPARE_EVERY: usize = 10;

/// A case that failed: what went wrong, and what had been done.
struct Failure {
    what: String,
    log: Vec<String>,
}

/// Runs one case; each operation is chosen by its own seed, so that leaving some out leaves the others alike.
fn run(profile: Profile, seeds: &[u64]) -> Result<(), Failure> {
    let seeds = seeds.to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let shared = log.clone();
    let work = async move {
        let mut world = World::new(seeds[0]);
        for (i, seed) in seeds.iter().enumerate() {
            let mut done = world.op(profile, *seed).await;
            if done.is_ok() && (i + 1 == seeds.len() || i % COMPARE_EVERY == 0) {
                world.note("compare");
                done = world.compare(i + 1 == seeds.len() || seed % 4 == 0).await;
            }
            shared.lock().expect("nobody panics with it").clone_from(&world.log);
            done?;
        }
        Ok::<(), String>(())
    };
    // A panic in a store is a failure like any other.
    let local = tokio::task::LocalSet::new();
    let done = local.block_on(&runtime, async { tokio::task::spawn_local(work).await });
    let what = match done {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(what)) => what,
        Err(panic) => format!("it panicked: {panic}"),
    };
    Err(Failure { what, log: log.lock().expect("nobody panics with it").clone() })
}

/// Leaves out operations, many at first and then one by one, while it still fails.
fn shrink(profile: Profile, mut seeds: Vec<u64>, mut failure: Failure) -> (Vec<u64>, Failure) {
    let until = Instant::now() + Duration::from_secs(setting("EVERTURN_MODEL_SHRINK_SECONDS", 60));
    let mut chunk = seeds.len().div_ceil(2);
    loop {
        let mut at = 0;
        let before = seeds.len();
        while at < seeds.len() && Instant::now() < until {
            let mut fewer = seeds.clone();
            fewer.drain(at..(at + chunk).min(seeds.len()));
            match if fewer.is_empty() { Ok(()) } else { run(profile, &fewer) } {
                Err(found) => (seeds, failure) = (fewer, found),
                Ok(()) => at += chunk,
            }
        }
        if (chunk == 1 && seeds.len() == before) || Instant::now() >= until {
            return (seeds, failure);
        }
        chunk = chunk.div_ceil(2);
    }
}

/// The log without what says nothing: most requests are mostly empty.
fn shortened(log: &[String]) -> String {
    const EMPTY: [&str; 20] = [
        "actions: EventActions { skip_summarization: false, transfer_to_agent: None, escalate: false, \
         requested_tool_confirmations: {} }, ",
        "usage: Usage { input_tokens: 0, output_tokens: 0, total_tokens: 0, cached_content_tokens: 0, thoughts_tokens: 0 }",
        ", cached_content_tokens: 0, thoughts_tokens: 0",
        "id: None, seq: 0, at: None, invocation_id: None, turn_index: None, ",
        "artifact_delta: {}, ",
        "long_running_tool_ids: [], error_code: None, error_message: None, ",
        "state_delta: {}, state_removed: {}, ",
        "state_delta: StateDelta { set: {}, remove: {} }",
        "splice: None, ",
        "events: [], ",
        "custom: None, ",
        "schema_version: None, ",
        "artifacts: [], ",
        "view: None, ",
        "tools: [], ",
        "path: \"\", kind: Message, ",
        "partial: false, ",
        "data: None, resume: None, detach: false, ",
        ", usage: None, metadata: None",
        "expect: None, ",
    ];
    let lines = log.iter().map(|line| EMPTY.iter().fold(line.clone(), |line, empty| line.replace(empty, "")));
    lines.collect::<Vec<_>>().join("\n")
}

fn case(seed: u64) {
    let mut rng = Rng::new(seed);
    let profile = Profile::of(seed);
    let seeds: Vec<_> = (0..setting("EVERTURN_MODEL_OPS", 80)).map(|_| rng.next()).collect();
    let Err(failure) = run(profile, &seeds) else { return };
    let (fewer, failure) = shrink(profile, seeds, failure);
    panic!(
        "{}\n\nafter these {} operations ({profile:?}):\n{}\n\nEVERTURN_MODEL_SEED={seed} runs it again",
        failure.what,
        fewer.len(),
        shortened(&failure.log)
    );
}

#[test]
fn stores_read_what_the_model_reads() {
    if let Ok(seed) = std::env::var("EVERTURN_MODEL_SEED") {
        return case(seed.parse().expect("a seed is a number"));
    }
    let cases: u64 = setting("EVERTURN_MODEL_CASES", 24);
    let first: u64 = setting("EVERTURN_MODEL_FIRST", 0);
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + cases {
                        break;
                    }
                    case(seed);
                }
            });
        }
    });
}

/// A custom state is stored as patches until there are many of them: each point must find the whole it starts from, and
/// none may be applied twice or left out where the next whole begins.
#[tokio::test]
async fn a_long_run_of_small_changes_reads_as_written() {
    let mut world = World::new(1);
    let key = support::key("ann", "long");
    let mut rng = Rng::new(7);
    let mut fields: BTreeMap<String, u64> = (0..500).map(|i| (format!("f{i}"), i)).collect();
    let mut written = Vec::new();
    for lane in &world.lanes {
        lane.store.create(CreateSession::at(key.clone())).await.expect("it is new");
    }
    for i in 0..160 {
        fields.insert(format!("f{}", rng.below(500)), i);
        if i % 20 == 7 {
            fields.remove(&format!("f{}", rng.below(500)));
        }
        let custom = Json::from_value(&fields).expect("it is JSON");
        for lane in &world.lanes {
            let edit = Commit::new(key.clone(), Changes::new().custom(custom.clone()));
            lane.store.commit(edit).await.expect("nothing runs");
        }
        written.push(custom);
        if i == 100 {
            world.restart();
        }
    }
    for lane in world.lanes.iter().chain([&world.second_handle()]) {
        for (i, custom) in written.iter().enumerate().step_by(4) {
            let at = At::Point(key.clone(), Point::new(i as u64 + 2));
            let state = lane.store.state(at).await.expect("it can be read").expect("it was written");
            assert_eq!(state.custom(), Some(custom), "{} at {i}", lane.name);
        }
        compare::verified(lane).await.expect("nothing is damaged");
    }
}
