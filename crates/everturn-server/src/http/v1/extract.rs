//! What is read from requests, refused as a problem that says what is wrong.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use everturn::store::Cursor;
use everturn::{BranchName, Json, Point, SnapshotId, Spot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;
use crate::http::body::json_text;
use crate::http::large::away;
use crate::http::limits::page;

/// How many items a page has unless the query says.
const PAGE: usize = 50;

/// The ids in the path.
pub(super) struct In<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for In<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|bad| Problem::invalid(bad.body_text()))
    }
}

/// The query.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // It would be read with what is no text replaced, and something else be asked for.
        if !is_text(parts.uri.query().unwrap_or_default()) {
            return Err(Problem::invalid("the query is not UTF-8"));
        }
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|bad| Problem::invalid(bad.body_text()))
    }
}

/// Whether a query is text behind its percent signs.
fn is_text(query: &str) -> bool {
    let (bytes, mut plain) = (query.as_bytes(), Vec::with_capacity(query.len()));
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escaped = (*byte == b'%').then(|| query.get(at + 1..at + 3)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) => {
                plain.push(escaped);
                at += 3;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    std::str::from_utf8(&plain).is_ok()
}

/// The body.
pub(super) struct Sent<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for Sent<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let text = json_text(request).await?;
        away(text.len(), move || {
            let json =
                Json::parse(&text).map_err(|error| Problem::invalid(format!("the body is not JSON: {error}")))?;
            let read = whole(json.as_str());
            read.map(Self).map_err(|why| Problem::invalid(format!("the body is not as it should be: {why}")))
        })
        .await?
    }
}

/// Reads an object by its members' names. Where a struct is read, an array of its members in order would do as well, and
/// nobody means that.
fn whole<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    if !json.trim_start().starts_with('{') {
        return Err("invalid type: it must be an object".to_owned());
    }
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// A member that must be an object. It was checked with the body it is in.
pub(super) fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    whole(Box::<RawValue>::deserialize(deserializer)?.get()).map_err(serde::de::Error::custom)
}

/// The same, where it may be left out.
pub(super) fn given_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    object(deserializer).map(Some)
}

/// A member that was written must be what it says; `null` is not the same as leaving it out.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// How many items a page shall have.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    let most = page();
    match asked {
        None => Ok(PAGE.min(most)),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::invalid(format!("`limit` is from 1 to {most}: use `cursor` to read on"))),
    }
}

/// Which page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// How many, from 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    pub(super) limit: Option<usize>,
    /// Where the page before ended.
    pub(super) cursor: Option<String>,
}

impl PageQuery {
    /// How many items, and where to go on.
    pub(super) fn read(self) -> Result<(usize, Option<Cursor>), Problem> {
        Ok((limit(self.limit)?, cursor(self.cursor)))
    }
}

/// Which end of a list comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    /// The oldest.
    Asc,
    /// The newest.
    Desc,
}

pub(super) fn cursor(asked: Option<String>) -> Option<Cursor> {
    asked.map(Cursor::from_text)
}

/// A place in a session: one of these, or the head of `main`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// Where this branch stands.
    #[schema(value_type = Option<String>)]
    pub(super) branch: Option<BranchName>,
    /// After the record with this number.
    #[schema(value_type = Option<u64>)]
    pub(super) point: Option<Point>,
    /// At this snapshot.
    #[schema(value_type = Option<String>, format = "uuid")]
    pub(super) snapshot: Option<SnapshotId>,
}

impl Place {
    pub(super) fn spot(self) -> Result<Spot, Problem> {
        match (self.branch, self.point, self.snapshot) {
            (None, None, None) => Ok(Spot::default()),
            (Some(branch), None, None) => Ok(Spot::Branch(branch)),
            (None, Some(point), None) => Ok(Spot::Point(point)),
            (None, None, Some(snapshot)) => Ok(Spot::Snapshot(snapshot)),
            _ => Err(Problem::invalid("give one of `branch`, `point` and `snapshot`, not several")),
        }
    }
}

/// The one value of a header.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    match (first.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        (Ok(_), Some(_)) => Err(Problem::invalid(format!("the header {name} was sent twice"))),
        (Err(_), _) => Err(Problem::invalid(format!("the header {name} is not plain ASCII"))),
    }
}

/// The head that `If-Match` expects.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<Point>, Problem> {
    let Some(text) = header(headers, &header::IF_MATCH)? else { return Ok(None) };
    let tag = text.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let Some(tag) = tag.filter(|tag| !tag.contains('"')) else {
        return Err(Problem::invalid("`If-Match` takes one ETag as it was handed out, like \"42\""));
    };
    // A tag that none of ours can be matches nothing.
    let number = tag.bytes().all(|byte| byte.is_ascii_digit()).then(|| tag.parse().ok()).flatten();
    let nothing = || Problem::precondition(format!("no head has the ETag \"{tag}\": read it again and decide"));
    number.map(|seq| Some(Point::new(seq))).ok_or_else(nothing)
}

/// Refuses a condition where it could not be kept to.
pub(super) fn unconditional(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.contains_key(header::IF_MATCH) {
        true => Err(Problem::invalid("`If-Match` is for turns and for moving branches: leave it out here")),
        false => Ok(()),
    }
}

/// The ETag of a head.
pub(super) fn etag(head: Point) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{head}\""))]
}
