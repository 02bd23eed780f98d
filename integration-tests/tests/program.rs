//! The `lavalane` program as a user meets it: what its commands print, which settings win, and how it fails.

use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");

fn model(name: &str) -> SyntheticModel {
    SyntheticModel::write(PROGRAM, name, &[])
}

/// The program with these arguments, of which `MODEL` stands for the model's path.
fn command(model: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    for argument in arguments {
        match *argument {
            "MODEL" => command.arg(model),
            argument => command.arg(argument),
        };
    }
    command.env_clear().envs(std::env::vars().filter(|(name, _)| !name.starts_with("LAVALANE_")));
    command
}

/// Runs the program with `input` to its end.
fn run(model: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = command(model, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // A program that has failed by then reads nothing.
    let _ = child.stdin.take().expect("its input is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the program, which must succeed; gives its output and its errors.
#[track_caller]
fn check_success(model: &Path, arguments: &[&str], input: &str) -> (String, String) {
    let output = run(model, arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Runs the program, which must end with this exit code and a message that holds each of `parts`.
#[track_caller]
fn check_failure(model: &Path, arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run(model, arguments, "");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.starts_with("error: "), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
}

/// A file of a test, removed when this is dropped.
struct File(PathBuf);

impl File {
    fn write(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("lavalane-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("the file is written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Whatever else went wrong, the file is in nobody's way.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn run_answers_a_prompt_the_same_way_each_time_and_tells_its_speed() {
    let model = model("run-prompt");
    let arguments = ["run", "--model", "MODEL", "-n", "8", "-t", "0", "Tell me about the sea."];
    let (reply, speed) = check_success(model.path(), &arguments, "");
    assert!(reply.len() > 1 && reply.ends_with('\n'), "{reply:?}");
    assert!(
        speed.contains(" prompt tokens (0 cached), first token after ") && speed.contains(" tokens/s]"),
        "{speed}"
    );
    assert_eq!(check_success(model.path(), &arguments, "").0, reply);
}

#[test]
fn run_talks_until_an_empty_line_and_reuses_what_was_said() {
    let model = model("run-talk");
    let arguments =
        ["run", "--model", "MODEL", "-n", "4", "-t", "0", "--system", "Be brief.", "--kv-type", "f32"];
    let (_, speeds) =
        check_success(model.path(), &arguments, "Good morning to you.\nHow are you?\n\nNever read.\n");
    let speeds: Vec<&str> = speeds.lines().filter(|line| line.contains("tokens/s]")).collect();
    assert_eq!(speeds.len(), 2, "{speeds:?}");
    assert!(speeds[0].contains("(0 cached)") && !speeds[1].contains("(0 cached)"), "{speeds:?}");
}

#[test]
fn inspect_shows_what_synth_wrote_and_what_it_needs() {
    let model = SyntheticModel::write(PROGRAM, "inspect", &["--architecture", "qwen3", "--type", "q8_0"]);
    let (output, _) = check_success(model.path(), &["inspect", "MODEL", "--tensors"], "");
    for part in [
        "qwen3",
        "1 layers, 64 wide",
        "vocabulary 700, context 512",
        "blk.0.attn_q.weight [64, 64] Q8_0",
        "lanes fit",
    ] {
        assert!(output.contains(part), "{part:?} is not in {output}");
    }
    let (output, _) = check_success(model.path(), &["devices"], "");
    assert!(output.contains("kernel pack: ") && output.contains("self-test: passed in "), "{output}");
    assert!(output.contains("threads: "), "{output}");
}

/// Starts a server that may say how software devices run, and looks for `expected` in its line about threads.
fn check_threads(name: &str, arguments: &[&str], variables: &[(&str, &str)], expected: &str) {
    let model = model(name);
    let serve = ["serve", "--port", "0", "--model", "MODEL", "--context", "64"];
    let mut command = command(model.path(), &[&serve[..], arguments].concat());
    command.env_remove("LP_NUM_THREADS").env("LAVALANE_TEST_THREADS", "program").envs(variables.to_vec());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let line = output.lines().map_while(Result::ok).find(|line| line.starts_with("  threads  "));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let line = line.expect("the start says which threads compute");
    if line.contains("the device's own") {
        println!("skipped: the device is no software device");
        return;
    }
    assert!(line.contains(expected), "{name}: {line}");
}

#[test]
fn a_member_alone_computes_on_the_drivers_pool_of_threads() {
    let pool = "the driver's pool of threads, because ";
    check_threads("threads-one", &["--members", "1"], &[], &format!("{pool}one member was asked for"));
    check_threads(
        "threads-subgroup",
        &["--pack", "subgroup"],
        &[],
        &format!("{pool}only the cpu kernel pack"),
    );
    // With vectors of 128 bits Mesa's driver has subgroups of 4, which only the driver can tell.
    check_threads("threads-later", &[], &[("LP_NATIVE_VECTOR_WIDTH", "128")], pool);
}

#[test]
fn bench_writes_its_rates_as_json_and_tells_at_once_where_it_cannot() {
    let model = model("bench");
    let json = File::write("bench.json", b"an older run's");
    let bench = ["bench", "--model", "MODEL", "--repeats", "1", "--steps", "2", "--prompt", "16"];
    let arguments = [&bench[..], &["--long-prompt", "0", "--json", json.path()]].concat();
    let mut command = command(model.path(), &arguments);
    let output = command.env_remove("PEER_BENCH").env_remove("PEER_BATCHED_BENCH").output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(&json.0).expect("the file is there");
    let sides: Value = serde_json::from_str(&written).expect("it is JSON");
    assert_eq!(sides.as_object().expect("an object").keys().collect::<Vec<_>>(), ["lavalane"]);
    for name in ["prefill_512", "decode_1", "decode_8", "decode_32"] {
        let rate = sides["lavalane"][name].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{name} in {written}");
    }
    let nowhere = [&bench[..], &["--json", "/nowhere/bench.json"]].concat();
    check_failure(model.path(), &nowhere, 1, &["/nowhere/bench.json", "No such file"]);
}

#[test]
fn flags_are_stronger_than_the_environment_and_that_than_the_file() {
    let model = model("settings");
    let config = File::write(
        "settings.toml",
        b"model-name = \"of-the-file\"\nlanes = 3\nqueue = 7\ncontext = 200\nkv-type = \"f32\"\nchat-template = \"chatml\"\n",
    );
    let arguments = [
        "serve",
        "--port",
        "0",
        "--model",
        "MODEL",
        "--config",
        config.path(),
        "--model-name",
        "of-the-flag",
    ];
    let mut command = command(model.path(), &arguments);
    command.env("LAVALANE_MODEL_NAME", "of-the-environment").env("LAVALANE_QUEUE", "5");
    let server = Server::start_command(command);
    let properties = server.http().get("/props");
    let found = ["model", "queue_capacity", "lanes", "context_tokens", "kv_type"]
        .map(|name| properties[name].clone());
    assert_eq!(found, [json!("of-the-flag"), json!(5), json!(3), json!(200), json!("f32")]);
}

#[test]
fn settings_that_cannot_be_are_told_with_their_source() {
    let model = model("bad-settings");
    let serve = |more: &[&str], parts: &[&str]| {
        check_failure(model.path(), &[&["serve", "--model", "MODEL"], more].concat(), 2, parts);
    };
    let config = File::write("bad.toml", b"lanes = 2\nprot = 1\n");
    serve(&["--config", config.path()], &[config.path(), "prot"]);
    serve(&["--config", "/nowhere/settings.toml"], &["/nowhere/settings.toml"]);
    serve(&["--kv-type", "f8"], &["`kv-type`", "f16 or f32", "f8"]);
    serve(&["--chat-template", "/nowhere/template.jinja"], &["/nowhere/template.jinja"]);
    let template = File::write("faulty.jinja", b"{% for %}");
    serve(&["--chat-template", template.path()], &["the chat template is faulty"]);
    check_failure(model.path(), &["serve"], 2, &["no model", "--model FILE"]);
    check_failure(
        model.path(),
        &["serve", "--model", "MODEL", "--device", "no such device"],
        4,
        &["no such device"],
    );
}

#[test]
fn a_port_that_is_taken_is_told() {
    let model = model("port");
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = taken.local_addr().expect("its address");
    let arguments = ["serve", "--model", "MODEL", "--port", &address.port().to_string()];
    check_failure(model.path(), &arguments, 6, &["cannot listen on", &address.to_string()]);
}

#[test]
fn a_missing_a_cut_and_a_wrong_model_file_are_told_apart_by_every_command() {
    let whole = model("cut");
    let bytes = std::fs::read(whole.path()).expect("the model is there");
    let cut = File::write("cut.gguf", &bytes[..bytes.len() / 2]);
    let other = File::write("other.gguf", b"PK\x03\x04 is a zip file");
    let missing = Path::new("/nowhere/model.gguf");
    for arguments in
        [&["serve", "--model", "MODEL"][..], &["run", "--model", "MODEL", "Hi"], &["inspect", "MODEL"]]
    {
        check_failure(missing, arguments, 3, &["/nowhere/model.gguf", "No such file"]);
        check_failure(&cut.0, arguments, 3, &[cut.path(), "lies outside the file of"]);
        check_failure(&other.0, arguments, 3, &[other.path(), "this is not a GGUF file"]);
    }
}

#[test]
fn a_context_and_a_memory_that_are_too_small_are_told_with_what_is_needed() {
    let model = model("context");
    check_failure(
        model.path(),
        &["serve", "--model", "MODEL", "--context", "513"],
        5,
        &["513 tokens", "512"],
    );
    let long =
        ["run", "--model", "MODEL", "--context", "16", "Tell me about the sea, the hills and the rain."];
    let output = run(model.path(), &long, "");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the context holds 16"), "{error}");

    // One page of this model's KV cache takes more than a megabyte.
    let sizes = ["--layers", "9", "--heads", "8", "--kv-heads", "8", "--head-dim", "128"];
    let wide = SyntheticModel::write(PROGRAM, "memory", &sizes);
    let arguments = ["serve", "--model", "MODEL", "--kv-mb", "1", "--context", "64"];
    let needed = (9 * 8 * 128 * 2 * 2 * 64).to_string();
    check_failure(
        wide.path(),
        &arguments,
        5,
        &["not enough memory", "1000000 for the KV cache", &needed, "holds 0 tokens"],
    );
}
