//! Opens a model file and puts it on a device: the one place where the server's engine is made.

use crate::faults::Faults;
use crate::http::state::DeviceSummary;
use crate::settings::Settings;
use crate::software_threads::restart_if_alone;
use crate::templates::{TemplateChoice, TemplateProcess, TemplateRenderer};
use crate::text_model::TextModel;
use lavalane_actors::{Engine, EngineHandle, StartError};
use lavalane_runtime::chat::{CHATML, ChatTemplate, TemplateError, TemplateTexts};
use lavalane_runtime::engine::{EngineError, MemoryPlan, VulkanExecutor};
use lavalane_runtime::gguf::GgufError;
use lavalane_runtime::model::{Model, ModelError};
use lavalane_runtime::tokenizer::{Tokenizer, TokenizerError, TokenizerSource};
use lavalane_runtime::vulkan::{GroupReport, OpenDevice};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes that are read of a template file; more than any template may have.
const TEMPLATE_BYTES_MAX: u64 = 4 << 20;

/// A model on a device, with its engine running.
#[derive(Debug)]
pub struct LoadedEngine {
    /// The engine.
    pub engine: EngineHandle,
    /// The model's text side.
    pub model: TextModel,
    /// What computes.
    pub device: DeviceSummary,
    /// How the devices of its group compute together.
    pub group: GroupReport,
    /// What the model takes of the device's memory.
    pub plan: MemoryPlan,
}

/// Where chat templates are rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateHost {
    /// In this process: for model files that are trusted.
    Here,
    /// In a process of this program, which is `lavalane` or runs its command line.
    Apart {
        /// The program.
        program: PathBuf,
    },
}

impl TemplateHost {
    fn host(&self, source: &str, tokenizer: &Tokenizer) -> Result<TemplateRenderer, TemplateError> {
        match self {
            Self::Here => ChatTemplate::new(source, tokenizer).map(TemplateRenderer::from),
            Self::Apart { program } => {
                let texts = TemplateTexts::of(tokenizer);
                TemplateProcess::start(program.clone(), source, &texts).map(TemplateRenderer::from)
            }
        }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model file is missing, cut, or of a kind that is not known.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file's tokenizer fields cannot be read.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// The tokenizer is faulty or not known.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// There is no device, or the model does not fit on it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine's actors did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The file with the chat template cannot be read.
    #[error("cannot read the chat template {}: {source}", path.display())]
    TemplateFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The chat template that was asked for cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Loads the model that `settings` name and starts its engine.
///
/// # Errors
/// The model, the device or the memory is not there; see [`LoadError`].
pub fn load(settings: &Settings, host: &TemplateHost) -> Result<LoadedEngine, LoadError> {
    load_with_faults(settings, host, &Faults::default())
}

/// The same, with faults.
///
/// # Errors
/// As [`load`].
pub fn load_with_faults(
    settings: &Settings,
    host: &TemplateHost,
    faults: &Faults,
) -> Result<LoadedEngine, LoadError> {
    // Opening the device takes as long as reading the text's side of the model.
    let (device, opened) = std::thread::scope(|scope| {
        let device = scope.spawn(|| OpenDevice::open(&settings.engine_options.choice));
        let opened = open_model(settings, host);
        (device.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), opened)
    });
    let (model, tokenizer, template) = opened?;
    let device = device.map_err(EngineError::from)?;
    let executor = VulkanExecutor::on(device, model, &settings.engine_options)?;
    let group = executor.group_report().expect("a device that was just opened is not lost");
    restart_if_alone(&group);
    let report = executor.device();
    let device = DeviceSummary {
        device: report.name.clone(),
        pack: executor.pack().name().to_owned(),
        kv_type: settings.engine_options.kv_type.name().to_owned(),
    };
    let plan = *executor.plan();
    let executor = faults.around(executor);
    let engine_settings = settings.engine_settings.clone();
    let engine = Engine::start_with_files(executor, tokenizer.clone(), engine_settings, faults.files())?;
    faults.attach(&engine);
    let (name, aliases) = (settings.model_name.clone(), settings.model_aliases.clone());
    let model = TextModel::new(name, aliases, tokenizer, template);
    Ok(LoadedEngine { engine, model, device, group, plan })
}

type Opened = (Arc<Model>, Arc<Tokenizer>, Result<TemplateRenderer, TemplateError>);

/// The model's file, its tokenizer and its chat template.
fn open_model(settings: &Settings, host: &TemplateHost) -> Result<Opened, LoadError> {
    let model = Arc::new(Model::open(&settings.model)?);
    let source = TokenizerSource::from_gguf(model.file())?;
    let tokenizer = Arc::new(Tokenizer::new(&source, settings.unknown_pre_tokenizer)?);
    let template = template(&settings.chat_template, &source, &tokenizer, host)?;
    Ok((model, tokenizer, template))
}

/// The chat template. A model file without a usable one fails chat requests only; one that was asked for must be
/// usable.
fn template(
    choice: &TemplateChoice,
    source: &TokenizerSource,
    tokenizer: &Tokenizer,
    host: &TemplateHost,
) -> Result<Result<TemplateRenderer, TemplateError>, LoadError> {
    match choice {
        TemplateChoice::Model => {
            let own = source.chat_template.as_deref().ok_or(TemplateError::Missing);
            let template = own.and_then(|own| host.host(own, tokenizer));
            if let Err(error) = &template {
                tracing::warn!(
                    "chat requests will be refused: {error}; --chat-template gives another template"
                );
            }
            Ok(template)
        }
        TemplateChoice::ChatMl => Ok(Ok(host.host(CHATML, tokenizer)?)),
        TemplateChoice::File(path) => {
            let text = read_template(path)
                .map_err(|source| LoadError::TemplateFile { path: path.clone(), source })?;
            Ok(Ok(host.host(&text, tokenizer)?))
        }
    }
}

fn read_template(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TEMPLATE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
