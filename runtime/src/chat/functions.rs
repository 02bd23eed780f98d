//! What chat templates call beyond Jinja itself, as Hugging Face's `apply_chat_template` provides it:
//! `raise_exception`, `strftime_now` and a `tojson` that writes as Python's `json.dumps` does.

use super::dates::format_date;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// The most bytes that one `tojson` may write; values may share parts, so that a small one can be
/// huge when written.
const JSON_BYTES_MAX: usize = 16 << 20;

/// How deep a value that `tojson` writes may be.
const JSON_DEPTH_MAX: usize = 128;

/// The text of a template's `raise_exception`, carried as the error's source.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds the functions and filters.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let text = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

fn strftime_now(pattern: String) -> String {
    // A clock before 1970 is a broken clock; the start of 1970 is as good as any answer.
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format_date(&pattern, seconds)
}

fn tojson(value: Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        Some(indent) if !indent.is_none() => Some(usize::try_from(indent)?.min(16)),
        _ => None,
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = match options.get::<Option<Vec<String>>>("separators")? {
        Some(pair) if pair.len() == 2 => (pair[0].clone(), pair[1].clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two texts")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    options.assert_all_used()?;
    let alphabet = if ascii { Alphabet::Ascii } else { Alphabet::Unicode };
    let order = if sorted { KeyOrder::Sorted } else { KeyOrder::Kept };
    let mut writer = JsonWriter { text: String::new(), indent, separators, alphabet, order };
    writer.write(&value, 0)?;
    Ok(Value::from(writer.text))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Alphabet {
    Ascii,
    Unicode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyOrder {
    Kept,
    Sorted,
}

struct JsonWriter {
    text: String,
    indent: Option<usize>,
    /// Between items, and between a key and its value.
    separators: (String, String),
    alphabet: Alphabet,
    order: KeyOrder,
}

impl JsonWriter {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > JSON_DEPTH_MAX || self.text.len() > JSON_BYTES_MAX {
            return Err(Error::new(ErrorKind::OutOfFuel, "the value is too large for tojson"));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&value.to_string()),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let mut items = 0;
                for item in value.try_iter()? {
                    self.separate(items, depth + 1);
                    self.write(&item, depth + 1)?;
                    items += 1;
                }
                self.close(items, depth, ']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.order == KeyOrder::Sorted {
                    keys.sort();
                }
                self.text.push('{');
                for (items, key) in keys.iter().enumerate() {
                    self.separate(items, depth + 1);
                    self.write_key(key)?;
                    self.text.push_str(&self.separators.1);
                    self.write(&value.get_item(key)?, depth + 1)?;
                }
                self.close(keys.len(), depth, '}');
            }
            other => {
                let problem = format!("a value of kind {other} has no form in JSON");
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn write_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.as_str() {
            Some(key) => self.write_text(key),
            None => self.write_text(&key.to_string()),
        }
    }

    fn write_text(&mut self, text: &str) -> Result<(), Error> {
        let quoted = serde_json::to_string(text).map_err(|error| {
            Error::new(ErrorKind::BadSerialization, "a text has no form in JSON").with_source(error)
        })?;
        if self.alphabet == Alphabet::Unicode {
            self.text.push_str(&quoted);
            return Ok(());
        }
        for character in quoted.chars() {
            if character.is_ascii() {
                self.text.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                self.text.push_str(&format!("\\u{unit:04x}"));
            }
        }
        Ok(())
    }

    fn separate(&mut self, items_before: usize, depth: usize) {
        if items_before > 0 {
            self.text.push_str(&self.separators.0);
        }
        self.new_line(depth);
    }

    fn close(&mut self, items: usize, depth: usize, bracket: char) {
        if items > 0 {
            self.new_line(depth);
        }
        self.text.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression: &str, expected: &str) {
        let mut environment = Environment::new();
        install(&mut environment);
        let found = environment.render_str(expression, ()).expect("it renders");
        assert_eq!(found, expected);
    }

    #[test]
    fn tojson_writes_as_python_does() {
        check(
            r#"{{ {"b": [1, 2.5, none, true], "a": "<é'\n>"} | tojson }}"#,
            r#"{"b": [1, 2.5, null, true], "a": "<é'\n>"}"#,
        );
        check(
            r#"{{ {"b": [], "a": [1]} | tojson(indent=2) }}"#,
            "{\n  \"b\": [],\n  \"a\": [\n    1\n  ]\n}",
        );
        check(
            r#"{{ {"b": 1, "a": "é😀"} | tojson(ensure_ascii=true, sort_keys=true) }}"#,
            r#"{"a": "\u00e9\ud83d\ude00", "b": 1}"#,
        );
        check(r#"{{ [1, {"a": 2}] | tojson(separators=[",", ":"]) }}"#, r#"[1,{"a":2}]"#);
    }

    #[test]
    fn a_small_value_that_is_huge_when_written_is_refused() {
        let source = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}";
        let mut environment = Environment::new();
        install(&mut environment);
        let error = environment.render_str(source, ()).expect_err("it is too large");
        assert_eq!(error.kind(), ErrorKind::OutOfFuel);
    }
}
