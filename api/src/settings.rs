//! The settings of commands that run a model: from flags, the environment and a TOML file, in that
//! order of strength, validated once.
//!
//! One struct describes all three sources. Flags win over the environment within clap; both win over
//! the file here.

use crate::cache_settings::snapshots;
use crate::cli::device_arguments::KvTypeName;
use crate::http::state::{ApiKeys, HttpSettings};
use crate::templates::TemplateChoice;
use crate::websocket::WebSocketSettings;
use clap::{Args, ValueEnum};
use lavalane_actors::EngineSettings;
use lavalane_actors::settings::{PrefillPacing, PrefixReuse};
use lavalane_runtime::engine::EngineOptions;
use lavalane_runtime::tokenizer::UnknownPreTokenizer;
use lavalane_runtime::vulkan::{DeviceChoice, KvType, Pack, Precision};
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One source of settings; whatever it does not say is left to a weaker one.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SettingsSource {
    /// Model file (GGUF; the first part of a split one)
    #[arg(short, long, env = "LAVALANE_MODEL", value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Name that requests call the model by; the file's name without its ending if left out
    #[arg(long, env = "LAVALANE_MODEL_NAME", value_name = "NAME")]
    pub model_name: Option<String>,
    /// Further names of the model
    #[arg(long, env = "LAVALANE_MODEL_ALIAS", value_delimiter = ',', value_name = "NAME")]
    pub model_alias: Option<Vec<String>>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, env = "LAVALANE_HOST", value_name = "ADDRESS")]
    pub host: Option<IpAddr>,
    /// Port to listen on; 0 takes a free one [default: 8080]
    #[arg(short, long, env = "LAVALANE_PORT")]
    pub port: Option<u16>,
    /// Vulkan device: its number in `lavalane devices`, or a part of its name
    #[arg(short, long, env = "LAVALANE_DEVICE")]
    pub device: Option<String>,
    /// Kernel pack instead of the device's own: cpu, subgroup or coopmat
    #[arg(long, env = "LAVALANE_PACK")]
    pub pack: Option<String>,
    /// Members of the device group: instances of a software device, one core each [default: one per core
    /// of a software device whose driver can share memory, otherwise 1]
    #[arg(long, env = "LAVALANE_MEMBERS")]
    pub members: Option<usize>,
    /// Compute with f32 activations and an f32 KV cache
    #[arg(long, env = "LAVALANE_PRECISE", num_args = 0..=1, default_missing_value = "true")]
    pub precise: Option<bool>,
    /// Element type of the KV cache: f16 or f32 [default: f16, or f32 with --precise]
    #[arg(long, env = "LAVALANE_KV_TYPE", value_name = "TYPE")]
    pub kv_type: Option<String>,
    /// Chat template instead of the model's own: a Jinja file, or chatml
    #[arg(long, env = "LAVALANE_CHAT_TEMPLATE", value_name = "FILE|NAME")]
    pub chat_template: Option<String>,
    /// Tokens that one sequence may hold; the model's context, at most 8192, if left out
    #[arg(short, long, env = "LAVALANE_CONTEXT", value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Requests that run at once [default: 4]
    #[arg(short, long, env = "LAVALANE_LANES")]
    pub lanes: Option<usize>,
    /// Requests that may wait beyond those [default: 64]
    #[arg(long, env = "LAVALANE_QUEUE", value_name = "REQUESTS")]
    pub queue: Option<usize>,
    /// Megabytes for the KV cache
    #[arg(long, env = "LAVALANE_KV_MB", value_name = "MB")]
    pub kv_mb: Option<u64>,
    /// Rows of one iteration at the most [default: 512]
    #[arg(long, env = "LAVALANE_BATCH_ROWS", value_name = "ROWS")]
    pub batch_rows: Option<usize>,
    /// By how many per cent prompts may lengthen a step in which other requests draw tokens [default: 50]
    #[arg(long, env = "LAVALANE_PREFILL_LENGTHENING", value_name = "PERCENT")]
    pub prefill_lengthening: Option<u32>,
    /// Milliseconds of a step in which nobody draws tokens, about and at the most [default: 1000]
    #[arg(long, env = "LAVALANE_PREFILL_STEP_MS", value_name = "MS")]
    pub prefill_step_ms: Option<u64>,
    /// Whether prompts reuse the KV cache of earlier ones [default: true]
    #[arg(long, env = "LAVALANE_PREFIX_REUSE", value_name = "BOOL")]
    pub prefix_reuse: Option<bool>,
    /// Folder in which the KV cache of prompts outlives the server; one server at a time may have it
    #[arg(long, env = "LAVALANE_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Bytes that the files in it may take [default: 4294967296]
    #[arg(long, env = "LAVALANE_CACHE_BYTES", value_name = "BYTES")]
    pub cache_bytes: Option<u64>,
    /// Accept a tokenizer whose pre-tokenizer is not known, with a warning
    #[arg(long, env = "LAVALANE_ALLOW_UNKNOWN_PRETOKENIZER", num_args = 0..=1, default_missing_value = "true")]
    pub allow_unknown_pretokenizer: Option<bool>,
    /// API key that clients must send; may be given several times
    #[arg(long, env = "LAVALANE_API_KEY", value_delimiter = ',', hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<Vec<String>>,
    /// Web origin that may use the server, such as http://localhost:3000; * allows all
    #[arg(long, env = "LAVALANE_CORS_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    pub cors_origin: Option<Vec<String>>,
    /// Bytes of a request's body at the most [default: 2097152]
    #[arg(long, env = "LAVALANE_BODY_BYTES", value_name = "BYTES")]
    pub body_bytes: Option<usize>,
    /// Seconds that a request may wait for a lane [default: 60]
    #[arg(long, env = "LAVALANE_QUEUE_SECONDS", value_name = "SECONDS")]
    pub queue_seconds: Option<u64>,
    /// Seconds that a request may take once it has a lane [default: 600]
    #[arg(long, env = "LAVALANE_WORK_SECONDS", value_name = "SECONDS")]
    pub work_seconds: Option<u64>,
    /// Seconds that running requests get when the server is told to stop [default: 30]
    #[arg(long, env = "LAVALANE_DRAIN_SECONDS", value_name = "SECONDS")]
    pub drain_seconds: Option<u64>,
}

/// Why settings are refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not valid.
    #[error("the settings file {path} is not valid: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// No model is named.
    #[error("no model: give --model FILE, LAVALANE_MODEL, or `model` in the settings file")]
    NoModel,
    /// A setting's value cannot be.
    #[error("the setting `{name}` {rule}")]
    Invalid {
        /// The setting.
        name: &'static str,
        /// What it must be.
        rule: String,
    },
}

/// Settings, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The model file.
    pub model: PathBuf,
    /// The model's name.
    pub model_name: String,
    /// Its further names.
    pub model_aliases: Vec<String>,
    /// What becomes of an unknown pre-tokenizer.
    pub unknown_pre_tokenizer: UnknownPreTokenizer,
    /// Which chat template is used.
    pub chat_template: TemplateChoice,
    /// Where the server listens.
    pub address: SocketAddr,
    /// How the model is put on a device.
    pub engine_options: EngineOptions,
    /// How requests are scheduled.
    pub engine_settings: EngineSettings,
    /// How clients are treated.
    pub http: HttpSettings,
    /// How long running requests may take when the server stops.
    pub drain_time_max: Duration,
}

impl SettingsSource {
    /// Reads a TOML file, whose keys are the flags' names.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn read_file(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|source| SettingsError::Parse { path: path.to_owned(), source: Box::new(source) })
    }

    /// These settings, with those of a weaker source where these say nothing.
    #[must_use]
    pub fn or(self, weaker: Self) -> Self {
        Self {
            model: self.model.or(weaker.model),
            model_name: self.model_name.or(weaker.model_name),
            model_alias: self.model_alias.or(weaker.model_alias),
            host: self.host.or(weaker.host),
            port: self.port.or(weaker.port),
            device: self.device.or(weaker.device),
            members: self.members.or(weaker.members),
            pack: self.pack.or(weaker.pack),
            precise: self.precise.or(weaker.precise),
            kv_type: self.kv_type.or(weaker.kv_type),
            chat_template: self.chat_template.or(weaker.chat_template),
            context: self.context.or(weaker.context),
            lanes: self.lanes.or(weaker.lanes),
            queue: self.queue.or(weaker.queue),
            kv_mb: self.kv_mb.or(weaker.kv_mb),
            batch_rows: self.batch_rows.or(weaker.batch_rows),
            prefill_lengthening: self.prefill_lengthening.or(weaker.prefill_lengthening),
            prefill_step_ms: self.prefill_step_ms.or(weaker.prefill_step_ms),
            prefix_reuse: self.prefix_reuse.or(weaker.prefix_reuse),
            cache_dir: self.cache_dir.or(weaker.cache_dir),
            cache_bytes: self.cache_bytes.or(weaker.cache_bytes),
            allow_unknown_pretokenizer: self.allow_unknown_pretokenizer.or(weaker.allow_unknown_pretokenizer),
            api_key: self.api_key.or(weaker.api_key),
            cors_origin: self.cors_origin.or(weaker.cors_origin),
            body_bytes: self.body_bytes.or(weaker.body_bytes),
            queue_seconds: self.queue_seconds.or(weaker.queue_seconds),
            work_seconds: self.work_seconds.or(weaker.work_seconds),
            drain_seconds: self.drain_seconds.or(weaker.drain_seconds),
        }
    }

    /// Fills in the defaults and checks everything that needs neither model nor device.
    ///
    /// # Errors
    /// The first setting that cannot be.
    pub fn validate(self) -> Result<Settings, SettingsError> {
        let model = self.model.clone().ok_or(SettingsError::NoModel)?;
        let stem = model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let host = self.host.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        Ok(Settings {
            model_name: self.model_name.clone().or(stem).unwrap_or_else(|| "model".to_owned()),
            model,
            model_aliases: self.model_alias.clone().unwrap_or_default(),
            unknown_pre_tokenizer: match self.allow_unknown_pretokenizer {
                Some(true) => UnknownPreTokenizer::Allow,
                _ => UnknownPreTokenizer::Refuse,
            },
            chat_template: self.chat_template.as_deref().map_or(TemplateChoice::Model, TemplateChoice::read),
            address: SocketAddr::new(host, self.port.unwrap_or(8080)),
            engine_options: self.engine_options()?,
            engine_settings: self.engine_settings()?,
            http: self.http()?,
            drain_time_max: seconds("drain-seconds", self.drain_seconds, 30)?,
        })
    }

    fn engine_options(&self) -> Result<EngineOptions, SettingsError> {
        let pack = self.pack.as_deref().map(|name| {
            let rule = || format!("must be cpu, subgroup or coopmat, not {name:?}");
            Pack::from_name(name).ok_or_else(|| SettingsError::Invalid { name: "pack", rule: rule() })
        });
        let precision = match self.precise {
            Some(true) => Precision::Precise,
            _ => Precision::Default,
        };
        let kv_type = self.kv_type.as_deref().map(|name| {
            let rule = || format!("must be f16 or f32, not {name:?}");
            let known = KvTypeName::from_str(name, false).map(KvType::from);
            known.map_err(|_| SettingsError::Invalid { name: "kv-type", rule: rule() })
        });
        let defaults = EngineOptions::default();
        let kv_bytes = self.kv_mb.map(|megabytes| {
            let rule = format!("must be between 1 and {} MB, not {megabytes}", u64::MAX / 1_000_000);
            let bytes = megabytes.checked_mul(1_000_000).filter(|bytes| *bytes > 0);
            bytes.ok_or(SettingsError::Invalid { name: "kv-mb", rule })
        });
        Ok(EngineOptions {
            choice: DeviceChoice {
                device: self.device.clone(),
                pack: pack.transpose()?,
                members: self.members,
            },
            precision,
            kv_type: kv_type.transpose()?.unwrap_or_else(|| precision.kv_type()),
            lanes: at_least_one("lanes", self.lanes, EngineSettings::default().lanes)?,
            context_tokens: self
                .context
                .map(|tokens| at_least_one("context", Some(tokens), 1))
                .transpose()?,
            kv_bytes: kv_bytes.transpose()?,
            batch_rows_max: at_least_one("batch-rows", self.batch_rows, defaults.batch_rows_max)?,
            ..defaults
        })
    }

    fn engine_settings(&self) -> Result<EngineSettings, SettingsError> {
        let defaults = EngineSettings::default();
        let rows = at_least_one("batch-rows", self.batch_rows, defaults.rows_per_iteration)?;
        let prefix_reuse = match self.prefix_reuse {
            Some(false) => PrefixReuse::Off,
            _ => PrefixReuse::On,
        };
        Ok(EngineSettings {
            lanes: at_least_one("lanes", self.lanes, defaults.lanes)?,
            queue_capacity: at_least_one("queue", self.queue, defaults.queue_capacity)?,
            rows_per_iteration: rows,
            prefill_slice_rows_max: rows,
            prefill_pacing: self.prefill_pacing()?,
            queue_wait_max: seconds("queue-seconds", self.queue_seconds, 60)?,
            work_time_max: seconds("work-seconds", self.work_seconds, 600)?,
            prefix_reuse,
            snapshots: snapshots(self.cache_dir.as_deref(), self.cache_bytes, prefix_reuse)?,
            ..defaults
        })
    }

    fn prefill_pacing(&self) -> Result<PrefillPacing, SettingsError> {
        let lengthening = self.prefill_lengthening.unwrap_or(50);
        if lengthening == 0 {
            let rule = "must be at least 1".to_owned();
            return Err(SettingsError::Invalid { name: "prefill-lengthening", rule });
        }
        let step_ms = self.prefill_step_ms.unwrap_or(1000);
        if !(1..=600_000).contains(&step_ms) {
            let rule = format!("must be between 1 and 600000 milliseconds, not {step_ms}");
            return Err(SettingsError::Invalid { name: "prefill-step-ms", rule });
        }
        Ok(PrefillPacing::Adaptive {
            lengthening_max_percent: lengthening,
            step_time_max: Duration::from_millis(step_ms),
        })
    }

    fn http(&self) -> Result<HttpSettings, SettingsError> {
        let defaults = HttpSettings::default();
        let keys = self.api_key.clone().unwrap_or_default();
        if keys.iter().any(String::is_empty) {
            let rule = "must not hold an empty key".to_owned();
            return Err(SettingsError::Invalid { name: "api-key", rule });
        }
        let body_bytes_max = at_least_one("body-bytes", self.body_bytes, defaults.body_bytes_max)?;
        Ok(HttpSettings {
            api_keys: ApiKeys::new(keys.iter().map(String::as_str)),
            allowed_origins: self.cors_origin.clone().unwrap_or_default(),
            body_bytes_max,
            websocket: WebSocketSettings { message_bytes_max: body_bytes_max, ..defaults.websocket },
            ..defaults
        })
    }
}

fn at_least_one(name: &'static str, value: Option<usize>, default: usize) -> Result<usize, SettingsError> {
    match value.unwrap_or(default) {
        0 => Err(SettingsError::Invalid { name, rule: "must be at least 1".to_owned() }),
        value => Ok(value),
    }
}

fn seconds(name: &'static str, value: Option<u64>, default: u64) -> Result<Duration, SettingsError> {
    match value.unwrap_or(default) {
        seconds @ 1..=31_536_000 => Ok(Duration::from_secs(seconds)),
        other => {
            let rule = format!("must be between 1 and 31536000 seconds, not {other}");
            Err(SettingsError::Invalid { name, rule })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SettingsSource {
        toml::from_str(text).expect("valid")
    }

    #[test]
    fn a_stronger_source_wins_field_by_field() {
        let flags = SettingsSource { port: Some(1), ..SettingsSource::default() };
        let merged = flags.or(file("port = 2\nlanes = 3\nmodel = \"a/b.gguf\""));
        let settings = merged.validate().expect("valid");
        assert_eq!((settings.address.port(), settings.engine_settings.lanes), (1, 3));
        assert_eq!((settings.model_name.as_str(), settings.engine_options.lanes), ("b", 3));
    }

    #[test]
    fn the_kv_type_follows_the_precision_unless_it_is_given() {
        for (text, expected) in [
            ("", KvType::F16),
            ("precise = true", KvType::F32),
            ("kv-type = \"f32\"", KvType::F32),
            ("precise = true\nkv-type = \"f16\"", KvType::F16),
        ] {
            let settings = file(&format!("model = \"m\"\n{text}")).validate().expect("valid");
            assert_eq!(settings.engine_options.kv_type, expected, "{text}");
        }
    }

    #[test]
    fn a_chat_template_is_a_known_name_or_a_file() {
        for (text, expected) in [
            ("", TemplateChoice::Model),
            ("chat-template = \"chatml\"", TemplateChoice::ChatMl),
            ("chat-template = \"./chatml\"", TemplateChoice::File("./chatml".into())),
        ] {
            let settings = file(&format!("model = \"m\"\n{text}")).validate().expect("valid");
            assert_eq!(settings.chat_template, expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_key_of_the_file_is_refused_by_name() {
        let error = toml::from_str::<SettingsSource>("prot = 1").expect_err("unknown");
        assert!(error.to_string().contains("prot"), "{error}");
    }

    #[test]
    fn a_value_that_cannot_be_is_refused_by_name() {
        for (text, name) in [
            ("lanes = 0", "lanes"),
            ("pack = \"gpu\"", "pack"),
            ("kv-mb = 0", "kv-mb"),
            ("kv-type = \"f8\"", "kv-type"),
            ("queue-seconds = 0", "queue-seconds"),
            ("prefill-lengthening = 0", "prefill-lengthening"),
            ("prefill-step-ms = 0", "prefill-step-ms"),
            ("api-key = [\"\"]", "api-key"),
        ] {
            let error = file(&format!("model = \"m\"\n{text}")).validate().expect_err(text);
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
        assert!(matches!(file("").validate(), Err(SettingsError::NoModel)));
    }
}
