//! Clients that remember what they were told.

use std::fmt;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Reply, Rng, Stage, ask, events, until};

/// How a turn in the background ends whose server was killed every time it was tried: what recovery of the demo agents says.
pub(super) const GIVEN_UP: &str = "its process died at each of 3 attempts";

/// When a session is as good as lost.
const GIVE_UP: Duration = Duration::from_secs(180);

/// How a client sends its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Keyed,
    KeyedStream,
    Plain,
    Genkit,
    /// In the background, with a key.
    Detached,
}

/// Whether a turn may be refused. Where it may not, being refused is a failure of the campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusals {
    None,
    /// The store is unwell: 503 and 409, and turns that fail.
    Expected,
    /// The same, and what it reads may look damaged.
    Reads,
}

impl Refusals {
    fn may_be(self, reply: &Reply) -> bool {
        match (self, reply.status) {
            (Self::None, _) => false,
            (Self::Expected | Self::Reads, 200 | 409 | 503) => true,
            (Self::Expected, 500) => is_unknown(reply),
            (Self::Reads, status) => status == 500,
            (Self::Expected, _) => false,
        }
    }
}

/// Whether a server says, on either wire, that it does not know whether a turn is kept.
fn is_unknown(reply: &Reply) -> bool {
    let told: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    told["code"] == "unknown_outcome" || told["status"] == "UNKNOWN" || reply.body.contains("unknown_outcome")
}

/// A turn that was acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) text: String,
    pub(crate) answer: Value,
    pub(crate) sent: Instant,
    pub(crate) at: Instant,
}

/// What came of sending a turn.
pub(crate) enum Sent {
    Acknowledged(Value),
    /// The server said no, or that the turn failed.
    Refused(Reply),
    /// The connection broke: nobody knows what became of it.
    Broke,
    /// There was no connection.
    Unheard,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) way: Way,
    pub(crate) session: String,
    name: usize,
    /// Whether it waits for the end of a turn in the background before it sends the next.
    waits: bool,
    rng: Rng,
    sent: usize,
    /// The current turn was sent before.
    again: bool,
    pub(crate) acknowledged: Vec<Acknowledged>,
    /// Sent and neither acknowledged nor sent again: there or not, but not twice.
    pub(crate) in_doubt: Vec<String>,
    /// Refused, without a word that they may be kept all the same.
    pub(crate) not_kept: Vec<String>,
    /// How many turns were acknowledged only when they were sent again.
    retried: usize,
    refused: usize,
    /// The longest that a turn took.
    pub(crate) worst: Duration,
}

/// A client for each way and session, each with choices of its own.
pub(crate) fn clients(rng: &mut Rng, of: &[(Way, &str)]) -> Vec<Client> {
    let made = of.iter().enumerate().map(|(name, (way, session))| Client::new(name, *way, session, rng.part()));
    let mut made: Vec<_> = made.collect();
    for client in &mut made {
        // With others in its session, what it leaves behind when its server dies is passed by.
        client.waits = of.iter().filter(|(_, session)| *session == client.session).count() == 1;
    }
    made
}

/// Every client has a turn acknowledged after a moment, soon enough. Gives the time that the last one took.
pub(crate) fn go_on(server: &str, clients: &mut [Client], since: Instant, limit: Duration) -> Duration {
    thread::scope(|scope| {
        let going: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || client.go_on(server, since))).collect();
        let took = going.into_iter().map(|client| client.join().expect("a client"));
        let (session, longest) = took.max_by_key(|(_, took)| *took).expect("there are clients");
        assert!(longest < limit, "{session} could not be written to for {longest:?}");
        longest
    })
}

impl Client {
    fn new(name: usize, way: Way, session: &str, rng: Rng) -> Self {
        Self {
            way,
            session: session.to_owned(),
            name,
            waits: true,
            rng,
            sent: 0,
            again: false,
            acknowledged: Vec::new(),
            in_doubt: Vec::new(),
            not_kept: Vec::new(),
            retried: 0,
            refused: 0,
            worst: Duration::ZERO,
        }
    }

    /// The name of the current turn, which is its text where it can be.
    pub(crate) fn text(&self) -> String {
        format!("c{}-{}", self.name, self.sent)
    }

    /// Takes turns, at one server after another, until it is over.
    pub(crate) fn work(&mut self, stage: &Stage, refusals: Refusals) {
        while !stage.is_over() {
            let Some(server) = stage.server(self.rng.index(64)) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let since = Instant::now();
            match self.send(&server, &self.text()) {
                Sent::Acknowledged(answer) => self.note(answer, since),
                Sent::Refused(reply) => {
                    let expected =
                        refusals.may_be(&reply) || self.way == Way::Detached && reply.body.contains(GIVEN_UP);
                    assert!(expected, "{} in {} was refused: {reply:?}", self.text(), self.session);
                    self.refused += 1;
                    if !self.has_key() && !is_unknown(&reply) {
                        self.not_kept.push(self.text());
                    }
                    // A turn that ended in a failure is over; for the rest, those with a key send the same again.
                    self.give_up(reply.status == 200);
                    thread::sleep(Duration::from_millis(5));
                }
                Sent::Broke => self.give_up(false),
                Sent::Unheard => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
            }
            self.worst = self.worst.max(since.elapsed());
            self.wait_for_last(stage, refusals);
        }
    }

    /// Takes turns until one is acknowledged, unless one was since a moment. Gives its session, and how long that took.
    fn go_on(&mut self, server: &str, since: Instant) -> (&str, Duration) {
        if !self.acknowledged.iter().any(|turn| turn.at > since) {
            until("the end of a turn in the background", GIVE_UP, || {
                if self.last_has_ended(server, Refusals::Reads) { Ok(()) } else { Err(self.session.clone()) }
            });
        }
        until("that a session can be written to", GIVE_UP, || {
            if self.acknowledged.iter().any(|turn| turn.at > since) {
                return Ok(());
            }
            let sent = Instant::now();
            match self.send(server, &self.text()) {
                Sent::Acknowledged(answer) => self.note(answer, sent),
                Sent::Refused(reply) => {
                    self.give_up(reply.status == 200);
                    return Err(format!("{}: {reply:?}", self.session));
                }
                Sent::Broke | Sent::Unheard => panic!("the server is gone"),
            }
            Err("not yet".to_owned())
        });
        let first = self.acknowledged.iter().find(|turn| turn.at > since).expect("it was waited for");
        (&self.session, first.at - since)
    }

    /// Notes that the current turn was acknowledged, and goes on to the next.
    pub(crate) fn note(&mut self, answer: Value, since: Instant) {
        let text = self.text();
        self.acknowledged.push(Acknowledged { text, answer, sent: since, at: Instant::now() });
        self.retried += usize::from(self.again);
        (self.sent, self.again) = (self.sent + 1, false);
    }

    /// What becomes of a turn that was not acknowledged.
    fn give_up(&mut self, ended: bool) {
        self.again = true;
        if ended || !self.has_key() {
            self.in_doubt.push(self.text());
            (self.sent, self.again) = (self.sent + 1, false);
        }
    }

    pub(crate) fn has_key(&self) -> bool {
        matches!(self.way, Way::Keyed | Way::KeyedStream | Way::Detached)
    }

    /// Waits until the turn in the background that was acknowledged last has ended, at whichever server is up.
    fn wait_for_last(&self, stage: &Stage, refusals: Refusals) {
        while !stage.is_over() {
            match stage.server(self.sent).map(|server| self.last_has_ended(&server, refusals)) {
                Some(true) => return,
                Some(false) => {}
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Whether nothing of this client runs in the background, as far as the next turn must wait for it. What is sent while
    /// the turn before is dead and not yet tried anew takes its place on the line.
    pub(crate) fn last_has_ended(&self, server: &str, refusals: Refusals) -> bool {
        let Some(last) = self.acknowledged.last().filter(|_| self.way == Way::Detached && self.waits) else {
            return true;
        };
        let id = last.answer["snapshotId"].as_str().expect("a snapshot");
        match ask(server, "GET", &format!("/v1/agents/echo/snapshots/{id}/wait?seconds=1"), "", "") {
            Ok(reply) if reply.status == 200 => true,
            Ok(reply) => {
                assert!(matches!(reply.status, 202 | 503) || refusals.may_be(&reply), "{reply:?}");
                false
            }
            Err(_) => false,
        }
    }

    /// Sends a turn.
    pub(crate) fn send(&self, server: &str, text: &str) -> Sent {
        let session = &self.session;
        let key = if self.has_key() { format!("Idempotency-Key: {text}\r\n") } else { String::new() };
        let accept = if self.way == Way::KeyedStream { "Accept: text/event-stream\r\n" } else { "" };
        let (path, body) = match self.way {
            Way::Genkit => {
                let message = json!({ "role": "user", "content": [{ "text": text }] });
                ("/genkit/echo", json!({ "data": { "message": message }, "init": { "sessionId": session } }))
            }
            Way::Detached => {
                // How long it takes follows from its name, because what is sent again must be the same.
                let took = text.bytes().fold(0, |sum, byte| sum + u64::from(byte)) % 40;
                let parts = json!([{ "text": format!("slow {took}") }]);
                let message = json!({ "role": "user", "content": parts, "metadata": { "name": text } });
                let input = json!({ "messages": [message], "detach": true });
                ("/v1/agents/echo/turns", json!({ "session": session, "input": input }))
            }
            _ => ("/v1/agents/echo/turns", json!({ "session": session, "input": { "text": text } })),
        };
        let reply = match ask(server, "POST", path, &format!("{key}{accept}"), &body.to_string()) {
            Ok(reply) => reply,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Sent::Unheard,
            Err(_) => return Sent::Broke,
        };
        match self.read(&reply) {
            Some(answer) if answer["finishReason"] == "detached" && self.way == Way::Detached => {
                Sent::Acknowledged(answer)
            }
            Some(answer) if answer["finishReason"] == "stop" => {
                let said = if self.way == Way::Detached { "slow done".to_owned() } else { format!("echo: {text}") };
                assert_eq!(answer["message"]["content"][0]["text"], *said, "{answer}");
                Sent::Acknowledged(answer)
            }
            Some(_) => Sent::Refused(reply),
            None if reply.status != 200 || reply.body.contains("event: error\n") => Sent::Refused(reply),
            // A stream that ended before its turn.
            None => Sent::Broke,
        }
    }

    /// The output of a turn, if it came.
    fn read(&self, reply: &Reply) -> Option<Value> {
        if reply.status != 200 {
            return None;
        }
        match self.way {
            Way::Genkit => Some(reply.json()["result"].take()),
            Way::KeyedStream => Some(events(&reply.body).into_iter().rfind(|event| event.name == "output")?.data),
            _ => Some(reply.json()),
        }
    }
}

/// What a turn is known by: the name in its message, or its text.
pub(crate) fn name_of(message: &Value) -> &str {
    let name = message["metadata"]["name"].as_str();
    name.or(message["content"][0]["text"].as_str()).unwrap_or_else(|| panic!("no text: {message}"))
}

/// What the clients went through.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acknowledged: usize,
    pub(crate) detached: usize,
    pub(crate) retried: usize,
    pub(crate) in_doubt: usize,
    pub(crate) refused: usize,
    pub(crate) worst: Duration,
}

impl Tally {
    pub(crate) fn of(clients: &[Client]) -> Self {
        let mut tally = Self::default();
        for client in clients {
            tally.acknowledged += client.acknowledged.len();
            tally.detached += if client.way == Way::Detached { client.acknowledged.len() } else { 0 };
            tally.retried += client.retried;
            tally.in_doubt += client.in_doubt.len();
            tally.refused += client.refused;
            tally.worst = tally.worst.max(client.worst);
        }
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} turns acknowledged ({} of them detached, {} sent again), {} in doubt, {} refused, the longest took {:?}",
            self.acknowledged, self.detached, self.retried, self.in_doubt, self.refused, self.worst
        )
    }
}
