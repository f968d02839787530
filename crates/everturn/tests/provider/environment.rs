//! Keys, addresses and proxies from the environment. A test that needs one runs itself again in a process of its own:
//! nothing may change the environment of a process that has threads.

use std::process::Command;
use std::time::Duration;

use everturn::ErrorKind;
use everturn::model::Provider;
use tokio::net::TcpListener;

use crate::loopback::{Loopback, Reply};
use crate::support::{ask, hello};
use crate::wire::{Said, Wire};

const CHILD: &str = "EVERTURN_TEST_CHILD";

/// Runs a test of this module in a process with just these variables. In that process, says so.
fn in_child(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("environment::{test}"), "--nocapture"])
        .env_clear()
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}{}", String::from_utf8_lossy(&output.stderr));
    false
}

fn fine(wire: Wire) -> Reply {
    Reply::answer(wire, &Said::text(&["Fine."]))
}

#[tokio::test]
async fn a_missing_key_is_told_with_its_variable_and_nothing_is_sent() {
    if !in_child("a_missing_key_is_told_with_its_variable_and_nothing_is_sent", &[("GROQ_API_KEY", " ")]) {
        return;
    }
    for (name, variable) in [
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("anthropic/claude", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-pro", "GEMINI_API_KEY"),
        ("googleai/gemini-2.5-pro", "GEMINI_API_KEY"),
        ("groq/llama", "GROQ_API_KEY"),
        ("xai/grok", "XAI_API_KEY"),
    ] {
        let error = ask(&Provider::new(name).unwrap(), hello()).await.error();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("set {variable}")), "{error}");
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[tokio::test]
async fn keys_and_addresses_are_read_from_the_usual_variables() {
    let name = "keys_and_addresses_are_read_from_the_usual_variables";
    // The address is the server's, so the parent serves and the child asks.
    if std::env::var_os(CHILD).is_none() {
        for (wire, address, key) in [
            (Wire::OpenAi, "OPENAI_BASE_URL", "OPENAI_API_KEY"),
            (Wire::Anthropic, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
            (Wire::Ollama, "OLLAMA_HOST", "UNUSED"),
        ] {
            let server = Loopback::start([fine(wire)]).await;
            let url = match wire {
                Wire::OpenAi => server.url(wire),
                Wire::Anthropic => format!("http://{}", server.address()),
                _ => server.address().to_string(),
            };
            let variables =
                [(address, url), (key, "key-of-the-environment".to_owned()), ("WHO", wire.model().to_owned())];
            let asked = tokio::task::spawn_blocking(move || {
                in_child(name, &variables.each_ref().map(|(name, value)| (*name, value.as_str())))
            });
            assert!(!asked.await.unwrap());
            let asked = server.only_asked();
            assert_eq!(asked.path, wire.path());
            let told = format!("{:?}", asked.headers);
            assert_eq!(told.contains("key-of-the-environment"), wire != Wire::Ollama, "{told}");
        }
        return;
    }
    let model = Provider::new(std::env::var("WHO").unwrap()).unwrap();
    assert_eq!(ask(&model, hello()).await.whole().text(), "Fine.");
}

#[tokio::test]
async fn the_usual_key_is_not_sent_to_an_address_of_yours() {
    let name = "the_usual_key_is_not_sent_to_an_address_of_yours";
    if !in_child(name, &[("OPENAI_API_KEY", "not-for-you"), ("MINE", "for-you")]) {
        return;
    }
    let server = Loopback::start([fine(Wire::OpenAi), fine(Wire::OpenAi)]).await;
    let model = Provider::new("openai/x").unwrap().endpoint(server.url(Wire::OpenAi)).unwrap();
    ask(&model, hello()).await.whole();
    ask(&model.api_key_from("MINE"), hello()).await.whole();
    let asked = server.asked();
    assert!(!format!("{:?}", asked[0].headers).contains("not-for-you"));
    assert_eq!(asked[1].headers["authorization"], "Bearer for-you");
}

#[tokio::test]
async fn a_proxy_is_not_asked_for_what_runs_here() {
    let name = "a_proxy_is_not_asked_for_what_runs_here";
    // Port 9 discards; whoever goes through it fails.
    let proxy = "http://127.0.0.1:9";
    let variables = [("HTTP_PROXY", proxy), ("http_proxy", proxy), ("ALL_PROXY", proxy), ("HTTPS_PROXY", proxy)];
    if !in_child(name, &variables) {
        return;
    }
    for wire in Wire::ALL {
        let server = Loopback::start([fine(wire)]).await;
        assert_eq!(ask(&server.model(wire).retries(0), hello()).await.whole().text(), "Fine.", "{wire:?}");
    }
}

#[tokio::test]
async fn a_proxy_is_asked_for_what_runs_elsewhere() {
    let name = "a_proxy_is_asked_for_what_runs_elsewhere";
    if std::env::var_os(CHILD).is_none() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", proxy.local_addr().unwrap());
        let child =
            tokio::task::spawn_blocking(move || in_child(name, &[("HTTP_PROXY", &address), ("http_proxy", &address)]));
        // It is reached, and hangs up.
        drop(proxy.accept().await.unwrap());
        assert!(!child.await.unwrap());
        return;
    }
    // A name that stands for no host: without the proxy there would be nothing to reach.
    let model = Provider::new("openai/x").unwrap().endpoint("http://provider.invalid/v1/").unwrap();
    let model = model.retries(0).connect_timeout(Duration::from_secs(5));
    assert_eq!(ask(&model, hello()).await.error().kind(), ErrorKind::Unavailable);
}
