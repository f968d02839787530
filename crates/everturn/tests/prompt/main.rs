//! Prompt agents: models, tools, interrupts, hooks, the ledger. One module a theme; where a store matters, every test
//! runs on each of them.

#[macro_use]
#[path = "../runtime/support.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod support;

mod tools;

mod agent_tools;
mod asking;
mod calling;
mod events;
mod generating;
mod interrupting;
mod subagents;
