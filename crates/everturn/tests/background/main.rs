//! Turns in the background: sent there, aborted, waited for, looked after when their process died. One module a theme;
//! where a store matters, every test runs on each of them, and where a process matters, it is a real one.

#[macro_use]
#[path = "../runtime/support.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod support;

#[path = "../runtime/faulty.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod faulty;

#[path = "../support/mod.rs"]
mod processes;

mod children;
mod gate;

mod aborting;
mod chaos;
mod clocks;
mod detaching;
mod races;
mod recovering;
mod waiting;
