//! Reads the tokenizer fields of a GGUF file for tests, in the shortest way: files that tests use are
//! sound, so anything else panics.

use crate::tokenizer::TokenizerSource;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

enum Value {
    Number(f64),
    Text(String),
    List(Vec<Value>),
}

impl Value {
    fn number(&self) -> f64 {
        match self {
            Self::Number(number) => *number,
            _ => panic!("not a number"),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            _ => panic!("not a text"),
        }
    }

    fn list(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            _ => panic!("not a list"),
        }
    }
}

struct Reader(BufReader<File>);

impl Reader {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("the file is whole");
        bytes
    }

    fn length(&mut self) -> usize {
        u64::from_le_bytes(self.bytes()) as usize
    }

    fn text(&mut self) -> String {
        let mut bytes = vec![0; self.length()];
        self.0.read_exact(&mut bytes).expect("the file is whole");
        String::from_utf8(bytes).expect("texts are UTF-8")
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 | 1 | 7 => Value::Number(f64::from(self.bytes::<1>()[0])),
            2 | 3 => Value::Number(f64::from(u16::from_le_bytes(self.bytes()))),
            4 | 5 => Value::Number(f64::from(u32::from_le_bytes(self.bytes()))),
            6 => Value::Number(f64::from(f32::from_le_bytes(self.bytes()))),
            8 => Value::Text(self.text()),
            9 => {
                let kind = u32::from_le_bytes(self.bytes());
                let count = self.length();
                Value::List((0..count).map(|_| self.value(kind)).collect())
            }
            10 | 11 => Value::Number(u64::from_le_bytes(self.bytes()) as f64),
            12 => Value::Number(f64::from_le_bytes(self.bytes())),
            _ => panic!("unknown kind {kind}"),
        }
    }
}

pub(super) fn read_source(path: &Path) -> TokenizerSource {
    let mut reader = Reader(BufReader::new(File::open(path).expect("the file opens")));
    reader.bytes::<16>();
    let mut source = TokenizerSource::default();
    for _ in 0..reader.length() {
        let key = reader.text();
        let kind = u32::from_le_bytes(reader.bytes());
        let value = reader.value(kind);
        let id = || Some(value.number() as u32);
        let flag = || Some(value.number() != 0.0);
        let texts = || value.list().iter().map(Value::text).collect();
        match key.strip_prefix("tokenizer.").unwrap_or_default() {
            "ggml.model" => source.model = value.text(),
            "ggml.pre" => source.pre = Some(value.text()),
            "ggml.tokens" => source.tokens = texts(),
            "ggml.merges" => source.merges = texts(),
            "ggml.scores" => source.scores = value.list().iter().map(|score| score.number() as f32).collect(),
            "ggml.token_type" => {
                source.token_types = value.list().iter().map(|kind| kind.number() as u32).collect();
            }
            "ggml.bos_token_id" => source.bos = id(),
            "ggml.eos_token_id" => source.eos = id(),
            "ggml.unknown_token_id" => source.unknown = id(),
            "ggml.add_bos_token" => source.add_bos = flag(),
            "ggml.add_eos_token" => source.add_eos = flag(),
            "ggml.add_space_prefix" => source.add_space_prefix = flag(),
            "chat_template" => source.chat_template = Some(value.text()),
            _ => {}
        }
    }
    source
}
