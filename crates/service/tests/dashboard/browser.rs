//! Chromium without a screen, told what to do by WebDriver (W3C) and, where that has no word for it, by the DevTools protocol.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// For anything that a page is waited for to do.
const PATIENCE: Duration = Duration::from_secs(30);
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";

/// Runs before any script of a page: what must not happen is kept, for the test to look at.
const WATCH: &str = "window.seen = { violations: [], alerts: [], errors: [] };
    document.addEventListener('securitypolicyviolation', (event) => seen.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
    for (const name of ['alert', 'confirm', 'prompt']) window[name] = (words) => seen.alerts.push(`${name} ${words}`);
    // That a size has changed again while it was looked at is told as an error, and is none (CSSWG, Resize Observer 3.4.7).
    const isNews = (words) => !words.startsWith('ResizeObserver loop completed');
    window.addEventListener('error', (event) => isNews(event.message) && seen.errors.push(String(event.message)));
    window.addEventListener('unhandledrejection', (event) => seen.errors.push(String(event.reason)));
    const { error } = console;
    console.error = (...words) => { seen.errors.push(words.join(' ')); error(...words); };";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Browser {
    runtime: Arc<Runtime>,
    client: reqwest::Client,
    session: String,
    _driver: Running,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// One that finds every host at this machine, or why there is none.
    pub fn start(runtime: &Arc<Runtime>) -> Result<Self, String> {
        let missing = |program: &str, package: &str, error| {
            format!("no {program} ({error}); Debian has it in the package {package}")
        };
        Command::new("chromium")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| missing("chromium", "chromium", error))?;
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| missing("chromedriver", "chromium-driver", error))?;
        let said = BufReader::new(driver.stdout.take().unwrap());
        let driver = Running(driver);
        let port = said
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                Some(
                    line.split_once("successfully on port ")?
                        .1
                        .trim_end_matches('.')
                        .to_owned(),
                )
            })
            .ok_or("chromedriver does not say where it listens")?;
        let profile = tempfile::tempdir().unwrap();
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(PATIENCE * 2)
            .build()
            .unwrap();
        let mut browser = Self {
            runtime: Arc::clone(runtime),
            client,
            session: format!("http://127.0.0.1:{port}/session"),
            _driver: driver,
            _profile: profile,
        };
        browser.open()?;
        Ok(browser)
    }

    fn open(&mut self) -> Result<(), String> {
        let profile = self._profile.path().display();
        // A sandbox of its own cannot be had by root in a container; nothing but the page under test is looked at.
        let options = json!({"args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb",
            "--host-resolver-rules=MAP * 127.0.0.1", format!("--user-data-dir={profile}"),
        ]});
        // The test's CA is nobody's but the test's.
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "acceptInsecureCerts": true, "goog:chromeOptions": options, "timeouts": {"script": PATIENCE.as_millis()},
        }}});
        let opened = self.ask("", &wanted)?;
        let id = opened["sessionId"]
            .as_str()
            .ok_or("chromedriver opens no session")?;
        self.session = format!("{}/{id}", self.session);
        self.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({"source": WATCH}));
        Ok(())
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = self.client.post(format!("{}{path}", self.session)).json(body);
        let answer: Value = self.runtime.block_on(async {
            let answer = request.send().await.map_err(|error| error.to_string())?;
            answer.json().await.map_err(|error| error.to_string())
        })?;
        match answer["value"]["error"].as_str() {
            None => Ok(answer["value"].clone()),
            Some(error) => Err(format!("{error}: {}", answer["value"]["message"])),
        }
    }

    #[track_caller]
    fn told(&self, path: &str, body: &Value) -> Value {
        self.ask(path, body).unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    pub fn go(&self, url: &str) {
        self.told("/url", &json!({"url": url}));
    }

    /// Another window of the same browser, at an address; it is looked at from now on.
    #[track_caller]
    pub fn open_window(&self, url: &str) -> String {
        let opened = self.told("/window/new", &json!({"type": "tab"}));
        let window = opened["handle"].as_str().unwrap().to_owned();
        self.look_at(&window);
        self.go(url);
        window
    }

    /// The window that is looked at.
    pub fn window(&self) -> String {
        let asked = self.client.get(format!("{}/window", self.session));
        let answer: Value = self
            .runtime
            .block_on(async { asked.send().await.unwrap().json().await.unwrap() });
        answer["value"].as_str().unwrap().to_owned()
    }

    /// Looks at that window from now on.
    #[track_caller]
    pub fn look_at(&self, window: &str) {
        self.told("/window", &json!({"handle": window}));
    }

    /// What a function's body returns in the page.
    #[track_caller]
    pub fn get(&self, script: &str) -> Value {
        self.told("/execute/sync", &json!({"script": script, "args": []}))
    }

    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let found = self.get(&format!(
            "return document.querySelector({selector:?})?.textContent ?? null"
        ));
        found
            .as_str()
            .unwrap_or_else(|| panic!("no {selector}: {}", self.page()))
            .to_owned()
    }

    /// Waits until an expression in the page is true, which it is looked at for whenever the page is drawn; its value.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; const look = () => {{ let value = null; try {{ value = ({expression}); }} catch {{}} \
             if (value) done(value); else setTimeout(look, 20); }}; look();"
        );
        let found = self.ask("/execute/async", &json!({"script": script, "args": []}));
        found.unwrap_or_else(|error| panic!("no {what}: {error}\n{}", self.page()))
    }

    /// All words of the page, for who has to find out what is wrong.
    pub fn page(&self) -> String {
        let words = self.ask(
            "/execute/sync",
            &json!({"script": "return document.body.innerText + JSON.stringify(window.seen)", "args": []}),
        );
        words.map_or_else(
            |error| error,
            |words| words.as_str().unwrap_or_default().to_owned(),
        )
    }

    #[track_caller]
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.told(
            "/goog/cdp/execute",
            &json!({"cmd": command, "params": parameters}),
        )
    }

    fn press(&self, keys: &[&str]) {
        let strokes = keys.iter().flat_map(|key| {
            [
                json!({"type": "keyDown", "value": key}),
                json!({"type": "keyUp", "value": key}),
            ]
        });
        let strokes: Vec<Value> = strokes.collect();
        let source = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.told("/actions", &json!({"actions": [source]}));
    }

    pub fn type_in(&self, text: &str) {
        let keys: Vec<String> = text.chars().map(String::from).collect();
        self.press(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    }

    pub fn enter(&self) {
        self.press(&[ENTER]);
    }

    pub fn escape(&self) {
        self.press(&[ESCAPE]);
    }

    /// Goes on with the Tab key until the focus is on what the selector names; it can be seen wherever it is on the way.
    #[track_caller]
    pub fn tab_to(&self, selector: &str) {
        for _ in 0..60 {
            self.press(&[TAB]);
            let at = self.get(&format!(
                "const at = document.activeElement; const style = getComputedStyle(at); \
                 return [at.matches({selector:?}), at === document.body || (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2), at.outerHTML.slice(0, 200)]"
            ));
            assert_eq!(at[1], true, "the focus cannot be seen: {}", at[2]);
            if at[0] == true {
                return;
            }
        }
        panic!("the Tab key does not lead to {selector}: {}", self.page());
    }

    /// A window of that size, in the colours that the reader prefers.
    pub fn look_like(&self, (width, height): (u32, u32), scheme: &str) {
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// Has the page drawn a few times, as it is now.
    pub fn draw(&self) {
        let script = "const done = arguments[0]; let left = 90; const next = () => ((left -= 1) ? requestAnimationFrame(next) : done(null)); next();";
        self.told("/execute/async", &json!({"script": script, "args": []}));
    }

    /// What an assistive technology is given: role, name and whether it is left out, of each node.
    pub fn accessibility(&self) -> Vec<(String, String)> {
        let tree = self.devtools("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let shown = nodes.filter(|node| node["ignored"] == false);
        let word = |value: &Value| value["value"].as_str().unwrap_or_default().trim().to_owned();
        shown
            .map(|node| (word(&node["role"]), word(&node["name"])))
            .collect()
    }

    /// The page as a PNG, in base 64.
    pub fn picture(&self, parameters: &Value) -> String {
        let shot = self.devtools("Page.captureScreenshot", parameters);
        shot["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let request = self.client.delete(&self.session);
        // The driver ends what is left.
        let _ = self.runtime.block_on(async { request.send().await });
    }
}
