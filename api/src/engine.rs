//! Opens a model file and puts it on a device: the one place where the server's engine is made.

use crate::http::state::DeviceSummary;
use crate::settings::Settings;
use crate::text_model::TextModel;
use lavalane_actors::{Engine, EngineHandle, StartError};
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::chat::ChatTemplate;
use lavalane_runtime::engine::{EngineError, MemoryPlan, VulkanExecutor};
use lavalane_runtime::gguf::GgufError;
use lavalane_runtime::model::{Model, ModelError};
use lavalane_runtime::tokenizer::{Tokenizer, TokenizerError, TokenizerSource};
use std::sync::Arc;

/// A model on a device, with its engine running.
#[derive(Debug)]
pub struct LoadedEngine {
    /// The engine.
    pub engine: EngineHandle,
    /// The model's text side.
    pub model: TextModel,
    /// What computes.
    pub device: DeviceSummary,
    /// What the model takes of the device's memory.
    pub plan: MemoryPlan,
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
}

/// Loads the model that `settings` name and starts its engine.
///
/// # Errors
/// The model, the device or the memory is not there; see [`LoadError`].
pub fn load(settings: &Settings) -> Result<LoadedEngine, LoadError> {
    let model = Arc::new(Model::open(&settings.model)?);
    let source = TokenizerSource::from_gguf(model.file())?;
    let tokenizer = Arc::new(Tokenizer::new(&source, settings.unknown_pre_tokenizer)?);
    let template = ChatTemplate::from_source(&source, &tokenizer);
    if let Err(error) = &template {
        tracing::warn!("chat requests will be refused: {error}");
    }
    let executor = VulkanExecutor::new(model, &settings.engine_options)?;
    let report = executor.device();
    let device = DeviceSummary { device: report.name.clone(), pack: executor.pack().name().to_owned() };
    let plan = *executor.plan();
    let executor: Box<dyn BatchExecutor> = Box::new(executor);
    let engine = Engine::start(executor, tokenizer.clone(), settings.engine_settings.clone())?;
    let (name, aliases) = (settings.model_name.clone(), settings.model_aliases.clone());
    let model = TextModel::new(name, aliases, tokenizer, template);
    Ok(LoadedEngine { engine, model, device, plan })
}
