//! What a served model's own file decides, on small generated models.

use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");

#[test]
fn row_14_a_template_that_begins_with_bos_and_a_tokenizer_that_adds_one_give_one() {
    let model = SyntheticModel::write(PROGRAM, "row-14", &["--architecture", "gemma3"]);
    let server = Server::start(PROGRAM, model.path(), &[]);
    let server = server.http();
    let template = server.get("/props")["chat_template"].as_str().expect("a template").to_owned();
    assert!(template.starts_with("{{ bos_token }}"), "{template}");
    let tokens = |body: Value| {
        let answer = server.post("/tokenize", &body).json();
        answer["tokens"].as_array().expect("tokens").clone()
    };
    let alone = tokens(json!({"content": "", "add_special": true}));
    let [bos] = alone.as_slice() else { panic!("the tokenizer adds one token: {alone:?}") };

    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = tokens(json!({"messages": messages}));
    assert_eq!(chat.first(), Some(bos));
    assert_eq!(chat.iter().filter(|token| *token == bos).count(), 1, "{chat:?}");
    let reply = server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 2})).json();
    assert_eq!(reply["usage"]["prompt_tokens"], chat.len(), "{reply}");
    // A raw prompt gets one too, and keeps the one that its writer placed.
    for prompt in ["Hello", "<bos>Hello"] {
        let text = tokens(json!({"content": "Hello", "add_special": true}));
        let reply = server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 2})).json();
        assert_eq!(reply["usage"]["prompt_tokens"], text.len(), "{prompt}: {reply}");
    }
}
