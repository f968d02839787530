//! Server-sent events: a name, a line of JSON, and the position where there is one.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use everturn::{Error, ErrorKind, Position};
use futures_util::stream::unfold;
use serde::Serialize;

use super::problem::Problem;
use crate::http::queue;

/// How long a stream is silent before a comment shows that it is alive, and finds out whether its reader is.
const SILENCE: Duration = Duration::from_secs(15);

/// Where the frames of a stream go.
#[derive(Clone)]
pub(super) struct Frames(queue::Frames);

impl Frames {
    /// Sends an event. A reader that has gone is noticed elsewhere, by [`respond`].
    pub(super) async fn send<T: Serialize>(&self, name: &str, id: Option<Position>, data: &T) -> Result<(), Problem> {
        self.0.send(frame(name, id, data)?).await;
        Ok(())
    }
}

pub(super) fn frame<T: Serialize>(name: &str, id: Option<Position>, data: &T) -> Result<String, Problem> {
    // Line feeds inside strings are escaped by JSON itself; those between tokens of what was kept as it came mean nothing.
    let unwritable = |error| Error::new(ErrorKind::Internal, "an event cannot be written").with_source(error);
    let json = serde_json::to_string(data).map_err(unwritable)?.replace(['\n', '\r'], " ");
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Ok(format!("{id}event: {name}\ndata: {json}\n\n"))
}

/// A stream of what the work sends. Whatever happens to the work, the stream's last event says how it ended; when the
/// reader goes away the work is dropped.
pub(super) fn respond<F, W>(work: F) -> Response
where
    F: FnOnce(Frames) -> W,
    W: Future<Output = Result<(), Problem>> + Send + 'static,
{
    let (sender, queue) = queue::frames();
    // In a task of its own, so that even a panic ends the stream with an event.
    let task = tokio::spawn(work(Frames(sender.clone())));
    tokio::spawn(async move {
        let abort = task.abort_handle();
        let done = tokio::select! {
            done = task => done,
            () = sender.closed() => {
                abort.abort();
                return;
            }
        };
        let problem = match done {
            Ok(Ok(())) => return,
            Ok(Err(problem)) => problem,
            Err(_) => Error::new(ErrorKind::Internal, "a stream's work panicked").into(),
        };
        let _ = Frames(sender).send("error", None, &problem).await;
    });
    let body = unfold(queue, |mut queue| async {
        let frame = match tokio::time::timeout(SILENCE, queue.next()).await {
            Ok(frame) => frame?,
            Err(_) => ":\n\n".to_owned(),
        };
        Some((Ok::<_, Infallible>(frame), queue))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_line_of_data_whatever_it_holds() {
        let json = everturn::Json::parse("{\"a\":\n\r\n\"x\\ny\"}").unwrap();
        let text = frame("chunk", Some(Position::new(1, 7)), &json).unwrap();
        let lines: Vec<_> = text.trim_end_matches('\n').lines().collect();
        assert_eq!(lines[..2], ["id: 1.7", "event: chunk"]);
        assert_eq!(lines.len(), 3, "{text:?}");
        let data: serde_json::Value = serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["a"], "x\ny");
    }
}
