//! Names like `openai/gpt-5`: who runs the model, and which one it is.

use genai::adapter::AdapterKind;

use crate::{Error, Result};

/// A model's name, taken apart.
#[derive(Clone)]
pub(super) struct Name {
    /// As it was given.
    pub(super) full: String,
    pub(super) kind: AdapterKind,
    pub(super) model: String,
}

/// What is spoken with a provider, as far as it matters for what can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    OpenAi,
    Anthropic,
    Gemini,
    Ollama,
    Other,
}

impl Name {
    pub(super) fn parse(full: String) -> Result<Self> {
        let Some((provider, model)) = full.split_once('/') else {
            return Err(Error::invalid(format!(
                "the model {full:?} does not say who runs it: write it like openai/{full}; known providers: {}",
                providers()
            )));
        };
        if model.trim().is_empty() {
            return Err(Error::invalid(format!("the model {full:?} has no name after its provider")));
        }
        let kind = match provider {
            "googleai" => AdapterKind::Gemini,
            other => AdapterKind::from_lower_str(other).ok_or_else(|| {
                Error::invalid(format!(
                    "the provider {other:?} of the model {full:?} is unknown; known providers: {}",
                    providers()
                ))
            })?,
        };
        let model = model.to_owned();
        Ok(Self { full, kind, model })
    }

    pub(super) fn wire(&self) -> Wire {
        use AdapterKind as Kind;
        match self.kind {
            Kind::Anthropic | Kind::MiniMax => Wire::Anthropic,
            Kind::Vertex if self.model.starts_with("claude") => Wire::Anthropic,
            Kind::Gemini | Kind::Vertex => Wire::Gemini,
            Kind::Ollama | Kind::OllamaCloud => Wire::Ollama,
            Kind::OpenAIResp | Kind::GeminiIx | Kind::Cohere | Kind::BedrockApi | Kind::Baidu | Kind::OpenCodeGo => {
                Wire::Other
            }
            _ => Wire::OpenAi,
        }
    }

    /// The variable that usually holds the provider's key, if it wants one.
    pub(super) fn key_variable(&self) -> Option<&'static str> {
        self.kind.default_key_env_name()
    }

    /// What notes in messages call the provider, so that its signatures are sent to nobody else.
    pub(super) fn provider(&self) -> &'static str {
        self.kind.as_lower_str()
    }
}

fn providers() -> String {
    let mut names: Vec<&str> = AdapterKind::all().iter().map(AdapterKind::as_lower_str).collect();
    names.push("googleai");
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_name_says_the_provider_and_the_model() {
        for (full, kind, model) in [
            ("openai/gpt-5", AdapterKind::OpenAI, "gpt-5"),
            ("googleai/gemini-2.5-pro", AdapterKind::Gemini, "gemini-2.5-pro"),
            ("gemini/gemini-2.5-pro", AdapterKind::Gemini, "gemini-2.5-pro"),
            ("open_router/openai/gpt-5", AdapterKind::OpenRouter, "openai/gpt-5"),
            ("ollama/qwen3:8b", AdapterKind::Ollama, "qwen3:8b"),
        ] {
            let name = Name::parse(full.into()).unwrap();
            assert_eq!((name.kind, name.model.as_str()), (kind, model), "{full}");
        }
    }

    #[test]
    fn a_wrong_name_is_refused_with_the_names_that_exist() {
        for full in ["gpt-5", "opnai/gpt-5", "openai/", "openai/ ", "/gpt-5", ""] {
            let error = Name::parse(full.into()).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{full}");
        }
        let error = Name::parse("opnai/gpt-5".into()).err().unwrap().to_string();
        assert!(error.contains("opnai") && error.contains("openai") && error.contains("googleai"), "{error}");
    }
}
