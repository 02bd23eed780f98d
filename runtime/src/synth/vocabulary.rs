//! The smallest vocabularies that are real ones: every text can be encoded, and the rest of the ids are
//! pieces joined from shorter ones.

use crate::gguf::{Array, Value, ValueType};

/// Which kind of tokenizer a generated model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VocabularyKind {
    /// Byte-level BPE, with ChatML.
    ByteLevel,
    /// SentencePiece BPE, with Gemma's turns.
    SentencePiece,
}

/// Fewest tokens of a vocabulary: all bytes, the control tokens, and some pieces.
pub(super) const TOKENS_MIN: usize = 512;
/// More tokens than joined pieces can make up for.
pub(super) const TOKENS_MAX: usize = 1 << 19;

const CHAT_ML: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
    {{ message['content'] }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const GEMMA_TURNS: &str = "{{ bos_token }}{% for message in messages %}<start_of_turn>\
    {{ 'model' if message['role'] == 'assistant' else message['role'] }}\n\
    {{ message['content'] }}<end_of_turn>\n{% endfor %}\
    {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";

/// The token types of GGUF.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const BYTE: i64 = 6;

/// The `tokenizer.*` metadata of a vocabulary of so many tokens.
pub(super) fn metadata(kind: VocabularyKind, tokens: usize) -> Vec<(String, Value)> {
    match kind {
        VocabularyKind::ByteLevel => byte_level(tokens),
        VocabularyKind::SentencePiece => sentence_piece(tokens),
    }
}

fn byte_level(count: usize) -> Vec<(String, Value)> {
    let controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let bytes: Vec<String> = (0..=u8::MAX).map(spelling).collect();
    let mut types = vec![CONTROL; controls.len()];
    let merged = joined_pieces(&bytes, count - controls.len() - bytes.len());
    types.resize(count, NORMAL);
    let merges = merged.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let pieces = merged.into_iter().map(|(left, right)| left + &right);
    let tokens = controls.into_iter().chain(bytes).chain(pieces).collect();
    let mut metadata = common("gpt2", "gpt-2", tokens, types, CHAT_ML);
    metadata.extend([
        ("tokenizer.ggml.merges".to_owned(), Value::Array(Array::Strings(merges))),
        id("bos", 1),
        id("eos", 2),
        id("padding", 0),
        ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(false)),
    ]);
    metadata
}

fn sentence_piece(count: usize) -> Vec<(String, Value)> {
    let controls =
        ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"].map(str::to_owned);
    let mut types = vec![CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL];
    let bytes: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
    types.resize(types.len() + bytes.len(), BYTE);
    let letters: Vec<String> = ('!'..='~').chain(['\u{2581}', '\n']).map(String::from).collect();
    let merged = joined_pieces(&letters, count - controls.len() - bytes.len() - letters.len());
    types.resize(count, NORMAL);
    let pieces = merged.into_iter().map(|(left, right)| left + &right);
    let tokens: Vec<String> = controls.into_iter().chain(bytes).chain(letters).chain(pieces).collect();
    // Earlier pieces merge first.
    let scores = (0..count).map(|token| -(token as f32)).collect();
    let mut metadata = common("llama", "default", tokens, types, GEMMA_TURNS);
    metadata.extend([
        ("tokenizer.ggml.scores".to_owned(), Value::Array(Array::Floats(scores))),
        id("bos", 2),
        id("eos", 1),
        id("eot", 5),
        id("unknown", 3),
        id("padding", 0),
        ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(true)),
        ("tokenizer.ggml.add_space_prefix".to_owned(), Value::Bool(false)),
    ]);
    metadata
}

fn common(
    model: &str,
    pre_tokenizer: &str,
    tokens: Vec<String>,
    types: Vec<i64>,
    template: &str,
) -> Vec<(String, Value)> {
    vec![
        ("tokenizer.ggml.model".to_owned(), Value::String(model.to_owned())),
        ("tokenizer.ggml.pre".to_owned(), Value::String(pre_tokenizer.to_owned())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Array(Array::Strings(tokens))),
        ("tokenizer.ggml.token_type".to_owned(), Value::Array(Array::Integers(ValueType::I32, types))),
        ("tokenizer.chat_template".to_owned(), Value::String(template.to_owned())),
    ]
}

fn id(name: &str, token: i128) -> (String, Value) {
    (format!("tokenizer.ggml.{name}_token_id"), Value::Integer(ValueType::U32, token))
}

/// Distinct pieces, each joined of a letter or earlier piece and a letter: first all pairs, then all
/// triples.
fn joined_pieces(letters: &[String], count: usize) -> Vec<(String, String)> {
    let pairs =
        letters.iter().flat_map(|left| letters.iter().map(move |right| (left.clone(), right.clone())));
    let triples = letters.iter().flat_map(|first| {
        letters.iter().flat_map(move |second| {
            letters.iter().map(move |third| (format!("{first}{second}"), third.clone()))
        })
    });
    let pieces: Vec<_> = pairs.chain(triples).take(count).collect();
    assert_eq!(pieces.len(), count, "a vocabulary is capped at what pairs and triples make up");
    pieces
}

/// The character that spells a byte in byte-level vocabularies: printable Latin-1 characters spell
/// themselves, the others are the characters from U+0100 on, in order.
fn spelling(byte: u8) -> String {
    let spells_itself = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if spells_itself(&byte) {
        return char::from(byte).to_string();
    }
    let others_before = (0..byte).filter(|byte| !spells_itself(byte)).count() as u32;
    char::from_u32(0x100 + others_before).expect("these are letters").to_string()
}
