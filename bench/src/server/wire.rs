//! The same turn, as each server wants it said.

use serde_json::json;

use super::load::find;

/// Whose API is spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Everturn,
    Genkit,
    Adk,
}

impl Wire {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Everturn => "everturn",
            Self::Genkit => "genkit",
            Self::Adk => "adk",
        }
    }

    /// What makes a session, where a turn does not.
    pub(super) fn create(self, session: &str) -> Option<(String, String)> {
        (self == Self::Adk)
            .then(|| ("/apps/echo/users/user/sessions".to_owned(), json!({ "sessionId": session }).to_string()))
    }

    /// A turn: its path and its body. Genkit's own client begins without naming a session, and goes on from the snapshot it
    /// was told last; so do we, because a session that is named is looked for in all files.
    pub(super) fn turn(self, session: &str, place: Option<&str>, text: &str) -> (String, String) {
        match self {
            Self::Everturn => {
                let body = json!({ "session": session, "input": { "text": text } });
                ("/v1/agents/echo/turns".to_owned(), body.to_string())
            }
            Self::Genkit => {
                let init = match place {
                    Some(snapshot) => json!({ "snapshotId": snapshot }),
                    None => json!({}),
                };
                let message = json!({ "role": "user", "content": [{ "text": text }] });
                ("/echo".to_owned(), json!({ "data": { "message": message }, "init": init }).to_string())
            }
            Self::Adk => {
                let message = json!({ "role": "user", "parts": [{ "text": text }] });
                let body = json!({ "appName": "echo", "userId": "user", "sessionId": session, "newMessage": message });
                ("/run".to_owned(), body.to_string())
            }
        }
    }

    /// Where the next turn goes on, if the answer must be asked.
    pub(super) fn place(self, answer: &[u8]) -> Option<String> {
        if self != Self::Genkit {
            return None;
        }
        const NAME: &[u8] = b"\"snapshotId\":\"";
        let rest = &answer[find(answer, NAME)? + NAME.len()..];
        let end = rest.iter().position(|byte| *byte == b'"')?;
        String::from_utf8(rest[..end].to_vec()).ok()
    }
}
