//! What a client asks of the engine and what it hears back.

use lavalane_runtime::ids::{LaneId, TokenId};
use lavalane_runtime::sampling::{Sampled, SamplingSettings, SignalWindow};
use std::num::NonZeroU32;
use std::time::Duration;

/// A request that was checked at the edge; the core never validates again.
#[derive(Clone, Debug)]
pub struct ValidRequest {
    /// The prompt, special tokens included; never empty, and shorter than the context.
    pub prompt: Vec<TokenId>,
    /// How tokens are drawn.
    pub sampling: SamplingSettings,
    /// Which of the request's choices this is; part of the random number's key.
    pub choice_index: u32,
    /// The most tokens to generate; at least 1. The context's end stops a reply too.
    pub tokens_max: u32,
    /// When the reply ends before that.
    pub stop: StopRules,
    /// How long the request may wait for a lane; `None` uses the engine's setting.
    pub queue_wait_max: Option<Duration>,
    /// How long the request may take once it has a lane; `None` uses the engine's setting.
    pub work_time_max: Option<Duration>,
    /// Higher goes first; requests that wait long enough age past it.
    pub priority: i32,
    /// Over how many of the last tokens signals are summed up beside each token, where the sampling
    /// settings ask for signals.
    pub signal_window: Option<NonZeroU32>,
}

impl ValidRequest {
    /// A request with the engine's own limits in time and no stops but the model's end tokens.
    pub fn new(prompt: Vec<TokenId>, sampling: SamplingSettings, tokens_max: u32) -> Self {
        Self {
            prompt,
            sampling,
            choice_index: 0,
            tokens_max,
            stop: StopRules::default(),
            queue_wait_max: None,
            work_time_max: None,
            priority: 0,
            signal_window: None,
        }
    }
}

/// When a reply ends before its token limit.
#[derive(Clone, Debug, Default)]
pub struct StopRules {
    /// Texts that end the reply; none is empty. A stop text never reaches the client.
    pub texts: Vec<String>,
    /// Tokens that end the reply, beside the model's own end tokens.
    pub tokens: Vec<TokenId>,
    /// Whether the model's own end tokens end the reply.
    pub end_tokens: EndTokens,
}

/// What the model's own end-of-generation tokens do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndTokens {
    /// They end the reply.
    #[default]
    Stop,
    /// They are drawn like any other token.
    Ignore,
}

/// One thing that a request's stream says, in order. `Finished`, `Failed`, `Cancelled` and `Refused`
/// are final: exactly one of them ends each stream.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// The request has a lane.
    Started {
        /// The lane.
        lane: LaneId,
        /// How many tokens of the prompt were found in the cache.
        cached_tokens: usize,
    },
    /// One token was drawn.
    Token(TokenEvent),
    /// The reply is complete.
    Finished(Finished),
    /// The request failed after it was admitted.
    Failed(Failure),
    /// The client cancelled.
    Cancelled(Usage),
    /// The request was queued and then not taken: it waited too long, or the engine began to stop. It
    /// never had a lane.
    Refused(Refusal),
}

impl RequestEvent {
    /// Whether the event ends its stream.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Started { .. } | Self::Token(_) => false,
            Self::Finished(_) | Self::Failed(_) | Self::Cancelled(_) | Self::Refused(_) => true,
        }
    }
}

/// One drawn token. An end token or a stop token is counted but not said: the reply ends instead.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The token with its log-probabilities.
    pub sampled: Sampled,
    /// The text that became certain with it: whole characters, and nothing that may still turn out
    /// to begin a stop text. May be empty.
    pub text: String,
    /// The signals of the last tokens, this one included, where the request asks for a window.
    pub window: Option<SignalWindow>,
}

/// A complete reply's end.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// Text that was held back until the end (a partial match of a stop text, an unfinished
    /// character as U+FFFD).
    pub text: String,
    /// What it used.
    pub usage: Usage,
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop token or a stop text.
    Stop {
        /// The stop text that was met, where it was one.
        text: Option<String>,
    },
    /// The token limit or the context's end.
    Length,
}

/// What a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: usize,
    /// Tokens drawn, the end token included.
    pub completion_tokens: usize,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Every lane is busy and the queue is full.
    #[error("the queue is full ({capacity} requests wait); try again in {} s", retry_after.as_secs().max(1))]
    QueueFull {
        /// The queue's capacity.
        capacity: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// The request waited longer than it may for a lane.
    #[error("no lane became free within {} ms", waited.as_millis())]
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },
    /// The prompt leaves no room in the context.
    #[error("the prompt has {prompt_tokens} tokens and the context holds {context_tokens}")]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// Tokens that the context holds.
        context_tokens: usize,
    },
    /// The prompt alone needs more KV pages than the pool has.
    #[error("the prompt needs {needed_pages} KV pages and the pool has {pool_pages}")]
    PoolTooSmall {
        /// Pages that the prompt needs.
        needed_pages: usize,
        /// Pages that the pool has.
        pool_pages: usize,
    },
    /// The engine is draining before it stops.
    #[error("the engine is shutting down")]
    Draining,
    /// The scheduler or the device is gone.
    #[error("the engine is not running: {0}")]
    NotRunning(String),
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
}

/// Why an admitted request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its lane failed.
    #[error(transparent)]
    Lane(#[from] lavalane_runtime::batch::LaneFaultCause),
    /// It took longer than it may.
    #[error("the request took longer than {} ms", limit.as_millis())]
    WorkTimeout {
        /// The limit.
        limit: Duration,
    },
    /// Its client did not read.
    #[error("the client reads too slowly: {buffered} events were waiting")]
    SlowReader {
        /// How many events were waiting.
        buffered: usize,
    },
    /// The device was lost and the request could not be rebuilt.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// Its work was put into several batches in a row, and each was cut before it ran.
    #[error("the request's work did not run in {attempts} attempts: {reason}")]
    NotRun {
        /// How many times it was tried.
        attempts: u32,
        /// Why the last batch was cut.
        reason: String,
    },
    /// The engine stopped.
    #[error("the engine stopped: {0}")]
    EngineStopped(String),
}
