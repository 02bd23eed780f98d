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

/// The model's own template under a name that nobody looks for.
fn without_template(model: &SyntheticModel) {
    let mut bytes = std::fs::read(model.path()).expect("the model is there");
    let key = b"tokenizer.chat_template";
    let start = bytes.windows(key.len()).position(|window| window == key).expect("it has a template");
    bytes[start + key.len() - 1] = b'X';
    std::fs::write(model.path(), bytes).expect("it can be written");
}

#[test]
fn a_model_without_a_template_refuses_chats_and_serves_them_with_one_that_is_asked_for() {
    let model = SyntheticModel::write(PROGRAM, "template", &[]);
    without_template(&model);
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"messages": messages, "max_tokens": 2});
    let server = Server::start(PROGRAM, model.path(), &[]);
    let refused = server.http().post("/v1/chat/completions", &chat);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("messages")));
    assert!(refused.body.contains("no chat template"), "{}", refused.body);
    assert_eq!(
        server.http().post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 2})).status,
        200
    );
    drop(server);

    let file = std::env::temp_dir().join(format!("lavalane-{}.jinja", std::process::id()));
    std::fs::write(&file, "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
        .expect("it is written");
    for (choice, expected) in [
        ("chatml", "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"),
        (file.to_str().expect("the path is text"), "<|im_start|>Hello"),
    ] {
        let server = Server::start(PROGRAM, model.path(), &["--chat-template", choice]);
        let tokens = server.http().post("/tokenize", &json!({"messages": messages})).json();
        let text = server.http().post("/detokenize", &json!({"tokens": tokens["tokens"]})).json();
        assert_eq!(text["content"], expected);
        let reply = server.http().post("/v1/chat/completions", &chat).json();
        assert_eq!(reply["usage"]["prompt_tokens"], tokens["count"], "{reply}");
    }
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn the_kv_type_is_the_one_that_is_asked_for() {
    let model = SyntheticModel::write(PROGRAM, "kv-type", &[]);
    let question =
        json!({"prompt": "Once upon a time there was", "max_tokens": 8, "temperature": 0, "logprobs": 5});
    let logprobs = ["f16", "f32"].map(|kv_type| {
        let server = Server::start(PROGRAM, model.path(), &["--kv-type", kv_type]);
        assert_eq!(server.http().get("/props")["kv_type"], kv_type);
        server.http().post("/v1/completions", &question).json()["choices"][0]["logprobs"]["token_logprobs"]
            .clone()
    });
    assert!(
        logprobs.iter().all(|values| values.as_array().is_some_and(|values| !values.is_empty())),
        "{logprobs:?}"
    );
    assert_ne!(logprobs[0], logprobs[1], "keys and values are rounded to f16 in one of them only");
}
