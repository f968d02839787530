//! Every setting there is, once: its name, its default and what it does.

/// How a setting's value is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One value; nothing when the default is empty.
    One,
    /// On or off; the flag alone switches it on.
    Switch,
    /// Any number of values: a list in the file, commas in the environment, the flag several times.
    Many,
}

/// A setting: `header-timeout` is `--header-timeout`, `EVERTURN_HEADER_TIMEOUT`, and `header_timeout` in the file.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) flag: &'static str,
    pub(crate) shape: Shape,
    pub(crate) value: &'static str,
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
    pub(crate) group: &'static str,
}

impl Setting {
    /// Its name in the file.
    pub(crate) fn key(&self) -> String {
        self.flag.replace('-', "_")
    }

    /// Its name in the environment.
    pub(crate) fn variable(&self) -> String {
        match self.flag {
            // The name by which filters of logs are usually called.
            "log-level" => "EVERTURN_LOG".to_owned(),
            flag => format!("EVERTURN_{}", flag.replace('-', "_").to_ascii_uppercase()),
        }
    }
}

const SERVER: &str = "Server";
const ACCESS: &str = "Who is let in";
const CLIENTS: &str = "Limits of clients";
const LOAD: &str = "Limits of the server";
const STORE: &str = "Store";
const LOGS: &str = "Logs and metrics";

const fn one(
    group: &'static str,
    flag: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { flag, shape: Shape::One, value, default, help, group }
}

/// All of them, in the order they are shown in. `store` is an option of every command.
pub(crate) const SETTINGS: &[Setting] = &[
    one(SERVER, "addr", "ADDRESS", "127.0.0.1:4100", "Where to listen; port 0 takes any free one"),
    Setting {
        flag: "demo",
        shape: Shape::Switch,
        value: "BOOL",
        default: "false",
        help: "Host the demo agents: echo, echoClient, redact, asker",
        group: SERVER,
    },
    one(
        SERVER,
        "drain",
        "TIME",
        "10s",
        "How long requests, and after them turns in the background, may take to end when the server is asked to stop; \
         what is left is taken over by the next server",
    ),
    one(
        ACCESS,
        "keys",
        "FILE",
        "",
        "The file of API keys that `everturn keys` makes; without this option keys.json beside the store, if it exists. \
         Once there is one, every request but /healthz and /readyz needs a key",
    ),
    one(
        ACCESS,
        "jwt-key",
        "FILE",
        "",
        "Also let in bearers of JSON Web Tokens signed with HS256 and the secret in this file, of 32 bytes or more and \
         private (chmod 600). Their claims: sub (the user), aud, exp, rights, and if they like app and nbf",
    ),
    one(ACCESS, "jwt-audience", "NAME", "", "The audience that tokens must name in aud"),
    one(
        ACCESS,
        "rate",
        "N/s",
        "50/s",
        "How often each key may be used, a second or a minute (50/s, 600/m); twice as often at once",
    ),
    Setting {
        flag: "cors-origin",
        shape: Shape::Many,
        value: "ORIGIN",
        default: "",
        help: "Let pages of this origin ask, like https://app.example; may be given several times",
        group: ACCESS,
    },
    one(CLIENTS, "body-limit", "SIZE", "16MiB", "The largest body of a request"),
    one(CLIENTS, "page-limit", "N", "100", "The most items on a page of a listing"),
    one(CLIENTS, "header-limit", "SIZE", "64KiB", "The largest head of a request; at least 8KiB"),
    one(CLIENTS, "header-timeout", "TIME", "10s", "How long a client may take to send the head of a request"),
    one(CLIENTS, "body-pause", "TIME", "30s", "How long a client may pause while it sends a body"),
    one(CLIENTS, "body-timeout", "TIME", "5m", "How long a client may take to send a whole body"),
    one(CLIENTS, "write-timeout", "TIME", "60s", "How long a client may take nothing of what it is sent"),
    one(CLIENTS, "keep-alive", "TIME", "75s", "How long a connection may stay open between two requests"),
    one(LOAD, "max-connections", "N", "8192", "The most connections at once; one too many is answered 503"),
    one(LOAD, "max-turns", "N", "1024", "The most turns at once, also in the background; one too many is answered 503"),
    one(LOAD, "max-turns-per-key", "N", "512", "The same for the turns of one key; one too many is answered 429"),
    one(LOAD, "max-streams", "N", "4096", "The most streams and waiting requests at once; one too many: 503"),
    one(LOAD, "max-streams-per-key", "N", "2048", "The same for one key; one too many is answered 429"),
    one(
        LOAD,
        "max-answer-bytes",
        "SIZE",
        "256MiB",
        "The most bytes of large answers that wait for their clients; what is too much is answered 503",
    ),
    one(STORE, "store-cache", "SIZE", "64MiB", "How much decoded state of sessions is kept at hand"),
    one(STORE, "store-poll", "TIME", "100ms", "How often changes by other processes are looked for"),
    one(
        STORE,
        "store-lock-wait",
        "TIME",
        "10s",
        "How long another process that holds the store's lock is waited for; then writes are answered 503, naming it",
    ),
    one(
        STORE,
        "store-reserve",
        "SIZE",
        "4MiB",
        "Room kept beside the store, so that sessions can still be deleted when its volume is full; 0 keeps none",
    ),
    one(STORE, "stream-grace", "TIME", "10m", "How long the stream of a turn that has ended can be read again"),
    one(STORE, "recovery-poll", "TIME", "2s", "How often turns are looked for whose server died"),
    one(
        LOGS,
        "metrics-addr",
        "ADDRESS",
        "",
        "Also serve /metrics, /readyz and /healthz here, on a loopback address, without a key",
    ),
    one(
        LOGS,
        "log-level",
        "FILTER",
        "info",
        "What is logged: error, warn, info, debug, trace or off; or by target, as in info,everturn=debug",
    ),
    one(LOGS, "log-format", "FORMAT", "text", "How lines are written: text or json"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_settings_share_a_name() {
        let names: BTreeSet<_> = SETTINGS.iter().map(Setting::variable).collect();
        assert_eq!(names.len(), SETTINGS.len());
        assert!(SETTINGS.iter().all(|setting| setting.flag.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
    }
}
