//! Chaos: processes that work on one file are killed and started again at random, while turns flow in.
//!
//! Prevented are: an input that was accepted and never ends, or ends twice; a tool call that finished and is made again;
//! a turn that nobody looks after; and a file that is damaged by it all.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everturn::model::{ModelRequest, Reply, ScriptedModel};
use everturn::store::{RecordQuery, Store, VerifyScope};
use everturn::tool::{Tool, ToolContext};
use everturn::{
    Agent, CallState, EndStatus, Init, Json, Part, Prompt, Recovery, Role, SnapshotId, SnapshotStatus, TurnError,
    TurnId, TurnKey,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::children::{HOLD_TOOL, LONG, Place, Process, RECOVERY, Said, TOOLS, of_worker};
use crate::gate::{detached, patience, until};
use crate::processes::{Rng, setting, var};
use crate::support::sid;

#[derive(Deserialize, JsonSchema)]
struct Work {
    n: u64,
}

/// Where tools leave their mark: outside of the store, as the world is.
fn world(file: &Path) -> PathBuf {
    file.with_extension("world")
}

/// How often each call was made.
pub(crate) fn marks(file: &Path) -> BTreeMap<String, usize> {
    let mut marks = BTreeMap::new();
    for line in std::fs::read_to_string(world(file)).unwrap_or_default().lines() {
        *marks.entry(line.to_owned()).or_default() += 1;
    }
    marks
}

fn marking(name: &'static str, world: &Path) -> Tool {
    let world = world.to_owned();
    Tool::new(name, "Does something.", move |work: Work, context: ToolContext| {
        let world = world.clone();
        async move {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&world)?;
            file.write_all(format!("{name} {}\n", context.call_id()).as_bytes())?;
            if name == "look" && work.n == 1 && var(HOLD_TOOL).is_some() {
                std::future::pending::<()>().await;
            }
            Ok(work.n)
        }
    })
}

const ROUNDS: usize = 2;

/// Calls both tools so many times, then answers.
fn model() -> ScriptedModel {
    ScriptedModel::answering(|request: &ModelRequest| {
        let mut said = 0;
        for message in request.messages.iter().rev() {
            match message.role() {
                Role::User => break,
                Role::Tool => said += 1,
                _ => {}
            }
        }
        if said == ROUNDS {
            return Some(Reply::text("done"));
        }
        let input = Json::from_value(&serde_json::json!({ "n": said })).expect("it is JSON");
        let calls = ["charge", "look"].map(|tool| Part::tool_request(tool, Some(&format!("{tool}{said}")), &input));
        Some(Reply::parts(calls.to_vec()))
    })
}

/// An agent with two tools: one that must not run twice, and one that may.
pub(crate) fn agent(store: Arc<dyn Store>, file: &Path, recovery: Recovery) -> Agent<Json> {
    let world = world(file);
    let prompt = Prompt::new(model()).tool(marking("charge", &world)).tool(marking("look", &world).idempotent());
    Agent::prompt("worker", prompt)
        .shared_store(store)
        .recovery(recovery)
        .patience(patience(|p| (p.abort_poll, p.heartbeat) = (Duration::from_millis(50), LONG)))
        .build()
        .expect("it fits together")
}

/// The processes, and what is known of the inputs they were given.
struct Campaign {
    place: Place,
    rng: Rng,
    workers: Vec<Process>,
    /// Inputs by key, and the snapshot of those that were accepted.
    inputs: BTreeMap<String, Option<SnapshotId>>,
    kills: usize,
}

const WORKERS: usize = 3;

/// Inputs that share a session. A few: one that waits for a person, because nobody knows whether a call was made, takes
/// nothing else.
const SHARED: usize = 4;

fn session_of(key: &str) -> String {
    let n: usize = key.strip_prefix('k').and_then(|n| n.parse().ok()).expect("we made it");
    format!("s{}", n / SHARED)
}

/// Whether a turn was refused because its session waits for a person.
fn waits_for_a_person(error: Option<&TurnError>) -> bool {
    error.is_some_and(|error| error.status == "FAILED_PRECONDITION")
}

impl Campaign {
    fn new(seed: u64) -> Self {
        let mut campaign =
            Self { place: Place::new(), rng: Rng::new(seed), workers: Vec::new(), inputs: BTreeMap::new(), kills: 0 };
        campaign.workers = (0..WORKERS).map(|_| campaign.worker()).collect();
        campaign
    }

    /// A new process that works.
    fn worker(&self) -> Process {
        // More attempts than there are kills: no turn fails because it was unlucky.
        let mut worker = self.place.child(&[(TOOLS, "1"), (RECOVERY, "1000000")]);
        worker.tell("work");
        worker
    }

    /// Gives a process an input, for the first time or again.
    fn send(&mut self, key: &str) {
        let which = self.rng.below(WORKERS);
        self.workers[which].tell(&format!("keyed {} {key}", session_of(key)));
        self.inputs.entry(key.to_owned()).or_default();
    }

    fn kill_one(&mut self) {
        let which = self.rng.below(WORKERS);
        let fresh = self.worker();
        let killed = std::mem::replace(&mut self.workers[which], fresh);
        self.kills += 1;
        for said in killed.last_words() {
            self.note(said);
        }
    }

    fn listen(&mut self) {
        let said: Vec<_> = self.workers.iter().flat_map(Process::heard).collect();
        said.into_iter().for_each(|said| self.note(said));
    }

    fn note(&mut self, said: Said) {
        match said {
            Said::Accepted { text, snapshot } => {
                let before = self.inputs.insert(text.clone(), Some(snapshot)).flatten();
                assert!(before.is_none_or(|before| before == snapshot), "{text} was accepted as two turns");
            }
            Said::Repeated { text } => assert!(self.inputs.contains_key(&text), "nobody asked for {text}"),
            // Somebody works on it, or on something before it.
            Said::Refused { text, kind } => assert!(kind == "busy", "{text} was refused as {kind}"),
            other => panic!("a worker said {other:?}"),
        }
    }

    fn rage(&mut self, until: Instant) {
        let mut next = 0;
        while Instant::now() < until {
            match self.rng.below(100) {
                0..12 => self.kill_one(),
                12..22 => {
                    // Whoever got no answer asks again.
                    let open: Vec<_> = self.inputs.iter().filter(|(_, id)| id.is_none()).collect();
                    if !open.is_empty() {
                        let key = open[self.rng.clone().below(open.len())].0.clone();
                        self.send(&key);
                    }
                }
                _ => {
                    self.send(&format!("k{next}"));
                    next += 1;
                }
            }
            self.listen();
            // Pace, not a wait for something: so many inputs and kills a second.
            std::thread::sleep(Duration::from_millis(10 + self.rng.below(30) as u64));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_at_random_every_accepted_input_ends_once_and_every_finished_call_was_made_once() {
    let seed = setting("EVERTURN_SEED", 11);
    println!("EVERTURN_SEED={seed}");
    let mut campaign = Campaign::new(seed);
    let seconds = setting("EVERTURN_CHAOS_SECONDS", 8);
    campaign.rage(Instant::now() + Duration::from_secs(seconds));

    // Calm: what was accepted ends, looked after by those who are left.
    let file = campaign.place.file();
    let store = campaign.place.store(LONG);
    let agent = agent(store.clone(), &file, Recovery::Leave);
    campaign.listen();
    assert!(campaign.kills > 0, "nothing was killed");
    let accepted: Vec<_> = campaign.inputs.iter().filter_map(|(key, id)| Some((key.clone(), (*id)?))).collect();
    assert!(accepted.len() > 10, "only {} inputs were accepted", accepted.len());
    for (key, id) in &accepted {
        let ended = until(async || {
            let row = agent.snapshot(*id).await.unwrap().unwrap_or_else(|| panic!("{key} lost its row"));
            (!matches!(row.status, SnapshotStatus::Pending | SnapshotStatus::Expired)).then_some(row)
        })
        .await;
        let fine = ended.status == SnapshotStatus::Completed || waits_for_a_person(ended.error.as_ref());
        assert!(fine, "{key} ended as {:?}: {:?}", ended.status, ended.error);
    }
    // Those who got no answer ask once more, and all of them get one.
    for key in campaign.inputs.keys() {
        let init = || Init::session(sid(&session_of(key))).key(TurnKey::new(key).unwrap());
        until(async || match agent.run(detached(key), init()).await {
            Ok(output) => Some(output),
            Err(error) => {
                assert_eq!(error.kind(), everturn::ErrorKind::Busy, "{key}: {error}");
                None
            }
        })
        .await;
    }
    until(async || store.running(None).await.unwrap().is_empty().then_some(())).await;
    drop(std::mem::take(&mut campaign.workers));

    check_turns(&agent, &store, &file, campaign.inputs.keys()).await;
    assert_eq!(store.verify(VerifyScope::All).await.unwrap().damage, None);
}

/// Each key is one turn with one end, and each call that finished left one mark.
async fn check_turns<'a>(
    agent: &Agent<Json>,
    store: &Arc<dyn Store>,
    file: &Path,
    keys: impl Iterator<Item = &'a String> + Clone,
) {
    let marks = marks(file);
    let mut turns: BTreeMap<String, Vec<TurnId>> = BTreeMap::new();
    let sessions: BTreeSet<_> = keys.clone().map(|key| session_of(key)).collect();
    for session in sessions {
        let mut query = RecordQuery::of(of_worker("user", &session));
        loop {
            let page = store.records(query.clone()).await.unwrap();
            for record in page.items {
                let Some(turn) = record.turn.filter(|turn| turn.begin().seq() == record.seq) else { continue };
                let input = store.turn(turn).await.unwrap().unwrap().input;
                turns.entry(input.messages[0].text()).or_default().push(turn);
            }
            let Some(next) = page.next else { break };
            query = query.from(next);
        }
    }
    let (mut done, mut asked) = (0, 0);
    for key in keys {
        asked += 1;
        let [turn] = turns.remove(key).unwrap_or_default()[..] else {
            panic!("{key} was begun more than once, or never")
        };
        let record = store.turn(turn).await.unwrap().unwrap();
        let ended = record.ended.unwrap_or_else(|| panic!("{key} has not ended"));
        let completed = ended.status == EndStatus::Completed;
        done += usize::from(completed);
        assert!(completed || waits_for_a_person(ended.outcome.error.as_ref()), "{key}: {:?}", ended.outcome.error);
        for call in agent.calls(turn).await.unwrap() {
            let mark = format!("{} {}", call.name, call.call.clone().unwrap_or_default());
            let made = marks.get(&mark).copied().unwrap_or_default();
            match (call.name.as_str(), &call.state) {
                ("charge", CallState::Finished(_)) => assert_eq!(made, 1, "{key}: {mark} was made {made} times"),
                ("charge", _) => assert!(made <= 1, "{key}: {mark} was made {made} times"),
                (_, CallState::Finished(_)) => assert!(made >= 1, "{key}: {mark} was never made"),
                _ => {}
            }
        }
    }
    assert!(2 * done > asked, "of {asked} turns {done} completed");
    assert!(turns.is_empty(), "nobody asked for {turns:?}");
}
