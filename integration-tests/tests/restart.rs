//! The cache on the disk: a prompt that one server answered is a hit for the next, with the same reply to the
//! bit, also when the first was killed.

use lavalane_integration_tests::http::Http;
use lavalane_integration_tests::models::{ModelFile, find};
use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");

const TEXT: &str = "The harbour lay quiet that morning. The boats had gone out before sunrise, and only the \
    gulls walked the long stone wall, looking for what the nets had left behind. Old Anselm sat at the end of it \
    with his pipe and counted the sails on the horizon, as he had done every morning for forty years. There were \
    eleven of them, and there should have been twelve. He counted again, slowly, with his finger in the air, and \
    then he";

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // It is not there where the test failed early.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(model: &Path, folder: &Folder, more: &[&str]) -> Server {
    let folder = folder.0.to_str().expect("a plain path");
    let arguments = [&["--context", "512", "--lanes", "2", "--cache-dir", folder], more].concat();
    Server::start(PROGRAM, model, &arguments)
}

/// The reply to the text, and how many of its tokens were cached.
fn complete(server: &Server) -> (Value, u64) {
    let body = json!({"prompt": TEXT, "max_tokens": 12, "temperature": 0.7, "seed": 11, "logprobs": 3});
    let reply = server.http().post("/v1/completions", &body).json();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (reply["choices"].clone(), cached.unwrap_or_else(|| panic!("no usage in {reply}")))
}

#[test]
fn a_prompt_is_a_hit_with_the_same_bits_after_the_server_was_killed_and_started_again() {
    let Some(model) = find(ModelFile::SmolLm2) else { return };
    let name = format!("lavalane-restart-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    let first = start(&model, &folder, &[]);
    let (cold, cached) = complete(&first);
    assert_eq!(cached, 0);
    let saved = |http: &Http| (http.metric("lavalane:snapshots_saved_total") > 0.0).then_some(());
    first.http().wait_for("the prompt's snapshot", saved);
    // This kills it.
    drop(first);

    let second = start(&model, &folder, &[]);
    let (warm, cached) = complete(&second);
    assert!(cached >= 64, "only {cached} tokens came from the disk");
    assert_eq!(second.http().metric("lavalane:snapshots_loaded_total"), 1.0);
    assert_eq!(warm, cold, "text and log-probabilities are the same");
    drop(second);

    let precise = start(&model, &folder, &["--precise"]);
    assert_eq!(complete(&precise).1, 0, "another precision's snapshot is of no use");
    drop(precise);

    std::fs::read_dir(&folder.0).expect("the folder is there").for_each(|file| {
        let path = file.expect("it can be read").path();
        let bytes = std::fs::metadata(&path).expect("it is there").len();
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("it can be written");
        file.set_len(bytes / 2).expect("it can be cut");
    });
    let last = start(&model, &folder, &[]);
    assert_eq!(complete(&last), (cold, 0), "cut files change nothing but the time");
}

#[test]
fn a_disk_that_is_full_or_slow_costs_the_snapshot_and_not_the_reply() {
    let model = SyntheticModel::write(PROGRAM, "full-disk", &[]);
    let body = json!({"prompt": TEXT, "max_tokens": 4, "temperature": 0});
    let reply = |server: &Server| server.http().post("/v1/completions", &body).json()["choices"].clone();
    let expected = reply(&Server::start(PROGRAM, model.path(), &[]));
    for (number, (fault, dropped)) in
        [("disk-full@1+", 1.0), ("disk-slow:50@1+", 0.0)].into_iter().enumerate()
    {
        let name = format!("lavalane-restart-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        let path = folder.0.to_str().expect("a plain path");
        let server = Server::start(PROGRAM, model.path(), &["--cache-dir", path, "--fault", fault]);
        assert_eq!(reply(&server), expected, "{fault}");
        let counted = |http: &Http| {
            let counts =
                ["saved", "dropped"].map(|what| http.metric(&format!("lavalane:snapshots_{what}_total")));
            (counts[0] + counts[1] == 1.0).then_some(counts[1])
        };
        assert_eq!(server.http().wait_for("what became of the snapshot", counted), dropped, "{fault}");
        assert_eq!(server.http().get("/health")["status"], "ok", "{fault}");
    }
}

#[test]
fn a_server_killed_in_the_middle_of_writing_a_snapshot_leaves_a_folder_that_the_next_one_uses() {
    let model = SyntheticModel::write(PROGRAM, "killed", &[]);
    let body = json!({"prompt": TEXT, "max_tokens": 4, "temperature": 0});
    let reply = |server: &Server| server.http().post("/v1/completions", &body).json()["choices"].clone();
    let folder = Folder(std::env::temp_dir().join(format!("lavalane-restart-killed-{}", std::process::id())));
    let mut killed = start(model.path(), &folder, &["--fault", "process-killed@1+"]);
    let expected = reply(&killed);
    assert!(!killed.wait().success(), "it ends in the middle of the write");
    let names = || {
        let files = std::fs::read_dir(&folder.0).expect("the folder is there");
        let name = |file: std::io::Result<std::fs::DirEntry>| file.ok()?.file_name().into_string().ok();
        files.filter_map(name).filter(|name| name != "lock" && name != "hits").collect::<Vec<_>>()
    };
    assert!(names().iter().all(|name| name.ends_with("-part")), "{:?}", names());
    assert_eq!(names().len(), 1, "the write had begun");

    let next = start(model.path(), &folder, &[]);
    assert_eq!(names(), [""; 0], "what was not finished is cleared away");
    assert_eq!(reply(&next), expected);
    let saved = |http: &Http| (http.metric("lavalane:snapshots_saved_total") == 1.0).then_some(());
    next.http().wait_for("the prompt's snapshot", saved);
    assert!(names().iter().all(|name| name.ends_with(".lavakv")), "{:?}", names());
}
