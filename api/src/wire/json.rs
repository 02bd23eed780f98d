//! Reads a JSON body and, where that fails, says in which field.
//!
//! serde_json alone gives a line and a column. A client that sends a lone surrogate or a number out
//! of range is helped more by the field's path, so the parser here keeps track of where it is. Depth
//! is bounded by serde_json (128 levels).

use crate::error::{ApiError, ErrorKind};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;

/// Parses a whole body.
///
/// # Errors
/// It is not one JSON value; the error's `param` is the path that the parser had reached.
pub fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let path = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = PathedValue { path: &path }.deserialize(&mut deserializer);
    let parsed = parsed.and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| {
        let invalid = ApiError::new(ErrorKind::InvalidJson, format!("the body is not valid JSON: {error}"));
        match render(&path.borrow()) {
            path if path.is_empty() => invalid,
            path => invalid.about(path),
        }
    })
}

/// How deep a path is written out; below that it ends with an ellipsis.
const PATH_SEGMENTS_MAX: usize = 12;

enum Segment {
    Key(String),
    Index(usize),
}

fn render(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path.iter().take(PATH_SEGMENTS_MAX) {
        match segment {
            Segment::Index(index) => text.push_str(&format!("[{index}]")),
            Segment::Key(key) if text.is_empty() => text.push_str(key),
            Segment::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
        }
    }
    if path.len() > PATH_SEGMENTS_MAX {
        text.push('…');
    }
    text
}

/// Builds a value, and leaves `path` where it was when something fails.
#[derive(Clone, Copy)]
struct PathedValue<'a> {
    path: &'a RefCell<Vec<Segment>>,
}

impl<'de> DeserializeSeed<'de> for PathedValue<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PathedValue<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        self.path.borrow_mut().push(Segment::Index(0));
        while let Some(value) = sequence.next_element_seed(self)? {
            values.push(value);
            if let Some(last) = self.path.borrow_mut().last_mut() {
                *last = Segment::Index(values.len());
            }
        }
        self.path.borrow_mut().pop();
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.path.borrow_mut().push(Segment::Key(key.clone()));
            let value = entries.next_value_seed(self)?;
            self.path.borrow_mut().pop();
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a body is refused, with this path and this part of a message.
    fn check(body: &str, param: Option<&str>, part: &str) {
        let error = parse(body.as_bytes()).expect_err(body);
        assert_eq!(error.kind(), ErrorKind::InvalidJson);
        assert_eq!(error.param(), param, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn a_body_becomes_the_same_value_that_serde_json_reads() {
        let body = r#"{"a":[1,-2,3.5,true,null,"x\u00e9😊"],"b":{"c":{}},"d":18446744073709551615}"#;
        assert_eq!(parse(body.as_bytes()), Ok(serde_json::from_str(body).expect("valid")));
    }

    #[test]
    fn a_lone_surrogate_is_refused_with_its_path() {
        check(r#"{"messages":[{"content":"a"},{"content":"\ud83d"}]}"#, Some("messages[1].content"), "");
        check(r#"{"prompt":"\ude00"}"#, Some("prompt"), "");
    }

    #[test]
    fn ten_thousand_levels_are_refused() {
        let body = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        let error = parse(body.as_bytes()).expect_err("too deep");
        assert!(error.to_string().contains("recursion limit"), "{error}");
        assert!(error.param().is_some_and(|path| path.starts_with("a[0][0]") && path.len() < 60));
    }

    #[test]
    fn broken_json_is_refused_with_line_and_column() {
        check("{\"a\": 1", None, "line 1 column 7");
        check("", None, "EOF");
        check("{} x", None, "trailing");
        check(r#"{"a":1e999}"#, Some("a"), "out of range");
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_refused() {
        let error = parse(b"{\"prompt\":\"\xff\"}").expect_err("invalid UTF-8");
        assert_eq!(error.param(), Some("prompt"));
    }
}
