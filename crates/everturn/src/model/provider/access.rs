//! Where requests go, and with which key.

use std::env;
use std::fmt;
use std::net::IpAddr;

use genai::ServiceTarget;
use genai::resolver::AuthData;
use reqwest::Url;

use super::{Limits, Name, Provider};
use crate::{Error, Result};

/// Where the key comes from. It has no `Debug`, so that no key is shown by accident.
#[derive(Clone)]
pub(super) enum Key {
    /// From the provider's usual variable.
    Usual,
    Variable(String),
    Given(String),
}

/// A base address; its path ends with a slash.
#[derive(Clone, Debug)]
pub(super) struct Endpoint(Url);

impl Endpoint {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut url = Url::parse(text).map_err(|error| {
            Error::invalid(format!("the endpoint {text:?} is no URL like http://127.0.0.1:1234/v1/")).with_source(error)
        })?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(Error::invalid(format!(
                "the endpoint {text:?} must begin with http:// or https:// and a host"
            )));
        }
        // Requests go to paths below it, and without the slash its last segment would be replaced.
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(Self(url))
    }

    /// Who is asked, without what else a URL may hold: it is shown in errors.
    pub(super) fn host(&self) -> String {
        let port = self.0.port().map_or_else(String::new, |port| format!(":{port}"));
        format!("{}://{}{port}", self.0.scheme(), self.0.host_str().unwrap_or_default())
    }

    fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// Sent where no key is wanted: genai sends none only to few.
const NO_KEY: &str = "none";

/// A key that is not shown.
pub(super) struct Secret(pub(super) String);

impl Secret {
    /// A text without the key in it: some servers repeat it in their errors.
    pub(super) fn hide_in(&self, text: String) -> String {
        if self.0 == NO_KEY { text } else { text.replace(&self.0, "***") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// All that is needed to send a request.
pub(super) struct Access {
    pub(super) client: genai::Client,
    pub(super) target: ServiceTarget,
    pub(super) host: String,
    pub(super) secret: Secret,
}

impl Provider {
    /// Reads the environment and connects the two halves: late, so that a model can be named before its key is there.
    pub(super) async fn access(&self) -> Result<Access> {
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => endpoint_from_environment(&self.name)?,
        };
        let secret = self.secret()?;
        let loopback = endpoint.as_ref().is_some_and(Endpoint::is_loopback);
        let client = self.client(loopback)?;
        let model = genai::ModelIden::new(self.name.kind, self.name.model.as_str());
        let endpoint = match endpoint {
            Some(endpoint) => endpoint,
            None => {
                let usual = client.resolve_service_target(model.clone()).await;
                let usual = usual.map_err(|error| Error::invalid(format!("{}: {error}", self.name.full)))?;
                Endpoint::parse(usual.endpoint.base_url())?
            }
        };
        let host = endpoint.host();
        let auth = AuthData::from_single(secret.0.as_str());
        let endpoint = genai::resolver::Endpoint::from_owned(endpoint.0.as_str());
        Ok(Access { client, target: ServiceTarget { endpoint, auth, model }, host, secret })
    }

    fn secret(&self) -> Result<Secret> {
        let variable = match &self.key {
            Key::Given(key) if key.trim().is_empty() => {
                return Err(Error::invalid(format!(
                    "{}: the key given with Provider::api_key is empty",
                    self.name.full
                )));
            }
            Key::Given(key) => return Ok(Secret(key.trim().to_owned())),
            Key::Variable(variable) => variable.as_str(),
            // Servers at another address often want none, and must not be sent one that is not theirs.
            Key::Usual if self.endpoint.is_some() => return Ok(Secret(NO_KEY.into())),
            Key::Usual => match self.name.key_variable() {
                Some(variable) => variable,
                None => return Ok(Secret(NO_KEY.into())),
            },
        };
        let key = env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        key.map(Secret).ok_or_else(|| {
            Error::invalid(format!(
                "{}: there is no key: set {variable}, or give one with Provider::api_key",
                self.name.full
            ))
        })
    }

    fn client(&self, loopback: bool) -> Result<genai::Client> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let client = connect(&self.limits, loopback).map_err(|error| {
            Error::unavailable(format!("{}: cannot set up connections", self.name.full)).with_source(error)
        })?;
        let client = genai::Client::builder().with_reqwest(client).build();
        let client = client.map_err(|error| Error::internal(format!("{}: {error}", self.name.full)))?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    /// What to do about a key the provider does not take.
    pub(super) fn key_advice(&self) -> String {
        match (&self.key, self.name.key_variable()) {
            (Key::Given(_), _) => "check the key given with Provider::api_key".into(),
            (Key::Variable(variable), _) => format!("check the key in {variable}"),
            (Key::Usual, Some(variable)) if self.endpoint.is_none() => format!("check the key in {variable}"),
            (Key::Usual, _) => "give this endpoint's key with Provider::api_key".into(),
        }
    }
}

fn connect(limits: &Limits, loopback: bool) -> Result<reqwest::Client, reqwest::Error> {
    let builder = reqwest::Client::builder()
        .connect_timeout(limits.connect)
        .tcp_nodelay(true)
        // Keys travel in headers that a redirect would carry to another host.
        .redirect(reqwest::redirect::Policy::none());
    // A proxy has another idea of what 127.0.0.1 is.
    if loopback { builder.no_proxy() } else { builder }.build()
}

/// The address in the variable that the provider's own tools read.
fn endpoint_from_environment(name: &Name) -> Result<Option<Endpoint>> {
    use genai::adapter::AdapterKind as Kind;
    let variable = match name.kind {
        Kind::OpenAI | Kind::OpenAIResp => "OPENAI_BASE_URL",
        Kind::Anthropic => "ANTHROPIC_BASE_URL",
        Kind::Ollama => "OLLAMA_HOST",
        _ => return Ok(None),
    };
    match env::var(variable).ok().filter(|value| !value.trim().is_empty()) {
        Some(value) => usual_address(name.kind, value.trim()).map(Some),
        None => Ok(None),
    }
}

fn usual_address(kind: genai::adapter::AdapterKind, value: &str) -> Result<Endpoint> {
    use genai::adapter::AdapterKind as Kind;
    match kind {
        // Anthropic's tools leave the version out.
        Kind::Anthropic if !value.trim_end_matches('/').ends_with("/v1") => {
            Endpoint::parse(&format!("{}/v1/", value.trim_end_matches('/')))
        }
        // Ollama's variable is a host with a port, and a server is told 0.0.0.0 to listen everywhere.
        Kind::Ollama => {
            let value = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
            let mut endpoint = Endpoint::parse(&value)?;
            if endpoint.0.port().is_none() && endpoint.0.scheme() == "http" {
                let _ = endpoint.0.set_port(Some(11434));
            }
            if endpoint.0.host_str() == Some("0.0.0.0") {
                let _ = endpoint.0.set_host(Some("127.0.0.1"));
            }
            Ok(endpoint)
        }
        _ => Endpoint::parse(value),
    }
}

#[cfg(test)]
mod tests {
    use genai::adapter::AdapterKind as Kind;

    use super::*;

    #[test]
    fn an_endpoint_ends_with_a_slash_and_is_http() {
        assert_eq!(Endpoint::parse("http://127.0.0.1:1/v1").unwrap().0.as_str(), "http://127.0.0.1:1/v1/");
        for text in ["127.0.0.1:1", "ftp://x/", "", "http://"] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_is_known_by_name_and_number() {
        for (url, loopback) in [
            ("http://localhost:1/", true),
            ("http://127.0.0.2/", true),
            ("http://[::1]:9/", true),
            ("https://api.openai.com/v1/", false),
            ("http://127.0.0.1.example.com/", false),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().is_loopback(), loopback, "{url}");
        }
    }

    #[test]
    fn addresses_are_read_as_each_provider_spells_them() {
        for (kind, value, url) in [
            (Kind::OpenAI, "http://h/v1", "http://h/v1/"),
            (Kind::Anthropic, "http://h", "http://h/v1/"),
            (Kind::Anthropic, "http://h/v1/", "http://h/v1/"),
            (Kind::Ollama, "10.0.0.9", "http://10.0.0.9:11434/"),
            (Kind::Ollama, "0.0.0.0:8000", "http://127.0.0.1:8000/"),
            (Kind::Ollama, "https://o.example", "https://o.example/"),
        ] {
            assert_eq!(usual_address(kind, value).unwrap().0.as_str(), url, "{value}");
        }
    }

    #[test]
    fn a_host_is_shown_without_what_a_url_may_hide() {
        assert_eq!(Endpoint::parse("https://user:word@h:9/p?key=k").unwrap().host(), "https://h:9");
    }
}
