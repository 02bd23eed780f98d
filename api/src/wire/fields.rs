//! Typed access to one JSON object's fields, with errors that name the field by its path.

use crate::error::{ApiError, ErrorKind};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// One object and the path that leads to it (empty for the body itself). A field that is null counts
/// as absent everywhere.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of a whole body.
    ///
    /// # Errors
    /// It is not an object.
    pub fn of_body(value: &'a Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { path: String::new(), map }),
            other => {
                let message = format!("the body must be a JSON object, not {}", kind_of(other));
                Err(ApiError::new(ErrorKind::InvalidValue, message))
            }
        }
    }

    /// The fields of the object at `path`.
    ///
    /// # Errors
    /// It is not an object.
    pub fn of(value: &'a Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            other => Err(wrong_type(&path, "an object", other)),
        }
    }

    /// The path of a field of this object.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field's value, unless it is absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A text.
    ///
    /// # Errors
    /// The field is there and is not a text.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|value| as_text(value, || self.path(name))).transpose()
    }

    /// A text that must be there.
    ///
    /// # Errors
    /// The field is absent, or is not a text.
    pub fn required_text(&self, name: &str) -> Result<&'a str, ApiError> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    /// A truth value.
    ///
    /// # Errors
    /// The field is there and is not `true` or `false`.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let flag = |value: &Value| {
            value.as_bool().ok_or_else(|| wrong_type(&self.path(name), "true or false", value))
        };
        self.get(name).map(flag).transpose()
    }

    /// A whole number within `range`; `5.0` is one too.
    ///
    /// # Errors
    /// The field is there and is not such a number.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.get(name).map(|value| as_integer(value, range, || self.path(name))).transpose()
    }

    /// A number, rounded to the nearest `f32`.
    ///
    /// # Errors
    /// The field is there and is not a number.
    pub fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        self.get(name).map(|value| as_number(value, || self.path(name))).transpose()
    }

    /// An array.
    ///
    /// # Errors
    /// The field is there and is not an array.
    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        let array = |value: &'a Value| {
            let array = value.as_array().map(Vec::as_slice);
            array.ok_or_else(|| wrong_type(&self.path(name), "an array", value))
        };
        self.get(name).map(array).transpose()
    }

    /// An object.
    ///
    /// # Errors
    /// The field is there and is not an object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(name).map(|value| Fields::of(value, self.path(name))).transpose()
    }

    /// The object's entries, as they are.
    pub fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.map.iter()
    }

    /// The error for a field that must be there.
    pub fn missing(&self, name: &str) -> ApiError {
        let path = self.path(name);
        let message = format!("the field `{path}` is required");
        ApiError::field(ErrorKind::MissingField, path, message)
    }

    /// The error for a field whose value cannot be.
    pub fn invalid(&self, name: &str, rule: &str) -> ApiError {
        invalid(&self.path(name), rule)
    }

    /// Refuses a field of the API that this server does not implement, unless it holds one of the
    /// values that change nothing.
    ///
    /// # Errors
    /// The field is there and asks for something.
    pub fn refuse_unsupported(&self, name: &str, harmless: &[Value]) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !harmless.contains(value) => {
                let path = self.path(name);
                let message = format!("the field `{path}` is not supported by this server");
                Err(ApiError::field(ErrorKind::UnsupportedField, path, message))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a text at the path that `path` gives.
///
/// # Errors
/// It is something else.
pub fn as_text(value: &Value, path: impl FnOnce() -> String) -> Result<&str, ApiError> {
    value.as_str().ok_or_else(|| wrong_type(&path(), "a string", value))
}

/// Reads a number at the path that `path` gives.
///
/// # Errors
/// It is something else.
pub fn as_number(value: &Value, path: impl FnOnce() -> String) -> Result<f32, ApiError> {
    let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
    number.ok_or_else(|| wrong_type(&path(), "a number", value))
}

/// Reads a whole number within `range`.
///
/// # Errors
/// It is something else, or out of range.
pub fn as_integer(
    value: &Value,
    range: RangeInclusive<i64>,
    path: impl FnOnce() -> String,
) -> Result<i64, ApiError> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9.0e15).then_some(number as i64);
    match value.as_i64().or_else(|| value.as_f64().and_then(whole)) {
        Some(integer) if range.contains(&integer) => Ok(integer),
        None if !value.is_number() => Err(wrong_type(&path(), "an integer", value)),
        _ => {
            let rule =
                format!("must be an integer between {} and {}, not {value}", range.start(), range.end());
            Err(invalid(&path(), &rule))
        }
    }
}

/// The error for a value that cannot be: `rule` follows the field's name.
pub fn invalid(path: &str, rule: &str) -> ApiError {
    ApiError::field(ErrorKind::InvalidValue, path, format!("`{path}` {rule}"))
}

/// The error for a value of the wrong type.
pub fn wrong_type(path: &str, expected: &str, value: &Value) -> ApiError {
    invalid(path, &format!("must be {expected}, not {}", kind_of(value)))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_counts_as_absent() {
        let body = json!({"a": null});
        let fields = Fields::of_body(&body).expect("an object");
        assert_eq!((fields.text("a"), fields.flag("a"), fields.number("b")), (Ok(None), Ok(None), Ok(None)));
    }

    #[test]
    fn a_wrong_type_names_the_whole_path_and_both_types() {
        let body = json!({"outer": {"inner": [1]}});
        let fields = Fields::of_body(&body).expect("an object");
        let outer = fields.object("outer").expect("an object").expect("present");
        let error = outer.text("inner").expect_err("an array is no text");
        assert_eq!(error.param(), Some("outer.inner"));
        assert_eq!(error.to_string(), "`outer.inner` must be a string, not an array");
    }

    #[test]
    fn an_integer_may_be_written_with_a_fraction_of_zero_and_keeps_its_range() {
        let body = json!({"a": 5.0, "b": 5.5, "c": 11, "d": 1e300, "e": "5"});
        let fields = Fields::of_body(&body).expect("an object");
        assert_eq!(fields.integer("a", 0..=10), Ok(Some(5)));
        for name in ["b", "c", "d", "e"] {
            assert_eq!(fields.integer(name, 0..=10).expect_err(name).param(), Some(name));
        }
    }

    #[test]
    fn a_number_beyond_f32_is_refused() {
        let body = json!({"a": 1e300});
        assert!(Fields::of_body(&body).expect("an object").number("a").is_err());
    }
}
