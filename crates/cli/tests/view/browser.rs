//! A headless Chromium over its DevTools protocol, on a pipe: no port and no further crate.

use super::{HANG_TIMEOUT, scratch};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const PROGRAMS: [&str; 4] = ["chromium-headless-shell", "chromium", "google-chrome", "chrome"];

/// A browser with one page, as wide as a phone.
pub(crate) struct Browser {
    process: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    profile: PathBuf,
    session: Option<String>,
    last_id: u64,
    /// Exceptions of scripts, and what the page or the browser wrote to the console.
    errors: Vec<String>,
    has_loaded: bool,
}

impl Browser {
    /// Starts one. `None`, with the reason printed, if none is installed; where `cargo xtask test` has provided one, that fails.
    pub(crate) fn start(name: &str) -> Option<Browser> {
        let is_there = |name: &&&str| {
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        let Some(program) = PROGRAMS.iter().find(is_there) else {
            let why = "no Chromium is installed, so no page was shown; it is in the package chromium-headless-shell";
            assert!(std::env::var_os("FERROCE_REQUIRE_TOOLS").is_none_or(|v| v != "1"), "{why}");
            println!("SKIPPED: {why}");
            return None;
        };
        let profile = scratch().join(format!("browser.{name}.{}", std::process::id()));
        // The sandbox needs rights that root in a container and the user nobody lack; only pages of this test are opened.
        let options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --disable-extensions \
                       --no-first-run --no-proxy-server --remote-debugging-pipe";
        // The browser reads requests from descriptor 3 and writes answers to 4.
        let script =
            format!("exec {program} {options} --user-data-dir=\"$0\" 3<&0 4>&1 </dev/null >/dev/null 2>&1");
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .arg(&profile)
            .env("HOME", scratch())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let requests = process.stdin.take().expect("a pipe");
        let mut pipe = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while pipe.read_until(0, &mut bytes).is_ok_and(|n| n > 0) {
                let value =
                    serde_json::from_slice(bytes.strip_suffix(&[0]).unwrap_or(&bytes)).unwrap_or_default();
                bytes.clear();
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            process,
            requests,
            answers,
            profile,
            session: None,
            last_id: 0,
            errors: Vec::new(),
            has_loaded: false,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser.as_phone();
        Some(browser)
    }

    /// Shows pages on a screen of 360 pixels.
    pub(crate) fn as_phone(&mut self) {
        let phone = json!({ "width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true });
        self.call("Emulation.setDeviceMetricsOverride", phone);
        self.call("Emulation.setEmulatedMedia", json!({ "media": "" }));
    }

    /// Shows pages as they are printed on A4 with margins of 1 cm: 190 mm are 718 pixels.
    pub(crate) fn as_paper(&mut self) {
        let paper = json!({ "width": 718, "height": 1047, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", paper);
        self.call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    }

    /// Sends a command and waits for its result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut request = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).expect("the browser reads");
        loop {
            let message = self.next();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    /// The next message; events are noted.
    fn next(&mut self) -> Value {
        let message = self.answers.recv_timeout(HANG_TIMEOUT).expect("the browser answers");
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Page.loadEventFired") => self.has_loaded = true,
            Some("Runtime.exceptionThrown") => self.errors.push(params["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") => self.errors.push(params["args"].to_string()),
            // The browser requests no icon for a page that is opened as a file.
            Some("Log.entryAdded")
                if !params["entry"]["url"].as_str().is_some_and(|url| url.ends_with("/favicon.ico")) =>
            {
                self.errors.push(params["entry"].to_string());
            }
            _ => {}
        }
        message
    }

    /// Opens an address and waits until it is loaded.
    pub(crate) fn open(&mut self, url: &str) {
        self.has_loaded = false;
        let found = self.call("Page.navigate", json!({ "url": url }));
        assert!(found["errorText"].is_null(), "{url}: {found}");
        while !self.has_loaded {
            self.next();
        }
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let found = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    pub(crate) fn number(&mut self, expression: &str) -> f64 {
        let value = self.value(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression}: {value}"))
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != true {
            assert!(
                start.elapsed() < HANG_TIMEOUT,
                "{expression}\n{}",
                self.value("document.body.innerText")
            );
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// `light` or `dark`.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        );
    }

    /// What went wrong since the last call.
    pub(crate) fn errors(&mut self) -> Vec<String> {
        // Events that were sent before this answer come before it.
        self.call("Runtime.evaluate", json!({ "expression": "0" }));
        std::mem::take(&mut self.errors)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
