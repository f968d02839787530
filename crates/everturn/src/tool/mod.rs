//! Tools: typed async functions that a model may ask for.
//!
//! ```
//! use everturn::tool::{Tool, ToolError};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct City {
//!     /// Its name in English.
//!     name: String,
//! }
//!
//! #[derive(Serialize, JsonSchema)]
//! struct Weather {
//!     celsius: i32,
//! }
//!
//! let weather = Tool::new("weather", "What the weather is like in a city.", |city: City, _| async move {
//!     match city.name.as_str() {
//!         "Oslo" => Ok(Weather { celsius: -3 }),
//!         _ => Err(ToolError::new("there is no weather in that city")),
//!     }
//! })
//! .idempotent();
//! assert_eq!(weather.name(), "weather");
//! ```

mod context;
mod error;
pub(crate) mod run;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use context::Asked;
pub use context::ToolContext;
pub(crate) use error::Trouble;
pub use error::{ToolError, ToolResult};

use crate::json::Json;
use crate::model::ToolDefinition;
use crate::schema::Schema;
use crate::{Error, Result};

type ToolFuture = Pin<Box<dyn Future<Output = ToolResult<Json>> + Send>>;
type ToolFn = dyn Fn(Json, ToolContext) -> ToolFuture + Send + Sync;

/// What becomes of a tool's error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnToolError {
    /// The model reads it as the tool's answer and goes on.
    #[default]
    TellModel,
    /// The turn fails with it.
    FailTurn,
}

/// What a retry does with a call of which nobody knows whether it happened: it was begun, and then the process died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// A person is asked: the turn is interrupted, and answers with what happened or has it run again.
    #[default]
    Ask,
    /// It is run again, because running it twice does no harm.
    RunAgain,
}

/// An async function that a model may ask for, with what it is given and what it answers checked against schemas.
/// Cheap to clone.
#[derive(Clone)]
pub struct Tool {
    definition: ToolDefinition,
    schemas: Arc<Result<Schemas>>,
    function: Arc<ToolFn>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_error: OnToolError,
    pub(crate) unknown: Unknown,
    pub(crate) needs_approval: bool,
    pub(crate) long_running: bool,
}

/// What is checked before and after a call.
pub(crate) struct Schemas {
    pub(crate) input: Schema,
    pub(crate) output: Option<Schema>,
}

impl Tool {
    /// A tool from a function. The schemas come from its types; the comments on their fields are what the model reads.
    pub fn new<I, O, F, Fut>(name: impl Into<String>, description: impl Into<String>, function: F) -> Self
    where
        I: DeserializeOwned + JsonSchema,
        O: Serialize + JsonSchema,
        F: Fn(I, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult<O>> + Send + 'static,
    {
        let input = Json::from_value(&schemars::schema_for!(I));
        let output = Json::from_value(&schemars::schema_for!(O));
        let function = move |input: Json, context| -> ToolFuture {
            let running = input.to::<I>().map(|input| function(input, context));
            Box::pin(async move { Ok(Json::from_value(&running?.await?)?) })
        };
        Self::with_schemas(name.into(), description.into(), input, Some(output), Arc::new(function))
    }

    /// A tool from a function over JSON, with a schema of its input that is only known now.
    pub fn untyped<F, Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Json,
        function: F,
    ) -> Self
    where
        F: Fn(Json, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult<Json>> + Send + 'static,
    {
        let function = move |input: Json, context| -> ToolFuture { Box::pin(function(input, context)) };
        Self::with_schemas(name.into(), description.into(), Ok(input_schema), None, Arc::new(function))
    }

    fn with_schemas(
        name: String,
        description: String,
        input: Result<Json>,
        output: Option<Result<Json>>,
        function: Arc<ToolFn>,
    ) -> Self {
        let compiled = || -> Result<(Schemas, Json)> {
            let (input, output) = (input?, output.transpose()?);
            let definition = input.clone();
            let input = Schema::new(format_args!("the input schema of tool {name:?}"), input)?;
            let what = format_args!("the output schema of tool {name:?}");
            let output = output.map(|json| Schema::new(what, json)).transpose()?;
            Ok((Schemas { input, output }, definition))
        };
        let (schemas, input_schema) = match compiled() {
            Ok((schemas, input)) => (Ok(schemas), input),
            Err(error) => (Err(error), Json::empty_object()),
        };
        let mut definition = ToolDefinition::new(name, description, input_schema);
        definition.output_schema =
            schemas.as_ref().ok().and_then(|schemas| schemas.output.as_ref()).map(|schema| schema.json().clone());
        Self {
            definition,
            schemas: Arc::new(schemas),
            function,
            timeout: None,
            on_error: OnToolError::default(),
            unknown: Unknown::default(),
            needs_approval: false,
            long_running: false,
        }
    }

    /// The same with a schema of what it answers, which answers by people are checked against too.
    #[must_use]
    pub fn output_schema(self, schema: Json) -> Self {
        let input = match &*self.schemas {
            Ok(schemas) => Ok(schemas.input.json().clone()),
            Err(error) => Err(Error::new(error.kind(), error.message())),
        };
        let ToolDefinition { name, description, .. } = self.definition.clone();
        let made = Self::with_schemas(name, description, input, Some(Ok(schema)), self.function.clone());
        Self { definition: made.definition, schemas: made.schemas, ..self }
    }

    /// The same with a limit on how long a call may take. One that takes longer is dropped, which is its error.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// The same with another way to treat its errors, panics and timeouts.
    #[must_use]
    pub fn on_error(mut self, on_error: OnToolError) -> Self {
        self.on_error = on_error;
        self
    }

    /// The same, which may run twice without harm: a retry runs it again where nobody knows whether it happened.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.unknown = Unknown::RunAgain;
        self
    }

    /// The same, which runs only after a person has agreed to it. The turn is interrupted; its answer says
    /// [`approve`](crate::Resume::approve) or [`deny`](crate::Resume::deny).
    #[must_use]
    pub fn requires_approval(mut self) -> Self {
        self.needs_approval = true;
        self
    }

    /// The same, whose work goes on after it has answered: its answer is a receipt, not the result, which a later turn
    /// may bring with [`Resume::result`](crate::Resume::result). Its calls are in `longRunningToolIds` of the events that
    /// ask for them and that answer them.
    #[must_use]
    pub fn long_running(mut self) -> Self {
        self.long_running = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// As a model is told of it.
    #[must_use]
    pub fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    /// Its schemas, or why they are none.
    pub(crate) fn schemas(&self) -> Result<&Schemas> {
        match &*self.schemas {
            Ok(schemas) => Ok(schemas),
            Err(error) => Err(Error::new(error.kind(), error.to_string())),
        }
    }

    pub(crate) fn call(&self, input: Json, context: ToolContext) -> ToolFuture {
        (self.function)(input, context)
    }

    /// Checks an answer that did not come from the function.
    pub(crate) fn check_output(&self, output: &Json) -> Result<()> {
        match &self.schemas()?.output {
            Some(schema) => {
                schema.check(output, format_args!("the answer does not fit what tool {:?} answers", self.name()))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.definition.name).finish_non_exhaustive()
    }
}

/// Refuses tools that cannot work together: names that are taken twice or that no provider takes, broken schemas.
pub(crate) fn check_all(tools: &[Tool]) -> Result<()> {
    for (index, tool) in tools.iter().enumerate() {
        let name = tool.name();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(Error::invalid(format!(
                "a tool cannot be called {name:?}: use 1 to 64 letters, digits, '_', '-' or '.'"
            )));
        }
        if tools[..index].iter().any(|other| other.name() == name) {
            return Err(Error::invalid(format!("two tools are called {name:?}: rename one")));
        }
        tool.schemas()?;
    }
    Ok(())
}
