//! Who is let in, and whose pages.

use std::str::FromStr;

use axum::http::{HeaderValue, Uri};

use crate::auth::Authority;

/// Who is let in, and whose pages.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) authority: Authority,
    /// Pages of other origins that may ask; none unless configured.
    pub(crate) origins: Vec<Origin>,
}

/// Where a page comes from, as browsers write it: `https://app.example`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin(HeaderValue);

impl Origin {
    pub(super) fn as_str(&self) -> &str {
        // Only text is ever made one.
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl FromStr for Origin {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "an origin is a scheme and a host, like https://app.example or http://localhost:3000; there is none for all"
                .to_owned()
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let (Some(scheme @ ("http" | "https")), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong());
        };
        let origin = format!("{scheme}://{authority}").to_ascii_lowercase();
        // The comparison refuses what browsers never send: a path, a user, a star.
        if origin != text.to_ascii_lowercase() || origin.contains(['@', '*']) {
            return Err(wrong());
        }
        HeaderValue::from_str(&origin).map(Self).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_one_place_and_never_all_of_them() {
        for good in ["https://app.example", "http://localhost:3000", "http://[::1]:8080"] {
            assert_eq!(good.parse::<Origin>().unwrap().as_str(), good);
        }
        assert_eq!("https://App.Example".parse::<Origin>().unwrap().as_str(), "https://app.example");
        for bad in [
            "",
            "*",
            "null",
            "app.example",
            "https://",
            "https://*",
            "https://*.example",
            "https://app.example/",
            "https://app.example/path",
            "https://ann@app.example",
            "ftp://app.example",
            "https://é.example",
            "https://a.example,https://b.example",
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad}");
        }
    }
}
