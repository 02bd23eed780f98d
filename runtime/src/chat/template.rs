//! A model's chat template: compiled once, run for each conversation under a budget of work.

use super::TemplateError;
use super::functions::{Raised, install};
use super::guard::{ControlTexts, protect};
use super::markers::strip_generation_markers;
use super::message::{Abilities, ChatMessage, ContentForms, Knowledge, template_view};
use super::prompt::RenderedPrompt;
use crate::tokenizer::{Tokenizer, TokenizerSource};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value, json};

/// The largest template that is read; those of real models have up to about 20 kB.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// The work that any render may take, in minijinja's fuel: about one for each instruction and one for
/// each 64 bytes of data. It bounds honest mistakes to about a second and 128 MB. It does not bound a
/// template that means harm: minijinja 3.1 charges too late or not at all where a value that is small in
/// memory is large when it is walked (lists added or repeated lazily, or nested in each other many times
/// over). Whoever serves files that are not trusted renders in a process with limits of its own.
const FUEL: u64 = 2_000_000;

/// How deep macros, includes and blocks may nest.
const RECURSION_MAX: usize = 64;

/// The stack of a render. Only what is touched takes memory; a value nested as deep as the budget allows
/// needs about half of it.
const STACK_BYTES: usize = 256 << 20;

const NAME: &str = "chat_template";

/// The ChatML form, for models without a template whose user asks for it.
pub const CHATML: &str = "\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A chat template, ready to render. Shared by `Arc`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_text: String,
    eos_text: String,
    control: ControlTexts,
    abilities: Abilities,
}

/// What a template must know of the model's tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTexts {
    /// The text of the token that begins a sequence; empty where there is none.
    pub bos: String,
    /// The text of the token that ends one; empty where there is none.
    pub eos: String,
    /// The texts that become control tokens.
    pub control: Vec<String>,
}

impl TemplateTexts {
    /// Those of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let text = |token: Option<_>| token.and_then(|token| tokenizer.token_text(token)).unwrap_or_default();
        Self {
            bos: text(tokenizer.bos()).to_owned(),
            eos: text(tokenizer.eos()).to_owned(),
            control: tokenizer.protected_texts().to_vec(),
        }
    }
}

/// Whether the prompt ends with the beginning of the assistant's message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does, so that the model answers.
    #[default]
    Add,
    /// It ends with the last message.
    Leave,
}

/// What a template is given beside the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// The tools as the API describes them; empty means that there are none.
    pub tools: Vec<Value>,
    /// How the prompt ends.
    pub generation_prompt: GenerationPrompt,
    /// Further variables of this template, such as `enable_thinking`. They cannot replace the
    /// standard ones.
    pub extra: Map<String, Value>,
}

impl ChatTemplate {
    /// The template of a model file.
    ///
    /// # Errors
    /// The file has none, or it is faulty.
    pub fn from_source(source: &TokenizerSource, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let template = source.chat_template.as_deref().ok_or(TemplateError::Missing)?;
        Self::new(template, tokenizer)
    }

    /// The ChatML form, for models without a template of their own. Only to be used where a user asks
    /// for it: a model that was not trained on it answers poorly.
    ///
    /// # Errors
    /// None for this template; the signature is that of [`ChatTemplate::new`].
    pub fn chatml(tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::new(CHATML, tokenizer)
    }

    /// Compiles `source` for the model of `tokenizer`, which tells the texts of BOS, EOS and all
    /// control tokens.
    ///
    /// # Errors
    /// The template is too large or no valid Jinja.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::with_texts(source, TemplateTexts::of(tokenizer))
    }

    /// Compiles `source` for a tokenizer of which only these texts are known.
    ///
    /// # Errors
    /// As for [`ChatTemplate::new`].
    pub fn with_texts(source: &str, texts: TemplateTexts) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::TooLarge { bytes: source.len(), limit: SOURCE_BYTES_MAX });
        }
        let mut environment = Environment::new();
        // As Hugging Face configures Jinja for chat templates.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| failure(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_recursion_limit(RECURSION_MAX);
        install(&mut environment);
        let stripped = strip_generation_markers(source);
        environment.add_template_owned(NAME, stripped).map_err(|error| failure(&error))?;
        let mut template = Self {
            environment,
            source: source.to_owned(),
            bos_text: texts.bos,
            eos_text: texts.eos,
            control: ControlTexts::new(&texts.control),
            abilities: Abilities {
                content: ContentForms::Text,
                developer: knowledge(source, "developer"),
                tool_calls: knowledge(source, "tool_calls"),
            },
        };
        template.abilities.content = template.content_forms();
        Ok(template)
    }

    /// The template's source, as the file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for `messages`.
    ///
    /// # Errors
    /// The template refuses the messages or fails on them, takes too much work, or treats a control
    /// text in a message in a way that cannot be followed.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        let mut context = options.extra.clone();
        let views = messages.iter().map(|message| template_view(message, self.abilities)).collect();
        context.insert("messages".into(), Value::Array(views));
        let tools = if options.tools.is_empty() { Value::Null } else { options.tools.clone().into() };
        context.insert("tools".into(), tools);
        let prompt = self.run(&context, options.generation_prompt)?;
        protect(prompt, &context, &self.control, &self.source, |context| {
            self.run(context, options.generation_prompt)
        })
    }

    /// Runs the template once, on a thread of its own: within its budget a template can nest values so
    /// deep that dropping them, which recurses, would overflow an ordinary stack and abort the process.
    fn run(
        &self,
        context: &Map<String, Value>,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, TemplateError> {
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("chat-template".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.run_here(context, generation_prompt))
                .map_err(|error| TemplateError::Failed(format!("no thread could be started: {error}")))?
                .join()
                .unwrap_or_else(|_| Err(TemplateError::Failed("the template engine panicked".to_owned())))
        })
    }

    fn run_here(
        &self,
        context: &Map<String, Value>,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, TemplateError> {
        let own = [
            ("bos_token", self.bos_text.as_str().into()),
            ("eos_token", self.eos_text.as_str().into()),
            ("add_generation_prompt", (generation_prompt == GenerationPrompt::Add).into()),
        ];
        let given = context.iter().filter(|(key, _)| own.iter().all(|(name, _)| name != key));
        let given = given.map(|(key, value)| (key.as_str(), template_value(value)));
        let own = own.iter().map(|(key, value): &(&str, minijinja::Value)| (*key, value.clone()));
        let values = minijinja::Value::from_pairs(given.chain(own));
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL.saturating_add(bytes_of_object(context))));
        let template = environment.get_template(NAME).map_err(|error| failure(&error))?;
        template.render(values).map_err(|error| failure(&error))
    }

    /// Finds which forms of content the template prints, by trying.
    fn content_forms(&self) -> ContentForms {
        const NEEDLE: &str = "lavalane probe";
        let prints = |content: Value| {
            let mut context = Map::new();
            context.insert("messages".into(), json!([{ "role": "user", "content": content }]));
            context.insert("tools".into(), Value::Null);
            // Where a list is printed as such, its other words show too.
            let rendered = self.run(&context, GenerationPrompt::Add);
            rendered.is_ok_and(|text| text.contains(NEEDLE) && !text.contains("probe kind"))
        };
        let text = prints(NEEDLE.into());
        let parts = prints(json!([{ "type": "text", "text": NEEDLE, "extra": "probe kind" }]));
        match (text, parts) {
            (false, true) => ContentForms::Parts,
            (true, true) => ContentForms::Both,
            (_, false) => ContentForms::Text,
        }
    }
}

fn knowledge(source: &str, word: &str) -> Knowledge {
    if source.contains(word) { Knowledge::Known } else { Knowledge::Unknown }
}

/// A JSON value for the template engine, objects in their own order.
fn template_value(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(template_value).collect::<Vec<_>>().into(),
        Value::Object(fields) => minijinja::Value::from_pairs(
            fields.iter().map(|(key, value)| (key.clone(), template_value(value))),
        ),
    }
}

/// About how many bytes the values hold.
fn bytes_of_object(fields: &Map<String, Value>) -> u64 {
    fields.iter().map(|(key, value)| key.len() as u64 + bytes_of(value)).fold(0, u64::saturating_add)
}

fn bytes_of(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(bytes_of).fold(16, u64::saturating_add),
        Value::Object(fields) => bytes_of_object(fields).saturating_add(16),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// What went wrong, in our terms; a template's own words are passed through.
fn failure(error: &Error) -> TemplateError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = source {
        if let Some(Raised(text)) = inner.downcast_ref() {
            return TemplateError::Refused(text.clone());
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork,
        ErrorKind::SyntaxError => TemplateError::Syntax(error.to_string()),
        _ => TemplateError::Failed(error.to_string()),
    }
}
