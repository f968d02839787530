//! Models of real providers.
//!
//! A [`Provider`] is a [`Model`] whose name says who runs it. The key comes from the provider's usual variable, or from
//! you:
//!
//! ```no_run
//! use everturn::Message;
//! use everturn::model::{ModelRequest, Provider, generate};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let model = Provider::new("anthropic/claude-sonnet-4-5")?; // reads ANTHROPIC_API_KEY at the first request
//! let response = generate(&model, ModelRequest::new(vec![Message::user("Hi.")])).await?;
//! println!("{}", response.message.text());
//! # Ok(()) }
//! ```
//!
//! A server of your own that speaks OpenAI's language needs its address:
//!
//! ```
//! use everturn::model::Provider;
//!
//! let local = Provider::new("openai/qwen3-8b")?.endpoint("http://127.0.0.1:1234/v1/")?;
//! # Ok::<(), everturn::Error>(())
//! ```

mod access;
mod answer;
mod asking;
mod body;
mod failure;
mod media;
mod messages;
mod name;
mod settings;
mod watch;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Model, ModelRequest, ModelStream};
use crate::Result;
use access::{Endpoint, Key};
use name::Name;

/// A model of OpenAI, Anthropic, Google, Ollama or another provider, or of any server that speaks OpenAI's language.
///
/// Cheap to clone; clones share their connections.
///
/// ```
/// use std::time::Duration;
/// use everturn::model::Provider;
///
/// let model = Provider::new("gemini/gemini-2.5-flash")?
///     .api_key("a key from your own vault")
///     .retries(4)
///     .idle_timeout(Duration::from_secs(30));
/// assert!(!format!("{model:?}").contains("vault"));
/// # Ok::<(), everturn::Error>(())
/// ```
///
/// # What is not promised
///
/// A request that fails before anything was said is sent again, so a provider may count it twice. Once a piece of the
/// answer was handed on, a failure ends the stream: whoever asks decides whether to ask again.
#[derive(Clone)]
pub struct Provider {
    name: Name,
    key: Key,
    endpoint: Option<Endpoint>,
    limits: Limits,
    client: Arc<OnceLock<genai::Client>>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    retries: u32,
    backoff: Duration,
    connect: Duration,
    idle: Duration,
    answer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retries: 2,
            backoff: Duration::from_millis(500),
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            answer: 16 << 20,
        }
    }
}

impl Provider {
    /// A model by provider and name, like `openai/gpt-5`. An unknown provider is [`Invalid`](crate::ErrorKind::Invalid).
    ///
    /// ```
    /// use everturn::model::{Model, Provider};
    ///
    /// assert_eq!(Provider::new("groq/llama-3.3-70b-versatile")?.name(), "groq/llama-3.3-70b-versatile");
    /// assert!(Provider::new("gpt-5").unwrap_err().to_string().contains("openai/gpt-5"));
    /// # Ok::<(), everturn::Error>(())
    /// ```
    pub fn new(name: impl Into<String>) -> Result<Self> {
        Ok(Self {
            name: Name::parse(name.into())?,
            key: Key::Usual,
            endpoint: None,
            limits: Limits::default(),
            client: Arc::default(),
        })
    }

    /// The same with a key, instead of the one in the provider's usual variable. It is sent to the provider, and shown
    /// nowhere.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.key = Key::Given(key.into());
        self
    }

    /// The same with the key in another variable, read at the first request.
    #[must_use]
    pub fn api_key_from(mut self, variable: impl Into<String>) -> Self {
        self.key = Key::Variable(variable.into());
        self
    }

    /// The same at another address: what comes before `chat/completions`, or before whatever the provider's requests go
    /// to.
    ///
    /// The key in the provider's usual variable is not sent there, since the address may be anybody's: give one with
    /// [`api_key`](Self::api_key) or [`api_key_from`](Self::api_key_from) if it needs one.
    pub fn endpoint(mut self, url: impl AsRef<str>) -> Result<Self> {
        self.endpoint = Some(Endpoint::parse(url.as_ref())?);
        self.client = Arc::default();
        Ok(self)
    }

    /// The same with so many further tries after a failure that may pass, while nothing was said yet. The default is 2.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.limits.retries = retries;
        self
    }

    /// The same with another pause before the first retry; each further one waits twice as long, and none more than 30
    /// seconds. A provider that names a pause gets that one. The default is half a second.
    #[must_use]
    pub fn backoff(mut self, pause: Duration) -> Self {
        self.limits.backoff = pause;
        self
    }

    /// The same with another limit to the time a connection may take. The default is 10 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.limits.connect = timeout;
        self.client = Arc::default();
        self
    }

    /// The same with another limit to the time without a sign of life, the wait for the first one included. The default
    /// is two minutes.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.limits.idle = timeout;
        self
    }

    /// The same with another limit to the bytes of an answer's text, reasoning and tool requests together. The default
    /// is 16 MiB.
    #[must_use]
    pub fn max_answer_bytes(mut self, bytes: usize) -> Self {
        self.limits.answer = bytes;
        self
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name.full)
            .field("endpoint", &self.endpoint.as_ref().map(Endpoint::host))
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Model for Provider {
    fn name(&self) -> &str {
        &self.name.full
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        asking::stream(self.clone(), request)
    }
}
