//! What is said in the benchmarks, the same in every run, and how a turn is taken.

use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use everturn::store::{At, BeginTurn, CreateSession, EndTurn, SqliteStore, Start, Store as _, StoreExt as _};
use everturn::{
    Changes, Clock as _, Event, Input, InvocationId, Json, Message, NewSnapshot, Receipt, SessionKey, SnapshotId,
    SystemClock,
};

const VOCABULARY: usize = 5_000;
/// The bytes of a message, or a few more: it ends with a whole word.
pub(crate) const MESSAGE: usize = 1_000;

/// SplitMix64: small, and the same on every machine and in every release.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap_or(0)
    }
}

/// Letters as often as English has them: how well a text packs depends on it.
const LETTERS: &[u8] = b"eeeeeeeeeeeeettttttttttaaaaaaaaaoooooooooiiiiiiiiinnnnnnnnssssssshhhhhhhrrrrrrrdddddlllllcccuuummmwwwfffggyyppbbvk\
    jxqz";

static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut rng = Rng(5_000);
    let word = |rng: &mut Rng| (0..2 + rng.below(9)).map(|_| char::from(LETTERS[rng.below(LETTERS.len())])).collect();
    (0..VOCABULARY).map(|_| word(&mut rng)).collect()
});

static IDS: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);

/// An id for a snapshot about to be taken: made when a turn ends, as a runtime does.
pub(crate) fn fresh_snapshot_id() -> SnapshotId {
    SnapshotId::from_uuid(IDS.uuid())
}

/// Somebody who always says the same, given the same seed.
pub(crate) struct Talk {
    rng: Rng,
    said: u64,
}

/// What is said in a turn, made before the clock runs.
pub(crate) struct Content {
    pub(crate) user: Message,
    pub(crate) model: Message,
    pub(crate) custom: Option<Json>,
}

impl Content {
    /// The bytes a person would count.
    pub(crate) fn text_bytes(&self) -> u64 {
        (self.user.text().len() + self.model.text().len()) as u64
    }
}

impl Talk {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { rng: Rng(seed), said: 0 }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.rng.below(end)
    }

    /// Words, at least so many bytes of them.
    pub(crate) fn words(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&WORDS[self.rng.below(VOCABULARY)]);
        }
        text
    }

    /// A plain turn: two messages of about 1 KB, a small change of custom state, a snapshot.
    pub(crate) fn plain(&mut self) -> Result<Content> {
        self.said += 1;
        let (said, topic) = (self.said, self.words(16));
        let custom = format!("{{\"turn\":{said},\"topic\":\"{topic}\"}}");
        Ok(Content {
            user: Message::user(self.words(MESSAGE)),
            model: Message::model(self.words(MESSAGE)),
            custom: Some(Json::parse(custom)?),
        })
    }
}

/// An object of many fields that changes one of them at a time.
pub(crate) struct BigState {
    fields: Vec<String>,
    next: usize,
}

impl BigState {
    const FIELD: usize = 100;

    pub(crate) fn of_bytes(bytes: usize, talk: &mut Talk) -> Self {
        let per_field = Self::FIELD + r#""field-000":"","#.len();
        Self { fields: (0..bytes / per_field).map(|_| talk.words(Self::FIELD)).collect(), next: 0 }
    }

    /// The state after a change of the next field.
    pub(crate) fn changed(&mut self, talk: &mut Talk) -> Result<Json> {
        let at = self.next % self.fields.len();
        self.next += 1;
        self.fields[at] = talk.words(Self::FIELD);
        let mut text = String::from("{");
        for (i, field) in self.fields.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(text, "{comma}\"field-{i:03}\":\"{field}\"")?;
        }
        text.push('}');
        Ok(Json::parse(text)?)
    }
}

pub(crate) fn key(session: &str) -> Result<SessionKey> {
    Ok(SessionKey::of("bench", "ann", session)?)
}

pub(crate) async fn create(store: &SqliteStore, session: &str) -> Result<SessionKey> {
    let key = key(session)?;
    store.create(CreateSession::at(key.clone())).await?;
    Ok(key)
}

pub(crate) async fn open_or_create(store: &SqliteStore, session: &str) -> Result<SessionKey> {
    let key = key(session)?;
    store.open_or_create(CreateSession::at(key.clone())).await?;
    Ok(key)
}

/// Whether a turn reads the state it answers to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As a runtime does: the model must be shown something.
    State,
    /// Only what is written counts.
    Nothing,
}

/// A turn at a session's head.
pub(crate) async fn turn(store: &SqliteStore, key: &SessionKey, content: Content, reading: Reading) -> Result<Receipt> {
    turn_from(store, Start::Session(key.clone()), content, reading).await
}

/// A turn from anywhere.
pub(crate) async fn turn_from(
    store: &SqliteStore,
    start: Start,
    content: Content,
    reading: Reading,
) -> Result<Receipt> {
    let begin = BeginTurn::new(start, InvocationId::new("i")?, Input::messages([content.user]));
    let begun = store.begin(begin).await?.begun()?;
    if reading == Reading::State {
        let state = store.state(At::Point(begun.session.clone(), begun.point)).await?;
        let state = state.context("the state a turn stands at is missing")?;
        anyhow::ensure!(state.messages().last().is_some(), "the user's message is missing from the state");
    }
    let mut changes = Changes::new().event(Event::model("helper", content.model));
    if let Some(custom) = content.custom {
        changes = changes.custom(custom);
    }
    let end = EndTurn::completed(begun.fence, changes).snapshot(NewSnapshot::new(fresh_snapshot_id()));
    Ok(store.end(end).await?)
}

/// A plain turn as a runtime takes it, and how long it took.
pub(crate) async fn timed_turn(store: &SqliteStore, key: &SessionKey, content: Content) -> Result<Duration> {
    let start = Instant::now();
    turn(store, key, content, Reading::State).await?;
    Ok(start.elapsed())
}

/// Makes a session as long as it takes. Most turns leave custom state alone, so that this is quick even where a turn
/// that changes it is not.
pub(crate) async fn prefill(store: &SqliteStore, key: &SessionKey, talk: &mut Talk, turns: usize) -> Result<()> {
    for i in 0..turns {
        let mut content = talk.plain()?;
        content.custom = content.custom.filter(|_| i % 100 == 0);
        turn(store, key, content, Reading::Nothing).await?;
    }
    Ok(())
}

/// So many plain turns, one after the other.
pub(crate) async fn turns(store: &SqliteStore, key: &SessionKey, talk: &mut Talk, turns: usize) -> Result<()> {
    for _ in 0..turns {
        turn(store, key, talk.plain()?, Reading::Nothing).await?;
    }
    Ok(())
}
