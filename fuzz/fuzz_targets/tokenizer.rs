//! Fuzzes tokenizers and chat templates: the metadata of a hostile model file, and hostile texts.
//!
//! The input is split at bytes 0x1F into fields: which kind and pre-tokenizer, tokens, merges, a text,
//! a chat template and a message. Fields with several entries are split at 0x1E.

#![no_main]

use lavalane_runtime::chat::{ChatMessage, ChatTemplate, RenderOptions, Role};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::tokenizer::{
    AddSpecial, ControlText, SpecialText, StopMatcher, StreamDecoder, Tokenizer, TokenizerSource,
    UnknownPreTokenizer,
};
use libfuzzer_sys::fuzz_target;

const FIELD: char = '\u{1f}';
const ENTRY: char = '\u{1e}';

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut fields = text.split(FIELD);
    let mut field = || fields.next().unwrap_or_default();
    let entries = |field: &str| -> Vec<String> { field.split(ENTRY).map(str::to_owned).collect() };
    let names = entries(field());
    let tokens = entries(field());
    let merges = entries(field());
    let (text, template, message) = (field(), field(), field());
    let source = TokenizerSource {
        model: if names[0].starts_with('s') { "llama".into() } else { "gpt2".into() },
        pre: names.get(1).cloned(),
        scores: tokens.iter().enumerate().map(|(index, _)| -(index as f32)).collect(),
        // Control tokens are those with the looks of one; every kind occurs.
        token_types: tokens
            .iter()
            .map(|token| if token.starts_with('<') { 3 } else { token.len() as u32 % 7 })
            .collect(),
        bos: names.get(2).and_then(|id| id.parse().ok()),
        add_bos: Some(true),
        merges,
        tokens,
        ..TokenizerSource::default()
    };
    let Ok(tokenizer) = Tokenizer::new(&source, UnknownPreTokenizer::Allow) else { return };
    check_text(&tokenizer, text);
    check_template(&tokenizer, template, message);
});

/// Encodes and decodes in every way; streaming must give the same text as decoding at once.
fn check_text(tokenizer: &Tokenizer, text: &str) {
    for special in [SpecialText::AsText, SpecialText::AsTokens] {
        let tokens = tokenizer.encode(text, special, AddSpecial::Yes);
        assert!(tokens.iter().all(|token| token.index() < tokenizer.vocabulary_size()));
        let mut decoder = StreamDecoder::new();
        let mut stop = StopMatcher::new(&["ab".to_owned(), "é".to_owned()]);
        let mut streamed = String::new();
        for token in &tokens {
            let chunk = decoder.push(tokenizer, *token);
            let _ = stop.push(&chunk);
            streamed += &chunk;
        }
        streamed += &decoder.finish();
        let decoded = tokenizer.decode(&tokens, ControlText::Hide);
        assert!(streamed == decoded || streamed.strip_prefix(' ') == Some(&*decoded));
    }
}

/// A message must not change how many of each control token a prompt has.
fn check_template(tokenizer: &Tokenizer, source: &str, message: &str) {
    let counted = |template: &ChatTemplate, message: &str| -> Option<usize> {
        let messages = [ChatMessage::new(Role::User, message)];
        let rendered = template.render(&messages, &RenderOptions::default()).ok()?;
        let tokens = rendered.encode(tokenizer);
        let control = |token: &&TokenId| {
            let text = tokenizer.token_text(**token).unwrap_or_default();
            tokenizer.protected_texts().iter().any(|protected| protected == text)
        };
        Some(tokens.iter().filter(control).count())
    };
    if let Ok(template) = ChatTemplate::new(source, tokenizer) {
        let _ = counted(&template, message);
    }
    // A template that prints the message as it is, and no control text that pieces could complete.
    let plain = "{{ messages[0].content }}";
    let template = ChatTemplate::new(plain, tokenizer).expect("the template is sound");
    let bos = usize::from(tokenizer.adds_bos());
    if let Some(count) = counted(&template, message) {
        assert!(count <= bos + unknown_tokens(tokenizer, message));
    }
}

/// How often the text gives the unknown token, which stands for text.
fn unknown_tokens(tokenizer: &Tokenizer, text: &str) -> usize {
    let tokens = tokenizer.encode(text, SpecialText::AsText, AddSpecial::No);
    let unknown = |token: &&TokenId| {
        let text = tokenizer.token_text(**token).unwrap_or_default();
        tokenizer.protected_texts().iter().any(|protected| protected == text)
    };
    tokens.iter().filter(unknown).count()
}
