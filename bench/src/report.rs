//! The figures, their bars, and how they are shown.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

/// Something that is measured.
pub(crate) struct Figure {
    /// Its name in JSON, and for `--only`.
    pub(crate) name: &'static str,
    /// What it says, in words.
    pub(crate) what: &'static str,
    pub(crate) bar: Bar,
}

/// What a figure must reach.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    /// Shown to explain another figure.
    None,
}

impl Bar {
    fn cleared(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::Below(limit) => value < limit,
            Self::AtLeast(least) => value >= least,
            Self::None => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("<= {most}"),
            Self::Below(limit) => format!("< {limit}"),
            Self::AtLeast(least) => format!(">= {least}"),
            Self::None => String::new(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Report(Vec<(&'static Figure, f64)>);

impl Report {
    pub(crate) fn add(&mut self, figure: &'static Figure, value: f64) {
        self.0.push((figure, value));
    }

    pub(crate) fn print(&self) {
        let wide = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let name = wide(&mut self.0.iter().map(|(figure, _)| figure.name.len()));
        let what = wide(&mut self.0.iter().map(|(figure, _)| figure.what.chars().count()));
        println!("{:name$}  {:>10}  {:>9}  {:6}  {:what$}", "figure", "value", "bar", "", "what");
        for (figure, value) in &self.0 {
            let verdict = match figure.bar {
                Bar::None => "",
                bar if bar.cleared(*value) => "ok",
                _ => "MISSED",
            };
            let (value, bar) = (shown(*value), figure.bar.text());
            println!("{:name$}  {value:>10}  {bar:>9}  {verdict:6}  {}", figure.name, figure.what);
        }
    }

    pub(crate) fn write_json(&self, path: &Path, quick: bool) -> Result<()> {
        let mut members: Map<String, Value> =
            self.0.iter().map(|(figure, value)| (figure.name.to_owned(), json!(value))).collect();
        members.insert("quick".to_owned(), json!(quick));
        let text = serde_json::to_string_pretty(&Value::Object(members))?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Names the bars that were missed; only a gate fails because of them.
    pub(crate) fn verdict(&self, check: bool) -> ExitCode {
        let missed: Vec<_> = self.0.iter().filter(|(figure, value)| !figure.bar.cleared(*value)).collect();
        for (figure, value) in &missed {
            eprintln!("missed: {} is {}, the bar is {}", figure.name, shown(*value), figure.bar.text());
        }
        if check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

fn shown(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_could_not_be_measured_clears_no_bar() {
        for bar in [Bar::AtMost(1.0), Bar::Below(1.0), Bar::AtLeast(1.0)] {
            assert!(!bar.cleared(f64::NAN));
        }
        assert!(Bar::AtMost(1.2).cleared(1.2) && !Bar::Below(2.0).cleared(2.0) && Bar::AtLeast(0.8).cleared(0.8));
    }
}
