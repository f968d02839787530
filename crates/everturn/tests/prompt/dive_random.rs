//! Random rounds of calls with random answers in part, against a simple model of what must come of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use everturn::model::{Reply, ScriptedModel, ToolMode};
use everturn::store::{StoreExt as _, VerifyScope};
use everturn::tool::{Tool, ToolError};
use everturn::{Agent, FinishReason, Input, Interrupt, Json, Output, Prompt, Resume, Role, SessionStatus};
use proptest::prelude::*;

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Answers,
    Fails,
    Asks,
    /// Asks, and asks once more when it is restarted.
    AsksTwice,
    Unknown,
}

/// What a person does about a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    Waits,
    Responds,
    Fails,
    Restarts,
}

#[derive(Clone, Debug)]
struct Plan {
    rounds: Vec<Vec<Kind>>,
    /// How each turn's agent runs its calls; the last goes on for ever.
    modes: Vec<ToolMode>,
    reactions: Vec<Reaction>,
}

fn plans() -> impl Strategy<Value = Plan> {
    use Kind::{Answers, Asks, AsksTwice, Fails, Unknown};
    let kinds =
        prop_oneof![3 => Just(Answers), 1 => Just(Fails), 4 => Just(Asks), 2 => Just(AsksTwice), 1 => Just(Unknown)];
    let rounds = prop::collection::vec(prop::collection::vec(kinds, 1..6), 1..4);
    let modes = prop::collection::vec(prop_oneof![Just(ToolMode::Parallel), Just(ToolMode::Sequential)], 1..8);
    let reactions =
        prop_oneof![Just(Reaction::Waits), Just(Reaction::Responds), Just(Reaction::Fails), Just(Reaction::Restarts)];
    (rounds, modes, prop::collection::vec(reactions, 0..24)).prop_map(|(rounds, modes, reactions)| Plan {
        rounds,
        modes,
        reactions,
    })
}

/// How often each call ran.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

/// A tool for each kind but the unknown one. Each writes its reference into the state when it answers.
fn tools(runs: &Runs) -> Vec<Tool> {
    let tool = |name: &'static str, kind: Kind| {
        let runs = runs.clone();
        Tool::untyped(name, "Does as it is told.", json("{}"), move |_, context| {
            let reference = context.reference().unwrap().to_owned();
            let times = {
                let mut runs = runs.lock().unwrap();
                let times = runs.entry(reference.clone()).or_default();
                *times += 1;
                *times
            };
            async move {
                let asks = match kind {
                    Kind::Asks => times < 2,
                    Kind::AsksTwice => times < 3,
                    Kind::Fails => return Err(ToolError::new("it failed")),
                    Kind::Answers | Kind::Unknown => false,
                };
                if asks {
                    return Err(ToolError::interrupt(&format!("{reference}? ({times})")));
                }
                context.session::<Json>().unwrap().state().await?.set(&reference, &times)?;
                Ok(Json::from_value(&reference)?)
            }
        })
    };
    vec![
        tool("answers", Kind::Answers),
        tool("fails", Kind::Fails),
        tool("asks", Kind::Asks),
        tool("asks_twice", Kind::AsksTwice),
    ]
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Answers => "answers",
        Kind::Fails => "fails",
        Kind::Asks => "asks",
        Kind::AsksTwice => "asks_twice",
        Kind::Unknown => "unknown",
    }
}

/// Asks for one round after the other, and is done when all have answered.
fn model(plan: &Plan) -> ScriptedModel {
    let rounds = plan.rounds.clone();
    ScriptedModel::answering(move |request| {
        let told = request.messages.iter().filter(|message| message.role() == Role::Tool).count();
        let Some(round) = rounds.get(told) else { return Some(Reply::text("done")) };
        let references: Vec<_> = (0..round.len()).map(|call| format!("{told}.{call}")).collect();
        let calls =
            round.iter().zip(&references).map(|(kind, reference)| (name(*kind), Some(reference.as_str()), "{}"));
        Some(Reply::calls(calls))
    })
}

/// What one call must have come to.
#[derive(Clone, Debug, Default)]
struct Expected {
    runs: usize,
    outcome: Option<Ended>,
}

/// Who ended a call, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Tool,
    ToolsError,
    Person,
    PersonsError,
}

async fn plays_out(home: Home, plan: Plan) {
    let runs = Runs::default();
    let model = model(&plan);
    let mut modes = plan.modes.iter().copied();
    let mut mode = ToolMode::Parallel;
    let mut agent = || {
        mode = modes.next().unwrap_or(mode);
        let prompt = Prompt::new(model.clone()).tools(tools(&runs)).tool_mode(mode);
        (Agent::prompt("helper", prompt).shared_store(home.elsewhere()).build().unwrap(), mode)
    };
    let mut reactions = plan.reactions.iter().copied().chain(std::iter::repeat(Reaction::Responds));
    let mut expected: Vec<Vec<Expected>> =
        plan.rounds.iter().map(|round| vec![Expected::default(); round.len()]).collect();
    let mut asked_models = 1;
    let (first, mode) = agent();
    let mut output = first.run_text("go", here()).await.unwrap();
    let mut round = settle(&plan, &mut expected, 0, mode, &mut asked_models);
    loop {
        check(&home, &plan, &expected, &output, &runs).await;
        assert_eq!(model.requests().len(), asked_models, "the model is asked when all have answered");
        if round == plan.rounds.len() {
            break;
        }
        let questions = asked(&output);
        let mut resume = Resume::new();
        let mut said = false;
        for (index, question) in questions.iter().enumerate() {
            let mut reaction = reactions.next().unwrap();
            if index + 1 == questions.len() && !said && reaction == Reaction::Waits {
                reaction = Reaction::Restarts;
            }
            said |= reaction != Reaction::Waits;
            let call = &mut expected[round][number(question)];
            (resume, call.outcome) = match reaction {
                Reaction::Waits => (resume, None),
                Reaction::Responds => (resume.respond(question, "by hand").unwrap(), Some(Ended::Person)),
                Reaction::Fails => (resume.fail(question, "by hand").unwrap(), Some(Ended::PersonsError)),
                Reaction::Restarts => {
                    call.runs += 1;
                    let enough = if plan.rounds[round][number(question)] == Kind::Asks { 2 } else { 3 };
                    (resume.restart(question, "again").unwrap(), (call.runs >= enough).then_some(Ended::Tool))
                }
            };
        }
        let (next, mode) = agent();
        output = next.run(Input::resume(&resume).unwrap(), here()).await.unwrap();
        round = settle(&plan, &mut expected, round, mode, &mut asked_models);
    }
    assert_eq!((output.text().as_str(), output.finish_reason), ("done", Some(FinishReason::Stop)));
    assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Idle);
    let verified = home.elsewhere().verify(VerifyScope::Session(of_helper("s"))).await.unwrap();
    assert_eq!(verified.damage, None);
}

fn number(question: &Interrupt) -> usize {
    question.reference.as_deref().unwrap().split_once('.').unwrap().1.parse().unwrap()
}

/// Starts what may start, round after round, until one waits. The round that waits, or the number of all.
fn settle(plan: &Plan, expected: &mut [Vec<Expected>], from: usize, mode: ToolMode, asked_models: &mut usize) -> usize {
    for (round, (kinds, calls)) in plan.rounds.iter().zip(expected).enumerate().skip(from) {
        let mut waits = false;
        for (kind, call) in kinds.iter().zip(calls) {
            let started = call.runs > 0 || call.outcome.is_some();
            let held_back = waits && mode == ToolMode::Sequential;
            if !started && !held_back {
                call.runs = usize::from(*kind != Kind::Unknown);
                call.outcome = match kind {
                    Kind::Answers => Some(Ended::Tool),
                    Kind::Fails | Kind::Unknown => Some(Ended::ToolsError),
                    Kind::Asks | Kind::AsksTwice => None,
                };
            }
            waits |= call.outcome.is_none();
        }
        if waits {
            return round;
        }
        *asked_models += 1;
    }
    plan.rounds.len()
}

async fn check(home: &Home, plan: &Plan, expected: &[Vec<Expected>], output: &Output, runs: &Runs) {
    assert_eq!(output.error, None);
    let ran = runs.lock().unwrap().clone();
    let mut written = BTreeMap::new();
    for (round, calls) in expected.iter().enumerate() {
        for (index, call) in calls.iter().enumerate() {
            let reference = format!("{round}.{index}");
            assert_eq!(ran.get(&reference).copied().unwrap_or_default(), call.runs, "runs of {reference} of {plan:?}");
            if call.outcome == Some(Ended::Tool) {
                written.insert(reference, call.runs);
            }
        }
    }
    let tools: Vec<_> = output.state.messages().iter().filter(|message| message.role() == Role::Tool).collect();
    let complete = expected.iter().take_while(|calls| calls.iter().all(|call| call.outcome.is_some())).count();
    assert_eq!(tools.len(), complete, "one message of answers for each round that has them all");
    for (round, message) in tools.iter().enumerate() {
        let parts = message.parts();
        assert_eq!(parts.len(), expected[round].len());
        for (index, (part, call)) in parts.iter().zip(&expected[round]).enumerate() {
            let answer = part.as_tool_response().unwrap();
            let (reference, output) = (answer.reference.unwrap(), answer.output.unwrap().to_string());
            assert_eq!(reference, format!("{round}.{index}"), "answers come in the order of the requests");
            let ended = call.outcome.unwrap();
            let is_error = matches!(ended, Ended::ToolsError | Ended::PersonsError);
            assert_eq!(part.metadata("error").is_some(), is_error);
            match ended {
                Ended::Tool => assert_eq!(output, format!("{reference:?}")),
                Ended::ToolsError => assert!(output.contains("failed") || output.contains("no tool"), "{output}"),
                Ended::Person | Ended::PersonsError => assert!(output.contains("by hand"), "{output}"),
            }
        }
    }
    let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
    assert_eq!((stored.messages().to_vec(), stored.custom()), (kept(output), output.state.custom_json()));
    let custom: BTreeMap<String, usize> = stored.custom().map(|custom| custom.to().unwrap()).unwrap_or_default();
    assert_eq!(custom, written, "what tools wrote is there once they have answered");
}

fn run(home: Home, plan: Plan) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(plays_out(home, plan));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_rounds_of_calls_come_to_what_was_answered_in_memory(plan in plans()) {
        run(Home::memory(), plan);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn any_rounds_of_calls_come_to_what_was_answered_in_a_file(plan in plans()) {
        run(Home::sqlite(), plan);
    }
}
