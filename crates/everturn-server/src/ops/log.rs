//! Where lines of the log go: to standard error, by a thread of their own.
//!
//! A reader of standard error that stops reading must not stop the server, so lines wait in a queue, and what finds it
//! full is dropped and counted.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use super::metrics::Metrics;

/// Lines that may wait.
const WAITING: usize = 8192;

/// How long lines are gathered after some were written: whoever sends one need not wake the thread each time.
const GATHERING: Duration = Duration::from_millis(10);

/// How long the last lines have when the process ends.
const LAST: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Lines {
    queue: SyncSender<Vec<u8>>,
    metrics: Arc<Metrics>,
}

/// Lets the last lines out when it is dropped.
pub(crate) struct Flush {
    queue: SyncSender<Vec<u8>>,
    done: Receiver<()>,
}

impl Lines {
    pub(super) fn start(metrics: Arc<Metrics>) -> io::Result<(Self, Flush)> {
        let (queue, lines) = sync_channel::<Vec<u8>>(WAITING);
        let (done, finished) = sync_channel(1);
        thread::Builder::new().name("everturn-log".to_owned()).spawn(move || {
            // An empty line is how the end is told.
            while let Some(mut line) = lines.recv().ok().filter(|line| !line.is_empty()) {
                // What queued up meanwhile goes out with it.
                while let Ok(more) = lines.try_recv() {
                    if more.is_empty() {
                        let _ = io::stderr().write_all(&line);
                        let _ = done.send(());
                        return;
                    }
                    line.extend(more);
                }
                // Nobody could be told that there is nobody to tell.
                let _ = io::stderr().write_all(&line);
                thread::sleep(GATHERING);
            }
            let _ = done.send(());
        })?;
        Ok((Self { queue: queue.clone(), metrics }, Flush { queue, done: finished }))
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        if self.queue.try_send(Vec::new()).is_ok() {
            let _ = self.done.recv_timeout(LAST);
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;
    fn make_writer(&'a self) -> Self::Writer {
        Line { lines: self, text: Vec::new() }
    }
}

/// A line that is being written; sent when it is dropped.
pub(super) struct Line<'a> {
    lines: &'a Lines,
    text: Vec<u8>,
}

impl io::Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if self.text.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.lines.queue.try_send(std::mem::take(&mut self.text)) {
            self.lines.metrics.line_dropped();
        }
    }
}
