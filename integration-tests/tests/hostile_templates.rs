//! A model file's chat template is a program of somebody else's. One that never ends, or asks for all memory, gets an
//! error within the limits of the process that renders it, and the server goes on.

use lavalane_integration_tests::http::Answer;
use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");

/// Lists that hold each other so often that they would be walked for ever.
const DEEP: &str = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
                    {% set ns.y = [ns.y, ns.y] %}{% endfor %}";

/// What each word of a user makes the template do.
const ATTACKS: &[(&str, &str)] = &[
    ("compare", "{{ ns.x == ns.y }}"),
    ("print", "{{ ns.x }}"),
    ("join", "{{ ''.join(['a' * 99999] * 99999999) | length }}"),
    (
        "add",
        "{% set ns.x = [1] %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
    ),
];

/// A file with a template, removed when this is dropped.
struct Template(PathBuf);

impl Template {
    fn write(name: &str, source: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lavalane-{name}-{}.jinja", std::process::id()));
        std::fs::write(&path, source).expect("it is written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // Whatever else went wrong, the file is in nobody's way.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn chat(server: &Server, content: &str) -> Answer {
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2});
    server.http().post("/v1/chat/completions", &body)
}

/// The most memory that a process has had, in kB; `None` where the system does not say.
fn peak_kb(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn a_template_that_takes_all_time_or_memory_is_an_error_and_the_server_goes_on() {
    let model = SyntheticModel::write(PROGRAM, "hostile", &[]);
    let attacks: String = ATTACKS
        .iter()
        .map(|(word, attack)| {
            format!("{{% if messages[0].content == '{word}' %}}{DEEP}{attack}{{% endif %}}")
        })
        .collect();
    let template = Template::write("hostile", &format!("{attacks}<|im_start|>{{{{ messages[0].content }}}}"));
    let server = Server::start(PROGRAM, model.path(), &["--chat-template", template.path()]);
    let before = chat(&server, "Hello");
    assert_eq!(before.status, 200, "{}", before.body);
    let peak_before = peak_kb(server.process());
    for (word, _) in ATTACKS {
        let answer = chat(&server, word);
        assert_eq!(answer.status, 400, "{word}: {}", answer.body);
        assert!(answer.body.contains("takes too much work"), "{word}: {}", answer.body);
        assert_eq!(server.http().get("/health")["status"], "ok");
        assert_eq!(
            chat(&server, "Hello").json()["usage"]["prompt_tokens"],
            before.json()["usage"]["prompt_tokens"]
        );
    }
    match (peak_before, peak_kb(server.process())) {
        (Some(before), Some(after)) => assert!(after < before + 100_000, "{before} kB grew to {after} kB"),
        _ => println!("skipped: this system does not tell a process's memory"),
    }
}

#[test]
fn a_template_that_never_ends_stops_a_start_that_asks_for_it() {
    let model = SyntheticModel::write(PROGRAM, "endless", &[]);
    let template = Template::write("endless", &format!("{DEEP}{{{{ ns.x == ns.y }}}}"));
    let output = Command::new(PROGRAM)
        .args(["serve", "--port", "0", "--chat-template", template.path(), "--model"])
        .arg(model.path())
        .output()
        .expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the chat template takes too much work"), "{error}");
}
