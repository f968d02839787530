//! What a kill costs a turn that was calling tools: nothing that finished is done again, nothing that was said is lost.
//!
//! A child process runs a prompt agent whose tools leave a line in a file each time they do something; it is killed
//! inside a tool, or between a tool's end and the next question to the model, and the turn is tried again here. Prevented
//! are: a call that runs twice although its answer was known; a call that is silently run again although nobody knows
//! whether it happened; a model that is asked again for what it had said; state and artifacts of a finished call that
//! vanish with its process.

mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use everturn::model::{ModelRequest, Reply, ScriptedModel};
use everturn::store::{SqliteOptions, SqliteStore, Store, VerifyScope};
use everturn::tool::{Tool, ToolContext};
use everturn::{
    Agent, Artifact, CallState, FinishReason, Init, Input, Interrupt, Json, Message, Output, Part, Prompt, Resume,
    Role, SessionId, TurnKey, TurnStatus,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use support::{Child, Rng, say, setting, var};

const FILE: &str = "EVERTURN_TOOLS_FILE";
const MOMENT: &str = "EVERTURN_TOOLS_MOMENT";
const KEY: &str = "EVERTURN_TOOLS_KEY";

/// Where the child stops to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Moment {
    /// The tool has begun and done nothing.
    BeforeEffect,
    /// The tool has done its work and not answered.
    AfterEffect,
    /// The tool has answered, and the model is about to be asked again.
    BeforeModel,
    /// Wherever it is.
    Anywhere,
}

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// It stands where it is to be killed.
    Here,
    Done,
}

#[derive(Deserialize, JsonSchema)]
struct Work {
    n: u64,
}

/// Where tools leave their mark: outside of the store, as the world is.
#[derive(Clone)]
struct World(PathBuf);

impl World {
    fn mark(&self, tool: &str, context: &ToolContext) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(format!("{tool} {}\n", context.call_id()).as_bytes()).unwrap();
    }

    /// How often each call did something.
    fn marks(&self) -> BTreeMap<String, usize> {
        let mut marks = BTreeMap::new();
        for line in std::fs::read_to_string(&self.0).unwrap_or_default().lines() {
            *marks.entry(line.to_owned()).or_default() += 1;
        }
        marks
    }
}

async fn stop_here(at: Option<Moment>, moment: Moment) {
    if at == Some(moment) {
        say(&Said::Here);
        std::future::pending::<()>().await;
    }
}

/// A tool that leaves a mark in the world, in the state and among the artifacts.
fn working(name: &'static str, world: &World, at: Option<Moment>) -> Tool {
    let world = world.clone();
    Tool::new(name, "Does something.", move |work: Work, context: ToolContext| {
        let world = world.clone();
        async move {
            stop_here(at, Moment::BeforeEffect).await;
            world.mark(name, &context);
            let session = context.session::<Json>().expect("it runs in a session");
            session.state().await?.set(&format!("{name}{}", work.n), &work.n)?;
            session.state().await?.set(&format!("user:{name}{}", work.n), &work.n)?;
            session.add_artifact(Artifact::new(format!("{name}{}", work.n), vec![Part::text("made")])).await?;
            stop_here(at, Moment::AfterEffect).await;
            Ok(format!("{name} {} by {}", work.n, std::process::id()))
        }
    })
}

const ROUNDS: u64 = 3;

/// Three rounds of two tools each, then an answer. What it says names the process it was said in.
fn model() -> ScriptedModel {
    ScriptedModel::answering(|request: &ModelRequest| {
        let answered = request.messages.iter().filter(|message| message.role() == Role::Tool).count() as u64;
        if answered == ROUNDS {
            return Some(Reply::text(format!("done in {}", std::process::id())));
        }
        let note = Part::text(format!("round {answered} by {}", std::process::id()));
        let input = Json::from_value(&serde_json::json!({ "n": answered })).unwrap();
        let charge = Part::tool_request("charge", Some(&format!("c{answered}")), &input);
        let look = Part::tool_request("look", Some(&format!("l{answered}")), &input);
        Some(Reply::parts(vec![note, charge, look]))
    })
}

/// The second question to the model is where the child may be stopped.
struct StopBeforeModel(Option<Moment>);

#[async_trait::async_trait]
impl everturn::Hook for StopBeforeModel {
    async fn after_tool(
        &self,
        _: &everturn::HookContext<Json>,
        call: &everturn::ToolCall,
        _: &mut everturn::ToolAnswer,
    ) -> everturn::HookResult {
        if call.name == "look" {
            stop_here(self.0, Moment::BeforeModel).await;
        }
        Ok(())
    }
}

fn agent(store: Arc<dyn Store>, world: &World, model: &ScriptedModel, at: Option<Moment>) -> Agent<Json> {
    let prompt = Prompt::new(model.clone())
        .tool(working("charge", world, at))
        .tool(working("look", world, at).idempotent())
        .hook(StopBeforeModel(at));
    Agent::prompt("worker", prompt).shared_store(store).build().unwrap()
}

fn open(file: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteOptions::new(file).open().expect("a file whose process was killed opens"))
}

fn session() -> SessionId {
    SessionId::new("s").unwrap()
}

fn init(keyed: bool) -> Init {
    let init = Init::session(session());
    if keyed { init.key(TurnKey::new("order-1").unwrap()) } else { init }
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child() {
    let Some(file) = var(FILE).map(PathBuf::from) else { return };
    let at: Moment = serde_json::from_str(&var(MOMENT).unwrap()).unwrap();
    let keyed = var(KEY).is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World(file.with_extension("world"));
        let agent = agent(open(&file), &world, &model(), Some(at));
        if at == Moment::Anywhere {
            say(&Said::Here);
        }
        agent.run_text("go", init(keyed)).await.unwrap();
        say(&Said::Done);
        // Its end is the kill, however early it was done.
        std::future::pending::<()>().await;
    });
}

struct Killed {
    _directory: tempfile::TempDir,
    file: PathBuf,
    world: World,
}

fn place() -> Killed {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessions.db");
    let world = World(file.with_extension("world"));
    Killed { _directory: directory, file, world }
}

/// Runs a child until it stands where it is to be killed, and kills it.
fn killed(place: &Killed, at: Moment, keyed: bool) {
    let moment = serde_json::to_string(&at).unwrap();
    let mut vars = vec![(FILE, place.file.to_str().unwrap()), (MOMENT, &moment)];
    if keyed {
        vars.push((KEY, "1"));
    }
    let child = Child::start("child", &vars);
    match child.hear() {
        Some(Said::Here) => drop(child.kill::<Said>()),
        other => panic!("the child said {other:?}"),
    }
}

async fn try_again(agent: &Agent<Json>, keyed: bool) -> Output {
    if keyed {
        return agent.run_text("go", init(true)).await.unwrap();
    }
    let dead = agent.unfinished(&session()).await.unwrap();
    assert_eq!((dead.len(), dead[0].status), (1, TurnStatus::Dead));
    agent.retry(dead[0].turn).await.unwrap().output().await.unwrap()
}

/// A turn that went through: every round is there once, with what it left.
async fn assert_whole(store: &Arc<SqliteStore>, world: &World, output: &Output) {
    assert_eq!((output.finish_reason, &output.error), (Some(FinishReason::Stop), &None));
    let roles: Vec<_> = output.state.messages().iter().map(Message::role).collect();
    let mut expected = vec![Role::User];
    (0..ROUNDS).for_each(|_| expected.extend([Role::Model, Role::Tool]));
    expected.push(Role::Model);
    assert_eq!(roles, expected);
    let custom: BTreeMap<String, u64> = output.state.custom().unwrap().unwrap();
    assert_eq!(custom.len() as u64, 2 * ROUNDS, "{custom:?}");
    assert_eq!(output.state.artifacts().len() as u64, 2 * ROUNDS);
    let app = everturn::AppName::new("worker").unwrap();
    let scopes = store.scopes(&app, Some(&everturn::UserId::new("user").unwrap())).await.unwrap();
    assert_eq!(scopes.len() as u64, 2 * ROUNDS, "{scopes:?}");
    let charges: Vec<_> = world.marks().into_iter().filter(|(mark, _)| mark.starts_with("charge")).collect();
    assert_eq!(charges.len() as u64, ROUNDS, "{charges:?}");
    assert!(store.verify(VerifyScope::All).await.unwrap().damage.is_none());
}

async fn after_its_end(keyed: bool) {
    let place = place();
    killed(&place, Moment::BeforeModel, keyed);
    let store = open(&place.file);
    let model = model();
    let agent = agent(store.clone(), &place.world, &model, None);
    let dead = agent.unfinished(&session()).await.unwrap();
    let calls = agent.calls(dead[0].turn).await.unwrap();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| matches!(call.state, CallState::Finished(_))), "{calls:?}");
    let before = place.world.marks();
    let output = try_again(&agent, keyed).await;
    assert_whole(&store, &place.world, &output).await;
    let after = place.world.marks();
    assert!(before.iter().all(|(mark, times)| after[mark] == *times), "{before:?} {after:?}");
    assert_eq!(model.requests().len() as u64, ROUNDS, "what the model had said it is not asked again");
    let first = output.state.messages().get(1).unwrap().text();
    assert!(first.starts_with("round 0 by ") && !first.ends_with(&std::process::id().to_string()), "{first}");
    assert_eq!(agent.unfinished(&session()).await.unwrap(), []);
}

#[tokio::test]
async fn killed_between_a_tools_end_and_the_next_question_a_retry_goes_on_from_there() {
    after_its_end(false).await;
}

#[tokio::test]
async fn the_same_key_sent_again_goes_on_as_well() {
    after_its_end(true).await;
}

#[tokio::test]
async fn killed_inside_a_tool_a_person_is_asked_what_became_of_it() {
    for at in [Moment::BeforeEffect, Moment::AfterEffect] {
        let place = place();
        killed(&place, at, false);
        let store = open(&place.file);
        let agent = agent(store.clone(), &place.world, &model(), None);
        let dead = agent.unfinished(&session()).await.unwrap();
        let calls = agent.calls(dead[0].turn).await.unwrap();
        assert!(calls.iter().all(|call| call.state == CallState::Unknown), "{calls:?}");
        let happened = place.world.marks().keys().filter(|mark| mark.starts_with("charge")).count();
        let output = try_again(&agent, false).await;
        assert_eq!(output.finish_reason, Some(FinishReason::Interrupted), "{:?}", output.error);
        let asked = Interrupt::all_in(output.message.as_ref().unwrap());
        assert_eq!((asked.len(), asked[0].name.as_str(), asked[0].outcome_unknown()), (1, "charge", true));
        let charged = place.world.marks().keys().filter(|mark| mark.starts_with("charge")).count();
        assert_eq!(charged, happened, "nothing was charged again");
        // A person looked: it had happened, or it had not.
        let resume = match at {
            Moment::AfterEffect => Resume::new().respond(&asked[0], "it went through").unwrap(),
            _ => Resume::new().restart(&asked[0], &true).unwrap(),
        };
        let done = agent.run(Input::resume(&resume).unwrap(), Init::session(session())).await.unwrap();
        assert_eq!(done.finish_reason, Some(FinishReason::Stop), "{:?}", done.error);
        let charges: Vec<_> = place.world.marks().into_iter().filter(|(mark, _)| mark.starts_with("charge")).collect();
        assert_eq!(charges.len() as u64, ROUNDS, "{charges:?}");
        assert!(charges.iter().all(|(_, times)| *times == 1), "{charges:?}");
    }
}

/// Kills at random, as often as it takes; whatever was known to be finished stays finished.
#[tokio::test]
async fn killed_anywhere_again_and_again_no_finished_call_runs_twice() {
    let mut rng = Rng::new(setting("EVERTURN_SEED", 7));
    for round in 0..setting("EVERTURN_ROUNDS", 6) {
        let place = place();
        for _ in 0..4 {
            let moment = serde_json::to_string(&Moment::Anywhere).unwrap();
            let vars = [(FILE, place.file.to_str().unwrap()), (MOMENT, &moment), (KEY, "1")];
            let child = Child::start("child", &vars);
            assert!(matches!(child.hear(), Some(Said::Here)));
            std::thread::sleep(std::time::Duration::from_micros(rng.below(25_000) as u64));
            child.kill::<Said>();
        }
        let store = open(&place.file);
        let model = model();
        let agent = agent(store.clone(), &place.world, &model, None);
        let known = match agent.unfinished(&session()).await.unwrap().first() {
            Some(dead) => agent.calls(dead.turn).await.unwrap(),
            None => Vec::new(),
        };
        let before = place.world.marks();
        let mut output = agent.run_text("go", init(true)).await.unwrap();
        while output.finish_reason == Some(FinishReason::Interrupted) {
            let asked = Interrupt::all_in(output.message.as_ref().unwrap());
            let resume = asked.iter().try_fold(Resume::new(), |resume, one| resume.respond(one, "looked up")).unwrap();
            output = agent.run(Input::resume(&resume).unwrap(), Init::session(session())).await.unwrap();
        }
        assert_eq!(output.error, None, "round {round}");
        let after = place.world.marks();
        for call in known.iter().filter(|call| matches!(call.state, CallState::Finished(_))) {
            let mark = format!("{} {}", call.name, call.call.as_ref().unwrap());
            assert_eq!(before.get(&mark), after.get(&mark), "round {round}: {mark} ran again");
        }
        let charges = after.iter().filter(|(mark, _)| mark.starts_with("charge"));
        assert!(charges.clone().all(|(_, times)| *times == 1), "round {round}: {after:?}");
        let texts: Vec<_> = output.state.messages().iter().map(Message::text).collect();
        assert_eq!(texts.iter().filter(|text| text.starts_with("round ")).count() as u64, ROUNDS, "{texts:?}");
        assert!(store.verify(VerifyScope::All).await.unwrap().damage.is_none());
    }
}
