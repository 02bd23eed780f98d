//! The body of `POST /v1/completions`.

use crate::error::ApiError;
use crate::wire::common::{CommonRequest, Logprobs};
use crate::wire::fields::{Fields, as_text, invalid, wrong_type};
use crate::wire::sampling::TOP_LOGPROBS_MAX;
use crate::wire::tokens::read_token_ids;
use lavalane_runtime::ids::TokenId;
use serde_json::Value;

/// How many tokens a completion has where the request does not say; the OpenAI API's default.
pub const TOKENS_MAX_DEFAULT: u32 = 16;
/// The most prompts of one request.
pub const PROMPTS_MAX: usize = 64;

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text; special tokens in it are parsed, since the writer of a raw prompt places them.
    Text(String),
    /// Tokens, each in the vocabulary.
    Tokens(Vec<TokenId>),
}

/// A completion request, validated.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// The prompts, each with the path of its field; at least one.
    pub prompts: Vec<(String, Prompt)>,
    /// Everything else.
    pub common: CommonRequest,
}

impl CompletionRequest {
    /// Reads a body for a model whose vocabulary has this size.
    ///
    /// # Errors
    /// A field is missing, has the wrong type or value, or is not supported; the error names it.
    pub fn read(body: &Value, vocabulary: usize) -> Result<Self, ApiError> {
        let fields = Fields::of_body(body)?;
        let top = fields.integer("logprobs", 0..=TOP_LOGPROBS_MAX)?;
        let logprobs = top.map_or(Logprobs::Off, |top| Logprobs::On { top: top as u8 });
        let mut common = CommonRequest::read(&fields, &["max_tokens"], logprobs)?;
        common.tokens_max = common.tokens_max.or(Some(TOKENS_MAX_DEFAULT));
        let value = fields.get("prompt").ok_or_else(|| fields.missing("prompt"))?;
        Ok(Self { prompts: prompts(value, &fields.path("prompt"), vocabulary)?, common })
    }
}

/// One text, several, one list of tokens, or several.
fn prompts(value: &Value, path: &str, vocabulary: usize) -> Result<Vec<(String, Prompt)>, ApiError> {
    let values = match value {
        Value::String(text) => return Ok(vec![(path.to_owned(), Prompt::Text(text.clone()))]),
        Value::Array(values) => values,
        other => return Err(wrong_type(path, "a string or an array", other)),
    };
    match values.first() {
        None => Err(invalid(path, "must not be empty")),
        Some(Value::Number(_)) => {
            Ok(vec![(path.to_owned(), Prompt::Tokens(read_token_ids(values, path, vocabulary)?))])
        }
        Some(_) if values.len() > PROMPTS_MAX => {
            Err(invalid(path, &format!("may hold at most {PROMPTS_MAX} prompts, not {}", values.len())))
        }
        Some(_) => {
            let prompt = |(index, value): (usize, &Value)| {
                let path = format!("{path}[{index}]");
                let prompt = match value {
                    Value::Array(ids) if ids.is_empty() => return Err(invalid(&path, "must not be empty")),
                    Value::Array(ids) => Prompt::Tokens(read_token_ids(ids, &path, vocabulary)?),
                    other => Prompt::Text(as_text(other, || path.clone())?.to_owned()),
                };
                Ok((path, prompt))
            };
            values.iter().enumerate().map(prompt).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn prompts(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        let request = CompletionRequest::read(&json!({ "prompt": prompt }), 100)?;
        Ok(request.prompts.into_iter().map(|(_, prompt)| prompt).collect())
    }

    fn check(prompt: Value, param: &str) {
        let error = prompts(prompt.clone()).expect_err(param);
        assert_eq!(error.param(), Some(param), "{prompt}: {error}");
    }

    #[test]
    fn all_four_forms_of_prompt_are_read() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        let tokens = |ids: &[u32]| Prompt::Tokens(ids.iter().copied().map(TokenId).collect());
        assert_eq!(prompts(json!("a")), Ok(vec![text("a")]));
        assert_eq!(prompts(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
        assert_eq!(prompts(json!([1, 2])), Ok(vec![tokens(&[1, 2])]));
        assert_eq!(prompts(json!([[1], [2, 3]])), Ok(vec![tokens(&[1]), tokens(&[2, 3])]));
    }

    #[test]
    fn a_bad_prompt_is_named_by_its_place() {
        check(json!(null), "prompt");
        check(json!([]), "prompt");
        check(json!({"a": 1}), "prompt");
        check(json!([1, "a"]), "prompt[1]");
        check(json!([1, 100]), "prompt[1]");
        check(json!(["a", true]), "prompt[1]");
        check(json!([[1], []]), "prompt[1]");
        check(json!([[1], [-2]]), "prompt[1][0]");
        check(json!(vec!["a"; 65]), "prompt");
    }

    #[test]
    fn sixteen_tokens_are_the_default() {
        let request =
            CompletionRequest::read(&json!({"prompt": "a", "max_tokens": null}), 100).expect("valid");
        assert_eq!(request.common.tokens_max, Some(16));
        let error = CompletionRequest::read(&json!({"prompt": "a", "echo": true}), 100).expect_err("echo");
        assert_eq!(error.param(), Some("echo"));
    }
}
