//! A prompt and its sub-agents: who there is, and who may hand over to whom.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::agent_tool::agent_tool;
use super::seat::{self, Seat};
use super::{Prompt, Ready};
use crate::agent::CustomState;
use crate::event::EventActions;
use crate::json::Json;
use crate::message::Role;
use crate::state::Messages;
use crate::tool::{Tool, check_all};
use crate::{AgentName, Error, Result};

/// The tool that hands the conversation over.
pub(super) const TRANSFER: &str = "transfer_to_agent";

/// What that tool is given.
#[derive(Deserialize)]
pub(super) struct Transfer {
    pub(super) agent: String,
    #[serde(default)]
    pub(super) message: Option<String>,
}

impl Transfer {
    /// What happened, for those who go on.
    pub(super) fn told(&self, by: &str) -> String {
        let message = self.message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
        format!("For context: {by} handed the conversation over to {}{message}", self.agent)
    }
}

/// What that tool answers.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Transferred {
    pub(super) transferred_to: String,
}

/// A prompt that others belong to.
pub(super) struct Child<S> {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) prompt: Prompt<S>,
}

/// Agents that may hand the conversation to each other, the root first.
pub(super) struct Team<S> {
    members: Vec<Ready<S>>,
}

impl<S: CustomState> Team<S> {
    /// The team of an agent that people speak with.
    pub(super) fn new(name: &str, prompt: &Prompt<S>) -> Result<Self> {
        if !prompt.sub_agents.is_empty() || !prompt.agent_tools.is_empty() {
            check_name(name)?;
        }
        Self::build(name, name.to_owned(), prompt, None)
    }

    /// The team of an agent that is a tool of another's.
    fn of_tool(child: &Child<S>, owner: &str) -> Result<Self> {
        let path = format!("{owner}.{}", child.name);
        Self::build(&child.name, path.clone(), &child.prompt, Some(path))
    }

    fn build(name: &str, path: String, prompt: &Prompt<S>, noted: Option<String>) -> Result<Self> {
        let mut team = Self { members: Vec::new() };
        let root = Ready { noted, ..prompt.ready(name.to_owned(), path)? };
        team.join(root, None)?;
        let names: Vec<_> = team.members.iter().map(|member| member.name.as_str()).collect();
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
            return Err(Error::invalid(format!("two agents are called {twice:?}: rename one")));
        }
        for index in 0..team.members.len() {
            team.equip(index)?;
        }
        Ok(team)
    }

    fn join(&mut self, ready: Ready<S>, parent: Option<usize>) -> Result<()> {
        let index = self.members.len();
        let children = ready.prompt.sub_agents.clone();
        let path = ready.path.clone();
        self.members.push(Ready { parent, ..ready });
        for child in children {
            check_name(&child.name)?;
            let path = format!("{path}.{}", child.name);
            let ready = child.prompt.ready(child.name.clone(), path.clone())?;
            self.join(Ready { description: child.description.clone(), noted: Some(path), ..ready }, Some(index))?;
        }
        Ok(())
    }

    /// Gives a member the tools it has because others are there.
    fn equip(&mut self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let reach: Vec<usize> = (0..self.members.len())
            .filter(|other| {
                let other_parent = self.members[*other].parent;
                let peer = *other != index && other_parent.is_some() && other_parent == member.parent;
                peer || other_parent == Some(index) || member.parent == Some(*other)
            })
            .collect();
        let mut tools = member.prompt.tools.clone();
        for child in &member.prompt.agent_tools {
            check_name(&child.name)?;
            if member.prompt.sub_agents.iter().any(|other| other.name == child.name) {
                return Err(Error::invalid(format!("two agents are called {:?}: rename one", child.name)));
            }
            let team = Arc::new(Self::of_tool(child, &member.path)?);
            tools.push(agent_tool(child, team, member.name.clone()));
        }
        if !reach.is_empty() {
            tools.push(self.transfer_tool(index, &reach)?);
        }
        check_all(&tools)?;
        let member = &mut self.members[index];
        (member.tools, member.reach) = (tools, reach);
        Ok(())
    }

    fn transfer_tool(&self, index: usize, reach: &[usize]) -> Result<Tool> {
        let mut about =
            "Hands the conversation over to another agent, which goes on in your place. You can choose:".to_owned();
        for at in reach {
            let other = &self.members[*at];
            let is = match other.description.as_str() {
                "" if self.members[index].parent == Some(*at) => "the agent above you",
                described => described,
            };
            about.push_str(&format!("\n- {}: {is}", other.name));
        }
        let names: Vec<_> = reach.iter().map(|other| self.members[*other].name.as_str()).collect();
        let schema = format!(
            r#"{{"type":"object","properties":{{"agent":{{"type":"string","enum":{},"description":"Who goes on."}},"message":{{"type":"string","description":"What they should know; they do not see all that you see."}}}},"required":["agent"]}}"#,
            Json::from_value(&names)?
        );
        let transfer = |input: Json, _| async move {
            let Transfer { agent, .. } = input.to()?;
            Ok(Json::from_value(&Transferred { transferred_to: agent })?)
        };
        Ok(Tool::untyped(TRANSFER, about, Json::parse(schema)?, transfer).idempotent())
    }

    pub(super) fn member(&self, index: usize) -> &Ready<S> {
        &self.members[index]
    }

    pub(super) fn root(&self) -> &Ready<S> {
        &self.members[0]
    }

    fn at(&self, noted: Option<&str>) -> Option<usize> {
        self.members.iter().position(|member| member.noted.as_deref() == noted)
    }

    /// Whom a member may hand over to, by name.
    fn reached(&self, from: usize, name: &str) -> Option<usize> {
        self.members[from].reach.iter().copied().find(|other| self.members[*other].name == name)
    }

    /// Who goes on after a member, if what its tools asked for hands over to anybody.
    pub(super) fn next(&self, from: usize, actions: &EventActions) -> Option<usize> {
        match &actions.transfer_to_agent {
            Some(name) => self.reached(from, name),
            None => self.members[from].parent.filter(|_| actions.escalate),
        }
    }

    /// Why a member cannot hand over as its tools asked, in words for its model.
    pub(super) fn refusal(&self, from: usize, actions: &EventActions) -> Option<String> {
        let name = actions.transfer_to_agent.as_ref().filter(|name| self.reached(from, name).is_none())?;
        let reach = &self.members[from].reach;
        let names: Vec<_> = reach.iter().map(|other| self.members[*other].name.as_str()).collect();
        Some(match names.is_empty() {
            true => format!("there is no agent {name:?} to hand over to, nor any other"),
            false => format!("there is no agent {name:?} to hand over to: choose one of {}", names.join(", ")),
        })
    }

    /// Who has the word in a conversation: the one who spoke last or was handed it, or the root if that one is not there
    /// any more.
    pub(super) fn speaker(&self, messages: &Messages, call: Option<&str>) -> Speaker {
        for message in messages.iter().rev().filter(|message| matches!(message.role(), Role::Model | Role::Tool)) {
            let seat = Seat::of(message);
            if seat.call.as_deref() != call {
                continue;
            }
            let root = self.root();
            let path = match seat::next(message) {
                Some(next) if next == root.path => root.noted.clone(),
                Some(next) => Some(next),
                None => seat.path,
            };
            return match self.at(path.as_deref()) {
                Some(member) => Speaker::Member(member),
                None => Speaker::Gone(path.unwrap_or_default()),
            };
        }
        Speaker::Member(0)
    }

    /// The member whose message it is, and none if it is nobody's here.
    pub(super) fn of_seat(&self, seat: &Seat) -> Option<usize> {
        self.at(seat.path.as_deref()).filter(|_| seat.call.is_none())
    }
}

/// Who has the word.
pub(super) enum Speaker {
    Member(usize),
    /// Somebody who is not there any more, by path.
    Gone(String),
}

fn check_name(name: &str) -> Result<()> {
    AgentName::new(name)?;
    if name.contains('.') {
        return Err(Error::invalid(format!("an agent in a team cannot be called {name:?}: leave out the '.'")));
    }
    if name == "user" {
        return Err(Error::invalid("an agent in a team cannot be called \"user\": that is who people are in events"));
    }
    Ok(())
}
