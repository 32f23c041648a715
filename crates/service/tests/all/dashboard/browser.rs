//! Headless Chromium, controlled by WebDriver (W3C) and, for commands that WebDriver lacks, by the DevTools protocol.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Limit of a script's duration in the page, for example of a wait for a condition.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";

/// Runs before any script of a page and records unexpected events for the test.
const EVENT_RECORDER_SCRIPT: &str = "window.seen = { violations: [], alerts: [], errors: [] };
    document.addEventListener('securitypolicyviolation', (event) => seen.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
    for (const name of ['alert', 'confirm', 'prompt']) window[name] = (message) => seen.alerts.push(`${name} ${message}`);
    // A repeated resize during observation is reported as an error but is no failure (CSSWG, Resize Observer 3.4.7).
    const isFailure = (message) => !message.startsWith('ResizeObserver loop completed');
    window.addEventListener('error', (event) => isFailure(event.message) && seen.errors.push(String(event.message)));
    window.addEventListener('unhandledrejection', (event) => seen.errors.push(String(event.reason)));
    const { error } = console;
    console.error = (...values) => { seen.errors.push(values.join(' ')); error(...values); };";

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both calls fail if the process has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Browser {
    runtime: Arc<Runtime>,
    client: reqwest::Client,
    session: String,
    _driver: KillOnDrop,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser that resolves every host name to this machine. Skips the test if a program is missing or does not start.
    pub fn require(runtime: &Arc<Runtime>) -> Self {
        match Self::start(runtime) {
            Ok(browser) => browser,
            Err(reason) => linewarden_harness::skip!("{reason}"),
        }
    }

    /// Starts a browser that resolves every host name to this machine. Returns an error if a program is missing or does not
    /// start.
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
        let driver_output = BufReader::new(driver.stdout.take().unwrap());
        let driver = KillOnDrop(driver);
        let port = driver_output
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
            .ok_or("chromedriver reports no address")?;
        let profile = tempfile::tempdir().unwrap();
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(SCRIPT_TIMEOUT * 2)
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
        // Chromium's sandbox is not available to root in a container; only the page under test is loaded.
        let options = json!({"args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb",
            "--host-resolver-rules=MAP * 127.0.0.1", format!("--user-data-dir={profile}"),
        ]});
        // The CA of the test is not installed in the system.
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "acceptInsecureCerts": true, "goog:chromeOptions": options, "timeouts": {"script": SCRIPT_TIMEOUT.as_millis()},
        }}});
        let response = self.send_command("", &capabilities)?;
        let id = response["sessionId"]
            .as_str()
            .ok_or("chromedriver opens no session")?;
        self.session = format!("{}/{id}", self.session);
        self.devtools(
            "Page.addScriptToEvaluateOnNewDocument",
            &json!({"source": EVENT_RECORDER_SCRIPT}),
        );
        Ok(())
    }

    fn send_command(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = self.client.post(format!("{}{path}", self.session)).json(body);
        let response: Value = self.runtime.block_on(async {
            let response = request.send().await.map_err(|error| error.to_string())?;
            response.json().await.map_err(|error| error.to_string())
        })?;
        match response["value"]["error"].as_str() {
            None => Ok(response["value"].clone()),
            Some(error) => Err(format!("{error}: {}", response["value"]["message"])),
        }
    }

    #[track_caller]
    fn command(&self, path: &str, body: &Value) -> Value {
        self.send_command(path, body)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    pub fn navigate(&self, url: &str) {
        self.command("/url", &json!({"url": url}));
    }

    /// Opens a new window with this URL, switches to the window, and returns its handle.
    #[track_caller]
    pub fn open_window(&self, url: &str) -> String {
        let response = self.command("/window/new", &json!({"type": "tab"}));
        let window = response["handle"].as_str().unwrap().to_owned();
        self.switch_to_window(&window);
        self.navigate(url);
        window
    }

    /// The handle of the current window.
    pub fn window(&self) -> String {
        let request = self.client.get(format!("{}/window", self.session));
        let response: Value = self
            .runtime
            .block_on(async { request.send().await.unwrap().json().await.unwrap() });
        response["value"].as_str().unwrap().to_owned()
    }

    /// Switches to the window with this handle.
    #[track_caller]
    pub fn switch_to_window(&self, window: &str) {
        self.command("/window", &json!({"handle": window}));
    }

    /// Runs a function body in the page and returns its result.
    #[track_caller]
    pub fn evaluate(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({"script": script, "args": []}))
    }

    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let text = self.evaluate(&format!(
            "return document.querySelector({selector:?})?.textContent ?? null"
        ));
        text.as_str()
            .unwrap_or_else(|| panic!("no {selector}: {}", self.page_text()))
            .to_owned()
    }

    /// Waits until an expression in the page is true and returns its value; the expression is evaluated every 20 ms.
    #[track_caller]
    pub fn wait(&self, description: &str, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; const check = () => {{ let value = null; try {{ value = ({expression}); }} catch {{}} \
             if (value) done(value); else setTimeout(check, 20); }}; check();"
        );
        let result = self.send_command("/execute/async", &json!({"script": script, "args": []}));
        result.unwrap_or_else(|error| panic!("no {description}: {error}\n{}", self.page_text()))
    }

    /// The text of the page, for failure messages.
    pub fn page_text(&self) -> String {
        let text = self.send_command(
            "/execute/sync",
            &json!({"script": "return document.body.innerText + JSON.stringify(window.seen)", "args": []}),
        );
        text.map_or_else(|error| error, |text| text.as_str().unwrap_or_default().to_owned())
    }

    #[track_caller]
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command(
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
        self.command("/actions", &json!({"actions": [source]}));
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

    /// Presses Tab until the selected element has the focus; the focus must be visible at each step.
    #[track_caller]
    pub fn tab_to(&self, selector: &str) {
        for _ in 0..60 {
            self.press(&[TAB]);
            let focus = self.evaluate(&format!(
                "const focus = document.activeElement; const style = getComputedStyle(focus); \
                 return [focus.matches({selector:?}), focus === document.body || (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2), focus.outerHTML.slice(0, 200)]"
            ));
            assert_eq!(focus[1], true, "the focus cannot be seen: {}", focus[2]);
            if focus[0] == true {
                return;
            }
        }
        panic!("the Tab key does not lead to {selector}: {}", self.page_text());
    }

    /// Sets the window size and the preferred color scheme.
    pub fn set_window(&self, (width, height): (u32, u32), scheme: &str) {
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// Waits for about ninety redraws of the page.
    pub fn wait_for_frames(&self) {
        let script = "const done = arguments[0]; let remaining = 90; const next = () => ((remaining -= 1) ? requestAnimationFrame(next) : done(null)); next();";
        self.command("/execute/async", &json!({"script": script, "args": []}));
    }

    /// The role and the name of each visible node of the accessibility tree.
    pub fn accessibility(&self) -> Vec<(String, String)> {
        let tree = self.devtools("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let visible = nodes.filter(|node| node["ignored"] == false);
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().trim().to_owned();
        visible
            .map(|node| (text(&node["role"]), text(&node["name"])))
            .collect()
    }

    /// A screenshot of the page, PNG in base64.
    pub fn picture(&self, parameters: &Value) -> String {
        let shot = self.devtools("Page.captureScreenshot", parameters);
        shot["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let request = self.client.delete(&self.session);
        // The driver ends remaining processes.
        let _ = self.runtime.block_on(async { request.send().await });
    }
}
