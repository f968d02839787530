//! Prompt agents: models, tools, interrupts, hooks, the ledger. One module a theme; where a store matters, every test
//! runs on each of them.

#[macro_use]
#[path = "../runtime/support.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod support;

#[path = "../runtime/faulty.rs"]
#[allow(dead_code, reason = "only some of the faults are of use here")]
mod faulty;

mod dive;
mod tools;

mod agent_tools;
mod asking;
mod calling;
mod dive_hooks;
mod dive_locking;
mod dive_persisting;
mod dive_random;
mod dive_resuming;
mod dive_stateless;
mod dive_suspending;
mod dive_withdrawing;
mod events;
mod generating;
mod interrupting;
mod subagents;
