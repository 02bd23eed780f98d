//! Metadata values, and their reading as the Rust type that is needed.

use std::fmt;

use super::error::describe_array;

/// The value types of GGUF, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type that a file names by this number.
    pub fn from_number(number: u32) -> Option<Self> {
        use ValueType::*;
        const IN_ORDER: [ValueType; 13] =
            [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64];
        IN_ORDER.get(usize::try_from(number).ok()?).copied()
    }

    /// The number by which files name this type.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The fewest bytes that one value takes in a file.
    pub(super) fn least_bytes(self) -> u64 {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => 1,
            U16 | I16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 | String => 8,
            Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number of any width, with the type that the file gave it.
    Integer(ValueType, i128),
    /// A number of 32 or 64 bits, with the type that the file gave it.
    Float(ValueType, f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    String(String),
    /// An array.
    Array(Array),
}

/// An array of metadata values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Whole numbers of any width, with the type that the file gave them.
    Integers(ValueType, Vec<i64>),
    /// 32-bit floats.
    Floats(Vec<f32>),
    /// 64-bit floats.
    Doubles(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts.
    Strings(Vec<String>),
    /// Arrays.
    Arrays(Vec<Array>),
}

impl Array {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(_, values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Doubles(values) => values.len(),
            Self::Bools(values) => values.len(),
            Self::Strings(values) => values.len(),
            Self::Arrays(values) => values.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn element(&self) -> ValueType {
        match self {
            Self::Integers(value_type, _) => *value_type,
            Self::Floats(_) => ValueType::F32,
            Self::Doubles(_) => ValueType::F64,
            Self::Bools(_) => ValueType::Bool,
            Self::Strings(_) => ValueType::String,
            Self::Arrays(_) => ValueType::Array,
        }
    }
}

/// The type of a value and, where it is short, the value: for errors and for people.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value_type, value) => write!(formatter, "the {value_type} {value}"),
            Self::Float(value_type, value) => write!(formatter, "the {value_type} {value}"),
            Self::Bool(value) => write!(formatter, "the truth value {value}"),
            Self::String(value) => write!(formatter, "a string of {} bytes", value.len()),
            Self::Array(array) => formatter.write_str(&describe_array(array.element(), array.len())),
        }
    }
}

/// A Rust type that metadata values can be read as.
pub trait FromValue<'a>: Sized {
    /// What the type expects, for errors.
    const EXPECTED: &'static str;

    /// The value as this type, or `None` where it is another type or does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_integer {
    ($($integer:ty: $expected:literal),*) => {$(
        impl<'a> FromValue<'a> for $integer {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &'a Value) -> Option<Self> {
                match value {
                    Value::Integer(_, value) => (*value).try_into().ok(),
                    _ => None,
                }
            }
        }
    )*};
}

from_integer!(
    u32: "a whole number of 32 bits",
    i32: "a signed whole number of 32 bits",
    u64: "a whole number of 64 bits",
    usize: "a whole number"
);

impl<'a> FromValue<'a> for f32 {
    const EXPECTED: &'static str = "a float";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Float(_, value) => Some(*value as f32),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const EXPECTED: &'static str = "a truth value";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(value) => Some(value),
            _ => None,
        }
    }
}

macro_rules! from_array {
    ($($element:ty: $pattern:pat => $values:ident, $expected:literal);*) => {$(
        impl<'a> FromValue<'a> for &'a [$element] {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &'a Value) -> Option<Self> {
                match value {
                    Value::Array($pattern) => Some($values),
                    _ => None,
                }
            }
        }
    )*};
}

from_array!(
    i64: Array::Integers(_, values) => values, "an array of whole numbers";
    f32: Array::Floats(values) => values, "an array of 32-bit floats";
    bool: Array::Bools(values) => values, "an array of truth values";
    String: Array::Strings(values) => values, "an array of strings"
);
