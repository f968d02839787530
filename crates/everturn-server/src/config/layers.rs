//! Where values come from: defaults, a file, the environment, flags; each outdoes those before it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;

use super::settings::{SETTINGS, Setting, Shape};

/// What a setting is called that every command has.
pub(crate) const STORE: Setting = Setting {
    flag: "store",
    shape: Shape::One,
    value: "STORE",
    default: "sqlite:./.everturn/sessions.db",
    help: "Where sessions are kept",
    group: "Store",
};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => path.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// What was given on the command line, by setting.
pub(crate) type Flags = BTreeMap<&'static str, Vec<String>>;

/// The value of every setting and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Layers(BTreeMap<&'static str, (Vec<String>, Source)>);

pub(crate) fn all() -> impl Iterator<Item = &'static Setting> {
    std::iter::once(&STORE).chain(SETTINGS)
}

impl Layers {
    /// Puts the layers on top of each other. `variable` looks into the environment.
    pub(crate) fn new(
        file: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
        flags: &Flags,
    ) -> anyhow::Result<Self> {
        let mut values = BTreeMap::new();
        for setting in all() {
            let default = Some(setting.default.to_owned()).filter(|text| !text.is_empty());
            values.insert(setting.flag, (default.into_iter().collect(), Source::Default));
        }
        if let Some(path) = file {
            for (flag, given) in read_file(path)? {
                values.insert(flag, (given, Source::File(path.to_owned())));
            }
        }
        for setting in all() {
            let name = setting.variable();
            // Empty is how scripts say that they have nothing to say.
            let Some(text) = variable(&name).filter(|text| !text.is_empty()) else { continue };
            let given = match setting.shape {
                Shape::Many => text.split(',').map(|item| item.trim().to_owned()).collect(),
                _ => vec![text],
            };
            values.insert(setting.flag, (given, Source::Variable(name)));
        }
        for (flag, given) in flags {
            values.insert(flag, (given.clone(), Source::Flag(flag)));
        }
        Ok(Self(values))
    }

    fn raw(&self, flag: &str) -> (&[String], &Source) {
        self.0.get(flag).map_or((&[], &Source::Default), |(values, source)| (values, source))
    }

    /// All values of a setting.
    pub(crate) fn many<T: FromStr<Err: fmt::Display>>(&self, flag: &str) -> anyhow::Result<Vec<T>> {
        let (values, source) = self.raw(flag);
        let read = |text: &String| {
            text.parse().map_err(|why| {
                let key = flag.replace('-', "_");
                let text = without_password(text);
                match source {
                    Source::Default | Source::File(_) => anyhow::anyhow!("{source}: {key} = \"{text}\": {why}"),
                    _ => anyhow::anyhow!("{source}: \"{text}\": {why}"),
                }
            })
        };
        values.iter().map(read).collect()
    }

    /// The value of a setting that may have none.
    pub(crate) fn maybe<T: FromStr<Err: fmt::Display>>(&self, flag: &str) -> anyhow::Result<Option<T>> {
        Ok(self.many(flag)?.pop())
    }

    /// The value of a setting.
    pub(crate) fn one<T: FromStr<Err: fmt::Display>>(&self, flag: &str) -> anyhow::Result<T> {
        self.maybe(flag)?.with_context(|| format!("--{flag} needs a value"))
    }

    /// All settings as a file would have them, each with where it comes from.
    pub(crate) fn to_toml(&self) -> String {
        let mut out = String::from("# What `everturn serve` is set to, and where each value comes from.\n");
        for setting in all() {
            let (values, source) = self.raw(setting.flag);
            let key = setting.key();
            let shown: Vec<_> = values.iter().map(|text| quoted(&without_password(text))).collect();
            let line = match (setting.shape, shown.first()) {
                (Shape::Many, _) => format!("{key} = [{}]", shown.join(", ")),
                (_, None) => format!("# {key} is not set"),
                (Shape::Switch, Some(_)) => format!("{key} = {}", values[0]),
                (Shape::One, Some(value)) if value[1..value.len() - 1].bytes().all(|b| b.is_ascii_digit()) => {
                    format!("{key} = {}", values[0])
                }
                (Shape::One, Some(value)) => format!("{key} = {value}"),
            };
            match line.starts_with('#') {
                true => out.push_str(&format!("{line}\n")),
                // On a line of its own inside the comment, a path with a line break would end it.
                false => out.push_str(&format!("{line} # {}\n", source.to_string().replace(['\n', '\r'], " "))),
            }
        }
        out
    }
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// An address without the password that may be in it.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rsplit_once('@').and_then(|(who, host)| Some((who.split_once(':')?.0, host))) {
        Some((who, host)) => format!("{scheme}://{who}:***@{host}{}", &rest[end..]),
        None => text.to_owned(),
    }
}

fn read_file(path: &Path) -> anyhow::Result<Vec<(&'static str, Vec<String>)>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}: check --config"))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        anyhow::anyhow!("{shown}: line {line} is not TOML: {}", error.message())
    })?;
    let mut values = Vec::new();
    for (key, value) in &table {
        let Some(setting) = all().find(|setting| setting.key() == *key) else {
            anyhow::bail!("{shown}: there is no setting `{key}`{}", suggestion(key));
        };
        let wrong = || format!("{shown}: {key} must be {}", expected(setting.shape));
        values.push((setting.flag, texts(value, setting.shape).with_context(wrong)?));
    }
    Ok(values)
}

fn expected(shape: Shape) -> &'static str {
    match shape {
        Shape::One => "one text or number",
        Shape::Switch => "true or false",
        Shape::Many => "a list of texts",
    }
}

fn texts(value: &toml::Value, shape: Shape) -> Option<Vec<String>> {
    match (value, shape) {
        (toml::Value::String(text), Shape::One) => Some(vec![text.clone()]),
        (toml::Value::Integer(number), Shape::One) => Some(vec![number.to_string()]),
        (toml::Value::Boolean(switch), Shape::Switch) => Some(vec![switch.to_string()]),
        (toml::Value::Array(items), Shape::Many) => items.iter().map(|item| Some(item.as_str()?.to_owned())).collect(),
        _ => None,
    }
}

/// The setting that was probably meant.
fn suggestion(key: &str) -> String {
    let near = all().map(|setting| (distance(key, &setting.key()), setting.key())).min();
    match near {
        Some((distance, near)) if distance <= key.len().max(3) / 2 => format!(": did you mean `{near}`?"),
        _ => ": `everturn serve --print-config` shows all".to_owned(),
    }
}

/// How many letters must be changed, added or left out.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_address_is_not_shown() {
        assert_eq!(without_password("postgres://ann:s3cr3t@db/x"), "postgres://ann:***@db/x");
        for text in ["postgres://ann@db/x", "sqlite:./a:b@c", "https://app.example", "info"] {
            assert_eq!(without_password(text), text);
        }
    }

    #[test]
    fn the_nearest_name_is_suggested_and_nothing_far() {
        assert!(suggestion("header_timout").contains("`header_timeout`"));
        assert!(suggestion("adr").contains("`addr`"));
        assert!(suggestion("xyzzyplugh").contains("--print-config"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let flags =
            Flags::from([("cors-origin", vec!["https://a.example".to_owned()]), ("page-limit", vec!["7".into()])]);
        let layers = Layers::new(None, |_| None, &flags).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a \" b.toml");
        std::fs::write(&path, layers.to_toml()).unwrap();
        let again = Layers::new(Some(&path), |_| None, &Flags::new()).unwrap();
        for setting in all() {
            assert_eq!(again.raw(setting.flag).0, layers.raw(setting.flag).0, "{}", setting.flag);
        }
    }
}
