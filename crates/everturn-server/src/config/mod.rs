//! What a server is set to: by a file, the environment and flags, each outdoing the one before.

mod layers;
mod settings;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use layers::{Flags, Layers};
pub(crate) use settings::{SETTINGS, Setting, Shape};
pub(crate) use values::{ByteSize, Count, LogFormat, SizeOrNone, Span};

use crate::auth::Rate;
use crate::cli::StoreSpec;
use crate::http::Origin;

/// The least a head may be given; what the parser of heads needs.
const LEAST_HEADER: ByteSize = ByteSize(8 << 10);

/// What a server is set to, read and checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) store: StoreSpec,
    pub(crate) addr: SocketAddr,
    pub(crate) demo: bool,
    pub(crate) drain: Duration,
    pub(crate) access: AccessConfig,
    pub(crate) limits: Limits,
    pub(crate) store_cache: ByteSize,
    pub(crate) store_poll: Duration,
    pub(crate) store_lock_wait: Duration,
    pub(crate) store_reserve: SizeOrNone,
    pub(crate) stream_grace: Duration,
    pub(crate) recovery_poll: Duration,
    pub(crate) metrics_addr: Option<SocketAddr>,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
}

/// Who is let in.
#[derive(Debug)]
pub(crate) struct AccessConfig {
    pub(crate) keys: Option<PathBuf>,
    pub(crate) jwt: Option<(PathBuf, String)>,
    pub(crate) rate: Rate,
    pub(crate) cors_origins: Vec<Origin>,
}

/// What clients may ask of a server, and how long they may take.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) body: usize,
    pub(crate) page: usize,
    pub(crate) header: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) body_pause: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) connections: usize,
    pub(crate) turns: usize,
    pub(crate) turns_per_key: usize,
    pub(crate) streams: usize,
    pub(crate) streams_per_key: usize,
    /// The most bytes of large answers that may wait for their clients.
    pub(crate) answer_bytes: usize,
}

impl Config {
    pub(crate) fn read(layers: &Layers) -> anyhow::Result<Self> {
        let time = |flag| layers.one::<Span>(flag).map(|span| span.0);
        let config = Self {
            store: layers.one("store")?,
            addr: layers.one("addr")?,
            demo: layers.one("demo")?,
            drain: time("drain")?,
            access: AccessConfig::read(layers)?,
            limits: Limits::read(layers)?,
            store_cache: layers.one("store-cache")?,
            store_poll: time("store-poll")?.max(Duration::from_millis(1)),
            store_lock_wait: time("store-lock-wait")?,
            store_reserve: layers.one("store-reserve")?,
            stream_grace: time("stream-grace")?,
            recovery_poll: time("recovery-poll")?,
            metrics_addr: layers.maybe("metrics-addr")?,
            log_level: layers.one("log-level")?,
            log_format: layers.one("log-format")?,
        };
        if let Some(addr) = config.metrics_addr {
            anyhow::ensure!(
                addr.ip().is_loopback(),
                "metrics-addr {addr} can be reached from other machines without a key: use 127.0.0.1, or ask for \
                 /metrics at --addr with an admin's key"
            );
        }
        Ok(config)
    }
}

impl AccessConfig {
    pub(crate) fn read(layers: &Layers) -> anyhow::Result<Self> {
        let jwt = match (layers.maybe("jwt-key")?, layers.maybe("jwt-audience")?) {
            (Some(key), Some(audience)) => Some((key, audience)),
            (None, None) => None,
            (Some(_), None) => anyhow::bail!("--jwt-key needs --jwt-audience: the name that tokens give the server"),
            (None, Some(_)) => anyhow::bail!("--jwt-audience needs --jwt-key: the file with the secret"),
        };
        Ok(Self {
            keys: layers.maybe("keys")?,
            jwt,
            rate: layers.one("rate")?,
            cors_origins: layers.many("cors-origin")?,
        })
    }
}

impl Limits {
    fn read(layers: &Layers) -> anyhow::Result<Self> {
        let size = |flag| anyhow::Ok(usize::try_from(layers.one::<ByteSize>(flag)?.0)?);
        let count = |flag| layers.one::<Count>(flag).map(Count::get);
        // Nobody can do anything in no time: a limit of nothing would be a server that answers nobody.
        let time = |flag| {
            let span = layers.one::<Span>(flag)?.0;
            anyhow::ensure!(!span.is_zero(), "--{flag} must be longer than nothing");
            Ok(span)
        };
        let header: ByteSize = layers.one("header-limit")?;
        anyhow::ensure!(header >= LEAST_HEADER, "--header-limit must be at least {LEAST_HEADER}");
        Ok(Self {
            body: size("body-limit")?,
            page: count("page-limit")?,
            header: size("header-limit")?,
            header_timeout: time("header-timeout")?,
            body_pause: time("body-pause")?,
            body_timeout: time("body-timeout")?,
            write_timeout: time("write-timeout")?,
            keep_alive: time("keep-alive")?,
            connections: count("max-connections")?,
            turns: count("max-turns")?,
            turns_per_key: count("max-turns-per-key")?,
            streams: count("max-streams")?,
            streams_per_key: count("max-streams-per-key")?,
            answer_bytes: size("max-answer-bytes")?,
        })
    }
}

impl Default for Limits {
    fn default() -> Self {
        let layers = Layers::new(None, |_| None, &Flags::new());
        layers.and_then(|layers| Self::read(&layers)).expect("the defaults are valid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        let layers = Layers::new(None, |_| None, &Flags::new()).unwrap();
        assert_eq!(Config::read(&layers).unwrap().limits.body, 16 << 20);
    }

    #[test]
    fn every_setting_is_read() {
        // A value that nothing takes is refused, if it is looked at.
        for setting in SETTINGS.iter().filter(|setting| !["keys", "jwt-key", "jwt-audience"].contains(&setting.flag)) {
            let flags = Flags::from([(setting.flag, vec!["\u{1}".to_owned()])]);
            let read = Layers::new(None, |_| None, &flags).and_then(|layers| Config::read(&layers));
            let looked_at = read.is_err() || setting.flag == "log-level";
            assert!(looked_at, "{} is not read", setting.flag);
        }
    }
}
